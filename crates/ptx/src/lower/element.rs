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
use crate::ir::{Address, IntOp, Operand, RegTy, Space, Ty};
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
        self.int(IntOp::Add, ty, base, offset)
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
        let at = Operand::Reg(reg);
        let (at, wide, bits) = match self.inst.graph.ty(reg) {
            RegTy::B16 => (self.converted(at, Ty::U16, Ty::U32)?, Ty::U32, Ty::B32),
            RegTy::B32 => (at, Ty::U32, Ty::B32),
            RegTy::B64 => (at, Ty::U64, Ty::B64),
            RegTy::Pred | RegTy::B128 => {
                return Err(self.invalid(format!("'{}' as an index, which is no integer", clip(name))));
            }
        };
        let constant = self.immediate(Arg::Int(constant.cast_unsigned()), wide)?;
        let sum = self.int(IntOp::Add, wide, at, constant)?;
        let offset = self.int(IntOp::Shl, bits, sum, Operand::Imm(u64::from(bytes.trailing_zeros())))?;
        if wide == ty { Ok(offset) } else { self.converted(offset, wide, ty) }
    }
}
