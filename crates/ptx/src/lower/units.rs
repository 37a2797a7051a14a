//! Functions out of line: each is lowered once, as a unit of blocks of its own.
//!
//! A call puts the arguments where the function has its parameters, the number of the call's site into a register of the
//! function's, and branches to it; the function's end is an indexed branch to the sites. So calls are nothing new to an
//! engine. A function that is in no circle of calls is active once at most: its registers and its memory are its own, and a
//! call saves nothing. A function in a circle has its memory in a frame on the thread's stack:
//!
//! ```text
//!   sp -> +-----------------------------+ of the function that runs
//!         | local variables, parameters |
//!         | registers kept over a call  |
//! next -> +-----------------------------+ of a function that it calls
//! ```
//!
//! The stack lies behind all that is at a fixed place. What goes beyond local memory faults as any access does: a call first
//! stores what it keeps. What functions allocate lies between the frames: see [`super::stack`].

use std::collections::HashMap;

use super::body::{Body, Instance, Name};
use super::control::Actual;
use super::device_runtime;
use super::frames;
use super::graph::{Graph, Target};
use super::slots::Slot;
use super::stack::{Dynamic, Opened};
use crate::error::PtxError;
use crate::ir::{BlockId, Op, Operand, Reg, RegTy, Term, Ty};
use crate::program::{Entry, Formal, Function};

/// No unit: what belongs to the whole kernel.
pub(super) const NOBODY: u32 = u32::MAX;

/// A formal parameter or result of a unit.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Reg(Reg),
    Slot(Slot),
}

/// The kernel's own body (the first), or a function out of line.
#[derive(Debug)]
pub(super) struct Unit {
    function: usize,
    pub(super) circle: Option<u32>,
    entry: Target,
    exit: Target,
    /// Holds the site of the call that is under way; nobody calls the kernel.
    site: Option<Reg>,
    /// Where its calls return to.
    sites: Vec<Target>,
    rets: Vec<Bound>,
    params: Vec<Bound>,
    /// Its blocks.
    pub(super) blocks: std::ops::Range<usize>,
}

/// A call from a unit that is in a circle: marks where its frame is left and entered again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) caller: usize,
    pub(super) callee: usize,
    /// Where what is kept is stored, and `next` is found.
    pub(super) before: Reg,
    /// Right after the return, on the callee's frame.
    pub(super) back: Reg,
    /// Where what was kept is loaded, after the results were taken.
    pub(super) after: Reg,
    /// The block that ends with the call, and the one that begins with the return.
    pub(super) call: usize,
    pub(super) rest: usize,
}

/// The units of a kernel.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) list: Vec<Unit>,
    of: HashMap<usize, usize>,
    /// The one that is being lowered.
    pub(super) at: usize,
    pub(super) sites: Vec<Site>,
    pub(super) stack: Option<Stack>,
    /// Of a kernel that allocates on its stack.
    pub(super) dynamic: Option<Dynamic>,
    pub(super) opened: Vec<Opened>,
}

/// Registers of the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    /// Begin of the frame of the unit that runs.
    pub(super) sp: Reg,
    /// Begin of the frame of the one it calls.
    pub(super) next: Reg,
    /// Marks where `sp` is set first.
    pub(super) start: Reg,
}

/// Lowers the kernel's body and all functions out of line.
pub(super) fn lower(inst: &mut Instance<'_>, entry: &Entry) -> Result<(), PtxError> {
    if inst.plan.recurses() {
        inst.graph.owner = NOBODY;
        let (sp, next) = (inst.graph.reg(RegTy::B32, entry.line)?, inst.graph.reg(RegTy::B32, entry.line)?);
        let start = inst.graph.mark(entry.line)?;
        inst.units.stack = Some(Stack { sp, next, start });
    }
    if !inst.layout.allocators.is_empty() {
        inst.graph.owner = NOBODY;
        let (top, start) = (inst.graph.reg(RegTy::B32, entry.line)?, inst.graph.mark(entry.line)?);
        inst.units.dynamic = Some(Dynamic { top, start });
    }
    request(inst, entry.function)?;
    inst.graph.owner = 0;
    inst.slots.open_frame(None);
    // At the beginning of local memory, wherever a function that is called finds its own.
    let area = device_runtime::area_bytes(inst.program, inst.layout.functions(inst.program));
    if area > 0 {
        inst.slots.local(area, 16, entry.line)?;
    }
    Body::kernel(inst, entry)?.run()?;
    let mut at = 1;
    while at < inst.units.list.len() {
        body(inst, at)?;
        at += 1;
    }
    Ok(())
}

