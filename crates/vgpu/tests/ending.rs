//! A virtual GPU of which the device does not let go ends, and what it had stays where it is.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod faulty;
mod guest;
#[expect(dead_code, reason = "of what it has, some is used here")]
#[path = "../../gpu_driver/tests/software_gpu/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpu_driver::Driver;
use gpu_spec::balloon;
use gpu_spec::pv::{self, Call};
use gpu_spec::regs::{self, vf};
use rogue::work::{classes, copy};
use rogue::{LO, Port, Rogue, VRAM_VA, WINDOW};
use vgpu::{NotResized, Scheme};

use crate::faulty::{Faults, Faulty};
use crate::guest::Host;
use crate::support::{BOUND, eventually};

const MIB: u64 = 1 << 20;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        crate::guest::gpu(vgpu::Scheme::Fv, vram_bytes, lend)
    }
}

fn mailbox(word: u32) -> u32 {
    regs::VF_BASE + vf::MAILBOX + word * 4
}

/// A guest with 32 MiB, whose tables lead to all of it and are in use.
fn at_work(host: &mut Host) -> Rogue {
    let mut rogue = Rogue::new(Port::over(host.connect()).unwrap());
    let mut space = rogue.space();
    let mut channel = rogue.channel(&mut space, 3);
    rogue.list(&[(1, &[channel])]);
    rogue.port.write_vram(20 * MIB, &[0x5a; 16]);
    rogue.submit(&mut channel, &[classes(), copy(VRAM_VA + 31 * MIB, VRAM_VA + 20 * MIB, 16)].concat());
    eventually("the copy", || rogue.word(31 * MIB) == 0x5a5a_5a5a);
    rogue
}

/// Says that it gives blocks back if it is asked to.
fn listens(rogue: &Rogue) {
    rogue.port.write32(mailbox(balloon::LISTENER), balloon::MAGIC);
    assert_eq!(rogue.port.read32(mailbox(balloon::LISTENER)), 0);
}

/// Gives the last block back, as it is asked to.
fn gives_a_block(host: &Host, rogue: &Rogue) {
    listens(rogue);
    std::thread::scope(|scope| {
        let resized = scope.spawn(|| host.vgpu.resize(30 * MIB, BOUND));
        eventually("it is asked", || rogue.port.read32(mailbox(balloon::TARGET)) == 15);
        for (word, value) in [(balloon::FIRST, 15), (balloon::COUNT, 1), (balloon::COMMAND, balloon::GIVE)] {
            rogue.port.write32(mailbox(word), value);
        }
        // As soon as it is done.
        let _ = rogue.port.read32(mailbox(balloon::STATUS));
        assert_eq!(resized.join().unwrap(), Err(NotResized::Ended));
    });
}

/// After a deed of which the device does not do its part, nobody sees anything of the virtual GPU any more: were it to go on, a
/// block that the guest takes again would be shown where the one that it gave still is, and the next guest would be given what the
/// work of the last may use. When it is destroyed, what the device may use is nobody's: a block, or all that it had.
fn ends(scheme: Scheme, fault: fn(&Faults) -> &AtomicBool, prepare: fn(&Rogue), deed: fn(&Host, &Rogue), all: bool) {
    let faults = Arc::new(Faults::default());
    let driver = Driver::start(Faulty::new(128 * MIB, &faults)).unwrap();
    let begin = driver.counts();
    let mut host = Host::new(&driver, scheme, 32 * MIB);
    let rogue = at_work(&mut host);
    prepare(&rogue);
    assert_eq!(host.vgpu.ended(), None);
    fault(&faults).store(true, Ordering::SeqCst);
    deed(&host, &rogue);
    fault(&faults).store(false, Ordering::SeqCst);
    let is_gone = |rogue: &Rogue| {
        let mut byte = [0];
        rogue.port.client.read(vfio_user::pci::BAR1, 20 * MIB, &mut byte).unwrap();
        (rogue.port.read32(regs::PMC_BOOT_0), byte) == (u32::MAX, [0xff])
    };
    assert!(is_gone(&rogue), "the guest goes on");
    assert!(host.vgpu.ended().is_some_and(|why| !why.is_empty()), "whoever lists it is told why");
    assert_eq!(host.vgpu.resize(32 * MIB, BOUND), Err(NotResized::Ended));
    drop(rogue);
    let next = Rogue::new(Port::over(host.connect()).unwrap());
    assert!(next.port.vram().is_none() && is_gone(&next), "the next guest is given what the last one had");
    drop(next);
    let had = begin.vram_free - driver.counts().vram_free;
    assert!(had > 32 * MIB, "nothing of it has come back yet");
    drop(host);
    let counts = driver.counts();
    let lost = if all { had } else { 2 * MIB };
    assert_eq!((counts.vram_quarantined, counts.vram_free), (lost, begin.vram_free - lost));
    assert!(!driver.is_lost(), "for others it is as it was");
}

