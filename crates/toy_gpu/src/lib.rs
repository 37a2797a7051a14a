//! A `Gpu` without an engine: memory, queues, copies and semaphores on one thread; for tests of what lies above.
//!
//! It runs no PTX. Every module has two kernels: 0 does nothing, 1 runs until its client is aborted. Accesses to what is not
//! mapped fail their context as on a GPU. [`ToyMachine`] counts what all clients hold, so that a test can see leaks.

mod engine;
mod line;
mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, Command, ContextId, Deferring, DevAddr, Gpu, GpuError, HostMemory, KernelInfo, Look, ModuleInfo,
    Properties, QueueId, Request, Response, SemaphoreArea, SlotId, VramLedger,
};
use hostmem::{HostRange, Memfd};
use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;
pub use crate::line::ToyLine;

/// What all clients of the toy hold.
#[derive(Debug, Default)]
pub struct ToyMachine {
    /// Memory allocated, bytes.
    pub bytes: AtomicU64,
    /// Memory of the machine's own that is taken, bytes: allocations, the text of modules, a page for each context.
    pub vram: AtomicU64,
    /// Clients.
    pub clients: AtomicU64,
}

/// One client of the toy.
#[derive(Debug)]
pub struct ToyGpu {
    machine: Arc<ToyMachine>,
    properties: Properties,
    semaphore_file: Arc<Memfd>,
    worker: Arc<Worker>,
    /// Where requests wait for memory, and under which number.
    line: Option<(Arc<ToyLine>, u64)>,
}

/// What executes the client's commands, on a thread of its own.
#[derive(Debug)]
struct Worker {
    semaphores: SemaphoreArea,
    engine: Mutex<Engine>,
    work: Condvar,
}

fn lost() -> GpuError {
    GpuError::Lost { reason: "aborted".into() }
}

impl ToyGpu {
    /// A client that may use `memory_bytes`.
    #[must_use]
    pub fn new(machine: &Arc<ToyMachine>, memory_bytes: u64) -> ToyGpu {
        ToyGpu::with(machine, memory_bytes, None, None)
    }

    /// Where an allocation lies, as a GPU says it that shows its own memory too.
    ///
    /// # Errors
    /// `InvalidId` if there is no such allocation.
    pub fn shown_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        let file = self.worker.engine.lock().memory.any_file(id)?;
        Ok(HostMemory { file, offset: 0 })
    }

    /// One that asks somebody before it takes memory.
    #[must_use]
    pub fn asking(machine: &Arc<ToyMachine>, memory_bytes: u64, ledger: Arc<dyn VramLedger>) -> ToyGpu {
        ToyGpu::with(machine, memory_bytes, Some(ledger), None)
    }

    /// One whose requests wait for memory that others have.
    #[must_use]
    pub fn waiting(machine: &Arc<ToyMachine>, line: &Arc<ToyLine>) -> ToyGpu {
        let ledger = Arc::clone(line) as Arc<dyn VramLedger>;
        ToyGpu::with(machine, line.capacity(), Some(ledger), Some(Arc::clone(line)))
    }

    fn with(
        machine: &Arc<ToyMachine>,
        memory_bytes: u64,
        ledger: Option<Arc<dyn VramLedger>>,
        line: Option<Arc<ToyLine>>,
    ) -> ToyGpu {
        let properties = Properties {
            name: "Toy".into(),
            uuid: *b"toy toy toy toy ",
            pci: [0, 1, 0],
            compute_capability: [12, 0],
            driver_version: 13050,
            multiprocessors: 1,
            memory_bytes,
            clock_khz: 1_000_000,
            memory_clock_khz: 1_000_000,
            memory_bus_bits: 64,
            l2_bytes: 1 << 20,
        };
        let file = Memfd::create("toy-semaphores", SemaphoreArea::BYTES as u64).expect("a memory file");
        let semaphore_file = Arc::new(file);
        let memory = Arc::new(semaphore_file.map().expect("a mapping"));
        let semaphores = SemaphoreArea::new(memory).expect("long enough");
        // Every signal of the toy interrupts.
        semaphores.set_listening(true);
        machine.clients.fetch_add(1, Ordering::SeqCst);
        let engine = Mutex::new(Engine::new(Arc::clone(machine), ledger));
        let worker = Arc::new(Worker { semaphores, engine, work: Condvar::new() });
        let running = Arc::clone(&worker);
        std::thread::Builder::new().name("toy".into()).spawn(move || running.run()).expect("a thread");
        ToyGpu {
            machine: Arc::clone(machine),
            properties,
            semaphore_file,
            worker,
            line: line.map(|line| (Arc::clone(&line), line.join())),
        }
    }

    /// The file of the semaphore area.
    #[must_use]
    pub fn semaphore_file(&self) -> &Arc<Memfd> {
        &self.semaphore_file
    }

    /// Stops all work and ends what waits for it.
    pub fn abort(&self) {
        self.worker.engine.lock().aborted = true;
        self.worker.work.notify_all();
    }

    /// Stops all work and gives all memory back.
    pub fn close(&self) {
        self.abort();
        self.worker.engine.lock().memory.clear();
    }

    /// Waits until a queue is empty.
    fn drain(&self, queue: QueueId) -> Result<(), GpuError> {
        let mut engine = self.worker.engine.lock();
        while engine.busy(queue) {
            if engine.aborted {
                return Err(lost());
            }
            self.worker.work.wait(&mut engine);
        }
        Ok(())
    }
}

