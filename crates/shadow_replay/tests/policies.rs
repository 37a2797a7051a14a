//! Every policy shows what the guest's tables say, in the paper's case; and what sets the policies apart.

use gmmu::{Costs, Policy, Rebuild, Shadowing, Trace, TraceEvent, TraceFormat};
use shadow_replay::{Outcome, replay};

const COSTS: Costs = Costs { trap: 5000, release: 0, protect: 500, compare: 500 };

fn policies() -> Vec<Policy> {
    let rebuilds = [Rebuild::Full, Rebuild::Static(200), Rebuild::Dynamic, Rebuild::Segmented];
    let all = [Shadowing::Relaxed, Shadowing::Hybrid].into_iter();
    let mut policies = vec![Policy { shadowing: Shadowing::Strict, rebuild: Rebuild::Segmented }];
    policies.extend(all.flat_map(|shadowing| rebuilds.map(|rebuild| Policy { shadowing, rebuild })));
    policies
}

/// A part of the paper's case: each check walks a gibibyte.
fn some(format: TraceFormat, events: usize) -> Trace {
    let mut trace = Trace::of_the_paper(format, 1);
    trace.events.truncate(events);
    let last = trace.events.iter().rposition(|event| matches!(event, TraceEvent::Submit { .. }));
    trace.events.truncate(last.map_or(0, |last| last + 1));
    trace
}

#[test]
fn each_policy_shows_what_the_tables_say() {
    for format in [TraceFormat::Nvidia, TraceFormat::Intel] {
        let trace = some(format, 1000);
        for policy in policies() {
            let outcome = replay(&trace, policy, COSTS, true).unwrap_or_else(|error| panic!("{policy:?}: {error}"));
            assert_eq!((outcome.updates, outcome.submissions), trace.counts());
            assert!(outcome.counts.entries_rebuilt > 0 || outcome.traps() > 0);
        }
    }
}

#[test]
fn policies_trap_as_the_paper_says() {
    [TraceFormat::Nvidia, TraceFormat::Intel].into_iter().for_each(as_the_paper_says);
}

fn as_the_paper_says(format: TraceFormat) {
    let trace = some(format, 40_000);
    let [updates, submissions] = <[u64; 2]>::from(trace.counts());
    let run = |shadowing, rebuild| -> Outcome {
        replay(&trace, Policy { shadowing, rebuild }, COSTS, false).unwrap_or_else(|error| panic!("{error}"))
    };
    // Each store traps.
    assert_eq!(run(Shadowing::Strict, Rebuild::Segmented).traps(), updates);
    // None does, and all is compared each time.
    let full = run(Shadowing::Relaxed, Rebuild::Full);
    assert_eq!((full.traps(), full.pages_rebuilt()), (0, 512 * submissions));
    // One for each page and submission, at most: a surface is in two pages.
    let segmented = run(Shadowing::Relaxed, Rebuild::Segmented);
    assert!(segmented.traps() < updates / 50, "{segmented:?}");
    assert_eq!(segmented.pages_rebuilt(), segmented.traps());
    assert!(segmented.counts.entries_rebuilt > updates * 9 / 10);
    // Fewer traps, more comparisons.
    let dynamic = run(Shadowing::Relaxed, Rebuild::Dynamic);
    assert!(
        dynamic.traps() < segmented.traps() && dynamic.pages_rebuilt() > 10 * segmented.pages_rebuilt(),
        "{dynamic:?}"
    );
    // Between strict and full.
    let some = run(Shadowing::Relaxed, Rebuild::Static(50));
    assert!(some.traps() > dynamic.traps() && some.traps() < updates, "{some:?}");
    assert!(some.pages_rebuilt() < full.pages_rebuilt(), "{some:?}");
    // As segmented where there is much to do; a few more traps, until that is known.
    let hybrid = run(Shadowing::Hybrid, Rebuild::Segmented);
    assert!(hybrid.traps() < updates / 40, "{hybrid:?}");
    assert!(
        hybrid.modelled_ms(COSTS) < segmented.modelled_ms(COSTS) * 2.0 && hybrid.traps() >= segmented.traps() / 2,
        "{hybrid:?}"
    );
}
