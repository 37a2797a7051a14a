//! Arbitrary bytes as a guest's tables, and what it does with them.

mod gmmu2;
mod haswell;

mod tracked;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gpu_spec::mmu::{BIG_PAGE, HUGE_PAGE, PhysAddr, Rights, SMALL_PAGE};

pub use self::tracked::tracked;
use super::memory::{Guest, Host};
use crate::format::{Format, Geometry};
use crate::{Access, Changes, Progress, Shadow, ShadowError, Target, mappings_in, translate_in};

/// Most actions of one run: time is bounded by it.
const MAX_ACTIONS: usize = 48;
/// The same where few addresses are looked at.
const MAX_NARROW: usize = 200;
/// Fewer addresses are few.
const FEW: usize = 100;
/// Pages of the guest's VRAM, and of its system memory, that hold tables.
const TABLES: [u64; 2] = [12, 4];
/// What the host has that is no guest's, and what it has that no guest had.
const OWN_AT: u64 = 1 << 34;
const FRESH: u64 = 1 << 33;

/// What an attack takes of a format.
pub trait Attack: Format {
    /// The addresses of the guest: they begin and end inside of what an entry of each upper level is for.
    const WINDOW: Range<u64>;

    /// VRAM, of the guest's and the host's; in a format without, system memory far up.
    fn vram(at: u64) -> PhysAddr;

    /// Addresses that are looked at: at the edges of entries of all levels, of the window, and of the address space.
    fn interesting() -> Vec<u64>;

    /// A few addresses in two units.
    fn narrow() -> Vec<u64>;

    /// Puts tables there, from the first page of VRAM on, so that there is something to begin with.
    fn begin(guest: &Guest, is_narrow: bool);

    /// Writes one entry, or a run of entries.
    fn write_wide(guest: &Guest, input: &mut Input<'_>);

    /// Writes an entry that decides about the few addresses.
    fn write_narrow(guest: &Guest, input: &mut Input<'_>);

    /// Where the mediator has pages of its own.
    fn own() -> [u64; 3] {
        [SMALL_PAGE, Self::WINDOW.start - HUGE_PAGE + BIG_PAGE, Self::WINDOW.end + SMALL_PAGE]
    }
}

/// Bytes as decisions; when they are used up, zeros.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u64 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        u64::from(first)
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | self.byte())
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.byte() as usize % of.len()]
    }

    fn rights(&mut self) -> Rights {
        let bits = self.byte();
        Rights { read_only: bits & 1 != 0, privileged: bits & 2 != 0, atomic_disable: bits & 4 != 0 }
    }

    /// A page that holds one of the guest's tables.
    fn table<F: Attack>(&mut self) -> PhysAddr {
        let page = self.byte() % (TABLES[0] + TABLES[1]);
        if page < TABLES[0] { F::vram(page * SMALL_PAGE) } else { PhysAddr::system((page - TABLES[0]) * SMALL_PAGE) }
    }

    /// Guest memory for a page, at one of a few places, of which one is not granted at first.
    fn narrow_memory<F: Attack>(&mut self) -> PhysAddr {
        let vram = |unit: u64| F::vram(unit * HUGE_PAGE);
        let at = self.pick(&[vram(2), vram(3), vram(6), PhysAddr::system(HUGE_PAGE)]);
        at.offset(self.pick(&[0, 0, SMALL_PAGE, BIG_PAGE]))
    }

    /// Guest memory for a page: mostly granted.
    fn memory<F: Attack>(&mut self) -> PhysAddr {
        let at = match self.byte() % 4 {
            0 => self.byte() * SMALL_PAGE,
            1 => self.byte() * BIG_PAGE,
            _ => self.byte() % 8 * HUGE_PAGE,
        };
        if self.byte().is_multiple_of(3) { PhysAddr::system(at) } else { F::vram(at) }
    }

    /// A range that an invalidate names, around one of some addresses.
    fn range<F: Attack>(&mut self, addresses: &[Looked]) -> Range<u64> {
        let at = addresses[self.byte() as usize * 3 % addresses.len()].va;
        let bytes = self.pick(&[SMALL_PAGE, SMALL_PAGE, BIG_PAGE, BIG_PAGE, HUGE_PAGE, 1 << 29, 1 << 38, F::VA_END]);
        let start = at & !(bytes - 1);
        start..start + bytes
    }
}

/// What an access by the device leads to.
type Seen = Option<(Target, Rights)>;

const READ: Access = Access { privileged: true, ..Access::READ };

