//! Editing page tables.

use std::ops::Range;

use gpu_spec::mmu::{
    BIG_PAGE, BIG_TABLE_BYTES, DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, Rights, SMALL_PAGE, TABLE_BYTES, VA_END,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{Format, Geometry, Gmmu2};
use crate::{BadAddress, TableMemory, mappings};

/// Why an edit was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError {
    /// Not whole pages, or not inside the address space.
    #[error("range {va:#x}+{bytes:#x} is not whole pages of the address space")]
    BadRange {
        /// First address.
        va: u64,
        /// Length of the range, in bytes.
        bytes: u64,
    },
    /// Something is mapped there already.
    #[error("address {0:#x} is mapped already")]
    AlreadyMapped(u64),
    /// No memory for a table.
    #[error("no memory for page tables")]
    NoMemory,
    /// A table lies where there is no memory.
    #[error("page table is damaged")]
    Damaged(#[from] BadAddress),
}

/// An address space that its owner edits: the owner of its tables, which nobody else writes.
///
/// Changes reach the device with the next TLB invalidate of the range.
#[derive(Debug)]
pub struct AddressSpace {
    root: PhysAddr,
}

impl AddressSpace {
    /// Creates an empty address space; allocates its root.
    ///
    /// # Errors
    /// [`EditError::NoMemory`].
    pub fn create(mem: &mut impl TableMemory) -> Result<AddressSpace, EditError> {
        Ok(AddressSpace { root: mem.alloc(TABLE_BYTES).ok_or(EditError::NoMemory)? })
    }

    /// The root table: what an instance block's page directory base names.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Maps `bytes` at `va` to consecutive memory from `at` (all multiples of 4 KiB), with the largest pages that fit.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn map(
        &mut self,
        mem: &mut impl TableMemory,
        va: u64,
        bytes: u64,
        at: PhysAddr,
        rights: Rights,
    ) -> Result<(), EditError> {
        let range = check(va, bytes)?;
        if !at.address.is_multiple_of(SMALL_PAGE) || at.address.checked_add(bytes).is_none() {
            return Err(EditError::BadRange { va, bytes });
        }
        if let Some(run) = mappings(mem, self.root, range.clone(), u32::MAX).runs.first() {
            return Err(EditError::AlreadyMapped(run.va));
        }
        let mut done = va;
        while done < range.end {
            let end = range.end.min((done / HUGE_PAGE + 1) * HUGE_PAGE);
            if let Err(error) = self.map_in_huge(mem, done..end, at.offset(done - va), rights) {
                // Taking away whole what was mapped whole needs no new tables. What cannot be undone stays mapped.
                let _ = self.unmap(mem, va, end - va);
                return Err(error);
            }
            done = end;
        }
        Ok(())
    }

    /// Removes the mappings in a range; what is not mapped is skipped. Pages that reach beyond are split.
    ///
    /// # Errors
    /// [`EditError::NoMemory`] if splitting a page took a table that could not be had; pages before it are gone then.
    pub fn unmap(&mut self, mem: &mut impl TableMemory, va: u64, bytes: u64) -> Result<(), EditError> {
        let range = check(va, bytes)?;
        self.unmap_upper(mem, self.root, 0, 0, &range)?;
        Ok(())
    }

    /// Ends the address space and frees its tables. The device must not use it any more.
    pub fn destroy(mut self, mem: &mut impl TableMemory) {
        // Failing means damaged tables; their memory is lost then, and nothing else.
        let _ = self.unmap(mem, 0, VA_END);
        mem.free(self.root, TABLE_BYTES);
    }

    /// Maps a range inside one unit of 2 MiB.
    fn map_in_huge(
        &self,
        mem: &mut impl TableMemory,
        range: Range<u64>,
        at: PhysAddr,
        rights: Rights,
    ) -> Result<(), EditError> {
        let mut table = self.root;
        for level in &Gmmu2::LEVELS[..Gmmu2::LAST] {
            let slot = table.offset(level.index(range.start) as u64 * 8);
            table = match load::<Pde>(mem, slot)?.table() {
                Some(next) => next,
                None => {
                    let next = mem.alloc(TABLE_BYTES).ok_or(EditError::NoMemory)?;
                    mem.write(slot, Pde::to_table(next).as_bytes())?;
                    next
                }
            };
        }
        let slot = table.offset(Gmmu2::LEVELS[Gmmu2::LAST].index(range.start) as u64 * 16);
        if range.end - range.start == HUGE_PAGE && at.address.is_multiple_of(HUGE_PAGE) {
            mem.write(slot, DualPde::to_page(Pte::to_page(at, rights)).as_bytes())?;
            return Ok(());
        }
        let mut dual: DualPde = load(mem, slot)?;
        map_leaves(mem, slot, &mut dual, range, at, rights)
    }

    /// Unmaps `range` in the table of an upper level that begins at address `base`; true if the table is empty now.
    fn unmap_upper(
        &self,
        mem: &mut impl TableMemory,
        table: PhysAddr,
        level: usize,
        base: u64,
        range: &Range<u64>,
    ) -> Result<bool, EditError> {
        let unit = Gmmu2::LEVELS[level].span();
        let mut entries = [Pde::INVALID; 512];
        let entries = &mut entries[..Gmmu2::LEVELS[level].entries];
        mem.read(table, entries.as_mut_bytes())?;
        for index in indices(range, base, unit, entries.len()) {
            let Some(next) = entries[index].table() else { continue };
            let va = base + index as u64 * unit;
            let empty = if level + 1 < Gmmu2::LAST {
                self.unmap_upper(mem, next, level + 1, va, range)?
            } else {
                unmap_dual(mem, next, va, range)?
            };
            if empty {
                entries[index] = Pde::INVALID;
                mem.write(table.offset(index as u64 * 8), Pde::INVALID.as_bytes())?;
                mem.free(next, TABLE_BYTES);
            }
        }
        Ok(entries.iter().all(|pde| *pde == Pde::INVALID))
    }
}