fn resets(_: &Host, rogue: &Rogue) {
    rogue.port.client.reset().unwrap();
}

#[test]
fn translations_of_a_block_are_not_forgotten() {
    ends(Scheme::Fv, |faults| &faults.forgets_not, |_| (), gives_a_block, true);
}

#[test]
fn a_block_stays_lent() {
    ends(Scheme::Fv, |faults| &faults.keeps_lent, |_| (), gives_a_block, false);
}

#[test]
fn translations_of_a_channel_are_not_forgotten() {
    ends(Scheme::Fv, |faults| &faults.forgets_not, |_| (), resets, true);
}

#[test]
fn translations_of_a_space_without_channels_are_not_forgotten() {
    let makes_one = |rogue: &Rogue| {
        rogue.unbind(3);
        let call = Call { code: pv::CREATE, root: 24 * MIB, va: LO, bytes: WINDOW, ..Call::default() };
        assert_eq!(rogue.call(&[call]), 0);
    };
    ends(Scheme::Pv, |faults| &faults.forgets_not, makes_one, resets, true);
}

#[test]
fn who_waits_for_a_guest_hears_that_the_device_is_gone() {
    let faults = Arc::new(Faults::default());
    let driver = Driver::start(Faulty::new(128 * MIB, &faults)).unwrap();
    let mut host = Host::new(&driver, Scheme::Fv, 32 * MIB);
    let rogue = Rogue::new(Port::over(host.connect()).unwrap());
    listens(&rogue);
    let vgpu = Arc::clone(&host.vgpu);
    let resized = std::thread::spawn(move || vgpu.resize(30 * MIB, Duration::from_secs(3600)));
    eventually("it is asked", || rogue.port.read32(mailbox(balloon::TARGET)) == 15);
    faults.gone.store(true, Ordering::SeqCst);
    eventually("an answer", || resized.is_finished());
    assert_eq!(resized.join().unwrap(), Err(NotResized::Ended));
    assert_eq!(host.vgpu.ended(), Some("the GPU is lost"));
}

#[test]
fn what_cannot_be_made_as_new_for_the_next_guest_is_given_back() {
    let faults = Arc::new(Faults::default());
    let driver = Driver::start(Faulty::new(128 * MIB, &faults)).unwrap();
    let begin = driver.counts();
    let mut host = Host::new(&driver, Scheme::Fv, 32 * MIB);
    let rogue = Rogue::new(Port::over(host.connect()).unwrap());
    faults.lends_not.store(true, Ordering::SeqCst);
    drop(rogue);
    host.join();
    assert_eq!((host.vgpu.vram_used(), driver.counts().vram_free), (0, begin.vram_free - host.vgpu.vram_overhead()));
    assert!(host.vgpu.vram_overhead() < 2 * MIB, "{} bytes of nobody's use", host.vgpu.vram_overhead());
}