/// An address as the two-step walk has it: the guest's tables, then the grant.
fn two_steps<F: Format>(guest: &Guest, root: PhysAddr, va: u64) -> Seen {
    let found = translate_in::<F>(guest, root, va, READ).ok()?;
    let Target::Memory(at) = found.target else { return Some((Target::Sparse, Rights::default())) };
    let (host, read_only) = guest.page(at)?;
    let rights = Rights { read_only: found.rights.read_only || read_only, ..found.rights };
    F::to_page(host, rights)?;
    Some((Target::Memory(host.offset(at.address % SMALL_PAGE)), rights))
}

fn shown<F: Format>(host: &Host, shadow: &Shadow<F>, va: u64) -> Seen {
    let found = translate_in::<F>(host, shadow.root(), va, READ).ok()?;
    Some((found.target, found.rights))
}

/// An address that is looked at.
struct Looked {
    va: u64,
    /// What the shadow may show.
    may: Vec<Seen>,
    /// The guest has named it since the shadow was last done.
    invalidated: bool,
    /// What the shadow showed after the last call.
    shown: Seen,
}

/// A guest with its shadow, and what is known of both.
struct World<F: Format> {
    guest: Guest,
    root: PhysAddr,
    host: Host,
    shadow: Shadow<F>,
    /// Tables may be missing.
    tight: bool,
    looked: Vec<Looked>,
    own: BTreeMap<u64, PhysAddr>,
    /// Where the host has memory that no guest had.
    fresh: u64,
}

/// What a guest has at first: pages that are contiguous for the host with every alignment, with gaps, and read-only.
fn memory<F: Attack>() -> Guest {
    let mut guest = Guest::default();
    let (huge, page) = (HUGE_PAGE / SMALL_PAGE, SMALL_PAGE);
    guest.give(F::vram(0), 3 * huge, F::vram(64 * HUGE_PAGE), false);
    guest.give(F::vram(3 * HUGE_PAGE), huge, F::vram(80 * HUGE_PAGE + BIG_PAGE), false);
    guest.give(F::vram(4 * HUGE_PAGE), huge + 7, F::vram(90 * HUGE_PAGE + page), false);
    guest.give(PhysAddr::system(0), huge, PhysAddr::system(7 * HUGE_PAGE + 3 * page), false);
    guest.give(PhysAddr::system(HUGE_PAGE), huge, PhysAddr::system(20 * HUGE_PAGE), true);
    for chunk in 0..huge / 16 {
        let host = PhysAddr::system((1 << 32) + chunk * 0x1_1000 % 0x20_0000 * 16);
        guest.give(PhysAddr::system(2 * HUGE_PAGE + chunk * BIG_PAGE), 16, host, false);
    }
    guest
}

impl<F: Attack> World<F> {
    fn new(input: &mut Input<'_>, is_narrow: bool) -> World<F> {
        let (guest, root) = (memory::<F>(), F::vram(0));
        F::begin(&guest, is_narrow);
        let limit = input.pick(&[12, 64, 600, 600]);
        let tables = input.pick(&[10, 50, 2000, 2000]);
        let mut host = Host::new(F::vram(0), tables);
        let shadow = Shadow::new(&mut host, root, F::WINDOW, limit).unwrap();
        let addresses = if is_narrow { F::narrow() } else { F::interesting() };
        let looked = addresses.into_iter().map(|va| Looked { va, may: vec![None], invalidated: true, shown: None });
        let looked = looked.collect();
        World {
            guest,
            root,
            host,
            shadow,
            tight: limit < 600 || tables < 2000,
            looked,
            own: BTreeMap::new(),
            fresh: FRESH,
        }
    }

    /// The guest's tables or its grant have changed.
    fn changed(&mut self) {
        for at in self.looked.iter_mut().filter(|at| F::WINDOW.contains(&at.va)) {
            let now = two_steps::<F>(&self.guest, self.root, at.va);
            if !at.may.contains(&now) {
                at.may.push(now);
            }
        }
    }

    /// Something may have been taken out.
    fn may_fault(&mut self) {
        self.looked.iter_mut().for_each(|at| at.may.push(None));
    }

