//! Instructions that concern one thread alone.

use super::Cta;
use super::memory::{Place, ThreadView};
use super::races::Touch;
use crate::builtins;
use crate::children;
use crate::ir::{Builtin, Op, Operand, Reg, RegTy, SReg, Space, Ty};
use crate::launch::{
    Access, AccessError, CLUSTER_WINDOW_BYTES, Exception, GlobalMemory, LOCAL_WINDOW, LOCAL_WINDOW_BYTES,
    SHARED_WINDOW, SHARED_WINDOW_BYTES, WARP,
};
use crate::math::{self, Source, int};

/// Most bytes of one access: eight elements of 32 bits, or four of 64.
const MAX_ACCESS: usize = 64;

/// So many ones.
fn ones(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits.min(128)).unwrap_or(0)
}

impl Cta {
    /// Executes `op` for one thread; `active` are the lanes that execute it with it.
    pub(super) fn thread_inst(
        &mut self,
        memory: &dyn GlobalMemory,
        thread: usize,
        op: &Op,
        active: u32,
    ) -> Result<(), Exception> {
        if let Some(shape) = math::shape(op) {
            let operands = shape.sources.map(|source| match source {
                None => 0,
                Some(Source::Operand(operand)) => self.operand(thread, operand),
                Some(Source::Pred(p)) => self.pred(thread, p).into(),
            });
            let results = math::eval(op, operands).ok_or(Exception::Illegal)?;
            for (dst, result) in shape.dests.into_iter().zip(results) {
                if let Some(dst) = dst {
                    self.set(thread, dst, result);
                }
            }
            return Ok(());
        }
        match op {
            Op::Mov { dst, src, .. } => {
                let value = self.operand_wide(thread, *src);
                self.set_wide(thread, *dst, value);
            }
            Op::Pack { dst, srcs } => {
                let part = self.width(*dst) / srcs.len().max(1) as u32;
                let mask = ones(part);
                let value = srcs
                    .iter()
                    .rev()
                    .fold(0u128, |v, src| v.checked_shl(part).unwrap_or(0) | (self.operand_wide(thread, *src) & mask));
                self.set_wide(thread, *dst, value);
            }
            Op::Unpack { dsts, src } => {
                let mut value = self.operand_wide(thread, *src);
                let width = match src {
                    Operand::Reg(reg) => self.width(*reg),
                    Operand::Imm(_) => {
                        dsts.len() as u32 * dsts.iter().flatten().map(|r| self.width(*r)).max().unwrap_or(16)
                    }
                };
                let part = width / dsts.len().max(1) as u32;
                for dst in dsts {
                    if let Some(dst) = dst {
                        self.set_wide(thread, *dst, value & ones(part));
                    }
                    value = value.checked_shr(part).unwrap_or(0);
                }
            }
            Op::Special { dst, sreg, .. } => {
                let value = self.special(thread, *sreg);
                self.set(thread, *dst, value);
            }
            Op::Selp { dst, a, b, p, .. } => {
                let value = self.operand_wide(thread, if self.pred(thread, *p) { *a } else { *b });
                self.set_wide(thread, *dst, value);
            }
            Op::Cvta { space, to_generic, dst, a } => {
                let a = self.operand(thread, *a);
                let base = match space {
                    Space::Shared => SHARED_WINDOW,
                    Space::Local => LOCAL_WINDOW,
                    Space::Generic | Space::Global | Space::Const => 0,
                    Space::Param => return Err(Exception::Illegal),
                };
                let value = match (base, to_generic) {
                    (0, _) => a,
                    (_, true) => base + (a & 0xffff_ffff),
                    (_, false) => a.wrapping_sub(base),
                };
                self.set(thread, *dst, value);
            }
            Op::Isspacep { space, dst, a } => {
                let a = self.operand(thread, *a);
                let shared = (SHARED_WINDOW..SHARED_WINDOW + SHARED_WINDOW_BYTES).contains(&a);
                let local = (LOCAL_WINDOW..LOCAL_WINDOW + LOCAL_WINDOW_BYTES).contains(&a);
                let result = match space {
                    Space::Shared => shared,
                    Space::Local => local,
                    Space::Generic => true,
                    Space::Global => !local && !(SHARED_WINDOW..SHARED_WINDOW + CLUSTER_WINDOW_BYTES).contains(&a),
                    Space::Const | Space::Param => false,
                };
                self.set(thread, *dst, result.into());
            }
            Op::Ld { .. } | Op::St { .. } | Op::Atom { .. } | Op::CpAsync { .. } => {
                return self.access(memory, thread, op);
            }
            Op::Image { access, dsts, srcs } => return self.image(memory, thread, access, dsts, srcs),
            Op::Transfer { transfer, srcs } => return self.transfer(memory, thread, transfer, srcs),
            Op::Fence => {}
            Op::Activemask { dst } => self.set(thread, *dst, active.into()),
            Op::Nanosleep { .. } => self.sleepy = true,
            Op::Trap => return Err(Exception::Trap),
            Op::Call { builtin, args, dst } => {
                let mut values = [0; 5];
                for (value, arg) in values.iter_mut().zip(args) {
                    *value = self.operand(thread, *arg);
                }
                let result = self.call(memory, thread, *builtin, values)?;
                if let Some(dst) = dst {
                    self.set(thread, *dst, result);
                }
            }
            _ => return Err(Exception::Illegal),
        }
        Ok(())
    }

