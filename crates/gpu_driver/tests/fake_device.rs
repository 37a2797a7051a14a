//! The driver over a scripted device: one that does what it is told to registers, runs nothing, and can die, hang, or
//! report faults.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu::{
    AllocId, CodeImage, Command, ContextError, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, QueueId,
    Request, Response, RuntimeMemory, SlotId, context_error,
};
use gpu_driver::{Client, ClientConfig, Driver, HostCost, StartError};
use gpu_spec::fault::{AccessType, EngineId, Fault, FaultType, PACKET_BYTES, Packet};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{Code, LOG_OFFSET, Reason, Record, STATUS_ERROR};
use gpu_spec::ramfc::InstanceBlock;
use gpu_spec::regs::{self, budget, identity, vector, vf};
use gpu_spec::{ramfc, userd};
use hostmem::{Mapping, Memfd, PAGE};
use zerocopy::{FromZeros, IntoBytes};

const VRAM: u64 = 64 << 20;
const LO: u64 = 0x7000_0000_0000;
const BOUND: Duration = Duration::from_secs(10);

/// Accesses to VRAM that were trapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Traps {
    reads: u32,
    writes: u32,
    fills: u32,
}

/// System memory at a bus address: the mapping, the offset in it, and bytes.
type Placed = (Arc<Mapping>, usize, usize);

/// A device that stores registers and runs nothing.
struct Fake {
    /// As in a virtual machine: VRAM is not mapped, system memory lies in scattered pages, and a reset is possible.
    guest: bool,
    traps: Mutex<Traps>,
    resets: AtomicU32,
    files: Mutex<Vec<Arc<Memfd>>>,
    vram: Arc<Mapping>,
    file: Memfd,
    registers: Mutex<HashMap<u32, u32>>,
    /// By bus address.
    dma: Mutex<HashMap<u64, Placed>>,
    next_bus: AtomicU64,
    raised: Mutex<bool>,
    line: Condvar,
    gone: AtomicBool,
    /// Preemptions of this TSG never end.
    stuck: AtomicU32,
    doorbells: AtomicU32,
    /// What was written to budgets' limits and interrupts' switches, in order.
    history: Mutex<Vec<(u32, u32)>>,
}

impl Fake {
    fn new() -> Arc<Fake> {
        Fake::with(false)
    }

    fn with(guest: bool) -> Arc<Fake> {
        let file = Memfd::create("fake-vram", VRAM).unwrap();
        let mut registers = HashMap::from([
            (regs::PMC_BOOT_0, regs::BOOT_0_TU104),
            (identity::MAGIC_WORD, identity::MAGIC),
            (identity::MULTIPROCESSORS, 7),
            (identity::COMPUTE_CAPABILITY, 12 << 16),
        ]);
        registers.insert(identity::NAME, u32::from_le_bytes(*b"fake"));
        Arc::new(Fake {
            guest,
            traps: Mutex::default(),
            resets: AtomicU32::new(0),
            files: Mutex::default(),
            vram: Arc::new(file.map().unwrap()),
            file,
            registers: Mutex::new(registers),
            dma: Mutex::default(),
            next_bus: AtomicU64::new(1 << 40),
            raised: Mutex::new(false),
            line: Condvar::new(),
            gone: AtomicBool::new(false),
            stuck: AtomicU32::new(u32::MAX),
            doorbells: AtomicU32::new(0),
            history: Mutex::default(),
        })
    }

    fn set(&self, offset: u32, value: u32) {
        self.registers.lock().unwrap().insert(offset, value);
    }

    fn get(&self, offset: u32) -> u32 {
        self.registers.lock().unwrap().get(&offset).copied().unwrap_or(0)
    }

    fn interrupt(&self, vector: u32) {
        let leaf = vector / 32;
        {
            let mut registers = self.registers.lock().unwrap();
            *registers.entry(regs::VF_BASE + vf::INTR_LEAF + leaf * 4).or_default() |= 1 << (vector % 32);
        }
        *self.raised.lock().unwrap() = true;
        self.line.notify_all();
    }

    /// The instance block that channel 0 is bound to.
    fn instance(&self) -> (u64, InstanceBlock) {
        let at = u64::from(regs::INST_PTR.get(self.get(regs::pccsr_inst(0)))) << 12;
        let mut block = InstanceBlock::new_zeroed();
        self.vram.read(at as usize, block.as_mut_bytes());
        (at, block)
    }

