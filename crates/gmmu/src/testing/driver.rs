//! What a guest's own driver does to its tables.

use gpu_spec::haswell_ppgtt::{DIRECTORY_BYTES, Pde, Pte};
use gpu_spec::mmu::{PhysAddr, Rights, SMALL_PAGE, TABLE_BYTES};
use zerocopy::IntoBytes;

use super::Attack;
use crate::{AddressSpace, EditError, Format, Gmmu2, HaswellPpgtt, TableMemory, mappings_in};

/// The driver of a format.
pub trait Driver: Sized {
    /// What it writes.
    type Format: Attack;

    /// An empty address space.
    fn create(mem: &mut impl TableMemory) -> Self;

    /// Its root.
    fn root(&self) -> PhysAddr;

    /// Maps a range that nothing is mapped in.
    ///
    /// # Errors
    /// Something is.
    fn map(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64, at: PhysAddr) -> Result<(), EditError>;

    /// Unmaps a range.
    fn unmap(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64);
}

impl Driver for AddressSpace {
    type Format = Gmmu2;

    fn create(mem: &mut impl TableMemory) -> AddressSpace {
        AddressSpace::create(mem).unwrap()
    }

    fn root(&self) -> PhysAddr {
        self.root()
    }

    fn map(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64, at: PhysAddr) -> Result<(), EditError> {
        self.map(mem, va, bytes, at, Rights::default())
    }

    fn unmap(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64) {
        self.unmap(mem, va, bytes).unwrap();
    }
}

/// An address space in Haswell's format. As Linux's driver does, it keeps tables that have become empty.
#[derive(Debug)]
pub struct LocalTables {
    root: PhysAddr,
}

impl LocalTables {
    /// Where the entry for a page is; makes its table if there is none.
    fn slot(&self, mem: &mut impl TableMemory, va: u64) -> PhysAddr {
        let level = HaswellPpgtt::LEVELS[0];
        let (mut pde, at) = (Pde::INVALID, self.root.offset(level.index(va) as u64 * 4));
        mem.read(at, pde.as_mut_bytes()).unwrap();
        let table = pde.table().unwrap_or_else(|| {
            let table = mem.alloc(TABLE_BYTES).unwrap().address;
            mem.write(at, Pde::to_table(table).as_bytes()).unwrap();
            table
        });
        PhysAddr::system(table + va % level.span() / SMALL_PAGE * 4)
    }

    fn put(&self, mem: &mut impl TableMemory, va: u64, bytes: u64, entry: impl Fn(u64) -> Pte) {
        for skip in (0..bytes).step_by(SMALL_PAGE as usize) {
            let slot = self.slot(mem, va + skip);
            mem.write(slot, entry(skip).as_bytes()).unwrap();
        }
    }
}

impl Driver for LocalTables {
    type Format = HaswellPpgtt;

    fn create(mem: &mut impl TableMemory) -> LocalTables {
        LocalTables { root: mem.alloc(DIRECTORY_BYTES).unwrap() }
    }

    fn root(&self) -> PhysAddr {
        self.root
    }

    fn map(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64, at: PhysAddr) -> Result<(), EditError> {
        if let Some(run) = mappings_in::<HaswellPpgtt>(mem, self.root, va..va + bytes, u32::MAX).runs.first() {
            return Err(EditError::AlreadyMapped(run.va));
        }
        self.put(mem, va, bytes, |skip| Pte::to_page(at.address + skip, 0));
        Ok(())
    }

    fn unmap(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64) {
        self.put(mem, va, bytes, |_| Pte::INVALID);
    }
}