    /// What holds at any time: nothing is shown that is not granted, and who has changed what is shown has said so.
    fn check(&mut self, changes: &Changes) {
        let pages = self.guest.host_pages();
        let own: HashMap<PhysAddr, u64> = self.own.iter().map(|(va, at)| (*at, *va)).collect();
        let listing = mappings_in::<F>(&self.host, self.shadow.root(), 0..F::VA_END, u32::MAX);
        for run in &listing.runs {
            let inside = F::WINDOW.start <= run.va && run.va + run.bytes <= F::WINDOW.end;
            let Target::Memory(at) = run.target else {
                assert!(inside, "{:#x} is sparse, and not the guest's", run.va);
                continue;
            };
            for (va, at) in (0..run.bytes).step_by(SMALL_PAGE as usize).map(|skip| (run.va + skip, at.offset(skip))) {
                if F::WINDOW.contains(&va) {
                    let read_only = pages.get(&at).unwrap_or_else(|| panic!("{va:#x} leads to {at:x?}: not granted"));
                    assert!(run.rights.read_only || !read_only, "{va:#x} leads to {at:x?}, may be written");
                } else {
                    assert_eq!(own.get(&at), Some(&va), "{va:#x} leads to {at:x?}");
                }
            }
        }
        assert_eq!(self.host.live(), self.shadow.tables() as usize);
        for at in &mut self.looked {
            let now = shown(&self.host, &self.shadow, at.va);
            let run = listing.runs[..listing.runs.partition_point(|run| run.va <= at.va)].last();
            let run = run.filter(|run| at.va - run.va < run.bytes);
            let listed = run.map(|run| (run.target.offset(at.va - run.va), run.rights));
            assert_eq!(now, listed, "{:#x}", at.va);
            let told = changes.ranges().iter().any(|range| range.contains(&at.va));
            assert!(now == at.shown || told, "{:#x}: {:x?} became {now:x?}", at.va, at.shown);
            at.shown = now;
            if F::WINDOW.contains(&at.va) {
                assert!(at.may.contains(&now), "{:#x} leads to {now:x?}, and not to one of {:x?}", at.va, at.may);
            } else {
                assert_eq!(now.is_some(), self.own.contains_key(&at.va), "{:#x}", at.va);
            }
        }
    }

