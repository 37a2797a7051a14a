//! The reference interpreter: lane by lane, plain before fast; the oracle for the machine-code engine.
//!
//! Threads of a warp have a program counter each, ordered by block and instruction number. The warp executes the threads
//! at the lowest counter together; since the front end numbers blocks in the order of the text, diverged threads meet again
//! as soon as they can. Where threads with higher counters wait for long while others loop below them (a spin lock), the
//! others get a turn, so every thread goes forward in the end.
//!
//! - [`Cta`]: one CTA as a plain, resumable value; scheduling of its warps. [`Cluster`]: those that run together.
//! - `exec`: instructions that concern one thread. `memory`: state spaces. `warp`: shuffles, votes and their kin;
//!   `matrix`: those on matrices. `image`: textures and surfaces; `transfer`: bulk copies. `barrier`: CTA barriers.
//! - `checked`: what a checker is told, if there is one ([`Cta::check`]). `races`: who has touched shared memory, for hazards.
//!
//! Undefined by PTX, and here: a shuffle from a lane that takes no part gives the lane's own value; a warp operation whose
//! mask names lanes that cannot come (they wait elsewhere) goes on without these; clocks count instructions.

mod barrier;
mod checked;
mod cluster;
mod exec;
mod image;
mod matrix;
mod memory;
mod races;
mod transfer;
mod warp;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::check::Checker;
use crate::children::Launcher;
use crate::ir::{BlockId, Kernel, Op, Operand, PredRef, Reg, RegTy, Term};
use crate::launch::{Control, Exception, FaultSite, GlobalMemory, Launch, Step, WARP, shared_bytes};
use barrier::Barrier;
use checked::Checking;
pub use cluster::Cluster;

/// Instructions of a warp between two looks at the control word and the other warps.
const SLICE: u32 = 256;
/// Slices of one [`Cta::resume`] that a CTA may use up while it loops: then others get a turn.
const SLICES_PER_RESUME: u32 = 16;
/// Backward branches of the lowest threads while others wait above, before one of these gets a slice.
const PATIENCE: u32 = 64;

/// Position of a thread: block and instruction. Orders as the text does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Pc {
    block: u32,
    inst: u32,
}

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// At a warp operation, until the lanes of its mask have come.
    Warp,
    /// At barrier so-and-so.
    Barrier(u8),
    /// At the cluster's barrier.
    Cluster,
    Exited,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    pc: Pc,
    state: State,
}

/// One CTA: all its state between two calls of [`Cta::resume`].
#[derive(Debug)]
pub struct Cta {
    kernel: Arc<Kernel>,
    launch: Arc<Launch>,
    ctaid: [u32; 3],
    threads: Vec<Thread>,
    /// First word of each register; 128-bit registers have two.
    slots: Vec<u32>,
    /// Words of a thread.
    words: usize,
    regs: Vec<u64>,
    shared: Vec<u8>,
    local: Vec<u8>,
    barriers: [Barrier; 16],
    /// For each warp, backward branches since all its ready threads were together.
    spins: Vec<u32>,
    /// Where the search for a lane to favour starts.
    turn: usize,
    /// Warp that is next to run.
    next_warp: usize,
    /// Instructions executed, for the clocks.
    executed: u64,
    /// A thread asked to sleep.
    sleepy: bool,
    /// Line of the instruction that is executed.
    line: u32,
    /// The threads of which one executes it.
    executing: Range<u32>,
    checking: Option<Box<Checking>>,
    /// Who takes what its threads launch.
    launcher: Option<Arc<dyn Launcher>>,
    ended: Option<Step>,
    /// Its rank in its cluster.
    rank: u32,
    /// While it runs, shared memory of its cluster's CTAs by rank; its own is empty there.
    peers: Vec<Vec<u8>>,
    meeting: cluster::Meeting,
}

/// Why a warp stopped before its slice was over.
enum Stop {
    /// Nothing can run until another warp reaches a barrier, or all have exited.
    Blocked,
    /// The slice is used up.
    Slice,
}

