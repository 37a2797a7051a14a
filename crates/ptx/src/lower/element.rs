//! Elements of arrays: `a[3]` and `a[%r1+2]`, as addresses without brackets of their own or as sources of `mov`.
//!
//! The index counts scalars, whatever vectors and dimensions the array is declared with. One in a register of up to 32 bits is
//! multiplied in 32 bits, and is no negative number where addresses have 64.
//!
//! Source: PTX ISA, "Array indexing"; sizes and widths: ptxas 13.5, by trial.

use super::body::{Body, Name};
use super::operand::{Arg, Base, Place};
use crate::constant::{self, Constant};
use crate::error::PtxError;
use crate::ir::{Address, IntOp, Op, Operand, RegTy, Space, Ty};
use crate::lexer::{Token, clip};
use crate::program::Item;

/// What stands in the brackets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Index<'a> {
    /// A register, to which the constant is added.
    reg: Option<&'a str>,
    constant: i64,
}

impl<'a> Body<'a, '_> {
    /// An element of `array`, whose bracket has been read.
    pub(super) fn parse_element(&mut self, array: &'a str) -> Result<Arg<'a>, PtxError> {
        let index = match self.lexer.next()? {
            Token::Word(word) if word != "WARP_SZ" => Index { reg: Some(word), constant: self.offset()?.unwrap_or(0) },
            first => match constant::parse(&mut self.lexer, first)? {
                Constant::Int { bits, .. } => Index { reg: None, constant: bits.cast_signed() },
                _ => return Err(self.invalid("an index is an integer")),
            },
        };
        self.lexer.expect(b']')?;
        Ok(Arg::Element(array, index))
    }

    /// An element's address, as an operand of that type.
    pub(super) fn element_address(&mut self, array: &'a str, index: Index<'a>, ty: Ty) -> Result<Operand, PtxError> {
        let bytes = self.element_bytes(array)?;
        let found = self.lookup(array)?;
        let Some(reg) = index.reg else {
            let base = self.address_of(array, found)?;
            return self.address_operand(base, index.constant.wrapping_mul(bytes), ty);
        };
        if matches!(found, Some(Name::Param(_) | Name::Slot(_))) {
            return Err(self.unsupported("an index in a register into parameters is not supported"));
        }
        let base = self.address_of(array, found)?;
        let base = self.address_operand(base, 0, ty)?;
        let ty = if ty.bits() == 64 { Ty::U64 } else { Ty::U32 };
        let offset = self.scaled(reg, index.constant, bytes, ty)?;
        let dst = self.new_reg(ty.reg())?;
        self.emit(Op::Int { op: IntOp::Add, ty, sat: false, dst, a: base, b: offset })?;
        Ok(Operand::Reg(dst))
    }

    /// An element as what a load or store names.
    pub(super) fn element_place(&mut self, array: &'a str, index: Index<'a>) -> Result<Place, PtxError> {
        let bytes = self.element_bytes(array)?;
        if index.reg.is_none() {
            return self.based(Base::Word(array), index.constant.wrapping_mul(bytes));
        }
        let space = match self.lookup(array)? {
            Some(Name::Shared(_)) => Space::Shared,
            Some(Name::Local(_)) => Space::Local,
            Some(_) => Space::Param,
            None => self.module_symbol(array)?.1,
        };
        let ty = if matches!(space, Space::Global | Space::Const) { Ty::U64 } else { Ty::U32 };
        let base = self.element_address(array, index, ty)?;
        Ok(Place { address: Address { base, offset: 0 }, space: Some(space), slot: None })
    }

    /// Bytes of an array's scalars.
    fn element_bytes(&mut self, array: &'a str) -> Result<i64, PtxError> {
        let bytes = match (self.declared(array)?, self.inst.program.names.get(array)) {
            (Some((_, element)), _) => element,
            (None, Some(Item::Variable(at))) => self.inst.program.variables[*at].element,
            (None, _) => None,
        };
        bytes.map(i64::from).ok_or_else(|| self.invalid(format!("'{}' is no array to be indexed", clip(array))))
    }

    /// `(reg + constant) * bytes` for an address of type `ty`.
    fn scaled(&mut self, name: &'a str, constant: i64, bytes: i64, ty: Ty) -> Result<Operand, PtxError> {
        let reg = self.any_reg(name)?;
        let (own, narrow) = match self.inst.graph.ty(reg) {
            RegTy::B16 => (Ty::U16, true),
            RegTy::B32 => (Ty::U32, false),
            RegTy::B64 => (Ty::U64, false),
            RegTy::Pred | RegTy::B128 => {
                return Err(self.invalid(format!("'{}' as an index, which is no integer", clip(name))));
            }
        };
        let wide = if narrow { Ty::U32 } else { own };
        let mut at = if narrow { self.converted(Operand::Reg(reg), own, wide)? } else { Operand::Reg(reg) };
        let constant = self.immediate(Arg::Int(constant.cast_unsigned()), wide)?;
        let shift = Operand::Imm(u64::from(bytes.trailing_zeros()));
        for (op, op_ty, b) in
            [(IntOp::Add, wide, constant), (IntOp::Shl, if wide == Ty::U64 { Ty::B64 } else { Ty::B32 }, shift)]
        {
            let dst = self.new_reg(wide.reg())?;
            self.emit(Op::Int { op, ty: op_ty, sat: false, dst, a: at, b })?;
            at = Operand::Reg(dst);
        }
        if wide.reg() == ty.reg() { Ok(at) } else { self.converted(at, wide, ty) }
    }

    fn converted(&mut self, a: Operand, src_ty: Ty, dst_ty: Ty) -> Result<Operand, PtxError> {
        let dst = self.new_reg(dst_ty.reg())?;
        let (round, to_integral, ftz, sat, relu) = (None, false, false, false, false);
        self.emit(Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu, dst, a })?;
        Ok(Operand::Reg(dst))
    }
}