    fn width(&self, reg: Reg) -> u32 {
        match self.kernel.regs[reg.0 as usize] {
            RegTy::Pred => 1,
            RegTy::B16 => 16,
            RegTy::B32 => 32,
            RegTy::B64 => 64,
            RegTy::B128 => 128,
        }
    }

    fn access(&mut self, memory: &dyn GlobalMemory, thread: usize, op: &Op) -> Result<(), Exception> {
        let mut buffer = [0; MAX_ACCESS];
        match op {
            Op::Ld { space, ty, order, dsts, addr } => {
                let size = ty.bytes() as usize;
                let total = size * dsts.len();
                let place = self.locate(thread, *space, addr, total, Access::Read)?;
                let out = buffer.get_mut(..total).ok_or(Exception::Illegal)?;
                self.observe(thread, place, total, Touch { access: Access::Read, order: *order, data: None })?;
                self.load(memory, thread, place, out)?;
                for (dst, bytes) in dsts.iter().zip(buffer.chunks(size)) {
                    let mut wide = [0; 16];
                    wide[..size].copy_from_slice(bytes);
                    let value = u128::from_le_bytes(wide);
                    let value = if *ty == Ty::B128 { value } else { int::value(*ty, value as u64).cast_unsigned() };
                    if let Some(dst) = dst {
                        self.set_wide(thread, *dst, value);
                    }
                }
            }
            Op::St { space, ty, order, srcs, addr } => {
                let size = ty.bytes() as usize;
                let total = size * srcs.len();
                let place = self.locate(thread, *space, addr, total, Access::Write)?;
                if total > MAX_ACCESS {
                    return Err(Exception::Illegal);
                }
                for (src, bytes) in srcs.iter().zip(buffer.chunks_mut(size)) {
                    bytes.copy_from_slice(&self.operand_wide(thread, *src).to_le_bytes()[..size]);
                }
                let data = &buffer[..total];
                self.observe(thread, place, total, Touch { access: Access::Write, order: *order, data: Some(data) })?;
                self.store(memory, thread, place, data)?;
            }
            Op::Atom { op, space, ty, order, ftz, dst, addr, b, c } => {
                let bytes = ty.bytes() as usize;
                let place = self.locate(thread, *space, addr, bytes, Access::Atomic)?;
                self.observe(thread, place, bytes, Touch { access: Access::Atomic, order: *order, data: None })?;
                let b = self.operand(thread, *b);
                let c = c.map_or(0, |c| self.operand(thread, c));
                let ftz = *ftz && matches!(place.0, Place::Global(_));
                if !(2..=8).contains(&ty.bytes()) || math::atomic(*op, *ty, ftz, 0, b, c).is_none() {
                    return Err(Exception::Illegal);
                }
                let mut replace = |old| math::atomic(*op, *ty, ftz, old, b, c).unwrap_or(old);
                let old = self.modify(memory, place, ty.bytes(), &mut replace)?;
                if let Some(dst) = dst {
                    self.set(thread, *dst, old);
                }
            }
            Op::CpAsync { bytes, dst, src, src_bytes } => {
                let total = usize::from(*bytes);
                if total > MAX_ACCESS {
                    return Err(Exception::Illegal);
                }
                let wanted = src_bytes.map_or(total, |n| (self.operand(thread, n) as u32 as usize).min(total));
                let to = self.locate(thread, Space::Shared, dst, total, Access::Write)?;
                // Where nothing is read, it may be anywhere.
                if wanted > 0 {
                    let from = self.locate(thread, Space::Global, src, total, Access::Read)?;
                    self.observe(thread, from, wanted, Touch::plain(Access::Read, None))?;
                    self.load(memory, thread, from, &mut buffer[..wanted])?;
                }
                let data = &buffer[..total];
                self.observe(thread, to, total, Touch::plain(Access::Write, Some(data)))?;
                self.store(memory, thread, to, data)?;
            }
            _ => return Err(Exception::Illegal),
        }
        Ok(())
    }

