//! The device process: owns the GPU and serves the sessions on it, each on a thread of its own.
//!
//! It is told by its parent which tenants there are and which sockets to serve; what clients say after their hello is
//! parsed here and nowhere else. When the parent is gone, so is it. If it dies, its tenants' calls fail and the parent
//! starts another.

mod closing;
mod compilers;
mod machine;
mod meters;
mod served;
mod shares;
mod turns;
mod vgpus;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};
use compile_pool::Pool;
use fair_share::Means;
use gpu::{GpuError, VramLedger};
use gpu_driver::Budget;
use hostmem::strangers::{self, FAR_TOO_MANY_STRANGERS};
use parking_lot::Mutex;
use sandbox::Role;
use session::{Charges, Ended, Manner, MemoryBroker, Monitor, Session, SessionHandle, SharedAccount};
use tenancy::{Account, AccountAccess, Limits, NoDeviceCosts, TenantId, Used};
use transport::unix;
use wire::Reply;
use wire::handshake::features;

use crate::admin::SessionLine;
use crate::confine;
use crate::link::{self, FromDevice, ToDevice};
use crate::memory_policy::MemoryRules;
use crate::quiet::Quiet;
use crate::quota::Spender;
use crate::size::GpuSpec;
use crate::threads::{self, AtEnd};
use machine::{Machine, Meter, TenantBudget};
use meters::Books;
use shares::{PERIOD, Shares, Subject, User};
use turns::Turns;
use vgpus::Vgpu;

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which GPU.
    #[arg(long)]
    gpu: GpuSpec,
    /// Its number among those of the daemon.
    #[arg(long, default_value_t = 0)]
    number: u8,
    /// How GPU memory is granted where limits exceed it.
    #[arg(long)]
    memory: MemoryRules,
}

/// All that the process knows.
struct Device {
    machine: Machine,
    parent: Arc<OwnedFd>,
    compilers: Pool,
    monitor: Monitor,
    /// Held for short and fixed times only: every tenant comes by here.
    registry: Mutex<Registry>,
    shares: Shares,
    books: Books,
    quiet: Quiet,
    /// All of the GPU's memory.
    broker: Arc<MemoryBroker>,
}

#[derive(Default)]
struct Registry {
    tenants: HashMap<TenantId, Arc<Tenant>>,
    sessions: HashMap<u64, Running>,
    vgpus: HashMap<TenantId, Vgpu>,
}

struct Tenant {
    name: String,
    memory_bytes: AtomicU64,
    account: Arc<SharedAccount>,
    /// `None` if it has the whole device, whose budgets are its own.
    budget: Option<Arc<Budget>>,
    /// Its registration is over; it goes with its last session.
    left: AtomicBool,
}

impl Tenant {
    /// Most GPU memory that it may have.
    fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Running {
    tenant: TenantId,
    pid: i32,
    handle: SessionHandle,
    meter: Arc<Meter>,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    crate::start_log();
    if let Err(error) = strangers::prepare() {
        tracing::warn!(%error, "descriptors that guests send cannot be judged: interrupts and write traps are not for them");
    }
    confine::begin(Role::Device, &[]);
    crate::runtime_directory::allow_many_files()?;
    let parent = std::io::stdin().as_fd().try_clone_to_owned().context("no parent")?;
    let parent = Arc::new(parent);
    let compilers = compilers::pool(&parent)?;
    // The filter below allows it.
    hostmem::allow_hints();
    let machine = Machine::start((args.gpu, args.number), Arc::new(compilers.clone()))?;
    let properties = machine.properties().clone();
    // Everything is open that ever will be, and no tenant has said a word yet.
    confine::seal(Role::Device);
    link::send(&parent, &FromDevice::Ready { properties }, &[])?;
    let device = Device::new(machine, compilers, parent, args.memory)?;
    let broker = Arc::clone(&device.broker);
    threads::essential("memory", move || broker.attend())?;
    let steering = Arc::clone(&device);
    threads::essential("shares", move || steering.steer())?;
    let mut buffer = Vec::new();
    loop {
        match link::receive(&device.parent, &mut buffer)? {
            Some((message, fds)) => device.obey(message, fds)?,
            None => return Ok(()),
        }
    }
}

impl Device {
    fn new(machine: Machine, compilers: Pool, parent: Arc<OwnedFd>, memory: MemoryRules) -> Result<Arc<Device>> {
        let (_, bytes) = machine.facts();
        Ok(Arc::new(Device {
            broker: MemoryBroker::new(bytes, memory.rules(), memory.longest_wait(), machine.vram_beside_clients()),
            machine,
            parent,
            compilers,
            monitor: Monitor::start(|| threads::broken("the monitor of sessions"))?,
            registry: Mutex::default(),
            shares: Shares::new(),
            books: Books::new(),
            quiet: Quiet::new(),
        }))
    }

