//! The shadow against the two-step walk, for any guest; and what it costs, for some.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::collections::BTreeMap;
use std::ops::Range;

use gmmu::testing::memory::{Guest, Host};
use gmmu::testing::{Attack, Driver, LocalTables};
use gmmu::{
    Access, AddressSpace, Changes, Format, Gmmu2, HaswellPpgtt, MOST_IN_VAIN, PhysMem, Progress, Shadow, ShadowError,
    Target, Work, mappings_in, translate, translate_in,
};
use gpu_spec::mmu::{Aperture, BIG_PAGE, DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, Rights, SMALL_PAGE, VA_END};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const WINDOW: Range<u64> = Gmmu2::WINDOW;
/// Where the guest's driver has its tables, which the host has somewhere else.
const TABLES: u64 = 1 << 30;
const LIMIT: u32 = 1000;
const RW: Rights = Rights { read_only: false, privileged: false, atomic_disable: false };

/// A guest with a driver of its own.
struct World<D: Driver = AddressSpace> {
    guest: Guest,
    space: D,
    host: Host,
    shadow: Shadow<D::Format>,
}

impl<D: Driver> World<D> {
    fn new(limit: u32) -> World<D> {
        let vram = D::Format::vram;
        let mut guest = Guest::default();
        guest.next_table = Some(vram(TABLES));
        guest.give(vram(TABLES), 4096, vram(1 << 33), false);
        let space = D::create(&mut guest);
        let mut host = Host::new(vram(0), u32::MAX);
        let shadow = Shadow::new(&mut host, space.root(), D::Format::WINDOW, limit).unwrap();
        World { guest, space, host, shadow }
    }

    fn map(&mut self, va: u64, bytes: u64, at: PhysAddr) {
        self.space.map(&mut self.guest, va, bytes, at).unwrap();
        self.shadow.invalidate(va..va + bytes);
    }

    fn unmap(&mut self, va: u64, bytes: u64) {
        self.space.unmap(&mut self.guest, va, bytes);
        self.shadow.invalidate(va..va + bytes);
    }

    fn try_reflect(&mut self) -> (Result<Progress, ShadowError>, Changes) {
        let mut changes = Changes::default();
        let World { guest, host, shadow, .. } = self;
        (shadow.reflect(guest, guest, host, u64::MAX, &mut changes), changes)
    }

    fn reflect(&mut self) -> Changes {
        let (done, changes) = self.try_reflect();
        assert_eq!(done, Ok(Progress::Done));
        changes
    }

    fn rescan(&mut self) -> Changes {
        let mut changes = Changes::default();
        let World { guest, host, shadow, .. } = self;
        assert_eq!(shadow.rescan(guest, guest, host, u64::MAX, &mut changes), Ok(Progress::Done));
        changes
    }

    fn revoke(&mut self, at: PhysAddr, pages: u64) -> Changes {
        let mut changes = Changes::default();
        for page in (0..pages).map(|page| at.offset(page * SMALL_PAGE)) {
            let lost = self.guest.take(page).unwrap();
            self.shadow.revoke(lost, SMALL_PAGE, &mut self.host, &mut changes).unwrap();
        }
        changes
    }

    /// Where the device is led to, and the size of the page.
    fn shown(&self, va: u64) -> Option<(PhysAddr, u64)> {
        shown::<D::Format>(&self.host, self.shadow.root(), va)
    }

    /// Small pages that the device sees.
    fn pages(&self) -> BTreeMap<u64, PhysAddr> {
        let runs = mappings_in::<D::Format>(&self.host, self.shadow.root(), 0..VA_END, u32::MAX).runs;
        runs.iter().flat_map(|run| pages(run.va, run.bytes, run.target)).collect()
    }
}

impl World {
    /// The guest's entry of `T` at an index of a table.
    fn entry<T: FromZeros + FromBytes + IntoBytes>(&self, table: PhysAddr, index: u64) -> (PhysAddr, T) {
        let mut entry = T::new_zeroed();
        let at = table.offset(index * size_of::<T>() as u64);
        self.guest.read(at, entry.as_mut_bytes()).unwrap();
        (at, entry)
    }

