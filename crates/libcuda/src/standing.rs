//! How the program stands on GPUs that are in its own process, for `libnvidia-ml.so.1`: as a daemon tells of its own
//! ([`wire::standing`]), behind an export table that only we ask for.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use gpu::{Gpu, Properties};
use gpu_driver::Client;
use parking_lot::Mutex;
use wire::{GpuStanding, ProcessStanding, Reply, Standing};

use crate::backend;
use crate::entry::{Refusal, in_process, refuse};

/// A GPU in this process.
#[derive(Debug)]
pub(crate) struct Own {
    /// What uses it, if the program is to see it.
    client: Option<Arc<Client>>,
    measured: Mutex<Measured>,
}

/// How much of the GPU's time was used when it was looked at.
#[derive(Clone, Copy, Debug)]
struct Measured {
    at: Instant,
    ns: u64,
    /// Between the two looks before, hundredths of a percent.
    part: u32,
}

/// Shortest time over which use is measured.
const LEAST_SPAN: Duration = Duration::from_secs(1);

impl Own {
    pub(crate) fn new(client: Option<Arc<Client>>) -> Own {
        Own { client, measured: Mutex::new(Measured { at: Instant::now(), ns: 0, part: 0 }) }
    }

    /// Of a GPU at a place among all; of one that the program does not see, what it is had to be found out.
    fn standing(&self, at: usize) -> Result<GpuStanding, Refusal> {
        let properties = match &self.client {
            Some(client) => client.properties().clone(),
            None => looked_at()?.get(at).cloned().ok_or(Refusal(CUresult::CUDA_ERROR_NO_DEVICE))?,
        };
        let ns = self.client.as_ref().map_or(0, |client| client.usage().gpu_time_ns);
        let memory_used = self.client.as_ref().map_or(0, |client| client.memory_used());
        let pid = std::process::id();
        let process = self.client.iter().map(|_| ProcessStanding { pid, memory_used, gpu_time_ns: ns });
        Ok(GpuStanding {
            properties,
            answers: true,
            memory_used,
            received: self.measured.lock().look(Instant::now(), ns),
            processes: process.collect(),
        })
    }
}

impl Measured {
    /// The part of the time since the last look that was used; of a shorter time than is worth it, that of the one before.
    fn look(&mut self, now: Instant, ns: u64) -> u32 {
        let span = now.saturating_duration_since(self.at);
        if span >= LEAST_SPAN {
            let part = u128::from(ns.saturating_sub(self.ns)) * 10_000 / span.as_nanos();
            *self = Measured { at: now, ns, part: part.min(10_000) as u32 };
        }
        self.part
    }
}

/// The native GPUs, as they are found out without the program's having called `cuInit`. Nothing else is left of having looked: a
/// program may do so, and use the GPU in its children only.
fn looked_at() -> Result<&'static [Properties], Refusal> {
    static LOOKED_AT: Mutex<()> = Mutex::new(());
    static FOUND: OnceLock<Vec<Properties>> = OnceLock::new();
    let _one_at_a_time = LOOKED_AT.lock();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let found = backend::native_properties().map_err(|error| {
        tracing::warn!("no GPU: {error}");
        Refusal(CUresult::CUDA_ERROR_NO_DEVICE)
    })?;
    Ok(FOUND.get_or_init(|| found))
}

/// How the program stands now, as a message; before `cuInit`, with what there will be.
///
/// # Errors
/// `NOT_INITIALIZED` if nobody knows before `cuInit`, or there is a daemon to ask; `NO_DEVICE`.
pub(crate) fn message() -> Result<Vec<u8>, Refusal> {
    let gpus: Vec<GpuStanding> = match in_process()? {
        Some(own) => own.iter().enumerate().map(|(at, own)| own.standing(at)).collect::<Result<_, _>>()?,
        None => (0..looked_at()?.len()).map(|at| Own::new(None).standing(at)).collect::<Result<_, _>>()?,
    };
    if gpus.is_empty() {
        return refuse(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    Ok(Reply::Standing(Box::new(Standing { gpus })).encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_measured_between_looks() {
        let start = Instant::now();
        let mut measured = Measured { at: start, ns: 0, part: 0 };
        let mut look = |ms, used_ms: u64| measured.look(start + Duration::from_millis(ms), used_ms * 1_000_000);
        assert_eq!(look(500, 400), 0, "too soon");
        assert_eq!(look(1000, 400), 4000);
        assert_eq!(look(1500, 900), 4000);
        assert_eq!(look(3000, 1400), 5000);
        assert_eq!(look(4000, 9000), 10_000, "no more than all of it");
        assert_eq!(look(5000, 10), 0);
    }
}
