//! The order in which a region's warps run. Where it goes on along a row of CTAs by itself, it does so CTA by CTA, or, if a CTA's warps lie
//! one below the other, with the upper ones of all CTAs before those below: memory is then gone through along its rows, as processors
//! foretell it.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, StackSlot, Value, types};
use cranelift_frontend::FunctionBuilder;
use ptx::ir::{Inst, Kernel, Op, SReg};
use ptx::launch::WARP;

use super::{Emit, arg, slot, trusted};
use crate::abi::context::{self, at};
use crate::analysis::{Plan, Region};

/// Most CTAs whose warps run by turns. Of rows of memory so long, a few find room in the processor's first cache.
const BY_TURNS: i64 = 64;
/// Instructions of a CTA's warps side by side, up to which nobody asks to stop before all of these have had their turn.
const SHORT: usize = 64;

/// The loop around the code of a warp.
pub(super) struct Warps {
    /// Which one it is.
    pub(super) warp: Value,
    /// Its active lanes.
    pub(super) bits: Value,
    /// Where its code goes when it is done.
    pub(super) next: Block,
    /// The sum of `first` and how many have been looked at.
    count: Value,
    /// There is one.
    alone: bool,
    head: Block,
    done: Block,
    first: Value,
    row: Option<Row>,
}

/// What comes behind the last warp, in the only region of a kernel.
enum Row {
    /// The next CTA's.
    ByCtas,
    ByTurns(Turns),
}

/// The loops around that over warps that lie side by side: along the row, and over what lies below.
struct Turns {
    head: Block,
    done: Block,
    /// The first warp of those side by side.
    first: Value,
    /// How many these are.
    width: u32,
    /// Behind the last one of all.
    end: Value,
    /// CTAs behind the first one.
    taken: Value,
    /// Of these, how many are to follow in this turn.
    left: StackSlot,
}

fn insts(k: &Kernel) -> impl Iterator<Item = &Inst> {
    k.blocks.iter().flat_map(|block| &block.insts)
}

/// How many warps of a CTA lie side by side, if there are others below them, and the kernel calls nothing: what is printed, allocated or
/// launched shows in which order they run.
fn side_by_side(k: &Kernel, block: [u32; 3]) -> Option<u32> {
    let width = block[0].div_ceil(WARP);
    let even = block[0].is_multiple_of(WARP) || WARP.is_multiple_of(block[0]);
    let below = width < block.iter().product::<u32>().div_ceil(WARP);
    let calls = || insts(k).any(|inst| matches!(inst.op, Op::Call { .. }));
    (even && below && !calls()).then_some(width)
}

/// Are so many warps done with the kernel in no time, but for loops, which ask by themselves whether to stop? Atomic operations may take as
/// long as some hundred others.
fn is_short(k: &Kernel, warps: u32) -> bool {
    insts(k).count() * warps as usize <= SHORT && !insts(k).any(|inst| matches!(inst.op, Op::Atom { .. }))
}

/// Where the indices along x stand of the CTA, and of its cluster if the kernel reads that one.
fn indices(k: &Kernel) -> Vec<i32> {
    let of_cluster = |op: &Op| matches!(op, Op::Special { sreg: SReg::ClusterId(0), .. });
    let cluster = insts(k).any(|inst| of_cluster(&inst.op)).then_some(context::CLUSTER_ID);
    [context::CTAID].into_iter().chain(cluster).map(|index| at::FIXED + 4 * index as i32).collect()
}