    /// The guest's directory entry for the 512 MiB around an address, and the one for the 2 MiB.
    fn directories(&self, va: u64) -> ((PhysAddr, Pde), (PhysAddr, DualPde)) {
        let (_, top): (_, Pde) = self.entry(self.space.root(), va >> 47);
        let (_, next): (_, Pde) = self.entry(top.table().unwrap(), va >> 38 & 511);
        let last: (_, Pde) = self.entry(next.table().unwrap(), va >> 29 & 511);
        (last, self.entry(last.1.table().unwrap(), va >> 21 & 255))
    }
}

fn shown<F: Format>(host: &Host, root: PhysAddr, va: u64) -> Option<(PhysAddr, u64)> {
    let found = translate_in::<F>(host, root, va, Access::READ).ok()?;
    let Target::Memory(at) = found.target else { panic!("no driver here makes sparse pages") };
    Some((at, found.page_bytes))
}

fn pages(va: u64, bytes: u64, target: Target) -> impl Iterator<Item = (u64, PhysAddr)> {
    (0..bytes).step_by(SMALL_PAGE as usize).map(move |skip| match target.offset(skip) {
        Target::Memory(at) => (va + skip, at),
        Target::Sparse => panic!("no driver here makes sparse pages"),
    })
}

#[derive(Clone, Debug)]
enum Action {
    /// Addresses from the start of the window on.
    Map {
        va: u64,
        pages: u64,
        at: PhysAddr,
    },
    Unmap {
        va: u64,
        pages: u64,
    },
    Submit,
}

