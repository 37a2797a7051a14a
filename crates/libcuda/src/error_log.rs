//! What went wrong, for the program to read (`cuLogs…`): the last lines, and who is told of each.
//!
//! A line is kept where it is logged, which may be deep inside, and told when the call that failed is about to return: a program's
//! function may call us again. What no call reports is told with the next that fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use cuda_abi::{CUlogLevel, CUlogsCallbackHandle};
use parking_lot::Mutex;

/// Most bytes that are kept.
const MOST_BYTES: usize = 25_600;

/// Who is told: level, and the line without its end.
pub(crate) type Listener = Arc<dyn Fn(CUlogLevel, &str) + Send + Sync>;

static LOG: Mutex<Log> = Mutex::new(Log::new());

struct Log {
    lines: VecDeque<(CUlogLevel, String)>,
    bytes: usize,
    /// The number of the first line that is kept.
    first: u32,
    /// Listeners with their handles and the number of the first line that they have not heard.
    listeners: Vec<(CUlogsCallbackHandle, u32, Listener)>,
    last_handle: u64,
}

impl Log {
    const fn new() -> Log {
        Log { lines: VecDeque::new(), bytes: 0, first: 0, listeners: Vec::new(), last_handle: 0 }
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

    fn add(&mut self, level: CUlogLevel, line: String) {
        self.bytes += line.len();
        self.lines.push_back((level, line));
        while self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
            self.first = self.first.wrapping_add(1);
        }
    }

    fn since(&self, start: Option<u32>, room: usize) -> Option<(String, u32)> {
        const LOST: &str = "[CUDA][W] older lines are lost\n";
        const SHORT: &str = "[CUDA][W] the buffer has no room for all lines\n";
        let start = start.unwrap_or(self.first);
        let (head, skip) = self.before(start).map_or((LOST, 0), |before| ("", before));
        let lines: Vec<&str> = self.lines.iter().skip(skip).map(|(_, line)| line.as_str()).collect();
        let bytes = |lines: &[&str]| lines.iter().map(|line| line.len()).sum::<usize>();
        if head.len() + bytes(&lines) <= room {
            return Some((head.to_owned() + &lines.concat(), self.end()));
        }
        let fits = |from: &usize| SHORT.len() + bytes(&lines[*from..]) <= room;
        let from = (0..lines.len()).find(fits)?;
        Some((SHORT.to_owned() + &lines[from..].concat(), self.end()))
    }
}

/// Keeps a line.
pub(crate) fn add(level: CUlogLevel, message: &str) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, milliseconds) = (since.as_secs() % 86_400, since.subsec_millis());
    let [hours, minutes, seconds] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
    let letter = if level == CUlogLevel::CU_LOG_LEVEL_ERROR { 'E' } else { 'W' };
    // SAFETY: asks for a number.
    let thread = unsafe { libc::gettid() };
    let head = format!("[{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}][{thread}][CUDA][{letter}]");
    LOG.lock().add(level, format!("{head} {}\n", message.trim()));
}

/// Tells the listeners what they have not heard. Nothing of ours may be locked. What fails in a listener is told with the next that fails.
pub(crate) fn tell() {
    static TELLING: AtomicBool = AtomicBool::new(false);
    if TELLING.swap(true, Ordering::Acquire) {
        return;
    }
    let mut news = Vec::new();
    {
        let log = &mut *LOG.lock();
        let end = log.end();
        let mut listeners = std::mem::take(&mut log.listeners);
        for (_, heard, listener) in &mut listeners {
            let skip = log.before(*heard).unwrap_or(0);
            news.extend(log.lines.iter().skip(skip).map(|line| (Arc::clone(listener), line.clone())));
            *heard = end;
        }
        log.listeners = listeners;
    }
    for (listener, (level, line)) in news {
        listener(level, line.trim_end());
    }
    TELLING.store(false, Ordering::Release);
}

/// From now on somebody is told.
pub(crate) fn register(listener: Listener) -> CUlogsCallbackHandle {
    let log = &mut *LOG.lock();
    log.last_handle += 1;
    let handle = CUlogsCallbackHandle(log.last_handle);
    log.listeners.push((handle, log.end(), listener));
    handle
}

/// False if it is nobody's.
pub(crate) fn unregister(handle: CUlogsCallbackHandle) -> bool {
    let listeners = &mut LOG.lock().listeners;
    let before = listeners.len();
    listeners.retain(|(of, ..)| *of != handle);
    listeners.len() < before
}

/// The number of the line that is written next.
pub(crate) fn end() -> u32 {
    LOG.lock().end()
}

/// The lines from a number on, or all, and the number behind them; the last of them, where there is no room for all. `None` if there
/// is no room for one.
pub(crate) fn since(start: Option<u32>, room: usize) -> Option<(String, u32)> {
    LOG.lock().since(start, room)
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
    fn numbers_wrap() {
        let mut log = Log { first: u32::MAX, ..Log::new() };
        log.add(LEVEL, "a\n".into());
        log.add(LEVEL, "b\n".into());
        assert_eq!(log.end(), 1);
        assert_eq!(log.since(Some(0), 100), Some(("b\n".into(), 1)));
        assert_eq!(log.since(Some(u32::MAX), 100), Some(("a\nb\n".into(), 1)));
    }
}
