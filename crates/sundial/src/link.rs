//! What the control process and the device process say to each other: JSON messages on a socket pair, made by the parent
//! and handed to the child as its standard input.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenancy::{Limits, TenantId};
use transport::unix;

use crate::admin::{MAX_MESSAGE, SessionLine};

/// To the device process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToDevice {
    /// A tenant is there, or its terms changed.
    Tenant {
        /// Its number.
        id: TenantId,
        /// For people.
        name: String,
        /// What it may use.
        limits: Limits,
        /// Its share of GPU time, percent.
        share_percent: Option<f64>,
    },
    /// A client said its hello; its socket comes with this message.
    Open {
        /// Number of the session.
        session: u64,
        /// Whose.
        tenant: TenantId,
        /// Its process.
        pid: i32,
    },
    /// A tenant has left; its sessions end by themselves.
    Forget {
        /// Which.
        tenant: TenantId,
    },
    /// Who is there? → [`FromDevice::Report`]
    Report,
}

/// To the control process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromDevice {
    /// The GPU works.
    Ready {
        /// Product name.
        name: String,
        /// Its memory, bytes.
        memory_bytes: u64,
    },
    /// A session has ended and given everything back.
    Ended {
        /// Which.
        session: u64,
    },
    /// To [`ToDevice::Report`].
    Report(Vec<SessionLine>),
}

/// Longest that the control process waits for room: a device process that does not read is as good as dead.
pub(crate) const SEND_BOUND: Duration = Duration::from_secs(2);

/// Sends a message.
pub(crate) fn send<T: Serialize>(socket: &OwnedFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    unix::send(socket, &serde_json::to_vec(message)?, fds, true)
}

/// Receives a message and the descriptor that came with it; `None` if the other process is gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: &OwnedFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE, 0);
    match unix::receive(socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
        Ok((0, _)) => Ok(None),
        Ok((length, fds)) => Ok(Some((serde_json::from_slice(&buffer[..length])?, fds.into_iter().next()))),
    }
}
