//! Memory accesses.
//!
//! Fast paths, chosen by the class of the address: one scalar access for an address that all lanes share; vector accesses
//! for consecutive elements, if at run time the range lies inside its space, is aligned, and the index did not wrap, of which only active lanes
//! store theirs; scalar accesses after the same check for elements at another fixed distance; one or the other for elements at a distance
//! that is known when the code runs ([`super::stepped`]); an access per lane, if all are inside and
//! aligned. Everything else is done lane by lane in a helper, which also finds out what exactly is wrong. Several accesses may be checked
//! at once: see [`super::ask`].

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, InstructionData, MemFlagsData, Opcode, Type, Value, types};
use ptx::ir::{Address, Op, Operand, Order, Reg, RegTy, Space, Ty};

use super::alu::Parts;
use super::consecutive::{At, vectorable, whole_vector};
use super::fixed::Reach;
use super::{Emit, Val, arg, trusted};
use crate::abi::Helper;
use crate::abi::context::at;
use crate::abi::place::Lanes;
use crate::abi::{Resolve, Site};
use crate::analysis::floats::Nans;
use crate::analysis::pointers::Pointer;

/// Flags of an access to tenant memory: it may fault, and is aligned only as elements are.
pub(super) fn tenant() -> MemFlagsData {
    MemFlagsData::new()
}

/// A range of memory around a base register that one check has covered, for the accesses of a node that follow.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    space: Space,
    pub(super) base: Reg,
    /// Bytes per lane of the accesses, which all are aligned alike.
    size: i64,
    /// One element for each lane, at a fixed distance; else one for all.
    spaced: bool,
    /// Offsets from the base that are covered: from `low` to below `high`, for one lane.
    low: i64,
    high: i64,
    /// Host address of offset `low`.
    host: Host,
    /// What must hold.
    fine: Checks,
}

impl Checked {
    /// One access for all lanes, at an offset from a register, for which one thing must hold.
    pub(super) fn of_one(space: Space, (base, low): (Reg, i64), size: i64, host: Host, fine: Value) -> Checked {
        Checked { space, base, size, spaced: false, low, high: low + size, host, fine: vec![fine] }
    }

    /// Is nothing to be asked any more?
    pub(super) fn is_settled(&self) -> bool {
        self.fine.is_empty()
    }

    /// All of `fine` holds: if it is what must, nothing is to be asked any more.
    pub(super) fn settle(&mut self, fine: &[Value]) {
        if self.fine.iter().all(|condition| fine.contains(condition)) {
            self.fine.clear();
        }
    }
}

/// A host address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host {
    Whole(Value),
    /// Less the base that [`Emit::space_base`] gives: instructions of the processor add one to an address at no cost.
    InSpace(Value),
}

/// A host address, and what is added to it.
pub(super) type Displaced = (Value, i32);

/// Most elements of a lane that are accessed one by one, at addresses of each lane's own.
const FEW: usize = 2;

/// A space's bytes, and bytes and alignment of an access: what [`Emit::places`] depends on.
pub(super) type Room = (Value, i64, i64);

/// Most such values that a function keeps.
const MAX_PLACES: usize = 8;

/// Conditions that must all hold for a fast path.
pub(super) type Checks = Vec<Value>;

/// Most bytes that one check covers in shared memory, and elsewhere: a check of more would fail in a small window for what is
/// in it.
pub(super) const MAX_SPAN: [i64; 2] = [1 << 16, 1 << 11];

/// How often something is added to a value at most, for the sum to be known as one number.
const MOST_ADDED: usize = 4;
/// Most bytes between the elements of neighbouring lanes that one check covers: the last lane's offset is a displacement.
const MAX_DISTANCE: i64 = 1 << 20;

impl Emit<'_, '_> {
    /// Offsets at which the node will access memory as at `addr`, from here to where the base changes.
    fn reach(&self, space: Space, addr: Address, size: i64) -> Option<(Reg, i64, i64)> {
        let Operand::Reg(base) = addr.base else { return None };
        if self.guard.is_some() || self.skippable {
            return None;
        }
        let max = MAX_SPAN[usize::from(space != Space::Shared)];
        let (mut low, mut high) = (addr.offset, addr.offset.checked_add(size)?);
        for inst in self.upcoming {
            let (s, ty, count, at) = match &inst.op {
                Op::Ld { space, ty, dsts, addr, .. } => (*space, *ty, dsts.len(), *addr),
                Op::St { space, ty, srcs, addr, .. } => (*space, *ty, srcs.len(), *addr),
                _ => (Space::Local, Ty::Pred, 0, addr),
            };
            let bytes = i64::from(ty.bytes()) * count as i64;
            if s == space && at.base == addr.base && bytes == size && at.offset.wrapping_sub(addr.offset) % size == 0 {
                let (l, h) = (low.min(at.offset), high.max(at.offset.saturating_add(size)));
                if inst.guard.is_none() && h.checked_sub(l).is_some_and(|span| span <= max) {
                    (low, high) = (l, h);
                }
            }
            if crate::analysis::operands::writes(&inst.op).contains(&base) {
                break;
            }
        }
        Some((base, low, high))
    }

