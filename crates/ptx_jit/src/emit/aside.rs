//! Rare code in loops finds on the stack what a function computes where it begins. The allocator of registers does not know how rare code
//! is: what only its slow ways need would take registers from what each trip of a loop needs.

use std::collections::HashMap;
use std::ops::Range;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::{Block, Function, Inst, InstBuilder, Opcode, StackSlot, Value, types};

/// Has cold blocks of loops, which are given by numbers of blocks, load what the first block computes. Values must have no aliases.
pub(crate) fn keep_aside(func: &mut Function, loops: &[Range<u32>]) {
    let Some(entry) = func.layout.entry_block() else { return };
    let mut slots: SecondaryMap<Value, PackedOption<StackSlot>> = SecondaryMap::new();
    for block in loops.iter().cloned().flatten().map(Block::from_u32) {
        if !func.layout.is_block_inserted(block) || !func.layout.is_cold(block) {
            continue;
        }
        let mut loaded: HashMap<Value, Value> = HashMap::new();
        let insts: Vec<Inst> = func.layout.block_insts(block).collect();
        for inst in insts {
            let args: Vec<Value> = func.dfg.inst_values(inst).collect();
            for v in args {
                if loaded.contains_key(&v) || !is_kept(func, entry, v) {
                    continue;
                }
                let slot = slots[v].expand().unwrap_or_else(|| put_aside(func, entry, v));
                slots[v] = slot.into();
                let ty = func.dfg.value_type(v);
                let mut cursor = FuncCursor::new(func).at_first_insertion_point(block);
                loaded.insert(v, cursor.ins().stack_load(types::I64, ty, slot, 0));
            }
            func.dfg.map_inst_values(inst, |v| loaded.get(&v).copied().unwrap_or(v));
        }
    }
}

/// Is it a number of 32 or 64 bits that the first block computes? Constants take no register for longer than one instruction.
fn is_kept(func: &Function, entry: Block, v: Value) -> bool {
    let Some(made) = func.dfg.value_def(v).inst() else { return false };
    func.layout.inst_block(made) == Some(entry)
        && func.dfg.insts[made].opcode() != Opcode::Iconst
        && matches!(func.dfg.value_type(v), types::I32 | types::I64)
}

