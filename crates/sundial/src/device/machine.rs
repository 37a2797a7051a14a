//! The GPU behind the sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use gpu::GpuError;
use gpu_driver::{Client, ClientConfig, Driver};
use parking_lot::{Condvar, Mutex};
use session::Backend;
use softgpu::{Config, SoftGpu};

use crate::size::GpuSpec;

/// The GPU, with its driver.
pub(super) struct Machine {
    driver: Arc<Driver>,
}

impl Machine {
    /// Starts it.
    pub(super) fn start(gpu: GpuSpec) -> Result<Machine> {
        let GpuSpec::Soft { memory } = gpu;
        // Sessions' threads ring the doorbells: nothing but their clients waits for them.
        let config = Config { vram_bytes: memory.0, lend: true, ..Config::default() };
        let device = SoftGpu::new(&config).context("cannot make the software GPU")?;
        let driver = Driver::start(device).context("cannot start the GPU's driver")?;
        Ok(Machine { driver })
    }

    /// Product name, and memory in bytes.
    pub(super) fn facts(&self) -> (String, u64) {
        let properties = self.driver.properties();
        (properties.name.clone(), properties.memory_bytes)
    }

    /// Whether the GPU is stuck for good.
    pub(super) fn is_lost(&self) -> bool {
        self.driver.is_lost()
    }

    /// A new client that may use `memory_bytes` of the GPU's memory and `host_bytes` of the host's.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn open(&self, name: &str, memory_bytes: u64, host_bytes: u64) -> Result<(Backend, Meter), GpuError> {
        let config = ClientConfig {
            name: name.to_owned(),
            memory_limit: Some(memory_bytes),
            host_limit: Some(host_bytes),
            ..ClientConfig::default()
        };
        let opened = self.driver.open(config);
        let client = opened.map_err(|error| GpuError::Lost { reason: error.to_string() })?;
        let meter = Meter { client: Arc::clone(&client), slice_ns: AtomicU64::new(0) };
        let closing =
            Arc::new(Closing { client: Arc::clone(&client), state: Mutex::new(State::Open), done: Condvar::new() });
        let aborting = Arc::clone(&closing);
        let backend = Backend {
            semaphores: Arc::clone(client.semaphore_file()),
            abort: Arc::new(move || aborting.begin()),
            close: Arc::new(move || closing.finish()),
            gpu: client,
        };
        Ok((backend, meter))
    }
}

/// Ends a client. Scrubbing its memory takes time, so it has a thread of its own where nobody may wait.
struct Closing {
    client: Arc<Client>,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(PartialEq)]
enum State {
    Open,
    Ending,
    Ended,
}

impl Closing {
    /// Begins, without waiting.
    fn begin(self: &Arc<Closing>) {
        if self.claim() {
            let this = Arc::clone(self);
            let work = move || this.end();
            if std::thread::Builder::new().name("closing".into()).spawn(work).is_err() {
                self.end();
            }
        }
    }

    /// Returns when everything has been given back.
    fn finish(&self) {
        if self.claim() {
            return self.end();
        }
        let mut state = self.state.lock();
        while *state != State::Ended {
            self.done.wait(&mut state);
        }
    }

    /// Whether the caller is the one who ends it.
    fn claim(&self) -> bool {
        let mut state = self.state.lock();
        let first = *state == State::Open;
        if first {
            *state = State::Ending;
        }
        first
    }

    fn end(&self) {
        self.client.close();
        *self.state.lock() = State::Ended;
        self.done.notify_all();
    }
}

/// What a client uses of the GPU's time, and how much it may use at a turn.
pub(super) struct Meter {
    client: Arc<Client>,
    slice_ns: AtomicU64,
}

impl Meter {
    /// GPU time ever used, ns; kernels ended.
    pub(super) fn usage(&self) -> (u64, u64) {
        let usage = self.client.usage();
        (usage.gpu_time_ns, usage.kernels)
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
