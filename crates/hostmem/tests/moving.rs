//! Pages that move while threads use them, and the faults that are not ours.
#![expect(unsafe_code, reason = "tests of memory that threads share, of signals and forks")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use hostmem::{Memfd, PAGE, ProgramPages};

const THREADS: usize = 3;
/// Held by tests of which no two can run at once: a forked child shares pages that have moved with its parent, and the
/// allocator writes to its own in every child.
static ONE: Mutex<()> = Mutex::new(());

/// Words that all threads count in, by address: shared ones first, then one for each thread.
#[derive(Clone, Copy)]
struct Words {
    start: usize,
    count: usize,
}

impl Words {
    fn of(memory: &mut [u64]) -> Words {
        Words { start: memory.as_mut_ptr().expose_provenance(), count: memory.len() }
    }

    fn at(&self, index: usize) -> *mut u64 {
        assert!(index < self.count);
        std::ptr::with_exposed_provenance_mut(self.start + 8 * index)
    }

    /// Adds one to every fourth word atomically, and to the thread's own words plainly.
    fn count(&self, thread: usize) {
        for index in (0..self.count).step_by(1 + THREADS) {
            // SAFETY: inside the memory, which outlives the threads; all accesses to this word are atomic.
            unsafe { AtomicU64::from_ptr(self.at(index)) }.fetch_add(1, Ordering::Relaxed);
            let own = index + 1 + thread;
            if own < self.count {
                // SAFETY: inside the memory; the word is this thread's own.
                let value = unsafe { self.at(own).read_volatile() };
                // SAFETY: as above.
                unsafe { self.at(own).write_volatile(value + 1) };
            }
        }
    }

    fn check(&self, rounds: &[u64]) {
        for index in 0..self.count {
            let expect = match index % (1 + THREADS) {
                0 => rounds.iter().sum(),
                own => rounds[own - 1],
            };
            // SAFETY: inside the memory; the threads have ended.
            assert_eq!(unsafe { self.at(index).read_volatile() }, expect, "word {index} of {}", self.count);
        }
    }

    fn pages(&self) -> ProgramPages {
        // SAFETY: the memory lives as long as the test, and is used by address.
        unsafe { ProgramPages::new(self.start, self.count * 8) }
    }
}

