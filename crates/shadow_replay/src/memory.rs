//! A guest's memory with its tables, the host's, and a trap that is simulated.

use std::cell::RefCell;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Range;

use gmmu::{
    Access, BadAddress, Format, Gmmu2, Grant, Granted, HaswellPpgtt, MOST_TABLES, PhysMem, Shadow, Table, TableMemory,
    Target, WriteTrap, translate_in,
};
use gpu_spec::mmu::{Aperture, DualPde, Pde, PhysAddr, SMALL_PAGE};

/// Bytes at addresses from 0 on.
#[derive(Debug, Default)]
struct Flat(RefCell<Vec<u8>>);

impl Flat {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let bytes = self.0.borrow();
        let range = at.address as usize..at.address as usize + out.len();
        out.copy_from_slice(bytes.get(range).ok_or(BadAddress(at))?);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let range = at.address as usize..at.address as usize + data.len();
        self.0.borrow_mut().get_mut(range).ok_or(BadAddress(at))?.copy_from_slice(data);
        Ok(())
    }
}

/// Where the guest's tables of pages begin.
const LEAVES: u64 = 16 * SMALL_PAGE;
/// How far the host's memory is from the guest's.
const SHIFT: u64 = 1 << 30;
/// What the guest has of system memory.
const MOST: u64 = 1 << 38;

/// A format in which traces are replayed.
pub(crate) trait Replayed: Format {
    /// Which memory tables lie in. Those of pages lie one after the other from [`LEAVES`] on, what is before them is for
    /// directories, with the root at 0.
    const TABLES: Aperture;

    /// Writes directories that lead to the tables of pages.
    fn link(mem: &impl PhysMem) -> Result<(), BadAddress>;
}

const fn leaf(of: Aperture, table: u64) -> PhysAddr {
    PhysAddr { aperture: of, address: LEAVES + table * SMALL_PAGE }
}

impl Replayed for Gmmu2 {
    const TABLES: Aperture = Aperture::Vram;

    fn link(mem: &impl PhysMem) -> Result<(), BadAddress> {
        let page = |number: u64| PhysAddr::vram(number * SMALL_PAGE);
        let put =
            |table, index: u64, at| Gmmu2::write(mem, table, Table::Upper, index as usize, &[Pde::to_table(at).0]);
        put(page(0), 0, page(1))?;
        put(page(1), 0, page(2))?;
        for last in 0..u64::from(MOST_TABLES) / 256 {
            put(page(2), last, page(3 + last))?;
        }
        // The directories of the last level lie one after the other.
        link_last::<Gmmu2>(mem, page(3))
    }
}

impl Replayed for HaswellPpgtt {
    const TABLES: Aperture = Aperture::System;

    fn link(mem: &impl PhysMem) -> Result<(), BadAddress> {
        link_last::<HaswellPpgtt>(mem, PhysAddr::system(0))
    }
}

fn link_last<F: Replayed>(mem: &impl PhysMem, directory: PhysAddr) -> Result<(), BadAddress> {
    (0..u64::from(MOST_TABLES)).try_for_each(|table| {
        let dual = DualPde::to_tables(None, Some(leaf(F::TABLES, table)));
        F::write(mem, directory, Table::Last, table as usize, &[dual.big, dual.small])
    })
}

/// The guest: memory with its tables, and system memory that its entries name.
#[derive(Debug)]
pub(crate) struct Guest<F> {
    tables: Flat,
    format: PhantomData<F>,
}

impl<F: Replayed> Guest<F> {
    /// Directories that lead to as many tables as a trace may name; nothing is mapped by these.
    pub(crate) fn new() -> Guest<F> {
        let bytes = leaf(F::TABLES, MOST_TABLES.into()).address as usize;
        let guest = Guest { tables: Flat(RefCell::new(vec![0; bytes])), format: PhantomData };
        // All of it is there.
        let _ = F::link(&guest);
        guest
    }

