//! The cache, as the device process sees it: a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use transport::unix::{self, Received};

use super::{KEY_BYTES, Key, checksum};
use crate::protocol;

/// Larger images are not kept.
pub(super) const MAX_ENTRY: u64 = 64 << 20;
/// What is asked for, before the key.
pub(super) const GET: u8 = b'g';
/// As above; a memory file with the bytes comes along.
pub(super) const PUT: u8 = b'p';
/// Longest wait for an answer: a disk that takes longer is slower than the compiler.
const PATIENCE: Duration = Duration::from_millis(500);

/// Asks a [`super::Store`] in another process. Whatever fails there is as if nothing had been kept.
#[derive(Debug)]
pub struct Shelf {
    socket: OwnedFd,
}

impl Shelf {
    pub(crate) fn new(socket: OwnedFd) -> Shelf {
        Shelf { socket }
    }

    /// The bytes kept under `key`, as they were put.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let found = self.ask(key).unwrap_or_else(|error| {
            tracing::debug!(%error, "the cache does not answer");
            None
        })?;
        let length = protocol::size(&found).ok().filter(|&length| length <= MAX_ENTRY + KEY_BYTES as u64)?;
        let mut bytes = protocol::read_file(&found, length).ok()?;
        let content = bytes.split_off(bytes.len().min(KEY_BYTES));
        if bytes != checksum(&content) {
            tracing::debug!("a damaged file in the cache");
            return None;
        }
        Some(content)
    }

    fn ask(&self, key: &Key) -> io::Result<Option<OwnedFd>> {
        unix::set_timeout(&self.socket, Some(PATIENCE))?;
        unix::send(&self.socket, &message(GET, key), &[], true)?;
        let mut answered = [0; KEY_BYTES];
        loop {
            match unix::receive(&self.socket, &mut answered)? {
                Received { length: 0, .. } => return Err(io::ErrorKind::ConnectionReset.into()),
                // An answer that came too late for its question is nobody's.
                Received { .. } if answered != key.0 => {}
                Received { fds, .. } => return Ok(fds.into_iter().next()),
            }
        }
    }

    /// Has `bytes` kept under `key`; does not wait for it.
    pub(crate) fn put(&self, key: &Key, bytes: &[u8]) {
        if bytes.len() as u64 > MAX_ENTRY {
            return;
        }
        let put = protocol::memory_file("image", &[&checksum(bytes), bytes])
            .and_then(|file| unix::send(&self.socket, &message(PUT, key), &[file.as_fd()], false));
        if let Err(error) = put {
            tracing::debug!(%error, "the cache does not take an image");
        }
    }
}

fn message(what: u8, key: &Key) -> Vec<u8> {
    [&[what], &key.0[..]].concat()
}
