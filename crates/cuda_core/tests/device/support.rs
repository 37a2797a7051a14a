//! A device and its driver with kernels loaded, and memory of a program.

use std::sync::Arc;

use cuda_core::{Device, Driver, Function, HostServices, JitLog, LaunchConfig, Module, Params, Stream};
use gpu::Gpu;
use gpu_driver::ClientConfig;
use hostmem::{Mapping, Memfd, ProgramPages};
use parking_lot::Mutex;
use softgpu::{Config, SoftGpu};

pub(crate) const KERNELS: &str = include_str!("kernels.ptx");
pub(crate) const MANAGED: &str = include_str!("managed.ptx");

pub(crate) static PRINTED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// A driver over a device of its own, with the primary context current and the kernels loaded.
pub(crate) fn start() -> (Driver, Module) {
    let config = Config { vram_bytes: 256 << 20, workers: 2, ..Config::default() };
    let device = gpu_driver::Driver::start(SoftGpu::new(&config).unwrap()).unwrap();
    let client: Arc<dyn Gpu> = device.open(ClientConfig::default()).unwrap();
    let host = HostServices { print: |text| PRINTED.lock().extend_from_slice(text), context_destroyed: |_| () };
    let driver = Driver::new(vec![client], host);
    driver.init(0).unwrap();
    driver.ctx_set_current(driver.device_primary_ctx_retain(Device(0)).unwrap()).unwrap();
    let mut log = JitLog::default();
    let module = driver.module_load_data(&KERNELS.as_bytes(), &mut log);
    (driver, module.unwrap_or_else(|error| panic!("{error:?}: {}", log.error)))
}

pub(crate) fn launch(
    driver: &Driver,
    function: Function,
    config: &LaunchConfig,
    params: &[&[u8]],
) -> cuda_core::Result<()> {
    let mut each = |index: usize, out: &mut [u8]| {
        out.copy_from_slice(params[index]);
        true
    };
    driver.launch_kernel(function, config, Params::Each(&mut each))
}

pub(crate) fn shape(blocks: u32, threads: u32, stream: Stream) -> LaunchConfig {
    LaunchConfig::new([blocks, 1, 1], [threads, 1, 1], 0, stream)
}

pub(crate) fn memory(data: &[u8]) -> Mapping {
    let mapping = Memfd::create("program", data.len() as u64).unwrap().map().unwrap();
    mapping.write(0, data);
    mapping
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

pub(crate) fn words(values: impl Iterator<Item = u32>) -> Vec<u8> {
    values.flat_map(u32::to_le_bytes).collect()
}
