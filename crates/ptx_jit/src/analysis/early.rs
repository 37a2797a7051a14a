//! Addresses first: where a node's instructions access memory, what computes the later ones' addresses comes before the first of them if it
//! can, so that all can be asked about together ([`crate::emit`]).

use std::borrow::Cow;
use std::ops::Range;

use ptx::ir::{Inst, Kernel, Op, Operand};

use super::classes::Class;
use super::dead::only_computes;
use super::regset::RegSet;
use super::{Plan, operands};

/// Most instructions that are looked at together.
const MOST: usize = 256;

/// The kernel with its nodes' instructions in such an order.
pub(crate) fn addresses_first<'k>(kernel: &'k Kernel, plan: &Plan) -> Cow<'k, Kernel> {
    let mut kernel = Cow::Borrowed(kernel);
    for node in &plan.nodes {
        let mut at = node.begin + node.joints;
        while at < node.end {
            let insts = &kernel.blocks[node.block].insts[at..node.end.min(at + MOST)];
            let Some(part) = part(insts) else {
                at += insts.len();
                continue;
            };
            if let Some(order) = order(&insts[part.clone()], plan) {
                let from = at + part.start;
                let moved: Vec<Inst> = order.iter().map(|&i| insts[part.start + i].clone()).collect();
                kernel.to_mut().blocks[node.block].insts[from..from + order.len()].clone_from_slice(&moved);
            }
            at += part.end;
        }
    }
    kernel
}

/// From the first access to before what is no access and does more than to compute.
fn part(insts: &[Inst]) -> Option<Range<usize>> {
    let begin = insts.iter().position(|inst| address(inst).is_some())?;
    let passes = |inst: &Inst| inst.guard.is_none() && (address(inst).is_some() || only_computes(&inst.op));
    let end = insts[begin..].iter().position(|inst| !passes(inst)).map_or(insts.len(), |length| begin + length);
    Some(begin..end)
}

/// What a plain access takes its address from.
fn address(inst: &Inst) -> Option<Operand> {
    match &inst.op {
        Op::Ld { addr, .. } | Op::St { addr, .. } if inst.guard.is_none() => Some(addr.base),
        _ => None,
    }
}

/// The order in which instructions come, of which the first is an access; none if it is the one they have.
fn order(insts: &[Inst], plan: &Plan) -> Option<Vec<usize>> {
    // Backwards: what addresses are made of that are the same in all lanes, or grow steadily.
    let mut needed = RegSet::default();
    let mut wanted = vec![false; insts.len()];
    for (inst, wanted) in insts.iter().zip(&mut wanted).rev() {
        if let Some(Operand::Reg(base)) = address(inst) {
            needed.insert(base);
        }
        let writes = operands::writes(&inst.op);
        *wanted = match writes[..] {
            [r] if only_computes(&inst.op) => needed.contains(r) && plan.classes[r.0 as usize] != Class::Varying,
            _ => false,
        };
        if *wanted {
            operands::inst_reads(inst, &mut |r| _ = needed.insert(r));
        }
    }
    // Forwards: they can go past those that stay if these do not write what they read, nor read or write what they write.
    let (mut written, mut read) = (RegSet::default(), RegSet::default());
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for (i, inst) in insts.iter().enumerate() {
        let writes = operands::writes(&inst.op);
        let mut free = wanted[i] && !writes.iter().any(|&r| written.contains(r) || read.contains(r));
        operands::inst_reads(inst, &mut |r| free &= !written.contains(r));
        if free {
            first.push(i);
            continue;
        }
        operands::inst_reads(inst, &mut |r| _ = read.insert(r));
        writes.into_iter().for_each(|r| _ = written.insert(r));
        rest.push(i);
    }
    if first.is_empty() {
        return None;
    }
    first.append(&mut rest);
    Some(first)
}
