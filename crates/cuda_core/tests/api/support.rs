//! A GPU whose kernels are a few that tests need, over the toy's memory and queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cuda_core::{Context, Device, Driver, HostServices};
use gpu::{
    AllocId, CodeImage, Command, ContextId, Deferring, DevAddr, GlobalInfo, Gpu, GpuError, HostMemory, KernelInfo,
    MapAccess, MemoryKind, ModuleId, ModuleInfo, Properties, QueueId, Request, Response, SemaphoreArea, SlotId,
    client_bytes,
};
use hostmem::{HostRange, Mapping, Memfd, ProgramPages};
use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{MapFlags, ProtFlags};
use toy_gpu::{ToyGpu, ToyLine, ToyMachine};

/// A launch as it arrived.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Launched {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
    pub(crate) cluster: [u32; 3],
    pub(crate) params: Vec<u8>,
}

#[derive(Default)]
struct State {
    kernels: Vec<(ModuleId, Vec<KernelInfo>)>,
    launched: Vec<Launched>,
    requests: Vec<String>,
    printf: u64,
    range: (u64, u64),
    globals: u64,
    signals: u32,
    submitted: Vec<(QueueId, Submitted)>,
    /// Text of the last module, and stack of the kernel prepared last.
    text: String,
    stack: u32,
    waits: u32,
    astray: u32,
    refuses_contexts: bool,
    refuses_imports: Option<GpuError>,
    refuses_launch: Option<GpuError>,
    shows_memory: bool,
}

/// What orders the work of queues, and the launches that are to be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Submitted {
    Launch,
    Signal(SlotId, u64),
    Wait(SlotId, u64),
}

/// The fake. Kernels of a module text: every `.entry NAME`; variables: every `.global NAME`.
pub(crate) struct FakeGpu {
    toy: ToyGpu,
    properties: Properties,
    state: Mutex<State>,
    /// Held by who holds up writes from host memory.
    writes: Mutex<()>,
    /// Writes from host memory so far.
    begun: AtomicU32,
}

