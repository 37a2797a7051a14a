//! Times shadow page tables on memory that costs nothing: `cargo run --release -p gmmu --example shadow`.
//!
//! Prints nanoseconds for an entry, medians over rounds: what the engine itself costs. What a guest's memory costs to read
//! (traps above all) comes on top: by the tables read.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement is printed, or ends")]

use std::any::type_name;
use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use gmmu::testing::{Driver, LocalTables};
use gmmu::{AddressSpace, BadAddress, Changes, Grant, Granted, PhysMem, Progress, Shadow, TableMemory, Work};
use gpu_spec::mmu::{BIG_PAGE, HUGE_PAGE, PhysAddr, Rights, SMALL_PAGE};

/// Units of 2 MiB that are mapped.
const UNITS: u64 = 512;
const MAPPED: Range<u64> = 0..UNITS * HUGE_PAGE;
const ROUNDS: usize = 21;
const VRAM: PhysAddr = PhysAddr::vram(SMALL_PAGE);
const RW: Rights = Rights { read_only: false, privileged: false, atomic_disable: false };

/// Memory that holds nothing but tables.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    next: PhysAddr,
    free: Vec<PhysAddr>,
}

impl Memory {
    fn new(at: PhysAddr) -> Memory {
        Memory { bytes: RefCell::new(vec![0; 32 << 20]), next: at, free: Vec::new() }
    }

    fn range(at: PhysAddr, bytes: usize) -> Range<usize> {
        at.address as usize..at.address as usize + bytes
    }
}

impl PhysMem for Memory {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        out.copy_from_slice(self.bytes.borrow().get(Memory::range(at, out.len())).ok_or(BadAddress(at))?);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        self.bytes.borrow_mut().get_mut(Memory::range(at, data.len())).ok_or(BadAddress(at))?.copy_from_slice(data);
        Ok(())
    }
}

impl TableMemory for Memory {
    fn alloc(&mut self, _: u64) -> Option<PhysAddr> {
        let at = self.free.pop().unwrap_or_else(|| {
            let at = self.next;
            self.next = at.offset(SMALL_PAGE);
            at
        });
        self.bytes.get_mut().get_mut(Memory::range(at, SMALL_PAGE as usize))?.fill(0);
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, _: u64) {
        self.free.push(at);
    }
}

/// The guest's memory is the host's, a way further, in pieces.
struct Pieces(u64);

impl Grant for Pieces {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        let bytes = self.0 - at.address % self.0;
        Some(Granted { at: at.offset(1 << 33), bytes, read_only: false })
    }
}

/// The work of a round, and how long it takes.
fn median(what: &str, mut round: impl FnMut(usize) -> (u64, Work)) {
    let mut rounds: Vec<(u64, Work)> = (0..ROUNDS).map(&mut round).collect();
    rounds.sort_by_key(|(ns, _)| *ns);
    let (ns, work) = rounds[ROUNDS / 2];
    let each = |count: u64| if count == 0 { "-".into() } else { format!("{:.1}", ns as f64 / count as f64) };
    let Work { entries_scanned, tables_read, updates } = work;
    println!(
        "{what:<44} {:>9.1} us {entries_scanned:>8} scanned {tables_read:>6} read {updates:>8} updated {:>9} {:>9}",
        ns as f64 / 1000.0,
        each(entries_scanned),
        each(updates),
    );
}

fn timed(run: impl FnOnce(&mut Changes)) -> (u64, Work) {
    let mut changes = Changes::default();
    let start = Instant::now();
    run(&mut changes);
    (start.elapsed().as_nanos() as u64, changes.work)
}

