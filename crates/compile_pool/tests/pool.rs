//! The pool with real compiler processes: this program, started once more, in its role.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use compile_pool::cache::Store;
use compile_pool::{Origin, Pool, Process};
use ptx_jit::compiler::{Bounds, Compiler, Job, Outcome, Request, Source};
use ptx_jit::{CompileError, EngineKind};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use transport::unix;

const BOUND: Duration = Duration::from_secs(60);
const COMPILER: &str = "COMPILE_POOL_TEST_COMPILER";

/// Not a test: what the processes do that the tests start.
#[test]
fn compiler() {
    if std::env::var_os(COMPILER).is_none() {
        return;
    }
    let _ = sandbox::begin(sandbox::Role::Compiler, &[]);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let seal = || {
        let sealed = sandbox::seal(sandbox::Role::Compiler);
        assert_eq!(sealed.holds, sandbox::Holds::Yes);
    };
    compile_pool::compiler::serve(socket, seal).unwrap();
    std::process::exit(0);
}

/// Starts compilers on a thread, as the control process does.
#[derive(Debug, Clone, Default)]
struct Starter(Arc<Started>);

#[derive(Debug, Default)]
struct Started {
    pool: OnceLock<Pool>,
    children: Mutex<Vec<Child>>,
    waiting: Mutex<usize>,
    refuses: AtomicBool,
    store: Option<Arc<Store>>,
}

impl Origin for Starter {
    fn want(&self) {
        let this = self.clone();
        std::thread::spawn(move || this.start());
    }
}

impl Starter {
    fn start(&self) {
        // The pool asks while it is made.
        let pool = until("the pool", || self.0.pool.get());
        *self.0.waiting.lock().unwrap() += 1;
        if self.0.refuses.load(Ordering::SeqCst) {
            return pool.refuse("by the test");
        }
        let (ours, theirs) = unix::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["compiler", "--exact", "--nocapture"])
            .env(COMPILER, "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        self.0.children.lock().unwrap().push(child);
        let shelf = self.0.store.clone().map(|store| -> OwnedFd {
            let (ours, theirs) = unix::pair().unwrap();
            std::thread::spawn(move || store.serve(&theirs));
            ours
        });
        pool.admit(Process::new(pid, pidfd, ours, shelf));
    }

    fn living(&self) -> Vec<i32> {
        let mut children = self.0.children.lock().unwrap();
        let mut living = Vec::new();
        for child in children.iter_mut() {
            if child.try_wait().unwrap().is_none() {
                living.push(child.id().cast_signed());
            }
        }
        living
    }

    fn ever(&self) -> usize {
        *self.0.waiting.lock().unwrap()
    }
}

fn pool(processors: usize) -> (Pool, Starter) {
    pool_with(processors, Started::default())
}

fn pool_with(processors: usize, started: Started) -> (Pool, Starter) {
    let starter = Starter(Arc::new(started));
    let pool = Pool::new(Box::new(starter.clone()), processors);
    starter.0.pool.set(pool.clone()).unwrap();
    (pool, starter)
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A kernel of so many dependent operations.
fn text(operations: usize) -> String {
    let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n\
        .reg .u64 %rd<3>;\n.reg .f32 %f<3>;\nld.param.u64 %rd1, [p];\nld.global.f32 %f1, [%rd1];\n"
        .to_owned();
    for _ in 0..operations {
        text += "fma.rn.f32 %f1, %f1, %f1, %f1;\n";
    }
    text + "st.global.f32 [%rd1], %f1;\nret;\n}\n"
}

/// The same, in regions that can be compiled side by side.
fn with_barriers(operations: usize) -> String {
    const FMA: &str = "fma.rn.f32 %f1, %f1, %f1, %f1;\n";
    let piece = FMA.repeat(25);
    text(operations).replace(&piece, &format!("{piece}bar.sync 0;\n"))
}

fn source(text: &str) -> Arc<Source> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::SeqCst);
    Arc::new(Source { id, text: text.into(), symbols: Default::default() })
}

