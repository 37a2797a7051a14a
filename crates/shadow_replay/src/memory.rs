//! A guest's memory with its tables, the host's, and a trap that is simulated.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use gmmu::{
    Access, BadAddress, Grant, Granted, MOST_TABLES, PhysMem, Shadow, TableMemory, Target, TraceFormat, WriteTrap,
    translate,
};
use gpu_spec::mmu::{Aperture, DualPde, HUGE_PAGE, Pde, PhysAddr, SMALL_PAGE};

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

/// The guest: VRAM with its tables, and system memory that its entries name.
#[derive(Debug)]
pub(crate) struct Guest {
    format: TraceFormat,
    vram: Flat,
}

impl Guest {
    /// Directories that lead to as many tables as a trace may name; nothing is mapped by these.
    pub(crate) fn new(format: TraceFormat) -> Guest {
        let vram = Flat(RefCell::new(vec![0; (LEAVES + u64::from(MOST_TABLES) * SMALL_PAGE) as usize]));
        let put = |at: u64, word: u64| vram.write(PhysAddr::vram(at), &word.to_le_bytes()).unwrap_or_default();
        for (directory, next) in [(0, 1), (1, 2)] {
            put(directory * SMALL_PAGE, Pde::to_table(PhysAddr::vram(next * SMALL_PAGE)).0);
        }
        for last in 0..u64::from(MOST_TABLES) / 256 {
            put(2 * SMALL_PAGE + last * 8, Pde::to_table(PhysAddr::vram((3 + last) * SMALL_PAGE)).0);
        }
        for table in 0..u64::from(MOST_TABLES) {
            let dual = DualPde::to_tables(None, Some(PhysAddr::vram(LEAVES + table * SMALL_PAGE)));
            put(3 * SMALL_PAGE + table * 16 + 8, dual.small);
        }
        Guest { format, vram }
    }

    pub(crate) fn root(&self) -> PhysAddr {
        PhysAddr::vram(0)
    }

    /// The addresses that all tables are for.
    pub(crate) fn window(&self) -> Range<u64> {
        0..u64::from(MOST_TABLES) * HUGE_PAGE
    }

    /// Stores an entry; gives where, and how many bytes.
    pub(crate) fn store(&self, table: u32, entry: u32, value: u64) -> (PhysAddr, u64) {
        let at = PhysAddr::vram(LEAVES + u64::from(table) * SMALL_PAGE + u64::from(entry) * 8);
        // A trace names no others.
        let _ = self.vram.write(at, &value.to_le_bytes());
        (at, 8)
    }

    /// Whether the shadow is the plain walk of the guest's tables, cut to the grant.
    pub(crate) fn check(&self, host: &Host, shadow: &Shadow) {
        for va in self.window().step_by(SMALL_PAGE as usize) {
            let here = translate(self, self.root(), va, Access::READ).ok();
            let expect = here.and_then(|here| match here.target {
                Target::Memory(at) => Some(Target::Memory(self.grant(at)?.at)),
                Target::Sparse => Some(Target::Sparse),
            });
            let shown = translate(host, shadow.root(), va, Access::READ).ok();
            assert_eq!(shown.map(|shown| shown.target), expect, "{va:#x}");
        }
    }
}

impl PhysMem for Guest {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        if at.aperture == Aperture::System { Err(BadAddress(at)) } else { self.vram.read(at, out) }
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        if at.aperture == Aperture::System { Err(BadAddress(at)) } else { self.vram.write(at, data) }
    }
}

impl Grant for Guest {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        let bytes = MOST.checked_sub(at.address).filter(|bytes| *bytes > 0)?;
        // Pages of system memory are anywhere.
        Some(Granted { at: at.offset(SHIFT), bytes: bytes.min(SMALL_PAGE - at.address % SMALL_PAGE), read_only: false })
    }
}

/// The host's memory for the shadow's tables.
#[derive(Debug, Default)]
pub(crate) struct Host {
    memory: Flat,
    free: Vec<PhysAddr>,
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
            PhysAddr::vram(end as u64)
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
