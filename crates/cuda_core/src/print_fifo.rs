//! The buffer into which kernels print: made with a context, drained at synchronizations.

use std::sync::Arc;

use crate::context::ContextState;
use crate::error::{CudaError, Result};
use crate::heap::{Kind, Wanted};
use crate::printf;
use crate::shared::Shared;

/// Bytes of the header: capacity, write offset, dropped records, 0.
const HEADER: u64 = 16;

#[derive(Debug)]
pub(crate) struct PrintFifo {
    address: u64,
    capacity: u32,
}

impl PrintFifo {
    pub(crate) fn new(context: &Arc<ContextState>, bytes: u64) -> Result<PrintFifo> {
        let shared = &context.shared;
        let capacity = u32::try_from(bytes).unwrap_or(!7);
        let wanted = Wanted::new(HEADER + u64::from(capacity), Kind::Pinned, context.gpu_id);
        let fifo = PrintFifo { address: shared.memory.alloc(shared, wanted)?.base, capacity };
        let mut header = [0; HEADER as usize];
        header[..4].copy_from_slice(&capacity.to_le_bytes());
        let arena = shared.memory.arena(shared)?;
        arena.window.write(fifo.address - arena.lo, &header).map_err(|_| CudaError::UNKNOWN)?;
        Ok(fifo)
    }

    /// GPU address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn read(&self, shared: &Shared, offset: u64, out: &mut [u8]) -> bool {
        shared.memory.arena(shared).is_ok_and(|arena| arena.window.read(self.address - arena.lo + offset, out).is_ok())
    }

    /// Bytes of records, and how many records found no room.
    fn state(&self, shared: &Shared) -> (u32, u32) {
        let mut words = [0; 8];
        if !self.read(shared, 4, &mut words) {
            return (0, 0);
        }
        let [a, b, c, d, e, f, g, h] = words;
        (u32::from_le_bytes([a, b, c, d]).min(self.capacity), u32::from_le_bytes([e, f, g, h]))
    }

    /// True if something is in it.
    pub(crate) fn pending(&self, shared: &Shared) -> bool {
        self.state(shared) != (0, 0)
    }

    /// Prints all records and empties the buffer. Nothing may be writing to it.
    pub(crate) fn drain(&mut self, shared: &Shared) {
        let (bytes, dropped) = self.state(shared);
        let mut records = vec![0; bytes as usize];
        if self.read(shared, HEADER, &mut records) {
            let mut text = Vec::new();
            printf::format_records(&records, &mut text);
            if !text.is_empty() {
                (shared.host.print)(&text);
            }
        }
        if dropped > 0 {
            tracing::warn!(dropped, "records of device printf found no room in the FIFO");
        }
        if let Ok(arena) = shared.memory.arena(shared) {
            // The FIFO is mapped as long as its context exists; a failed write leaves it to the next drain.
            let _ = arena.window.write(self.address - arena.lo + 4, &[0; 8]);
        }
    }
}
