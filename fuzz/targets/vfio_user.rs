//! Arbitrary messages and bytes over a vfio-user socket, from a client and from a server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((kind, rest)) if kind % 2 == 0 => vfio_user::testing::fuzz_server(rest),
    Some((_, rest)) => vfio_user::testing::fuzz_client(rest),
    None => {}
});