impl FakeGpu {
    pub(crate) fn launched(&self) -> Vec<Launched> {
        std::mem::take(&mut self.state.lock().launched)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().requests)
    }

    pub(crate) fn text(&self) -> String {
        self.state.lock().text.clone()
    }

    pub(crate) fn stack(&self) -> u32 {
        self.state.lock().stack
    }

    /// Waits for marks so far.
    pub(crate) fn waits(&self) -> u32 {
        self.state.lock().waits
    }

    /// Commands for queues that there are not.
    pub(crate) fn astray(&self) -> u32 {
        self.state.lock().astray
    }

    /// It is lost, with all that it was doing.
    pub(crate) fn lose(&self) {
        self.toy.abort();
    }

    /// The next memory of another GPU's is refused.
    pub(crate) fn refuse_import(&self, error: GpuError) {
        self.state.lock().refuses_imports = Some(error);
    }

    /// Its own memory has files, too.
    pub(crate) fn show_memory(&self) {
        self.state.lock().shows_memory = true;
    }

    /// The next launch is refused.
    pub(crate) fn refuse_launch(&self, error: GpuError) {
        self.state.lock().refuses_launch = Some(error);
    }

    /// Whether contexts can be made on it.
    pub(crate) fn refuse_contexts(&self, refuse: bool) {
        self.state.lock().refuses_contexts = refuse;
    }

    /// Holds up writes from host memory.
    pub(crate) fn hold_writes(&self) -> MutexGuard<'_, ()> {
        self.writes.lock()
    }

    /// Writes from host memory that have begun.
    pub(crate) fn writes_begun(&self) -> u32 {
        self.begun.load(Ordering::Acquire)
    }

    /// Signals since the last call.
    pub(crate) fn signals(&self) -> u32 {
        std::mem::take(&mut self.state.lock().signals)
    }

    /// What was submitted since the last call, that of each queue in order.
    pub(crate) fn submitted(&self) -> Vec<(QueueId, Submitted)> {
        std::mem::take(&mut self.state.lock().submitted)
    }

    /// Memory that a client could get.
    pub(crate) fn free(&self) -> u64 {
        match self.toy.request(Request::MemoryInfo) {
            Ok(Response::Memory { free, .. }) => free,
            other => panic!("{other:?}"),
        }
    }

    fn name(&self, module: ModuleId, kernel: u32) -> String {
        let state = self.state.lock();
        let (_, kernels) = state.kernels.iter().find(|(id, _)| *id == module).unwrap();
        kernels[kernel as usize].name.clone()
    }

    fn kernel(name: &str) -> KernelInfo {
        let params = match name {
            "fill" => vec![(0, 8), (8, 4), (12, 4)],
            "gaps" => vec![(0, 1), (8, 8), (16, 2)],
            "big" => vec![(0, 4000), (4000, 4)],
            "print" => vec![(0, 4)],
            _ => Vec::new(),
        };
        let param_bytes = params.iter().map(|&(at, bytes)| at + bytes).max().unwrap_or(0);
        KernelInfo {
            name: name.to_string(),
            params,
            param_bytes,
            shared_bytes: if name == "shared" { 1024 } else { 0 },
            registers: if name == "greedy" { 255 } else { 32 },
            max_threads: if name == "narrow" { 128 } else { 1024 },
            max_ntid: (name == "exact").then_some([32, 2, 1]),
            exact_ntid: name == "exact",
            ptx_version: 90,
            target: 75,
            ..KernelInfo::default()
        }
    }

    fn load(&self, id: ModuleId, ptx: &[u8]) -> Result<Response, GpuError> {
        let text = String::from_utf8_lossy(ptx).into_owned();
        if text.contains("nonsense") {
            return Err(GpuError::InvalidPtx { log: "line 3: nonsense".into(), unsupported: false });
        }
        self.toy.request(Request::LoadModule { id, code: CodeImage::ptx(ptx), placed: Vec::new() })?;
        let words: Vec<&str> = text.split([' ', '\n', ';', '(', ')']).collect();
        let named = |what| words.windows(2).filter(move |pair| pair[0] == what).map(|pair| pair[1]);
        let kernels: Vec<KernelInfo> = named(".entry").map(FakeGpu::kernel).collect();
        let mut globals = Vec::new();
        for name in named(".global") {
            let mut state = self.state.lock();
            let (lo, bytes) = state.range;
            let address = DevAddr(lo + client_bytes(bytes) + state.globals * 4096);
            let alloc = AllocId(0xF000_0000 + state.globals as u32);
            state.globals += 1;
            drop(state);
            self.toy.request(Request::Alloc { id: alloc, bytes: 4096, kind: MemoryKind::Vram })?;
            let access = MapAccess::ReadWrite;
            self.toy.request(Request::Map { at: address, id: alloc, offset: 0, bytes: 4096, access })?;
            globals.push(GlobalInfo { name: name.to_string(), address, bytes: 64 });
        }
        self.state.lock().kernels.push((id, kernels.clone()));
        Ok(Response::Module(ModuleInfo { kernels, globals, log: "fine".into() }))
    }

    fn launch(&self, queue: QueueId, launch: Launched) -> Result<(), GpuError> {
        if let Some(error) = self.state.lock().refuses_launch.take() {
            return Err(error);
        }
        let word = |at: usize| u32::from_le_bytes(launch.params[at..at + 4].try_into().unwrap());
        match launch.name.as_str() {
            "fill" => {
                let dst = DevAddr(u64::from_le_bytes(launch.params[..8].try_into().unwrap()));
                let width = u64::from(word(12));
                let (value, pitch) = (word(8), width * 4);
                self.toy.submit(queue, &[Command::Fill { dst, value, element: 4, width, height: 1, pitch }])?;
            }
            "print" => {
                let fifo = self.state.lock().printf;
                let mut record = vec![0; 16];
                record.extend_from_slice(&u64::from(word(0)).to_le_bytes());
                record[..4].copy_from_slice(&24u32.to_le_bytes());
                record[4..8].copy_from_slice(&5u32.to_le_bytes());
                record[8..13].copy_from_slice(b"n=%d\n");
                self.toy.submit(
                    queue,
                    &[
                        Command::Write { dst: DevAddr(fifo + 16), data: &record },
                        Command::Write { dst: DevAddr(fifo + 4), data: &24u32.to_le_bytes() },
                    ],
                )?;
            }
            "trap" => self.toy.submit(queue, &[Command::Write { dst: DevAddr(16), data: &[1] }])?,
            _ => {}
        }
        self.state.lock().launched.push(launch);
        Ok(())
    }
}

