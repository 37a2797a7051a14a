//! Programs that no neighbour should notice.

use std::io::Write;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use serde_json::{Value, json};

use crate::Gpu;

const MIB: usize = 1 << 20;

/// Launches of `flood`: more than any ring holds.
const FLOOD: u32 = 5_000;

/// Allocates 16 MiB at a time until the driver refuses, and reports how far it came and with which error.
pub(crate) fn greedy(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let (_, total) = gpu.context.mem_get_info()?;
    let mut held = Vec::new();
    let error = loop {
        match stream.alloc_zeros::<u8>(16 * MIB) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    Ok(json!({ "total": total, "allocated": held.len() * 16 * MIB, "error": error.0 as u32 }))
}

/// Reads out of bounds, and reports the error of the synchronization behind it.
pub(crate) fn stray(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("stray")?;
    let data = stream.alloc_zeros::<f32>(1024)?;
    let mut out = stream.alloc_zeros::<f32>(32)?;
    let far: i64 = 1 << 32;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&data).arg(&mut out).arg(&far);
    // SAFETY: the arguments are those of the kernel; that it reads out of bounds is the point, and the GPU's to contain.
    unsafe { launch.launch(LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 }) }?;
    let error = stream.synchronize().err().map_or(0, |error| error.0 as u32);
    // What is left in a dead context cannot be freed: the process ends.
    std::mem::forget((data, out));
    Ok(json!({ "error": error }))
}

/// Starts a kernel that never ends, says so, and waits.
pub(crate) fn endless(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("endless")?;
    let flag = stream.alloc_zeros::<u32>(1)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&flag);
    // SAFETY: the argument is that of the kernel.
    unsafe { launch.launch(LaunchConfig { grid_dim: (64, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 }) }?;
    announce(&json!({ "started": true }))?;
    stream.synchronize()?;
    Ok(json!({ "ended": true }))
}

/// Queues many launches, never waits, and ends without any clean-up.
pub(crate) fn flood(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("polynomial")?;
    let n = 4096;
    let x = stream.alloc_zeros::<f32>(n)?;
    let mut y = stream.alloc_zeros::<f32>(n)?;
    let (shape, terms, n) = (LaunchConfig::for_num_elems(n as u32), 200, n as i32);
    for _ in 0..FLOOD {
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&x).arg(&mut y).arg(&terms).arg(&n);
        // SAFETY: the arguments are those of the kernel, the buffers have n elements.
        unsafe { launch.launch(shape) }?;
    }
    announce(&json!({ "queued": FLOOD }))?;
    // SAFETY: ends the process at once; nothing of it runs any more.
    unsafe { _exit(0) }
}

/// Fills memory with a pattern, says so, and waits until standard input ends.
pub(crate) fn mark(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let pattern = vec![0xa5u8; 4 * MIB];
    let mut held = all_memory(&stream);
    for buffer in &mut held {
        stream.memcpy_htod(&pattern, buffer)?;
    }
    stream.synchronize()?;
    announce(&json!({ "marked": held.len() * 4 * MIB }))?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(json!({ "ended": true }))
}

/// Counts the bytes of fresh memory that are not zero.
pub(crate) fn inspect(gpu: &Gpu) -> anyhow::Result<Value> {
    let stream = gpu.context.default_stream();
    let held = all_memory(&stream);
    let mut dirty = 0usize;
    for buffer in &held {
        dirty += stream.clone_dtoh(buffer)?.iter().filter(|&&byte| byte != 0).count();
    }
    Ok(json!({ "inspected": held.len() * 4 * MIB, "dirty": dirty }))
}

/// As much memory as the driver gives, in pieces of 4 MiB, contents as they come.
fn all_memory(stream: &Arc<CudaStream>) -> Vec<CudaSlice<u8>> {
    // SAFETY: bytes of any value are valid; that the memory is not initialized is what the callers are about.
    std::iter::from_fn(|| unsafe { stream.alloc::<u8>(4 * MIB) }.ok()).collect()
}

fn announce(what: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{what}")?;
    out.flush()?;
    Ok(())
}

unsafe extern "C" {
    fn _exit(status: i32) -> !;
}