    /// A tenant's account, in which the device counts nothing: it has all of it.
    fn give_whole(&self, id: TenantId) -> Result<Arc<Tenant>, String> {
        let mut registry = self.registry.lock();
        let others = registry.tenants.keys().any(|other| *other != id);
        if others || !registry.sessions.is_empty() || !registry.vgpus.is_empty() {
            return Err("pass-through takes the whole GPU, and others are on it".into());
        }
        let before = registry.tenants.get(&id).ok_or("there is no such tenant")?;
        let limits = before.account.with(|account| account.limits().clone());
        let tenant = Arc::new(Tenant {
            name: before.name.clone(),
            memory_bytes: AtomicU64::new(before.memory_bytes()),
            account: SharedAccount::new(Account::new(limits, Box::new(NoDeviceCosts))),
            budget: None,
            left: AtomicBool::new(false),
        });
        registry.tenants.insert(id, Arc::clone(&tenant));
        Ok(tenant)
    }

    fn obey(self: &Arc<Device>, message: ToDevice, fds: Vec<OwnedFd>) -> Result<()> {
        match message {
            ToDevice::Tenant { id, name, spender, limits, share_percent, priority, on_full } => {
                self.broker.set(id, limits.vram_bytes, on_full);
                self.shares.set(id, share_percent, priority);
                self.admit(id, (name, &spender), limits);
            }
            ToDevice::Forget { tenant } => {
                if let Some(known) = self.registry.lock().tenants.get(&tenant) {
                    known.left.store(true, Ordering::Relaxed);
                }
                self.sweep(tenant);
            }
            ToDevice::Open { session, tenant, pid, features, staging_block, gpus } => {
                let manner = Manner { features, staging_block, gpus };
                let device = Arc::clone(self);
                let name = format!("session {session}");
                let work = move || {
                    let _ended = AtEnd(|| device.forget(session, tenant));
                    let mut fds = fds.into_iter();
                    match fds.next() {
                        Some(socket) => device.serve(session, (tenant, pid, manner), (socket, fds.next())),
                        None => tracing::error!(session, "no room for a client's socket"),
                    }
                };
                if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
                    // The client sees its socket closed.
                    tracing::error!(%error, "cannot start a thread");
                    link::send(&self.parent, &FromDevice::Ended { session }, &[])?;
                }
            }
            ToDevice::Compiler { pid, cached } => compilers::admit(&self.compilers, pid, cached, fds),
            ToDevice::NoCompiler { reason } => self.compilers.refuse(&reason),
            ToDevice::Schedule { scheduler } => self.shares.schedule(scheduler.0),
            ToDevice::MakeVgpu { vgpu, scheme, shadowing, most_bytes } => {
                self.make_vgpu(vgpu, (scheme, shadowing), most_bytes)?;
            }
            ToDevice::ResizeVgpu { vgpu, bytes } => self.resize_vgpu(vgpu, bytes)?,
            ToDevice::TraceVgpu { vgpu } => self.trace_vgpu(vgpu, fds),
            ToDevice::ShadowVgpu { vgpu, shadowing } => self.shadow_vgpu(vgpu, shadowing),
            ToDevice::EndVgpu { vgpu } => self.end_vgpu(vgpu)?,
            ToDevice::Guest { number, vgpu, pid } => {
                link::send(&self.parent, &FromDevice::Taken { number }, &[])?;
                self.let_guest_in(vgpu, pid, fds);
            }
            ToDevice::ReportVgpus => link::send(&self.parent, &FromDevice::Vgpus(self.report_vgpus()), &[])?,
            ToDevice::Meter { number } => {
                let (rows, time) = self.metered();
                link::send_metered(&self.parent, number, rows, time)?;
            }
            ToDevice::Report => link::send_report(&self.parent, self.report())?,
        }
        Ok(())
    }

