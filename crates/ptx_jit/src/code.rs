//! Compiling a kernel: analysis, emission, and the machine code with all that it refers to.

use std::sync::Arc;

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable, Flags};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module};
use parking_lot::Mutex;
use ptx::ir::{Kernel, Op, RegTy, Ty};
use ptx::launch::WARP;

use crate::CompileError;
use crate::analysis::{self, Plan, operands};
use crate::emit::{self, Attached};
use crate::run::context::Context;
use crate::run::cta::meet::Meeting;
use crate::run::joint;

/// The function of a region: context, first warp, end of warps; gives the exits taken, as bits.
pub(crate) type RegionFn = extern "C" fn(*mut Context, u64, u64) -> u64;

/// A compiled kernel.
pub(crate) struct Compiled {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) plan: Plan,
    pub(crate) regions: Vec<RegionFn>,
    /// Regions that each region's exits lead to.
    pub(crate) exits: Vec<Vec<usize>>,
    /// The barrier at the head of each region.
    pub(crate) barriers: Vec<Option<*const joint::Site>>,
    /// The warp operation at the head of each region, if it waits for lanes.
    pub(crate) meetings: Vec<Option<Meeting>>,
    /// Thread indices x, y, z of all threads, padded to whole warps.
    pub(crate) tids: Vec<u32>,
    /// Owns what `barriers` and the machine code point to.
    #[expect(dead_code, reason = "kept alive for machine code")]
    attached: Attached,
    module: Mutex<Option<JITModule>>,
}

// SAFETY: machine code and what it refers to are never written after compilation; the module is locked.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("kernel", &self.kernel.name).field("regions", &self.regions.len()).finish()
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        if let Some(module) = self.module.get_mut().take() {
            // SAFETY: CTAs hold the code, so none of its functions runs or will.
            unsafe { module.free_memory() };
        }
    }
}

impl Compiled {
    /// Bytes of a CTA for registers and scheduling.
    pub(crate) fn state_bytes(&self) -> u64 {
        let warps = u64::from(self.plan.shape.threads().div_ceil(WARP));
        warps * (u64::from(self.plan.frame_bytes) + 4 * self.regions.len() as u64)
    }
}

fn unsupported(what: impl std::fmt::Display) -> CompileError {
    CompileError::Unsupported { line: 0, what: what.to_string() }
}

/// Registers all of whose readers are floating-point operations, which take a NaN of any kind, or hand it on to such
/// registers.
fn float_only(kernel: &Kernel) -> Vec<bool> {
    let mut only: Vec<bool> = kernel.regs.iter().map(|ty| matches!(ty, RegTy::B32 | RegTy::B64)).collect();
    let float = |ty: Ty| matches!(ty, Ty::F32 | Ty::F64);
    loop {
        let mut changed = false;
        for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
            let indifferent = match &inst.op {
                Op::Float { op, ty, .. } => float(*ty) && !matches!(op, ptx::ir::FloatOp::Copysign),
                Op::Fma { ty, .. } | Op::FloatUn { ty, .. } | Op::Setp { ty, .. } | Op::Testp { ty, .. } => float(*ty),
                Op::Cvt { src_ty, .. } => float(*src_ty),
                Op::Mov { ty, dst, .. } | Op::Selp { ty, dst, .. } => {
                    kernel.regs[dst.0 as usize] == ty.reg() && only[dst.0 as usize]
                }
                _ => false,
            };
            if !indifferent {
                operands::inst_reads(inst, &mut |r| changed |= std::mem::take(&mut only[r.0 as usize]));
            }
        }
        if !changed {
            return only;
        }
    }
}

/// The host as a target.
pub(crate) fn isa() -> Result<OwnedTargetIsa, Box<dyn std::error::Error>> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("unwind_info", "false"),
        ("enable_probestack", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("regalloc_checker", "false"),
    ] {
        flags.set(name, value)?;
    }
    Ok(cranelift_native::builder()?.finish(Flags::new(flags))?)
}

