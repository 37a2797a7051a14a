//! How a tenant stands, told to who asks with its credential and has no session: `libnvidia-ml.so.1` in its programs.
//!
//! The device processes of its GPUs are asked as for `ps`, each one question at a time, and not again for [`FRESH`]: who asks again and
//! again costs what one does who asks so often. They ask no client's GPU for that.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpu::Properties;
use parking_lot::Mutex;
use transport::unix::{self, PeerProcess};
use wire::{GpuStanding, Hello, ProcessStanding, Reply, Standing};

use super::tenants::Asked;
use super::{Control, Seat};
use crate::admin::{Listing, SessionLine};

/// What is not older is fresh enough.
const FRESH: Duration = Duration::from_millis(50);
/// Longest wait for device processes: who asks waits for somewhat longer.
const REPORT_BOUND: Duration = Duration::from_secs(1);

/// What a GPU's device process said last of its sessions, and when; `None`: nothing. Held while it is asked: who comes meanwhile has the
/// same answer.
pub(super) type Seen = Mutex<Option<(Instant, Option<Arc<Listing>>)>>;

impl Control {
    /// Answers who asks how his tenant stands.
    ///
    /// # Errors
    /// Why he is not told.
    pub(super) fn tell_standing(&self, socket: &OwnedFd, hello: &Hello, peer: PeerProcess) -> Result<(), String> {
        let asked = self.tenants.lock().asked(&hello.credential, peer.into(), (hello.process, own_namespace()))?;
        let until = Instant::now() + REPORT_BOUND;
        let on = |&(gpu, limit): &(usize, u64)| {
            let properties = self.gpus[gpu].device.properties()?;
            Some(standing(&asked, (gpu, limit), properties, self.sessions_on(gpu, until).as_deref()))
        };
        let gpus: Option<Vec<GpuStanding>> = asked.gpus.iter().map(on).collect();
        let standing = Standing { gpus: gpus.ok_or("the GPU is being started")? };
        // A client that is gone already misses nothing.
        let _ = unix::send(socket, &Reply::Standing(Box::new(standing)).encode(), &[], false);
        Ok(())
    }

    /// Who is on a GPU, as it was told a moment ago, or is by then; `None`: it does not answer.
    fn sessions_on(&self, gpu: usize, until: Instant) -> Option<Arc<Listing>> {
        let Seat { device, sessions_seen, .. } = &self.gpus[gpu];
        let mut seen = sessions_seen.try_lock_until(until)?;
        if let Some((at, listing)) = &*seen
            && at.elapsed() < FRESH
        {
            return listing.clone();
        }
        let left = until.saturating_duration_since(Instant::now());
        let told = device.ask_report().ok().and_then(|asked| asked.recv_timeout(left).ok());
        let listing = told.filter(|_| device.facts().is_some()).map(Arc::new);
        *seen = Some((Instant::now(), listing.clone()));
        listing
    }

    /// Who is on each GPU? All are asked before any is waited for, for so long at most.
    pub(super) fn ask_all(&self, bound: Duration) -> Vec<Result<Listing>> {
        let asked: Vec<_> = self.gpus.iter().map(|seat| seat.device.ask_report()).collect();
        let until = Instant::now() + bound;
        let hear = |asked: Result<std::sync::mpsc::Receiver<Listing>>| {
            let left = until.saturating_duration_since(Instant::now());
            asked.and_then(|asked| asked.recv_timeout(left).context("it does not answer"))
        };
        asked.into_iter().map(hear).collect()
    }
}

/// The standing of one on a GPU, of which `listing` was heard.
fn standing(
    asked: &Asked,
    (gpu, limit): (usize, u64),
    properties: Properties,
    listing: Option<&Listing>,
) -> GpuStanding {
    let sessions = listing.map_or(&[][..], |listing| &listing.sessions);
    let own: Vec<&SessionLine> = sessions.iter().filter(|line| line.tenant == asked.name).collect();
    let received = own.iter().map(|line| line.share_received).fold(0.0, f64::max);
    let mut processes: BTreeMap<u32, ProcessStanding> = BTreeMap::new();
    for line in &own {
        let Some(&pid) = asked.pids.get(&(gpu, line.pid)) else { continue };
        let process = processes.entry(pid).or_insert(ProcessStanding { pid, ..ProcessStanding::default() });
        process.memory_used = process.memory_used.saturating_add(line.memory_used);
        process.gpu_time_ns = process.gpu_time_ns.saturating_add(line.session_gpu_time_ns);
    }
    GpuStanding {
        properties: Properties { memory_bytes: limit, ..properties },
        answers: listing.is_some(),
        memory_used: own.iter().map(|line| line.memory_used).fold(0, u64::saturating_add),
        received: (received.clamp(0.0, 100.0) * 100.0).round() as u32,
        processes: processes.into_values().collect(),
    }
}

/// The PID namespace of this process; 0 if nobody knows.
fn own_namespace() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()))
}
