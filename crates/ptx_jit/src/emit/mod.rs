//! IR to Cranelift: one function per region, vectors of four 32-bit lanes, several of them per chunk.

mod ahead;
mod alu;
mod aside;
mod ask;
mod atomic;
mod bounds;
mod consecutive;
mod convert;
mod directed;
mod fields;
mod fixed;
mod float;
mod flow;
mod gather;
mod image;
mod int;
pub(crate) mod joint;
mod memory;
mod moves;
mod rare;
mod settle;
mod sink;
mod stepped;
pub(crate) mod transparent;
mod unused;
mod value;
mod warps;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, Endianness, ExtFuncData, ExternalName, FuncRef, Function, Inst, InstBuilder,
    InstructionData, MemFlagsData, Opcode, Signature, SourceLoc, StackSlot, StackSlotData, StackSlotKind, Type,
    UserExternalName, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
use ptx::ir::{Kernel, Reg, RegTy};

use crate::abi::context::at;
use crate::abi::place::{Lanes, Place};
use crate::abi::{Attached, Helper, Key, MAX_ELEMENTS, OfLine};
use crate::analysis::classes::Class;
use crate::analysis::floats::Floats;
use crate::analysis::graph::NodeId;
use crate::analysis::pointers::{Base, Pointers};
use crate::analysis::regset::RegSet;
use crate::analysis::steps::Steps;
use crate::analysis::{Plan, Region};

pub(crate) use value::Val;

/// What cannot be compiled: the PTX line and what stands there.
#[derive(Debug)]
pub(crate) struct Unsupported {
    pub(crate) line: u32,
    pub(crate) what: String,
}

// Invariants of the function, loaded at its entry.
#[derive(Clone, Copy, Debug)]
struct Invariants {
    ctx: Value,
    delta: Value,
    window_lo: Value,
    /// The same, negative: to add it takes one instruction.
    below_window: Value,
    window_bytes: Value,
    shared: Value,
    shared_bytes: Value,
    params: Value,
}

/// The chunk being run: addresses into the warp's frame, and its position.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    warp: Value,
    frame: Value,
    /// Index of the chunk in its warp.
    index: Value,
    /// Base of this chunk's part of arrays of 4, and of 8 bytes per lane, and of its scalars.
    base4: Value,
    base8: Value,
    scalars: Value,
    /// Linear index of its first thread, i32.
    thread: Value,
    /// The active lanes of the chunk at its entry, i32.
    entry: Value,
}

/// Lanes that an operation acts on, where that may not be all.
#[derive(Clone, Debug)]
struct Mask {
    /// One bit per lane, i32.
    bits: Value,
    /// All ones or zero per lane.
    lanes: Vec<Value>,
}

/// Two lanes of 32 bits that have come out of a vector together.
#[derive(Clone, Copy, Debug)]
struct TwoLanes {
    block: Option<Block>,
    vector: Value,
    /// The vector's lower half, or the upper one.
    half: u8,
    /// What the block has taken out, 64 bits.
    value: Value,
}

