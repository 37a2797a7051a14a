//! Elements at addresses of each lane's own, which are accessed one by one if all lie where they may.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{Address, Operand, Reg, RegTy, Space, Ty};

use super::alu::Parts;
use super::fixed::Reach;
use super::memory::tenant;
use super::{Emit, Mask, TwoLanes, Val, trusted};
use crate::abi::context::at;
use crate::abi::place::Lanes;
use crate::analysis::pointers::{Base, Pointer};

/// Host addresses of lanes, one by one.
pub(super) struct Hosts {
    /// Offsets, or host addresses.
    lanes: Parts,
    offsets: Option<Offsets>,
}

/// Of 32 bits, without a sign.
#[derive(Clone, Copy)]
struct Offsets {
    /// Where they begin, and how far apart that is for one lane and the next.
    base: Value,
    step: i64,
    /// What they are counted in, bytes.
    scale: i64,
    spare: Spare,
}

/// Unless all lanes are active: which are, and where the others access what nobody looks at.
type Spare = Option<(Value, Value)>;

impl Emit<'_, '_> {
    /// Loads elements of lanes one by one. A vector of them is made before the next ones are loaded, so that few addresses wait in registers.
    pub(super) fn lane_loads(&mut self, ty: Ty, dsts: &[Option<Reg>], hosts: &Hosts) -> Vec<Value> {
        let regs: Vec<RegTy> = dsts.iter().map(|dst| dst.map_or(ty.reg(), |dst| self.reg_ty(dst))).collect();
        let mut elements = vec![Parts::new(); dsts.len()];
        for first in (0..self.lanes_per_chunk()).step_by(4) {
            let mut loaded = vec![Vec::new(); dsts.len()];
            for lane in first..first + 4 {
                let host = self.lane_host(hosts, lane);
                for (i, (&reg, row)) in regs.iter().zip(&mut loaded).enumerate() {
                    let offset = i as i32 * ty.bytes() as i32;
                    let load = |e: &mut Self| e.scalar_load(ty, reg, tenant(), host, offset);
                    row.push(self.for_lanes(Lanes::One(lane as u32), load));
                }
            }
            for (((dst, &reg), row), parts) in dsts.iter().zip(&regs).zip(&loaded).zip(&mut elements) {
                if dst.is_some() {
                    parts.extend(self.gather(row, reg));
                }
            }
        }
        elements.concat()
    }

    /// Where so many bytes at unrelated addresses lie, and whether all active lanes may access theirs.
    pub(super) fn lane_hosts(&mut self, space: Space, addr: Address, size: i64, val: &Val) -> Option<(Hosts, Value)> {
        let mask = self.mask();
        match space {
            Space::Param => None,
            Space::Shared | Space::Local => Some(self.offset_hosts(space, size, val, mask)),
            _ => match self.index_hosts(addr, size, mask.as_ref()) {
                Some(found) => Some(found),
                None => Some(self.window_hosts(size, val, mask)),
            },
        }
    }

    /// [`Self::lane_hosts`] in the window, by indices and a base that is the same in the whole grid.
    fn index_hosts(&mut self, addr: Address, size: i64, mask: Option<&Mask>) -> Option<(Hosts, Value)> {
        let Operand::Reg(r) = addr.base else { return None };
        if !size.cast_unsigned().is_power_of_two() {
            return None;
        }
        let (Pointer { mut base, scale, signed, .. }, indices) = self.lane_pointer(r)?;
        base.number = base.number.wrapping_add(addr.offset);
        let room = self.room(&Reach { base, scale, signed, size, span: size, ahead: 0 })?;
        let (ahead, base, ok) = self.all_in_room(room, &indices, mask.map(|mask| &*mask.lanes));
        let spare = mask.map(|mask| (mask.bits, self.scratch_address(0)));
        Some((Hosts { lanes: ahead, offsets: Some(Offsets { base, step: 0, scale, spare }) }, ok))
    }

    /// Addresses of lanes for a helper, computed once more where their index and the base are known, so that they need not be kept for that.
    pub(super) fn slow_addresses(&mut self, space: Space, addr: Address, val: &Val) -> Parts {
        let found = match addr.base {
            Operand::Reg(r) if !matches!(space, Space::Shared | Space::Local | Space::Param) => self.lane_pointer(r),
            _ => None,
        };
        let Some((Pointer { base: at, scale, signed, .. }, indices)) = found else {
            return self.address_lanes(val, space);
        };
        let number = at.number.wrapping_add(addr.offset);
        let Some(base) = self.known_base(&Base { number, ..at }) else { return self.address_lanes(val, space) };
        let base = self.b.ins().splat(types::I64X2, base);
        let factor = self.constant(base, scale.cast_unsigned());
        let wide: Parts = indices.into_iter().flat_map(|index| self.widen(index, signed)).collect();
        self.map1(&wide, |e, index| {
            let scaled = e.b.ins().imul(index, factor);
            e.b.ins().iadd(base, scaled)
        })
    }

    /// The host address of a lane. Lanes that are not active access a spare place.
    pub(super) fn lane_host(&mut self, hosts: &Hosts, lane: usize) -> Value {
        let Some(Offsets { base, step, scale, spare }) = hosts.offsets else {
            return self.extract(&hosts.lanes, RegTy::B64, lane);
        };
        let offset = self.wide_lane(&hosts.lanes, lane);
        let offset = self.times(offset, scale);
        let host = self.b.ins().iadd(base, offset);
        let host = self.moved(host, step * lane as i64);
        match spare {
            Some((bits, spare)) => {
                let here = self.b.ins().band_imm_u(bits, 1 << lane);
                self.b.ins().select(here, host, spare)
            }
            None => host,
        }
    }

