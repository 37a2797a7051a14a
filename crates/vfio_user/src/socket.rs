//! Messages cut out of a byte stream, with the descriptors that came with them.
//!
//! The socket is a stream: a message may come in pieces, and several may come at once. A [`Reader`] takes what there is with
//! one `recvmsg` and cuts it; on the way that matters, one register access, that is one call for one message.
//!
//! Descriptors travel with the bytes of one `sendmsg`. The kernel ends a read behind the piece of the stream that carried
//! some, so whatever a read brought belongs to the message that its last byte is part of.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hostmem::strangers;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, sockopt,
};
use zerocopy::FromBytes;

use crate::Ended;
use crate::patience::Patience;
use crate::posted::Taker;
use crate::wire::{HEADER, Header, OVERHEAD};

/// Most descriptors in one message, whatever the sides agree on.
pub const MAX_FDS: usize = 16;

/// Looks at posted writes for each look at the socket.
const LOOKS: usize = 32;

/// One whole message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
    pub(crate) fds: Fds,
}

/// The descriptors of one message; closed if nobody takes them.
#[derive(Debug, Default)]
pub(crate) struct Fds {
    pub(crate) fds: Vec<OwnedFd>,
    /// There were more than may be, or some that may not; they are closed, or about to be.
    pub(crate) refused: bool,
}

impl Fds {
    fn refused() -> Fds {
        Fds { fds: Vec::new(), refused: true }
    }
}

/// What came with one read.
#[derive(Debug)]
struct Arrived {
    /// Place in the stream of the read's last byte.
    at: u64,
    fds: Fds,
}

/// Cuts messages out of what a socket receives. The socket is given with each call: it belongs to who sends, too.
#[derive(Debug)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// What of the buffer is received and not yet given out.
    start: usize,
    end: usize,
    /// Place in the stream of the buffer's first byte.
    base: u64,
    /// Longest message that is accepted.
    longest: usize,
    arrived: Vec<Arrived>,
    /// Of descriptors that come, only those that can be closed without waiting are kept.
    wary: bool,
    patience: Patience,
    /// Posted writes that had been taken when the socket was last looked at.
    looked: u64,
    /// Messages given out.
    messages: u64,
    /// Until when the next message must be whole.
    deadline: Option<Instant>,
}

impl Reader {
    pub(crate) fn new(spin: Duration) -> Reader {
        Reader {
            buffer: vec![0; OVERHEAD],
            start: 0,
            end: 0,
            base: 0,
            longest: OVERHEAD,
            arrived: Vec::new(),
            wary: false,
            patience: Patience::new(spin),
            looked: 0,
            messages: 0,
            deadline: None,
        }
    }

    /// For a peer who may send descriptors of any kind, to do harm with.
    pub(crate) fn wary(self) -> Reader {
        Reader { wary: true, ..self }
    }

    /// From now on messages with so many bytes of data are accepted.
    pub(crate) fn accept_data(&mut self, bytes: u32) {
        self.longest = OVERHEAD + bytes as usize;
    }

