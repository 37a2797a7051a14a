//! When pages of tables are strict, and when relaxed.

use std::collections::BTreeSet;

use gmmu::{Costs, Notices, Plan, Policy, Rebuild, Shadowing, Stored, Tracking};
use gpu_spec::mmu::PhysAddr;

/// A page that is relaxed for one submission costs as much as three trapped stores.
const COSTS: Costs = Costs { trap: 1000, release: 500, protect: 500, compare: 500 };

const DIRECTORY: PhysAddr = page(99);

const fn page(number: u64) -> PhysAddr {
    PhysAddr::vram(number << 12)
}

/// A guest with a directory and some pages of page tables.
fn tracking(shadowing: Shadowing, rebuild: Rebuild, notices: Notices, pages: u64) -> Tracking {
    let mut tracking = Tracking::new(Policy { shadowing, rebuild }, notices, COSTS);
    assert_eq!(tracking.holds_tables(DIRECTORY, false, false), notices != Notices::Nothing);
    let released = notices == Notices::Nothing
        || (rebuild == Rebuild::Full && shadowing != Shadowing::Strict && notices != Notices::AllStores);
    (0..pages).for_each(|number| assert_eq!(tracking.holds_tables(page(number), true, false), !released));
    tracking
}

/// A plan that compares and protects nothing.
fn compare(pages: &[PhysAddr]) -> Plan {
    Plan { compare: pages.to_vec(), ..Plan::default() }
}

/// Stores of a guest into a page as long as they trap; gives how many did.
fn store(tracking: &mut Tracking, at: PhysAddr, stores: u32) -> u32 {
    for stored in 0..stores {
        if tracking.is_relaxed(at) {
            return stored;
        }
        tracking.stored(at);
    }
    stores
}

/// A submission, at which so many entries of each page that is compared have changed.
fn submit(tracking: &mut Tracking, changed: impl Fn(PhysAddr) -> u64) -> Plan {
    let plan = tracking.submit();
    plan.compare.iter().for_each(|at| {
        tracking.compared(*at, changed(*at));
    });
    plan
}

#[test]
fn a_strict_page_traps_at_each_store() {
    let mut tracking = tracking(Shadowing::Strict, Rebuild::Segmented, Notices::Stores, 2);
    assert_eq!(store(&mut tracking, page(0), 100), 100);
    assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    assert_eq!(tracking.counts.table_traps, 100);
    assert_eq!(tracking.pages(), (3, 0));
}

#[test]
fn a_segment_ends_with_the_submission() {
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Segmented, Notices::Stores, 3);
    for _ in 0..5 {
        assert_eq!(store(&mut tracking, page(1), 40), 1);
        assert_eq!(tracking.pages(), (3, 1));
        let plan = submit(&mut tracking, |_| 40);
        assert_eq!(plan, Plan { protect: vec![page(1)], compare: vec![page(1)], ..Plan::default() });
    }
    assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    assert_eq!(tracking.counts.table_traps, 5);
    assert_eq!(tracking.counts.entries_rebuilt, 200);
}

#[test]
fn a_directory_is_always_strict() {
    for rebuild in [Rebuild::Full, Rebuild::Static(5), Rebuild::Dynamic, Rebuild::Segmented] {
        for shadowing in [Shadowing::Relaxed, Shadowing::Hybrid] {
            let mut tracking = tracking(shadowing, rebuild, Notices::Stores, 1);
            for _ in 0..40 {
                assert_eq!(store(&mut tracking, DIRECTORY, 50), 50);
                assert!(!submit(&mut tracking, |_| 1).compare.contains(&DIRECTORY));
            }
            assert_eq!(tracking.counts.directory_traps, 2000);
        }
    }
}

#[test]
fn dynamic_pages_stay_relaxed() {
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Dynamic, Notices::Stores, 4);
    assert_eq!(store(&mut tracking, page(2), 9), 1);
    assert_eq!(submit(&mut tracking, |_| 9), compare(&[page(2)]));
    assert_eq!(store(&mut tracking, page(0), 9), 1);
    for _ in 0..100 {
        assert_eq!(submit(&mut tracking, |_| 0).compare, [page(0), page(2)]);
    }
    assert_eq!(tracking.counts.rebuilt_in_vain, 200);
    assert_eq!((tracking.counts.rebuilt_written, tracking.counts.rebuilt_unknown), (2, 199));
}

