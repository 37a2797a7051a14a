//! Virtual memory management: addresses, physical memory and mappings apart, as the waist has them too.

use std::ops::Range;
use std::sync::Arc;

use gpu::{AllocId, ContextId, DevAddr, LARGE_PAGE_BYTES, MapAccess, MemoryKind, PAGE_BYTES, Request};
use hostmem::Protection;
use intervals::IntervalMap;
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::handle::{self, Physical, Table, Tag};
use crate::memory::allocation::Kind;
use crate::memory::descriptors::{Foreign, POSIX};
use crate::memory::heap::Memory;
use crate::memory::memories::Memories;
use crate::values::{AccessFlags, Location, MemoryProps};

/// Granularity of sizes, offsets and addresses of memory at a location, bytes: what of it has a page of its own. On the host
/// those are the processor's pages.
pub(crate) fn minimum_granularity(at: Location) -> u64 {
    if matches!(at, Location::Device(_)) { LARGE_PAGE_BYTES } else { PAGE_BYTES }
}

/// Physical memory; freed when neither handle nor mapping refers to it, nor a descriptor that somebody has.
#[derive(Debug)]
pub(crate) struct PhysicalState {
    pub(crate) id: AllocId,
    pub(crate) bytes: u64,
    pub(crate) props: MemoryProps,
    /// The memory of the GPU that has it, or that may see it.
    pub(crate) owner: Arc<Memory>,
    /// A number never used again.
    pub(crate) number: u64,
    /// Another process's.
    pub(crate) _foreign: Option<Foreign>,
}

impl PhysicalState {
    /// Whether it is that device which may have rights to it.
    fn is_of(&self, device: i32) -> bool {
        i64::from(self.owner.gpu()) == i64::from(device)
    }

    fn on_host(&self) -> bool {
        !matches!(self.props.location, Location::Device(_))
    }

    /// Whether the host gets rights to it by this location: by a node, only to memory of a node.
    fn is_reached_from(&self, host: Location) -> bool {
        self.on_host() && (host == Location::Host || matches!(self.props.location, Location::HostNuma(_)))
    }
}

impl Drop for PhysicalState {
    fn drop(&mut self) {
        self.owner.link().give_back(Request::Free { id: self.id });
    }
}

/// Reservations, physical memory, and what of it is mapped where.
#[derive(Debug)]
pub(crate) struct VirtualMemory {
    pub(crate) memory: Arc<Memories>,
    pub(crate) physicals: Table<PhysicalState>,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// Reservations that touch stay apart.
    reserved: IntervalMap<()>,
    mapped: IntervalMap<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    offset: u64,
    memory: Arc<PhysicalState>,
    /// Handles of it, all released or not.
    handle: Physical,
    device: AccessFlags,
    host: AccessFlags,
}

impl Tables {
    /// Whether a range lies in one reservation.
    fn reserved(&self, range: &Range<u64>) -> bool {
        self.reserved.get(range.start).is_some_and(|(reservation, _)| range.end <= reservation.end)
    }