    /// Host address of an access and what must hold for it, by a check that covers its neighbours too.
    pub(super) fn covered(&mut self, space: Space, addr: Address, size: i64, spaced: bool) -> Option<(Host, Checks)> {
        let (base, low, high) = self.reach(space, addr, size)?;
        let found = self.checked.iter().find(|c| {
            (c.space, c.base, c.size, c.spaced) == (space, base, size, spaced)
                && c.low <= addr.offset
                && addr.offset + size <= c.high
                && (addr.offset - c.low) % size == 0
        });
        let entry = match found {
            Some(entry) => entry.clone(),
            None => {
                let lowest = Address { base: addr.base, offset: low };
                let val = self.address(space, lowest);
                let (host, fine) = if spaced {
                    let (host, fine) = self.spaced(space, lowest, &val, size, high - low - size)?;
                    (Host::Whole(host), fine)
                } else {
                    let Val::Same(v) = val else { return None };
                    match self.by_index(space, lowest, size, high - low, 0) {
                        Some((host, ok)) => (Host::Whole(host), vec![ok]),
                        None => {
                            let (host, fine) = self.resolve(space, v, high - low, size);
                            (Host::InSpace(host), fine)
                        }
                    }
                };
                let entry = Checked { space, base, size, spaced, low, high, host, fine };
                self.checked.push(entry.clone());
                entry
            }
        };
        let by = addr.offset - entry.low;
        let host = match entry.host {
            Host::Whole(host) => Host::Whole(self.moved(host, by)),
            Host::InSpace(host) => Host::InSpace(self.moved(host, by)),
        };
        Some((host, entry.fine))
    }

    pub(super) fn memory(&mut self, op: &Op) {
        match op {
            Op::Ld { space, ty, order, dsts, addr } => {
                let before = self.sinkable.len();
                self.load(*space, *ty, dsts, *addr);
                if *order != Order::Weak {
                    self.sinkable.truncate(before);
                }
            }
            Op::St { space, ty, srcs, addr, .. } => self.store(*space, *ty, srcs, *addr),
            Op::Atom { space, dst, addr, b, c, ty, .. } => self.atomic(op, *space, *ty, *dst, *addr, *b, *c),
            Op::CpAsync { dst, src, src_bytes, .. } => self.copy_async(op, *dst, *src, *src_bytes),
            _ => {}
        }
    }

    /// A load that [`super::sink`] may move, unless its instruction's order says something else.
    pub(super) fn sinkable_load(&mut self, ty: Type, (host, offset): Displaced, lanes: Lanes) -> Value {
        let value = self.for_lanes(lanes, |e| e.b.ins().load(ty, tenant(), host, offset));
        self.sinkable.extend(self.b.func.dfg.value_def(value).inst());
        value
    }

    fn site(&mut self, space: Space, ty: Ty, count: usize) -> Value {
        let key = self.key(self.attached.sites.len());
        self.attached.sites.push(self.of_line(Site { space, ty, count: count as u32 }));
        key
    }

    /// An address with its offset. Spaces of 32-bit offsets give 32-bit values.
    pub(super) fn address(&mut self, space: Space, addr: Address) -> Val {
        let from = match addr.base {
            Operand::Reg(r) => self.reg_ty(r),
            Operand::Imm(_) => RegTy::B64,
        };
        let narrow = matches!(space, Space::Shared | Space::Local | Space::Param);
        let val = self.operand(addr.base, from);
        let val = match (narrow, from) {
            (true, RegTy::B64) => match val {
                Val::Same(v) => Val::Same(self.b.ins().ireduce(types::I32, v)),
                Val::Wide { b, c, stride, k, .. } => {
                    let c = self.b.ins().ireduce(types::I32, c);
                    let scaled = self.times(b, i64::from(k as i32));
                    Val::Affine { base: self.b.ins().iadd(c, scaled), stride: stride.wrapping_mul(k as i32) }
                }
                other => {
                    let list = self.lanes(&other, RegTy::B64);
                    Val::Lanes(list.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect())
                }
            },
            (true, _) => val,
            (false, RegTy::B64) => match addr.base {
                Operand::Reg(r) => self.rebased(r, val),
                Operand::Imm(_) => val,
            },
            (false, from) => match val {
                Val::Same(v) => Val::Same(self.b.ins().uextend(types::I64, v)),
                other => {
                    let list = self.lanes(&other, from);
                    Val::Lanes(list.into_iter().flat_map(|v| self.widen(v, false)).collect())
                }
            },
        };
        if addr.offset == 0 {
            return val;
        }
        let by = if narrow { i64::from(addr.offset as i32) } else { addr.offset };
        match val {
            Val::Same(v) => Val::Same(self.b.ins().iadd_imm_s(v, by)),
            Val::Affine { base, stride } => Val::Affine { base: self.b.ins().iadd_imm_s(base, by), stride },
            Val::Wide { b, c, stride, k, signed } => {
                Val::Wide { b, c: self.b.ins().iadd_imm_s(c, by), stride, k, signed }
            }
            Val::Linear { base, step } => Val::Linear { base: self.b.ins().iadd_imm_s(base, by), step },
            Val::Extended { parts, c } => Val::Extended { parts, c: self.b.ins().iadd_imm_s(c, by) },
            Val::Lanes(list) => Val::Lanes(
                list.into_iter()
                    .map(|v| {
                        let by = self.constant(v, by as u64);
                        self.b.ins().iadd(v, by)
                    })
                    .collect(),
            ),
        }
    }

