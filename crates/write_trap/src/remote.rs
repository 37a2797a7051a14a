//! Single stores of another process: what it has sent, and what is asked of it.
//!
//! Whose mapping it is, that process alone can take the right to write away from its pages, and only it sees the faults. So the
//! other one says which pages, in messages of a socket that keeps their borders (`SOCK_SEQPACKET`), one at a time, and waits for
//! the answer to each; what was stored it reads in the file ([`Written`]), and asks nobody for it.
//!
//! ```text
//! request   u64 1: protect, 2: release;  then runs of pages, 1 to 256:  u64 first, u64 how many
//! answer    u64 0: done; else a number of errno
//! ```
//! Words are as the processor has them: both processes run on the same one.
//!
//! Neither believes the other anything. A request that cannot be one ends the service, and with it the protection. An answer
//! that cannot be one, or that does not come in time, is an error, and so is everything that is asked afterwards.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
#[cfg(not(target_arch = "x86_64"))]
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(not(target_arch = "x86_64"))]
use hostmem::Mapping;
use hostmem::Memfd;
use intervals::IntervalMap;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};

use crate::userfault::{TMPFS, check};
use crate::{Area, Kind, WriteTrap, Written};

/// Bytes of a word.
const WORD: usize = 8;
/// Most runs in one request.
const RUNS: usize = 256;
/// Bytes of the longest request.
pub(crate) const LONGEST: usize = WORD + RUNS * 2 * WORD;

const PROTECT: u64 = 1;
const RELEASE: u64 = 2;

/// What another process needs to have single stores to a mapping of this one noticed, as a [`RemoteDecode`].
///
/// Whoever gets it can make pages read-only and writable, and read what was stored where; not what. A process that sends it
/// away keeps no copy: when the receiver ends, so does the protection.
#[derive(Debug)]
pub struct DecodeParts {
    /// A memory file: what was stored ([`Written`]).
    pub written: OwnedFd,
    /// A socket: which pages.
    pub control: OwnedFd,
    /// Where the mapping lies in the process whose it is.
    pub address: u64,
    /// Its size: whole pages.
    pub bytes: u64,
}

/// There is none: no instructions are known.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Debug)]
pub enum DecodeServant {}

#[cfg(not(target_arch = "x86_64"))]
impl DecodeParts {
    /// For a mapping of this process.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: &Arc<Mapping>, _: Mapping) -> Result<(DecodeParts, DecodeServant), crate::Why> {
        Err(crate::Why::Processor)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl DecodeServant {
    /// Adds those among `pages` that are protected.
    ///
    /// # Errors
    /// Never.
    pub fn protected(&self, _: Range<u64>, _: &mut Vec<u64>) -> io::Result<()> {
        match *self {}
    }
}

/// A `Decode` of another process, which serves it there ([`crate::DecodeServant`]).
///
/// What that process does wrong harms its own news: it can leave some out, or make some up for the pages that are watched.
/// Every call ends, within the time for answers.
#[derive(Debug)]
pub struct RemoteDecode {
    written: Written,
    control: OwnedFd,
    area: Area,
    /// Pages that are protected, or were until they had to be released. Of others nothing is told: what there is to tell is
    /// bounded by what was asked for.
    watched: IntervalMap<()>,
    answer_within: Duration,
    /// The other process has not answered, or nonsense.
    broken: bool,
}

impl RemoteDecode {
    /// For the mapping of a process that sent these. `answer_within` is how long one call may take, whatever that process
    /// does: it counts as dead afterwards.
    ///
    /// # Errors
    /// `InvalidInput` and `InvalidData` if it cannot be what it should be; else what the operating system says.
    pub fn from_parts(parts: DecodeParts, answer_within: Duration) -> io::Result<RemoteDecode> {
        let DecodeParts { written, control, address, bytes } = parts;
        let area = Area::new(address, bytes)?;
        // First: only memory files have seals, and all else that is asked of these is answered at once.
        let written = Memfd::from_fd(written)?;
        // Pages of huge ones may be missing when they are touched.
        check(written.as_fd(), TMPFS)?;
        let written = Written::from_file(&written, area.pages())?;
        let (family, kind) = (sockopt::socket_domain(&control)?, sockopt::socket_type(&control)?);
        if family != AddressFamily::UNIX || kind != SocketType::SEQPACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a socket of another kind"));
        }
        Ok(RemoteDecode { written, control, area, watched: IntervalMap::default(), answer_within, broken: false })
    }

