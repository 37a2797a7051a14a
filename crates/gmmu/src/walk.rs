//! Reading page tables.

use std::marker::PhantomData;
use std::ops::Range;

use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{DualPde, KIND_GENERIC, Pde, PhysAddr, Pte, Rights, SMALL_PAGE};

use crate::PhysMem;
use crate::format::{BIG_PAGES, Format, Geometry, Gmmu2, Table, Words};

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

/// Walks to `va` in NVIDIA's tables and checks an access, as the MMU does.
///
/// # Errors
/// The fault that the MMU would report.
pub fn translate(mem: &impl PhysMem, root: PhysAddr, va: u64, access: Access) -> Result<Translation, FaultType> {
    translate_in::<Gmmu2>(mem, root, va, access)
}

/// As [`translate`], in tables of any format; the faults are named as NVIDIA's.
///
/// # Errors
/// The fault.
pub fn translate_in<F: Format>(
    mem: &impl PhysMem,
    root: PhysAddr,
    va: u64,
    access: Access,
) -> Result<Translation, FaultType> {
    let (pte, page_bytes) = leaf::<F>(mem, root, va)?;
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
fn leaf<F: Format>(mem: &impl PhysMem, root: PhysAddr, va: u64) -> Result<(Pte, u64), FaultType> {
    if va >= F::VA_END {
        return Err(FaultType::VA_LIMIT_VIOLATION);
    }
    let mut table = root;
    for level in &F::LEVELS[..F::LAST] {
        let [pde] = entry::<F, 1>(mem, table, Table::Upper, level.index(va)).ok_or(FaultType::PDE)?;
        let pde = Pde(pde);
        if pde.is_sparse() {
            return Ok((Pte::SPARSE, level.span()));
        }
        table = pde.table().ok_or(FaultType::PDE)?;
    }
    let [big, small] = entry::<F, 2>(mem, table, Table::Last, F::LEVELS[F::LAST].index(va)).ok_or(FaultType::PDE)?;
    let dual = DualPde { big, small };
    if let Some(page) = dual.page() {
        return Ok((page, F::UNIT));
    }
    if dual.is_sparse() {
        return Ok((Pte::SPARSE, F::UNIT));
    }
    let page = |bytes: u64| (va % F::UNIT / bytes) as usize;
    if let Some(big) = dual.big_table() {
        let [pte] = entry::<F, 1>(mem, big, Table::Big, page(F::BIG_PAGE)).ok_or(FaultType::PDE)?;
        if Pte(pte).hides_small() {
            return Ok((Pte(pte), F::BIG_PAGE));
        }
    }
    let small = dual.small_table();
    // With a table of big pages alone, it was the entry that was missing, not the directory.
    let small = small.ok_or(if dual.big_table().is_some() { FaultType::PTE } else { FaultType::PDE })?;
    let [pte] = entry::<F, 1>(mem, small, Table::Small, page(SMALL_PAGE)).ok_or(FaultType::PDE)?;
    Ok((Pte(pte), SMALL_PAGE))
}

/// One entry, of `N` words.
fn entry<F: Format, const N: usize>(mem: &impl PhysMem, table: PhysAddr, of: Table, index: usize) -> Option<[u64; N]> {
    let mut words = [0; N];
    F::read(mem, table, of, index, &mut words).ok()?;
    Some(words)
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

/// Lists what NVIDIA's tables map in `range`, or have sparse, reading at most `max_tables` tables. Pages that no access can
/// reach (unsupported kind or aperture) are left out. A run that reaches beyond the range is cut to it.
pub fn mappings(mem: &impl PhysMem, root: PhysAddr, range: Range<u64>, max_tables: u32) -> Mappings {
    mappings_in::<Gmmu2>(mem, root, range, max_tables)
}

/// As [`mappings`], of tables of any format.
pub fn mappings_in<F: Format>(mem: &impl PhysMem, root: PhysAddr, range: Range<u64>, max_tables: u32) -> Mappings {
    let range = range.start..range.end.min(F::VA_END);
    let out = Mappings { runs: Vec::new(), tables_left: max_tables };
    let mut listing = Listing::<_, F> { mem, range, out, format: PhantomData };
    if listing.range.start < listing.range.end {
        listing.directory(root, 0, 0);
    }
    listing.out
}

struct Listing<'m, M, F> {
    mem: &'m M,
    range: Range<u64>,
    out: Mappings,
    format: PhantomData<F>,
}

impl<M: PhysMem, F: Format> Listing<'_, M, F> {
    /// The part of the wanted range inside `bytes` at `base`, as indices of entries of `unit` bytes each.
    fn indices(&self, base: u64, bytes: u64, unit: u64) -> Range<usize> {
        let start = self.range.start.max(base);
        let end = self.range.end.min(base + bytes);
        if start >= end { 0..0 } else { ((start - base) / unit) as usize..((end - base).div_ceil(unit)) as usize }
    }

    /// Reads a table from its first entry on, if the limit allows.
    fn table(&mut self, at: PhysAddr, of: Table, words: &mut [u64]) -> bool {
        let Some(left) = self.out.tables_left.checked_sub(1) else { return false };
        self.out.tables_left = left;
        F::read(self.mem, at, of, 0, words).is_ok()
    }

    fn directory(&mut self, at: PhysAddr, level: usize, base: u64) {
        let (last, unit, count) = (level == F::LAST, F::LEVELS[level].span(), F::LEVELS[level].entries);
        let (of, words) = if last { (Table::Last, 2 * count) } else { (Table::Upper, count) };
        let mut entries = F::Words::ZERO;
        let entries = &mut entries.words_mut()[..words];
        if !self.table(at, of, entries) {
            return;
        }
        for index in self.indices(base, unit * count as u64, unit) {
            let va = base + index as u64 * unit;
            if last {
                self.unit(DualPde { big: entries[2 * index], small: entries[2 * index + 1] }, va);
                continue;
            }
            let pde = Pde(entries[index]);
            if pde.is_sparse() {
                self.page(Pte::SPARSE, va, unit);
            }
            if let Some(next) = pde.table() {
                self.directory(next, level + 1, va);
            }
        }
    }

    fn unit(&mut self, dual: DualPde, va: u64) {
        if let Some(page) = dual.page() {
            self.page(page, va, F::UNIT);
        } else if dual.is_sparse() {
            self.page(Pte::SPARSE, va, F::UNIT);
        } else {
            self.leaves(dual, va);
        }
    }

    fn leaves(&mut self, dual: DualPde, base: u64) {
        let (mut big, mut small) = ([0; BIG_PAGES], F::Words::ZERO);
        if let Some(at) = dual.big_table()
            && !self.table(at, Table::Big, &mut big)
        {
            // A table that cannot be read faults; the small pages are not looked at.
            return;
        }
        let small = &mut small.words_mut()[..F::SMALL_PAGES];
        let has_small = dual.small_table().is_some_and(|at| self.table(at, Table::Small, small));
        for index in self.indices(base, F::UNIT, F::BIG_PAGE) {
            let va = base + index as u64 * F::BIG_PAGE;
            let pte = Pte(big[index]);
            if pte.hides_small() {
                self.page(pte, va, F::BIG_PAGE);
                continue;
            }
            if !has_small {
                continue;
            }
            let first = index * F::SMALL_IN_BIG;
            for sub in self.indices(va, F::BIG_PAGE, SMALL_PAGE) {
                self.page(Pte(small[first + sub]), va + sub as u64 * SMALL_PAGE, SMALL_PAGE);
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
