//! Reading page tables.

use std::ops::Range;

use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{
    BIG_PAGE, BIG_TABLE_BYTES, DualPde, HUGE_PAGE, KIND_GENERIC, Pde, PhysAddr, Pte, Rights, SMALL_PAGE, TABLE_BYTES,
    VA_END,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::PhysMem;

/// Lowest address bit that each of the three upper levels resolves, from the root.
pub(crate) const UPPER_SHIFTS: [u32; 3] = [47, 38, 29];
/// Entries in tables of those levels.
pub(crate) const UPPER_ENTRIES: [u64; 3] = [4, 512, 512];
/// Entries in a table of the last directory level, each for 2 MiB.
pub(crate) const DUAL_ENTRIES: u64 = 256;
/// Lowest address bit that the last directory level resolves.
pub(crate) const DUAL_SHIFT: u32 = 21;

/// What an access wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

/// An access to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// What for.
    pub kind: AccessKind,
    /// By the device itself or a privileged channel.
    pub privileged: bool,
}

impl Access {
    /// An ordinary read.
    pub const READ: Access = Access { kind: AccessKind::Read, privileged: false };
    /// An ordinary write.
    pub const WRITE: Access = Access { kind: AccessKind::Write, privileged: false };
    /// An ordinary atomic.
    pub const ATOMIC: Access = Access { kind: AccessKind::Atomic, privileged: false };
}

/// Where a virtual address leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To memory: the physical address of the byte asked for.
    Memory(PhysAddr),
    /// Nowhere, and that is allowed: reads give zero, writes vanish.
    Sparse,
}

impl Target {
    /// Where it leads `bytes` further, inside the same run.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Target {
        match self {
            Target::Memory(at) => Target::Memory(at.offset(bytes)),
            Target::Sparse => Target::Sparse,
        }
    }
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Where it leads.
    pub target: Target,
    /// Size of the page around it, bytes.
    pub page_bytes: u64,
    /// What the page allows.
    pub rights: Rights,
}

/// Walks to `va` and checks an access, as the MMU does.
///
/// # Errors
/// The fault that the MMU would report.
pub fn translate(mem: &impl PhysMem, root: PhysAddr, va: u64, access: Access) -> Result<Translation, FaultType> {
    let (pte, page_bytes) = leaf(mem, root, va)?;
    if pte.is_sparse() {
        return Ok(Translation { target: Target::Sparse, page_bytes, rights: Rights::default() });
    }
    if !pte.is_valid() {
        return Err(FaultType::PTE);
    }
    let rights = pte.rights();
    let base = pte.address().ok_or(FaultType::UNSUPPORTED_APERTURE)?;
    if !supported(pte.kind()) {
        return Err(FaultType::UNSUPPORTED_KIND);
    }
    if rights.privileged && !access.privileged {
        return Err(FaultType::PRIV_VIOLATION);
    }
    if rights.read_only && access.kind != AccessKind::Read {
        return Err(FaultType::RO_VIOLATION);
    }
    if rights.atomic_disable && access.kind == AccessKind::Atomic {
        return Err(FaultType::ATOMIC_VIOLATION);
    }
    let target = Target::Memory(page_base(base, page_bytes).offset(va % page_bytes));
    Ok(Translation { target, page_bytes, rights })
}

/// The entry that decides about `va`, and the size of its page.
fn leaf(mem: &impl PhysMem, root: PhysAddr, va: u64) -> Result<(Pte, u64), FaultType> {
    if va >= VA_END {
        return Err(FaultType::VA_LIMIT_VIOLATION);
    }
    let mut table = root;
    for (shift, entries) in UPPER_SHIFTS.into_iter().zip(UPPER_ENTRIES) {
        let index = (va >> shift) % entries;
        let pde: Pde = entry(mem, table.offset(index * 8)).ok_or(FaultType::PDE)?;
        if pde.is_sparse() {
            return Ok((Pte::SPARSE, 1 << shift));
        }
        table = pde.table().ok_or(FaultType::PDE)?;
    }
    let index = (va >> DUAL_SHIFT) % DUAL_ENTRIES;
    let dual: DualPde = entry(mem, table.offset(index * 16)).ok_or(FaultType::PDE)?;
    if let Some(page) = dual.page() {
        return Ok((page, HUGE_PAGE));
    }
    if dual.is_sparse() {
        return Ok((Pte::SPARSE, HUGE_PAGE));
    }
    if let Some(big) = dual.big_table() {
        let pte: Pte = entry(mem, big.offset(va % HUGE_PAGE / BIG_PAGE * 8)).ok_or(FaultType::PDE)?;
        if pte.hides_small() {
            return Ok((pte, BIG_PAGE));
        }
    }
    let small = dual.small_table();
    // With a table of big pages alone, it was the entry that was missing, not the directory.
    let small = small.ok_or(if dual.big_table().is_some() { FaultType::PTE } else { FaultType::PDE })?;
    let pte = entry(mem, small.offset(va % HUGE_PAGE / SMALL_PAGE * 8)).ok_or(FaultType::PDE)?;
    Ok((pte, SMALL_PAGE))
}

fn entry<T: FromBytes + FromZeros + IntoBytes>(mem: &impl PhysMem, at: PhysAddr) -> Option<T> {
    let mut value = T::new_zeroed();
    mem.read(at, value.as_mut_bytes()).ok()?;
    Some(value)
}

fn supported(kind: u8) -> bool {
    kind == KIND_GENERIC || kind == 0
}

/// The memory of a page; `None` for an entry by which no access reaches any.
pub(crate) fn leads_to(pte: Pte, page_bytes: u64) -> Option<PhysAddr> {
    let at = pte.address().filter(|_| pte.is_valid() && supported(pte.kind()))?;
    Some(page_base(at, page_bytes))
}

