//! Recording what a guest does to its page tables, as a [`gmmu::Trace`].
//!
//! What is recorded is what the mediator finds: each store where stores trap, and else what has changed from one look to the
//! next. Tables have the numbers in which they were first met, so that those of all address spaces and sizes of pages fit.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use gmmu::{FoundEntries, FoundEntry, MOST_TABLES, Trace, TraceEvent, TraceFormat};
use gpu_spec::mmu::{HUGE_PAGE, PhysAddr};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// Most bytes that wait for the reader.
const MOST_WAITING: usize = 4 << 20;
/// Bytes of addresses that a directory of whole units is for.
const DIRECTORY_SPAN: u64 = 512 << 20;

/// Writes events to somebody who reads them, and never waits for that: what has no room is left out, and counted.
#[derive(Debug)]
pub(crate) struct Recorder {
    to: UnixStream,
    begun: Instant,
    /// Numbers of tables: by the space's root, the size of their pages, and the first address that they are for.
    tables: HashMap<(PhysAddr, u64, u64), u32>,
    waiting: Vec<u8>,
    /// Events that had no room since the last remark about it, and stores into more tables than a trace can name.
    lost: u64,
    beyond: u64,
}

impl Recorder {
    /// For a reader at the other end of a socket.
    pub(crate) fn new(to: UnixStream) -> Recorder {
        let waiting = Trace::header(TraceFormat::Nvidia).into_bytes();
        Recorder { to, begun: Instant::now(), tables: HashMap::new(), waiting, lost: 0, beyond: 0 }
    }

    /// What was found changed in a space, and whether that was because work is submitted. False if nobody reads any more.
    pub(crate) fn followed(&mut self, root: PhysAddr, found: &FoundEntries, submitted: bool) -> bool {
        let time_us = self.begun.elapsed().as_micros() as u64;
        for found in &found.entries {
            match self.place(root, found) {
                Some((table, entry)) => {
                    self.add(&TraceEvent::Update { time_us, table, entry, value: found.entry });
                }
                None => self.beyond += 1,
            }
        }
        self.lost += found.missed;
        if submitted {
            self.add(&TraceEvent::Submit { time_us });
        }
        self.flush()
    }

    /// The number of an entry's table, and its own in that.
    fn place(&mut self, root: PhysAddr, found: &FoundEntry) -> Option<(u32, u32)> {
        let span = if found.bytes == HUGE_PAGE { DIRECTORY_SPAN } else { HUGE_PAGE };
        let next = u32::try_from(self.tables.len()).ok()?;
        let key = (root, found.bytes, found.va / span);
        let table = match self.tables.get(&key) {
            Some(table) => *table,
            None if next < MOST_TABLES => *self.tables.entry(key).or_insert(next),
            None => return None,
        };
        Some((table, u32::try_from(found.va % span / found.bytes).ok()?))
    }

    fn add(&mut self, event: &TraceEvent) {
        if self.waiting.len() >= MOST_WAITING {
            self.lost += 1;
            return;
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            // Writing to a vector does not fail.
            let _ = writeln!(
                self.waiting,
                "# {lost} events are missing here: the reader was too slow, or they were too many"
            );
        }
        let _ = writeln!(self.waiting, "{event}");
    }

    /// Writes what the reader takes now. False if there is none.
    pub(crate) fn flush(&mut self) -> bool {
        if self.beyond > 0 && self.waiting.len() < MOST_WAITING {
            let beyond = std::mem::take(&mut self.beyond);
            let _ =
                writeln!(self.waiting, "# {beyond} stores into further tables are missing: a trace has {MOST_TABLES}");
        }
        let mut done = 0;
        while done < self.waiting.len() {
            match rustix::net::send(&self.to, &self.waiting[done..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(0) => return false,
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        self.waiting.drain(..done);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const ROOT: PhysAddr = PhysAddr::vram(0);

    fn found(entries: &[(u64, u64, u64)]) -> FoundEntries {
        let entry = |&(va, bytes, entry)| FoundEntry { va, bytes, entry };
        FoundEntries { entries: entries.iter().map(entry).collect(), missed: 0 }
    }

    fn text(socket: &mut UnixStream) -> String {
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn what_is_recorded_is_a_trace() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(ours);
        let some =
            found(&[(7 << 40, 4096, 5), ((7 << 40) + 4096, 4096, 6), (7 << 40, HUGE_PAGE, 7), (3 << 16, 1 << 16, 8)]);
        assert!(recorder.followed(ROOT, &some, true));
        assert!(recorder.followed(PhysAddr::vram(4096), &found(&[((7 << 40) + (5 << 21), HUGE_PAGE, 9)]), false));
        drop(recorder);
        let trace = Trace::from_text(&text(&mut theirs)).unwrap();
        let places: Vec<_> = trace
            .events
            .iter()
            .map(|event| match *event {
                TraceEvent::Update { table, entry, value, .. } => (table, entry, value),
                TraceEvent::Submit { .. } => (u32::MAX, 0, 0),
            })
            .collect();
        assert_eq!(places, [(0, 0, 5), (0, 1, 6), (1, 0, 7), (2, 3, 8), (u32::MAX, 0, 0), (3, 5, 9)]);
    }

    #[test]
    fn who_does_not_read_holds_nobody_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(ours);
        let many = found(&vec![(0, 4096, u64::MAX); FoundEntries::MOST]);
        for _ in 0..4 {
            assert!(recorder.followed(ROOT, &many, true));
        }
        let waiting = recorder.waiting.len();
        assert!((MOST_WAITING..MOST_WAITING + 200).contains(&waiting), "{waiting}");
        assert!(recorder.lost > 0);
        let reader = std::thread::spawn(move || text(&mut theirs));
        let drain = |recorder: &mut Recorder| {
            while !recorder.waiting.is_empty() {
                assert!(recorder.flush());
                std::thread::yield_now();
            }
        };
        drain(&mut recorder);
        assert!(recorder.followed(ROOT, &found(&[]), true));
        drain(&mut recorder);
        drop(recorder);
        let text = reader.join().unwrap();
        assert!(text.contains("events are missing") && Trace::from_text(&text).is_ok());
    }

    #[test]
    fn tables_without_a_number_are_left_out() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(ours);
        let many: Vec<_> = (0..u64::from(MOST_TABLES) + 3).map(|table| (table << 21, 4096, 1)).collect();
        assert!(recorder.followed(ROOT, &found(&many), false));
        drop(theirs.try_clone().unwrap());
        drop(recorder);
        let text = text(&mut theirs);
        assert!(text.contains("# 3 stores into further tables"), "{}", &text[text.len() - 200..]);
        assert_eq!(Trace::from_text(&text).unwrap().counts(), (MOST_TABLES.into(), 0));
    }

    #[test]
    fn it_ends_with_its_reader() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut recorder = Recorder::new(ours);
        drop(theirs);
        assert!(!recorder.followed(ROOT, &found(&[]), true));
    }
}
