//! A device, as a server shows it to one client.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use serde_json::Value;

use crate::interrupts::Interrupts;
use crate::posted::PostedWrite;
use crate::wire::{IRQ_AUTOMASKED, IRQ_EVENTFD, IRQ_MASKABLE};

/// Indices of a PCI device's regions and interrupts, as `<linux/vfio.h>` numbers them.
#[expect(missing_docs, reason = "VFIO's names")]
pub mod pci {
    pub const BAR0: u32 = 0;
    pub const BAR1: u32 = 1;
    pub const BAR2: u32 = 2;
    pub const BAR3: u32 = 3;
    pub const BAR4: u32 = 4;
    pub const BAR5: u32 = 5;
    pub const ROM: u32 = 6;
    pub const CONFIG: u32 = 7;
    pub const VGA: u32 = 8;
    pub const NUM_REGIONS: u32 = 9;

    pub const INTX: u32 = 0;
    pub const MSI: u32 = 1;
    pub const MSIX: u32 = 2;
    pub const ERR: u32 = 3;
    pub const REQ: u32 = 4;
    pub const NUM_IRQS: u32 = 5;
}

/// A device that a server shows to one client.
///
/// All methods are called by the one thread that serves the connection, in the order of the client's messages: `describe` and
/// `attach` once the client has greeted, `gone` last, whatever the reason; none of them for a client that never greeted.
/// What a method does holds up this client and nobody else.
///
/// Offsets and lengths are checked against the description before; the errors are what the client is told.
pub trait Device {
    /// What the device consists of. `proposed` is the client's private capability ([`crate::PRIVATE`]); what the device
    /// makes of it is [`Description::private`].
    fn describe(&self, proposed: Option<&Value>) -> Description;

    /// The client's interrupts: good until it is gone, from any thread.
    fn attach(&self, interrupts: Arc<Interrupts>);

    /// Reads all of `out`, which is at least one byte, from a readable region.
    ///
    /// # Errors
    /// Sent to the client.
    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno>;

    /// Writes all of `data`, which is at least one byte, to a writable region.
    ///
    /// # Errors
    /// Sent to the client, if it waits for a reply.
    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Does writes of four bytes each to writable regions, in this order, for which nobody waits: as many as there are at once,
    /// so that a device can do together what the client has put behind one another.
    fn write_posted(&self, writes: &[PostedWrite]) {
        for PostedWrite { region, offset, value } in writes {
            // Nobody learns of errors.
            let _ = self.write(*region, (*offset).into(), &value.to_le_bytes());
        }
    }

    /// The device may reach this memory from now on. It overlaps none that was mapped before.
    ///
    /// # Errors
    /// Sent to the client; the map is not made then.
    fn map(&self, map: DmaMap) -> Result<(), Errno>;

    /// The device must not reach this memory any more, and hold none of it when this returns. It is one that was mapped.
    fn unmap(&self, address: u64, bytes: u64);

    /// The client, asked to by the device's private capability, tells how to notice what it stores into a region. It may say so
    /// once more: then this way counts, and no other.
    ///
    /// # Errors
    /// Sent to the client.
    fn watch_stores(&self, watch: StoreWatch) -> Result<(), Errno> {
        let _ = watch;
        Err(Errno::OPNOTSUPP)
    }

    /// To the state after power-on; maps and interrupts stay. Called only if [`Description::resettable`].
    fn reset(&self);

    /// The client has left: all maps are void, interrupts reach nobody.
    fn gone(&self);
}

/// What a device consists of.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Whether it can be reset.
    pub resettable: bool,
    /// Its regions, by index; those that are not there are empty. A PCI device has [`pci::NUM_REGIONS`].
    pub regions: Vec<Region>,
    /// Its kinds of interrupts, by index; those that are not there are empty. A PCI device has [`pci::NUM_IRQS`].
    pub irqs: Vec<Irq>,
    /// What the client is answered to its private capability.
    pub private: Option<Value>,
    /// Whether small writes without reply may come through shared memory. For the device they are like any other.
    pub posted_writes: bool,
}

/// A region of a device: a BAR, the configuration space.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Size; 0: there is none.
    pub bytes: u64,
    /// Whether the client may read it.
    pub readable: bool,
    /// Whether the client may write it.
    pub writable: bool,
    /// What of it the client may map: whole pages, in rising order.
    pub areas: Vec<Range<u64>>,
    /// The file whose mapping shows the areas, and where in it the region begins. There if and only if there are areas.
    pub file: Option<(Arc<OwnedFd>, u64)>,
}

impl Region {
    /// One that is read and written, by messages only.
    #[must_use]
    pub fn trapped(bytes: u64) -> Region {
        Region { bytes, readable: true, writable: true, areas: Vec::new(), file: None }
    }

    /// One that is read and written, of which `areas` can be mapped: those of `file`, from `offset` on.
    #[must_use]
    pub fn mapped(bytes: u64, areas: Vec<Range<u64>>, file: Arc<OwnedFd>, offset: u64) -> Region {
        Region { areas, file: Some((file, offset)), ..Region::trapped(bytes) }
    }

    /// Panics if a device describes what cannot be.
    pub(crate) fn assert_sound(&self) {
        assert_eq!(self.areas.is_empty(), self.file.is_none(), "a file for areas, areas of a file");
        let mut end = 0;
        for area in &self.areas {
            let pages = area.start % hostmem::PAGE == 0 && area.end % hostmem::PAGE == 0;
            assert!(pages && end <= area.start && area.start < area.end && area.end <= self.bytes, "area {area:?}");
            end = area.end;
        }
    }
}

/// A kind of interrupts of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Irq {
    /// How many; 0: there are none.
    pub count: u32,
    /// [`IRQ_EVENTFD`] and the others of [`crate::wire`].
    pub flags: u32,
}

impl Irq {
    /// A wire that stays asserted until the device lets go, and masks itself whenever it fires.
    #[must_use]
    pub fn line() -> Irq {
        Irq { count: 1, flags: IRQ_EVENTFD | IRQ_MASKABLE | IRQ_AUTOMASKED }
    }

    /// Messages: MSI, MSI-X, error and request.
    #[must_use]
    pub fn messages(count: u32) -> Irq {
        Irq { count, flags: IRQ_EVENTFD }
    }
}

/// Memory of the client that the device may reach.
pub struct DmaMap {
    /// Where on the bus: whole pages.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// Whether the device may read it.
    pub readable: bool,
    /// Whether the device may write it.
    pub writable: bool,
    /// The memory itself and where in it the map begins (whole pages), if the client lets it be mapped. It comes from the
    /// client as it is: size, seals and kind are for the device to check.
    ///
    /// Without it there is nothing to reach: this crate sends no `DMA_READ`. QEMU names other devices' BARs this way, which
    /// is no error.
    pub file: Option<(OwnedFd, u64)>,
}

/// How to notice what a client stores into a region: [`crate::wire::WatchStores`], checked as far as the region's size goes.
/// Descriptors and address are as the client sent them.
#[derive(Debug)]
pub struct StoreWatch {
    /// [`crate::wire::WATCH_TRACKER`] or another.
    pub kind: u32,
    /// Which region.
    pub region: u32,
    /// Where the client has mapped it.
    pub address: u64,
    /// How much of it.
    pub bytes: u64,
    /// What came with the message.
    pub fds: Vec<OwnedFd>,
}

impl fmt::Debug for DmaMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rights = [(self.readable, 'r'), (self.writable, 'w'), (self.file.is_some(), 'm')];
        let rights: String = rights.iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
        write!(f, "DmaMap({:#x}+{:#x} {rights})", self.address, self.bytes)
    }
}
