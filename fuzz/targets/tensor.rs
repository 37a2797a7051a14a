//! Any bytes are a tensor map and a copy by it: it ends, and what is accessed is asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| testgen::tensor::fuzz(data));
