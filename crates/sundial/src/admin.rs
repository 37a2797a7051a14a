//! What `run`, `ps`, `set` and `vgpu` say to the daemon: JSON messages on the admin socket, which only its own user can open, or a
//! group's if it serves several users.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fair_share::Priority;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenancy::Terms;
use transport::unix;

use crate::remoting;
use crate::runtime_directory::RuntimeDirectory;
use crate::scheme::Scheme;
use crate::shadowing::{Rebuild, Shadow, TablePages, Trap, Wish};
use crate::size::{GpuWish, Percent, Scheduler};

/// Longest message: a listing of some hundred sessions or virtual GPUs. A socket carries no more in one piece.
pub(crate) const MAX_MESSAGE: usize = 128 << 10;

/// Room in a message for what stands around a listing's lines, bytes.
const AROUND_LINES: usize = 1 << 10;

/// Longest that the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AdminRequest {
    /// Lets a tenant in, for as long as this connection is open.
    Register {
        /// What it asks for.
        terms: Terms,
        /// Which GPUs it wants.
        #[serde(default)]
        gpus: GpuWish,
        /// Where to look for what the terms leave open.
        #[serde(default)]
        profile: Option<String>,
        /// How its sessions come here.
        #[serde(default)]
        remoting: remoting::Wish,
        /// Its library counts the time that it copies and waits.
        #[serde(default)]
        timed: bool,
    },
    /// Makes a virtual GPU, until it is destroyed. With `path`, the listening socket comes with this message.
    CreateVgpu {
        /// What it asks for.
        terms: Terms,
        /// Which GPU it wants.
        #[serde(default)]
        gpu: GpuWish,
        /// How it is virtualized.
        scheme: Option<Scheme>,
        /// How its guest's page tables are shadowed.
        #[serde(default)]
        shadowing: Wish,
        /// Where to look for what is left open.
        profile: Option<String>,
        /// Where its socket is; else it is made in the runtime directory.
        path: Option<PathBuf>,
    },
    /// Which virtual GPUs are there?
    ListVgpus,
    /// Changes the share of a virtual GPU.
    ShareVgpu {
        /// Its name.
        name: String,
        /// Of the device's time, in percent.
        share: Percent,
    },
    /// Changes the priority of a virtual GPU.
    PrioritizeVgpu {
        /// Its name.
        name: String,
        /// From now on.
        priority: Priority,
    },
    /// Changes the memory of a virtual GPU, with the help of its guest.
    ResizeVgpu {
        /// Its name.
        name: String,
        /// VRAM it is to have from now on, in bytes.
        bytes: u64,
    },
    /// Writes what the guest of a virtual GPU does to its page tables into the stream socket that comes with this.
    TraceVgpu {
        /// Its name.
        name: String,
    },
    /// Changes how the page tables of a virtual GPU's guest are shadowed.
    ShadowVgpu {
        /// Its name.
        name: String,
        /// What is not said stays as it is.
        shadow: Option<Shadow>,
        /// The same.
        rebuild: Option<Rebuild>,
    },
    /// Destroys a virtual GPU, whoever uses it.
    DestroyVgpu {
        /// Its name.
        name: String,
    },
    /// Who is there? The answer is written into the stream socket that comes with this, if one does.
    List,
    /// Who has had how much? The answer is written into the stream socket that comes with this.
    Usage {
        /// Since when, seconds since 1970.
        since: Option<u64>,
    },
    /// What is there, and what was used since the daemon started? The answer comes likewise.
    Snapshot,
    /// Changes the share of a tenant that is there.
    Share {
        /// Its name.
        tenant: String,
        /// Of the device's time, in percent.
        share: Percent,
    },
    /// Changes the priority of a tenant that is there.
    Prioritize {
        /// Its name.
        tenant: String,
        /// From now on.
        priority: Priority,
    },
    /// Changes the limit of GPU memory of a tenant that is there.
    Memory {
        /// Its name.
        tenant: String,
        /// All its sessions together, in bytes.
        bytes: u64,
    },
    /// Reads the policy file again.
    Reload,
    /// Shares GPU time in another way from now on.
    Schedule {
        /// The policy from now on.
        scheduler: Scheduler,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AdminReply {
    /// To `Register`.
    Registered {
        /// For the tenant's sessions; 64 hexadecimal digits.
        credential: String,
        /// Where they connect.
        socket: PathBuf,
    },
    /// To `List`.
    Sessions(Listing),
    /// To `Usage`, `Snapshot`, `Share`, `ShareVgpu`, `ResizeVgpu`, `ShadowVgpu`, `TraceVgpu`, `Reload` and `Schedule`.
    Done,
    /// To `Prioritize` and `PrioritizeVgpu`.
    Prioritized {
        /// How GPU time is shared: not each scheduler knows priorities.
        scheduler: Scheduler,
    },
    /// To `Memory`.
    Limit {
        /// What it came to, in bytes: no less than what the tenant has.
        bytes: u64,
    },
    /// To `CreateVgpu`: where it is, and to `DestroyVgpu`: where it was.
    Vgpu {
        /// The path of its socket.
        socket: PathBuf,
        /// Whoever created it made the socket.
        theirs: bool,
    },
    /// To `ListVgpus`.
    Vgpus(VgpuListing),
    /// It cannot be.
    Refused(String),
}

/// All sessions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) sessions: Vec<SessionLine>,
    /// How often the device process has died since the daemon started.
    #[serde(default)]
    pub(crate) device_deaths: u64,
    /// How GPU time is shared.
    #[serde(default)]
    pub(crate) scheduler: Scheduler,
    /// GPUs of which nothing is known now, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) silent: Vec<String>,
}

