//! Kernels of all shapes and several sizes: compiled, and equal to the interpreter.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Control, Launch};
use testgen::shapes::{BYTES, Shape};

/// GPU address of the memory.
const BASE: u64 = 0x7_0000_0000;

fn launch(threads: u32) -> Arc<Launch> {
    Arc::new(Launch::new([1, 1, 1], [threads, 1, 1], BASE.to_le_bytes().to_vec()))
}

/// Runs a kernel of a shape and size on both engines.
fn compare(shape: Shape, instructions: usize, threads: u32, control: u32) {
    let text = shape.text(instructions);
    let kernel = ptx::Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None)).unwrap();
    let memory: Vec<u8> = (0..BYTES as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let machine =
        &mut |k: &Arc<Kernel>, l: &Arc<Launch>, base, bytes: &mut Vec<u8>| support::run(k, l, base, bytes, control);
    let outcome =
        testgen::compare(&Arc::new(kernel), &launch(threads), BASE, &memory, machine, &mut testgen::interpret);
    assert_eq!(outcome, Ok(()), "{} of {instructions} instructions, {threads} threads", shape.name());
}

#[test]
fn all_shapes_agree_with_the_interpreter() {
    for shape in Shape::ALL {
        for (instructions, threads) in [(90, 64), (300, 40), (700, 64), (2500, 33)] {
            compare(shape, instructions, threads, Control::RUN);
        }
        compare(shape, 1500, 64, Control::PREEMPT);
    }
}

/// What once needed more stack than there was: the frame of one function grew with the kernel.
#[test]
fn very_large_kernels_run() {
    compare(Shape::Chain, 20_000, 64, Control::RUN);
    compare(Shape::Accesses, 15_000, 32, Control::RUN);
    // 16,000 values at once.
    compare(Shape::Live, 48_000, 32, Control::RUN);
}
