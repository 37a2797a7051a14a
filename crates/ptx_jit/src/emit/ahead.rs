//! What CTAs further along a row will access is fetched into the processor's caches, where warps of a row run by turns (`warps`), and where
//! a lane goes through an array by itself, what trips further on will. The processor foretells that, too, but not beyond the end of a page,
//! and then it finds the way anew.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, TrapCode, Value, types};
use ptx::ir::{Address, Operand, Reg, Space};

use super::Emit;
use super::memory::Host;
use crate::abi::Site;
use crate::analysis::graph::NodeId;
use crate::analysis::steps::Steps;

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
/// Bytes that a trip of a loop goes on at least, and at most, for what comes to be fetched: less would be a fetch for hardly anything, and
/// more would be fetched for a trip that begins before it is there.
const LEAST_TRIP: u64 = 16;
const MOST_TRIP: u64 = 512;
/// Most nodes of such a loop. Longer ones are not looked through.
const MOST_NODES: usize = 16;

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

    /// How registers grow from a trip to the next one of the loop that a node is in, if its lanes run one by one.
    pub(super) fn trips(&self, n: NodeId) -> Option<Steps> {
        let nodes = self.plan.ordering.innermost(n).filter(|nodes| nodes.len() <= MOST_NODES)?;
        let insts = nodes.iter().flat_map(|&n| self.plan.nodes[n].body(self.k));
        (self.plan.lanes() == 1).then(|| Steps::of_trips(insts))
    }

    /// Fetches what an access will find some trips later.
    pub(super) fn fetch_trips_ahead(&mut self, site: &Site, addr: Address, host: Host) {
        let (Some(trips), Operand::Reg(base)) = (&self.trips, addr.base) else { return };
        let near = site.space == Space::Global || site.space == Space::Generic;
        let step = trips.step(base).filter(|step| (LEAST_TRIP..=MOST_TRIP).contains(&step.unsigned_abs()));
        let (true, Some(step)) = (near && self.exec.is_none() && self.guard.is_none(), step) else { return };
        let (Host::Whole(v) | Host::InSpace(v)) = host;
        let (of, by) = self.number_added(v).unwrap_or((v, 0));
        let line = (of, by.div_euclid(LINE));
        if self.fetched_trips.len() == MOST || self.fetched_trips.contains(&line) {
            return;
        }
        self.fetched_trips.push(line);
        let (host, offset) = self.displaced(site.space, host);
        let far = AHEAD.cast_signed() * step.signum();
        let flags = MemFlagsData::new().with_trap_code(Some(FETCH));
        self.b.ins().uload8(types::I64, flags, host, offset + far as i32);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::image::Body;
    use crate::{Form, Image, compiler::Watch};

    /// How many fetches are in the code of one of the kernels that are measured.
    fn fetches(name: &str, block: [u32; 3]) -> usize {
        fetches_of(include_bytes!("../../../sundial/kernels/engine.ptx"), name, block)
    }

    fn fetches_of(text: &[u8], name: &str, block: [u32; 3]) -> usize {
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

    /// A sum over a row of elements whose columns stand beside them, in trips of some bytes of it, which come one after the other.
    fn rows(bytes: i64) -> String {
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 x, .param .u64 n) {{\n\
             .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;\n\
             ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [n]; mov.u32 %r0, %tid.x;\n\
             mul.wide.u32 %rd3, %r0, 8; add.s64 %rd3, %rd2, %rd3; ld.global.v2.u32 {{%r1, %r2}}, [%rd3]; mov.u32 %r3, 0;\n\
             LOOP: mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd0, %rd4; ld.global.u32 %r4, [%rd4]; ld.global.u32 %r7, [%rd4+4];\n\
             mul.wide.u32 %rd5, %r4, 4; add.s64 %rd5, %rd1, %rd5; ld.global.u32 %r5, [%rd5]; add.u32 %r3, %r3, %r5;\n\
             mul.wide.u32 %rd6, %r7, 4; add.s64 %rd6, %rd1, %rd6; ld.global.u32 %r5, [%rd6]; add.u32 %r3, %r3, %r5;\n\
             add.u32 %r1, %r1, {}; setp.lt.u32 %p, %r1, %r2; @%p bra LOOP;\n\
             st.global.u32 [%rd3], %r3; ret;\n}}\n",
            bytes / 4
        )
    }

    #[test]
    fn lanes_that_go_through_arrays_by_themselves_fetch_ahead() {
        // The elements and their columns, in the loop of four a trip, and not in the one for the rest.
        assert_eq!(fetches("spmv", [128, 1, 1]), 2);
        // Collatz's numbers are read nowhere.
        assert_eq!(fetches("divergent", [128, 1, 1]), 0);
        for (bytes, fetches) in [(4, 0), (16, 1), (-16, 1), (512, 1), (1024, 0)] {
            assert_eq!(fetches_of(rows(bytes).as_bytes(), "k", [128, 1, 1]), fetches, "{bytes} bytes a trip");
        }
    }
}
