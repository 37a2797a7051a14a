//! What goes over the socket: header, commands, and the fixed part of each payload, in the machine's byte order.
//!
//! Names and numbers are the specification's, those of `<linux/vfio.h>` where it refers to that. Everything here is plain
//! integers: any bytes are a value, and what a value may be is checked where it is used.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol that is spoken here.
pub const MAJOR: u16 = 0;
/// Greatest minor version.
pub const MINOR: u16 = 1;

/// Size of [`Header`], bytes.
pub const HEADER: usize = size_of::<Header>();

/// What every message begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// The sender's own name for the message; comes back in the reply.
    pub id: u16,
    /// A [`Command`].
    pub command: u16,
    /// Bytes of the message, this header included.
    pub size: u32,
    /// [`TYPE`] and flags.
    pub flags: u32,
    /// errno, in a reply with [`ERROR`].
    pub error: u32,
}

/// Bits of [`Header::flags`] that say what the message is: [`COMMAND`] or [`REPLY`].
pub const TYPE: u32 = 0xf;
/// A command.
pub const COMMAND: u32 = 0;
/// The reply to one.
pub const REPLY: u32 = 1;
/// The command wants no reply.
pub const NO_REPLY: u32 = 1 << 4;
/// The command failed; the reply is a header only.
pub const ERROR: u32 = 1 << 5;

/// A command's number; not all numbers are commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command(pub u16);

#[expect(missing_docs, reason = "the specification's names")]
impl Command {
    pub const VERSION: Command = Command(1);
    pub const DMA_MAP: Command = Command(2);
    pub const DMA_UNMAP: Command = Command(3);
    pub const DEVICE_GET_INFO: Command = Command(4);
    pub const DEVICE_GET_REGION_INFO: Command = Command(5);
    pub const DEVICE_GET_REGION_IO_FDS: Command = Command(6);
    pub const DEVICE_GET_IRQ_INFO: Command = Command(7);
    pub const DEVICE_SET_IRQS: Command = Command(8);
    pub const REGION_READ: Command = Command(9);
    pub const REGION_WRITE: Command = Command(10);
    pub const DMA_READ: Command = Command(11);
    pub const DMA_WRITE: Command = Command(12);
    pub const DEVICE_RESET: Command = Command(13);
    pub const REGION_WRITE_MULTI: Command = Command(15);
    pub const DEVICE_FEATURE: Command = Command(16);
    pub const MIG_DATA_READ: Command = Command(17);
    pub const MIG_DATA_WRITE: Command = Command(18);
    /// Not in the specification: see [`WatchStores`].
    pub const WATCH_STORES: Command = Command(0x7301);
}

/// `VERSION`, both ways; JSON follows, ended by a NUL.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// [`MAJOR`].
    pub major: u16,
    /// At most what was proposed.
    pub minor: u16,
}

/// `DMA_MAP`; no payload in the reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Size of this.
    pub argsz: u32,
    /// [`DMA_READABLE`], [`DMA_WRITABLE`].
    pub flags: u32,
    /// Where in the file that comes with the message.
    pub offset: u64,
    /// Where on the bus.
    pub address: u64,
    /// Length of the mapping, in bytes.
    pub size: u64,
}

/// The device may read there.
pub const DMA_READABLE: u32 = 1 << 0;
/// The device may write there.
pub const DMA_WRITABLE: u32 = 1 << 1;

/// `DMA_UNMAP`, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Most bytes of payload in the reply.
    pub argsz: u32,
    /// [`DMA_UNMAP_ALL`] or nothing.
    pub flags: u32,
    /// First DMA address, the same as when it was mapped.
    pub address: u64,
    /// Length in bytes, the same as when it was mapped.
    pub size: u64,
}

/// Every map goes; address and size are zero. Not in the specification, but QEMU sends it (`VFIO_DMA_UNMAP_FLAG_ALL`).
pub const DMA_UNMAP_ALL: u32 = 1 << 1;

/// `DEVICE_GET_INFO`, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Most bytes of payload in the reply; in the reply, what the whole of it takes.
    pub argsz: u32,
    /// [`DEVICE_RESETTABLE`], [`DEVICE_PCI`].
    pub flags: u32,
    /// How many regions, present or not.
    pub num_regions: u32,
    /// How many kinds of interrupts.
    pub num_irqs: u32,
}

/// `VFIO_DEVICE_FLAGS_RESET`.
pub const DEVICE_RESETTABLE: u32 = 1 << 0;
/// `VFIO_DEVICE_FLAGS_PCI`.
pub const DEVICE_PCI: u32 = 1 << 1;

/// Instead of an eventfd, of [`IRQ_SET_DATA_EVENTFD`] and the others: where [`POSTED_WRITES`] is. Servers other than ours refuse.
pub const IRQ_SET_DATA_POSTED: u32 = 1 << 16;

/// Index of a region that only our own client asks for: the ring of posted writes, if it was agreed on.
pub const POSTED_WRITES: u32 = 1 << 16;

/// `DEVICE_GET_REGION_INFO`, both ways; capabilities may follow in the reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    /// Most bytes of payload in the reply; in the reply, what the whole of it takes.
    pub argsz: u32,
    /// [`REGION_READ`] and the others.
    pub flags: u32,
    /// The region's number, as in `VFIO_PCI_*_REGION_INDEX`.
    pub index: u32,
    /// Where the first capability is, from the start of this.
    pub cap_offset: u32,
    /// Bytes of the region.
    pub size: u64,
    /// Where the region begins in the file that comes with the reply.
    pub offset: u64,
}

