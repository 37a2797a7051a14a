//! Policy that is read again, and an end that lets those finish who are there: as signals ask for it, and as a service manager is told.
//!
//! ```text
//!             SIGHUP, `sundial reload`                SIGTERM            nobody is there, or
//!   serving ──────────────────────────► serving ────────────────► draining ───────────────► ended
//!             another policy, or the old if it is wrong            nobody comes in   `drain_seconds`, or a second signal
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tenancy::Limits;

use super::Control;
use crate::config::Config;
use crate::host::Host;
use crate::policy::{Machine, Rules};
use crate::size::GpuSpec;
use crate::system::{self, Activated};
use crate::threads;

/// Between two looks whether somebody is still there.
const LOOK: Duration = Duration::from_millis(50);
/// How long a daemon of the system's lets tenants finish, where policy does not say.
const DRAIN: Duration = Duration::from_secs(30);

/// What holds, as the policy file says.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) config: Config,
    pub(super) rules: Rules,
    /// Of each tenant: what policy says, and what this machine has where it says nothing.
    pub(super) limits: Limits,
}

impl Settings {
    /// Whether anything is said of GPU time over hours.
    pub(super) fn have_quotas(&self) -> bool {
        self.rules.have_quotas() || self.config.profiles.values().any(|profile| profile.quota.is_some())
    }

    /// With users and groups looked up.
    ///
    /// # Errors
    /// One is not known, or means nothing where it stands.
    pub(crate) fn new(config: Config, host: Host) -> Result<Settings> {
        let rules = config.policy.resolve(&Machine, &config.profiles)?;
        let memory = config.gpu.iter().map(|GpuSpec::Soft { memory }| memory.0).fold(0, u64::saturating_add);
        let limits = host.limits(&config.limits, memory);
        Ok(Settings { config, rules, limits })
    }
}

/// What a daemon is that serves all users of a machine, and how its policy is read.
pub(crate) struct System {
    /// The machine.
    pub(crate) host: Host,
    /// It does.
    pub(crate) is_system: bool,
    /// Those who may come, beside the daemon's own user.
    pub(crate) group: Option<u32>,
    /// Sockets that are there already.
    pub(crate) activated: Mutex<Option<Activated>>,
    /// They go with whoever made them.
    pub(crate) sockets_are_ours: bool,
    pub(crate) load: Box<dyn Fn() -> Result<Config> + Send + Sync>,
}

impl Control {
    /// What holds now.
    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock())
    }

    /// Whether this daemon serves all users of a machine.
    pub(super) fn is_system(&self) -> bool {
        self.system.is_system
    }

    /// Does what signals ask for, and tells a watchdog that there is somebody who would.
    pub(super) fn hear_signals(self: &Arc<Control>) -> Result<()> {
        let mut signals = Signals::new([SIGHUP, SIGTERM, SIGINT]).context("cannot hear signals")?;
        let control = Arc::clone(self);
        threads::essential("signals", move || {
            for signal in &mut signals {
                match signal {
                    SIGHUP => drop(control.reload()),
                    _ => control.drain(),
                }
            }
        })?;
        if let Some(pause) = system::watchdog() {
            let control = Arc::clone(self);
            threads::essential("watchdog", move || {
                loop {
                    std::thread::sleep(pause);
                    // Who works with tenants for so long does not come back.
                    if control.tenants.try_lock_for(pause).is_some() {
                        system::tell("WATCHDOG=1");
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Reads the policy file again. Tenants stay, whatever it says now.
    ///
    /// # Errors
    /// It is wrong: what held before holds on.
    pub(super) fn reload(&self) -> Result<()> {
        system::tell_reloading();
        let read = (self.system.load)().and_then(|config| {
            let old = self.settings();
            let later = config.differences(&old.config);
            if !later.is_empty() {
                tracing::warn!(keys = later.join(", "), "these take effect when the daemon is started anew");
            }
            Settings::new(config.beside(&old.config), self.system.host)
        });
        let done = read.map(|settings| {
            let settings = Arc::new(settings);
            *self.settings.lock() = Arc::clone(&settings);
            self.change(|tenants| ((), tenants.reconfigure(&settings)));
            tracing::info!("policy was read again");
        });
        if let Err(error) = &done {
            tracing::error!("policy stays as it was: {error:#}");
        }
        system::tell("READY=1");
        done.context("policy stays as it was")
    }

    /// Lets nobody in any more, and ends when all have left, or have had their time; at once if that is asked for again.
    fn drain(self: &Arc<Control>) {
        let already = self.tenants.lock().drain();
        if already {
            tracing::info!("asked again: ending now");
            self.end();
        }
        let settings = self.settings();
        let default = if self.is_system() { DRAIN } else { Duration::ZERO };
        let bound = settings.config.drain_seconds.map_or(default, Duration::from_secs);
        system::tell("STOPPING=1");
        tracing::info!(?bound, "ending: nobody comes in any more, and those who are there may finish");
        let control = Arc::clone(self);
        let wait = move || {
            let since = Instant::now();
            while since.elapsed() < bound {
                let empty = control.change(|tenants| {
                    let orders = tenants.sweep();
                    (tenants.is_empty(), orders)
                });
                if empty {
                    break;
                }
                std::thread::sleep(LOOK);
            }
            control.end();
        };
        if std::thread::Builder::new().name("draining".into()).spawn(wait).is_err() {
            self.end();
        }
    }

    /// Leaves nothing behind that others would look at, and ends.
    pub(super) fn end(&self) -> ! {
        let ours = [self.directory.admin_socket(), self.directory.session_socket()];
        let ours = ours.into_iter().filter(|_| self.system.sockets_are_ours);
        let doors: Vec<PathBuf> = self.tenants.lock().doors();
        for socket in ours.chain(doors) {
            let _ = std::fs::remove_file(socket);
        }
        self.close_usage();
        tracing::info!("ended");
        // The device process ends with us.
        std::process::exit(0);
    }
}