fn check(va: u64, bytes: u64) -> Result<Range<u64>, EditError> {
    let end = va.checked_add(bytes).filter(|end| *end <= VA_END);
    match end {
        Some(end) if va.is_multiple_of(SMALL_PAGE) && bytes.is_multiple_of(SMALL_PAGE) && bytes > 0 => Ok(va..end),
        _ => Err(EditError::BadRange { va, bytes }),
    }
}

fn load<T: FromBytes + FromZeros + IntoBytes>(mem: &impl TableMemory, at: PhysAddr) -> Result<T, EditError> {
    let mut value = T::new_zeroed();
    mem.read(at, value.as_mut_bytes())?;
    Ok(value)
}

/// Indices of the entries, `unit` bytes each from `base`, that touch the range.
pub(crate) fn indices(range: &Range<u64>, base: u64, unit: u64, count: usize) -> Range<usize> {
    let start = range.start.max(base);
    let end = range.end.min(base + unit * count as u64);
    if start >= end { 0..0 } else { ((start - base) / unit) as usize..((end - base).div_ceil(unit)) as usize }
}

/// Writes entries for a range inside one unit of 2 MiB whose directory entry `dual` lies at `slot`; big pages where the
/// alignment allows. The range is unmapped.
fn map_leaves(
    mem: &mut impl TableMemory,
    slot: PhysAddr,
    dual: &mut DualPde,
    range: Range<u64>,
    at: PhysAddr,
    rights: Rights,
) -> Result<(), EditError> {
    let fits = at.address % BIG_PAGE == range.start % BIG_PAGE;
    let big = range.start.next_multiple_of(BIG_PAGE)..range.end & !(BIG_PAGE - 1);
    let big = if fits && big.start < big.end { big } else { range.start..range.start };
    // Both tables are there before the first entry, so that a failure leaves nothing half done.
    let needs_big = !big.is_empty() && dual.big_table().is_none();
    let needs_small = big != range && dual.small_table().is_none();
    if needs_big || needs_small {
        let new_big = if needs_big { Some(mem.alloc(BIG_TABLE_BYTES).ok_or(EditError::NoMemory)?) } else { None };
        let new_small = if needs_small { mem.alloc(TABLE_BYTES) } else { None };
        if needs_small && new_small.is_none() {
            if let Some(at) = new_big {
                mem.free(at, BIG_TABLE_BYTES);
            }
            return Err(EditError::NoMemory);
        }
        *dual = DualPde::to_tables(new_big.or(dual.big_table()), new_small.or(dual.small_table()));
        mem.write(slot, dual.as_bytes())?;
    }
    let write = |part: Range<u64>, table: Option<PhysAddr>, page: u64| -> Result<(), EditError> {
        let (Some(table), false) = (table, part.is_empty()) else { return Ok(()) };
        let entries: Vec<Pte> = (part.start..part.end)
            .step_by(page as usize)
            .map(|va| Pte::to_page(at.offset(va - range.start), rights))
            .collect();
        Ok(mem.write(table.offset(part.start % HUGE_PAGE / page * 8), entries.as_bytes())?)
    };
    write(range.start..big.start, dual.small_table(), SMALL_PAGE)?;
    write(big.clone(), dual.big_table(), BIG_PAGE)?;
    write(big.end..range.end, dual.small_table(), SMALL_PAGE)
}

