//! Random kernels: valid, terminating, and with a result that does not depend on the order of threads or CTAs.
//!
//! A kernel is made from a slice of bytes, each choice taking one, so that a fuzzer's mutations and a property test's
//! shrinking act on the structure; an exhausted slice ends the kernel. Inputs are read by everyone, outputs lie in a slot per
//! thread, atomics without result combine commutatively in cells of their own operation, shared memory is written and read
//! in phases between barriers, and warp operations stand where all threads of whole warps are together. Every other kernel
//! has lanes that rely on one another: they exchange words without a barrier, meet at different places, wait for their turn.
//!
//! - `ops`: instructions that compute; `flush`: those that flush subnormals; `together`: what lanes do with one another; `matrix`:
//!   matrices; this file: structure, memory and warp operations.

mod flush;
mod matrix;
mod ops;
mod together;

use std::sync::Arc;

use ptx::ir::{
    Address, AtomOp, BarKind, BarRed, Block, BlockId, BoolOp, Cmp, Inst, IntOp, Kernel, MulPart, Op, Operand, Order,
    Param, PredRef, ReduxOp, Reg, RegTy, SReg, ShflMode, Space, Term, Ty, VoteMode,
};
use ptx::launch::Launch;

/// Where the generated kernels' memory lies.
pub const BASE: u64 = 0x30_0000_0000;
/// Words of the input area, a power of two.
const INPUT_WORDS: u32 = 1024;
/// Most bytes between the inputs of two threads: those of 128 threads are inputs.
const MAX_DISTANCE: u32 = 4 * INPUT_WORDS / 128;
/// Bytes of a thread's output slot.
const SLOT_BYTES: u32 = 512;
/// Words of the slot that stores inside the kernel may hit; the registers' final values follow.
const SLOT_WORDS: u32 = 16;
/// Classes of atomic cells, and cells of eight bytes in each.
const CLASSES: u32 = 9;
const CELLS: u32 = 16;
/// Deepest nesting of branches and loops.
const MAX_DEPTH: u32 = 3;
/// Most instructions of a kernel.
const MAX_INSTS: usize = 400;
/// Local memory of a thread, bytes.
const LOCAL_BYTES: u32 = 64;

/// A kernel with its launch and memory, for [`crate::compare`].
#[derive(Debug)]
pub struct Generated {
    /// The kernel; it passes [`ptx::verify::verify`].
    pub kernel: Arc<Kernel>,
    /// Its launch.
    pub launch: Arc<Launch>,
    /// Memory before; the first byte is at [`BASE`].
    pub memory: Vec<u8>,
}

/// Registers by what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pool {
    Pred,
    I16,
    I32,
    I64,
    F16,
    F16x2,
    F32,
    F64,
}

/// Pools, the type to move them as, and how many registers each has.
const POOLS: [(Pool, Ty, u32); 8] = [
    (Pool::Pred, Ty::Pred, 5),
    (Pool::I16, Ty::B16, 3),
    (Pool::I32, Ty::B32, 8),
    (Pool::I64, Ty::B64, 5),
    (Pool::F16, Ty::B16, 3),
    (Pool::F16x2, Ty::B32, 2),
    (Pool::F32, Ty::B32, 6),
    (Pool::F64, Ty::B64, 4),
];

/// Registers outside the pools.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    tid: Reg,
    gid: Reg,
    input: Reg,
    slot: Reg,
    cells: Reg,
    address: Reg,
    index: Reg,
}

struct Builder<'a> {
    bytes: std::slice::Iter<'a, u8>,
    regs: Vec<RegTy>,
    first: [u32; POOLS.len()],
    fixed: Fixed,
    blocks: Vec<Block>,
    insts: Vec<Inst>,
    count: usize,
    threads: u32,
    whole_warps: bool,
    /// No thread may be elsewhere: barriers and warp operations are allowed.
    together: bool,
    /// Lanes rely on one another.
    in_step: bool,
    /// Loops around the current place.
    looping: u32,
    /// Places so far where lanes exchange words, and where threads wait.
    exchanges: u32,
    waits: u32,
}

