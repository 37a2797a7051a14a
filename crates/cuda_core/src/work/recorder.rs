//! Who has recorded an event that several processes share, and whether a GPU may still come to that record.
//!
//! A context that records events of a file locks a byte of it, by a description of its own: the operating system lets go of that when the
//! process ends or becomes another program, and the context does when it fails or ends. So who sees the file can ask, whatever it sees of
//! processes.

use std::num::NonZeroU32;

use gpu::ContextId;
use hostmem::Memfd;
use parking_lot::Mutex;

/// Where the bytes begin that are locked: behind all memory. Each recorder has one.
const LOCKS: u64 = 1 << 48;
/// Bytes that are tried until one is nobody's.
const TRIES: u32 = 16;

/// The number that a recorder has among those of a file.
pub(crate) type RecorderId = NonZeroU32;

/// A context, as a recorder of a file's events.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) id: RecorderId,
    pub(crate) context: ContextId,
    /// The description that has the lock, as long as records of the context may be reached.
    locked: Mutex<Option<Memfd>>,
}

impl Recorder {
    /// Of the events in a file; `None` where that cannot be told to others.
    pub(crate) fn new(file: &Memfd, context: ContextId) -> Option<Recorder> {
        let made = || -> std::io::Result<Option<Recorder>> {
            let file = file.described_anew()?;
            for _ in 0..TRIES {
                let mut bytes = [0; 4];
                getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
                let Some(id) = NonZeroU32::new(u32::from_le_bytes(bytes)) else { continue };
                if file.lock_byte(at(id))? {
                    return Ok(Some(Recorder { id, context, locked: Mutex::new(Some(file)) }));
                }
            }
            Ok(None)
        };
        made().unwrap_or_else(|error| {
            tracing::warn!(%error, "who waits for events of this process waits on if it is killed or fails");
            None
        })
    }

    /// No GPU comes to its records any more.
    pub(crate) fn end(&self) {
        if let Some(file) = self.locked.lock().take() {
            // Forked children may have it, too.
            let _ = file.unlock_byte(at(self.id));
        }
    }
}

/// Whether no GPU comes to the records of a recorder of a file's events any more. One of which nothing can be known is there.
pub(crate) fn is_gone(file: &Memfd, recorder: RecorderId) -> bool {
    matches!(file.is_byte_locked(at(recorder)), Ok(false))
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
        let [one, other] = [1, 2].map(|context| Recorder::new(&file, ContextId(context)).unwrap());
        assert!(one.id != other.id);
        assert!(!is_gone(&file, one.id) && !is_gone(&file, other.id));
        let nobody = NonZeroU32::new(one.id.get() ^ other.id.get() ^ 1).unwrap();
        assert!(is_gone(&file, nobody));
        // Other handles of the file come and go, and other programs are started.
        drop(file.described_anew().unwrap());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!is_gone(&file, one.id) && !is_gone(&file, other.id));
        other.end();
        assert!(is_gone(&file, other.id));
        let id = one.id;
        drop(one);
        // A program that has just been started lets go of it in its first moment.
        let until = Instant::now() + Duration::from_secs(20);
        while !is_gone(&file, id) {
            assert!(Instant::now() < until, "somebody has it still");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
