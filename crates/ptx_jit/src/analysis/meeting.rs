//! Which warp operations lanes may meet at while others stand at another one, and what that asks of the classes.
//!
//! Operations that agree ([`ptx::warp::agree`]) join lanes of one mask wherever these are. While lanes wait at one, others go
//! on, out of the program's order. If all of these are on other sides of the branch that parted them, that does no harm: no
//! register is shared over sides. If they may come to an agreeing operation only where the sides have met again, or in a later
//! trip of a loop, then lanes of a chunk may run in any order, which the classes must know.

use ptx::ir::{Kernel, Op, Operand};

use super::PATIENCE;
use super::graph::{Node, NodeId};

/// Kinds of operations that are told apart; in kernels with more, all are taken to agree.
const MAX_KINDS: usize = 64;

/// What is known of the operations at the heads of nodes.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    /// By node: there is another operation that agrees.
    pub(crate) partners: Vec<bool>,
    /// By node: there is one on the other side of a branch, so that lanes may wait here even if their chunk is split.
    pub(crate) beside: Vec<bool>,
    /// Lanes may meet others that have gone on beyond the place where they would have met again.
    pub(crate) beyond: bool,
}

/// Operations that agree, with one mask if that is a number.
struct Kind<'k> {
    op: &'k Op,
    mask: Option<u64>,
}

impl Kind<'_> {
    fn agrees(&self, other: &Kind<'_>) -> bool {
        let one_mask = self.mask.is_none() || other.mask.is_none() || self.mask == other.mask;
        one_mask && ptx::warp::agree(self.op, other.op)
    }
}

/// Finds out for the nodes of a kernel; `divergent` nodes end in a branch that may split a chunk.
pub(crate) fn meetings(
    kernel: &Kernel,
    nodes: &[Node],
    successors: &[Vec<NodeId>],
    order: &[NodeId],
    divergent: &[bool],
    post: &[Option<NodeId>],
) -> Meetings {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    let mut count = Vec::new();
    let mut kind = vec![None; nodes.len()];
    for (n, node) in nodes.iter().enumerate() {
        let Some(op) = node.joint(kernel).map(|inst| &inst.op) else { continue };
        let mask = match ptx::warp::mask(op) {
            // Matrix operations meet no others.
            _ if !ptx::warp::agree(op, op) => continue,
            None => continue,
            Some(Operand::Imm(mask)) => Some(mask),
            Some(Operand::Reg(_)) => None,
        };
        let same = kinds.iter().position(|k| k.mask == mask && ptx::warp::agree(k.op, op));
        let at = same.unwrap_or(kinds.len());
        if same.is_none() {
            kinds.push(Kind { op, mask });
            count.push(0);
        }
        count[at] += 1;
        kind[n] = Some(at);
    }
    let mut found = Meetings { partners: vec![false; nodes.len()], beside: vec![false; nodes.len()], beyond: false };
    if kinds.is_empty() {
        return found;
    }
    if kinds.len() > MAX_KINDS {
        return worst(&kind);
    }
    let agreeing: Vec<u64> =
        kinds.iter().map(|k| (0..kinds.len()).filter(|&i| k.agrees(&kinds[i])).fold(0, |m, i| m | 1 << i)).collect();
    let bit = |n: NodeId| kind[n].map_or(0_u64, |k| 1 << k);
    let agree = |bits: u64| (0..kinds.len()).filter(|k| bits >> k & 1 != 0).fold(0, |m, k| m | agreeing[k]);
    for (n, k) in kind.iter().enumerate() {
        found.partners[n] = k.is_some_and(|k| agreeing[k] & !(1 << k) != 0 || count[k] > 1);
    }
    let reach = reach(successors, order, &bit);
    let mut seen = vec![0_usize; nodes.len()];
    let mut stamp = 0;
    let mut patience = PATIENCE;
    for branch in (0..nodes.len()).filter(|&n| divergent[n]) {
        // Where sides never meet again lanes are in any order anyway.
        let Some(end) = post[branch] else { continue };
        let mut sides: Vec<(u64, Vec<NodeId>)> = Vec::new();
        for &side in &successors[branch] {
            stamp += 1;
            let (mut bits, mut sites, mut work) = (0, Vec::new(), vec![side]);
            while let Some(n) = work.pop() {
                if n == end || std::mem::replace(&mut seen[n], stamp) == stamp {
                    continue;
                }
                patience -= 1;
                if patience == 0 {
                    return worst(&kind);
                }
                bits |= bit(n);
                if kind[n].is_some() {
                    sites.push(n);
                }
                work.extend(&successors[n]);
            }
            found.beyond |= agree(bits) & reach[end] != 0;
            sides.push((bits, sites));
        }
        for (i, (_, sites)) in sides.iter().enumerate() {
            let others = sides.iter().enumerate().filter(|(j, _)| *j != i).fold(0, |m, (_, side)| m | side.0);
            for &n in sites {
                found.beside[n] |= agree(others) & bit(n) != 0;
            }
        }
    }
    found
}

