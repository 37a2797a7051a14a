//! Error notifiers: why a channel was stopped.
//!
//! The first 16 bytes are NVIDIA's notification record (time, 32-bit info with the robust-channel code, 16-bit status);
//! what follows is Sundial's own: the exact reason, and text (the log of a refused compilation; of what a kernel has done, by which thread
//! of which block, in which kernel, at which line of PTX).
//!
//! A channel's notifier is [`BYTES`] of contiguous physical memory that the instance block names
//! ([`crate::ramfc::NOTIFIER`]): not in the channel's address space, so that what the channel does can neither forge nor
//! prevent it. The device writes it once, the status last, and then raises
//! [`crate::regs::vector::CHANNEL_ERROR`]; the driver clears it before the channel is bound again.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a notifier with its log, bytes.
pub const BYTES: u64 = 16 << 10;
/// Where the log begins.
pub const LOG_OFFSET: u64 = size_of::<Record>() as u64;
/// Most bytes of the log.
pub const LOG_BYTES: u64 = BYTES - LOG_OFFSET;

/// [`Record::status`] of a notifier that has been written.
pub const STATUS_ERROR: u16 = 0xffff;

/// Robust-channel codes ("Xid"), [`Record::code`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Code(pub u32);

impl Code {
    /// An exception of the compute engine.
    pub const GR_EXCEPTION: Code = Code(13);
    /// An MMU fault.
    pub const MMU_FAULT: Code = Code(31);
    /// Malformed pushbuffer.
    pub const PBDMA_ERROR: Code = Code(32);
    /// An exception of the copy engine.
    pub const CE_EXCEPTION: Code = Code(39);
    /// A method that the class does not have, or with a wrong value.
    pub const GR_CLASS_ERROR: Code = Code(69);
}

/// The exact reason, [`Record::reason`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Reason(pub u32);

impl Reason {
    /// An access to an address without a page, or against its rights; `address` and `access` say more.
    pub const ILLEGAL_ADDRESS: Reason = Reason(1);
    /// An access that is not aligned to its size; `address` says more.
    pub const MISALIGNED: Reason = Reason(2);
    /// A kernel's `trap` instruction.
    pub const TRAP: Reason = Reason(3);
    /// A device-side assertion; its text is in the printf FIFO.
    pub const ASSERT: Reason = Reason(4);
    /// The engine refused to go on with a kernel.
    pub const ILLEGAL_INSTRUCTION: Reason = Reason(5);
    /// A program that is no PTX; the log says more.
    pub const INVALID_PROGRAM: Reason = Reason(6);
    /// A program that uses what is not implemented; the log says more.
    pub const UNSUPPORTED_PROGRAM: Reason = Reason(7);
    /// A malformed GP entry, pushbuffer header, method or launch descriptor; the log says more, `method` and `data` too.
    pub const ILLEGAL_COMMAND: Reason = Reason(8);
    /// An access outside the CTA's shared, or the thread's local memory, or the parameters; `address` is the offset.
    pub const OUT_OF_BOUNDS: Reason = Reason(9);
    /// A launch that needs more host memory than the channel's budget allows at all; the log says more.
    pub const OUT_OF_RESOURCES: Reason = Reason(10);
}

/// The record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Record {
    /// Device time, nanoseconds.
    pub timestamp: u64,
    /// Code.
    pub code: Code,
    /// Zero.
    pub info16: u16,
    /// [`STATUS_ERROR`] once the rest is written; 0 before.
    pub status: u16,
    /// What went wrong, as the driver tells it on.
    pub reason: Reason,
    /// Bytes of text in the log.
    pub log_bytes: u32,
    /// Address of a refused access.
    pub address: u64,
    /// What it wanted: 0 a read, 1 a write, 2 an atomic.
    pub access: u32,
    /// Channel that made the error (all channels of its TSG are stopped and notified).
    pub channel: u32,
    /// Method of an illegal command: subchannel << 16 | byte address.
    pub method: u32,
    /// Its data.
    pub data: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

const _: () = assert!(size_of::<Record>() == 64, "the log begins behind 64 bytes");
