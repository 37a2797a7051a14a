//! GPU virtual addresses: the reserved window, one for all GPUs of the process.
//!
//! ```text
//! window  │ handed out here, to all GPUs          │ driver of GPU 0 │ driver of GPU 1 │ …
//! GPU 0   │ announced ──────────────────────────────────────────────┤
//! GPU 1   │ announced ────────────────────────────────────────────────────────────────┤
//! ```
//! What is announced to a GPU begins where the window does and ends with its driver's part: each address names one GPU's memory,
//! or memory of the host's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gpu::{LARGE_PAGE_BYTES, MAX_RANGE_BYTES, client_bytes};
use hostmem::Window;
use intervals::FreeRanges;
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::memory::shared::Shared;
use crate::memory::table::AllocationTable;

/// Sizes of the first GPU's part to try, largest first, bytes. Reserving costs nothing but a process limit may forbid it.
const WINDOW_BYTES: [u64; 4] = [256 << 30, 64 << 30, 16 << 30, 4 << 30];

/// The addresses of a process.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) window: Window,
    pub(crate) lo: u64,
    /// How many bytes are announced to each GPU.
    announced: Vec<u64>,
}

/// Bytes to announce to the GPU behind one that was announced `before`: the driver's part lies behind the former's.
fn next(before: u64) -> u64 {
    (before + before.div_ceil(15)).next_multiple_of(LARGE_PAGE_BYTES) + 2 * LARGE_PAGE_BYTES
}

/// Bytes to announce to each of `gpus`, the first of which is announced `first`.
fn announced(first: u64, gpus: usize) -> Vec<u64> {
    std::iter::successors(Some(first), |before| Some(next(*before))).take(gpus).collect()
}

impl Arena {
    fn reserve(gpus: usize) -> Result<Arena> {
        let reserve = |first: &u64| {
            let announced = announced(*first, gpus);
            let all = *announced.last()?;
            let window = (all <= MAX_RANGE_BYTES).then(|| Window::reserve(all).ok()).flatten()?;
            Some((window, announced))
        };
        let (window, announced) = WINDOW_BYTES.iter().find_map(reserve).ok_or(CudaError::OUT_OF_MEMORY)?;
        Ok(Arena { lo: window.address() as u64, window, announced })
    }

    /// Bytes that a GPU's driver is told of, from `lo` on.
    pub(crate) fn announced(&self, gpu: u32) -> u64 {
        self.announced[gpu as usize]
    }

    /// True for every GPU address, those of the GPUs' drivers too.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.lo && address - self.lo < self.window.bytes()
    }
}

/// The addresses of a process, and what is at them.
#[derive(Debug)]
pub(crate) struct Space {
    gpus: usize,
    arena: OnceLock<Arena>,
    /// There once the addresses are reserved.
    free: Mutex<Option<FreeRanges>>,
    pub(crate) table: AllocationTable,
    pub(crate) shared: Shared,
    next_number: AtomicU64,
}

impl Space {
    /// For so many GPUs.
    pub(crate) fn new(gpus: usize) -> Space {
        Space {
            gpus,
            arena: OnceLock::new(),
            free: Mutex::default(),
            table: AllocationTable::default(),
            shared: Shared::default(),
            next_number: AtomicU64::new(0),
        }
    }

    /// The addresses, if they are reserved.
    pub(crate) fn existing(&self) -> Option<&Arena> {
        self.arena.get()
    }

    /// The addresses, reserved at the first call.
    pub(crate) fn arena(&self) -> Result<&Arena> {
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let mut free = self.free.lock();
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let arena = Arena::reserve(self.gpus)?;
        *free = Some(FreeRanges::new(arena.lo, client_bytes(arena.announced(0))));
        Ok(self.arena.get_or_init(|| arena))
    }

    /// A number never given before.
    pub(crate) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes addresses; `at`: those, if they are free.
    pub(crate) fn take(&self, bytes: u64, align: u64, at: Option<u64>) -> Result<u64> {
        self.arena()?;
        let mut free = self.free.lock();
        let free = free.as_mut().ok_or(CudaError::OUT_OF_MEMORY)?;
        if let Some(at) = at
            && at % align == 0
            && free.take_at(at, bytes)
        {
            return Ok(at);
        }
        free.take_lowest(bytes, align).ok_or(CudaError::OUT_OF_MEMORY)
    }

    pub(crate) fn give(&self, at: u64, bytes: u64) {
        if let Some(free) = self.free.lock().as_mut() {
            free.give(at, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_of_several_gpus_have_addresses_of_their_own() {
        for first in WINDOW_BYTES {
            let all = announced(first, 16);
            assert_eq!(all[0], first);
            for pair in all.windows(2) {
                let driver = client_bytes(pair[1]);
                assert!(driver >= pair[0], "{pair:?}");
                // And they are not spread out without need.
                assert!(driver - pair[0] <= 8 * LARGE_PAGE_BYTES, "{pair:?}");
            }
            assert!(all.iter().all(|bytes| bytes.is_multiple_of(LARGE_PAGE_BYTES) && *bytes <= MAX_RANGE_BYTES));
        }
    }
}