/// Makes a kernel of the choices in `bytes`.
#[must_use]
pub fn generate(bytes: &[u8]) -> Generated {
    let mut b = Builder::new(bytes);
    let shapes = [[32, 1, 1], [64, 1, 1], [8, 4, 2], [33, 1, 1], [5, 3, 1], [128, 1, 1], [1, 1, 1], [96, 1, 1]];
    let block: [u32; 3] = shapes[b.below(shapes.len() as u32) as usize];
    let grid = [1 + b.below(3), 1, 1];
    b.threads = block.iter().product();
    b.whole_warps = b.threads.is_multiple_of(32);
    b.in_step = b.chance(2);
    b.prologue(block);
    b.statements(0);
    b.epilogue();
    let total = b.threads * grid[0];
    let seed = bytes.iter().fold(0x9e37_79b9_7f4a_7c15, |s: u64, &x| (s ^ u64::from(x)).wrapping_mul(0x100_0000_01b3));
    let kernel = Kernel {
        origins: Vec::new(),
        sources: ptx::Sources::default(),
        name: "generated".to_owned(),
        params: (0..3).map(|i| Param { offset: 8 * i, size: 8, align: 8 }).collect(),
        param_bytes: 24,
        regs: b.regs,
        blocks: b.blocks,
        shared_bytes: 8 * b.threads + 8 * CELLS + together::shared_bytes(b.threads),
        shared_align: 16,
        local_bytes: LOCAL_BYTES,
        stack_bytes: 0,
        max_ntid: None,
        exact_ntid: false,
    };
    let areas = [BASE, BASE + u64::from(4 * INPUT_WORDS), BASE + u64::from(4 * INPUT_WORDS + 8 * CLASSES * CELLS)];
    let [input, cells, slots] = areas;
    let launch = Launch {
        grid_id: 1,
        ..Launch::new(grid, block, [input, slots, cells].iter().flat_map(|a| a.to_le_bytes()).collect())
    };
    let mut memory = inputs(seed);
    memory.resize(((slots - BASE) as usize + (total * SLOT_BYTES) as usize).next_multiple_of(64 << 10), 0);
    Generated { kernel: Arc::new(kernel), launch: Arc::new(launch), memory }
}

/// Input words: small and large integers, and floats of all kinds.
fn inputs(mut state: u64) -> Vec<u8> {
    let specials = [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 1, 0x0080_0000, 0x3f80_0000, 0x7f7f_ffff];
    (0..INPUT_WORDS)
        .flat_map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = (state >> 24) as u32;
            let word = match word % 8 {
                0 => specials[(word >> 3) as usize % specials.len()],
                1 => word >> 27,
                // A subnormal float, and one of moderate size.
                6 => word & 0x807f_ffff,
                2..=4 => (word & 0x807f_ffff) | (0x3c00_0000 + (word >> 4 & 0x07ff_ffff)),
                5 => i,
                _ => word,
            };
            word.to_le_bytes()
        })
        .collect()
}

fn reg(r: Reg) -> Operand {
    Operand::Reg(r)
}

