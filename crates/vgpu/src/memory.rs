//! A guest's memory: its partition of VRAM, and the system memory that it has mapped for the device.
//!
//! The guest's addresses are its own: VRAM from 0, system memory where its DMA maps say. [`GuestMemory`] is the one place that
//! knows where the host has them, and so the grant of all shadow tables; whatever a guest names is looked up here or nowhere.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use device_io::{DeviceBacking, DmaMemory, VramOffset};
use gmmu::{BadAddress, PhysMem};
use gmmu::{Grant, Granted};
use gpu_driver::Lease;
use gpu_spec::mmu::{Aperture, PhysAddr};
use hostmem::Memfd;
use intervals::IntervalMap;
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::Errno;

use crate::partition::Partition;

/// Most DMA maps.
pub(crate) const MOST_MAPS: usize = 4096;
/// Most bytes of all files together: the device's process has addresses for each, and it has 2^47 of them.
const MOST_BYTES: u64 = 1 << 42;

/// A guest's memory.
pub(crate) struct GuestMemory {
    lease: Arc<Lease>,
    pub(crate) vram: Partition,
    system: IntervalMap<Mapped>,
    /// Files that are addressable for the device, by device and inode: a guest names the same one in many maps. Where two of its
    /// maps show the same part, the file is there more than once. Invariant: no part of a [`File`] is shown by two maps, so that
    /// what leads to memory by the one can be taken away, and what does by the other stays.
    files: HashMap<(u64, u64), Vec<Weak<File>>>,
    /// The same, by the device's address.
    by_bus: BTreeMap<u64, Weak<File>>,
}

/// A file of the guest's that the device can address.
pub(crate) struct File {
    lease: Arc<Lease>,
    memory: DmaMemory,
}

impl Drop for File {
    fn drop(&mut self) {
        self.lease.free_dma(self.memory.bus());
    }
}

/// What a DMA map shows.
#[derive(Clone)]
struct Mapped {
    file: Arc<File>,
    offset: u64,
    read_only: bool,
}

/// Some of a guest's memory, where the host's processor has it.
enum Reached<'a> {
    Vram(VramOffset),
    System(&'a Mapped, u64),
}

/// A page of memory of the guest's, where the host has it.
pub(crate) enum HostPage {
    /// Offset in VRAM.
    Vram(u64),
    /// A file, and where in it.
    System(Arc<File>, u64),
}

impl HostPage {
    /// Copies bytes out, from `skip` on. The caller stays inside the page.
    pub(crate) fn read(&self, memory: &GuestMemory, skip: u64, out: &mut [u8]) {
        match self {
            HostPage::Vram(at) => memory.backing().read_vram(VramOffset(at + skip), out),
            HostPage::System(file, offset) => file.memory.mapping.read((offset + skip) as usize, out),
        }
    }
}

/// Memory files alone have seals, and what else is asked of these is answered at once. Other file systems may take as long as a
/// process of the guest's likes: this comes first.
///
/// # Errors
/// It is none.
fn has_seals(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_get_seals(fd).map(drop)
}

/// A guest's memory, if it can be trusted to stay as large as it is.
///
/// # Errors
/// It cannot.
pub(crate) fn usable(fd: OwnedFd) -> Result<Memfd, Errno> {
    has_seals(&fd)?;
    Memfd::from_fd(fd).map_err(|error| {
        log_limit::warn!(%error, "a guest's memory cannot be used");
        if error.kind() == std::io::ErrorKind::Unsupported { Errno::NOTSUP } else { Errno::PERM }
    })
}

impl GuestMemory {
    /// No system memory yet.
    pub(crate) fn new(lease: Arc<Lease>, vram: Partition) -> GuestMemory {
        GuestMemory { lease, vram, system: IntervalMap::new(), files: HashMap::new(), by_bus: BTreeMap::new() }
    }

    /// Maps system memory. A map without a file is another device's BAR: nothing there can be reached.
    ///
    /// # Errors
    /// The file cannot be trusted to stay as large as it is, or the guest has too much mapped.
    pub(crate) fn map(&mut self, map: vfio_user::DmaMap) -> Result<(), Errno> {
        let Some((fd, offset)) = map.file else { return Ok(()) };
        has_seals(&fd)?;
        let range = map.address..map.address.checked_add(map.bytes).ok_or(Errno::INVAL)?;
        let part = offset..offset.checked_add(map.bytes).ok_or(Errno::INVAL)?;
        if self.system.len() >= MOST_MAPS {
            return Err(Errno::NOSPC);
        }
        let stat = fstat(&fd)?;
        let key = (stat.st_dev, stat.st_ino);
        self.files.retain(|_, files| {
            files.retain(|file| file.strong_count() > 0);
            !files.is_empty()
        });
        self.by_bus.retain(|_, file| file.strong_count() > 0);
        let file = match self.that_does_not_show(key, &part) {
            Some(file) => file,
            None => {
                let file = usable(fd)?;
                let held = self.files.values().flatten().filter_map(Weak::upgrade).map(|file| file.memory.file.bytes());
                if held.sum::<u64>().checked_add(file.bytes()).is_none_or(|bytes| bytes > MOST_BYTES) {
                    return Err(Errno::NOSPC);
                }
                let memory = self.lease.map_dma(file).map_err(|error| {
                    log_limit::warn!(%error, "a guest's memory cannot be mapped");
                    Errno::NOMEM
                })?;
                let file = Arc::new(File { lease: Arc::clone(&self.lease), memory });
                self.files.entry(key).or_default().push(Arc::downgrade(&file));
                self.by_bus.insert(file.memory.bus().0, Arc::downgrade(&file));
                file
            }
        };
        if part.end > file.memory.file.bytes() || !offset.is_multiple_of(hostmem::PAGE) {
            return Err(Errno::INVAL);
        }
        let mapped = Mapped { file, offset, read_only: !map.writable };
        self.system.insert(range, mapped).map_err(|_| Errno::EXIST)
    }