#[test]
fn a_hybrid_ends_what_is_compared_in_vain() {
    for (rebuild, first) in [(Rebuild::Dynamic, 3), (Rebuild::Full, 0)] {
        let mut tracking = tracking(Shadowing::Hybrid, rebuild, Notices::Stores, 1);
        assert_eq!(store(&mut tracking, page(0), 9), first);
        let mut vain = 0;
        submit(&mut tracking, |_| 9);
        while tracking.is_relaxed(page(0)) {
            let plan = tracking.submit();
            assert_eq!(plan.compare, [page(0)]);
            vain += 1;
            assert_eq!(tracking.compared(page(0), 0), vain == 4, "{rebuild:?}");
        }
        // As much as it costs to protect it, and to trap once.
        assert_eq!(vain, 4);
        assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    }
}

#[test]
fn a_hybrid_relaxes_what_is_stored_into_often() {
    let mut tracking = tracking(Shadowing::Hybrid, Rebuild::Segmented, Notices::Stores, 2);
    // Two stores for each submission: never worth it, however long.
    for _ in 0..1000 {
        assert_eq!(store(&mut tracking, page(0), 2), 2);
        assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    }
    // Many: the first time as many trap as it would have cost, from then on one.
    assert_eq!(store(&mut tracking, page(1), 300), 3);
    submit(&mut tracking, |_| 300);
    for _ in 0..10 {
        assert_eq!(store(&mut tracking, page(1), 300), 1);
        submit(&mut tracking, |_| 300);
    }
    // It calms down.
    let traps: Vec<u32> = (0..40)
        .map(|_| {
            let traps = store(&mut tracking, page(1), 2);
            submit(&mut tracking, |_| 2);
            traps
        })
        .collect();
    assert_eq!(traps.first(), Some(&1));
    assert_eq!(traps.last(), Some(&2));
    assert_eq!(tracking.pages(), (3, 0));
}

#[test]
fn static_pages_are_those_with_most_stores() {
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Static(2), Notices::Stores, 10);
    let stores = |number: u64| [1, 50, 2, 3, 40, 0, 1, 1, 1, 1][number as usize];
    let mut traps = 0;
    for _ in 0..200 {
        traps = (0..10).map(|number| store(&mut tracking, page(number), stores(number))).sum();
        submit(&mut tracking, |at| u64::from(stores(at.address >> 12)));
    }
    // The others are trapped at each store.
    assert_eq!(traps, 10);
    assert_eq!(tracking.pages(), (9, 2));
    assert!(tracking.is_relaxed(page(1)) && tracking.is_relaxed(page(4)));
    // Two others become the busiest.
    let stores = |number: u64| [0, 0, 70, 0, 0, 0, 70, 0, 0, 0][number as usize];
    for _ in 0..4000 {
        traps = (0..10).map(|number| store(&mut tracking, page(number), stores(number))).sum();
        submit(&mut tracking, |at| u64::from(stores(at.address >> 12)));
    }
    assert_eq!(traps, 0);
    assert!(tracking.is_relaxed(page(2)) && tracking.is_relaxed(page(6)));
    assert_eq!(tracking.pages(), (9, 2));
}

#[test]
fn a_bar_that_is_trapped_whole_stays_so() {
    for rebuild in [Rebuild::Full, Rebuild::Static(5), Rebuild::Dynamic, Rebuild::Segmented] {
        let mut tracking = tracking(Shadowing::Hybrid, rebuild, Notices::AllStores, 2);
        for _ in 0..40 {
            assert_eq!(store(&mut tracking, page(0), 50), 50);
            assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
        }
    }
}

#[test]
fn where_nothing_is_told_all_is_compared() {
    for rebuild in [Rebuild::Full, Rebuild::Dynamic, Rebuild::Segmented] {
        let mut tracking = tracking(Shadowing::Hybrid, rebuild, Notices::Nothing, 2);
        for _ in 0..40 {
            assert_eq!(submit(&mut tracking, |_| 0), compare(&[page(0), page(1), DIRECTORY]));
        }
    }
}