impl Cta {
    /// Prepares CTA `ctaid` of a launch; nothing runs yet. Registers, shared and local memory are zero.
    #[must_use]
    pub fn new(kernel: Arc<Kernel>, launch: Arc<Launch>, ctaid: [u32; 3]) -> Cta {
        let count = launch.block.iter().map(|&n| n as usize).product::<usize>();
        let mut words = 0;
        let slots = kernel
            .regs
            .iter()
            .map(|ty| {
                let slot = words;
                words += if *ty == RegTy::B128 { 2 } else { 1 };
                slot
            })
            .collect();
        let words = words as usize;
        let start = Thread { pc: Pc { block: 0, inst: 0 }, state: State::Ready };
        let shared = shared_bytes(kernel.shared_bytes, kernel.shared_align, launch.dynamic_shared);
        Cta {
            ctaid,
            threads: vec![start; count],
            slots,
            words,
            regs: vec![0; words * count],
            shared: vec![0; shared as usize],
            local: vec![0; kernel.local_bytes as usize * count],
            barriers: Default::default(),
            spins: vec![0; count.div_ceil(WARP as usize)],
            turn: 0,
            next_warp: 0,
            executed: 0,
            sleepy: false,
            line: 0,
            executing: 0..0,
            checking: None,
            launcher: None,
            ended: None,
            rank: launch.rank(ctaid),
            peers: Vec::new(),
            meeting: cluster::Meeting::new(count.div_ceil(WARP as usize)),
            kernel,
            launch,
        }
    }

    /// Has everything checked from now on.
    pub fn check(&mut self, checker: Arc<dyn Checker>) {
        self.checking = Some(Box::new(Checking::new(checker, self.shared.len(), self.spins.len())));
    }

    /// Has somebody take what its threads launch; without, that is an error of theirs.
    pub fn launcher(&mut self, launcher: Arc<dyn Launcher>) {
        self.launcher = Some(launcher);
    }

    /// Runs until it is done, preempted (by `control`, a sleep, or a long loop), or fails. After its end it says the same
    /// again.
    pub fn resume(&mut self, memory: &dyn GlobalMemory, control: &AtomicU32) -> Step {
        if let Some(step) = self.ended {
            return step;
        }
        let step = self.run(memory, control).unwrap_or_else(Step::Exception);
        if step != Step::Preempted {
            self.ended = Some(step);
        }
        step
    }

    /// Where it has failed, if it has.
    #[must_use]
    pub fn fault_site(&self) -> Option<FaultSite> {
        let failed = matches!(self.ended, Some(Step::Exception(_)));
        failed.then(|| FaultSite { line: self.line, ctaid: self.ctaid, threads: self.executing.clone() })
    }

    fn run(&mut self, memory: &dyn GlobalMemory, control: &AtomicU32) -> Result<Step, Exception> {
        let kernel = Arc::clone(&self.kernel);
        let warps = self.spins.len();
        let mut blocked = 0;
        let mut slices = 0;
        self.sleepy = false;
        while self.threads.iter().any(|t| t.state != State::Exited) {
            self.cluster_turned();
            if blocked == warps && self.waits_for_cluster() {
                return Ok(Step::Preempted);
            }
            if blocked == warps {
                // Every thread waits at a barrier that no one will complete.
                self.line = 0;
                self.is_at(0..self.threads.len());
                return Err(Exception::Illegal);
            }
            let warp = self.next_warp;
            self.next_warp = (warp + 1) % warps;
            let before = self.executed;
            let stop = self.run_warp(&kernel, memory, warp)?;
            // A warp that did something may have completed a barrier.
            blocked = if self.executed != before { 0 } else { blocked + 1 };
            if matches!(stop, Stop::Slice) {
                slices += 1;
            }
            let tired = slices >= SLICES_PER_RESUME || (self.sleepy && self.next_warp == 0);
            if tired || control.load(Ordering::Relaxed) != Control::RUN {
                return Ok(Step::Preempted);
            }
        }
        Ok(Step::Done)
    }

