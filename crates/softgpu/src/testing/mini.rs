//! A small driver for tests: just enough to write page tables, channels and pushbuffers by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use device_io::DeviceBacking;
use gmmu::{AddressSpace, BadAddress, PhysMem, TableMemory};
use gpu_spec::compute::{self, TURING_COMPUTE_A};
use gpu_spec::copy::{self, TURING_DMA_COPY_A};
use gpu_spec::fault::{Fault, Packet};
use gpu_spec::host::{self, GpEntry, Header, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY, sem_execute};
use gpu_spec::mmu::{Aperture, DualPde, Pde, PhysAddr, Rights};
use gpu_spec::notifier::{self, LOG_OFFSET, Record};
use gpu_spec::program::{self, ConstantBank, PARAMS_OFFSET};
use gpu_spec::qmd::Qmd;
use gpu_spec::ramfc::{self, InstanceBlock};
use gpu_spec::regs::{self, accounting, vf};
use gpu_spec::runlist::RunlistEntry;
use gpu_spec::userd;

use zerocopy::{FromZeros, IntoBytes};

use crate::{Config, EngineKind, SoftGpu};

/// The window of every address space.
pub const LO: u64 = 0x70_0000_0000;
pub const WINDOW: u64 = 1 << 30;
/// A bound on every wait.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// VRAM of the device.
const VRAM: u64 = 256 << 20;
const LOG2_ENTRIES: u32 = 6;
const FAULT_PACKETS: u32 = 64;

/// The device and what the driver keeps of it.
#[derive(Debug)]
pub struct Mini {
    pub gpu: Arc<SoftGpu>,
    vram: Vram,
    runlist: u64,
    fault_buffer: u64,
    faults_read: u32,
    tsgs: BTreeMap<u32, Tsg>,
}

/// A time slice in nanoseconds; channels with their USERDs and instance blocks.
type Tsg = (u64, Vec<(u32, PhysAddr, PhysAddr)>);

/// VRAM, handed out from the beginning and never taken back.
#[derive(Debug)]
struct Vram {
    gpu: Arc<SoftGpu>,
    next: u64,
}

impl PhysMem for Vram {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        self.gpu.vram().read(self.check(at, out.len())?, out);
        Ok(())
    }
    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        self.gpu.vram().write(self.check(at, data.len())?, data);
        Ok(())
    }
}

impl TableMemory for Vram {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        Some(PhysAddr::vram(self.take(bytes, bytes)))
    }
    fn free(&mut self, _at: PhysAddr, _bytes: u64) {}
}

impl Vram {
    /// Tables that a test has spoilt may point anywhere.
    fn check(&self, at: PhysAddr, bytes: usize) -> Result<usize, BadAddress> {
        let fits = at.aperture == Aperture::Vram && at.address <= (self.gpu.vram().len() - bytes) as u64;
        fits.then_some(at.address as usize).ok_or(BadAddress(at))
    }

    fn take(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.next.next_multiple_of(align);
        self.next = at + bytes;
        assert!(self.next <= self.gpu.vram().len() as u64, "test uses too much VRAM");
        at
    }
}

/// An address space, and the next free address in it.
#[derive(Debug)]
pub struct Space {
    tables: AddressSpace,
    next: u64,
}

/// A channel with its GPFIFO and pushbuffer (64 KiB, used once).
#[derive(Debug)]
pub struct Channel {
    pub id: u32,
    userd: u64,
    notifier: u64,
    gpfifo: u64,
    pushbuffer: u64,
    pushbuffer_va: u64,
    used: u64,
    put: u32,
    pub inst: PhysAddr,
}

/// Addresses in VRAM of the entries on the way to an address, from the third level on; 0 where there is no table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entries {
    pub pde1: u64,
    pub pde0: u64,
    pub big: Option<u64>,
    pub small: Option<u64>,
}

/// A piece of VRAM, mapped.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub va: u64,
    pub offset: u64,
    pub bytes: u64,
}