#[test]
fn pages_that_are_named_when_asked_are_compared() {
    for (notices, protect) in [(Notices::WhenAsked, vec![]), (Notices::FirstStores, vec![page(1), DIRECTORY])] {
        let mut tracking = tracking(Shadowing::Hybrid, Rebuild::Segmented, notices, 3);
        for _ in 0..3 {
            [DIRECTORY, page(1), page(77)].into_iter().for_each(|at| tracking.written(at));
            let plan = tracking.submit();
            assert_eq!(plan, Plan { protect: protect.clone(), ..compare(&[page(1), DIRECTORY]) });
            assert_eq!(tracking.submit(), Plan::default());
        }
        assert_eq!(tracking.counts.table_traps, if notices == Notices::FirstStores { 3 } else { 0 });
        // What is dynamic stays relaxed; directories do not.
        let mut tracking = self::tracking(Shadowing::Relaxed, Rebuild::Dynamic, notices, 3);
        [DIRECTORY, page(1)].into_iter().for_each(|at| tracking.written(at));
        assert_eq!(tracking.submit().release, [page(1)]);
        assert_eq!(tracking.pages(), (3, 1));
        assert_eq!(tracking.submit().compare, [page(1)]);
    }
}

#[test]
fn a_page_that_goes_is_released_if_it_was_strict() {
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Segmented, Notices::Stores, 3);
    tracking.stored(page(0));
    assert!(!tracking.is_gone(page(0)));
    assert!(tracking.is_gone(page(1)));
    assert!(!tracking.is_gone(page(1)));
    assert_eq!(tracking.stored(page(1)), Stored::Follow);
    assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    // It comes to hold a directory.
    assert_eq!(tracking.stored(page(2)), Stored::Release);
    assert!(tracking.holds_tables(page(2), false, false));
    assert_eq!(store(&mut tracking, page(2), 9), 9);
    assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
}

#[test]
fn a_page_whose_stores_are_not_noticed_is_always_compared() {
    for shadowing in [Shadowing::Strict, Shadowing::Hybrid] {
        for rebuild in [Rebuild::Full, Rebuild::Static(5), Rebuild::Dynamic, Rebuild::Segmented] {
            let mut tracking = tracking(shadowing, rebuild, Notices::Stores, 0);
            assert!(!tracking.holds_tables(page(7), false, true));
            for _ in 0..200 {
                assert_eq!(submit(&mut tracking, |_| 0), compare(&[page(7)]));
            }
        }
    }
}

/// A submission of a guest whose stores are told when somebody asks: so many were told of a page that was strict.
fn submit_told(tracking: &mut Tracking, at: PhysAddr, stores: u64) -> Plan {
    if !tracking.is_relaxed(at) {
        (0..stores).for_each(|_| assert_eq!(tracking.stored(at), Stored::Follow));
    }
    submit(tracking, |_| stores)
}

#[test]
fn stores_that_are_told_when_asked_relax_a_page_for_those_to_come() {
    let released = Plan { release: vec![page(1)], ..Plan::default() };
    for (shadowing, few) in [(Shadowing::Hybrid, 2), (Shadowing::Relaxed, 0)] {
        let mut tracking = tracking(shadowing, Rebuild::Segmented, Notices::StoresWhenAsked, 3);
        for _ in 0..10 {
            assert_eq!(submit_told(&mut tracking, page(1), few), Plan::default());
        }
        // They are followed one by one; those that come next are not.
        assert_eq!(submit_told(&mut tracking, page(1), 40), released);
        for _ in 0..10 {
            assert_eq!(submit_told(&mut tracking, page(1), 40), compare(&[page(1)]));
            assert!(tracking.is_relaxed(page(1)));
        }
        // The segment ends with those that are too few.
        assert_eq!(submit_told(&mut tracking, page(1), few), compare(&[page(1)]));
        assert_eq!(tracking.pages(), (4, 0));
        assert_eq!(tracking.counts.table_traps, 10 * few + 40);
    }
    let mut strict = tracking(Shadowing::Strict, Rebuild::Segmented, Notices::StoresWhenAsked, 3);
    assert_eq!(submit_told(&mut strict, page(1), 400), Plan::default());
    assert_eq!((strict.counts.table_traps, strict.pages()), (400, (4, 0)));
    // A directory is never released.
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Dynamic, Notices::StoresWhenAsked, 3);
    assert_eq!(submit_told(&mut tracking, DIRECTORY, 400), Plan::default());
    assert_eq!(submit_told(&mut tracking, page(1), 1), released);
    assert_eq!(submit_told(&mut tracking, page(1), 0), compare(&[page(1)]));
    assert!(tracking.is_relaxed(page(1)));
}

