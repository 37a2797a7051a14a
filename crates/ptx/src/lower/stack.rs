//! What a function takes from the thread's stack while it runs: `alloca`, `stacksave`, `stackrestore`.
//!
//! Where a kernel has these, a register, `top`, says where the next allocation begins; always a multiple of 16. It begins
//! behind all that is at a fixed place. A function with such instructions, inlined or not, notes `top` where it begins and
//! takes it back where it returns. Frames of recursive functions (see [`super::units`]) and allocations share the stack:
//!
//! ```text
//!   sp -> +------------------------------+ of the function that runs
//!         | variables, registers kept    |
//!         | what it allocates            |
//!  top -> | its `sp`, in 16 bytes        |
//! next -> +------------------------------+ of a function that it calls
//! ```
//!
//! So no frame begins below `top`; and a function that is about to allocate first lifts `top` above its own frame: others,
//! which do not allocate, leave it where it was.

use super::body::Body;
use super::mods::Mods;
use super::operand::Arg;
use crate::error::PtxError;
use crate::ir::{Address, IntOp, Op, Operand, Order, Reg, RegTy, Space, Ty};

/// Every allocation's size is a multiple of it, and so is its place.
const GRANULE: u64 = 16;
/// Largest alignment that PTX allows.
const MAX_ALIGN: u64 = 1 << 23;
/// Stands for all sizes above: no stack is as large, and no sum with it wraps.
const MAX_BYTES: u64 = 1 << 30;

/// Registers of a kernel that allocates on its stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dynamic {
    /// Where the next allocation begins.
    pub(super) top: Reg,
    /// Marks where `top` is set first.
    pub(super) start: Reg,
}

/// Where a unit in a circle is about to allocate: `mark` stands for lifting `top` above its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) unit: usize,
    pub(super) mark: Reg,
}

impl Body<'_, '_> {
    /// At the begin of a function: what [`Body::close_stack`] wants, if the function allocates.
    pub(super) fn open_stack(&mut self, function: usize) -> Result<Option<Reg>, PtxError> {
        let Some(Dynamic { top, .. }) = self.inst.units.dynamic else { return Ok(None) };
        if !self.inst.layout.allocators.contains(&function) {
            return Ok(None);
        }
        let saved = self.new_reg(RegTy::B32)?;
        self.emit(Op::Mov { ty: Ty::U32, dst: saved, src: Operand::Reg(top) })?;
        let unit = self.inst.units.at;
        match self.inst.units.stack {
            Some(_) if self.inst.units.list[unit].circle.is_some() => {
                let mark = self.inst.graph.mark(self.line)?;
                self.inst.units.opened.push(Opened { unit, mark });
            }
            Some(stack) => _ = self.emit(higher(top, top, stack.sp))?,
            None => {}
        }
        Ok(Some(saved))
    }

    /// Where a function has returned: gives back what it allocated.
    pub(super) fn close_stack(&mut self, saved: Option<Reg>) -> Result<(), PtxError> {
        if let (Some(saved), Some(Dynamic { top, .. })) = (saved, self.inst.units.dynamic) {
            self.emit(Op::Mov { ty: Ty::U32, dst: top, src: Operand::Reg(saved) })?;
        }
        Ok(())
    }

    /// Before a function without a frame calls one that has one: the frame begins above what is allocated. The stack pointer
    /// as it was, if it is another now.
    pub(super) fn lift_stack(&mut self) -> Result<Option<Reg>, PtxError> {
        let (Some(stack), Some(dynamic)) = (self.inst.units.stack, self.inst.units.dynamic) else { return Ok(None) };
        let saved = self.new_reg(RegTy::B32)?;
        self.emit(Op::Mov { ty: Ty::U32, dst: saved, src: Operand::Reg(stack.sp) })?;
        self.emit(higher(stack.sp, stack.sp, dynamic.top))?;
        Ok(Some(saved))
    }

    /// `alloca.type ptr, size{, alignment};`
    pub(super) fn alloca(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.stack_type(m)?;
        self.count(2..=3)?;
        let align = match self.args.get(2) {
            None => GRANULE,
            Some(Arg::Int(align)) if align.is_power_of_two() && *align <= MAX_ALIGN => (*align).max(GRANULE),
            Some(_) => return Err(self.invalid("the alignment is no power of two up to 8388608")),
        };
        let (dst, size, top) = (self.dst(0, ty)?, self.src(1, ty)?, self.top()?);
        let bytes = self.whole_granules(size, ty)?;
        let base = if align == GRANULE {
            let base = self.new_reg(RegTy::B32)?;
            self.emit(Op::Mov { ty: Ty::U32, dst: base, src: Operand::Reg(top) })?;
            base
        } else {
            self.rounded_up(Operand::Reg(top), align)?
        };
        self.emit(sum(top, base, bytes))?;
        // What does not fit faults here, as a call does whose frame does not.
        self.emit(store(top, -4, Operand::Imm(0)))?;
        self.emit(resized(Ty::U32, ty, dst, base))?;
        Ok(())
    }