    /// A lane's number of 32 bits without a sign, as one of 64. Two at a time come out of their vector.
    fn wide_lane(&mut self, list: &[Value], lane: usize) -> Value {
        let (block, vector, half) = (self.b.current_block(), list[lane / 4], (lane % 4 / 2) as u8);
        let known = self.two_lanes.filter(|two| (two.block, two.vector, two.half) == (block, vector, half));
        let two = known.unwrap_or_else(|| {
            let wide = self.cast(types::I64X2, vector);
            TwoLanes { block, vector, half, value: self.b.ins().extractlane(wide, half) }
        });
        self.two_lanes = Some(two);
        if lane % 2 == 1 {
            return self.b.ins().ushr_imm_u(two.value, 32);
        }
        let low = self.b.ins().ireduce(types::I32, two.value);
        self.b.ins().uextend(types::I64, low)
    }

    /// Are the indices of all lanes of the mask from 0 to `last`, and multiples of `size`? It is found out for all of them together.
    fn in_range(&mut self, indices: &Parts, last: Value, size: i64, mask: Option<&[Value]>) -> Value {
        let indices = match mask {
            // Zero is in range, if anything is.
            Some(mask) => {
                let pairs = indices.iter().zip(mask);
                pairs.map(|(&index, &mask)| self.b.ins().band(index, mask)).collect()
            }
            None => indices.clone(),
        };
        // A negative number among them makes their union negative.
        let (mut union, mut most, mut above) = (indices[0], indices[0], None);
        for &index in &indices[1..] {
            union = self.b.ins().bor(union, index);
        }
        let wide = self.b.func.dfg.value_type(union) == types::I64X2;
        if wide {
            // There is no maximum of these.
            for &index in &indices {
                let one = self.b.ins().icmp(IntCC::SignedGreaterThan, index, last);
                above = Some(above.map_or(one, |above| self.b.ins().bor(above, one)));
            }
        } else {
            for &index in &indices[1..] {
                most = self.b.ins().smax(most, index);
            }
        }
        let above = match above {
            Some(above) => above,
            None => self.b.ins().icmp(IntCC::SignedGreaterThan, most, last),
        };
        let mut bad = self.b.ins().bor(above, union);
        if size > 1 {
            let low = self.constant(union, size as u64 - 1);
            let low = self.b.ins().band(union, low);
            let zero = self.constant(union, 0);
            let odd = self.b.ins().icmp(IntCC::NotEqual, low, zero);
            bad = self.b.ins().bor(bad, odd);
        }
        let bad = self.b.ins().vhigh_bits(types::I32, bad);
        self.b.ins().icmp_imm_u(IntCC::Equal, bad, 0)
    }

    /// [`Self::lane_hosts`] in a space of 32-bit offsets.
    fn offset_hosts(&mut self, space: Space, size: i64, val: &Val, mask: Option<Mask>) -> (Hosts, Value) {
        let offsets = self.lanes(val, RegTy::B32);
        let local = i64::from(self.k.local_bytes);
        let (base, limit, step) = if space == Space::Local {
            let flags = trusted().with_readonly().with_can_move();
            let first = self.b.ins().load(types::I64, flags, self.inv.ctx, at::LOCAL);
            let thread = self.b.ins().uextend(types::I64, self.chunk.thread);
            let at = self.b.ins().imul_imm_s(thread, local);
            (self.b.ins().iadd(first, at), self.i64(local), local)
        } else {
            (self.inv.shared, self.inv.shared_bytes, 0)
        };
        // Sizes are far below 2^31; a space smaller than the element gives a negative limit.
        let last = self.b.ins().iadd_imm_s(limit, -size);
        let last = self.b.ins().ireduce(types::I32, last);
        let last = self.b.ins().splat(types::I32X4, last);
        let ok = self.in_range(&offsets, last, size, mask.as_ref().map(|mask| &*mask.lanes));
        let spare = mask.map(|mask| (mask.bits, self.scratch_address(0)));
        (Hosts { lanes: offsets, offsets: Some(Offsets { base, step, scale: 1, spare }) }, ok)
    }

    /// [`Self::lane_hosts`] in the window.
    fn window_hosts(&mut self, size: i64, val: &Val, mask: Option<Mask>) -> (Hosts, Value) {
        let addresses = self.lanes(val, RegTy::B64);
        let last = self.b.ins().iadd_imm_s(self.inv.window_bytes, -size);
        let splat = |e: &mut Self, v: Value| e.b.ins().splat(types::I64X2, v);
        let (last, lo, delta) = (splat(self, last), splat(self, self.inv.window_lo), splat(self, self.inv.delta));
        let indices = self.map1(&addresses, |e, address| e.b.ins().isub(address, lo));
        let active = mask.as_ref().map(|mask| self.mask_for(&mask.lanes, RegTy::B64));
        let ok = self.in_range(&indices, last, size, active.as_deref());
        let mut lanes = self.map1(&addresses, |e, address| e.b.ins().iadd(address, delta));
        if let Some(mask) = mask {
            let spare = self.scratch_address(0);
            let spare = splat(self, spare);
            let spare = vec![spare; lanes.len()];
            lanes = self.blend(&mask.lanes, &lanes, &spare, RegTy::B64);
        }
        (Hosts { lanes, offsets: None }, ok)
    }
}