    /// Puts a packet into the fault buffer.
    fn report(&self, index: u32, fault: &Fault) {
        let at = |offset| regs::VF_BASE + offset;
        let bus =
            u64::from(self.get(at(vf::FAULT_BUFFER_LO)) & !0xfff) | u64::from(self.get(at(vf::FAULT_BUFFER_HI))) << 32;
        self.vram.write(bus as usize + index as usize * PACKET_BYTES as usize, Packet::new(fault).as_bytes());
        self.set(at(vf::FAULT_BUFFER_PUT), index + 1);
        self.interrupt(vector::FAULT);
    }

    fn at_bus(&self, at: PhysAddr) -> (Arc<Mapping>, usize) {
        let dma = self.dma.lock().unwrap();
        let inside = |base: u64, bytes: usize| at.address >= base && at.address < base + bytes as u64;
        let (base, (mapping, offset, _)) = dma.iter().find(|(base, (.., bytes))| inside(**base, *bytes)).unwrap();
        (Arc::clone(mapping), offset + (at.address - base) as usize)
    }
}

impl DeviceBacking for Fake {
    fn read32(&self, offset: u32) -> u32 {
        if self.gone.load(Ordering::Relaxed) {
            return u32::MAX;
        }
        if offset == regs::VF_BASE + vf::INTR_TOP {
            let leaf = |i: u32| self.get(regs::VF_BASE + vf::INTR_LEAF + i * 4) != 0;
            return (0..vf::INTR_LEAVES).filter(|i| leaf(*i)).fold(0, |top, i| top | 1 << (i / 2));
        }
        self.get(offset)
    }

    fn write32(&self, offset: u32, value: u32) {
        let switches = regs::VF_BASE + vf::INTR_LEAF_EN_SET..regs::VF_BASE + vf::INTR_LEAF_TRIGGER;
        let limits = [budget::BYTES_LIMIT_LO, budget::BYTES_LIMIT_HI].map(|word| budget::word(1, word));
        if switches.contains(&offset) || limits.contains(&offset) {
            self.history.lock().unwrap().push((offset, value));
        }
        if (regs::VF_BASE + vf::INTR_LEAF..regs::VF_BASE + vf::INTR_LEAF_EN_SET).contains(&offset) {
            *self.registers.lock().unwrap().entry(offset).or_default() &= !value;
        } else if offset == regs::VF_BASE + vf::INTR_LEAF_TRIGGER {
            self.interrupt(value);
        } else if offset == regs::VF_BASE + vf::MMU_INVALIDATE {
            self.set(offset, value & !(vf::INVALIDATE_TRIGGER.mask() as u32));
        } else if offset == regs::PREEMPT && self.stuck.load(Ordering::Relaxed) == regs::PREEMPT_ID.get(value) {
            self.set(offset, value | regs::PREEMPT_PENDING.of(1));
        } else if offset == regs::USERMODE + regs::USERMODE_DOORBELL {
            self.doorbells.fetch_add(1, Ordering::Relaxed);
        } else {
            self.set(offset, value);
        }
    }

    fn vram_bytes(&self) -> u64 {
        self.vram.len() as u64
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        (!self.guest).then_some(&self.vram)
    }

    fn reset(&self) -> io::Result<()> {
        if !self.guest {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.file.punch(0, VRAM)
    }

    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        self.traps.lock().unwrap().reads += u32::from(self.guest);
        self.vram.read(offset.0 as usize, out);
    }

    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        self.traps.lock().unwrap().writes += u32::from(self.guest);
        self.vram.write(offset.0 as usize, data);
    }

    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        self.traps.lock().unwrap().fills += u32::from(self.guest);
        self.vram.fill(offset.0 as usize, bytes, value);
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        if self.guest {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.punch(offset.0, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        let file = Arc::new(Memfd::create("fake-dma", bytes)?);
        let bus = self.next_bus.fetch_add(2 * file.bytes() + PAGE, Ordering::Relaxed);
        let mapping = Arc::new(file.map()?);
        self.files.lock().unwrap().push(Arc::clone(&file));
        let mut dma = self.dma.lock().unwrap();
        if !self.guest {
            dma.insert(bus, (Arc::clone(&mapping), 0, mapping.len()));
            return Ok(DmaMemory::contiguous(BusAddr(bus), file, mapping));
        }
        // Backwards, every other page.
        mapping.fill(0, mapping.len(), 0);
        let pages: Vec<BusAddr> = (0..file.bytes() / PAGE).rev().map(|page| BusAddr(bus + 2 * PAGE * page)).collect();
        for (page, at) in pages.iter().enumerate() {
            dma.insert(at.0, (Arc::clone(&mapping), page * PAGE as usize, PAGE as usize));
        }
        Ok(DmaMemory::scattered(PAGE, &pages, file, mapping))
    }

    fn free_dma(&self, bus: BusAddr) {
        let mut dma = self.dma.lock().unwrap();
        let (freed, ..) = dma.remove(&bus.0).expect("freed once");
        dma.retain(|_, (mapping, ..)| !Arc::ptr_eq(mapping, &freed));
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        let raised = self.raised.lock().unwrap();
        let (mut raised, _) = self.line.wait_timeout_while(raised, timeout, |raised| !*raised).unwrap();
        std::mem::take(&mut *raised)
    }
}