    /// A tenant is there, or its terms have changed.
    fn admit(&self, id: TenantId, (name, spender): (String, &Spender), limits: Limits) {
        let (_, total) = self.machine.facts();
        let reserved = limits.vram_bytes.min(total);
        let known = self.registry.lock().tenants.get(&id).cloned();
        if let Some(known) = known {
            self.books.admit(id, &name, spender, reserved);
            known.memory_bytes.store(limits.vram_bytes, Ordering::Relaxed);
            for running in self.registry.lock().sessions.values().filter(|running| running.tenant == id) {
                running.meter.set_memory_limit(limits.vram_bytes);
            }
            return known.account.with(|account| account.set_limits(limits));
        }
        let budget = match self.machine.budget() {
            Ok(budget) => budget,
            // Its sessions are refused.
            Err(error) => return tracing::error!(%error, name, "no budget for a tenant"),
        };
        self.books.admit(id, &name, spender, reserved);
        let memory_bytes = AtomicU64::new(limits.vram_bytes);
        let account = Account::new(limits, Box::new(TenantBudget(Arc::clone(&budget))));
        let account = SharedAccount::sharing(account, &self.broker, id);
        let tenant = Tenant { name, memory_bytes, account, budget: Some(budget), left: AtomicBool::new(false) };
        self.registry.lock().tenants.insert(id, Arc::new(tenant));
    }

    /// Serves one client to its end.
    fn serve(&self, number: u64, client: (TenantId, i32, Manner), fds: (OwnedFd, Option<OwnedFd>)) {
        let (_, pid, _) = client;
        let (socket, process) = (Arc::new(fds.0), fds.1);
        match self.open(number, client, (&socket, process)) {
            Ok(session) => {
                let ended = session.run();
                match ended {
                    // Our fault, whatever it did; and it can do it again.
                    Ended::Panicked(_) if self.quiet.may() => {
                        tracing::error!(session = number, pid, %ended, "session ended");
                    }
                    _ if self.quiet.may() => tracing::info!(session = number, pid, %ended, "session ended"),
                    _ => {}
                }
            }
            Err(reason) => {
                if self.quiet.may() {
                    tracing::info!(session = number, pid, reason, "session refused");
                }
                // A client that is gone already misses nothing.
                let _ = unix::send(&*socket, &Reply::Refused(reason).encode(), &[], false);
            }
        }
        // Nobody puts anything more into it; and to close what somebody has may take for ever.
        unix::shut_down(&*socket);
        if unix::has_unreceived(&*socket) {
            let user = unix::peer(&*socket).map_or(u32::MAX, |peer| peer.uid);
            strangers::drop_aside(socket, user);
        }
    }

