//! Commands under way: whose reply is whose.
//!
//! There is no thread that receives. Of those who wait for a reply, one reads from the socket, for all; the others sleep until
//! it has brought theirs, or until it has its own and hands the reading over. So a single thread's register access is one
//! `sendmsg` and one `recvmsg`, and nobody wakes anybody.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::CallError;
use crate::Ended;
use crate::posted::{Posted, PostedWrite, Poster};
use crate::socket::{Fds, Message, Reader, send};
use crate::wire::{self, Command, HEADER, Header};

/// The socket, and who waits for what of it.
#[derive(Debug)]
pub(super) struct Calls {
    socket: UnixStream,
    /// Held while a message is sent, so that none is cut in two.
    sending: Mutex<Sending>,
    /// Writes that went through shared memory. Who reads must know without [`Calls::sending`]: whoever has that may wait for a
    /// server that waits until somebody reads.
    posted: AtomicU64,
    state: Mutex<State>,
}

/// What this side sends, in order.
#[derive(Debug)]
struct Sending {
    /// Messages sent, the greeting among them.
    sent: u64,
    poster: Option<Poster>,
}

#[derive(Debug)]
struct State {
    /// Not there while somebody reads.
    reader: Option<Box<Reader>>,
    waiting: Vec<Call>,
    next_id: u16,
    /// Commands sent.
    commands: u64,
    /// Set once; then no command is sent any more, and nobody waits.
    ended: Option<Ended>,
    spare: Vec<Arc<Condvar>>,
}

#[derive(Debug)]
struct Call {
    id: u16,
    wake: Arc<Condvar>,
    /// Its thread has sent the command and sleeps: it can be given the reading.
    asleep: bool,
    reply: Option<Reply>,
}

/// A reply that another thread has read.
#[derive(Debug)]
struct Reply {
    header: Header,
    payload: Vec<u8>,
    fds: Fds,
}