fn start(fake: &Arc<Fake>) -> Result<Arc<Driver>, StartError> {
    Driver::start(Arc::clone(fake) as Arc<dyn DeviceBacking>)
}

/// A client with an address range, context 0 and queue 0.
fn client(driver: &Arc<Driver>) -> Arc<Client> {
    let client = driver.open(ClientConfig { name: "test".into(), ..ClientConfig::default() }).unwrap();
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(0), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(0), context: ContextId(0), priority: 0 },
    ] {
        client.request(request).unwrap();
    }
    // A queue gets its channel when it is used.
    client.submit(QueueId(0), &[Command::Signal { slot: SlotId(1), value: 1 }]).unwrap();
    client
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn starts_only_on_what_it_knows() {
    let fake = Fake::new();
    fake.gone.store(true, Ordering::Relaxed);
    assert!(matches!(start(&fake), Err(StartError::NoDevice)));
    fake.gone.store(false, Ordering::Relaxed);
    fake.set(regs::PMC_BOOT_0, 0x1700_00a1);
    assert!(matches!(start(&fake), Err(StartError::UnknownChip { boot_0: 0x1700_00a1 })));
    fake.set(regs::PMC_BOOT_0, regs::BOOT_0_TU104);
    let driver = start(&fake).unwrap();
    let facts = driver.properties();
    assert_eq!((facts.name.as_str(), facts.compute_capability, facts.multiprocessors), ("fake", [12, 0], 7));
    assert_eq!(facts.memory_bytes, VRAM);
    drop(driver);
    assert!(fake.dma.lock().unwrap().is_empty(), "the fault buffer is given back");
}

#[test]
fn a_guests_device_is_reset_instead_of_scrubbed_and_tables_are_never_read() {
    let fake = Fake::with(true);
    fake.vram.fill(0, VRAM as usize, 0x77);
    let driver = start(&fake).unwrap();
    assert_eq!((fake.resets.load(Ordering::Relaxed), *fake.traps.lock().unwrap()), (1, Traps::default()));
    let client = client(&driver);
    let change = |what: &str, requests: &[Request]| {
        *fake.traps.lock().unwrap() = Traps::default();
        requests.iter().for_each(|request| drop(client.request(request.clone()).expect(what)));
        *fake.traps.lock().unwrap()
    };
    let (id, bytes) = (AllocId(1), 8 << 20);
    let map = |at, offset, bytes| Request::Map { at: DevAddr(at), id, offset, bytes, access: MapAccess::ReadWrite };
    let (alloc, free) = (Request::Alloc { id, bytes, kind: MemoryKind::Vram }, Request::Free { id });
    let unmap = |at, bytes| Request::Unmap { at: DevAddr(at), bytes };
    for round in 0..3 {
        let traps = change("mapped", &[alloc.clone(), map(LO, 0, bytes), map(LO + (64 << 20), PAGE, 20 * PAGE)]);
        assert_eq!((traps.reads, traps.fills), (0, 0), "round {round}");
        // Few tables are on the way: what is written is entries.
        assert!((1..=16).contains(&traps.writes), "{traps:?}");
        let traps = change("unmapped", &[unmap(LO, bytes), unmap(LO + (64 << 20), 20 * PAGE)]);
        assert_eq!((traps.reads, traps.fills), (0, 0), "round {round}");
        // The allocation itself is scrubbed.
        let traps = change("freed", std::slice::from_ref(&free));
        assert_eq!((traps.reads, traps.fills), (0, 1), "round {round}");
    }
    // As the tables' memory says, so the device sees it.
    change("mapped", &[alloc, map(LO + (32 << 20), 4 << 20, 2 << 20)]);
    let (_, block) = fake.instance();
    let word = |at: usize| u64::from(block.words[at]);
    let root = word(ramfc::PAGE_DIR_BASE_LO) & ramfc::PDB_ADDRESS.mask() | word(ramfc::PAGE_DIR_BASE_HI) << 32;
    let translate = |va| gmmu::translate(&Vram(Arc::clone(&fake.vram)), PhysAddr::vram(root), va, gmmu::Access::WRITE);
    assert_eq!(translate(LO + (32 << 20)).unwrap().page_bytes, 2 << 20);
    assert!(translate(LO).is_err() && translate(LO + (64 << 20)).is_err());
}

