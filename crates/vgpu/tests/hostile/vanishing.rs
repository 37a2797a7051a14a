//! Memory that a guest takes away, or would, while its kernels, its tables and its rings are in it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gmmu::AddressSpace;
use gpu_spec::mmu::{PhysAddr, Rights};
use hostmem::{Memfd, PAGE};
use rogue::work::{TOUCH, classes, copy, launch, release};
use rogue::{Channel, FREE_VA, Rogue, VRAM_VA};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vgpu::Scheme;

use super::{MIB, SCHEMES, beside_victims, rogue};
use crate::guest::host;
use crate::support::{BOUND, eventually};

const BUS: u64 = 1 << 33;
const BYTES: u64 = 1 << 20;
/// What a kernel works on: the first pages.
const SHOWN: u64 = 64 << 10;

/// A channel whose kernel counts in the first words of the lent memory without an end, and has begun.
fn counting(rogue: &mut Rogue) -> (AddressSpace, Channel) {
    let mut space = rogue.space();
    let mut channel = rogue.channel(&mut space, 1);
    rogue.list(&[(1, &[channel])]);
    space.map(rogue, FREE_VA, SHOWN, PhysAddr::system(BUS), Rights::default()).unwrap();
    rogue.invalidate(space.root(), FREE_VA, SHOWN);
    let program = rogue.load(TOUCH, "touch");
    let endless = rogue.describe(program, 2, 64, &[FREE_VA, 0]);
    rogue.submit(&mut channel, &[classes(), launch(endless)].concat());
    assert!(counts(rogue), "the kernel runs");
    (space, channel)
}

/// Whether the first word of the lent memory changes, soon.
fn counts(rogue: &Rogue) -> bool {
    let word = || rogue.lent[0].memory.u32_at(0).load(Ordering::Relaxed);
    let before = word();
    rogue.wait(BOUND, |_| word() != before)
}

#[test]
fn what_was_unmapped_in_mid_kernel_is_not_touched_again() {
    beside_victims(256, |driver| {
        for scheme in SCHEMES {
            let (mut rogue, _host) = rogue(driver, scheme, 32 * MIB);
            for _ in 0..8 {
                rogue.lend(BUS, BYTES).unwrap();
                counting(&mut rogue);
                let lent = rogue.take_back(BUS).unwrap();
                let look = || {
                    let mut bytes = vec![0; SHOWN as usize];
                    lent.memory.read(0, &mut bytes);
                    bytes
                };
                let then = look();
                eventually("a fault of the kernel", || rogue.has_failed(1));
                assert!(then == look(), "{scheme:?}: written after it was unmapped");
                rogue.port.client.reset().unwrap();
            }
        }
    });
}

/// Tables, instance block, USERD, GPFIFO, pushbuffer and runlist go while one thread submits: the mediator reads them there.
#[test]
fn tables_and_rings_vanish_under_the_mediator() {
    beside_victims(256, |driver| {
        for scheme in SCHEMES {
            let (mut rogue, _host) = rogue(driver, scheme, 32 * MIB);
            for round in 0..10 {
                rogue.lend(BUS, BYTES).unwrap();
                rogue.use_memory(Some(BUS..BUS + BYTES));
                let mut space = rogue.space();
                let mut channel = rogue.channel(&mut space, 1);
                rogue.list(&[(1, &[channel])]);
                rogue.use_memory(None);
                let sign = rogue.take(4096, 4096).address;
                rogue.port.write_vram(sign, &[0; 16]);
                let work = [classes(), copy(VRAM_VA + sign + 64, VRAM_VA, 64), release(VRAM_VA + sign, 1)].concat();
                rogue.submit(&mut channel, &work);
                eventually("work from there", || rogue.word(sign) == 1);
                let over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            rogue.invalidate(space.root(), 0, u64::MAX);
                            rogue.submit(&mut channel, &work);
                        }
                    });
                    std::thread::sleep(Duration::from_micros(300 * round));
                    rogue.port.client.unmap_dma(BUS, BYTES).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                    over.store(true, Ordering::Relaxed);
                });
                eventually("the channel to fail", || {
                    rogue.ring(1);
                    rogue.has_failed(1)
                });
                rogue.lent.clear();
                // With memory that is there, it goes on.
                let mut space = rogue.space();
                let mut channel = rogue.channel(&mut space, 1);
                rogue.list(&[(1, &[channel])]);
                let work = [classes(), release(VRAM_VA + sign, 2)].concat();
                rogue.submit(&mut channel, &work);
                eventually("work from VRAM", || rogue.word(sign) == 2);
            }
        }
    });
}

fn file(seals: SealFlags) -> OwnedFd {
    let file = memfd_create("rogue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, BYTES).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A file that could be made shorter would end the device's process when it is: such are never mapped. What else its owner can
/// do to a file is done to one under a kernel.
#[test]
fn files_do_not_shrink_under_the_device() {
    let driver = host(256 * MIB, false);
    let (mut rogue, _host) = rogue(&driver, Scheme::Fv, 32 * MIB);
    let map = |rogue: &Rogue, file: &OwnedFd| {
        let done = rogue.port.client.map_dma(BUS + BYTES, BYTES, (true, true), Some((file.as_fd(), 0)));
        done.is_ok() && rogue.port.client.unmap_dma(BUS + BYTES, BYTES).is_ok()
    };
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::GROW | SealFlags::SEAL] {
        assert!(!map(&rogue, &file(seals)), "{seals:?}");
    }
    let path = std::env::temp_dir().join(format!("sundial-rogue-{}", std::process::id()));
    let plain = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    plain.set_len(BYTES).unwrap();
    assert!(!map(&rogue, &OwnedFd::from(plain)), "a file on a disk");
    assert!(map(&rogue, &file(SealFlags::SHRINK)), "one that only grows");

    rogue.lend(BUS, BYTES).unwrap();
    let (mut space, mut channel) = counting(&mut rogue);
    let lent = &rogue.lent[0].file;
    assert!(ftruncate(lent, 0).is_err(), "it is sealed");
    for _ in 0..200 {
        lent.punch(0, BYTES).unwrap();
    }
    assert!(counts(&rogue), "in pages of zeros");
    ftruncate(&rogue.lent[0].file, 2 * BYTES).unwrap();
    fcntl_add_seals(&rogue.lent[0].file, SealFlags::FUTURE_WRITE | SealFlags::SEAL).unwrap();
    assert!(counts(&rogue), "mapped before it was sealed");
    // Not to be mapped for writing any more: who tries to write has a fault, and nobody else.
    space.map(&mut rogue, FREE_VA + SHOWN, PAGE, PhysAddr::system(BUS + SHOWN), Rights::default()).unwrap();
    rogue.invalidate(space.root(), FREE_VA + SHOWN, PAGE);
    rogue.submit(&mut channel, &copy(FREE_VA + SHOWN, VRAM_VA, 64));
    rogue.port.client.unmap_all().unwrap();
    eventually("the kernel to end", || rogue.has_failed(1));
    let small = Memfd::create("rogue", PAGE).unwrap();
    assert!(
        rogue.port.client.map_dma(BUS, 2 * PAGE, (true, true), Some((small.as_fd(), 0))).is_err(),
        "beyond its end"
    );
    assert!(!driver.is_lost());
}