pub(crate) struct Emit<'a, 'f> {
    k: &'a Kernel,
    plan: &'a Plan,
    region: &'a Region,
    /// The region's number.
    number: usize,
    attached: &'a mut Attached,
    /// Functions outside that the region calls so far: helpers, and their entries that change no register.
    functions: HashMap<(Helper, bool), FuncRef>,
    b: FunctionBuilder<'f>,
    inv: Invariants,
    chunk: Chunk,
    vars: HashMap<Reg, Vec<Variable>>,
    /// Active lanes of the node being emitted; none: all.
    exec: Option<Mask>,
    /// Lanes for which the guard of the current instruction holds; none: all.
    guard: Option<Vec<Value>>,
    scratch: StackSlot,
    /// Rows for accesses to textures and surfaces, once there is one.
    image_rows: Option<StackSlot>,
    line: u32,
    /// Vectors of 32-bit lanes per chunk. One of a chunk of one lane: what has no scalar form is done in its first lane.
    vectors: usize,
    unsupported: Option<Unsupported>,
    /// Bits of the exits taken so far.
    exits: StackSlot,
    /// The head to which all lanes go, if they go nowhere else: it is always taken.
    only_exit: Option<NodeId>,
    /// The function's first block, which ends already.
    entry: Block,
    /// What has been computed there for checks of addresses; see `memory`.
    places: Vec<(memory::Room, Value)>,
    /// The same for registers and addresses that are the same in the whole grid, and for what may be accessed by them; see `fixed`.
    fixed: HashMap<Reg, Value>,
    bases: Vec<(Base, Value)>,
    rooms: Vec<(fixed::Reach, fixed::Room)>,
    /// The lower one of two limits.
    least: Vec<([Value; 2], Value)>,
    /// Numbers of 32 bits that were loaded as one of 64, and that: with their signs, or without.
    loaded: HashMap<(Value, bool), Value>,
    /// 64-bit registers that have been made of an index in the node so far: the register in which that was extended, and the index, of 32
    /// bits, a scalar or in lanes.
    indices: HashMap<Reg, (Reg, Val)>,
    /// Masks of equal lanes that a block has, by the block and the mask of those that differ.
    opposites: HashMap<(Block, Value), Value>,
    /// What has come out of a vector last.
    two_lanes: Option<TwoLanes>,
    /// How many instructions there may still be code of their own for that some lanes do in full code.
    detours: usize,
    /// Registers that are read from their homes wherever they are needed: the region changes none of them, and has no room for them.
    stays: RegSet,
    /// Ranges that have been checked in the node so far; see `memory`.
    checked: Vec<memory::Checked>,
    /// The instructions of the node from the current one on.
    upcoming: &'a [ptx::ir::Inst],
    /// Inside code that a scalar guard may skip.
    skippable: bool,
    /// Inside code that there is twice; see `ask`.
    twice: bool,
    /// Inside that of the two that hardly ever runs.
    rarely: bool,
    /// The innermost loop that the node is in, as positions of its first node and its last one.
    looping: Option<(usize, usize)>,
    /// Where warps of a row of CTAs run by turns: how registers grow from one CTA to the next.
    steps: Option<Steps>,
    /// What has been fetched for them; see `ahead`.
    fetched: Vec<(Reg, i64)>,
    /// The same from trip to trip of a loop, and what has been fetched in the node for later ones: places as values and what is added to them.
    trips: Option<((usize, usize), Steps)>,
    fetched_trips: Vec<(Value, i64)>,
    floats: &'a Floats,
    pointers: &'a Pointers,
    /// Loads that [`sink`] may move.
    sinkable: Vec<Inst>,
    /// Code for what [`ask`] has found not to hold.
    rare: Vec<rare::Rare>,
    /// Nodes of loops that are in the region as a whole.
    looped: HashSet<NodeId>,
    /// Numbers of the blocks of full code of those.
    loops: Vec<Range<u32>>,
    /// Registers that the region may write.
    written: RegSet,
    /// These, and registers that it reads before it writes them.
    touched: RegSet,
}

/// Bytes of the stack slot for arguments and results of helpers: rows of a word for each lane of a chunk, which may be a warp. An access
/// has a row of addresses, and one for each of its elements.
const SCRATCH_BYTES: u32 = (1 + MAX_ELEMENTS) * 32 * 8;

fn little() -> MemFlagsData {
    MemFlagsData::new().with_endianness(Endianness::Little)
}

/// Memory of the engine itself: always there.
fn trusted() -> MemFlagsData {
    MemFlagsData::trusted()
}

