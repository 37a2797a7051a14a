//! GPU page tables: walking and editing them, over whatever memory they lie in.
//!
//! There are two formats: [`Gmmu2`], NVIDIA's ([`gpu_spec::mmu`]): five levels, pages of 4 KiB, 64 KiB and 2 MiB, in VRAM or
//! system memory; and [`HaswellPpgtt`], Intel's of 2013 ([`gpu_spec::haswell_ppgtt`]): two levels, pages of 4 KiB in system
//! memory. Walks and shadows are the same code for both ([`Format`]). This crate is pure: it reaches tables through [`PhysMem`] alone, holds no state of its own but the
//! root of an edited space and the bookkeeping of a shadow, and knows neither threads nor devices.
//!
//! - [`translate`]: one address, as the MMU would do it, with the fault the MMU would report.
//! - [`mappings`]: all that a range of addresses maps, coalesced into runs. A device that mirrors an address space
//!   elsewhere walks the range that a TLB invalidate names and compares.
//! - [`translate_in`], [`mappings_in`]: the same in another format than NVIDIA's.
//! - [`AddressSpace`]: the driver's editor, of NVIDIA's tables: maps and unmaps ranges with the largest pages that fit, allocates tables
//!   through [`TableMemory`] and frees those that become empty.
//! - [`Shadow`]: tables that a device uses in place of a guest's: what a guest's tables and its [`Grant`] both allow.
//!
//! Tables may come from a stranger. A walk follows at most one entry per level, so it ends whatever the tables say
//! (a table that contains itself is only read as a table of the next level); a listing carries a limit on the tables it
//! reads, because garbage can fan out into 2^37 pages.

mod edit;
mod fault_buffer;
mod format;
mod shadow;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod tracked;
mod tracking;
mod walk;

use gpu_spec::mmu::PhysAddr;

pub use edit::{AddressSpace, EditError};
pub use fault_buffer::FaultBuffer;
pub use format::{Format, Gmmu2, HaswellPpgtt, Level, Table, Words};
pub(crate) use shadow::page_of;
pub use shadow::{
    Changes, FoundEntries, FoundEntry, Grant, Granted, MOST_IN_VAIN, Progress, Shadow, ShadowError, Work,
};
pub use trace::{BadTrace, MOST_TABLES, Trace, TraceEvent, TraceFormat};
pub use tracked::{Reflection, Tracked};
pub use tracking::{Costs, Notices, Plan, Policy, Rebuild, Shadowing, Stored, Tracking, TrackingCounts, WriteTrap};
pub use walk::{
    Access, AccessKind, Mapped, Mappings, Target, Translation, mappings, mappings_in, translate, translate_in,
};

/// A physical address at which there is no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory at {0:x?}")]
pub struct BadAddress(pub PhysAddr);

/// Memory that holds page tables: VRAM and system memory by physical address.
pub trait PhysMem {
    /// Copies bytes out.
    ///
    /// # Errors
    /// If a byte of the range is no memory.
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress>;

    /// Copies bytes in. Entries are 8 bytes, or 4 in Intel's format, naturally aligned, and must not tear.
    ///
    /// # Errors
    /// If a byte of the range is no memory; nothing is written then.
    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress>;
}

/// Memory from which tables are allocated.
pub trait TableMemory: PhysMem {
    /// Allocates zero-filled memory for a table of `bytes` (256, 2048 or 4096), aligned to its size; `None` if there is no more.
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr>;

    /// Takes a table back. The device may still walk it until the next TLB invalidate.
    fn free(&mut self, at: PhysAddr, bytes: u64);
}
