//! From a kernel's body to IR: one pass over its text, calls inlined where they stand.
//!
//! - `body`: statements, scopes, labels, declarations;
//! - `operand`: operands as written, and as an instruction wants them;
//! - `mods`, `opcodes`: modifiers, and the table from opcodes to their forms;
//! - `arith`, `bits`, `convert`, `memory`, `mbarrier`, `warp`, `control`: one function per form, which takes the modifiers it knows and
//!   emits operations;
//! - `layout`: shared memory of a kernel, known before its body is parsed;
//! - `slots`: `.param` variables of calls, turned into registers where no address is taken;
//! - `graph`: blocks, and their clean-up.

mod arith;
mod bits;
mod body;
mod control;
mod convert;
mod graph;
mod layout;
mod mbarrier;
mod memory;
mod mods;
mod opcodes;
mod operand;
mod slots;
mod warp;

use crate::error::PtxError;
use crate::ir::Kernel;
use crate::program::{Entry, Program, Resources};
use crate::verify;

use body::{Body, Instance};
pub(crate) use layout::Facts;
use layout::Layout;

/// Most local memory of a thread, bytes, as on hardware. An engine allocates it for every thread of a CTA.
const MAX_LOCAL_BYTES: u64 = 512 << 10;

pub(crate) fn resources(program: &Program, entry: usize) -> Result<Resources, PtxError> {
    let layout = Layout::of(program, find(program, entry)?)?;
    Ok(layout.resources)
}

pub(crate) fn lower(
    program: &Program,
    entry: usize,
    symbols: &dyn Fn(&str) -> Option<u64>,
) -> Result<Kernel, PtxError> {
    let entry = find(program, entry)?;
    let layout = Layout::of(program, entry)?;
    let mut instance = Instance::new(program, symbols, &layout);
    Body::kernel(&mut instance, entry)?.run()?;
    let local_bytes = instance.slots.finish(&mut instance.graph, entry.line)?;
    let (regs, blocks) = instance.graph.finish();
    let kernel = Kernel {
        name: entry.name.clone(),
        params: entry.params.clone(),
        param_bytes: entry.param_bytes,
        regs,
        blocks,
        shared_bytes: layout.resources.shared_bytes,
        shared_align: layout.resources.shared_align,
        local_bytes,
        max_ntid: entry.max_ntid,
        exact_ntid: entry.exact_ntid,
    };
    verify::verify(&kernel)?;
    Ok(kernel)
}

fn find(program: &Program, entry: usize) -> Result<&Entry, PtxError> {
    program.entries.get(entry).ok_or_else(|| PtxError::invalid(0, "no such kernel"))
}
