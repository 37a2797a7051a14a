//! Pages of which every single store is noticed.
//!
//! The page is mapped read-only. A store faults; the handler decodes the instruction, does what it says on another mapping of
//! the same memory, notes it ([`Written`]), and goes on behind it. The page stays as it is.
//!
//! What it does not know makes the page writable, and known as released; then the instruction runs again. So no
//! instruction is wrong, and none hangs; some are slow.
//!
//! ```text
//!   mov, movnti, setcc, movbe         sized stores of registers and immediates
//!   SSE, AVX, AVX-512 stores          whole or in parts of a register, with masks, non-temporal
//!   movs, stos, with rep              as far as the watched pages go, and the page that is read
//!   add, inc, xchg, cmpxchg, shl, ..  the same instruction on the other mapping, flags and all; with lock where it had one
//!   all else (x87 stores, scatter, xsave, push and call, what reaches beyond the mapping, ...)  the page is released
//! ```
//!
//! - [`machine`]: the interrupted thread's registers
//! - [`combine`]: read-modify-write instructions, run natively
//! - [`perform`]: what an instruction writes
//! - [`handler`]: the mappings that are watched, and the fault
//! - [`servant`]: does what another process says about which pages

mod combine;
mod handler;
mod machine;
mod perform;
mod servant;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use hostmem::Mapping;

use crate::{Area, Kind, WriteTrap, Written};
use handler::Watch;
pub use servant::DecodeServant;

/// Notices every store of this process's threads to the pages.
///
/// Not for pages with a thread's stack, nor for threads that have SIGSEGV blocked, nor code that can be executed but not read:
/// there the kernel ends the process. System calls that would write to a protected page fail with `EFAULT`.
#[derive(Debug)]
pub struct Decode {
    watch: Watch,
}

impl Decode {
    /// For a mapping of this process. `alias` is a second mapping of the same: the same files in the same places, for the
    /// stores that are done by hand. What takes the place of pages later ([`Mapping::show`]) is not watched; they are to be
    /// released before. `written` is where stores are noted.
    ///
    /// # Errors
    /// `InvalidInput` if the three do not have the same size, or there are too many mappings already; else what the operating
    /// system says.
    pub fn new(mapping: &Arc<Mapping>, alias: Mapping, written: Arc<Written>) -> io::Result<Decode> {
        let area = Area::of(mapping);
        if alias.len() != mapping.len() || written.pages() != area.pages() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the mappings differ in size"));
        }
        Ok(Decode { watch: Watch::new(mapping, alias, written)? })
    }

    /// Has stores noticed to runs of pages, which are inside the mapping, or not any more.
    fn set(&self, protected: bool, runs: &[Range<u64>]) -> io::Result<()> {
        if protected { self.watch.protect(runs) } else { self.watch.release(runs) }
    }

    /// Where its stores are noted.
    #[must_use]
    pub fn written(&self) -> &Arc<Written> {
        self.watch.written()
    }
}

impl WriteTrap for Decode {
    fn kind(&self) -> Kind {
        Kind::Decode
    }

    fn protect(&mut self, pages: &[u64]) -> io::Result<()> {
        self.set(true, &self.watch.area().runs(pages)?)
    }

    fn release(&mut self, pages: &[u64]) -> io::Result<()> {
        self.set(false, &self.watch.area().runs(pages)?)
    }

    /// Names the pages that had to be released.
    fn take_written(&mut self, out: &mut Vec<u64>) -> io::Result<()> {
        self.watch.written().take_released(|page| out.push(page));
        Ok(())
    }

    fn take_stores(&mut self, word: &mut dyn FnMut(u64)) {
        self.watch.written().take_stores(word);
    }
}
