//! The device process: owns the GPU and serves the sessions on it, each on a thread of its own.
//!
//! It is told by its parent which tenants there are and which sockets to serve; what clients say after their hello is
//! parsed here and nowhere else. When the parent is gone, so is it. If it dies, its tenants' calls fail and the parent
//! starts another.

mod machine;
mod shares;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result};
use gpu::GpuError;
use parking_lot::Mutex;
use session::{Monitor, Session, SessionHandle};
use tenancy::{Ledger, Limits, TenantId};
use transport::unix;
use wire::Reply;

use crate::admin::{MOST_LINES, SessionLine};
use crate::link::{self, FromDevice, ToDevice};
use crate::quiet::Quiet;
use crate::size::GpuSpec;
use machine::{Machine, Meter};
use shares::{Shares, Subject};

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which GPU.
    #[arg(long)]
    gpu: GpuSpec,
}

/// All that the process knows.
struct Device {
    machine: Machine,
    parent: OwnedFd,
    monitor: Monitor,
    ledger: Arc<Mutex<Ledger>>,
    state: Mutex<State>,
    shares: Shares,
    quiet: Quiet,
}

#[derive(Default)]
struct State {
    tenants: HashMap<TenantId, Tenant>,
    sessions: HashMap<u64, Running>,
}

struct Tenant {
    name: String,
    limits: Limits,
    /// Its registration is over; it goes with its last session.
    left: bool,
}

