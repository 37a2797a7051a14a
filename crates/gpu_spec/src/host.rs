//! The host engine: GP entries, pushbuffer headers and its own methods (class C46F).
//!
//! Source: TU104 `dev_pbdma`, `dev_ram`; `classes/host/clc46f.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Field;

/// Class of a channel.
pub const TURING_CHANNEL_GPFIFO_A: u32 = 0xc46f;

/// Subchannel of the compute class.
pub const SUBCHANNEL_COMPUTE: u32 = 1;
/// Subchannel of the copy class.
pub const SUBCHANNEL_COPY: u32 = 4;
/// Subchannels of a channel; 5 to 7 are software's.
pub const SUBCHANNELS: u32 = 8;

/// A GP entry: where a segment of a pushbuffer lies, or a control word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GpEntry {
    /// Word 0.
    pub e0: u32,
    /// Word 1.
    pub e1: u32,
}

impl GpEntry {
    /// Size, bytes.
    pub const BYTES: u64 = 8;
    /// Fetch only if a condition holds, in e0.
    pub const FETCH_CONDITIONAL: Field = Field::bit(0);
    /// Virtual address bits 31:2, in e0.
    pub const GET: Field = Field::new(31, 2);
    /// Virtual address bits 39:32, in e1.
    pub const GET_HI: Field = Field::new(7, 0);
    /// Subroutine level, in e1.
    pub const LEVEL: Field = Field::bit(9);
    /// Length in words; 0 makes the entry a control entry, in e1.
    pub const LENGTH: Field = Field::new(30, 10);
    /// Wait until earlier segments are processed before fetching, in e1.
    pub const SYNC_WAIT: Field = Field::bit(31);
    /// Opcode of a control entry, in e1.
    pub const OPCODE: Field = Field::new(7, 0);
    /// Control: nothing.
    pub const OPCODE_NOP: u32 = 0;
    /// Control: an error.
    pub const OPCODE_ILLEGAL: u32 = 1;
    /// Bits of a virtual address that a GP entry holds; bits above are those of the GPFIFO ([`same_tebibyte`]).
    pub const ADDRESS_BITS: u32 = 40;

    /// A segment of `words` words at a virtual address.
    #[must_use]
    pub const fn segment(address: u64, words: u32) -> GpEntry {
        GpEntry {
            e0: address as u32 & Self::GET.mask() as u32,
            e1: Self::GET_HI.of((address >> 32) as u32) | Self::LENGTH.of(words),
        }
    }

    /// Bits 39:0 of the segment's address.
    #[must_use]
    pub const fn address(self) -> u64 {
        (self.e0 & Self::GET.mask() as u32) as u64 | (Self::GET_HI.get(self.e1) as u64) << 32
    }

    /// Length of the segment in words; 0 for a control entry.
    #[must_use]
    pub const fn words(self) -> u32 {
        Self::LENGTH.get(self.e1)
    }
}

/// The full address of something whose format holds 40 bits of it: GP entries, `SEND_PCAS_A`, the release of a QMD.
///
/// Sundial's own: its addresses have 47 bits. What these formats point at lies in the same TiB as the channel's GPFIFO.
#[must_use]
pub const fn same_tebibyte(gpfifo: u64, low: u64) -> u64 {
    (gpfifo & !Field::new(39, 0).mask()) | (low & Field::new(39, 0).mask())
}

/// A pushbuffer header: how the words that follow are dealt to methods.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Header(pub u32);

