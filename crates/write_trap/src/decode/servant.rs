//! Does what another process says about which pages: the other end of a [`crate::RemoteDecode`].

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use hostmem::{ForkMark, Mapping};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, socketpair};

use super::Decode;
use crate::remote::{LONGEST, understand};
use crate::{DecodeParts, Why, Written};

/// Serves another process: a thread that protects and releases pages as it says. When that process ends, when it says what
/// cannot be, or when this goes, all pages are writable again.
#[derive(Debug)]
pub struct DecodeServant {
    socket: Arc<OwnedFd>,
    decode: Arc<Decode>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has neither the thread, nor a socket of its own.
    here: ForkMark,
}

impl DecodeParts {
    /// For a mapping of this process; `alias` is as for [`Decode::new`].
    ///
    /// # Errors
    /// Why stores to it cannot be noticed that way.
    pub fn new(mapping: &Arc<Mapping>, alias: Mapping) -> Result<(DecodeParts, DecodeServant), Why> {
        DecodeParts::make(mapping, alias).map_err(Why::Register)
    }

    fn make(mapping: &Arc<Mapping>, alias: Mapping) -> io::Result<(DecodeParts, DecodeServant)> {
        let (address, bytes) = (mapping.address() as u64, mapping.len() as u64);
        let (written, file) = Written::create(bytes / hostmem::PAGE)?;
        let decode = Arc::new(Decode::new(mapping, alias, Arc::new(written))?);
        let (ours, control) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (socket, here) = (Arc::new(ours), ForkMark::new()?);
        let (end, served) = (Arc::clone(&socket), Arc::clone(&decode));
        let thread = std::thread::Builder::new().name("write-trap".into()).spawn(move || serve(&end, &served))?;
        let servant = DecodeServant { socket, decode, thread: Some(thread), here };
        Ok((DecodeParts { written: file.into_fd(), control, address, bytes }, servant))
    }
}

impl DecodeServant {
    /// Adds those among `pages` that are protected: see [`crate::ProtectedPages`].
    ///
    /// # Errors
    /// `InvalidInput` if these are not inside the mapping.
    pub fn protected(&self, pages: Range<u64>, out: &mut Vec<u64>) -> io::Result<()> {
        let run = self.decode.watch.area().run(pages.start, pages.end.saturating_sub(pages.start))?;
        out.extend(run.filter(|page| self.decode.watch.is_marked(*page)));
        Ok(())
    }
}

/// Until the other end is gone, or is no use.
fn serve(socket: &OwnedFd, decode: &Decode) {
    // A byte more than a request has: what is longer is none.
    let mut message = [0; LONGEST + 1];
    loop {
        let bytes = match rustix::net::recv(socket, &mut message[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Err(_) | Ok((_, 0)) => break,
            Ok((_, bytes)) => bytes,
        };
        let Some((protect, runs)) = understand(&message[..bytes], decode.watch.area()) else { break };
        let answer = match decode.set(protect, &runs) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO) as u64,
        };
        // One that asks without waiting for answers is not waited for either.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if rustix::net::send(socket, &answer.to_ne_bytes(), flags).is_err() {
            break;
        }
    }
    // Nobody says any more which pages. If it fails, stores go on to be done by the handler.
    let all = 0..decode.watch.area().pages();
    let _ = decode.set(false, std::slice::from_ref(&all));
    // Whoever still asks hears of the end at once.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

impl Drop for DecodeServant {
    fn drop(&mut self) {
        if !self.here.here() {
            // Not even its handle means anything here.
            return std::mem::forget(self.thread.take());
        }
        let ended = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take().filter(|_| ended.is_ok()) {
            // It has no panics to tell.
            let _ = thread.join();
        }
    }
}
