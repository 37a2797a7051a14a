//! Opening a session.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpu::SemaphoreArea;
use hostmem::{ForkMark, Mapping, Memfd};
use parking_lot::Mutex;
use transport::{Consumer, Messages, Producer, Receiver, Sender, ring, unix};
use wire::handshake::features;
use wire::limits::{COMMAND_RING_BYTES, ENDED_AT, MAX_REPLY_BYTES, MAX_STAGING_BYTES, MAX_STANDING_BYTES, NOTICES_AT};
use wire::place::{CREDENTIAL_VARIABLE, SESSION_SOCKET, SOCKET_VARIABLE, runtime_directory};
use wire::{Credential, Hello, Process, Reply, Standing, Welcome, WireError};

use crate::aperture::Aperture;
use crate::{LONGEST_UNHEARD, MOST_UNHEARD, RemoteGpu, ends};

/// Longest that the daemon may take to answer a hello, or to hand over a descriptor.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or nobody any more: it ended while it was asked.
    #[error("no Sundial daemon at {}", path.display())]
    NoDaemon {
        /// Path of its socket.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The daemon said no.
    #[error("the Sundial daemon refused: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// It does not speak our protocol.
    #[error("cannot talk to the Sundial daemon")]
    Protocol(#[from] WireError),
    /// It sent descriptors or a layout that cannot be.
    #[error("the Sundial daemon sent an unusable session: {what}")]
    Unusable {
        /// What.
        what: &'static str,
    },
    /// The operating system.
    #[error("cannot set a session up")]
    Io(#[from] io::Error),
    /// The tenant has fewer GPUs.
    #[error("there is no GPU {gpu}: the Sundial daemon has {gpus} for this program")]
    NoGpu {
        /// Which was wanted, from 0 on.
        gpu: u32,
        /// How many there are.
        gpus: u32,
    },
    /// There is no session with one of several GPUs.
    #[error("no session with GPU {gpu}")]
    Gpu {
        /// Which.
        gpu: u32,
        /// Why.
        #[source]
        source: Box<ConnectError>,
    },
    /// The credential in the environment is none.
    #[error("{CREDENTIAL_VARIABLE} is not 64 hexadecimal digits")]
    Credential,
}

/// Where the daemon is, and as whom one comes.
#[derive(Clone, Debug)]
pub struct Address {
    /// Path of its session socket.
    pub path: PathBuf,
    /// Of the tenant that the sessions are to be; none: one is made.
    pub credential: Credential,
}

impl Address {
    /// The daemon where `SUNDIAL_SOCKET` says, or in the runtime directory; with the credential in `SUNDIAL_CREDENTIAL`, if there
    /// is one.
    ///
    /// # Errors
    /// The credential is none.
    pub fn of_environment() -> Result<Address, ConnectError> {
        let credential = match std::env::var(CREDENTIAL_VARIABLE) {
            Ok(text) => Credential::from_hex(&text).ok_or(ConnectError::Credential)?,
            Err(_) => Credential::default(),
        };
        let path = match std::env::var_os(SOCKET_VARIABLE) {
            Some(path) => path.into(),
            None => {
                let uid = rustix::process::getuid().as_raw();
                runtime_directory(|name| std::env::var_os(name), uid).join(SESSION_SOCKET)
            }
        };
        Ok(Address { path, credential })
    }

    /// Opens a session with one of the tenant's GPUs, by its number from 0 on. [`RemoteGpu::gpus`] of any of them says how many
    /// there are.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(&self, gpu: u32) -> Result<Arc<RemoteGpu>, ConnectError> {
        let opened = open(&self.path, self.credential, gpu);
        opened.map_err(|error| if gpu == 0 { error } else { ConnectError::Gpu { gpu, source: Box::new(error) } })
    }

    /// Opens a session with each GPU of the tenant's, in order. If one of them cannot be had there is none.
    ///
    /// # Errors
    /// Of the first that there is no session with: why.
    pub fn open_all(&self) -> Result<Vec<Arc<RemoteGpu>>, ConnectError> {
        let first = self.open(0)?;
        let others = (1..first.gpus()).map(|gpu| self.open(gpu));
        std::iter::once(Ok(Arc::clone(&first))).chain(others).collect()
    }
}

/// How the tenant stands to whom [`Address`] leads. No session is opened for that.
impl Address {
    /// Asks the daemon, and waits for it so long at each step: to come through to it, and for its answer.
    ///
    /// # Errors
    /// `NoDaemon` and `Io` with `WouldBlock` if it takes longer; else why there is no answer.
    pub fn standing(&self, bound: Duration) -> Result<Standing, ConnectError> {
        let none = |source| ConnectError::NoDaemon { path: self.path.clone(), source };
        let socket = unix::connect_within(&self.path, bound).map_err(none)?;
        let hello =
            Hello { credential: self.credential, features: features::STANDING, gpu: 0, process: this_process() };
        let ended = |source| ended(&self.path, source);
        unix::send(&socket, &hello.encode(), &[], true).map_err(ended)?;
        let mut buffer = vec![0; MAX_STANDING_BYTES];
        let length = unix::receive_bare(&socket, &mut buffer).map_err(ended)?;
        if length == 0 {
            return Err(ConnectError::Unusable { what: "it closed the connection" });
        }
        match Reply::decode(&buffer[..length])? {
            Reply::Standing(standing) => Ok(*standing),
            Reply::Refused(reason) => Err(ConnectError::Refused { reason }),
            Reply::Welcome(_) => Err(ConnectError::Unusable { what: "it answered another question" }),
        }
    }
}

/// What a failure of the socket before there is an answer means.
fn ended(path: &Path, source: io::Error) -> ConnectError {
    match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            ConnectError::NoDaemon { path: path.to_path_buf(), source }
        }
        _ => ConnectError::Io(source),
    }
}