#[test]
fn a_guests_host_memory_keeps_its_pages_and_is_zero_again() {
    let fake = Fake::with(true);
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    fake.files.lock().unwrap().clear();
    let bytes = 1 << 20;
    for id in (0..12).map(AllocId) {
        client.request(Request::Alloc { id, bytes, kind: MemoryKind::Host }).unwrap();
    }
    let files = fake.files.lock().unwrap().clone();
    assert_eq!(files.iter().map(|file| file.bytes()).collect::<Vec<u64>>(), [2 << 20; 6], "slabs stay small");
    // All that is freed is written first.
    for id in (0..11).map(AllocId) {
        let at = DevAddr(LO + u64::from(id.0) * bytes);
        client.request(Request::Map { at, id, offset: 0, bytes, access: MapAccess::ReadWrite }).unwrap();
        let data = Memfd::create("data", bytes).unwrap().map().unwrap();
        data.fill(0, bytes as usize, 0xee);
        client.write(at, data.range(0, bytes as usize)).unwrap();
        client.request(Request::Unmap { at, bytes }).unwrap();
        client.request(Request::Free { id }).unwrap();
    }
    let blocks = |file: &Memfd| {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        std::fs::metadata(path).unwrap().blocks() * 512
    };
    for file in &files {
        assert_eq!(blocks(file), file.bytes(), "no page was given back");
    }
    let mut left = vec![0; 2 << 20];
    for file in &files {
        file.map().unwrap().read(0, &mut left);
        assert!(left.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn signals_interrupt_only_while_somebody_sleeps() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let bit = 1 << (vector::NON_STALL % 32);
    let at = |register| regs::VF_BASE + register + vector::NON_STALL / 32 * 4;
    let switched = |register| fake.get(at(register)) & bit != 0;
    assert!(!switched(vf::INTR_LEAF_EN_SET), "nobody sleeps yet");
    for round in 1..=3 {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.wait(ContextId(0), SlotId(3), round, Some(BOUND)));
            eventually("a sleeper switches it on", || switched(vf::INTR_LEAF_EN_SET));
            // Signals of others wake it, but do not end its wait.
            for _ in 0..40 {
                fake.interrupt(vector::NON_STALL);
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(!waiter.is_finished() && !switched(vf::INTR_LEAF_EN_CLEAR));
            client.semaphores().raise(SlotId(3), round);
            fake.interrupt(vector::NON_STALL);
            waiter.join().unwrap().unwrap();
        });
        fake.set(at(vf::INTR_LEAF_EN_SET), 0);
        eventually("interrupts without sleepers switch it off", || {
            fake.interrupt(vector::NON_STALL);
            switched(vf::INTR_LEAF_EN_CLEAR)
        });
        fake.set(at(vf::INTR_LEAF_EN_CLEAR), 0);
    }
    // A client elsewhere counts itself, says so, and is told from then on.
    let area = client.semaphores();
    let _sleeper = area.sleeper();
    assert!(!area.is_listening());
    client.listen().unwrap();
    assert!(area.is_listening());
    assert!(switched(vf::INTR_LEAF_EN_SET));
    let count = area.interrupts();
    fake.interrupt(vector::NON_STALL);
    eventually("it is told", || area.interrupts() != count);
}

#[test]
fn who_claims_to_sleep_for_ever_does_not_keep_signals_interrupting() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let _sleeper = client.semaphores().sleeper();
    client.listen().unwrap();
    let at = |register| regs::VF_BASE + register + vector::NON_STALL / 32 * 4;
    let bit = 1 << (vector::NON_STALL % 32);
    let (on, off) = ((at(vf::INTR_LEAF_EN_SET), bit), (at(vf::INTR_LEAF_EN_CLEAR), bit));
    let last = || fake.history.lock().unwrap().iter().rev().copied().find(|written| [on, off].contains(written));
    assert_eq!(last(), Some(on));
    // Everybody's signals, for as long as they interrupt.
    eventually("it is switched off", || {
        for _ in 0..10_000 {
            if last() == Some(on) {
                fake.interrupt(vector::NON_STALL);
                std::thread::yield_now();
            }
        }
        fake.history.lock().unwrap().contains(&off)
    });
    assert!(client.semaphores().is_listening(), "who sleeps need not ask again");
    eventually("it is switched on again", || last() == Some(on));
    // Someone else, who sleeps for a moment, is heard at once, and pays itself.
    let limits = HostCost { bytes: 1 << 30, maps: 1000, files: 10 };
    let config = ClientConfig { budget: Some(driver.budget(limits).unwrap()), ..ClientConfig::default() };
    let other = driver.open(config).unwrap();
    let _other = other.semaphores().sleeper();
    let count = other.semaphores().interrupts();
    fake.interrupt(vector::NON_STALL);
    eventually("it is told", || other.semaphores().interrupts() != count);
}

