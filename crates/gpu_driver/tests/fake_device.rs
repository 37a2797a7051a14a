//! The driver over a scripted device: one that does what it is told to registers, runs nothing, and can die, hang, or
//! report faults.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu::{
    AllocId, Command, ContextError, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, QueueId, Request,
    Response, SEMAPHORE_HEADER, SLOT_BYTES, SlotId, context_error,
};
use gpu_driver::{Client, ClientConfig, Driver, StartError};
use gpu_spec::fault::{AccessType, EngineId, Fault, FaultType, Packet};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{Code, LOG_OFFSET, Reason, Record, STATUS_ERROR};
use gpu_spec::ramfc::InstanceBlock;
use gpu_spec::regs::{self, identity, vector, vf};
use gpu_spec::{ramfc, userd};
use hostmem::{Mapping, Memfd, PAGE};
use zerocopy::{FromZeros, IntoBytes};

const VRAM: u64 = 64 << 20;
const LO: u64 = 0x7000_0000_0000;
const BOUND: Duration = Duration::from_secs(10);

/// A device that stores registers and runs nothing.
struct Fake {
    vram: Arc<Mapping>,
    file: Memfd,
    registers: Mutex<HashMap<u32, u32>>,
    dma: Mutex<HashMap<u64, Arc<Mapping>>>,
    next_bus: AtomicU64,
    raised: Mutex<bool>,
    line: Condvar,
    gone: AtomicBool,
    /// Preemptions never end.
    stuck: AtomicBool,
    doorbells: AtomicU32,
}