impl ToyGpu {
    fn serve(&self, request: Request) -> Result<Response, GpuError> {
        if let Request::DestroyQueue { id } = request {
            self.drain(id)?;
        }
        let mut engine = self.worker.engine.lock();
        match request {
            Request::SetAddressRange { lo, bytes } => engine.memory.reserve(lo, bytes)?,
            Request::MemoryInfo => {
                let total = self.properties.memory_bytes;
                return Ok(Response::Memory { free: total - engine.memory.vram_bytes().min(total), total });
            }
            Request::Alloc { id, bytes, kind } => {
                engine.memory.allocate(id, bytes, kind, self.properties.memory_bytes)?
            }
            Request::Free { id } => engine.memory.free(id)?,
            Request::Map { at, id, offset, bytes, access } => engine.memory.map(at, id, offset, bytes, access)?,
            Request::Unmap { at, bytes } => engine.memory.unmap(at, bytes)?,
            Request::CreateContext { id, .. } => engine.create_context(id)?,
            Request::DestroyContext { id } => engine.destroy_context(id),
            Request::CreateQueue { id, context, .. } => engine.create_queue(id, context),
            Request::DestroyQueue { id } => engine.destroy_queue(id),
            Request::LoadModule { id, code, .. } => {
                engine.memory.load(id, code.bytes.len() as u64)?;
                let kernel = |name: &str| KernelInfo { name: name.into(), ..KernelInfo::default() };
                return Ok(Response::Module(ModuleInfo {
                    kernels: vec![kernel("nothing"), kernel("endless")],
                    globals: Vec::new(),
                    log: format!("{} bytes", code.bytes.len()),
                }));
            }
            Request::UnloadModule { id } => engine.memory.unload(id),
            Request::PrepareKernel { .. } => return Ok(Response::Kernel(KernelInfo::default())),
            Request::ContextError { id } => return Ok(Response::ContextError(engine.error(id))),
        };
        self.worker.work.notify_all();
        let () = ();
        Ok(Response::Done)
    }
}

impl Drop for ToyGpu {
    fn drop(&mut self) {
        let mut engine = self.worker.engine.lock();
        engine.aborted = true;
        engine.ended = true;
        engine.memory.clear();
        self.machine.clients.fetch_sub(1, Ordering::SeqCst);
        self.worker.work.notify_all();
    }
}

impl Worker {
    /// The thread.
    fn run(&self) {
        let mut engine = self.engine.lock();
        while !engine.ended {
            if engine.step(&self.semaphores) {
                self.work.notify_all();
            } else if engine.waits_for_memory() {
                self.work.wait_for(&mut engine, Duration::from_millis(1));
            } else {
                self.work.wait(&mut engine);
            }
        }
    }
}

impl Gpu for ToyGpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        let Some((line, client)) = &self.line else { return self.serve(request) };
        if line.gives_up(*client, &request) {
            return Ok(Response::Done);
        }
        let answer = self.serve(request.clone());
        line.asked(*client, &request, &answer);
        answer
    }

    fn deferring(&self) -> Option<&dyn Deferring> {
        self.line.as_ref().map(|(line, _)| &**line as &dyn Deferring)
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        let mut engine = self.worker.engine.lock();
        if engine.aborted {
            return Err(lost());
        }
        engine.submit(queue, commands)?;
        self.worker.work.notify_all();
        Ok(())
    }

    fn flush(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn semaphores(&self) -> &SemaphoreArea {
        &self.worker.semaphores
    }

    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        self.worker.semaphores.raise(slot, value);
        // The lock orders us behind a worker that is about to sleep.
        drop(self.worker.engine.lock());
        self.worker.work.notify_all();
        Ok(())
    }

    fn listen(&self) -> Result<(), GpuError> {
        self.worker.semaphores.set_listening(true);
        Ok(())
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        let area = &self.worker.semaphores;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let look = |how| {
            if area.payload(slot) >= value {
                return Some(Ok(()));
            }
            let error = if how == Look::Close { self.worker.engine.lock().error(context) } else { None };
            error.map(|error| Err(GpuError::Context(error)))
        };
        area.wait(deadline, look, || area.set_listening(true)).unwrap_or(Err(GpuError::TimedOut))
    }

    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        let memory = self.worker.engine.lock().memory.window()?;
        memory.write(dst, src)
    }

    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        let memory = self.worker.engine.lock().memory.window()?;
        memory.read(dst, src)
    }

    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        let file = self.worker.engine.lock().memory.host_file(id)?;
        Ok(HostMemory { file, offset: 0 })
    }

    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        self.worker.engine.lock().memory.import(id, memory, bytes)
    }
}
