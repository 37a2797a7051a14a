//! Managed memory: one address for host and GPU.
//!
//! It is host-visible memory; both sides may use it at any time, so nothing ever moves. Advice and prefetches are
//! checked, and remembered as far as they can be asked for.

pub(crate) mod variables;

use std::collections::BTreeMap;

use gpu::DevAddr;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::heap::{Kind, Wanted};
use crate::types::Location;

/// `CU_DEVICE_CPU`.
const CPU: i32 = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: i32 = -2;

/// What was advised about the managed allocation at an address.
#[derive(Clone, Copy, Debug)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: i32,
    prefetched: i32,
}

const NONE: Advice = Advice { read_mostly: false, preferred: NOWHERE, accessed_by: NOWHERE, prefetched: NOWHERE };

/// Advice by the base of the allocation.
#[derive(Debug, Default)]
pub(crate) struct Advices(Mutex<BTreeMap<u64, Advice>>);

fn number(location: Location) -> Result<i32> {
    match location {
        Location::Device(0) => Ok(0),
        Location::Host | Location::HostNuma(_) | Location::HostNumaCurrent => Ok(CPU),
        Location::Device(_) | Location::Invalid => Err(CudaError::INVALID_DEVICE),
    }
}

impl Driver {
    /// Allocates managed memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or flags that are none, `OUT_OF_MEMORY`.
    pub fn mem_alloc_managed(&self, bytes: u64, flags: u32) -> Result<DevAddr> {
        let context = self.current()?;
        if !matches!(flags, 1 | 2) {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut wanted = Wanted::new(bytes, Kind::Managed, context.gpu_id);
        wanted.flags = flags;
        let base = self.shared.memory.alloc(&self.shared, wanted)?.base;
        self.advices.0.lock().remove(&base);
        Ok(DevAddr(base))
    }

    /// The managed allocation that holds a whole range.
    fn managed(&self, address: DevAddr, bytes: u64) -> Result<u64> {
        self.current()?;
        let found = self.shared.memory.find(address.0).filter(|found| found.kind.managed());
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        if bytes == 0 || bytes > found.end() - address.0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(found.base)
    }

    /// Takes advice about a range (`CUmem_advise`).
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed or the advice unknown, `INVALID_DEVICE`.
    pub fn mem_advise(&self, address: DevAddr, bytes: u64, advice: u32, location: Location) -> Result<()> {
        let base = self.managed(address, bytes)?;
        let mut all = self.advices.0.lock();
        let known = all.entry(base).or_insert(NONE);
        match advice {
            1 => known.read_mostly = true,
            2 => known.read_mostly = false,
            3 => known.preferred = number(location)?,
            4 => known.preferred = NOWHERE,
            5 => known.accessed_by = number(location)?,
            6 => known.accessed_by = NOWHERE,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// Moves a range ahead of its use: it need not move.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed, `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn mem_prefetch_async(&self, address: DevAddr, bytes: u64, location: Location, stream: Stream) -> Result<()> {
        self.stream(stream)?;
        let base = self.managed(address, bytes)?;
        self.advices.0.lock().entry(base).or_insert(NONE).prefetched = number(location)?;
        Ok(())
    }

    /// A `CUmem_range_attribute` with one value.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed or the attribute unknown.
    pub fn mem_range_get_attribute(&self, attribute: u32, address: DevAddr, bytes: u64) -> Result<i32> {
        let base = self.managed(address, bytes)?;
        let known = self.advices.0.lock().get(&base).copied().unwrap_or(NONE);
        // `CU_MEM_LOCATION_TYPE_*` and `…_ID` of the two that have a location.
        let kind = |device: i32| match device {
            CPU => 2,
            NOWHERE => 0,
            _ => 1,
        };
        Ok(match attribute {
            1 => i32::from(known.read_mostly),
            2 => known.preferred,
            3 => known.accessed_by,
            4 => known.prefetched,
            5 => kind(known.preferred),
            6 => known.preferred.max(0),
            7 => kind(known.prefetched),
            8 => known.prefetched.max(0),
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }
}
