//! A GPU's device process: started, told, and started again.
//!
//! ```text
//!            start                    says that it works
//!   (none) ─────────► starting ──────────────────────────► serving
//!      ▲                 │                                    │
//!      │    pause        ▼  it ends, or does not read         │
//!      └───────────── dead ◄──────────────────────────────────┘
//! ```
//! One that is killed, but does not go because the kernel waits for somebody, is left behind (`corpses`).
//!
//! A life begins with one list of all tenants. Whoever changes the tenants holds their lock until the change is in the
//! present life's queue ([`Control::change`]), so every life hears of each tenant, in order, from the list or after it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpu::Properties;
use parking_lot::{Condvar, Mutex};
use tenancy::TenantId;
use transport::unix;

use super::corpses;
use super::deaths::Deaths;
use super::tenants::{Orders, Tenants};
use super::{Control, Seat};
use crate::admin::{Listing, SessionLine};
use crate::link::{self, FromDevice, ToDevice, VgpuStatus};
use crate::memory_policy::MemoryRules;
use crate::size::GpuSpec;

/// Longest wait for a report.
pub(super) const REPORT_BOUND: Duration = Duration::from_secs(5);
/// Between two looks at a device process that says nothing.
const LOOK: Duration = Duration::from_secs(1);

/// The connection to the present device process of a GPU.
pub(super) struct DeviceLink {
    /// Its number among the daemon's, and what it is.
    gpu: (usize, GpuSpec),
    memory: MemoryRules,
    state: Mutex<LinkState>,
    changed: Condvar,
}

/// What a virtual GPU has now, bytes, and why not what was asked for.
pub(super) type Resized = (u64, Option<String>);

/// A message and what goes with it.
type Parcel = (ToDevice, Vec<OwnedFd>);

#[derive(Default)]
struct LinkState {
    /// To the thread that writes to the present device process.
    queue: Option<Sender<Parcel>>,
    /// The present one works: the GPU's name and memory. Gone with the queue at the latest.
    ready: Option<(String, u64)>,
    /// What the GPU is: the next process's is the same.
    properties: Option<Properties>,
    /// One has worked.
    began: bool,
    /// The first one did not start: why.
    failed: Option<String>,
    /// Who waits for a session or a guest to be taken, by its number.
    handed: HashMap<u64, Sender<()>>,
    /// Who waits for a report, in order.
    reports: Vec<Sender<Listing>>,
    /// As far as the first of them has come.
    reported: Vec<SessionLine>,
    /// Who waits for a virtual GPU that is being made or ended: it is told why it is not.
    vgpus: HashMap<TenantId, Sender<Option<String>>>,
    /// Who waits for a virtual GPU to have another size: it is told what it has, and why not what was asked for.
    resizes: HashMap<TenantId, Sender<Resized>>,
    /// Who waits for what virtual GPUs do, in order.
    vgpu_reports: Vec<Sender<Vec<VgpuStatus>>>,
    deaths: Deaths,
}

impl DeviceLink {
    pub(super) fn new(gpu: (usize, GpuSpec), memory: MemoryRules) -> DeviceLink {
        DeviceLink { gpu, memory, state: Mutex::new(LinkState::default()), changed: Condvar::new() }
    }

    /// Waits until the GPU works: its name and memory.
    pub(super) fn wait_ready(&self, bound: Duration) -> Result<(String, u64)> {
        let deadline = Instant::now() + bound;
        let mut state = self.state.lock();
        loop {
            if let Some(ready) = &state.ready {
                return Ok(ready.clone());
            }
            if let Some(reason) = &state.failed {
                bail!("the GPU does not start: {reason}");
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                match state.deaths.in_a_row {
                    0 => bail!("the GPU does not start in {bound:?}"),
                    n => bail!("the GPU is being restarted, after {n} deaths in a row; the daemon's log says why"),
                }
            }
        }
    }

    /// The GPU's name and memory, if it works now.
    pub(super) fn facts(&self) -> Option<(String, u64)> {
        self.state.lock().ready.clone()
    }

    /// What the GPU is, if it ever worked.
    pub(super) fn properties(&self) -> Option<Properties> {
        self.state.lock().properties.clone()
    }

    /// How often the device process has died.
    pub(super) fn deaths(&self) -> u64 {
        self.state.lock().deaths.ever
    }

    /// Sends a message, and what goes with it; never waits.
    pub(super) fn send(&self, message: ToDevice, fds: Vec<OwnedFd>) -> Result<()> {
        let state = self.state.lock();
        let queue = state.queue.as_ref().context("the GPU is being restarted")?;
        queue.send((message, fds)).ok().context("the GPU does not answer")
    }