impl<'a> Builder<'a> {
    fn new(bytes: &'a [u8]) -> Builder<'a> {
        let mut regs = Vec::new();
        let first = POOLS.map(|(_, ty, count)| {
            let first = regs.len() as u32;
            regs.extend(std::iter::repeat_n(ty.reg(), count as usize));
            first
        });
        let mut fresh = |ty: RegTy| {
            regs.push(ty);
            Reg(regs.len() as u32 - 1)
        };
        let fixed = Fixed {
            tid: fresh(RegTy::B32),
            gid: fresh(RegTy::B32),
            input: fresh(RegTy::B64),
            slot: fresh(RegTy::B64),
            cells: fresh(RegTy::B64),
            address: fresh(RegTy::B64),
            index: fresh(RegTy::B32),
        };
        Builder {
            bytes: bytes.iter(),
            regs,
            first,
            fixed,
            blocks: Vec::new(),
            insts: Vec::new(),
            count: 0,
            threads: 0,
            whole_warps: false,
            together: true,
            in_step: false,
            looping: 0,
            exchanges: 0,
            waits: 0,
        }
    }

    /// A choice among `n` (at most 256); 0 when the bytes are used up.
    fn below(&mut self, n: u32) -> u32 {
        u32::from(self.bytes.next().copied().unwrap_or(0)) % n.max(1)
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    fn fresh(&mut self, ty: RegTy) -> Reg {
        self.regs.push(ty);
        Reg(self.regs.len() as u32 - 1)
    }

    fn any(&mut self, pool: Pool) -> Reg {
        let i = POOLS.iter().position(|p| p.0 == pool).unwrap_or(0);
        Reg(self.first[i] + self.below(POOLS[i].2))
    }

    /// A register of the pool, or sometimes a constant.
    fn source(&mut self, pool: Pool) -> Operand {
        if pool == Pool::Pred || !self.chance(5) {
            return reg(self.any(pool));
        }
        Operand::Imm(match pool {
            Pool::I16 => self.pick(&[0, 1, 3, 0x7fff, 0x8000, 0xffff]),
            Pool::I32 => self.pick(&[0, 1, 2, 5, 31, 32, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe]),
            Pool::I64 => self.pick(&[0, 1, 7, 0xffff_ffff, 1 << 63, u64::MAX]),
            Pool::F16 => self.pick(&[0, 0x3c00, 0xc000, 0x7c00]),
            Pool::F16x2 => self.pick(&[0, 0x3c00_4000]),
            Pool::F32 => self.pick(&[0, 0x3f80_0000, 0x4000_0000, 0xbf00_0000, 0x7f80_0000, 0x0000_0001]),
            _ => self.pick(&[0, 1f64.to_bits(), (-2.5f64).to_bits(), f64::INFINITY.to_bits()]),
        })
    }

    fn pred(&mut self) -> PredRef {
        PredRef { reg: self.any(Pool::Pred), negate: self.chance(2) }
    }

    fn emit(&mut self, op: Op) {
        self.count += 1;
        self.insts.push(Inst { guard: None, op, line: self.count as u32 });
    }

    /// Ends the current block; the next has the number that is returned.
    fn end(&mut self, term: Term) -> BlockId {
        self.blocks.push(Block { insts: std::mem::take(&mut self.insts), term });
        self.next()
    }

    fn next(&self) -> BlockId {
        BlockId(self.blocks.len() as u32)
    }

    fn int(&mut self, op: IntOp, ty: Ty, dst: Reg, a: Operand, b: Operand) {
        self.emit(Op::Int { op, ty, sat: false, dst, a, b });
    }

    fn prologue(&mut self, block: [u32; 3]) {
        let f = self.fixed;
        for (dst, offset) in [(f.input, 0), (f.slot, 8), (f.cells, 16)] {
            let addr = Address { base: Operand::Imm(offset), offset: 0 };
            self.emit(Op::Ld { space: Space::Param, ty: Ty::U64, order: Order::Weak, dsts: vec![Some(dst)], addr });
        }
        // tid = (z * ny + y) * nx + x; gid = ctaid * threads + tid.
        self.emit(Op::Special { ty: Ty::U32, dst: f.tid, sreg: SReg::Tid(2) });
        for (dimension, extent) in [(1, block[1]), (0, block[0])] {
            self.emit(Op::Special { ty: Ty::U32, dst: f.index, sreg: SReg::Tid(dimension) });
            let (a, b, c) = (reg(f.tid), Operand::Imm(extent.into()), reg(f.index));
            self.emit(Op::Mad { part: MulPart::Lo, ty: Ty::U32, sat: false, dst: f.tid, a, b, c });
        }
        self.emit(Op::Special { ty: Ty::U32, dst: f.index, sreg: SReg::Ctaid(0) });
        let (a, b, c) = (reg(f.index), Operand::Imm(self.threads.into()), reg(f.tid));
        self.emit(Op::Mad { part: MulPart::Lo, ty: Ty::U32, sat: false, dst: f.gid, a, b, c });
        let (a, b, c) = (reg(f.gid), Operand::Imm(SLOT_BYTES.into()), reg(f.slot));
        self.emit(Op::Mad { part: MulPart::Wide, ty: Ty::U32, sat: false, dst: f.slot, a, b, c });
        // Every register starts with an input.
        for (i, (pool, ty, count)) in POOLS.into_iter().enumerate() {
            for n in 0..count {
                let dst = Reg(self.first[i] + n);
                self.int(
                    IntOp::Add,
                    Ty::U32,
                    f.index,
                    reg(f.gid),
                    Operand::Imm((97 * i as u64 + 2 * u64::from(n)) * 3),
                );
                self.input_address(ty.bytes().max(4));
                if pool == Pool::Pred {
                    let addr = Address { base: reg(f.address), offset: 0 };
                    let dsts = vec![Some(f.index)];
                    self.emit(Op::Ld { space: Space::Global, ty: Ty::U32, order: Order::Weak, dsts, addr });
                    self.compare(Cmp::Lt, Ty::S32, dst, reg(f.index), Operand::Imm(0x2000_0000));
                } else {
                    let addr = Address { base: reg(f.address), offset: 0 };
                    self.emit(Op::Ld { space: Space::Global, ty, order: Order::Weak, dsts: vec![Some(dst)], addr });
                }
            }
        }
    }

    /// `address` becomes that of an input chosen by `index`, aligned to `align`.
    fn input_address(&mut self, align: u32) {
        let f = self.fixed;
        let mask = (INPUT_WORDS * 4 - 1) & !(align - 1) & !15;
        let low = 16u32.saturating_sub(align);
        self.int(IntOp::Shl, Ty::B32, f.index, reg(f.index), Operand::Imm(2));
        self.int(IntOp::And, Ty::B32, f.index, reg(f.index), Operand::Imm(u64::from(mask | low)));
        let c = reg(f.input);
        self.emit(Op::Mad {
            part: MulPart::Wide,
            ty: Ty::U32,
            sat: false,
            dst: f.address,
            a: reg(f.index),
            b: Operand::Imm(1),
            c,
        });
    }

    fn compare(&mut self, cmp: Cmp, ty: Ty, dst: Reg, a: Operand, b: Operand) {
        self.emit(Op::Setp { cmp, ty, ftz: false, dst, dst2: None, a, b, combine: None });
    }

    /// Stores all registers behind the part of the slot that stores inside the kernel use.
    fn epilogue(&mut self) {
        let mut at = i64::from(4 * SLOT_WORDS);
        for (i, (pool, ty, count)) in POOLS.into_iter().enumerate() {
            for n in 0..count {
                let src = reg(Reg(self.first[i] + n));
                let (ty, src) = if pool == Pool::Pred {
                    let (dst, p) = (self.fixed.index, PredRef { reg: Reg(self.first[i] + n), negate: false });
                    self.emit(Op::Selp { ty: Ty::B32, dst, a: Operand::Imm(1), b: Operand::Imm(0), p });
                    (Ty::B32, reg(dst))
                } else {
                    (ty, src)
                };
                at = (at + i64::from(ty.bytes()) - 1) / i64::from(ty.bytes()) * i64::from(ty.bytes());
                let addr = Address { base: reg(self.fixed.slot), offset: at };
                self.emit(Op::St { space: Space::Global, ty, order: Order::Weak, srcs: vec![src], addr });
                at += i64::from(ty.bytes());
            }
        }
        self.end(Term::Exit);
    }

    fn statements(&mut self, depth: u32) {
        for _ in 0..24 {
            if self.count > MAX_INSTS {
                return;
            }
            match self.below(16) {
                0 => return,
                1 | 2 if depth < MAX_DEPTH => self.branch(depth),
                3 if depth < MAX_DEPTH => self.repeat(depth),
                4 | 5 => self.memory(),
                6 => self.atomic(),
                7 | 8 if self.together => self.collective(),
                9 | 10 if self.in_step => self.exchange(),
                11 if self.in_step && self.together && self.whole_warps => self.meeting(),
                12 if self.in_step && self.together && depth == 0 => self.wait(),
                13 => self.flushing(),
                _ => {
                    let guard = self.chance(6).then(|| self.pred());
                    let from = self.insts.len();
                    self.compute();
                    for inst in &mut self.insts[from..] {
                        inst.guard = guard;
                    }
                }
            }
        }
    }

    /// If, perhaps with else; sometimes on a condition that all threads share.
    fn branch(&mut self, depth: u32) {
        let (together, uniform, otherwise) = (self.together, self.chance(3), self.chance(2));
        let p = if uniform {
            self.emit(Op::Special { ty: Ty::U32, dst: self.fixed.index, sreg: SReg::Ctaid(0) });
            let p = self.fresh(RegTy::Pred);
            self.compare(Cmp::Eq, Ty::U32, p, reg(self.fixed.index), Operand::Imm(0));
            PredRef { reg: p, negate: false }
        } else {
            self.pred()
        };
        self.together &= uniform;
        // Targets behind are patched when their numbers are known.
        let head = self.blocks.len();
        let then = self.end(Term::Exit);
        self.statements(depth + 1);
        let mut els = self.end(Term::Exit);
        let tail = els.0 as usize - 1;
        let mut join = els;
        if otherwise {
            els = join;
            self.statements(depth + 1);
            join = BlockId(self.next().0 + 1);
            self.end(Term::Bra(join));
        }
        self.blocks[head].term = Term::CondBra { p, then, els, uniform };
        self.blocks[tail].term = Term::Bra(join);
        self.together = together;
    }

    /// A loop of at most four trips, each thread with its own number or all with the same.
    fn repeat(&mut self, depth: u32) {
        let (together, uniform) = (self.together, self.chance(2));
        let (trips, p) = (self.fresh(RegTy::B32), self.fresh(RegTy::Pred));
        if uniform {
            let n = 1 + self.below(4);
            self.emit(Op::Mov { ty: Ty::B32, dst: trips, src: Operand::Imm(n.into()) });
        } else {
            let a = reg(self.any(Pool::I32));
            self.int(IntOp::And, Ty::B32, trips, a, Operand::Imm(3));
        }
        self.together &= uniform;
        let body = BlockId(self.next().0 + 1);
        self.end(Term::Bra(body));
        self.looping += 1;
        self.statements(depth + 1);
        self.looping -= 1;
        self.int(IntOp::Sub, Ty::U32, trips, reg(trips), Operand::Imm(1));
        self.compare(Cmp::Gt, Ty::S32, p, reg(trips), Operand::Imm(0));
        let after = BlockId(self.next().0 + 1);
        self.end(Term::CondBra { p: PredRef { reg: p, negate: false }, then: body, els: after, uniform });
        self.together = together;
    }

    /// Loads of inputs, stores to the slot, local memory.
    fn memory(&mut self) {
        let f = self.fixed;
        let order = self.pick(&[Order::Weak, Order::Weak, Order::Volatile, Order::Relaxed]);
        // In a loop other orders count as waiting, which lets lanes pass that should stay in step.
        let order = if self.in_step && self.looping > 0 { Order::Weak } else { order };
        match self.below(6) {
            0 | 1 => {
                let a = reg(self.any(Pool::I32));
                self.emit(Op::Mov { ty: Ty::B32, dst: f.index, src: a });
                let (pool, ty) = self.loadable();
                let n = if ty.bytes() == 2 || order != Order::Weak { 1 } else { self.pick(&[1, 1, 2]) };
                self.input_address((ty.bytes() * n).max(4));
                let dsts = (0..n).map(|_| Some(self.any(pool))).collect();
                let addr = Address { base: reg(f.address), offset: 0 };
                let space = self.pick(&[Space::Global, Space::Global, Space::Generic, Space::Const]);
                self.emit(Op::Ld { space, ty, order, dsts, addr });
            }
            2 | 3 => {
                let (pool, ty) = self.loadable();
                let at = 8 * self.below(SLOT_WORDS / 2);
                let srcs = vec![reg(self.any(pool))];
                let space = self.pick(&[Space::Global, Space::Generic]);
                self.emit(Op::St { space, ty, order, srcs, addr: Address { base: reg(f.slot), offset: at.into() } });
            }
            4 => {
                let (pool, ty) = self.loadable();
                let (address, offset) = self.apart(ty.bytes());
                let dsts = vec![Some(self.any(pool))];
                let space = self.pick(&[Space::Global, Space::Global, Space::Generic, Space::Const]);
                self.emit(Op::Ld { space, ty, order, dsts, addr: Address { base: reg(address), offset } });
            }
            _ => {
                let a = reg(self.any(Pool::I32));
                self.int(IntOp::And, Ty::B32, f.index, a, Operand::Imm(u64::from(LOCAL_BYTES - 1) & !7));
                let (pool, ty) = self.loadable();
                let addr = Address { base: reg(f.index), offset: 0 };
                let srcs = vec![reg(self.any(pool))];
                self.emit(Op::St { space: Space::Local, ty, order: Order::Weak, srcs, addr });
                let at = 8 * self.below(LOCAL_BYTES / 8);
                let addr = Address { base: Operand::Imm(at.into()), offset: 0 };
                let dsts = vec![Some(self.any(pool))];
                self.emit(Op::Ld { space: Space::Local, ty, order: Order::Weak, dsts, addr });
            }
        }
    }

    /// Inputs of `size` bytes for all threads, each at the same distance from the one before, forwards or backwards: the
    /// address, which is in `address`, and what is to be added.
    fn apart(&mut self, size: u32) -> (Reg, i64) {
        let f = self.fixed;
        let (all, steps) = (4 * INPUT_WORDS, self.threads.max(2) - 1);
        let distance = size * self.below(1 + MAX_DISTANCE / size);
        let span = distance * steps;
        let first = size * self.below(((all - size - span) / size + 1).min(256));
        let (by, offset) = if self.chance(2) { (distance.wrapping_neg(), first + span) } else { (distance, first) };
        let (a, b, c) = (reg(f.tid), Operand::Imm(by.into()), reg(f.input));
        self.emit(Op::Mad { part: MulPart::Wide, ty: Ty::S32, sat: false, dst: f.address, a, b, c });
        (f.address, offset.into())
    }

    fn loadable(&mut self) -> (Pool, Ty) {
        self.pick(&[
            (Pool::I32, Ty::U32),
            (Pool::I32, Ty::S8),
            (Pool::I32, Ty::U16),
            (Pool::I64, Ty::U64),
            (Pool::I64, Ty::S32),
            (Pool::I16, Ty::U8),
            (Pool::F32, Ty::F32),
            (Pool::F64, Ty::F64),
            (Pool::F16, Ty::B16),
        ])
    }

    /// An atomic without result on a cell of its class.
    fn atomic(&mut self) {
        let f = self.fixed;
        let classes: [(AtomOp, Ty, Pool); CLASSES as usize] = [
            (AtomOp::Add, Ty::U32, Pool::I32),
            (AtomOp::Min, Ty::S32, Pool::I32),
            (AtomOp::Max, Ty::U32, Pool::I32),
            (AtomOp::And, Ty::B32, Pool::I32),
            (AtomOp::Or, Ty::B32, Pool::I32),
            (AtomOp::Xor, Ty::B64, Pool::I64),
            (AtomOp::Add, Ty::U64, Pool::I64),
            (AtomOp::Max, Ty::S64, Pool::I64),
            (AtomOp::Min, Ty::U64, Pool::I64),
        ];
        let class = self.below(CLASSES);
        let (op, ty, pool) = classes[class as usize];
        let a = reg(self.any(Pool::I32));
        self.int(IntOp::And, Ty::B32, f.index, a, Operand::Imm(u64::from(CELLS - 1)));
        let (a, b, c) = (reg(f.index), Operand::Imm(8), reg(f.cells));
        self.emit(Op::Mad { part: MulPart::Wide, ty: Ty::U32, sat: false, dst: f.address, a, b, c });
        let addr = Address { base: reg(f.address), offset: i64::from(8 * CELLS * class) };
        let b = reg(self.any(pool));
        let space = self.pick(&[Space::Global, Space::Generic]);
        let order = Order::Relaxed;
        self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: None, addr, b, c: None });
        if self.chance(3) {
            let guard = Some(self.pred());
            if let Some(last) = self.insts.last_mut() {
                last.guard = guard;
            }
        }
    }

