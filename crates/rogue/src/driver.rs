//! A driver that means no good: it has a guest's registers and memory, and writes by hand what a driver would.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use gmmu::{AddressSpace, BadAddress, PhysMem, TableMemory};
use gpu_spec::host::GpEntry;
use gpu_spec::mmu::{Aperture, Pde, PhysAddr, Rights};
use gpu_spec::program::{self, ConstantBank, PARAMS_OFFSET};
use gpu_spec::pv::{self, Call};
use gpu_spec::qmd::Qmd;
use gpu_spec::ramfc::{self, InstanceBlock};
use gpu_spec::regs::{self, accounting, vf};
use gpu_spec::runlist::RunlistEntry;
use gpu_spec::userd;
use hostmem::{Mapping, Memfd};
use rustix::fs::{MemfdFlags, SealFlags};
use vfio_user::{CallError, pci};
use zerocopy::IntoBytes;

use crate::Port;

/// First address of its address spaces.
pub const LO: u64 = 1 << 40;
/// Bytes of an address space.
pub const WINDOW: u64 = 1 << 30;
/// Where the guest's VRAM is in every space that [`Rogue::space`] makes: the first 64 MiB of it.
pub const VRAM_VA: u64 = LO + (256 << 20);
/// From here on nothing is mapped in such a space.
pub const FREE_VA: u64 = LO + (512 << 20);

const RING_VA: u64 = LO;
const PUSH_VA: u64 = LO + (1 << 20);
const MAPPED: u64 = 64 << 20;
const LOG2_ENTRIES: u32 = 9;
const PUSH_BYTES: u64 = 64 << 10;
const LIST_BYTES: u64 = 4096;

/// Where in VRAM hypercalls are left, the program lies, launch descriptors go round, and all else begins.
const AREA: u64 = 0;
const PROGRAM: u64 = 64 << 10;
const DESCRIPTORS: u64 = 128 << 10;
const FREE: u64 = 256 << 10;
const DESCRIPTOR_BYTES: u64 = 1 << 10;

/// The driver.
#[derive(Debug)]
pub struct Rogue {
    /// Its device.
    pub port: Port,
    /// Memory that it has shown to the device.
    pub lent: Vec<Lent>,
    place: Place,
    descriptors: u64,
}

/// System memory that the device was shown.
#[derive(Debug)]
pub struct Lent {
    /// Where the device has it.
    pub bus: u64,
    /// The memory.
    pub file: Memfd,
    /// The same, for this side.
    pub memory: Mapping,
}

/// Where new things go: round and round.
#[derive(Clone, Debug)]
struct Place {
    aperture: Aperture,
    range: Range<u64>,
    next: u64,
}

/// A channel of the guest's, number and all.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The channel's number on its GPU.
    pub id: u32,
    /// Where its instance block is.
    pub instance: PhysAddr,
    /// Where its USERD is.
    pub userd: PhysAddr,
    ring: PhysAddr,
    push: PhysAddr,
    put: u32,
}

/// What the device says that it did for a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Had {
    /// GPU time, ns.
    pub time_ns: u64,
    /// Grids that ended.
    pub grids: u64,
    /// Copies that ended.
    pub copies: u64,
}

impl Had {
    /// Grids and copies that ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.grids + self.copies
    }
}

impl std::ops::AddAssign for Had {
    fn add_assign(&mut self, other: Had) {
        self.time_ns += other.time_ns;
        self.grids += other.grids;
        self.copies += other.copies;
    }
}

impl PhysMem for Rogue {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        match self.find(at, out.len())? {
            Some((lent, offset)) => lent.memory.read(offset, out),
            None => self.port.read_vram(at.address, out),
        }
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        match self.find(at, data.len())? {
            Some((lent, offset)) => lent.memory.write(offset, data),
            None => self.port.write_vram(at.address, data),
        }
        Ok(())
    }
}

impl TableMemory for Rogue {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        let at = self.take(bytes, bytes);
        self.put(at, &vec![0; bytes as usize]);
        Some(at)
    }

    fn free(&mut self, _at: PhysAddr, _bytes: u64) {}
}