impl Header {
    /// Secondary opcode.
    pub const SEC_OP: Field = Field::new(31, 29);
    /// Number of words that follow, or the immediate.
    pub const COUNT: Field = Field::new(28, 16);
    /// Subchannel.
    pub const SUBCHANNEL: Field = Field::new(15, 13);
    /// Method's word address.
    pub const METHOD: Field = Field::new(11, 0);
    /// Tertiary opcode, for secondary opcode 0.
    pub const TERT_OP: Field = Field::new(17, 16);
    /// Secondary opcode 0: see the tertiary one.
    pub const OP_GRP0: u32 = 0;
    /// Each word goes to the next method.
    pub const OP_INC: u32 = 1;
    /// All words go to the same method.
    pub const OP_NON_INC: u32 = 3;
    /// No words follow: the count is the data.
    pub const OP_IMMEDIATE: u32 = 4;
    /// The first word goes to the method, all others to the next.
    pub const OP_ONE_INC: u32 = 5;
    /// Ends the segment early.
    pub const OP_END_SEGMENT: u32 = 7;
    /// A word without effect.
    pub const NOP: Header = Header(0);
    /// Most words after one header.
    pub const MAX_COUNT: u32 = Header::COUNT.max() as u32;
    /// Methods below this byte address are the host's own, on every subchannel.
    pub const HOST_METHODS_END: u32 = 0x100;

    /// A header from its parts; `method` is a byte address.
    #[must_use]
    pub const fn new(op: u32, subchannel: u32, method: u32, count: u32) -> Header {
        Header(
            Self::SEC_OP.of(op)
                | Self::COUNT.of(count)
                | Self::SUBCHANNEL.of(subchannel)
                | Self::METHOD.of(method >> 2),
        )
    }

    /// Secondary opcode.
    #[must_use]
    pub const fn op(self) -> u32 {
        Self::SEC_OP.get(self.0)
    }

    /// Words that follow, or the immediate.
    #[must_use]
    pub const fn count(self) -> u32 {
        Self::COUNT.get(self.0)
    }

    /// Subchannel.
    #[must_use]
    pub const fn subchannel(self) -> u32 {
        Self::SUBCHANNEL.get(self.0)
    }

    /// Byte address of the first method.
    #[must_use]
    pub const fn method(self) -> u32 {
        Self::METHOD.get(self.0) << 2
    }
}

/// Binds a class to the subchannel (class id in bits 15:0).
pub const SET_OBJECT: u32 = 0x0;
/// Class id, in [`SET_OBJECT`].
pub const SET_OBJECT_CLASS: Field = Field::new(15, 0);
/// Raises an error.
pub const ILLEGAL: u32 = 0x4;
/// Nothing.
pub const NOP: u32 = 0x8;
/// Old semaphore methods: address high, address low, payload, operation.
pub const SEMAPHORE_A: u32 = 0x10;
/// Last of the old semaphore methods.
pub const SEMAPHORE_D: u32 = 0x1c;
/// Raises the non-stalling interrupt, once everything before has been done by the host.
pub const NON_STALL_INTERRUPT: u32 = 0x20;
/// Memory operation, first word.
pub const MEM_OP_A: u32 = 0x28;
/// Memory operation, second word.
pub const MEM_OP_B: u32 = 0x2c;
/// Memory operation, third word.
pub const MEM_OP_C: u32 = 0x30;
/// Memory operation, fourth word: triggers.
pub const MEM_OP_D: u32 = 0x34;
/// Stores a reference count.
pub const SET_REFERENCE: u32 = 0x50;
/// Semaphore address, bits 31:2.
pub const SEM_ADDR_LO: u32 = 0x5c;
/// Semaphore address, bits 39:32; Sundial's own: 47:32, as its addresses have 47 bits.
pub const SEM_ADDR_HI: u32 = 0x60;
/// Payload, low word.
pub const SEM_PAYLOAD_LO: u32 = 0x64;
/// Payload, high word.
pub const SEM_PAYLOAD_HI: u32 = 0x68;
/// Does what its fields ([`sem_execute`]) say.
pub const SEM_EXECUTE: u32 = 0x6c;
/// Waits until the engines of the channel are idle.
pub const WFI: u32 = 0x78;
/// Lets another channel of the TSG run.
pub const YIELD: u32 = 0x80;
/// Clears a channel's fault bits; data as in `PCCSR_CHANNEL`.
pub const CLEAR_FAULTED: u32 = 0x84;

