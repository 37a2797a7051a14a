//! From a kernel's body to IR: one pass over its text and that of the functions it calls.
//!
//! - `body`: statements, scopes, labels, declarations;
//! - `operand`: operands as written, and as an instruction wants them;
//! - `mods`, `opcodes`: modifiers, and the table from opcodes to their forms;
//! - `arith`, `bits`, `convert`, `narrow`, `memory`, `mbarrier`, `warp`, `matrix`, `control`: one function per form, which takes the modifiers it knows and
//!   emits operations;
//! - `image`: textures and surfaces; `tensor`: bulk copies that are not loops;
//! - `layout`: shared memory of a kernel, known before its body is parsed;
//! - `device_runtime`: calls of the device runtime, by which kernels launch kernels;
//! - `calls`: which functions are inlined; `units`: those that are not; `frames`: what a recursive one keeps on the stack;
//! - `stack`: what functions take from the thread's stack while they run;
//! - `slots`: `.param` variables of calls, turned into registers where no address is taken;
//! - `contract`: products and sums fused, as the vendor's assembler does;
//! - `graph`: blocks, and their clean-up.

mod arith;
mod bits;
mod body;
mod calls;
mod cluster;
mod contract;
mod control;
mod convert;
mod device_runtime;
mod element;
mod frames;
mod graph;
mod image;
mod layout;
mod matrix;
mod mbarrier;
mod memory;
mod mods;
mod narrow;
mod opcodes;
mod operand;
mod slots;
mod stack;
mod tensor;
mod units;
mod video;
mod warp;

use crate::error::PtxError;
use crate::ir::Kernel;
use crate::launch::STACK_BYTES;
use crate::program::{Entry, Program, Resources};
use crate::sources::Sources;
use crate::verify;

use body::Instance;
pub(crate) use layout::Facts;
use layout::Layout;

/// Most local memory of a thread, bytes, as on hardware. An engine allocates it for every thread of a CTA.
const MAX_LOCAL_BYTES: u64 = 512 << 10;

pub(crate) fn resources(program: &Program, entry: &Entry, left: &mut u64) -> Result<Resources, PtxError> {
    Layout::of(program, entry, left).map(|layout| layout.resources)
}

pub(crate) fn lower(
    program: &Program,
    entry: usize,
    symbols: &dyn Fn(&str) -> Option<u64>,
) -> Result<Kernel, PtxError> {
    let entry = find(program, entry)?;
    if entry.blocks_are_clusters && entry.cluster.is_none() {
        return Err(PtxError::invalid(entry.line, ".blocksareclusters without .reqnctapercluster"));
    }
    let layout = Layout::of(program, entry, &mut { u64::MAX })?;
    let mut instance = Instance::new(program, symbols, &layout, layout.plan(entry.function));
    units::lower(&mut instance, entry)?;
    let has_stack = instance.plan.recurses() || !layout.allocators.is_empty();
    let (graph, fixed) = units::finish(instance, entry.line)?;
    let (regs, blocks) = graph.finish();
    let stack_bytes = if has_stack { STACK_BYTES } else { 0 };
    let kernel = Kernel {
        origins: Vec::new(),
        sources: Sources::default(),
        name: entry.name.clone(),
        params: entry.params.clone(),
        param_bytes: entry.param_bytes,
        regs,
        blocks,
        shared_bytes: layout.resources.shared_bytes,
        shared_align: layout.resources.shared_align,
        local_bytes: fixed + stack_bytes,
        stack_bytes,
        max_ntid: entry.max_ntid,
        exact_ntid: entry.exact_ntid,
    };
    verify::verify(&kernel)?;
    Ok(kernel)
}

fn find(program: &Program, entry: usize) -> Result<&Entry, PtxError> {
    program.entries.get(entry).ok_or_else(|| PtxError::invalid(0, "no such kernel"))
}
