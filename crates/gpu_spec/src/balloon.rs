//! Sundial's own: VRAM that a virtual GPU's guest gives back and takes again while it runs.
//!
//! A virtual GPU that can be asked says so in the mailbox ([`crate::regs::vf::MAILBOX`], behind the words of [`crate::pv`]). A
//! driver that understands writes [`MAGIC`] into [`LISTENER`]; one that does not is never asked. From then on the vector
//! [`VECTOR`] is raised when [`TARGET`] has changed: so many blocks of 2 MiB the driver should have of those that it began
//! with. It names those that it gives back, of which nothing may be in use, and those that it takes again, all zero.
//!
//! A command has been done when the next register is read. What the driver does not have it cannot give, what it has it cannot
//! take, and it does neither beyond the target.

/// Word of the mailbox that reads [`MAGIC`] where VRAM may be asked for.
pub const OFFER: u32 = 8;
/// "SBL1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"SBL1");
/// Word of the mailbox: the driver writes [`MAGIC`] when it can be asked, 0 when it leaves.
pub const LISTENER: u32 = 9;
/// Word of the mailbox (read only): blocks that the driver should have.
pub const TARGET: u32 = 10;
/// Word of the mailbox: the first block of a command, by its place in VRAM.
pub const FIRST: u32 = 11;
/// Word of the mailbox: how many blocks from there on; at most [`MOST_BLOCKS`].
pub const COUNT: u32 = 12;
/// Word of the mailbox: writing [`GIVE`] or [`TAKE`] does it.
pub const COMMAND: u32 = 13;
/// Word of the mailbox (read only): 0 if all of the last command was done; else how many blocks were, plus 1.
pub const STATUS: u32 = 14;

/// [`COMMAND`]: gives blocks back.
pub const GIVE: u32 = 1;
/// [`COMMAND`]: takes blocks again.
pub const TAKE: u32 = 2;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 2 << 20;
/// Most blocks of a command.
pub const MOST_BLOCKS: u32 = 128;
/// The interrupt vector.
pub const VECTOR: u32 = 128;
