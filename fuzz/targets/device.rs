//! Arbitrary bytes against the software GPU: as a tenant beside another, and as a driver.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((kind, rest)) if kind % 2 == 0 => softgpu::testing::fuzz::tenant(rest),
    Some((_, rest)) => softgpu::testing::fuzz::driver(rest),
    None => {}
});
