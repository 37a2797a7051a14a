//! The editor against a naive map, the walker against the listing, and both against garbage.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use gmmu::{Access, AddressSpace, BadAddress, EditError, PhysMem, TableMemory, Target, mappings, translate};
use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{Aperture, BIG_PAGE, DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, Rights, SMALL_PAGE, VA_END};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// VRAM of a few KiB that hands out tables, at most `left` of them.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    next: u64,
    left: u32,
    live: HashMap<PhysAddr, u64>,
}

impl Memory {
    fn new(tables: u32) -> Memory {
        Memory { bytes: Mutex::new(vec![0; 8 << 20]), next: 0x1000, left: tables, live: HashMap::new() }
    }
}

impl PhysMem for Memory {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let bytes = self.bytes.lock().unwrap();
        let start = usize::try_from(at.address).map_err(|_| BadAddress(at))?;
        let end = start.checked_add(out.len()).ok_or(BadAddress(at))?;
        if at.aperture != Aperture::Vram {
            return Err(BadAddress(at));
        }
        out.copy_from_slice(bytes.get(start..end).ok_or(BadAddress(at))?);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let mut bytes = self.bytes.lock().unwrap();
        let start = usize::try_from(at.address).map_err(|_| BadAddress(at))?;
        bytes.get_mut(start..start + data.len()).ok_or(BadAddress(at))?.copy_from_slice(data);
        Ok(())
    }
}

impl TableMemory for Memory {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        self.left = self.left.checked_sub(1)?;
        let at = PhysAddr::vram(self.next.next_multiple_of(bytes));
        self.next = at.address + bytes;
        self.write(at, &vec![0; bytes as usize]).ok()?;
        self.live.insert(at, bytes);
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        assert_eq!(self.live.remove(&at), Some(bytes), "freed what is not allocated");
        self.left += 1;
    }
}

/// The addresses that the tests play with: the edges of a few huge pages, two of them far apart.
const BASES: [u64; 3] = [0, HUGE_PAGE * 3, (1 << 47) - HUGE_PAGE * 4];
const SPAN: u64 = HUGE_PAGE * 5;

#[derive(Clone, Debug)]
enum Edit {
    Map { va: u64, pages: u64, at: u64, system: bool, read_only: bool },
    Unmap { va: u64, pages: u64 },
}

fn edit() -> impl Strategy<Value = Edit> {
    // Lengths and alignments of every page size, and odd ones.
    let unit = prop_oneof![Just(1u64), Just(16), Just(512)];
    let va = (0..BASES.len(), 0..SPAN / SMALL_PAGE, unit.clone())
        .prop_map(|(base, page, unit)| BASES[base] + page / unit * unit * SMALL_PAGE);
    let pages = (1u64..40, unit).prop_map(|(count, unit)| (count * unit).min(1100));
    let map = (va.clone(), pages.clone(), 0u64..4096, any::<(bool, bool, bool)>()).prop_map(
        |(va, pages, at, (aligned, system, read_only))| {
            let at = if aligned { (1 << 30) + va % HUGE_PAGE } else { at * SMALL_PAGE };
            Edit::Map { va, pages, at, system, read_only }
        },
    );
    prop_oneof![map, (va, pages).prop_map(|(va, pages)| Edit::Unmap { va, pages })]
}

fn pages(va: u64, pages: u64) -> impl Iterator<Item = u64> {
    (0..pages).map(move |page| va + page * SMALL_PAGE)
}