impl Mini {
    pub fn new(workers: usize) -> Mini {
        Mini::with(workers, EngineKind::Jit)
    }

    pub fn with(workers: usize, engine: EngineKind) -> Mini {
        Mini::on(Config { workers, engine, ..Config::default() })
    }

    /// On a device as configured, with 256 MiB of VRAM.
    pub fn on(config: Config) -> Mini {
        Mini::of(SoftGpu::new(&Config { vram_bytes: VRAM, ..config }).unwrap())
    }

    /// As [`Mini::on`], on a device that never ends a slice but at doorbells.
    pub fn without_ticker(config: Config) -> Mini {
        Mini::of(SoftGpu::without_ticker(&Config { vram_bytes: VRAM, ..config }).unwrap())
    }

    /// Does something while the device's front end is taken, as if a worker had it.
    pub fn while_taken<R>(&self, work: impl FnOnce() -> R) -> R {
        self.gpu.device.change(|_, _| work())
    }

    fn of(gpu: Arc<SoftGpu>) -> Mini {
        let mut vram = Vram { gpu: Arc::clone(&gpu), next: 1 << 20 };
        let runlist = vram.take(64 << 10, 4096);
        let fault_buffer = vram.take(4096, 4096);
        let mini = Mini { gpu, vram, runlist, fault_buffer, faults_read: 0, tsgs: BTreeMap::new() };
        mini.vf(vf::FAULT_BUFFER_LO, fault_buffer as u32);
        mini.vf(vf::FAULT_BUFFER_HI, 0);
        mini.vf(vf::FAULT_BUFFER_SIZE, vf::FAULT_BUFFER_ENTRIES.of(FAULT_PACKETS) | vf::FAULT_BUFFER_ENABLE.of(1));
        mini
    }

    pub fn vf(&self, offset: u32, value: u32) {
        self.gpu.write32(regs::VF_BASE + offset, value);
    }

    pub fn space(&mut self) -> Space {
        Space { tables: AddressSpace::create(&mut self.vram).unwrap(), next: LO }
    }

    /// Allocates and maps memory.
    pub fn buffer(&mut self, space: &mut Space, bytes: u64) -> Buffer {
        self.buffer_with(space, bytes, Rights::default())
    }

    pub fn buffer_with(&mut self, space: &mut Space, bytes: u64, rights: Rights) -> Buffer {
        let bytes = bytes.next_multiple_of(4096);
        let va = space.next;
        // A page between buffers stays unmapped.
        space.next += bytes + 4096;
        self.map_at(space, va, bytes, 4096, rights)
    }

    /// Allocates memory with an alignment, and maps it at an address, with the largest pages that fit.
    pub fn map_at(&mut self, space: &mut Space, va: u64, bytes: u64, align: u64, rights: Rights) -> Buffer {
        let offset = self.vram.take(bytes, align);
        self.map_memory(space, va, bytes, PhysAddr::vram(offset), rights);
        Buffer { va, offset, bytes }
    }

    /// Maps memory that is there.
    pub fn map_memory(&mut self, space: &mut Space, va: u64, bytes: u64, at: PhysAddr, rights: Rights) {
        space.tables.map(&mut self.vram, va, bytes, at, rights).unwrap();
        self.invalidate(space, va, bytes);
    }