/// This process, as it sees itself.
fn this_process() -> Process {
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    Process { pid: std::process::id(), namespace }
}

/// Opens a session with the first GPU of the tenant whose credential it is, through the daemon at `path`.
///
/// # Errors
/// Why there is none.
pub fn connect_as(path: &Path, credential: Credential) -> Result<Arc<RemoteGpu>, ConnectError> {
    Address { path: path.to_path_buf(), credential }.open(0)
}

fn open(path: &Path, credential: Credential, gpu: u32) -> Result<Arc<RemoteGpu>, ConnectError> {
    let none = |source| ConnectError::NoDaemon { path: path.to_path_buf(), source };
    let socket = unix::connect(path).map_err(none)?;
    unix::set_timeout(&socket, Some(PATIENCE))?;
    let hello = Hello { credential, features: features::ALL, gpu, process: this_process() };
    unix::send(&socket, &hello.encode(), &[], true).map_err(|source| ended(path, source))?;
    let mut buffer = vec![0; MAX_REPLY_BYTES];
    let received = unix::receive(&socket, &mut buffer).map_err(|source| ended(path, source))?;
    let unix::Received { length, fds, .. } = received;
    if length == 0 {
        return Err(ConnectError::Unusable { what: "it closed the connection" });
    }
    let welcome = match Reply::decode(&buffer[..length])? {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused(reason) => return Err(ConnectError::Refused { reason }),
        Reply::Standing(_) => return Err(ConnectError::Unusable { what: "it answered another question" }),
    };
    if welcome.features & features::SHARED_MEMORY == 0 {
        return Err(ConnectError::Unusable { what: "a session without shared memory" });
    }
    // An older one has one GPU, and has not looked which is wanted.
    if gpu >= welcome.gpus {
        return Err(ConnectError::NoGpu { gpu, gpus: welcome.gpus });
    }
    let has = |feature| welcome.features & feature != 0;
    let mut fds = fds;
    let messages = if has(features::MESSAGES) { fds.pop() } else { None };
    let [area, semaphores, staging] =
        <[_; 3]>::try_from(fds).map_err(|_| ConnectError::Unusable { what: "another number of descriptors" })?;
    let map = |fd| Memfd::from_fd(fd).and_then(|file| file.map());
    let (area, semaphores, staging) = (Arc::new(map(area)?), Arc::new(map(semaphores)?), map(staging)?);
    check(&welcome, &area, &staging)?;
    let semaphores = SemaphoreArea::new(semaphores).ok_or(ConnectError::Unusable { what: "semaphore area" })?;
    let (commands, answers) = (welcome.command_ring, welcome.answer_ring);
    let (sender, receiver) = match messages {
        Some(socket) => {
            let messages = Messages::new(socket, COMMAND_RING_BYTES / 2 - 8)?;
            (Sender::Messages(messages.clone()), Receiver::Messages(messages))
        }
        None => (
            Sender::Ring(Producer::new(Arc::clone(&area), commands.0 as usize, commands.1 as usize)),
            Receiver::Ring(Consumer::new(Arc::clone(&area), answers.0 as usize, answers.1 as usize)),
        ),
    };
    let (sender, caller) = ends(sender, receiver);
    Ok(Arc::new(RemoteGpu {
        properties: welcome.properties,
        gpus: welcome.gpus,
        mark: ForkMark::new()?,
        socket,
        area,
        statistics: welcome.statistics as usize,
        notices: has(features::DEFERRED).then_some(welcome.statistics as usize + NOTICES_AT),
        in_frames: has(features::MESSAGES),
        answered: has(features::ANSWERED),
        imports: has(features::SEVERAL_GPUS),
        shows_memory: has(features::APERTURE),
        clusters: has(features::CLUSTERS),
        immediate: has(features::IMMEDIATE),
        timed: has(features::TIMED),
        semaphores,
        staging,
        staging_block: welcome.staging_block as usize,
        staging_bytes: welcome.staging_bytes as usize,
        aperture: Aperture::default(),
        opened: Instant::now(),
        looked: AtomicU64::new(0),
        caller,
        sender,
        lost: OnceLock::new(),
        well: Mutex::default(),
    }))
}

/// What the rest of the crate relies on.
fn check(welcome: &Welcome, area: &Mapping, staging: &Mapping) -> Result<(), ConnectError> {
    let unusable = |what| Err(ConnectError::Unusable { what });
    for (at, capacity) in [welcome.command_ring, welcome.answer_ring] {
        let (at, capacity) = (at as usize, capacity as usize);
        if at % 64 != 0 || !capacity.is_power_of_two() || capacity < 4096 || at + ring::bytes(capacity) > area.len() {
            return unusable("ring");
        }
    }
    if !welcome.statistics.is_multiple_of(8) || welcome.statistics as usize + ENDED_AT + 4 > area.len() {
        return unusable("statistics");
    }
    // Those that nobody waits for must find room.
    if (welcome.answer_ring.1 as usize) < MOST_UNHEARD * LONGEST_UNHEARD {
        return unusable("ring");
    }
    let (block, bytes) = (welcome.staging_block as usize, welcome.staging_bytes as usize);
    if bytes > MAX_STAGING_BYTES || staging.len() < bytes || block == 0 || block > bytes / 2 {
        return unusable("staging area");
    }
    Ok(())
}
