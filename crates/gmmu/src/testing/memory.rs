//! Memories of a guest and a host, by pages.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use gpu_spec::mmu::{PhysAddr, SMALL_PAGE};
use zerocopy::IntoBytes;

use crate::{BadAddress, Grant, Granted, PhysMem, TableMemory};

/// Words in a page.
pub const WORDS: usize = (SMALL_PAGE / 8) as usize;

type Page = Box<[u64; WORDS]>;
/// A write: where, and what.
pub type Write = (PhysAddr, Vec<u8>);
/// Something by physical address.
pub type ByAddress<T> = HashMap<PhysAddr, T, BuildHasherDefault<Quick>>;

/// Hashes addresses: a run of the generated tests looks up millions.
#[derive(Debug, Default)]
pub struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

/// The page around an address, and how far in it lies.
fn split(at: PhysAddr) -> (PhysAddr, usize) {
    let offset = at.address % SMALL_PAGE;
    (PhysAddr { address: at.address - offset, ..at }, offset as usize)
}

fn copy_out(page: &Page, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
    let (_, offset) = split(at);
    out.copy_from_slice(page.as_bytes().get(offset..offset + out.len()).ok_or(BadAddress(at))?);
    Ok(())
}

/// The host's memory, of which tables are allocated. What was freed is never used again, and cannot be read.
#[derive(Debug)]
pub struct Host {
    /// Memory in which the tables lie.
    memory: PhysAddr,
    tables: RefCell<ByAddress<Page>>,
    lengths: ByAddress<u64>,
    /// Each write since [`Host::record`].
    log: RefCell<Option<Vec<Write>>>,
    /// Tables that can still be had.
    pub left: u32,
}

impl Host {
    /// Where tables lie.
    const TABLES: u64 = 1 << 36;

    /// A host that has memory from `memory` on, for so many tables.
    #[must_use]
    pub fn new(memory: PhysAddr, tables: u32) -> Host {
        let (lengths, log) = (ByAddress::default(), RefCell::default());
        Host { memory, tables: RefCell::default(), lengths, log, left: tables }
    }

    /// Writes are noted from now on. Gives what is in memory.
    #[must_use]
    pub fn record(&mut self) -> Host {
        *self.log.get_mut() = Some(Vec::new());
        let tables = RefCell::new(self.tables.get_mut().clone());
        Host { tables, lengths: self.lengths.clone(), ..Host::new(self.memory, 0) }
    }

    /// The writes that were noted, in order.
    pub fn recorded(&mut self) -> Vec<Write> {
        self.log.get_mut().take().unwrap_or_default()
    }

    /// Does one of the writes that were noted, to a table that may be new.
    pub fn repeat(&mut self, at: PhysAddr, data: &[u8]) {
        let page = split(at).0;
        self.tables.get_mut().entry(page).or_insert_with(|| Box::new([0; WORDS]));
        self.lengths.insert(page, SMALL_PAGE);
        self.write(at, data).unwrap();
    }

    /// Tables that are not freed.
    #[must_use]
    pub fn live(&self) -> usize {
        self.tables.borrow().len()
    }
}

impl PhysMem for Host {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        copy_out(self.tables.borrow().get(&split(at).0).ok_or(BadAddress(at))?, at, out)
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let (page, offset) = split(at);
        if let Some(log) = &mut *self.log.borrow_mut() {
            log.push((at, data.to_vec()));
        }
        let mut tables = self.tables.borrow_mut();
        assert!(offset + data.len() <= self.lengths[&page] as usize, "a write beyond the end of a table");
        tables.get_mut(&page).ok_or(BadAddress(at))?.as_mut_bytes()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

impl TableMemory for Host {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        self.left = self.left.checked_sub(1)?;
        let at = self.memory.offset(Host::TABLES + self.lengths.len() as u64 * SMALL_PAGE);
        self.lengths.insert(at, bytes);
        self.tables.get_mut().insert(at, Box::new([0; WORDS]));
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        assert_eq!(self.lengths[&at], bytes, "freed with another length");
        assert!(self.tables.get_mut().remove(&at).is_some(), "freed what is not allocated");
        self.left += 1;
    }
}

/// A guest's memory: what it is granted, page by page, and what it has there.
#[derive(Debug, Default)]
pub struct Guest {
    granted: ByAddress<(PhysAddr, bool)>,
    /// Host pages that it has, and whether they are read-only.
    host: ByAddress<bool>,
    pages: RefCell<ByAddress<Page>>,
    /// Where its driver's next table lies, if it has a driver, and tables that it has freed.
    pub next_table: Option<PhysAddr>,
    free: Vec<PhysAddr>,
    /// Pages into which stores are noticed.
    pub protected: RefCell<BTreeSet<PhysAddr>>,
    /// Stores that were noticed: where, and how many bytes.
    pub noticed: RefCell<Vec<(PhysAddr, u64)>>,
    /// Only the first store into a page is: it is not protected any more then.
    pub notices_once: bool,
    /// The seed of a processor that writes a table each time it has been read.
    pub race: Cell<Option<u64>>,
}