/// The unit of a function, which may have to be lowered yet.
fn request(inst: &mut Instance<'_>, function: usize) -> Result<usize, PtxError> {
    if let Some(unit) = inst.units.of.get(&function) {
        return Ok(*unit);
    }
    let (program, unit) = (inst.program, inst.units.list.len());
    let Function { rets, params, line, .. } = &program.functions[function];
    let owner = std::mem::replace(&mut inst.graph.owner, unit as u32);
    let mut bind = |formal: &Formal| {
        Ok::<Bound, PtxError>(match formal.reg {
            Some(class) => Bound::Reg(inst.graph.reg(class, *line)?),
            None => Bound::Slot(inst.slots.formal(formal.size.into(), formal.align)),
        })
    };
    // Nobody calls the kernel, whose parameters are not variables.
    let is_kernel = unit == 0;
    let rets = rets.iter().map(&mut bind).collect::<Result<_, _>>()?;
    let params = params.iter().filter(|_| !is_kernel).map(&mut bind).collect::<Result<_, _>>()?;
    let site = if is_kernel { None } else { Some(inst.graph.reg(RegTy::B32, *line)?) };
    inst.graph.owner = owner;
    let (entry, exit) = (inst.graph.target(), inst.graph.target());
    let circle = inst.plan.circle(function);
    let sites = Vec::new();
    inst.units.list.push(Unit { function, circle, entry, exit, site, sites, rets, params, blocks: 0..0 });
    inst.units.of.insert(function, unit);
    Ok(unit)
}

/// Lowers the body of a function out of line.
fn body(inst: &mut Instance<'_>, at: usize) -> Result<(), PtxError> {
    let program = inst.program;
    let unit = &inst.units.list[at];
    let (function, entry, exit) = (unit.function, unit.entry, unit.exit);
    let (rets, params) = (unit.rets.clone(), unit.params.clone());
    let stack = unit.circle.and(inst.units.stack).map(|s| s.sp);
    let declared = &program.functions[function];
    inst.units.at = at;
    inst.graph.owner = at as u32;
    inst.slots.open_frame(stack);
    let first = inst.graph.len();
    inst.graph.bind(entry);
    let mut body = Body::function(inst, function, Some(exit))?;
    let formals = declared.rets.iter().zip(rets).chain(declared.params.iter().zip(params));
    for (formal, bound) in formals {
        let name = match bound {
            Bound::Reg(reg) => Name::Reg(reg),
            Bound::Slot(slot) => {
                body.inst.slots.place_formal(slot, declared.line)?;
                Name::Slot(slot)
            }
        };
        body.declare(&formal.name, name, formal.element)?;
    }
    let saved = body.open_stack(function)?;
    body.run()?;
    body.inst.graph.bind(exit);
    body.close_stack(saved)?;
    // The sites are known when all is lowered.
    inst.graph.terminate(Term::Exit);
    inst.units.list[at].blocks = first..inst.graph.len();
    Ok(())
}

/// Connects the units with each other; the bytes of local memory that are left, without the stack.
pub(super) fn finish(mut inst: Instance<'_>, line: u32) -> Result<(Graph, u32), PtxError> {
    for unit in &inst.units.list {
        let Some(site) = unit.site else { continue };
        let targets: Vec<BlockId> = unit.sites.iter().map(|site| site.id()).collect();
        let term = match targets[..] {
            [only] => Term::Bra(only),
            _ => Term::BrIdx { index: Operand::Reg(site), targets },
        };
        inst.graph.set_term(unit.blocks.end - 1, term);
    }
    let laid = inst.slots.finish(&mut inst.graph, line)?;
    let mut marks = match inst.units.stack {
        Some(stack) => frames::keep(&mut inst.graph, &inst.units, stack, &laid, line)?,
        None => HashMap::new(),
    };
    let begin = |dst| vec![Op::Mov { ty: Ty::U32, dst, src: Operand::Imm(laid.fixed) }];
    marks.extend(inst.units.stack.map(|stack| (stack.start, begin(stack.sp))));
    marks.extend(inst.units.dynamic.map(|dynamic| (dynamic.start, begin(dynamic.top))));
    if !marks.is_empty() {
        inst.graph.replace_marks(marks, line)?;
    }
    Ok((inst.graph, laid.fixed as u32))
}

impl Unit {
    /// What is read when it returns, but for slots: the site, and results in registers.
    pub(super) fn read_at_exit(&self) -> impl Iterator<Item = Reg> {
        let results = self.rets.iter().filter_map(|bound| match bound {
            Bound::Reg(reg) => Some(*reg),
            Bound::Slot(_) => None,
        });
        results.chain(self.site)
    }

    /// The results that are slots.
    pub(super) fn result_slots(&self) -> impl Iterator<Item = Slot> {
        self.rets.iter().filter_map(|bound| match bound {
            Bound::Slot(slot) => Some(*slot),
            Bound::Reg(_) => None,
        })
    }
}

