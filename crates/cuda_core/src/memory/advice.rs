//! What was advised about managed memory.
//!
//! Host and GPU may use managed memory at any time, so nothing ever moves: advice is kept for who asks for it.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::values::Location;

/// `CU_DEVICE_CPU`.
const CPU: i32 = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: i32 = -2;

/// What was advised about the managed allocation at an address.
#[derive(Clone, Debug)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: BTreeSet<i32>,
    prefetched: i32,
}

const NONE: Advice =
    Advice { read_mostly: false, preferred: NOWHERE, accessed_by: BTreeSet::new(), prefetched: NOWHERE };

/// Advice by the base of the allocation.
#[derive(Debug)]
pub(crate) struct Advices {
    devices: usize,
    known: Mutex<BTreeMap<u64, Advice>>,
}

impl Advices {
    /// For so many devices.
    pub(crate) fn new(devices: usize) -> Advices {
        Advices { devices, known: Mutex::default() }
    }

    fn number(&self, location: Location) -> Result<i32> {
        match location {
            Location::Device(device) if (0..self.devices as i64).contains(&device.into()) => Ok(device),
            Location::Host | Location::HostNuma(_) | Location::HostNumaCurrent => Ok(CPU),
            Location::Device(_) | Location::Invalid => Err(CudaError::INVALID_DEVICE),
        }
    }

    /// A new allocation begins here: what was said of a former one is void.
    pub(crate) fn forget(&self, base: u64) {
        self.known.lock().remove(&base);
    }

    /// Takes a `CUmem_advise`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown advice, `INVALID_DEVICE`.
    pub(crate) fn advise(&self, base: u64, advice: u32, location: Location) -> Result<()> {
        let mut all = self.known.lock();
        let known = all.entry(base).or_insert(NONE);
        match advice {
            1 => known.read_mostly = true,
            2 => known.read_mostly = false,
            3 => known.preferred = self.number(location)?,
            4 => known.preferred = NOWHERE,
            5 => drop(known.accessed_by.insert(self.number(location)?)),
            6 => drop(known.accessed_by.remove(&self.number(location)?)),
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// Remembers where an allocation was prefetched to last.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub(crate) fn prefetched(&self, base: u64, location: Location) -> Result<()> {
        self.known.lock().entry(base).or_insert(NONE).prefetched = self.number(location)?;
        Ok(())
    }

    /// Who was said to access it: devices, then the CPU.
    pub(crate) fn accessed_by(&self, base: u64) -> Vec<i32> {
        let known = self.known.lock();
        let all = known.get(&base).map(|known| &known.accessed_by);
        let (host, devices): (Vec<i32>, Vec<i32>) = all.into_iter().flatten().partition(|device| **device == CPU);
        [devices, host].concat()
    }

    /// A `CUmem_range_attribute` with one value.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the attribute is unknown, or has several values.
    pub(crate) fn attribute(&self, base: u64, attribute: u32) -> Result<i32> {
        let known = self.known.lock().get(&base).cloned().unwrap_or(NONE);
        // `CU_MEM_LOCATION_TYPE_*` and `…_ID` of the two that have a location.
        let kind = |device: i32| match device {
            CPU => 2,
            NOWHERE => 0,
            _ => 1,
        };
        Ok(match attribute {
            1 => i32::from(known.read_mostly),
            2 => known.preferred,
            4 => known.prefetched,
            5 => kind(known.preferred),
            6 => known.preferred.max(0),
            7 => kind(known.prefetched),
            8 => known.prefetched.max(0),
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }
}
