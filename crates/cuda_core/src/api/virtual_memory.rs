//! Virtual memory management: addresses, physical memory and mappings apart.

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::Result;
use crate::handle::Physical;
use crate::values::{AccessFlags, Location, MemoryProps};

impl Driver {
    /// Granularity of sizes and addresses, bytes; `option` is minimum or recommended.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_DEVICE`; `NOT_SUPPORTED` for handles other than descriptors, and for those of a device that shows no memory.
    pub fn mem_get_allocation_granularity(&self, props: MemoryProps, option: u32) -> Result<u64> {
        self.ready()?;
        self.virtual_memory.granularity(props, option)
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// `INVALID_VALUE` for sizes and alignments that cannot be, `OUT_OF_MEMORY`.
    pub fn mem_address_reserve(&self, bytes: u64, alignment: u64, address: u64, flags: u64) -> Result<DevAddr> {
        self.ready()?;
        self.virtual_memory.reserve(bytes, alignment, address, flags)
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no reservation, or something is mapped in it.
    pub fn mem_address_free(&self, address: DevAddr, bytes: u64) -> Result<()> {
        self.ready()?;
        self.virtual_memory.free_reservation(address, bytes)
    }

    /// Allocates physical memory.
    ///
    /// # Errors
    /// As `mem_get_allocation_granularity`; `INVALID_VALUE` for sizes that are no multiple of it, `OUT_OF_MEMORY`.
    pub fn mem_create(&self, bytes: u64, props: MemoryProps, flags: u64) -> Result<Physical> {
        self.ready()?;
        let here = self.current_any().map_or(0, |context| context.core.gpu.ordinal);
        self.virtual_memory.create(here, bytes, props, flags)
    }

    /// Releases physical memory; it goes when it is mapped nowhere, and no descriptor of it is open anywhere.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn mem_release(&self, handle: Physical) -> Result<()> {
        self.ready()?;
        if let Some(gpu) = self.virtual_memory.release(handle)? {
            // When the others do not want it any more, it goes to who waits.
            self.devices.all()[gpu as usize].pools.begin_to_attend();
        }
        Ok(())
    }

    /// Maps physical memory at reserved addresses, without rights yet.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the addresses are not reserved or in use, or the range is not in the memory.
    pub fn mem_map(&self, address: DevAddr, bytes: u64, offset: u64, handle: Physical, flags: u64) -> Result<()> {
        self.ready()?;
        self.virtual_memory.map(address, bytes, offset, handle, flags)
    }

    /// Unmaps; the work that may use the range must be over.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings.
    pub fn mem_unmap(&self, address: DevAddr, bytes: u64) -> Result<()> {
        self.ready()?;
        self.virtual_memory.unmap(address, bytes)
    }

    /// Gives rights to mapped ranges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not made up of whole mappings, or the host asks for device memory;
    /// `INVALID_DEVICE`.
    pub fn mem_set_access(&self, address: DevAddr, bytes: u64, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        self.ready()?;
        self.virtual_memory.set_access(address, bytes, accesses)
    }

    /// Rights at an address.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there, `INVALID_DEVICE`.
    pub fn mem_get_access(&self, location: Location, address: DevAddr) -> Result<AccessFlags> {
        self.ready()?;
        self.virtual_memory.access(location, address)
    }

    /// The physical memory behind an address: one more handle to release.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub fn mem_retain_allocation_handle(&self, address: u64) -> Result<Physical> {
        self.ready()?;
        self.virtual_memory.retain_handle(address)
    }

    /// Properties it was created with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn mem_get_allocation_properties(&self, handle: Physical) -> Result<MemoryProps> {
        self.ready()?;
        self.virtual_memory.properties(handle)
    }
}
