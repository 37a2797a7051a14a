//! `trait Gpu` over a session with the daemon.
//!
//! [`Address::open`] opens a session with one of the program's GPUs; the result behaves as a GPU of one's own:
//! - [`Gpu::submit`] encodes commands into the ring and returns: no answer, no system call while the daemon is awake; in a
//!   session in which all is answered it waits for the answer;
//! - [`Gpu::request`] waits for its answer on the ring back;
//! - [`Gpu::wait`] looks at the semaphore area, which the GPU itself writes, and then sleeps on its interrupt count;
//! - [`Gpu::write`] and [`Gpu::read`] are plain copies where the daemon shows the session's VRAM in a memory file; else they go
//!   through the staging area in blocks, several in flight, so that both sides copy at the same time and what is handed over is
//!   still in the cache.
//!
//! A request that has to wait for memory is answered at once all the same, so that other threads' go on; the caller asks again when
//! the daemon's notices say that there is something new ([`Deferring`]).
//!
//! When the daemon dies, every call, including those that wait, ends with [`GpuError::Lost`]. In a forked child every call
//! does: a session belongs to the process that made it.
//!
//! Frames go through rings, or as messages over a socket; how, the daemon says in its welcome.
//!
//! Locks, in this order: `caller` (one request at a time), `sender` (one frame at a time). Submissions that are not answered take
//! only `sender`, so they never wait behind another thread's request.

mod aperture;
mod connect;
mod copy;
mod deferring;
mod host_files;
mod wait;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, Command, ContextId, Deferring, DevAddr, GiveBack, Gpu, GpuError, HostMemory, MemoryKind, Properties,
    QueueId, Request, Response, SemaphoreArea, SlotId,
};
use hostmem::{ForkMark, HostRange, Mapping, Memfd};
use parking_lot::Mutex;
use transport::{
    Receiver,
    unix::{self, Received},
};
use wire::frame::HEADER_BYTES;
use wire::limits::{
    ANSWER_RING_BYTES, CALLS_LOCAL_AT, CALLS_SENT_AT, COPIED_IN_AT, COPIED_OUT_AT, COPY_NS_AT, ENDED_AT,
    MAX_ANSWER_BYTES, MAX_COMMANDS, MESSAGES_AT, ROUND_TRIPS_AT, WAIT_NS_AT,
};
use wire::{Assembler, HostPlace, Import, command, encode_command, frame};

use crate::aperture::Aperture;
use crate::host_files::HostFiles;

pub use connect::{Address, ConnectError, connect_as};

/// Who talks to nobody looks again after so long whether the daemon is there: asking the system takes as long as a small copy.
const LOOK_AGAIN_US: u64 = 1000;

/// Most requests whose answers nobody waits for: with the longest of them the ring has room for so many.
const MOST_UNHEARD: usize = 64;
/// Longest frame that answers one of them, bytes: a code, numbers and a sentence.
const LONGEST_UNHEARD: usize = 512;
const _: () = assert!(MOST_UNHEARD * LONGEST_UNHEARD <= ANSWER_RING_BYTES);

/// A session, as a GPU.
#[derive(Debug)]
pub struct RemoteGpu {
    properties: Properties,
    gpus: u32,
    mark: ForkMark,
    socket: OwnedFd,
    area: Arc<Mapping>,
    /// Offset in `area` of the counts that the daemon shows to people.
    statistics: usize,
    /// Offset in `area` of what the daemon has to tell, if requests may wait.
    notices: Option<usize>,
    semaphores: SemaphoreArea,
    staging: Mapping,
    staging_block: usize,
    staging_bytes: usize,
    /// Frames are messages, and copies go in frames.
    in_frames: bool,
    /// Whatever is submitted is answered.
    answered: bool,
    /// Memory files can be handed over.
    imports: bool,
    /// Allocations in VRAM are shown.
    shows_memory: bool,
    /// The daemon knows launches of clusters.
    clusters: bool,
    immediate: bool,
    /// Times are counted.
    timed: bool,
    aperture: Aperture,
    opened: Instant,
    /// When it was last seen that the daemon is there: microseconds since then.
    looked: AtomicU64,
    caller: Mutex<Caller>,
    sender: Mutex<Sender>,
    /// Set once the session is over.
    lost: OnceLock<String>,
    /// Contexts that were well when the session's error count was this.
    well: Mutex<HashMap<ContextId, u32>>,
}

