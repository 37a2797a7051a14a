//! What the control process and the device process say to each other: JSON messages on a socket pair, made by the parent
//! and handed to the child as its standard input.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use fair_share::Priority;
use gpu::Properties;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenancy::grant::OnFull;
use tenancy::metering::GpuTime;
use tenancy::{Limits, TenantId};
use transport::unix;

use crate::admin::{MAX_MESSAGE, SessionLine};
use crate::quota::Spender;
use crate::scheme::Scheme;
use crate::shadowing::{Costs, Shadowing, TablePages, Trap};
use crate::size::Scheduler;
use crate::usage::MeteredRow;

/// To the device process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToDevice {
    /// A tenant is there, or its terms changed.
    Tenant {
        /// As the control process counts them.
        id: TenantId,
        /// For people.
        name: String,
        /// Whose it is, with its profile.
        spender: Spender,
        /// What it may use.
        limits: Limits,
        /// Its share of GPU time, percent.
        share_percent: Option<f64>,
        /// In time that nobody was promised.
        priority: Priority,
        /// What becomes of its requests for GPU memory that do not fit.
        on_full: OnFull,
    },
    /// A client said its hello; its socket comes with this message, and a descriptor of its process, if it has a number here →
    /// [`FromDevice::Taken`]
    Open {
        /// Number of the session.
        session: u64,
        /// Whose.
        tenant: TenantId,
        /// Its process.
        pid: i32,
        /// Features of the session protocol that it may have.
        features: u64,
        /// Bytes of a block of its staged copies.
        staging_block: usize,
        /// How many GPUs its tenant has.
        gpus: u32,
    },
    /// A tenant has left; its sessions end by themselves.
    Forget {
        /// As it was named when it came.
        tenant: TenantId,
    },
    /// How GPU time is shared from now on.
    Schedule {
        /// The policy.
        scheduler: Scheduler,
    },
    /// Who is there? → [`FromDevice::Report`]
    Report,
    /// What has been used since this was asked last? → [`FromDevice::Metered`]
    Meter {
        /// Tells this question from others.
        number: u64,
    },
    /// A tenant has a virtual GPU of the memory that it may use → [`FromDevice::VgpuMade`]
    MakeVgpu {
        /// Which tenant: it is the number of its virtual GPU as well.
        vgpu: TenantId,
        /// How it is virtualized.
        scheme: Scheme,
        /// How its guest's page tables are shadowed, and what that costs here, if they are.
        shadowing: Option<(Shadowing, Costs)>,
        /// All the memory that it may ever have, bytes; what it has now is its tenant's limit.
        most_bytes: u64,
    },
    /// It has so much memory from now on → [`FromDevice::VgpuResized`]
    ResizeVgpu {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
        /// Whole 2 MiB.
        bytes: u64,
    },
    /// What its guest does to its page tables is recorded; the socket of who reads that comes with this message.
    TraceVgpu {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
    },
    /// Its guest's page tables are shadowed in another way, with the same trap.
    ShadowVgpu {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
        /// From its guest's next submission on.
        shadowing: Shadowing,
    },
    /// It has none any more, whoever uses it → [`FromDevice::VgpuEnded`]
    EndVgpu {
        /// As it was named when it was made.
        vgpu: TenantId,
    },
    /// A guest has connected; its socket comes with this message → [`FromDevice::Taken`]
    Guest {
        /// A number that no other guest has, nor any session.
        number: u64,
        /// To which.
        vgpu: TenantId,
        /// Its process.
        pid: i32,
    },
    /// What do they do? → [`FromDevice::Vgpus`]
    ReportVgpus,
    /// A compiler: its socket, the descriptor of its process and its lifeline come with this message.
    Compiler {
        /// Its process.
        pid: i32,
        /// The lifeline is the way to the cache as well; else nobody answers there.
        cached: bool,
    },
    /// One that was wanted does not come.
    NoCompiler {
        /// Why, in words for the log.
        reason: String,
    },
}

