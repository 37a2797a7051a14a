//! The buffer into which kernels print: made with a context, drained at synchronizations.

use std::sync::Arc;

use gpu::ContextId;

use crate::context_core::printf;
use crate::error::Result;
use crate::memory::allocation::{Kind, Wanted};
use crate::memory::heap::Memory;

/// Bytes of the header: capacity, write offset, dropped records, 0.
const HEADER: u64 = 16;

#[derive(Debug)]
pub(crate) struct PrintFifo {
    memory: Arc<Memory>,
    address: u64,
    capacity: u32,
}

impl PrintFifo {
    /// Makes one with room for `bytes` of records.
    pub(crate) fn new(memory: &Arc<Memory>, context: ContextId, bytes: u64) -> Result<PrintFifo> {
        let capacity = u32::try_from(bytes).unwrap_or(!7);
        let wanted = Wanted::new(HEADER + u64::from(capacity), Kind::InternalHost, context);
        let address = memory.alloc_host(wanted)?.base;
        let mut header = [0; HEADER as usize];
        header[..4].copy_from_slice(&capacity.to_le_bytes());
        memory.write_on_host(address, &header).inspect_err(|_| memory.free(address))?;
        Ok(PrintFifo { memory: Arc::clone(memory), address, capacity })
    }

    /// GPU address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.memory.read_on_host(self.address + offset, out)
    }

    /// Bytes of records, and how many records found no room.
    fn state(&self) -> (u32, u32) {
        let mut words = [0; 8];
        if !self.read(4, &mut words) {
            return (0, 0);
        }
        let [a, b, c, d, e, f, g, h] = words;
        (u32::from_le_bytes([a, b, c, d]).min(self.capacity), u32::from_le_bytes([e, f, g, h]))
    }

    /// True if something is in it.
    pub(crate) fn pending(&self) -> bool {
        self.state() != (0, 0)
    }

    /// Prints all records and empties the buffer. Nothing may be writing to it.
    pub(crate) fn drain(&mut self, print: fn(&[u8])) {
        let (bytes, dropped) = self.state();
        let mut records = vec![0; bytes as usize];
        if self.read(HEADER, &mut records) {
            let mut text = Vec::new();
            printf::format_records(&records, &mut text);
            if !text.is_empty() {
                print(&text);
            }
        }
        if dropped > 0 {
            tracing::warn!(dropped, "records of device printf found no room in the FIFO");
        }
        // The FIFO is mapped as long as its context exists; a failed write leaves it to the next drain.
        let _ = self.memory.write_on_host(self.address + 4, &[0; 8]);
    }
}
