//! A virtual GPU as a vfio-user device.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use gmmu::PhysMem;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vf};
use vfio_user::{
    Description, Device, DmaMap, EACH_STORE, Errno, Interrupts, Irq, PostedWrite, Region, StoreWatch, WATCH_STORES, pci,
};

use crate::Scheme;
use crate::counts::Counters;
use crate::interrupts::Tree;
use crate::mediator::{GoneOn, MOST_RETRY, RETRY, Vgpu};
use crate::pci::{BAR0_BYTES, BAR4_BYTES, CONFIG_BYTES, ConfigSpace};
use crate::registers::is_doorbell;
use crate::watch::{self, Trap};

/// The registers of the interrupt tree. A driver looks there, and whether the device is still there, from time to time.
const INTERRUPTS: Range<u64> = (regs::VF_BASE + vf::INTR_LEAF) as u64..(regs::VF_BASE + vf::INTR_LEAF_TRIGGER) as u64;

/// A virtual GPU for one client after another.
#[derive(Debug)]
pub struct Port(Arc<Vgpu>);

impl Port {
    /// Shows this one.
    #[must_use]
    pub fn new(vgpu: Arc<Vgpu>) -> Port {
        Port(vgpu)
    }
}

impl Vgpu {
    /// The mediator's own thread for a guest: tells it what the device has said, and goes on with what did not fit. Returns
    /// after [`Vgpu::end`].
    pub fn attend(&self) {
        hostmem::prefer_short_slices();
        let mut again = None;
        let mut looked = Instant::now();
        loop {
            let news = self.lines.wait(again.or_else(|| self.looks_after()));
            if news.ended {
                return;
            }
            self.reclaim(&mut looked);
            if news.errors || !news.faults.is_empty() {
                self.tell_guest(news.faults, news.errors);
            }
            if news.rung || again.is_some() {
                let waited = again.unwrap_or(RETRY);
                again = match self.go_on() {
                    GoneOn::Done => None,
                    GoneOn::Further => Some(RETRY),
                    // What does not run may not for ever.
                    GoneOn::NotYet => Some((waited * 2).min(MOST_RETRY)),
                };
            }
        }
    }

    /// Has [`Vgpu::attend`] return, and the guest see no device any more: what it has in store for the thread that serves it
    /// does not hold that up.
    pub fn end(&self) {
        self.lines.lose(&"it is being destroyed");
        self.lines.tell(|news| news.ended = true);
    }
}

/// Counts an access of the driver's. Configuration space is the kernel's and the client's, which look into it on their own.
pub(crate) fn count_trap(counters: &Counters, region: u32, offset: u64) {
    if region != pci::CONFIG {
        Counters::add(&counters.traps, 1);
    }
    if region == pci::BAR0 && (INTERRUPTS.contains(&offset) || offset == u64::from(regs::PMC_BOOT_0)) {
        Counters::add(&counters.looks, 1);
    }
}

/// Reads bytes of registers, which have 32 bits.
pub(crate) fn read_words(offset: u64, out: &mut [u8], read: impl Fn(u32) -> u32) {
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        let word = read((at & !3) as u32).to_le_bytes();
        let skip = (at % 4) as usize;
        let count = (4 - skip).min(out.len() - done);
        out[done..done + count].copy_from_slice(&word[skip..skip + count]);
        done += count;
    }
}

/// Writes registers; what is narrower, or between two, is none of them.
pub(crate) fn write_words(offset: u64, data: &[u8], write: impl Fn(u32, u32)) {
    if !offset.is_multiple_of(4) {
        return;
    }
    for (at, word) in (offset as u32..).step_by(4).zip(data.as_chunks::<4>().0) {
        write(at, u32::from_le_bytes(*word));
    }
}

/// The device with VRAM of `bytes`, which `file` shows if it may be mapped.
pub(crate) fn describe(bytes: u64, file: Option<Arc<OwnedFd>>) -> Description {
    let bar1 = bytes.next_power_of_two();
    let mut regions = vec![Region::default(); pci::NUM_REGIONS as usize];
    regions[pci::BAR0 as usize] = Region::trapped(BAR0_BYTES);
    regions[pci::BAR1 as usize] = match file {
        Some(file) => Region::mapped(bar1, std::iter::once(0..bytes).collect(), file, 0),
        None => Region::trapped(bar1),
    };
    regions[pci::BAR4 as usize] = Region::trapped(BAR4_BYTES);
    regions[pci::CONFIG as usize] = Region::trapped(CONFIG_BYTES);
    let mut irqs = vec![Irq::default(); pci::NUM_IRQS as usize];
    irqs[pci::INTX as usize] = Irq::line();
    irqs[pci::MSIX as usize] = Irq::messages(1);
    Description { resettable: true, regions, irqs, private: None, posted_writes: true }
}

