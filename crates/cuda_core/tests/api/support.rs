//! A GPU whose kernels are a few that tests need, over the toy's memory and queues.

use std::sync::Arc;
use std::time::Duration;

use cuda_core::{Context, Device, Driver, HostServices};
use gpu::{
    AllocId, Command, ContextId, DevAddr, GlobalInfo, Gpu, GpuError, KernelInfo, MapAccess, MemoryKind, ModuleId,
    ModuleInfo, Properties, QueueId, Request, Response, SlotId, client_bytes,
};
use hostmem::{HostRange, Mapping, Memfd};
use parking_lot::Mutex;
use toy_gpu::{ToyGpu, ToyMachine};

/// A launch as it arrived.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Launched {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
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
}

/// The fake. Kernels of a module text: every `.entry NAME`; variables: every `.global NAME`.
pub(crate) struct FakeGpu {
    toy: ToyGpu,
    state: Mutex<State>,
}

impl FakeGpu {
    pub(crate) fn launched(&self) -> Vec<Launched> {
        std::mem::take(&mut self.state.lock().launched)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().requests)
    }

    /// Signals since the last call.
    pub(crate) fn signals(&self) -> u32 {
        std::mem::take(&mut self.state.lock().signals)
    }

    /// Memory that a client could get.
    pub(crate) fn free(&self) -> u64 {
        match self.toy.request(Request::MemoryInfo) {
            Ok(Response::Memory { free, .. }) => free,
            other => panic!("{other:?}"),
        }
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
            registers: 32,
            max_threads: if name == "narrow" { 128 } else { 1024 },
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
            "endless" => {
                let (module, params) = (ModuleId(0), &[][..]);
                let (grid, block, kernel, shared_bytes, cooperative) = ([1; 3], [1; 3], 1, 0, false);
                let endless = Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, params };
                self.toy.submit(queue, &[endless])?;
            }
            _ => {}
        }
        self.state.lock().launched.push(launch);
        Ok(())
    }
}

impl Gpu for FakeGpu {
    fn properties(&self) -> &Properties {
        self.toy.properties()
    }

    fn request(&self, request: Request) -> Result<Response, GpuError> {
        let text = format!("{request:?}");
        self.state.lock().requests.push(text[..text.find([' ', '{']).unwrap_or(text.len())].to_string());
        match &request {
            Request::LoadModule { id, ptx, .. } => return self.load(*id, ptx),
            Request::CreateContext { printf, .. } => self.state.lock().printf = *printf,
            Request::SetAddressRange { lo, bytes } => self.state.lock().range = (*lo, *bytes),
            _ => {}
        }
        self.toy.request(request)
    }

    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        for command in commands {
            match *command {
                Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, params } => {
                    let state = self.state.lock();
                    let kernels = state.kernels.iter().find(|(id, _)| *id == module).map(|(_, kernels)| kernels);
                    let name = kernels.unwrap()[kernel as usize].name.clone();
                    drop(state);
                    let params = params.to_vec();
                    self.launch(queue, Launched { name, grid, block, shared_bytes, cooperative, params })?;
                }
                other => {
                    self.state.lock().signals += u32::from(matches!(other, Command::Signal { .. }));
                    self.toy.submit(queue, &[other])?;
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), GpuError> {
        self.toy.flush()
    }

    fn semaphores(&self) -> &Mapping {
        self.toy.semaphores()
    }

    fn kick(&self) -> Result<(), GpuError> {
        self.toy.kick()
    }

    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError> {
        self.toy.wait(context, slot, value, timeout.or(Some(Duration::from_secs(20))))
    }

    fn write(&self, dst: DevAddr, src: HostRange) -> Result<(), GpuError> {
        self.toy.write(dst, src)
    }

    fn read(&self, dst: HostRange, src: DevAddr) -> Result<(), GpuError> {
        self.toy.read(dst, src)
    }

    fn host_memory(&self, id: AllocId) -> Result<Arc<Memfd>, GpuError> {
        self.toy.host_memory(id)
    }
}

/// What kernels have printed in this test's thread is kept here, and which contexts ended.
pub(crate) static PRINTED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
pub(crate) static ENDED: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// A driver over a fake with so much memory; initialized, without context.
pub(crate) fn bare(memory_bytes: u64) -> (Driver, Arc<FakeGpu>) {
    let toy = ToyGpu::new(&Arc::<ToyMachine>::default(), memory_bytes);
    let fake = Arc::new(FakeGpu { toy, state: Mutex::default() });
    let host = HostServices {
        print: |text| PRINTED.lock().extend_from_slice(text),
        context_destroyed: |context| ENDED.lock().push(context),
    };
    let driver = Driver::new(Arc::clone(&fake) as Arc<dyn Gpu>, host);
    driver.init(0).unwrap();
    (driver, fake)
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

    pub(crate) fn range(&self, at: usize, bytes: usize) -> HostRange {
        self.0.range(at, bytes)
    }

    pub(crate) fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.0.read(at, &mut out);
        out
    }
}

/// A pattern that repeats nowhere near.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + usize::from(seed)) as u8).collect()
}