impl Rogue {
    /// One that has done nothing yet.
    #[must_use]
    pub fn new(port: Port) -> Rogue {
        let range = FREE..port.vram_bytes() / 2;
        let place = Place { aperture: Aperture::Vram, next: range.start, range };
        Rogue { port, lent: Vec::new(), place, descriptors: 0 }
    }

    /// Where memory is: system memory that was lent, or VRAM. Tables that were spoiled may lead anywhere.
    fn find(&self, at: PhysAddr, bytes: usize) -> Result<Option<(&Lent, usize)>, BadAddress> {
        let end = at.address.checked_add(bytes as u64).ok_or(BadAddress(at))?;
        if at.aperture == Aperture::Vram {
            return if end <= self.port.vram_bytes() { Ok(None) } else { Err(BadAddress(at)) };
        }
        let holds = |lent: &&Lent| lent.bus <= at.address && end <= lent.bus + lent.file.bytes();
        let lent = self.lent.iter().find(holds).ok_or(BadAddress(at))?;
        Ok(Some((lent, (at.address - lent.bus) as usize)))
    }

    /// Memory for something new; it begins anew when there is no more.
    pub fn take(&mut self, bytes: u64, align: u64) -> PhysAddr {
        let Place { aperture, range, next } = &mut self.place;
        let at = next.next_multiple_of(align);
        let at = if at + bytes > range.end { range.start.next_multiple_of(align) } else { at };
        *next = at + bytes;
        PhysAddr { aperture: *aperture, address: at }
    }

    /// What is taken from now on lies in VRAM, or in this range of system memory.
    pub fn use_memory(&mut self, system: Option<Range<u64>>) {
        let aperture = if system.is_some() { Aperture::System } else { Aperture::Vram };
        let range = system.unwrap_or(FREE..self.port.vram_bytes() / 2);
        self.place = Place { aperture, next: range.start, range };
    }

    /// Shows a new memory file to the device.
    ///
    /// # Errors
    /// It cannot be made, or is refused.
    pub fn lend(&mut self, bus: u64, bytes: u64) -> io::Result<()> {
        let file = shrinks_not(bytes)?;
        let memory = file.map()?;
        let fd = Some((file.as_fd(), 0));
        self.port.client.map_dma(bus, bytes, (true, true), fd).map_err(io::Error::other)?;
        self.lent.push(Lent { bus, file, memory });
        Ok(())
    }

    /// Takes it back; the memory, which the device must not use any more.
    pub fn take_back(&mut self, bus: u64) -> Option<Lent> {
        let at = self.lent.iter().position(|lent| lent.bus == bus)?;
        let lent = self.lent.swap_remove(at);
        let _ = self.port.client.unmap_dma(bus, lent.file.bytes());
        Some(lent)
    }

    /// Writes memory; where there is none, nothing happens.
    pub fn put(&self, at: PhysAddr, data: &[u8]) {
        let _ = self.write(at, data);
    }