/// `VFIO_REGION_INFO_FLAG_READ`.
pub const REGION_READABLE: u32 = 1 << 0;
/// `VFIO_REGION_INFO_FLAG_WRITE`.
pub const REGION_WRITABLE: u32 = 1 << 1;
/// `VFIO_REGION_INFO_FLAG_MMAP`.
pub const REGION_MMAP: u32 = 1 << 2;
/// `VFIO_REGION_INFO_FLAG_CAPS`.
pub const REGION_CAPS: u32 = 1 << 3;

/// What every capability of a region begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapHeader {
    /// The capability's number, as in `VFIO_REGION_INFO_CAP_*`.
    pub id: u16,
    /// Of its layout.
    pub version: u16,
    /// Where the next is, from the start of the [`RegionInfo`]; 0: none.
    pub next: u32,
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`: [`SparseMmap`], then so many [`Area`]s.
pub const CAP_SPARSE_MMAP: u16 = 1;

/// Follows the [`CapHeader`] of [`CAP_SPARSE_MMAP`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseMmap {
    /// How many [`Area`]s follow.
    pub nr_areas: u32,
    /// Zero.
    pub reserved: u32,
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Area {
    /// In the region.
    pub offset: u64,
    /// Length of the area, in bytes.
    pub size: u64,
}

/// `DEVICE_GET_IRQ_INFO`, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfo {
    /// Most bytes of payload in the reply; in the reply, what the whole of it takes.
    pub argsz: u32,
    /// [`IRQ_EVENTFD`] and the others.
    pub flags: u32,
    /// The interrupt's kind, as in `VFIO_PCI_*_IRQ_INDEX`.
    pub index: u32,
    /// How many of the kind.
    pub count: u32,
}

/// `VFIO_IRQ_INFO_EVENTFD`.
pub const IRQ_EVENTFD: u32 = 1 << 0;
/// `VFIO_IRQ_INFO_MASKABLE`.
pub const IRQ_MASKABLE: u32 = 1 << 1;
/// `VFIO_IRQ_INFO_AUTOMASKED`.
pub const IRQ_AUTOMASKED: u32 = 1 << 2;
/// `VFIO_IRQ_INFO_NORESIZE`.
pub const IRQ_NORESIZE: u32 = 1 << 3;

/// `DEVICE_SET_IRQS`; booleans follow for [`IRQ_SET_DATA_BOOL`]. No payload in the reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Size of this and what follows.
    pub argsz: u32,
    /// One `DATA` and one `ACTION`.
    pub flags: u32,
    /// The interrupt's kind, as in `VFIO_PCI_*_IRQ_INDEX`.
    pub index: u32,
    /// The first of the kind.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// `VFIO_IRQ_SET_DATA_NONE`: the action happens.
pub const IRQ_SET_DATA_NONE: u32 = 1 << 0;
/// `VFIO_IRQ_SET_DATA_BOOL`: the action happens where a byte is not zero.
pub const IRQ_SET_DATA_BOOL: u32 = 1 << 1;
/// `VFIO_IRQ_SET_DATA_EVENTFD`: descriptors that are signalled whenever the action happens.
pub const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
/// `VFIO_IRQ_SET_ACTION_MASK`.
pub const IRQ_SET_ACTION_MASK: u32 = 1 << 3;
/// `VFIO_IRQ_SET_ACTION_UNMASK`.
pub const IRQ_SET_ACTION_UNMASK: u32 = 1 << 4;
/// `VFIO_IRQ_SET_ACTION_TRIGGER`.
pub const IRQ_SET_ACTION_TRIGGER: u32 = 1 << 5;

/// `REGION_READ` and `REGION_WRITE`, both ways; data follow in a read's reply and in a write's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// In the region.
    pub offset: u64,
    /// The region's number, as in `VFIO_PCI_*_REGION_INDEX`.
    pub region: u32,
    /// Bytes of data.
    pub count: u32,
}

/// `REGION_WRITE_MULTI`, both ways; so many [`MultiWrite`]s follow in the command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteMulti {
    /// How many; in the reply, how many were done.
    pub wr_cnt: u64,
}

/// One write of a `REGION_WRITE_MULTI`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MultiWrite {
    /// Where; at most eight bytes.
    pub access: RegionAccess,
    /// What; the first [`RegionAccess::count`] of them.
    pub data: [u8; 8],
}

/// `WATCH_STORES`; no payload in the reply. Only our own client sends it, to a device that asked for it in its private
/// capability, and `sundial_qemu` beside a client that knows nothing of it, to one that may have: how to notice what the client stores into a region that it has mapped. What comes with it in descriptors depends
/// on the kind.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WatchStores {
    /// Size of this.
    pub argsz: u32,
    /// [`WATCH_TRACKER`] and the others.
    pub kind: u32,
    /// The region's number, as in `VFIO_PCI_*_REGION_INDEX`.
    pub region: u32,
    /// Zero.
    pub reserved: u32,
    /// Where in the client's address space its mapping of the region begins.
    pub address: u64,
    /// Length of the mapping, from the region's first byte on.
    pub size: u64,
}

/// The kernel notes which pages are stored into: a `userfaultfd` and a page map of the client's process.
pub const WATCH_TRACKER: u32 = 0;
/// The first store to a page waits until the device lets it go on: a `userfaultfd`.
pub const WATCH_FAULT: u32 = 1;
/// The client notes single stores: a file with what it has noted, and a socket on which it is told of which pages.
pub const WATCH_DECODE: u32 = 2;

/// Room for everything in a message that is not data of a transfer: no message is longer than this and the largest
/// transfer.
pub const OVERHEAD: usize = 16 << 10;

/// The fixed part at the start of a payload, and what follows it.
pub(crate) fn split<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(payload).ok()
}
