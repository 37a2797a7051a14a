//! The driver's test suite in a guest that makes hypercalls instead of page tables.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod guest;

use device_io::{DeviceBacking, VramOffset};
use vfio_user::pci;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        crate::guest::gpu(vgpu::Scheme::Pv, vram_bytes, lend)
    }
}

/// A program in a virtual machine was killed: its connection stays, and with it all that it has made. The next one begins as the
/// kernel lets it, with a function-level reset.
#[test]
fn a_function_level_reset_takes_away_what_the_last_program_left() {
    use gpu_spec::pv::{self, Call};
    use gpu_spec::regs::{VF_BASE, vf};
    use zerocopy::IntoBytes;

    const AREA: u64 = 1 << 20;
    let guest = guest::guest(&guest::host(128 << 20, true), vgpu::Scheme::Pv, 16 << 20);
    let mailbox = |word: u32| VF_BASE + vf::MAILBOX + word * 4;
    let create = || {
        let call = Call { code: pv::CREATE, root: 2 << 20, va: 1 << 40, bytes: 1 << 30, ..Call::default() };
        guest.write_vram(VramOffset(AREA), call.as_bytes());
        [(pv::AREA_LO, AREA as u32), (pv::AREA_HI, 0), (pv::COUNT, 1)]
            .into_iter()
            .for_each(|(word, value)| guest.write32(mailbox(word), value));
        guest.write32(VF_BASE + vf::PRIV_DOORBELL, 1);
        guest.read32(mailbox(pv::STATUS))
    };
    assert_eq!((create(), create()), (0, 1), "a name that is taken");
    let config = |at: u64| {
        let mut word = [0; 4];
        guest.client.read(pci::CONFIG, at, &mut word).unwrap();
        u32::from_le_bytes(word)
    };
    let capabilities = std::iter::successors(Some(config(0x34) & 0xff), |at| Some(config(u64::from(*at)) >> 8 & 0xff));
    let advanced = capabilities.take_while(|at| *at != 0).find(|at| config(u64::from(*at)) & 0xff == 0x13).unwrap();
    // As a kernel does it: an empty command register before, and what it was after.
    guest.client.write(pci::CONFIG, 4, &[0, 4]).unwrap();
    guest.client.write(pci::CONFIG, u64::from(advanced) + 4, &[1]).unwrap();
    guest.client.write(pci::CONFIG, 4, &[6, 4]).unwrap();
    assert_eq!((guest.read32(mailbox(pv::AREA_LO)), config(4) & 0xffff), (0, 0x406));
    let mut left = [0xff; 8];
    guest.read_vram(VramOffset(AREA), &mut left);
    assert_eq!(left, [0; 8]);
    assert_eq!((create(), create()), (0, 1));
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
