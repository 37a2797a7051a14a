//! Operations over the lanes of a warp: shuffles, votes, matches, reductions.

use ptx::ir::{Kernel, Op, Operand, PredRef, ReduxOp, Reg, RegTy, ShflMode, Ty, VoteMode};
use ptx::launch::WARP;

use crate::analysis::Plan;
use crate::analysis::classes::Class;

const LANES: usize = WARP as usize;

/// Where an operand's lanes are, relative to the warp's frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Absent,
    Imm(u64),
    Lanes32(u32),
    Lanes64(u32),
    /// Scalars per chunk: offset, lanes of a chunk, and how lanes follow from them.
    Scalar {
        offset: u32,
        chunk: u32,
        class: Class,
        ty: RegTy,
    },
}

impl Slot {
    /// Where the operand is; 0 if it has no home.
    pub(crate) fn new(o: Operand, k: &Kernel, plan: &Plan) -> Slot {
        let r = match o {
            Operand::Imm(v) => return Slot::Imm(v),
            Operand::Reg(r) => r,
        };
        let Some(home) = plan.home(r) else { return Slot::Imm(0) };
        let ty = k.regs[r.0 as usize];
        match (plan.classes[r.0 as usize], ty) {
            (Class::Varying, RegTy::B64) => Slot::Lanes64(home.offset),
            (Class::Varying, RegTy::B128) => Slot::Imm(0),
            (Class::Varying, _) => Slot::Lanes32(home.offset),
            (class, ty) => Slot::Scalar { offset: home.offset, chunk: plan.lanes(), class, ty },
        }
    }

    /// The value of one lane; predicates are nonzero for true.
    pub(crate) fn lane(self, frame: *const u8, lane: usize) -> u64 {
        match self {
            Slot::Absent => 0,
            Slot::Imm(v) => v,
            Slot::Lanes32(offset) => u64::from(read::<u32>(frame, offset as usize + 4 * lane)),
            Slot::Lanes64(offset) => read::<u64>(frame, offset as usize + 8 * lane),
            Slot::Scalar { offset, chunk, class, ty } => {
                let chunk = chunk as usize;
                let at = offset as usize + 16 * (lane / chunk);
                let step = (lane % chunk) as u32;
                match class {
                    Class::Affine { stride } => {
                        u64::from(read::<u32>(frame, at).wrapping_add(step.wrapping_mul(stride.cast_unsigned())))
                    }
                    Class::Wide { stride, k, signed } => {
                        let index = read::<u32>(frame, at).wrapping_add(step.wrapping_mul(stride.cast_unsigned()));
                        let index = if signed { i64::from(index.cast_signed()) } else { i64::from(index) };
                        read::<u64>(frame, at + 8).wrapping_add(index.wrapping_mul(k).cast_unsigned())
                    }
                    _ => match ty {
                        RegTy::Pred => u64::from(read::<u8>(frame, at)),
                        RegTy::B64 | RegTy::B128 => read::<u64>(frame, at),
                        _ => u64::from(read::<u32>(frame, at)),
                    },
                }
            }
        }
    }
}

impl Slot {
    /// The low words of all lanes.
    fn words(self, frame: *const u8) -> [u32; LANES] {
        match self {
            Slot::Absent => [0; LANES],
            Slot::Imm(v) => [v as u32; LANES],
            Slot::Lanes32(offset) => read(frame, offset as usize),
            Slot::Scalar { offset, chunk, class: Class::Same | Class::Unknown, ty: RegTy::B16 | RegTy::B32 } => {
                let mut words = [0; LANES];
                for (i, part) in words.chunks_mut(chunk as usize).enumerate() {
                    part.fill(read(frame, offset as usize + 16 * i));
                }
                words
            }
            _ => std::array::from_fn(|lane| self.lane(frame, lane) as u32),
        }
    }
}

