//! Virtual memory management: addresses, physical memory and mappings apart, as the waist has them too.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu::{AllocId, ContextId, DevAddr, LARGE_PAGE_BYTES, MapAccess, MemoryKind, PAGE_BYTES, Request};
use hostmem::Protection;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Physical, Tag};
use crate::heap::Kind;
use crate::types::{AccessFlags, Location, MemoryProps};

/// Granularity of sizes, offsets and addresses, bytes.
const GRANULARITY: u64 = LARGE_PAGE_BYTES;

/// Physical memory; freed when neither handle nor mapping refers to it.
pub(crate) struct PhysicalState {
    id: AllocId,
    bytes: u64,
    props: MemoryProps,
    shared: Arc<crate::shared::Shared>,
}

impl std::fmt::Debug for PhysicalState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PhysicalState").field("id", &self.id).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl PhysicalState {
    fn on_host(&self) -> bool {
        !matches!(self.props.location, Location::Device(_))
    }
}

impl Drop for PhysicalState {
    fn drop(&mut self) {
        self.shared.give_back(Request::Free { id: self.id });
    }
}

/// Reservations and what is mapped in them.
#[derive(Debug, Default)]
pub(crate) struct Mappings(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    /// Size by address.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

#[derive(Debug)]
struct Mapping {
    bytes: u64,
    offset: u64,
    memory: Arc<PhysicalState>,
    /// Handles of it, all released or not.
    handle: Physical,
    device: AccessFlags,
    host: AccessFlags,
}

impl Tables {
    fn reserved(&self, at: u64, bytes: u64) -> bool {
        self.reserved.range(..=at).next_back().is_some_and(|(start, len)| bytes <= *len && at - start <= len - bytes)
    }

    /// The mappings that make up exactly this range.
    fn whole(&self, at: u64, bytes: u64) -> Result<Vec<u64>> {
        let end = at.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        let mut next = at;
        let mut found = Vec::new();
        while next < end {
            let mapping = self.mapped.get(&next).ok_or(CudaError::INVALID_VALUE)?;
            found.push(next);
            next += mapping.bytes;
        }
        if next == end && !found.is_empty() { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }
}

fn supported(props: MemoryProps) -> Result<()> {
    match props.location {
        _ if props.handle_types != 0 => Err(CudaError::NOT_SUPPORTED),
        Location::Device(0) | Location::Host | Location::HostNuma(_) | Location::HostNumaCurrent => Ok(()),
        Location::Device(_) => Err(CudaError::INVALID_DEVICE),
        Location::Invalid => Err(CudaError::INVALID_VALUE),
    }
}

impl Driver {
    /// Granularity of sizes and addresses, bytes; `option` is minimum or recommended.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_DEVICE`, `NOT_SUPPORTED` for memory shared between processes.
    pub fn mem_get_allocation_granularity(&self, props: MemoryProps, option: u32) -> Result<u64> {
        self.ready()?;
        supported(props)?;
        if option > 1 { Err(CudaError::INVALID_VALUE) } else { Ok(GRANULARITY) }
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// `INVALID_VALUE` for sizes and alignments that cannot be, `OUT_OF_MEMORY`.
    pub fn mem_address_reserve(&self, bytes: u64, alignment: u64, address: u64, flags: u64) -> Result<DevAddr> {
        self.ready()?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || !aligned || flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let align = alignment.max(GRANULARITY);
        let wish = (address != 0).then_some(address);
        let at = self.shared.memory.take_addresses(&self.shared, bytes, align, wish)?;
        self.mappings.0.lock().reserved.insert(at, bytes);
        Ok(DevAddr(at))
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no reservation, or something is mapped in it.
    pub fn mem_address_free(&self, address: DevAddr, bytes: u64) -> Result<()> {
        self.ready()?;
        let mut tables = self.mappings.0.lock();
        let mapped = tables.mapped.range(address.0..address.0.saturating_add(bytes)).next().is_some();
        if tables.reserved.get(&address.0) != Some(&bytes) || mapped {
            return Err(CudaError::INVALID_VALUE);
        }
        tables.reserved.remove(&address.0);
        self.shared.memory.give_addresses(address.0, bytes);
        Ok(())
    }

    /// Allocates physical memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for sizes that are no multiple of the granularity, `NOT_SUPPORTED` for memory shared between
    /// processes, `OUT_OF_MEMORY`.
    pub fn mem_create(&self, bytes: u64, props: MemoryProps, flags: u64) -> Result<Physical> {
        self.ready()?;
        supported(props)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.shared.memory.arena(&self.shared)?;
        let id = AllocId(self.shared.id());
        let device = matches!(props.location, Location::Device(_));
        let kind = if device { MemoryKind::Vram } else { MemoryKind::Host };
        self.shared.request(Request::Alloc { id, bytes, kind })?;
        let handle = Physical(handle::fresh(Tag::Physical));
        let state = PhysicalState { id, bytes, props, shared: Arc::clone(&self.shared) };
        self.physicals.insert(handle.0, Arc::new(state));
        Ok(handle)
    }

    /// Releases physical memory; it goes when it is mapped nowhere.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn mem_release(&self, handle: Physical) -> Result<()> {
        self.ready()?;
        self.physicals.remove(handle.0).map(|_| ()).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// Maps physical memory at reserved addresses, without rights yet.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the addresses are not reserved or in use, or the range is not in the memory.
    pub fn mem_map(&self, address: DevAddr, bytes: u64, offset: u64, handle: Physical, flags: u64) -> Result<()> {
        self.ready()?;
        let memory = self.physicals.get(handle.0).map_err(|_| CudaError::INVALID_VALUE)?;
        let whole = [address.0, bytes, offset].iter().all(|value| value.is_multiple_of(GRANULARITY));
        let inside = bytes <= memory.bytes && offset <= memory.bytes - bytes;
        let mut tables = self.mappings.0.lock();
        if !whole || bytes == 0 || !inside || flags != 0 || !tables.reserved(address.0, bytes) {
            return Err(CudaError::INVALID_VALUE);
        }
        let before = tables.mapped.range(..address.0 + bytes).next_back();
        if before.is_some_and(|(at, mapping)| at + mapping.bytes > address.0) {
            return Err(CudaError::INVALID_VALUE);
        }
        let (device, host) = (AccessFlags::None, AccessFlags::None);
        tables.mapped.insert(address.0, Mapping { bytes, offset, memory, handle, device, host });
        Ok(())
    }

    /// Unmaps; the work that may use the range must be over.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings.
    pub fn mem_unmap(&self, address: DevAddr, bytes: u64) -> Result<()> {
        self.ready()?;
        let mut tables = self.mappings.0.lock();
        for at in tables.whole(address.0, bytes)? {
            if let Some(mapping) = tables.mapped.remove(&at) {
                self.withdraw(at, &mapping);
            }
        }
        Ok(())
    }

    /// Takes all rights to a mapping.
    fn withdraw(&self, at: u64, mapping: &Mapping) {
        let shared = &self.shared;
        if mapping.device != AccessFlags::None {
            shared.give_back(Request::Unmap { at: DevAddr(at), bytes: mapping.bytes });
        }
        if mapping.host != AccessFlags::None
            && let Ok(arena) = shared.memory.arena(shared)
            && let Err(error) = arena.window.unmap(at - arena.lo, mapping.bytes)
        {
            tracing::error!(%error, "host pages stay mapped");
        }
        shared.memory.forget(at, |found| matches!(found.kind, Kind::Mapped | Kind::MappedHost));
    }

    /// Gives rights to mapped ranges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings, or the host asks for device memory;
    /// `INVALID_DEVICE`.
    pub fn mem_set_access(&self, address: DevAddr, bytes: u64, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        self.ready()?;
        let mut tables = self.mappings.0.lock();
        let all = tables.whole(address.0, bytes)?;
        for at in all {
            let Some(mapping) = tables.mapped.get_mut(&at) else { continue };
            for &(location, flags) in accesses {
                match location {
                    Location::Device(0) => self.device_access(at, mapping, flags)?,
                    Location::Device(_) => return Err(CudaError::INVALID_DEVICE),
                    Location::Invalid => return Err(CudaError::INVALID_VALUE),
                    _ => self.host_access(at, mapping, flags)?,
                }
            }
            let kind = if mapping.memory.on_host() { Kind::MappedHost } else { Kind::Mapped };
            self.shared.memory.forget(at, |found| matches!(found.kind, Kind::Mapped | Kind::MappedHost));
            if mapping.device != AccessFlags::None {
                self.shared.memory.announce(at, mapping.bytes, kind, ContextId(0));
            }
        }
        Ok(())
    }

    fn device_access(&self, at: u64, mapping: &mut Mapping, flags: AccessFlags) -> Result<()> {
        if mapping.device == flags {
            return Ok(());
        }
        let (at, bytes) = (DevAddr(at), mapping.bytes);
        if mapping.device != AccessFlags::None {
            self.shared.request(Request::Unmap { at, bytes })?;
            mapping.device = AccessFlags::None;
        }
        let access = match flags {
            AccessFlags::None => return Ok(()),
            AccessFlags::Read => MapAccess::Read,
            AccessFlags::ReadWrite => MapAccess::ReadWrite,
        };
        let (id, offset) = (mapping.memory.id, mapping.offset);
        self.shared.request(Request::Map { at, id, offset, bytes, access })?;
        mapping.device = flags;
        Ok(())
    }

    fn host_access(&self, at: u64, mapping: &mut Mapping, flags: AccessFlags) -> Result<()> {
        if !mapping.memory.on_host() {
            return Err(CudaError::INVALID_VALUE);
        }
        let arena = self.shared.memory.arena(&self.shared)?;
        let done = match flags {
            AccessFlags::None if mapping.host == AccessFlags::None => Ok(()),
            AccessFlags::None => arena.window.unmap(at - arena.lo, mapping.bytes),
            AccessFlags::Read | AccessFlags::ReadWrite => {
                let file = self.shared.note(self.shared.gpu.host_memory(mapping.memory.id))?;
                let protection = if flags == AccessFlags::Read { Protection::Read } else { Protection::ReadWrite };
                arena.window.map(at - arena.lo, &file, mapping.offset, mapping.bytes, protection)
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
    pub fn mem_get_access(&self, location: Location, address: DevAddr) -> Result<AccessFlags> {
        self.ready()?;
        let tables = self.mappings.0.lock();
        let found = tables.mapped.range(..=address.0).next_back();
        let (_, mapping) = found.filter(|(at, found)| address.0 - *at < found.bytes).ok_or(CudaError::INVALID_VALUE)?;
        match location {
            Location::Device(0) => Ok(mapping.device),
            Location::Device(_) => Err(CudaError::INVALID_DEVICE),
            Location::Invalid => Err(CudaError::INVALID_VALUE),
            _ => Ok(mapping.host),
        }
    }

    /// The physical memory behind an address: one more handle to release.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub fn mem_retain_allocation_handle(&self, address: u64) -> Result<Physical> {
        self.ready()?;
        let tables = self.mappings.0.lock();
        let found = tables.mapped.range(..=address).next_back();
        let (_, mapping) = found.filter(|(at, found)| address - *at < found.bytes).ok_or(CudaError::INVALID_VALUE)?;
        if self.physicals.get(mapping.handle.0).is_err() {
            // Released since: the memory gets its handle back.
            self.physicals.insert(mapping.handle.0, Arc::clone(&mapping.memory));
            return Ok(mapping.handle);
        }
        let handle = Physical(handle::fresh(Tag::Physical));
        self.physicals.insert(handle.0, Arc::clone(&mapping.memory));
        Ok(handle)
    }

    /// Properties it was created with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn mem_get_allocation_properties(&self, handle: Physical) -> Result<MemoryProps> {
        self.ready()?;
        self.physicals.get(handle.0).map(|state| state.props).map_err(|_| CudaError::INVALID_VALUE)
    }
}