    /// Hands a session or a guest over, by its number: something is heard when it is taken. If the device process dies before,
    /// the sender is gone, and nobody has it. Who holds the lock of tenants hands it to a process that knows of each of them.
    pub(super) fn hand_over(&self, number: u64, message: ToDevice, fds: Vec<OwnedFd>) -> Receiver<()> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock();
        match &state.queue {
            Some(queue) if queue.send((message, fds)).is_ok() => drop(state.handed.insert(number, sender)),
            // It is as good as dead: the next one says when it works.
            _ => state.ready = None,
        }
        receiver
    }

    /// A session or a guest has been taken.
    fn taken(&self, number: u64) {
        // Who no longer waits does not mind.
        self.state.lock().handed.remove(&number).map(|waiting| waiting.send(()));
    }

    /// Who is there?
    pub(super) fn report(&self) -> Result<Listing> {
        self.ask_report()?.recv_timeout(REPORT_BOUND).context("the GPU does not answer")
    }

    /// The same, to be waited for.
    pub(super) fn ask_report(&self) -> Result<Receiver<Listing>> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock();
        let device_deaths = state.deaths.ever;
        let Some(queue) = &state.queue else {
            // Nobody.
            let _ = sender.send(Listing { device_deaths, ..Listing::default() });
            return Ok(receiver);
        };
        // In one lock, so that reports and those who wait for them keep the same order.
        queue.send((ToDevice::Report, Vec::new())).ok().context("the GPU does not answer")?;
        state.reports.push(sender);
        Ok(receiver)
    }
}

impl DeviceLink {
    /// What is heard of a virtual GPU next: it was made, or not; or it has ended.
    pub(super) fn expect(&self, vgpu: TenantId) -> Receiver<Option<String>> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock();
        // Nothing is heard of anybody while there is no device process: who waits finds the sender gone.
        if state.queue.is_some() {
            state.vgpus.insert(vgpu, sender);
        }
        drop(state);
        receiver
    }

    /// Has a virtual GPU's memory changed; `None` if it is being changed already.
    pub(super) fn resize(&self, vgpu: TenantId, bytes: u64) -> Result<Option<Receiver<Resized>>> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock();
        if state.resizes.contains_key(&vgpu) {
            return Ok(None);
        }
        let queue = state.queue.as_ref().context("the GPU is being restarted")?;
        queue.send((ToDevice::ResizeVgpu { vgpu, bytes }, Vec::new())).ok().context("the GPU does not answer")?;
        state.resizes.insert(vgpu, sender);
        Ok(Some(receiver))
    }

    /// Something is heard.
    fn tell(&self, vgpu: TenantId, news: Option<String>) {
        match (self.state.lock().vgpus.remove(&vgpu), news) {
            // Who no longer waits does not mind.
            (Some(waiting), news) => drop(waiting.send(news)),
            (None, Some(reason)) => tracing::error!(?vgpu, reason, "a virtual GPU is not there any more"),
            (None, None) => {}
        }
    }

    /// What do virtual GPUs do? Nothing, while there is no device process.
    pub(super) fn vgpu_report(&self) -> Result<Vec<VgpuStatus>> {
        let (sender, receiver) = channel();
        {
            let mut state = self.state.lock();
            let Some(queue) = &state.queue else { return Ok(Vec::new()) };
            queue.send((ToDevice::ReportVgpus, Vec::new())).ok().context("the GPU does not answer")?;
            state.vgpu_reports.push(sender);
        }
        receiver.recv_timeout(REPORT_BOUND).context("the GPU does not answer")
    }
}

impl Control {
    /// The supervisor's thread of a GPU: never ends, unless the first device process does not start.
    pub(super) fn supervise(self: Arc<Control>, gpu: usize) {
        let device = &self.gpus[gpu].device;
        loop {
            let start = Instant::now();
            if let Err(error) = self.run_device(gpu) {
                tracing::error!(gpu, "cannot run the device process: {error:#}");
            }
            let mut state = device.state.lock();
            if !state.began {
                state.failed = Some("its process ended; the log says why".into());
                device.changed.notify_all();
                return;
            }
            let pause = state.deaths.add(start.elapsed());
            let deaths = state.deaths.in_a_row;
            drop(state);
            if !pause.is_zero() {
                tracing::error!(gpu, deaths, ?pause, "the device process dies again and again; the next start waits");
                std::thread::sleep(pause);
            }
        }
    }

    /// One life of a device process.
    fn run_device(&self, gpu: usize) -> Result<()> {
        let Seat { device, compilers, .. } = &self.gpus[gpu];
        let (number, spec) = device.gpu;
        let (ours, theirs) = unix::pair()?;
        unix::set_send_timeout(&ours, Some(link::SEND_BOUND))?;
        let mut child = crate::own_program()
            .args(["device", "--gpu", &spec.to_string(), "--number", &number.to_string()])
            .args(["--memory", &device.memory.to_string()])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start")?;
        let ours = Arc::new(ours);
        let pid = child.id();
        let listened = self.begin_life(gpu, &ours).and_then(|()| self.listen_to_device(gpu, &ours, pid));
        {
            let mut state = device.state.lock();
            state.queue = None;
            state.ready = None;
            // Their senders go: who waits is told at once.
            state.handed.clear();
            state.reports.clear();
            state.reported.clear();
            state.vgpu_reports.clear();
            state.vgpus.clear();
            state.resizes.clear();
        }
        let sessions = self.change(|tenants| (tenants.sessions(gpu), tenants.lost(gpu)));
        self.usage.device_ended(gpu);
        compilers.end();
        // It is gone, or says what nobody understands, or does not listen.
        let _ = child.kill();
        match corpses::reap(child)? {
            Some(status) => {
                tracing::error!(gpu, %status, sessions, "the device process ended, and its sessions with it")
            }
            None => tracing::error!(
                gpu,
                pid,
                sessions,
                "the device process was killed, and its sessions with it; but the kernel does not let go of it, with all its memory"
            ),
        }
        listened
    }