impl Gpu for FakeGpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        let text = format!("{request:?}");
        self.state.lock().requests.push(text[..text.find([' ', '{']).unwrap_or(text.len())].to_string());
        match &request {
            Request::LoadModule { id, code, .. } => {
                self.state.lock().text = String::from_utf8_lossy(&code.bytes).into_owned();
                return self.load(*id, &code.bytes);
            }
            Request::PrepareKernel { module, kernel, stack_bytes } => {
                self.state.lock().stack = *stack_bytes;
                let info = FakeGpu::kernel(&self.name(*module, *kernel));
                self.toy.request(request)?;
                return Ok(Response::Kernel(info));
            }
            Request::CreateContext { .. } if self.state.lock().refuses_contexts => {
                return Err(GpuError::TooMany { what: "contexts".into(), limit: 0 });
            }
            Request::CreateContext { runtime, .. } => self.state.lock().printf = runtime.printf,
            Request::SetAddressRange { lo, bytes } => self.state.lock().range = (*lo, *bytes),
            _ => {}
        }
        self.toy.request(request)
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        for command in commands {
            let submitted = match *command {
                Command::Launch { .. } => Some(Submitted::Launch),
                Command::Signal { slot, value } => Some(Submitted::Signal(slot, value)),
                Command::Wait { slot, value } => Some(Submitted::Wait(slot, value)),
                _ => None,
            };
            self.state.lock().submitted.extend(submitted.map(|submitted| (queue, submitted)));
            if matches!(submitted, Some(Submitted::Wait(..))) {
                // Other threads get their chance between what work has to wait for and the work.
                std::thread::yield_now();
            }
            match *command {
                Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params } => {
                    let name = self.name(module, kernel);
                    let params = params.to_vec();
                    self.launch(queue, Launched { name, grid, block, shared_bytes, cooperative, cluster, params })?;
                }
                other => {
                    self.state.lock().signals += u32::from(matches!(other, Command::Signal { .. }));
                    let submitted = self.toy.submit(queue, &[other]);
                    self.state.lock().astray += u32::from(matches!(submitted, Err(GpuError::InvalidId { .. })));
                    submitted?;
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), GpuError> {
        self.toy.flush()
    }

    fn semaphores(&self) -> &SemaphoreArea {
        self.toy.semaphores()
    }

    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError> {
        self.toy.release(slot, value)
    }

    fn listen(&self) -> Result<(), GpuError> {
        self.toy.listen()
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        self.state.lock().waits += 1;
        self.toy.wait(context, slot, value, timeout.or(Some(Duration::from_secs(20))))
    }

    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        self.begun.fetch_add(1, Ordering::Release);
        let _free = self.writes.lock();
        self.toy.write(dst, src)
    }

    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        self.toy.read(dst, src)
    }

    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError> {
        if self.state.lock().shows_memory { self.toy.shown_memory(id) } else { self.toy.host_memory(id) }
    }

    fn shows_memory(&self) -> bool {
        self.state.lock().shows_memory
    }

    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        match std::mem::take(&mut self.state.lock().refuses_imports) {
            Some(error) => Err(error),
            None => self.toy.import(id, memory, bytes),
        }
    }

    fn deferring(&self) -> Option<&dyn Deferring> {
        self.toy.deferring()
    }
}

/// What kernels have printed in this test's thread is kept here, and which contexts ended.
pub(crate) static PRINTED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
pub(crate) static ENDED: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// A driver over a fake with so much memory; initialized, without context.
pub(crate) fn bare(memory_bytes: u64) -> (Driver, Arc<FakeGpu>) {
    let (driver, mut fakes) = several(&[memory_bytes]);
    (driver, fakes.remove(0))
}

/// As `bare`, over a fake with so many multiprocessors.
pub(crate) fn wide(multiprocessors: u32) -> (Driver, Arc<FakeGpu>) {
    let toy = ToyGpu::new(&Arc::<ToyMachine>::default(), 1 << 30);
    let (driver, mut fakes) = over_fakes(vec![toy], |properties| properties.multiprocessors = multiprocessors);
    (driver, fakes.remove(0))
}

/// A driver over several fakes, with so much memory each; initialized, without context.
pub(crate) fn several(memory_bytes: &[u64]) -> (Driver, Vec<Arc<FakeGpu>>) {
    over(memory_bytes.iter().map(|bytes| ToyGpu::new(&Arc::<ToyMachine>::default(), *bytes)).collect())
}

/// A driver whose program waits for memory that others have, with the primary context current.
pub(crate) fn waiting(line: &Arc<ToyLine>) -> Driver {
    let (driver, _) = over(vec![ToyGpu::waiting(&Arc::<ToyMachine>::default(), line)]);
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    driver
}

/// As `waiting`, on a GPU that shows its memory to other processes.
pub(crate) fn waiting_and_showing(line: &Arc<ToyLine>) -> Driver {
    let (driver, fakes) = over(vec![ToyGpu::waiting(&Arc::<ToyMachine>::default(), line)]);
    fakes[0].show_memory();
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    driver
}

fn over(toys: Vec<ToyGpu>) -> (Driver, Vec<Arc<FakeGpu>>) {
    over_fakes(toys, |_| {})
}