    pub(crate) fn root(&self) -> PhysAddr {
        PhysAddr { aperture: F::TABLES, address: 0 }
    }

    /// The addresses that all tables are for.
    pub(crate) fn window(&self) -> Range<u64> {
        0..u64::from(MOST_TABLES) * F::LEVELS.last().map_or(0, |last| last.span())
    }

    /// Stores an entry; gives where, and how many bytes.
    pub(crate) fn store(&self, table: u32, entry: u32, value: u64) -> (PhysAddr, u64) {
        let bytes = F::entry_bytes(Table::Small);
        let at = leaf(F::TABLES, table.into()).offset(u64::from(entry) * bytes);
        // A trace names no others.
        let _ = self.tables.write(at, &value.to_le_bytes()[..bytes as usize]);
        (at, bytes)
    }

    /// Whether the shadow is the plain walk of the guest's tables, cut to the grant.
    pub(crate) fn check(&self, host: &Host, shadow: &Shadow<F>) {
        for va in self.window().step_by(SMALL_PAGE as usize) {
            let here = translate_in::<F>(self, self.root(), va, Access::READ).ok();
            let expect = here.and_then(|here| match here.target {
                Target::Memory(at) => Some(Target::Memory(self.grant(at)?.at)),
                Target::Sparse => Some(Target::Sparse),
            });
            let shown = translate_in::<F>(host, shadow.root(), va, Access::READ).ok();
            assert_eq!(shown.map(|shown| shown.target), expect, "{va:#x}");
        }
    }
}

impl<F: Replayed> PhysMem for Guest<F> {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        if at.aperture == F::TABLES { self.tables.read(at, out) } else { Err(BadAddress(at)) }
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        if at.aperture == F::TABLES { self.tables.write(at, data) } else { Err(BadAddress(at)) }
    }
}

impl<F: Replayed> Grant for Guest<F> {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        let bytes = MOST.checked_sub(at.address).filter(|bytes| *bytes > 0)?;
        Some(Granted { at: at.offset(SHIFT), bytes: bytes.min(SMALL_PAGE - at.address % SMALL_PAGE), read_only: false })
    }
}

/// The host's memory for the shadow's tables.
#[derive(Debug)]
pub(crate) struct Host {
    /// Which memory they lie in.
    tables: Aperture,
    memory: Flat,
    free: Vec<PhysAddr>,
}

impl Host {
    pub(crate) fn new(tables: Aperture) -> Host {
        Host { tables, memory: Flat::default(), free: Vec::new() }
    }
}

impl PhysMem for Host {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        self.memory.read(at, out)
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        self.memory.write(at, data)
    }
}

impl TableMemory for Host {
    fn alloc(&mut self, _: u64) -> Option<PhysAddr> {
        let bytes = self.memory.0.get_mut();
        let at = self.free.pop().unwrap_or_else(|| {
            let end = bytes.len();
            bytes.resize(end + SMALL_PAGE as usize, 0);
            PhysAddr { aperture: self.tables, address: end as u64 }
        });
        bytes[at.address as usize..][..SMALL_PAGE as usize].fill(0);
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, _: u64) {
        self.free.push(at);
    }
}

/// Which pages are protected.
#[derive(Debug, Default)]
pub(crate) struct Trap(HashSet<u64>);

impl Trap {
    pub(crate) fn is_protected(&self, at: PhysAddr) -> bool {
        self.0.contains(&(at.address / SMALL_PAGE))
    }
}

impl WriteTrap for Trap {
    fn protect(&mut self, pages: &[PhysAddr]) {
        self.0.extend(pages.iter().map(|page| page.address / SMALL_PAGE));
    }

    fn release(&mut self, pages: &[PhysAddr]) {
        pages.iter().for_each(|page| {
            self.0.remove(&(page.address / SMALL_PAGE));
        });
    }

    fn reaches(&self, _: PhysAddr) -> bool {
        true
    }
}
