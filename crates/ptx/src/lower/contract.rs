//! Contraction: a product and the sum that adds it, both written without a rounding, become one fused multiply-add, as the
//! vendor's assembler makes it unless it is told otherwise (`-fmad=false` writes `.rn`; CU_JIT_FMA).
//!
//! Within a block, and into every sum that uses the product; the product stays, for engines drop what nobody reads. Both
//! must have the same type and flush alike. A saturating product is rounded before it is clamped, so it is not fused.

use super::body::Body;
use crate::error::PtxError;
use crate::ir::{FloatOp, FloatUnOp, IntOp, Op, Operand, Round, Ty};
use crate::operands::writes;

/// A product that is still what its operands give.
#[derive(Clone, Copy, Debug)]
struct Product {
    ty: Ty,
    ftz: bool,
    a: Operand,
    b: Operand,
    block: usize,
    /// Versions of the result and of the operands when it was made.
    made: [u32; 3],
}

/// The products that sums may be fused with.
#[derive(Debug, Default)]
pub(super) struct Contraction {
    /// Counts the writes of each register.
    versions: Vec<u32>,
    /// The last product in each register.
    products: Vec<Option<Product>>,
}

impl Contraction {
    /// There is one more register.
    pub(super) fn register(&mut self) {
        self.versions.push(0);
        self.products.push(None);
    }

    /// An operation is appended: what it writes is no longer what it was.
    pub(super) fn written(&mut self, op: &Op) {
        for reg in writes(op) {
            self.versions[reg.0 as usize] = self.versions[reg.0 as usize].wrapping_add(1);
        }
    }

    fn version(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Reg(reg) => self.versions[reg.0 as usize],
            Operand::Imm(_) => 0,
        }
    }

    /// Keeps a product that was appended to `block`.
    pub(super) fn keep(&mut self, op: &Op, block: usize) {
        let Op::Float { op: FloatOp::Mul, ty, round: Round::Rn, ftz, sat: false, dst, a, b } = *op else { return };
        // One that overwrites its own operand cannot be made again.
        if ![a, b].contains(&Operand::Reg(dst)) {
            let made = [Operand::Reg(dst), a, b].map(|o| self.version(o));
            self.products[dst.0 as usize] = Some(Product { ty, ftz, a, b, block, made });
        }
    }

    fn product(&self, operand: Operand, ty: Ty, ftz: bool, block: usize) -> Option<Product> {
        let Operand::Reg(reg) = operand else { return None };
        let product = self.products[reg.0 as usize]?;
        let now = [operand, product.a, product.b].map(|o| self.version(o));
        let same = product.ty == ty && product.ftz == ftz && product.block == block && product.made == now;
        same.then_some(product)
    }
}

impl Body<'_, '_> {
    /// Appends a product, sum or difference that was written without a rounding.
    pub(super) fn emit_loose(&mut self, op: Op) -> Result<(), PtxError> {
        let op = if self.inst.program.contracts { self.fused(op)? } else { op };
        let (block, _) = self.emit(op.clone())?;
        if self.guard.is_none() {
            self.inst.graph.contraction.keep(&op, block);
        }
        Ok(())
    }

    /// The sum as a fused multiply-add, if it adds a product.
    fn fused(&mut self, op: Op) -> Result<Op, PtxError> {
        let Op::Float { op: kind @ (FloatOp::Add | FloatOp::Sub), ty, round: Round::Rn, ftz, sat, dst, a, b } = op
        else {
            return Ok(op);
        };
        let Some(block) = self.inst.graph.block() else { return Ok(op) };
        let product = |operand| self.inst.graph.contraction.product(operand, ty, ftz, block);
        let (a, b, c) = match (product(a), product(b)) {
            (Some(p), _) => (p.a, p.b, if kind == FloatOp::Sub { self.negated(b, ty)? } else { b }),
            (None, Some(p)) => (if kind == FloatOp::Sub { self.negated(p.a, ty)? } else { p.a }, p.b, a),
            (None, None) => return Ok(op),
        };
        Ok(Op::Fma { ty, round: Round::Rn, ftz, sat, relu: false, dst, a, b, c })
    }

    fn negated(&mut self, a: Operand, ty: Ty) -> Result<Operand, PtxError> {
        let (bits, sign) = match ty {
            Ty::F16 | Ty::BF16 => (Ty::B16, 0x8000),
            Ty::F16x2 | Ty::BF16x2 => (Ty::B32, 0x8000_8000),
            Ty::F32 => (Ty::B32, 0x8000_0000),
            Ty::F32x2 => (Ty::B64, 0x8000_0000_8000_0000),
            _ => (Ty::B64, 1 << 63),
        };
        if let Operand::Imm(value) = a {
            return Ok(Operand::Imm(value ^ sign));
        }
        let dst = self.new_reg(ty.reg())?;
        // Bits are looked at only where the type has no negation: engines leave NaNs as they are until then.
        self.emit(match ty {
            Ty::F32 | Ty::F64 => Op::FloatUn { op: FloatUnOp::Neg, ty, ftz: false, dst, a },
            _ => Op::Int { op: IntOp::Xor, ty: bits, sat: false, dst, a, b: Operand::Imm(sign) },
        })?;
        Ok(Operand::Reg(dst))
    }
}
