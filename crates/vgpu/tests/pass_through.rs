//! The driver's test suite in a guest that has the whole device, and what becomes of the device between guests.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_io::{DeviceBacking, VramOffset};
use gpu::MemoryKind;
use gpu_driver::{ClientConfig, Driver};
use gpu_spec::regs::{self, vf};

use crate::suite::support::{PTX, Tenant, kernel};

mod device {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use device_io::DeviceBacking;
    use pci_gpu::VfioUserGpu;
    use softgpu::{Config, SoftGpu};
    use vfio_user::{Server, ServerOptions};
    use vgpu::PassThrough;

    /// A device that is passed through.
    pub(crate) fn whole(vram_bytes: u64, lend: bool) -> Arc<PassThrough> {
        let config = Config { vram_bytes, workers: 2, lend, ..Config::default() };
        let power = move || Ok(SoftGpu::new(&config)? as Arc<dyn DeviceBacking>);
        PassThrough::new("guest", vram_bytes, Box::new(power)).unwrap()
    }

    /// A guest that has it, and the thread that serves it until it leaves.
    pub(crate) fn guest(whole: &Arc<PassThrough>) -> (VfioUserGpu, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Server::new(ours, ServerOptions::default());
        let served = Arc::clone(whole);
        let serving = std::thread::spawn(move || {
            server.serve(&*served);
        });
        (VfioUserGpu::over(theirs).unwrap(), serving)
    }

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        let whole = whole(vram_bytes, lend);
        let (gpu, serving) = guest(&whole);
        let attended = Arc::clone(&whole);
        std::thread::spawn(move || attended.attend());
        std::thread::spawn(move || {
            serving.join().unwrap();
            whole.end();
        });
        Arc::new(gpu)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;

const MIB: u64 = 1 << 20;

fn byte(gpu: &dyn DeviceBacking, at: u64) -> u8 {
    let mut byte = [0xee];
    gpu.read_vram(VramOffset(at), &mut byte);
    byte[0]
}

#[test]
fn guests_find_nothing_of_each_other() {
    let whole = device::whole(64 * MIB, false);
    let attended = Arc::clone(&whole);
    let attending = std::thread::spawn(move || attended.attend());
    let mut kept = Vec::new();
    for round in 0..3 {
        let (gpu, serving) = device::guest(&whole);
        let gpu: Arc<dyn DeviceBacking> = Arc::new(gpu);
        assert_eq!(gpu.vram_bytes(), 64 * MIB, "all that there is");
        for at in [0, 7 * MIB, 64 * MIB - 1] {
            assert_eq!(byte(&*gpu, at), 0, "round {round}, {at:#x}");
        }
        // A register that remembers, and a vector that is enabled.
        let scratch = regs::VF_BASE + vf::PAGE_FAULT_CTRL;
        assert_eq!(gpu.read32(scratch), 0, "round {round}");
        gpu.write32(scratch, 5);
        assert_eq!(gpu.read32(scratch), 5);
        let driver = Driver::start(Arc::clone(&gpu)).unwrap();
        assert_eq!(gpu.read32(scratch), 0, "the driver's start is a reset");
        let tenant = Tenant::new(&driver, ClientConfig::default());
        tenant.load(0, PTX);
        let host = tenant.try_alloc(4096, MemoryKind::Host).unwrap().0;
        tenant.launch(0, kernel::STORE, 1, 1, &[host.0, 0x1234_5678]).unwrap();
        tenant.sync(0);
        assert_eq!(tenant.read_u32(host, 1), [0x1234_5678], "the guest's own memory");
        gpu.write_vram(VramOffset(7 * MIB), &[round + 1; 64]);
        // What the last guest has kept shows it nothing, and shows nobody anything.
        kept.push(Arc::clone(gpu.vram_mapping().unwrap()));
        for old in kept.iter().rev().skip(1) {
            assert_eq!(old.u32_at(7 << 20).load(Ordering::Relaxed), 0);
            old.fill(0, 4096, 0x77);
        }
        assert_eq!(byte(&*gpu, 7 * MIB), round + 1);
        drop((tenant, driver));
        assert_eq!(byte(&*gpu, 7 * MIB), round + 1, "it is the guest's until it leaves");
        gpu.reset().unwrap();
        assert_eq!((byte(&*gpu, 7 * MIB), byte(&*gpu, 0)), (0, 0));
        drop(gpu);
        serving.join().unwrap();
        for old in &kept {
            old.fill(7 << 20, 64, 0);
        }
    }
    whole.end();
    attending.join().unwrap();
}

#[test]
fn memory_that_was_unmapped_is_out_of_reach() {
    let whole = device::whole(64 * MIB, false);
    let (gpu, serving) = device::guest(&whole);
    let pages: Vec<_> = (0..3).map(|_| gpu.alloc_dma(4096).unwrap()).collect();
    let at = pages[1].bus();
    gpu.free_dma(at);
    // Its address is another's now; the maps around it stay, over a reset as well.
    gpu.reset().unwrap();
    let again = gpu.alloc_dma(4096).unwrap();
    assert_eq!(again.bus(), at);
    gpu.free_dma(pages[0].bus());
    gpu.free_dma(again.bus());
    drop(gpu);
    serving.join().unwrap();
}
