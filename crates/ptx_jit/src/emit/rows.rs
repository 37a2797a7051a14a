//! The order of a region's warps, where it goes on along a row of CTAs by itself: CTA by CTA, or, where a CTA's warps lie one below the
//! other, all CTAs' first, then all their second ones. So memory is gone through along its rows, which is what processors foretell.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, StackSlot, Value, types};
use cranelift_frontend::FunctionBuilder;
use ptx::ir::{Kernel, Op};
use ptx::launch::WARP;

use super::{Emit, slot, trusted};
use crate::abi::context::{self, at};
use crate::analysis::{Plan, Region};

/// Most CTAs whose warps run by turns: of rows so long, some find room in the processor's first cache.
const TOGETHER: i64 = 32;

/// The blocks around a warp's code.
pub(super) struct Warps {
    /// Which warp it is.
    pub(super) warp: Value,
    /// Its active lanes.
    pub(super) bits: Value,
    /// Where its code is to begin, and to end.
    pub(super) body: Block,
    pub(super) next: Block,
    look: Block,
    done: Block,
    order: Order,
}

enum Order {
    /// The warps of the CTA.
    Cta,
    /// Those of the CTA, then those of the next one in the row, from this warp on.
    Ctas { first: Value },
    /// So many warps that lie side by side in each CTA of the row, then those below.
    Rows(Rows),
}

struct Rows {
    group: Value,
    width: u32,
    groups: Block,
    end: Block,
    /// CTAs to which the row still goes on.
    left: StackSlot,
}

/// How many warps of a CTA lie side by side, if there are others below and their order does not show.
fn side_by_side(k: &Kernel, block: [u32; 3]) -> Option<u32> {
    let width = block[0].div_ceil(WARP);
    let whole = block[0].is_multiple_of(WARP) || WARP.is_multiple_of(block[0]);
    let told = k.blocks.iter().flat_map(|block| &block.insts).any(|inst| matches!(inst.op, Op::Call { .. }));
    (whole && width < block.iter().product::<u32>().div_ceil(WARP) && !told).then_some(width)
}

impl Warps {
    /// Goes over the warps from `first` to before `end` which have active lanes.
    pub(super) fn begin(
        b: &mut FunctionBuilder<'_>,
        (k, plan, region): (&Kernel, &Plan, &Region),
        (ctx, active): (Value, Value),
        (first, end): (Value, Value),
    ) -> Warps {
        let [look, body, next, done] = [(); 4].map(|()| b.create_block());
        let warp = b.append_block_param(look, types::I64);
        let one = plan.regions.len() == 1 && region.exits.is_empty();
        let width = side_by_side(k, plan.shape.block);
        let (order, first, end) = match width.filter(|_| one) {
            Some(width) => {
                let (rows, group_end) = Rows::begin(b, width, ctx, (first, end));
                (Order::Rows(rows), rows_first(&order_of(&rows)), group_end)
            }
            None if one => (Order::Ctas { first }, first, end),
            None => (Order::Cta, first, end),
        };
        todo!()
    }
}