/// All operations may meet all others, anywhere.
fn worst(kind: &[Option<usize>]) -> Meetings {
    let partners: Vec<bool> = kind.iter().map(Option::is_some).collect();
    Meetings { beside: partners.clone(), partners, beyond: true }
}

/// By node, what can be reached from it, itself included.
fn reach(successors: &[Vec<NodeId>], order: &[NodeId], bit: &dyn Fn(NodeId) -> u64) -> Vec<u64> {
    let mut reach: Vec<u64> = (0..successors.len()).map(bit).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for &n in order.iter().rev() {
            let all = successors[n].iter().fold(reach[n], |all, &s| all | reach[s]);
            changed |= std::mem::replace(&mut reach[n], all) != all;
        }
    }
    reach
}

#[cfg(test)]
mod tests {
    use crate::analysis::classes::Shape;
    use crate::analysis::plan;

    /// Where lanes may wait for others: beyond the place where they would meet again, and beside each other only.
    #[test]
    fn the_order_of_lanes_is_given_up_only_where_it_must_be() {
        let all = "0xffffffff";
        let reduce = format!("shfl.sync.down.b32 %r2, %r2, 8, 31, {all};");
        let cases = [
            // The first warp, told in three ways; a first part of a warp; nothing behind.
            (format!("shr.u32 %r3, %r0, 5; setp.ne.u32 %p0, %r3, 0; @%p0 bra END; {reduce} END: {reduce}"), false, 0),
            (format!("setp.gt.u32 %p0, %r0, 31; @%p0 bra END; {reduce} END: {reduce}"), false, 0),
            (format!("setp.ge.s32 %p0, %r0, 32; @%p0 bra END; {reduce} END: {reduce}"), false, 0),
            (format!("setp.ge.s32 %p0, %r0, 12; @%p0 bra END; {reduce} END: {reduce}"), true, 0),
            (format!("setp.ge.s32 %p0, %r0, 12; @%p0 bra END; {reduce} END: mov.u32 %r2, 1;"), false, 0),
            // Both sides; another kind; other masks.
            (
                format!("setp.ge.s32 %p0, %r0, 12; @%p0 bra A; {reduce} bra END; A: {reduce} END: mov.u32 %r2, 1;"),
                false,
                2,
            ),
            (
                format!("setp.ge.s32 %p0, %r0, 12; @%p0 bra END; {reduce} END: redux.sync.add.u32 %r2, %r2, {all};"),
                false,
                0,
            ),
            (
                format!("setp.ge.s32 %p0, %r0, 12; @%p0 bra END; {reduce} END: {reduce}").replacen(all, "0xfff", 1),
                false,
                0,
            ),
            // A later trip.
            (
                format!(
                    "LOOP: setp.eq.u32 %p0, %r0, %r2; @%p0 bra END; {reduce} END: add.u32 %r1, %r1, 1;\n\
                         setp.lt.u32 %p1, %r1, 9; @%p1 bra LOOP;"
                ),
                true,
                0,
            ),
        ];
        for (body, strict, beside) in cases {
            let text = format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n\
                 .reg .b32 %r<8>; .reg .pred %p<4>; mov.u32 %r0, %tid.x; mov.u32 %r1, 0;\n{body}\nret;\n}}\n"
            );
            let program = ptx::Program::parse(text.as_bytes()).unwrap();
            let kernel = program.lower(0, &|_| None).unwrap();
            let plan = plan(&kernel, Shape { block: [128, 1, 1], lanes: 8 }, usize::MAX).unwrap();
            let found = plan.meetings.beside.iter().filter(|&&b| b).count();
            assert_eq!((plan.strict, found), (strict, beside), "{body}");
        }
    }
}
