//! Bulk copies, for the lanes of a chunk.

use ptx::ir::{Op, Ty};
use ptx::launch::{Access, AccessError, GlobalMemory};
use ptx::tensor::{MAX_ADDRESSES, MAX_WORDS};

use super::helpers::{active, attached, is_at, poll, raise, reach_bytes, read_element, update, write_element};
use crate::abi::context::Context;
use crate::abi::image::Rows;

/// Makes the copies of the lanes `bits` of a chunk, whose first one is `thread`. Called by machine code; the rows have so many lanes.
pub(crate) extern "C" fn run(ctx: *mut Context, op: u32, bits: u32, thread: u32, base: *mut u8, lanes: u32) {
    let Op::Transfer { transfer, .. } = attached(ctx, op, |of| &of.ops) else { return };
    let rows = Rows::of_transfer(transfer, lanes as usize);
    for lane in active(bits) {
        let mut words = [0; MAX_WORDS];
        for (i, word) in words.iter_mut().enumerate().take(rows.words) {
            *word = read(base, rows.word(i) + 4 * lane);
        }
        let mut addresses = [0; MAX_ADDRESSES];
        for (i, address) in addresses.iter_mut().enumerate().take(rows.values) {
            *address = read(base, rows.value(i) + 8 * lane);
        }
        let memory = Reach { ctx, thread: u64::from(thread) + lane as u64 };
        is_at(ctx, memory.thread);
        if let Err(exception) = transfer.perform(read(base, 8 * lane), &words, &addresses, &memory) {
            raise(ctx, exception);
        }
    }
}

/// What is in the rows at an offset.
fn read<T: Copy>(base: *mut u8, offset: usize) -> T {
    // SAFETY: machine code has reserved rows for the copy, of as many lanes as it says.
    let at = unsafe { base.add(offset) };
    // SAFETY: as above; rows are plain data.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Generic addresses as one thread sees them; an access that fails never comes back. A copy may be long, so the CTA can be
/// suspended before each change of memory.
struct Reach {
    ctx: *mut Context,
    thread: u64,
}

/// Calls `f` with the offset and the type of each element of so many bytes at an address: as large as they may be.
fn elements(address: u64, bytes: usize, f: &mut dyn FnMut(usize, Ty)) {
    let mut at = 0;
    while at < bytes {
        let fits = |size: usize| (address + at as u64).is_multiple_of(size as u64) && bytes - at >= size;
        let (size, ty) = if fits(8) {
            (8, Ty::U64)
        } else if fits(2) {
            (2, Ty::U16)
        } else {
            (1, Ty::U8)
        };
        f(at, ty);
        at += size;
    }
}

impl GlobalMemory for Reach {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let from = reach_bytes(self.ctx, address, out.len() as u64, self.thread, Access::Read);
        elements(from.addr() as u64, out.len(), &mut |at, ty| {
            // SAFETY: the whole access lies inside its space.
            let from = unsafe { from.add(at) };
            let size = ty.bytes() as usize;
            out[at..at + size].copy_from_slice(&read_element(from, ty).to_le_bytes()[..size]);
        });
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        poll(self.ctx);
        let to = reach_bytes(self.ctx, address, data.len() as u64, self.thread, Access::Write);
        elements(to.addr() as u64, data.len(), &mut |at, ty| {
            // SAFETY: the whole access lies inside its space.
            let to = unsafe { to.add(at) };
            let size = ty.bytes() as usize;
            let mut value = [0; 8];
            value[..size].copy_from_slice(&data[at..at + size]);
            write_element(to, ty, u64::from_le_bytes(value));
        });
        Ok(())
    }

    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        if !address.is_multiple_of(bytes.into()) {
            return Err(AccessError::Misaligned);
        }
        poll(self.ctx);
        let at = reach_bytes(self.ctx, address, bytes.into(), self.thread, Access::Atomic);
        // SAFETY: the context is live while its CTA runs.
        unsafe { (*self.ctx).atomic = 1 };
        let old = update(at, bytes, f);
        // SAFETY: as above.
        unsafe { (*self.ctx).atomic = 0 };
        Ok(old)
    }
}
