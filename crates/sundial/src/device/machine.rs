//! The GPU behind the sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use device_io::DeviceBacking;
use gpu::{GpuError, Properties, VramLedger};
use gpu_driver::{Budget, Client, ClientConfig, Driver, Metered, Unused, Usage};
use hostmem::Freed;
use parking_lot::RwLock;
use session::Backend;
use softgpu::compiler::Compiler;
use softgpu::{Config, SoftGpu};
use tenancy::{DeviceCosts, HostCost};

use super::closing::Closing;
use crate::size::GpuSpec;

/// Longest wait for those who have just left to let go of the driver.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// The GPU, with its driver; or without, while a guest has the whole of it.
pub(super) struct Machine {
    config: Config,
    properties: Properties,
    driver: Arc<RwLock<Option<Arc<Driver>>>>,
}

impl Machine {
    /// Starts it; `compiler` compiles for it.
    pub(super) fn start((gpu, number): (GpuSpec, u8), compiler: Arc<dyn Compiler>) -> Result<Machine> {
        let GpuSpec::Soft { memory } = gpu;
        // Later this process may open no files.
        let freed = Freed::new()
            .inspect_err(|error| tracing::warn!(%error, "the GPU's process keeps what it has freed"))
            .ok()
            .map(Arc::new);
        // Sessions' threads ring the doorbells: nothing but their clients waits for them.
        let config = Config { vram_bytes: memory.0, lend: true, freed, compiler, ..Config::default() }.numbered(number);
        let driver = drive(&config)?;
        let properties = driver.properties().clone();
        Ok(Machine { config, properties, driver: Arc::new(RwLock::new(Some(driver))) })
    }

    /// Product name, and memory in bytes.
    pub(super) fn facts(&self) -> (String, u64) {
        (self.properties.name.clone(), self.properties.memory_bytes)
    }

    /// What it is.
    pub(super) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// What says how much of its memory is taken and no session's, bytes: as of the last time, while the device changes hands.
    pub(super) fn vram_beside_clients(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let (driver, last) = (Arc::clone(&self.driver), AtomicU64::new(0));
        move || {
            // Never waits: who asks may be a session whose end is waited for there.
            if let Some(driver) = driver.try_read() {
                last.store(driver.as_ref().map_or(0, |driver| driver.vram_beside_clients()), Ordering::Relaxed);
            }
            last.load(Ordering::Relaxed)
        }
    }

    fn driver(&self) -> Result<Arc<Driver>, GpuError> {
        let whole = || GpuError::Lost { reason: "the whole GPU is passed through to a virtual machine's guest".into() };
        self.driver.read().clone().ok_or_else(whole)
    }

    /// Gives the device up, to be switched on by whoever is given this. Nobody uses it any more.
    ///
    /// # Errors
    /// Somebody does.
    pub(super) fn release(&self) -> Result<vgpu::Power, String> {
        let mut driver = self.driver.write();
        let mut held = driver.take().ok_or("a guest has the whole GPU already")?;
        let since = Instant::now();
        // Sessions that are being closed have it for a moment more.
        while let Err(shared) = Arc::try_unwrap(held).map(drop) {
            if since.elapsed() > RELEASE_BOUND {
                *driver = Some(shared);
                return Err("somebody still uses the GPU".into());
            }
            held = shared;
            std::thread::sleep(Duration::from_millis(1));
        }
        let config = self.config.clone();
        Ok(Box::new(move || Ok(SoftGpu::new(&config)? as Arc<dyn DeviceBacking>)))
    }

