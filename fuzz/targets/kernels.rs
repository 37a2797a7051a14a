//! Any bytes are a random kernel: machine code and interpreter leave the same memory, bit by bit.
#![no_main]

#[path = "../../crates/ptx_jit/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use ptx::launch::Control;
use testgen::generate::{BASE, generate};

fuzz_target!(|data: &[u8]| {
    let generated = generate(data);
    let outcome = testgen::compare(
        &generated.kernel,
        &generated.launch,
        BASE,
        &generated.memory,
        &mut |kernel, launch, base, bytes| support::run(kernel, launch, base, bytes, Control::RUN),
        &mut testgen::interpret,
    );
    if let Err(difference) = outcome {
        panic!("{difference}\n{}\n{:?}", generated.kernel, generated.launch.block);
    }
});
