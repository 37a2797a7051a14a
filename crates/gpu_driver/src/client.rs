//! A client of the driver: one address space, one semaphore area, its contexts and queues.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeFormat, CodeImage, Command, ContextError, ContextId, DevAddr, Gpu, GpuError, HostMemory, ModuleId,
    PAGE_BYTES, Properties, QueueId, Request, Response, RuntimeMemory, SemaphoreArea, SlotId, VramLedger, VramUse,
};
use gpu_spec::mmu::PhysAddr;
use hostmem::{HostRange, Memfd};
use parking_lot::{Mutex, RwLock};

use crate::aperture::Aperture;
use crate::budget::Budget;
use crate::channel::Common;
use crate::contexts::{ContextEntry, Usage};
use crate::crowding::Crowded;
use crate::driver::{Device, Driver};
use crate::host::{HostPart, HostPool};
use crate::metering::Metered;
use crate::mmio::Stuck;
use crate::module::{Module, Parsed};
use crate::parking::Parking;
use crate::queues::Queue;
use crate::signals::Signals;
use crate::space::{Backing, Memory, Space, invalid, unknown};
use crate::vram::ClientVram;

/// Most mappings of a client.
const MAX_MAPPINGS: usize = 1 << 18;
/// Most modules of a client.
const MAX_MODULES: usize = 1 << 14;
/// Page tables a client may have beside its memory limit: so many bytes, and this part of the limit.
const TABLE_BYTES: u64 = 16 << 20;
const TABLE_SHARE: u64 = 64;

/// Who a client is and what it may have.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// For logs.
    pub name: String,
    /// Most bytes of VRAM: allocations, module variables and programs. `None`: as much as there is. Page tables, contexts and
    /// channels do not count; they have bounds of their own.
    pub memory_limit: Option<u64>,
    /// Who is asked before VRAM is taken for the client, for whatever purpose. `None`: nobody.
    pub vram: Option<Arc<dyn VramLedger>>,
    /// Most bytes of host memory shared with the GPU. `None`: no limit.
    pub host_limit: Option<u64>,
    /// Time slice of each of its contexts while others wait.
    pub time_slice: Duration,
    /// What its tenant may cost the host, in common with the tenant's other clients. `None`: one of its own, which the
    /// device does not limit.
    pub budget: Option<Arc<Budget>>,
    /// Its allocations in VRAM are shown in a memory file ([`Gpu::host_memory`]) where that can be: those of whole 2 MiB, while
    /// the budget has more than half of its entries of the host's memory map.
    pub aperture: bool,
    /// Somebody will ask what it has had, in full ([`Client::metered`]): its contexts' counters are read when they begin and end.
    pub metered: bool,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            name: String::new(),
            memory_limit: None,
            vram: None,
            host_limit: None,
            time_slice: Duration::from_nanos(1_048_576),
            budget: None,
            aperture: false,
            metered: false,
        }
    }
}

/// What the client has named.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) contexts: HashMap<ContextId, Arc<ContextEntry>>,
    /// Contexts that are being ended.
    pub(crate) ending: Vec<Arc<ContextEntry>>,
    /// Number of the next context.
    pub(crate) next_context: u32,
    /// Usage of contexts that are gone.
    pub(crate) retired: Usage,
    pub(crate) metered: Metered,
    pub(crate) queues: HashMap<QueueId, Arc<Queue>>,
    pub(crate) modules: HashMap<ModuleId, Arc<Module>>,
    /// Nothing new: the client is being closed.
    pub(crate) closed: bool,
}

/// How the scheduler treats a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) time_slice_ns: u64,
    pub(crate) runnable: bool,
}