    /// Threads of a warp.
    fn warp_threads(&self, warp: usize) -> Range<usize> {
        let first = warp * WARP as usize;
        first..(first + WARP as usize).min(self.threads.len())
    }

    /// Lanes of a warp for which `f` holds.
    fn lanes(&self, warp: usize, f: impl Fn(&Thread) -> bool) -> u32 {
        self.threads[self.warp_threads(warp)]
            .iter()
            .enumerate()
            .fold(0, |mask, (lane, thread)| mask | u32::from(f(thread)) << lane)
    }

    fn run_warp(&mut self, kernel: &Kernel, memory: &dyn GlobalMemory, warp: usize) -> Result<Stop, Exception> {
        let first = warp * WARP as usize;
        let mut budget = SLICE;
        // A lane that is preferred for the rest of the slice.
        let mut favoured = None;
        loop {
            let ready = || self.threads[self.warp_threads(warp)].iter().filter(|t| t.state == State::Ready);
            let Some(lowest) = ready().map(|t| t.pc).min() else {
                let waiting = self.lanes(warp, |t| t.state == State::Warp);
                if waiting == 0 {
                    return Ok(Stop::Blocked);
                }
                self.force_warp_operation(kernel, warp)?;
                continue;
            };
            let together = ready().all(|t| t.pc == lowest);
            if together {
                // Those who wait have met again: nobody is ahead of the others any more.
                favoured = None;
            }
            let patient = self.spins[warp] <= PATIENCE;
            let pc = match favoured {
                Some(thread) if self.is_ready(thread) => self.threads[thread].pc,
                _ if together || patient => lowest,
                _ => {
                    let range = self.warp_threads(warp);
                    self.turn = (self.turn + 1) % range.len();
                    let candidates = range.clone().cycle().skip(self.turn).take(range.len());
                    favoured = candidates.into_iter().find(|&thread| self.is_ready(thread));
                    favoured.map_or(lowest, |thread| self.threads[thread].pc)
                }
            };
            let meet = self.threads[self.warp_threads(warp)].iter().filter(|t| t.state == State::Ready && t.pc > pc);
            // Others may join on the way; look again there.
            let meet = meet.map(|t| t.pc).min();
            if together || !patient {
                self.spins[warp] = 0;
            }
            let group = self.lanes(warp, |t| t.state == State::Ready && t.pc == pc);
            let block = &kernel.blocks[pc.block as usize];
            let mut at = pc;
            loop {
                if meet == Some(at) {
                    self.set_pcs(first, group, at);
                    break;
                }
                if budget == 0 {
                    self.set_pcs(first, group, at);
                    return Ok(Stop::Slice);
                }
                budget -= 1;
                self.executed += 1;
                let Some(inst) = block.insts.get(at.inst as usize) else {
                    self.terminate(warp, group, at, &block.term);
                    break;
                };
                let active = match inst.guard {
                    None => group,
                    Some(p) => self.filter(first, group, p),
                };
                self.line = inst.line;
                if active == 0 {
                    at.inst += 1;
                } else if is_collective(&inst.op) {
                    self.set_pcs(first, group & !active, Pc { inst: at.inst + 1, ..at });
                    self.set_pcs(first, active, at);
                    self.is_at(self.warp_threads(warp));
                    self.collective(kernel, warp, active, &inst.op)?;
                    break;
                } else {
                    let mut rest = active;
                    let mut outcome = Ok(());
                    while rest != 0 {
                        let lane = rest.trailing_zeros();
                        rest &= rest - 1;
                        let thread = first + lane as usize;
                        if let Err(exception) = self.thread_inst(memory, thread, &inst.op, active) {
                            if outcome.is_ok() {
                                self.is_at(thread..thread + 1);
                            }
                            outcome = outcome.and(Err(exception));
                            // A checker hears of all lanes.
                            if !self.tell_failure(thread, &inst.op, exception) {
                                break;
                            }
                        }
                    }
                    outcome?;
                    at.inst += 1;
                }
            }
        }
    }