    /// Where in VRAM the entries lie that a walk to an address reads.
    pub fn entries(&self, space: &Space, va: u64) -> Entries {
        let at = |table: PhysAddr, index: u64, bytes: u64| table.offset(index * bytes);
        let load = |at: PhysAddr| {
            let mut words = [0; 2];
            self.gpu.vram().read(at.address as usize, words.as_mut_bytes());
            words
        };
        let pde2 = at(Pde(load(at(space.tables.root(), va >> 47, 8))[0]).table().unwrap(), va >> 38 & 0x1ff, 8);
        let pde1 = at(Pde(load(pde2)[0]).table().unwrap(), va >> 29 & 0x1ff, 8);
        let Some(table) = Pde(load(pde1)[0]).table() else {
            return Entries { pde1: pde1.address, ..Entries::default() };
        };
        let pde0 = at(table, va >> 21 & 0xff, 16);
        let [big, small] = load(pde0);
        let dual = DualPde { big, small };
        let big = dual.big_table().map(|table| at(table, va >> 16 & 0x1f, 8).address);
        let small = dual.small_table().map(|table| at(table, va >> 12 & 0x1ff, 8).address);
        Entries { pde1: pde1.address, pde0: pde0.address, big, small }
    }

    /// Overwrites an entry of a table.
    pub fn put(&self, at: u64, entry: &[u8]) {
        self.gpu.vram().write(at as usize, entry);
    }

    /// Maps the memory of another space's buffer.
    pub fn share(&mut self, space: &mut Space, buffer: Buffer) -> Buffer {
        let va = space.next;
        space.next += buffer.bytes + 4096;
        space.tables.map(&mut self.vram, va, buffer.bytes, PhysAddr::vram(buffer.offset), Rights::default()).unwrap();
        self.invalidate(space, va, buffer.bytes);
        Buffer { va, ..buffer }
    }

    pub fn unmap(&mut self, space: &mut Space, buffer: Buffer) {
        space.tables.unmap(&mut self.vram, buffer.va, buffer.bytes).unwrap();
        self.invalidate(space, buffer.va, buffer.bytes);
    }

    pub fn invalidate(&self, space: &Space, va: u64, bytes: u64) {
        let root = space.tables.root().address;
        self.vf(vf::MMU_INVALIDATE_PDB, root as u32);
        self.vf(vf::MMU_INVALIDATE_UPPER_PDB, (root >> 32) as u32);
        self.vf(vf::MMU_INVALIDATE_VA_LO, va as u32);
        self.vf(vf::MMU_INVALIDATE_VA_HI, (va >> 32) as u32);
        self.vf(vf::MMU_INVALIDATE_PAGES, (bytes / 4096) as u32);
        self.vf(vf::MMU_INVALIDATE, vf::INVALIDATE_TRIGGER.of(1));
    }

    pub fn read<const N: usize>(&self, buffer: Buffer, offset: u64) -> [u8; N] {
        let mut out = [0; N];
        self.gpu.vram().read((buffer.offset + offset) as usize, &mut out);
        out
    }