fn request(owner: u64, source: &Arc<Source>) -> Request {
    let bounds = Bounds { memory_bytes: 2 << 30, time: Duration::from_secs(600), threads: 4 };
    let (source, entry) = (Arc::clone(source), "k".to_owned());
    Request { tenant: owner, owner, source, entry, block: [64, 1, 1], stack_bytes: 0, engine: EngineKind::Jit, bounds }
}

fn start(pool: &Pool, request: Request) -> (Box<dyn Job>, Receiver<Outcome>) {
    let (sender, receiver): (Sender<Outcome>, _) = channel();
    // Who has dropped the receiver does not mind.
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    (pool.start(request, done), receiver)
}

fn compile(pool: &Pool, request: Request) -> Outcome {
    let (_job, outcome) = start(pool, request);
    outcome.recv_timeout(BOUND).unwrap()
}

#[test]
fn kernels_come_back_as_machine_code_and_errors_as_they_are() {
    let (pool, starter) = pool(2);
    let small = source(&text(10));
    let begin = Instant::now();
    let outcome = compile(&pool, request(1, &small));
    println!("first: {:?}, of it on a processor {:?}", begin.elapsed(), outcome.cpu);
    assert!(outcome.code.unwrap().is_machine_code() && outcome.cpu > Duration::ZERO);
    for _ in 0..3 {
        let begin = Instant::now();
        let block = [32, 2, 1];
        let outcome = compile(&pool, Request { block, ..request(1, &small) });
        println!("again: {:?}, of it on a processor {:?}", begin.elapsed(), outcome.cpu);
        assert!(outcome.code.unwrap().is_machine_code());
    }
    let interpreted = compile(&pool, Request { engine: EngineKind::Interpreter, ..request(1, &small) });
    assert!(!interpreted.code.unwrap().is_machine_code());
    let missing = compile(&pool, Request { entry: "q".into(), ..request(1, &small) });
    assert!(matches!(missing.code, Err(CompileError::NoEntry { name }) if name == "q"));
    let long = compile(&pool, Request { entry: "q".repeat(1 << 20), ..request(1, &small) });
    assert!(matches!(long.code, Err(CompileError::Failed { .. })));
    let garbage = compile(&pool, request(1, &source("no PTX at all")));
    assert!(matches!(garbage.code, Err(CompileError::Invalid(_))));
    let block = compile(&pool, Request { block: [0, 1, 1], ..request(1, &small) });
    assert!(matches!(block.code, Err(CompileError::Unsupported { .. })));
    assert!(compile(&pool, request(1, &small)).code.is_ok(), "after all that");
    // One that works for owner 1, and two that stand ready; another owner gets one of these, and a third takes its place.
    until("two to stand ready", || (starter.ever() >= 3).then_some(()));
    assert_eq!(starter.ever(), 3);
    assert!(compile(&pool, request(2, &small)).code.is_ok());
    until("another in its place", || (starter.ever() == 4).then_some(()));
    assert!(compile(&pool, request(2, &small)).code.is_ok());
    assert_eq!(starter.ever(), 4, "an owner keeps its process");
    until("those without work to end", || (starter.living().len() == 2).then_some(()));
}

#[test]
fn processes_without_work_end_though_others_come_and_go() {
    let (pool, starter) = pool(2);
    let small = source(&text(10));
    for owner in 1..=8 {
        assert!(compile(&pool, request(owner, &small)).code.is_ok());
    }
    // The ninth works all the time.
    let mut x = 0;
    until("the eight to end", || {
        x += 1;
        assert!(compile(&pool, Request { block: [x % 1024 + 1, 1, 1], ..request(9, &small) }).code.is_ok());
        (starter.living().len() <= 3).then_some(())
    });
}

