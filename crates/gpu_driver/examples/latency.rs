//! Times the driver's fast paths on the software GPU: `cargo run --release -p gpu_driver --example latency`.
//!
//! Prints medians over rounds: what a launch costs the caller, and how long launch and wait take together.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{CodeImage, Command, ContextId, Gpu, ModuleId, QueueId, Request, RuntimeMemory, SlotId};
use gpu_driver::{ClientConfig, Driver};
use softgpu::{Config, SoftGpu};

const EMPTY: &[u8] = b".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
const ROUNDS: usize = 2000;
/// Launches in a row before a wait.
const BURST: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let device = SoftGpu::new(&Config { vram_bytes: 256 << 20, ..Config::default() })?;
    let driver = Driver::start(device)?;
    let client = driver.open(ClientConfig::default())?;
    let gpu: Arc<dyn Gpu> = client;
    let (context, queue, slot) = (ContextId(0), QueueId(0), SlotId(0));
    gpu.request(Request::SetAddressRange { lo: 0x7000_0000_0000, bytes: 1 << 30 })?;
    gpu.request(Request::CreateContext { id: context, runtime: RuntimeMemory::default() })?;
    gpu.request(Request::CreateQueue { id: queue, context, priority: 0 })?;
    gpu.request(Request::LoadModule { id: ModuleId(0), code: CodeImage::ptx(EMPTY.to_vec()), placed: vec![] })?;
    let launch = Command::Launch {
        module: ModuleId(0),
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &[],
    };
    let mut value = 0;
    let mut signal_and_wait = |commands: &mut Vec<Command<'_>>| -> Result<(), Box<dyn Error>> {
        value += 1;
        commands.push(Command::Signal { slot, value });
        gpu.submit(queue, commands)?;
        gpu.wait(context, slot, value, None)?;
        Ok(())
    };
    signal_and_wait(&mut vec![launch])?;

    let mut submits = Vec::new();
    for _ in 0..ROUNDS / 20 {
        for _ in 0..BURST {
            let start = Instant::now();
            gpu.submit(queue, &[launch])?;
            submits.push(start.elapsed());
        }
        signal_and_wait(&mut Vec::new())?;
    }
    report("submit of a launch", &mut submits);

    let mut bursts = Vec::new();
    for _ in 0..ROUNDS / 20 {
        let start = Instant::now();
        for _ in 0..BURST {
            gpu.submit(queue, &[launch])?;
        }
        signal_and_wait(&mut Vec::new())?;
        bursts.push(start.elapsed() / BURST);
    }
    report("launch in a burst, until done", &mut bursts);

    let mut round_trips = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        signal_and_wait(&mut vec![launch])?;
        round_trips.push(start.elapsed());
    }
    report("launch and wait", &mut round_trips);

    let mut signals = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        signal_and_wait(&mut Vec::new())?;
        signals.push(start.elapsed());
    }
    report("signal and wait", &mut signals);
    Ok(())
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{what:32} median {:>10.2?}  10 % {:>10.2?}  90 % {:>10.2?}", at(50), at(10), at(90));
}
