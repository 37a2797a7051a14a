//! Values that nobody needs are left out. A variable is handed on along loops whether or not it is read there again, and to the code
//! generator what is handed on is used: it would take one of the processor's registers.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::function::FunctionStencil;
use cranelift_codegen::ir::{Block, BlockArg, Function, Inst, Opcode, Value, ValueDef};

/// Does an instruction write memory, call, branch, or do what is neither of these and no value?
pub(super) fn acts(op: Opcode) -> bool {
    op.is_terminator() || op.is_call() || op.can_store() || op.other_side_effects()
}

/// Does an instruction do more than to give values? Faults are more.
fn has_side_effect(func: &Function, inst: Inst) -> bool {
    let data = &func.dfg.insts[inst];
    let op = data.opcode();
    acts(op) || op.can_trap() || op.can_load() && data.memflags_trap_code(&func.dfg).is_some()
}

/// Removes instructions without whose results everything stays as it is, and what blocks hand on to no purpose. Values have no aliases
/// afterwards.
pub(crate) fn remove_unused(func: &mut Function) {
    func.dfg.resolve_all_aliases();
    let needed = needed(func);
    remove_params(&mut func.stencil, &needed);
    let mut cursor = FuncCursor::new(func);
    while cursor.next_block().is_some() {
        while let Some(inst) = cursor.next_inst() {
            let unused = |&result: &Value| !needed.contains(result);
            if !has_side_effect(cursor.func, inst) && cursor.func.dfg.inst_results(inst).iter().all(unused) {
                cursor.remove_inst_and_step_back();
            }
        }
    }
}

/// Values on which something depends.
fn needed(func: &Function) -> EntitySet<Value> {
    let dfg = &func.dfg;
    // What is handed to a block, from each place that goes there.
    let mut handed: SecondaryMap<Block, Vec<Vec<PackedOption<Value>>>> = SecondaryMap::new();
    for branch in func.layout.blocks().filter_map(|block| func.layout.last_inst(block)) {
        for call in dfg.insts[branch].branch_destination(&dfg.jump_tables, &dfg.exception_tables) {
            let args = call.args(&dfg.value_lists).map(|arg| arg.as_value().into());
            handed[call.block(&dfg.value_lists)].push(args.collect());
        }
    }
    let mut needed = EntitySet::with_capacity(dfg.num_values());
    let mut work = Vec::new();
    for block in func.layout.blocks() {
        let acting = func.layout.block_insts(block).filter(|&inst| has_side_effect(func, inst));
        work.extend(acting.flat_map(|inst| dfg.inst_args(inst)));
    }
    while let Some(value) = work.pop() {
        if !needed.insert(value) {
            continue;
        }
        match dfg.value_def(value) {
            ValueDef::Result(inst, _) => work.extend(dfg.inst_args(inst)),
            ValueDef::Param(block, place) => work.extend(handed[block].iter().filter_map(|args| args[place].expand())),
            ValueDef::Union(..) => {}
        }
    }
    needed
}