    /// Tells a new device process of all tenants, and all others where it is.
    fn begin_life(&self, gpu: usize, socket: &Arc<OwnedFd>) -> Result<()> {
        let (queue, parcels) = channel();
        let writing = Arc::clone(socket);
        std::thread::Builder::new().name("to the device".into()).spawn(move || write(&writing, &parcels))?;
        self.change(|tenants| {
            let orders = tenants.restart(gpu);
            self.gpus[gpu].device.state.lock().queue = Some(queue);
            ((), orders)
        });
        Ok(())
    }

    fn listen_to_device(&self, gpu: usize, socket: &OwnedFd, pid: u32) -> Result<()> {
        let Seat { device, compilers, .. } = &self.gpus[gpu];
        let mut buffer = Vec::new();
        loop {
            while !unix::readable(socket, LOOK)? {
                if corpses::is_dying(pid) {
                    return Ok(());
                }
            }
            let Some((message, _)) = link::receive(socket, &mut buffer)? else { return Ok(()) };
            match message {
                FromDevice::Ready { properties } => {
                    // Whoever waits until it works finds it among those where tenants go.
                    self.change(|tenants| (tenants.works(gpu), Orders::new()));
                    let mut state = device.state.lock();
                    (state.ready, state.began) = (Some((properties.name.clone(), properties.memory_bytes)), true);
                    state.properties = Some(properties);
                    drop(state);
                    device.changed.notify_all();
                }
                FromDevice::Taken { number } => device.taken(number),
                FromDevice::Ended { session } => {
                    // One that is refused is not taken before.
                    device.taken(session);
                    self.change(|tenants| ((), tenants.close_on(gpu, session)));
                    self.usage.soon();
                }
                FromDevice::Report { lines, last } => {
                    let mut state = device.state.lock();
                    let device_deaths = state.deaths.ever;
                    state.reported.extend(lines.into_iter().map(|line| SessionLine { gpu, ..line }));
                    if last && !state.reports.is_empty() {
                        let sessions = std::mem::take(&mut state.reported);
                        // Who no longer waits does not mind.
                        let _ = state.reports.remove(0).send(Listing { sessions, device_deaths, ..Listing::default() });
                    }
                }
                FromDevice::Metered { number, rows, time } => self.usage.hear(gpu, number, rows, time),
                FromDevice::VgpuMade { vgpu, refused } => device.tell(vgpu, refused),
                FromDevice::VgpuResized { vgpu, bytes, refused } => {
                    let waiting = device.state.lock().resizes.remove(&vgpu);
                    // Who no longer waits does not mind; its limit is what it has all the same.
                    self.change(|tenants| ((), tenants.resized_vgpu(gpu, vgpu, bytes)));
                    waiting.map(|waiting| waiting.send((bytes, refused)));
                }
                FromDevice::VgpuEnded { vgpu } => device.tell(vgpu, None),
                FromDevice::Vgpus(statuses) => {
                    let mut state = device.state.lock();
                    if !state.vgpu_reports.is_empty() {
                        let _ = state.vgpu_reports.remove(0).send(statuses);
                    }
                }
                FromDevice::WantCompiler => {
                    // This thread lives as long as the process, and compilers as long as it.
                    let (message, fds) = compilers.start();
                    // One that does not listen is shut down; what it said before is still heard.
                    if let Err(error) = device.send(message, fds) {
                        tracing::debug!("{error:#}");
                    }
                }
            }
        }
    }

    /// Changes something about tenants, and has the device process told of it. If there is none, the next is told
    /// everything.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Tenants) -> (R, Orders)) -> R {
        let mut tenants = self.tenants.lock();
        let empty = tenants.is_empty();
        let (result, orders) = change(&mut tenants);
        if !(empty && tenants.is_empty()) {
            self.seen();
        }
        self.tell(orders);
        result
    }

    /// Has the device process told, by whoever holds the lock of tenants.
    pub(super) fn tell(&self, orders: Orders) {
        for (gpu, order) in orders {
            if let Err(error) = self.gpus[gpu].device.send(order, Vec::new()) {
                tracing::debug!("{error:#}");
            }
        }
    }
}

/// The thread that writes to a device process. One that does not read is as good as dead: its socket is closed, and the
/// supervisor sees to the rest.
fn write(socket: &OwnedFd, parcels: &Receiver<Parcel>) {
    for (message, fds) in parcels {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        if let Err(error) = link::send(socket, &message, &fds) {
            tracing::debug!(%error, "the device process does not listen");
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            return;
        }
    }
}
