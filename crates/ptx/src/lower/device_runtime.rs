//! Calls of the device runtime: see [`crate::children`] for where a thread keeps what it launches.

use super::body::Body;
use super::control::Actual;
use crate::children::{self, ERROR_TEXT, ERRORS, EVENT, HEADER_AT, INVALID_VALUE, MEMORY, NAMED_STREAM, PARAMS_AT};
use crate::error::PtxError;
use crate::ir::{Address, Builtin, Cmp, Op, Operand, Order, PredRef, Reg, RegTy, Space, Ty};
use crate::program::{Function, Program};

/// What a function of the device runtime is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// `cudaGetParameterBufferV2`.
    Buffer,
    /// A builtin that gives an error.
    Builtin(Builtin),
    /// `cudaGetLastError`, or `cudaPeekAtLastError`.
    LastError {
        forget: bool,
    },
    /// `cudaGetErrorString`, or `cudaGetErrorName`.
    ErrorText {
        name: bool,
    },
    Malloc,
    Free,
    /// `cudaStreamCreateWithFlags` and `cudaEventCreateWithFlags`: the only flags that may be, and what stands for any such thing.
    Create {
        flags: u64,
        handle: u64,
    },
    /// What follows from the order in which things run.
    Nothing,
}

/// What the function is, the sizes of its parameters, and that of its result.
fn find(name: &str) -> Option<(Call, &'static [u32], u32)> {
    let name = name.strip_prefix("__cudaCDP2")?;
    Some(match name.strip_suffix("_ptsz").unwrap_or(name) {
        "GetParameterBufferV2" => (Call::Buffer, &[8, 12, 12, 4], 8),
        "LaunchDeviceV2" => (Call::Builtin(Builtin::Launch), &[8, 8], 4),
        "MemcpyAsync" => (Call::Builtin(Builtin::Copy), &[8, 8, 8, 4, 8], 4),
        "MemsetAsync" => (Call::Builtin(Builtin::Fill), &[8, 4, 8, 8], 4),
        "GetLastError" => (Call::LastError { forget: true }, &[], 4),
        "PeekAtLastError" => (Call::LastError { forget: false }, &[], 4),
        "GetErrorString" => (Call::ErrorText { name: false }, &[4], 8),
        "GetErrorName" => (Call::ErrorText { name: true }, &[4], 8),
        "Malloc" => (Call::Malloc, &[8, 8], 4),
        "Free" => (Call::Free, &[8], 4),
        "StreamCreateWithFlags" => (Call::Create { flags: 1, handle: NAMED_STREAM }, &[8, 4], 4),
        "EventCreateWithFlags" => (Call::Create { flags: 2, handle: EVENT }, &[8, 4], 4),
        "StreamDestroy" | "EventDestroy" => (Call::Nothing, &[8], 4),
        "EventRecord" => (Call::Nothing, &[8, 8], 4),
        "EventRecordWithFlags" | "StreamWaitEvent" => (Call::Nothing, &[8, 8, 4], 4),
        _ => return None,
    })
}

/// Bytes of a thread's area if one of these functions needs it; 0 else.
pub(super) fn area_bytes<'a>(program: &Program, functions: impl Iterator<Item = &'a Function>) -> u64 {
    let needs = |call| !matches!(call, Call::Malloc | Call::Free | Call::Create { .. } | Call::Nothing);
    let mut calls = functions.filter(|f| f.body.is_none()).filter_map(|f| find(&f.name));
    if calls.any(|(call, ..)| needs(call)) { children::area_bytes(most_params(program)) } else { 0 }
}

/// Bytes of the largest parameter block of the module's kernels.
fn most_params(program: &Program) -> u32 {
    program.entries.iter().map(|entry| entry.param_bytes).max().unwrap_or(0)
}