/// A session, as `ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionLine {
    /// Name of the tenant.
    pub(crate) tenant: String,
    /// Number of its GPU.
    #[serde(default)]
    pub(crate) gpu: usize,
    /// Process of the client.
    pub(crate) pid: i32,
    /// GPU memory of this session, bytes.
    pub(crate) memory_used: u64,
    /// Limit of the tenant, all its sessions together, bytes.
    pub(crate) memory_limit: u64,
    /// GPU memory that the tenant has been granted, all its sessions together, bytes: what it has, and what it is about to take.
    #[serde(default)]
    pub(crate) memory_reserved: u64,
    /// GPU memory that this session's requests wait for, bytes.
    #[serde(default)]
    pub(crate) memory_waiting_bytes: u64,
    /// For how long the first of them has, seconds.
    #[serde(default)]
    pub(crate) memory_waiting_seconds: f64,
    /// Memory of the host that the tenant takes, all its sessions together, bytes.
    pub(crate) host_memory_used: u64,
    /// Most bytes that it may be.
    pub(crate) host_memory_limit: u64,
    /// Share of GPU time while others want it, percent.
    pub(crate) share_entitled: f64,
    /// Part of GPU time in the last seconds, all sessions of the tenant together, percent.
    pub(crate) share_received: f64,
    /// In time that nobody was promised.
    #[serde(default)]
    pub(crate) priority: Priority,
    /// GPU time ever used, all sessions of the tenant together, ns.
    #[serde(default)]
    pub(crate) gpu_time_ns: u64,
    /// GPU time ever used by this session, ns.
    #[serde(default)]
    pub(crate) session_gpu_time_ns: u64,
    /// Calls answered in the client's process.
    pub(crate) calls_local: u64,
    /// Messages to the daemon.
    pub(crate) calls_remote: u64,
    /// Calls of the program for which messages were sent.
    #[serde(default)]
    pub(crate) calls_sent: u64,
    /// Times that the client waited for an answer.
    #[serde(default)]
    pub(crate) round_trips: u64,
    /// Time that its library has copied, seconds; 0 unless it counts (`run --timed`).
    #[serde(default)]
    pub(crate) copy_seconds: f64,
    /// Time that its library has waited, for the daemon's answers or the GPU, seconds; the same.
    #[serde(default)]
    pub(crate) wait_seconds: f64,
    /// Kernels that have run to their end.
    pub(crate) kernels: u64,
    /// Grids of the tenant that the interpreter ran because their kernel could not be compiled.
    pub(crate) kernels_interpreted: u32,
    /// Compilations of the tenant under way.
    pub(crate) compiling: u32,
    /// `waiting` (for GPU memory), `running` (has work), `idle`, or `ending`.
    pub(crate) state: String,
}

/// All virtual GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VgpuListing {
    pub(crate) vgpus: Vec<VgpuLine>,
}

