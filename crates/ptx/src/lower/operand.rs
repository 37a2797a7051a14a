//! Operands: as written, and as an instruction wants them.

use super::body::{Body, Name};
use super::element::Index;
use super::layout::RESERVED_BYTES;
use super::slots::Slot;
use crate::children;
use crate::constant::{self, Constant};
use crate::error::PtxError;
use crate::ir::{Address, IntOp, Op, Operand, PredRef, Reg, RegTy, SReg, Space, Ty};
use crate::lexer::{Token, clip};
use crate::program::{Item, VarSpace, handle};

/// Most operands of an instruction, and most elements of a vector: a longer list is no instruction.
const MOST: usize = 16;

/// An operand as written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Arg<'a> {
    /// A register, special register, symbol, label, or `_`.
    Word(&'a str),
    /// An element of a vector register that is named whole.
    Reg(Reg),
    /// `symbol+4`.
    Sum(&'a str, i64),
    /// `array[4]`.
    Element(&'a str, Index<'a>),
    /// `!%p`.
    Not(&'a str),
    /// `-%r1`.
    Negated(&'a str),
    /// `%r1|%p1`.
    Pair(&'a str, &'a str),
    /// An integer, negated if it was.
    Int(u64),
    /// A float literal: bits of an f32.
    Single(u32),
    /// A float literal: bits of an f64.
    Double(u64),
    /// `{a, b}`: so many elements of the pool from there.
    Vector(usize, usize),
    /// `[base+offset]`.
    Address(Base<'a>, i64),
    /// `[base+offset, {a, b}]`: so many elements of the pool from there.
    Coordinates(Base<'a>, i64, usize, usize),
}

/// The base of an address as written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Base<'a> {
    Word(&'a str),
    Absolute,
}

/// A resolved address.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Place {
    pub(super) address: Address,
    /// The space in which a named variable lives.
    pub(super) space: Option<Space>,
    /// The slot it names, and the offset there.
    pub(super) slot: Option<(Slot, i64)>,
}

impl<'a> Body<'a, '_> {
    /// Parses all operands, up to and including the semicolon.
    pub(super) fn parse_args(&mut self) -> Result<(), PtxError> {
        self.args.clear();
        self.pool.clear();
        if self.lexer.eat(b';')? {
            return Ok(());
        }
        loop {
            let arg = self.parse_arg()?;
            if self.args.len() == MOST {
                return Err(self.unsupported("too many operands"));
            }
            self.args.push(arg);
            let next = match self.lexer.next()? {
                // Memory is the same wherever it is read from.
                Token::Word(".unified") => self.lexer.next()?,
                next => next,
            };
            match next {
                Token::Punct(b',') => {}
                Token::Punct(b';') => return Ok(()),
                other => return Err(self.lexer.unexpected(&other, "',' or ';'")),
            }
        }
    }

    fn parse_arg(&mut self) -> Result<Arg<'a>, PtxError> {
        let token = self.lexer.next()?;
        match token {
            Token::Punct(b'{') => {
                let (from, len) = self.parse_vector()?;
                Ok(Arg::Vector(from, len))
            }
            Token::Punct(b'[') => self.parse_address(),
            _ => self.scalar(token),
        }
    }

    /// The elements of a vector whose brace has been read: so many of the pool from there.
    fn parse_vector(&mut self) -> Result<(usize, usize), PtxError> {
        let from = self.pool.len();
        loop {
            let element = self.parse_scalar()?;
            if self.pool.len() - from == MOST {
                return Err(self.unsupported("too many vector elements"));
            }
            self.pool.push(element);
            if !self.lexer.eat(b',')? {
                break;
            }
        }
        self.lexer.expect(b'}')?;
        Ok((from, self.pool.len() - from))
    }

    pub(super) fn parse_scalar(&mut self) -> Result<Arg<'a>, PtxError> {
        let token = self.lexer.next()?;
        self.scalar(token)
    }

    fn scalar(&mut self, token: Token<'a>) -> Result<Arg<'a>, PtxError> {
        Ok(match token {
            Token::Punct(b'!') if matches!(self.lexer.peek()?, Token::Word(w) if w != "WARP_SZ") => {
                Arg::Not(self.lexer.word("a predicate")?)
            }
            Token::Punct(b'-') if matches!(self.lexer.peek()?, Token::Word(w) if w != "WARP_SZ") => {
                Arg::Negated(self.lexer.word("a register")?)
            }
            Token::Word(word) if word != "WARP_SZ" => {
                if self.lexer.eat(b'|')? {
                    return Ok(Arg::Pair(word, self.lexer.word("a predicate")?));
                }
                if self.lexer.eat(b'[')? {
                    return self.parse_element(word);
                }
                match self.offset()? {
                    Some(offset) => Arg::Sum(word, offset),
                    None => Arg::Word(word),
                }
            }
            first => match constant::parse(&mut self.lexer, first)? {
                Constant::Int { bits, .. } => Arg::Int(bits),
                Constant::Single(bits) => Arg::Single(bits),
                Constant::Double(bits) => Arg::Double(bits),
            },
        })
    }

    /// Any number of `+ n` and `- n`.
    pub(super) fn offset(&mut self) -> Result<Option<i64>, PtxError> {
        let mut sum = None;
        loop {
            let negative = match self.lexer.peek()? {
                Token::Punct(b'+') => false,
                Token::Punct(b'-') => true,
                _ => return Ok(sum),
            };
            self.lexer.next()?;
            let value = constant::term(&mut self.lexer)?;
            let value = if negative { value.wrapping_neg() } else { value };
            sum = Some(sum.unwrap_or(0i64).wrapping_add(value));
        }
    }

    fn parse_address(&mut self) -> Result<Arg<'a>, PtxError> {
        let token = self.lexer.next()?;
        let (base, first) = match token {
            Token::Word(w) => (Base::Word(w), 0),
            first => match constant::parse(&mut self.lexer, first)? {
                Constant::Int { bits, .. } => (Base::Absolute, bits.cast_signed()),
                _ => return Err(self.lexer.unexpected(&first, "an address")),
            },
        };
        let offset = self.offset()?.unwrap_or(0).wrapping_add(first);
        if self.lexer.eat(b',')? {
            self.lexer.expect(b'{')?;
            let (from, len) = self.parse_vector()?;
            self.lexer.expect(b']')?;
            return Ok(Arg::Coordinates(base, offset, from, len));
        }
        self.lexer.expect(b']')?;
        Ok(Arg::Address(base, offset))
    }

    /// The instruction must have this many operands.
    pub(super) fn count(&self, counts: std::ops::RangeInclusive<usize>) -> Result<(), PtxError> {
        if counts.contains(&self.args.len()) {
            return Ok(());
        }
        Err(self.invalid(format!("wrong number of operands: {}", self.args.len())))
    }

    /// Operand `at`.
    pub(super) fn arg(&self, at: usize) -> Result<Arg<'a>, PtxError> {
        self.args.get(at).copied().ok_or_else(|| self.invalid("an operand is missing"))
    }

    /// The register of that name; its class must be `class`.
    pub(super) fn reg_of(&mut self, name: &'a str, class: RegTy) -> Result<Reg, PtxError> {
        let reg = self.any_reg(name)?;
        self.checked_class(name, reg, class)
    }

    fn checked_class(&self, name: &str, reg: Reg, class: RegTy) -> Result<Reg, PtxError> {
        if self.inst.graph.ty(reg) == class {
            Ok(reg)
        } else {
            Err(self.invalid(format!("register '{}' has the wrong type for this instruction", clip(name))))
        }
    }

    /// The register of that name.
    pub(super) fn any_reg(&mut self, name: &'a str) -> Result<Reg, PtxError> {
        match self.lookup(name)? {
            Some(Name::Reg(reg)) => Ok(reg),
            Some(_) => Err(self.invalid(format!("'{}' is not a register", clip(name)))),
            None => Err(self.wrong(format!("unknown symbol '{}'", clip(name)))),
        }
    }

    /// Operand `at` as the destination of type `ty`; `_` discards the result.
    pub(super) fn dst(&mut self, at: usize, ty: Ty) -> Result<Reg, PtxError> {
        match self.arg(at)? {
            Arg::Word("_") => self.new_reg(ty.reg()),
            Arg::Word(name) => self.reg_of(name, ty.reg()),
            _ => Err(self.invalid("the destination is not a register")),
        }
    }

    /// Operand `at` as a destination at least as wide as `ty`.
    pub(super) fn wide_dst(&mut self, at: usize, ty: Ty) -> Result<Reg, PtxError> {
        match self.arg(at)? {
            Arg::Word("_") => self.new_reg(ty.reg()),
            Arg::Word(name) => self.wide_reg(name, ty),
            _ => Err(self.invalid("the destination is not a register")),
        }
    }

    /// The register of that name, at least as wide as `ty`.
    pub(super) fn wide_reg(&mut self, name: &'a str, ty: Ty) -> Result<Reg, PtxError> {
        let reg = self.any_reg(name)?;
        if fits(ty, self.inst.graph.ty(reg)) {
            Ok(reg)
        } else {
            Err(self.invalid(format!("register '{}' is too narrow for this instruction", clip(name))))
        }
    }

    /// Operand `at` as a destination `d|p` or `d`: the register and the predicate, `None` where missing or `_`.
    pub(super) fn dst_pair(&mut self, at: usize, ty: Ty) -> Result<(Option<Reg>, Option<Reg>), PtxError> {
        let (first, second) = match self.arg(at)? {
            Arg::Pair(first, second) => (first, Some(second)),
            Arg::Word(first) => (first, None),
            _ => return Err(self.invalid("the destination is not a register")),
        };
        let first = if first == "_" { None } else { Some(self.reg_of(first, ty.reg())?) };
        let second = match second {
            None | Some("_") => None,
            Some(name) => Some(self.reg_of(name, RegTy::Pred)?),
        };
        Ok((first, second))
    }

    /// Operand `at` as a source of type `ty`.
    pub(super) fn src(&mut self, at: usize, ty: Ty) -> Result<Operand, PtxError> {
        let arg = self.arg(at)?;
        self.source(arg, ty)
    }

    /// An operand as a source of type `ty`.
    pub(super) fn source(&mut self, arg: Arg<'a>, ty: Ty) -> Result<Operand, PtxError> {
        match arg {
            Arg::Word(name) => match self.lookup(name)? {
                Some(Name::Reg(reg)) => Ok(Operand::Reg(self.checked_class(name, reg, ty.reg())?)),
                found => self.symbol_or_special(name, found, ty),
            },
            Arg::Reg(reg) => Ok(Operand::Reg(self.checked_class("of a vector", reg, ty.reg())?)),
            Arg::Not(name) if ty == Ty::Pred => {
                let reg = self.reg_of(name, RegTy::Pred)?;
                let dst = self.new_reg(RegTy::Pred)?;
                self.emit(Op::IntUn { op: crate::ir::IntUnOp::Not, ty, dst, a: Operand::Reg(reg) })?;
                Ok(Operand::Reg(dst))
            }
            Arg::Sum(name, offset) => {
                let found = self.lookup(name)?;
                if let Some(Name::Reg(reg)) = found {
                    let reg = self.checked_class(name, reg, ty.reg())?;
                    return self.register_plus(name, reg, offset, ty);
                }
                let base = self.address_of(name, found)?;
                self.address_operand(base, offset, ty)
            }
            Arg::Element(array, index) => self.element_address(array, index, ty),
            Arg::Negated(name) => Err(self.invalid(format!("'-{}': this instruction negates no operand", clip(name)))),
            _ => self.immediate(arg, ty),
        }
    }

    /// `%r1 + 4`: the sum in a register of its own, of the register's class where `ty` is narrower.
    fn register_plus(&mut self, name: &str, reg: Reg, offset: i64, ty: Ty) -> Result<Operand, PtxError> {
        let class = self.inst.graph.ty(reg);
        let sum = match class {
            RegTy::B16 => Ty::U16,
            RegTy::B32 => Ty::U32,
            RegTy::B64 => Ty::U64,
            RegTy::Pred | RegTy::B128 => {
                return Err(self.invalid(format!("an offset from register '{}', which is no integer", clip(name))));
            }
        };
        if ty.is_float() {
            return Err(self.invalid("a register and an offset in a floating-point instruction"));
        }
        let dst = self.new_reg(class)?;
        let b = self.immediate(Arg::Int(offset.cast_unsigned()), sum)?;
        self.emit(Op::Int { op: IntOp::Add, ty: sum, sat: false, dst, a: Operand::Reg(reg), b })?;
        Ok(Operand::Reg(dst))
    }

    /// Operand `at` as a source at least as wide as `ty`, and its class.
    pub(super) fn wide_src(&mut self, at: usize, ty: Ty) -> Result<Operand, PtxError> {
        let arg = self.arg(at)?;
        self.wide_source(arg, ty)
    }

    /// An operand as a source at least as wide as `ty`.
    pub(super) fn wide_source(&mut self, arg: Arg<'a>, ty: Ty) -> Result<Operand, PtxError> {
        if let Arg::Reg(reg) = arg
            && fits(ty, self.inst.graph.ty(reg))
        {
            return Ok(Operand::Reg(reg));
        }
        if let Arg::Word(name) | Arg::Sum(name, _) = arg
            && let Some(Name::Reg(reg)) = self.lookup(name)?
        {
            if !fits(ty, self.inst.graph.ty(reg)) {
                return Err(self.invalid(format!("register '{}' is too narrow for this instruction", clip(name))));
            }
            return match arg {
                Arg::Sum(_, offset) => self.register_plus(name, reg, offset, ty),
                _ => Ok(Operand::Reg(reg)),
            };
        }
        self.source(arg, ty)
    }

    /// Operand `at` as a predicate source, perhaps negated.
    pub(super) fn pred(&mut self, at: usize) -> Result<PredRef, PtxError> {
        match self.arg(at)? {
            Arg::Not(name) => Ok(PredRef { reg: self.reg_of(name, RegTy::Pred)?, negate: true }),
            Arg::Word(name) => Ok(PredRef { reg: self.reg_of(name, RegTy::Pred)?, negate: false }),
            Arg::Int(value) => {
                let reg = self.new_reg(RegTy::Pred)?;
                self.emit(Op::Mov { ty: Ty::Pred, dst: reg, src: Operand::Imm(u64::from(value != 0)) })?;
                Ok(PredRef { reg, negate: false })
            }
            _ => Err(self.invalid("a predicate was expected")),
        }
    }

    /// The predicate, if the operand is a register that is one.
    pub(super) fn as_pred(&mut self, arg: Arg<'a>) -> Result<Option<PredRef>, PtxError> {
        let (Arg::Word(name) | Arg::Not(name)) = arg else { return Ok(None) };
        let negate = matches!(arg, Arg::Not(_));
        Ok(match self.lookup(name)? {
            Some(Name::Reg(reg)) if self.inst.graph.ty(reg) == RegTy::Pred => Some(PredRef { reg, negate }),
            _ => None,
        })
    }

    /// The elements of operand `at`, a vector; a scalar is a vector of one.
    pub(super) fn elements(&mut self, at: usize) -> Result<Vec<Arg<'a>>, PtxError> {
        let arg = self.arg(at)?;
        if let Arg::Word(name) = arg
            && let Some(Name::Vector(first, lanes)) = self.lookup(name)?
        {
            return Ok((0..lanes).map(|lane| Arg::Reg(Reg(first.0 + lane))).collect());
        }
        match arg {
            Arg::Vector(from, len) => Ok(self.pool[from..from + len].to_vec()),
            arg => Ok(vec![arg]),
        }
    }

    pub(super) fn immediate(&self, arg: Arg<'_>, ty: Ty) -> Result<Operand, PtxError> {
        let mismatch = || self.invalid("an immediate of the wrong type");
        let bits = match (arg, ty) {
            (Arg::Int(v), Ty::Pred) => u64::from(v != 0),
            (Arg::Int(v), Ty::F32 | Ty::F64) if v != 0 => {
                return Err(self.invalid(format!("an integer immediate ({v}) in a floating-point instruction")));
            }
            (Arg::Int(v), _) if ty.bits() >= 64 => v,
            (Arg::Int(v), _) => v & ((1u64 << ty.bits()) - 1),
            (Arg::Single(v), Ty::F32 | Ty::B32 | Ty::U32 | Ty::S32) => u64::from(v),
            (Arg::Single(v), Ty::F64) => f64::from(f32::from_bits(v)).to_bits(),
            (Arg::Double(v), Ty::F64 | Ty::B64 | Ty::U64 | Ty::S64) => v,
            (Arg::Double(v), Ty::F32 | Ty::B32) => u64::from((f64::from_bits(v) as f32).to_bits()),
            (Arg::Single(v), Ty::F16) => u64::from(half::f16::from_f32(f32::from_bits(v)).to_bits()),
            (Arg::Double(v), Ty::F16) => u64::from(half::f16::from_f64(f64::from_bits(v)).to_bits()),
            (Arg::Single(v), Ty::BF16) => u64::from(half::bf16::from_f32(f32::from_bits(v)).to_bits()),
            (Arg::Double(v), Ty::BF16) => u64::from(half::bf16::from_f64(f64::from_bits(v)).to_bits()),
            _ => return Err(mismatch()),
        };
        Ok(Operand::Imm(bits))
    }

    fn symbol_or_special(&mut self, name: &'a str, found: Option<Name>, ty: Ty) -> Result<Operand, PtxError> {
        if found.is_none() {
            if let Some(offset) = self.reserved(name) {
                return self.address_imm(offset, ty);
            }
            if name == "%is_explicit_cluster" && ty == Ty::Pred {
                let dst = self.new_reg(RegTy::Pred)?;
                self.read_explicit_cluster(dst)?;
                return Ok(Operand::Reg(dst));
            }
            if let Some((sreg, _)) = special(name) {
                let dst = self.new_reg(ty.reg())?;
                self.read_special(sreg, ty, dst)?;
                return Ok(Operand::Reg(dst));
            }
        }
        if found.is_none()
            && ty.bits() == 64
            && let Some(handle) = self.handle_in(name)?
        {
            return Ok(handle);
        }
        let address = self.address_of(name, found)?;
        self.address_operand(address, 0, ty)
    }

    /// `%reserved_smem_offset_…`: offsets in the shared memory kept for cooperative groups.
    fn reserved(&self, name: &str) -> Option<u64> {
        let which = name.strip_prefix("%reserved_smem_offset_")?;
        let base = self.inst.layout.reserved?;
        let offset = match which {
            "begin" | "0" => base,
            "1" => base + RESERVED_BYTES,
            "end" | "cap" => base + 2 * RESERVED_BYTES,
            _ => return None,
        };
        Some(u64::from(offset))
    }

    /// Emits a read of a special register.
    pub(super) fn read_special(&mut self, sreg: SReg, ty: Ty, dst: Reg) -> Result<(), PtxError> {
        if !matches!(ty.reg(), RegTy::B16 | RegTy::B32 | RegTy::B64) || ty.bits() < 16 || ty.is_float() {
            return Err(self.invalid("a special register is read as an integer of 16, 32 or 64 bits"));
        }
        self.emit(Op::Special { ty, dst, sreg })?;
        Ok(())
    }

    fn address_imm(&self, value: u64, ty: Ty) -> Result<Operand, PtxError> {
        match ty.bits() {
            64 => Ok(Operand::Imm(value)),
            // Offsets in shared, local and parameter memory; the upper half of a global address is lost, as written.
            32 => Ok(Operand::Imm(value & 0xffff_ffff)),
            _ => Err(self.invalid("an address in an instruction of this type")),
        }
    }

    /// The address of a named variable in its own space.
    pub(super) fn address_of(&mut self, name: &str, found: Option<Name>) -> Result<Address, PtxError> {
        let fixed = |at: u64| Address { base: Operand::Imm(at), offset: 0 };
        match found {
            Some(Name::Shared(offset)) => Ok(fixed(u64::from(offset))),
            Some(Name::Local(offset)) => Ok(self.inst.slots.address(offset)),
            Some(Name::Param(offset)) => Ok(fixed(u64::from(offset))),
            Some(Name::Slot(slot)) => {
                self.inst.slots.escape(slot);
                Ok(self.slot_address(slot))
            }
            Some(Name::Reg(_) | Name::Vector(..)) => Err(self.invalid(format!("'{}' is a register", clip(name)))),
            None => self.module_symbol(name).map(|(address, _)| fixed(address)),
        }
    }

    /// An address, and something added to it, as an operand.
    pub(super) fn address_operand(&mut self, address: Address, offset: i64, ty: Ty) -> Result<Operand, PtxError> {
        let base = match address.base {
            Operand::Imm(base) => return self.address_imm(base.wrapping_add_signed(offset), ty),
            Operand::Reg(base) => base,
        };
        // On the stack: an offset of 32 bits in local memory.
        let b = self.address_imm(address.offset.wrapping_add(offset).cast_unsigned(), Ty::U32)?;
        let sum = self.int(IntOp::Add, Ty::U32, Operand::Reg(base), b)?;
        match ty.bits() {
            32 => Ok(sum),
            64 => self.converted(sum, Ty::U32, Ty::U64),
            _ => Err(self.invalid("an address in an instruction of this type")),
        }
    }

    /// `a op b`, in a new register.
    pub(super) fn int(&mut self, op: IntOp, ty: Ty, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let dst = self.new_reg(ty.reg())?;
        self.emit(Op::Int { op, ty, sat: false, dst, a, b })?;
        Ok(Operand::Reg(dst))
    }

    /// A conversion that needs no rounding, in a new register.
    pub(super) fn converted(&mut self, a: Operand, src_ty: Ty, dst_ty: Ty) -> Result<Operand, PtxError> {
        let dst = self.new_reg(dst_ty.reg())?;
        let (round, to_integral, ftz, sat, relu) = (None, false, false, false, false);
        self.emit(Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu, dst, a })?;
        Ok(Operand::Reg(dst))
    }

    /// Where a slot of the unit at hand lies, if it is memory.
    pub(super) fn slot_address(&self, slot: Slot) -> Address {
        self.inst.slots.address(self.inst.slots.offset(slot))
    }

    pub(super) fn module_symbol(&mut self, name: &str) -> Result<(u64, Space), PtxError> {
        let program = self.inst.program;
        let variable = match program.names.get(name) {
            Some(Item::Variable(at)) => &program.variables[*at],
            Some(Item::Function(at)) => return Ok((handle(*at), Space::Generic)),
            Some(Item::Entry(at)) => return Ok((children::handle(*at), Space::Generic)),
            None => return Err(self.wrong(format!("unknown symbol '{}'", clip(name)))),
        };
        if variable.opaque.is_some() {
            return Err(self.unsupported(
                "references as memory are not supported: only texture and surface instructions, and mov, name them",
            ));
        }
        let space = match variable.space {
            VarSpace::Shared => {
                let offset = self.inst.layout.offset(variable.mark.pos, !variable.is_defined());
                let offset = offset.ok_or_else(|| self.invalid("a shared variable that was not laid out"))?;
                return Ok((u64::from(offset), Space::Shared));
            }
            VarSpace::Global => Space::Global,
            VarSpace::Const => Space::Const,
        };
        match (self.inst.symbols)(name) {
            Some(address) => Ok((address, space)),
            None => Err(self.wrong(format!("undefined symbol '{}'", clip(name)))),
        }
    }

    /// Operand `at` as an address.
    pub(super) fn address(&mut self, at: usize) -> Result<Place, PtxError> {
        match self.arg(at)? {
            Arg::Address(base, offset) => self.based(base, offset),
            Arg::Element(array, index) => self.element_place(array, index),
            _ => Err(self.invalid("an address in brackets was expected")),
        }
    }

    /// The address that is written as `[base+offset]`.
    pub(super) fn based(&mut self, base: Base<'a>, offset: i64) -> Result<Place, PtxError> {
        let name = match base {
            Base::Absolute => {
                let address = Address { base: Operand::Imm(offset.cast_unsigned()), offset: 0 };
                return Ok(Place { address, space: None, slot: None });
            }
            Base::Word(name) => name,
        };
        let (base, space) = match self.lookup(name)? {
            Some(Name::Vector(..)) => return Err(self.invalid("an address register is no vector")),
            Some(Name::Reg(reg)) => match self.inst.graph.ty(reg) {
                RegTy::B32 | RegTy::B64 => (Operand::Reg(reg), None),
                _ => return Err(self.invalid("an address register has 32 or 64 bits")),
            },
            Some(Name::Shared(at)) => (Operand::Imm(u64::from(at)), Some(Space::Shared)),
            Some(Name::Local(at)) => {
                let Address { base, offset: at } = self.inst.slots.address(at);
                let address = Address { base, offset: offset.wrapping_add(at) };
                return Ok(Place { address, space: Some(Space::Local), slot: None });
            }
            Some(Name::Param(at)) => (Operand::Imm(u64::from(at)), Some(Space::Param)),
            Some(Name::Slot(slot)) => {
                let Address { base, offset: at } = self.slot_address(slot);
                let address = Address { base, offset: offset.wrapping_add(at) };
                return Ok(Place { address, space: Some(Space::Local), slot: Some((slot, offset)) });
            }
            None => {
                let (address, space) = self.module_symbol(name)?;
                (Operand::Imm(address), Some(space))
            }
        };
        Ok(Place { address: Address { base, offset }, space, slot: None })
    }
}

