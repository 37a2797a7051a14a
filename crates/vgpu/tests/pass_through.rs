//! The driver's test suite in a guest that has the whole device, and what becomes of the device between guests.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod faulty;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use device_io::{DeviceBacking, VramOffset};
use gpu::MemoryKind;
use gpu_driver::{ClientConfig, Driver};
use gpu_spec::mmu::{PhysAddr, Rights};
use gpu_spec::regs::{self, vf};
use hostmem::Memfd;
use rogue::work::{TOUCH, classes, copy, launch};
use rogue::{FREE_VA, Lent, Port, Rogue, VRAM_VA};
use vfio_user::{Device, DmaMap};
use vgpu::PassThrough;

use crate::faulty::{Faults, Faulty};
use crate::suite::support::{BOUND, PTX, Tenant, eventually, kernel};

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

    /// The guest's side, and the thread that serves it until it leaves.
    pub(crate) fn serve(whole: &Arc<PassThrough>) -> (UnixStream, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Server::new(ours, ServerOptions::default());
        let served = Arc::clone(whole);
        let serving = std::thread::spawn(move || {
            server.serve(&*served);
        });
        (theirs, serving)
    }

    /// A guest that has it.
    pub(crate) fn guest(whole: &Arc<PassThrough>) -> (VfioUserGpu, JoinHandle<()>) {
        let (theirs, serving) = serve(whole);
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

/// A guest that writes by hand what a driver would.
fn by_hand(whole: &Arc<PassThrough>) -> (Rogue, JoinHandle<()>) {
    let (theirs, serving) = device::serve(whole);
    (Rogue::new(Port::over(theirs).unwrap()), serving)
}

#[test]
fn memory_that_was_unmapped_is_out_of_reach() {
    const BUS: u64 = 1 << 33;
    const PAGE: u64 = 4096;
    let whole = device::whole(64 * MIB, false);
    let (mut rogue, serving) = by_hand(&whole);
    for _ in 0..4 {
        // The maps around it stay.
        (0..3).for_each(|page| rogue.lend(BUS + page * PAGE, PAGE).unwrap());
        let mut space = rogue.space();
        space.map(&mut rogue, FREE_VA, 3 * PAGE, PhysAddr::system(BUS), Rights::default()).unwrap();
        let mut channels = [1, 2].map(|id| rogue.channel(&mut space, id));
        rogue.list(&[(1, &channels[..1]), (2, &channels[1..])]);
        let program = rogue.load(TOUCH, "touch");
        let endless = rogue.describe(program, 1, 32, &[FREE_VA + PAGE, 0]);
        rogue.submit(&mut channels[0], &[classes(), launch(endless)].concat());
        let of = |page: &Lent| page.memory.u32_at(0).load(Ordering::Relaxed);
        eventually("the kernel runs", || of(&rogue.lent[1]) != 0);
        let page = rogue.take_back(BUS + PAGE).unwrap();
        // It is somebody else's now.
        page.memory.fill(0, PAGE as usize, 0x5a);
        eventually("a fault of the kernel", || rogue.has_failed(1));
        let to = 20 * MIB;
        rogue.port.write_vram(to, &[0; 32]);
        rogue.lent[0].memory.fill(0, PAGE as usize, 0x77);
        rogue.submit(&mut channels[1], &[classes(), copy(VRAM_VA + to, FREE_VA, 16)].concat());
        eventually("a copy beside it", || rogue.word(to) == 0x7777_7777);
        rogue.submit(&mut channels[1], &copy(VRAM_VA + to + 16, FREE_VA + PAGE, 16));
        eventually("a fault of the copy", || rogue.has_failed(2));
        assert_eq!(rogue.word(to + 16), 0, "read after it was unmapped");
        let mut bytes = [0; PAGE as usize];
        page.memory.read(0, &mut bytes);
        assert_eq!(bytes, [0x5a; PAGE as usize], "written after it was unmapped");
        rogue.port.client.reset().unwrap();
        rogue.take_back(BUS).unwrap();
        rogue.take_back(BUS + 2 * PAGE).unwrap();
    }
    drop(rogue);
    serving.join().unwrap();
}

/// Devices that were switched on, one after another.
type Made = Arc<Mutex<Vec<Weak<Faulty>>>>;

/// A device with faults that is passed through.
fn counted(faults: &Arc<Faults>) -> (Arc<PassThrough>, Made) {
    let made = Made::default();
    let (faults, counting) = (Arc::clone(faults), Arc::clone(&made));
    let power = move || {
        let gpu = Faulty::new(16 * MIB, &faults);
        counting.lock().unwrap().push(Arc::downgrade(&gpu));
        Ok(gpu as Arc<dyn DeviceBacking>)
    };
    (PassThrough::new("guest", 16 * MIB, Box::new(power)).unwrap(), made)
}

/// Its threads would go on reaching the memory, as long as anybody has the device: who waits for its interrupts, above all.
#[test]
fn a_device_that_forgets_nothing_has_stopped_when_the_unmap_is_answered() {
    let faults = Arc::new(Faults::default());
    let (whole, made) = counted(&faults);
    let attended = Arc::clone(&whole);
    let attending = std::thread::spawn(move || attended.attend());
    let (mut rogue, serving) = by_hand(&whole);
    rogue.lend(1 << 33, 4096).unwrap();
    faults.forgets_not.store(true, Ordering::SeqCst);
    rogue.take_back(1 << 33).unwrap();
    assert!(made.lock().unwrap()[0].upgrade().is_none(), "the device is still there");
    assert_eq!(rogue.port.read32(regs::PMC_BOOT_0), u32::MAX);
    assert!(whole.ended().unwrap().contains("did not let go"));
    faults.forgets_not.store(false, Ordering::SeqCst);
    rogue.port.client.reset().unwrap();
    assert_eq!(rogue.port.read32(regs::PMC_BOOT_0), regs::BOOT_0_TU104, "another one");
    assert_eq!(whole.ended(), None);
    drop(rogue);
    serving.join().unwrap();
    whole.end();
    attending.join().unwrap();
}

#[test]
fn each_unmap_stops_a_device_that_did_not_stop_before() {
    let faults = Arc::new(Faults::default());
    let (whole, made) = counted(&faults);
    let (mut rogue, serving) = by_hand(&whole);
    let pages = [0, 1].map(|page| (1 << 33) + page * 4096);
    pages.iter().for_each(|at| rogue.lend(*at, 4096).unwrap());
    let held = made.lock().unwrap()[0].upgrade().unwrap();
    faults.forgets_not.store(true, Ordering::SeqCst);
    rogue.take_back(pages[0]).unwrap();
    assert_eq!(rogue.port.read32(regs::PMC_BOOT_0), u32::MAX, "it is switched off");
    drop(held);
    assert!(made.lock().unwrap()[0].upgrade().is_some(), "and has not stopped");
    rogue.take_back(pages[1]).unwrap();
    assert!(made.lock().unwrap()[0].upgrade().is_none(), "the device is still there");
    drop(rogue);
    serving.join().unwrap();
}

#[test]
fn nothing_is_switched_on_beside_a_device_that_goes_on() {
    let (whole, made) = counted(&Arc::default());
    let (rogue, serving) = by_hand(&whole);
    let held = made.lock().unwrap()[0].upgrade().unwrap();
    rogue.port.client.reset().unwrap();
    assert_eq!((made.lock().unwrap().len(), rogue.port.read32(regs::PMC_BOOT_0)), (1, u32::MAX));
    drop(rogue);
    serving.join().unwrap();
    assert_eq!(made.lock().unwrap().len(), 1, "nor for the next guest");
    assert!(whole.ended().unwrap().contains("cannot be switched on again"));
    drop(held);
    let (next, serving) = by_hand(&whole);
    assert_eq!(next.port.read32(regs::PMC_BOOT_0), u32::MAX);
    next.port.client.reset().unwrap();
    assert_eq!((made.lock().unwrap().len(), next.port.read32(regs::PMC_BOOT_0)), (2, regs::BOOT_0_TU104));
    drop(next);
    serving.join().unwrap();
}

/// Whoever takes more locks than one takes them in one order.
#[test]
fn maps_and_resets_at_once_get_on() {
    let whole = device::whole(16 * MIB, false);
    let file = Memfd::create("rogue", 4096).unwrap();
    let (done, through) = std::sync::mpsc::channel();
    for reset in [true, false] {
        let (whole, done, file) = (Arc::clone(&whole), done.clone(), file.try_clone().unwrap());
        std::thread::spawn(move || {
            for round in 0..if reset { 50 } else { 5000 } {
                if reset {
                    Device::reset(&*whole);
                } else {
                    let shown = Some((file.try_clone().unwrap().into_fd(), 0));
                    let map = DmaMap { address: 1 << 33, bytes: 4096, file: shown, readable: true, writable: true };
                    Device::map(&*whole, map).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
                    Device::unmap(&*whole, 1 << 33, 4096);
                }
            }
            done.send(()).unwrap();
        });
    }
    (0..2).for_each(|_| through.recv_timeout(2 * BOUND).expect("one waits for the other"));
}
