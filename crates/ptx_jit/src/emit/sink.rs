//! Loads go down to where what they load is used, if that is in one place: instructions of the processor take an operand from memory, and
//! vectors of a chunk do not wait in registers for each other.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::{Function, Inst, InstBuilder, InstructionData, Opcode, Value};

use super::memory::tenant;

/// Most instructions that a load passes.
const FAR: usize = 128;

/// How often values are used, and by which instruction at last.
type Users = SecondaryMap<Value, (u32, PackedOption<Inst>)>;

/// Moves each of `loads` to before the instruction that alone uses what it loads, past others that neither write memory nor call or branch;
/// other loads it passes, of whatever order. So `loads` must be weak ones.
pub(crate) fn sink(func: &mut Function, loads: &[Inst]) {
    if loads.is_empty() {
        return;
    }
    func.dfg.resolve_all_aliases();
    remove_unused(func);
    let users = users(func);
    let user = |func: &Function, inst: Inst| match users[func.dfg.first_result(inst)] {
        (1, user) => user.expand(),
        _ => None,
    };
    for &load in loads {
        let Some(mut to) = user(func, load) else { continue };
        let cast = (func.dfg.insts[to].opcode() == Opcode::Bitcast).then_some(to);
        if let Some(cast) = cast {
            let Some(user) = user(func, cast) else { continue };
            to = user;
        }
        if passes(func, load, to) {
            move_to(func, load, cast, to);
        }
    }
}

/// Uses by instructions and by what branches hand on.
fn users(func: &Function) -> Users {
    let mut users = Users::new();
    for block in func.layout.blocks() {
        for inst in func.layout.block_insts(block) {
            for v in func.dfg.inst_values(inst) {
                users[v] = (users[v].0 + 1, inst.into());
            }
        }
    }
    users
}

/// Removes instructions whose results nobody uses: to the code generator they are users like others.
fn remove_unused(func: &mut Function) {
    let mut users = users(func);
    let mut block = func.layout.last_block();
    while let Some(here) = block {
        let mut inst = func.layout.last_inst(here);
        while let Some(at) = inst {
            inst = func.layout.prev_inst(at);
            if !has_side_effect(func, at) && func.dfg.inst_results(at).iter().all(|&result| users[result].0 == 0) {
                for v in func.dfg.inst_values(at) {
                    users[v].0 -= 1;
                }
                func.layout.remove_inst(at);
            }
        }
        block = func.layout.prev_block(here);
    }
}

/// Does an instruction do more than to give values?
fn has_side_effect(func: &Function, inst: Inst) -> bool {
    let op = func.dfg.insts[inst].opcode();
    acts(op) || op.can_load() || op.can_trap()
}

/// Does it write memory, call, branch, or do what is neither of these and no value?
fn acts(op: Opcode) -> bool {
    op.is_terminator() || op.is_call() || op.can_store() || op.other_side_effects()
}

/// May a load come as late as just before `to`?
fn passes(func: &Function, load: Inst, to: Inst) -> bool {
    let mut at = load;
    for _ in 0..FAR {
        let Some(next) = func.layout.next_inst(at) else { return false };
        let op = func.dfg.insts[next].opcode();
        if next == to {
            return !op.is_terminator();
        }
        if acts(op) {
            return false;
        }
        at = next;
    }
    false
}

/// Moves a load to before `to`, as one of the type of `cast`, which is left out then.
fn move_to(func: &mut Function, load: Inst, cast: Option<Inst>, to: Inst) {
    let (Some(cast), &InstructionData::Load { arg, offset, .. }) = (cast, &func.dfg.insts[load]) else {
        func.layout.remove_inst(load);
        func.layout.insert_inst(load, to);
        return;
    };
    let given = func.dfg.first_result(cast);
    let ty = func.dfg.value_type(given);
    let loaded = FuncCursor::new(func).at_inst(to).ins().load(ty, tenant(), arg, offset);
    func.layout.remove_inst(load);
    func.layout.remove_inst(cast);
    func.dfg.clear_results(cast);
    func.dfg.change_to_alias(given, loaded);
}