impl<'a> Body<'a, '_> {
    /// A call of the device runtime; false if the function is not of it, or not there.
    pub(super) fn device_runtime(
        &mut self,
        function: &Function,
        rets: &[Actual<'a>],
        args: &[Actual<'a>],
    ) -> Result<bool, PtxError> {
        let Some((call, sizes, result)) = find(&function.name) else { return Ok(false) };
        let right = function.params.iter().map(|formal| formal.size).eq(sizes.iter().copied())
            && function.rets.iter().map(|formal| formal.size).eq([result]);
        if !right {
            return Err(self.other_signature(function));
        }
        let mut values = Vec::with_capacity(args.len());
        for ((actual, formal), size) in args.iter().zip(&function.params).zip(sizes) {
            values.push(match size {
                4 => self.argument(*actual, Ty::B32, formal)?,
                8 => self.argument(*actual, Ty::B64, formal)?,
                // By value, in memory: taken word by word.
                _ => Operand::Imm(0),
            });
        }
        let answer = match (call, &values[..]) {
            (Call::Buffer, [kernel, _, _, shared]) => self.parameter_buffer(function, args, *kernel, *shared)?,
            (Call::Builtin(builtin), _) => {
                let error = self.new_reg(RegTy::B32)?;
                self.emit(Op::Call { builtin, args: values, dst: Some(error) })?;
                self.note_error(error)?;
                Operand::Reg(error)
            }
            (Call::LastError { forget }, _) => {
                let error = self.new_reg(RegTy::B32)?;
                self.load_word(Address { base: Operand::Imm(0), offset: 0 }, error)?;
                if forget {
                    self.store_word(0, Operand::Imm(0))?;
                }
                Operand::Reg(error)
            }
            (Call::ErrorText { name }, [error]) => self.error_text(*error, name)?,
            (Call::Malloc, [to, bytes]) => {
                let (pointer, error) = (self.new_reg(RegTy::B64)?, self.new_reg(RegTy::B32)?);
                self.emit(Op::Call { builtin: Builtin::Malloc, args: vec![*bytes], dst: Some(pointer) })?;
                self.store_through(*to, Operand::Reg(pointer))?;
                let p = self.holds_if(Cmp::Eq, Ty::B64, Operand::Reg(pointer), Operand::Imm(0))?;
                self.select(error, Operand::Imm(MEMORY.into()), Operand::Imm(0), p)?;
                Operand::Reg(error)
            }
            (Call::Free, [pointer]) => {
                self.emit(Op::Call { builtin: Builtin::Free, args: vec![*pointer], dst: None })?;
                Operand::Imm(0)
            }
            (Call::Create { flags, handle }, [to, given]) => {
                let error = self.new_reg(RegTy::B32)?;
                self.store_through(*to, Operand::Imm(handle))?;
                let p = self.holds_if(Cmp::Ne, Ty::B32, *given, Operand::Imm(flags))?;
                self.select(error, Operand::Imm(INVALID_VALUE.into()), Operand::Imm(0), p)?;
                Operand::Reg(error)
            }
            (Call::Nothing, _) => Operand::Imm(0),
            _ => return Err(self.other_signature(function)),
        };
        let ty = if result == 8 { Ty::B64 } else { Ty::B32 };
        self.give_result(rets, answer, ty)?;
        Ok(true)
    }

    /// Writes the header of the thread's buffer; its generic address.
    fn parameter_buffer(
        &mut self,
        function: &Function,
        args: &[Actual<'a>],
        kernel: Operand,
        shared: Operand,
    ) -> Result<Operand, PtxError> {
        let program = self.inst.program;
        let order = Order::Weak;
        let addr = Address { base: Operand::Imm(HEADER_AT), offset: 0 };
        self.emit(Op::St { space: Space::Local, ty: Ty::B64, order, srcs: vec![kernel], addr })?;
        for (argument, to) in [(1, HEADER_AT + 8), (2, HEADER_AT + 20)] {
            let Actual::Slot(slot) = args[argument] else { return Err(self.mismatch(&function.params[argument])) };
            if self.inst.slots.size(slot) < 12 {
                return Err(self.mismatch(&function.params[argument]));
            }
            for word in 0..3 {
                let value = self.new_reg(RegTy::B32)?;
                let mut addr = self.slot_address(slot);
                match &mut addr.base {
                    Operand::Imm(at) => *at += word * 4,
                    _ => addr.offset += word.cast_signed() * 4,
                }
                let at = self.load_word(addr, value)?;
                self.inst.slots.access(at, slot, word.cast_signed() * 4);
                self.store_word(to + word * 4, Operand::Reg(value))?;
            }
        }
        let own = program.entries.iter().position(|entry| entry.function == self.inst.kernel).unwrap_or(0);
        let facts = [u64::from(most_params(program)), own as u64, program.entries.len() as u64];
        self.store_word(HEADER_AT + 32, shared)?;
        for (value, at) in facts.into_iter().zip([36, 40, 44]) {
            self.store_word(HEADER_AT + at, Operand::Imm(value))?;
        }
        self.generic(PARAMS_AT).map(Operand::Reg)
    }

    /// The generic address of a place of the area.
    fn generic(&mut self, at: u64) -> Result<Reg, PtxError> {
        let dst = self.new_reg(RegTy::B64)?;
        self.emit(Op::Cvta { space: Space::Local, to_generic: true, dst, a: Operand::Imm(at) })?;
        Ok(dst)
    }

    /// An error becomes the thread's last.
    fn note_error(&mut self, error: Reg) -> Result<(), PtxError> {
        let (old, new) = (self.new_reg(RegTy::B32)?, self.new_reg(RegTy::B32)?);
        self.load_word(Address { base: Operand::Imm(0), offset: 0 }, old)?;
        let p = self.holds_if(Cmp::Ne, Ty::B32, Operand::Reg(error), Operand::Imm(0))?;
        self.select(new, Operand::Reg(error), Operand::Reg(old), p)?;
        self.store_word(0, Operand::Reg(new))
    }

    /// Writes an error's text, or its name, into the area; its generic address.
    fn error_text(&mut self, error: Operand, name: bool) -> Result<Operand, PtxError> {
        let texts = children::texts_at(most_params(self.inst.program));
        let to = texts + if name { ERROR_TEXT } else { 0 };
        let mut known = Vec::new();
        for (code, name_of, text) in ERRORS {
            let p = self.holds_if(Cmp::Eq, Ty::B32, error, Operand::Imm(code.into()))?;
            known.push((p, words(if name { name_of } else { text })));
        }
        for (at, unknown) in words("unrecognized error code").into_iter().enumerate() {
            let mut value = Operand::Imm(unknown.into());
            for (p, words) in &known {
                let dst = self.new_reg(RegTy::B32)?;
                self.select(dst, Operand::Imm(words[at].into()), value, *p)?;
                value = Operand::Reg(dst);
            }
            self.store_word(to + 4 * at as u64, value)?;
        }
        self.generic(to).map(Operand::Reg)
    }

    fn load_word(&mut self, addr: Address, dst: Reg) -> Result<(usize, usize), PtxError> {
        let (space, order) = (Space::Local, Order::Weak);
        self.emit(Op::Ld { space, ty: Ty::B32, order, dsts: vec![Some(dst)], addr })
    }

    /// Stores a word of the area.
    fn store_word(&mut self, at: u64, value: Operand) -> Result<(), PtxError> {
        let (space, order) = (Space::Local, Order::Weak);
        let addr = Address { base: Operand::Imm(at), offset: 0 };
        self.emit(Op::St { space, ty: Ty::B32, order, srcs: vec![value], addr })?;
        Ok(())
    }

    /// Stores 8 bytes where a generic pointer says.
    fn store_through(&mut self, base: Operand, value: Operand) -> Result<(), PtxError> {
        let (space, order) = (Space::Generic, Order::Weak);
        let addr = Address { base, offset: 0 };
        self.emit(Op::St { space, ty: Ty::B64, order, srcs: vec![value], addr })?;
        Ok(())
    }

    fn holds_if(&mut self, cmp: Cmp, ty: Ty, a: Operand, b: Operand) -> Result<PredRef, PtxError> {
        let dst = self.new_reg(RegTy::Pred)?;
        self.emit(Op::Setp { cmp, ty, ftz: false, dst, dst2: None, a, b, combine: None })?;
        Ok(PredRef { reg: dst, negate: false })
    }

    fn select(&mut self, dst: Reg, a: Operand, b: Operand, p: PredRef) -> Result<(), PtxError> {
        self.emit(Op::Selp { ty: Ty::B32, dst, a, b, p })?;
        Ok(())
    }
}

/// A text with its NUL, in words.
fn words(text: &str) -> [u32; ERROR_TEXT as usize / 4] {
    let mut words = [0; ERROR_TEXT as usize / 4];
    // The last byte stays zero.
    for (at, byte) in text.bytes().take(ERROR_TEXT as usize - 1).enumerate() {
        words[at / 4] |= u32::from(byte) << (at % 4 * 8);
    }
    words
}
