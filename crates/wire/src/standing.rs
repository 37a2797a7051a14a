//! How a tenant stands: what it has of its GPUs, and which of its processes have it. For those who ask without having a session
//! (`libnvidia-ml.so.1`).
//!
//! The question is a [`Hello`](crate::Hello) with the feature [`STANDING`](crate::handshake::features::STANDING), and no other; the
//! answer is [`Reply::Standing`](crate::Reply::Standing), or a refusal, and ends the connection. A daemon that does not know the
//! feature refuses such a hello, as it does without shared memory.

use gpu::Properties;

use crate::WireError;
use crate::fields::{Reader, Writer};
use crate::limits::{MAX_GPUS, MAX_STANDING_PROCESSES};

/// A process, as it sees itself. What it says is for itself and its tenant's other processes, and believed for nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its number in its own PID namespace; 0: not said.
    pub pid: u32,
    /// The namespace, by the inode of `/proc/self/ns/pid`; 0: not known.
    pub namespace: u64,
}

/// A tenant's standing on each of its GPUs, in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// At most [`MAX_GPUS`].
    pub gpus: Vec<GpuStanding>,
}

/// A tenant's standing on one of its GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuStanding {
    /// The GPU, as the tenant may use it: as in the welcome of its sessions.
    pub properties: Properties,
    /// It answers; else nothing is known of what follows.
    pub answers: bool,
    /// GPU memory of all its sessions, bytes.
    pub memory_used: u64,
    /// Part of the GPU's time that it had in the last seconds, hundredths of a percent.
    pub received: u32,
    /// Processes that have sessions, and a number where who asks is: of more than [`MAX_STANDING_PROCESSES`] those with most memory.
    pub processes: Vec<ProcessStanding>,
}

/// What a process has of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessStanding {
    /// Its number where who asks is.
    pub pid: u32,
    /// GPU memory of its sessions, bytes.
    pub memory_used: u64,
    /// GPU time that they ever had, nanoseconds.
    pub gpu_time_ns: u64,
}

/// Bytes of a process, and of a GPU without a name and without processes.
const PROCESS_BYTES: usize = 20;
const LEAST_GPU_BYTES: usize = 92;

impl Standing {
    pub(crate) fn put(&self, to: &mut Writer) {
        to.count(self.gpus.len());
        for gpu in &self.gpus {
            put_properties(&gpu.properties, to);
            to.bool(gpu.answers);
            to.u64(gpu.memory_used);
            to.u32(gpu.received);
            // Those that there is room for.
            let mut processes: Vec<&ProcessStanding> = gpu.processes.iter().collect();
            if processes.len() > MAX_STANDING_PROCESSES {
                processes.sort_by_key(|process| std::cmp::Reverse(process.memory_used));
                processes.truncate(MAX_STANDING_PROCESSES);
            }
            to.count(processes.len());
            for process in processes {
                to.u32(process.pid);
                to.u64(process.memory_used);
                to.u64(process.gpu_time_ns);
            }
        }
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Standing, WireError> {
        let limit = |what, limit| WireError::Limit { what, limit };
        let process = |from: &mut Reader<'_>| {
            Ok(ProcessStanding { pid: from.u32()?, memory_used: from.u64()?, gpu_time_ns: from.u64()? })
        };
        let gpu = |from: &mut Reader<'_>| {
            let properties = take_properties(from)?;
            let (answers, memory_used, received) = (from.bool()?, from.u64()?, from.u32()?);
            let processes = from.list(PROCESS_BYTES, process)?;
            if processes.len() > MAX_STANDING_PROCESSES {
                return Err(limit("number of processes", MAX_STANDING_PROCESSES));
            }
            Ok(GpuStanding { properties, answers, memory_used, received, processes })
        };
        let gpus = from.list(LEAST_GPU_BYTES, gpu)?;
        if gpus.len() > MAX_GPUS as usize {
            return Err(limit("number of GPUs", MAX_GPUS as usize));
        }
        Ok(Standing { gpus })
    }
}

pub(crate) fn put_properties(gpu: &Properties, to: &mut Writer) {
    to.text(&gpu.name);
    to.bytes.extend_from_slice(&gpu.uuid);
    gpu.pci.into_iter().chain(gpu.compute_capability).for_each(|number| to.u32(number));
    to.u64(gpu.memory_bytes);
    for number in [
        gpu.driver_version,
        gpu.multiprocessors,
        gpu.clock_khz,
        gpu.memory_clock_khz,
        gpu.memory_bus_bits,
        gpu.l2_bytes,
    ] {
        to.u32(number);
    }
}

pub(crate) fn take_properties(from: &mut Reader<'_>) -> Result<Properties, WireError> {
    let name = from.text()?;
    let uuid = from.array()?;
    let (pci, compute_capability, memory_bytes) = (from.u32s()?, from.u32s()?, from.u64()?);
    let [driver_version, multiprocessors, clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes] = from.u32s()?;
    Ok(Properties {
        name,
        uuid,
        pci,
        compute_capability,
        driver_version,
        multiprocessors,
        memory_bytes,
        clock_khz,
        memory_clock_khz,
        memory_bus_bits,
        l2_bytes,
    })
}