#[test]
fn what_the_driver_cannot_have_does_not_lower_the_devices_limit() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let limits = HostCost { bytes: 300 << 10, maps: 1000, files: 10 };
    let config = ClientConfig { budget: Some(driver.budget(limits).unwrap()), ..ClientConfig::default() };
    let client = driver.open(config).unwrap();
    // Of 300 KiB the device has 100; a channel would take 256.
    fake.set(budget::word(1, budget::BYTES_LO), 100 << 10);
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(0), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(0), context: ContextId(0), priority: 0 },
    ] {
        client.request(request).unwrap();
    }
    let submit = || client.submit(QueueId(0), &[Command::Signal { slot: SlotId(1), value: 1 }]);
    let before = fake.history.lock().unwrap().len();
    let free = 200 << 10;
    let full = GpuError::OutOfMemory { wanted: 256 << 10, free, limit: 300 << 10 };
    assert_eq!(submit(), Err(full));
    assert_eq!(fake.history.lock().unwrap()[before..], []);
    fake.set(budget::word(1, budget::BYTES_LO), 44 << 10);
    submit().unwrap();
    assert_eq!(fake.get(budget::word(1, budget::BYTES_LIMIT_LO)), 44 << 10);
}

#[test]
fn an_address_range_that_comes_while_the_client_closes_leaves_nothing() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let free = driver.counts().vram_free;
    for _ in 0..300 {
        let client = driver.open(ClientConfig::default()).unwrap();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                // Either may be first.
                let _ = client.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
            });
            together.wait();
            client.close();
        });
    }
    assert_eq!(driver.counts().vram_free, free);
}

#[test]
fn channels_are_described_as_the_manual_says() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let (_, block) = fake.instance();
    assert_eq!(block.words[ramfc::SIGNATURE], ramfc::SIGNATURE_VALUE);
    assert_eq!(block.window(), (LO, 1 << 30));
    let root = block.page_directory().unwrap();
    let (userd, at) = fake.at_bus(block.userd().unwrap());
    let put = || userd.u32_at(at + userd::GP_PUT as usize).load(Ordering::Acquire);
    assert_eq!(put(), 2, "the classes are bound, and a signal was submitted");
    client.submit(QueueId(0), &[Command::Signal { slot: SlotId(3), value: 9 }]).unwrap();
    assert_eq!(put(), 3);
    assert_eq!(fake.doorbells.load(Ordering::Relaxed), 3);

    client.request(Request::Alloc { id: AllocId(1), bytes: 3 << 20, kind: MemoryKind::Vram }).unwrap();
    let map =
        |at, offset, bytes| Request::Map { at: DevAddr(at), id: AllocId(1), offset, bytes, access: MapAccess::Read };
    client.request(map(LO, 0, 3 << 20)).unwrap();
    assert!(matches!(client.request(map(LO + (2 << 20), 0, 4096)), Err(GpuError::InvalidValue { .. })));
    let memory = Vram(Arc::clone(&fake.vram));
    let found = gmmu::translate(&memory, root, LO + (2 << 20) + 5, gmmu::Access::READ).unwrap();
    assert!(found.rights.read_only);
    client.request(Request::Unmap { at: DevAddr(LO + (1 << 20)), bytes: 1 << 20 }).unwrap();
    assert!(gmmu::translate(&memory, root, LO + (1 << 20), gmmu::Access::READ).is_err());
    assert!(gmmu::translate(&memory, root, LO + (2 << 20), gmmu::Access::READ).is_ok());
    assert!(matches!(client.request(Request::Free { id: AllocId(1) }), Err(GpuError::InvalidValue { .. })));
    client.request(Request::Unmap { at: DevAddr(LO), bytes: 3 << 20 }).unwrap();
    client.request(Request::Free { id: AllocId(1) }).unwrap();
    assert_eq!(client.memory_used(), 0);
}