    pub fn read_u32(&self, buffer: Buffer, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(buffer, offset))
    }

    pub fn read_u64(&self, buffer: Buffer, offset: u64) -> u64 {
        u64::from_le_bytes(self.read(buffer, offset))
    }

    pub fn write(&self, buffer: Buffer, offset: u64, data: &[u8]) {
        self.gpu.vram().write((buffer.offset + offset) as usize, data);
    }

    /// Makes channel `id` of TSG `tsg`, binds and enables it, and puts it on the runlist.
    pub fn channel(&mut self, space: &mut Space, id: u32, tsg: u32) -> Channel {
        self.channel_with(space, id, tsg, |_| {})
    }

    pub fn channel_with(
        &mut self,
        space: &mut Space,
        id: u32,
        tsg: u32,
        adjust: impl FnOnce(&mut InstanceBlock),
    ) -> Channel {
        let ring = self.buffer(space, 4096);
        let push = self.buffer(space, 64 << 10);
        let userd = self.vram.take(userd::BYTES, userd::BYTES);
        let notifier = self.vram.take(notifier::BYTES, 4096);
        let inst = PhysAddr::vram(self.vram.take(ramfc::INSTANCE_BLOCK_BYTES, 4096));
        let mut block = InstanceBlock::new_zeroed();
        block.words[ramfc::SIGNATURE] = ramfc::SIGNATURE_VALUE;
        block.set_page_directory(space.tables.root());
        block.set_userd(PhysAddr::vram(userd));
        block.set_gpfifo(ring.va, LOG2_ENTRIES);
        block.set_window(LO, WINDOW);
        block.set_notifier(Some(PhysAddr::vram(notifier)));
        adjust(&mut block);
        self.gpu.vram().write(inst.address as usize, block.as_bytes());
        let mut channel = Channel {
            id,
            userd,
            notifier,
            gpfifo: ring.offset,
            pushbuffer: push.offset,
            pushbuffer_va: push.va,
            used: 0,
            put: 0,
            inst,
        };
        self.bind(&mut channel, id, tsg);
        let mut words = Words::new();
        words.method(SUBCHANNEL_COMPUTE, host::SET_OBJECT, &[TURING_COMPUTE_A]);
        words.method(SUBCHANNEL_COPY, host::SET_OBJECT, &[TURING_DMA_COPY_A]);
        self.submit(&mut channel, &words);
        channel
    }

    /// Binds a channel that is not bound (any more) under a number, enables it, and puts it on the runlist.
    pub fn bind(&mut self, channel: &mut Channel, id: u32, tsg: u32) {
        channel.id = id;
        let bind = regs::INST_PTR.of((channel.inst.address >> 12) as u32) | regs::INST_BIND.of(1);
        self.gpu.write32(regs::pccsr_inst(id), bind);
        self.gpu.write32(regs::pccsr_channel(id), regs::CHANNEL_ENABLE_SET.of(1));
        let userd = PhysAddr::vram(channel.userd);
        self.tsgs.entry(tsg).or_insert((1_000_000, Vec::new())).1.push((id, userd, channel.inst));
        self.submit_runlist();
    }

    /// The instance block as it is in memory.
    pub fn instance_block(&self, channel: &Channel) -> InstanceBlock {
        let mut block = InstanceBlock::new_zeroed();
        self.gpu.vram().read(channel.inst.address as usize, block.as_mut_bytes());
        block
    }

    pub fn set_slice(&mut self, tsg: u32, ns: u64) {
        self.tsgs.get_mut(&tsg).unwrap().0 = ns;
        self.submit_runlist();
    }

    /// Takes a TSG from the runlist, waits until nothing of it runs, and unbinds its channels.
    pub fn remove(&mut self, tsg: u32) {
        let (_, channels) = self.tsgs.remove(&tsg).unwrap();
        for (id, _, _) in &channels {
            self.gpu.write32(regs::pccsr_channel(*id), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        self.submit_runlist();
        self.gpu.write32(regs::PREEMPT, regs::PREEMPT_ID.of(tsg) | regs::PREEMPT_TYPE.of(regs::PREEMPT_TYPE_TSG));
        wait("preemption", || !regs::PREEMPT_PENDING.is_set(self.gpu.read32(regs::PREEMPT)));
        for (id, _, _) in &channels {
            assert!(!regs::CHANNEL_BUSY.is_set(self.gpu.read32(regs::pccsr_channel(*id))));
            self.gpu.write32(regs::pccsr_inst(*id), 0);
        }
    }

    fn submit_runlist(&self) {
        let mut entries = Vec::new();
        for (id, (slice, channels)) in &self.tsgs {
            entries.push(RunlistEntry::tsg(*id, channels.len() as u32, *slice));
            entries.extend(channels.iter().map(|(id, userd, inst)| RunlistEntry::channel(*id, *userd, *inst)));
        }
        self.gpu.vram().write(self.runlist as usize, entries.as_bytes());
        self.gpu.write32(regs::RUNLIST_BASE_LO, self.runlist as u32);
        self.gpu.write32(regs::RUNLIST_BASE_HI, 0);
        self.gpu.write32(regs::RUNLIST_SUBMIT, entries.len() as u32);
    }

    /// Puts words into the pushbuffer without ringing.
    pub fn push(&self, channel: &mut Channel, words: &Words) {
        let bytes = words.0.as_bytes();
        assert!(channel.used + bytes.len() as u64 <= 64 << 10, "pushbuffer of the test is full");
        self.gpu.vram().write((channel.pushbuffer + channel.used) as usize, bytes);
        let entry = GpEntry::segment(channel.pushbuffer_va + channel.used, words.0.len() as u32);
        channel.used += bytes.len() as u64;
        self.push_entry(channel, entry);
    }

    pub fn push_entry(&self, channel: &mut Channel, entry: GpEntry) {
        let at = channel.gpfifo + u64::from(channel.put) * GpEntry::BYTES;
        self.gpu.vram().write(at as usize, entry.as_bytes());
        channel.put = (channel.put + 1) % (1 << LOG2_ENTRIES);
        // Whoever sees the index sees the entry.
        self.gpu.vram().u32_at((channel.userd + userd::GP_PUT) as usize).store(channel.put, Ordering::Release);
    }

    pub fn ring(&self, channel: &Channel) {
        self.gpu.write32(regs::USERMODE + regs::USERMODE_DOORBELL, regs::DOORBELL_CHANNEL.of(channel.id));
    }

    /// Submits words.
    pub fn submit(&self, channel: &mut Channel, words: &Words) {
        self.push(channel, words);
        self.ring(channel);
    }

    /// Starts the pushbuffer anew; everything submitted must have been processed.
    pub fn rewind(&self, channel: &mut Channel) {
        channel.used = 0;
    }

    /// Waits until a 64-bit semaphore has a value.
    pub fn wait_for(&self, buffer: Buffer, offset: u64, value: u64) {
        wait(&format!("semaphore {value}"), || self.read_u64(buffer, offset) == value);
    }

    pub fn notifier(&self, channel: &Channel) -> Option<(Record, String)> {
        let mut record = Record::default();
        self.gpu.vram().read(channel.notifier as usize, record.as_mut_bytes());
        if record.status != notifier::STATUS_ERROR {
            return None;
        }
        let mut log = vec![0; record.log_bytes as usize];
        self.gpu.vram().read((channel.notifier + LOG_OFFSET) as usize, &mut log);
        Some((record, String::from_utf8(log).unwrap()))
    }

    pub fn wait_error(&self, channel: &Channel) -> (Record, String) {
        wait("an error", || self.notifier(channel).is_some());
        self.notifier(channel).unwrap()
    }

    /// The next fault of the fault buffer.
    pub fn fault(&mut self) -> Option<Fault> {
        let put = self.gpu.read32(regs::VF_BASE + vf::FAULT_BUFFER_PUT) & 0xf_ffff;
        if put == self.faults_read {
            return None;
        }
        let mut packet = Packet::default();
        let at = self.fault_buffer + u64::from(self.faults_read) * 32;
        self.gpu.vram().read(at as usize, packet.as_mut_bytes());
        self.faults_read = (self.faults_read + 1) % FAULT_PACKETS;
        self.vf(vf::FAULT_BUFFER_GET, self.faults_read);
        Some(packet.decode().unwrap())
    }

    /// Stores a word at an address of a space, if it is mapped to memory that there is: what the device has written may be tables.
    pub fn store(&self, space: &Space, va: u64, value: u32) {
        let found = gmmu::translate(&self.vram, space.tables.root(), va & !3, gmmu::Access::WRITE);
        if let Ok(gmmu::Translation { target: gmmu::Target::Memory(at), .. }) = found
            && at.address < self.gpu.vram().len() as u64
        {
            self.gpu.vram().write(at.address as usize, &value.to_le_bytes());
        }
    }

    /// Forgets all TSGs and channels; what they used is lost.
    pub fn forget(&mut self) {
        self.tsgs.clear();
        let lo = self.fault_buffer as u32;
        self.vf(vf::FAULT_BUFFER_LO, lo);
    }

    /// GPU time that a TSG has had, nanoseconds.
    pub fn time(&self, tsg: u32) -> u64 {
        let read = |word| u64::from(self.gpu.read32(accounting::word(tsg, word)));
        read(accounting::TIME_LO) | read(accounting::TIME_HI) << 32
    }

    /// Waits until so many copies of a TSG have been counted: that is after what they release can be seen.
    pub fn wait_for_copies(&self, tsg: u32, copies: u32) {
        wait(&format!("{copies} copies"), || self.gpu.read32(accounting::word(tsg, accounting::COPIES)) == copies);
    }

    /// Puts a module with one kernel into GPU memory; gives the address of its entry.
    pub fn load(&mut self, space: &mut Space, ptx: &str, kernel: &str) -> u64 {
        let container = program::encode(ptx.as_bytes(), &[kernel], &[]).unwrap();
        let buffer = self.buffer(space, container.len() as u64);
        self.write(buffer, 0, &container);
        buffer.va + program::entry_offset(0)
    }

    /// Puts a launch descriptor with its constant bank into GPU memory; gives its address.
    pub fn descriptor(
        &mut self,
        space: &mut Space,
        program: u64,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u64],
    ) -> u64 {
        let mut qmd = Qmd::default();
        self.describe(space, &mut qmd, program, grid, block, params)
    }

    pub fn describe(
        &mut self,
        space: &mut Space,
        qmd: &mut Qmd,
        program: u64,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u64],
    ) -> u64 {
        let bytes = PARAMS_OFFSET + params.len() as u64 * 8;
        let buffer = self.buffer(space, 256 + bytes);
        self.describe_in(buffer, qmd, program, grid, block, params);
        buffer.va
    }

    /// Puts a launch descriptor with its constant bank into memory that is there.
    pub fn describe_at(&self, buffer: Buffer, program: u64, grid: [u32; 3], block: [u32; 3], params: &[u64]) {
        self.describe_in(buffer, &mut Qmd::default(), program, grid, block, params);
    }

    fn describe_in(
        &self,
        buffer: Buffer,
        qmd: &mut Qmd,
        program: u64,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u64],
    ) {
        let bank = ConstantBank { param_bytes: params.len() as u32 * 8, ..ConstantBank::default() };
        let bytes = PARAMS_OFFSET + params.len() as u64 * 8;
        self.write(buffer, 256, bank.as_bytes());
        self.write(buffer, 256 + PARAMS_OFFSET, params.as_bytes());
        qmd.set(Qmd::CTA_RASTER_WIDTH, grid[0]);
        qmd.set(Qmd::CTA_RASTER_HEIGHT, grid[1]);
        qmd.set(Qmd::CTA_RASTER_DEPTH, grid[2]);
        qmd.set(Qmd::CTA_THREAD_DIMENSION0, block[0]);
        qmd.set(Qmd::CTA_THREAD_DIMENSION1, block[1]);
        qmd.set(Qmd::CTA_THREAD_DIMENSION2, block[2]);
        qmd.set_program_address(program);
        qmd.set_constant_buffer(0, buffer.va + 256, bytes as u32);
        self.write(buffer, 0, qmd.as_bytes());
    }
}

