//! Any bytes are an object file or a library: PTX texts, or an error, in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = cuda_core::objects::members(data, 120);
});
