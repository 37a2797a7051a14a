//! How a device notices what is stored into its VRAM.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;
mod traps;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_io::{DeviceBacking, VramOffset};
use gpu_driver::{Driver, HostCost};
use hostmem::PAGE;
use pass_through::{Asks, serve_asking};
use pci_gpu::VfioUserGpu;
use serde_json::json;
use softgpu::{Config, SoftGpu};
use traps::asks;
use vfio_user::{EACH_STORE, Errno, Server, ServerOptions, StoreWatch, WATCH_STORES, wire};
use write_trap::{Kind, WriteTrap, available};

const VRAM: u64 = 8 << 20;
const KINDS: [(Kind, u32); 3] =
    [(Kind::Decode, wire::WATCH_DECODE), (Kind::Fault, wire::WATCH_FAULT), (Kind::Tracker, wire::WATCH_TRACKER)];

/// The kinds that this machine has.
fn kinds() -> impl Iterator<Item = (Kind, u32)> {
    KINDS.into_iter().filter(|(kind, _)| match available(*kind) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("SKIPPED: {kind:?}: {why}");
            false
        }
    })
}

/// Which pages were written, and protects them again.
fn written(trap: &mut dyn WriteTrap) -> Vec<u64> {
    let (mut pages, mut stores) = (Vec::new(), Vec::new());
    trap.take_written(&mut pages).unwrap();
    trap.take_stores(&mut stores);
    if !trap.kind().stays_protected() {
        trap.protect(&pages).unwrap();
    }
    pages.extend(stores.into_iter().map(|word| word / PAGE));
    pages.sort_unstable();
    pages.dedup();
    pages
}

#[test]
fn stores_into_vram_are_noticed_by_each_kind() {
    for (kind, number) in kinds() {
        let (asks, told) = asks(number, |_, _| ());
        let (gpu, served) = serve_asking(VRAM, false, true, asks);
        let mut trap = told.lock().unwrap().take().unwrap();
        assert_eq!(trap.kind(), kind);
        let at = |page: u64, offset: u64| VramOffset(page * PAGE + offset);
        gpu.write_vram(at(3, 0), &[1; 8]);
        assert_eq!(written(&mut *trap), [0; 0]);
        let watched: Vec<u64> = (2..10).chain([100, 2047]).collect();
        trap.protect(&watched).unwrap();
        gpu.write_vram(at(3, 8), &7_u64.to_le_bytes());
        gpu.write_vram(at(100, 4090), &[5; 12]);
        gpu.fill_vram(at(4, 0), 2 * PAGE as usize, 9);
        gpu.write_vram(at(2047, 4095), &[6]);
        gpu.write_vram(at(1000, 0), &[6; 64]);
        assert_eq!(written(&mut *trap), [3, 4, 5, 100, 2047], "{kind:?}");
        let mut bytes = [0; 14];
        served.soft_gpu().vram().read((100 * PAGE + 4090) as usize, &mut bytes);
        assert_eq!(bytes, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0]);
        assert_eq!(written(&mut *trap), [0; 0]);
        // What becomes zero at once is noticed as well, and is zero.
        gpu.discard_vram(at(4, 0), 3 * PAGE).unwrap();
        assert_eq!(written(&mut *trap), [4, 5, 6], "{kind:?}");
        served.soft_gpu().vram().read((5 * PAGE) as usize, &mut bytes);
        assert_eq!(bytes, [0; 14]);
        gpu.discard_vram(at(1000, 0), 100 * PAGE).unwrap();
        trap.release(&[3]).unwrap();
        gpu.write_vram(at(3, 0), &[1; 8]);
        assert_eq!(written(&mut *trap), [0; 0], "{kind:?}");
        // Nobody listens any more, and stores go on.
        trap.protect(&[3]).unwrap();
        drop(trap);
        gpu.write_vram(at(3, 0), &[2; 8]);
        served.soft_gpu().vram().read((3 * PAGE) as usize, &mut bytes);
        assert_eq!(bytes[..8], [2; 8]);
    }
}

/// Single stores are named as such, in whatever pieces they come.
#[test]
fn each_entry_is_named_where_single_stores_are() {
    let Some((_, number)) = kinds().find(|(kind, _)| kind.names_stores()) else { return };
    let (asks, told) = asks(number, |_, _| ());
    let (gpu, _served) = serve_asking(VRAM, false, true, asks);
    let mut trap = told.lock().unwrap().take().unwrap();
    trap.protect(&[7]).unwrap();
    for entry in [0, 1, 77, 511] {
        gpu.write_vram(VramOffset(7 * PAGE + entry * 8), &(entry + 1).to_le_bytes());
    }
    let mut stores = Vec::new();
    trap.take_stores(&mut stores);
    assert_eq!(stores, [0, 1, 77, 511].map(|entry| 7 * PAGE + entry * 8));
}