/// A client: `trait Gpu` on its part of the device. Dropping it stops what it runs and frees all it has.
#[derive(Debug)]
pub struct Client {
    driver: Arc<Driver>,
    name: String,
    /// Changed by [`Client::set_memory_limit`].
    limit: AtomicU64,
    /// All VRAM that is taken for it comes from here.
    pub(crate) vram: ClientVram,
    pub(crate) host_limit: u64,
    properties: Properties,
    pub(crate) budget: Arc<Budget>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) common: Arc<Common>,
    /// Made at the first allocation, if it may have one.
    aperture: OnceLock<Option<Aperture>>,
    pub(crate) metered: bool,
    /// Bytes that the driver has copied for it into VRAM, and out of it.
    pub(crate) moved_in: AtomicU64,
    pub(crate) moved_out: AtomicU64,
    /// Bytes of VRAM that count against the limit.
    pub(crate) used: AtomicU64,
    /// Bytes of host memory that the client has asked for.
    pub(crate) host_used: AtomicU64,
    /// That memory, and the driver's own for its queues, which the client does not get to see.
    pub(crate) host: Mutex<HostPool>,
    pub(crate) private_host: Mutex<HostPool>,
    pub(crate) objects: RwLock<Objects>,
    pub(crate) space: RwLock<Option<Space>>,
    /// Set with `space`.
    pub(crate) layout: OnceLock<Layout>,
    /// Page tables have changed since the last invalidation. Cleared under the lock of `space` only.
    dirty: AtomicBool,
    pub(crate) schedule: Mutex<Schedule>,
    /// Counts unloaded modules: programs at known addresses may have changed.
    pub(crate) programs: AtomicU64,
    /// Held shared by who takes channels down, and exclusively by [`Client::close`] before the address space goes.
    pub(crate) taking_down: RwLock<()>,
    /// Number of channels.
    pub(crate) channels: AtomicU32,
    pub(crate) parking: Parking,
    pub(crate) crowded: Mutex<Crowded>,
    /// For threads that work for it while it lives.
    pub(crate) itself: OnceLock<Weak<Client>>,
    /// Bytes of commands that parked queues keep.
    pub(crate) kept_bytes: AtomicU64,
    closed: AtomicBool,
}

/// Addresses that never change once announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) lo: u64,
    /// Bytes that commands may name.
    pub(crate) visible: u64,
    /// The whole range.
    pub(crate) window: (u64, u64),
    pub(crate) root: PhysAddr,
    /// Virtual address of the semaphore area.
    pub(crate) semaphores: u64,
}

impl Client {
    pub(crate) fn open(driver: Arc<Driver>, config: ClientConfig) -> io::Result<Arc<Client>> {
        let device = &driver.device;
        let budget = config.budget.unwrap_or_else(|| Budget::of_nobody(&device.mmio, &device.budgets));
        budget.charge_file().map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        let signals = Signals::new(&**device.mmio.backing(), budget.number()).inspect_err(|_| budget.refund_file());
        let signals = Arc::new(signals?);
        let total = device.vram.total();
        let limit = config.memory_limit.unwrap_or(total).min(total);
        let client = Client {
            name: config.name,
            limit: AtomicU64::new(limit),
            vram: ClientVram::new(&device.vram, config.vram),
            host_limit: config.host_limit.unwrap_or(u64::MAX),
            properties: Properties { memory_bytes: limit, ..device.properties.clone() },
            host: Mutex::new(HostPool::new(&device.mmio, &budget)),
            private_host: Mutex::new(HostPool::new(&device.mmio, &budget)),
            budget,
            common: Arc::new(Common::new(Arc::clone(&device.mmio), Arc::clone(&signals), Arc::clone(&device.clients))),
            aperture: if config.aperture { OnceLock::new() } else { OnceLock::from(None) },
            metered: config.metered,
            moved_in: AtomicU64::new(0),
            moved_out: AtomicU64::new(0),
            used: AtomicU64::new(0),
            host_used: AtomicU64::new(0),
            objects: RwLock::default(),
            space: RwLock::default(),
            layout: OnceLock::new(),
            dirty: AtomicBool::new(false),
            schedule: Mutex::new(Schedule {
                time_slice_ns: u64::try_from(config.time_slice.as_nanos()).unwrap_or(u64::MAX),
                runnable: true,
            }),
            programs: AtomicU64::new(0),
            taking_down: RwLock::new(()),
            channels: AtomicU32::new(0),
            parking: Parking::new(),
            crowded: Mutex::default(),
            itself: OnceLock::new(),
            kept_bytes: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            signals: Arc::clone(&signals),
            driver: Arc::clone(&driver),
        };
        device.clients.add(signals);
        let client = Arc::new(client);
        // Nobody else has it yet.
        let _ = client.itself.set(Arc::downgrade(&client));
        Ok(client)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Most bytes of VRAM that may count against it.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes that. It keeps what it has beyond, and gets no more; what was shown of its memory to its program, and how much may be, stays
    /// as it was.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.limit.store(bytes.min(self.driver.device.vram.total()), Ordering::Relaxed);
    }

