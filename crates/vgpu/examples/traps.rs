//! Which registers a driver touches in a guest, in each step of a small program, how often, and how long the step takes:
//! `cargo run --release -p vgpu --example traps [fv-naive|fv|pv]`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement is printed, or fails")]

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu::{AllocId, CodeImage, Command, ContextId, Gpu, MemoryKind, ModuleId, QueueId, Request, RuntimeMemory, SlotId};
use gpu_driver::{ClientConfig, Driver};
use hostmem::{Mapping, Memfd};
use vgpu::Scheme;

const EMPTY: &[u8] = b".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
const VRAM: u64 = 256 << 20;

/// Reads and writes of a register, or of VRAM.
type Tally = BTreeMap<String, [u64; 2]>;

/// A device of which it is known who touches it where.
struct Watched {
    inner: Arc<dyn DeviceBacking>,
    tally: Mutex<Tally>,
}

impl Watched {
    fn count(&self, what: String, written: bool) {
        self.tally.lock().unwrap().entry(what).or_default()[usize::from(written)] += 1;
    }

    fn vram(&self, written: bool) {
        if self.inner.vram_mapping().is_none() {
            self.count("VRAM".into(), written);
        }
    }

    fn step(&self, name: &str, start: Instant) {
        let tally = std::mem::take(&mut *self.tally.lock().unwrap());
        let total: u64 = tally.values().flatten().sum();
        println!("{name}: {total} accesses in {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        let mut lines: Vec<_> = tally.into_iter().collect();
        lines.sort_by_key(|(_, [reads, writes])| std::cmp::Reverse(reads + writes));
        for (what, [reads, writes]) in lines.iter().take(12) {
            println!("    {what:<10} {reads:>6} reads {writes:>6} writes");
        }
    }
}

impl DeviceBacking for Watched {
    fn read32(&self, bar0_offset: u32) -> u32 {
        self.count(format!("{bar0_offset:#08x}"), false);
        self.inner.read32(bar0_offset)
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        self.count(format!("{bar0_offset:#08x}"), true);
        self.inner.write32(bar0_offset, value);
    }

    fn reset(&self) -> io::Result<()> {
        self.inner.reset()
    }

    fn vram_bytes(&self) -> u64 {
        self.inner.vram_bytes()
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        self.inner.vram_mapping()
    }

    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        self.vram(false);
        self.inner.read_vram(offset, out);
    }

    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        self.vram(true);
        self.inner.write_vram(offset, data);
    }

    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        self.vram(true);
        self.inner.fill_vram(offset, bytes, value);
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.inner.discard_vram(offset, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.inner.alloc_dma(bytes)
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        self.inner.map_dma(file)
    }

    fn free_dma(&self, bus: BusAddr) {
        self.inner.free_dma(bus);
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        self.inner.wait_interrupt(timeout)
    }
}

fn main() {
    let scheme = match std::env::args().nth(1).as_deref() {
        Some("fv-naive") => Scheme::FvNaive,
        Some("pv") => Scheme::Pv,
        _ => Scheme::Fv,
    };
    let watched = Arc::new(Watched { inner: guest::gpu(scheme, VRAM, true), tally: Mutex::default() });
    let mut start = Instant::now();
    let mut step = |name: &str| {
        watched.step(name, start);
        start = Instant::now();
    };
    let driver = Driver::start(Arc::clone(&watched) as Arc<dyn DeviceBacking>).unwrap();
    step("the driver starts");
    let gpu: Arc<dyn Gpu> = driver.open(ClientConfig::default()).unwrap();
    let (context, queue, slot) = (ContextId(0), QueueId(0), SlotId(0));
    gpu.request(Request::SetAddressRange { lo: 0x7000_0000_0000, bytes: 1 << 30 }).unwrap();
    gpu.request(Request::CreateContext { id: context, runtime: RuntimeMemory::default() }).unwrap();
    step("a context");
    gpu.request(Request::CreateQueue { id: queue, context, priority: 0 }).unwrap();
    step("a queue");
    let code = CodeImage::ptx(EMPTY.to_vec());
    gpu.request(Request::LoadModule { id: ModuleId(0), code, placed: vec![] }).unwrap();
    step("a module");
    let (module, kernel, grid, block) = (ModuleId(0), 0, [1; 3], [1; 3]);
    let launch = Command::Launch {
        module,
        kernel,
        grid,
        block,
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &[],
    };
    for value in 1..=2 {
        gpu.submit(queue, &[launch, Command::Signal { slot, value }]).unwrap();
        gpu.wait(context, slot, value, None).unwrap();
        step("a launch, waited for");
    }
    let id = AllocId(1);
    gpu.request(Request::Alloc { id, bytes: 16 << 20, kind: MemoryKind::Vram }).unwrap();
    step("16 MiB allocated");
    gpu.request(Request::Free { id }).unwrap();
    step("16 MiB freed");
    gpu.request(Request::DestroyContext { id: context }).unwrap();
    step("the context ends");
    drop(gpu);
    drop(driver);
    step("the driver ends");
}
