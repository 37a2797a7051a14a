//! The control process: who may come in, on which terms and GPUs; and a device process for each GPU that always lives.
//!
//! - `listeners`: the session socket (reads one hello, passes the connection on) and the admin socket (`run`, `ps`).
//! - `connections`: how many there may be, and who makes room.
//! - `quotas`: who has used all the GPU time that he may.
//! - `rights`: who may ask for what, and what he is told of others.
//! - `service`: policy read again, and the end, as signals ask for them; what a service manager hears.
//! - `tenants`: registrations and the terms of those who did not register.
//! - `vgpus`: virtual GPUs, and the sockets where their guests connect.
//! - `standing`: what those are told who ask how their tenant stands.
//! - `supervisor`: starts device processes, and another when one dies; `deaths`: how soon; `corpses`: not all go.
//! - `usage`: what tenants have used, and keeping it.
//! - `compilers`: starts compilers for device processes, and keeps the cache of what they made.
//!
//! It never parses what a tenant says after its hello.

mod compilers;
mod connections;
mod corpses;
mod deaths;
mod listeners;
mod quotas;
mod rights;
mod service;
mod standing;
mod supervisor;
mod tenants;
mod usage;
mod vgpus;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use compile_pool::cache::Store;
use parking_lot::Mutex;

use crate::config::Config;
use crate::quiet::Quiet;
use crate::runtime_directory::RuntimeDirectory;
use crate::shadowing::Costs;
use crate::size::GpuSpec;
use crate::threads;
use compilers::Compilers;
pub(crate) use service::{Settings, System};
use standing::Seen;
use supervisor::DeviceLink;
use tenants::Tenants;
pub(crate) use usage::Tuning as UsageTuning;
use usage::Usage;

/// Longest wait for the GPU to start.
const START_BOUND: Duration = Duration::from_secs(60);

/// The daemon's state.
pub(crate) struct Control {
    directory: RuntimeDirectory,
    /// Replaced when policy is read again.
    settings: Mutex<Arc<Settings>>,
    system: System,
    /// By number.
    gpus: Vec<Seat>,
    /// Locked before a link's state, where both are.
    tenants: Mutex<Tenants>,
    usage: Usage,
    /// What traps cost here.
    trap_costs: HashMap<write_trap::Kind, Costs>,
    quiet: Quiet,
    /// When somebody was last there.
    seen: Mutex<Instant>,
}

/// A GPU, as this process knows it: it has a device process of its own.
struct Seat {
    device: DeviceLink,
    compilers: Arc<Compilers>,
    sessions_seen: Seen,
}

impl Control {
    /// Starts the device processes and the listeners.
    pub(crate) fn start(
        directory: RuntimeDirectory,
        config: Config,
        system: System,
        store: Option<Store>,
        trap_costs: HashMap<write_trap::Kind, Costs>,
    ) -> Result<Arc<Control>> {
        let store = store.map(Arc::new);
        let seat = |(number, spec): (usize, &GpuSpec)| Seat {
            device: DeviceLink::new((number, *spec), config.memory.rules()),
            compilers: Compilers::new(store.clone()),
            sessions_seen: Seen::default(),
        };
        let gpus: Vec<Seat> = config.gpu.iter().enumerate().map(seat).collect();
        let settings = Arc::new(Settings::new(config, system.host)?);
        let config = &settings.config;
        let tenants = Mutex::new(Tenants::new(&settings));
        let (quiet, seen) = (Quiet::new(), Mutex::new(Instant::now()));
        let usage = Usage::new(config.usage.tuning(), gpus.len());
        let settings = Mutex::new(settings);
        let control = Arc::new(Control { directory, settings, system, gpus, tenants, usage, trap_costs, quiet, seen });
        control.hear_signals()?;
        for gpu in 0..control.gpus.len() {
            let supervised = Arc::clone(&control);
            std::thread::Builder::new()
                .name("supervisor".into())
                .spawn(move || threads::whole("supervisor", || supervised.supervise(gpu)))?;
        }
        let mut memory = Vec::new();
        for (gpu, seat) in control.gpus.iter().enumerate() {
            let (name, memory_bytes) = seat.device.wait_ready(START_BOUND)?;
            tracing::info!(gpu, name, memory_bytes, "a GPU is ready");
            memory.push(memory_bytes);
        }
        control.tenants.lock().start(memory);
        control.keep_usage()?;
        control.listen()?;
        tracing::info!(gpus = control.gpus.len(), directory = %control.directory.path().display(), "serving");
        Ok(control)
    }

    /// Somebody is there, or was until now.
    fn seen(&self) {
        *self.seen.lock() = Instant::now();
    }

    /// Waits for ever; or, with `linger`, until there have been no tenants, no sessions and no virtual GPUs for that long.
    pub(crate) fn watch(&self, linger: Option<Duration>) -> Result<()> {
        let Some(linger) = linger else {
            loop {
                std::thread::park();
            }
        };
        loop {
            std::thread::sleep(Duration::from_millis(500).min(linger / 4).max(Duration::from_millis(10)));
            let empty = self.tenants.lock().is_empty();
            if !empty {
                self.seen();
            }
            if !empty || self.seen.lock().elapsed() < linger {
                continue;
            }
            // Whoever looks for a daemon now holds the lock until it has registered.
            let Some(_starting) = self.directory.lock_start(false)? else { continue };
            if self.tenants.lock().is_empty() {
                tracing::info!("nobody is left; ending");
                self.end();
            }
        }
    }
}