/// To the control process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromDevice {
    /// The GPU works.
    Ready {
        /// What it is.
        #[serde(with = "PropertiesText")]
        properties: Properties,
    },
    /// To [`ToDevice::Open`] and [`ToDevice::Guest`], before the client hears anything or is listened to: it is this process's
    /// from now on, whatever becomes of it.
    Taken {
        /// The number that it came with.
        number: u64,
    },
    /// A session has ended and given everything back.
    Ended {
        /// The number that it was opened with.
        session: u64,
    },
    /// To [`ToDevice::Report`], in as many messages as it takes.
    Report {
        lines: Vec<SessionLine>,
        /// There are no more.
        last: bool,
    },
    /// To [`ToDevice::Meter`], in as many messages as it takes.
    Metered {
        /// Of the question, in the last.
        number: Option<u64>,
        rows: Vec<MeteredRow>,
        /// What became of the GPU's time; in the last.
        time: GpuTime,
    },
    /// To [`ToDevice::MakeVgpu`].
    VgpuMade {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
        /// It is not: why.
        refused: Option<String>,
    },
    /// To [`ToDevice::ResizeVgpu`].
    VgpuResized {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
        /// What it has now, bytes.
        bytes: u64,
        /// That is not what was asked for: why.
        refused: Option<String>,
    },
    /// To [`ToDevice::EndVgpu`]: all of it is given back.
    VgpuEnded {
        /// The virtual GPU that it is about, by its tenant.
        vgpu: TenantId,
    },
    /// To [`ToDevice::ReportVgpus`].
    Vgpus(Vec<VgpuStatus>),
    /// One more compiler, please → [`ToDevice::Compiler`], [`ToDevice::NoCompiler`]
    WantCompiler,
}

/// [`Properties`] in messages.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Properties")]
struct PropertiesText {
    name: String,
    uuid: [u8; 16],
    pci: [u32; 3],
    compute_capability: [u32; 2],
    driver_version: u32,
    multiprocessors: u32,
    memory_bytes: u64,
    clock_khz: u32,
    memory_clock_khz: u32,
    memory_bus_bits: u32,
    l2_bytes: u32,
}

/// A virtual GPU, as the device process sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VgpuStatus {
    pub(crate) vgpu: TenantId,
    pub(crate) guest: Option<i32>,
    pub(crate) memory_used: u64,
    pub(crate) memory_overhead: u64,
    pub(crate) share_entitled: f64,
    pub(crate) share_received: f64,
    pub(crate) gpu_time_ns: u64,
    pub(crate) channels: u32,
    pub(crate) traps: u64,
    pub(crate) looks: u64,
    pub(crate) shadow_updates: u64,
    pub(crate) entries_scanned: u64,
    pub(crate) hypercalls: u64,
    pub(crate) trap_in_effect: Option<Trap>,
    pub(crate) pages: TablePages,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
}

/// Longest that the control process waits for room: a device process that does not read is as good as dead.
pub(crate) const SEND_BOUND: Duration = Duration::from_secs(2);

/// Sends a message.
pub(crate) fn send<T: Serialize>(socket: &OwnedFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    unix::send(socket, &serde_json::to_vec(message)?, fds, true)
}

/// Rows of meters in a message: there is room for the longest that they can be.
const METERED_ROWS: usize = 64;

/// Sends [`FromDevice::Metered`].
pub(crate) fn send_metered(socket: &OwnedFd, number: u64, rows: Vec<MeteredRow>, time: GpuTime) -> io::Result<()> {
    let mut rows = rows.into_iter().peekable();
    loop {
        let part: Vec<MeteredRow> = rows.by_ref().take(METERED_ROWS).collect();
        let last = rows.peek().is_none();
        let (number, time) = if last { (Some(number), time) } else { (None, GpuTime::default()) };
        send(socket, &FromDevice::Metered { number, rows: part, time }, &[])?;
        if last {
            return Ok(());
        }
    }
}

