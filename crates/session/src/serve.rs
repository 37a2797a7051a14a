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
    AllocId, Command, ContextError, ContextId, Gpu, GpuError, HostMemory, MemoryKind, QueueId, Request, Response,
    SlotId,
};
use hostmem::Memfd;
use tenancy::{AccountAccess, Settled};
use transport::{Consumer, Producer, RingError, ring, unix};
use wire::handshake::features;
use wire::limits::STAGING_BLOCK;
use wire::{ClientFrame, Commands, HostPlace, Reply, Transfer, Welcome, WireError, parse_client_frame};

use crate::holdings::{Charges, Holdings};
use crate::host_files::HostFiles;
use crate::incoming::Incoming;
use crate::memory::{SharedMemory, Statistics};
use crate::monitor::{Monitor, Watch};
use crate::waits::{Name, Next, Shown, Waits};

/// Commands handed to the GPU at once.
const BATCH: usize = 16;
/// Frames of commands after which the GPU is told of them even though more are waiting.
const FLUSH_AFTER: u32 = 32;

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
    commands: ring::Waker,
    answers: ring::Waker,
}

impl SessionHandle {
    /// Ends the session soon.
    pub fn end(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.commands.wake();
        self.answers.wake();
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
    commands: Consumer,
    answers: Producer,
    request: Incoming,
    failed: HashMap<ContextId, ContextError>,
    host_files: HostFiles,
    /// The client has the file that shows its VRAM.
    has_aperture: bool,
    unflushed: u32,
    /// Last: who sees it closed knows that everything has been given back.
    socket: OwnedFd,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("charges", &self.holdings.charges).finish_non_exhaustive()
    }
}

/// What a session is set up with.
struct Parts {
    memory: SharedMemory,
    commands: Consumer,
    answers: Producer,
    handle: SessionHandle,
    watch: Watch,
    waits: Waits,
}