impl Device for Port {
    fn describe(&self, _proposed: Option<&serde_json::Value>) -> Description {
        // What has ended keeps its memory for itself.
        let inner = self.0.inner.lock();
        let trap = inner.watch.watching.trap;
        let each_store = trap == Trap::Bar;
        let file = inner.memory.vram.file().filter(|_| !each_store && !self.0.lines.is_lost());
        // Where all is trapped, all is a message.
        let posted_writes = self.0.config.scheme != Scheme::FvNaive;
        let private = match trap {
            Trap::Bar => Some(serde_json::json!({ EACH_STORE: true })),
            Trap::Watched(kind) if file.is_some() => Some(serde_json::json!({ WATCH_STORES: watch::number(kind) })),
            _ => None,
        };
        Description { posted_writes, private, ..describe(self.0.config.vram_bytes, file) }
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        self.0.balloon_attach();
        self.0.lines.attach(Some(interrupts));
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let vgpu = &self.0;
        count_trap(&vgpu.counters, region, offset);
        match region {
            pci::BAR0 => read_words(offset, out, |at| vgpu.read_register(at)),
            pci::BAR1 => {
                let read = vgpu.inner.lock().memory.read(PhysAddr::vram(offset), out);
                if read.is_err() || vgpu.lines.is_lost() {
                    out.fill(0xff);
                }
            }
            pci::CONFIG => {
                let up = vgpu.lines.look(Tree::line);
                vgpu.inner.lock().pci.read(offset, up, out);
            }
            _ => out.fill(0),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let vgpu = &self.0;
        count_trap(&vgpu.counters, region, offset);
        match region {
            pci::BAR0 => write_words(offset, data, |at, value| vgpu.write_register(at, value)),
            pci::BAR1 if vgpu.lines.is_lost() => {}
            pci::BAR1 => vgpu.store(PhysAddr::vram(offset), data),
            pci::CONFIG => {
                let mut inner = vgpu.inner.lock();
                inner.pci.write(offset, data);
                vgpu.lines.set_wire_off(inner.pci.wire_off());
                drop(inner);
                if ConfigSpace::resets(offset, data) {
                    vgpu.reset();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Doorbells of a channel that come one behind the other are one: what was put before the last is work, whichever is heard.
    fn write_posted(&self, writes: &[PostedWrite]) {
        let mut rung: Vec<u32> = Vec::new();
        let ring = |rung: &mut Vec<u32>| rung.drain(..).for_each(|channel| self.0.ring(channel));
        for PostedWrite { region, offset, value } in writes {
            if *region != pci::BAR0 || !is_doorbell(*offset) {
                ring(&mut rung);
                // Nobody learns of errors.
                let _ = self.write(*region, (*offset).into(), &value.to_le_bytes());
                continue;
            }
            count_trap(&self.0.counters, *region, (*offset).into());
            let channel = regs::DOORBELL_CHANNEL.get(*value);
            if !rung.contains(&channel) && !self.0.lines.is_lost() {
                rung.push(channel);
            }
        }
        ring(&mut rung);
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        self.0.map(map)
    }

    fn unmap(&self, address: u64, bytes: u64) {
        self.0.unmap(address..address.saturating_add(bytes));
    }

    fn watch_stores(&self, watch: StoreWatch) -> Result<(), Errno> {
        self.0.watch_stores(watch)
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn gone(&self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use gpu_driver::{Driver, HostCost};
    use softgpu::SoftGpu;

    use super::*;
    use crate::mediator::Config;
    use crate::watch::Watching;

    #[test]
    fn each_doorbell_counts_and_other_writes_keep_their_place() {
        let gpu = SoftGpu::new(&softgpu::Config { vram_bytes: 64 << 20, ..softgpu::Config::default() }).unwrap();
        let driver = Driver::start(gpu).unwrap();
        let budget = driver.budget(HostCost::default()).unwrap();
        let (name, watching) = ("one".to_owned(), Watching::default());
        let config = Config { name, vram_bytes: 16 << 20, scheme: Scheme::Fv, watching, budget };
        let vgpu = Vgpu::new(&driver, config).unwrap();
        let port = Port::new(Arc::clone(&vgpu));
        let write = |offset, value| PostedWrite { region: pci::BAR0, offset, value };
        let doorbell = |channel| write(regs::USERMODE + regs::USERMODE_DOORBELL, regs::DOORBELL_CHANNEL.of(channel));
        let mailbox = regs::VF_BASE + vf::MAILBOX + 4;
        let beside = write(regs::VF_BASE + vf::USER + regs::USERMODE_DOORBELL, 3);
        port.write_posted(&[
            doorbell(1),
            doorbell(2),
            doorbell(1),
            write(mailbox, 7),
            doorbell(4095),
            beside,
            write(mailbox, 8),
        ]);
        assert_eq!(vgpu.counts().traps, 7);
        assert_eq!(vgpu.read_register(mailbox), 8);
    }
}
