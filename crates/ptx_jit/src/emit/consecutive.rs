//! Runs: the lanes of a chunk access consecutive elements, by vectors if that is right at run time; and elements at another
//! fixed distance, one by one.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Type, Value, types};
use ptx::ir::{Address, Reg, RegTy, Ty};

use super::alu::Parts;
use super::memory::tenant;
use super::{Emit, Val, arg, own};
use crate::abi::place::Lanes;
use crate::abi::{Helper, Run, Site};

impl Emit<'_, '_> {
    /// Copies between the context's elements and the addresses of a run, for the active lanes. Called where that is rarely needed, which is
    /// why the address is computed here.
    fn copy_run(&mut self, helper: Helper, site: Site, addr: Address) {
        let zero = self.i64(0);
        let (b, c, run) = match self.address(site.space, addr) {
            Val::Affine { base, stride } => (base, zero, Run { site, stride, k: 1, signed: false }),
            Val::Wide { b, c, stride, k, signed } => (b, c, Run { site, stride, k, signed }),
            _ => return,
        };
        let key = self.key(self.attached.runs.len());
        self.attached.runs.push(self.of_line(run));
        let bits = self.mask_bits_or_full();
        self.call_rarely(helper, &[self.inv.ctx, key, bits, self.chunk.thread, b, c]);
    }

    /// Loads consecutive elements, if they may be: from where they are, or if that cannot be done at once, from the
    /// context's elements, to which a helper copies them one by one.
    pub(super) fn load_run(&mut self, site: Site, dsts: &[Option<Reg>], addr: Address, host: Value, ok: &[Value]) {
        let ty = site.ty;
        let from = if ok.is_empty() {
            self.fetch_ahead(&site, addr, host);
            host
        } else {
            self.load_from(site, addr, host, ok)
        };
        let mut elements = self.vector_load(ty, dsts, &At::Run(from)).into_iter();
        for &dst in dsts.iter().flatten() {
            let count = self.vector_count(self.reg_ty(dst));
            self.set(dst, Val::Lanes(elements.by_ref().take(count).collect()));
        }
    }

    /// Where the elements are to be loaded from, host or context.
    fn load_from(&mut self, site: Site, addr: Address, host: Value, ok: &[Value]) -> Value {
        let [fast, slow, on] = [(); 3].map(|()| self.b.create_block());
        let from = self.b.append_block_param(on, types::I64);
        self.branch(ok, (fast, &[]), (slow, &[]));
        self.b.switch_to_block(fast);
        self.load_by_first(&site, host);
        self.fetch_ahead(&site, addr, host);
        self.b.ins().jump(on, &[arg(host)]);
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
        self.copy_run(Helper::Collect, site, addr);
        self.b.ins().jump(on, &[arg(self.inv.ctx)]);
        self.b.switch_to_block(on);
        from
    }

    /// The same for a store by all lanes, or if that cannot be done at once, to the context's elements first. From there active lanes take
    /// theirs, here if all may be accessed (`ok`), else in a helper.
    pub(super) fn store_run(&mut self, site: Site, parts: &[Parts], addr: Address, host: Value, ok: &[Value]) {
        let ty = site.ty;
        let active = self.all_active();
        let at_once: Vec<Value> = ok.iter().chain(&active).copied().collect();
        if at_once.is_empty() {
            self.fetch_ahead(&site, addr, host);
            self.vector_store(ty, parts, &At::Run(host));
            return;
        }
        let [fast, slow, done] = [(); 3].map(|()| self.b.create_block());
        self.branch(&at_once, (fast, &[]), (slow, &[]));
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
        self.vector_store(ty, parts, &At::Run(self.inv.ctx));
        if !active.is_empty() {
            let [here, there] = [(); 2].map(|()| self.b.create_block());
            self.branch(ok, (here, &[]), (there, &[]));
            self.b.switch_to_block(here);
            self.store_lanes(&site, host, done);
            self.b.switch_to_block(there);
            self.b.set_cold_block(there);
        }
        self.copy_run(Helper::Scatter, site, addr);
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(fast);
        self.fetch_ahead(&site, addr, host);
        self.vector_store(ty, parts, &At::Run(host));
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(done);
    }