/// Removes parameters of blocks that are not `needed`, and what is handed to them.
fn remove_params(FunctionStencil { dfg, layout, .. }: &mut FunctionStencil, needed: &EntitySet<Value>) {
    let entry = layout.entry_block();
    for branch in layout.blocks().filter_map(|block| layout.last_inst(block)) {
        for call in dfg.insts[branch].branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables) {
            let params = dfg.blocks[call.block(&dfg.value_lists)].params(&dfg.value_lists);
            if !params.iter().all(|&param| needed.contains(param)) {
                let handed = call.args(&dfg.value_lists).zip(params).filter(|&(_, &param)| needed.contains(param));
                let handed: Vec<BlockArg> = handed.map(|(arg, _)| arg).collect();
                call.clear(&mut dfg.value_lists);
                call.extend(handed, &mut dfg.value_lists);
            }
        }
    }
    for block in layout.blocks().filter(|&block| Some(block) != entry) {
        let params = dfg.block_params(block);
        if !params.iter().all(|&param| needed.contains(param)) {
            let kept: Vec<Value> = params.iter().copied().filter(|&param| needed.contains(param)).collect();
            dfg.detach_block_params(block);
            kept.into_iter().for_each(|param| dfg.attach_block_param(block, param));
        }
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::ir::condcodes::IntCC;
    use cranelift_codegen::ir::{AbiParam, BlockCall, InstBuilder, JumpTableData, MemFlagsData, Signature, types};
    use cranelift_codegen::isa::CallConv;
    use cranelift_codegen::{settings, verify_function};
    use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

    use super::*;

    /// A loop that counts its argument down carries along what nobody reads (a product of itself) and what is stored behind it (a sum).
    #[test]
    fn loops_carry_what_is_needed() {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.extend([types::I64, types::I64, types::I64].map(AbiParam::new));
        let mut func = Function::with_name_signature(Default::default(), signature);
        let mut context = FunctionBuilderContext::new();
        let mut b = FunctionBuilder::new(&mut func, &mut context);
        let [entry, head, behind, table, end] = [(); 5].map(|()| b.create_block());
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let &[place, count, _] = b.block_params(entry) else { panic!("three arguments") };
        let [left, unread, sum] = [(); 3].map(|()| b.append_block_param(head, types::I64));
        // Needed only because it is handed to the sum; the other one, to what nobody reads.
        let square = b.ins().imul(count, count);
        let twice = b.ins().iadd(count, count);
        b.ins().jump(head, &[count, twice, square].map(Into::into));
        b.switch_to_block(head);
        let product = b.ins().imul(unread, unread);
        // Removed, too: what it loads is not read, and it cannot fault.
        b.ins().load(types::I64, MemFlagsData::trusted(), place, 0);
        b.ins().load(types::I64, MemFlagsData::new(), place, 8);
        let total = b.ins().iadd(sum, left);
        let less = b.ins().iadd_imm_s(left, -1);
        let again = b.ins().icmp_imm_u(IntCC::NotEqual, less, 0);
        b.ins().brif(again, head, &[less, product, total].map(Into::into), behind, &[]);
        // Both ways to the same block, with other values; and a table.
        b.switch_to_block(behind);
        let [unread_too, last] = [(); 2].map(|()| b.append_block_param(table, types::I64));
        b.ins().brif(again, table, &[product, less].map(Into::into), table, &[less, total].map(Into::into));
        b.switch_to_block(table);
        b.ins().store(MemFlagsData::new(), last, place, 16);
        let mut call = |args: [Value; 2]| BlockCall::new(end, args.map(Into::into), &mut b.func.dfg.value_lists);
        let calls = [[unread_too, total], [total, last]].map(&mut call);
        let default = call([last, last]);
        let jumps = b.create_jump_table(JumpTableData::new(default, &calls));
        let index = b.ins().ireduce(types::I32, count);
        b.ins().br_table(index, jumps);
        b.switch_to_block(end);
        let [_, shown] = [(); 2].map(|()| b.append_block_param(end, types::I64));
        b.ins().store(MemFlagsData::new(), shown, place, 24);
        b.ins().store(MemFlagsData::new(), total, place, 0);
        b.ins().return_(&[]);
        b.seal_all_blocks();
        let flags = settings::Flags::new(settings::builder());
        let isa = cranelift_native::builder().unwrap().finish(flags).unwrap();
        b.finalize(isa.frontend_config());
        remove_unused(&mut func);
        verify_function(&func, &*isa).unwrap();
        assert_eq!(func.dfg.block_params(entry).len(), 3);
        assert_eq!(func.dfg.block_params(head), [left, sum]);
        let ops: Vec<Opcode> = func.layout.block_insts(head).map(|inst| func.dfg.insts[inst].opcode()).collect();
        assert_eq!(ops.iter().filter(|&&op| op == Opcode::Load).count(), 1);
        assert!(!ops.contains(&Opcode::Imul));
        assert_eq!(func.dfg.block_params(table), [last]);
        assert_eq!(func.dfg.block_params(end), [shown]);
        let handed = |block| func.dfg.inst_values(func.layout.last_inst(block).unwrap()).collect::<Vec<_>>();
        assert_eq!(handed(entry), [count, square]);
        // The condition, and what goes around the loop; or to the same block by both ways; and a table's index with what it hands on.
        assert_eq!(handed(head), [again, less, total]);
        assert_eq!(handed(behind), [again, less, total]);
        assert_eq!(handed(table), [index, last, total, last]);
    }
}