    /// `stacksave.type d;`
    pub(super) fn stacksave(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.stack_type(m)?;
        self.count(1..=1)?;
        let (dst, top) = (self.dst(0, ty)?, self.top()?);
        self.emit(resized(Ty::U32, ty, dst, top))?;
        Ok(())
    }

    /// `stackrestore.type a;`
    pub(super) fn stackrestore(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.stack_type(m)?;
        self.count(1..=1)?;
        let top = self.top()?;
        match self.src(0, ty)? {
            Operand::Reg(saved) => self.emit(resized(ty, Ty::U32, top, saved))?,
            Operand::Imm(_) => return Err(self.invalid("the stack pointer is not a register")),
        };
        Ok(())
    }

    fn stack_type(&self, m: &mut Mods<'_>) -> Result<Ty, PtxError> {
        match m.ty().map_err(|e| self.invalid(e))? {
            ty @ (Ty::U32 | Ty::U64) => Ok(ty),
            _ => Err(self.invalid("the type is neither .u32 nor .u64")),
        }
    }

    fn top(&self) -> Result<Reg, PtxError> {
        let dynamic = self.inst.units.dynamic.ok_or_else(|| self.unsupported("a stack that nobody asked for"))?;
        Ok(dynamic.top)
    }

    /// The bytes that an allocation takes, 32 bits wide: of nothing, too.
    fn whole_granules(&mut self, size: Operand, ty: Ty) -> Result<Operand, PtxError> {
        let size = match size {
            Operand::Imm(size) => return Ok(Operand::Imm(size.clamp(1, MAX_BYTES).next_multiple_of(GRANULE))),
            Operand::Reg(size) => size,
        };
        let bounded = self.new_reg(ty.reg())?;
        let bound = |op, a, b| Op::Int { op, ty, sat: false, dst: bounded, a: Operand::Reg(a), b: Operand::Imm(b) };
        self.emit(bound(IntOp::Min, size, MAX_BYTES))?;
        self.emit(bound(IntOp::Max, bounded, 1))?;
        let narrow = self.new_reg(RegTy::B32)?;
        self.emit(resized(ty, Ty::U32, narrow, bounded))?;
        Ok(Operand::Reg(self.rounded_up(Operand::Reg(narrow), GRANULE)?))
    }

    /// The next multiple of `step`, a power of two.
    fn rounded_up(&mut self, value: Operand, step: u64) -> Result<Reg, PtxError> {
        let dst = self.new_reg(RegTy::B32)?;
        let int = |op, ty, a, b: u64| Op::Int { op, ty, sat: false, dst, a, b: Operand::Imm(b) };
        let mask = u64::from(u32::MAX) & !(step - 1);
        self.emit(int(IntOp::Add, Ty::U32, value, step - 1))?;
        self.emit(int(IntOp::And, Ty::B32, Operand::Reg(dst), mask))?;
        Ok(dst)
    }
}

/// `dst = a + b`, of stack addresses.
pub(super) fn sum(dst: Reg, a: Reg, b: Operand) -> Op {
    Op::Int { op: IntOp::Add, ty: Ty::U32, sat: false, dst, a: Operand::Reg(a), b }
}

/// The higher of two stack addresses.
pub(super) fn higher(dst: Reg, a: Reg, b: Reg) -> Op {
    Op::Int { op: IntOp::Max, ty: Ty::U32, sat: false, dst, a: Operand::Reg(a), b: Operand::Reg(b) }
}

/// Stores a word on the stack.
pub(super) fn store(base: Reg, offset: i64, value: Operand) -> Op {
    let addr = Address { base: Operand::Reg(base), offset };
    Op::St { space: Space::Local, ty: Ty::U32, order: Order::Weak, srcs: vec![value], addr }
}

/// Loads a word from the stack.
pub(super) fn load(dst: Reg, base: Reg, offset: i64) -> Op {
    let addr = Address { base: Operand::Reg(base), offset };
    Op::Ld { space: Space::Local, ty: Ty::U32, order: Order::Weak, dsts: vec![Some(dst)], addr }
}

/// A stack address in another width.
fn resized(from: Ty, to: Ty, dst: Reg, a: Reg) -> Op {
    let a = Operand::Reg(a);
    if from == to {
        return Op::Mov { ty: to, dst, src: a };
    }
    Op::Cvt { dst_ty: to, src_ty: from, round: None, to_integral: false, ftz: false, sat: false, relu: false, dst, a }
}