impl Calls {
    pub(super) fn new(socket: UnixStream, reader: Reader) -> Calls {
        let reader = Some(Box::new(reader));
        let state = State { reader, waiting: Vec::new(), next_id: 1, commands: 1, ended: None, spare: Vec::new() };
        let sending = Mutex::new(Sending { sent: 1, poster: None });
        Calls { socket, sending, posted: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Sends a command, waits for its reply, and hands that to `take`.
    pub(super) fn call<R>(
        &self,
        what: Command,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
        take: impl FnOnce(Message<'_>) -> Result<R, Ended>,
    ) -> Result<R, CallError> {
        let (id, wake) = self.begin()?;
        let sent = self.send(command(id, what, parts), parts, fds);
        let result = sent.map_err(CallError::Ended).and_then(|()| self.wait(id, &wake, what, take));
        self.finish(id, result.as_ref().err());
        result
    }

    /// Sends a command that wants no reply.
    pub(super) fn post(&self, what: Command, parts: [&[u8]; 2]) -> Result<(), CallError> {
        {
            let mut state = self.state.lock();
            if let Some(ended) = state.ended {
                return Err(ended.into());
            }
            state.commands += 1;
        }
        let header = command(0, what, parts);
        let header = Header { flags: header.flags | wire::NO_REPLY, ..header };
        self.send(header, parts, &[]).map_err(|ended| {
            self.state.lock().end(&self.socket, ended);
            ended.into()
        })
    }

    /// From now on small writes go through this.
    pub(super) fn set_poster(&self, poster: Poster) {
        self.sending.lock().poster = Some(poster);
    }

    /// Posts a write through shared memory; `wake` is the payload of the message that wakes the server, if the write is not to
    /// wait until that is awake. False if it has to go by message.
    pub(super) fn post_word(&self, write: PostedWrite, wake: Option<&[u8]>) -> Result<bool, CallError> {
        let mut sending = self.sending.lock();
        let Sending { sent, poster } = &mut *sending;
        let Some(poster) = poster else { return Ok(false) };
        let posted = match wake {
            Some(_) => poster.post(write, *sent),
            None if poster.post_late(write, *sent) => Posted::Seen,
            None => Posted::Full,
        };
        self.posted.store(poster.count(), Ordering::Relaxed);
        match posted {
            Posted::Full => return Ok(false),
            Posted::Seen => return Ok(true),
            Posted::Asleep => drop(sending),
        }
        self.post(Command::REGION_WRITE, [wake.unwrap_or_default(), &[]]).map(|()| true)
    }

    pub(super) fn shutdown(&self) {
        // Fails if the server has closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn begin(&self) -> Result<(u16, Arc<Condvar>), CallError> {
        let mut state = self.state.lock();
        if let Some(ended) = state.ended {
            return Err(ended.into());
        }
        let mut id = state.next_id;
        while state.waiting.iter().any(|call| call.id == id) {
            id = id.wrapping_add(1);
        }
        state.next_id = id.wrapping_add(1);
        state.commands += 1;
        let wake = state.spare.pop().unwrap_or_default();
        state.waiting.push(Call { id, wake: Arc::clone(&wake), asleep: false, reply: None });
        Ok((id, wake))
    }

    fn send(&self, header: Header, parts: [&[u8]; 2], fds: &[BorrowedFd<'_>]) -> Result<(), Ended> {
        let mut parts = [IoSlice::new(header.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        let mut sending = self.sending.lock();
        sending.sent += 1;
        send(&self.socket, &mut parts, fds)
    }

    /// Waits for the reply to command `id`; reads for all if nobody else does.
    fn wait<R>(
        &self,
        id: u16,
        wake: &Condvar,
        what: Command,
        take: impl FnOnce(Message<'_>) -> Result<R, Ended>,
    ) -> Result<R, CallError> {
        let mut state = self.state.lock();
        loop {
            let call = state.call(id).expect("a call stays until its own thread takes it away");
            if let Some(Reply { header, payload, fds }) = call.reply.take() {
                drop(state);
                check(&header, id, what)?;
                return Ok(take(Message { header, payload: &payload, fds })?);
            }
            if let Some(ended) = state.ended {
                return Err(ended.into());
            }
            let Some(mut reader) = state.reader.take() else {
                state.sleep(id, true);
                wake.wait(&mut state);
                state.sleep(id, false);
                continue;
            };
            let commands = state.commands;
            drop(state);
            reader.count_commands(commands + self.posted.load(Ordering::Relaxed));
            let message = reader.next(&self.socket);
            let ours = matches!(&message, Ok(message) if is_reply(&message.header) && message.header.id == id);
            if ours {
                let result = message.map_err(CallError::Ended).and_then(|message| {
                    check(&message.header, id, what)?;
                    Ok(take(message)?)
                });
                self.state.lock().reader = Some(reader);
                return result;
            }
            let sorted = message.and_then(|message| self.sort(message));
            state = self.state.lock();
            state.reader = Some(reader);
            if let Err(ended) = sorted {
                state.end(&self.socket, ended);
            }
        }
    }

    /// A message that is not for the thread that read it: another's reply, or a command.
    fn sort(&self, message: Message<'_>) -> Result<(), Ended> {
        let Message { header, payload, fds } = message;
        if is_reply(&header) {
            let mut state = self.state.lock();
            let call = state.call(header.id).filter(|call| call.reply.is_none());
            let call = call.ok_or(Ended::Garbage("a reply to nothing"))?;
            call.reply = Some(Reply { header, payload: payload.to_vec(), fds });
            call.wake.notify_one();
            return Ok(());
        }
        if header.flags & wire::TYPE != wire::COMMAND {
            return Err(Ended::Garbage("neither command nor reply"));
        }
        if header.flags & wire::NO_REPLY != 0 {
            return Ok(());
        }
        // A server may want to reach memory by messages. This client offers none that way.
        let error = Errno::OPNOTSUPP.raw_os_error().cast_unsigned();
        let size = HEADER as u32;
        self.send(Header { size, flags: wire::REPLY | wire::ERROR, error, ..header }, [&[], &[]], &[])
    }

    /// The end of a call, with what went wrong.
    fn finish(&self, id: u16, error: Option<&CallError>) {
        let mut state = self.state.lock();
        let at = state.waiting.iter().position(|call| call.id == id).expect("only its own thread takes it away");
        let call = state.waiting.swap_remove(at);
        state.spare.push(call.wake);
        match error {
            Some(CallError::Ended(ended)) => state.end(&self.socket, *ended),
            _ => state.hand_over(),
        }
    }
}

impl State {
    fn call(&mut self, id: u16) -> Option<&mut Call> {
        self.waiting.iter_mut().find(|call| call.id == id)
    }

    fn sleep(&mut self, id: u16, asleep: bool) {
        if let Some(call) = self.call(id) {
            call.asleep = asleep;
        }
    }

    /// Wakes one who can read, if nobody does. Only who sleeps: who is still sending may wait for a server that waits until
    /// somebody reads.
    fn hand_over(&self) {
        if self.reader.is_some()
            && let Some(next) = self.waiting.iter().find(|call| call.asleep && call.reply.is_none())
        {
            next.wake.notify_one();
        }
    }

    /// Nothing comes any more, for anybody.
    fn end(&mut self, socket: &UnixStream, ended: Ended) {
        self.ended.get_or_insert(ended);
        // Fails if the server has closed already.
        let _ = socket.shutdown(Shutdown::Both);
        self.waiting.iter().for_each(|call| {
            call.wake.notify_one();
        });
    }
}

/// The header of a command.
pub(super) fn command(id: u16, what: Command, parts: [&[u8]; 2]) -> Header {
    let size = HEADER + parts[0].len() + parts[1].len();
    let size = u32::try_from(size).expect("no message is longer than a transfer");
    Header { id, command: what.0, size, flags: wire::COMMAND, error: 0 }
}

fn is_reply(header: &Header) -> bool {
    header.flags & wire::TYPE == wire::REPLY
}

/// Whether this is the reply to that command, and what it says of it.
pub(super) fn check(header: &Header, id: u16, what: Command) -> Result<(), CallError> {
    if !is_reply(header) || header.id != id || Command(header.command) != what {
        return Err(Ended::Garbage("a reply to something else").into());
    }
    if header.flags & wire::ERROR == 0 {
        return Ok(());
    }
    // Any number may stand there; errno values are those below 4096.
    let errno = i32::try_from(header.error).ok().filter(|error| (1..4096).contains(error));
    Err(CallError::Refused(errno.map_or(Errno::IO, Errno::from_raw_os_error)))
}