impl Guest {
    /// Gives the guest `pages` at `at`, which the host has at `host`.
    pub fn give(&mut self, at: PhysAddr, pages: u64, host: PhysAddr, read_only: bool) {
        for offset in (0..pages).map(|page| page * SMALL_PAGE) {
            self.take(at.offset(offset));
            self.granted.insert(at.offset(offset), (host.offset(offset), read_only));
            assert_eq!(self.host.insert(host.offset(offset), read_only), None, "a page is given twice");
        }
    }

    /// Takes a page away; gives where the host has it.
    pub fn take(&mut self, at: PhysAddr) -> Option<PhysAddr> {
        let (host, _) = self.granted.remove(&at)?;
        self.host.remove(&host);
        Some(host)
    }

    /// Where the host has the page around an address, and whether it is read-only.
    #[must_use]
    pub fn page(&self, at: PhysAddr) -> Option<(PhysAddr, bool)> {
        self.granted.get(&split(at).0).copied()
    }

    /// All host pages that it has, and whether they are read-only.
    #[must_use]
    pub fn host_pages(&self) -> &ByAddress<bool> {
        &self.host
    }

    /// Writes half a word of a page, whoever has it.
    pub fn put_half(&self, at: PhysAddr, half: u32) {
        let (page, offset) = split(at);
        let mut pages = self.pages.borrow_mut();
        let words = pages.entry(page).or_insert_with(|| Box::new([0; WORDS]));
        words.as_mut_bytes()[offset..offset + 4].copy_from_slice(&half.to_le_bytes());
        self.notice(page, at, 4);
    }

    /// Writes a word of a page, whoever has it.
    pub fn put(&self, at: PhysAddr, word: u64) {
        let (page, offset) = split(at);
        self.pages.borrow_mut().entry(page).or_insert_with(|| Box::new([0; WORDS]))[offset / 8] = word;
        self.notice(page, page.offset((offset / 8 * 8) as u64), 8);
    }

    /// There was a store into a page.
    fn notice(&self, page: PhysAddr, at: PhysAddr, bytes: u64) {
        let mut protected = self.protected.borrow_mut();
        if protected.contains(&page) {
            self.noticed.borrow_mut().push((at, bytes));
            if self.notices_once {
                protected.remove(&page);
            }
        }
    }
}

impl PhysMem for Guest {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let (page, offset) = split(at);
        if !self.granted.contains_key(&page) || offset + out.len() > SMALL_PAGE as usize {
            return Err(BadAddress(at));
        }
        match self.pages.borrow().get(&page) {
            Some(page) => copy_out(page, at, out)?,
            None => out.fill(0),
        }
        if let Some(seed) = self.race.get() {
            // Another processor of the guest's turns a bit or two of what has just been read, or of its neighbours.
            let next = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.race.set(Some(next));
            let word = at.offset(((next >> 33) % out.len() as u64) & !7);
            let mut now = 0u64;
            if let Some(page) = self.pages.borrow().get(&page) {
                now = page[split(word).1 / 8];
            }
            self.put(word, now ^ 1 << (next >> 58) ^ 1 << ((next >> 50) % 16));
        }
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        for (index, half) in data.chunks_exact(4).enumerate() {
            self.put_half(at.offset(index as u64 * 4), u32::from_le_bytes(half.try_into().unwrap()));
        }
        Ok(())
    }
}

/// The tables of the guest's own driver, a page for each.
impl TableMemory for Guest {
    fn alloc(&mut self, _: u64) -> Option<PhysAddr> {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let at = self.next_table?;
                self.next_table = Some(at.offset(SMALL_PAGE));
                at
            }
        };
        self.pages.get_mut().insert(at, Box::new([0; WORDS]));
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, _: u64) {
        self.free.push(at);
    }
}

impl Grant for Guest {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        let (page, offset) = split(at);
        let &(host, read_only) = self.granted.get(&page)?;
        let mut bytes = SMALL_PAGE;
        while self.granted.get(&page.offset(bytes)) == Some(&(host.offset(bytes), read_only)) && bytes < 4 << 20 {
            bytes += SMALL_PAGE;
        }
        let offset = offset as u64;
        Some(Granted { at: host.offset(offset), bytes: bytes - offset, read_only })
    }
}