/// Unmaps `range` in a table of the last directory level; true if the table is empty now.
fn unmap_dual(mem: &mut impl TableMemory, table: PhysAddr, base: u64, range: &Range<u64>) -> Result<bool, EditError> {
    let mut entries = [DualPde::INVALID; Gmmu2::LEVELS[Gmmu2::LAST].entries];
    mem.read(table, entries.as_mut_bytes())?;
    for index in indices(range, base, HUGE_PAGE, entries.len()) {
        let dual = &mut entries[index];
        let before = *dual;
        if before == DualPde::INVALID {
            continue;
        }
        let slot = table.offset(index as u64 * 16);
        let va = base + index as u64 * HUGE_PAGE;
        let part = range.start.max(va)..range.end.min(va + HUGE_PAGE);
        if let Some(page) = dual.page() {
            *dual = DualPde::INVALID;
            if part != (va..va + HUGE_PAGE)
                && let Some(at) = page.address()
            {
                let split = split(mem, slot, dual, va..va + HUGE_PAGE, &part, at, page.rights());
                if let Err(error) = split {
                    mem.write(slot, before.as_bytes())?;
                    free_tables(mem, *dual, before);
                    return Err(error);
                }
            }
        } else {
            unmap_leaves(mem, slot, dual, va, &part)?;
        }
        mem.write(slot, dual.as_bytes())?;
        free_tables(mem, before, *dual);
    }
    Ok(entries.iter().all(|dual| *dual == DualPde::INVALID))
}

/// Frees the tables that `old` names and `new` does not.
fn free_tables(mem: &mut impl TableMemory, old: DualPde, new: DualPde) {
    for (old, new, bytes) in
        [(old.big_table(), new.big_table(), BIG_TABLE_BYTES), (old.small_table(), new.small_table(), TABLE_BYTES)]
    {
        if let (Some(at), None) = (old, new) {
            mem.free(at, bytes);
        }
    }
}

/// Maps what remains of the page `whole`, of which `hole` is taken out.
fn split(
    mem: &mut impl TableMemory,
    slot: PhysAddr,
    dual: &mut DualPde,
    whole: Range<u64>,
    hole: &Range<u64>,
    at: PhysAddr,
    rights: Rights,
) -> Result<(), EditError> {
    for part in [whole.start..hole.start, hole.end..whole.end] {
        if !part.is_empty() {
            map_leaves(mem, slot, dual, part.clone(), at.offset(part.start - whole.start), rights)?;
        }
    }
    Ok(())
}

/// Unmaps `part` in the tables of one unit of 2 MiB at `va`, and unlinks (not frees) tables that become empty.
fn unmap_leaves(
    mem: &mut impl TableMemory,
    slot: PhysAddr,
    dual: &mut DualPde,
    va: u64,
    part: &Range<u64>,
) -> Result<(), EditError> {
    if let Some(table) = dual.big_table() {
        let mut entries = [Pte::INVALID; (BIG_TABLE_BYTES / 8) as usize];
        mem.read(table, entries.as_mut_bytes())?;
        for index in indices(part, va, BIG_PAGE, entries.len()) {
            let pte = entries[index];
            let start = va + index as u64 * BIG_PAGE;
            let whole = start..start + BIG_PAGE;
            let hole = part.start.max(whole.start)..part.end.min(whole.end);
            if pte == Pte::INVALID {
                continue;
            }
            if hole != whole
                && let (true, Some(at)) = (pte.is_valid(), pte.address())
            {
                // The small entries appear before the big one, which hides them, goes.
                split(mem, slot, dual, whole, &hole, at, pte.rights())?;
            }
            entries[index] = Pte::INVALID;
            mem.write(table.offset(index as u64 * 8), Pte::INVALID.as_bytes())?;
        }
        if entries.iter().all(|pte| *pte == Pte::INVALID) {
            *dual = DualPde::to_tables(None, dual.small_table());
        }
    }
    if let Some(table) = dual.small_table() {
        let mut entries = [Pte::INVALID; (TABLE_BYTES / 8) as usize];
        mem.read(table, entries.as_mut_bytes())?;
        let touched = indices(part, va, SMALL_PAGE, entries.len());
        entries[touched.clone()].fill(Pte::INVALID);
        mem.write(table.offset(touched.start as u64 * 8), entries[touched].as_bytes())?;
        if entries.iter().all(|pte| *pte == Pte::INVALID) {
            *dual = DualPde::to_tables(dual.big_table(), None);
        }
    }
    Ok(())
}