    /// Copies the context's elements of the active lanes to where they belong from `host` on, and goes to `done`. Lanes that are four in a row
    /// go together.
    fn store_lanes(&mut self, site: &Site, host: Value, done: Block) {
        let size = site.ty.bytes() * site.count;
        let bits = self.mask_bits_or_full();
        self.begins_run(host);
        let [next, lane, one, four] = [(); 4].map(|()| self.b.create_block());
        let left = self.b.append_block_param(next, types::I32);
        self.b.ins().jump(next, &[arg(bits)]);
        self.b.switch_to_block(next);
        self.b.ins().brif(left, lane, &[], done, &[]);
        self.b.switch_to_block(lane);
        let first = self.b.ins().ctz(left);
        let first = self.b.ins().uextend(types::I64, first);
        let offset = self.b.ins().ishl_imm_u(first, i64::from(size.trailing_zeros()));
        let from = self.b.ins().iadd(self.inv.ctx, offset);
        let to = self.b.ins().iadd(host, offset);
        let from_first = self.b.ins().ushr(left, first);
        let row = self.b.ins().band_imm_u(from_first, 0b1111);
        let all = self.b.ins().icmp_imm_u(IntCC::Equal, row, 0b1111);
        self.b.ins().brif(all, four, &[], one, &[]);
        for (block, lanes) in [(one, 1), (four, 4)] {
            self.b.switch_to_block(block);
            let bytes = size * lanes;
            let part = match bytes {
                1 => types::I8,
                2 => types::I16,
                4 => types::I32,
                8 => types::I64,
                _ => types::I64X2,
            };
            for at in (0..bytes as i32).step_by(part.bytes() as usize) {
                let elements = self.b.ins().load(part, own(), from, at);
                self.for_lanes(Lanes::OfRun { bytes: size }, |e| e.b.ins().store(tenant(), elements, to, at));
            }
            let left = if lanes == 1 {
                let less = self.b.ins().iadd_imm_s(left, -1);
                self.b.ins().band(left, less)
            } else {
                let row = self.b.ins().ishl(row, first);
                self.b.ins().bxor(left, row)
            };
            self.b.ins().jump(next, &[arg(left)]);
        }
    }

    /// Loads one element for each lane, the first from `at.0`, the next always `at.1` bytes on, or as [`Self::load_run`] does.
    pub(super) fn load_spread(&mut self, site: Site, dst: Reg, addr: Address, at: (Value, i32), ok: &[Value]) {
        let [fast, slow, on] = [(); 3].map(|()| self.b.create_block());
        let (ty, reg) = (site.ty, self.reg_ty(dst));
        let part = Self::vector_ty(reg);
        let results = (0..self.vector_count(reg)).map(|_| self.b.append_block_param(on, part)).collect();
        self.branch(ok, (fast, &[]), (slow, &[]));
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
        self.copy_run(Helper::Collect, site, addr);
        let elements = self.vector_load(ty, &[Some(dst)], &At::Run(self.inv.ctx));
        self.jump_with(on, &elements);
        self.b.switch_to_block(fast);
        let lanes = 0..self.lanes_per_chunk() as i32;
        let load = |lane: i32| {
            let one = |e: &mut Self| e.scalar_load(ty, reg, tenant(), at.0, at.1 * lane);
            self.for_lanes(Lanes::One(lane as u32), one)
        };
        let loaded: Vec<Value> = lanes.map(load).collect();
        let elements = self.gather(&loaded, reg);
        self.jump_with(on, &elements);
        self.b.switch_to_block(on);
        self.set(dst, Val::Lanes(results));
    }

    /// The same for a store of `parts[0]`.
    pub(super) fn store_spread(&mut self, site: Site, parts: &[Parts], addr: Address, at: (Value, i32), ok: &[Value]) {
        let [fast, slow, done] = [(); 3].map(|()| self.b.create_block());
        let ty = site.ty;
        self.branch(ok, (fast, &[]), (slow, &[]));
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
        self.vector_store(ty, parts, &At::Run(self.inv.ctx));
        self.copy_run(Helper::Scatter, site, addr);
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(fast);
        let reg = if ty.bytes() == 8 { RegTy::B64 } else { RegTy::B32 };
        for lane in 0..self.lanes_per_chunk() {
            let v = self.extract(&parts[0], reg, lane);
            let v = self.fitted(v, ty);
            self.for_lanes(Lanes::One(lane as u32), |e| e.b.ins().store(tenant(), v, at.0, at.1 * lane as i32));
        }
        self.b.ins().jump(done, &[]);
        self.b.switch_to_block(done);
    }

