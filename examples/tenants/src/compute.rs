//! Programs that keep the GPU busy and check what it computes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use serde_json::{Value, json};

use crate::Gpu;

/// Kernels between two events; two such batches are queued at any time, so that the GPU never waits for us.
const BATCH: u64 = 4;

/// Calls `launch` until `time` is over, never more than two batches ahead of the GPU; returns how many kernels ran.
fn saturate(
    stream: &Arc<CudaStream>,
    time: Duration,
    mut launch: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let end = Instant::now() + time;
    let mut kernels = 0;
    let mut queued: VecDeque<CudaEvent> = VecDeque::new();
    while Instant::now() < end {
        for _ in 0..BATCH {
            launch(kernels)?;
            kernels += 1;
        }
        queued.push_back(stream.record_event(None)?);
        if queued.len() > 2
            && let Some(event) = queued.pop_front()
        {
            event.synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(kernels)
}

fn report(kernels: u64, verified: bool) -> Value {
    json!({ "kernels": kernels, "verified": verified })
}

/// Small whole numbers, so that sums are exact whatever their order.
fn whole_numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as f32 - 8.0
        })
        .collect()
}

/// Products of matrices: shared memory and barriers.
pub(crate) fn matrices(gpu: &Gpu, time: Duration) -> anyhow::Result<Value> {
    const N: usize = 256;
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("matrix_mul")?;
    let (a, b) = (whole_numbers(N * N, 1), whole_numbers(N * N, 2));
    let (device_a, device_b) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut device_c = stream.alloc_zeros::<f32>(N * N)?;
    let shape =
        LaunchConfig { grid_dim: (N as u32 / 16, N as u32 / 16, 1), block_dim: (16, 16, 1), shared_mem_bytes: 0 };
    let n = N as i32;
    let kernels = saturate(&stream, time, |_| {
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&device_a).arg(&device_b).arg(&mut device_c).arg(&n);
        // SAFETY: the arguments are those of the kernel, the buffers have N * N elements.
        unsafe { launch.launch(shape) }?;
        Ok(())
    })?;
    let c = stream.clone_dtoh(&device_c)?;
    let right = (0..N * N).all(|at| {
        let (row, column) = (at / N, at % N);
        let want: f32 = (0..N).map(|k| a[row * N + k] * b[k * N + column]).sum();
        c[at] == want
    });
    Ok(report(kernels, right))
}

/// Polynomials: arithmetic alone.
pub(crate) fn polynomials(gpu: &Gpu, time: Duration) -> anyhow::Result<Value> {
    const N: usize = 100_000;
    const TERMS: i32 = 100;
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("polynomial")?;
    let x: Vec<f32> = (0..N).map(|i| i as f32 / N as f32 * 1.5 - 0.75).collect();
    let device_x = stream.clone_htod(&x)?;
    let mut device_y = stream.alloc_zeros::<f32>(N)?;
    let (shape, n) = (LaunchConfig::for_num_elems(N as u32), N as i32);
    let kernels = saturate(&stream, time, |_| {
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&device_x).arg(&mut device_y).arg(&TERMS).arg(&n);
        // SAFETY: the arguments are those of the kernel, the buffers have N elements.
        unsafe { launch.launch(shape) }?;
        Ok(())
    })?;
    let y = stream.clone_dtoh(&device_y)?;
    let right = x.iter().zip(&y).all(|(&x, &y)| {
        let want = (1..=TERMS).rev().fold(0.0f64, |value, k| value * f64::from(x) + 1.0 / f64::from(k));
        (f64::from(y) - want).abs() <= 1e-5 * want.abs().max(1.0)
    });
    Ok(report(kernels, right))
}

/// Conway's game of life: bytes, neighbours, many dependent launches.
pub(crate) fn life(gpu: &Gpu, time: Duration) -> anyhow::Result<Value> {
    const WIDTH: usize = 384;
    const HEIGHT: usize = 256;
    let stream = gpu.context.default_stream();
    let kernel = gpu.kernel("life")?;
    let start: Vec<u8> = whole_numbers(WIDTH * HEIGHT, 3).iter().map(|&x| u8::from(x > 0.0)).collect();
    let mut worlds = [stream.clone_htod(&start)?, stream.alloc_zeros::<u8>(WIDTH * HEIGHT)?];
    let shape = LaunchConfig {
        grid_dim: (WIDTH as u32 / 32, HEIGHT as u32 / 8, 1),
        block_dim: (32, 8, 1),
        shared_mem_bytes: 0,
    };
    let (width, height) = (WIDTH as i32, HEIGHT as i32);
    let step = |worlds: &mut [CudaSlice<u8>; 2], generation: u64| -> anyhow::Result<()> {
        let [a, b] = worlds;
        let (input, output) = if generation.is_multiple_of(2) { (&*a, b) } else { (&*b, a) };
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(input).arg(output).arg(&width).arg(&height);
        // SAFETY: the arguments are those of the kernel, the buffers have WIDTH * HEIGHT elements.
        unsafe { launch.launch(shape) }?;
        Ok(())
    };
    let kernels = saturate(&stream, time, |generation| step(&mut worlds, generation))?;
    // From a known state, some generations are checked cell by cell.
    const CHECKED: u64 = 16;
    stream.memcpy_htod(&start, &mut worlds[0])?;
    let mut want = start;
    for generation in 0..CHECKED {
        step(&mut worlds, generation)?;
        want = next_generation(&want, WIDTH, HEIGHT);
    }
    let got = stream.clone_dtoh(&worlds[0])?;
    Ok(report(kernels + CHECKED, got == want))
}

fn next_generation(world: &[u8], width: usize, height: usize) -> Vec<u8> {
    let alive = |x: usize, y: usize| u32::from(world[y % height * width + x % width]);
    (0..width * height)
        .map(|at| {
            let (x, y) = (at % width + width, at / width + height);
            let around = alive(x - 1, y - 1)
                + alive(x, y - 1)
                + alive(x + 1, y - 1)
                + alive(x - 1, y)
                + alive(x + 1, y)
                + alive(x - 1, y + 1)
                + alive(x, y + 1)
                + alive(x + 1, y + 1);
            u8::from(around == 3 || around == 2 && world[at] == 1)
        })
        .collect()
}