/// Counts in memory of all kinds while it moves there and back, for a while; gives how often it moved.
fn hammer(time: Duration) -> u64 {
    /// With a lock, on whose futex threads sleep while its page moves.
    struct Table {
        words: [AtomicU64; 1500],
        lock: Mutex<u64>,
    }
    static TABLE: Table = Table { words: [const { AtomicU64::new(0) }; 1500], lock: Mutex::new(0) };
    let one = ONE.lock().unwrap();
    let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut large = vec![0_u64; 64 << 10];
    TABLE.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    *TABLE.lock.lock().unwrap() = 0;
    let table = Words { start: TABLE.words[0].as_ptr().expose_provenance(), count: TABLE.words.len() };
    let mut rounds = vec![0; THREADS];
    let mut moves = 0;
    std::thread::scope(|scope| {
        // Small memory lies among that of others: beside what the allocator keeps for itself, the arena's lock included.
        let (give, small) = mpsc::channel();
        let (stop, begun) = (&stop, &begun);
        let allocator = scope.spawn(move || {
            let mut memory = vec![0_u64; 700];
            give.send(Words::of(&mut memory)).unwrap();
            let mut round = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let blocks: Vec<Vec<usize>> = (1..40).map(|size| vec![round; size]).collect();
                assert!(blocks.iter().flatten().all(|word| *word == round), "memory of the allocator changed");
            }
            memory
        });
        let all = [Words::of(&mut large), table, small.recv().unwrap()];
        let counters: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut round = 0;
                    begun.fetch_add(1, Ordering::Relaxed);
                    while !stop.load(Ordering::Relaxed) {
                        all.iter().for_each(|words| words.count(thread));
                        round += 1;
                        let mut locked = TABLE.lock.lock().unwrap();
                        *locked += 1;
                        // Others come to wait for it.
                        std::thread::yield_now();
                    }
                    round
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < time || begun.load(Ordering::Relaxed) < THREADS {
            for words in all {
                let range = words.pages();
                let file = Memfd::create("moving", range.covering().1 as u64).unwrap();
                range.show(&file, 0).unwrap();
                range.make_private().unwrap();
                moves += 2;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for (rounds, counter) in rounds.iter_mut().zip(counters) {
            *rounds = counter.join().unwrap();
        }
        // Its memory is still there.
        let memory = allocator.join().unwrap();
        all.iter().for_each(|words| words.check(&rounds));
        assert_eq!(*TABLE.lock.lock().unwrap(), rounds.iter().sum::<u64>());
        drop(memory);
    });
    drop(one);
    moves
}

#[test]
fn no_write_is_lost_while_pages_move() {
    hammer(Duration::from_millis(500));
}

#[test]
#[ignore = "the same for half a minute"]
fn no_write_is_lost_in_half_a_minute() {
    let moves = hammer(Duration::from_secs(30));
    eprintln!("{moves} moves");
}

#[test]
fn a_child_forked_meanwhile_can_write() {
    let _one = ONE.lock().unwrap();
    let mut memory = vec![0_u64; 1 << 20];
    let words = Words::of(&mut memory);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = Memfd::create("moving", words.pages().covering().1 as u64).unwrap();
            while !stop.load(Ordering::Relaxed) {
                words.pages().show(&file, 0).unwrap();
                words.pages().make_private().unwrap();
            }
        });
        for _ in 0..50 {
            // Past the C library, whose handlers would have the fork wait until no pages move.
            // SAFETY: the child writes to memory and exits, which is allowed after a fork of a process with threads.
            let child = unsafe { libc::syscall(libc::SYS_fork) } as libc::pid_t;
            if child == 0 {
                for index in (0..words.count).step_by(64) {
                    // SAFETY: inside the memory, of which this process has its own copy, or shares it with nobody who reads.
                    unsafe { words.at(index).write_volatile(1) };
                }
                // SAFETY: ends the child without running anything of its parent's.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: `status` is a valid place for the answer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child could not write");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_no_memory_cannot_be_moved() {
    let file = Memfd::create("moving", PAGE).unwrap();
    // SAFETY: no process has memory there, and the call finds that out.
    let range = unsafe { ProgramPages::new(PAGE as usize, PAGE as usize) };
    assert!(range.show(&file, 0).is_err());
    // And nobody waits for it to end.
    move_a_page();
}

/// Pages of the process's own that fault on purpose.
static OWN: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicU32 = AtomicU32::new(0);
/// What was there before the program's handler.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// A program's handler: lets the write to its own page happen, and passes everything else on.
extern "C" fn programs_own(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let fault = unsafe { &*info };
    // SAFETY: of a fault.
    let address = unsafe { fault.si_addr() }.addr();
    let own = OWN.load(Ordering::Relaxed);
    if (own..own + PAGE as usize).contains(&address) {
        FAULTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the page is the test's.
        unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(own), PAGE as usize, 3) };
        return;
    }
    match BEFORE.load(Ordering::Relaxed) {
        // SAFETY: the default action is valid for every signal.
        0 => drop(unsafe { libc::signal(signal, libc::SIG_DFL) }),
        handler => {
            // SAFETY: it was installed with SA_SIGINFO.
            let handler = unsafe { std::mem::transmute::<usize, hostmem::FaultHandler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Makes it the process's handler; gives the one before.
fn install_programs_own() -> usize {
    // SAFETY: all-zero sigactions are valid.
    let [mut action, mut before]: [libc::sigaction; 2] = unsafe { std::mem::zeroed() };
    action.sa_sigaction = programs_own as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: both structures are valid.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
    before.sa_sigaction
}

/// Runs one of the tests below, which end their process or change its handlers, in a process of its own.
fn alone(test: &str) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--test-threads=1"]);
    let output = command.output().unwrap();
    // Shown if what the caller expects of the status does not hold.
    eprintln!("{test}: {}", String::from_utf8_lossy(&output.stdout));
    output.status
}

/// Moves a page there and back, which installs the handler.
fn move_a_page() {
    let mut memory = vec![0_u64; 1 << 16];
    let range = Words::of(&mut memory[1 << 12..1 << 13]).pages();
    let file = Memfd::create("moving", range.covering().1 as u64).unwrap();
    range.show(&file, 0).unwrap();
    range.make_private().unwrap();
}

fn fault_at_own_page() {
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, 1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    OWN.store(at.expose_provenance(), Ordering::Relaxed);
    let before = FAULTS.load(Ordering::Relaxed);
    // SAFETY: the handler makes the page writable.
    unsafe { at.cast::<u32>().write_volatile(1) };
    assert_eq!(FAULTS.load(Ordering::Relaxed), before + 1);
}

#[test]
#[ignore = "run by `faults_of_others_reach_their_handlers`"]
fn handler_from_before() {
    install_programs_own();
    move_a_page();
    fault_at_own_page();
}

#[test]
#[ignore = "run by `faults_of_others_reach_their_handlers`"]
fn handler_from_between() {
    move_a_page();
    BEFORE.store(install_programs_own(), Ordering::Relaxed);
    fault_at_own_page();
    move_a_page();
    fault_at_own_page();
    hammer(Duration::from_millis(100));
    fault_at_own_page();
}

#[test]
#[ignore = "run by `faults_of_others_reach_their_handlers`"]
fn nobodys_fault() {
    // Three handlers, of which two pass to each other.
    handler_from_between();
    let nowhere: *mut u32 = std::ptr::without_provenance_mut(64);
    // SAFETY: not at all; the process ends here.
    unsafe { nowhere.write_volatile(1) };
}

#[test]
fn faults_of_others_reach_their_handlers() {
    use std::os::unix::process::ExitStatusExt;
    assert!(alone("handler_from_before").success());
    assert!(alone("handler_from_between").success());
    assert_eq!(alone("nobodys_fault").signal(), Some(libc::SIGSEGV));
}

#[test]
fn stacks_are_moved_too() {
    // Pages of this thread's stack, which runs on meanwhile.
    let mut memory = [7_u64; 4096];
    let words = Words::of(&mut memory);
    let pages: Range<usize> =
        words.start.next_multiple_of(PAGE as usize)..(words.start + 8 * 4096) / PAGE as usize * PAGE as usize;
    // SAFETY: inside `memory`, used by address.
    let range = unsafe { ProgramPages::new(pages.start, pages.len()) };
    let file = Memfd::create("moving", pages.len() as u64).unwrap();
    range.show(&file, 0).unwrap();
    range.range().write(&[1]);
    let mut seen = [0];
    file.map().unwrap().read(0, &mut seen);
    assert_eq!(seen, [1]);
    range.make_private().unwrap();
    std::hint::black_box(&memory);
}
