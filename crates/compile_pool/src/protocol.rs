//! What the pool and a compiler process say to each other: postcard values in messages, large bytes in memory files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ptx::{PtxError, PtxErrorKind};
use ptx_jit::CompileError;
use ptx_jit::compiler::Stop;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use transport::unix::{self, Received};

/// Longest message: a kernel's name, or why there is no code.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// Longest name of a kernel. Mangled names of templates reach some thousand.
pub(crate) const MAX_ENTRY: usize = 32 << 10;
/// Longest text of an error.
const MAX_REASON: usize = 8 << 10;
/// Largest image that is taken from a compiler.
pub(crate) const MAX_IMAGE: u64 = 256 << 20;
/// Most memory that one order may allow for; what asks for more gets this.
pub(crate) const MAX_MEMORY: u64 = 4 << 30;

/// To the compiler.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The module. If the compiler does not know it yet, its file comes with the message ([`crate::modules`]).
    pub(crate) module: u64,
    /// Modules that will not be asked for again.
    pub(crate) forget: Vec<u64>,
    pub(crate) entry: String,
    pub(crate) block: [u32; 3],
    pub(crate) stack_bytes: u32,
    pub(crate) engine: Engine,
    pub(crate) memory_bytes: u64,
    pub(crate) time: Duration,
    /// Threads that may compile it.
    pub(crate) threads: usize,
}

/// What is to run the kernel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Engine {
    Machine,
    /// The interpreter; and why, if it was not asked for.
    Interpreter(Option<String>),
}

/// From the compiler.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It stands and waits for orders.
    Ready,
    /// An image of so many bytes, in the memory file that comes with the message.
    Image(u64),
    /// There is none.
    Failed(Failure),
}

/// A [`CompileError`] that can be sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    Unsupported { line: u32, what: String },
    Invalid { line: u32, message: String },
    Refused { line: u32, message: String },
    NoEntry,
    TooLong,
    TooLarge,
    Other(String),
}

impl Failure {
    pub(crate) fn of(error: &CompileError) -> Failure {
        let text = |text: &str| text.chars().take(MAX_REASON / 4).collect::<String>();
        match error {
            CompileError::Unsupported { line, what } => Failure::Unsupported { line: *line, what: text(what) },
            CompileError::Invalid(error) => Failure::Invalid { line: error.line, message: text(&error.message) },
            CompileError::Refused(error) => Failure::Refused { line: error.line, message: text(&error.message) },
            CompileError::NoEntry { .. } => Failure::NoEntry,
            CompileError::Stopped(Stop::Memory) => Failure::TooLarge,
            CompileError::Stopped(_) => Failure::TooLong,
            other => Failure::Other(text(&other.to_string())),
        }
    }

    pub(crate) fn into_error(self, entry: &str) -> CompileError {
        let ptx = |line, message, kind| PtxError { line, message, kind };
        match self {
            Failure::Unsupported { line, what } => CompileError::Unsupported { line, what },
            Failure::Invalid { line, message } => CompileError::Invalid(ptx(line, message, PtxErrorKind::Invalid)),
            Failure::Refused { line, message } => CompileError::Refused(ptx(line, message, PtxErrorKind::Unsupported)),
            Failure::NoEntry => CompileError::NoEntry { name: entry.to_owned() },
            Failure::TooLong => CompileError::Stopped(Stop::Time),
            Failure::TooLarge => CompileError::Stopped(Stop::Memory),
            Failure::Other(what) => CompileError::Failed { what },
        }
    }
}

/// Sends a message, with a memory file if there is one.
pub(crate) fn send<T: Serialize>(socket: &OwnedFd, message: &T, file: Option<&OwnedFd>) -> io::Result<()> {
    let bytes = postcard::to_extend(message, Vec::new()).map_err(io::Error::other)?;
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    unix::send(socket, &bytes, &files, true)
}

/// Receives a message and its memory file; `None` if the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: &OwnedFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE, 0);
    let Received { length, fds, .. } = match unix::receive(socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        other => other?,
    };
    if length == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..length]).map_err(io::Error::other)?;
    Ok(Some((message, fds.into_iter().next())))
}

/// A memory file with these bytes, one part behind the other.
pub(crate) fn memory_file(name: &str, parts: &[&[u8]]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut at = 0;
    for part in parts {
        let mut left = *part;
        while !left.is_empty() {
            let written = rustix::io::pwrite(&file, left, at)?;
            left = &left[written..];
            at += written as u64;
        }
    }
    Ok(file)
}

/// Nobody changes a memory file any more.
pub(crate) fn seal(file: impl AsFd) -> io::Result<()> {
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, all)?)
}

/// The first `length` bytes of a file that another process may still be writing to: copied once, then looked at.
pub(crate) fn read_file(file: impl AsFd, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let mut read = 0;
    while read < length {
        match rustix::io::pread(file.as_fd(), &mut bytes[read..], read as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    Ok(bytes)
}

/// Size of a file.
pub(crate) fn size(file: impl AsFd) -> io::Result<u64> {
    u64::try_from(rustix::fs::fstat(file)?.st_size).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_as_they_were() {
        let refused = PtxError { line: 7, message: "no such thing".into(), kind: PtxErrorKind::Unsupported };
        for error in [
            CompileError::Unsupported { line: 3, what: "brx".into() },
            CompileError::from(refused),
            CompileError::NoEntry { name: "k".into() },
            CompileError::Stopped(Stop::Time),
            CompileError::Stopped(Stop::Memory),
            CompileError::Failed { what: "x".into() },
        ] {
            let there = postcard::to_extend(&Answer::Failed(Failure::of(&error)), Vec::new()).unwrap();
            let Answer::Failed(back) = postcard::from_bytes(&there).unwrap() else { panic!() };
            assert_eq!(format!("{:?}", back.into_error("k")), format!("{error:?}"));
        }
        let long = CompileError::Failed { what: "ä".repeat(1 << 20) };
        assert!(postcard::to_extend(&Failure::of(&long), Vec::new()).unwrap().len() < MAX_MESSAGE);
    }

    #[test]
    fn files_carry_bytes_and_their_end_is_seen() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        let file = memory_file("test", &[&bytes[..100], &[], &bytes[100..]]).unwrap();
        assert_eq!(size(&file).unwrap(), 10_000);
        assert_eq!(read_file(&file, 10_000).unwrap(), bytes);
        assert!(read_file(&file, 10_001).is_err());
    }
}