    fn open(
        &self,
        number: u64,
        (id, pid, manner): (TenantId, i32, Manner),
        (socket, process): (&Arc<OwnedFd>, Option<OwnedFd>),
    ) -> Result<Session, String> {
        let text = |error: GpuError| error.to_string();
        // What lies in a socket when its session ends may take its closing for ever.
        let user = unix::peer(&**socket).map_or(u32::MAX, |peer| peer.uid);
        if strangers::strangers_of(user) >= FAR_TOO_MANY_STRANGERS {
            return Err(format!(
                "{FAR_TOO_MANY_STRANGERS} descriptors that user {user} has sent are still being closed"
            ));
        }
        let known = self.registry.lock().tenants.get(&id).cloned();
        let Some(tenant) = known.filter(|tenant| !tenant.left.load(Ordering::Relaxed)) else {
            return Err("this tenant has left".into());
        };
        let budget = tenant.budget.as_ref().ok_or("it has the whole GPU as a virtual one")?;
        let charges = Charges::hold(&tenant.account, manner.own()).map_err(text)?;
        let host_bytes = tenant.account.with(|account| account.limits().host_bytes);
        let aperture = manner.features & features::APERTURE != 0;
        let memory = (tenant.memory_bytes(), Arc::clone(charges.vram()) as Arc<dyn VramLedger>);
        let opened = self.machine.open(&tenant.name, memory, host_bytes, budget, aperture);
        let (backend, meter) = opened.map_err(text)?;
        let socket = Arc::clone(socket);
        link::send(&self.parent, &FromDevice::Taken { number }, &[]).map_err(|error| error.to_string())?;
        let begun = Session::begin(socket, process, manner, &backend, charges, &self.monitor);
        let session = begun.map_err(|error| error.to_string())?;
        let running = Running { tenant: id, pid, handle: session.handle(), meter: Arc::new(meter) };
        self.books.with(|ledger| ledger.begin(number, id));
        let running_meter = Arc::clone(&running.meter);
        self.registry.lock().sessions.insert(number, running);
        // It may have changed meanwhile.
        running_meter.set_memory_limit(tenant.memory_bytes());
        self.shares.wake();
        #[cfg(test)]
        tests::maybe_panic(&tenant.name);
        if self.quiet.may() {
            tracing::info!(session = number, pid, "session opened");
        }
        Ok(session)
    }

    /// A session's thread is about to end, whatever the reason.
    fn forget(&self, session: u64, tenant: TenantId) {
        // In this order: whoever asks meanwhile finds what it had in the one place or the other.
        let ended = self.registry.lock().sessions.get(&session).cloned();
        if let Some(running) = ended {
            self.settle(session, &running);
        }
        // What it holds of the client's is let go of where nothing is locked: closing a socket that somebody has put descriptors
        // into may take for ever.
        let ended = self.registry.lock().sessions.remove(&session);
        drop(ended);
        self.sweep(tenant);
        // Fails only when the parent is gone, and then so are we.
        let _ = link::send(&self.parent, &FromDevice::Ended { session }, &[]);
    }

    /// Forgets a tenant that has left and to which nothing is charged any more.
    fn sweep(&self, id: TenantId) {
        let mut registry = self.registry.lock();
        if !registry.tenants.contains_key(&id) {
            drop(registry);
            // There was no budget for it, but it may have been told of there.
            self.shares.remove(id);
            return self.broker.leave(id);
        }
        let gone = registry.tenants.get(&id).is_some_and(|tenant| {
            tenant.left.load(Ordering::Relaxed) && tenant.account.with(|account| account.used()) == Used::default()
        });
        if gone {
            let tenant = registry.tenants.remove(&id);
            drop(registry);
            self.shares.remove(id);
            self.books.with(|ledger| {
                if let Some(tenant) = tenant {
                    ledger.memory(id, tenant.account.memory_byte_ns());
                }
                ledger.leave(id);
            });
            self.broker.leave(id);
        }
    }

    /// All sessions, for `ps`: asks no client's GPU, which may be busy with that client.
    fn report(&self) -> Vec<SessionLine> {
        let present: Vec<(u64, Running, Arc<Tenant>)> = {
            let registry = self.registry.lock();
            let with_tenant = |(&number, running): (&u64, &Running)| {
                Some((number, running.clone(), Arc::clone(registry.tenants.get(&running.tenant)?)))
            };
            registry.sessions.iter().filter_map(with_tenant).collect()
        };
        let mut lines: Vec<SessionLine> =
            present.iter().map(|(number, running, tenant)| self.line(*number, running, tenant)).collect();
        lines.sort_by(|a, b| (&a.tenant, a.pid).cmp(&(&b.tenant, b.pid)));
        lines
    }