/// Fields of [`SEM_EXECUTE`].
pub mod sem_execute {
    use crate::Field;

    /// Operation.
    pub const OPERATION: Field = Field::new(2, 0);
    /// Waits until the value equals the payload.
    pub const ACQUIRE: u32 = 0;
    /// Stores the payload.
    pub const RELEASE: u32 = 1;
    /// Waits until the value is at least the payload, unsigned.
    pub const ACQ_STRICT_GEQ: u32 = 2;
    /// Waits until the value is at least the payload, by the sign of the difference.
    pub const ACQ_CIRC_GEQ: u32 = 3;
    /// Waits until value AND payload is not zero.
    pub const ACQ_AND: u32 = 4;
    /// Waits until value NOR payload is not zero.
    pub const ACQ_NOR: u32 = 5;
    /// Combines the value with the payload.
    pub const REDUCTION: u32 = 6;
    /// While it waits, the whole TSG may be switched away.
    pub const ACQUIRE_SWITCH_TSG: Field = Field::bit(12);
    /// 1: the release waits until the engines are idle.
    pub const RELEASE_WFI: Field = Field::bit(20);
    /// 1: 64-bit payload.
    pub const PAYLOAD_64: Field = Field::bit(24);
    /// 1: the release also stores the time: u64 nanoseconds, 8 bytes behind the payload.
    pub const RELEASE_TIMESTAMP: Field = Field::bit(25);
    /// Kind of reduction.
    pub const REDUCTION_OP: Field = Field::new(30, 27);
}

/// Fields of [`MEM_OP_A`] to [`MEM_OP_D`].
pub mod mem_op {
    use crate::Field;

    /// System memory barrier, in A.
    pub const A_SYSMEMBAR: Field = Field::bit(11);
    /// Address bits 31:12 of a targeted invalidation, in A.
    pub const A_TARGET_ADDR_LO: Field = Field::new(31, 12);
    /// 0: one page directory; 1: all; in C.
    pub const C_PDB_ALL: Field = Field::bit(0);
    /// 1: only the hub's TLBs, in C.
    pub const C_GPC_DISABLE: Field = Field::bit(1);
    /// What happens with pending replayable faults, in C.
    pub const C_REPLAY: Field = Field::new(4, 2);
    /// Whether and how completion is acknowledged, in C.
    pub const C_ACK: Field = Field::new(6, 5);
    /// Page table level, in C.
    pub const C_LEVEL: Field = Field::new(9, 7);
    /// Aperture of the page directory, in C.
    pub const C_APERTURE: Field = Field::new(11, 10);
    /// Page directory address bits 31:12, in C.
    pub const C_PDB_LO: Field = Field::new(31, 12);
    /// Page directory address bits 58:32, in D.
    pub const D_PDB_HI: Field = Field::new(26, 0);
    /// Operation, in D.
    pub const D_OPERATION: Field = Field::new(31, 27);
    /// Memory barrier.
    pub const MEMBAR: u32 = 5;
    /// Invalidates TLBs.
    pub const MMU_TLB_INVALIDATE: u32 = 9;
    /// Invalidates one address.
    pub const MMU_TLB_INVALIDATE_TARGETED: u32 = 0xa;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_headers_keep_their_parts() {
        let entry = GpEntry::segment(0x7f_1234_5678, 100);
        assert_eq!((entry.address(), entry.words()), (0x7f_1234_5678, 100));
        assert_eq!(same_tebibyte(0x7fab_0000_0000, GpEntry::segment(0x7f12_3456_7890, 1).address()), 0x7f12_3456_7890);
        let header = Header::new(Header::OP_INC, SUBCHANNEL_COPY, 0x400, 8);
        assert_eq!(header.0, 0x2008_8100);
        assert_eq!((header.op(), header.subchannel(), header.method(), header.count()), (1, 4, 0x400, 8));
    }
}