/// Sessions in a message: there is room for the longest that their lines can be.
const REPORTED_LINES: usize = 100;

/// Sends [`FromDevice::Report`].
pub(crate) fn send_report(socket: &OwnedFd, lines: Vec<SessionLine>) -> io::Result<()> {
    let mut lines = lines.into_iter().peekable();
    loop {
        let part = lines.by_ref().take(REPORTED_LINES).collect();
        let last = lines.peek().is_none();
        send(socket, &FromDevice::Report { lines: part, last }, &[])?;
        if last {
            return Ok(());
        }
    }
}

/// Receives a message and the descriptors that came with it, none of them if there was no room for all; `None` if the other
/// process is gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: &OwnedFd,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE, 0);
    let is_reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
    let received = match unix::receive(socket, buffer) {
        // Told once, of one that died with something unread, and before what it had sent.
        Err(error) if is_reset(&error) => unix::receive(socket, buffer),
        other => other,
    };
    match received {
        Err(error) if is_reset(&error) => Ok(None),
        Err(error) => Err(error),
        Ok(unix::Received { length: 0, .. }) => Ok(None),
        Ok(unix::Received { length, fds, .. }) => Ok(Some((serde_json::from_slice(&buffer[..length])?, fds))),
    }
}

#[cfg(test)]
mod tests {
    use tenancy::metering::{Meters, WAIT_RANGES, Waits};

    use super::*;
    use crate::usage::Present;

    #[test]
    fn however_many_tenants_there_are_their_meters_arrive() {
        let (ours, theirs) = unix::pair().unwrap();
        let most = u64::MAX;
        let waits = Waits { counts: [most; WAIT_RANGES], sum_ns: most };
        let meters = Meters {
            gpu_ns: most,
            memory_byte_ns: u128::MAX,
            bytes_in: most,
            bytes_out: most,
            waits,
            ..Meters::default()
        };
        let present =
            Some(Present { memory_used: most, share_received: 100.0 / 3.0, host_limit: most, ..Present::default() });
        let spender = Spender { user: u32::MAX, profile: Some("p".repeat(64)) };
        let row =
            |n| MeteredRow { tenant: format!("{n:064}"), spender: spender.clone(), meters, present: present.clone() };
        let time = GpuTime { wall_ns: 7, ..GpuTime::default() };
        for count in [0, 1, METERED_ROWS, 3 * METERED_ROWS + 1] {
            let rows = (0..count).map(row).collect();
            let sender = theirs.try_clone().unwrap();
            let sending = std::thread::spawn(move || send_metered(&sender, 5, rows, time).unwrap());
            let (mut buffer, mut heard) = (Vec::new(), 0);
            loop {
                let Some((FromDevice::Metered { number, rows, time }, _)) = receive(&ours, &mut buffer).unwrap() else {
                    panic!()
                };
                heard += rows.len();
                assert!(rows.iter().all(|row| row.meters == meters));
                if number.is_some() {
                    assert_eq!((heard, number, time.wall_ns), (count, Some(5), 7));
                    break;
                }
            }
            sending.join().unwrap();
        }
    }

    #[test]
    fn what_it_said_is_heard_of_one_that_died_with_something_unread() {
        let (ours, theirs) = unix::pair().unwrap();
        send(&ours, &ToDevice::Report, &[]).unwrap();
        for number in 0..2 {
            send(&theirs, &FromDevice::Taken { number }, &[]).unwrap();
        }
        drop(theirs);
        let mut buffer = Vec::new();
        let mut heard = || receive::<FromDevice>(&ours, &mut buffer).unwrap().map(|(message, _)| message);
        assert!(matches!(heard(), Some(FromDevice::Taken { number: 0 })));
        assert!(matches!(heard(), Some(FromDevice::Taken { number: 1 })));
        assert!(heard().is_none() && heard().is_none());
    }
}
