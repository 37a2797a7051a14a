//! USERD: the words of a channel that the CPU and the host engine exchange.
//!
//! Source: TU104 `dev_ram`, "User Driver Accessible RAM". Byte offsets; the structure is 512 bytes, 512-byte aligned.

/// Size and alignment, bytes.
pub const BYTES: u64 = 512;
/// Pushbuffer put pointer, low word (unused with a GPFIFO).
pub const PUT: u64 = 0x40;
/// Pushbuffer get pointer, low word.
pub const GET: u64 = 0x44;
/// Reference count of `SET_REFERENCE`.
pub const REF: u64 = 0x48;
/// Pushbuffer put pointer, high word.
pub const PUT_HI: u64 = 0x4c;
/// Top-level get pointer, low word.
pub const TOP_LEVEL_GET: u64 = 0x58;
/// Top-level get pointer, high word.
pub const TOP_LEVEL_GET_HI: u64 = 0x5c;
/// Pushbuffer get pointer, high word.
pub const GET_HI: u64 = 0x60;
/// First GP entry that the host has not fetched: an index, written by the host.
pub const GP_GET: u64 = 0x88;
/// End of the valid GP entries: an index, written by the CPU.
pub const GP_PUT: u64 = 0x8c;
