//! Kernels on both engines, for blocks that make chunks of several widths, run through and preempted.

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Control, Launch};
use ptx_jit::Form;

/// GPU address of the memory, and its bytes: whole pages, behind which nothing is mapped.
const BASE: u64 = 0x7_0000_0000;
pub(crate) const BYTES: u32 = 16 << 10;
/// Where each thread has 32 bytes for what comes out.
const OUT: u32 = 8 << 10;
/// The threads of the largest block.
pub(crate) const THREADS: u32 = 128;

/// `body` finds the thread index in `%r0`, the address of the memory in `%rd0` and of the thread's results in `%rd1`.
pub(crate) fn kernel(body: &str) -> Arc<Kernel> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
         .reg .b64 %rd<16>; .reg .b32 %r<32>; .reg .b16 %h<4>; .reg .f32 %f<16>; .reg .f64 %d<4>; .reg .pred %p<16>;\n\
         .shared .b32 s[{THREADS}];\n\
         ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 32; add.s64 %rd1, %rd0, %rd2;\n\
         add.s64 %rd1, %rd1, {OUT};\n{body}\nEND: ret;\n}}\n"
    );
    let kernel = ptx::Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None));
    Arc::new(kernel.unwrap_or_else(|e| panic!("{e}\n{text}")))
}

fn launch(threads: u32) -> Arc<Launch> {
    Arc::new(Launch::new([1, 1, 1], [threads, 1, 1], BASE.to_le_bytes().to_vec()))
}

/// Runs a kernel on both engines, for several blocks. Words of the memory are those of `word`.
pub(crate) fn check(form: Form, body: &str, word: &dyn Fn(u32) -> u32) {
    let kernel = kernel(body);
    let memory: Vec<u8> = (0..BYTES / 4).flat_map(|i| word(i).to_le_bytes()).collect();
    for threads in [THREADS, 45, 4] {
        for control in [Control::RUN, Control::PREEMPT] {
            let machine = &mut |k: &Arc<Kernel>, l: &Arc<Launch>, base, bytes: &mut Vec<u8>| match form {
                Form { region: None, alone: false } => crate::support::run(k, l, base, bytes, control),
                form => crate::support::run_in(form, k, l, base, bytes, control),
            };
            let launch = launch(threads);
            let outcome = testgen::compare(&kernel, &launch, BASE, &memory, machine, &mut testgen::interpret);
            assert_eq!(outcome, Ok(()), "{threads} threads, control {control}: {body}");
        }
    }
}

/// A word that looks like chance.
pub(crate) fn mixed(i: u32) -> u32 {
    let i = (i ^ i >> 16).wrapping_mul(0x85eb_ca6b);
    let i = (i ^ i >> 13).wrapping_mul(0xc2b2_ae35);
    i ^ i >> 16
}
