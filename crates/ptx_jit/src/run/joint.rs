//! Operations over the lanes of a warp: shuffles, votes, matches, reductions.

use ptx::ir::{Op, ReduxOp, RegTy, ShflMode, Ty, VoteMode};
use ptx::launch::WARP;

use crate::abi::context::Context;
use crate::abi::joint::{Site, Slot};
use crate::run::helpers::attached;

const LANES: usize = WARP as usize;

impl Slot {
    /// The value of one lane; predicates are nonzero for true.
    pub(crate) fn lane(self, frame: *const u8, lane: usize) -> u64 {
        match self {
            Slot::Absent => 0,
            Slot::Imm(v) => v,
            Slot::Lanes32(offset) => u64::from(read::<u32>(frame, offset as usize + 4 * lane)),
            Slot::Lanes64(offset) => read::<u64>(frame, offset as usize + 8 * lane),
            Slot::Same { offset, chunk, ty } => {
                let at = offset as usize + 16 * (lane / chunk as usize);
                match ty {
                    RegTy::Pred => u64::from(read::<u8>(frame, at)),
                    RegTy::B64 | RegTy::B128 => read::<u64>(frame, at),
                    _ => u64::from(read::<u32>(frame, at)),
                }
            }
            Slot::Affine { offset, chunk, stride } => affine(frame, offset, chunk, stride, lane).into(),
            Slot::Wide { offset, chunk, stride, k, signed } => {
                let index = affine(frame, offset, chunk, stride, lane);
                let index = if signed { i64::from(index.cast_signed()) } else { i64::from(index) };
                let at = offset as usize + 16 * (lane / chunk as usize);
                read::<u64>(frame, at + 8).wrapping_add(index.wrapping_mul(k).cast_unsigned())
            }
            Slot::Linear { offset, chunk } => {
                let (at, lane) = place(offset, chunk, lane);
                read::<u64>(frame, at).wrapping_add(read::<u64>(frame, at + 8).wrapping_mul(lane as u64))
            }
            Slot::Extended { offset, chunk } => {
                let (at, lane) = place(offset, chunk, lane);
                let index = read::<i32>(frame, at).wrapping_add(read::<i32>(frame, at + 4).wrapping_mul(lane as i32));
                read::<u64>(frame, at + 8).wrapping_add_signed(index.into())
            }
        }
    }
}

