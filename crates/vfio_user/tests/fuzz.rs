//! The fuzz target's bodies, with the same bytes each time. `cargo xtask fuzz` looks for what is new.

use vfio_user::testing::{fuzz_client, fuzz_server};

/// Runs `body` with inputs of many lengths.
fn some(body: fn(&[u8])) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    for run in 0..400 {
        let data: Vec<u8> = (0..run * 3).map(|_| byte()).collect();
        body(&data);
    }
}

#[test]
fn a_server_survives_any_client() {
    some(fuzz_server);
}

#[test]
fn a_client_survives_any_server() {
    some(fuzz_client);
}
