//! Arbitrary messages between a process whose stores are noticed and the one that is told.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((kind, rest)) if kind % 2 == 0 => write_trap::testing::fuzz_servant(rest),
    Some((_, rest)) => write_trap::testing::fuzz_remote(rest),
    None => {}
});