#[test]
fn static_pages_stay_relaxed_with_a_trap_that_names_pages() {
    for notices in [Notices::WhenAsked, Notices::FirstStores] {
        let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Static(1), notices, 3);
        for _ in 0..200 {
            (0..2).for_each(|number| tracking.written(page(number)));
            submit(&mut tracking, |at| if at == page(1) { 9 } else { 1 });
        }
        assert!(tracking.is_relaxed(page(1)), "{notices:?}");
        assert_eq!(tracking.pages(), (3, 1));
        tracking.written(page(0));
        assert_eq!(tracking.submit().compare, [page(0), page(1)]);
    }
}

#[test]
fn another_policy_counts_for_the_pages_that_there_are() {
    let how = (Notices::Stores, COSTS);
    let policy = |shadowing, rebuild| Policy { shadowing, rebuild };
    let mut tracking = tracking(Shadowing::Relaxed, Rebuild::Dynamic, Notices::Stores, 3);
    assert_eq!(store(&mut tracking, page(1), 9), 1);
    // What is relaxed is protected, and looked at once more.
    let plan = tracking.change(policy(Shadowing::Strict, Rebuild::Segmented), how, |_| true);
    assert_eq!(plan, Plan { protect: vec![page(1)], ..compare(&[page(1)]) });
    assert_eq!(store(&mut tracking, page(1), 9), 9);
    assert_eq!(submit(&mut tracking, |_| 0), Plan::default());
    let plan = tracking.change(policy(Shadowing::Relaxed, Rebuild::Full), how, |_| true);
    assert_eq!(plan, Plan { release: vec![page(0), page(1), page(2)], ..Plan::default() });
    assert_eq!(tracking.submit(), compare(&[page(0), page(1), page(2)]));
    // A trap that has failed: even directories are compared.
    let plan = tracking.change(policy(Shadowing::Hybrid, Rebuild::Segmented), (Notices::Nothing, COSTS), |_| true);
    assert_eq!(plan, Plan { release: vec![DIRECTORY], ..Plan::default() });
    assert_eq!(tracking.submit(), compare(&[page(0), page(1), page(2), DIRECTORY]));
    // Another one, that does not reach all.
    let plan = tracking.change(policy(Shadowing::Hybrid, Rebuild::Segmented), how, |at| at != page(2));
    let all = [page(0), page(1), DIRECTORY];
    assert_eq!(plan, Plan { protect: all.to_vec(), ..compare(&all) });
    assert_eq!(tracking.submit(), compare(&[page(2)]));
}

/// Whatever comes when: after a submission each page is either compared at the next, or protected.
#[test]
fn a_page_that_is_strict_is_protected() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |end: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 32) % end
    };
    let rebuilds = [Rebuild::Full, Rebuild::Static(2), Rebuild::Dynamic, Rebuild::Segmented];
    let kinds = [Notices::WhenAsked, Notices::FirstStores]
        .into_iter()
        .flat_map(|notices| rebuilds.map(|rebuild| (notices, rebuild)));
    for (notices, rebuild) in kinds {
        for shadowing in [Shadowing::Relaxed, Shadowing::Hybrid] {
            for _ in 0..30 {
                let costs = Costs { trap: 1, release: 1, protect: 1, compare: 1 };
                let mut tracking = Tracking::new(Policy { shadowing, rebuild }, notices, costs);
                let pages: Vec<PhysAddr> = (1..=8).map(|page| PhysAddr::vram(page << 12)).collect();
                let mut protected: BTreeSet<PhysAddr> =
                    pages.iter().copied().filter(|page| tracking.holds_tables(*page, true, false)).collect();
                let mut hot = 0;
                for period in 1..=320 {
                    if below(40) == 0 {
                        hot = below(8);
                    }
                    let mut stored = BTreeSet::new();
                    for _ in 0..below(3) {
                        let page = if below(4) == 0 { below(8) } else { hot };
                        stored.insert(pages[page as usize]);
                    }
                    for page in stored.intersection(&protected.clone()) {
                        tracking.written(*page);
                        if notices == Notices::FirstStores {
                            protected.remove(page);
                        }
                    }
                    let plan = tracking.submit();
                    protected.extend(&plan.protect);
                    protected.retain(|page| !plan.release.contains(page));
                    for page in &plan.compare {
                        let changed = if stored.contains(page) { 1 + below(9) } else { 0 };
                        if tracking.compared(*page, changed) {
                            protected.insert(*page);
                        }
                    }
                    let lost = pages.iter().find(|page| !tracking.is_relaxed(**page) && !protected.contains(page));
                    assert_eq!(lost, None, "{notices:?}, {shadowing:?}, {rebuild:?}, submission {period}");
                }
            }
        }
    }
}
