//! Which process has recorded an event that several share, and whether it is still there.
//!
//! A process that records events of a file locks a byte of it, by a description of its own: the operating system lets go of that when the
//! process ends or becomes another program, and of nothing sooner. So who sees the file can ask, whatever it sees of processes.

use std::num::NonZeroU32;

use hostmem::Memfd;

/// Where the bytes begin that are locked: behind all memory. Each recorder has one.
const LOCKS: u64 = 1 << 48;
/// Bytes that are tried until one is nobody's.
const TRIES: u32 = 16;

/// The number that a recorder has among those of a file.
pub(crate) type RecorderId = NonZeroU32;

/// This process, as a recorder of a file's events.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: Memfd,
    id: RecorderId,
}

impl Recorder {
    /// Of the events in a file; `None` where that cannot be told to others.
    pub(crate) fn new(file: Memfd) -> Option<Recorder> {
        for _ in 0..TRIES {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).ok()?;
            let Some(id) = NonZeroU32::new(u32::from_le_bytes(bytes)) else { continue };
            match file.lock_byte(at(id)) {
                Ok(true) => return Some(Recorder { file, id }),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "who waits for events of this process waits on if it is killed");
                    return None;
                }
            }
        }
        None
    }

    pub(crate) fn id(&self) -> RecorderId {
        self.id
    }

    /// Whether another process has ended. One of which nothing can be known has not.
    pub(crate) fn is_gone(&self, other: RecorderId) -> bool {
        other != self.id && matches!(self.file.is_byte_locked(at(other)), Ok(false))
    }
}

fn at(id: RecorderId) -> u64 {
    LOCKS + u64::from(id.get())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_recorder_is_there_until_its_description_is_closed_everywhere() {
        let file = Memfd::create("test", 1).unwrap();
        let [one, other] = [0; 2].map(|_| Recorder::new(file.described_anew().unwrap()).unwrap());
        assert!(one.id() != other.id());
        for (asks, id) in [(&one, other.id()), (&other, one.id()), (&one, one.id())] {
            assert!(!asks.is_gone(id));
        }
        let nobody = NonZeroU32::new(one.id().get() ^ other.id().get() ^ 1).unwrap();
        assert!(one.is_gone(nobody));
        // Other handles of the file come and go, and other programs are started.
        drop(file.described_anew().unwrap());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = other.id();
        assert!(!one.is_gone(id));
        drop(other);
        // A program that has just been started lets go of it in its first moment.
        let until = Instant::now() + Duration::from_secs(20);
        while !one.is_gone(id) {
            assert!(Instant::now() < until, "somebody has it still");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