fn as_pages(mem: &Memory, space: &AddressSpace) -> BTreeMap<u64, (PhysAddr, Rights)> {
    let mut out = BTreeMap::new();
    for run in mappings(mem, space.root(), 0..VA_END, u32::MAX).runs {
        for offset in (0..run.bytes).step_by(SMALL_PAGE as usize) {
            let Target::Memory(at) = run.target.offset(offset) else { panic!("the editor made a sparse page") };
            assert!(out.insert(run.va + offset, (at, run.rights)).is_none());
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_editor_agrees_with_a_naive_map(edits in prop::collection::vec(edit(), 1..24), tables in 4u32..40) {
        let mut mem = Memory::new(tables);
        let mut space = AddressSpace::create(&mut mem).unwrap();
        let mut model: BTreeMap<u64, (PhysAddr, Rights)> = BTreeMap::new();
        for edit in edits {
            match edit {
                Edit::Map { va, pages: count, at, system, read_only } => {
                    let at = if system { PhysAddr::system(at) } else { PhysAddr::vram(at) };
                    let rights = Rights { read_only, ..Rights::default() };
                    let taken = pages(va, count).any(|page| model.contains_key(&page));
                    match space.map(&mut mem, va, count * SMALL_PAGE, at, rights) {
                        Ok(()) => {
                            prop_assert!(!taken);
                            for (index, page) in pages(va, count).enumerate() {
                                model.insert(page, (at.offset(index as u64 * SMALL_PAGE), rights));
                            }
                        }
                        Err(EditError::AlreadyMapped(_)) => prop_assert!(taken),
                        Err(error) => prop_assert_eq!(error, EditError::NoMemory),
                    }
                }
                Edit::Unmap { va, pages: count } => match space.unmap(&mut mem, va, count * SMALL_PAGE) {
                    Ok(()) => pages(va, count).for_each(|page| { model.remove(&page); }),
                    Err(error) => {
                        prop_assert_eq!(error, EditError::NoMemory);
                        // Part of the range may be gone, nothing else.
                        let now = as_pages(&mem, &space);
                        for page in pages(va, count) {
                            if !now.contains_key(&page) {
                                model.remove(&page);
                            }
                        }
                    }
                },
            }
            prop_assert_eq!(&as_pages(&mem, &space), &model);
        }
        for (&page, &(at, rights)) in model.iter().step_by(7) {
            let found = translate(&mem, space.root(), page + 5, Access::READ).unwrap();
            prop_assert_eq!((found.target, found.rights), (Target::Memory(at.offset(5)), rights));
            let write = translate(&mem, space.root(), page, Access::WRITE).map(|t| t.target);
            let expected = if rights.read_only { Err(FaultType::RO_VIOLATION) } else { Ok(Target::Memory(at)) };
            prop_assert_eq!(write, expected);
        }
        space.destroy(&mut mem);
        prop_assert!(mem.live.is_empty(), "tables leaked");
    }

    #[test]
    fn garbage_ends_and_both_readers_agree(seed in any::<[u64; 8]>(), tables in 1u32..200) {
        // A few pages of entries that mostly point at each other, of every meaning.
        let mem = Memory::new(0);
        let mut state = seed;
        let mut next = || {
            for index in 0..8 {
                state[index] = state[index].rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ state[(index + 1) % 8];
            }
            state[0]
        };
        for slot in 0..8 * 512u64 {
            let raw = next();
            let value = match raw >> 60 {
                0..=8 => (raw % 8) << 8 | 1 << 1,
                9..=11 => raw & !(1 << 3),
                12 => Pte::to_page(PhysAddr::vram(raw & 0xfff_f000), Rights::default()).0,
                13 => Pte::SPARSE.0,
                14 => raw & !0x7 | 1 << 3,
                _ => 0,
            };
            mem.write(PhysAddr::vram(slot * 8), value.as_bytes()).unwrap();
        }
        let root = PhysAddr::vram(0);
        let listing = mappings(&mem, root, 0..VA_END, tables);
        prop_assert!(listing.runs.windows(2).all(|w| w[0].va + w[0].bytes <= w[1].va));
        let shown = |va: u64| listing.runs.iter().any(|run| run.va <= va && va - run.va < run.bytes);
        for _ in 0..64 {
            let va = next() % VA_END;
            let privileged = Access { privileged: true, ..Access::READ };
            let found = translate(&mem, root, va, privileged);
            prop_assert!(found.is_ok() || !shown(va), "{va:#x} listed, but {found:?}");
        }
        for run in listing.runs.iter().take(64) {
            let privileged = Access { privileged: true, ..Access::READ };
            let found = translate(&mem, root, run.va, privileged).unwrap();
            prop_assert_eq!(found.target, run.target);
        }
    }
}

#[test]
fn the_largest_pages_that_fit_are_used() {
    let mut mem = Memory::new(100);
    let mut space = AddressSpace::create(&mut mem).unwrap();
    let at = PhysAddr::vram(HUGE_PAGE * 8 + HUGE_PAGE - BIG_PAGE - SMALL_PAGE);
    let va = HUGE_PAGE * 5 - BIG_PAGE - SMALL_PAGE;
    space.map(&mut mem, va, HUGE_PAGE + BIG_PAGE + 2 * SMALL_PAGE, at, Rights::default()).unwrap();
    let page = |va| translate(&mem, space.root(), va, Access::READ).unwrap().page_bytes;
    assert_eq!(page(va), SMALL_PAGE);
    assert_eq!(page(va + SMALL_PAGE), BIG_PAGE);
    assert_eq!(page(HUGE_PAGE * 5), HUGE_PAGE);
    assert_eq!(page(HUGE_PAGE * 6), SMALL_PAGE);
    assert_eq!(mappings(&mem, space.root(), 0..VA_END, 100).runs.len(), 1);
    let part = mappings(&mem, space.root(), HUGE_PAGE * 5 + SMALL_PAGE..HUGE_PAGE * 5 + 3 * SMALL_PAGE, 100).runs;
    let expect = Target::Memory(PhysAddr::vram(HUGE_PAGE * 9 + SMALL_PAGE));
    assert_eq!((part[0].bytes, part[0].target), (2 * SMALL_PAGE, expect));
}

#[test]
fn each_fault_has_its_type() {
    let mem = Memory::new(0);
    let (root, dir2, dir1, dir0, small) = (0x1000, 0x2000, 0x3000, 0x4000, 0x5000);
    for (at, to) in [(root, dir2), (dir2, dir1), (dir1, dir0)] {
        mem.write(PhysAddr::vram(at), Pde::to_table(PhysAddr::vram(to)).as_bytes()).unwrap();
    }
    let dual = DualPde::to_tables(None, Some(PhysAddr::vram(small)));
    mem.write(PhysAddr::vram(dir0), dual.as_bytes()).unwrap();
    let page = PhysAddr::vram(0x8000);
    let entries = [
        Pte::INVALID,
        Pte::to_page(page, Rights { privileged: true, ..Rights::default() }),
        Pte::to_page(page, Rights { read_only: true, ..Rights::default() }),
        Pte::to_page(page, Rights { atomic_disable: true, ..Rights::default() }),
        Pte(Pte::to_page(page, Rights::default()).0 | 1 << 1),
        Pte(Pte::to_page(page, Rights::default()).0 | 1 << 63),
        Pte::SPARSE,
    ];
    mem.write(PhysAddr::vram(small), entries.as_bytes()).unwrap();
    let fault = |va, access| translate(&mem, PhysAddr::vram(root), va, access).map(|t| t.target);
    assert_eq!(fault(0, Access::READ), Err(FaultType::PTE));
    assert_eq!(fault(0x1000, Access::READ), Err(FaultType::PRIV_VIOLATION));
    assert_eq!(fault(0x2000, Access::WRITE), Err(FaultType::RO_VIOLATION));
    assert_eq!(fault(0x2000, Access::READ), Ok(Target::Memory(page)));
    assert_eq!(fault(0x3000, Access::ATOMIC), Err(FaultType::ATOMIC_VIOLATION));
    assert_eq!(fault(0x4000, Access::READ), Err(FaultType::UNSUPPORTED_APERTURE));
    assert_eq!(fault(0x5000, Access::READ), Err(FaultType::UNSUPPORTED_KIND));
    assert_eq!(fault(0x6000, Access::WRITE), Ok(Target::Sparse));
    assert_eq!(fault(HUGE_PAGE, Access::READ), Err(FaultType::PDE));
    assert_eq!(fault(VA_END, Access::READ), Err(FaultType::VA_LIMIT_VIOLATION));
}

#[test]
fn entries_of_all_levels_can_be_sparse() {
    let mem = Memory::new(0);
    let (root, dir2, dir1, dir0, big) = (0x1000, 0x2000, 0x3000, 0x4000, 0x5000);
    let put = |at: u64, value: &[u8]| mem.write(PhysAddr::vram(at), value).unwrap();
    for (at, to) in [(root, dir2), (dir2, dir1), (dir1, dir0)] {
        put(at, Pde::to_table(PhysAddr::vram(to)).as_bytes());
        put(at + 8, Pde::SPARSE.as_bytes());
    }
    let page = PhysAddr::vram(0x80_0000);
    put(dir0, DualPde::to_page(Pte::to_page(page, Rights::default())).as_bytes());
    put(dir0 + 16, DualPde::SPARSE.as_bytes());
    put(dir0 + 32, DualPde::to_tables(Some(PhysAddr::vram(big)), None).as_bytes());
    put(big, Pte::SPARSE.as_bytes());
    let runs = mappings(&mem, PhysAddr::vram(root), 0..VA_END, 100).runs;
    let seen: Vec<_> = runs.iter().map(|run| (run.va, run.va + run.bytes, run.target)).collect();
    let expect = [
        (0, HUGE_PAGE, Target::Memory(page)),
        (HUGE_PAGE, 2 * HUGE_PAGE + BIG_PAGE, Target::Sparse),
        (1 << 29, 2 << 29, Target::Sparse),
        (1 << 38, 2 << 38, Target::Sparse),
        (1 << 47, 2 << 47, Target::Sparse),
    ];
    assert_eq!(seen, expect);
    for (va, page_bytes) in [(HUGE_PAGE, HUGE_PAGE), (2 * HUGE_PAGE, BIG_PAGE), (1 << 29, 1 << 29), (1 << 47, 1 << 47)]
    {
        let found = translate(&mem, PhysAddr::vram(root), va + 5, Access::ATOMIC).unwrap();
        assert_eq!((found.target, found.page_bytes), (Target::Sparse, page_bytes));
    }
}