    /// Elements of all lanes from memory; vectors of the destinations one after another.
    pub(super) fn vector_load(&mut self, ty: Ty, dsts: &[Option<Reg>], from: &At<'_>) -> Vec<Value> {
        let bytes = ty.bytes() * dsts.len() as u32;
        let raw = |e: &mut Self, part: Type, count: usize| -> Vec<Value> {
            (0..count).map(|i| e.sinkable_load(part, from.vector(i), from.lanes(i, bytes))).collect()
        };
        let (host, _) = from.vector(0);
        let n = dsts.len();
        let four = |i: usize| Lanes::Run { first: 4 * i as u32, bytes };
        let elements: Vec<Parts> = match (ty.bytes(), n) {
            (4, 1) => vec![raw(self, types::I32X4, self.vectors)],
            (8, 1) => vec![raw(self, types::I64X2, self.vectors * 2)],
            (4, 2) => {
                let rows = raw(self, types::I64X2, self.vectors * 2);
                [false, true].map(|up| rows.chunks(2).map(|r| self.narrow(r[0], r[1], up)).collect()).to_vec()
            }
            (4, 4) => {
                let rows = raw(self, types::I64X2, self.vectors * 4);
                let mut out = vec![Vec::new(); 4];
                for r in rows.chunks(4) {
                    for up in [false, true] {
                        let a = self.narrow(r[0], r[1], up);
                        let b = self.narrow(r[2], r[3], up);
                        let (a, b) = (self.cast(types::I64X2, a), self.cast(types::I64X2, b));
                        let first = usize::from(up);
                        out[first].push(self.narrow(a, b, false));
                        out[first + 2].push(self.narrow(a, b, true));
                    }
                }
                out
            }
            (8, 2) => {
                let rows = raw(self, types::I64X2, self.vectors * 4);
                let low = rows.chunks(2).map(|r| self.zip64(r[0], r[1], false)).collect();
                let high = rows.chunks(2).map(|r| self.zip64(r[0], r[1], true)).collect();
                vec![low, high]
            }
            (2, 1) => {
                let signed = ty.is_signed();
                vec![
                    (0..self.vectors)
                        .map(|i| {
                            let offset = 8 * i as i32;
                            self.for_lanes(four(i), |e| {
                                if signed {
                                    e.b.ins().sload16x4(tenant(), host, offset)
                                } else {
                                    e.b.ins().uload16x4(tenant(), host, offset)
                                }
                            })
                        })
                        .collect(),
                ]
            }
            (1, 1) => {
                let signed = ty.is_signed();
                vec![
                    (0..self.vectors)
                        .map(|i| {
                            let load = |e: &mut Self| e.b.ins().load(types::I32, tenant(), host, 4 * i as i32);
                            let v = self.for_lanes(four(i), load);
                            let v = self.b.ins().scalar_to_vector(types::I32X4, v);
                            let v = self.cast(types::I8X16, v);
                            if signed {
                                let v = self.b.ins().swiden_low(v);
                                self.b.ins().swiden_low(v)
                            } else {
                                let v = self.b.ins().uwiden_low(v);
                                self.b.ins().uwiden_low(v)
                            }
                        })
                        .collect(),
                ]
            }
            // Four bytes per lane, in parts.
            (bytes, n) => {
                let words = raw(self, types::I32X4, self.vectors);
                let bits = i64::from(bytes) * 8;
                (0..n as i64)
                    .map(|i| {
                        let signed = ty.is_signed();
                        self.map1(&words, |e, w| {
                            let up = e.b.ins().ishl_imm_u(w, 32 - bits * (i + 1));
                            if signed {
                                e.b.ins().sshr_imm_u(up, 32 - bits)
                            } else {
                                e.b.ins().ushr_imm_u(up, 32 - bits)
                            }
                        })
                    })
                    .collect()
            }
        };
        let mut out = Vec::new();
        for (parts, dst) in elements.into_iter().zip(dsts) {
            let Some(dst) = *dst else { continue };
            let reg = self.reg_ty(dst);
            match (ty.bytes(), reg) {
                (8, RegTy::B64) | (4, RegTy::B32) => out.extend(parts),
                (8, _) => out.extend(parts.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect::<Vec<_>>()),
                (_, RegTy::B64) => {
                    let signed = ty.is_signed();
                    for v in parts {
                        out.extend(self.widen(v, signed));
                    }
                }
                (_, RegTy::B16) => {
                    for v in parts {
                        out.push(self.band_const(v, 0xffff));
                    }
                }
                _ => out.extend(parts),
            }
        }
        out
    }

