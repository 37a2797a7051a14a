//! The program's processes on a GPU. All of them compute; none draws, and none comes by way of another.

use wire::ProcessStanding;

use crate::abi::{
    NO_INSTANCE, NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, version,
};
use crate::edge::{Answer, Device, Out, exports};
use crate::library::{Sample, on};

exports! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = computing_first;
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) = computing;
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) = computing;
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) = none;
    fn nvmlDeviceGetRunningProcessDetailList(device: Device, list: Out<nvmlProcessDetailList_v1_t>) = details;
    fn nvmlDeviceGetProcessUtilization(device: Device, samples: Out<nvmlProcessUtilizationSample_t>, count: Out<u32>, since: u64) = utilization;
}

fn processes(device: Device) -> Answer<Vec<ProcessStanding>> {
    let (library, at) = on(device)?;
    Ok(library.now()?.gpu(at)?.processes.clone())
}

/// Writes a list by the interface's protocol: what there is room for in, how many there are out.
fn list<T: Copy>(all: &[T], count: Out<u32>, places: Out<T>) -> Answer {
    let room = count.get()?;
    count.set(all.len() as u32)?;
    if all.len() > room as usize {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    if all.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller has said how many there is room for, and these are no more.
    unsafe { places.set_all(all) }
}

fn computing_first(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) -> Answer {
    let info =
        |process: ProcessStanding| nvmlProcessInfo_v1_t { pid: process.pid, used_gpu_memory: process.memory_used };
    list(&processes(device)?.into_iter().map(info).collect::<Vec<_>>(), count, infos)
}

fn computing(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) -> Answer {
    let info = |process: ProcessStanding| nvmlProcessInfo_v2_t {
        pid: process.pid,
        used_gpu_memory: process.memory_used,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    };
    list(&processes(device)?.into_iter().map(info).collect::<Vec<_>>(), count, infos)
}

/// Without any the structures' version does not matter.
fn none(device: Device, count: Out<u32>, _infos: Out<nvmlProcessInfo_v1_t>) -> Answer {
    on(device)?;
    count.set(0)
}

fn details(device: Device, out: Out<nvmlProcessDetailList_v1_t>) -> Answer {
    const COMPUTE: u32 = 0;
    const MPS: u32 = 2;
    const ALL: u32 = 3;
    on(device)?;
    if out.cast::<u32>().get()? != version::<nvmlProcessDetailList_v1_t>(1) {
        return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    let wanted = out.get()?;
    let all = match wanted.mode {
        COMPUTE | ALL => processes(device)?,
        0..=MPS => Vec::new(),
        _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
    };
    let detail = |process: ProcessStanding| nvmlProcessDetail_v1_t {
        pid: process.pid,
        used_gpu_memory: process.memory_used,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
        used_gpu_cc_protected_memory: 0,
    };
    let mut count = wanted.num_proc_array_entries;
    let all: Vec<_> = all.into_iter().map(detail).collect();
    let listed = list(&all, Out::to(&mut count), wanted.proc_array);
    out.set(nvmlProcessDetailList_v1_t { num_proc_array_entries: count, ..wanted })?;
    listed
}

fn utilization(device: Device, places: Out<nvmlProcessUtilizationSample_t>, count: Out<u32>, since: u64) -> Answer {
    let (library, at) = on(device)?;
    let room = count.get()?;
    let samples: Vec<Sample> = library.samples(at)?.into_iter().filter(|sample| sample.micros > since).collect();
    if samples.is_empty() {
        count.set(0)?;
        return Err(NVML_ERROR_NOT_FOUND);
    }
    let sample = |Sample { pid, percent, micros }| nvmlProcessUtilizationSample_t {
        pid,
        time_stamp: micros,
        sm_util: percent,
        // Nobody measures that.
        mem_util: 0,
        enc_util: 0,
        dec_util: 0,
    };
    let all: Vec<_> = samples.into_iter().map(sample).collect();
    if places.is_null() {
        // Asks how many there are, whatever it says that there is room for.
        count.set(all.len() as u32)?;
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    count.set(room)?;
    list(&all, count, places)
}
