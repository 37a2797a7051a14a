//! Compiling a kernel: analysis, emission, and machine code at no particular place.

mod assemble;
mod divide;

use std::sync::{Arc, LazyLock};

use cranelift_codegen::Context;
use cranelift_codegen::ir::SourceLoc;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable, Flags};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use ptx::ir::{Kernel, Op};

use crate::abi::Attached;
use crate::analysis::barriers::{self, Ordered};
use crate::analysis::floats::Floats;
use crate::analysis::graph::NodeId;
use crate::analysis::pointers::Pointers;
use crate::analysis::{self, Plan, early, width};
use crate::compiler::Watch;
use crate::emit::{self, Emitted, joint};
use crate::image::{Form, Loop, Machine, Region};
use crate::{CompileError, MAX_STACK_BYTES};
use assemble::{Assembled, Assembler, Piece};
use divide::divide;

fn unsupported(what: impl std::fmt::Display) -> CompileError {
    CompileError::Unsupported { line: 0, what: what.to_string() }
}

/// How values are given registers, which is most of what compiling costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allocation {
    /// With a view to the whole region.
    Thorough,
    /// In one pass. Code with loops, or with more values than there are registers, takes up to four times as long to run.
    Quick,
}

/// The host as a target.
fn host_isa(allocation: Allocation) -> Result<OwnedTargetIsa, String> {
    if !std::arch::is_x86_feature_detected!("fma") || !std::arch::is_x86_feature_detected!("avx2") {
        return Err("a processor without AVX2 and FMA".to_owned());
    }
    let mut flags = settings::builder();
    for (name, value) in [
        // The optimiser computes nothing twice, and nothing in a loop that could be outside. But what it finds must be kept
        // somewhere, and vectors of all lanes of a chunk leave no registers for that: tiled products of matrices are twice as
        // fast without it, and compiled in half the time. What is worth keeping, the emitter keeps.
        ("opt_level", "none"),
        ("regalloc_algorithm", if allocation == Allocation::Quick { "single_pass" } else { "backtracking" }),
        ("is_pic", "false"),
        ("unwind_info", "false"),
        ("enable_probestack", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("regalloc_checker", "false"),
    ] {
        flags.set(name, value).map_err(|e| e.to_string())?;
    }
    cranelift_native::builder()?.finish(Flags::new(flags)).map_err(|e| e.to_string())
}

/// The host as a target, found out once.
pub(crate) fn isa(allocation: Allocation) -> Result<&'static dyn TargetIsa, CompileError> {
    static THOROUGH: LazyLock<Result<OwnedTargetIsa, String>> = LazyLock::new(|| host_isa(Allocation::Thorough));
    static QUICK: LazyLock<Result<OwnedTargetIsa, String>> = LazyLock::new(|| host_isa(Allocation::Quick));
    let isa = if allocation == Allocation::Quick { &QUICK } else { &THOROUGH };
    match &**isa {
        Ok(isa) => Ok(&**isa),
        Err(error) => Err(unsupported(error)),
    }
}

/// What of the host machine code depends on, in a number: code for other features is not for this processor.
pub(crate) fn target() -> Result<u64, CompileError> {
    let mut features: Vec<String> = isa(Allocation::Thorough)?.isa_flags().iter().map(ToString::to_string).collect();
    features.sort();
    Ok(crate::image::fingerprint(features.join(" ").as_bytes()))
}

/// Compiles `kernel` for CTAs of `block` threads.
///
/// A region that needs more stack than a CTA has is compiled again, in smaller ones.
pub(crate) fn compile(
    kernel: Arc<Kernel>,
    block: [u32; 3],
    form: Form,
    watch: &Watch,
) -> Result<Machine, CompileError> {
    let size = |kernel: &Kernel| kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>();
    watch.check_size(size(&kernel))?;
    watch.check()?;
    let kernel = analysis::ranges::split(kernel);
    watch.check()?;
    let kernel = analysis::dead::without_dead_code(kernel);
    let instructions = size(&kernel);
    watch.check_size(instructions)?;
    watch.check()?;
    let ordered = barriers::without_needless(kernel, block);
    watch.check()?;
    let mut region = form.region.unwrap_or_else(|| width::region(instructions));
    loop {
        let error = match in_regions(&ordered, block, region, form.alone, watch) {
            Err(Failure::Stack(error)) => error,
            Err(Failure::Other(error)) => return Err(error),
            Ok(machine) => return Ok(machine),
        };
        region = region.min(width::REGION * SMALLER) / SMALLER;
        if region < LEAST_REGION {
            return Err(error);
        }
    }
}

/// How much smaller regions become whose frames did not fit.
const SMALLER: usize = 4;
/// The smallest regions that are tried.
const LEAST_REGION: usize = 8;

/// Why a kernel could not be compiled in regions of a size.
enum Failure {
    /// A region takes too much stack.
    Stack(CompileError),
    Other(CompileError),
}

impl<E: Into<CompileError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Other(error.into())
    }
}