    /// A file that is addressable, of which no map shows any of this part.
    fn that_does_not_show(&self, key: (u64, u64), part: &Range<u64>) -> Option<Arc<File>> {
        let shows = |(range, mapped): &(Range<u64>, &Mapped)| {
            mapped.offset < part.end && part.start < mapped.offset + (range.end - range.start)
        };
        let showing: HashSet<_> =
            self.system.iter().filter(shows).map(|(_, mapped)| Arc::as_ptr(&mapped.file)).collect();
        let mut files = self.files.get(&key)?.iter().filter_map(Weak::upgrade);
        files.find(|file| !showing.contains(&Arc::as_ptr(file)))
    }

    /// The host's pieces of a range of the guest's system memory.
    pub(crate) fn system_pieces(&self, range: Range<u64>) -> Vec<(PhysAddr, u64)> {
        let mut pieces = Vec::new();
        for (whole, mapped) in self.system.overlapping(range.clone()) {
            let (from, to) = (whole.start.max(range.start), whole.end.min(range.end));
            let offset = mapped.offset + (from - whole.start);
            let found = mapped.file.memory.pieces(offset..offset + (to - from));
            pieces.extend(found.into_iter().map(|(bus, bytes)| (PhysAddr::system(bus.0), bytes)));
        }
        pieces
    }

    /// Unmaps system memory. Nothing of the device's may lead there any more.
    pub(crate) fn unmap(&mut self, range: Range<u64>) {
        self.system.cut_with(range, |mapped, skip| Mapped { offset: mapped.offset + skip, ..mapped.clone() });
    }

    /// Unmaps all system memory.
    pub(crate) fn unmap_all(&mut self) {
        self.system.clear();
    }

    /// A page of memory of the guest's that a shadow names, by the device's address; `None` if not all of it is there.
    pub(crate) fn host_page(&self, at: PhysAddr, bytes: u64) -> Option<HostPage> {
        if at.aperture == Aperture::Vram {
            return Some(HostPage::Vram(at.address));
        }
        let (base, file) = self.by_bus.range(..=at.address).next_back()?;
        let file = file.upgrade()?;
        let offset = at.address - base;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= file.memory.file.bytes());
        fits.then_some(HostPage::System(file, offset))
    }

    fn backing(&self) -> &dyn DeviceBacking {
        self.lease.backing().as_ref()
    }

    /// The memory at an address, and how many of `bytes` lie there in one piece.
    fn reach(&self, at: PhysAddr, bytes: usize) -> Option<(Reached<'_>, usize)> {
        let (reached, left) = match at.aperture {
            Aperture::Vram => {
                let (whole, host) = self.vram.get(at.address)?;
                (Reached::Vram(VramOffset(host + at.address - whole.start)), whole.end - at.address)
            }
            Aperture::System => {
                let (whole, mapped) = self.system.get(at.address)?;
                (Reached::System(mapped, mapped.offset + at.address - whole.start), whole.end - at.address)
            }
        };
        Some((reached, usize::try_from(left).map_or(bytes, |left| left.min(bytes))))
    }

    /// Calls `visit` with each piece of a range, its place in the range, and its length.
    fn visit(
        &self,
        at: PhysAddr,
        bytes: usize,
        mut visit: impl FnMut(Reached<'_>, Range<usize>) -> bool,
    ) -> Result<(), BadAddress> {
        let mut done = 0;
        while done < bytes {
            let address = at.address.checked_add(done as u64).ok_or(BadAddress(at))?;
            let (reached, now) = self.reach(PhysAddr { address, ..at }, bytes - done).ok_or(BadAddress(at))?;
            if !visit(reached, done..done + now) {
                return Err(BadAddress(at));
            }
            done += now;
        }
        Ok(())
    }

    /// An aligned 32-bit word; `None` where the guest has no memory.
    pub(crate) fn read_word(&self, at: PhysAddr) -> Option<u32> {
        let mut word = [0; 4];
        self.read(at, &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }
}

impl Grant for GuestMemory {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        match at.aperture {
            Aperture::Vram => {
                let (whole, host) = self.vram.get(at.address)?;
                let at_host = PhysAddr::vram(host + at.address - whole.start);
                Some(Granted { at: at_host, bytes: whole.end - at.address, read_only: false })
            }
            Aperture::System => {
                let (whole, mapped) = self.system.get(at.address)?;
                let offset = mapped.offset + at.address - whole.start;
                let pieces = mapped.file.memory.pieces(offset..offset + (whole.end - at.address));
                let (bus, bytes) = *pieces.first()?;
                Some(Granted { at: PhysAddr::system(bus.0), bytes, read_only: mapped.read_only })
            }
        }
    }
}

impl PhysMem for GuestMemory {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        self.visit(at, out.len(), |reached, part| {
            match reached {
                Reached::Vram(offset) => self.backing().read_vram(offset, &mut out[part]),
                Reached::System(mapped, offset) => mapped.file.memory.mapping.read(offset as usize, &mut out[part]),
            }
            true
        })
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        self.visit(at, data.len(), |reached, part| match reached {
            Reached::Vram(offset) => {
                self.backing().write_vram(offset, &data[part]);
                true
            }
            Reached::System(mapped, offset) => {
                if !mapped.read_only {
                    mapped.file.memory.mapping.write(offset as usize, &data[part]);
                }
                !mapped.read_only
            }
        })
    }
}
