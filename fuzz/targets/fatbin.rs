//! Any bytes are a fat binary: PTX texts, or an error, in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = cuda_core::fatbin::texts(&data, 120);
});