/// Over fakes that are as `alter` makes them.
fn over_fakes(toys: Vec<ToyGpu>, alter: impl Fn(&mut Properties)) -> (Driver, Vec<Arc<FakeGpu>>) {
    let fake = |(number, toy): (u32, ToyGpu)| {
        let mut properties = toy.properties().clone();
        properties.pci[1] += number;
        properties.uuid[0] += number as u8;
        alter(&mut properties);
        Arc::new(FakeGpu {
            toy,
            properties,
            state: Mutex::default(),
            writes: Mutex::default(),
            begun: AtomicU32::new(0),
        })
    };
    let fakes: Vec<Arc<FakeGpu>> = (0..).zip(toys).map(fake).collect();
    let host = HostServices {
        print: |text| PRINTED.lock().extend_from_slice(text),
        context_destroyed: |context| ENDED.lock().push(context),
    };
    let driver = Driver::new(fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Gpu>).collect(), host);
    driver.init(0).unwrap();
    (driver, fakes)
}

/// A driver with the primary context current.
pub(crate) fn driver() -> (Driver, Arc<FakeGpu>) {
    let (driver, fake) = bare(1 << 30);
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    (driver, fake)
}

/// Memory of the program.
pub(crate) struct Host(Mapping);

impl Host {
    pub(crate) fn new(bytes: usize) -> Host {
        Host(Memfd::create("program", bytes as u64).unwrap().map().unwrap())
    }

    pub(crate) fn with(data: &[u8]) -> Host {
        let host = Host::new(data.len());
        host.0.write(0, data);
        host
    }

    pub(crate) fn range(&self, at: usize, bytes: usize) -> HostRange<'_> {
        self.0.range(at, bytes)
    }

    pub(crate) fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.0.read(at, &mut out);
        out
    }
}

/// A part of some pages of the program.
#[expect(unsafe_code, reason = "a program promises that its memory is there")]
pub(crate) fn part(pages: ProgramPages, at: usize, bytes: usize) -> ProgramPages {
    // SAFETY: a part of what is there for ever.
    unsafe { ProgramPages::new(pages.range().part(at, bytes).address(), bytes) }
}

/// Memory of the program's own, as `malloc` gives it, for as long as the process lives; so much that nothing else is in its
/// pages.
#[expect(unsafe_code, reason = "a program promises that its memory is there")]
pub(crate) fn own_pages(content: &[u8]) -> ProgramPages {
    const ALONE: usize = 1 << 20;
    let memory = vec![0_u8; ALONE + content.len()].leak();
    memory[ALONE / 2..][..content.len()].copy_from_slice(content);
    let address = memory[ALONE / 2..].as_mut_ptr().expose_provenance();
    // SAFETY: leaked, and used by nobody else from here on.
    unsafe { ProgramPages::new(address, content.len()) }
}

/// A part of memory that is mapped shared, as `shm_open` gives it, for as long as the process lives.
#[expect(unsafe_code, reason = "a program promises that its memory is there")]
pub(crate) fn shared_pages(memory: &'static Mapping, at: usize, bytes: usize) -> ProgramPages {
    // SAFETY: mapped for ever, and used by copies only.
    unsafe { ProgramPages::new(memory.range(at, bytes).address(), bytes) }
}

/// How a program may map a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramProtection {
    None,
    Read,
    ReadExecute,
    Private,
    Shared,
}

impl ProgramProtection {
    /// As `/proc/self/maps` has it.
    pub(crate) fn letters(self) -> &'static str {
        match self {
            ProgramProtection::None => "---p",
            ProgramProtection::Read => "r--p",
            ProgramProtection::ReadExecute => "r-xp",
            ProgramProtection::Private => "rw-p",
            ProgramProtection::Shared => "rw-s",
        }
    }
}

/// A file that the program maps, for as long as the process lives.
#[expect(unsafe_code, reason = "a program maps a file, and promises that it stays")]
pub(crate) fn file_pages(file: &Memfd, bytes: usize, protection: ProgramProtection) -> ProgramPages {
    let letter = |letter, flag| if protection.letters().contains(letter) { flag } else { ProtFlags::empty() };
    let prot = letter('r', ProtFlags::READ) | letter('w', ProtFlags::WRITE) | letter('x', ProtFlags::EXEC);
    let flags = if protection == ProgramProtection::Shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0) }.unwrap();
    // SAFETY: mapped for ever; a test of what the driver makes of memory that cannot be used.
    unsafe { ProgramPages::new(at.expose_provenance(), bytes) }
}

/// What no process has.
#[expect(unsafe_code, reason = "a program's promise, broken")]
pub(crate) fn nowhere(bytes: usize) -> ProgramPages {
    // SAFETY: refused before it is used, which is what is tested.
    unsafe { ProgramPages::new(4096, bytes) }
}

/// What may be done with a page, as the kernel says it.
pub(crate) fn permissions(pages: ProgramPages) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&pages.address()).then(|| rest[..4].to_string())
    });
    found.unwrap()
}

/// A pattern that repeats nowhere near.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + usize::from(seed)) as u8).collect()
}
