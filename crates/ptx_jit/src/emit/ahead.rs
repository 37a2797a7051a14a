//! What CTAs further along a row will access is fetched into the processor's caches, where warps of a row run by turns (`warps`), and where
//! a lane goes through an array by itself, what trips further on will. The processor foretells that, too, but not beyond the end of a page,
//! and then it finds the way anew.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, TrapCode, Value, types};
use ptx::ir::{Address, Operand, Reg, Space};

use super::Emit;
use super::memory::Host;
use crate::abi::Site;
use crate::analysis::steps::Steps;

/// Marks loads of a byte that become instructions which fetch its line, fault nowhere and give nothing: Cranelift knows of none.
pub(crate) const FETCH: TrapCode = TrapCode::unwrap_user(1);

/// How far ahead, in bytes: some hundred nanoseconds' worth.
const AHEAD: u64 = 2048;
/// Where CTAs are farther apart it is the next one's, but not if it lies farther than this: how long fetches take tells whether something is
/// there, and what lies around a tenant's memory is no concern of its.
const FARTHEST: u64 = 32 << 10;
const _: () = assert!(AHEAD <= FARTHEST);
/// Bytes of a line.
const LINE: i64 = 64;
/// Most accesses of a kernel for which that is done, or of a node for its loop: it takes an instruction for each line.
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
        if !all || self.looping.is_some() || !matches!(site.space, Space::Global | Space::Generic) {
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
        for at in (0..bytes as i32).step_by(LINE as usize) {
            self.fetch(host, far + at);
        }
    }

    /// Fetches the line that is so many bytes behind an address.
    fn fetch(&mut self, host: Value, by: i32) {
        let flags = MemFlagsData::new().with_trap_code(Some(FETCH));
        self.b.ins().uload8(types::I64, flags, host, by);
    }

    /// By how much a register grows from a trip to the next one of the loop that the node is in, if lanes run one by one.
    fn trip(&mut self, r: Reg) -> Option<i64> {
        let (begin, end) = self.looping.filter(|(begin, end)| self.plan.lanes() == 1 && end - begin < MOST_NODES)?;
        if self.trips.as_ref().is_none_or(|(of, _)| *of != (begin, end)) {
            let nodes = self.plan.ordering.nodes[begin..=end].iter().map(|&n| &self.plan.nodes[n]);
            self.trips = Some(((begin, end), Steps::of_trips(nodes.flat_map(|node| node.body(self.k)))));
        }
        self.trips.as_ref()?.1.step(r)
    }

    /// Fetches what an access, which is one for all lanes, will find some trips later.
    pub(super) fn fetch_trips_ahead(&mut self, site: &Site, addr: Address, host: Host) {
        let Operand::Reg(base) = addr.base else { return };
        if self.rarely || self.exec.is_some() || !matches!(site.space, Space::Global | Space::Generic) {
            return;
        }
        let Some(step) = self.trip(base).filter(|step| (LEAST_TRIP..=MOST_TRIP).contains(&step.unsigned_abs())) else {
            return;
        };
        let (Host::Whole(v) | Host::InSpace(v)) = host;
        let (of, by) = self.sum(v);
        let near = |&(other, at): &(Value, i64)| other == of && at.abs_diff(by) < LINE.unsigned_abs();
        if self.fetched_trips.len() == MOST || self.fetched_trips.iter().any(near) {
            return;
        }
        self.fetched_trips.push((of, by));
        let (host, offset) = self.displaced(site.space, host);
        let far = AHEAD.cast_signed() * step.signum();
        self.fetch(host, offset + far as i32);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::image::Body;
    use crate::{Form, Image, compiler::Watch};

    /// Of the fetches in the code of one of the kernels that are measured, what each adds to its register.
    fn fetches(name: &str, block: [u32; 3]) -> Vec<i32> {
        fetches_of(include_bytes!("../../../sundial/kernels/engine.ptx"), name, block)
    }

    fn fetches_of(text: &[u8], name: &str, block: [u32; 3]) -> Vec<i32> {
        let program = ptx::Program::parse(text).unwrap();
        let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
        let image = Image::compile_in(Arc::new(kernel), block, Form::default(), &Watch::unbounded()).unwrap();
        let Body::Machine(machine) = &image.body else { panic!("no machine code") };
        // Their operation, what stands beside the address, and a displacement of 32 bits, maybe behind a byte for two registers.
        let displaced = |at: usize| match &machine.code[at..] {
            [0x0f, 0x18, place, rest @ ..] if place >> 3 & 7 == 1 => {
                assert_eq!(place >> 6, 2, "a displacement of 32 bits");
                let by = &rest[usize::from(place & 7 == 4)..][..4];
                Some(i32::from_le_bytes(by.try_into().unwrap()))
            }
            _ => None,
        };
        (0..machine.code.len()).filter_map(displaced).collect()
    }

    #[test]
    fn kernels_fetch_ahead_whose_warps_run_by_turns() {
        // Two lines for each of three rows that are read and one that is written; the neighbours in a row share theirs.
        assert_eq!(fetches("stencil", [32, 8, 1]).len(), 8);
        assert_eq!(fetches("stencil", [256, 1, 1]), []);
        assert_eq!(fetches("saxpy", [256, 1, 1]), []);
    }

    /// A loop over a row of numbers, of which `elements` are read in a trip that goes on by `step` bytes; each is an index into another array.
    /// In between are so many branches.
    fn rows(step: i64, elements: &[i64], branches: usize) -> String {
        let element = |at: &i64| {
            format!(
                "ld.global.u32 %r4, [%rd4+{at}]; mul.wide.u32 %rd5, %r4, 4; add.s64 %rd5, %rd1, %rd5; ld.global.u32 %r5, [%rd5];\n\
                 add.u32 %r3, %r3, %r5;\n"
            )
        };
        let elements: String = elements.iter().map(element).collect();
        let branches: String = (0..branches)
            .map(|i| {
                format!("setp.eq.u32 %p, %r3, {i}; @%p bra B{i}; add.u32 %r3, %r3, 1; B{i}: add.u32 %r3, %r3, 2;\n")
            })
            .collect();
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 x, .param .u64 n) {{\n\
             .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;\n\
             ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [n]; mov.u32 %r0, %tid.x;\n\
             mul.wide.u32 %rd3, %r0, 8; add.s64 %rd3, %rd2, %rd3; ld.global.v2.u32 {{%r1, %r2}}, [%rd3]; mov.u32 %r3, 0;\n\
             mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd0, %rd4;\n\
             LOOP: {elements}{branches}\
             add.s64 %rd4, %rd4, {step}; add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, %r2; @%p bra LOOP;\n\
             st.global.u32 [%rd3], %r3; ret;\n}}\n"
        )
    }

    #[test]
    fn lanes_that_go_through_arrays_by_themselves_fetch_ahead() {
        // The elements and their columns, in the loop of four a trip, and not in the one for the rest.
        assert_eq!(fetches("spmv", [128, 1, 1]), [2048; 2]);
        // Collatz's numbers are read nowhere.
        assert_eq!(fetches("divergent", [128, 1, 1]), []);
        for (step, elements, expected) in [
            (4, &[0][..], &[][..]),
            (16, &[0], &[2048]),
            (-16, &[0], &[-2048]),
            (512, &[0], &[2048]),
            (-512, &[4], &[4 - 2048]),
            (516, &[0], &[]),
            // One line, whatever the first element is; and two.
            (16, &[0, 4, 8, 12], &[2048]),
            (16, &[-8, -4, 0, 4], &[2040]),
            (-16, &[56, 60, 64, 68], &[56 - 2048]),
            (128, &[0, 32, 64, 96], &[2048, 2048 + 64]),
        ] {
            let text = rows(step, elements, 0);
            assert_eq!(fetches_of(text.as_bytes(), "k", [128, 1, 1]), expected, "{elements:?} and {step} bytes a trip");
        }
        // Two nodes for each branch, and one behind the last.
        let line: Vec<i64> = (0..16).map(|i| 4 * i).collect();
        let of = |branches| fetches_of(rows(64, &line, branches).as_bytes(), "k", [128, 1, 1]).len();
        assert_eq!([1, 7, 8].map(of), [1, 1, 0]);
    }
}
