//! Accesses at a distance from lane to lane that is known only when the code runs: of arrays whose strides are parameters. Mostly elements lie
//! one behind another.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Value, types};
use ptx::ir::{Reg, RegTy, Space};

use super::alu::Parts;
use super::consecutive::{At, vectorable};
use super::memory::{Checks, tenant};
use super::{Emit, Val};
use crate::abi::Site;
use crate::abi::place::Lanes;

/// Bits of a step from lane to lane: the last lane's place is not to wrap.
const STEP_BITS: u32 = 32;

/// Where lanes access memory.
struct Stepped {
    /// Address of the first lane's elements.
    first: Value,
    /// Bytes from lane to lane, i64.
    step: Value,
    /// What must hold for that.
    fine: Checks,
    /// Has the step 32 bits?
    short: bool,
}

impl Emit<'_, '_> {
    /// The addresses of lanes in a space, if they are such.
    fn stepped(&mut self, space: Space, val: &Val) -> Option<Stepped> {
        if !matches!(space, Space::Global | Space::Const | Space::Generic) {
            return None;
        }
        match *val {
            Val::Linear { base, step } => Some(Stepped { first: base, step, fine: Checks::new(), short: false }),
            Val::Extended { parts, c } => {
                let (b, step) = self.extended_parts(parts);
                let b = self.b.ins().sextend(types::I64, b);
                let others = self.lanes_per_chunk() as i64 - 1;
                let ahead = self.b.ins().imul_imm_s(step, others);
                let last = self.b.ins().iadd(b, ahead);
                let low = self.b.ins().ireduce(types::I32, last);
                let low = self.b.ins().sextend(types::I64, low);
                let whole = self.b.ins().icmp(IntCC::Equal, low, last);
                Some(Stepped { first: self.b.ins().iadd(b, c), step, fine: vec![whole], short: true })
            }
            _ => None,
        }
    }

    /// Host address of elements of `size` bytes one behind another, and what must hold for them to be that and to be accessed at once.
    fn in_row(&mut self, space: Space, stepped: &Stepped, size: i64) -> (Value, Checks) {
        let Stepped { first, step, ref fine, .. } = *stepped;
        let mut ok = vec![self.b.ins().icmp_imm_s(IntCC::Equal, step, size)];
        ok.extend(fine);
        let (host, inside) = self.resolve(space, first, size * self.lanes_per_chunk() as i64, size);
        ok.extend(inside);
        let base = self.space_base(space);
        (self.b.ins().iadd(host, base), ok)
    }

    /// The same for elements at any distance.
    fn in_steps(&mut self, space: Space, stepped: &Stepped, size: i64) -> (Value, Checks) {
        let Stepped { first, step, ref fine, short } = *stepped;
        let mut ok = fine.clone();
        if !short {
            let half = self.b.ins().iadd_imm_s(step, 1 << (STEP_BITS - 1));
            ok.push(self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, half, 1 << STEP_BITS));
        }
        // If the first and the last are aligned, the step is: there is an odd number of them.
        let others = self.lanes_per_chunk() as i64 - 1;
        let ahead = self.b.ins().imul_imm_s(step, others);
        let last = self.b.ins().iadd(first, ahead);
        let (host, inside) = self.resolve(space, first, size, size);
        ok.extend(inside);
        ok.extend(self.resolve(space, last, size, size).1);
        let base = self.space_base(space);
        (self.b.ins().iadd(host, base), ok)
    }

    /// Loads where that can be done so, and goes to `merge` with the elements; code goes on here for the rest.
    pub(super) fn load_stepped(&mut self, site: Site, dsts: &[Option<Reg>], val: &Val, merge: Block) {
        let size = i64::from(site.ty.bytes() * site.count);
        let Some(stepped) = self.stepped(site.space, val) else { return };
        if vectorable(site.ty, dsts.len()) {
            let (host, mut ok) = self.in_row(site.space, &stepped, size);
            ok.extend(self.loads_too(site.space, host, size * self.lanes_per_chunk() as i64));
            let [row, rest] = [(); 2].map(|()| self.b.create_block());
            self.branch(&ok, (row, &[]), (rest, &[]));
            self.b.switch_to_block(row);
            self.load_by_first(&site, host);
            let elements = self.vector_load(site.ty, dsts, &At::Run(host));
            self.jump_with(merge, &elements);
            self.b.switch_to_block(rest);
        }
        if let &[Some(dst)] = dsts
            && self.all_run()
        {
            let (mut host, ok) = self.in_steps(site.space, &stepped, size);
            let [steps, rest] = [(); 2].map(|()| self.b.create_block());
            self.branch(&ok, (steps, &[]), (rest, &[]));
            self.b.switch_to_block(steps);
            let reg = self.reg_ty(dst);
            let mut loaded = Vec::with_capacity(self.lanes_per_chunk());
            for lane in 0..self.lanes_per_chunk() {
                let one = |e: &mut Self| e.scalar_load(site.ty, reg, tenant(), host, 0);
                loaded.push(self.for_lanes(Lanes::One(lane as u32), one));
                host = self.b.ins().iadd(host, stepped.step);
            }
            let elements = self.gather(&loaded, reg);
            self.jump_with(merge, &elements);
            self.b.switch_to_block(rest);
        }
    }

    /// The same for a store of `parts` by all lanes, which goes to `done`.
    pub(super) fn store_stepped(
        &mut self,
        site: Site,
        parts: impl Fn(&mut Self) -> Vec<Parts>,
        val: &Val,
        done: Block,
    ) {
        let (ty, size) = (site.ty, i64::from(site.ty.bytes() * site.count));
        let Some(stepped) = self.stepped(site.space, val) else { return };
        if vectorable(ty, site.count as usize) {
            let (host, mut ok) = self.in_row(site.space, &stepped, size);
            ok.extend(self.all_active());
            let [row, rest] = [(); 2].map(|()| self.b.create_block());
            self.branch(&ok, (row, &[]), (rest, &[]));
            self.b.switch_to_block(row);
            let parts = parts(self);
            self.vector_store(ty, &parts, &At::Run(host));
            self.b.ins().jump(done, &[]);
            self.b.switch_to_block(rest);
        }
        if site.count == 1 && self.all_run() {
            let (mut host, ok) = self.in_steps(site.space, &stepped, size);
            let [steps, rest] = [(); 2].map(|()| self.b.create_block());
            self.branch(&ok, (steps, &[]), (rest, &[]));
            self.b.switch_to_block(steps);
            let parts = parts(self);
            let reg = if ty.bytes() == 8 { RegTy::B64 } else { RegTy::B32 };
            for lane in 0..self.lanes_per_chunk() {
                let v = self.extract(&parts[0], reg, lane);
                let v = self.fitted(v, ty);
                self.for_lanes(Lanes::One(lane as u32), |e| e.b.ins().store(tenant(), v, host, 0));
                host = self.b.ins().iadd(host, stepped.step);
            }
            self.b.ins().jump(done, &[]);
            self.b.switch_to_block(rest);
        }
    }

    /// Are all lanes active here?
    fn all_run(&self) -> bool {
        self.guard.is_none() && self.exec.is_none()
    }
}