/// Waits for a condition, with a bound.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Words of a pushbuffer.
#[derive(Clone, Debug, Default)]
pub struct Words(pub Vec<u32>);

impl Words {
    pub fn new() -> Words {
        Words::default()
    }

    pub fn method(&mut self, subchannel: u32, method: u32, data: &[u32]) -> &mut Words {
        self.0.push(Header::new(Header::OP_INC, subchannel, method, data.len() as u32).0);
        self.0.extend_from_slice(data);
        self
    }

    pub fn raw(&mut self, word: u32) -> &mut Words {
        self.0.push(word);
        self
    }

    fn semaphore(&mut self, va: u64, value: u64, execute: u32) -> &mut Words {
        let data = [va as u32, (va >> 32) as u32, value as u32, (value >> 32) as u32, execute];
        self.method(SUBCHANNEL_COMPUTE, host::SEM_ADDR_LO, &data)
    }

    /// Stores a 64-bit value and the time.
    pub fn release(&mut self, va: u64, value: u64) -> &mut Words {
        let execute = sem_execute::OPERATION.of(sem_execute::RELEASE)
            | sem_execute::PAYLOAD_64.of(1)
            | sem_execute::RELEASE_TIMESTAMP.of(1);
        self.semaphore(va, value, execute)
    }

