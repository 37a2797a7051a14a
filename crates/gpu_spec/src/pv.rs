//! Sundial's own: hypercalls of a para-virtualized driver, in the manner of Xen's direct paging.
//!
//! A virtual GPU that offers them says so in the mailbox ([`crate::regs::vf::MAILBOX`]). The driver then makes no page tables.
//! It names each address space by a page of its VRAM, which it puts into instance blocks where the page directory would be,
//! and gives the entries as [`Call`]s: it writes some into an area of its VRAM, then their number into the mailbox, then
//! rings [`crate::regs::vf::PRIV_DOORBELL`]. They have been done, in order, when the next register is read: a multicall.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Word of the mailbox that reads [`MAGIC`] where hypercalls are offered.
pub const OFFER: u32 = 0;
/// "SPV1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"SPV1");
/// Word of the mailbox: where in VRAM the area lies, low word.
pub const AREA_LO: u32 = 2;
/// Its high word.
pub const AREA_HI: u32 = 3;
/// Word of the mailbox: how many calls there are in the area.
pub const COUNT: u32 = 4;
/// Word of the mailbox: 0 if all calls of the last multicall were done; else how many were, plus 1.
pub const STATUS: u32 = 5;
/// Bytes of the area.
pub const AREA_BYTES: u64 = 64 << 10;
/// Most calls in the area.
pub const MOST_CALLS: usize = AREA_BYTES as usize / size_of::<Call>();

/// [`Call::code`]: makes an empty address space named [`Call::root`], for addresses `va`, `bytes`.
pub const CREATE: u32 = 1;
/// [`Call::code`]: ends an address space; nothing is mapped in it any more.
pub const DESTROY: u32 = 2;
/// [`Call::code`]: maps `bytes` at `va` to memory from `at` on; what was there is replaced.
pub const MAP: u32 = 3;
/// [`Call::code`]: takes `bytes` at `va` away; what is not mapped is skipped.
pub const UNMAP: u32 = 4;

/// [`Call::flags`]: `at` is system memory, not VRAM.
pub const SYSTEM: u32 = 1;
/// [`Call::flags`]: writes and atomics are refused.
pub const READ_ONLY: u32 = 2;
/// [`Call::flags`]: atomics are refused.
pub const ATOMIC_DISABLE: u32 = 4;

/// A hypercall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Call {
    /// What is to be done.
    pub code: u32,
    /// How.
    pub flags: u32,
    /// VRAM offset that names the address space.
    pub root: u64,
    /// First address: whole pages of 4 KiB.
    pub va: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// Physical address.
    pub at: u64,
}
