//! What went wrong, for the program to read (`cuLogs…`): the last lines, and who is told of each.
//!
//! A line is kept where it is logged, which may be deep inside, and told when the call that failed is about to return: a program's
//! function may call us again. What no call reports is told with the next that fails. While a thread tells, what other threads' calls
//! report is told by it, and may be told behind their return.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::SystemTime;

use cuda_abi::{CUlogLevel, CUlogsCallbackHandle};

/// Most bytes that are kept.
const MOST_BYTES: usize = 25_600;

/// Most bytes of a message: a compiler's may be as long as a program likes, and would leave nothing of the others.
const MOST_MESSAGE: usize = 4096;

/// Most lines that one call tells: others may fail as fast as it tells.
const MOST_TOLD: usize = 1000;

/// Who is told: level, and the line without its end.
pub(crate) type Listener = Arc<dyn Fn(CUlogLevel, &str) + Send + Sync>;

/// The process's.
pub(crate) static LOG: ErrorLog = ErrorLog::new();

/// Lines, and those who are told of them, one after the other.
pub(crate) struct ErrorLog {
    log: Mutex<Log>,
    /// A listener has returned.
    returned: Condvar,
    /// There are listeners.
    heard: AtomicBool,
}

struct Log {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The number of the first line that is kept.
    first: u32,
    listeners: Vec<Registered>,
    last_handle: u64,
    telling: Option<Telling>,
}

struct Line {
    level: CUlogLevel,
    text: String,
    by: Thread,
}

struct Registered {
    handle: CUlogsCallbackHandle,
    /// The number of the first line that it has not heard.
    next: u32,
    listener: Listener,
}

/// Who tells.
struct Telling {
    thread: Thread,
    /// Whose function is called now.
    to: CUlogsCallbackHandle,
}

/// A thread, which a fork's child has the same of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread(libc::pthread_t);

impl Thread {
    fn this() -> Thread {
        // SAFETY: asks for what the C library calls this thread.
        Thread(unsafe { libc::pthread_self() })
    }
}

impl Log {
    const fn new() -> Log {
        Log { lines: VecDeque::new(), bytes: 0, first: 0, listeners: Vec::new(), last_handle: 0, telling: None }
    }

    /// The number of the line that is written next.
    fn end(&self) -> u32 {
        self.first.wrapping_add(self.lines.len() as u32)
    }

    /// How many of the lines that are kept come before number `start`; `None` if some that come behind it are gone.
    fn before(&self, start: u32) -> Option<usize> {
        let before = start.wrapping_sub(self.first).cast_signed();
        usize::try_from(before).ok().map(|before| before.min(self.lines.len()))
    }