    /// Waits for at least a 64-bit value.
    pub fn acquire(&mut self, va: u64, value: u64) -> &mut Words {
        let execute = sem_execute::OPERATION.of(sem_execute::ACQ_STRICT_GEQ) | sem_execute::PAYLOAD_64.of(1);
        self.semaphore(va, value, execute)
    }

    pub fn reduce(&mut self, va: u64, value: u64, operation: u32) -> &mut Words {
        let execute = sem_execute::OPERATION.of(sem_execute::REDUCTION)
            | sem_execute::PAYLOAD_64.of(1)
            | sem_execute::REDUCTION_OP.of(operation);
        self.semaphore(va, value, execute)
    }

    /// Copies lines.
    pub fn copy_2d(&mut self, dst: (u64, u32), src: (u64, u32), width: u32, height: u32, flags: u32) -> &mut Words {
        let hi = |va: u64| (va >> 32) as u32;
        let data = [hi(src.0), src.0 as u32, hi(dst.0), dst.0 as u32, src.1, dst.1, width, height];
        self.method(SUBCHANNEL_COPY, copy::OFFSET_IN_UPPER, &data);
        let launch = copy::launch_dma::DATA_TRANSFER_TYPE.of(2)
            | copy::launch_dma::SRC_LAYOUT_PITCH.of(1)
            | copy::launch_dma::DST_LAYOUT_PITCH.of(1)
            | copy::launch_dma::MULTI_LINE.of(1)
            | flags;
        self.method(SUBCHANNEL_COPY, copy::LAUNCH_DMA, &[launch])
    }