struct Running {
    tenant: TenantId,
    pid: i32,
    handle: SessionHandle,
    meter: Arc<Meter>,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    crate::start_log();
    // Nothing here needs more rights than it has, nor children, nor a debugger of the same user.
    rustix::thread::set_no_new_privs(true)?;
    crate::place::allow_many_files()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let parent = std::io::stdin().as_fd().try_clone_to_owned().context("no parent")?;
    let machine = Machine::start(args.gpu)?;
    let (name, memory_bytes) = machine.facts();
    link::send(&parent, &FromDevice::Ready { name, memory_bytes }, &[])?;
    let device = Arc::new(Device {
        machine,
        parent,
        monitor: Monitor::start()?,
        ledger: Arc::new(Mutex::new(Ledger::default())),
        state: Mutex::new(State::default()),
        shares: Shares::new(),
        quiet: Quiet::new(),
    });
    let steering = Arc::clone(&device);
    std::thread::Builder::new().name("shares".into()).spawn(move || steering.steer())?;
    let mut buffer = Vec::new();
    loop {
        match link::receive(&device.parent, &mut buffer) {
            Ok(Some((message, fd))) => device.obey(message, fd)?,
            Ok(None) => return Ok(()),
            // Descriptors are used up: a client has lost its socket, the others go on.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => tracing::error!(%error, "message lost"),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Device {
    fn obey(self: &Arc<Device>, message: ToDevice, fd: Option<OwnedFd>) -> Result<()> {
        match message {
            ToDevice::Tenant { id, name, limits, share_percent } => {
                self.ledger.lock().open(id, limits.clone());
                self.shares.set(id, share_percent);
                self.state.lock().tenants.insert(id, Tenant { name, limits, left: false });
            }
            ToDevice::Forget { tenant } => {
                if let Some(known) = self.state.lock().tenants.get_mut(&tenant) {
                    known.left = true;
                }
                self.sweep(tenant);
            }
            ToDevice::Open { session, tenant, pid } => {
                let device = Arc::clone(self);
                let name = format!("session {session}");
                let work = move || {
                    if let Some(socket) = fd {
                        device.serve(session, tenant, pid, socket);
                    }
                    // Fails only when the parent is gone, and then so are we.
                    let _ = link::send(&device.parent, &FromDevice::Ended { session }, &[]);
                };
                if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
                    // The client sees its socket closed.
                    tracing::error!(%error, "cannot start a thread");
                    link::send(&self.parent, &FromDevice::Ended { session }, &[])?;
                }
            }
            ToDevice::Report => link::send(&self.parent, &FromDevice::Report(self.report()), &[])?,
        }
        Ok(())
    }

    /// Serves one client to its end.
    fn serve(&self, number: u64, tenant: TenantId, pid: i32, socket: OwnedFd) {
        match self.open(number, tenant, pid, &socket) {
            Ok(session) => {
                let ended = session.run();
                self.state.lock().sessions.remove(&number);
                if self.quiet.may() {
                    tracing::info!(session = number, pid, %ended, "session ended");
                }
            }
            Err(reason) => {
                if self.quiet.may() {
                    tracing::info!(session = number, pid, reason, "session refused");
                }
                // A client that is gone already misses nothing.
                let _ = unix::send(&socket, &Reply::Refused(reason).encode(), &[], false);
            }
        }
        self.sweep(tenant);
    }

    fn open(&self, number: u64, tenant: TenantId, pid: i32, socket: &OwnedFd) -> Result<Session, String> {
        let text = |error: GpuError| error.to_string();
        let (name, vram_bytes, host_bytes) = match self.state.lock().tenants.get(&tenant) {
            Some(known) if !known.left => (known.name.clone(), known.limits.vram_bytes, known.limits.host_bytes),
            _ => return Err("this tenant has left".into()),
        };
        let tables = tenancy::Session::open(tenant, &mut self.ledger.lock()).map_err(text)?;
        let (backend, meter) = match self.machine.open(&name, vram_bytes, host_bytes) {
            Ok(opened) => opened,
            Err(error) => {
                tables.close(&mut self.ledger.lock());
                return Err(text(error));
            }
        };
        let socket = socket.try_clone().map_err(|error| error.to_string())?;
        let ledger = Arc::clone(&self.ledger);
        let session =
            Session::begin(socket, backend, tables, ledger, &self.monitor).map_err(|error| error.to_string())?;
        let running = Running { tenant, pid, handle: session.handle(), meter: Arc::new(meter) };
        self.state.lock().sessions.insert(number, running);
        self.shares.wake();
        if self.quiet.may() {
            tracing::info!(session = number, pid, "session opened");
        }
        Ok(session)
    }

    /// Forgets a tenant that has left and has no session any more.
    fn sweep(&self, tenant: TenantId) {
        let mut state = self.state.lock();
        let left = state.tenants.get(&tenant).is_some_and(|known| known.left);
        if left && self.ledger.lock().close(tenant) {
            state.tenants.remove(&tenant);
            self.shares.remove(tenant);
        }
    }

    fn report(&self) -> Vec<SessionLine> {
        let state = self.state.lock();
        let mut lines: Vec<SessionLine> = state
            .sessions
            .iter()
            .filter_map(|(&number, running)| {
                let tenant = state.tenants.get(&running.tenant)?;
                let standing = self.shares.standing(running.tenant);
                let (calls_local, calls_remote) = running.handle.calls();
                let (_, total) = self.machine.facts();
                let state = match () {
                    () if running.handle.is_ending() => "ending",
                    () if self.shares.is_backlogged(number) => "running",
                    () => "idle",
                };
                Some(SessionLine {
                    tenant: tenant.name.clone(),
                    pid: running.pid,
                    memory_used: running.handle.memory_bytes(),
                    memory_limit: tenant.limits.vram_bytes.min(total),
                    share_entitled: standing.map_or(0.0, |standing| standing.entitled_percent),
                    share_received: standing.map_or(0.0, |standing| standing.received_percent),
                    calls_local,
                    calls_remote,
                    kernels: running.meter.usage().1,
                    state: state.into(),
                })
            })
            .collect();
        lines.sort_by(|a, b| (&a.tenant, a.pid).cmp(&(&b.tenant, b.pid)));
        lines.truncate(MOST_LINES);
        lines
    }

    /// The thread that steers shares: never ends.
    fn steer(&self) {
        loop {
            self.shares.pause();
            let subjects: Vec<Subject> = self
                .state
                .lock()
                .sessions
                .iter()
                .map(|(&number, running)| Subject {
                    number,
                    tenant: running.tenant,
                    handle: running.handle.clone(),
                    meter: Arc::clone(&running.meter),
                })
                .collect();
            self.shares.step(&subjects);
            if self.machine.is_lost() {
                // Only another process can have another device; every client is told by our end.
                tracing::error!("the GPU does not obey any more");
                std::process::exit(1);
            }
        }
    }
}