fn in_regions(
    ordered: &Ordered,
    block: [u32; 3],
    region: usize,
    alone: bool,
    watch: &Watch,
) -> Result<Machine, Failure> {
    let kernel = &*ordered.kernel;
    let entries = isa(Allocation::Thorough)?;
    let mut plan = width::plan_widest(kernel, block, region, alone).map_err(unsupported)?;
    plan.set_order(&ordered.from_last);
    let kernel = &*early::addresses_first(kernel, &plan);
    let known = (Floats::of(kernel), Pointers::of(kernel, &plan.live.live_in[0]));
    let instructions = kernel.blocks.iter().map(|block| block.insts.len()).sum();
    let pieces = divide(plan.regions.len(), watch.threads(instructions), watch, |scratch: &mut Scratch, index| {
        watch.check().map_err(CompileError::from)?;
        let quick = region < usize::MAX && is_short(&plan, index);
        let isa = isa(if quick { Allocation::Quick } else { Allocation::Thorough })?;
        let (piece, attached) = self::region(isa, kernel, &plan, index, &known, scratch, watch)?;
        match piece.frame_bytes {
            bytes if bytes > MAX_STACK_BYTES => Err(Failure::Stack(unsupported(format!("{bytes} bytes of stack")))),
            _ => Ok((piece, attached)),
        }
    })?;
    let mut assembler = Assembler::default();
    let mut regions = Vec::with_capacity(pieces.len());
    for (index, (piece, attached)) in pieces.into_iter().enumerate() {
        let begin = assembler.add(entries, &piece)?;
        regions.push(describe(kernel, &plan, index, attached, begin, piece.frame_bytes));
    }
    let loops = loops(&plan, &mut regions);
    let Assembled { code, places, relocations } = assembler.finish();
    Ok(Machine {
        lanes: plan.lanes(),
        strict: plan.strict,
        frame_bytes: plan.frame_bytes,
        zeroed: plan.zeroed,
        regions,
        loops,
        code,
        places,
        relocations,
    })
}

/// Vector instructions of a region whose values find registers anyhow.
const SHORT: usize = 24;

/// Is a region a few instructions without a loop, as between two barriers?
fn is_short(plan: &Plan, index: usize) -> bool {
    let region = &plan.regions[index];
    let instructions: usize = region.nodes.iter().map(|&n| plan.nodes[n].end - plan.nodes[n].begin).sum();
    let position = |n: NodeId| plan.ordering.position[n];
    let goes_back = |&n: &NodeId| {
        let back = |s: &NodeId| position(*s) <= position(n) && region.nodes.contains(s);
        plan.nodes[n].successors().iter().any(back)
    };
    region.masked
        && (instructions + region.nodes.len()) * plan.lanes() as usize / 4 <= SHORT
        && !region.nodes.iter().any(goes_back)
}

/// The loops that regions lie in, from the first to the last region whose head is inside.
fn loops(plan: &Plan, regions: &mut [Region]) -> Vec<Loop> {
    let head = |region: &analysis::Region| plan.ordering.position[region.head];
    let mut found: Vec<Loop> = Vec::new();
    // Loops come outer before inner ones, in the order of their beginnings, as regions do.
    let mut around: Vec<(usize, u32)> = Vec::new();
    for &(begin, end) in &plan.ordering.loops {
        let first = plan.regions.partition_point(|region| head(region) < begin);
        let behind = plan.regions.partition_point(|region| head(region) <= end);
        if first == behind {
            continue;
        }
        around.retain(|&(outer_end, _)| begin <= outer_end);
        let number = found.len() as u32;
        found.push(Loop { first: first as u32, last: behind as u32 - 1, outer: around.last().map(|l| l.1) });
        regions[first..behind].iter_mut().for_each(|region| region.around = Some(number));
        around.push((end, number));
    }
    found
}

/// What a thread keeps from one region to the next.
struct Scratch {
    context: Context,
    builder: FunctionBuilderContext,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { context: Context::new(), builder: FunctionBuilderContext::new() }
    }
}

/// The machine code of a region, and what it hands to helpers.
fn region(
    isa: &dyn TargetIsa,
    kernel: &Kernel,
    plan: &Plan,
    index: usize,
    (floats, pointers): &(Floats, Pointers),
    Scratch { context, builder: builder_context }: &mut Scratch,
    watch: &Watch,
) -> Result<(Piece, Attached), CompileError> {
    context.clear();
    context.func.signature = emit::region_signature();
    // Kept as distances from the first one otherwise, of which -1 means that there is none.
    context.func.params.ensure_base_srcloc(SourceLoc::new(0));
    let mut attached = Attached::default();
    let builder = FunctionBuilder::new(&mut context.func, builder_context);
    let config = isa.frontend_config();
    let emitted = emit::emit_region(kernel, plan, index, &mut attached, builder, config, (floats, pointers));
    let Emitted { sinkable, rare, loops } =
        emitted.map_err(|u| CompileError::Unsupported { line: u.line, what: u.what })?;
    emit::remove_unused(&mut context.func);
    emit::sink_rare(&mut context.func, &rare);
    emit::keep_aside(&mut context.func, &loops);
    emit::sink(&mut context.func, &sinkable);
    emit::place_users(&mut context.func);
    watch.check()?;
    Ok((Piece::compile(isa, context)?, attached))
}

/// What the scheduler must know of a region.
fn describe(kernel: &Kernel, plan: &Plan, index: usize, attached: Attached, begin: u32, stack_bytes: u32) -> Region {
    let region = &plan.regions[index];
    let joint = plan.nodes[region.head].joint(kernel);
    let line = joint.map_or(0, |inst| inst.line);
    let joint = joint.map(|inst| &inst.op);
    let exits = region.exits.iter().filter_map(|&n| plan.region_of_head[n]).map(|r| r as u32).collect();
    Region {
        begin,
        stack_bytes,
        exits,
        around: None,
        sole: emit::only_exit(plan, region).is_some(),
        waits: region.waits,
        line,
        barrier: joint.filter(|op| matches!(op, Op::Bar { .. })).map(|op| joint::site(op, kernel, plan)),
        meeting: joint::meeting(region.head, kernel, plan),
        attached,
    }
}