struct Vram(Arc<Mapping>);

impl gmmu::PhysMem for Vram {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), gmmu::BadAddress> {
        self.0.read(at.address as usize, out);
        Ok(())
    }
    fn write(&self, at: PhysAddr, _: &[u8]) -> Result<(), gmmu::BadAddress> {
        Err(gmmu::BadAddress(at))
    }
}

#[test]
fn a_device_that_is_gone_releases_everybody() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let waiter = Arc::clone(&client);
    let waiting = std::thread::spawn(move || waiter.wait(ContextId(0), SlotId(0), 1, None));
    fake.gone.store(true, Ordering::Relaxed);
    assert!(matches!(waiting.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(matches!(client.request(Request::MemoryInfo), Err(GpuError::Lost { .. })));
    assert!(matches!(client.submit(QueueId(0), &[]), Err(GpuError::Lost { .. })));
    assert!(driver.is_lost());
    client.close();
    assert!(driver.counts().vram_quarantined > 0, "memory of a device that does not answer is not used again");
}

/// What each client does again and again while another one's work does not stop.
fn live(client: &Client, round: u32) {
    let (context, queue, alloc) = (ContextId(100 + round), QueueId(100 + round), AllocId(100 + round));
    let at = DevAddr(LO + u64::from(round) * 4096);
    for request in [
        Request::CreateContext { id: context, runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: queue, context, priority: 0 },
        Request::Alloc { id: alloc, bytes: 4096, kind: MemoryKind::Vram },
        Request::Map { at, id: alloc, offset: 0, bytes: 4096, access: MapAccess::Read },
    ] {
        client.request(request).unwrap();
    }
    client.submit(queue, &[Command::Signal { slot: SlotId(2), value: 1 }]).unwrap();
    client.set_time_slice(Duration::from_millis(u64::from(round % 7) + 1)).unwrap();
    let _ = client.usage();
    for request in [
        Request::Unmap { at, bytes: 4096 },
        Request::Free { id: alloc },
        Request::DestroyQueue { id: queue },
        Request::DestroyContext { id: context },
    ] {
        client.request(request).unwrap();
    }
}

#[test]
fn work_that_does_not_stop_is_quarantined_and_everybody_else_goes_on() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let [stuck, other] = [client(&driver), client(&driver)];
    fake.stuck.store(0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| stuck.close());
        let mut rounds = 0;
        while !closing.is_finished() {
            // Metering and scheduling of the stuck one are not held up either.
            let _ = stuck.usage();
            stuck.set_time_slice(Duration::from_millis(3)).unwrap();
            live(&other, rounds);
            rounds += 1;
        }
        assert!(rounds > 20, "{rounds} rounds while the device did not let go");
    });
    assert!(!driver.is_lost());
    live(&other, 0);
    let counts = driver.counts();
    assert!(counts.vram_quarantined > 0, "what the device may still use");
    assert!(counts.vram_quarantined < 1 << 20, "and no more than that: {counts:?}");
    assert_eq!((counts.channels, counts.tsgs, counts.clients), (2, 2, 1), "numbers that are stuck are not used again");
    other.close();
    assert_eq!(driver.counts().channels, 1);
}

#[test]
fn a_full_queue_waits_for_its_own_device_only() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let other = Arc::clone(&client);
    let full = std::thread::spawn(move || {
        let data = vec![7; 16 << 10];
        loop {
            if let Err(error) = other.submit(QueueId(0), &[Command::Write { dst: DevAddr(LO), data: &data }]) {
                return error;
            }
        }
    });
    let doorbells = || fake.doorbells.load(Ordering::Relaxed);
    eventually("the queue fills", || doorbells() > 5);
    assert!(matches!(client.request(Request::MemoryInfo), Ok(Response::Memory { .. })), "others go on");
    client.close();
    assert!(matches!(full.join().unwrap(), GpuError::Lost { .. }));
}

#[test]
fn faults_without_a_notifier_end_their_context() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let (instance, _) = fake.instance();
    let fault = Fault {
        instance: PhysAddr::vram(instance),
        address: LO + 0x5000,
        timestamp: 1,
        engine: EngineId::COPY,
        fault: FaultType::PTE,
        access: AccessType::VIRT_WRITE,
        gpc: false,
    };
    fake.report(0, &fault);
    let expected = ContextError::IllegalAddress { address: LO + 0x5000, write: true, site: String::new() };
    let result = client.wait(ContextId(0), SlotId(0), 1, Some(BOUND));
    assert_eq!(result, Err(GpuError::Context(expected)));
    assert_eq!(fake.get(regs::VF_BASE + vf::FAULT_BUFFER_GET) & 0xf_ffff, 1, "the packet is consumed");
}