    /// One of these threads executes the instruction.
    fn is_at(&mut self, threads: Range<usize>) {
        self.executing = threads.start as u32..threads.end as u32;
    }

    fn is_ready(&self, thread: usize) -> bool {
        self.threads[thread].state == State::Ready
    }

    fn set_pcs(&mut self, first: usize, mut lanes: u32, pc: Pc) {
        while lanes != 0 {
            self.threads[first + lanes.trailing_zeros() as usize].pc = pc;
            lanes &= lanes - 1;
        }
    }

    /// Ends a block for the lanes of `group`.
    fn terminate(&mut self, warp: usize, group: u32, at: Pc, term: &Term) {
        let first = warp * WARP as usize;
        let mut rest = group;
        let mut back = false;
        while rest != 0 {
            let thread = first + rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let target: BlockId = match term {
                Term::Bra(target) => *target,
                Term::CondBra { p, then, els, .. } => {
                    if self.pred(thread, *p) {
                        *then
                    } else {
                        *els
                    }
                }
                Term::BrIdx { index, targets } => {
                    let index = self.operand(thread, *index) as usize;
                    targets[index.min(targets.len() - 1)]
                }
                Term::Exit => {
                    self.threads[thread].state = State::Exited;
                    continue;
                }
            };
            back |= target.0 <= at.block;
            self.threads[thread].pc = Pc { block: target.0, inst: 0 };
        }
        self.spins[warp] += u32::from(back);
        if *term == Term::Exit {
            // Those who wait for the exited need not any more.
            for thread in self.warp_threads(warp) {
                if self.threads[thread].state == State::Warp {
                    self.threads[thread].state = State::Ready;
                }
            }
            self.release_barriers();
            self.tell_cluster();
        }
    }

    /// Lanes for which the predicate holds.
    fn filter(&self, first: usize, lanes: u32, p: PredRef) -> u32 {
        let mut rest = lanes;
        let mut held = 0;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            held |= u32::from(self.pred(first + lane as usize, p)) << lane;
        }
        held
    }

    fn reg(&self, thread: usize, reg: Reg) -> u64 {
        self.regs[thread * self.words + self.slots[reg.0 as usize] as usize]
    }

    fn reg_wide(&self, thread: usize, reg: Reg) -> u128 {
        let at = thread * self.words + self.slots[reg.0 as usize] as usize;
        let high = if self.kernel.regs[reg.0 as usize] == RegTy::B128 { self.regs[at + 1] } else { 0 };
        u128::from(self.regs[at]) | u128::from(high) << 64
    }

    /// Writes a register, truncating.
    fn set(&mut self, thread: usize, reg: Reg, value: u64) {
        self.set_wide(thread, reg, value.into());
    }

    fn set_wide(&mut self, thread: usize, reg: Reg, value: u128) {
        let at = thread * self.words + self.slots[reg.0 as usize] as usize;
        let low = value as u64;
        self.regs[at] = match self.kernel.regs[reg.0 as usize] {
            RegTy::Pred => low & 1,
            RegTy::B16 => low & 0xffff,
            RegTy::B32 => low & 0xffff_ffff,
            RegTy::B64 => low,
            RegTy::B128 => {
                self.regs[at + 1] = (value >> 64) as u64;
                low
            }
        };
    }

    fn operand(&self, thread: usize, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.reg(thread, reg),
            Operand::Imm(value) => value,
        }
    }

    fn operand_wide(&self, thread: usize, operand: Operand) -> u128 {
        match operand {
            Operand::Reg(reg) => self.reg_wide(thread, reg),
            Operand::Imm(value) => value.into(),
        }
    }

    fn pred(&self, thread: usize, p: PredRef) -> bool {
        (self.reg(thread, p.reg) != 0) != p.negate
    }
}

/// Does the instruction concern several threads at once?
fn is_collective(op: &Op) -> bool {
    matches!(
        op,
        Op::Bar { .. }
            | Op::BarWarp { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
    ) || crate::warp::is_matrix(op)
}
