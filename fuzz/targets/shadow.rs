//! Arbitrary bytes as a guest's page tables and what it does with them: the shadow against the two-step walk.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((kind, rest)) if kind % 4 == 0 => gmmu::testing::para_virtualized(rest),
    Some((_, rest)) => gmmu::testing::guest(rest),
    None => {}
});