/// Reads from a frame.
fn read<T: Copy>(frame: *const u8, offset: usize) -> T {
    // SAFETY: offsets come from the plan that the frame was made for; the frame is live while its CTA runs.
    let at = unsafe { frame.add(offset) };
    // SAFETY: as above; homes are plain data.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Writes one lane of a varying register.
pub(crate) fn write_lane(frame: *mut u8, home: Option<(u32, RegTy)>, lane: usize, value: u64) {
    let Some((offset, ty)) = home else { return };
    let bytes = crate::analysis::lane_bytes(ty) as usize;
    // SAFETY: as in `read`.
    let at = unsafe { frame.add(offset as usize + bytes * lane) };
    match ty {
        RegTy::B64 | RegTy::B128 => {
            // SAFETY: as above.
            unsafe { at.cast::<u64>().write_unaligned(value) }
        }
        _ => {
            let value = match ty {
                RegTy::Pred => 0_u32.wrapping_sub(u32::from(value != 0)),
                RegTy::B16 => value as u32 & 0xffff,
                _ => value as u32,
            };
            // SAFETY: as above.
            unsafe { at.cast::<u32>().write_unaligned(value) }
        }
    }
}

/// A joint operation with its operands resolved.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) op: Op,
    pub(crate) a: Slot,
    pub(crate) b: Slot,
    pub(crate) c: Slot,
    pub(crate) mask: Slot,
    pub(crate) negate: bool,
    pub(crate) dst: Option<(u32, RegTy)>,
    pub(crate) pred: Option<(u32, RegTy)>,
}

impl Site {
    pub(crate) fn new(op: &Op, k: &Kernel, plan: &Plan) -> Site {
        let slot = |o: &Operand| Slot::new(*o, k, plan);
        let pred_slot = |p: &PredRef| Slot::new(Operand::Reg(p.reg), k, plan);
        let home = |r: Reg| plan.home(r).map(|h| (h.offset, k.regs[r.0 as usize]));
        let mut site = Site {
            op: op.clone(),
            a: Slot::Absent,
            b: Slot::Absent,
            c: Slot::Absent,
            mask: Slot::Absent,
            negate: false,
            dst: None,
            pred: None,
        };
        match op {
            Op::Shfl { dst, pred, a, b, c, mask, .. } => {
                site.a = slot(a);
                site.b = slot(b);
                site.c = slot(c);
                site.mask = slot(mask);
                site.dst = home(*dst);
                site.pred = pred.and_then(home);
            }
            Op::Vote { dst, p, mask, .. } => {
                site.a = pred_slot(p);
                site.negate = p.negate;
                site.mask = slot(mask);
                site.dst = home(*dst);
            }
            Op::Match { dst, pred, a, mask, .. } => {
                site.a = slot(a);
                site.mask = slot(mask);
                site.dst = home(*dst);
                site.pred = pred.and_then(home);
            }
            Op::Redux { dst, a, mask, .. } => {
                site.a = slot(a);
                site.mask = slot(mask);
                site.dst = home(*dst);
            }
            Op::Activemask { dst } => site.dst = home(*dst),
            Op::Elect { dst, pred, mask } => {
                site.mask = slot(mask);
                site.dst = dst.and_then(home);
                site.pred = home(*pred);
            }
            Op::Bar { id, count, pred, dst, .. } => {
                site.a = slot(id);
                site.b = count.as_ref().map_or(Slot::Absent, slot);
                if let Some(p) = pred {
                    site.c = pred_slot(p);
                    site.negate = p.negate;
                }
                site.dst = dst.and_then(home);
            }
            _ => {}
        }
        site
    }

    fn put(&self, frame: *mut u8, lane: usize, value: u64) {
        write_lane(frame, self.dst, lane, value);
    }

    fn put_pred(&self, frame: *mut u8, lane: usize, value: bool) {
        write_lane(frame, self.pred, lane, value.into());
    }

