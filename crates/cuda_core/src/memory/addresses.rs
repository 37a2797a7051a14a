//! GPU virtual addresses: the reserved window.

use gpu::{Request, client_bytes};
use hostmem::Window;

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;

/// Sizes of the reservation to try, largest first, bytes. Reserving costs nothing but a process limit may forbid it.
const WINDOW_BYTES: [u64; 4] = [256 << 30, 64 << 30, 16 << 30, 4 << 30];

/// The addresses of a process.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) window: Window,
    /// Addresses that this side hands out: `lo .. lo + bytes`.
    pub(crate) lo: u64,
    pub(crate) bytes: u64,
}

impl Arena {
    /// Reserves addresses and announces them.
    pub(crate) fn reserve(link: &GpuLink) -> Result<Arena> {
        let window =
            WINDOW_BYTES.iter().find_map(|&bytes| Window::reserve(bytes).ok()).ok_or(CudaError::OUT_OF_MEMORY)?;
        let lo = window.address() as u64;
        let all = window.bytes();
        link.request(Request::SetAddressRange { lo, bytes: all })?;
        Ok(Arena { window, lo, bytes: client_bytes(all) })
    }

    /// True for every GPU address, those of the GPU driver too.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.lo && address - self.lo < self.window.bytes()
    }
}
