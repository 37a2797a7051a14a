//! What a GPU over a socket does besides what the driver's suite sees.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, VramOffset};
use gpu::{Command, ContextId, Gpu, GpuError, QueueId, Request, RuntimeMemory, SlotId};
use gpu_driver::{ClientConfig, Driver};
use gpu_spec::regs::{self, vector, vf};
use hostmem::PAGE;
use pass_through::{BOUND, serve};
use pci_gpu::{OpenError, VfioUserGpu};

/// Not a power of two: the aperture is larger.
const VRAM: u64 = 24 << 20;

#[test]
fn vram_is_reached_mapped_and_by_messages() {
    for mapped in [true, false] {
        let (gpu, served) = serve(VRAM, false, mapped);
        assert_eq!((gpu.vram_bytes(), gpu.vram_mapping().is_some()), (VRAM, mapped));
        let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 253) as u8).collect();
        let mut back = vec![0; data.len()];
        gpu.write_vram(VramOffset(5), &data);
        gpu.fill_vram(VramOffset(1 << 20), 600_000, 0xaa);
        gpu.read_vram(VramOffset(5), &mut back);
        let mut expected = data.clone();
        expected[(1 << 20) - 5..(1 << 20) - 5 + 600_000].fill(0xaa);
        assert!(back == expected, "mapped: {mapped}");
        // The device's own view; and of several messages, each as long as it may be.
        served.soft_gpu().vram().read(5, &mut back);
        assert!(back == expected, "mapped: {mapped}");
        let messages = served.counts().vram.load(Ordering::Relaxed);
        assert!(if mapped { messages == 0 } else { (8..=12).contains(&messages) }, "{messages}");
        // There is none behind its end, though the aperture goes on.
        let mut beyond = [0; 8];
        gpu.write_vram(VramOffset(VRAM - 4), &[1; 8]);
        gpu.fill_vram(VramOffset(VRAM), 1, 1);
        gpu.read_vram(VramOffset(VRAM - 4), &mut beyond);
        assert_eq!(beyond, [0xff; 8]);
        // What can be given back is zero then.
        let discarded = gpu.discard_vram(VramOffset(0), 1 << 20);
        assert_eq!(discarded.is_ok(), mapped, "{discarded:?}");
        let mut start = [9; 8];
        gpu.read_vram(VramOffset(8), &mut start);
        assert_eq!(start == [0; 8], mapped);
        assert!(gpu.discard_vram(VramOffset(VRAM - PAGE), 2 * PAGE).is_err());
    }
}

#[test]
fn bus_addresses_are_used_again_when_they_are_free() {
    let (gpu, _served) = serve(VRAM, false, false);
    let first = gpu.alloc_dma(3 * PAGE).unwrap();
    let second = gpu.alloc_dma(5 << 20).unwrap();
    assert_eq!((first.bus(), second.bus()), (BusAddr(4 << 30), BusAddr((4 << 30) + (2 << 20))));
    assert!(!first.is_pinned(), "bus addresses name the file");
    gpu.free_dma(first.bus());
    gpu.free_dma(first.bus());
    gpu.free_dma(BusAddr(PAGE));
    assert_eq!(gpu.alloc_dma(PAGE).unwrap().bus(), first.bus());
    gpu.free_dma(second.bus());
    assert_eq!(gpu.alloc_dma(PAGE).unwrap().bus(), second.bus());
}

#[test]
fn doorbells_are_posted_in_order() {
    let (gpu, served) = serve(VRAM, false, false);
    let base = |i: u32| regs::RUNLIST_BASE_LO + (i % 8) * regs::RUNLIST_STRIDE;
    let (reads, writes) =
        (served.counts().reads.load(Ordering::Relaxed), served.counts().writes.load(Ordering::Relaxed));
    for i in 0..1000 {
        gpu.write32(base(i), i);
    }
    // A read comes after all of them.
    assert_eq!((0..8).map(|i| gpu.read32(base(i))).collect::<Vec<_>>(), (992..1000).collect::<Vec<_>>());
    assert_eq!(served.counts().writes.load(Ordering::Relaxed), writes + 1000);
    assert_eq!(served.counts().reads.load(Ordering::Relaxed), reads + 8);
}

#[test]
fn interrupts_come_as_messages() {
    let (gpu, _served) = serve(VRAM, false, true);
    assert!(!gpu.wait_interrupt(Duration::from_millis(5)));
    let at = |offset| regs::VF_BASE + offset;
    let (leaf, bit) = (vector::FAULT / 32, 1 << (vector::FAULT % 32));
    gpu.write32(at(vf::INTR_LEAF_EN_SET + leaf * 4), bit);
    gpu.write32(at(vf::INTR_TOP_EN_SET), 1 << (leaf / 2));
    for _ in 0..3 {
        gpu.write32(at(vf::INTR_LEAF_TRIGGER), vector::FAULT);
        assert!(gpu.wait_interrupt(BOUND));
        gpu.write32(at(vf::INTR_LEAF + leaf * 4), bit);
        assert_eq!(gpu.read32(at(vf::INTR_TOP)), 0);
        // The line may have been seen up once more before that.
        while gpu.wait_interrupt(Duration::from_millis(50)) {}
    }
}

#[test]
fn a_server_that_is_gone_reads_as_ones_and_ends_all_waits() {
    for mapped in [true, false] {
        let (gpu, served) = serve(64 << 20, false, mapped);
        let gpu = Arc::new(gpu);
        let driver = Driver::start(Arc::clone(&gpu) as Arc<dyn DeviceBacking>).unwrap();
        let client = driver.open(ClientConfig { name: "guest".into(), ..ClientConfig::default() }).unwrap();
        let (context, queue) = (ContextId(0), QueueId(0));
        for request in [
            Request::SetAddressRange { lo: 0x7000_0000_0000, bytes: 1 << 30 },
            Request::CreateContext { id: context, runtime: RuntimeMemory::default() },
            Request::CreateQueue { id: queue, context, priority: 0 },
        ] {
            client.request(request).unwrap();
        }
        client.submit(queue, &[Command::Signal { slot: SlotId(1), value: 1 }]).unwrap();
        client.wait(context, SlotId(1), 1, Some(BOUND)).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.wait(context, SlotId(2), 1, None));
            std::thread::sleep(Duration::from_millis(20));
            served.stop();
            assert!(matches!(waiter.join().unwrap(), Err(GpuError::Lost { .. })));
        });
        assert!(driver.is_lost());
        assert_eq!(gpu.read32(regs::PMC_BOOT_0), u32::MAX);
        gpu.write32(regs::PMC_BOOT_0, 1);
        let start = Instant::now();
        assert!(!gpu.wait_interrupt(Duration::from_millis(5)));
        assert!(start.elapsed() < BOUND);
        let mut bytes = [0; 4];
        gpu.read_vram(VramOffset(0), &mut bytes);
        assert_eq!(bytes == [0xff; 4], !mapped, "VRAM that is mapped is memory");
        assert!(gpu.alloc_dma(PAGE).is_err() && gpu.reset().is_err());
        let asked = client.request(Request::CreateQueue { id: QueueId(1), context, priority: 0 });
        assert!(asked.is_err(), "{asked:?}");
    }
}

#[test]
fn where_nobody_listens_there_is_no_gpu() {
    let error = VfioUserGpu::connect(Path::new("/nonexistent/gpu.sock")).unwrap_err();
    assert!(matches!(error, OpenError::Connect { .. }));
    assert_eq!(error.to_string(), "no virtual GPU answers at /nonexistent/gpu.sock");
}