    pub fn copy(&mut self, dst: u64, src: u64, bytes: u32) -> &mut Words {
        self.copy_2d((dst, 0), (src, 0), bytes, 1, 0)
    }

    /// Fills elements of `bytes` bytes.
    pub fn fill(&mut self, dst: u64, value: u32, bytes: u32, count: u32) -> &mut Words {
        let components = copy::remap::DST_X.of(copy::remap::CONST_A) | copy::remap::COMPONENT_SIZE.of(bytes - 1);
        self.method(SUBCHANNEL_COPY, copy::SET_REMAP_CONST_A, &[value, 0, components]);
        self.copy_2d((dst, 0), (dst, 0), count, 1, copy::launch_dma::REMAP.of(1))
    }

    /// Writes inline data.
    pub fn inline(&mut self, dst: u64, data: &[u32], bytes: u32) -> &mut Words {
        self.method(SUBCHANNEL_COMPUTE, compute::LINE_LENGTH_IN, &[bytes, 1, (dst >> 32) as u32, dst as u32]);
        self.method(SUBCHANNEL_COMPUTE, compute::LAUNCH_DMA, &[1]);
        let count = data.len() as u32;
        self.0.push(Header::new(Header::OP_NON_INC, SUBCHANNEL_COMPUTE, compute::LOAD_INLINE_DATA, count).0);
        self.0.extend_from_slice(data);
        self
    }

    /// Launches a grid.
    pub fn launch(&mut self, descriptor: u64) -> &mut Words {
        self.method(SUBCHANNEL_COMPUTE, compute::SEND_PCAS_A, &[(descriptor >> 8) as u32]);
        self.method(SUBCHANNEL_COMPUTE, compute::SEND_SIGNALING_PCAS_B, &[compute::pcas_b::SCHEDULE.of(1)])
    }
}
