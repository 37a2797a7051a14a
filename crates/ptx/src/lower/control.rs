//! Branches and calls.

use super::body::{Body, Name};
use super::graph::Target;
use super::mods::Mods;
use super::operand::Arg;
use super::slots::Slot;
use crate::builtins;
use crate::error::PtxError;
use crate::ir::{Address, Builtin, Cmp, Op, Operand, Order, PredRef, Reg, RegTy, Space, Term, Ty};
use crate::lexer::{Token, clip};
use crate::program::{Formal, Function, Item, handle};

/// Most arguments of a call: compilers stay far below.
const MOST_ARGUMENTS: usize = 256;

/// What a call goes to.
#[derive(Clone, Copy)]
enum Callee {
    /// This function of the program.
    Direct(usize),
    /// The function whose handle the register holds.
    Pointer(Reg),
}

/// An argument or result of a call, at the caller's side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Actual<'a> {
    Slot(Slot),
    Reg(Reg),
    Imm(&'a str, Token<'a>),
}

impl<'a> Body<'a, '_> {
    /// Ends the block for the threads that the guard selects; the others go on.
    fn leave_block(&mut self, taken: Term, uniform: bool) {
        let Some(p) = self.guard else {
            self.inst.graph.terminate(taken);
            return;
        };
        let next = self.inst.graph.target();
        let then = match taken {
            Term::Bra(to) => to,
            other => {
                let there = self.inst.graph.target();
                self.inst.graph.terminate(Term::CondBra { p, then: there.id(), els: next.id(), uniform });
                self.inst.graph.bind(there);
                self.inst.graph.terminate(other);
                self.inst.graph.bind(next);
                return;
            }
        };
        self.inst.graph.terminate(Term::CondBra { p, then, els: next.id(), uniform });
        self.inst.graph.bind(next);
    }

    pub(super) fn bra(&mut self, mut m: Mods<'a>) -> Result<(), PtxError> {
        let uniform = m.take("uni");
        self.finish(&m)?;
        let label = self.lexer.word("a label")?;
        self.lexer.expect(b';')?;
        let target = self.target_of(label);
        self.leave_block(Term::Bra(target.id()), uniform);
        Ok(())
    }

    /// `brx.idx i, table;`
    pub(super) fn brx(&mut self, mut m: Mods<'a>) -> Result<(), PtxError> {
        if !m.take("idx") {
            return Err(self.invalid("brx lacks .idx"));
        }
        m.take("uni");
        self.finish(&m)?;
        let index = self.lexer.word("an index register")?;
        let index = Operand::Reg(self.reg_of(index, RegTy::B32)?);
        self.lexer.expect(b',')?;
        let name = self.lexer.word("a list of branch targets")?;
        self.lexer.expect(b';')?;
        let labels = self.table(name)?;
        let mut targets = Vec::with_capacity(labels.len());
        for label in labels {
            targets.push(self.target_of(label).id());
        }
        self.leave_block(Term::BrIdx { index, targets }, false);
        Ok(())
    }

    pub(super) fn ret(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let uniform = m.take("uni");
        self.count(0..=0)?;
        let term = self.return_term();
        self.leave_block(term, uniform);
        Ok(())
    }

    pub(super) fn exit(&mut self, _m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.count(0..=0)?;
        self.leave_block(Term::Exit, false);
        Ok(())
    }

    /// `call{.uni} {(results),} function{, (arguments)}{, prototype};`
    pub(super) fn call(&mut self, mut m: Mods<'a>) -> Result<(), PtxError> {
        m.take("uni");
        self.finish(&m)?;
        let rets = if self.lexer.peek()? == Token::Punct(b'(') {
            let rets = self.actuals()?;
            self.lexer.expect(b',')?;
            rets
        } else {
            Vec::new()
        };
        let name = self.lexer.word("a function")?;
        let mut args = Vec::new();
        let mut prototype = false;
        while self.lexer.eat(b',')? {
            if self.lexer.peek()? == Token::Punct(b'(') {
                args = self.actuals()?;
            } else {
                self.lexer.word("a prototype")?;
                prototype = true;
            }
        }
        self.lexer.expect(b';')?;
        let callee = self.callee(name, prototype)?;
        let after = self.around_guard();
        match callee {
            Callee::Direct(index) => self.call_function(index, &rets, &args)?,
            Callee::Pointer(pointer) => self.call_pointer(pointer, &rets, &args)?,
        }
        self.inst.graph.bind(after);
        Ok(())
    }

    /// For an instruction that becomes several blocks: where its guard is false, threads branch around them, to the target, which is
    /// to be bound behind them. There is no guard any more then.
    pub(super) fn around_guard(&mut self) -> Target {
        let after = self.inst.graph.target();
        if let Some(p) = self.guard.take() {
            let inside = self.inst.graph.target();
            self.inst.graph.terminate(Term::CondBra { p, then: inside.id(), els: after.id(), uniform: false });
            self.inst.graph.bind(inside);
        }
        after
    }

    fn callee(&mut self, name: &'a str, prototype: bool) -> Result<Callee, PtxError> {
        if self.is_reg(name)? {
            let pointer = self.reg_of(name, RegTy::B64)?;
            if prototype {
                return Ok(Callee::Pointer(pointer));
            }
            return Err(self.invalid("an indirect call without a prototype"));
        }
        match self.inst.program.names.get(name) {
            Some(Item::Function(index)) => Ok(Callee::Direct(*index)),
            Some(Item::Entry(_)) => Err(self.unsupported("launching kernels from kernels is not supported")),
            _ => Err(self.wrong(format!("unknown function '{}'", clip(name)))),
        }
    }

    fn call_function(&mut self, index: usize, rets: &[Actual<'a>], args: &[Actual<'a>]) -> Result<(), PtxError> {
        let program = self.inst.program;
        let function = &program.functions[index];
        if function.rets.len() != rets.len() || function.params.len() != args.len() {
            let name = clip(&function.name);
            return Err(self.invalid(format!("'{name}' is called with the wrong number of arguments")));
        }
        match function.body {
            Some(_) => self.call_body(index, function, rets, args),
            None => self.builtin(function, rets, args),
        }
    }

    /// A call through a pointer: each function whose address the kernel can have and whose signature fits is called
    /// behind a comparison. Any other pointer traps.
    fn call_pointer(&mut self, pointer: Reg, rets: &[Actual<'a>], args: &[Actual<'a>]) -> Result<(), PtxError> {
        let (program, layout) = (self.inst.program, self.inst.layout);
        let after = self.inst.graph.target();
        self.charge(layout.pointees.len())?;
        for index in &layout.pointees {
            let function = &program.functions[*index];
            let fits = function.body.is_some()
                && function.rets.len() == rets.len()
                && function.params.len() == args.len()
                && function.rets.iter().zip(rets).all(|(formal, actual)| self.matches(formal, actual))
                && function.params.iter().zip(args).all(|(formal, actual)| self.matches(formal, actual));
            if !fits {
                continue;
            }
            let (dst, a, b) = (self.new_reg(RegTy::Pred)?, Operand::Reg(pointer), Operand::Imm(handle(*index)));
            self.emit(Op::Setp { cmp: Cmp::Eq, ty: Ty::B64, ftz: false, dst, dst2: None, a, b, combine: None })?;
            let (here, next) = (self.inst.graph.target(), self.inst.graph.target());
            let p = PredRef { reg: dst, negate: false };
            self.inst.graph.terminate(Term::CondBra { p, then: here.id(), els: next.id(), uniform: false });
            self.inst.graph.bind(here);
            self.call_body(*index, function, rets, args)?;
            self.inst.graph.terminate(Term::Bra(after.id()));
            self.inst.graph.bind(next);
        }
        self.emit(Op::Trap)?;
        self.inst.graph.bind(after);
        Ok(())
    }

    fn matches(&self, formal: &Formal, actual: &Actual<'_>) -> bool {
        match (formal.reg, actual) {
            (None, Actual::Slot(slot)) => self.inst.slots.size(*slot) == u64::from(formal.size),
            (Some(class), Actual::Reg(reg)) => self.inst.graph.ty(*reg) == class,
            (Some(_), Actual::Imm(..)) => true,
            _ => false,
        }
    }

    fn actuals(&mut self) -> Result<Vec<Actual<'a>>, PtxError> {
        self.lexer.expect(b'(')?;
        let mut actuals = Vec::new();
        while !self.lexer.eat(b')')? {
            if actuals.len() == MOST_ARGUMENTS {
                return Err(self.unsupported(format!("more than {MOST_ARGUMENTS} arguments")));
            }
            let token = self.lexer.next()?;
            actuals.push(match token {
                Token::Word(name) => match self.lookup(name)? {
                    Some(Name::Slot(slot)) => Actual::Slot(slot),
                    Some(Name::Reg(reg)) => Actual::Reg(reg),
                    _ => Actual::Imm(name, token),
                },
                Token::Int(_) | Token::Single(_) | Token::Double(_) => Actual::Imm("", token),
                other => return Err(self.lexer.unexpected(&other, "an argument")),
            });
            if !self.lexer.eat(b',')? {
                self.lexer.expect(b')')?;
                break;
            }
        }
        Ok(actuals)
    }

    fn call_body(
        &mut self,
        index: usize,
        function: &'a Function,
        rets: &[Actual<'a>],
        args: &[Actual<'a>],
    ) -> Result<(), PtxError> {
        if self.inst.plan.is_out(index) {
            return self.call_out(index, rets, args);
        }
        self.inline(index, function, rets, args)
    }

    /// Puts the function's body here.
    fn inline(
        &mut self,
        index: usize,
        function: &'a Function,
        rets: &[Actual<'a>],
        args: &[Actual<'a>],
    ) -> Result<(), PtxError> {
        let after = self.inst.graph.target();
        let top = self.inst.slots.top;
        let (line, instance) = (self.line, &mut *self.inst);
        let mut callee: Body<'a, '_> = Body::function(instance, index, Some(after)).map_err(|e| PtxError {
            line,
            message: format!("{} (in a call of '{}')", e.message, clip(&function.name)),
            ..e
        })?;
        callee.line = line;
        let mut results = Vec::new();
        for (formal, actual) in function.rets.iter().zip(rets) {
            if let Some(from) = callee.formal(formal, *actual)? {
                results.push((from, *actual, formal));
            }
        }
        for (formal, actual) in function.params.iter().zip(args) {
            if let Some(to) = callee.formal(formal, *actual)? {
                callee.pass(formal, *actual, to)?;
            }
        }
        let saved = callee.open_stack(index)?;
        callee.run()?;
        self.inst.slots.top = top;
        self.inst.graph.bind(after);
        self.close_stack(saved)?;
        for (from, actual, formal) in results {
            match actual {
                Actual::Reg(to) => self.move_reg(formal, from, to)?,
                _ => return Err(self.mismatch(formal)),
            }
        }
        Ok(())
    }

    /// Declares a formal parameter or result of this body. `.param` memory is the caller's variable itself: its name
    /// here is all there is to the call. A register is a new one, to be copied.
    fn formal(&mut self, formal: &'a Formal, actual: Actual<'a>) -> Result<Option<Reg>, PtxError> {
        match (formal.reg, actual) {
            (Some(class), _) => {
                let reg = self.new_reg(class)?;
                self.declare(&formal.name, Name::Reg(reg), None)?;
                Ok(Some(reg))
            }
            (None, Actual::Slot(slot)) if self.inst.slots.size(slot) == u64::from(formal.size) => {
                self.declare(&formal.name, Name::Slot(slot), formal.element)?;
                Ok(None)
            }
            _ => Err(self.mismatch(formal)),
        }
    }

    /// Copies an argument to the register `to`.
    pub(super) fn pass(&mut self, formal: &Formal, actual: Actual<'a>, to: Reg) -> Result<(), PtxError> {
        match actual {
            Actual::Reg(from) => self.move_reg(formal, from, to),
            Actual::Imm(_, Token::Int(value)) => {
                let ty = plain(self.inst.graph.ty(to));
                let src = self.source(Arg::Int(value), ty)?;
                self.emit(Op::Mov { ty, dst: to, src })?;
                Ok(())
            }
            _ => Err(self.mismatch(formal)),
        }
    }

    pub(super) fn move_reg(&mut self, formal: &Formal, from: Reg, to: Reg) -> Result<(), PtxError> {
        if self.inst.graph.ty(from) != self.inst.graph.ty(to) {
            return Err(self.mismatch(formal));
        }
        self.emit(Op::Mov { ty: plain(self.inst.graph.ty(to)), dst: to, src: Operand::Reg(from) })?;
        Ok(())
    }

    pub(super) fn mismatch(&self, formal: &Formal) -> PtxError {
        self.invalid(format!("the argument for '{}' does not match", clip(&formal.name)))
    }

    /// A call of a function that the driver provides.
    fn builtin(&mut self, function: &Function, rets: &[Actual<'a>], args: &[Actual<'a>]) -> Result<(), PtxError> {
        let (builtin, params, result): (_, &[Ty], Option<Ty>) = match function.name.as_str() {
            "vprintf" => (Some(Builtin::Vprintf), &[Ty::B64, Ty::B64], Some(Ty::B32)),
            "malloc" => (Some(Builtin::Malloc), &[Ty::B64], Some(Ty::B64)),
            "free" => (Some(Builtin::Free), &[Ty::B64], None),
            "__assertfail" => (Some(Builtin::AssertFail), &[Ty::B64, Ty::B64, Ty::B32, Ty::B64, Ty::B64], None),
            // The handle of a condition is the address of its value.
            "cudaGraphSetConditional" => (None, &[Ty::B64, Ty::B32], None),
            _ if self.device_runtime(function, rets, args)? => return Ok(()),
            // One of the device runtime that nothing here answers; a program may have it in a kernel and never launch that.
            name if builtins::provided(name) => {
                return Err(self.unsupported(format!("the external function '{}' is not provided", clip(name))));
            }
            name => return Err(self.wrong(format!("unresolved external function '{}'", clip(name)))),
        };
        let fits = |formal: &Formal, ty: &Ty| formal.size == ty.bytes();
        // Who never looks at a result may leave it out of the declaration, as Taichi does with that of `vprintf`.
        let right = function.params.len() == params.len()
            && function.params.iter().zip(params).all(|(f, ty)| fits(f, ty))
            && function.rets.len() <= usize::from(result.is_some())
            && function.rets.iter().zip(result).all(|(f, ty)| fits(f, &ty));
        if !right {
            return Err(self.other_signature(function));
        }
        let mut operands = Vec::with_capacity(args.len());
        for ((actual, ty), formal) in args.iter().zip(params).zip(&function.params) {
            operands.push(self.argument(*actual, *ty, formal)?);
        }
        let Some(builtin) = builtin else {
            let [handle, value] = operands[..] else { return Err(self.mismatch(&function.params[0])) };
            let (addr, srcs) = (Address { base: handle, offset: 0 }, vec![value]);
            self.emit(Op::St { space: Space::Generic, ty: Ty::B32, order: Order::Weak, srcs, addr })?;
            return Ok(());
        };
        let dst = match result {
            Some(ty) => Some(self.new_reg(ty.reg())?),
            None => None,
        };
        self.emit(Op::Call { builtin, args: operands, dst })?;
        let (Some(dst), Some(ty)) = (dst, result) else { return Ok(()) };
        self.give_result(rets, Operand::Reg(dst), ty)
    }

    pub(super) fn other_signature(&self, function: &Function) -> PtxError {
        self.invalid(format!("'{}' is declared with another signature", clip(&function.name)))
    }

    /// What a call of a function that the driver provides gives.
    pub(super) fn give_result(&mut self, rets: &[Actual<'a>], value: Operand, ty: Ty) -> Result<(), PtxError> {
        let [actual] = rets else { return Ok(()) };
        match *actual {
            Actual::Slot(slot) if self.inst.slots.size(slot) >= u64::from(ty.bytes()) => {
                let addr = self.slot_address(slot);
                let srcs = vec![value];
                let at = self.emit(Op::St { space: Space::Local, ty, order: Order::Weak, srcs, addr })?;
                self.inst.slots.access(at, slot, 0);
            }
            Actual::Reg(reg) if self.inst.graph.ty(reg) == ty.reg() => {
                self.emit(Op::Mov { ty, dst: reg, src: value })?;
            }
            _ => return Err(self.invalid("the result of the call does not match")),
        }
        Ok(())
    }

    pub(super) fn argument(&mut self, actual: Actual<'a>, ty: Ty, formal: &Formal) -> Result<Operand, PtxError> {
        match actual {
            Actual::Slot(slot) if self.inst.slots.size(slot) >= u64::from(ty.bytes()) => {
                let value = self.new_reg(ty.reg())?;
                let addr = self.slot_address(slot);
                let dsts = vec![Some(value)];
                let at = self.emit(Op::Ld { space: Space::Local, ty, order: Order::Weak, dsts, addr })?;
                self.inst.slots.access(at, slot, 0);
                Ok(Operand::Reg(value))
            }
            Actual::Reg(reg) if self.inst.graph.ty(reg) == ty.reg() => Ok(Operand::Reg(reg)),
            Actual::Imm(name, Token::Word(_)) => self.source(Arg::Word(name), ty),
            Actual::Imm(_, Token::Int(value)) => self.source(Arg::Int(value), ty),
            _ => Err(self.mismatch(formal)),
        }
    }
}

/// The untyped type of a register class.
fn plain(class: RegTy) -> Ty {
    match class {
        RegTy::Pred => Ty::Pred,
        RegTy::B16 => Ty::B16,
        RegTy::B32 => Ty::B32,
        RegTy::B64 => Ty::B64,
        RegTy::B128 => Ty::B128,
    }
}