    fn call(
        &mut self,
        memory: &dyn GlobalMemory,
        thread: usize,
        builtin: Builtin,
        [a, b, c, d, e]: [u64; 5],
    ) -> Result<u64, Exception> {
        let view = ThreadView { cta: self, memory, thread };
        let area = self.launch.driver;
        let unreadable =
            |(address, error): (u64, AccessError)| Exception::Access { address, access: Access::Read, error };
        Ok(match builtin {
            Builtin::Vprintf => builtins::vprintf(&view, area, a, b).map_err(unreadable)? as u64,
            Builtin::AssertFail => {
                let tid = [0, 1, 2].map(|d| self.tid(thread, d));
                builtins::assertfail(&view, area, [a, b, c, d], self.ctaid, tid).map_err(unreadable)?;
                return Err(Exception::Assert);
            }
            Builtin::Malloc => builtins::malloc(memory, area, a),
            Builtin::Free => {
                builtins::free(memory, area, a);
                0
            }
            Builtin::Launch => children::launch(&view, self.launcher.as_deref(), a, b).map_err(unreadable)?.into(),
            Builtin::Copy => {
                self.observe_transfer(thread, a, c)?;
                children::copy(self.launcher.as_deref(), [a, b, c, d, e]).into()
            }
            Builtin::Fill => {
                self.observe_transfer(thread, a, c)?;
                children::fill(self.launcher.as_deref(), [a, b, c, d]).into()
            }
        })
    }

    fn tid(&self, thread: usize, dimension: u8) -> u32 {
        let [x, y, _] = self.launch.block;
        let thread = thread as u32;
        match dimension {
            0 => thread % x,
            1 => thread / x % y,
            _ => thread / x / y,
        }
    }

    fn special(&self, thread: usize, sreg: SReg) -> u64 {
        let lane = thread as u32 % WARP;
        let of = |v: [u32; 3], d: u8| v.get(usize::from(d)).copied().unwrap_or(0);
        let low = match sreg {
            SReg::Tid(d) => self.tid(thread, d),
            SReg::Ntid(d) => of(self.launch.block, d),
            SReg::Ctaid(d) => of(self.ctaid, d),
            SReg::Nctaid(d) => of(self.launch.grid, d),
            SReg::ClusterId(d) => of([0, 1, 2].map(|i| self.ctaid[i] / self.launch.cluster[i]), d),
            SReg::NClusterId(d) => of(self.launch.clusters(), d),
            SReg::ClusterCtaId(d) => of([0, 1, 2].map(|i| self.ctaid[i] % self.launch.cluster[i]), d),
            SReg::ClusterNCtaId(d) => of(self.launch.cluster, d),
            SReg::ClusterCtaRank => self.rank,
            SReg::ClusterNCtaRank => self.launch.cluster_ctas(),
            SReg::IsExplicitCluster => u32::from(self.launch.cluster_ctas() > 1),
            SReg::LaneId => lane,
            SReg::WarpId => thread as u32 / WARP,
            SReg::NWarpId => self.spins.len() as u32,
            SReg::SmId => 0,
            SReg::NSmId => 1,
            SReg::GridId => return self.launch.grid_id,
            SReg::LanemaskEq => 1 << lane,
            SReg::LanemaskLe => u32::MAX >> (31 - lane),
            SReg::LanemaskLt => (1 << lane) - 1,
            SReg::LanemaskGe => u32::MAX << lane,
            SReg::LanemaskGt => u32::MAX << lane << 1,
            SReg::Clock | SReg::GlobalTimerLo => self.executed as u32,
            SReg::ClockHi | SReg::GlobalTimerHi => (self.executed >> 32) as u32,
            SReg::Clock64 | SReg::GlobalTimer => return self.executed,
            SReg::Env(n) => self.launch.envregs.get(usize::from(n)).copied().unwrap_or(0),
            SReg::DynamicSmemSize => self.launch.dynamic_shared,
            SReg::TotalSmemSize => self.shared.len() as u32,
        };
        low.into()
    }
}