/// Compiles `kernel` for CTAs of `block` threads.
pub(crate) fn compile(kernel: Arc<Kernel>, block: [u32; 3]) -> Result<Compiled, CompileError> {
    if !std::arch::is_x86_feature_detected!("fma") || !std::arch::is_x86_feature_detected!("avx2") {
        return Err(unsupported("a processor without AVX2 and FMA"));
    }
    let kernel = analysis::dead::without_dead_code(kernel);
    let plan = analysis::width::plan_widest(&kernel, block).map_err(unsupported)?;
    let isa = isa().map_err(unsupported)?;
    let mut module = JITModule::new(JITBuilder::with_isa(isa, cranelift_module::default_libcall_names()));
    let mut attached = Attached::default();
    let float_only = float_only(&kernel);
    let mut builder_context = FunctionBuilderContext::new();
    let mut ids = Vec::new();
    let mut context = module.make_context();
    for index in 0..plan.regions.len() {
        context.func.signature = emit::region_signature();
        let builder = FunctionBuilder::new(&mut context.func, &mut builder_context);
        let config = module.target_config();
        let emitted = emit::emit_region(&kernel, &plan, index, &mut attached, builder, config, &float_only);
        emitted.map_err(|u| CompileError::Unsupported { line: u.line, what: u.what })?;
        let name = format!("region{index}");
        let id = module.declare_function(&name, Linkage::Local, &context.func.signature).map_err(unsupported)?;
        module.define_function(id, &mut context).map_err(|e| unsupported(format!("{e:?}")))?;
        ids.push(id);
        module.clear_context(&mut context);
    }
    module.finalize_definitions().map_err(unsupported)?;
    let regions = ids
        .into_iter()
        .map(|id| {
            let address = module.get_finalized_function(id);
            // SAFETY: the function was compiled with the signature that `RegionFn` states.
            unsafe { std::mem::transmute::<*const u8, RegionFn>(address) }
        })
        .collect();
    let exits = plan.regions.iter().map(|r| r.exits.iter().filter_map(|&n| plan.region_of_head[n]).collect()).collect();
    let mut barriers = Vec::new();
    for region in &plan.regions {
        let site = plan.nodes[region.head].joint(&kernel).filter(|i| matches!(i.op, Op::Bar { .. })).map(|inst| {
            attached.joints.push(Box::new(joint::Site::new(&inst.op, &kernel, &plan)));
            attached.joints.last().map_or(std::ptr::null(), |b| std::ptr::from_ref::<joint::Site>(b))
        });
        barriers.push(site);
    }
    let meetings =
        plan.regions.iter().map(|r| meeting(&plan.nodes[r.head].joint(&kernel)?.op, &kernel, &plan)).collect();
    let tids = thread_table(block);
    Ok(Compiled { kernel, plan, regions, exits, barriers, meetings, tids, attached, module: Mutex::new(Some(module)) })
}

/// What a warp operation waits for.
fn meeting(op: &Op, kernel: &Kernel, plan: &Plan) -> Option<Meeting> {
    let mask = match op {
        Op::BarWarp { mask }
        | Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => *mask,
        _ => return None,
    };
    Some(Meeting { mask: joint::Slot::new(mask, kernel, plan), barrier: matches!(op, Op::BarWarp { .. }) })
}

/// Thread indices x of all threads, then y, then z; each padded to whole warps.
fn thread_table(block: [u32; 3]) -> Vec<u32> {
    let threads: u32 = block.iter().product();
    let padded = threads.next_multiple_of(WARP);
    let [x, y, _] = block;
    let row = |f: &dyn Fn(u32) -> u32| (0..padded).map(f).collect::<Vec<_>>();
    [row(&|t| t % x), row(&|t| t / x % y), row(&|t| t / x / y)].concat()
}