/// A virtual GPU, as `vgpu list` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VgpuLine {
    /// Its name, as a tenant.
    pub(crate) name: String,
    /// Number of the GPU that it is a part of.
    #[serde(default)]
    pub(crate) gpu: usize,
    /// How it is virtualized.
    pub(crate) scheme: Scheme,
    /// Where guests connect.
    pub(crate) socket: PathBuf,
    /// Process of the guest, if there is one.
    pub(crate) guest: Option<i32>,
    /// GPU memory that its guest has, bytes. While its limit changes, it has more or less.
    pub(crate) memory_used: u64,
    /// What it was created with, in bytes: `vgpu set --mem` goes up to that.
    pub(crate) memory_limit: u64,
    /// GPU memory that serving it takes beside its own, bytes: page tables and channels. No part of its limit.
    #[serde(default)]
    pub(crate) memory_overhead: u64,
    /// Share of GPU time while others want it, percent.
    pub(crate) share_entitled: f64,
    /// Part of GPU time in the last seconds, percent.
    pub(crate) share_received: f64,
    /// In time that nobody was promised.
    #[serde(default)]
    pub(crate) priority: Priority,
    /// GPU time ever used, ns.
    #[serde(default)]
    pub(crate) gpu_time_ns: u64,
    /// Channels that the guest has bound.
    pub(crate) channels: u32,
    /// Accesses to the device's registers and memory that were mediated.
    pub(crate) traps: u64,
    /// Those of them that asked whether something has happened: how many depends on time, not on work.
    #[serde(default)]
    pub(crate) looks: u64,
    /// Times that a shadow was brought in line with the guest's page tables, or hypercalls.
    pub(crate) shadow_updates: u64,
    /// Entries of the guest's page tables that were looked at.
    pub(crate) entries_scanned: u64,
    /// Operations that came by hypercall.
    pub(crate) hypercalls: u64,
    /// How stores into its guest's page tables are to be noticed, in scheme fv.
    #[serde(default)]
    pub(crate) trap: Option<Trap>,
    /// How they are, while it has a guest: `snapshot` if that one cannot have what it is to have.
    #[serde(default)]
    pub(crate) trap_in_effect: Option<Trap>,
    /// Which pages of tables are protected, if the guest does not say itself what has changed.
    #[serde(default)]
    pub(crate) shadow: Option<Shadow>,
    /// Which are compared, if any is ever let go.
    #[serde(default)]
    pub(crate) rebuild: Option<Rebuild>,
    #[serde(flatten)]
    pub(crate) pages: TablePages,
    /// `idle` (no guest), `attached` (a guest without work), `running` (a guest with work), `restarting` (the device process is),
    /// or one in which it is of no use and has to be destroyed: `ended` (not all that it had could be taken from its guest),
    /// `failed` (by a fault of the daemon's).
    pub(crate) state: String,
    /// Why it is of no use.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// Leaves the last lines of a listing out that do not fit into a message with the others.
pub(crate) fn fit<T: Serialize>(lines: &mut Vec<T>) {
    let mut room = MAX_MESSAGE - AROUND_LINES;
    let fits = |line: &&T| {
        // And a comma.
        let bytes = serde_json::to_vec(line).map_or(usize::MAX, |text| text.len() + 1);
        let left = room.checked_sub(bytes);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let fitting = lines.iter().take_while(fits).count();
    if fitting < lines.len() {
        tracing::warn!(left_out = lines.len() - fitting, "a listing is too long");
        lines.truncate(fitting);
    }
}

/// Asks for a priority of somebody's, and says where it means nothing.
pub(crate) fn prioritize(socket: &OwnedFd, request: &AdminRequest, (name, priority): (&str, Priority)) -> Result<()> {
    let AdminReply::Prioritized { scheduler } = ask(socket, request)? else {
        bail!("the daemon gave an unexpected answer");
    };
    if !scheduler.knows_priorities() {
        writeln!(io::stdout(), "{name} has priority {priority}; the scheduler {scheduler} knows no priorities")?;
    }
    Ok(())
}

/// Sends a message.
pub(crate) fn send<T: Serialize>(socket: &OwnedFd, message: &T) -> io::Result<()> {
    unix::send(socket, &serde_json::to_vec(message)?, &[], true)
}

/// Receives a message; `None` if the peer has closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<T>> {
    Ok(receive_all(socket)?.map(|(message, _)| message))
}