/// Sends frames.
#[derive(Debug)]
struct Sender {
    frames: transport::Sender,
    frame: Vec<u8>,
}

/// Asks and receives answers.
#[derive(Debug)]
struct Caller {
    frames: Receiver,
    frame: Vec<u8>,
    number: u32,
    /// Requests that nobody waits for and whose answers have not come, in order.
    unheard: VecDeque<u32>,
    answer: Assembler,
    host_files: HostFiles,
}

impl RemoteGpu {
    /// How many GPUs the daemon has for this program, this one among them.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// The daemon does not see what is copied here: it is told how much, each way.
    fn count_copied(&self, word: usize, bytes: usize) {
        self.area.u64_at(self.statistics + word).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Calls that the library above has answered without us; it counts, `sundial ps` shows.
    #[must_use]
    pub fn calls_local(&self) -> &AtomicU64 {
        self.area.u64_at(self.statistics + CALLS_LOCAL_AT)
    }

    /// Calls for which something was sent: the same.
    #[must_use]
    pub fn calls_sent(&self) -> &AtomicU64 {
        self.area.u64_at(self.statistics + CALLS_SENT_AT)
    }

    /// Messages sent to the daemon so far.
    #[must_use]
    pub fn calls_remote(&self) -> &AtomicU64 {
        self.area.u64_at(self.statistics + MESSAGES_AT)
    }

    /// Times that an answer was waited for so far.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.area.u64_at(self.statistics + ROUND_TRIPS_AT).load(Ordering::Relaxed)
    }

    fn count_round_trip(&self) {
        self.area.u64_at(self.statistics + ROUND_TRIPS_AT).fetch_add(1, Ordering::Relaxed);
    }