#[test]
fn nobody_waits_for_anothers_large_kernels_and_dropping_ends_them() {
    let (pool, starter) = pool(1);
    let large = source(&text(300_000));
    let jobs: Vec<_> = (0..8).map(|_| start(&pool, request(1, &large))).collect();
    until("the first to be at work", || jobs.iter().find(|(job, _)| job.cpu() > Duration::from_millis(50)));
    let outcome = compile(&pool, request(2, &source(&text(10))));
    assert!(outcome.code.unwrap().is_machine_code());
    assert!(jobs.iter().all(|(_, outcome)| outcome.try_recv().is_err()), "they take much longer");
    assert_eq!(jobs.iter().filter(|(job, _)| job.cpu() > Duration::ZERO).count(), 1, "one processor, one of an owner");
    let before = starter.living();
    drop(jobs);
    until("the process at work to be ended", || before.iter().find(|pid| !starter.living().contains(pid)));
    assert!(compile(&pool, request(1, &source(&text(10)))).code.is_ok(), "its owner goes on");
}

/// Memory files of a module that this process has open.
fn files_of(source: &Source) -> usize {
    let name = format!("/memfd:module-{} ", source.id);
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    open.filter(|path| path.to_string_lossy().starts_with(&name)).count()
}

#[test]
fn a_tenant_of_many_programs_keeps_no_other_waiting() {
    const PROGRAMS: u64 = 24;
    let (pool, starter) = pool(2);
    let long = source(&text(30_000));
    let jobs: Vec<_> = (0..PROGRAMS).map(|n| start(&pool, Request { tenant: 1, ..request(100 + n, &long) })).collect();
    let mut most_files = 0;
    let both = || {
        most_files = most_files.max(files_of(&long));
        (jobs.iter().filter(|(job, _)| job.cpu() > Duration::from_millis(50)).count() >= 2).then_some(())
    };
    until("two to be at work", both);
    let small = source(&text(10));
    for round in 1..=4 {
        let begin = Instant::now();
        let block = [32 * round, 1, 1];
        let outcome = compile(&pool, Request { tenant: 2, block, ..request(2, &small) });
        assert!(outcome.code.unwrap().is_machine_code());
        println!("round {round}, beside {PROGRAMS} programs of another tenant: {:?}", begin.elapsed());
        most_files = most_files.max(files_of(&long));
    }
    let waiting = jobs.iter().filter(|(_, outcome)| outcome.try_recv().is_err()).count();
    assert!(waiting as u64 > PROGRAMS / 2, "{waiting} of them are still to come");
    assert!(starter.living().len() <= 16, "half of them the first tenant's at most");
    assert_eq!(most_files, 1, "all its processes read the same file");
    drop(jobs);
    until("the file to go", || (files_of(&long) == 0).then_some(()));
}

#[test]
fn what_takes_too_much_is_left_to_the_interpreter() {
    let (pool, _starter) = pool(2);
    for text in [text(20_000), with_barriers(20_000)] {
        let bounds = Bounds { memory_bytes: 2 << 30, time: Duration::from_millis(20), threads: 4 };
        let outcome = compile(&pool, Request { bounds, ..request(1, &source(&text)) });
        assert!(!outcome.code.unwrap().is_machine_code());
        let bounds = Bounds { memory_bytes: 1 << 20, time: BOUND, threads: 4 };
        let outcome = compile(&pool, Request { bounds, ..request(1, &source(&text)) });
        assert!(!outcome.code.unwrap().is_machine_code());
    }
}

/// Threads of a process.
fn threads_of(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok());
    count.unwrap_or(0)
}

