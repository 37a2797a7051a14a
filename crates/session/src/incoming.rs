//! Requests that are being put together.
//!
//! A request may be as long as the longest module, so what arrives is charged to the tenant before it is kept. One that its
//! limit does not allow is refused when its last part has come; its parts are dropped until then.

use gpu::GpuError;
use tenancy::AccountAccess;
use wire::limits::MAX_REQUEST_BYTES;
use wire::{Assembler, WireError};

/// Shortest requests: not charged, a session's own charge covers them.
const FREE_BYTES: usize = 64 << 10;
/// What is charged at once, bytes: not every part asks.
const STEP_BYTES: u64 = 1 << 20;
/// What one byte of a request takes while it is served: the buffer, which grows by doubling; the request that is read from
/// it; what the driver reads from that; the answer.
const FACTOR: u64 = 4;

/// One request in parts.
#[derive(Debug)]
pub(crate) struct Incoming {
    parts: Assembler,
    refused: Option<GpuError>,
}

impl Incoming {
    pub(crate) fn new() -> Incoming {
        Incoming { parts: Assembler::new(MAX_REQUEST_BYTES), refused: None }
    }

    /// Adds a part; the whole, or why it is refused, if it was the last. What it cost is charged until
    /// [`Incoming::release`].
    pub(crate) fn add(
        &mut self,
        tables: &mut tenancy::Session,
        account: &impl AccountAccess,
        last: bool,
        part: &[u8],
    ) -> Result<Option<Result<Vec<u8>, GpuError>>, WireError> {
        if self.refused.is_none() {
            let bytes = self.parts.len() + part.len();
            let cost = if bytes > FREE_BYTES { (bytes as u64 * FACTOR).next_multiple_of(STEP_BYTES) } else { 0 };
            if cost > tables.buffers()
                && let Err(error) = tables.hold_buffers(account, cost)
            {
                self.parts = Assembler::new(MAX_REQUEST_BYTES);
                Incoming::release(tables, account);
                self.refused = Some(error);
            }
        }
        if let Some(error) = self.refused.take_if(|_| last) {
            return Ok(Some(Err(error)));
        }
        if self.refused.is_some() {
            return Ok(None);
        }
        Ok(self.parts.add(last, part)?.map(Ok))
    }

    /// The request has been answered.
    pub(crate) fn release(tables: &mut tenancy::Session, account: &impl AccountAccess) {
        if tables.buffers() > 0 {
            // Giving back is not refused.
            let _ = tables.hold_buffers(account, 0);
        }
    }
}