    pub(super) fn vector_store(&mut self, ty: Ty, parts: &[Parts], to: &At<'_>) {
        let bytes_of_lane = ty.bytes() * parts.len() as u32;
        let put = |e: &mut Self, rows: &[Value]| {
            for (i, &v) in rows.iter().enumerate() {
                let (host, offset) = to.vector(i);
                e.for_lanes(to.lanes(i, bytes_of_lane), |e| e.b.ins().store(tenant(), v, host, offset));
            }
        };
        let (host, _) = to.vector(0);
        match (ty.bytes(), parts.len()) {
            (4 | 8, 1) => put(self, &parts[0]),
            (4, 2) => {
                let rows = self.interleave(&parts[0], &parts[1]);
                put(self, &rows);
            }
            (4, 4) => {
                let low = self.interleave(&parts[0], &parts[1]);
                let high = self.interleave(&parts[2], &parts[3]);
                let mut rows = Vec::new();
                for (&a, &b) in low.iter().zip(&high) {
                    rows.push(self.zip64(a, b, false));
                    rows.push(self.zip64(a, b, true));
                }
                put(self, &rows);
            }
            (8, 2) => {
                let mut rows = Vec::new();
                for (&a, &b) in parts[0].iter().zip(&parts[1]) {
                    rows.push(self.zip64(a, b, false));
                    rows.push(self.zip64(a, b, true));
                }
                put(self, &rows);
            }
            (2, 1) | (1, 1) => {
                let bytes = ty.bytes() as i32;
                let mask = if bytes == 2 { 0xffff } else { 0xff };
                for (i, &v) in parts[0].iter().enumerate() {
                    let v = self.band_const(v, mask);
                    // Of signed numbers, which these are as well: the other form does not exist on x86-64.
                    let v = self.b.ins().unarrow(v, v);
                    let v = if bytes == 2 {
                        self.cast(types::I64X2, v)
                    } else {
                        let v = self.b.ins().unarrow(v, v);
                        self.cast(types::I32X4, v)
                    };
                    let v = self.b.ins().extractlane(v, 0);
                    let four = Lanes::Run { first: 4 * i as u32, bytes: bytes_of_lane };
                    self.for_lanes(four, |e| e.b.ins().store(tenant(), v, host, 4 * bytes * i as i32));
                }
            }
            (bytes, _) => {
                let bits = bytes * 8;
                let mut words: Option<Parts> = None;
                for (i, part) in parts.iter().enumerate() {
                    let placed = self.map1(part, |e, v| {
                        let v = e.band_const(v, (1 << bits) - 1);
                        e.b.ins().ishl_imm_u(v, i64::from(bits) * i as i64)
                    });
                    words = Some(match words {
                        None => placed,
                        Some(w) => self.map2(&w, &placed, |e, a, b| e.b.ins().bor(a, b)),
                    });
                }
                put(self, &words.unwrap_or_default());
            }
        }
    }

    /// Pairs of 32-bit lanes as 64-bit lanes.
    fn interleave(&mut self, low: &Parts, high: &Parts) -> Parts {
        let mut out = Vec::new();
        for (&a, &b) in low.iter().zip(high) {
            for first in [0_u8, 8] {
                let mut mask = [0_u8; 16];
                for (i, m) in mask.iter_mut().enumerate() {
                    let (lane, byte) = (i as u8 / 8, i as u8 % 8);
                    *m = first + lane * 4 + byte % 4 + if byte >= 4 { 16 } else { 0 };
                }
                let mask = self.b.func.dfg.immediates.push(mask.to_vec().into());
                let (x, y) = (self.cast(types::I8X16, a), self.cast(types::I8X16, b));
                let v = self.b.ins().shuffle(x, y, mask);
                out.push(self.cast(types::I64X2, v));
            }
        }
        out
    }

    /// The lower (or upper) halves of two vectors.
    pub(super) fn zip64(&mut self, a: Value, b: Value, upper: bool) -> Value {
        let first = if upper { 8_u8 } else { 0 };
        let mut mask = [0_u8; 16];
        for (i, m) in mask.iter_mut().enumerate() {
            *m = if i < 8 { first + i as u8 } else { 16 + first + (i as u8 - 8) };
        }
        let mask = self.b.func.dfg.immediates.push(mask.to_vec().into());
        let (a, b) = (self.cast(types::I8X16, a), self.cast(types::I8X16, b));
        let v = self.b.ins().shuffle(a, b, mask);
        self.cast(types::I64X2, v)
    }
}

/// Where the elements of lanes lie.
pub(super) enum At<'a> {
    /// One behind another from there on.
    Run(Value),
    /// Each lane's at a place of their own: 16 bytes ([`whole_vector`]).
    Lanes(&'a [Value]),
}

impl At<'_> {
    /// The `i`th 16 bytes: an address and an offset.
    fn vector(&self, i: usize) -> (Value, i32) {
        match self {
            At::Run(host) => (*host, 16 * i as i32),
            At::Lanes(hosts) => (hosts[i], 0),
        }
    }

    /// Whose they are, if a lane has so many.
    fn lanes(&self, i: usize, bytes: u32) -> Lanes {
        match self {
            At::Run(_) => Lanes::Run { first: 16 * i as u32 / bytes, bytes },
            At::Lanes(_) => Lanes::One(i as u32),
        }
    }
}

/// Are a lane's elements a vector?
pub(super) fn whole_vector(ty: Ty, count: usize) -> bool {
    matches!((ty.bytes(), count), (4, 4) | (8, 2))
}

/// Is there vector code for `count` elements of `ty` per lane?
pub(super) fn vectorable(ty: Ty, count: usize) -> bool {
    matches!((ty.bytes(), count), (4, 1 | 2 | 4) | (8, 1 | 2) | (2, 1 | 2) | (1, 1 | 2 | 4))
        && (ty.bytes(), count) != (1, 2)
}
