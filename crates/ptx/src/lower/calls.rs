//! Which functions are inlined, and which are lowered once, out of line.
//!
//! Inlining is what the vendor's compiler did where it wanted speed; what it left as a call is inlined here all the same as
//! long as the kernel stays small. In a larger kernel functions that are called from several places and are not small, and
//! any that are nested deeply, are lowered once: so the IR grows with the text, not with the number of paths through it.
//! A function that can call itself, by whatever way, is out of line and has its frame on the thread's stack.

use std::collections::{HashMap, HashSet};

use super::layout::Facts;

/// Statements of a kernel with all its calls inlined, up to which they are.
const SMALL_KERNEL: u64 = 8192;
/// Statements of a function, its own calls included, up to which it is inlined in any kernel.
const SMALL_FUNCTION: u64 = 128;
/// Deepest inlining: it recurses on this machine's stack.
const MOST_DEEP: u32 = 24;
/// Stands for all functions that are called through pointers.
const POINTEES: usize = usize::MAX;

/// The decision for each function of a kernel.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Functions out of line: the number of the circle of calls that it is in, if it is in one.
    out: HashMap<usize, Option<u32>>,
}

/// What a function is to the plan.
#[derive(Clone, Copy, Debug)]
struct Weight {
    statements: u64,
    deep: u32,
}

impl Plan {
    /// Decides for the kernel whose body is `kernel`. `facts` has every function that it reaches.
    pub(super) fn of(kernel: usize, facts: &HashMap<usize, &Facts>, pointees: &[usize]) -> Plan {
        let (order, circles) = circles(kernel, facts, pointees);
        let small = Plan::with(u64::MAX, kernel, &order, &circles, facts, pointees);
        match small {
            (plan, statements) if statements <= SMALL_KERNEL => plan,
            _ => Plan::with(SMALL_FUNCTION, kernel, &order, &circles, facts, pointees).0,
        }
    }

    /// Is the function out of line?
    pub(super) fn is_out(&self, function: usize) -> bool {
        self.out.contains_key(&function)
    }

    /// The circle of calls that the function is in.
    pub(super) fn circle(&self, function: usize) -> Option<u32> {
        self.out.get(&function).copied().flatten()
    }

    /// Does any function call itself?
    pub(super) fn recurses(&self) -> bool {
        self.out.values().any(Option::is_some)
    }

    /// Inlines functions of up to `most` statements, and those called once; also the kernel's statements then.
    fn with(
        most: u64,
        kernel: usize,
        order: &[usize],
        circles: &HashMap<usize, u32>,
        facts: &HashMap<usize, &Facts>,
        pointees: &[usize],
    ) -> (Plan, u64) {
        let mut mentions: HashMap<usize, u64> = HashMap::new();
        for facts in facts.values() {
            for (callee, times) in &facts.calls {
                *mentions.entry(*callee).or_default() += u64::from(*times);
            }
        }
        let indirect: u64 = facts.values().map(|f| u64::from(f.indirect)).sum();
        for callee in pointees {
            *mentions.entry(*callee).or_default() += indirect;
        }
        let mut plan = Plan::default();
        let mut weights: HashMap<usize, Weight> = HashMap::new();
        // Callees come before their callers.
        for function in order.iter().filter(|f| **f != POINTEES) {
            let Some(facts) = facts.get(function) else { continue };
            let mut weight = Weight { statements: facts.statements, deep: 1 };
            let pointed = pointees.iter().filter(|_| facts.indirect > 0).map(|callee| (callee, &facts.indirect));
            for (callee, times) in facts.calls.iter().chain(pointed) {
                let inlined = weights.get(callee).filter(|_| !plan.is_out(*callee));
                let cost = inlined.map_or(8, |w| w.statements);
                weight.statements = weight.statements.saturating_add(cost.saturating_mul(u64::from(*times)));
                weight.deep = weight.deep.max(1 + inlined.map_or(0, |w| w.deep));
            }
            weights.insert(*function, weight);
            let circle = circles.get(function).copied();
            let once = mentions.get(function).is_none_or(|m| *m <= 1);
            let inline = circle.is_none() && weight.deep < MOST_DEEP && (weight.statements <= most || once);
            if *function != kernel && !inline {
                plan.out.insert(*function, circle);
            }
        }
        let statements = weights.get(&kernel).map_or(0, |w| w.statements);
        (plan, statements)
    }
}

/// A function on the way down of [`circles`].
struct Visit {
    function: usize,
    callees: Vec<usize>,
    next: usize,
}

/// All functions, callees before callers but for circles; and for those in a circle of calls which one it is. Tarjan's
/// algorithm, on a stack of its own.
fn circles(kernel: usize, facts: &HashMap<usize, &Facts>, pointees: &[usize]) -> (Vec<usize>, HashMap<usize, u32>) {
    let callees = |function: usize| -> Vec<usize> {
        if function == POINTEES {
            return pointees.to_vec();
        }
        let Some(facts) = facts.get(&function) else { return Vec::new() };
        let through = (facts.indirect > 0).then_some(POINTEES);
        facts.calls.keys().copied().chain(through).collect()
    };
    let (mut order, mut found, mut circle) = (Vec::new(), HashMap::new(), 0);
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    let mut lowest: HashMap<usize, usize> = HashMap::new();
    let (mut path, mut on_path): (Vec<usize>, HashSet<usize>) = (Vec::new(), HashSet::new());
    let mut visits = vec![Visit { function: kernel, callees: callees(kernel), next: 0 }];
    while let Some(visit) = visits.last_mut() {
        let function = visit.function;
        if visit.next == 0 && !numbers.contains_key(&function) {
            numbers.insert(function, numbers.len());
            lowest.insert(function, numbers.len() - 1);
            path.push(function);
            on_path.insert(function);
        }
        if let Some(callee) = visit.callees.get(visit.next).copied() {
            visit.next += 1;
            if !numbers.contains_key(&callee) {
                visits.push(Visit { function: callee, callees: callees(callee), next: 0 });
            } else if on_path.contains(&callee) {
                let low = numbers[&callee].min(lowest[&function]);
                lowest.insert(function, low);
            }
            continue;
        }
        let to_itself = visit.callees.contains(&function);
        visits.pop();
        if let Some(caller) = visits.last() {
            let low = lowest[&function].min(lowest[&caller.function]);
            lowest.insert(caller.function, low);
        }
        if lowest[&function] == numbers[&function] {
            let start = path.iter().rposition(|f| *f == function).unwrap_or(0);
            let component = path.split_off(start);
            let is_circle = component.len() > 1 || to_itself;
            for member in component {
                on_path.remove(&member);
                if is_circle {
                    found.insert(member, circle);
                }
                order.push(member);
            }
            circle += 1;
        }
    }
    (order, found)
}