    /// A word of VRAM.
    #[must_use]
    pub fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.port.read_vram(at, &mut word);
        u32::from_le_bytes(word)
    }

    /// Page tables that map VRAM at [`VRAM_VA`].
    ///
    /// # Panics
    /// Never: there is memory for tables.
    pub fn space(&mut self) -> AddressSpace {
        let mut space = AddressSpace::create(self).expect("tables");
        let bytes = self.port.vram_bytes().min(MAPPED);
        // What was there before may be spoiled meanwhile.
        let _ = space.map(self, VRAM_VA, bytes, PhysAddr::vram(0), Rights::default());
        space
    }

    /// Maps a ring and a pushbuffer into a space, and binds a channel to it.
    pub fn channel(&mut self, space: &mut AddressSpace, id: u32) -> Channel {
        let [ring, push] = [self.take(4096, 4096), self.take(PUSH_BYTES, 4096)];
        let place = u64::from(id % 16);
        for (va, bytes, at) in [(RING_VA + place * 4096, 4096, ring), (PUSH_VA + place * PUSH_BYTES, PUSH_BYTES, push)]
        {
            // A space that somebody spoils may have no place for it.
            let _ = space.unmap(self, va, bytes);
            let _ = space.map(self, va, bytes, at, Rights::default());
        }
        self.invalidate(space.root(), LO, WINDOW);
        let channel = self.blank_channel(id, ring, push);
        self.bind(channel, space.root(), (LO, WINDOW), RING_VA + place * 4096);
        channel
    }

    /// The memory of a channel that is not bound.
    pub fn blank_channel(&mut self, id: u32, ring: PhysAddr, push: PhysAddr) -> Channel {
        let userd = self.take(userd::BYTES, 4096);
        let instance = self.take(ramfc::INSTANCE_BLOCK_BYTES, 4096);
        self.put(userd, &[0; userd::BYTES as usize]);
        Channel { id, instance, userd, ring, push, put: 0 }
    }

    /// Writes a channel's instance block, and binds the channel.
    pub fn bind(&self, channel: Channel, root: PhysAddr, window: (u64, u64), gpfifo: u64) {
        let mut block = InstanceBlock::default();
        block.words[ramfc::SIGNATURE] = ramfc::SIGNATURE_VALUE;
        block.set_page_directory(root);
        block.set_userd(channel.userd);
        block.set_gpfifo(gpfifo, LOG2_ENTRIES);
        block.set_window(window.0, window.1);
        self.put(channel.instance, block.as_bytes());
        self.bind_block(channel.id, channel.instance);
    }

    /// Changes the instance block of a channel that has been bound, and binds it again.
    pub fn rebind(&self, channel: Channel, change: impl FnOnce(&mut InstanceBlock)) {
        let mut block = InstanceBlock::default();
        let _ = self.read(channel.instance, block.as_mut_bytes());
        change(&mut block);
        self.put(channel.instance, block.as_bytes());
        self.bind_block(channel.id, channel.instance);
    }

    /// Binds a channel to whatever lies at `instance`.
    pub fn bind_block(&self, id: u32, instance: PhysAddr) {
        let inst = regs::INST_PTR.of((instance.address >> 12) as u32)
            | regs::INST_TARGET.of(ramfc::target(instance.aperture))
            | regs::INST_BIND.of(1);
        self.port.write32(regs::pccsr_inst(id), inst);
        self.port.write32(regs::pccsr_channel(id), regs::CHANNEL_ENABLE_SET.of(1));
    }

    /// Binds a channel to nothing.
    pub fn unbind(&self, id: u32) {
        self.port.write32(regs::pccsr_inst(id), 0);
    }

    /// True if a channel could not be bound, or has made a mistake.
    #[must_use]
    pub fn has_failed(&self, id: u32) -> bool {
        let state = self.port.read32(regs::pccsr_channel(id));
        regs::CHANNEL_PBDMA_FAULTED.is_set(state) || regs::CHANNEL_ENG_FAULTED.is_set(state)
    }

    /// Lists channels by group.
    pub fn list(&mut self, groups: &[(u32, &[Channel])]) {
        let mut entries = Vec::new();
        for (id, channels) in groups {
            entries.push(RunlistEntry::tsg(*id, channels.len() as u32, 1_000_000));
            entries.extend(channels.iter().map(|c| RunlistEntry::channel(c.id, c.userd, c.instance)));
        }
        let at = self.take(LIST_BYTES, 4096);
        self.put(at, entries.as_bytes());
        self.submit_runlist(at, entries.len() as u32);
    }

    /// Gives the device a runlist.
    pub fn submit_runlist(&self, at: PhysAddr, entries: u32) {
        let target = regs::RUNLIST_BASE_TARGET.of(ramfc::target(at.aperture));
        self.port.write32(regs::RUNLIST_BASE_LO, at.address as u32 & !0xfff | target);
        self.port.write32(regs::RUNLIST_BASE_HI, (at.address >> 32) as u32);
        self.port.write32(regs::RUNLIST_SUBMIT, entries);
    }

    /// Writes a register of the virtual function's.
    pub fn vf(&self, at: u32, value: u32) {
        self.port.write32(regs::VF_BASE + at, value);
    }

    /// Invalidates translations of a page directory.
    pub fn invalidate(&self, root: PhysAddr, va: u64, bytes: u64) {
        let target = vf::INVALIDATE_PDB_TARGET.of(ramfc::target(root.aperture));
        self.vf(vf::MMU_INVALIDATE_PDB, root.address as u32 & !0xfff | target);
        self.vf(vf::MMU_INVALIDATE_UPPER_PDB, (root.address >> 32) as u32);
        self.vf(vf::MMU_INVALIDATE_VA_LO, va as u32);
        self.vf(vf::MMU_INVALIDATE_VA_HI, (va >> 32) as u32);
        self.vf(vf::MMU_INVALIDATE_PAGES, (bytes / 4096) as u32);
        self.vf(vf::MMU_INVALIDATE, vf::INVALIDATE_TRIGGER.of(1));
    }

    /// More work than there is time for, in messages that wait: so many invalidates of everything, over tables that contain
    /// themselves. Returns when there is room for the last, or the connection has ended.
    ///
    /// # Errors
    /// It has ended.
    pub fn burden(&mut self, times: usize) -> Result<(), CallError> {
        let mut space = self.space();
        self.channel(&mut space, 1);
        for id in 2..16 {
            let table = self.take(4096, 4096);
            self.put(table, &Pde::to_table(table).0.to_le_bytes().repeat(512));
            let channel = self.blank_channel(id, table, table);
            self.bind(channel, table, (LO, WINDOW), LO);
        }
        let at = u64::from(regs::VF_BASE + vf::MMU_INVALIDATE);
        let all = vf::INVALIDATE_TRIGGER.of(1) | vf::INVALIDATE_ALL_VA.of(1) | vf::INVALIDATE_ALL_PDB.of(1);
        (0..times).try_for_each(|_| self.port.client.write_posted(pci::BAR0, at, &all.to_le_bytes()))
    }

    /// Words at the beginning of the channel's pushbuffer, submitted.
    pub fn submit(&self, channel: &mut Channel, words: &[u32]) {
        let words = &words[..words.len().min(PUSH_BYTES as usize / 4)];
        self.put(channel.push, words.as_bytes());
        let push = PUSH_VA + u64::from(channel.id % 16) * PUSH_BYTES;
        self.submit_entry(channel, GpEntry::segment(push, words.len() as u32));
    }

    /// One more entry in the channel's GPFIFO.
    pub fn submit_entry(&self, channel: &mut Channel, entry: GpEntry) {
        self.put(channel.ring.offset(u64::from(channel.put) * GpEntry::BYTES), entry.as_bytes());
        channel.put = (channel.put + 1) % (1 << LOG2_ENTRIES);
        self.put(channel.userd.offset(userd::GP_PUT), &channel.put.to_le_bytes());
        self.ring(channel.id);
    }

    /// Rings for a channel.
    pub fn ring(&self, id: u32) {
        self.port.write32(regs::USERMODE + regs::USERMODE_DOORBELL, regs::DOORBELL_CHANNEL.of(id));
    }

    /// Whether hypercalls are offered.
    #[must_use]
    pub fn has_hypercalls(&self) -> bool {
        self.port.read32(regs::VF_BASE + vf::MAILBOX + pv::OFFER * 4) == pv::MAGIC
    }

    /// Does hypercalls; the status.
    pub fn call(&self, calls: &[Call]) -> u32 {
        self.port.write_vram(AREA, calls.as_bytes());
        let mailbox = |word: u32| regs::VF_BASE + vf::MAILBOX + word * 4;
        self.port.write32(mailbox(pv::AREA_LO), AREA as u32);
        self.port.write32(mailbox(pv::AREA_HI), 0);
        self.port.write32(mailbox(pv::COUNT), calls.len() as u32);
        self.vf(vf::PRIV_DOORBELL, 1);
        self.port.read32(mailbox(pv::STATUS))
    }

    /// As [`Rogue::channel`], in a new space made of hypercalls, of the name `root`; none if the calls are refused.
    pub fn entered_channel(&mut self, root: u64, id: u32) -> Option<Channel> {
        let [ring, push] = [self.take(4096, 4096), self.take(PUSH_BYTES, 4096)];
        let map = |va, bytes, at: PhysAddr| {
            let flags = if at.aperture == Aperture::System { pv::SYSTEM } else { 0 };
            Call { code: pv::MAP, flags, root, va, bytes, at: at.address }
        };
        let place = u64::from(id % 16);
        let vram = self.port.vram_bytes().min(MAPPED);
        let calls = [
            Call { code: pv::CREATE, root, va: LO, bytes: WINDOW, ..Call::default() },
            map(RING_VA + place * 4096, 4096, ring),
            map(PUSH_VA + place * PUSH_BYTES, PUSH_BYTES, push),
            map(VRAM_VA, vram, PhysAddr::vram(0)),
        ];
        if self.call(&calls) != 0 {
            return None;
        }
        let channel = self.blank_channel(id, ring, push);
        self.bind(channel, PhysAddr::vram(root), (LO, WINDOW), RING_VA + place * 4096);
        Some(channel)
    }

    /// Puts a kernel into VRAM, instead of the last; gives its address in every space that has VRAM.
    ///
    /// # Panics
    /// If it is larger than 64 KiB.
    #[must_use]
    pub fn load(&self, ptx: &str, kernel: &str) -> u64 {
        let container = program::encode(ptx.as_bytes(), &[kernel], &[]).expect("a small one");
        assert!(container.len() as u64 <= DESCRIPTORS - PROGRAM, "a small one");
        self.port.write_vram(PROGRAM, &container);
        VRAM_VA + PROGRAM + program::entry_offset(0)
    }

    /// A launch descriptor in VRAM; gives its address. Many may be in use at once.
    pub fn describe(&mut self, program: u64, grid: u32, block: u32, params: &[u64]) -> u64 {
        let at = DESCRIPTORS + self.descriptors % ((FREE - DESCRIPTORS) / DESCRIPTOR_BYTES) * DESCRIPTOR_BYTES;
        self.descriptors += 1;
        let bank = ConstantBank { param_bytes: params.len() as u32 * 8, ..ConstantBank::default() };
        let bank_at = at + Qmd::BYTES;
        let mut qmd = Qmd::default();
        qmd.set(Qmd::CTA_RASTER_WIDTH, grid);
        qmd.set(Qmd::CTA_RASTER_HEIGHT, 1);
        qmd.set(Qmd::CTA_RASTER_DEPTH, 1);
        qmd.set(Qmd::CTA_THREAD_DIMENSION0, block);
        qmd.set(Qmd::CTA_THREAD_DIMENSION1, 1);
        qmd.set(Qmd::CTA_THREAD_DIMENSION2, 1);
        qmd.set_program_address(program);
        qmd.set_constant_buffer(0, VRAM_VA + bank_at, PARAMS_OFFSET as u32 + params.len() as u32 * 8);
        self.port.write_vram(bank_at, bank.as_bytes());
        self.port.write_vram(bank_at + PARAMS_OFFSET, params.as_bytes());
        self.port.write_vram(at, qmd.as_bytes());
        VRAM_VA + at
    }

    /// What groups have had, by their numbers.
    #[must_use]
    pub fn had(&self, tsgs: Range<u32>) -> Had {
        let mut had = Had::default();
        for tsg in tsgs {
            let word = |word| u64::from(self.port.read32(accounting::word(tsg, word)));
            had += Had {
                time_ns: word(accounting::TIME_LO) | word(accounting::TIME_HI) << 32,
                grids: word(accounting::GRIDS),
                copies: word(accounting::COPIES),
            };
        }
        had
    }

    /// Waits until a condition holds; not for long. Whether it did.
    pub fn wait(&self, bound: Duration, mut condition: impl FnMut(&Rogue) -> bool) -> bool {
        let end = Instant::now() + bound;
        while !condition(self) {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

/// A memory file that cannot be made shorter, and may be changed in all other ways.
fn shrinks_not(bytes: u64) -> io::Result<Memfd> {
    let file = rustix::fs::memfd_create("rogue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Memfd::from_fd(file)
}
