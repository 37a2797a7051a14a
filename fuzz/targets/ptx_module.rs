//! Any bytes are a PTX module: an error, or a program whose kernels lower to IR that the verifier accepts, or to an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(program) = ptx::Program::parse(data) {
        for entry in 0..program.entries().len().min(8) {
            let _ = program.lower(entry, &|_| Some(0x10_0000_0000));
        }
    }
});