    fn barrier(&mut self) {
        self.emit(Op::Bar { kind: BarKind::Sync, id: Operand::Imm(0), count: None, pred: None, dst: None });
    }

    /// Something that all threads do together.
    fn collective(&mut self) {
        let f = self.fixed;
        let mask = Operand::Imm(0xffff_ffff);
        match self.below(if self.whole_warps { 11 } else { 3 }) {
            0 => {
                // Exchange through shared memory.
                self.barrier();
                self.int(IntOp::Shl, Ty::B32, f.index, reg(f.tid), Operand::Imm(3));
                let addr = Address { base: reg(f.index), offset: 0 };
                let srcs = vec![reg(self.any(Pool::I64))];
                self.emit(Op::St { space: Space::Shared, ty: Ty::U64, order: Order::Weak, srcs, addr });
                self.barrier();
                let distance = self.below(64);
                self.int(IntOp::Add, Ty::U32, f.index, reg(f.tid), Operand::Imm(distance.into()));
                self.int(IntOp::Rem, Ty::U32, f.index, reg(f.index), Operand::Imm(self.threads.into()));
                self.int(IntOp::Shl, Ty::B32, f.index, reg(f.index), Operand::Imm(3));
                let dsts = vec![Some(self.any(Pool::I64))];
                self.emit(Op::Ld { space: Space::Shared, ty: Ty::U64, order: Order::Weak, dsts, addr });
            }
            1 => {
                // Shared atomics, then everyone reads a cell.
                let base = i64::from(8 * self.threads);
                let a = reg(self.any(Pool::I32));
                self.barrier();
                self.int(IntOp::And, Ty::B32, f.index, a, Operand::Imm(u64::from(CELLS - 1)));
                self.int(IntOp::Shl, Ty::B32, f.index, reg(f.index), Operand::Imm(3));
                let addr = Address { base: reg(f.index), offset: base };
                let b = reg(self.any(Pool::I32));
                let (op, space, ty, order) = (AtomOp::Add, Space::Shared, Ty::U32, Order::Relaxed);
                self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: None, addr, b, c: None });
                self.barrier();
                let dsts = vec![Some(self.any(Pool::I32))];
                self.emit(Op::Ld { space, ty, order: Order::Weak, dsts, addr });
            }
            2 => {
                let (red, dst) = match self.below(3) {
                    0 => (BarRed::Popc, self.any(Pool::I32)),
                    1 => (BarRed::And, self.any(Pool::Pred)),
                    _ => (BarRed::Or, self.any(Pool::Pred)),
                };
                let pred = Some(self.pred());
                let (kind, id) = (BarKind::Red(red), Operand::Imm(0));
                self.emit(Op::Bar { kind, id, count: None, pred, dst: Some(dst) });
            }
            3 | 4 => {
                let mode = self.pick(&[ShflMode::Up, ShflMode::Down, ShflMode::Bfly, ShflMode::Idx]);
                let segment = self.pick(&[0u64, 0x10, 0x18, 0x1c]);
                let clamp = if mode == ShflMode::Up { 0 } else { 31 };
                let c = Operand::Imm(segment << 8 | clamp);
                let b = self.source(Pool::I32);
                let pred = self.chance(2).then(|| self.any(Pool::Pred));
                let pool = self.pick(&[Pool::I32, Pool::I32, Pool::F32]);
                let (dst, a) = (self.any(pool), reg(self.any(pool)));
                self.emit(Op::Shfl { mode, dst, pred, a, b, c, mask });
            }
            5 => {
                let mode = self.pick(&[VoteMode::Ballot, VoteMode::All, VoteMode::Any, VoteMode::Uni]);
                let dst = self.any(if mode == VoteMode::Ballot { Pool::I32 } else { Pool::Pred });
                let p = self.pred();
                self.emit(Op::Vote { mode, dst, p, mask });
            }
            6 => {
                let (op, ty) = self.pick(&[
                    (ReduxOp::Add, Ty::U32),
                    (ReduxOp::Min, Ty::S32),
                    (ReduxOp::Max, Ty::U32),
                    (ReduxOp::And, Ty::B32),
                    (ReduxOp::Or, Ty::B32),
                    (ReduxOp::Xor, Ty::B32),
                ]);
                let (dst, a) = (self.any(Pool::I32), reg(self.any(Pool::I32)));
                self.emit(Op::Redux { op, ty, dst, a, mask });
            }
            7 => {
                let all = self.chance(2);
                let a = reg(self.any(Pool::I32));
                self.int(IntOp::And, Ty::B32, f.index, a, Operand::Imm(3));
                let (dst, a) = (self.any(Pool::I32), reg(f.index));
                let pred = (all && self.chance(2)).then(|| self.any(Pool::Pred));
                self.emit(Op::Match { all, ty: Ty::B32, dst, pred, a, mask });
            }
            _ => self.matrices(),
        }
    }

    fn combine(&mut self) -> Option<(BoolOp, PredRef)> {
        if !self.chance(3) {
            return None;
        }
        Some((self.pick(&[BoolOp::And, BoolOp::Or, BoolOp::Xor]), self.pred()))
    }
}