/// Can a register of this class hold a value of this type?
pub(super) fn fits(ty: Ty, class: RegTy) -> bool {
    let bits = match class {
        RegTy::Pred => return ty == Ty::Pred,
        RegTy::B16 => 16,
        RegTy::B32 => 32,
        RegTy::B64 => 64,
        RegTy::B128 => 128,
    };
    ty != Ty::Pred && ty.bits() <= bits
}

/// A special register and its own width.
pub(super) fn special(name: &str) -> Option<(SReg, Ty)> {
    let name = name.strip_prefix('%')?;
    let axis = |rest: &str| match rest {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((stem, rest)) = name.split_once('.') {
        if matches!((stem, rest), ("tid" | "ntid" | "ctaid" | "nctaid", "w")) {
            return Some((SReg::Env(0), Ty::U32));
        }
        let axis = axis(rest)?;
        let sreg = match stem {
            "tid" => SReg::Tid(axis),
            "ntid" => SReg::Ntid(axis),
            "ctaid" => SReg::Ctaid(axis),
            "nctaid" => SReg::Nctaid(axis),
            "clusterid" => SReg::ClusterId(axis),
            "nclusterid" => SReg::NClusterId(axis),
            "cluster_ctaid" => SReg::ClusterCtaId(axis),
            "cluster_nctaid" => SReg::ClusterNCtaId(axis),
            _ => return None,
        };
        return Some((sreg, Ty::U32));
    }
    if let Some(number) = name.strip_prefix("envreg") {
        let number = number.parse::<u8>().ok().filter(|n| *n < 32)?;
        return Some((SReg::Env(number), Ty::U32));
    }
    // Nothing is counted, and no kernel is told the graph that it is of.
    let counter = name.strip_prefix("pm").map(|rest| rest.strip_suffix("_64").unwrap_or(rest));
    if name == "current_graph_exec" || matches!(counter, Some("0" | "1" | "2" | "3" | "4" | "5" | "6" | "7")) {
        return Some((SReg::Env(0), Ty::U32));
    }
    let sreg = match name {
        "laneid" => SReg::LaneId,
        "warpid" => SReg::WarpId,
        "nwarpid" => SReg::NWarpId,
        "smid" => SReg::SmId,
        "nsmid" => SReg::NSmId,
        "gridid" => return Some((SReg::GridId, Ty::U64)),
        "lanemask_eq" => SReg::LanemaskEq,
        "lanemask_le" => SReg::LanemaskLe,
        "lanemask_lt" => SReg::LanemaskLt,
        "lanemask_ge" => SReg::LanemaskGe,
        "lanemask_gt" => SReg::LanemaskGt,
        "clock" => SReg::Clock,
        "clock_hi" => SReg::ClockHi,
        "clock64" => return Some((SReg::Clock64, Ty::U64)),
        "globaltimer" => return Some((SReg::GlobalTimer, Ty::U64)),
        "globaltimer_lo" => SReg::GlobalTimerLo,
        "globaltimer_hi" => SReg::GlobalTimerHi,
        "dynamic_smem_size" => SReg::DynamicSmemSize,
        "total_smem_size" | "aggr_smem_size" => SReg::TotalSmemSize,
        "cluster_ctarank" => SReg::ClusterCtaRank,
        "cluster_nctarank" => SReg::ClusterNCtaRank,
        _ => return None,
    };
    Some((sreg, Ty::U32))
}