    fn add(&mut self, level: CUlogLevel, text: String) {
        self.bytes += text.len();
        self.lines.push_back(Line { level, text, by: Thread::this() });
        while self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.text.len();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// What `thread`, which tells, tells next. What it has added itself while it told it leaves, or it might never end.
    fn news(&mut self, thread: Thread, begun: u32) -> Option<(CUlogsCallbackHandle, Listener, CUlogLevel, String)> {
        let begun = self.before(begun).unwrap_or(0);
        let skipped: Vec<usize> = self.listeners.iter().map(|it| self.before(it.next).unwrap_or(0)).collect();
        let due = |skip: usize| {
            let mut unheard = self.lines.iter().enumerate().skip(skip);
            unheard.any(|(at, line)| at < begun || line.by != thread)
        };
        let which = skipped.iter().position(|skip| due(*skip))?;
        let (to, line) = (&mut self.listeners[which], &self.lines[skipped[which]]);
        to.next = self.first.wrapping_add(skipped[which] as u32 + 1);
        Some((to.handle, Arc::clone(&to.listener), line.level, line.text.clone()))
    }

    fn since(&self, start: Option<u32>, room: usize) -> Option<(String, u32)> {
        const LOST: &str = "[CUDA][W] older lines are lost\n";
        const SHORT: &str = "[CUDA][W] the buffer has no room for all lines\n";
        let start = start.unwrap_or(self.first);
        let (head, skip) = self.before(start).map_or((LOST, 0), |before| ("", before));
        let lines: Vec<&str> = self.lines.iter().skip(skip).map(|line| line.text.as_str()).collect();
        let bytes = |lines: &[&str]| lines.iter().map(|line| line.len()).sum::<usize>();
        if head.len() + bytes(&lines) <= room {
            return Some((head.to_owned() + &lines.concat(), self.end()));
        }
        let fits = |from: &usize| SHORT.len() + bytes(&lines[*from..]) <= room;
        let from = (0..lines.len()).find(fits)?;
        Some((SHORT.to_owned() + &lines[from..].concat(), self.end()))
    }
}

impl ErrorLog {
    const fn new() -> ErrorLog {
        ErrorLog { log: Mutex::new(Log::new()), returned: Condvar::new(), heard: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message, as one line; of a thread that forks, nothing.
    pub(crate) fn add(&self, level: CUlogLevel, message: &str) {
        if this_forks() {
            return;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, milliseconds) = (since.as_secs() % 86_400, since.subsec_millis());
        let [hours, minutes, seconds] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
        let letter = if level == CUlogLevel::CU_LOG_LEVEL_ERROR { 'E' } else { 'W' };
        // SAFETY: asks for a number.
        let thread = unsafe { libc::gettid() };
        let message = one_line(message);
        let line =
            format!("[{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}][{thread}][CUDA][{letter}] {message}\n");
        self.lock().add(level, line);
    }

    /// Tells the listeners what they have not heard, and what others add meanwhile. Nothing of ours may be locked. What fails in a
    /// listener is told with the next that fails.
    pub(crate) fn tell(&self) {
        if !self.heard.load(Ordering::Relaxed) || this_forks() {
            return;
        }
        let mut log = self.lock();
        // Whoever tells looks again before he leaves.
        if log.telling.is_some() {
            return;
        }
        let (thread, begun) = (Thread::this(), log.end());
        for _ in 0..MOST_TOLD {
            let Some((to, listener, level, line)) = log.news(thread, begun) else { break };
            log.telling = Some(Telling { thread, to });
            drop(log);
            listener(level, line.trim_end());
            log = self.lock();
            log.telling = None;
            self.returned.notify_all();
        }
    }

    /// From now on somebody is told.
    pub(crate) fn register(&self, listener: Listener) -> CUlogsCallbackHandle {
        let log = &mut *self.lock();
        log.last_handle += 1;
        let handle = CUlogsCallbackHandle(log.last_handle);
        log.listeners.push(Registered { handle, next: log.end(), listener });
        self.heard.store(true, Ordering::Relaxed);
        handle
    }

    /// Nobody is told by that handle any more, when this returns: waits for another thread that is in the function. False if it is
    /// nobody's.
    pub(crate) fn unregister(&self, handle: CUlogsCallbackHandle) -> bool {
        let mut log = self.lock();
        let before = log.listeners.len();
        log.listeners.retain(|it| it.handle != handle);
        self.heard.store(!log.listeners.is_empty(), Ordering::Relaxed);
        let known = log.listeners.len() < before;
        let this = Thread::this();
        while log.telling.as_ref().is_some_and(|telling| telling.to == handle && telling.thread != this) {
            log = self.returned.wait(log).unwrap_or_else(PoisonError::into_inner);
        }
        known
    }

    /// The number of the line that is written next.
    pub(crate) fn end(&self) -> u32 {
        self.lock().end()
    }

    /// The lines from a number on, or all, and the number behind them; the last of them, where there is no room for all. `None` if
    /// there is no room for one.
    pub(crate) fn since(&self, start: Option<u32>, room: usize) -> Option<(String, u32)> {
        self.lock().since(start, room)
    }
}

/// Keeps the lock from before a fork until behind it, on both sides.
struct DuringFork(UnsafeCell<Option<MutexGuard<'static, Log>>>);

// SAFETY: only who holds the lock looks into it: the thread that forks, and what becomes of it in the child.
unsafe impl Sync for DuringFork {}

static DURING_FORK: DuringFork = DuringFork(UnsafeCell::new(None));

/// The thread that has the lock while it forks, by the C library's number; 0: none.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// Does this thread fork? Then it has the lock, and a handler of the program's, which runs meanwhile, may have called us.
fn this_forks() -> bool {
    FORKING.load(Ordering::Relaxed) == Thread::this().0 as usize
}

/// Has forks find the log whole, whatever other threads do with it. Done before the first line, so that of all that is locked before a
/// fork this is the last: whoever holds something else may write a line.
pub(crate) fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handlers do, in the child, only what is safe there. Failing means no memory for a few words.
        let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before_fork() {
    let log = LOG.lock();
    // SAFETY: the lock is held.
    unsafe { *DURING_FORK.0.get() = Some(log) };
    FORKING.store(Thread::this().0 as usize, Ordering::Relaxed);
}

extern "C" fn in_parent() {
    FORKING.store(0, Ordering::Relaxed);
    // SAFETY: the lock is held, since `before_fork`.
    drop(unsafe { (*DURING_FORK.0.get()).take() });
}

extern "C" fn in_child() {
    FORKING.store(0, Ordering::Relaxed);
    // SAFETY: the lock is held, since `before_fork`, by the thread that this one was.
    let Some(mut log) = (unsafe { (*DURING_FORK.0.get()).take() }) else { return };
    // Another thread, which told, is not here.
    log.telling.take_if(|telling| telling.thread != Thread::this());
}

/// A message without ends of lines, cut to what is kept.
fn one_line(message: &str) -> String {
    let parts = message.split(['\n', '\r', '\0']).map(str::trim).filter(|part| !part.is_empty());
    let mut line = parts.collect::<Vec<_>>().join("; ");
    line.truncate(line.floor_char_boundary(MOST_MESSAGE));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: CUlogLevel = CUlogLevel::CU_LOG_LEVEL_ERROR;

    #[test]
    fn the_last_lines_are_kept_and_dumped_from_where_one_was() {
        let mut log = Log::new();
        assert_eq!(log.since(None, 0), Some((String::new(), 0)));
        for line in ["one\n", "two\n"] {
            log.add(LEVEL, line.into());
        }
        assert_eq!(log.since(None, 8), Some(("one\ntwo\n".into(), 2)));
        assert_eq!(log.since(Some(1), 4), Some(("two\n".into(), 2)));
        assert_eq!(log.since(Some(2), 0), Some((String::new(), 2)));
        assert_eq!(log.since(None, 7), None, "no room to say that there is no room");
        let long = "x".repeat(1000) + "\n";
        for _ in 0..40 {
            log.add(LEVEL, long.clone());
        }
        assert!(log.bytes <= MOST_BYTES && log.end() == 42);
        let (text, end) = log.since(Some(0), usize::MAX).unwrap();
        assert!(text.starts_with("[CUDA][W] older lines are lost\n") && end == 42);
        assert_eq!(text.lines().count(), 1 + log.lines.len());
        let (text, _) = log.since(None, 2500).unwrap();
        assert!(text.starts_with("[CUDA][W] the buffer has no room") && text.lines().count() == 3);
    }

    #[test]
    fn a_message_is_one_line_of_a_bounded_length() {
        assert_eq!(one_line(" a\n\n  b\0c\r\n"), "a; b; c");
        let long = "ä".repeat(MOST_BYTES);
        assert_eq!(one_line(&long).len(), MOST_MESSAGE);
        let log = ErrorLog::new();
        log.add(LEVEL, "before");
        log.add(LEVEL, &("x".to_owned() + &long));
        let (text, end) = log.since(None, usize::MAX).unwrap();
        assert!(text.contains("before\n") && text.len() < MOST_MESSAGE + 200 && end == 2);
    }

    type Heard = Arc<Mutex<Vec<String>>>;

    fn ends(heard: &Heard) -> Vec<String> {
        heard.lock().unwrap().iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
    }

    /// Keeps what is told, and does something else before.
    fn keeps(heard: &Heard, and: impl Fn(&str) + Send + Sync + 'static) -> Listener {
        let heard = Arc::clone(heard);
        Arc::new(move |_, line| {
            and(line);
            heard.lock().unwrap().push(line.to_owned());
        })
    }

    #[test]
    fn what_a_listener_adds_waits_and_what_others_add_does_not() {
        static LOG: ErrorLog = ErrorLog::new();
        let heard = Heard::default();
        let others = |line: &str| {
            if line.ends_with("one") {
                LOG.add(LEVEL, "own");
                LOG.tell();
                // It fails while somebody tells, and returns.
                let other = || {
                    LOG.add(LEVEL, "other's");
                    LOG.tell();
                };
                std::thread::spawn(other).join().unwrap();
            }
        };
        let handle = LOG.register(keeps(&heard, others));
        LOG.add(LEVEL, "one");
        LOG.tell();
        assert_eq!(ends(&heard), ["one", "own", "other's"]);
        let late = |line: &str| {
            if !line.ends_with("late") {
                LOG.add(LEVEL, "late");
            }
        };
        assert!(LOG.unregister(handle) && !LOG.unregister(handle));
        heard.lock().unwrap().clear();
        let handle = LOG.register(keeps(&heard, late));
        LOG.add(LEVEL, "two");
        LOG.tell();
        assert_eq!(ends(&heard), ["two"], "its own line it does not tell at once");
        LOG.tell();
        assert_eq!(ends(&heard), ["two", "late"]);
        assert!(LOG.unregister(handle));
        LOG.add(LEVEL, "nobody's");
        LOG.tell();
        assert_eq!(heard.lock().unwrap().len(), 2);
    }

    #[test]
    fn who_was_unregistered_is_not_told() {
        static LOG: ErrorLog = ErrorLog::new();
        let (one, other) = (Heard::default(), Heard::default());
        // Handles count from 1. The first unregisters the second, which has not heard yet, and itself, in whose function it is.
        let ends_both = |_: &str| {
            assert!(LOG.unregister(CUlogsCallbackHandle(2)) && LOG.unregister(CUlogsCallbackHandle(1)));
        };
        LOG.register(keeps(&one, ends_both));
        LOG.register(keeps(&other, |_| {}));
        LOG.add(LEVEL, "a");
        LOG.add(LEVEL, "b");
        LOG.tell();
        assert_eq!((ends(&one), ends(&other)), (vec!["a".to_owned()], vec![]));
    }

    #[test]
    fn unregistering_waits_for_a_thread_in_the_function() {
        static LOG: ErrorLog = ErrorLog::new();
        let (inside, is_inside) = std::sync::mpsc::channel();
        let heard = Heard::default();
        let slow = move |_: &str| {
            inside.send(()).unwrap();
            // Time for the other thread to return too early.
            std::thread::sleep(std::time::Duration::from_millis(100));
        };
        let handle = LOG.register(keeps(&heard, slow));
        let teller = std::thread::spawn(|| {
            LOG.add(LEVEL, "a");
            LOG.tell();
        });
        is_inside.recv().unwrap();
        assert!(LOG.unregister(handle));
        assert_eq!(ends(&heard), ["a"]);
        teller.join().unwrap();
    }

    #[test]
    fn a_child_has_a_log_whatever_other_threads_did() {
        // A handler of the program's that was there before runs while the log is locked, on all three sides.
        extern "C" fn fails() {
            LOG.add(LEVEL, "in a handler");
            LOG.tell();
        }
        // SAFETY: the handler does, in the child, nothing but look at a number.
        assert_eq!(unsafe { libc::pthread_atfork(Some(fails), Some(fails), Some(fails)) }, 0);
        watch_forks();
        static OVER: AtomicBool = AtomicBool::new(false);
        static FORKED: Mutex<()> = Mutex::new(());
        let until_it_is_over: Listener = Arc::new(|_, line| {
            if line.ends_with("held up") {
                drop(FORKED.lock());
            }
        });
        let held = FORKED.lock().unwrap();
        let handle = LOG.register(until_it_is_over);
        let tells = std::thread::spawn(|| {
            LOG.add(LEVEL, "held up");
            LOG.tell();
        });
        while LOG.lock().telling.is_none() {
            std::thread::yield_now();
        }
        let adds = std::thread::spawn(|| {
            while !OVER.load(Ordering::Relaxed) {
                LOG.add(LEVEL, "x");
            }
        });
        for _ in 0..100 {
            // SAFETY: the child takes one lock, which is what is tested, allocates, which the C library allows, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child should it wait.
                unsafe { libc::alarm(20) };
                LOG.add(LEVEL, "child's");
                let told_by_nobody = LOG.lock().telling.is_none();
                // SAFETY: ends the child without running anything of its parent's.
                unsafe { libc::_exit(i32::from(!told_by_nobody)) };
            }
            let mut status = -1;
            // SAFETY: `status` is a valid place for the answer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        OVER.store(true, Ordering::Relaxed);
        drop(held);
        adds.join().unwrap();
        tells.join().unwrap();
        assert!(LOG.unregister(handle));
    }

    #[test]
    fn numbers_wrap() {
        let mut log = Log { first: u32::MAX, ..Log::new() };
        log.add(LEVEL, "a\n".into());
        log.add(LEVEL, "b\n".into());
        assert_eq!(log.end(), 1);
        assert_eq!(log.since(Some(0), 100), Some(("b\n".into(), 1)));
        assert_eq!(log.since(Some(u32::MAX), 100), Some(("a\nb\n".into(), 1)));
    }
}
