//! Serving one client.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gpu::{
    AllocId, Command, ContextError, ContextId, DevAddr, Gpu, GpuError, HostMemory, MemoryKind, QueueId, Request,
    Response, SlotId,
};
use hostmem::Memfd;
use tenancy::{AccountAccess, Settled};
use transport::{Ender, Messages, Receiver, RingError, Sender, unix};
use wire::handshake::features;
use wire::limits::{COMMAND_RING_BYTES, PIECE_BYTES};
use wire::{ClientFrame, Commands, HostPlace, Import, Reply, Transfer, Welcome, WireError, frame, parse_client_frame};

use crate::holdings::{Charges, Holdings};
use crate::host_files::HostFiles;
use crate::imports::Imports;
use crate::incoming::Incoming;
use crate::manner::Manner;
use crate::memory::{Remoting, SharedMemory, Statistics};
use crate::monitor::{Monitor, Watch};
use crate::waits::{Name, Next, Shown, Waits};

/// Commands handed to the GPU at once.
const BATCH: usize = 16;
/// Frames of commands after which the GPU is told of them even though more are waiting.
const FLUSH_AFTER: u32 = 32;

/// Features that a session has if its client knows them; those on demand are its manner's.
const SERVED: u64 =
    features::DEFERRED | features::STAGING | features::SEVERAL_GPUS | features::CLUSTERS | features::ON_DEMAND;

/// Longest frame where frames are messages: as in the rings.
const FRAME_BYTES: usize = COMMAND_RING_BYTES / 2 - 8;

