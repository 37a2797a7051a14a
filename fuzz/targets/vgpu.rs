//! Arbitrary bytes as what a guest does to its virtual GPU: registers, VRAM, DMA maps. When it has gone, the device is as it
//! was before.
#![no_main]

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use gpu_driver::{Driver, HostCost};
use gpu_spec::mmu::{Pde, PhysAddr, Pte, Rights};
use gpu_spec::ramfc::{self, InstanceBlock};
use gpu_spec::regs::{self, accounting, budget, vf};
use gpu_spec::runlist::RunlistEntry;
use hostmem::Memfd;
use libfuzzer_sys::fuzz_target;
use softgpu::{Config, SoftGpu};
use vfio_user::{Device, DmaMap, pci};
use vgpu::{Port, Scheme, Trap, Vgpu};
use zerocopy::IntoBytes;

const VRAM: u64 = 4 << 20;
const LO: u64 = 1 << 40;

/// Where registers are.
const PAGES: [u32; 12] = [
    0,
    0x1700,
    0x2000,
    regs::RUNLIST_BASE_LO,
    regs::SCHED_DISABLE,
    regs::PTIMER_TIME_0,
    0x70_0000,
    regs::PCCSR_INST,
    regs::USERMODE + 0x80,
    regs::VF_BASE + vf::MAILBOX,
    accounting::BASE,
    budget::BASE,
];

fn driver() -> &'static Arc<Driver> {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let config = Config { vram_bytes: 64 << 20, workers: 1, ..Config::default() };
        Driver::start(SoftGpu::new(&config).expect("a GPU")).expect("a driver")
    })
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, count: usize) -> u64 {
        let (now, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        now.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// A page of VRAM, or a little beyond.
    fn page(&mut self) -> u64 {
        (self.take(2) << 12) % (2 * VRAM)
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let driver = driver();
    let before = driver.counts();
    let ways = [
        (Scheme::Fv, Trap::Announced),
        (Scheme::Pv, Trap::Announced),
        (Scheme::FvNaive, Trap::Announced),
        (Scheme::Fv, Trap::Bar),
        (Scheme::Fv, Trap::Snapshot),
    ];
    let (scheme, trap) = ways[bytes.take(1) as usize % ways.len()];
    let limits = HostCost { bytes: 1 << 30, ..HostCost::default() };
    let config = vgpu::Config {
        name: "fuzz".into(),
        vram_bytes: VRAM,
        scheme,
        watching: trap.into(),
        budget: driver.budget(limits).expect("a budget"),
    };
    let vgpu = Vgpu::new(driver, config).expect("a virtual GPU");
    let port = Port::new(Arc::clone(&vgpu));
    std::thread::scope(|scope| {
        scope.spawn(|| vgpu.attend());
        guest(&port, &mut bytes);
        vgpu.end();
    });
    port.gone();
    assert_eq!(vgpu.config().budget.used().files, 0, "all files are let go");
    drop((port, vgpu));
    assert!(!driver.is_lost());
    assert_eq!(driver.counts(), before);
});

fn guest(port: &Port, bytes: &mut Bytes<'_>) {
    let mut maps: VecDeque<(u64, u64)> = VecDeque::new();
    let write = |at: u64, data: &[u8]| {
        let _ = port.write(pci::BAR1, at.min(VRAM - 4096), data);
    };
    let register = |at: u32, value: u32| {
        let _ = port.write(pci::BAR0, at.into(), &value.to_le_bytes());
    };
    for _ in 0..256 {
        if bytes.0.is_empty() {
            return;
        }
        match bytes.take(1) % 12 {
            0..3 => {
                let page = PAGES[bytes.take(1) as usize % PAGES.len()];
                register(page + bytes.take(1) as u32 * 4, bytes.take(4) as u32);
            }
            3 => {
                let region = bytes.take(1) as u32 % 9;
                let size = [16 << 20, VRAM, 0, 0, 8192, 0, 0, 256, 0][region as usize];
                let mut out = vec![0; 1 + bytes.take(1) as usize];
                let at = bytes.take(3);
                if at + out.len() as u64 <= size {
                    let _ = port.read(region, at, &mut out);
                    let _ = port.write(region, at, &out);
                }
            }
            4 | 5 => {
                let (at, index, kind, to) = (bytes.page(), bytes.take(1) * 8, bytes.take(1), bytes.page());
                let to = if kind & 1 == 0 { PhysAddr::vram(to) } else { PhysAddr::system((1 << 33) + to) };
                let entry = match kind >> 1 & 3 {
                    0 => Pde::to_table(to).0,
                    1 | 2 => Pte::to_page(to, Rights { read_only: kind & 8 != 0, ..Rights::default() }).0,
                    _ => bytes.take(8),
                };
                write(at + index, &entry.to_le_bytes());
            }
            6 => {
                let (at, bytes) = ((1 << 33) + bytes.page(), (bytes.take(1) + 1) << 12);
                let overlaps = maps.iter().any(|(other, size)| at < other + size && *other < at + bytes);
                let file = Memfd::create("fuzz", bytes).expect("a file").into_fd();
                let map =
                    DmaMap { address: at, bytes, readable: true, writable: at & 4096 == 0, file: Some((file, 0)) };
                // The server looks for this.
                if !overlaps && port.map(map).is_ok() {
                    maps.push_back((at, bytes));
                }
            }
            7 => maps.pop_front().into_iter().for_each(|(at, bytes)| port.unmap(at, bytes)),
            8 => {
                let (id, at) = (bytes.take(1) as u32 % 8, bytes.page());
                let mut block = InstanceBlock::default();
                block.words[ramfc::SIGNATURE] = ramfc::SIGNATURE_VALUE;
                block.set_page_directory(PhysAddr::vram(bytes.page()));
                block.set_userd(PhysAddr::vram(bytes.page()));
                block.set_gpfifo(LO + bytes.page(), bytes.take(1) as u32 % 24);
                block.set_window(LO, 1 << 30);
                write(at, block.as_bytes());
                register(regs::pccsr_inst(id), regs::INST_PTR.of((at >> 12) as u32) | regs::INST_BIND.of(1));
                register(regs::pccsr_channel(id), regs::CHANNEL_ENABLE_SET.of(1));
            }
            9 => {
                let (at, count) = (bytes.page().min(VRAM - 4096), bytes.take(1) as u32 % 32);
                for index in 0..count {
                    let id = bytes.take(1) as u32;
                    let here = PhysAddr::vram(at);
                    let entry = if id & 0x80 == 0 {
                        RunlistEntry::channel(id & 15, here, here)
                    } else {
                        RunlistEntry::tsg(id & 15, 1, 1000)
                    };
                    write(at + u64::from(index) * RunlistEntry::BYTES, entry.as_bytes());
                }
                register(regs::RUNLIST_BASE_LO, at as u32);
                register(regs::RUNLIST_BASE_HI, 0);
                register(regs::RUNLIST_SUBMIT, count);
            }
            10 => register(regs::USERMODE + regs::USERMODE_DOORBELL, bytes.take(1) as u32 % 16),
            _ => port.reset(),
        }
    }
}
