//! Memory files that a client hands over: host memory that another of its GPUs shares with it, and that this one is to see, too.
//!
//! ```text
//!   client   descriptor and number ──► session's socket,    then   IMPORT of that number ──► commands
//!   session                                                        takes what lies in the socket, and waits for nothing
//! ```
//! What comes may be anything. Descriptors of which closing may take for ever are closed aside; what is no memory file, or one whose
//! pages could be missing when they are touched, is refused ([`Memfd::from_fd`]). The client may write such a file, punch holes in it
//! and read it whenever it likes, as it may with those that it was sent.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use gpu::GpuError;
use hostmem::Memfd;
use hostmem::strangers::{self, MOST_STRANGERS};
use transport::unix::{self, MAX_FDS};
use wire::WireError;
use wire::frame::{IMPORT_MESSAGE_BYTES, parse_import_message};

use crate::serve::Ended;

/// Files that the client has handed over and of which something is imported.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// By device and inode: one that comes again is the same, however many parts of it are imported.
    files: HashMap<(u64, u64), Weak<Memfd>>,
}

fn invalid(what: String) -> GpuError {
    GpuError::InvalidValue { what }
}

impl Imports {
    /// Takes the file for the import of this number out of the socket.
    ///
    /// # Errors
    /// Outside: the client does not know what it says, is gone, or goes too far. Inside: there is no file that can be used.
    pub(crate) fn take(&mut self, socket: &OwnedFd, number: u32) -> Result<Result<Arc<Memfd>, GpuError>, Ended> {
        let mut message = [0; IMPORT_MESSAGE_BYTES];
        let received = unix::try_receive(socket, &mut message).map_err(|_| Ended::ClientLeft)?;
        let Some(received) = received else {
            return Ok(Err(invalid("no memory file came before its import".into())));
        };
        let user = unix::peer(socket).map_or(u32::MAX, |peer| peer.uid);
        let fds = strangers::sift(received.fds, user);
        // Who sends good ones is not to blame for what others of this user have sent.
        if fds.is_none() && strangers::strangers_of(user) >= MOST_STRANGERS {
            return Err(Ended::Strangers);
        }
        let message = message.get(..received.length).ok_or(WireError::Length { what: "message with a memory file" })?;
        let of = parse_import_message(message)?;
        if of != number {
            return Err(WireError::Unknown { what: "import", code: of }.into());
        }
        if received.fds_lost {
            return Ok(Err(GpuError::TooMany { what: "descriptors with an import".into(), limit: MAX_FDS as u64 }));
        }
        let Some(fds) = fds else { return Ok(Err(invalid("what came for an import is no memory file".into()))) };
        let count = fds.len();
        let [file] = match <[OwnedFd; 1]>::try_from(fds) {
            Ok(one) => one,
            Err(_) => return Ok(Err(invalid(format!("{count} descriptors came for an import, not one")))),
        };
        let kept = Memfd::from_fd(file).and_then(|file| self.keep(file));
        Ok(kept.map_err(|error| invalid(format!("what came for an import cannot be used: {error}"))))
    }

    /// The file, as it is known already if it is.
    fn keep(&mut self, file: Memfd) -> std::io::Result<Arc<Memfd>> {
        self.files.retain(|_, known| known.strong_count() > 0);
        let identity = file.identity()?;
        if let Some(known) = self.files.get(&identity).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let file = Arc::new(file);
        self.files.insert(identity, Arc::downgrade(&file));
        Ok(file)
    }
}
