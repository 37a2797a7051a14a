//! Any bytes are messages of a session, from either side: values within their limits, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wire::fuzz(data));