    /// A submission: the shadow follows, in calls of some size.
    fn reflect(&mut self, budget: u64, naive: bool) {
        let mut changes = Changes::default();
        // Whatever the tables say: a pass reads no more than is promised, each read takes 512 entries at most, and tables
        // that were missing are asked for twice.
        let most = (600 + u64::from(crate::MOST_IN_VAIN)) * 2 * 1100;
        let mut first = naive;
        let old = self.host.record();
        let done = loop {
            let before = changes.work;
            let World { guest, host, shadow, .. } = self;
            let done = if std::mem::take(&mut first) {
                shadow.rescan(guest, guest, host, budget, &mut changes)
            } else {
                shadow.reflect(guest, guest, host, budget, &mut changes)
            };
            assert!(changes.work.entries_scanned - before.entries_scanned <= budget + 1100);
            assert!(changes.work.entries_scanned <= most, "no end");
            match done {
                Ok(Progress::More) => {}
                Ok(Progress::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.watch(old);
        self.changed();
        match done {
            Ok(()) => {
                assert!(!self.shadow.is_stale());
                for at in self.looked.iter_mut().filter(|at| at.invalidated && F::WINDOW.contains(&at.va)) {
                    at.may = vec![two_steps::<F>(&self.guest, self.root, at.va)];
                }
            }
            Err(error) => {
                assert!(matches!(error, ShadowError::TooManyTables { .. } | ShadowError::NoMemory), "{error}");
                assert!(self.shadow.is_stale());
                self.may_fault();
            }
        }
        self.check(&changes);
        // What has been looked at counts as shown, even if the rest could not be.
        for at in self.looked.iter_mut().filter(|at| F::WINDOW.contains(&at.va)) {
            at.may = vec![at.shown, two_steps::<F>(&self.guest, self.root, at.va)];
            at.invalidated = false;
        }
    }

    /// What a device sees that walks while tables are written: of each address what was there before, or what will be.
    fn watch(&mut self, mut host: Host) {
        let writes = self.host.recorded();
        if self.looked.len() >= FEW || self.tight {
            return;
        }
        let after: Vec<Seen> = self.looked.iter().map(|at| shown(&self.host, &self.shadow, at.va)).collect();
        for (to, data) in writes {
            host.repeat(to, &data);
            for (at, after) in self.looked.iter().zip(&after) {
                let now = shown(&host, &self.shadow, at.va);
                // A directory's entry that is sparse is cut before there are tables in its place.
                let was_sparse = matches!(at.shown, Some((Target::Sparse, _))) && now.is_none();
                let fine = now == at.shown || now == *after || was_sparse;
                assert!(fine, "{:#x}: {:x?} became {now:x?} before {after:x?}", at.va, at.shown);
            }
        }
    }

    fn invalidate(&mut self, range: Range<u64>) {
        self.shadow.invalidate(range.clone());
        self.looked.iter_mut().filter(|at| range.contains(&at.va)).for_each(|at| at.invalidated = true);
    }

    /// A submission while another processor of the guest's writes its tables.
    fn race(&mut self, seed: u64) {
        let mut changes = Changes::default();
        self.guest.race.set(Some(seed));
        let _ = self.shadow.reflect(&self.guest, &self.guest, &mut self.host, 1 << 14, &mut changes);
        self.guest.race.set(None);
        // What it shows is some mix.
        for at in &mut self.looked {
            at.may.push(shown(&self.host, &self.shadow, at.va));
        }
        self.check(&changes);
        self.invalidate(0..F::VA_END);
        self.changed();
    }

    fn revoke(&mut self, first: PhysAddr, pages: u64) {
        let mut changes = Changes::default();
        let old = self.host.record();
        for page in (0..pages).map(|page| first.offset(page * SMALL_PAGE)) {
            if let Some(lost) = self.guest.take(page) {
                self.shadow.revoke(lost, SMALL_PAGE, &mut self.host, &mut changes).unwrap();
            }
        }
        self.watch(old);
        self.may_fault();
        self.changed();
        self.check(&changes);
    }

    /// The guest gets other memory for pages that were taken away. It invalidates what leads there, or the shadow is told.
    fn give(&mut self, at: PhysAddr, pages: u64, input: &mut Input<'_>) {
        let host = F::vram(self.fresh);
        self.fresh += 2 * HUGE_PAGE + input.pick(&[0, BIG_PAGE, SMALL_PAGE]);
        self.guest.give(at, pages, host, input.byte().is_multiple_of(4));
        self.changed();
        if input.byte().is_multiple_of(2) {
            self.shadow.granted();
        } else {
            let range = input.range::<F>(&self.looked);
            self.invalidate(range);
        }
    }

    fn own(&mut self, va: u64, map: bool, rights: Rights) {
        let mut changes = Changes::default();
        let at = F::vram(OWN_AT + va % (1 << 32));
        let mapped = if map {
            self.shadow.map_own(va, SMALL_PAGE, at, rights, &mut self.host, &mut changes)
        } else {
            self.shadow.unmap_own(va, SMALL_PAGE, &mut self.host, &mut changes)
        };
        self.own.remove(&va);
        match mapped {
            Ok(()) if map => drop(self.own.insert(va, at)),
            Ok(()) | Err(ShadowError::TooManyTables { .. } | ShadowError::NoMemory) => {}
            Err(ShadowError::NotGranted(_)) if F::to_page(at, rights).is_none() => {}
            Err(error) => panic!("{error}"),
        }
        self.check(&changes);
    }
}

/// A guest that writes its tables, invalidates and submits as `data` says; beside it, the two-step walk.
///
/// # Panics
/// If the shadow ever grants what is not granted, or shows at a submission what the two steps do not.
pub fn guest<F: Attack>(data: &[u8]) {
    let mut input = Input(data);
    let is_narrow = !input.byte().is_multiple_of(4);
    let actions = if is_narrow { MAX_NARROW } else { MAX_ACTIONS };
    let mut world = World::<F>::new(&mut input, is_narrow);
    for _ in 0..actions {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=4 if is_narrow => {
                F::write_narrow(&world.guest, &mut input);
                world.changed();
            }
            5..=8 if is_narrow => {
                let range = input.range::<F>(&world.looked);
                world.invalidate(range);
                world.reflect(1 << 20, false);
            }
            0..=6 => {
                F::write_wide(&world.guest, &mut input);
                world.changed();
            }
            7..=9 => {
                let range = input.range::<F>(&world.looked);
                world.invalidate(range);
            }
            10 => {
                world.invalidate(0..F::VA_END);
                world.reflect(1 << 20, false);
            }
            11 => world.reflect(1 << 20, false),
            12 => match input.byte() % 4 {
                0 => {
                    world.invalidate(0..F::VA_END);
                    world.reflect(4096, true);
                }
                _ => world.reflect(8 + input.byte() * 20, false),
            },
            13 if input.byte().is_multiple_of(4) => world.race(input.word()),
            13 | 14 => {
                let at = if is_narrow { input.narrow_memory::<F>() } else { input.memory::<F>() };
                let pages = input.pick(&[1, 3, 16, 40, 512]);
                world.revoke(at, pages);
                if !input.byte().is_multiple_of(4) {
                    world.give(at, pages, &mut input);
                }
            }
            _ => {
                let (va, map, rights) = (input.pick(&F::own()), !input.byte().is_multiple_of(3), input.rights());
                world.own(va, map, rights);
            }
        }
    }
    world.invalidate(0..F::VA_END);
    world.reflect(1 << 20, false);
    let World { shadow, mut host, .. } = world;
    shadow.destroy(&mut host);
    assert_eq!(host.live(), 0, "tables are lost");
}

/// A guest that enters and removes pages by hypercall as `data` says; beside it, a map of pages.
///
/// # Panics
/// If the two differ.
pub fn para_virtualized<F: Attack>(data: &[u8]) {
    let mut input = Input(data);
    let (limit, tables) = (input.pick(&[9, 600, 600]), input.pick(&[9, 2000, 2000]));
    let tight = limit == 9 || tables == 9;
    let (mut guest, mut host) = (memory::<F>(), Host::new(F::vram(0), tables));
    let mut shadow = Shadow::<F>::entered(&mut host, F::WINDOW, limit).unwrap();
    let mut model: BTreeMap<u64, (PhysAddr, Rights)> = BTreeMap::new();
    for _ in 0..MAX_ACTIONS {
        if input.0.is_empty() {
            break;
        }
        let mut changes = Changes::default();
        let base = input.pick(&[F::WINDOW.start, 1 << 29, F::WINDOW.end - 2 * HUGE_PAGE]);
        let va = base + input.pick(&[0, SMALL_PAGE, BIG_PAGE, HUGE_PAGE - BIG_PAGE, HUGE_PAGE]);
        let count = input.pick(&[1, 2, 16, 40, 512, 513, 1024]);
        let bytes = count * SMALL_PAGE;
        let inside = va + bytes <= F::WINDOW.end;
        let pages = (0..count).map(|page| (va + page * SMALL_PAGE, page * SMALL_PAGE));
        let kind = input.byte() % 4;
        let revoked = kind == 3;
        let done = match kind {
            0 | 1 => {
                let at = input.memory::<F>();
                let rights = if input.byte().is_multiple_of(2) { Rights::default() } else { input.rights() };
                let done = shadow.enter(va, bytes, at, rights, &guest, &mut host, &mut changes);
                let page = |skip: u64| {
                    let (at, read_only) = guest.page(at.offset(skip))?;
                    let rights = Rights { read_only: rights.read_only || read_only, ..rights };
                    F::to_page(at, rights).map(|_| (at, rights))
                };
                let granted: Vec<_> = pages.clone().map(|(_, skip)| page(skip)).collect();
                if inside && let Some(first) = granted.iter().position(Option::is_none) {
                    let at = at.offset(first as u64 * SMALL_PAGE);
                    assert_eq!(done, Err(ShadowError::NotGranted(at)));
                } else if done.is_ok() {
                    for ((va, _), granted) in pages.clone().zip(granted) {
                        model.insert(va, granted.unwrap());
                    }
                }
                done
            }
            2 => {
                let done = shadow.remove(va, bytes, &mut host, &mut changes);
                if done.is_ok() {
                    model.retain(|at, _| !(va..va + bytes).contains(at));
                }
                done
            }
            _ => {
                let first = input.memory::<F>();
                let mut done = Ok(());
                for page in 0..input.byte() % 32 {
                    if let Some(lost) = guest.take(first.offset(page * SMALL_PAGE)) {
                        done = done.and(shadow.revoke(lost, SMALL_PAGE, &mut host, &mut changes));
                        model.retain(|_, (at, _)| *at != lost);
                    }
                }
                done
            }
        };
        let mut seen = BTreeMap::new();
        for run in mappings_in::<F>(&host, shadow.root(), 0..F::VA_END, u32::MAX).runs {
            let Target::Memory(at) = run.target else { panic!("nobody has entered a sparse page") };
            let pages = (0..run.bytes).step_by(SMALL_PAGE as usize);
            seen.extend(pages.map(|skip| (run.va + skip, (at.offset(skip), run.rights))));
        }
        if tight && revoked {
            // Without tables to split a page it is gone whole.
            model.retain(|at, _| seen.contains_key(at));
        }
        match done {
            Ok(()) | Err(ShadowError::NotGranted(_)) => {}
            Err(ShadowError::BadRange { .. }) => assert!(!inside),
            // Where tables are missing, what was there before is there or not, and nothing else.
            Err(error) => {
                assert!(tight, "{error}");
                model.retain(|at, page| seen.get(at) == Some(page) || !(va..va + bytes).contains(at));
            }
        }
        if let Some((va, page)) = seen.iter().find(|(va, page)| model.get(va) != Some(page)) {
            panic!("{va:#x} leads to {page:x?}, and not to {:x?}", model.get(va));
        }
        assert_eq!(seen.len(), model.len());
        assert_eq!(host.live(), shadow.tables() as usize);
    }
    shadow.destroy(&mut host);
    assert_eq!(host.live(), 0, "tables are lost");
}