    fn line(&self, number: u64, running: &Running, tenant: &Tenant) -> SessionLine {
        let standing = self.shares.standing(running.tenant);
        let (calls_local, calls_remote) = running.handle.calls();
        let ways = running.handle.remoting();
        let (_, total) = self.machine.facts();
        let waiting = running.handle.waiting();
        let state = match () {
            () if running.handle.is_ending() => "ending",
            () if waiting.is_some() => "waiting",
            () if self.shares.is_backlogged(number) => "running",
            () => "idle",
        };
        let (host_used, host_limit) =
            tenant.account.with(|account| (account.host_bytes(), account.limits().host_bytes));
        SessionLine {
            // Whoever asks knows which GPU this is.
            gpu: 0,
            tenant: tenant.name.clone(),
            pid: running.pid,
            memory_used: running.handle.memory_bytes(),
            memory_limit: tenant.memory_bytes().min(total),
            memory_reserved: self.broker.held(running.tenant),
            memory_waiting_bytes: waiting.map_or(0, |(bytes, _)| bytes),
            memory_waiting_seconds: waiting.map_or(0.0, |(_, since)| since.as_secs_f64()),
            host_memory_used: host_used,
            host_memory_limit: host_limit,
            share_entitled: standing.map_or(0.0, |standing| standing.entitled_percent),
            share_received: standing.map_or(0.0, |standing| standing.received_percent),
            priority: self.shares.priority(running.tenant),
            gpu_time_ns: standing.map_or(0, |standing| standing.used_ns),
            session_gpu_time_ns: self.shares.used_ns(number),
            calls_local,
            calls_remote,
            calls_sent: ways.calls_sent,
            round_trips: ways.round_trips,
            copy_seconds: ways.copy_ns as f64 / 1e9,
            wait_seconds: ways.wait_ns as f64 / 1e9,
            kernels: running.meter.kernels(),
            kernels_interpreted: tenant.budget.as_ref().map_or(0, |budget| budget.interpreted()),
            compiling: tenant.budget.as_ref().map_or(0, |budget| budget.compiling()),
            state: state.into(),
        }
    }

    /// The thread that steers shares: never ends.
    fn steer(&self) {
        hostmem::prefer_short_slices();
        let mut turns = Turns::default();
        let mut competing = false;
        loop {
            if !competing {
                self.shares.pause();
            }
            self.shares.begin();
            let subjects = self.subjects();
            self.shares.step(&subjects);
            competing = match self.shares.means() {
                Means::Turns(rule) => {
                    turns.take(rule, &self.shares.given(), &subjects, PERIOD, || self.shares.has_news())
                }
                Means::Slices => {
                    turns.release(&subjects);
                    false
                }
            };
            if self.machine.is_lost() {
                // Only another process can have another device; every client is told by our end.
                tracing::error!("the GPU does not obey any more");
                std::process::exit(1);
            }
        }
    }

    /// All who have time of the GPU.
    fn subjects(&self) -> Vec<Subject> {
        let registry = self.registry.lock();
        let session = |(&number, running): (&u64, &Running)| {
            let (handle, meter) = (running.handle.clone(), Arc::clone(&running.meter));
            Subject { number, tenant: running.tenant, user: User::Session { handle, meter } }
        };
        let guest = |vgpu: &Vgpu| {
            let hosted = Arc::clone(&vgpu.hosted);
            Subject { number: hosted.number(), tenant: hosted.tenant(), user: User::Vgpu(hosted) }
        };
        registry.sessions.iter().map(session).chain(registry.vgpus.values().map(guest)).collect()
    }
}

#[cfg(test)]
mod tests;
