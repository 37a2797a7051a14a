//! A software GPU with its driver, and tenants on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, ModuleInfo,
    QueueId, Request, Response, RuntimeMemory, SlotId,
};
use gpu_driver::{Client, ClientConfig, Driver};
use hostmem::Memfd;

/// Longer than anything here takes; a wait that is longer has hung.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// Where the tenants' addresses begin.
pub(crate) const LO: u64 = 0x7000_0000_0000;

/// How many those are.
pub(crate) const RANGE_BYTES: u64 = 2 << 30;

/// Kernels of the tests.
pub(crate) const PTX: &str = include_str!("kernels.ptx");

/// A software GPU with `vram` MiB, and its driver. The tests are run on other GPUs as well, by who includes them.
pub(crate) fn driver(vram: u64) -> Arc<Driver> {
    Driver::start(crate::device::make(vram << 20, false)).unwrap()
}

/// Waits until `done`.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client with context 0 and queue 0, that hands out memory and slots.
pub(crate) struct Tenant {
    pub(crate) client: Arc<Client>,
    next_alloc: AtomicU32,
    next_va: AtomicU64,
    next_slot: AtomicU32,
}

impl Tenant {
    pub(crate) fn new(driver: &Arc<Driver>, config: ClientConfig) -> Tenant {
        Tenant::at(driver, config, LO)
    }

    /// One whose addresses begin at `lo`.
    pub(crate) fn at(driver: &Arc<Driver>, config: ClientConfig, lo: u64) -> Tenant {
        let client = driver.open(config).unwrap();
        client.request(Request::SetAddressRange { lo, bytes: RANGE_BYTES }).unwrap();
        let tenant =
            Tenant { client, next_alloc: AtomicU32::new(0), next_va: AtomicU64::new(lo), next_slot: AtomicU32::new(0) };
        tenant.context(0);
        tenant.queue(0, 0);
        tenant
    }

    pub(crate) fn context(&self, id: u32) {
        let id = ContextId(id);
        self.client.request(Request::CreateContext { id, runtime: RuntimeMemory::default() }).unwrap();
    }

    pub(crate) fn queue(&self, id: u32, context: u32) {
        let (id, context) = (QueueId(id), ContextId(context));
        self.client.request(Request::CreateQueue { id, context, priority: 0 }).unwrap();
    }

    /// Allocates and maps memory; its address and name.
    pub(crate) fn try_alloc(&self, bytes: u64, kind: MemoryKind) -> Result<(DevAddr, AllocId), GpuError> {
        let id = AllocId(self.next_alloc.fetch_add(1, Ordering::Relaxed));
        let bytes = bytes.next_multiple_of(4096);
        self.client.request(Request::Alloc { id, bytes, kind })?;
        let at = self.next_va.fetch_add(bytes.next_multiple_of(2 << 20), Ordering::Relaxed);
        self.client.request(Request::Map { at: DevAddr(at), id, offset: 0, bytes, access: MapAccess::ReadWrite })?;
        Ok((DevAddr(at), id))
    }

    pub(crate) fn alloc(&self, bytes: u64) -> DevAddr {
        self.try_alloc(bytes, MemoryKind::Vram).unwrap().0
    }

    pub(crate) fn write(&self, at: DevAddr, data: &[u8]) {
        let memory = Memfd::create("data", data.len() as u64).unwrap().map().unwrap();
        memory.write(0, data);
        self.client.write(at, memory.range(0, data.len())).unwrap();
    }

    pub(crate) fn read(&self, at: DevAddr, bytes: usize) -> Vec<u8> {
        let memory = Memfd::create("data", bytes as u64).unwrap().map().unwrap();
        self.client.read(memory.range(0, bytes), at).unwrap();
        let mut data = vec![0; bytes];
        memory.read(0, &mut data);
        data
    }

    pub(crate) fn read_u32(&self, at: DevAddr, count: usize) -> Vec<u32> {
        self.read(at, count * 4).chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    pub(crate) fn load(&self, id: u32, ptx: &str) -> ModuleInfo {
        self.load_placed(id, ptx, &[]).unwrap()
    }

    /// Loads a module some of whose variables have their place.
    pub(crate) fn load_placed(&self, id: u32, ptx: &str, placed: &[(&str, DevAddr)]) -> Result<ModuleInfo, GpuError> {
        let placed = placed.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
        match self.client.request(Request::LoadModule {
            id: ModuleId(id),
            code: CodeImage::ptx(ptx.as_bytes().to_vec()),
            placed,
        })? {
            Response::Module(info) => Ok(info),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn submit(&self, queue: u32, commands: &[Command<'_>]) {
        self.client.submit(QueueId(queue), commands).unwrap();
    }

    /// Launches a kernel of module 0, whose parameters are 64-bit.
    pub(crate) fn launch(
        &self,
        queue: u32,
        kernel: u32,
        grid: u32,
        block: u32,
        params: &[u64],
    ) -> Result<(), GpuError> {
        let params: Vec<u8> = params.iter().flat_map(|p| p.to_le_bytes()).collect();
        let launch = Command::Launch {
            module: ModuleId(0),
            kernel,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared_bytes: 0,
            cooperative: false,
            cluster: [1; 3],
            params: &params,
        };
        self.client.submit(QueueId(queue), &[launch])
    }

    /// A slot that nobody else uses.
    pub(crate) fn slot(&self) -> SlotId {
        SlotId(self.next_slot.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until a queue has done everything.
    pub(crate) fn sync_in(&self, context: u32, queue: u32) -> Result<(), GpuError> {
        let slot = self.slot();
        self.client.submit(QueueId(queue), &[Command::Signal { slot, value: 1 }])?;
        self.client.wait(ContextId(context), slot, 1, Some(BOUND))
    }

    pub(crate) fn sync(&self, queue: u32) {
        self.sync_in(0, queue).unwrap();
    }
}

/// Index of a kernel in `kernels.ptx`.
pub(crate) mod kernel {
    pub(crate) const ADD: u32 = 0;
    pub(crate) const SPIN: u32 = 1;
    pub(crate) const STORE: u32 = 2;
    pub(crate) const TRAP: u32 = 3;
    pub(crate) const COUNT: u32 = 4;
}