    /// Addresses of all lanes as 64-bit words.
    pub(super) fn address_lanes(&mut self, val: &Val, space: Space) -> Parts {
        if matches!(space, Space::Shared | Space::Local | Space::Param) {
            let list = self.lanes(val, RegTy::B32);
            list.into_iter().flat_map(|v| self.widen(v, false)).collect()
        } else {
            self.lanes(val, RegTy::B64)
        }
    }

    fn whole(&mut self, space: Space, host: Host) -> Value {
        match host {
            Host::Whole(host) => host,
            Host::InSpace(host) => {
                let base = self.space_base(space);
                self.b.ins().iadd(host, base)
            }
        }
    }

    /// The same as an address and a displacement, which instructions of the processor add at no cost.
    pub(super) fn displaced(&mut self, space: Space, host: Host) -> Displaced {
        let (Host::Whole(v) | Host::InSpace(v)) = host;
        let number = self.number_added(v).filter(|(_, by)| (-MAX_DISTANCE..=MAX_DISTANCE).contains(by));
        let (v, by) = number.map_or((v, 0), |(v, by)| (v, by as i32));
        let host = if matches!(host, Host::Whole(_)) { Host::Whole(v) } else { Host::InSpace(v) };
        (self.whole(space, host), by)
    }

    /// A value as another one to which a number is added; of 32 bits they may wrap.
    pub(super) fn sum(&self, v: Value) -> (Value, i64) {
        let short = self.b.func.dfg.value_type(v) == types::I32;
        let (mut v, mut sum) = (self.b.func.dfg.resolve_aliases(v), 0_i64);
        for _ in 0..MOST_ADDED {
            let Some((other, by)) = self.number_added(v) else { break };
            (v, sum) = (other, sum.wrapping_add(if short { i64::from(by as i32) } else { by }));
        }
        (v, sum)
    }

    /// The value and the number of which this one is the sum, if it is one.
    pub(super) fn number_added(&self, v: Value) -> Option<(Value, i64)> {
        let dfg = &self.b.func.dfg;
        let InstructionData::Binary { opcode: Opcode::Iadd, args } = dfg.insts[dfg.value_def(v).inst()?] else {
            return None;
        };
        let [a, b] = args.map(|arg| dfg.resolve_aliases(arg));
        let (v, by) = self.known(b).map(|by| (a, by)).or_else(|| Some((b, self.known(a)?)))?;
        Some((v, by.cast_signed()))
    }

    /// An address that was computed in a node as the sum of a base, a scaled index and a number, computed once more of these, so that it need
    /// not be kept. What the function computes where it begins is taken as it is.
    fn recomputed(&mut self, v: Value) -> Value {
        let func = &self.b.func;
        let inst = func.dfg.value_def(v).inst().filter(|&inst| func.layout.inst_block(inst) != Some(self.entry));
        match inst.map(|inst| func.dfg.insts[inst]) {
            Some(InstructionData::Binary { opcode: opcode @ (Opcode::Iadd | Opcode::Ishl), args }) => {
                let [a, b] = args.map(|arg| self.recomputed(arg));
                if opcode == Opcode::Iadd { self.b.ins().iadd(a, b) } else { self.b.ins().ishl(a, b) }
            }
            Some(InstructionData::UnaryImm { opcode: Opcode::Iconst, imm }) => {
                let ty = self.b.func.dfg.value_type(v);
                self.b.ins().iconst(ty, imm)
            }
            _ => v,
        }
    }

    /// What is added to addresses of a space to give host addresses.
    pub(super) fn space_base(&self, space: Space) -> Value {
        match space {
            Space::Shared => self.inv.shared,
            Space::Param => self.inv.params,
            _ => self.inv.delta,
        }
    }