/// Memory of the engine itself with vectors at any address.
fn own() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Emit<'_, '_> {
    fn lanes_per_chunk(&self) -> usize {
        self.vectors * 4
    }

    fn full_bits(&self) -> i64 {
        (1_i64 << self.plan.lanes()) - 1
    }

    fn reg_ty(&self, r: Reg) -> RegTy {
        self.k.regs[r.0 as usize]
    }

    fn class(&self, r: Reg) -> Class {
        self.plan.classes[r.0 as usize]
    }

    fn i32(&mut self, v: i64) -> Value {
        self.b.ins().iconst(types::I32, v & 0xffff_ffff)
    }

    fn i64(&mut self, v: i64) -> Value {
        self.b.ins().iconst(types::I64, v)
    }

    /// The vector type of a register's lanes.
    fn vector_ty(ty: RegTy) -> Type {
        match ty {
            RegTy::B64 | RegTy::B128 => types::I64X2,
            _ => types::I32X4,
        }
    }

    /// Number of vectors that hold a chunk's lanes of a register.
    fn vector_count(&self, ty: RegTy) -> usize {
        match ty {
            RegTy::B64 => self.vectors * 2,
            RegTy::B128 => self.vectors * 4,
            _ => self.vectors,
        }
    }

    /// The types of the Cranelift values that hold a register.
    fn component_types(&self, r: Reg) -> Vec<Type> {
        let ty = self.reg_ty(r);
        match self.class(r) {
            Class::Same | Class::Unknown if self.is_float(r) => {
                vec![if ty == RegTy::B64 { types::F64 } else { types::F32 }]
            }
            Class::Same | Class::Unknown => vec![match ty {
                RegTy::Pred => types::I8,
                RegTy::B16 | RegTy::B32 => types::I32,
                _ => types::I64,
            }],
            Class::Affine { .. } => vec![types::I32],
            Class::Wide { .. } => vec![types::I32, types::I64],
            Class::Linear | Class::Extended => vec![types::I64; 2],
            Class::Varying => vec![Self::vector_ty(ty); self.vector_count(ty)],
        }
    }

    /// Is the register kept where floating-point operations have their operands? Where lanes run one after another, and all that is
    /// written to it are such numbers.
    fn is_float(&self, r: Reg) -> bool {
        self.plan.lanes() == 1 && self.floats.numbers[r.0 as usize]
    }

    fn variables(&mut self, r: Reg) -> Vec<Variable> {
        if let Some(list) = self.vars.get(&r) {
            return list.clone();
        }
        let list: Vec<Variable> = self.component_types(r).into_iter().map(|ty| self.b.declare_var(ty)).collect();
        self.vars.insert(r, list.clone());
        list
    }

    /// The current value of a register.
    fn get(&mut self, r: Reg) -> Val {
        let values: Vec<Value> = if self.stays.contains(r) {
            self.load_home(r)
        } else {
            self.variables(r).into_iter().map(|v| self.b.use_var(v)).collect()
        };
        match self.class(r) {
            Class::Same | Class::Unknown => Val::Same(self.integer_bits(values[0])),
            Class::Affine { stride } => Val::Affine { base: values[0], stride },
            Class::Wide { stride, k, signed, .. } => Val::Wide { b: values[0], c: values[1], stride, k, signed },
            Class::Linear => Val::Linear { base: values[0], step: values[1] },
            Class::Extended => Val::Extended { parts: values[0], c: values[1] },
            Class::Varying => Val::Lanes(values),
        }
    }

    /// Writes a register, in the lanes of the guard.
    fn set(&mut self, r: Reg, val: Val) {
        let ty = self.reg_ty(r);
        let mut parts = self.coerce(val, r);
        if let (Some(guard), Class::Varying) = (self.guard.clone(), self.class(r)) {
            let old = self.get(r);
            let old = self.lanes(&old, ty);
            parts = self.blend(&guard, &parts, &old, ty);
        }
        if self.is_float(r) {
            parts[0] = self.floating(parts[0]);
        }
        let vars = self.variables(r);
        for (var, part) in vars.into_iter().zip(parts) {
            self.b.def_var(var, part);
        }
        self.checked.retain(|c| c.base != r);
    }

    /// `mask ? new : old`, for lanes of a register of type `ty`.
    fn blend(&mut self, mask: &[Value], new: &[Value], old: &[Value], ty: RegTy) -> Vec<Value> {
        let masks = self.mask_for(mask, ty);
        let picked = masks.iter().cycle().zip(new.iter().zip(old));
        picked.map(|(&m, (&n, &o))| self.b.ins().bitselect(m, n, o)).collect()
    }

    /// A mask of 32-bit lanes as one for lanes of `ty`.
    fn mask_for(&mut self, mask: &[Value], ty: RegTy) -> Vec<Value> {
        match ty {
            RegTy::B64 | RegTy::B128 => mask
                .iter()
                .flat_map(|&m| {
                    let low = self.b.ins().swiden_low(m);
                    let high = self.b.ins().swiden_high(m);
                    [low, high]
                })
                .collect(),
            _ => mask.to_vec(),
        }
    }

    /// One bit per lane of a mask, i32.
    fn mask_bits(&mut self, mask: &[Value]) -> Value {
        let mut bits = None;
        for (i, &m) in mask.iter().enumerate() {
            let part = self.b.ins().vhigh_bits(types::I32, m);
            let part = if i == 0 { part } else { self.b.ins().ishl_imm_u(part, 4 * i as i64) };
            bits = Some(match bits {
                None => part,
                Some(b) => self.b.ins().bor(b, part),
            });
        }
        match bits {
            Some(b) => b,
            None => self.i32(0),
        }
    }

    /// A mask from one bit per lane.
    fn bits_mask(&mut self, bits: Value) -> Vec<Value> {
        let splat = self.b.ins().splat(types::I32X4, bits);
        (0..self.vectors)
            .map(|i| {
                let select = self.vector_const([0, 1, 2, 3].map(|l| 1_u32 << (4 * i + l)));
                let hit = self.b.ins().band(splat, select);
                self.b.ins().icmp(cranelift_codegen::ir::condcodes::IntCC::Equal, hit, select)
            })
            .collect()
    }

    fn vector_const(&mut self, lanes: [u32; 4]) -> Value {
        let mut bytes = [0; 16];
        for (to, lane) in bytes.chunks_exact_mut(4).zip(lanes) {
            to.copy_from_slice(&lane.to_le_bytes());
        }
        let data = self.b.func.dfg.constants.insert(bytes.to_vec().into());
        self.b.ins().vconst(types::I32X4, data)
    }

    fn vector_const64(&mut self, lanes: [u64; 2]) -> Value {
        let mut bytes = [0; 16];
        for (to, lane) in bytes.chunks_exact_mut(8).zip(lanes) {
            to.copy_from_slice(&lane.to_le_bytes());
        }
        let data = self.b.func.dfg.constants.insert(bytes.to_vec().into());
        self.b.ins().vconst(types::I64X2, data)
    }

    fn cast(&mut self, ty: Type, v: Value) -> Value {
        if self.b.func.dfg.value_type(v) == ty {
            return v;
        }
        if let Some(from) = self.cast_from(v)
            && self.b.func.dfg.value_type(from) == ty
        {
            return from;
        }
        match (self.known(v), ty) {
            // Made without a detour.
            (Some(0), types::F32) => self.b.ins().f32const(0.0),
            (Some(0), types::F64) => self.b.ins().f64const(0.0),
            _ => self.b.ins().bitcast(ty, little(), v),
        }
    }

    /// The value of which this one is the bits, of another type.
    fn cast_from(&self, v: Value) -> Option<Value> {
        let dfg = &self.b.func.dfg;
        match dfg.insts[dfg.value_def(dfg.resolve_aliases(v)).inst()?] {
            InstructionData::LoadNoOffset { opcode: Opcode::Bitcast, arg, .. } => Some(arg),
            _ => None,
        }
    }

    /// Is it plain to see that all lanes of a vector are the same?
    fn is_shared(&self, v: Value) -> bool {
        let dfg = &self.b.func.dfg;
        let from = self.cast_from(v).unwrap_or(v);
        let inst = dfg.value_def(dfg.resolve_aliases(from)).inst();
        inst.is_some_and(|inst| matches!(dfg.insts[inst].opcode(), Opcode::Splat | Opcode::Vconst))
    }

    /// The number that a scalar is, or all lanes of a vector are, where that is plain to see.
    fn known(&self, v: Value) -> Option<u64> {
        let dfg = &self.b.func.dfg;
        match dfg.insts[dfg.value_def(dfg.resolve_aliases(v)).inst()?] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits().cast_unsigned()),
            InstructionData::Unary { opcode: Opcode::Splat, arg } => self.known(arg),
            _ => None,
        }
    }

    // The frame.

    /// Address and offset of vector `i` of a varying register's home in this chunk.
    fn home_vector(&self, ty: RegTy, offset: u32, i: usize) -> (Value, i32) {
        let offset = offset as i32;
        match ty {
            RegTy::B64 => (self.chunk.base8, offset + 16 * i as i32),
            RegTy::B128 => {
                let half = self.vectors * 2;
                (self.chunk.base8, offset + (i / half) as i32 * 256 + 16 * (i % half) as i32)
            }
            _ => (self.chunk.base4, offset + 16 * i as i32),
        }
    }

    /// Reads a register's home.
    fn load_home(&mut self, r: Reg) -> Vec<Value> {
        let Some(home) = self.plan.home(r) else { return Vec::new() };
        let ty = self.reg_ty(r);
        let types = self.component_types(r).into_iter().enumerate();
        types
            .map(|(i, part)| {
                let (base, offset) = match self.class(r) {
                    Class::Varying => self.home_vector(ty, home.offset, i),
                    _ => (self.chunk.scalars, home.offset as i32 + 8 * i as i32),
                };
                self.b.ins().load(part, own(), base, offset)
            })
            .collect()
    }

    /// Reads a register's home into its variables, if the region does not read it there.
    fn reload(&mut self, r: Reg) {
        if self.plan.home(r).is_none() || self.stays.contains(r) {
            return;
        }
        let values = self.load_home(r);
        for (var, v) in self.variables(r).into_iter().zip(values) {
            self.b.def_var(var, v);
        }
    }

    /// Writes a register's variables to its home, in the active lanes.
    fn spill(&mut self, r: Reg) {
        let Some(home) = self.plan.home(r) else { return };
        if self.stays.contains(r) {
            // What a joint operation has written there.
            return;
        }
        let ty = self.reg_ty(r);
        let vars = self.variables(r);
        let mut parts: Vec<Value> = vars.into_iter().map(|v| self.b.use_var(v)).collect();
        if self.class(r) == Class::Varying
            && let Some(exec) = self.exec.clone()
        {
            let old: Vec<Value> = (0..parts.len())
                .map(|i| {
                    let (base, offset) = self.home_vector(ty, home.offset, i);
                    self.b.ins().load(Self::vector_ty(ty), own(), base, offset)
                })
                .collect();
            parts = self.blend(&exec.lanes, &parts, &old, ty);
        }
        for (i, part) in parts.into_iter().enumerate() {
            let (base, offset) = match self.class(r) {
                Class::Varying => self.home_vector(ty, home.offset, i),
                _ => (self.chunk.scalars, home.offset as i32 + 8 * i as i32),
            };
            self.b.ins().store(own(), part, base, offset);
        }
    }

    // What accesses a tenant's memory, in case that fails.

    /// What `f` emits accesses memory for these lanes.
    fn for_lanes<R>(&mut self, lanes: Lanes, f: impl FnOnce(&mut Self) -> R) -> R {
        self.b.set_srcloc(SourceLoc::new(Place::new(self.line, lanes).0));
        let emitted = f(self);
        self.b.set_srcloc(SourceLoc::default());
        emitted
    }

    /// The lanes that access what there is one of for all active ones.
    fn active_lanes(&self) -> Lanes {
        let all = self.exec.is_none() && self.guard.is_none();
        if all || self.plan.lanes() == 1 { Lanes::One(0) } else { Lanes::Any }
    }

    /// Something for a helper, with the line that it is for.
    fn of_line<T>(&self, what: T) -> OfLine<T> {
        OfLine { line: self.line, what }
    }

    // Helpers.

    /// A function of the engine, or the entry to it that changes no register, with what it takes and returns.
    fn function(&mut self, helper: Helper, entry: bool, args: &[Value], returns: &[Type]) -> FuncRef {
        if let Some(&function) = self.functions.get(&(helper, entry)) {
            return function;
        }
        let params: Vec<Type> = args.iter().map(|&a| self.b.func.dfg.value_type(a)).collect();
        let signature = if entry { transparent::signature(&params) } else { ordinary(&params, returns) };
        let function = import(self.b.func, helper, entry, signature);
        self.functions.insert((helper, entry), function);
        function
    }

    /// Calls a Rust function.
    fn call(&mut self, helper: Helper, args: &[Value], returns: &[Type]) -> Option<Value> {
        let function = self.function(helper, false, args, returns);
        let call = self.b.ins().call(function, args);
        self.b.inst_results(call).first().copied()
    }

    /// Calls a Rust function that returns nothing, from where it is rarely called: all registers stay as they are. But
    /// where registers keep their values for long, a large kernel takes longer to compile.
    fn call_rarely(&mut self, helper: Helper, args: &[Value]) {
        let function = self.function(helper, self.vectors > 1 || self.plan.lanes() == 1, args, &[]);
        self.b.ins().call(function, args);
    }

    /// The key of what is attached next to a list of this length.
    fn key(&mut self, list: usize) -> Value {
        let Some(key) = Key::next(self.number, list) else {
            self.fail("more memory accesses and rare operations in a region than can be counted");
            return self.i32(0);
        };
        self.i32(key.0.into())
    }

    fn scratch_address(&mut self, offset: i32) -> Value {
        self.b.ins().stack_addr(types::I64, self.scratch, offset)
    }

    fn fail(&mut self, what: impl Into<String>) {
        let line = self.line;
        self.unsupported.get_or_insert(Unsupported { line, what: what.into() });
    }
}

