//! A daemon in the test's own process: sessions over the toy GPU at a socket of its own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, mpsc::Sender};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, Command, ContextId, DevAddr, Gpu, GpuError, HostMemory, Properties, QueueId, Request, Response,
    SemaphoreArea, SlotId, VramLedger,
};
use hostmem::{HostRange, Mapping, Memfd};
use parking_lot::{Condvar, Mutex};
use remote_gpu::RemoteGpu;
use session::{Backend, Charges, Ended, Manner, MemoryBroker, Monitor, Session, SessionHandle, SharedAccount};
use tenancy::grant::OnFull;
use tenancy::{Account, AccountAccess, Limits, NoDeviceCosts, TenantId, Used};
use toy_gpu::{ToyGpu, ToyMachine};
use transport::{Consumer, Messages, Producer, unix};
use wire::handshake::features;
use wire::{Credential, Hello, Process, Reply, Welcome};

/// GPUs of a tenant: each session has a toy of its own, and tells what it is asked to be.
pub(crate) const GPUS: u32 = 2;
/// Longest that anything may take.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) struct Daemon {
    pub(crate) path: PathBuf,
    pub(crate) machine: Arc<ToyMachine>,
    pub(crate) accounts: [Arc<SharedAccount>; 2],
    pub(crate) ended: Receiver<Ended>,
    pub(crate) handles: Arc<Mutex<Vec<SessionHandle>>>,
    wish: Arc<Mutex<(u64, usize)>>,
    pub(crate) gate: Arc<Gate>,
    /// Which GPUs hellos were for.
    pub(crate) asked: Arc<Mutex<Vec<u32>>>,
}

/// Holds up a copy to the GPU.
#[derive(Default)]
pub(crate) struct Gate {
    /// Which, by the address of a part of it; and how many have come to it.
    state: Mutex<(Option<DevAddr>, u32)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn close(&self, at: DevAddr) {
        self.state.lock().0 = Some(at);
    }

    pub(crate) fn open(&self) {
        self.state.lock().0 = None;
        self.changed.notify_all();
    }

    /// Waits until somebody stands before it.
    pub(crate) fn wait_for_somebody(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            assert!(!self.changed.wait_for(&mut state, BOUND).timed_out(), "nobody came to the gate");
        }
    }

    fn pass(&self, at: DevAddr) {
        let mut state = self.state.lock();
        while state.0 == Some(at) {
            state.1 += 1;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }
}

/// A credential for tenant `n`.
pub(crate) fn tenant(n: u8) -> Credential {
    Credential([n; 32])
}

impl Daemon {
    /// Serves tenants 1 and 2 with these limits.
    pub(crate) fn start(limits: Limits) -> Daemon {
        let account = || Account::new(limits.clone(), Box::new(NoDeviceCosts));
        Daemon::with_accounts([(); 2].map(|()| SharedAccount::new(account())))
    }

    /// Serves tenants 1 and 2, who share memory in common and have these limits of it.
    pub(crate) fn sharing(broker: &Arc<MemoryBroker>, limits: [u64; 2], on_full: OnFull) -> Daemon {
        let attended = Arc::clone(broker);
        std::thread::spawn(move || attended.attend());
        Daemon::with_accounts([0, 1].map(|tenant| {
            let id = TenantId(tenant as u64);
            broker.set(id, limits[tenant], on_full);
            let limits = Limits { vram_bytes: limits[tenant], ..Limits::default() };
            SharedAccount::sharing(Account::new(limits, Box::new(NoDeviceCosts)), broker, id)
        }))
    }

    fn with_accounts(accounts: [Arc<SharedAccount>; 2]) -> Daemon {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sundial-session-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let path = std::env::temp_dir().join(name);
        let listener = unix::listen(&path, 0o600).unwrap();
        let machine = Arc::new(ToyMachine::default());
        let (sender, ended) = channel();
        let handles = Arc::new(Mutex::new(Vec::new()));
        let wish = Arc::new(Mutex::new((0, wire::limits::STAGING_BLOCK)));
        let gate = Arc::new(Gate::default());
        let asked = Arc::default();
        let doorman = Doorman {
            machine: Arc::clone(&machine),
            accounts: accounts.clone(),
            monitor: Monitor::start(|| panic!("the monitor is broken")).unwrap(),
            ended: sender,
            handles: Arc::clone(&handles),
            wish: Arc::clone(&wish),
            gate: Arc::clone(&gate),
            asked: Arc::clone(&asked),
        };
        std::thread::spawn(move || {
            while let Ok(socket) = unix::accept(&listener) {
                doorman.admit(socket);
            }
        });
        Daemon { path, machine, accounts, ended, handles, wish, gate, asked }
    }