    /// Does something, and adds what it takes to a count of nanoseconds if this session is timed.
    fn timing<T>(&self, count: usize, work: impl FnOnce() -> T) -> T {
        if !self.timed {
            return work();
        }
        let start = Instant::now();
        let done = work();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.area.u64_at(self.statistics + count).fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// Fails if the session is over or not this process's.
    fn alive(&self) -> Result<(), GpuError> {
        if !self.mark.here() {
            return Err(GpuError::Lost { reason: "a forked child cannot use its parent's session".into() });
        }
        match self.lost.get() {
            Some(reason) => Err(GpuError::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Ends the session.
    fn lose(&self, reason: impl ToString) -> GpuError {
        GpuError::Lost { reason: self.lost.get_or_init(|| reason.to_string()).clone() }
    }

    fn send(&self, sender: &mut Sender, parts: &[&[u8]]) -> Result<(), GpuError> {
        let sent = sender.frames.push(parts, &|| !unix::hung_up(&self.socket));
        sent.map_err(|error| self.lose(error))?;
        self.count_message();
        Ok(())
    }

    /// Sends a frame that is not answered otherwise, and waits for its answer.
    fn carry(&self, caller: &mut Caller, frame: &[u8]) -> Result<(), GpuError> {
        let number = caller.next();
        self.send(&mut self.sender.lock(), &[&frame::answered_header(number), frame])?;
        self.timing(WAIT_NS_AT, || self.receive(caller, number))?.map(drop)
    }

    /// Under the sender's lock: nobody else counts.
    fn count_message(&self) {
        let count = self.calls_remote();
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// As [`Gpu::listen`], but not if that would have to wait: for another thread, or for room in the ring.
    fn try_listen(&self) -> Result<(), GpuError> {
        let Some(mut sender) = self.sender.try_lock() else { return Ok(()) };
        let sent = sender.frames.try_push(&[&frame::listen()]).map_err(|error| self.lose(error))?;
        if sent {
            self.count_message();
        }
        Ok(())
    }

    /// Receives the answer to what was sent with `number`, after all that came before it.
    fn receive(&self, caller: &mut Caller, number: u32) -> Result<Result<Response, GpuError>, GpuError> {
        self.hear_posted(caller)?;
        let answer = self.receive_next(caller, number)?;
        self.count_round_trip();
        Ok(answer)
    }

    /// Receives the answers that nobody waits for.
    fn hear_posted(&self, caller: &mut Caller) -> Result<(), GpuError> {
        while let Some(number) = caller.unheard.pop_front() {
            if let Err(error) = self.receive_next(caller, number)? {
                tracing::debug!(%error, "refused by the daemon");
            }
        }
        Ok(())
    }

    fn receive_next(&self, caller: &mut Caller, number: u32) -> Result<Result<Response, GpuError>, GpuError> {
        loop {
            self.pop(caller)?;
            let part = wire::parse_answer(&caller.frame).map_err(|error| self.lose(error))?;
            if let Some(answer) = self.add_answer(&mut caller.answer, number, part)? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the daemon's next frame.
    fn pop(&self, caller: &mut Caller) -> Result<(), GpuError> {
        let popped = caller.frames.pop(&mut caller.frame, &|| !unix::hung_up(&self.socket));
        popped.map_err(|error| self.lose(error))
    }

    /// A part of the answer to `number`, as it says: its number, whether it is the last, the part. The answer, if it was the last.
    fn add_answer(
        &self,
        answer: &mut Assembler,
        number: u32,
        (of, last, body): (u32, bool, &[u8]),
    ) -> Result<Option<Result<Response, GpuError>>, GpuError> {
        if of != number {
            return Err(self.lose("the daemon answered out of order"));
        }
        let whole = answer.add(last, body).map_err(|error| self.lose(error))?;
        whole.map(|whole| wire::decode_answer(&whole).map_err(|error| self.lose(error))).transpose()
    }

    fn ask(&self, caller: &mut Caller, request: &Request) -> Result<Response, GpuError> {
        let number = self.send_request(caller, request)?;
        self.receive(caller, number)?
    }

    /// Sends a request, and gives the number that its answer will have.
    fn send_request(&self, caller: &mut Caller, request: &Request) -> Result<u32, GpuError> {
        let whole =
            wire::encode_request(request).map_err(|error| GpuError::InvalidValue { what: error.to_string() })?;
        let number = caller.next();
        let mut sender = self.sender.lock();
        for (header, body) in wire::fragments(true, number, &whole) {
            self.send(&mut sender, &[&header, body])?;
        }
        Ok(number)
    }

    /// Hands a memory file to the daemon, and asks for a name for a part of it.
    fn ask_import(&self, caller: &mut Caller, import: Import, file: &Memfd) -> Result<(), GpuError> {
        let number = caller.next();
        // First: the daemon waits for no descriptor.
        if let Err(error) = unix::send(&self.socket, &frame::import_message(number), &[file.as_fd()], true) {
            if unix::hung_up(&self.socket) {
                return Err(self.lose(error));
            }
            return Err(GpuError::InvalidValue { what: format!("a memory file that cannot be sent: {error}") });
        }
        self.send(&mut self.sender.lock(), &[&frame::import(number, import)])?;
        self.receive(caller, number)?.map(drop)
    }

    /// As [`RemoteGpu::alive`]; and the daemon was there a moment ago, for those who do not talk to it.
    fn still_connected(&self) -> Result<(), GpuError> {
        self.alive()?;
        let now = self.opened.elapsed().as_micros() as u64;
        if now.saturating_sub(self.looked.load(Ordering::Relaxed)) < LOOK_AGAIN_US {
            return Ok(());
        }
        if unix::hung_up(&self.socket) {
            return Err(self.lose("the daemon is gone"));
        }
        self.looked.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the message with the file that shows VRAM, and maps it: `None` if this process has no room for it, or for its
    /// descriptor.
    fn receive_aperture(&self, id: AllocId) -> Result<Option<(Arc<Memfd>, Mapping)>, GpuError> {
        let (place, file) = self.receive_place(id)?;
        if place.file != HostPlace::APERTURE {
            return Err(self.lose("the daemon sent no file that shows VRAM"));
        }
        let map = |file: Memfd| file.map_guarded().map(|mapping| (Arc::new(file), mapping));
        let mapping = file.map(map).transpose().unwrap_or_else(|error| {
            tracing::info!(%error, "there is no room for VRAM in this process: copies go through the daemon");
            None
        });
        Ok(mapping)
    }

    /// Takes the message that comes with a new allocation of host memory, and the descriptor of its file if that is new.
    fn receive_host_memory(&self, id: AllocId, files: &mut HostFiles) -> Result<(), GpuError> {
        let (place, file) = self.receive_place(id)?;
        if files.add(place, file) { Ok(()) } else { Err(self.lose("the daemon sent no descriptor for host memory")) }
    }

    /// Takes a message that says where an allocation lies, and the file that came with it.
    fn receive_place(&self, id: AllocId) -> Result<(HostPlace, Option<Memfd>), GpuError> {
        let mut message = [0; HostPlace::BYTES];
        let Received { length, fds, .. } =
            unix::receive(&self.socket, &mut message).map_err(|error| self.lose(error))?;
        let place = HostPlace::decode(&message[..length]).map_err(|error| self.lose(error))?;
        if place.id != id {
            return Err(self.lose("the daemon sent the place of another allocation"));
        }
        let file = fds.into_iter().next().map(Memfd::from_fd).transpose().map_err(|error| self.lose(error))?;
        Ok((place, file))
    }
}

impl Caller {
    fn next(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

impl Gpu for RemoteGpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        self.alive()?;
        let mut caller = self.caller.lock();
        self.aperture.before(&request);
        let response = self.timing(WAIT_NS_AT, || self.ask(&mut caller, &request))?;
        if let (&Request::Alloc { id, .. }, Response::Shown { .. }) = (&request, &response)
            && !self.aperture.is_settled()
        {
            self.aperture.settle(self.receive_aperture(id)?);
        }
        self.aperture.after(&request, &response);
        match request {
            Request::Alloc { id, kind: MemoryKind::Host, .. } => {
                self.receive_host_memory(id, &mut caller.host_files)?;
            }
            Request::Free { id } => {
                caller.host_files.remove(id);
            }
            _ => {}
        }
        Ok(response)
    }

    fn post(&self, what: GiveBack) -> Result<(), GpuError> {
        let request = Request::from(what);
        if self.answered {
            return self.request(request).map(drop);
        }
        self.alive()?;
        let mut caller = self.caller.lock();
        self.aperture.before(&request);
        let number = self.send_request(&mut caller, &request)?;
        caller.unheard.push_back(number);
        if let Request::Free { id } = request {
            caller.host_files.remove(id);
        }
        // Their answers must find room.
        if caller.unheard.len() >= MOST_UNHEARD { self.hear_posted(&mut caller) } else { Ok(()) }
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        self.alive()?;
        let clusters = |command: &Command<'_>| matches!(command, Command::Launch { cluster, .. } if *cluster != [1; 3]);
        if !self.clusters && commands.iter().any(clusters) {
            let what = "clusters of thread blocks, which the daemon is too old for".to_owned();
            return Err(GpuError::Unsupported { what });
        }
        if self.answered {
            let mut caller = self.caller.lock();
            let limit = self.sender.lock().frames.limit() - HEADER_BYTES;
            let mut frame = Vec::new();
            return encode_submission(queue, commands, limit, &mut frame, |frame| self.carry(&mut caller, frame));
        }
        let mut sender = self.sender.lock();
        let limit = sender.frames.limit();
        let mut frame = std::mem::take(&mut sender.frame);
        let sent = encode_submission(queue, commands, limit, &mut frame, |frame| self.send(&mut sender, &[frame]));
        sender.frame = frame;
        sent
    }

    fn flush(&self) -> Result<(), GpuError> {
        // Frames are seen by the daemon as soon as they are written.
        self.alive()
    }

    fn semaphores(&self) -> &SemaphoreArea {
        &self.semaphores
    }

    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        self.alive()?;
        self.semaphores.raise(slot, value);
        let frame = frame::release(slot, value);
        if self.answered {
            return self.carry(&mut self.caller.lock(), &frame);
        }
        self.send(&mut self.sender.lock(), &[&frame])
    }

    fn listen(&self) -> Result<(), GpuError> {
        self.alive()?;
        self.send(&mut self.sender.lock(), &[&frame::listen()])
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        self.timing(WAIT_NS_AT, || self.wait_for(context, slot, value, timeout))
    }

    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        self.still_connected()?;
        if !self.timing(COPY_NS_AT, || self.aperture.write(dst, src)) {
            return self.timing(COPY_NS_AT, || self.write_blocks(dst, src));
        }
        self.count_copied(COPIED_IN_AT, src.len());
        Ok(())
    }

    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        self.still_connected()?;
        if !self.timing(COPY_NS_AT, || self.aperture.read(dst, src)) {
            return self.timing(COPY_NS_AT, || self.read_blocks(dst, src));
        }
        // What it has read may be what was left when the daemon ended the session.
        if self.area.u32_at(self.statistics + ENDED_AT).load(Ordering::SeqCst) != 0 {
            return Err(self.lose("the daemon has ended the session"));
        }
        self.count_copied(COPIED_OUT_AT, dst.len());
        Ok(())
    }

    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        self.alive()?;
        let known = self.caller.lock().host_files.get(id);
        known
            .or_else(|| self.aperture.place(id))
            .ok_or(GpuError::InvalidId { what: "allocation that has a file".into(), id: id.0.into() })
    }

    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        if !self.imports {
            return Err(GpuError::Unsupported { what: "memory that another GPU shares with the host".into() });
        }
        self.alive()?;
        let mut caller = self.caller.lock();
        let import = Import { id, offset: memory.offset, bytes };
        self.timing(WAIT_NS_AT, || self.ask_import(&mut caller, import, &memory.file))?;
        caller.host_files.add_imported(id, memory.clone());
        Ok(())
    }

    fn shows_memory(&self) -> bool {
        self.shows_memory
    }

    fn is_immediate(&self) -> bool {
        self.immediate
    }

    fn deferring(&self) -> Option<&dyn Deferring> {
        self.notices.map(|_| self as &dyn Deferring)
    }
}

/// Encodes commands into frames of at most `limit` bytes, each built in `frame`, and hands them to `send` one after another.
fn encode_submission(
    queue: QueueId,
    commands: &[Command<'_>],
    limit: usize,
    frame: &mut Vec<u8>,
    mut send: impl FnMut(&[u8]) -> Result<(), GpuError>,
) -> Result<(), GpuError> {
    let start = |frame: &mut Vec<u8>| {
        frame.clear();
        frame.extend_from_slice(&frame::submit_header(queue));
    };
    start(frame);
    let mut inside = 0;
    for command in commands {
        if inside == MAX_COMMANDS || frame.len() + command::encoded_bound(command) > limit {
            send(frame)?;
            start(frame);
            inside = 0;
        }
        encode_command(command, frame).map_err(|error| GpuError::InvalidValue { what: error.to_string() })?;
        inside += 1;
    }
    if inside > 0 { send(frame) } else { Ok(()) }
}

/// New ends of the session's way for frames.
fn ends(sender: transport::Sender, receiver: Receiver) -> (Mutex<Sender>, Mutex<Caller>) {
    let sender = Sender { frames: sender, frame: Vec::new() };
    let caller = Caller {
        frames: receiver,
        frame: Vec::new(),
        number: 0,
        unheard: VecDeque::new(),
        answer: Assembler::new(MAX_ANSWER_BYTES),
        host_files: HostFiles::default(),
    };
    (Mutex::new(sender), Mutex::new(caller))
}
