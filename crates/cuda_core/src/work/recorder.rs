//! Which process has recorded an event that several share, and whether it is still there.
//!
//! Processes that share an event know each other by `/proc`: the numbers of processes mean the same for all of them.

use std::num::NonZeroU32;

/// Bits of a process's number: Linux gives none that are larger (`PID_MAX_LIMIT`).
const NUMBER_BITS: u32 = 22;

/// A process in one word: its number, and above it the lowest bits of when it began, which tell it from a later one of that number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recorder(NonZeroU32);

impl Recorder {
    /// This process; `None` where `/proc` does not say.
    pub(crate) fn own() -> Option<Recorder> {
        Recorder::of(std::process::id(), &std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    pub(crate) fn from_word(word: u32) -> Option<Recorder> {
        NonZeroU32::new(word).map(Recorder)
    }

    pub(crate) fn word(self) -> u32 {
        self.0.get()
    }

    /// Whether the process has ended. One of which nothing can be known has not.
    pub(crate) fn is_gone(self) -> bool {
        let number = self.word() & ((1 << NUMBER_BITS) - 1);
        match std::fs::read_to_string(format!("/proc/{number}/stat")) {
            Ok(stat) => Recorder::of(number, &stat) != Some(self),
            // It ends just now, or has.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH),
        }
    }

    /// A process by its line of `/proc/PID/stat`; `None` of one that has ended, which its parent does not know yet.
    fn of(number: u32, stat: &str) -> Option<Recorder> {
        // Its name, in front, may have anything in it.
        let (_, behind) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
        let [state, threads, began] = [0, 17, 19].map(|field| fields.get(field));
        // The first thread may end before the others.
        let ended = matches!(state?, &"Z" | &"X") && threads?.parse::<u32>().ok()? <= 1;
        let began: u64 = began?.parse().ok()?;
        let word = number | (began as u32) << NUMBER_BITS;
        NonZeroU32::new(word).filter(|_| !ended).map(Recorder)
    }
}

/// No such process.
const ESRCH: i32 = 3;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends() {
        let own = Recorder::own().unwrap();
        assert_eq!((Recorder::from_word(own.word()), own.is_gone()), (Some(own), false));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let read = |id: u32| Recorder::of(id, &std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap());
        let other = read(child.id()).unwrap();
        assert!(other != own && !other.is_gone());
        // A later process of its number.
        let later = Recorder::from_word(other.word() ^ 1 << NUMBER_BITS).unwrap();
        assert!(later.is_gone());
        child.kill().unwrap();
        // Before its parent knows, and after.
        while !other.is_gone() {
            std::thread::yield_now();
        }
        assert_eq!(read(child.id()), None);
        child.wait().unwrap();
        assert!(other.is_gone());
    }

    #[test]
    fn what_is_read_of_a_process() {
        let line = |state, threads, began| {
            format!("77 (a) b (c) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 0 {began} 99 98")
        };
        let word = |line: &str| Recorder::of(77, line).map(Recorder::word);
        assert_eq!(word(&line("S", 4, 0x1_0000_0c03_u64)), Some(77 | 3 << 22));
        assert_eq!(word(&line("Z", 2, 1)), Some(77 | 1 << 22), "its first thread alone has ended");
        assert_eq!([word(&line("Z", 1, 1)), word("77 (a"), word("")], [None; 3]);
    }
}