    /// The memory file of the semaphore area, for another process to map.
    #[must_use]
    pub fn semaphore_file(&self) -> &Arc<Memfd> {
        &self.signals.dma.file
    }

    /// Bytes of VRAM that count against its limit.
    #[must_use]
    pub fn memory_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The file that shows its allocations, if it has one.
    pub(crate) fn aperture(&self) -> Option<&Aperture> {
        self.aperture.get_or_init(|| Aperture::new(self.limit(), &self.budget)).as_ref()
    }

    /// The file that shows its allocations, if there is one already.
    pub(crate) fn existing_aperture(&self) -> Option<&Aperture> {
        self.aperture.get()?.as_ref()
    }

    /// Ends the client at once: what it runs is stopped, waiters are released, its memory is scrubbed and free when this
    /// returns. Further calls fail with [`GpuError::Lost`]. Dropping does the same.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // First those who may hold a lock while they wait.
        self.signals.end();
        let device = self.device();
        let stopped = self.destroy_all_contexts();
        // Others may still be ending contexts or channels that they had taken out of the tables before.
        drop(self.taking_down.write());
        let mut memory = Vec::new();
        {
            let mut objects = self.objects.write();
            for module in std::mem::take(&mut objects.modules).into_values() {
                memory.push(Arc::clone(&module.code));
                memory.extend(module.variables.iter().map(|(_, variables)| Arc::clone(variables)));
            }
        }
        // What the device has no translations for any more is free, even if work does not stop; what it knows by physical
        // address is not: the tables, and what channels have given back as stuck.
        let mut forgotten = Ok(());
        let mut tables = Vec::new();
        if let Some(mut space) = self.space.write().take() {
            forgotten = space.cut_off(&device.scheduler);
            let (allocs, runs) = space.dissolve();
            memory.extend(allocs);
            tables = runs;
        }
        for memory in memory {
            self.free_memory(&memory, forgotten);
        }
        self.give_back(&tables, VramUse::Upkeep, forgotten.and(stopped));
        self.host.lock().dissolve(forgotten);
        self.private_host.lock().dissolve(forgotten);
        if forgotten.is_ok() {
            device.mmio.backing().free_dma(self.signals.dma.bus());
        }
        self.budget.refund_file();
        device.clients.remove(&self.signals);
    }

    pub(crate) fn device(&self) -> &Device {
        &self.driver.device
    }

    pub(crate) fn layout(&self) -> Result<&Layout, GpuError> {
        self.layout.get().ok_or_else(|| invalid("no address range has been announced".into()))
    }

    fn alive(&self) -> Result<(), GpuError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(GpuError::Lost { reason: "the client was closed".into() });
        }
        if self.device().mmio.is_lost() {
            return Err(GpuError::Lost { reason: "the device does not answer".into() });
        }
        Ok(())
    }

    /// Does what a caller asks for. What it misses because the client or the device ended meanwhile is told as that.
    fn while_alive<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        self.alive()?;
        work().map_err(|error| self.alive().err().unwrap_or(error))
    }

    /// Runs `f` on the address space, and remembers that the device has to be told.
    pub(crate) fn edit<T>(&self, f: impl FnOnce(&mut Space) -> Result<T, GpuError>) -> Result<T, GpuError> {
        let mut space = self.space.write();
        let space = space.as_mut().ok_or_else(|| invalid("no address range has been announced".into()))?;
        self.dirty.store(true, Ordering::Release);
        f(space)
    }

    /// Tells the device what has changed in the page tables since it was last told.
    pub(crate) fn sync(&self) -> Result<(), GpuError> {
        if !self.dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut space = self.space.write();
        if let Some(space) = space.as_mut() {
            space.publish(&self.device().scheduler).map_err(lost)?;
        }
        self.dirty.store(false, Ordering::Release);
        Ok(())
    }

    fn set_address_range(&self, lo: u64, bytes: u64) -> Result<(), GpuError> {
        let device = self.device();
        let mut slot = self.space.write();
        // Whoever closes takes the space away for good: one that came later would stay.
        self.alive()?;
        if slot.is_some() || self.layout.get().is_some() {
            return Err(invalid("the address range has been announced already".into()));
        }
        let bound = TABLE_BYTES + self.limit() / TABLE_SHARE;
        let mut space = Space::new(&self.vram, device.hypercalls.as_ref(), &self.budget, (lo, bytes), bound)?;
        let area = HostPart { dma: Arc::clone(&self.signals.dma), offset: 0 };
        let area_bytes = (SemaphoreArea::BYTES as u64).next_multiple_of(PAGE_BYTES);
        let memory = Arc::new(Memory { bytes: area_bytes, backing: Backing::Host(area) });
        let semaphores = match space.map_for_driver(&memory, true) {
            Ok(at) => at,
            Err(error) => {
                self.vram.put(&space.dissolve().1, VramUse::Upkeep);
                return Err(error);
            }
        };
        let (lo, visible) = space.visible();
        let layout = Layout { lo, visible, window: space.announced(), root: space.root(), semaphores };
        *slot = Some(space);
        self.dirty.store(true, Ordering::Release);
        // Nobody else sets it: the lock of `space` is held.
        let _ = self.layout.set(layout);
        Ok(())
    }

    fn load_module(&self, id: ModuleId, text: &[u8], placed: &[(String, DevAddr)]) -> Result<Response, GpuError> {
        self.layout()?;
        {
            let objects = self.objects.read();
            if objects.modules.contains_key(&id) {
                return Err(unknown("module", id.0));
            }
            if objects.modules.len() >= MAX_MODULES {
                return Err(GpuError::TooMany { what: "modules".into(), limit: MAX_MODULES as u64 });
            }
        }
        let parsed = Parsed::parse(text, placed)?;
        if !placed.is_empty() {
            let space = self.space.read();
            let space = space.as_ref().ok_or_else(|| invalid("no address range has been announced".into()))?;
            parsed.client_ranges()?.into_iter().try_for_each(|(at, bytes)| space.check_mapped(at, bytes))?;
        }
        let head = parsed.head(0)?;
        let sizes = [parsed.image_bytes, (head.len() + parsed.text().len()) as u64];
        let [variables, code] = self.take_vram_for(sizes, VramUse::Asked)?;
        let variables = match variables.bytes {
            0 => None,
            _ => {
                let placed = self.place(variables, false, |base, write| {
                    parsed.image(base, write);
                    Ok(())
                });
                Some(placed.inspect_err(|_| self.free_memory(&code, Ok(())))?)
            }
        };
        let head = match &variables {
            None => Ok(head),
            Some((base, _)) => parsed.head(*base),
        };
        let placed = head.inspect_err(|_| self.free_memory(&code, Ok(())));
        let placed = placed.and_then(|head| {
            self.place(code, true, |_, write| {
                write(0, &head);
                write(head.len() as u64, parsed.text());
                Ok(())
            })
        });
        let (container, code) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                self.unplace(variables.as_slice());
                return Err(error);
            }
        };
        let (info, module) = parsed.finish(container, code, variables);
        let module = Arc::new(module);
        let mut objects = self.objects.write();
        if objects.closed || objects.modules.contains_key(&id) {
            drop(objects);
            self.remove_module(&module);
            return Err(unknown("module", id.0));
        }
        objects.modules.insert(id, module);
        Ok(Response::Module(info))
    }

    fn remove_module(&self, module: &Module) {
        self.programs.fetch_add(1, Ordering::AcqRel);
        self.unplace(&[(module.container, Arc::clone(&module.code))]);
        self.unplace(module.variables.as_slice());
    }

    fn module(&self, id: ModuleId) -> Result<Arc<Module>, GpuError> {
        self.objects.read().modules.get(&id).cloned().ok_or_else(|| unknown("module", id.0))
    }

    fn serve(&self, request: Request) -> Result<Response, GpuError> {
        self.reap();
        match request {
            Request::SetAddressRange { lo, bytes } => self.set_address_range(lo, bytes)?,
            Request::MemoryInfo => return Ok(self.memory_info()),
            Request::Alloc { id, bytes, kind } => {
                if let Some(offset) = self.alloc(id, bytes, kind)? {
                    return Ok(Response::Shown { offset });
                }
            }
            Request::Free { id } => self.free(id)?,
            Request::Map { at, id, offset, bytes, access } => self.edit(|space| {
                if space.mappings() >= MAX_MAPPINGS {
                    return Err(GpuError::TooMany { what: "mappings".into(), limit: MAX_MAPPINGS as u64 });
                }
                space.map(at.0, id, offset, bytes, access)
            })?,
            Request::Unmap { at, bytes } => self.edit(|space| space.unmap(at.0, bytes))?,
            Request::CreateContext { id, runtime: RuntimeMemory { printf, heap, heap_bytes } } => {
                self.create_context(id, [printf, heap, heap_bytes])?;
            }
            Request::DestroyContext { id } => self.destroy_context(id)?,
            Request::CreateQueue { id, context, priority } => self.create_queue(id, context, priority)?,
            Request::DestroyQueue { id } => self.destroy_queue(id)?,
            Request::LoadModule { id, code: CodeImage { format: CodeFormat::PTX, bytes }, placed } => {
                return self.load_module(id, &bytes, &placed);
            }
            Request::LoadModule { code, .. } => {
                return Err(GpuError::Unsupported { what: format!("code of format {}", code.format.0) });
            }
            Request::UnloadModule { id } => {
                let module = self.objects.write().modules.remove(&id).ok_or_else(|| unknown("module", id.0))?;
                self.remove_module(&module);
            }
            Request::PrepareKernel { module, kernel, stack_bytes } => {
                return self.module(module)?.prepare(kernel, stack_bytes).map(Response::Kernel);
            }
            Request::ContextError { id } => {
                let context = self.context(id)?;
                context.check_notifier(&self.device().mmio, &self.device().vram);
                return Ok(Response::ContextError(context.error().cloned()));
            }
        }
        Ok(Response::Done)
    }
}