    /// Address of `bytes` at a scalar address, less the space's base, and whether they may be accessed, aligned to `align`, a power of two.
    pub(super) fn resolve(&mut self, space: Space, v: Value, bytes: i64, align: i64) -> (Value, Checks) {
        let (host, index, limit) = match space {
            Space::Shared => {
                let wide = self.b.ins().uextend(types::I64, v);
                (wide, wide, self.inv.shared_bytes)
            }
            Space::Param => {
                let wide = self.b.ins().uextend(types::I64, v);
                let limit = self.i64(i64::from(self.k.param_bytes));
                (wide, wide, limit)
            }
            _ => (v, self.b.ins().iadd(v, self.inv.below_window), self.inv.window_bytes),
        };
        // One comparison for both: the low bits, rotated to the top, make an index that is not aligned larger than any count
        // of aligned places.
        let places = self.places(limit, bytes, align);
        let index = self.b.ins().rotr_imm_u(index, i64::from(align.trailing_zeros()));
        let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, index, places);
        (host, vec![ok])
    }

    /// In how many places aligned to `align`, a power of two, `bytes` may lie in a space of `limit` bytes, which is one of the function's
    /// invariants or a constant. It is computed where the function begins, and not again.
    fn places(&mut self, limit: Value, bytes: i64, align: i64) -> Value {
        let invariant = limit == self.inv.window_bytes || limit == self.inv.shared_bytes;
        let known = self.places.iter().find(|(what, _)| *what == (limit, bytes, align));
        if let Some(&(_, places)) = known {
            return places;
        }
        if invariant && self.places.len() < MAX_PLACES {
            let mut cursor = FuncCursor::new(self.b.func);
            cursor.goto_last_inst(self.entry);
            let room = cursor.ins().iadd_imm_s(limit, align - bytes);
            let none = cursor.ins().iconst(types::I64, 0);
            let room = cursor.ins().smax(room, none);
            let places = cursor.ins().ushr_imm_u(room, i64::from(align.trailing_zeros()));
            self.places.push(((limit, bytes, align), places));
            return places;
        }
        let room = self.b.ins().iadd_imm_s(limit, align - bytes);
        let none = self.i64(0);
        let room = self.b.ins().smax(room, none);
        self.b.ins().ushr_imm_u(room, i64::from(align.trailing_zeros()))
    }

    /// Bytes from an element to that of the next lane, if they lie at a fixed distance.
    pub(super) fn distance(space: Space, val: &Val) -> Option<i64> {
        match (space, val) {
            (Space::Shared, Val::Affine { stride, .. }) => Some(i64::from(*stride)),
            (Space::Global | Space::Const | Space::Generic, Val::Wide { stride, k, .. }) => {
                i64::from(*stride).checked_mul(*k)
            }
            _ => None,
        }
    }

    /// For elements of `size` bytes at a fixed distance: host address of the first lane's, and what must hold for all to be
    /// accessed without another look. `more` bytes behind those of the chunk are checked too.
    fn spaced(&mut self, space: Space, addr: Address, val: &Val, size: i64, more: i64) -> Option<(Value, Checks)> {
        let distance = Self::distance(space, val)?;
        let others = self.lanes_per_chunk() as i64 - 1;
        if let Val::Wide { stride, .. } = *val
            && let Some((host, ok)) =
                self.by_index(space, addr, size, distance * others + size + more, i64::from(stride) * others)
        {
            return Some((host, vec![ok]));
        }
        let (first, wraps) = match val {
            Val::Affine { base, .. } => (*base, None),
            Val::Wide { b, c, stride, k, signed } => {
                let fine = self.stays_in_range(*b, *stride, *signed);
                (self.wide_scalar(*b, *c, *k, *signed), Some(fine))
            }
            _ => return None,
        };
        let below = distance.min(0) * others;
        let lowest = self.moved(first, below);
        let (host, mut ok) = self.resolve(space, lowest, distance.abs() * others + size + more, size);
        let base = self.space_base(space);
        let host = self.b.ins().iadd(host, base);
        let host = self.moved(host, -below);
        ok.extend(wraps);
        Some((host, ok))
    }

    /// Does an index of 32 bits that grows from lane to lane, from `b` on, not wrap in a chunk?
    pub(super) fn stays_in_range(&mut self, b: Value, stride: i32, signed: bool) -> Value {
        let others = self.lanes_per_chunk() as i64 - 1;
        let last = self.b.ins().iadd_imm_s(b, i64::from(stride) * others);
        let order = match (signed, stride > 0) {
            (true, true) => IntCC::SignedGreaterThanOrEqual,
            (true, false) => IntCC::SignedLessThanOrEqual,
            (false, true) => IntCC::UnsignedGreaterThanOrEqual,
            (false, false) => IntCC::UnsignedLessThanOrEqual,
        };
        self.b.ins().icmp(order, last, b)
    }

    /// Host address of accesses of `size` bytes in the window by an index and a base that is the same in the whole grid, the lowest of which
    /// is at `addr`, and whether all may be, from there to `span` bytes on and to an index that is `ahead` of the first lane's.
    fn by_index(&mut self, space: Space, addr: Address, size: i64, span: i64, ahead: i64) -> Option<(Value, Value)> {
        let (Operand::Reg(r), Space::Global | Space::Const | Space::Generic) = (addr.base, space) else { return None };
        if self.reg_ty(r) != RegTy::B64 || !size.cast_unsigned().is_power_of_two() {
            return None;
        }
        let val = self.get(r);
        let (Pointer { mut base, scale, signed, .. }, index) = self.pointer(r, &val)?;
        base.number = base.number.wrapping_add(addr.offset);
        let reach = Reach { base, scale, signed, size, span, ahead };
        let room = self.room(&reach)?;
        let index = self.extended(index, signed);
        let ok = self.is_below(room, signed, index);
        Some((self.host_of(room, &reach, index), ok))
    }

    /// What must hold besides for all lanes to load at once from `host` on where not all are active: what the others load, nobody looks
    /// at, but it must be there. Shared memory is; of the window, the page is on which an active lane's elements lie.
    pub(super) fn loads_too(&mut self, space: Space, host: Value, bytes: i64) -> Checks {
        if self.guard.is_some() {
            return self.all_active();
        }
        if self.some_load(space).is_none() {
            return Checks::new();
        }
        let page = hostmem::PAGE as i64;
        let at = self.b.ins().band_imm_u(host, page - 1);
        vec![self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, at, page - bytes)]
    }

    /// The lanes that are active where some are, and all load what may not be there.
    fn some_load(&self, space: Space) -> Option<Value> {
        self.exec.as_ref().filter(|_| space != Space::Shared && self.guard.is_none()).map(|exec| exec.bits)
    }

    /// Loads from the first element of the first active lane, where some are: if the page is not there, it is that lane's fault.
    pub(super) fn load_by_first(&mut self, site: &Site, host: Value) {
        let Some(bits) = self.some_load(site.space) else { return };
        let bytes = site.ty.bytes() * site.count;
        let lane = self.b.ins().ctz(bits);
        let lane = self.b.ins().uextend(types::I64, lane);
        let offset = self.b.ins().imul_imm_s(lane, i64::from(bytes));
        self.begins_run(host);
        let host = self.b.ins().iadd(host, offset);
        self.for_lanes(Lanes::OfRun { bytes }, |e| e.b.ins().load(types::I8, tenant(), host, 0));
    }

    /// Notes where the bytes of lanes begin that are accessed one behind another.
    pub(super) fn begins_run(&mut self, host: Value) {
        self.b.ins().store(trusted(), host, self.inv.ctx, at::RUN);
    }

    /// That all lanes are active, where that may not be so.
    pub(super) fn all_active(&mut self) -> Checks {
        let Some(mask) = self.mask() else { return Checks::new() };
        let full = self.full_bits();
        vec![self.b.ins().icmp_imm_u(IntCC::Equal, mask.bits, full)]
    }

    /// A scalar and a constant.
    pub(super) fn moved(&mut self, v: Value, by: i64) -> Value {
        if by == 0 { v } else { self.b.ins().iadd_imm_s(v, by) }
    }

    pub(super) fn mask_bits_or_full(&mut self) -> Value {
        match self.mask() {
            Some(mask) => mask.bits,
            None => self.i32(self.full_bits()),
        }
    }

    /// Goes to `fast` with `args` if all conditions hold, else to `slow`. A branch for each: cheaper than to combine them.
    pub(super) fn branch(&mut self, conditions: &[Value], fast: (Block, &[BlockArg]), slow: (Block, &[BlockArg])) {
        let Some((&last, first)) = conditions.split_last() else {
            self.b.ins().jump(fast.0, fast.1);
            return;
        };
        for &condition in first {
            let next = self.b.create_block();
            self.b.ins().brif(condition, next, &[], slow.0, slow.1);
            self.b.switch_to_block(next);
        }
        self.b.ins().brif(last, fast.0, fast.1, slow.0, slow.1);
    }

    /// Parameters of a block that has none yet, for values like these.
    pub(super) fn params_for(&mut self, block: Block, values: &[Value]) -> Vec<Value> {
        let param = |&v: &Value| {
            let ty = self.b.func.dfg.value_type(v);
            self.b.append_block_param(block, ty)
        };
        values.iter().map(param).collect()
    }

    /// Can a single address of this space be accessed once for all lanes?
    fn shareable(&self, space: Space) -> bool {
        match space {
            Space::Local => false,
            Space::Generic => self.k.local_bytes == 0,
            _ => true,
        }
    }

    /// Is it one address that is accessed once for all lanes?
    pub(super) fn is_one(&self, space: Space, val: &Val) -> bool {
        matches!(val, Val::Same(_)) && self.shareable(space)
    }

    /// A scalar access, which is done where its host address is known: by the fast check, or by the helper, which returns or raises. What
    /// the access gives is handed on. The address is computed once more for the helper, so that it need not be kept for that.
    fn scalar_access(
        &mut self,
        site: Site,
        (v, addr): (Value, Address),
        write: bool,
        access: &mut dyn FnMut(&mut Self, Displaced) -> Vec<Value>,
    ) -> Vec<Value> {
        let (space, size) = (site.space, i64::from(site.ty.bytes()) * i64::from(site.count));
        let (host, ok) = match self.covered(space, addr, size, false) {
            Some(covered) => covered,
            None => {
                let (host, ok) = self.resolve(space, v, size, size);
                (Host::InSpace(host), ok)
            }
        };
        let lanes = self.active_lanes();
        if ok.is_empty() {
            self.fetch_trips_ahead(&site, addr, host);
            let host = self.displaced(space, host);
            return self.for_lanes(lanes, |e| access(e, host));
        }
        let [fast, slow, on] = [(); 3].map(|()| self.b.create_block());
        self.branch(&ok, (fast, &[]), (slow, &[]));
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
        let key = self.site(space, site.ty, site.count as usize);
        let wide = match (host, self.b.func.dfg.value_type(v)) {
            // Of the same index as for the fast access, extended already.
            (Host::Whole(host), _) => {
                let host = self.recomputed(host);
                self.b.ins().isub(host, self.inv.delta)
            }
            (_, types::I64) => match self.address(space, addr) {
                Val::Same(v) => v,
                _ => v,
            },
            _ => self.b.ins().uextend(types::I64, v),
        };
        let how = self.i64(Resolve { write, all: lanes != Lanes::Any }.bits());
        let args = [self.inv.ctx, key, wide, how];
        self.call_rarely(Helper::Resolve, &args);
        let resolved = self.b.ins().load(types::I64, trusted(), self.inv.ctx, at::RESOLVED);
        let given = self.for_lanes(lanes, |e| access(e, (resolved, 0)));
        self.jump_with(on, &given);
        self.b.switch_to_block(fast);
        self.fetch_trips_ahead(&site, addr, host);
        let host = self.displaced(space, host);
        let given = self.for_lanes(lanes, |e| access(e, host));
        self.jump_with(on, &given);
        let results = self.params_for(on, &given);
        self.b.switch_to_block(on);
        results
    }

    fn load(&mut self, space: Space, ty: Ty, dsts: &[Option<Reg>], addr: Address) {
        if ty.bits() == 128 || dsts.iter().flatten().any(|&d| self.reg_ty(d) == RegTy::B128) {
            self.fail("128-bit load");
            return;
        }
        if self.parameter(space, ty, dsts, addr) {
            return;
        }
        let val = self.address(space, addr);
        if let (Val::Same(v), None, true) = (&val, &self.guard, self.shareable(space)) {
            let site = Site { space, ty, count: dsts.len() as u32 };
            let wanted =
                || dsts.iter().enumerate().filter_map(|(i, dst)| Some((i as i32 * ty.bytes() as i32, (*dst)?)));
            // The processor extends what it loads at no cost.
            let index = match *dsts {
                [Some(dst)] if ty.bits() == 32 && self.reg_ty(dst) == RegTy::B32 => self.is_index(dst),
                _ => None,
            };
            let loaded = self.scalar_access(site, (*v, addr), false, &mut |e, (host, from)| {
                let mut one = |(offset, dst)| match e.component_types(dst)[..] {
                    [types::I32] if index == Some(true) => e.b.ins().sload32(tenant(), host, offset),
                    [types::I32] if index == Some(false) => e.b.ins().uload32(tenant(), host, offset),
                    [float @ (types::F32 | types::F64)] if float.bytes() == ty.bytes() => {
                        e.b.ins().load(float, tenant(), host, offset)
                    }
                    _ => e.scalar_load(ty, e.reg_ty(dst), tenant(), host, offset),
                };
                wanted().map(|(offset, dst)| one((from + offset, dst))).collect()
            });
            for ((_, dst), mut v) in wanted().zip(loaded) {
                if let Some(signed) = index
                    && self.b.func.dfg.value_type(v) == types::I64
                {
                    let extended = v;
                    v = self.b.ins().ireduce(types::I32, extended);
                    self.loaded.insert((v, signed), extended);
                }
                self.set(dst, Val::Same(v));
            }
            return;
        }
        let size = i64::from(ty.bytes()) * dsts.len() as i64;
        if vectorable(ty, dsts.len())
            && let Some((host, mut ok)) = self.run_of(space, &val, addr, size)
        {
            let site = Site { space, ty, count: dsts.len() as u32 };
            ok.extend(self.loads_too(space, host, size * self.lanes_per_chunk() as i64));
            self.load_run(site, dsts, addr, host, &ok);
            return;
        }
        if let &[Some(dst)] = dsts
            && let Some((host, distance, ok)) = self.spread_of(space, &val, addr, size)
        {
            self.load_spread(Site { space, ty, count: 1 }, dst, addr, (host, distance), &ok);
            return;
        }
        let vector = whole_vector(ty, dsts.len());
        let merge = self.b.create_block();
        let mut results: Vec<(Reg, Vec<Value>)> = Vec::new();
        for &dst in dsts.iter().flatten() {
            let part = Self::vector_ty(self.reg_ty(dst));
            let count = self.vector_count(self.reg_ty(dst));
            results.push((dst, (0..count).map(|_| self.b.append_block_param(merge, part)).collect()));
        }
        self.load_stepped(Site { space, ty, count: dsts.len() as u32 }, dsts, &val, merge);
        if (vector || dsts.len() <= FEW)
            && let Some((hosts, ok)) = self.lane_hosts(space, addr, size, &val)
        {
            let (fast, slow) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(ok, fast, &[], slow, &[]);
            self.b.switch_to_block(fast);
            let elements = if vector {
                let hosts: Vec<Value> = (0..self.lanes_per_chunk()).map(|lane| self.lane_host(&hosts, lane)).collect();
                self.vector_load(ty, dsts, &At::Lanes(&hosts))
            } else {
                self.lane_loads(ty, dsts, &hosts)
            };
            self.jump_with(merge, &elements);
            self.b.switch_to_block(slow);
            self.b.set_cold_block(slow);
        }
        let addresses = self.slow_addresses(space, addr, &val);
        self.store_row(&addresses, RegTy::B64, 0, true);
        let site = self.site(space, ty, dsts.len());
        let bits = self.mask_bits_or_full();
        let row = 8 * self.lanes_per_chunk() as i32;
        let (from, to) = (self.scratch_address(0), self.scratch_address(row));
        let args = [self.inv.ctx, site, bits, self.chunk.thread, from, to];
        self.call_rarely(Helper::Load, &args);
        let mut elements = Vec::new();
        for (i, dst) in dsts.iter().enumerate() {
            if let Some(dst) = *dst {
                elements.extend(self.load_row(self.reg_ty(dst), row * (1 + i as i32), true));
            }
        }
        self.jump_with(merge, &elements);
        self.b.switch_to_block(merge);
        for (dst, parts) in results {
            self.set(dst, Val::Lanes(parts));
        }
    }

    /// A load of a parameter by its name, which needs no check and gives the same all the time; false if it is not one.
    fn parameter(&mut self, space: Space, ty: Ty, dsts: &[Option<Reg>], addr: Address) -> bool {
        let (Space::Param, Operand::Imm(base)) = (space, addr.base) else { return false };
        let size = ty.bytes() as usize * dsts.len();
        let at = base.wrapping_add(addr.offset.cast_unsigned()) as u32;
        let end = u64::from(at) + size as u64;
        if !(at as usize).is_multiple_of(size) || end > self.k.param_bytes.into() || end > 1 << 31 {
            return false;
        }
        if let &[Some(dst)] = dsts
            && self.pointers.is_fixed(dst)
            && !self.is_float(dst)
        {
            let v = self.fixed(dst);
            self.set(dst, Val::Same(v));
            return true;
        }
        for (i, dst) in dsts.iter().enumerate() {
            let Some(dst) = *dst else { continue };
            let offset = at as i32 + i as i32 * ty.bytes() as i32;
            let flags = trusted().with_readonly().with_can_move();
            let v = self.scalar_load(ty, self.reg_ty(dst), flags, self.inv.params, offset);
            self.set(dst, Val::Same(v));
        }
        true
    }

    pub(super) fn jump_with(&mut self, to: Block, values: &[Value]) {
        let args: Vec<_> = values.iter().map(|&v| arg(v)).collect();
        self.b.ins().jump(to, &args);
    }

    /// One element, extended to its register.
    pub(super) fn scalar_load(&mut self, ty: Ty, reg: RegTy, flags: MemFlagsData, host: Value, offset: i32) -> Value {
        let signed = ty.is_signed();
        let wide = if reg == RegTy::B64 { types::I64 } else { types::I32 };
        let narrow = match ty.bits() {
            8 => types::I8,
            16 => types::I16,
            32 => types::I32,
            _ => types::I64,
        };
        let v = self.b.ins().load(narrow, flags, host, offset);
        if narrow == wide {
            return v;
        }
        if narrow == types::I64 {
            return self.b.ins().ireduce(types::I32, v);
        }
        let v = if signed { self.b.ins().sextend(wide, v) } else { self.b.ins().uextend(wide, v) };
        if reg == RegTy::B16 { self.b.ins().band_imm_u(v, 0xffff) } else { v }
    }

    fn store(&mut self, space: Space, ty: Ty, srcs: &[Operand], addr: Address) {
        if ty.bits() == 128 {
            self.fail("128-bit store");
            return;
        }
        let val = self.address(space, addr);
        let tys: Vec<RegTy> = srcs
            .iter()
            .map(|s| match s {
                Operand::Reg(r) => self.reg_ty(*r),
                Operand::Imm(_) => ty.reg(),
            })
            .collect();
        if let (Val::Same(v), None, None, true) = (&val, &self.guard, &self.exec, self.shareable(space)) {
            let mut values = Vec::with_capacity(srcs.len());
            for (&src, &reg) in srcs.iter().zip(&tys) {
                // All lanes write there; the last one is seen.
                let v = match self.operand(src, reg) {
                    Val::Same(v) => v,
                    val => {
                        let list = self.lanes(&val, reg);
                        self.extract(&list, reg, self.lanes_per_chunk() - 1)
                    }
                };
                let v = self.settled(src, v);
                let v = self.fitted(v, ty);
                values.push(self.cast_from(v).filter(|&v| !self.is_vector(v)).unwrap_or(v));
            }
            let site = Site { space, ty, count: srcs.len() as u32 };
            self.scalar_access(site, (*v, addr), true, &mut |e, (host, from)| {
                for (i, &v) in values.iter().enumerate() {
                    e.b.ins().store(tenant(), v, host, from + i as i32 * ty.bytes() as i32);
                }
                Vec::new()
            });
            return;
        }
        let size = i64::from(ty.bytes()) * srcs.len() as i64;
        let read = |e: &mut Self| {
            let parts = srcs.iter().zip(&tys).map(|(&s, &t)| e.operand_lanes(s, t)).collect();
            e.all_settled(srcs, parts)
        };
        // What lies in memory is read from there in each block that stores it: it would be stored elsewhere until then.
        let early = (!self.at_home(srcs)).then(|| read(self));
        let parts = |e: &mut Self| early.clone().unwrap_or_else(|| read(e));
        let fits = tys.iter().all(|&t| (t == RegTy::B64) == (ty.bytes() == 8));
        if vectorable(ty, srcs.len())
            && fits
            && let Some((host, ok)) = self.run_of(space, &val, addr, size)
        {
            let site = Site { space, ty, count: srcs.len() as u32 };
            let parts = parts(self);
            self.store_run(site, &parts, addr, host, &ok);
            return;
        }
        if srcs.len() == 1
            && fits
            && let Some((host, distance, ok)) = self.spread_of(space, &val, addr, size)
        {
            let parts = parts(self);
            self.store_spread(Site { space, ty, count: 1 }, &parts, addr, (host, distance), &ok);
            return;
        }
        let done = self.b.create_block();
        if fits {
            self.store_stepped(Site { space, ty, count: srcs.len() as u32 }, parts, &val, done);
        }
        let vector = fits && whole_vector(ty, srcs.len());
        if (vector || srcs.len() <= FEW)
            && let Some((hosts, ok)) = self.lane_hosts(space, addr, size, &val)
        {
            let (fast, slow) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(ok, fast, &[], slow, &[]);
            self.b.switch_to_block(fast);
            let parts = parts(self);
            let lanes = 0..self.lanes_per_chunk();
            if vector {
                let hosts: Vec<Value> = lanes.map(|lane| self.lane_host(&hosts, lane)).collect();
                self.vector_store(ty, &parts, &At::Lanes(&hosts));
            } else {
                for lane in lanes {
                    let host = self.lane_host(&hosts, lane);
                    for (i, (part, &reg)) in parts.iter().zip(&tys).enumerate() {
                        let v = self.extract(part, reg, lane);
                        let v = self.fitted(v, ty);
                        let offset = i as i32 * ty.bytes() as i32;
                        self.for_lanes(Lanes::One(lane as u32), |e| e.b.ins().store(tenant(), v, host, offset));
                    }
                }
            }
            self.b.ins().jump(done, &[]);
            self.b.switch_to_block(slow);
            self.b.set_cold_block(slow);
        }
        let parts = parts(self);
        let addresses = self.slow_addresses(space, addr, &val);
        self.store_row(&addresses, RegTy::B64, 0, true);
        let row = 8 * self.lanes_per_chunk() as i32;
        for (i, (part, &reg)) in parts.iter().zip(&tys).enumerate() {
            self.store_row(part, reg, row * (1 + i as i32), true);
        }
        let site = self.site(space, ty, srcs.len());
        let bits = self.mask_bits_or_full();
        let (at, from) = (self.scratch_address(0), self.scratch_address(row));
        let args = [self.inv.ctx, site, bits, self.chunk.thread, at, from];
        self.call_rarely(Helper::Store, &args);
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(done);
    }

    /// Are operands numbers, or registers that are read from their homes and stored as they are?
    fn at_home(&self, srcs: &[Operand]) -> bool {
        srcs.iter().all(|&src| match src {
            Operand::Reg(r) => self.stays.contains(r) && self.floats.nans[r.0 as usize] != Nans::Late,
            Operand::Imm(_) => true,
        })
    }

    /// A scalar of the width of `ty`.
    pub(super) fn fitted(&mut self, v: Value, ty: Ty) -> Value {
        let narrow = match ty.bits() {
            8 => types::I8,
            16 => types::I16,
            32 => types::I32,
            _ => types::I64,
        };
        let have = self.b.func.dfg.value_type(v);
        if have.bits() > narrow.bits() {
            self.b.ins().ireduce(narrow, v)
        } else if have.bits() < narrow.bits() {
            self.b.ins().uextend(narrow, v)
        } else {
            v
        }
    }

    /// As [`Self::spaced`], by a check shared with neighbours where possible, for elements of `size` bytes side by side.
    fn run_of(&mut self, space: Space, val: &Val, addr: Address, size: i64) -> Option<(Value, Checks)> {
        if Self::distance(space, val)? != size {
            return None;
        }
        self.covered_or_spaced(space, val, addr, size)
    }

    fn covered_or_spaced(&mut self, space: Space, val: &Val, addr: Address, size: i64) -> Option<(Value, Checks)> {
        match self.covered(space, addr, size, true) {
            Some((host, fine)) => Some((self.whole(space, host), fine)),
            None => self.spaced(space, addr, val, size, 0),
        }
    }

    /// The same for elements at another distance, and the distance; only where all lanes of a chunk are active, since a
    /// check of all would often fail for those that are not.
    fn spread_of(&mut self, space: Space, val: &Val, addr: Address, size: i64) -> Option<(Value, i32, Checks)> {
        let distance = Self::distance(space, val)?;
        let fits = distance % size == 0 && (1..=MAX_DISTANCE).contains(&distance.abs());
        if !fits || self.guard.is_some() || self.exec.is_some() {
            return None;
        }
        let (host, ok) = self.covered_or_spaced(space, val, addr, size)?;
        Some((host, distance as i32, ok))
    }

    /// Attaches an operation for a helper.
    pub(super) fn op_key(&mut self, op: &Op) -> Value {
        let key = self.key(self.attached.ops.len());
        self.attached.ops.push(self.of_line(op.clone()));
        key
    }

    pub(super) fn operand_row(&mut self, o: Operand, imm: RegTy, base: i32) {
        let ty = match o {
            Operand::Reg(r) => self.reg_ty(r),
            Operand::Imm(_) => imm,
        };
        let parts = self.operand_lanes(o, ty);
        self.store_row(&parts, ty, base, true);
    }

    fn copy_async(&mut self, op: &Op, dst: Address, src: Address, src_bytes: Option<Operand>) {
        let row = 8 * self.lanes_per_chunk() as i32;
        for (i, (space, addr)) in [(Space::Shared, dst), (Space::Global, src)].into_iter().enumerate() {
            let val = self.address(space, addr);
            let addresses = self.address_lanes(&val, space);
            self.store_row(&addresses, RegTy::B64, row * i as i32, true);
        }
        if let Some(bytes) = src_bytes {
            self.operand_row(bytes, RegTy::B32, 2 * row);
        }
        let site = self.op_key(op);
        let bits = self.mask_bits_or_full();
        let rows = self.scratch_address(0);
        let lanes = self.i64(self.lanes_per_chunk() as i64);
        let args = [self.inv.ctx, site, bits, self.chunk.thread, rows, lanes];
        self.call(Helper::CopyAsync, &args, &[]);
    }

    /// Builtins, sleep and trap.
    pub(super) fn service(&mut self, op: &Op) {
        let row = 8 * self.lanes_per_chunk() as i32;
        let mut result = None;
        if let Op::Call { args, dst, .. } = op {
            for (i, &a) in args.iter().enumerate().take(6) {
                self.operand_row(a, RegTy::B64, row * i as i32);
            }
            result = *dst;
        }
        let site = self.op_key(op);
        let bits = self.mask_bits_or_full();
        let rows = self.scratch_address(0);
        let lanes = self.i64(self.lanes_per_chunk() as i64);
        let args = [self.inv.ctx, site, bits, self.chunk.thread, rows, lanes];
        self.call(Helper::Service, &args, &[]);
        if let Some(dst) = result {
            let parts = self.load_row(self.reg_ty(dst), 6 * row, true);
            self.set(dst, Val::Lanes(parts));
        }
    }
}