    /// Sessions from now on have these features, of those on demand, and such blocks.
    pub(crate) fn wish(&self, features: u64, staging_block: usize) {
        *self.wish.lock() = (features, staging_block);
    }

    pub(crate) fn connect(&self, n: u8) -> Arc<RemoteGpu> {
        remote_gpu::connect_as(&self.path, tenant(n)).unwrap()
    }

    /// Waits until nobody holds anything.
    pub(crate) fn settle(&self) {
        until("all memory is back", || {
            self.machine.bytes.load(Ordering::SeqCst) == 0
                && self.machine.vram.load(Ordering::SeqCst) == 0
                && self.machine.clients.load(Ordering::SeqCst) == 0
                && self
                    .accounts
                    .iter()
                    .all(|account| account.with(|account| (account.used(), account.upkeep())) == (Used::default(), 0))
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Doorman {
    machine: Arc<ToyMachine>,
    accounts: [Arc<SharedAccount>; 2],
    monitor: Monitor,
    ended: Sender<Ended>,
    handles: Arc<Mutex<Vec<SessionHandle>>>,
    wish: Arc<Mutex<(u64, usize)>>,
    gate: Arc<Gate>,
    asked: Arc<Mutex<Vec<u32>>>,
}

impl Doorman {
    fn admit(&self, socket: OwnedFd) {
        let mut buffer = [0; wire::limits::MAX_HELLO_BYTES];
        let Ok(unix::Received { length, .. }) = unix::receive(&socket, &mut buffer) else { return };
        let refuse = |reason: String| {
            let _ = unix::send(&socket, &Reply::Refused(reason).encode(), &[], false);
        };
        let Hello { credential, features: known, gpu, .. } = match Hello::decode(&buffer[..length]) {
            Ok(hello) => hello,
            Err(error) => return refuse(error.to_string()),
        };
        let Some(account) = self.accounts.get(usize::from(credential.0[0]).wrapping_sub(1)) else {
            return refuse("no such tenant".into());
        };
        let (wanted, staging_block) = *self.wish.lock();
        self.asked.lock().push(gpu);
        if gpu >= GPUS {
            return refuse(format!("no GPU {gpu}"));
        }
        let manner = Manner { features: known & (!features::ON_DEMAND | wanted), staging_block, gpus: GPUS };
        let charges = match Charges::hold(account, manner.own()) {
            Ok(charges) => charges,
            Err(error) => return refuse(error.to_string()),
        };
        let toy = Arc::new(ToyGpu::asking(&self.machine, 1 << 30, Arc::clone(charges.vram()) as Arc<dyn VramLedger>));
        let (aborted, closed) = (Arc::clone(&toy), Arc::clone(&toy));
        let backend = Backend {
            aperture: false,
            semaphores: Arc::clone(toy.semaphore_file()),
            abort: Arc::new(move || aborted.abort()),
            close: Arc::new(move || closed.close()),
            gpu: Arc::new(Fragile { toy, gate: Arc::clone(&self.gate) }),
        };
        let Ok(session) = Session::begin(Arc::new(socket), None, manner, &backend, charges, &self.monitor) else {
            return;
        };
        self.handles.lock().push(session.handle());
        let ended = self.ended.clone();
        std::thread::spawn(move || {
            let _ = ended.send(session.run());
        });
    }
}

/// The toy, with a driver that has faults.
struct Fragile {
    toy: Arc<ToyGpu>,
    gate: Arc<Gate>,
}

/// Whoever creates a context of this name, or submits to a queue of it, finds a fault of the driver.
pub(crate) const FAULT: u32 = 0xdead;

impl Gpu for Fragile {
    fn properties(&self) -> &Properties {
        self.toy.properties()
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        assert!(!matches!(request, Request::CreateContext { id: ContextId(FAULT), .. }), "a fault of the driver");
        self.toy.request(request)
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        assert!(queue.0 != FAULT, "a fault of the driver");
        self.toy.submit(queue, commands)
    }

    fn flush(&self) -> Result<(), GpuError> {
        self.toy.flush()
    }

    fn semaphores(&self) -> &SemaphoreArea {
        self.toy.semaphores()
    }

    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError> {
        self.toy.release(slot, value)
    }

    fn listen(&self) -> Result<(), GpuError> {
        self.toy.listen()
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        self.toy.wait(context, slot, value, timeout)
    }

    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        self.gate.pass(dst);
        self.toy.write(dst, src)
    }

    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        self.toy.read(dst, src)
    }

    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        self.toy.host_memory(id)
    }

    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        self.toy.import(id, memory, bytes)
    }
}