impl Gpu for Client {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        self.while_alive(|| self.serve(request))
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        self.while_alive(|| self.submit_commands(queue, commands))
    }

    fn flush(&self) -> Result<(), GpuError> {
        self.while_alive(|| self.sync())
    }

    fn semaphores(&self) -> &SemaphoreArea {
        &self.signals.area
    }

    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        self.while_alive(|| {
            self.signals.area.raise(slot, value);
            self.sync()?;
            self.unpark(vec![slot]);
            self.common.ring_waiting();
            Ok(())
        })
    }

    fn listen(&self) -> Result<(), GpuError> {
        self.alive()?;
        self.device().clients.listen(&self.signals);
        Ok(())
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        if self.signals.area.payload(slot) >= value {
            return Ok(());
        }
        self.while_alive(|| {
            self.sync()?;
            let context = self.context(context)?;
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            let result = self.signals.wait(&self.common.listeners, deadline, || {
                if self.signals.area.payload(slot) >= value {
                    return Some(Ok(()));
                }
                context.check().err().map(Err)
            });
            result.unwrap_or(Err(GpuError::TimedOut))
        })
    }

    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        self.while_alive(|| {
            let space = self.space.read();
            let space = space.as_ref().ok_or_else(|| invalid("no address range has been announced".into()))?;
            space.for_each(dst.0, src.len() as u64, true, |at, memory| memory.copy_from(src.part(at, memory.len())))?;
            self.moved_in.fetch_add(src.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }

    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        self.while_alive(|| {
            let space = self.space.read();
            let space = space.as_ref().ok_or_else(|| invalid("no address range has been announced".into()))?;
            space.for_each(src.0, dst.len() as u64, false, |at, memory| memory.copy_to(dst.part(at, memory.len())))?;
            self.moved_out.fetch_add(dst.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }

    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        self.while_alive(|| {
            let space = self.space.read();
            let alloc =
                space.as_ref().and_then(|space| space.allocs.get(&id)).ok_or_else(|| unknown("allocation", id.0))?;
            match &alloc.memory.backing {
                Backing::Host(part) => Ok(HostMemory { file: Arc::clone(&part.dma.file), offset: part.offset }),
                Backing::Vram(_, Some(offset)) if let Some(aperture) = self.existing_aperture() => {
                    Ok(HostMemory { file: Arc::clone(&aperture.file), offset: *offset })
                }
                Backing::Vram(..) => Err(unknown("host allocation", id.0)),
            }
        })
    }

    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        self.while_alive(|| self.import_host(id, memory, bytes))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// The device's end as a client sees it.
pub(crate) fn lost(lost: Stuck) -> GpuError {
    GpuError::Lost { reason: lost.to_string() }
}

/// A context error as a client sees it.
pub(crate) fn failed(error: &ContextError) -> GpuError {
    GpuError::Context(error.clone())
}