    /// From now on a wait ends with [`Ended::Silent`] at `deadline`.
    pub(crate) fn set_deadline(&mut self, socket: &UnixStream, deadline: Option<Instant>) -> Result<(), Ended> {
        self.deadline = deadline;
        if deadline.is_none() {
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, None)?;
        }
        Ok(())
    }

    /// Says how many commands this side has sent; who sends none counts those that it receives.
    pub(crate) fn count_commands(&mut self, commands: u64) {
        self.messages = commands;
    }

    /// Messages given out, the greeting among them.
    pub(crate) fn count(&self) -> u64 {
        self.messages
    }

    /// The next message; waits for it.
    pub(crate) fn next(&mut self, socket: &UnixStream) -> Result<Message<'_>, Ended> {
        let header = loop {
            if let Some(header) = self.whole()? {
                break header;
            }
            self.receive(socket, None)?;
        };
        Ok(self.cut(header))
    }

    /// The next message, or none if there is a posted write sooner; waits for either.
    pub(crate) fn next_beside(&mut self, socket: &UnixStream, posted: &Taker) -> Result<Option<Message<'_>>, Ended> {
        let header = loop {
            if let Some(header) = self.whole()? {
                break header;
            }
            if !self.receive(socket, Some(posted))? {
                return Ok(None);
            }
        };
        Ok(Some(self.cut(header)))
    }

    /// Cuts off the first message, which is whole.
    fn cut(&mut self, header: Header) -> Message<'_> {
        let bytes = header.size as usize;
        let fds = self.take_fds(self.base + (self.start + bytes) as u64);
        let payload = self.start + HEADER..self.start + bytes;
        self.start += bytes;
        self.messages += 1;
        Message { header, payload: &self.buffer[payload], fds }
    }

    /// The header of the first message, if all of the message is there. Makes room for it if it is not.
    fn whole(&mut self) -> Result<Option<Header>, Ended> {
        let there = &self.buffer[self.start..self.end];
        let Ok((header, _)) = Header::read_from_prefix(there) else {
            self.make_room(HEADER);
            return Ok(None);
        };
        let bytes = header.size as usize;
        if bytes < HEADER {
            return Err(Ended::Garbage("a message shorter than its header"));
        }
        if bytes > self.longest {
            return Err(Ended::Garbage("a message longer than was agreed"));
        }
        if there.len() >= bytes {
            return Ok(Some(header));
        }
        self.make_room(bytes);
        Ok(None)
    }

    /// Sees to it that a message of `bytes` at the start fits into the buffer.
    fn make_room(&mut self, bytes: usize) {
        if self.start == self.end || self.start + bytes > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.base += self.start as u64;
            (self.start, self.end) = (0, self.end - self.start);
        }
        if bytes > self.buffer.len() {
            self.buffer.resize(bytes, 0);
        }
    }

    /// The descriptors of the message that ends before `end`.
    fn take_fds(&mut self, end: u64) -> Fds {
        let mut all = Fds::default();
        while self.arrived.first().is_some_and(|first| first.at < end) {
            let Fds { fds, refused } = self.arrived.remove(0).fds;
            all.fds.extend(fds);
            all.refused |= refused;
        }
        if all.fds.len() > MAX_FDS || all.refused {
            all = Fds::refused();
        }
        all
    }

    /// Receives once: at least one byte. Looks for a while before it sleeps. False if there is a posted write instead.
    fn receive(&mut self, socket: &UnixStream, posted: Option<&Taker>) -> Result<bool, Ended> {
        let messages = self.messages;
        let is_posted = || posted.is_some_and(|posted| posted.is_ready(messages));
        let taken = posted.map_or(0, Taker::count);
        if is_posted() {
            // There may always be one: who posts without an end does not hide what else there is, nor the end.
            return Ok(taken - self.looked >= Taker::MOST && self.look(socket, taken)?);
        }
        self.patience.set_commands(messages + taken);
        let bound = self.patience.bound();
        let start = Instant::now();
        if !bound.is_zero() {
            loop {
                // A look at the socket is a system call; this is one at memory.
                for _ in 0..posted.map_or(0, |_| LOOKS) {
                    if is_posted() {
                        self.patience.learn(start.elapsed());
                        return Ok(false);
                    }
                    std::hint::spin_loop();
                }
                if self.look(socket, taken)? {
                    self.patience.learn(start.elapsed());
                    return Ok(true);
                }
                if start.elapsed() >= bound {
                    break;
                }
            }
        }
        let received = match posted {
            None => self.sleep(socket).map(Some),
            Some(posted) => {
                posted.set_asleep(true);
                let received = if is_posted() { Ok(None) } else { self.sleep(socket).map(Some) };
                posted.set_asleep(false);
                received
            }
        };
        self.patience.learn(start.elapsed());
        match received? {
            None => Ok(false),
            Some(true) => Ok(true),
            Some(false) => Err(Ended::Silent),
        }
    }

    /// Receives what is there, when so many posted writes have been taken; false if there is nothing.
    fn look(&mut self, socket: &UnixStream, taken: u64) -> Result<bool, Ended> {
        self.looked = taken;
        self.receive_now(socket, RecvFlags::DONTWAIT)
    }

    /// Receives once, and sleeps until there is something; false if that took too long.
    fn sleep(&mut self, socket: &UnixStream) -> Result<bool, Ended> {
        self.wait_until_deadline(socket)?;
        self.receive_now(socket, RecvFlags::empty())
    }

    fn wait_until_deadline(&self, socket: &UnixStream) -> Result<(), Ended> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Ended::Silent);
            }
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left))?;
        }
        Ok(())
    }

    /// One `recvmsg`; false if there was nothing to receive.
    fn receive_now(&mut self, socket: &UnixStream, flags: RecvFlags) -> Result<bool, Ended> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let received = match rustix::net::recvmsg(socket, &mut into, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(Errno::INTR) if flags.contains(RecvFlags::DONTWAIT) => return Ok(false),
            Err(Errno::INTR) => return self.receive_now(socket, flags),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(Ended::HungUp),
            Err(error) => return Err(error.into()),
        };
        if received.bytes == 0 {
            return Err(Ended::HungUp);
        }
        let mut fds = Vec::new();
        for item in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = item {
                fds.extend(some);
            }
        }
        self.end += received.bytes;
        let mut refused = received.flags.contains(ReturnFlags::CTRUNC);
        if self.wary && !fds.is_empty() {
            let sender = sender(socket);
            fds = strangers::sift(fds, sender).unwrap_or_default();
            refused |= fds.is_empty();
            if fds.is_empty() {
                bear(sender)?;
            }
        }
        if refused || !fds.is_empty() {
            self.keep(Fds { fds, refused });
        }
        Ok(true)
    }

    /// Notes the descriptors of a read that ended at [`Reader::end`].
    ///
    /// A read happens only while no message is whole, so all that is held before it belongs to the one that is under way. A
    /// peer that sends descriptors with each byte of it finds them closed, and the message refused.
    fn keep(&mut self, fds: Fds) {
        let at = self.base + self.end as u64 - 1;
        let held: usize = self.arrived.iter().map(|arrived| arrived.fds.fds.len()).sum();
        let mut fds = fds;
        if held > MAX_FDS || self.arrived.len() > MAX_FDS {
            self.arrived.truncate(1);
            self.arrived[0].fds = Fds::refused();
            fds = Fds::refused();
        }
        self.arrived.push(Arrived { at, fds });
    }
}

