//! Times the driver's fast paths in guests, beside the same on the device itself:
//! `cargo run --release -p vgpu --example latency [SCHEME]`, where a scheme is `Pv`, `Fv` or `FvNaive`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement is printed, or fails")]

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{AllocId, CodeImage, Command, ContextId, Gpu, MemoryKind, ModuleId, QueueId, Request, RuntimeMemory, SlotId};
use gpu_driver::{ClientConfig, Driver};
use vgpu::Scheme;

const EMPTY: &[u8] = b".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
const ROUNDS: u32 = 1000;
/// Launches in a row before a wait.
const BURST: u32 = 64;
const VRAM: u64 = 256 << 20;

fn main() {
    let only = std::env::args().nth(1);
    for _ in 0..3 {
        measure("native", || guest::host(VRAM, true));
        for scheme in [Scheme::Pv, Scheme::Fv, Scheme::FvNaive] {
            if only.as_ref().is_some_and(|only| *only != format!("{scheme:?}")) {
                continue;
            }
            measure(&format!("{scheme:?}"), || Driver::start(guest::gpu(scheme, VRAM, true)).unwrap());
        }
    }
}

fn measure(name: &str, driver: impl FnOnce() -> Arc<Driver>) {
    let start = Instant::now();
    let driver = driver();
    let gpu: Arc<dyn Gpu> = driver.open(ClientConfig::default()).unwrap();
    let (context, queue, slot) = (ContextId(0), QueueId(0), SlotId(0));
    gpu.request(Request::SetAddressRange { lo: 0x7000_0000_0000, bytes: 1 << 30 }).unwrap();
    gpu.request(Request::CreateContext { id: context, runtime: RuntimeMemory::default() }).unwrap();
    gpu.request(Request::CreateQueue { id: queue, context, priority: 0 }).unwrap();
    let code = CodeImage::ptx(EMPTY.to_vec());
    gpu.request(Request::LoadModule { id: ModuleId(0), code, placed: vec![] }).unwrap();
    let params = &[];
    let (module, kernel, grid, block) = (ModuleId(0), 0, [1; 3], [1; 3]);
    let launch =
        Command::Launch { module, kernel, grid, block, shared_bytes: 0, cooperative: false, cluster: [1; 3], params };
    let mut value = 0;
    let mut signal_and_wait = |commands: &mut Vec<Command<'_>>| {
        value += 1;
        commands.push(Command::Signal { slot, value });
        gpu.submit(queue, commands).unwrap();
        gpu.wait(context, slot, value, None).unwrap();
    };
    signal_and_wait(&mut vec![launch]);
    let init = start.elapsed();
    let each = |rounds: u32, mut once: Box<dyn FnMut() + '_>| -> f64 {
        let mut times: Vec<Duration> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                once();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let burst = each(
        ROUNDS / 20,
        Box::new(|| {
            (0..BURST).for_each(|_| gpu.submit(queue, &[launch]).unwrap());
            signal_and_wait(&mut Vec::new());
        }),
    ) / f64::from(BURST);
    let wait = each(ROUNDS, Box::new(|| signal_and_wait(&mut vec![launch])));
    let alloc = each(
        ROUNDS / 5,
        Box::new(|| {
            let id = AllocId(1);
            gpu.request(Request::Alloc { id, bytes: 1 << 20, kind: MemoryKind::Vram }).unwrap();
            gpu.request(Request::Free { id }).unwrap();
        }),
    );
    println!(
        "{name:<8} start {:7.2} ms   launch {burst:6.2} us   launch + wait {wait:6.2} us   alloc + free {alloc:7.2} us",
        init.as_secs_f64() * 1e3
    );
}