impl Fake {
    fn new() -> Arc<Fake> {
        let file = Memfd::create("fake-vram", VRAM).unwrap();
        let mut registers = HashMap::from([
            (regs::PMC_BOOT_0, regs::BOOT_0_TU104),
            (identity::MAGIC_WORD, identity::MAGIC),
            (identity::MULTIPROCESSORS, 7),
            (identity::COMPUTE_CAPABILITY, 12 << 16),
        ]);
        registers.insert(identity::NAME, u32::from_le_bytes(*b"fake"));
        Arc::new(Fake {
            vram: Arc::new(file.map().unwrap()),
            file,
            registers: Mutex::new(registers),
            dma: Mutex::default(),
            next_bus: AtomicU64::new(1 << 40),
            raised: Mutex::new(false),
            line: Condvar::new(),
            gone: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            doorbells: AtomicU32::new(0),
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

    fn at_bus(&self, at: PhysAddr) -> (Arc<Mapping>, usize) {
        let dma = self.dma.lock().unwrap();
        let (base, mapping) =
            dma.iter().find(|(base, m)| at.address >= **base && at.address < **base + m.len() as u64).unwrap();
        (Arc::clone(mapping), (at.address - base) as usize)
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
        if (regs::VF_BASE + vf::INTR_LEAF..regs::VF_BASE + vf::INTR_LEAF_EN_SET).contains(&offset) {
            *self.registers.lock().unwrap().entry(offset).or_default() &= !value;
        } else if offset == regs::VF_BASE + vf::INTR_LEAF_TRIGGER {
            self.interrupt(value);
        } else if offset == regs::VF_BASE + vf::MMU_INVALIDATE {
            self.set(offset, value & !(vf::INVALIDATE_TRIGGER.mask() as u32));
        } else if offset == regs::PREEMPT && self.stuck.load(Ordering::Relaxed) {
            self.set(offset, value | regs::PREEMPT_PENDING.of(1));
        } else if offset == regs::USERMODE + regs::USERMODE_DOORBELL {
            self.doorbells.fetch_add(1, Ordering::Relaxed);
        } else {
            self.set(offset, value);
        }
    }

    fn vram(&self) -> &Arc<Mapping> {
        &self.vram
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.file.punch(offset.0, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.map_dma(Arc::new(Memfd::create("fake-dma", bytes)?))
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        let bus = self.next_bus.fetch_add(file.bytes() + PAGE, Ordering::Relaxed);
        let mapping = Arc::new(file.map()?);
        self.dma.lock().unwrap().insert(bus, Arc::clone(&mapping));
        Ok(DmaMemory { bus: BusAddr(bus), file, mapping })
    }

    fn free_dma(&self, bus: BusAddr) {
        assert!(self.dma.lock().unwrap().remove(&bus.0).is_some(), "freed once");
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
        Request::CreateContext { id: ContextId(0), printf: 0, heap: 0, heap_bytes: 0 },
        Request::CreateQueue { id: QueueId(0), context: ContextId(0), priority: 0 },
    ] {
        client.request(request).unwrap();
    }
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
fn signals_interrupt_only_while_somebody_sleeps() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    let bit = 1 << (vector::NON_STALL % 32);
    let at = |register| regs::VF_BASE + register + vector::NON_STALL / 32 * 4;
    let switched = |register| fake.get(at(register)) & bit != 0;
    assert!(!switched(vf::INTR_LEAF_EN_SET), "nobody sleeps yet");
    let payload = || client.semaphores().u64_at(3 * SLOT_BYTES);
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
            payload().store(round, Ordering::Release);
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
    let header = client.semaphores();
    header.u32_at(SEMAPHORE_HEADER + 4).fetch_add(1, Ordering::SeqCst);
    assert_eq!(header.u32_at(SEMAPHORE_HEADER + 12).load(Ordering::SeqCst), 0);
    client.kick().unwrap();
    assert_eq!(header.u32_at(SEMAPHORE_HEADER + 12).load(Ordering::SeqCst), 1);
    assert!(switched(vf::INTR_LEAF_EN_SET));
    let count = header.u32_at(SEMAPHORE_HEADER).load(Ordering::SeqCst);
    fake.interrupt(vector::NON_STALL);
    eventually("it is told", || header.u32_at(SEMAPHORE_HEADER).load(Ordering::SeqCst) != count);
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
    assert_eq!(put(), 1, "the classes are bound");
    client.submit(QueueId(0), &[Command::Signal { slot: SlotId(3), value: 9 }]).unwrap();
    assert_eq!(put(), 2);
    assert_eq!(fake.doorbells.load(Ordering::Relaxed), 2);

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

#[test]
fn a_device_that_does_not_stop_is_given_up() {
    let fake = Fake::new();
    let driver = start(&fake).unwrap();
    let client = client(&driver);
    fake.stuck.store(true, Ordering::Relaxed);
    client.close();
    assert!(driver.is_lost());
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
    let at = |offset| regs::VF_BASE + offset;
    let bus =
        u64::from(fake.get(at(vf::FAULT_BUFFER_LO)) & !0xfff) | u64::from(fake.get(at(vf::FAULT_BUFFER_HI))) << 32;
    let (buffer, offset) = fake.at_bus(PhysAddr::system(bus));
    buffer.write(offset, Packet::new(&fault).as_bytes());
    fake.set(at(vf::FAULT_BUFFER_PUT), 1);
    fake.interrupt(vector::FAULT);
    let expected = ContextError::IllegalAddress { address: LO + 0x5000, write: true };
    let result = client.wait(ContextId(0), SlotId(0), 1, Some(BOUND));
    assert_eq!(result, Err(GpuError::Context(expected)));
    assert_eq!(fake.get(at(vf::FAULT_BUFFER_GET)) & 0xf_ffff, 1, "the packet is consumed");
}

#[test]
fn notifiers_say_why() {
    let cases = [
        (Reason::ILLEGAL_ADDRESS, "", ContextError::IllegalAddress { address: 0x1234, write: true }),
        (Reason::MISALIGNED, "", ContextError::Misaligned { address: 0x1234 }),
        (Reason::TRAP, "", ContextError::LaunchFailed { reason: "trap instruction".into() }),
        (Reason::ASSERT, "", ContextError::Assert),
        (Reason::INVALID_PROGRAM, "line 3", ContextError::InvalidKernel { log: "line 3".into(), unsupported: false }),
        (Reason::UNSUPPORTED_PROGRAM, "tex", ContextError::InvalidKernel { log: "tex".into(), unsupported: true }),
        (Reason::ILLEGAL_INSTRUCTION, "stack", ContextError::LaunchFailed { reason: "stack".into() }),
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
        Request::CreateContext { id: ContextId(0), printf: 0, heap: 0, heap_bytes: 0 },
        Request::DestroyContext { id: ContextId(1) },
        Request::CreateQueue { id: QueueId(0), context: ContextId(0), priority: 0 },
        Request::CreateQueue { id: QueueId(1), context: ContextId(7), priority: 0 },
        Request::DestroyQueue { id: QueueId(5) },
        Request::UnloadModule { id: gpu::ModuleId(5) },
        Request::PrepareKernel { module: gpu::ModuleId(5), kernel: 0 },
        Request::ContextError { id: ContextId(6) },
    ];
    for request in requests {
        let result = client.request(request.clone());
        let expected = matches!(result, Err(GpuError::InvalidValue { .. } | GpuError::InvalidId { .. }));
        assert!(expected, "{request:?} gives {result:?}");
    }
    let result = client.request(Request::LoadModule { id: gpu::ModuleId(0), ptx: b"not ptx".to_vec(), placed: vec![] });
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
    assert_eq!(fake.dma.lock().unwrap().len(), 1, "only the fault buffer is left");
}