/// Receives a message, and the descriptors that came with it.
pub(crate) fn receive_all<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let unix::Received { length, fds, .. } = unix::receive(socket, &mut buffer)?;
    match length {
        0 => Ok(None),
        length => Ok(Some((serde_json::from_slice(&buffer[..length])?, fds))),
    }
}

/// Connects to the daemon that serves this user, wherever it is.
///
/// # Errors
/// There is none.
pub(crate) fn reach() -> Result<OwnedFd> {
    let directory = RuntimeDirectory::find()?;
    connect(&directory).with_context(|| format!("no Sundial daemon is running in {}", directory.path().display()))
}

/// Connects to the daemon's admin socket.
pub(crate) fn connect(directory: &RuntimeDirectory) -> io::Result<OwnedFd> {
    let socket = unix::connect(&directory.admin_socket())?;
    unix::set_timeout(&socket, Some(PATIENCE))?;
    Ok(socket)
}

/// Asks one thing.
pub(crate) fn ask(socket: &OwnedFd, request: &AdminRequest) -> Result<AdminReply> {
    ask_with(socket, request, &[])
}

/// Asks one thing whose answer may be long.
pub(crate) fn fetch<T: DeserializeOwned>(socket: &OwnedFd, request: &AdminRequest) -> Result<T> {
    let (mut ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(PATIENCE))?;
    unix::send(socket, &serde_json::to_vec(request)?, &[theirs.as_fd()], true).context("cannot ask the daemon")?;
    drop(theirs);
    let mut text = Vec::new();
    ours.read_to_end(&mut text).context("the daemon does not answer")?;
    match receive(socket).context("the daemon does not answer")? {
        Some(AdminReply::Done) => serde_json::from_slice(&text).context("the daemon's answer"),
        Some(AdminReply::Refused(reason)) => bail!("{reason}"),
        _ => bail!("the daemon gave an unexpected answer"),
    }
}

/// Asks one thing, with descriptors.
pub(crate) fn ask_with(socket: &OwnedFd, request: &AdminRequest, fds: &[BorrowedFd<'_>]) -> Result<AdminReply> {
    unix::send(socket, &serde_json::to_vec(request)?, fds, true).context("cannot ask the daemon")?;
    match receive(socket).context("the daemon does not answer")? {
        Some(AdminReply::Refused(reason)) => bail!("{reason}"),
        Some(reply) => Ok(reply),
        None => bail!("the daemon closed the connection"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_listing_goes_into_a_message() {
        let (ours, theirs) = unix::pair().unwrap();
        let line = |number: usize| SessionLine {
            tenant: format!("{number}{}", "\"".repeat(number % 1000)),
            gpu: 15,
            pid: i32::MAX,
            memory_used: u64::MAX,
            memory_limit: u64::MAX,
            memory_reserved: u64::MAX,
            memory_waiting_bytes: u64::MAX,
            memory_waiting_seconds: 100_000.0 / 3.0,
            host_memory_used: u64::MAX,
            host_memory_limit: u64::MAX,
            share_entitled: 100.0 / 3.0,
            share_received: 100.0 / 7.0,
            priority: Priority::High,
            gpu_time_ns: u64::MAX,
            session_gpu_time_ns: u64::MAX,
            calls_local: u64::MAX,
            calls_remote: u64::MAX,
            calls_sent: 0,
            round_trips: 0,
            copy_seconds: 0.0,
            wait_seconds: 0.0,
            kernels: u64::MAX,
            kernels_interpreted: u32::MAX,
            compiling: u32::MAX,
            state: "running".into(),
        };
        for count in [0, 1, 10, 1000] {
            let mut sessions: Vec<SessionLine> = (0..count).map(line).collect();
            fit(&mut sessions);
            assert!(sessions.len() == count || (50..1000).contains(&sessions.len()), "{} of {count}", sessions.len());
            let kept = sessions.len();
            let device_deaths = u64::MAX;
            let listing = Listing { sessions, device_deaths, ..Listing::default() };
            send(&ours, &AdminReply::Sessions(listing)).unwrap();
            match receive(&theirs).unwrap() {
                Some(AdminReply::Sessions(listing)) => assert_eq!(listing.sessions.len(), kept),
                other => panic!("{other:?}"),
            }
        }
    }
}
