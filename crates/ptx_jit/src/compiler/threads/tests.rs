use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::*;
use crate::EngineKind;
use crate::compiler::Bounds;

/// A bound on every wait.
const PATIENCE: Duration = Duration::from_secs(120);

fn source(id: u64, text: &str) -> Arc<Source> {
    Arc::new(Source { id, text: text.into(), symbols: HashMap::new() })
}

/// A kernel that loads, changes and stores `n` times, which takes long to compile.
fn kernel(n: usize) -> String {
    let body = "ld.global.u64 %rd2, [%rd3];\nxor.b64 %rd2, %rd2, 5;\nst.global.u64 [%rd3], %rd2;\n".repeat(n);
    format!(
        ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a)\n{{\n.reg .b32 %r<2>;\n\
         .reg .b64 %rd<4>;\nld.param.u64 %rd1, [a];\nmov.u32 %r1, %tid.x;\nmad.wide.u32 %rd3, %r1, 8, %rd1;\n{body}\
         ret;\n}}\n"
    )
}

fn request(owner: u64, source: Arc<Source>, bounds: Bounds) -> Request {
    Request {
        tenant: owner,
        owner,
        source,
        entry: "k".to_owned(),
        block: [32, 1, 1],
        stack_bytes: 0,
        engine: EngineKind::Jit,
        bounds,
    }
}

const AMPLE: Bounds = Bounds { memory_bytes: u64::MAX, time: PATIENCE, threads: 1 };

fn start(threads: &Threads, request: Request) -> (Ticket, Receiver<Outcome>) {
    let (tell, told) = channel();
    let job = threads.begin(request, Box::new(move |outcome| tell.send(outcome).unwrap_or_default()));
    (job, told)
}

#[test]
fn a_kernel_is_compiled_and_its_time_is_known() {
    let threads = Threads::default();
    let (job, told) = start(&threads, request(1, source(1, &kernel(50)), AMPLE));
    let outcome = told.recv_timeout(PATIENCE).unwrap();
    assert!(outcome.code.unwrap().is_machine_code());
    assert!(outcome.cpu > Duration::ZERO);
    assert_eq!(job.cpu(), outcome.cpu);
}

#[test]
fn what_is_wrong_is_told() {
    let threads = Threads::default();
    let told = |id, text: &str, entry: &str| {
        let mut request = request(1, source(id, text), AMPLE);
        request.entry = entry.to_owned();
        let (_job, told) = start(&threads, request);
        told.recv_timeout(PATIENCE).unwrap().code.unwrap_err()
    };
    assert!(matches!(told(1, "no PTX at all", "k"), CompileError::Invalid(_)));
    assert!(matches!(told(2, &kernel(1), "other"), CompileError::NoEntry { .. }));
    assert!(matches!(told(3, &kernel(1).replace("xor.b64", "frobnicate"), "k"), CompileError::Invalid(_)));
}

#[test]
fn what_passes_its_bounds_is_left_to_the_interpreter() {
    let threads = Threads::default();
    let text = source(1, &kernel(500));
    for bounds in [Bounds { memory_bytes: 1 << 20, ..AMPLE }, Bounds { time: Duration::from_nanos(1), ..AMPLE }] {
        // The front end is within neither bound's reach, or it is refused there.
        let (_job, told) = start(&threads, request(1, Arc::clone(&text), bounds));
        match told.recv_timeout(PATIENCE).unwrap().code {
            Ok(code) => assert!(!code.is_machine_code(), "{bounds:?}"),
            Err(error) => assert!(matches!(error, CompileError::Stopped(Stop::Time)), "{error}"),
        }
    }
}