    /// The lanes that take part, if they are the same for all of `bits`: those of the mask that are here.
    fn common_members(&self, frame: *const u8, bits: u32) -> Option<u32> {
        let mask = match self.mask {
            Slot::Imm(mask) => mask as u32,
            mask => {
                let words = mask.words(frame);
                let first = words[bits.trailing_zeros() as usize % LANES];
                lanes(bits).all(|l| words[l] == first).then_some(first)?
            }
        };
        (bits & !mask == 0).then_some(bits)
    }
}

/// Writes lanes `bits` of a varying register: whole rows where its lanes are words.
fn write_words(frame: *mut u8, home: Option<(u32, RegTy)>, bits: u32, values: &[u32; LANES]) {
    let Some((offset, ty)) = home else { return };
    let mut row = match ty {
        RegTy::B32 => *values,
        RegTy::Pred => values.map(|v| 0_u32.wrapping_sub(u32::from(v != 0))),
        _ => return lanes(bits).for_each(|lane| write_lane(frame, home, lane, values[lane].into())),
    };
    if bits != u32::MAX {
        let old: [u32; LANES] = read(frame, offset as usize);
        for (lane, (new, old)) in row.iter_mut().zip(old).enumerate() {
            *new = if bits >> lane & 1 != 0 { *new } else { old };
        }
    }
    // SAFETY: as in `read`.
    let at = unsafe { frame.add(offset as usize) };
    // SAFETY: as in `read`.
    unsafe { at.cast::<[u32; LANES]>().write_unaligned(row) };
}

fn lanes(bits: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |&l| bits >> l & 1 != 0)
}

/// Performs a joint operation for the lanes `bits` of the warp whose frame is given. Called by machine code.
pub(crate) extern "C" fn run(site: *const Site, frame: *mut u8, bits: u32) {
    // SAFETY: machine code passes the address of a site that lives as long as the code.
    let site = unsafe { &*site };
    match &site.op {
        Op::Shfl { mode, .. } => shuffle(site, *mode, frame, bits),
        Op::Vote { mode, .. } => vote(site, *mode, frame, bits),
        Op::Match { all, .. } => matching(site, *all, frame, bits),
        Op::Redux { op, ty, .. } => reduce(site, *op, *ty, frame, bits),
        Op::Activemask { .. } => lanes(bits).for_each(|l| site.put(frame, l, bits.into())),
        Op::Elect { .. } => {
            for lane in lanes(bits) {
                let members = members(site, frame, lane, bits);
                let leader = members.trailing_zeros();
                site.put(frame, lane, leader.into());
                site.put_pred(frame, lane, lane as u32 == leader);
            }
        }
        _ => {}
    }
}

/// The lanes that take part with `lane`: those of its mask that are here. A mask without any leaves the lane itself.
fn members(site: &Site, frame: *const u8, lane: usize, bits: u32) -> u32 {
    let members = site.mask.lane(frame, lane) as u32 & bits;
    if members == 0 { 1 << lane } else { members }
}

fn shuffle(site: &Site, mode: ShflMode, frame: *mut u8, bits: u32) {
    // The lane read, before it is known to be inside, and whether it is.
    match mode {
        ShflMode::Up => gather(site, frame, bits, |own, b, _, max| {
            let source = own.wrapping_sub(b);
            (source, source.cast_signed() >= max.cast_signed())
        }),
        ShflMode::Down => gather(site, frame, bits, |own, b, _, max| (own + b, own + b <= max)),
        ShflMode::Bfly => gather(site, frame, bits, |own, b, _, max| (own ^ b, own ^ b <= max)),
        ShflMode::Idx => gather(site, frame, bits, |own, b, segment, max| {
            let source = (own & segment) | (b & !segment);
            (source, source <= max)
        }),
    }
}