#[test]
fn a_fault_of_a_channel_that_is_gone_is_not_the_next_ones_in_its_place() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    fake.set(regs::PTIMER_TIME_0, 1000);
    let client = client(&driver);
    let (instance, _) = fake.instance();
    client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
    fake.set(regs::PTIMER_TIME_0, 2000);
    let (context, queue) = (ContextId(1), QueueId(1));
    for request in [
        Request::CreateContext { id: context, runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: queue, context, priority: 0 },
    ] {
        client.request(request).unwrap();
    }
    client.submit(queue, &[Command::Signal { slot: SlotId(1), value: 1 }]).unwrap();
    assert_eq!(fake.instance().0, instance, "the same place");
    let fault = |timestamp| Fault {
        instance: PhysAddr::vram(instance),
        address: LO + timestamp * 0x1000,
        timestamp,
        engine: EngineId::GRAPHICS,
        fault: FaultType::PTE,
        access: AccessType::VIRT_READ,
        gpc: true,
    };
    // Nobody had come to read it before the channel was gone.
    fake.report(0, &fault(1500));
    let consumed = || fake.get(regs::VF_BASE + vf::FAULT_BUFFER_GET) & 0xf_ffff;
    eventually("the packet is consumed", || consumed() == 1);
    let later = client.wait(context, SlotId(0), 1, Some(Duration::from_millis(300)));
    assert_eq!(later, Err(GpuError::TimedOut), "it says nothing of the new context");
    fake.report(1, &fault(2500));
    let expected = ContextError::IllegalAddress { address: LO + 2500 * 0x1000, write: false, site: String::new() };
    assert_eq!(client.wait(context, SlotId(0), 1, Some(BOUND)), Err(GpuError::Context(expected)));
}