impl Warps {
    /// Goes over the warps from `first` to before `end`, of which there are some; code goes on with what is to be done for each. But for
    /// whole warps of a kernel of one region, that may be none, it goes over those that have active lanes.
    pub(super) fn begin(
        b: &mut FunctionBuilder<'_>,
        (k, plan, region): (&Kernel, &Plan, &Region),
        ctx: Value,
        [first, end]: [Value; 2],
    ) -> Warps {
        let active = b.ins().load(types::I64, trusted(), ctx, at::ACTIVE);
        let only = plan.regions.len() == 1 && region.exits.is_empty();
        let width = if only && !region.from_last { side_by_side(k, plan.shape.block) } else { None };
        let (row, [first, end]) = match width {
            None if !only => (None, [first, end]),
            None => (Some(Row::ByCtas), [first, end]),
            Some(width) => {
                let (turns, end) = Turns::begin(b, width, ctx, [first, end]);
                let first = turns.first;
                (Some(Row::ByTurns(turns)), [first, end])
            }
        };
        let alone = width == Some(1);
        let [head, look, body, next, done] = [(); 5].map(|()| b.create_block());
        let count = b.append_block_param(head, types::I64);
        b.ins().jump(head, &[arg(first)]);
        b.switch_to_block(head);
        if alone {
            b.ins().jump(look, &[]);
        } else {
            let more = b.ins().icmp(IntCC::UnsignedLessThan, count, end);
            b.ins().brif(more, look, &[], done, &[]);
        }
        b.switch_to_block(look);
        let warp = if region.from_last {
            let looked_at = b.ins().isub(count, first);
            let left = b.ins().isub(end, looked_at);
            b.ins().iadd_imm_s(left, -1)
        } else {
            count
        };
        let word = b.ins().ishl_imm_u(warp, 2);
        let word = b.ins().iadd(active, word);
        let bits = b.ins().load(types::I32, trusted(), word, 0);
        if only && plan.lanes() == WARP {
            // Each begins with all its lanes, but for the last one; that is asked once, with whether there are any.
            b.ins().jump(body, &[]);
        } else {
            b.ins().brif(bits, body, &[], next, &[]);
        }
        b.switch_to_block(body);
        Warps { warp, bits, next, count, alone, head, done, first, row }
    }

    /// Do warps of a row of CTAs run by turns?
    pub(super) fn by_turns(&self) -> bool {
        matches!(self.row, Some(Row::ByTurns(_)))
    }
}

impl Turns {
    /// Takes some of the row's CTAs, all of which begin. Where the warps that are next end is told beside.
    fn begin(b: &mut FunctionBuilder<'_>, width: u32, ctx: Value, [first, end]: [Value; 2]) -> (Turns, Value) {
        let row = b.ins().load(types::I64, trusted(), ctx, at::ROW);
        let most = b.ins().iconst(types::I64, BY_TURNS - 1);
        let taken = b.ins().umin(row, most);
        let rest = b.ins().isub(row, taken);
        b.ins().store(trusted(), rest, ctx, at::ROW);
        b.ins().store(trusted(), taken, ctx, at::BEGUN);
        let left = slot(b.func, 8);
        let [head, done] = [(); 2].map(|()| b.create_block());
        let first_of_turn = b.append_block_param(head, types::I64);
        b.ins().jump(head, &[arg(first)]);
        b.switch_to_block(head);
        b.ins().stack_store(types::I64, taken, left, 0);
        let below = b.ins().iadd_imm_s(first_of_turn, i64::from(width));
        let end_of_turn = b.ins().umin(below, end);
        (Turns { head, done, first: first_of_turn, width, end, taken, left }, end_of_turn)
    }

    /// Goes on with the next CTA of this turn, or with the next turn; code goes on behind the last one.
    fn end(&self, e: &mut Emit<'_, '_>, warps: Block) {
        let [next_cta, last_cta, next_turn] = [(); 3].map(|()| e.b.create_block());
        let left = e.b.ins().stack_load(types::I64, types::I64, self.left, 0);
        e.b.ins().brif(left, next_cta, &[], last_cta, &[]);
        e.b.switch_to_block(next_cta);
        if !is_short(e.k, self.width) {
            e.poll();
        }
        let left = e.b.ins().iadd_imm_s(left, -1);
        e.b.ins().stack_store(types::I64, left, self.left, 0);
        let one = e.i32(1);
        e.move_indices(one);
        e.b.ins().jump(warps, &[arg(self.first)]);
        e.b.switch_to_block(last_cta);
        let below = e.b.ins().iadd_imm_s(self.first, i64::from(self.width));
        let more = e.b.ins().icmp(IntCC::UnsignedLessThan, below, self.end);
        e.b.ins().brif(more, next_turn, &[], self.done, &[]);
        e.b.switch_to_block(next_turn);
        e.poll();
        let back = e.b.ins().ineg(self.taken);
        let back = e.b.ins().ireduce(types::I32, back);
        e.move_indices(back);
        e.b.ins().jump(self.head, &[arg(below)]);
        e.b.switch_to_block(self.done);
    }
}