    /// Has the other process do something to runs of pages.
    fn ask(&mut self, what: u64, runs: &[Range<u64>]) -> io::Result<()> {
        let until = Instant::now() + self.answer_within;
        for runs in runs.chunks(RUNS) {
            if self.broken {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the other process has not answered before"));
            }
            let answer = self.exchange(&request(what, runs), until).inspect_err(|_| self.broken = true)?;
            if answer != 0 {
                return Err(self.refused(answer));
            }
        }
        Ok(())
    }

    /// Sends a request, and gives the answer.
    fn exchange(&self, request: &[u8], until: Instant) -> io::Result<u64> {
        // Whoever sent the socket holds its other end, and may hold this one, too: no call waits but the one with a limit.
        let sent = self.when(PollFlags::OUT, until, || {
            rustix::net::send(&self.control, request, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        })?;
        // A byte more than an answer has: what is longer is none. Descriptors that come with it are closed by the kernel.
        let mut answer = [0; WORD + 1];
        let (_, got) =
            self.when(PollFlags::IN, until, || rustix::net::recv(&self.control, &mut answer[..], RecvFlags::DONTWAIT))?;
        match words(&answer[..got]) {
            Some(words) if sent == request.len() && words.len() == 1 => Ok(words[0]),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no answer")),
        }
    }

    /// Does what may have to wait for the socket, at most until then.
    fn when<R>(
        &self,
        ready: PollFlags,
        until: Instant,
        mut act: impl FnMut() -> rustix::io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match act() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
                    match rustix::event::poll(&mut [PollFd::new(&self.control, ready)], Some(&left)) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                done => return Ok(done?),
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn refused(&mut self, answer: u64) -> io::Error {
        /// Greater numbers are no errors (`MAX_ERRNO` of Linux).
        const MOST: i32 = 4095;
        match i32::try_from(answer) {
            Ok(errno @ 1..=MOST) => io::Error::from_raw_os_error(errno),
            _ => {
                self.broken = true;
                io::Error::new(io::ErrorKind::InvalidData, "no answer")
            }
        }
    }
}

impl WriteTrap for RemoteDecode {
    fn kind(&self) -> Kind {
        Kind::Decode
    }

    fn protect(&mut self, pages: &[u64]) -> io::Result<()> {
        let runs = self.area.runs(pages)?;
        // First: what is stored while the answer is under way is to be told.
        for run in &runs {
            self.watched.cut(run.clone());
            let joined = self.watched.insert_joined(run.clone(), (), |(), _, ()| true);
            assert_eq!(joined, Ok(()), "nothing is left where it was cut out");
        }
        self.ask(PROTECT, &runs)
    }

    fn release(&mut self, pages: &[u64]) -> io::Result<()> {
        let runs = self.area.runs(pages)?;
        for run in &runs {
            self.watched.cut(run.clone());
        }
        self.ask(RELEASE, &runs)
    }

    /// Names the pages that had to be released; it asks nobody, and does not notice that the other process has ended.
    fn take_written(&mut self, out: &mut Vec<u64>) -> io::Result<()> {
        let watched = |pages| self.watched.overlapping(pages).next().is_some();
        self.written.take_released_in(&watched, |page| out.push(page));
        Ok(())
    }

    fn take_stores(&mut self, out: &mut Vec<u64>) {
        let watched = |pages| self.watched.overlapping(pages).next().is_some();
        self.written.take_stores_in(&watched, |word| out.push(word));
    }
}

fn request(what: u64, runs: &[Range<u64>]) -> Vec<u8> {
    let runs = runs.iter().flat_map(|run| [run.start, run.end - run.start]);
    std::iter::once(what).chain(runs).flat_map(u64::to_ne_bytes).collect()
}

/// The words of a message; none if it does not consist of such.
fn words(message: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = message.as_chunks();
    rest.is_empty().then(|| words.iter().copied().map(u64::from_ne_bytes).collect())
}

/// What a request says: whether pages are to be protected, or else released, and which; none if it is no request.
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) fn understand(message: &[u8], area: Area) -> Option<(bool, Vec<Range<u64>>)> {
    let words = words(message)?;
    let (what, runs) = words.split_first()?;
    let protect = match *what {
        PROTECT => true,
        RELEASE => false,
        _ => return None,
    };
    let (runs, rest) = runs.as_chunks();
    if runs.is_empty() || !rest.is_empty() {
        return None;
    }
    let runs = runs.iter().map(|&[first, pages]| area.run(first, pages).ok());
    Some((protect, runs.collect::<Option<_>>()?))
}