fn action() -> impl Strategy<Value = Action> {
    let unit = prop_oneof![Just(1u64), Just(16), Just(512)];
    let va = (0..3u64, 0..2048u64, unit.clone())
        .prop_map(|(base, page, unit)| (base << 29) + page / unit * unit * SMALL_PAGE);
    let pages = (1u64..40, unit).prop_map(|(count, unit)| (count * unit).min(1100));
    let at = (0u64..2048, any::<bool>(), 0..3u8).prop_map(|(page, system, align)| {
        let at = (page * SMALL_PAGE) & !([HUGE_PAGE, BIG_PAGE, SMALL_PAGE][usize::from(align)] - 1);
        if system { PhysAddr::system(at) } else { PhysAddr::vram(at) }
    });
    prop_oneof![
        3 => (va.clone(), pages.clone(), at).prop_map(|(va, pages, at)| Action::Map { va, pages, at }),
        2 => (va, pages).prop_map(|(va, pages)| Action::Unmap { va, pages }),
        2 => Just(Action::Submit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_shadow_is_the_two_step_walk_cut_to_the_grant(data in prop::collection::vec(any::<u8>(), 1..900)) {
        gmmu::testing::guest::<Gmmu2>(&data);
    }

    #[test]
    fn in_intels_format_too(data in prop::collection::vec(any::<u8>(), 1..900)) {
        gmmu::testing::guest::<HaswellPpgtt>(&data);
    }

    #[test]
    fn entered_pages_are_those_that_were_granted(data in prop::collection::vec(any::<u8>(), 1..200)) {
        gmmu::testing::para_virtualized::<Gmmu2>(&data);
        gmmu::testing::para_virtualized::<HaswellPpgtt>(&data);
    }

    #[test]
    fn a_tracked_shadow_is_the_walk_whatever_is_announced(data in prop::collection::vec(any::<u8>(), 1..900)) {
        gmmu::testing::tracked::<Gmmu2>(&data);
        gmmu::testing::tracked::<HaswellPpgtt>(&data);
    }

    #[test]
    fn an_ordinary_driver_sees_what_it_has_mapped(actions in prop::collection::vec(action(), 1..24)) {
        an_ordinary_driver::<AddressSpace>(&actions);
        an_ordinary_driver::<LocalTables>(&actions);
    }
}

/// A driver invalidates what it maps and unmaps, and no more: that is enough, and what it has not invalidated is not lost.
fn an_ordinary_driver<D: Driver>(actions: &[Action]) {
    let (window, vram) = (D::Format::WINDOW, D::Format::vram);
    let mut world = World::<D>::new(LIMIT);
    world.guest.give(vram(0), 1500, vram(HUGE_PAGE * 600), false);
    world.guest.give(vram(1500 * SMALL_PAGE), 3000, vram(SMALL_PAGE), false);
    world.guest.give(PhysAddr::system(0), 1024, PhysAddr::system(BIG_PAGE), false);
    for action in actions {
        match *action {
            Action::Map { va, pages, at } => {
                let va = window.start + va;
                let at = if at.aperture == Aperture::Vram { vram(at.address) } else { at };
                // What is mapped already stays.
                if world.space.map(&mut world.guest, va, pages * SMALL_PAGE, at).is_ok() {
                    world.shadow.invalidate(va..va + pages * SMALL_PAGE);
                }
            }
            Action::Unmap { va, pages } => world.unmap(window.start + va, pages * SMALL_PAGE),
            Action::Submit => {
                world.reflect();
                let runs = mappings_in::<D::Format>(&world.guest, world.space.root(), window.clone(), u32::MAX).runs;
                let all = runs.iter().flat_map(|run| pages(run.va, run.bytes, run.target));
                let expect: BTreeMap<u64, PhysAddr> =
                    all.filter_map(|(va, at)| Some((va, world.guest.page(at)?.0))).collect();
                assert_eq!(world.pages(), expect);
            }
        }
    }
    let World { shadow, mut host, .. } = world;
    shadow.destroy(&mut host);
    assert_eq!(host.live(), 0);
}

#[test]
fn pages_are_as_large_as_the_grant_allows() {
    let mut world: World = World::new(LIMIT);
    let at = |unit: u64| PhysAddr::vram(unit * HUGE_PAGE);
    let all = HUGE_PAGE / SMALL_PAGE;
    world.guest.give(at(0), all, at(50), false);
    world.guest.give(at(1), all, at(60).offset(BIG_PAGE), false);
    world.guest.give(at(2), all, at(70).offset(SMALL_PAGE), false);
    // A hole of one page in an aligned unit.
    world.guest.give(at(3), all, at(80), false);
    world.guest.take(at(3).offset(BIG_PAGE + SMALL_PAGE));
    // Nothing at all of the fifth.
    world.map(WINDOW.start, 5 * HUGE_PAGE, at(0));
    world.reflect();
    let va = |unit: u64| WINDOW.start + unit * HUGE_PAGE;
    assert_eq!(world.shown(va(0) + 5), Some((at(50).offset(5), HUGE_PAGE)));
    assert_eq!(world.shown(va(1) + 5), Some((at(60).offset(BIG_PAGE + 5), BIG_PAGE)));
    assert_eq!(world.shown(va(2) + 5), Some((at(70).offset(SMALL_PAGE + 5), SMALL_PAGE)));
    assert_eq!(world.shown(va(3)), Some((at(80), BIG_PAGE)));
    assert_eq!(world.shown(va(3) + BIG_PAGE), Some((at(80).offset(BIG_PAGE), SMALL_PAGE)));
    assert_eq!(world.shown(va(3) + BIG_PAGE + SMALL_PAGE), None);
    assert_eq!(world.shown(va(3) + 2 * BIG_PAGE), Some((at(80).offset(2 * BIG_PAGE), BIG_PAGE)));
    assert_eq!(world.shown(va(4)), None);
    assert_eq!(world.shadow.tables(), 4 + 1 + 1 + 2, "directories; big pages; small pages; both");
}

#[test]
fn only_what_is_named_is_looked_at() {
    only_what_is_named::<AddressSpace>();
    only_what_is_named::<LocalTables>();
}

fn only_what_is_named<D: Driver>() {
    let mut world = World::<D>::new(LIMIT);
    let levels = D::Format::LEVELS.len() as u64;
    let unit = D::Format::LEVELS[D::Format::LEVELS.len() - 1].span();
    // Tables of small pages.
    let (va, bytes) = (D::Format::WINDOW.start, 16 * HUGE_PAGE);
    world.guest.give(PhysAddr::system(0), 16 * 512 + 16, PhysAddr::system(SMALL_PAGE), false);
    world.map(va, bytes, PhysAddr::system(SMALL_PAGE));
    let first = world.reflect();
    assert_eq!(first.ranges(), [Range { start: va, end: va + bytes }]);
    assert_eq!(first.work.updates, 16 * 512 + bytes / unit + levels - 1, "small pages, and directories");
    // Two pages lead elsewhere; one of them is named.
    for page in [5, 7] {
        world.space.unmap(&mut world.guest, va + page * SMALL_PAGE, SMALL_PAGE);
        world.space.map(&mut world.guest, va + page * SMALL_PAGE, SMALL_PAGE, PhysAddr::system(0)).unwrap();
    }
    let page = |page: u64| va + page * SMALL_PAGE..va + (page + 1) * SMALL_PAGE;
    world.shadow.invalidate(page(5));
    let one = world.reflect();
    assert_eq!(one.work, Work { entries_scanned: levels + 1, tables_read: levels + 1, updates: 1 });
    assert_eq!(one.ranges(), [page(5)]);
    assert_eq!(world.shown(page(5).start), Some((PhysAddr::system(SMALL_PAGE), SMALL_PAGE)));
    assert_eq!(world.shown(page(7).start), Some((PhysAddr::system(9 * SMALL_PAGE), SMALL_PAGE)), "not invalidated");
    // Nothing is named, nothing is done.
    assert_eq!(world.reflect().work, Work::default());
    // A table is read in one piece.
    world.shadow.invalidate(va..va + unit);
    let table = world.reflect();
    assert_eq!(table.work, Work { entries_scanned: levels + unit / SMALL_PAGE, tables_read: levels + 1, updates: 1 });
    assert_eq!(table.ranges(), [page(7)]);
    // The naive way looks at everything, for nothing.
    let naive = world.rescan();
    assert_eq!((naive.work.updates, naive.ranges()), (0, &[][..]));
    assert!(naive.work.entries_scanned >= 16 * 512, "{:?}", naive.work);
}

#[test]
fn what_is_written_many_times_is_updated_once() {
    written_many_times::<AddressSpace>();
    written_many_times::<LocalTables>();
}

fn written_many_times<D: Driver>() {
    let vram = D::Format::vram;
    let mut world = World::<D>::new(LIMIT);
    world.guest.give(vram(0), 64, vram(HUGE_PAGE * 9), false);
    world.map(D::Format::WINDOW.start, SMALL_PAGE, vram(0));
    world.reflect();
    for page in 1..64 {
        world.unmap(D::Format::WINDOW.start, SMALL_PAGE);
        world.map(D::Format::WINDOW.start, SMALL_PAGE, vram(page * SMALL_PAGE));
    }
    assert_eq!(world.reflect().work.updates, 1);
    assert_eq!(world.shown(D::Format::WINDOW.start), Some((vram(HUGE_PAGE * 9 + 63 * SMALL_PAGE), SMALL_PAGE)));
}

#[test]
fn what_a_big_page_has_hidden_is_shown_again() {
    let mut world: World = World::new(LIMIT);
    let page = |page: u64| WINDOW.start + page * SMALL_PAGE..WINDOW.start + (page + 1) * SMALL_PAGE;
    world.guest.give(PhysAddr::vram(0), 512, PhysAddr::vram(HUGE_PAGE * 9), false);
    let host = |at: u64| Some(PhysAddr::vram(HUGE_PAGE * 9 + at));
    let shown = |world: &World, page: Range<u64>| world.shown(page.start).map(|(at, _)| at);
    // Small pages below the first big one, and a table for big ones.
    world.map(page(0).start, BIG_PAGE, PhysAddr::vram(SMALL_PAGE));
    world.map(page(16).start, BIG_PAGE, PhysAddr::vram(BIG_PAGE));
    world.reflect();
    let (_, (_, dual)) = world.directories(WINDOW.start);
    let big = dual.big_table().unwrap();
    world.guest.put(big, Pte::to_page(PhysAddr::vram(2 * BIG_PAGE), RW).0);
    world.shadow.invalidate(page(0));
    world.reflect();
    assert_eq!(shown(&world, page(5)), host(2 * BIG_PAGE + 5 * SMALL_PAGE));
    world.guest.put(big, 0);
    for at in [3, 5, 1] {
        world.shadow.invalidate(page(at));
        world.reflect();
        assert_eq!(shown(&world, page(at)), host((at + 1) * SMALL_PAGE));
    }
}

#[test]
fn what_has_been_sparse_is_shown_though_only_a_page_of_it_is_named() {
    let mut world: World = World::new(LIMIT);
    let va = 1 << 29;
    world.guest.give(PhysAddr::vram(0), 512, PhysAddr::vram(HUGE_PAGE * 9 + SMALL_PAGE), false);
    world.map(va, BIG_PAGE, PhysAddr::vram(0));
    world.map(va + (1 << 28), SMALL_PAGE, PhysAddr::vram(0));
    world.reflect();
    let (expect, ((at, tables), _)) = (world.pages(), world.directories(va));
    world.guest.put(at, Pde::SPARSE.0);
    world.shadow.invalidate(va..va + SMALL_PAGE);
    world.reflect();
    let found = translate(&world.host, world.shadow.root(), va + (1 << 28), Access::WRITE).unwrap();
    assert_eq!((found.target, found.page_bytes), (Target::Sparse, 1 << 29));
    assert_eq!(world.shadow.tables(), 3, "what was below is given back");
    world.guest.put(at, tables.0);
    world.shadow.invalidate(va..va + SMALL_PAGE);
    world.reflect();
    assert_eq!(world.pages(), expect);
}

#[test]
fn lost_memory_is_gone_and_nothing_else() {
    lost_memory::<AddressSpace>();
    lost_memory::<LocalTables>();
}

fn lost_memory<D: Driver>() {
    let vram = D::Format::vram;
    let mut world = World::<D>::new(LIMIT);
    let (va, at, host) = (D::Format::WINDOW.start, vram(0), vram(HUGE_PAGE * 9));
    world.guest.give(at, 512, host, false);
    world.map(va, HUGE_PAGE, at);
    world.reflect();
    let whole = world.pages();
    let hole = BIG_PAGE + 3 * SMALL_PAGE;
    let changes = world.revoke(at.offset(hole), 2);
    assert!(changes.ranges().iter().any(|range| range.contains(&(va + hole))));
    let mut rest = whole.clone();
    rest.retain(|page, _| !(va + hole..va + hole + 2 * SMALL_PAGE).contains(page));
    assert_eq!(world.pages(), rest);
    assert!(!world.shadow.is_stale(), "no table of the guest's needs to be read for it");
    // The guest gets other memory there: what was refused is shown, without an invalidate.
    let other = vram(HUGE_PAGE * 99);
    world.guest.give(at.offset(hole), 2, other, false);
    world.shadow.granted();
    world.reflect();
    assert_eq!(world.shown(va + hole), Some((other, SMALL_PAGE)));
    rest.extend([(va + hole, other), (va + hole + SMALL_PAGE, other.offset(SMALL_PAGE))]);
    assert_eq!(world.pages(), rest);
    // The guest takes its page away: what is left of it goes, although it was split.
    world.revoke(at.offset(hole), 1);
    world.unmap(va, HUGE_PAGE);
    world.reflect();
    assert!(world.pages().is_empty() && world.shadow.tables() == 1);
}

#[test]
fn a_page_that_is_split_is_there_at_each_moment() {
    let mut world: World = World::new(LIMIT);
    let va = WINDOW.start;
    world.guest.give(PhysAddr::vram(0), 512, PhysAddr::vram(HUGE_PAGE * 9 + BIG_PAGE), false);
    world.map(va, HUGE_PAGE, PhysAddr::vram(0));
    world.reflect();
    let at = |shown: Option<(PhysAddr, u64)>| shown.map(|(at, _)| at);
    let expect = at(world.shown(va));
    assert!(expect.is_some());
    // Of the first big page one small page is lost; the table for the rest is a new one.
    let mut old = world.host.record();
    world.revoke(PhysAddr::vram(3 * SMALL_PAGE), 1);
    let writes = world.host.recorded();
    assert!(writes.len() > 2);
    for (to, data) in writes {
        old.repeat(to, &data);
        assert_eq!(at(shown::<Gmmu2>(&old, world.shadow.root(), va)), expect);
    }
}

#[test]
fn without_a_table_for_the_rest_a_page_is_lost_whole_until_there_is_one() {
    let mut world: World = World::new(5);
    let (va, at, host) = (WINDOW.start, PhysAddr::vram(0), PhysAddr::vram(HUGE_PAGE * 9));
    world.guest.give(at, 512, host, false);
    world.map(va, HUGE_PAGE, at);
    world.reflect();
    // Tables for big and for small pages would be needed.
    world.revoke(at.offset(SMALL_PAGE), 1);
    assert_eq!(world.pages(), BTreeMap::new());
    assert!(world.shadow.is_stale());
    assert_eq!(world.try_reflect().0, Err(ShadowError::TooManyTables { limit: 5 }));
    assert_eq!(world.pages(), BTreeMap::new());
    world.guest.give(at.offset(SMALL_PAGE), 1, host.offset(SMALL_PAGE), false);
    world.reflect();
    assert_eq!(world.shown(va + SMALL_PAGE), Some((host.offset(SMALL_PAGE), HUGE_PAGE)));
}

#[test]
fn tables_without_end_cost_little() {
    let mut world: World = World::new(64);
    let root = world.space.root();
    // Every entry of every level leads to the same table; as page table entries they are invalid.
    let entries = vec![Pde::to_table(root); 512];
    world.guest.write(root, entries.as_bytes()).unwrap();
    for _ in 0..3 {
        world.shadow.invalidate(0..VA_END);
        let (done, changes) = world.try_reflect();
        assert_eq!(done, Err(ShadowError::TooManyTables { limit: 64 }));
        let most = u64::from(64 + MOST_IN_VAIN + 8);
        assert!(changes.work.tables_read <= 2 * most, "{:?}", changes.work);
        assert!(changes.work.entries_scanned <= 544 * most, "{:?}", changes.work);
        assert!(world.shadow.is_stale() && world.pages().is_empty() && world.host.live() <= 64);
    }
    // With entries that are valid as pages, too, the memory is what ends it.
    world.guest.give(PhysAddr::vram(0), 512, PhysAddr::vram(1 << 35), false);
    let page = PhysAddr::vram(0x1000);
    let entries: Vec<u64> =
        (0..512).map(|at| if at < 4 { Pde::to_table(root).0 } else { page.address >> 4 | 1 }).collect();
    world.guest.write(root, entries.as_bytes()).unwrap();
    world.shadow.invalidate(0..VA_END);
    let (done, changes) = world.try_reflect();
    assert_eq!(done, Err(ShadowError::TooManyTables { limit: 64 }));
    assert!(changes.work.entries_scanned < 1 << 20 && world.host.live() <= 64, "{:?}", changes.work);
    // A guest that comes to its senses is served.
    world.guest.write(root, vec![0u64; 512].as_bytes()).unwrap();
    world.map(WINDOW.start, SMALL_PAGE, PhysAddr::vram(0x3000));
    world.shadow.invalidate(0..VA_END);
    world.reflect();
    assert_eq!(world.pages(), BTreeMap::from([(WINDOW.start, PhysAddr::vram((1 << 35) + 0x3000))]));
}

#[test]
fn tables_that_a_pass_frees_later_serve_what_it_could_not_show() {
    tables_freed_later::<AddressSpace>(38, 2, 3);
    tables_freed_later::<LocalTables>(22, 1, 1);
}

/// Paths at so many bits of the address that meet in so many directories, with so many tables each.
fn tables_freed_later<D: Driver>(shift: u32, shared: u32, each: u32) {
    // Room for two of three paths.
    let limit = shared + 2 * each;
    let mut world = World::<D>::new(limit);
    world.guest.give(PhysAddr::system(0), 64, PhysAddr::system(SMALL_PAGE), false);
    let va = |path: u64| D::Format::WINDOW.start + (path << shift);
    world.map(va(1), SMALL_PAGE, PhysAddr::system(0));
    world.map(va(2), SMALL_PAGE, PhysAddr::system(SMALL_PAGE));
    world.reflect();
    assert_eq!(world.shadow.tables(), limit);
    world.map(va(0), SMALL_PAGE, PhysAddr::system(0));
    assert_eq!(world.try_reflect().0, Err(ShadowError::TooManyTables { limit }));
    assert_eq!(world.pages().len(), 2, "what was there stays");
    assert!(world.shadow.is_stale());
    world.unmap(va(2), SMALL_PAGE);
    world.reflect();
    let shown: Vec<u64> = world.pages().into_keys().collect();
    assert_eq!(shown, [va(0), va(1)]);
}

#[test]
fn a_pass_may_take_many_calls() {
    many_calls::<AddressSpace>();
    many_calls::<LocalTables>();
}

fn many_calls<D: Driver>() {
    let mut world = World::<D>::new(LIMIT);
    world.guest.give(PhysAddr::system(0), 16 * 512 + 16, PhysAddr::system(SMALL_PAGE), false);
    world.map(D::Format::WINDOW.start, 16 * HUGE_PAGE, PhysAddr::system(SMALL_PAGE));
    let mut changes = Changes::default();
    let mut calls = 1;
    while world.shadow.reflect(&world.guest, &world.guest, &mut world.host, 1000, &mut changes) == Ok(Progress::More) {
        calls += 1;
        assert!(world.shadow.is_stale());
    }
    assert!((9..20).contains(&calls), "{calls}");
    assert_eq!(world.pages().len(), 16 * 512);
}

#[test]
fn pages_of_the_mediators_own_are_not_the_guests_to_decide() {
    let mut world: World = World::new(LIMIT);
    world.guest.give(PhysAddr::vram(0), 512, PhysAddr::vram(HUGE_PAGE * 9), false);
    let read_only = Rights { read_only: true, ..RW };
    let ring = PhysAddr::vram(1 << 35);
    let own = |world: &mut World, va| {
        let mut changes = Changes::default();
        let mapped = world.shadow.map_own(va, 2 * SMALL_PAGE, ring, read_only, &mut world.host, &mut changes);
        mapped.map(|()| (changes.ranges()[0].clone(), changes.ranges().len()))
    };
    for va in [WINDOW.start, WINDOW.end - SMALL_PAGE, WINDOW.start - SMALL_PAGE] {
        assert_eq!(own(&mut world, va), Err(ShadowError::BadRange { va, bytes: 2 * SMALL_PAGE }));
    }
    let va = WINDOW.end + SMALL_PAGE;
    assert_eq!(own(&mut world, va), Ok((va..va + 2 * SMALL_PAGE, 1)));
    // The guest maps something there, and all around.
    for at in [0, va & !(HUGE_PAGE - 1)] {
        world.space.map(&mut world.guest, at, HUGE_PAGE, PhysAddr::vram(0), RW).unwrap();
    }
    world.shadow.invalidate(0..VA_END);
    world.reflect();
    world.rescan();
    let expect = BTreeMap::from([(va, ring), (va + SMALL_PAGE, ring.offset(SMALL_PAGE))]);
    assert_eq!(world.pages(), expect);
    assert!(translate(&world.host, world.shadow.root(), va, Access::WRITE).is_err());
    world.shadow.unmap_own(va, 2 * SMALL_PAGE, &mut world.host, &mut Changes::default()).unwrap();
    assert!(world.pages().is_empty() && world.shadow.tables() == 1);
}

#[test]
fn what_a_format_cannot_say_is_not_shown() {
    let mut world = World::<LocalTables>::new(LIMIT);
    let (va, at) = (HaswellPpgtt::WINDOW.start, HaswellPpgtt::vram(0));
    // Read-only; another memory; behind the last address of an entry; and one that can be shown.
    let last = PhysAddr::system((1 << 39) - SMALL_PAGE);
    let hosts = [(PhysAddr::system(1 << 20), true), (PhysAddr::vram(0), false), (last.offset(SMALL_PAGE), false)];
    for ((host, read_only), page) in hosts.into_iter().chain([(last, false)]).zip(0..) {
        world.guest.give(at.offset(page * SMALL_PAGE), 1, host, read_only);
    }
    world.map(va, 4 * SMALL_PAGE, at);
    world.reflect();
    assert_eq!(world.pages(), BTreeMap::from([(va + 3 * SMALL_PAGE, last)]));
    // Nor are tables where no entry leads.
    let mut host = Host::new(PhysAddr::vram(0), 10);
    let refused = Shadow::<HaswellPpgtt>::new(&mut host, world.space.root(), HaswellPpgtt::WINDOW, LIMIT);
    assert_eq!(refused.err(), Some(ShadowError::NoMemory));
    assert_eq!(host.live(), 0);
}

#[test]
fn how_a_page_is_cached_is_carried_over() {
    use gpu_spec::haswell_ppgtt::{Pde, Pte};

    let mut world = World::<LocalTables>::new(LIMIT);
    let (va, at) = (HaswellPpgtt::WINDOW.start, HaswellPpgtt::vram(0));
    world.guest.give(at, 1, PhysAddr::system(SMALL_PAGE), false);
    world.map(va, SMALL_PAGE, at);
    world.reflect();
    fn half(mem: &impl PhysMem, at: PhysAddr) -> u32 {
        let mut half = 0;
        mem.read(at, half.as_mut_bytes()).unwrap();
        half
    }
    // Of the first page of a unit: the first entry of the table.
    let directory = HaswellPpgtt::LEVELS[0].index(va) as u64 * 4;
    let [guest, shadow] = [
        half(&world.guest, world.space.root().offset(directory)),
        half(&world.host, world.shadow.root().offset(directory)),
    ]
    .map(|pde| PhysAddr::system(Pde(pde).table().unwrap()));
    for caching in 0..16 {
        world.guest.put_half(guest, Pte::to_page(at.address, caching).0);
        world.shadow.invalidate(va..va + SMALL_PAGE);
        world.reflect();
        assert_eq!(half(&world.host, shadow), Pte::to_page(SMALL_PAGE, caching).0);
    }
}
