//! NaNs become canonical where their bits are seen: stored, or copied as something else.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{Block, InstBuilder, Value, types};
use ptx::ir::Operand;

use super::alu::Parts;
use super::{Emit, Val, arg};
use crate::analysis::floats::Nans;

/// From so many vectors of numbers on they are asked together whether one is a NaN.
const MANY: usize = 3;

impl Emit<'_, '_> {
    /// Bits of an operand as they are stored or copied: if it may still be any NaN, they are the canonical one's.
    pub(super) fn settled(&mut self, o: Operand, v: Value) -> Value {
        match o {
            Operand::Reg(r) if self.floats.nans[r.0 as usize] == Nans::Late => {
                let v = self.floating(v);
                let v = self.canonical(v);
                self.integer_bits(v)
            }
            _ => v,
        }
    }

    /// [`Self::settled`] for the value of an operand.
    pub(super) fn settled_val(&mut self, o: Operand, val: Val) -> Val {
        match val {
            Val::Same(v) => Val::Same(self.settled(o, v)),
            Val::Lanes(parts) => Val::Lanes(self.all_settled(&[o], vec![parts]).swap_remove(0)),
            other => other,
        }
    }

    /// Goes on in a block of its own, to which vectors are handed on.
    fn anew(&mut self, rows: &mut [Parts]) -> Block {
        let next = self.b.create_block();
        let values: Vec<Value> = rows.iter().flatten().copied().collect();
        self.jump_with(next, &values);
        let given = self.params_for(next, &values);
        rows.iter_mut().flatten().zip(given).for_each(|(v, given)| *v = given);
        self.b.switch_to_block(next);
        next
    }

    /// Those of the operands' vectors that may still be any NaNs, as numbers.
    fn numbers(&mut self, srcs: &[Operand], parts: &[Parts]) -> Vec<Value> {
        let nans = &self.floats.nans;
        let any = |src: &Operand| matches!(src, Operand::Reg(r) if nans[r.0 as usize] == Nans::Late);
        let bits = parts.iter().zip(srcs).filter(|(_, src)| any(src)).flat_map(|(row, _)| row);
        let bits: Vec<Value> = bits.copied().collect();
        bits.into_iter().map(|v| self.floating(v)).collect()
    }

    /// [`Self::settled`] for vectors of operands. There rarely is a NaN among many numbers, so that is asked once for all.
    pub(super) fn all_settled(&mut self, srcs: &[Operand], mut parts: Vec<Parts>) -> Vec<Parts> {
        let numbers = self.numbers(srcs, &parts);
        if numbers.len() < MANY || numbers.iter().any(|&v| self.b.func.dfg.value_type(v) != types::F32X4) {
            for (row, &src) in parts.iter_mut().zip(srcs) {
                *row = self.map1(row, |e, v| e.settled(src, v));
            }
            return parts;
        }
        // Each is used several times from here on, which would keep what made it from having an operand in memory if it were the same value
        // there. So it is handed to a block of its own, and for that to remain one, the rare case seems to come back to it.
        let looked_at = self.anew(&mut parts);
        let numbers = self.numbers(srcs, &parts);
        let mut some: Option<Value> = None;
        for two in numbers.chunks(2) {
            let nan = self.b.ins().fcmp(FloatCC::Unordered, two[0], two[two.len() - 1]);
            some = Some(some.map_or(nan, |some| self.b.ins().bor(some, nan)));
        }
        let some = self.mask_bits(some.as_slice());
        let (rare, on) = (self.b.create_block(), self.b.create_block());
        let flat: Vec<Value> = parts.iter().flatten().copied().collect();
        let results = self.params_for(on, &flat);
        let args: Vec<_> = flat.iter().map(|&v| arg(v)).collect();
        self.b.ins().brif(some, rare, &[], on, &args);
        self.b.switch_to_block(rare);
        self.b.set_cold_block(rare);
        let mut canonical = Vec::new();
        for (row, &src) in parts.iter().zip(srcs) {
            canonical.extend(self.map1(row, |e, v| e.settled(src, v)));
        }
        let canonical: Vec<_> = canonical.into_iter().map(arg).collect();
        // It never does: some are NaNs.
        self.b.ins().brif(some, on, &canonical, looked_at, &canonical);
        self.b.switch_to_block(on);
        let mut results = results.into_iter();
        parts.iter().map(|row| results.by_ref().take(row.len()).collect()).collect()
    }
}
