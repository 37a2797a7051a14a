//! The control process: who may come in, on which terms; and a device process that always lives.
//!
//! - `listeners`: the session socket (reads one hello, passes the connection on) and the admin socket (`run`, `ps`).
//! - `connections`: how many there may be, and who makes room.
//! - `quotas`: who has used all the GPU time that he may.
//! - `rights`: who may ask for what, and what he is told of others.
//! - `service`: policy read again, and the end, as signals ask for them; what a service manager hears.
//! - `tenants`: registrations and the terms of those who did not register.
//! - `vgpus`: virtual GPUs, and the sockets where their guests connect.
//! - `supervisor`: starts the device process, and another when it dies; `deaths`: how soon; `corpses`: not all go.
//! - `usage`: what tenants have used, and keeping it.
//! - `compilers`: starts compilers for the device process, and keeps the cache of what they made.
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
use crate::threads;
use compilers::Compilers;
pub(crate) use service::{Settings, System};
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
    device: DeviceLink,
    /// Locked before the link's state, where both are.
    tenants: Mutex<Tenants>,
    compilers: Arc<Compilers>,
    usage: Usage,
    /// What traps cost here.
    trap_costs: HashMap<write_trap::Kind, Costs>,
    quiet: Quiet,
    /// When somebody was last there.
    seen: Mutex<Instant>,
}

impl Control {
    /// Starts the device process and the listeners.
    pub(crate) fn start(
        directory: RuntimeDirectory,
        config: Config,
        system: System,
        store: Option<Store>,
        trap_costs: HashMap<write_trap::Kind, Costs>,
    ) -> Result<Arc<Control>> {
        let device = DeviceLink::new(config.gpu, config.memory.rules());
        let settings = Arc::new(Settings::new(config)?);
        let config = &settings.config;
        let tenants = Mutex::new(Tenants::new(&settings));
        let (compilers, quiet, seen) = (Compilers::new(store), Quiet::new(), Mutex::new(Instant::now()));
        let usage = Usage::new(config.usage.tuning());
        let settings = Mutex::new(settings);
        let control = Arc::new(Control {
            directory,
            settings,
            system,
            device,
            tenants,
            compilers,
            usage,
            trap_costs,
            quiet,
            seen,
        });
        control.hear_signals()?;
        let supervised = Arc::clone(&control);
        std::thread::Builder::new()
            .name("supervisor".into())
            .spawn(move || threads::whole("supervisor", || supervised.supervise()))?;
        let (name, memory_bytes) = control.device.wait_ready(START_BOUND)?;
        control.tenants.lock().start(memory_bytes);
        control.keep_usage()?;
        control.listen()?;
        tracing::info!(gpu = name, memory_bytes, directory = %control.directory.path().display(), "serving");
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
