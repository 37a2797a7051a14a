//! Loads go down to where what they load is used, if that is in one place: instructions of the processor take an operand from memory, and
//! vectors of a chunk do not wait in registers for each other.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::{Function, Inst, InstBuilder, InstructionData, Opcode, Value};

use super::memory::tenant;
use super::unused::acts;

/// Most instructions that a load passes.
const FAR: usize = 128;

/// How often values are used, and by which instruction at last.
type Users = SecondaryMap<Value, (u32, PackedOption<Inst>)>;

/// Moves each of `loads` to before the instruction that alone uses what it loads, past others that neither write memory nor call or branch;
/// other loads it passes, of whatever order. So `loads` must be weak ones. Values must have no aliases.
pub(crate) fn sink(func: &mut Function, loads: &[Inst]) {
    if loads.is_empty() {
        return;
    }
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

/// What uses a load's value, or what was made of it, may become one instruction with it, which is the user then: it accesses memory for the
/// same lanes. Of several loads that is the last one: an instruction has one operand in memory, and no load passes another on its way there.
pub(crate) fn place_users(func: &mut Function) {
    // What an instruction would be one with.
    let mut loads: SecondaryMap<Inst, PackedOption<Inst>> = SecondaryMap::new();
    let mut found = Vec::new();
    for block in func.layout.blocks() {
        for inst in func.layout.block_insts(block) {
            if !func.srcloc(inst).is_default() {
                loads[inst] = inst.into();
                continue;
            }
            let args = func.dfg.inst_args(inst).iter().filter_map(|&v| func.dfg.value_def(v).inst());
            let here = args.filter(|&arg| func.layout.inst_block(arg) == Some(block));
            let last = here.filter_map(|arg| loads[arg].expand()).max_by(|&a, &b| func.layout.pp_cmp(a, b));
            loads[inst] = last.into();
            found.extend(last.map(|load| (inst, func.srcloc(load))));
        }
    }
    for (inst, place) in found {
        func.set_srcloc(inst, place);
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
    let place = func.srcloc(load);
    let loaded = FuncCursor::new(func).at_inst(to).with_srcloc(place).ins().load(ty, tenant(), arg, offset);
    func.layout.remove_inst(load);
    func.layout.remove_inst(cast);
    func.dfg.clear_results(cast);
    func.dfg.change_to_alias(given, loaded);
}
