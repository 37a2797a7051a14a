//! What is needed in rare code alone is computed there. The code generator leaves values where they are written, and would compute them,
//! and keep them in registers, on the way past.

use std::ops::Range;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, Inst, Opcode, Value};

/// Code that hardly ever runs: the block at its head, through which all ways into it lead, and the numbers of the others, which are in a row.
#[derive(Clone, Debug)]
pub(crate) struct Rare {
    pub(crate) head: Block,
    pub(crate) others: Range<u32>,
}

/// Who uses a value.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// Instructions that are in no rare code.
    hot: u32,
    /// The one rare code that the others are in.
    rare: Option<usize>,
    /// They are in several.
    many: bool,
}

impl Uses {
    fn add(&mut self, rare: Option<usize>) {
        match rare {
            None => self.hot += 1,
            Some(_) => {
                self.many |= self.rare.is_some() && self.rare != rare;
                self.rare = rare;
            }
        }
    }
}

/// Moves what is made of one value and numbers, and used in one of the `rare` codes alone, to its head: there that value is kept instead of
/// this one. Values must have no aliases.
pub(crate) fn sink_rare(func: &mut Function, rare: &[Rare]) {
    if rare.is_empty() {
        return;
    }
    let mut at: SecondaryMap<Block, Option<usize>> = SecondaryMap::new();
    for (i, Rare { head, others }) in rare.iter().enumerate() {
        others.clone().map(Block::from_u32).chain([*head]).for_each(|block| at[block] = Some(i));
    }
    let mut uses: SecondaryMap<Value, Uses> = SecondaryMap::new();
    for block in func.layout.blocks() {
        for inst in func.layout.block_insts(block) {
            func.dfg.inst_values(inst).for_each(|v| uses[v].add(at[block]));
        }
    }
    let hot: Vec<Block> = func.layout.blocks().filter(|&block| at[block].is_none()).collect();
    for block in hot.into_iter().rev() {
        let mut next = func.layout.last_inst(block);
        // Backwards, so that what something was made of follows it.
        while let Some(inst) = next {
            next = func.layout.prev_inst(inst);
            if !is_made_of_one(func, inst) {
                continue;
            }
            let Uses { hot: 0, rare: Some(to), many: false } = uses[func.dfg.first_result(inst)] else { continue };
            let args: Vec<Value> = func.dfg.inst_values(inst).collect();
            for arg in args {
                uses[arg].hot -= 1;
                uses[arg].add(Some(to));
            }
            func.layout.remove_inst(inst);
            let mut cursor = FuncCursor::new(func).at_first_insertion_point(rare[to].head);
            cursor.insert_inst(inst);
        }
    }
}

/// Is it arithmetic on a value and numbers?
fn is_made_of_one(func: &Function, inst: Inst) -> bool {
    let is_number = |&v: &Value| {
        let made = func.dfg.value_def(v).inst();
        made.is_some_and(|made| func.dfg.insts[made].opcode() == Opcode::Iconst)
    };
    let simple = matches!(
        func.dfg.insts[inst].opcode(),
        Opcode::Iadd | Opcode::Ishl | Opcode::Uextend | Opcode::Sextend | Opcode::Ireduce
    );
    simple && func.dfg.inst_args(inst).iter().filter(|v| !is_number(v)).count() <= 1
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::ir::{AbiParam, InstBuilder, MemFlagsData, Signature, types};
    use cranelift_codegen::isa::CallConv;
    use cranelift_codegen::{settings, verify_function};
    use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

    use super::*;

    /// On the way past rare code: what it uses alone, and what that is made of; what is made of two values, with what that is made of; and
    /// what is used elsewhere, too.
    #[test]
    fn what_only_rare_code_uses_goes_there() {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.extend([types::I32, types::I64].map(AbiParam::new));
        signature.returns.push(AbiParam::new(types::I64));
        let mut func = Function::with_name_signature(Default::default(), signature);
        let mut context = FunctionBuilderContext::new();
        let mut b = FunctionBuilder::new(&mut func, &mut context);
        let [entry, head, other, on] = [(); 4].map(|()| b.create_block());
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let &[x, y] = b.block_params(entry) else { panic!("two arguments") };
        let more = b.ins().iadd_imm_s(x, 1);
        let wide = b.ins().uextend(types::I64, more);
        let by_two = b.ins().ishl_imm_u(wide, 1);
        let part = b.ins().uextend(types::I64, x);
        let sum = b.ins().iadd(part, y);
        let both = b.ins().iadd_imm_s(y, 8);
        b.ins().brif(x, head, &[], on, &[]);
        b.switch_to_block(head);
        b.ins().store(MemFlagsData::trusted(), wide, y, 0);
        b.ins().jump(other, &[]);
        b.switch_to_block(other);
        b.ins().store(MemFlagsData::trusted(), sum, both, 0);
        b.ins().store(MemFlagsData::trusted(), by_two, y, 16);
        b.ins().jump(on, &[]);
        b.switch_to_block(on);
        b.ins().return_(&[both]);
        b.seal_all_blocks();
        let flags = settings::Flags::new(settings::builder());
        let isa = cranelift_native::builder().unwrap().finish(flags).unwrap();
        b.finalize(isa.frontend_config());
        func.dfg.resolve_all_aliases();
        sink_rare(&mut func, &[Rare { head, others: other.as_u32()..other.as_u32() + 1 }]);
        verify_function(&func, &*isa).unwrap();
        let block = |v: Value| func.layout.inst_block(func.dfg.value_def(v).inst().unwrap()).unwrap();
        assert_eq!([more, wide, by_two].map(block), [head; 3]);
        assert_eq!([part, sum, both].map(block), [entry; 3]);
    }
}
