//! Arbitrary bytes as a guest's page tables and what it does with them: the shadow against the two-step walk.
#![no_main]

use gmmu::testing::{guest, para_virtualized, tracked};
use gmmu::{Gmmu2, HaswellPpgtt};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 8 {
        0 => para_virtualized::<Gmmu2>(rest),
        1 => para_virtualized::<HaswellPpgtt>(rest),
        2 => guest::<HaswellPpgtt>(rest),
        3 => tracked::<HaswellPpgtt>(rest),
        4 => tracked::<Gmmu2>(rest),
        _ => guest::<Gmmu2>(rest),
    }
});