impl Session {
    /// Sets a session up and welcomes the client on `socket`, which has said its hello. `process` is a descriptor of the
    /// client's process, whose end is the session's: a child may hold the socket open. `known` are the features that the client
    /// knows.
    ///
    /// # Errors
    /// What the operating system says. Nothing stays charged.
    pub fn begin(
        socket: OwnedFd,
        process: Option<OwnedFd>,
        known: u64,
        backend: &Backend,
        charges: Charges,
        monitor: &Monitor,
    ) -> io::Result<Session> {
        let holdings = Holdings::new(backend, charges);
        let parts = Session::set_up(&socket, process, known, &holdings.charges, backend, monitor)?;
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
            failed: HashMap::new(),
            host_files: HostFiles::default(),
            has_aperture: false,
            unflushed: 0,
            socket,
        })
    }

    fn set_up(
        socket: &OwnedFd,
        process: Option<OwnedFd>,
        known: u64,
        charges: &Charges,
        backend: &Backend,
        monitor: &Monitor,
    ) -> io::Result<Parts> {
        let memory = SharedMemory::create()?;
        let (commands, answers) = (memory.commands(), memory.answers());
        let waits = Waits::new(charges.memory().filter(|_| known & features::DEFERRED != 0).map(|(broker, tenant)| {
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
            commands: commands.waker(),
            answers: answers.waker(),
        };
        let (command_ring, answer_ring, statistics) = SharedMemory::layout();
        let welcome = Welcome {
            features: features::SHARED_MEMORY
                | known & features::DEFERRED
                | if backend.aperture { features::APERTURE } else { 0 },
            properties: backend.gpu.properties().clone(),
            command_ring,
            answer_ring,
            statistics,
            staging_block: STAGING_BLOCK as u32,
        };
        let files = [memory.area_file.as_fd(), backend.semaphores.as_fd(), memory.staging_file.as_fd()];
        unix::send(socket, &Reply::Welcome(Box::new(welcome)).encode(), &files, false)?;
        let (ending, abort) = (handle.clone(), Arc::clone(&backend.abort));
        let watch = monitor.watch(socket, process, move || {
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
            self.commands.pop(buffer, &|| !gone.load(Ordering::Relaxed) && !unix::hung_up(socket))?;
        }
        match parse_client_frame(buffer)? {
            ClientFrame::Submit { queue, commands } => self.submit(queue, commands),
            ClientFrame::Request { number, last, body } => {
                let (tables, account) = self.holdings.charges.parts();
                match self.request.add(tables, account, last, body)? {
                    Some(whole) => self.serve_request(number, whole),
                    None => Ok(()),
                }
            }
            ClientFrame::Write { number, transfer } => self.transfer(number, transfer, true),
            ClientFrame::Read { number, transfer } => self.transfer(number, transfer, false),
            ClientFrame::Release { slot, value } => {
                self.flush()?;
                self.lost(self.holdings.gpu.release(slot, value)).map(drop)
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

    fn submit(&mut self, queue: QueueId, commands: Commands<'_>) -> Result<(), Ended> {
        // No context can be failed for it, and no other queue may pay for it: this client does not know what it says.
        let unknown = WireError::Unknown { what: "queue", code: queue.0 };
        let context = self.holdings.charges.tables().context_of(queue).map_err(|_| unknown)?;
        if self.failed.contains_key(&context) {
            return Ok(());
        }
        let nothing = Command::Signal { slot: SlotId(0), value: 0 };
        let mut batch = [nothing; BATCH];
        let mut filled = 0;
        for command in commands {
            let command = command?;
            if let Err(error) = self.holdings.charges.tables().check_command(&command) {
                self.fail(context, &error);
                return Ok(());
            }
            if matches!(command, Command::Launch { .. }) {
                self.handle.launches.fetch_add(1, Ordering::Relaxed);
            }
            batch[filled] = command;
            filled += 1;
            if filled == BATCH {
                filled = 0;
                self.hand_over(queue, context, &batch)?;
            }
        }
        self.hand_over(queue, context, &batch[..filled])?;
        self.unflushed += 1;
        if self.unflushed >= FLUSH_AFTER { self.flush() } else { Ok(()) }
    }

    fn hand_over(&mut self, queue: QueueId, context: ContextId, commands: &[Command<'_>]) -> Result<(), Ended> {
        if commands.is_empty() {
            return Ok(());
        }
        match self.lost(self.holdings.gpu.submit(queue, commands))? {
            // A dead context has told its client already.
            Ok(()) | Err(GpuError::Context(_)) => {}
            Err(error) => self.fail(context, &error),
        }
        Ok(())
    }

    /// Makes a refused command the failure of its context, as if the GPU had found it.
    fn fail(&mut self, context: ContextId, error: &GpuError) {
        let error = ContextError::IllegalCommand { reason: error.to_string() };
        self.failed.entry(context).or_insert(error);
        self.holdings.gpu.semaphores().count_error();
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
        unix::send(&self.socket, &place.encode(), files, false).map_err(Ended::Descriptor)
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
        let answer = self.holdings.charges.tables().check_copy(at, bytes.into()).and_then(|()| {
            // The wire format keeps the range inside the area.
            let part = self.memory.staging.range(staging as usize, bytes as usize);
            let copied = if to_gpu { self.holdings.gpu.write(at, part) } else { self.holdings.gpu.read(part, at) };
            copied.map(|()| Response::Done)
        });
        let answer = self.lost(answer)?;
        self.answer(number, &answer)
    }

    fn answer(&mut self, number: u32, answer: &Result<Response, GpuError>) -> Result<(), Ended> {
        let whole = wire::encode_answer(answer);
        let (gone, socket) = (&self.handle.gone, &self.socket);
        for (header, body) in wire::fragments(false, number, &whole) {
            self.answers.push(&[&header, body], &|| !gone.load(Ordering::Relaxed) && !unix::hung_up(socket))?;
        }
        Ok(())
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".into())
}