    /// Takes the device back when nobody has it: it begins anew.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn take_back(&self) -> Result<()> {
        let mut driver = self.driver.write();
        if driver.is_none() {
            *driver = Some(drive(&self.config)?);
        }
        Ok(())
    }

    /// Whether the GPU is stuck for good.
    pub(super) fn is_lost(&self) -> bool {
        self.driver.read().as_ref().is_some_and(|driver| driver.is_lost())
    }

    /// Time of the GPU that nobody has had; `None` while a guest has the whole of it, or is about to.
    pub(super) fn unused(&self) -> Option<Unused> {
        self.driver.try_read()?.as_ref()?.unused()
    }

    /// A new tenant's budget: nothing yet.
    ///
    /// # Errors
    /// `TooMany`.
    pub(super) fn budget(&self) -> Result<Arc<Budget>, GpuError> {
        self.driver()?.budget(gpu_driver::HostCost { bytes: 0, maps: 0, files: 0 })
    }

    /// A new virtual GPU, that has `bytes` of its memory for now.
    ///
    /// # Errors
    /// There is not enough of the device left.
    pub(super) fn vgpu(&self, config: vgpu::Config, bytes: u64) -> Result<Arc<vgpu::Vgpu>, String> {
        let driver = self.driver().map_err(|error| error.to_string())?;
        vgpu::Vgpu::sized(&driver, config, bytes).map_err(|error| error.to_string())
    }

    /// A new client that may use `memory_bytes` of the GPU's memory, asking `vram` first, and pin `host_bytes` of the host's; for
    /// the rest its tenant's budget counts. With `aperture` it may be shown its VRAM.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn open(
        &self,
        name: &str,
        (memory_bytes, vram): (u64, Arc<dyn VramLedger>),
        host_bytes: u64,
        budget: &Arc<Budget>,
        aperture: bool,
    ) -> Result<(Backend, Meter), GpuError> {
        let config = ClientConfig {
            name: name.to_owned(),
            memory_limit: Some(memory_bytes),
            vram: Some(vram),
            host_limit: Some(host_bytes),
            budget: Some(Arc::clone(budget)),
            aperture,
            metered: true,
            ..ClientConfig::default()
        };
        let opened = self.driver()?.open(config);
        let client = opened.map_err(|error| GpuError::Lost { reason: error.to_string() })?;
        let meter = Meter {
            client: Arc::clone(&client),
            slice_ns: AtomicU64::new(0),
            kernels: AtomicU64::new(0),
            held: AtomicBool::new(false),
        };
        let closed = Arc::clone(&client);
        let closing = Closing::prepare(move || closed.close()).map_err(|error| {
            // Without a thread to end it, it does not begin. The client is dropped, and has nothing yet.
            GpuError::Lost { reason: format!("no thread for a client: {error}") }
        })?;
        let closing = Arc::new(closing);
        let aborting = Arc::clone(&closing);
        let backend = Backend {
            aperture,
            semaphores: Arc::clone(client.semaphore_file()),
            abort: Arc::new(move || aborting.begin()),
            close: Arc::new(move || closing.finish()),
            gpu: client,
        };
        Ok((backend, meter))
    }
}

/// A new device, with a driver.
fn drive(config: &Config) -> Result<Arc<Driver>> {
    let device = SoftGpu::new(config).context("cannot make the software GPU")?;
    Driver::start(device).context("cannot start the GPU's driver")
}

/// What a client uses of the GPU's time, and how much it may use at a turn.
pub(super) struct Meter {
    client: Arc<Client>,
    slice_ns: AtomicU64,
    /// As of the last look.
    kernels: AtomicU64,
    held: AtomicBool,
}

impl Meter {
    /// Asks the device for GPU time ever used, ns, and kernels ended.
    pub(super) fn look(&self) -> (u64, u64) {
        let usage = self.client.usage();
        self.kernels.store(usage.kernels, Ordering::Relaxed);
        (usage.gpu_time_ns, usage.kernels)
    }

    /// Kernels that had ended at the last look: asks nobody.
    pub(super) fn kernels(&self) -> u64 {
        self.kernels.load(Ordering::Relaxed)
    }

    /// Changes how much GPU memory it may have.
    pub(super) fn set_memory_limit(&self, bytes: u64) {
        self.client.set_memory_limit(bytes);
    }

    /// What it has had of the GPU.
    pub(super) fn usage(&self) -> Usage {
        self.client.usage()
    }

    /// What it has had of the GPU, in full.
    pub(super) fn metered(&self) -> Metered {
        self.client.metered()
    }

    /// Whether it has work that waits for nothing but its turn, or does it now.
    pub(super) fn is_ready(&self) -> bool {
        self.client.is_ready()
    }

    /// Lets it run, or holds it.
    pub(super) fn run(&self, run: bool) {
        if self.held.swap(!run, Ordering::Relaxed) == run
            && let Err(error) = self.client.set_runnable(run)
        {
            tracing::debug!(%error, run, "turn");
        }
    }

    /// Sets its time slice, ns. Small changes are not worth telling the device.
    pub(super) fn set_slice(&self, ns: u64) {
        let before = self.slice_ns.load(Ordering::Relaxed);
        if before.abs_diff(ns) > before / 20 {
            match self.client.set_time_slice(Duration::from_nanos(ns)) {
                Ok(()) => self.slice_ns.store(ns, Ordering::Relaxed),
                Err(error) => tracing::debug!(%error, "time slice"),
            }
        }
    }
}

/// A tenant's budget, as its account sees it.
#[derive(Debug)]
pub(super) struct TenantBudget(pub(super) Arc<Budget>);

impl DeviceCosts for TenantBudget {
    fn set_limits(&self, limits: HostCost) {
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        self.0.set_limits(gpu_driver::HostCost {
            bytes: limits.bytes,
            maps: small(limits.maps),
            files: small(limits.files),
        });
    }

    fn used(&self) -> HostCost {
        let used = self.0.used();
        HostCost { bytes: used.bytes, maps: used.maps.into(), files: used.files.into() }
    }
}