/// Stores a value at the end of the first block; says where.
fn put_aside(func: &mut Function, entry: Block, v: Value) -> StackSlot {
    let bytes = func.dfg.value_type(v).bytes();
    let slot = super::slot(func, bytes);
    let mut cursor = FuncCursor::new(func);
    cursor.goto_last_inst(entry);
    cursor.ins().stack_store(types::I64, v, slot, 0);
    slot
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::ir::{AbiParam, BlockArg, MemFlagsData, Signature};
    use cranelift_codegen::isa::CallConv;
    use cranelift_codegen::{settings, verify_function};
    use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

    use super::*;
    use crate::abi::Attached;
    use crate::analysis::floats::Floats;
    use crate::analysis::pointers::Pointers;
    use crate::analysis::width::plan_widest;
    use crate::emit::{Emitted, emit_region, region_signature};

    /// In how many nodes of loops rare code is looked for, in all regions of one of the kernels that are measured.
    fn nodes(name: &str, block: [u32; 3]) -> usize {
        let text = include_bytes!("../../../sundial/kernels/engine.ptx");
        let program = ptx::Program::parse(text).unwrap();
        let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
        let plan = plan_widest(&kernel, block, usize::MAX, false).unwrap();
        let known = (&Floats::of(&kernel), &Pointers::of(&kernel, &plan.live.live_in[0]));
        let isa = cranelift_native::builder().unwrap().finish(settings::Flags::new(settings::builder())).unwrap();
        let emitted = |index| {
            let mut func = Function::with_name_signature(Default::default(), region_signature());
            let mut context = FunctionBuilderContext::new();
            let b = FunctionBuilder::new(&mut func, &mut context);
            let emitted = emit_region(&kernel, &plan, index, &mut Attached::default(), b, isa.frontend_config(), known);
            let Emitted { loops, .. } = emitted.unwrap_or_else(|e| panic!("{name}, line {}: {}", e.line, e.what));
            assert!(loops.iter().all(|of| !of.is_empty() && of.end as usize <= func.dfg.num_blocks()));
            loops.len()
        };
        (0..plan.regions.len()).map(emitted).sum()
    }

    #[test]
    fn loops_are_those_of_one_region() {
        assert_eq!(nodes("spmv", [128, 1, 1]), 2);
        assert_eq!(nodes("saxpy", [256, 1, 1]), 0);
        // Its loop has barriers.
        assert_eq!(nodes("matmul", [16, 16, 1]), 0);
    }

    /// A loop, with rare code that uses two numbers of the first block, one of them twice, a constant, an argument and what the loop
    /// counts; and the same behind the loop.
    #[test]
    fn rare_code_in_loops_loads_what_the_first_block_computes() {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.push(AbiParam::new(types::I64));
        let mut func = Function::with_name_signature(Default::default(), signature);
        let mut context = FunctionBuilderContext::new();
        let mut b = FunctionBuilder::new(&mut func, &mut context);
        let [entry, head, rare, on, out] = [(); 5].map(|()| b.create_block());
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let x = b.block_params(entry)[0];
        let (y, z) = (b.ins().iadd_imm_s(x, 1), b.ins().ireduce(types::I32, x));
        let number = b.ins().iconst(types::I64, 5);
        let i = b.append_block_param(head, types::I64);
        b.ins().jump(head, &[BlockArg::Value(x)]);
        b.switch_to_block(head);
        b.ins().brif(y, on, &[], rare, &[]);
        let uses = |b: &mut FunctionBuilder<'_>, block| {
            b.switch_to_block(block);
            b.set_cold_block(block);
            for v in [y, y, number, i] {
                b.ins().store(MemFlagsData::trusted(), v, x, 0);
            }
            b.ins().store(MemFlagsData::trusted(), z, x, 0);
        };
        uses(&mut b, rare);
        b.ins().jump(on, &[]);
        b.switch_to_block(on);
        let less = b.ins().iadd_imm_s(i, -1);
        b.ins().brif(less, head, &[BlockArg::Value(less)], out, &[]);
        uses(&mut b, out);
        b.ins().return_(&[]);
        b.seal_all_blocks();
        let flags = settings::Flags::new(settings::builder());
        let isa = cranelift_native::builder().unwrap().finish(flags).unwrap();
        b.finalize(isa.frontend_config());
        func.dfg.resolve_all_aliases();
        let of_loop = head.as_u32()..out.as_u32();
        keep_aside(&mut func, std::slice::from_ref(&of_loop));
        verify_function(&func, &*isa).unwrap();
        let stored = |block| {
            let stores = func.layout.block_insts(block).filter(|&inst| func.dfg.insts[inst].opcode() == Opcode::Store);
            stores.map(|inst| func.dfg.inst_args(inst)[0]).collect::<Vec<Value>>()
        };
        let made = |v: Value| func.dfg.value_def(v).inst().map(|inst| (inst, func.dfg.insts[inst].opcode()));
        let of_stack = |v: Value| {
            let Some((load, Opcode::Load)) = made(v) else { return false };
            let address = made(func.dfg.inst_args(load)[0]);
            func.layout.inst_block(load) == Some(rare) && matches!(address, Some((_, Opcode::StackAddr)))
        };
        let in_rare = stored(rare);
        assert_eq!(in_rare.iter().map(|&v| of_stack(v)).collect::<Vec<_>>(), [true, true, false, false, true]);
        assert_eq!((in_rare[0], &in_rare[2..4]), (in_rare[1], &[number, i][..]));
        assert_eq!([0, 4].map(|at| func.dfg.value_type(in_rare[at])), [types::I64, types::I32]);
        assert_eq!(stored(out), [y, y, number, i, z]);
        assert_eq!(func.dfg.inst_args(func.layout.last_inst(head).unwrap())[0], y);
    }
}