impl<'a> Body<'a, '_> {
    /// Calls a function out of line.
    pub(super) fn call_out(
        &mut self,
        function: usize,
        rets: &[Actual<'a>],
        args: &[Actual<'a>],
    ) -> Result<(), PtxError> {
        let declared = &self.inst.program.functions[function];
        let callee = request(self.inst, function)?;
        let caller = self.inst.units.at;
        let framed = self.inst.units.list[caller].circle.is_some();
        let stacked = self.inst.units.list[callee].circle.is_some();
        let stack = self.inst.units.stack;
        // Where the callee's frame begins, if it has one on the stack.
        let base = stack.filter(|_| stacked).map(|s| if framed { s.next } else { s.sp });
        let lifted = if stacked && !framed { self.lift_stack()? } else { None };
        let before = if framed { Some(self.inst.graph.mark(self.line)?) } else { None };

        let params = self.inst.units.list[callee].params.clone();
        let (mut slots, mut regs) = (Vec::new(), Vec::new());
        for ((formal, bound), actual) in declared.params.iter().zip(params).zip(args) {
            match (bound, *actual) {
                (Bound::Slot(to), Actual::Slot(from)) => {
                    self.same_size(formal, from)?;
                    slots.push((if framed { self.own_copy(from)? } else { from }, to));
                }
                (Bound::Reg(to), actual) => {
                    // In a circle an argument may be read from where another goes.
                    let copy = if framed { self.new_reg(self.inst.graph.ty(to))? } else { to };
                    self.pass(formal, actual, copy)?;
                    regs.push((formal, copy, to));
                }
                _ => return Err(self.mismatch(formal)),
            }
        }
        for (from, to) in slots {
            self.copy_slot(from, to, to, base)?;
        }
        for (formal, from, to) in regs.into_iter().filter(|(_, from, to)| from != to) {
            self.move_reg(formal, from, to)?;
        }

        let (rest, unit) = (self.inst.graph.target(), &mut self.inst.units.list[callee]);
        let (number, site, entry) = (unit.sites.len() as u64, unit.site, unit.entry);
        unit.sites.push(rest);
        if let Some(dst) = site {
            self.emit(Op::Mov { ty: Ty::U32, dst, src: Operand::Imm(number) })?;
        }
        if let (true, Some(stack)) = (framed, stack) {
            self.emit(Op::Mov { ty: Ty::U32, dst: stack.sp, src: Operand::Reg(stack.next) })?;
        }
        let call = self.inst.graph.block().unwrap_or_default();
        self.inst.graph.terminate(Term::Bra(entry.id()));
        self.inst.graph.bind(rest);
        let rest = self.inst.graph.len() - 1;
        let back = if framed { Some(self.inst.graph.mark(self.line)?) } else { None };

        let results = self.inst.units.list[callee].rets.clone();
        for ((formal, bound), actual) in declared.rets.iter().zip(results).zip(rets) {
            match (bound, *actual) {
                (Bound::Slot(from), Actual::Slot(to)) => {
                    self.same_size(formal, to)?;
                    self.copy_slot(from, to, from, base)?;
                }
                (Bound::Reg(from), Actual::Reg(to)) => self.move_reg(formal, from, to)?,
                _ => return Err(self.mismatch(formal)),
            }
        }
        if let (Some(before), Some(back)) = (before, back) {
            let after = self.inst.graph.mark(self.line)?;
            self.inst.units.sites.push(Site { caller, callee, before, back, after, call, rest });
        }
        if let (Some(lifted), Some(stack)) = (lifted, stack) {
            self.emit(Op::Mov { ty: Ty::U32, dst: stack.sp, src: Operand::Reg(lifted) })?;
        }
        Ok(())
    }

    fn same_size(&self, formal: &Formal, slot: Slot) -> Result<(), PtxError> {
        if self.inst.slots.size(slot) == u64::from(formal.size) { Ok(()) } else { Err(self.mismatch(formal)) }
    }

    /// A variable with the value of `slot`, which may be a parameter that the call is about to overwrite.
    fn own_copy(&mut self, slot: Slot) -> Result<Slot, PtxError> {
        let unit = &self.inst.units.list[self.inst.units.at];
        let is_formal = unit.params.iter().chain(&unit.rets).any(|b| matches!(b, Bound::Slot(s) if *s == slot));
        if !is_formal {
            return Ok(slot);
        }
        let copy = self.inst.slots.slot(self.inst.slots.size(slot), 16, self.line)?;
        self.copy_slot(slot, copy, copy, None)?;
        Ok(copy)
    }

    fn copy_slot(&mut self, from: Slot, to: Slot, callee: Slot, base: Option<Reg>) -> Result<(), PtxError> {
        // Replaced when all copies are known.
        let place = self.emit(Op::Fence)?;
        self.inst.slots.copy(place, from, to, callee, base);
        Ok(())
    }
}