/// The GPU of one client, and what a session needs of it beyond [`Gpu`].
#[derive(Clone)]
pub struct Backend {
    /// What the session's requests and commands go to.
    pub gpu: Arc<dyn Gpu>,
    /// It may answer that an allocation is [shown](Response::Shown): the client knows what that means.
    pub aperture: bool,
    /// The file of [`Gpu::semaphores`], to be mapped by the client.
    pub semaphores: Arc<Memfd>,
    /// The client is gone: stops its work and ends calls that wait for it. Called from any thread; must not block.
    pub abort: Arc<dyn Fn() + Send + Sync>,
    /// Gives everything back; returns when the client's memory has been scrubbed and can be given to others.
    pub close: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("properties", self.gpu.properties()).finish_non_exhaustive()
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The client closed its socket or died.
    #[error("the client left")]
    ClientLeft,
    /// The client broke the protocol.
    #[error("protocol violation")]
    Protocol(#[source] WireError),
    /// The client broke the ring.
    #[error("ring violation")]
    Ring(#[source] RingError),
    /// A descriptor could not be handed over.
    #[error("cannot send a descriptor to the client")]
    Descriptor(#[source] io::Error),
    /// The client's user has sent too many descriptors of kinds that nobody asked for, and that cannot be closed.
    #[error("too many descriptors of its user's are still being closed")]
    Strangers,
    /// The GPU is gone.
    #[error("the GPU is lost: {0}")]
    Lost(String),
    /// A fault of this program: whatever the client did, it should not have happened.
    #[error("serving it panicked: {0}")]
    Panicked(String),
}

impl From<WireError> for Ended {
    fn from(error: WireError) -> Self {
        Ended::Protocol(error)
    }
}

impl From<RingError> for Ended {
    fn from(error: RingError) -> Self {
        match error {
            RingError::PeerGone => Ended::ClientLeft,
            other => Ended::Ring(other),
        }
    }
}

/// What other threads may know of, and do to, a running session.
#[derive(Debug, Clone)]
pub struct SessionHandle {
    gone: Arc<AtomicBool>,
    memory_bytes: Arc<AtomicU64>,
    launches: Arc<AtomicU64>,
    statistics: Statistics,
    waiting: Shown,
    commands: Ender,
    answers: Ender,
}

impl SessionHandle {
    /// Ends the session soon.
    pub fn end(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.commands.end();
        self.answers.end();
    }

    /// Whether it has been told to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// GPU memory charged for it, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// GPU memory that it waits for, bytes, and for how long it has.
    #[must_use]
    pub fn waiting(&self) -> Option<(u64, Duration)> {
        let (bytes, since) = (*self.waiting.lock())?;
        Some((bytes, since.elapsed()))
    }

    /// Kernels launched so far.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Calls that the client's library answered itself, and messages that it sent, as it says.
    #[must_use]
    pub fn calls(&self) -> (u64, u64) {
        self.statistics.calls()
    }

    /// What the client's library says of how it came here.
    #[must_use]
    pub fn remoting(&self) -> Remoting {
        self.statistics.remoting()
    }

    /// Bytes that the client's library copied itself into GPU memory that is shown to it, and out of it, as it says.
    #[must_use]
    pub fn copied(&self) -> (u64, u64) {
        self.statistics.copied()
    }
}

/// A session, ready to be served.
pub struct Session {
    /// Not called any more from the moment on when `holdings` begins to be given back: dropped first.
    _watch: Watch,
    /// Others may go ahead before all is given back.
    waits: Waits,
    holdings: Holdings,
    memory: SharedMemory,
    handle: SessionHandle,
    commands: Receiver,
    answers: Sender,
    request: Incoming,
    manner: Manner,
    /// Why a copy whose parts are still coming has failed.
    put_failed: Option<GpuError>,
    /// A part of one that goes out.
    piece: Vec<u8>,
    failed: HashMap<ContextId, ContextError>,
    host_files: HostFiles,
    imports: Imports,
    /// The client has the file that shows its VRAM.
    has_aperture: bool,
    unflushed: u32,
    /// Last: who sees it closed knows that everything has been given back.
    socket: Arc<OwnedFd>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("charges", &self.holdings.charges).finish_non_exhaustive()
    }
}

/// What a session is set up with.
struct Parts {
    memory: SharedMemory,
    commands: Receiver,
    answers: Sender,
    handle: SessionHandle,
    watch: Watch,
    waits: Waits,
}

impl Session {
    /// Sets a session up and welcomes the client on `socket`, which has said its hello. `process` is a descriptor of the
    /// client's process, whose end is the session's: a child may hold the socket open. `charges` are what [`Manner::own`] says.
    ///
    /// # Errors
    /// What the operating system says. Nothing stays charged.
    pub fn begin(
        socket: Arc<OwnedFd>,
        process: Option<OwnedFd>,
        manner: Manner,
        backend: &Backend,
        charges: Charges,
        monitor: &Monitor,
    ) -> io::Result<Session> {
        let holdings = Holdings::new(backend, charges);
        let parts = Session::set_up(&socket, process, manner, &holdings.charges, backend, monitor)?;
        let Parts { memory, commands, answers, handle, watch, waits } = parts;
        Ok(Session {
            _watch: watch,
            waits,
            holdings,
            memory,
            handle,
            commands,
            answers,
            request: Incoming::new(),
            manner,
            put_failed: None,
            piece: Vec::new(),
            failed: HashMap::new(),
            host_files: HostFiles::default(),
            imports: Imports::default(),
            has_aperture: false,
            unflushed: 0,
            socket,
        })
    }

    fn set_up(
        socket: &Arc<OwnedFd>,
        process: Option<OwnedFd>,
        manner: Manner,
        charges: &Charges,
        backend: &Backend,
        monitor: &Monitor,
    ) -> io::Result<Parts> {
        let (staging_block, staging_bytes) = manner.staging();
        let (memory, [area_file, staging_file]) = SharedMemory::create(staging_bytes)?;
        let (commands, answers, theirs) = if manner.has(features::MESSAGES) {
            let (ours, theirs) = unix::pair()?;
            let messages = Messages::new(ours, FRAME_BYTES)?;
            (Receiver::Messages(messages.clone()), Sender::Messages(messages), Some(theirs))
        } else {
            (Receiver::Ring(memory.commands()), Sender::Ring(memory.answers()), None)
        };
        let waits = Waits::new(charges.memory().filter(|_| manner.has(features::DEFERRED)).map(|(broker, tenant)| {
            let notices = memory.notices();
            broker.hear(&notices);
            (Arc::clone(broker), *tenant, notices)
        }));
        let handle = SessionHandle {
            gone: Arc::new(AtomicBool::new(false)),
            memory_bytes: Arc::new(AtomicU64::new(0)),
            launches: Arc::new(AtomicU64::new(0)),
            statistics: memory.statistics(),
            waiting: waits.shown(),
            commands: commands.ender(),
            answers: answers.ender(),
        };
        let (command_ring, answer_ring, statistics) = SharedMemory::layout();
        let welcome = Welcome {
            features: features::SHARED_MEMORY
                | manner.features & SERVED
                | if backend.aperture { features::APERTURE } else { 0 },
            properties: backend.gpu.properties().clone(),
            command_ring,
            answer_ring,
            statistics,
            // Both are at most MAX_STAGING_BYTES.
            staging_block: staging_block as u32,
            staging_bytes: staging_bytes as u32,
            gpus: manner.gpus,
        };
        let files = [area_file.as_fd(), backend.semaphores.as_fd(), staging_file.as_fd()];
        let files: Vec<_> = files.into_iter().chain(theirs.as_ref().map(AsFd::as_fd)).collect();
        unix::send(&**socket, &Reply::Welcome(Box::new(welcome)).encode(), &files, false)?;
        let (ending, abort) = (handle.clone(), Arc::clone(&backend.abort));
        let watch = monitor.watch(socket, process, manner.has(features::SEVERAL_GPUS), move || {
            ending.end();
            abort();
        })?;
        Ok(Parts { memory, commands, answers, handle, watch, waits })
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Serves the client until it is gone; then stops its work, gives everything back, and returns why it ended. A panic
    /// ends the session as anything else does.
    pub fn run(mut self) -> Ended {
        let mut buffer = Vec::new();
        // What a panic leaves half done is this session's own, and goes with it.
        let served = catch_unwind(AssertUnwindSafe(|| {
            loop {
                if let Err(ended) = self.step(&mut buffer) {
                    break ended;
                }
            }
        }));
        self.memory.say_ended();
        served.unwrap_or_else(|panic| Ended::Panicked(panic_text(&*panic)))
    }

    fn step(&mut self, buffer: &mut Vec<u8>) -> Result<(), Ended> {
        if self.handle.gone.load(Ordering::Relaxed) {
            return Err(Ended::ClientLeft);
        }
        if !self.commands.try_pop(buffer)? {
            self.flush()?;
            let (gone, socket) = (&self.handle.gone, &self.socket);
            self.commands.pop(buffer, &|| !gone.load(Ordering::Relaxed) && !unix::hung_up(&**socket))?;
        }
        match parse_client_frame(buffer)? {
            // Who refuses has told the context.
            ClientFrame::Submit { queue, commands } => self.submit(queue, commands).map(drop),
            ClientFrame::Request { number, last, body } => {
                let (tables, account) = self.holdings.charges.parts();
                match self.request.add(tables, account, last, body)? {
                    Some(whole) => self.serve_request(number, whole),
                    None => Ok(()),
                }
            }
            ClientFrame::Write { number, transfer } => self.transfer(number, transfer, true),
            ClientFrame::Read { number, transfer } => self.transfer(number, transfer, false),
            ClientFrame::Release { slot, value } => self.release(slot, value).map(drop),
            ClientFrame::Answered { number, frame } if self.manner.has(features::ANSWERED) => {
                let done = match parse_client_frame(frame)? {
                    ClientFrame::Submit { queue, commands } => self.submit(queue, commands)?,
                    ClientFrame::Release { slot, value } => self.release(slot, value)?,
                    _ => return Err(WireError::Unknown { what: "frame to be answered", code: number }.into()),
                };
                self.flush()?;
                self.answer(number, &done.map(|()| Response::Done))
            }
            ClientFrame::Put { number, last, at, data } if self.manner.has(features::MESSAGES) => {
                self.put(number, last, at, data)
            }
            ClientFrame::Get { number, at, bytes } if self.manner.has(features::MESSAGES) => {
                self.get(number, at, bytes)
            }
            ClientFrame::Import { number, import } if self.manner.has(features::SEVERAL_GPUS) => {
                self.flush()?;
                let answer = match self.imports.take(&self.socket, number)? {
                    Ok(file) => self.import(import, file)?,
                    Err(refused) => Err(refused),
                };
                self.answer(number, &answer)
            }
            ClientFrame::Answered { number, .. }
            | ClientFrame::Import { number, .. }
            | ClientFrame::Put { number, .. }
            | ClientFrame::Get { number, .. } => {
                Err(WireError::Unknown { what: "frame in a session without such", code: number }.into())
            }
            ClientFrame::Listen => {
                self.flush()?;
                self.lost(self.holdings.gpu.listen()).map(drop)
            }
        }
    }

    fn serve_request(&mut self, number: u32, whole: Result<Vec<u8>, GpuError>) -> Result<(), Ended> {
        let answer = match whole.map(|whole| wire::decode_request(&whole)) {
            Ok(Ok(request)) => {
                self.flush()?;
                self.request(request)?
            }
            Ok(Err(error @ WireError::Unknown { .. })) => Err(GpuError::Unsupported { what: error.to_string() }),
            Ok(Err(error)) => return Err(error.into()),
            Err(refused) => Err(refused),
        };
        self.answer(number, &answer)?;
        let (tables, account) = self.holdings.charges.parts();
        Incoming::release(tables, account);
        Ok(())
    }

    /// Splits off the one error that ends a session.
    fn lost<T>(&self, result: Result<T, GpuError>) -> Result<Result<T, GpuError>, Ended> {
        match result {
            Err(GpuError::Lost { reason }) if self.handle.gone.load(Ordering::Relaxed) => {
                tracing::debug!(reason, "call ended early");
                Err(Ended::ClientLeft)
            }
            Err(GpuError::Lost { reason }) => Err(Ended::Lost(reason)),
            other => Ok(other),
        }
    }

    fn flush(&mut self) -> Result<(), Ended> {
        if self.unflushed > 0 {
            self.unflushed = 0;
            self.lost(self.holdings.gpu.flush())?.unwrap_or_else(|error| tracing::debug!(%error, "flush"));
        }
        Ok(())
    }

    fn release(&mut self, slot: SlotId, value: u64) -> Result<Result<(), GpuError>, Ended> {
        self.flush()?;
        self.lost(self.holdings.gpu.release(slot, value))
    }

    /// What is refused here has failed its context, which is the answer as well if somebody waits for one.
    fn submit(&mut self, queue: QueueId, commands: Commands<'_>) -> Result<Result<(), GpuError>, Ended> {
        // No context can be failed for it, and no other queue may pay for it: this client does not know what it says.
        let unknown = WireError::Unknown { what: "queue", code: queue.0 };
        let context = self.holdings.charges.tables().context_of(queue).map_err(|_| unknown)?;
        if let Some(error) = self.failed.get(&context) {
            return Ok(Err(GpuError::Context(error.clone())));
        }
        let nothing = Command::Signal { slot: SlotId(0), value: 0 };
        let mut batch = [nothing; BATCH];
        let mut filled = 0;
        for command in commands {
            let command = command?;
            if let Err(error) = self.holdings.charges.tables().check_command(&command) {
                return Ok(Err(self.fail(context, &error)));
            }
            if matches!(command, Command::Launch { .. }) {
                self.handle.launches.fetch_add(1, Ordering::Relaxed);
            }
            batch[filled] = command;
            filled += 1;
            if filled == BATCH {
                filled = 0;
                if let Err(error) = self.hand_over(queue, context, &batch)? {
                    return Ok(Err(error));
                }
            }
        }
        let done = self.hand_over(queue, context, &batch[..filled])?;
        self.unflushed += 1;
        if self.unflushed >= FLUSH_AFTER {
            self.flush()?;
        }
        Ok(done)
    }

    fn hand_over(
        &mut self,
        queue: QueueId,
        context: ContextId,
        commands: &[Command<'_>],
    ) -> Result<Result<(), GpuError>, Ended> {
        if commands.is_empty() {
            return Ok(Ok(()));
        }
        Ok(match self.lost(self.holdings.gpu.submit(queue, commands))? {
            // A dead context has told its client already.
            done @ (Ok(()) | Err(GpuError::Context(_))) => done,
            Err(error) => Err(self.fail(context, &error)),
        })
    }

    /// Makes a refused command the failure of its context, as if the GPU had found it.
    fn fail(&mut self, context: ContextId, error: &GpuError) -> GpuError {
        let error = ContextError::IllegalCommand { reason: error.to_string() };
        let error = self.failed.entry(context).or_insert(error).clone();
        self.holdings.gpu.semaphores().count_error();
        GpuError::Context(error)
    }

    fn request(&mut self, request: Request) -> Result<Result<Response, GpuError>, Ended> {
        let (tables, account) = self.holdings.charges.parts();
        let limit = || account.with(|account| account.limits().vram_bytes);
        let credit = match self.waits.next(&request, &limit) {
            Next::Serve(credit) => credit,
            Next::Answer(answer) => return Ok(answer.map(|()| Response::Done)),
        };
        let ticket = match tables.check(account, &request) {
            Ok(ticket) => ticket,
            Err(error) => {
                account.with(|account| account.give_credit(credit));
                return Ok(Err(error));
            }
        };
        let name = Name::of(&request);
        let allocated = match request {
            Request::Alloc { id, kind, .. } => Some((id, kind)),
            _ => None,
        };
        let freed = match request {
            Request::Free { id } => Some(id),
            _ => None,
        };
        if let Request::ContextError { id } = request
            && let Some(error) = self.failed.get(&id)
        {
            let found = Ok(Response::ContextError(Some(error.clone())));
            return Ok(self.settle(ticket, found));
        }
        if let Request::DestroyContext { id } = request {
            self.failed.remove(&id);
        }
        self.holdings.charges.vram().lend(credit);
        let answer = self.holdings.gpu.request(request);
        self.holdings.charges.vram().take_back();
        let answer = self.lost(answer)?;
        let answer = self.settle(ticket, answer);
        if let Err(GpuError::Deferred) = answer {
            let wanted = self.holdings.charges.vram().deferred();
            let account = self.holdings.charges.parts().1;
            let limit = || account.with(|account| account.limits().vram_bytes);
            return Ok(Err(self.waits.put(name, wanted, &limit)));
        }
        if let (Some(id), Ok(_)) = (freed, &answer) {
            self.host_files.remove(id);
        }
        let to_tell = match (allocated, &answer) {
            (Some((id, MemoryKind::Host)), Ok(_)) => id,
            (Some((id, _)), Ok(Response::Shown { .. })) if !self.has_aperture => id,
            _ => return Ok(answer),
        };
        match self.lost(self.holdings.gpu.host_memory(to_tell))? {
            Ok(memory) => self.tell_place(to_tell, &memory, matches!(answer, Ok(Response::Shown { .. })))?,
            Err(error) => {
                let _ = self.request(Request::Free { id: to_tell })?;
                return Ok(Err(error));
            }
        }
        Ok(answer)
    }

    /// Gives a name to a part of a file. It costs what host memory costs that is made here: its pages come into being when this GPU
    /// touches them, and the client may have told nobody else of the file.
    fn import(&mut self, import: Import, file: Arc<Memfd>) -> Result<Result<Response, GpuError>, Ended> {
        let Import { id, offset, bytes } = import;
        let (tables, account) = self.holdings.charges.parts();
        let ticket = match tables.check(account, &Request::Alloc { id, bytes, kind: MemoryKind::Host }) {
            Ok(ticket) => ticket,
            Err(refused) => return Ok(Err(refused)),
        };
        let imported = self.lost(self.holdings.gpu.import(id, &HostMemory { file, offset }, bytes))?;
        Ok(self.settle(ticket, imported.map(|()| Response::Done)))
    }

    /// Tells the client where an allocation lies, and hands it the file if it has not got that.
    fn tell_place(&mut self, id: AllocId, memory: &HostMemory, shown: bool) -> Result<(), Ended> {
        let (place, is_new) = if shown {
            self.has_aperture = true;
            (HostPlace { id, file: HostPlace::APERTURE, offset: memory.offset }, true)
        } else {
            self.host_files.add(id, memory)
        };
        let file = [memory.file.as_fd()];
        let files: &[_] = if is_new { &file } else { &[] };
        // Never waits: a client that does not take its descriptors loses its session, not our thread.
        unix::send(&*self.socket, &place.encode(), files, false).map_err(Ended::Descriptor)
    }

    fn settle(&mut self, ticket: tenancy::Ticket, answer: Result<Response, GpuError>) -> Result<Response, GpuError> {
        let (tables, account) = self.holdings.charges.parts();
        let settled = tables.settle(account, ticket, answer);
        let answer = match settled {
            Settled::Answer(answer) => answer,
            Settled::Undo(request, error, cost) => {
                self.undo(request);
                let (tables, account) = self.holdings.charges.parts();
                tables.undone(account, cost);
                Err(error)
            }
        };
        self.handle.memory_bytes.store(self.holdings.charges.vram().bytes(), Ordering::Relaxed);
        answer
    }

    fn undo(&self, request: Request) {
        if let Err(failure) = self.holdings.gpu.request(request) {
            tracing::warn!(%failure, "could not undo a request beyond the limit");
        }
    }

    fn transfer(&mut self, number: u32, transfer: Transfer, to_gpu: bool) -> Result<(), Ended> {
        self.flush()?;
        let Transfer { at, staging, bytes } = transfer;
        let area = self.memory.staging_bytes();
        if staging as usize + bytes as usize > area {
            return Err(WireError::Limit { what: "staging range", limit: area }.into());
        }
        let answer = self.holdings.charges.tables().check_copy(at, bytes.into()).and_then(|()| {
            let part = self.memory.staging.range(staging as usize, bytes as usize);
            let copied = if to_gpu { self.holdings.gpu.write(at, part) } else { self.holdings.gpu.read(part, at) };
            copied.map(|()| Response::Done)
        });
        let answer = self.lost(answer)?;
        self.answer(number, &answer)
    }

    /// A part of a copy to the GPU. Whatever it copies in all, it goes through the one staging area.
    fn put(&mut self, number: u32, last: bool, at: DevAddr, data: &[u8]) -> Result<(), Ended> {
        self.flush()?;
        if self.put_failed.is_none() {
            let copied = self.holdings.charges.tables().check_copy(at, data.len() as u64).and_then(|()| {
                // A piece is shorter than any staging area.
                self.memory.staging.write(0, data);
                self.holdings.gpu.write(at, self.memory.staging.range(0, data.len()))
            });
            self.put_failed = self.lost(copied)?.err();
        }
        if !last {
            return Ok(());
        }
        let answer = self.put_failed.take().map_or(Ok(Response::Done), Err);
        self.answer(number, &answer)
    }

    /// A copy from the GPU, in pieces. The first that fails is the answer.
    fn get(&mut self, number: u32, at: DevAddr, bytes: u64) -> Result<(), Ended> {
        self.flush()?;
        if let Err(refused) = self.holdings.charges.tables().check_copy(at, bytes) {
            return self.answer(number, &Err(refused));
        }
        let mut done = 0;
        while done < bytes {
            if self.handle.gone.load(Ordering::Relaxed) {
                return Err(Ended::ClientLeft);
            }
            let length = (bytes - done).min(PIECE_BYTES as u64) as usize;
            let read = self.holdings.gpu.read(self.memory.staging.range(0, length), DevAddr(at.0 + done));
            if let Err(refused) = self.lost(read)? {
                return self.answer(number, &Err(refused));
            }
            self.piece.resize(length, 0);
            self.memory.staging.read(0, &mut self.piece);
            done += length as u64;
            let header = frame::data_header(number, done == bytes);
            let (gone, socket) = (&self.handle.gone, &self.socket);
            self.answers.push(&[&header, &self.piece], &|| !gone.load(Ordering::Relaxed) && !unix::hung_up(socket))?;
        }
        Ok(())
    }

    fn answer(&mut self, number: u32, answer: &Result<Response, GpuError>) -> Result<(), Ended> {
        let whole = wire::encode_answer(answer);
        let (gone, socket) = (&self.handle.gone, &self.socket);
        for (header, body) in wire::fragments(false, number, &whole) {
            self.answers.push(&[&header, body], &|| !gone.load(Ordering::Relaxed) && !unix::hung_up(&**socket))?;
        }
        Ok(())
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".into())
}