    /// The mappings that make up exactly this range.
    fn whole(&self, at: u64, bytes: u64) -> Result<Vec<Range<u64>>> {
        let range = at..at.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        let found: Vec<Range<u64>> = self.mapped.overlapping(range.clone()).map(|(mapping, _)| mapping).collect();
        let ends = found.first().map(|first| first.start)..found.last().map(|last| last.end);
        let whole = ends == (Some(range.start)..Some(range.end)) && self.mapped.covers(range);
        if whole { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// The mapping around an address.
    fn around(&self, address: u64) -> Result<&Mapping> {
        self.mapped.get(address).map(|(_, mapping)| mapping).ok_or(CudaError::INVALID_VALUE)
    }
}

/// The host is one node, number 0 (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID); its nearest to a thread is not asked for here.
fn supported(memory: &Memories, props: MemoryProps) -> Result<()> {
    match props.location {
        Location::Host if props.handle_types != 0 => Err(CudaError::INVALID_VALUE),
        _ if !matches!(props.handle_types, 0 | POSIX) => Err(CudaError::NOT_SUPPORTED),
        Location::Host | Location::HostNuma(0) => Ok(()),
        Location::Device(device) if memory.has(device) => {
            let shared = props.handle_types != 0 && !memory.of(device.cast_unsigned()).can_share(props.location);
            if shared { Err(CudaError::NOT_SUPPORTED) } else { Ok(()) }
        }
        Location::Device(_) => Err(CudaError::INVALID_DEVICE),
        Location::HostNuma(_) | Location::HostNumaCurrent | Location::Invalid => Err(CudaError::INVALID_VALUE),
    }
}

/// Gives the GPU that has the memory of a mapping these rights to it.
fn device_access(range: &Range<u64>, mapping: &mut Mapping, flags: AccessFlags) -> Result<()> {
    if mapping.device == flags {
        return Ok(());
    }
    let owner = Arc::clone(&mapping.memory.owner);
    let link = owner.link();
    let (at, bytes) = (DevAddr(range.start), range.end - range.start);
    if mapping.device != AccessFlags::None {
        link.request(Request::Unmap { at, bytes })?;
        mapping.device = AccessFlags::None;
    }
    let access = match flags {
        AccessFlags::None => return Ok(()),
        AccessFlags::Read => MapAccess::Read,
        AccessFlags::ReadWrite => MapAccess::ReadWrite,
    };
    let (id, offset) = (mapping.memory.id, mapping.offset);
    link.request(Request::Map { at, id, offset, bytes, access })?;
    mapping.device = flags;
    Ok(())
}

impl VirtualMemory {
    pub(crate) fn new(memory: &Arc<Memories>) -> VirtualMemory {
        VirtualMemory { memory: Arc::clone(memory), physicals: Table::default(), tables: Mutex::default() }
    }

    /// Granularity of sizes and addresses, bytes; `option` is minimum or recommended (with which one entry maps as much as it
    /// can).
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_DEVICE`; `NOT_SUPPORTED` for handles other than descriptors, and for those of a device that shows no memory.
    pub(crate) fn granularity(&self, props: MemoryProps, option: u32) -> Result<u64> {
        supported(&self.memory, props)?;
        match option {
            0 => Ok(minimum_granularity(props.location)),
            1 => Ok(LARGE_PAGE_BYTES),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// `INVALID_VALUE` for sizes and alignments that cannot be, `OUT_OF_MEMORY`.
    pub(crate) fn reserve(&self, bytes: u64, alignment: u64, address: u64, flags: u64) -> Result<DevAddr> {
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || !aligned || flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let align = alignment.max(LARGE_PAGE_BYTES);
        let wish = (address != 0).then_some(address);
        let at = self.memory.space().take(bytes, align, wish)?;
        let fresh = self.tables.lock().reserved.insert(at..at + bytes, ());
        assert_eq!(fresh, Ok(()), "addresses are taken once");
        Ok(DevAddr(at))
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no reservation, or something is mapped in it.
    pub(crate) fn free_reservation(&self, address: DevAddr, bytes: u64) -> Result<()> {
        let mut tables = self.tables.lock();
        let reservation = tables.reserved.get(address.0).map(|(reservation, ())| reservation);
        let whole = reservation.filter(|all| all.start == address.0 && all.end - all.start == bytes);
        let whole = whole.ok_or(CudaError::INVALID_VALUE)?;
        if tables.mapped.overlapping(whole).next().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        tables.reserved.remove(address.0);
        self.memory.space().give(address.0, bytes);
        Ok(())
    }

    /// Allocates physical memory; that of the host is for the device `here`.
    ///
    /// # Errors
    /// As [`VirtualMemory::granularity`]; `INVALID_VALUE` for sizes that are no multiple of it, `OUT_OF_MEMORY`.
    pub(crate) fn create(&self, here: u32, bytes: u64, props: MemoryProps, flags: u64) -> Result<Physical> {
        supported(&self.memory, props)?;
        if bytes == 0 || !bytes.is_multiple_of(minimum_granularity(props.location)) || flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let (gpu, kind) = match props.location {
            Location::Device(device) => (device.cast_unsigned(), MemoryKind::Vram),
            _ => (here, MemoryKind::Host),
        };
        let lent = &self.memory.lent;
        lent.sweep();
        let owner = self.memory.of(gpu);
        owner.arena()?;
        let mut place = owner.place();
        let id = loop {
            let id = place.allocation(bytes);
            let answer = owner.request(Request::Alloc { id, bytes, kind });
            place.asked(id, bytes, &answer);
            match answer {
                Err(CudaError::NOT_READY | CudaError::OUT_OF_MEMORY) if lent.sweep() => {}
                // It is no context's: whatever ends, it is wanted.
                Err(CudaError::NOT_READY) => place.wait(&|| {
                    lent.sweep();
                    false
                })?,
                other => break other.map(|_| id)?,
            }
        };
        let handle = Physical(handle::fresh(Tag::Physical));
        let (owner, number) = (Arc::clone(owner), handle.0);
        let state = PhysicalState { id, bytes, props, owner, number, _foreign: None };
        if props.handle_types != 0 {
            // Where there was no room to show it, it goes again.
            state.owner.shown(id)?;
        }
        self.physicals.insert(handle.0, Arc::new(state));
        Ok(handle)
    }

    /// Releases physical memory; it goes when it is mapped nowhere. Gives the GPU that has it, if others may still want it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn release(&self, handle: Physical) -> Result<Option<u32>> {
        let memory = self.physicals.remove(handle.0).map_err(|_| CudaError::INVALID_VALUE)?;
        let lent = &self.memory.lent;
        lent.sweep();
        Ok(Some(memory.owner.gpu()).filter(|_| lent.has(&memory)))
    }

    /// Maps physical memory at reserved addresses, without rights yet.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the addresses are not reserved or in use, or the range is not in the memory.
    pub(crate) fn map(&self, address: DevAddr, bytes: u64, offset: u64, handle: Physical, flags: u64) -> Result<()> {
        let memory = self.physicals.get(handle.0).map_err(|_| CudaError::INVALID_VALUE)?;
        let granularity = minimum_granularity(memory.props.location);
        let whole = [address.0, bytes, offset].iter().all(|value| value.is_multiple_of(granularity));
        let inside = bytes <= memory.bytes && offset <= memory.bytes - bytes;
        let range = address.0..address.0.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        let mut tables = self.tables.lock();
        if !whole || !inside || flags != 0 || !tables.reserved(&range) {
            return Err(CudaError::INVALID_VALUE);
        }
        let (device, host) = (AccessFlags::None, AccessFlags::None);
        let mapping = Mapping { offset, memory, handle, device, host };
        tables.mapped.insert(range, mapping).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// Unmaps; the work that may use the range must be over.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings.
    pub(crate) fn unmap(&self, address: DevAddr, bytes: u64) -> Result<()> {
        let mut tables = self.tables.lock();
        for range in tables.whole(address.0, bytes)? {
            if let Some((range, mapping)) = tables.mapped.remove(range.start) {
                self.withdraw(&range, &mapping);
            }
        }
        Ok(())
    }

    /// Takes all rights to a mapping.
    fn withdraw(&self, range: &Range<u64>, mapping: &Mapping) {
        let (at, bytes) = (range.start, range.end - range.start);
        if mapping.device != AccessFlags::None {
            mapping.memory.owner.link().give_back(Request::Unmap { at: DevAddr(at), bytes });
        }
        if mapping.host != AccessFlags::None
            && let Ok(arena) = self.memory.space().arena()
            && let Err(error) = arena.window.unmap(at - arena.lo, bytes)
        {
            tracing::error!(%error, "host pages stay mapped");
        }
        self.memory.forget(at, |found| matches!(found.kind, Kind::Mapped | Kind::MappedHost));
    }

    /// Gives rights to mapped ranges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings, or the host asks for device memory, or a node of it for another's;
    /// `INVALID_DEVICE`.
    pub(crate) fn set_access(&self, address: DevAddr, bytes: u64, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        let mut tables = self.tables.lock();
        let all = tables.whole(address.0, bytes)?;
        for range in all {
            let Some((_, mapping)) = tables.mapped.get_mut(range.start) else { continue };
            for &(location, flags) in accesses {
                match location {
                    Location::Device(device) if mapping.memory.is_of(device) => {
                        device_access(&range, mapping, flags)?;
                    }
                    // Others have none, and cannot have any.
                    Location::Device(device) if self.memory.has(device) && flags == AccessFlags::None => {}
                    Location::Device(_) => return Err(CudaError::INVALID_DEVICE),
                    Location::Invalid => return Err(CudaError::INVALID_VALUE),
                    host if mapping.memory.is_reached_from(host) => self.host_access(&range, mapping, flags)?,
                    _ => return Err(CudaError::INVALID_VALUE),
                }
            }
            let kind = if mapping.memory.on_host() { Kind::MappedHost } else { Kind::Mapped };
            self.memory.forget(range.start, |found| matches!(found.kind, Kind::Mapped | Kind::MappedHost));
            if mapping.device != AccessFlags::None {
                mapping.memory.owner.announce(range.start, range.end - range.start, kind, ContextId(0));
            }
        }
        Ok(())
    }

    fn host_access(&self, range: &Range<u64>, mapping: &mut Mapping, flags: AccessFlags) -> Result<()> {
        let arena = self.memory.space().arena()?;
        let (at, bytes) = (range.start - arena.lo, range.end - range.start);
        let done = match flags {
            AccessFlags::None if mapping.host == AccessFlags::None => Ok(()),
            AccessFlags::None => arena.window.unmap(at, bytes),
            AccessFlags::Read | AccessFlags::ReadWrite => {
                let link = mapping.memory.owner.link();
                let part = link.outcome(link.gpu().host_memory(mapping.memory.id))?;
                let protection = if flags == AccessFlags::Read { Protection::Read } else { Protection::ReadWrite };
                let offset = part.offset + mapping.offset;
                arena.window.map(at, &part.file, offset, bytes, protection)
            }
        };
        done.map_err(|_| CudaError::OPERATING_SYSTEM)?;
        mapping.host = flags;
        Ok(())
    }

    /// Rights at an address.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there, `INVALID_DEVICE`.
    pub(crate) fn access(&self, location: Location, address: DevAddr) -> Result<AccessFlags> {
        let tables = self.tables.lock();
        let mapping = tables.around(address.0)?;
        match location {
            Location::Device(device) if mapping.memory.is_of(device) => Ok(mapping.device),
            Location::Device(device) if self.memory.has(device) => Ok(AccessFlags::None),
            Location::Device(_) => Err(CudaError::INVALID_DEVICE),
            Location::Invalid => Err(CudaError::INVALID_VALUE),
            _ => Ok(mapping.host),
        }
    }

    /// The physical memory behind an address: one more handle to release.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub(crate) fn retain_handle(&self, address: u64) -> Result<Physical> {
        let tables = self.tables.lock();
        let mapping = tables.around(address)?;
        if self.physicals.get(mapping.handle.0).is_err() {
            // Released since: the memory gets its handle back.
            self.physicals.insert(mapping.handle.0, Arc::clone(&mapping.memory));
            return Ok(mapping.handle);
        }
        let handle = Physical(handle::fresh(Tag::Physical));
        self.physicals.insert(handle.0, Arc::clone(&mapping.memory));
        Ok(handle)
    }

    /// The types of handles that memory mapped at an address was created for.
    pub(crate) fn handle_types_at(&self, address: u64) -> u32 {
        self.tables.lock().around(address).map_or(0, |mapping| mapping.memory.props.handle_types)
    }

    /// Properties it was created with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn properties(&self, handle: Physical) -> Result<MemoryProps> {
        self.physicals.get(handle.0).map(|state| state.props).map_err(|_| CudaError::INVALID_VALUE)
    }
}