fn scanned<D: Driver>(tables: PhysAddr, page: u64) {
    let grant = Pieces(HUGE_PAGE);
    let (mut guest, mut host) = (Memory::new(tables), Memory::new(tables));
    let mut space = D::create(&mut guest);
    // What is mapped is aligned to these pages, and no more.
    space.map(&mut guest, 0, MAPPED.end, PhysAddr::system(if page == HUGE_PAGE { 0 } else { page })).unwrap();
    let reflect = |shadow: &mut Shadow<D::Format>, guest: &Memory, host: &mut Memory, changes: &mut Changes| {
        assert_eq!(shadow.reflect(guest, &grant, host, u64::MAX, changes), Ok(Progress::Done));
    };
    println!("{}, pages of {} KiB", type_name::<D::Format>(), page >> 10);
    median("  first", |_| {
        let mut shadow = Shadow::new(&mut host, space.root(), MAPPED, 10_000).unwrap();
        let result = timed(|changes| reflect(&mut shadow, &guest, &mut host, changes));
        shadow.destroy(&mut host);
        result
    });
    let mut shadow = Shadow::new(&mut host, space.root(), MAPPED, 10_000).unwrap();
    reflect(&mut shadow, &guest, &mut host, &mut Changes::default());
    median("  all invalidated, nothing changed", |_| {
        shadow.invalidate(MAPPED);
        timed(|changes| reflect(&mut shadow, &guest, &mut host, changes))
    });
    median("  naive, nothing changed", |_| {
        timed(|changes| {
            assert_eq!(shadow.rescan(&guest, &grant, &mut host, u64::MAX, changes), Ok(Progress::Done));
        })
    });
    let mut remap = |guest: &mut Memory, va: u64, bytes: u64, round: usize| {
        space.unmap(guest, va, bytes);
        space.map(guest, va, bytes, PhysAddr::system(((round as u64 % 2 + 7) << 32) + page % HUGE_PAGE)).unwrap();
    };
    median("  one page changed and invalidated", |round| {
        remap(&mut guest, 5 * HUGE_PAGE, page, round);
        shadow.invalidate(5 * HUGE_PAGE..5 * HUGE_PAGE + page);
        timed(|changes| reflect(&mut shadow, &guest, &mut host, changes))
    });
    median("  a page of each unit changed, all invalidated", |round| {
        (0..UNITS).for_each(|unit| remap(&mut guest, unit * HUGE_PAGE, page, round));
        shadow.invalidate(MAPPED);
        timed(|changes| reflect(&mut shadow, &guest, &mut host, changes))
    });
    median("  every page changed, all invalidated", |round| {
        remap(&mut guest, 0, MAPPED.end, round);
        shadow.invalidate(MAPPED);
        timed(|changes| reflect(&mut shadow, &guest, &mut host, changes))
    });
    median("  a piece of memory revoked, nothing leads there", |_| {
        timed(|changes| shadow.revoke(PhysAddr::vram(0), HUGE_PAGE, &mut host, changes).unwrap())
    });
}

fn entered(page: u64) {
    let (grant, mut host) = (Pieces(HUGE_PAGE), Memory::new(VRAM));
    let mut shadow: Shadow = Shadow::entered(&mut host, MAPPED, 10_000).unwrap();
    println!("entered, pages of {} KiB", page >> 10);
    median("  16 units", |round| {
        let at = PhysAddr::system(((round as u64 % 2) << 32) + page % HUGE_PAGE);
        timed(|changes| shadow.enter(0, 16 * HUGE_PAGE, at, RW, &grant, &mut host, changes).unwrap())
    });
    median("  one page", |round| {
        let at = PhysAddr::system(((round as u64 % 2) << 32) + page % HUGE_PAGE);
        timed(|changes| shadow.enter(HUGE_PAGE, page, at, RW, &grant, &mut host, changes).unwrap())
    });
}

fn main() {
    println!("{:<44} {:>12} {:>54} {:>9}", "", "", "ns/scanned", "ns/update");
    scanned::<LocalTables>(PhysAddr::system(SMALL_PAGE), SMALL_PAGE);
    for page in [SMALL_PAGE, BIG_PAGE, HUGE_PAGE] {
        scanned::<AddressSpace>(VRAM, page);
    }
    for page in [SMALL_PAGE, BIG_PAGE, HUGE_PAGE] {
        entered(page);
    }
}