#[test]
fn notifiers_say_why() {
    let cases = [
        (
            Reason::ILLEGAL_ADDRESS,
            "by",
            ContextError::IllegalAddress { address: 0x1234, write: true, site: "by".into() },
        ),
        (Reason::MISALIGNED, "by", ContextError::Misaligned { address: 0x1234, site: "by".into() }),
        (Reason::TRAP, "by", ContextError::LaunchFailed { reason: "trap instruction, by".into() }),
        (Reason::ASSERT, "by", ContextError::Assert { site: "by".into() }),
        (Reason::INVALID_PROGRAM, "line 3", ContextError::InvalidKernel { log: "line 3".into(), unsupported: false }),
        (Reason::UNSUPPORTED_PROGRAM, "tex", ContextError::InvalidKernel { log: "tex".into(), unsupported: true }),
        (
            Reason::ILLEGAL_INSTRUCTION,
            "stack",
            ContextError::LaunchFailed { reason: "illegal instruction, stack".into() },
        ),
    ];
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    for (reason, log, expected) in cases {
        let client = client(&driver);
        let notifier = fake.instance().1.notifier().unwrap();
        let record = Record {
            code: Code::GR_EXCEPTION,
            status: STATUS_ERROR,
            reason,
            log_bytes: log.len() as u32,
            address: 0x1234,
            access: 1,
            ..Record::default()
        };
        fake.vram.write((notifier.address + LOG_OFFSET) as usize, log.as_bytes());
        fake.vram.write(notifier.address as usize, record.as_bytes());
        fake.interrupt(vector::CHANNEL_ERROR);
        let result = client.wait(ContextId(0), SlotId(0), 1, Some(BOUND));
        assert_eq!(result, Err(GpuError::Context(expected.clone())));
        assert_eq!(context_error(&*client, ContextId(0)), Ok(Some(expected.clone())));
        assert_eq!(client.submit(QueueId(0), &[]), Err(GpuError::Context(expected)));
        client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
        assert_eq!(driver.counts().channels, 0);
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let end = LO + (1 << 30);
    let line =
        |dst, width, height, pitch| Command::Fill { dst: DevAddr(dst), value: 0, element: 1, width, height, pitch };
    let refused = [
        line(LO - 1, 1, 1, 0),
        line(end - 8, 8, 1, 0),
        line(LO, u64::MAX, 1, 0),
        line(LO, 16, 2, 8),
        line(LO, 16, u64::MAX, 16),
        Command::Fill { dst: DevAddr(LO + 1), value: 0, element: 2, width: 1, height: 1, pitch: 0 },
        Command::Fill { dst: DevAddr(LO), value: 0, element: 3, width: 1, height: 1, pitch: 0 },
        Command::Copy { dst: DevAddr(LO), src: DevAddr(end), width: 1, height: 1, dst_pitch: 0, src_pitch: 0 },
        Command::Write { dst: DevAddr(LO), data: &[0; gpu::MAX_INLINE_BYTES + 1] },
    ];
    for command in refused {
        let result = client.submit(QueueId(0), &[command]);
        assert!(matches!(result, Err(GpuError::InvalidValue { .. })), "{result:?}");
    }
    let unknown = [
        Command::Signal { slot: SlotId(gpu::SEMAPHORE_SLOTS), value: 1 },
        Command::Wait { slot: SlotId(u32::MAX), value: 1 },
    ];
    for command in unknown {
        assert!(matches!(client.submit(QueueId(0), &[command]), Err(GpuError::InvalidId { .. })));
    }
    let requests = [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::Alloc { id: AllocId(0), bytes: 0, kind: MemoryKind::Vram },
        Request::Alloc { id: AllocId(0), bytes: 4095, kind: MemoryKind::Host },
        Request::Map { at: DevAddr(LO), id: AllocId(0), offset: 0, bytes: 4096, access: MapAccess::Read },
        Request::Unmap { at: DevAddr(LO + 1), bytes: 4096 },
        Request::Unmap { at: DevAddr(LO), bytes: u64::MAX },
        Request::Free { id: AllocId(9) },
        Request::CreateContext { id: ContextId(0), runtime: RuntimeMemory::default() },
        Request::DestroyContext { id: ContextId(1) },
        Request::CreateQueue { id: QueueId(0), context: ContextId(0), priority: 0 },
        Request::CreateQueue { id: QueueId(1), context: ContextId(7), priority: 0 },
        Request::DestroyQueue { id: QueueId(5) },
        Request::UnloadModule { id: gpu::ModuleId(5) },
        Request::PrepareKernel { module: gpu::ModuleId(5), kernel: 0, stack_bytes: 0 },
        Request::ContextError { id: ContextId(6) },
    ];
    for request in requests {
        let result = client.request(request.clone());
        let expected = matches!(result, Err(GpuError::InvalidValue { .. } | GpuError::InvalidId { .. }));
        assert!(expected, "{request:?} gives {result:?}");
    }
    let result = client.request(Request::LoadModule {
        id: gpu::ModuleId(0),
        code: CodeImage::ptx(b"not ptx".to_vec()),
        placed: vec![],
    });
    assert!(matches!(result, Err(GpuError::InvalidPtx { unsupported: false, .. })));
    assert_eq!(client.memory_used(), 0);
}

#[test]
fn memory_limits_hold_and_memory_comes_back() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let before = driver.counts();
    let config = ClientConfig { memory_limit: Some(8 << 20), host_limit: Some(4096), ..ClientConfig::default() };
    let client = driver.open(config).unwrap();
    client.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    let alloc = |id, bytes, kind| client.request(Request::Alloc { id: AllocId(id), bytes, kind });
    alloc(0, 6 << 20, MemoryKind::Vram).unwrap();
    assert_eq!(
        alloc(1, 4 << 20, MemoryKind::Vram),
        Err(GpuError::OutOfMemory { wanted: 4 << 20, free: 2 << 20, limit: 8 << 20 })
    );
    assert_eq!(client.request(Request::MemoryInfo), Ok(Response::Memory { free: 2 << 20, total: 8 << 20 }));
    alloc(1, 2 << 20, MemoryKind::Vram).unwrap();
    alloc(2, 4096, MemoryKind::Host).unwrap();
    assert!(matches!(alloc(3, 4096, MemoryKind::Host), Err(GpuError::OutOfMemory { .. })));
    client.request(Request::Free { id: AllocId(0) }).unwrap();
    assert_eq!(client.request(Request::MemoryInfo), Ok(Response::Memory { free: 6 << 20, total: 8 << 20 }));
    // The whole of VRAM is less than what two clients may have together.
    let greedy = driver.open(ClientConfig::default()).unwrap();
    greedy.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    let result = greedy.request(Request::Alloc { id: AllocId(0), bytes: VRAM, kind: MemoryKind::Vram });
    assert!(matches!(result, Err(GpuError::OutOfMemory { limit: VRAM, .. })));
    drop((client, greedy));
    assert_eq!(driver.counts(), before);
    assert_eq!(fake.dma.lock().unwrap().len(), 0, "nothing is left");
}