/// Entries of large pages may have low address bits set, which have no meaning.
fn page_base(at: PhysAddr, page_bytes: u64) -> PhysAddr {
    PhysAddr { aperture: at.aperture, address: at.address & !(page_bytes - 1) }
}

/// A run of addresses that are mapped to consecutive memory with the same rights, or are all sparse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// First virtual address.
    pub va: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// Where the first byte leads.
    pub target: Target,
    /// What the pages allow.
    pub rights: Rights,
}

/// A listing of mapped runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mappings {
    /// Runs by increasing address, coalesced.
    pub runs: Vec<Mapped>,
    /// Tables that could still have been read; 0 means that the listing may be cut short.
    pub tables_left: u32,
}

/// Lists what is mapped in `range`, or sparse, reading at most `max_tables` tables. Pages that no access can reach
/// (unsupported kind or aperture) are left out. A run that reaches beyond the range is cut to it.
pub fn mappings(mem: &impl PhysMem, root: PhysAddr, range: Range<u64>, max_tables: u32) -> Mappings {
    let mut listing = Listing { mem, range, out: Mappings { runs: Vec::new(), tables_left: max_tables } };
    listing.range.end = listing.range.end.min(VA_END);
    if listing.range.start < listing.range.end {
        listing.upper(root, 0, 0);
    }
    listing.out
}

struct Listing<'m, M> {
    mem: &'m M,
    range: Range<u64>,
    out: Mappings,
}

impl<M: PhysMem> Listing<'_, M> {
    /// The part of the wanted range inside `bytes` at `base`, as indices of entries of `unit` bytes each.
    fn indices(&self, base: u64, bytes: u64, unit: u64) -> Range<u64> {
        let start = self.range.start.max(base);
        let end = self.range.end.min(base + bytes);
        if start >= end { 0..0 } else { (start - base) / unit..(end - base).div_ceil(unit) }
    }

    /// Reads one table, if the limit allows.
    fn table<const N: usize>(&mut self, at: PhysAddr) -> Option<[u64; N]> {
        self.out.tables_left = self.out.tables_left.checked_sub(1)?;
        let mut entries = [0u64; N];
        self.mem.read(at, entries.as_mut_bytes()).ok()?;
        Some(entries)
    }

    fn upper(&mut self, at: PhysAddr, level: usize, base: u64) {
        let unit = 1 << UPPER_SHIFTS[level];
        let count = UPPER_ENTRIES[level];
        // The root has four entries; what lies behind them is not the GMMU's.
        let entries = if level == 0 {
            self.table::<4>(at).map(|root| {
                let mut all = [0; 512];
                all[..4].copy_from_slice(&root);
                all
            })
        } else {
            self.table::<512>(at)
        };
        let Some(entries) = entries else { return };
        for index in self.indices(base, unit * count, unit) {
            let pde = Pde(entries[index as usize]);
            let va = base + index * unit;
            if pde.is_sparse() {
                self.page(Pte::SPARSE, va, unit);
            }
            let Some(next) = pde.table() else { continue };
            if level + 1 < UPPER_SHIFTS.len() {
                self.upper(next, level + 1, va);
            } else {
                self.dual(next, va);
            }
        }
    }

    fn dual(&mut self, at: PhysAddr, base: u64) {
        let Some(entries) = self.table::<{ (TABLE_BYTES / 8) as usize }>(at) else { return };
        for index in self.indices(base, DUAL_ENTRIES * HUGE_PAGE, HUGE_PAGE) {
            let slot = index as usize * 2;
            let dual = DualPde { big: entries[slot], small: entries[slot + 1] };
            let va = base + index * HUGE_PAGE;
            if let Some(page) = dual.page() {
                self.page(page, va, HUGE_PAGE);
            } else if dual.is_sparse() {
                self.page(Pte::SPARSE, va, HUGE_PAGE);
            } else {
                self.leaves(dual, va);
            }
        }
    }

    fn leaves(&mut self, dual: DualPde, base: u64) {
        let big = match dual.big_table() {
            Some(at) => self.table::<{ (BIG_TABLE_BYTES / 8) as usize }>(at),
            None => None,
        };
        let small = match dual.small_table() {
            Some(at) => self.table::<{ (TABLE_BYTES / 8) as usize }>(at),
            None => None,
        };
        if big.is_none() && dual.big_table().is_some() {
            // A table that cannot be read faults; the small pages are not looked at.
            return;
        }
        for index in self.indices(base, HUGE_PAGE, BIG_PAGE) {
            let va = base + index * BIG_PAGE;
            let pte = big.map_or(Pte::INVALID, |big| Pte(big[index as usize]));
            if pte.hides_small() {
                self.page(pte, va, BIG_PAGE);
                continue;
            }
            let Some(small) = &small else { continue };
            let first = index * (BIG_PAGE / SMALL_PAGE);
            for sub in self.indices(va, BIG_PAGE, SMALL_PAGE) {
                self.page(Pte(small[(first + sub) as usize]), va + sub * SMALL_PAGE, SMALL_PAGE);
            }
        }
    }

    fn page(&mut self, pte: Pte, va: u64, bytes: u64) {
        let start = self.range.start.max(va);
        let end = self.range.end.min(va + bytes);
        let (target, rights) = if pte.is_sparse() {
            (Target::Sparse, Rights::default())
        } else {
            let Some(at) = leads_to(pte, bytes) else { return };
            (Target::Memory(at.offset(start - va)), pte.rights())
        };
        if let Some(last) = self.out.runs.last_mut()
            && last.va + last.bytes == start
            && last.target.offset(last.bytes) == target
            && last.rights == rights
        {
            last.bytes += end - start;
            return;
        }
        self.out.runs.push(Mapped { va: start, bytes: end - start, target, rights });
    }
}