impl Slot {
    /// The low words of all lanes.
    pub(super) fn words(self, frame: *const u8) -> [u32; LANES] {
        match self {
            Slot::Absent => [0; LANES],
            Slot::Imm(v) => [v as u32; LANES],
            Slot::Lanes32(offset) => read(frame, offset as usize),
            Slot::Same { offset, chunk, ty: RegTy::B16 | RegTy::B32 } => {
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

/// Where a chunk's scalars lie, and the lane's number in the chunk.
fn place(offset: u32, chunk: u32, lane: usize) -> (usize, usize) {
    let chunk = chunk as usize;
    (offset as usize + 16 * (lane / chunk), lane % chunk)
}

/// An index that is affine over the lanes of a chunk.
fn affine(frame: *const u8, offset: u32, chunk: u32, stride: i32, lane: usize) -> u32 {
    let (at, step) = place(offset, chunk, lane);
    read::<u32>(frame, at).wrapping_add((step as u32).wrapping_mul(stride.cast_unsigned()))
}

/// Reads from a frame.
#[inline]
fn read<T: Copy>(frame: *const u8, offset: usize) -> T {
    // SAFETY: offsets come from the plan that the frame was made for; the frame is live while its CTA runs.
    let at = unsafe { frame.add(offset) };
    // SAFETY: as above; homes are plain data.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Writes one lane of a varying register.
pub(crate) fn write_lane(frame: *mut u8, home: Option<(u32, RegTy)>, lane: usize, value: u64) {
    let Some((offset, ty)) = home else { return };
    let bytes = crate::abi::lane_bytes(ty) as usize;
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

impl Site {
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
#[inline]
pub(super) fn write_words(frame: *mut u8, home: Option<(u32, RegTy)>, bits: u32, values: &[u32; LANES]) {
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

pub(super) fn lanes(bits: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |&l| bits >> l & 1 != 0)
}

/// Performs an operation that lanes of a warp have met at in different places, each with the registers of its own.
pub(crate) fn across(frame: *mut u8, parts: &[(&Site, u32)]) {
    let all = parts.iter().fold(0, |all, part| all | part.1);
    let mut values = [0_u64; LANES];
    for (site, bits) in parts {
        for lane in lanes(*bits) {
            let value = site.a.lane(frame, lane);
            let vote = matches!(site.op, Op::Vote { .. });
            values[lane] = if vote { u64::from((value != 0) != site.negate) } else { value };
        }
    }
    for (site, bits) in parts {
        for lane in lanes(*bits) {
            let members = members(site, frame, lane, all);
            let having = |value| lanes(members).filter(|&l| values[l] == value).fold(0_u32, |m, l| m | 1 << l);
            match &site.op {
                Op::Shfl { mode, .. } => {
                    let (b, c) = (site.b.lane(frame, lane) as u32, site.c.lane(frame, lane) as u32);
                    let (source, inside) = ptx::warp::shuffle_source(*mode, lane as u32, b, c);
                    let from = if all >> source & 1 != 0 { source as usize } else { lane };
                    site.put(frame, lane, values[from]);
                    site.put_pred(frame, lane, inside);
                }
                Op::Vote { mode, .. } => site.put(frame, lane, outcome(*mode, having(1), members).into()),
                Op::Match { all: every, .. } => {
                    let equal = having(values[lane]);
                    site.put(frame, lane, if *every && equal != members { 0 } else { equal.into() });
                    site.put_pred(frame, lane, equal == members);
                }
                Op::Redux { op, ty, .. } => {
                    let parts = lanes(members).map(|l| values[l] as u32);
                    site.put(frame, lane, parts.reduce(|x, y| combine(*op, *ty, x, y)).unwrap_or(0).into());
                }
                Op::Elect { .. } => elect(site, frame, lane, members),
                _ => {}
            }
        }
    }
}

fn elect(site: &Site, frame: *mut u8, lane: usize, members: u32) {
    let leader = members.trailing_zeros();
    site.put(frame, lane, leader.into());
    site.put_pred(frame, lane, lane as u32 == leader);
}

/// Performs a joint operation for the lanes `bits` of the warp whose frame is given. Called by machine code.
pub(crate) extern "C" fn run(ctx: *mut Context, site: u32, frame: *mut u8, bits: u32) {
    // SAFETY: the context is live while its CTA runs.
    if unsafe { (*ctx).met } != 0 {
        return;
    }
    let site = attached(ctx, site, |of| &of.joints);
    match &site.op {
        Op::Shfl { mode, .. } => shuffle(site, *mode, frame, bits),
        Op::Vote { mode, .. } => vote(site, *mode, frame, bits),
        Op::Match { all, .. } => matching(site, *all, frame, bits),
        Op::Redux { op, ty, .. } => reduce(site, *op, *ty, frame, bits),
        Op::Activemask { .. } => lanes(bits).for_each(|l| site.put(frame, l, bits.into())),
        Op::Elect { .. } => {
            for lane in lanes(bits) {
                elect(site, frame, lane, members(site, frame, lane, bits));
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

/// The result of a vote: lanes `yes` of `members` are for it.
fn outcome(mode: VoteMode, yes: u32, members: u32) -> u32 {
    match mode {
        VoteMode::All => u32::from(yes == members),
        VoteMode::Any => u32::from(yes != 0),
        VoteMode::Uni => u32::from(yes == 0 || yes == members),
        VoteMode::Ballot => yes,
    }
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
    let outcome = |members: u32| outcome(mode, yes & members, members);
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

fn combine(op: ReduxOp, ty: Ty, x: u32, y: u32) -> u32 {
    match (op, ty.is_signed()) {
        (ReduxOp::Add, _) => x.wrapping_add(y),
        (ReduxOp::Min, true) => x.cast_signed().min(y.cast_signed()).cast_unsigned(),
        (ReduxOp::Max, true) => x.cast_signed().max(y.cast_signed()).cast_unsigned(),
        (ReduxOp::Min, false) => x.min(y),
        (ReduxOp::Max, false) => x.max(y),
        (ReduxOp::And, _) => x & y,
        (ReduxOp::Or, _) => x | y,
        (ReduxOp::Xor, _) => x ^ y,
    }
}

fn reduce(site: &Site, op: ReduxOp, ty: Ty, frame: *mut u8, bits: u32) {
    let values = site.a.words(frame);
    let outcome = |members: u32| lanes(members).map(|l| values[l]).reduce(|x, y| combine(op, ty, x, y)).unwrap_or(0);
    if let Some(members) = site.common_members(frame, bits) {
        return write_words(frame, site.dst, bits, &[outcome(members); LANES]);
    }
    for lane in lanes(bits) {
        let members = members(site, frame, lane, bits);
        site.put(frame, lane, outcome(members).into());
    }
}