/// Where something does not come about, the GPU is there all the same.
#[test]
fn a_gpu_is_had_without_it() {
    let nothing_told = || Box::new(|_: StoreWatch| -> Result<(), Errno> { panic!("nothing is to be told") });
    for private in [json!({ WATCH_STORES: 77 }), json!({ WATCH_STORES: "all" }), json!({}), json!(3), json!(null)] {
        let (gpu, _served) = serve_asking(VRAM, false, true, Asks { private: Some(private), told: nothing_told() });
        gpu.write_vram(VramOffset(5), &[1]);
    }
    for (_, number) in kinds() {
        let private = Some(json!({ WATCH_STORES: number }));
        let refuses = Asks { private: private.clone(), told: Box::new(|_| Err(Errno::NOTSUP)) };
        let (gpu, _served) = serve_asking(VRAM, false, true, refuses);
        gpu.write_vram(VramOffset(5), &[1]);
        gpu.discard_vram(VramOffset(0), PAGE).unwrap();
        // There is nothing to watch.
        let (gpu, _served) = serve_asking(VRAM, false, false, Asks { private, told: nothing_told() });
        assert!(gpu.vram_mapping().is_none());
    }
}

/// Whoever wants each store as a message gets one for each eight bytes; so does who zeroes a page of tables, but not who scrubs.
#[test]
fn each_store_is_a_message_where_that_is_asked_for() {
    let messages = |private| {
        let asks = Asks { private: Some(private), ..Asks::nothing() };
        let (gpu, served) = serve_asking(VRAM, false, false, asks);
        let count = || {
            // A read comes behind all that was posted, and is one itself.
            gpu.read_vram(VramOffset(0), &mut [0]);
            served.counts().vram.swap(0, Ordering::Relaxed) - 1
        };
        let fill = |bytes| {
            gpu.fill_vram(VramOffset(PAGE), bytes, 3);
            count()
        };
        gpu.write_vram(VramOffset(4096), &(0..64).collect::<Vec<u8>>());
        let aligned = count();
        gpu.write_vram(VramOffset(8195), &[7; 14]);
        let pieces = count();
        let mut back = [0; 24];
        gpu.read_vram(VramOffset(8192), &mut back);
        assert_eq!(back[..], [&[0; 3][..], &[7; 14], &[0; 7]].concat());
        count();
        (aligned, pieces, fill(4096), fill(256), fill(4097), fill(600 << 10))
    };
    assert_eq!(messages(json!({ EACH_STORE: true })), (8, 3, 512, 32, 1, 3));
    assert_eq!(messages(json!({})), (1, 1, 1, 1, 1, 3));
}

/// What a virtual GPU with `--trap bar` counts.
#[test]
fn a_virtual_gpu_counts_a_trap_for_each_store() {
    const GUEST: u64 = 32 << 20;
    let gpu = SoftGpu::new(&Config { vram_bytes: GUEST + (96 << 20), workers: 1, ..Config::default() }).unwrap();
    let driver = Driver::start(gpu).unwrap();
    let budget = driver.budget(HostCost { bytes: 8 << 30, ..HostCost::default() }).unwrap();
    let (scheme, trap) = (vgpu::Scheme::Fv, vgpu::Trap::Bar);
    let config = vgpu::Config { name: "guest".into(), vram_bytes: GUEST, scheme, watching: trap.into(), budget };
    let host = vgpu::Vgpu::new(&driver, config).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = Server::new(ours, ServerOptions::default());
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(&vgpu::Port::new(Arc::clone(&host))));
        let gpu = VfioUserGpu::over(theirs).unwrap();
        let traps = || {
            // Behind all that was posted, and one itself.
            gpu.read_vram(VramOffset(0), &mut [0]);
            host.counts().traps
        };
        let counted = |act: &dyn Fn()| {
            let before = traps();
            act();
            traps() - before - 1
        };
        assert_eq!(counted(&|| gpu.write_vram(VramOffset(1 << 20), &[0x11; 8])), 1);
        assert_eq!(counted(&|| gpu.write_vram(VramOffset(1 << 20), &[0x11; 4096])), 512);
        assert_eq!(counted(&|| gpu.fill_vram(VramOffset(1 << 20), 4096, 0)), 512);
        gpu.disconnect();
    });
    host.end();
}
