//! What `run` and `ps` say to the daemon: JSON messages on the admin socket, which only its own user can open.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenancy::Terms;
use transport::unix;

use crate::place::Place;
use crate::size::GpuSpec;

/// Longest message: a listing of some hundred sessions. A socket carries no more in one piece.
pub(crate) const MAX_MESSAGE: usize = 128 << 10;

/// Most sessions in a listing, so that it is never longer than a message.
pub(crate) const MOST_LINES: usize = 400;

/// Longest that the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AdminRequest {
    /// Lets a tenant in, for as long as this connection is open.
    Register {
        /// What it asks for.
        terms: Terms,
        /// Which GPU it wants, if it matters.
        gpu: Option<GpuSpec>,
    },
    /// Who is there?
    List,
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
    /// It cannot be.
    Refused(String),
}

/// All sessions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) sessions: Vec<SessionLine>,
}

/// A session, as `ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionLine {
    /// Name of the tenant.
    pub(crate) tenant: String,
    /// Process of the client.
    pub(crate) pid: i32,
    /// GPU memory of this session, bytes.
    pub(crate) memory_used: u64,
    /// Limit of the tenant, all its sessions together, bytes.
    pub(crate) memory_limit: u64,
    /// Share of GPU time while others want it, percent.
    pub(crate) share_entitled: f64,
    /// Part of GPU time in the last seconds, all sessions of the tenant together, percent.
    pub(crate) share_received: f64,
    /// Calls answered in the client's process.
    pub(crate) calls_local: u64,
    /// Messages to the daemon.
    pub(crate) calls_remote: u64,
    /// Kernels that have run to their end.
    pub(crate) kernels: u64,
    /// `running` (has work), `idle`, or `ending`.
    pub(crate) state: String,
}

/// Sends a message.
pub(crate) fn send<T: Serialize>(socket: &OwnedFd, message: &T) -> io::Result<()> {
    unix::send(socket, &serde_json::to_vec(message)?, &[], true)
}

/// Receives a message; `None` if the peer has closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<T>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    match unix::receive(socket, &mut buffer)? {
        (0, _) => Ok(None),
        (length, _) => Ok(Some(serde_json::from_slice(&buffer[..length])?)),
    }
}

/// Connects to the daemon's admin socket.
pub(crate) fn connect(place: &Place) -> io::Result<OwnedFd> {
    let socket = unix::connect(&place.admin_socket())?;
    unix::set_timeout(&socket, Some(PATIENCE))?;
    Ok(socket)
}

/// Asks one thing.
pub(crate) fn ask(socket: &OwnedFd, request: &AdminRequest) -> Result<AdminReply> {
    send(socket, request).context("cannot ask the daemon")?;
    match receive(socket).context("the daemon does not answer")? {
        Some(AdminReply::Refused(reason)) => bail!("{reason}"),
        Some(reply) => Ok(reply),
        None => bail!("the daemon closed the connection"),
    }
}
