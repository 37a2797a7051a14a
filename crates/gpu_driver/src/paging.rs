//! Page tables of an address space: the driver's own, or the host's, edited by hypercalls.
//!
//! Which of the two is decided at start, by whether the device offers hypercalls ([`gpu_spec::pv`]). It is all that a
//! para-virtualized driver does differently.

use std::ops::Range;
use std::sync::Arc;

use device_io::VramOffset;
use gmmu::{AddressSpace, EditError, PhysMem};
use gpu_spec::mmu::{Aperture, PhysAddr, Rights, TABLE_BYTES};
use gpu_spec::pv::{self, Call};
use gpu_spec::regs::{self, vf};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::mmio::{Mmio, Stuck};
use crate::scheduling::Scheduler;
use crate::tables::Tables;
use crate::vram::{ClientVram, Owner, Run, Vram};

/// The device's offer of hypercalls, taken.
#[derive(Debug)]
pub(crate) struct Hypercalls {
    mmio: Arc<Mmio>,
    /// Where calls are written; one multicall at a time.
    area: Mutex<Run>,
}

impl Hypercalls {
    /// Takes the offer, if there is one.
    pub(crate) fn take(mmio: &Arc<Mmio>, vram: &Vram) -> Result<Option<Arc<Hypercalls>>, Stuck> {
        if mmio.read(mailbox(pv::OFFER))? != pv::MAGIC {
            return Ok(None);
        }
        let Some(area) = vram.take_run(pv::AREA_BYTES, TABLE_BYTES, Owner::Device) else { return Ok(None) };
        mmio.write(mailbox(pv::AREA_LO), area.offset as u32);
        mmio.write(mailbox(pv::AREA_HI), (area.offset >> 32) as u32);
        Ok(Some(Arc::new(Hypercalls { mmio: Arc::clone(mmio), area: Mutex::new(area) })))
    }

    /// Has calls done, in order.
    fn call(&self, calls: &[Call]) -> Result<(), Stuck> {
        for calls in calls.chunks(pv::MOST_CALLS) {
            let area = self.area.lock();
            self.mmio.backing().write_vram(VramOffset(area.offset), calls.as_bytes());
            self.mmio.write(mailbox(pv::COUNT), calls.len() as u32);
            self.mmio.write(regs::VF_BASE + vf::PRIV_DOORBELL, 1);
            let status = self.mmio.read(mailbox(pv::STATUS))?;
            if status != 0 {
                log_limit::error!(done = status - 1, of = calls.len(), "the host refuses a hypercall");
                return Err(Stuck("the host refuses a hypercall"));
            }
        }
        Ok(())
    }
}

fn mailbox(word: u32) -> u32 {
    regs::VF_BASE + vf::MAILBOX + word * 4
}

/// The page tables of one address space.
#[derive(Debug)]
pub(crate) enum Paging {
    /// Tables in VRAM, walked by the device.
    Own {
        /// Their memory.
        tables: Tables,
        /// Their editor.
        pages: AddressSpace,
    },
    /// The host has them.
    Host {
        /// The way there.
        hypercalls: Arc<Hypercalls>,
        /// The page that names the space.
        root: Run,
        /// What has been changed since the host was told.
        calls: Vec<Call>,
    },
}

impl Paging {
    /// No page is mapped. Own tables take at most `bound` bytes.
    pub(crate) fn new(
        vram: &ClientVram,
        hypercalls: Option<&Arc<Hypercalls>>,
        bound: u64,
        (lo, bytes): (u64, u64),
    ) -> Result<Paging, EditError> {
        if let Some(hypercalls) = hypercalls {
            let root = vram.take_run(TABLE_BYTES, TABLE_BYTES).map_err(|_| EditError::NoMemory)?;
            let call = Call { code: pv::CREATE, root: root.offset, va: lo, bytes, ..Call::default() };
            return Ok(Paging::Host { hypercalls: Arc::clone(hypercalls), root, calls: vec![call] });
        }
        let mut tables = Tables::new(vram.clone(), bound);
        let pages = AddressSpace::create(&mut tables)?;
        Ok(Paging::Own { tables, pages })
    }

    /// What instance blocks name.
    pub(crate) fn root(&self) -> PhysAddr {
        match self {
            Paging::Own { pages, .. } => pages.root(),
            Paging::Host { root, .. } => PhysAddr::vram(root.offset),
        }
    }

    pub(crate) fn map(&mut self, va: u64, bytes: u64, at: PhysAddr, rights: Rights) -> Result<(), EditError> {
        match self {
            Paging::Own { tables, pages } => pages.map(tables, va, bytes, at, rights),
            Paging::Host { root, calls, .. } => {
                let flags = [
                    (at.aperture == Aperture::System, pv::SYSTEM),
                    (rights.read_only, pv::READ_ONLY),
                    (rights.atomic_disable, pv::ATOMIC_DISABLE),
                ];
                let flags = flags.iter().filter(|(is, _)| *is).fold(0, |flags, (_, flag)| flags | flag);
                calls.push(Call { code: pv::MAP, flags, root: root.offset, va, bytes, at: at.address });
                Ok(())
            }
        }
    }

    pub(crate) fn unmap(&mut self, va: u64, bytes: u64) -> Result<(), EditError> {
        match self {
            Paging::Own { tables, pages } => pages.unmap(tables, va, bytes),
            Paging::Host { root, calls, .. } => {
                calls.push(Call { code: pv::UNMAP, root: root.offset, va, bytes, ..Call::default() });
                Ok(())
            }
        }
    }

    /// Makes the device follow what has changed, which lies in `ranges`.
    pub(crate) fn publish(&mut self, scheduler: &Scheduler, ranges: &[Range<u64>]) -> Result<(), Stuck> {
        match self {
            Paging::Own { tables, pages } => {
                scheduler.invalidate(pages.root(), ranges)?;
                tables.settle();
                Ok(())
            }
            // The host has the device forget what it changes.
            Paging::Host { hypercalls, calls, .. } => hypercalls.call(&std::mem::take(calls)),
        }
    }

    /// Takes everything away from the device, which had `mapped`.
    pub(crate) fn cut_off(&mut self, scheduler: &Scheduler, mapped: &[Range<u64>]) -> Result<(), Stuck> {
        match self {
            Paging::Own { tables, pages } => {
                let root = pages.root();
                tables.write(root, &[0; 32]).map_err(|_| Stuck("page tables are damaged"))?;
                // Range by range first, so that others have their turns in between.
                scheduler.invalidate(root, mapped)?;
                scheduler.invalidate_all(root)
            }
            Paging::Host { hypercalls, root, calls } => {
                calls.push(Call { code: pv::DESTROY, root: root.offset, ..Call::default() });
                hypercalls.call(&std::mem::take(calls))
            }
        }
    }

    /// Gives up all memory of tables; the caller knows whether the device may still walk them.
    pub(crate) fn take_runs(&mut self) -> Vec<Run> {
        match self {
            Paging::Own { tables, .. } => tables.take_runs(),
            Paging::Host { root, .. } => vec![*root],
        }
    }
}