#[test]
fn several_threads_compile_a_large_kernel_and_end_with_it() {
    let (pool, starter) = pool(4);
    // Nothing of it is large, but there is much of it.
    let large = source(&with_barriers(4000));
    let alone = Bounds { threads: 1, ..request(1, &large).bounds };
    assert!(compile(&pool, Request { bounds: alone, ..request(1, &large) }).code.unwrap().is_machine_code());
    let most = || starter.living().into_iter().map(threads_of).max().unwrap_or(0);
    let before = most();
    let mut x = 0;
    let mut under_way = None;
    until("more threads", || {
        let next = || {
            x += 1;
            start(&pool, Request { block: [x % 1024 + 1, 1, 1], ..request(1, &large) })
        };
        let (_, outcome) = under_way.get_or_insert_with(next);
        if let Ok(outcome) = outcome.try_recv() {
            assert!(outcome.code.unwrap().is_machine_code());
            under_way = None;
        }
        (most() > before).then_some(())
    });
    if let Some((_job, outcome)) = under_way {
        assert!(outcome.recv_timeout(BOUND).unwrap().code.unwrap().is_machine_code());
    }
    until("them to end", || (most() <= before).then_some(()));
}

#[test]
fn a_compiler_that_dies_is_that_kernels_misfortune() {
    let (pool, starter) = pool(1);
    let (job, outcome) = start(&pool, request(1, &source(&text(300_000))));
    until("it to be at work", || (job.cpu() > Duration::from_millis(50)).then_some(()));
    let busiest = starter.living().into_iter().max_by_key(|&pid| sandbox::cpu_time(pid)).unwrap();
    kill(busiest);
    // The kernel is interpreted, and the pool works.
    let outcome = outcome.recv_timeout(BOUND).unwrap();
    assert!(!outcome.code.unwrap().is_machine_code());
    assert!(outcome.cpu > Duration::from_millis(50), "the one that died counts");
    until("them to be dead", || {
        let living = starter.living();
        living.iter().for_each(|pid| kill(*pid));
        living.is_empty().then_some(())
    });
    let outcome = compile(&pool, request(2, &source(&text(10))));
    assert!(outcome.code.unwrap().is_machine_code(), "what died without work is replaced");
}

fn kill(pid: i32) {
    // It may be dead already.
    if let Ok(pidfd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}

#[test]
fn without_processes_there_is_an_error_and_no_waiting() {
    let started = Started { refuses: AtomicBool::new(true), ..Started::default() };
    let (pool, starter) = pool_with(2, started);
    let outcome = compile(&pool, request(1, &source(&text(10))));
    assert!(matches!(outcome.code, Err(CompileError::Failed { .. })));
    starter.0.refuses.store(false, Ordering::SeqCst);
    until("it to try again", || compile(&pool, request(1, &source(&text(10)))).code.ok());
}

#[test]
fn what_was_compiled_once_is_kept() {
    let directory = std::env::temp_dir().join(format!("sundial-pool-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let small = text(100);
    for round in 0..2 {
        let store = Arc::new(Store::open(&directory, 1 << 20).unwrap());
        let (pool, _starter) = pool_with(2, Started { store: Some(store), ..Started::default() });
        let begin = Instant::now();
        let outcome = compile(&pool, request(round, &source(&small)));
        println!("round {round}: {:?}", begin.elapsed());
        assert!(outcome.code.unwrap().is_machine_code());
        assert_eq!(outcome.cpu == Duration::ZERO, round == 1, "{:?}", outcome.cpu);
        until("it to be written", || images(&directory).first().cloned());
    }
    // A damaged file is compiled anew, and replaced.
    let image = images(&directory).remove(0);
    let good = std::fs::read(&image).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&image, &bad).unwrap();
    let store = Arc::new(Store::open(&directory, 1 << 20).unwrap());
    let (pool, _starter) = pool_with(2, Started { store: Some(store), ..Started::default() });
    let outcome = compile(&pool, request(7, &source(&small)));
    assert!(outcome.code.unwrap().is_machine_code() && outcome.cpu > Duration::ZERO);
    until("it to be written anew", || (std::fs::read(&image).ok()? == good).then_some(()));
    std::fs::remove_dir_all(&directory).unwrap();
}

fn images(directory: &PathBuf) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "image")).collect()
}
