//! What CTAs further along a row will access is fetched into the processor's caches, where warps of a row run by turns (`warps`). The
//! processor foretells that, too, but not beyond the end of a page, and then it finds the way anew.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, TrapCode, Value, types};
use ptx::ir::{Address, Operand, Reg, Space};

use super::Emit;
use crate::abi::Site;

/// Marks loads of a byte that become instructions which fetch its line, fault nowhere and give nothing: Cranelift knows of none.
pub(crate) const FETCH: TrapCode = TrapCode::unwrap_user(1);

/// How far ahead, in bytes: some hundred nanoseconds' worth.
const AHEAD: u64 = 2048;
/// Where CTAs are farther apart it is the next one's, but not if it lies farther than this: how long fetches take tells whether something is
/// there, and what lies around a tenant's memory is no concern of its.
const FARTHEST: u64 = 32 << 10;
/// Bytes of a line.
const LINE: i64 = 64;
/// Most accesses of a kernel for which that is done: it takes an instruction for each line.
const MOST: usize = 8;

impl Emit<'_, '_> {
    /// Fetches what an access of all lanes, from `host` on, will find some CTAs further along the row.
    pub(super) fn fetch_ahead(&mut self, site: &Site, addr: Address, host: Value) {
        let Some(steps) = &self.steps else { return };
        let Operand::Reg(base) = addr.base else { return };
        let all = self.exec.is_none() && self.guard.is_none();
        if !all || self.looping || !matches!(site.space, Space::Global | Space::Generic) {
            return;
        }
        let step = steps.step(base).unwrap_or(0);
        let line = (base, addr.offset.div_euclid(LINE));
        let near = |&(reg, at): &(Reg, i64)| reg == base && (at - line.1).abs() <= 1;
        if step == 0 || step.unsigned_abs() > FARTHEST || self.fetched.len() == MOST || self.fetched.iter().any(near) {
            return;
        }
        let ctas = (AHEAD / step.unsigned_abs()).max(1);
        let far = (step * ctas.cast_signed()) as i32;
        self.fetched.push(line);
        let bytes = self.plan.lanes() * site.ty.bytes() * site.count;
        let flags = MemFlagsData::new().with_trap_code(Some(FETCH));
        for at in (0..bytes as i32).step_by(LINE as usize) {
            self.b.ins().uload8(types::I64, flags, host, far + at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::image::Body;
    use crate::{Form, Image, compiler::Watch};

    /// How many fetches are in the code of one of the kernels that are measured.
    fn fetches(name: &str, block: [u32; 3]) -> usize {
        let text = include_bytes!("../../../sundial/kernels/engine.ptx");
        let program = ptx::Program::parse(text).unwrap();
        let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
        let image = Image::compile_in(Arc::new(kernel), block, Form::default(), &Watch::unbounded()).unwrap();
        let Body::Machine(machine) = &image.body else { panic!("no machine code") };
        // Their operation, and what stands beside the address.
        machine.code.windows(3).filter(|bytes| matches!(bytes, [0x0f, 0x18, place] if place >> 3 & 7 == 1)).count()
    }

    #[test]
    fn kernels_fetch_ahead_whose_warps_run_by_turns() {
        // Two lines for each of three rows that are read and one that is written; the neighbours in a row share theirs.
        assert_eq!(fetches("stencil", [32, 8, 1]), 8);
        assert_eq!(fetches("stencil", [256, 1, 1]), 0);
        assert_eq!(fetches("saxpy", [256, 1, 1]), 0);
    }
}