/// The user at the other end.
fn sender(socket: &UnixStream) -> u32 {
    sockopt::socket_peercred(socket).map_or(u32::MAX, |peer| peer.uid.as_raw())
}

/// Refuses a peer of whose user too many descriptors are still being closed.
fn bear(user: u32) -> Result<(), Ended> {
    match strangers::strangers_of(user) {
        ..strangers::MOST_STRANGERS => Ok(()),
        _ => Err(Ended::Garbage("descriptors of a kind that nobody asked for, which cannot be closed")),
    }
}

/// The same, of a peer who has just come.
pub(crate) fn bear_peer(socket: &UnixStream) -> Result<(), Ended> {
    bear(sender(socket))
}

/// Sends one message that consists of `parts`, with descriptors; one `sendmsg`, unless the socket takes it in pieces.
pub(crate) fn send(socket: &UnixStream, parts: &mut [IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> Result<(), Ended> {
    assert!(fds.len() <= MAX_FDS, "{} descriptors in one message", fds.len());
    let mut left = parts;
    let mut with = fds;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(with));
        }
        match rustix::net::sendmsg(socket.as_fd(), left, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => continue,
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Ended::HungUp),
            Err(Errno::AGAIN) => return Err(Ended::Silent),
            Err(error) => return Err(error.into()),
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
        }
        if left.is_empty() {
            return Ok(());
        }
        with = &[];
    }
}