#[test]
fn a_job_that_is_dropped_tells_nothing_and_ends() {
    let threads = Threads::default();
    let text = source(1, &kernel(200));
    let jobs: Vec<_> = (0..4).map(|_| start(&threads, request(1, Arc::clone(&text), AMPLE))).collect();
    let told: Vec<_> = jobs.into_iter().map(|(job, told)| (drop(job), told).1).collect();
    for told in told {
        assert!(told.recv_timeout(PATIENCE).is_err(), "a job that was given up told its outcome");
    }
    let begin = Instant::now();
    while !threads.pool.queues.lock().owners.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "compilations that nobody wants go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn owners_do_not_wait_for_each_other() {
    let threads = Threads::default();
    // Long enough that the second owner's would be far behind, were they done in the order in which they came.
    let long = source(1, &kernel(100));
    let (tell, told) = channel();
    let start = |owner, source: &Arc<Source>| {
        let tell = tell.clone();
        let done = Box::new(move |outcome: Outcome| {
            let _ = tell.send((owner, outcome.code.is_ok()));
        });
        threads.start(request(owner, Arc::clone(source), AMPLE), done)
    };
    let _jobs: Vec<_> = (0..16).map(|_| start(1, &long)).collect();
    let _job = start(2, &source(2, &kernel(5)));
    let in_order: Vec<(u64, bool)> = (0..17).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    let place = in_order.iter().position(|(owner, _)| *owner == 2).unwrap();
    assert!(place < 12, "{place} of another owner's compilations came first");
    assert!(in_order.iter().all(|(_, compiled)| *compiled));
}

#[test]
fn turns_go_round_the_owners() {
    let mut queues = Queues::default();
    let push = |queues: &mut Queues, owner| {
        let watch = Arc::new(Watch::unbounded());
        let request = request(owner, source(1, ""), AMPLE);
        queues.push(Waiting { watch: Arc::clone(&watch), request, done: Box::new(|_| {}) });
        watch
    };
    for _ in 0..3 {
        push(&mut queues, 1);
    }
    let dropped = push(&mut queues, 2);
    push(&mut queues, 2);
    assert!(queues.remove(2, &dropped).is_some());
    assert!(queues.remove(2, &dropped).is_none());
    let mut order = Vec::new();
    while let Some((next, _)) = queues.pop() {
        order.push(next.request.owner);
    }
    // The first has its two threads now.
    assert_eq!(order, [1, 2, 1]);
    queues.ended(1, 1);
    assert_eq!(queues.pop().map(|(next, _)| next.request.owner), Some(1));
    for owner in [1, 1, 2] {
        queues.ended(owner, 1);
    }
    assert!(queues.owners.is_empty() && queues.turns.is_empty());
}

#[test]
fn threads_are_for_processors_that_nobody_uses_or_waits_for() {
    let mut queues = Queues::of(6);
    let push = |queues: &mut Queues, owner| {
        let request = request(owner, source(1, ""), Bounds { threads: 3, ..AMPLE });
        queues.push(Waiting { watch: Arc::new(Watch::new(request.bounds)), request, done: Box::new(|_| {}) });
    };
    let begin = |queues: &mut Queues| queues.pop().map(|(_, threads)| threads);
    for owner in 1..=4 {
        push(&mut queues, owner);
    }
    assert_eq!(begin(&mut queues), Some(3), "two of six are left, and three wait: it may have no more");
    assert_eq!(begin(&mut queues), Some(1), "two that wait");
    assert_eq!(begin(&mut queues), Some(1));
    assert_eq!(begin(&mut queues), Some(1), "none is left");
    push(&mut queues, 5);
    queues.ended(1, 3);
    assert_eq!(begin(&mut queues), Some(3));
    for (owner, threads) in [(2, 1), (3, 1), (4, 1), (5, 3)] {
        queues.ended(owner, threads);
    }
    assert_eq!(queues.helpers, Helpers::new(6));
}

#[test]
fn a_large_kernel_on_several_threads_is_one_compilation() {
    let threads = Threads::default();
    *threads.pool.queues.lock() = Queues::of(4);
    let large = source(1, &kernel(500));
    let (job, told) = start(&threads, request(1, Arc::clone(&large), Bounds { threads: 4, ..AMPLE }));
    let outcome = told.recv_timeout(PATIENCE).unwrap();
    assert!(outcome.code.unwrap().is_machine_code());
    assert_eq!(job.cpu(), outcome.cpu);
    assert!(job.watch.threads_begun() > 1, "it was done by one thread");
    drop(start(&threads, request(2, large, Bounds { threads: 4, ..AMPLE })));
    let begin = Instant::now();
    while !threads.pool.queues.lock().owners.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(threads.pool.queues.lock().helpers, Helpers::new(4));
}