impl Emit<'_, '_> {
    /// The end of the loop over warps; code goes on behind it.
    pub(super) fn end_warps(&mut self, warps: Warps) {
        self.b.switch_to_block(warps.next);
        if warps.alone {
            self.b.ins().jump(warps.done, &[]);
        } else {
            let following = self.b.ins().iadd_imm_s(warps.count, 1);
            self.b.ins().jump(warps.head, &[arg(following)]);
        }
        self.b.switch_to_block(warps.done);
        match warps.row {
            Some(Row::ByCtas) => self.next_cta(warps.head, warps.first),
            Some(Row::ByTurns(turns)) => turns.end(self, warps.head),
            None => {}
        }
    }

    /// Goes on with the next CTA of the row, from its warp `first` on, if there is one and nobody asks to stop; else here.
    fn next_cta(&mut self, warps: Block, first: Value) {
        let [look, next, end] = [(); 3].map(|()| self.b.create_block());
        let ctx = self.inv.ctx;
        let row = self.b.ins().load(types::I64, trusted(), ctx, at::ROW);
        self.b.ins().brif(row, look, &[], end, &[]);
        self.b.switch_to_block(look);
        let word = self.control_word();
        self.b.ins().brif(word, end, &[], next, &[]);
        self.b.switch_to_block(next);
        let row = self.b.ins().iadd_imm_s(row, -1);
        self.b.ins().store(trusted(), row, ctx, at::ROW);
        let one = self.i32(1);
        self.move_indices(one);
        self.b.ins().jump(warps, &[arg(first)]);
        self.b.switch_to_block(end);
    }

    /// The CTA becomes the one that is so much further along x. None is in a cluster with others, or the way is 0.
    fn move_indices(&mut self, by: Value) {
        for index in indices(self.k) {
            let x = self.b.ins().load(types::I32, trusted(), self.inv.ctx, index);
            let x = self.b.ins().iadd(x, by);
            self.b.ins().store(trusted(), x, self.inv.ctx, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::image::Body;
    use crate::{Form, Image, compiler::Watch};

    /// From how many places the code of a kernel calls what is outside.
    fn calls(body: &str, block: [u32; 3]) -> usize {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
             .reg .b64 %rd<4>; .reg .b32 %r<4>;\nld.param.u64 %rd0, [a]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.y;\n\
             {body}\nst.global.u32 [%rd0], %r0;\nret;\n}}\n"
        );
        let kernel = ptx::Program::parse(text.as_bytes()).unwrap().lower(0, &|_| None).unwrap();
        let image = Image::compile_in(Arc::new(kernel), block, Form::default(), &Watch::unbounded()).unwrap();
        let Body::Machine(machine) = &image.body else { panic!("no machine code") };
        machine.relocations.len()
    }

    /// Who asks to stop waits for a warp's turn in each of 64 CTAs where that is a few instructions, else for that in one.
    #[test]
    fn long_warps_ask_in_each_cta() {
        let work = "mad.lo.u32 %r0, %r0, %r0, %r1;";
        let in_turns = |body: &str| calls(body, [32, 4, 1]);
        let short = in_turns(work);
        assert_eq!(in_turns(&work.repeat(50)), short);
        assert_eq!(in_turns(&work.repeat(70)), short + 1);
        // Four times as many warps side by side.
        assert_eq!(calls(&work.repeat(10), [128, 4, 1]), short);
        assert_eq!(calls(&work.repeat(20), [128, 4, 1]), short + 1);
        let atomic = "atom.global.add.u32 %r0, [%rd0+4], 1;";
        let beside = calls(atomic, [128, 1, 1]) - calls("", [128, 1, 1]);
        assert_eq!(in_turns(atomic), in_turns("") + beside + 1);
    }
}