fn gather(site: &Site, frame: *mut u8, bits: u32, source: impl Fn(u32, u32, u32, u32) -> (u32, bool)) {
    let values = site.a.words(frame);
    let (b, c) = (site.b.words(frame), site.c.words(frame));
    let (mut out, mut insides) = ([0; LANES], [0; LANES]);
    for lane in 0..LANES {
        let (clamp, segment) = (c[lane] & 31, c[lane] >> 8 & 31);
        let own = lane as u32;
        let max = (own & segment) | (clamp & !segment);
        let (from, inside) = source(own, b[lane] & 31, segment, max);
        let from = if inside { from & 31 } else { own };
        // From a lane that is not here the value is undefined: this lane's own.
        let from = if bits >> from & 1 != 0 { from } else { own };
        out[lane] = values[from as usize % LANES];
        insides[lane] = inside.into();
    }
    write_words(frame, site.dst, bits, &out);
    write_words(frame, site.pred, bits, &insides);
}

fn vote(site: &Site, mode: VoteMode, frame: *mut u8, bits: u32) {
    let mut yes = 0_u32;
    match site.a {
        Slot::Lanes32(_) => {
            for (lane, p) in site.a.words(frame).into_iter().enumerate() {
                yes |= u32::from((p != 0) != site.negate) << lane;
            }
        }
        _ => {
            for lane in lanes(bits) {
                let p = site.a.lane(frame, lane) != 0;
                yes |= u32::from(p != site.negate) << lane;
            }
        }
    }
    let outcome = |members: u32| {
        let here = yes & members;
        match mode {
            VoteMode::All => u32::from(here == members),
            VoteMode::Any => u32::from(here != 0),
            VoteMode::Uni => u32::from(here == 0 || here == members),
            VoteMode::Ballot => here,
        }
    };
    if let Some(members) = site.common_members(frame, bits) {
        return write_words(frame, site.dst, bits, &[outcome(members); LANES]);
    }
    for lane in lanes(bits) {
        let members = members(site, frame, lane, bits);
        site.put(frame, lane, outcome(members).into());
    }
}

fn matching(site: &Site, all: bool, frame: *mut u8, bits: u32) {
    let mut values = [0_u64; LANES];
    for lane in lanes(bits) {
        values[lane] = site.a.lane(frame, lane);
    }
    if !all && let Some(members) = site.common_members(frame, bits) {
        let mut out = [0; LANES];
        let mut left = members;
        while left != 0 {
            let value = values[left.trailing_zeros() as usize];
            let mut equal = 0_u32;
            for (lane, v) in values.iter().enumerate() {
                equal |= u32::from(*v == value) << lane;
            }
            equal &= members;
            lanes(equal).for_each(|lane| out[lane] = equal);
            left &= !equal;
        }
        return write_words(frame, site.dst, bits, &out);
    }
    for lane in lanes(bits) {
        let members = members(site, frame, lane, bits);
        let equal = lanes(members).filter(|&l| values[l] == values[lane]).fold(0_u32, |m, l| m | 1 << l);
        if all {
            let same = equal == members;
            site.put(frame, lane, if same { members.into() } else { 0 });
            site.put_pred(frame, lane, same);
        } else {
            site.put(frame, lane, equal.into());
        }
    }
}

fn reduce(site: &Site, op: ReduxOp, ty: Ty, frame: *mut u8, bits: u32) {
    let values = site.a.words(frame);
    let combine = |x: u32, y: u32| match (op, ty.is_signed()) {
        (ReduxOp::Add, _) => x.wrapping_add(y),
        (ReduxOp::Min, true) => x.cast_signed().min(y.cast_signed()).cast_unsigned(),
        (ReduxOp::Max, true) => x.cast_signed().max(y.cast_signed()).cast_unsigned(),
        (ReduxOp::Min, false) => x.min(y),
        (ReduxOp::Max, false) => x.max(y),
        (ReduxOp::And, _) => x & y,
        (ReduxOp::Or, _) => x | y,
        (ReduxOp::Xor, _) => x ^ y,
    };
    let outcome = |members: u32| lanes(members).map(|l| values[l]).reduce(combine).unwrap_or(0);
    if let Some(members) = site.common_members(frame, bits) {
        return write_words(frame, site.dst, bits, &[outcome(members); LANES]);
    }
    for lane in lanes(bits) {
        let members = members(site, frame, lane, bits);
        site.put(frame, lane, outcome(members).into());
    }
}