/// The signature of a Rust function.
pub(crate) fn ordinary(params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.extend(params.iter().map(|&t| AbiParam::new(t)));
    signature.returns.extend(returns.iter().map(|&t| AbiParam::new(t)));
    signature
}

/// Names of functions outside: helpers, and entries to them.
pub(crate) const HELPERS: u32 = 0;
pub(crate) const ENTRIES: u32 = 1;

/// Declares a function outside, at any distance.
fn import(func: &mut Function, helper: Helper, entry: bool, signature: Signature) -> FuncRef {
    let namespace = if entry { ENTRIES } else { HELPERS };
    let name = func.declare_imported_user_function(UserExternalName::new(namespace, helper as u32));
    let signature = func.import_signature(signature);
    func.import_function(ExtFuncData { name: ExternalName::user(name), signature, colocated: false, patchable: false })
}

/// A place on the stack, aligned to its size, or to a vector if that is a multiple of one.
fn slot(func: &mut Function, bytes: u32) -> StackSlot {
    let align = bytes.trailing_zeros().min(4) as u8;
    func.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, align))
}

fn arg(v: Value) -> BlockArg {
    BlockArg::Value(v)
}

/// The signature of a region: context, first warp, end of warps; returns the exits taken.
pub(crate) fn region_signature() -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.extend([types::I64, types::I64, types::I64].map(AbiParam::new));
    signature.returns.push(AbiParam::new(types::I64));
    signature
}

pub(crate) use ahead::FETCH;
pub(crate) use aside::keep_aside;
pub(crate) use flow::{Emitted, emit_region, only_exit};
pub(crate) use rare::sink_rare;
pub(crate) use sink::{place_users, sink};
pub(crate) use unused::remove_unused;

fn context_load(b: &mut FunctionBuilder<'_>, ctx: Value, offset: i32) -> Value {
    b.ins().load(types::I64, trusted().with_readonly().with_can_move(), ctx, offset)
}

fn invariants(b: &mut FunctionBuilder<'_>, ctx: Value) -> Invariants {
    let window_lo = context_load(b, ctx, at::WINDOW_LO);
    Invariants {
        ctx,
        delta: context_load(b, ctx, at::DELTA),
        window_lo,
        below_window: b.ins().ineg(window_lo),
        window_bytes: context_load(b, ctx, at::WINDOW_BYTES),
        shared: context_load(b, ctx, at::SHARED),
        shared_bytes: context_load(b, ctx, at::SHARED_BYTES),
        params: context_load(b, ctx, at::PARAMS),
    }
}