/// A client without manners: a socket and rings, nothing checked.
pub(crate) struct RawClient {
    pub(crate) socket: OwnedFd,
    pub(crate) area: Arc<Mapping>,
    pub(crate) welcome: Welcome,
    pub(crate) commands: transport::Sender,
    pub(crate) answers: transport::Receiver,
    /// What it was sent with the welcome: bytes of all memory files.
    pub(crate) shared_bytes: u64,
}

impl RawClient {
    pub(crate) fn connect(daemon: &Daemon, n: u8) -> RawClient {
        RawClient::knowing(daemon, n, features::ALL)
    }

    /// One that knows these features alone.
    pub(crate) fn knowing(daemon: &Daemon, n: u8, features: u64) -> RawClient {
        let socket = unix::connect(&daemon.path).unwrap();
        unix::send(
            &socket,
            &Hello { credential: tenant(n), features, gpu: 0, process: Process::default() }.encode(),
            &[],
            true,
        )
        .unwrap();
        let mut buffer = vec![0; wire::limits::MAX_REPLY_BYTES];
        let unix::Received { length, fds, .. } = unix::receive(&socket, &mut buffer).unwrap();
        let Ok(Reply::Welcome(welcome)) = Reply::decode(&buffer[..length]) else { panic!("not welcome") };
        let mut fds = fds;
        let socket_of_frames = if fds.len() == 4 { fds.pop() } else { None };
        let maps: Vec<_> = fds.into_iter().map(|fd| Memfd::from_fd(fd).unwrap().map().unwrap()).collect();
        let shared_bytes = maps.iter().map(|map| map.len() as u64).sum();
        let area = Arc::new(maps.into_iter().next().unwrap());
        let (to, from) = (welcome.command_ring, welcome.answer_ring);
        let messages = socket_of_frames.map(|socket| Messages::new(socket, 100_000).unwrap());
        let to = Producer::new(Arc::clone(&area), to.0 as usize, to.1 as usize);
        let from = Consumer::new(Arc::clone(&area), from.0 as usize, from.1 as usize);
        RawClient {
            commands: messages.clone().map_or(transport::Sender::Ring(to), transport::Sender::Messages),
            answers: messages.map_or(transport::Receiver::Ring(from), transport::Receiver::Messages),
            shared_bytes,
            socket,
            area,
            welcome: *welcome,
        }
    }

    pub(crate) fn push(&mut self, frame: &[u8]) {
        let socket = &self.socket;
        let _ = self.commands.push(&[frame], &|| !unix::hung_up(socket));
    }

    pub(crate) fn request(&mut self, number: u32, request: &Request) {
        let whole = wire::encode_request(request).unwrap();
        for (header, body) in wire::fragments(true, number, &whole) {
            self.push(&[&header, body].concat());
        }
    }

    /// Sends a request and drops its answer.
    pub(crate) fn ask(&mut self, request: &Request) {
        self.request(0, request);
        let socket = &self.socket;
        self.answers.pop(&mut Vec::new(), &|| !unix::hung_up(socket)).unwrap();
    }
}

/// Waits for a condition, with a bound.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "waited in vain until {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
