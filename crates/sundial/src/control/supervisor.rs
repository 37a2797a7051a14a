//! The device process: started, told, and started again.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex};
use transport::unix;

use super::Control;
use super::tenants::Orders;
use crate::admin::Listing;
use crate::link::{self, FromDevice, ToDevice};
use crate::size::GpuSpec;

/// Shortest time between two starts.
const BREATH: Duration = Duration::from_millis(500);
/// Starts in a row that failed before the GPU was ready: more, and the daemon gives up.
const TRIES: u32 = 5;
/// Longest wait for a report.
const REPORT_BOUND: Duration = Duration::from_secs(5);

/// The connection to the present device process.
pub(super) struct DeviceLink {
    gpu: GpuSpec,
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    socket: Option<Arc<OwnedFd>>,
    ready: Option<(String, u64)>,
    failed: Option<String>,
    /// Who waits for a report, in order.
    reports: Vec<Sender<Listing>>,
}

impl DeviceLink {
    pub(super) fn new(gpu: GpuSpec) -> DeviceLink {
        DeviceLink { gpu, state: Mutex::new(LinkState::default()), changed: Condvar::new() }
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
                bail!("the GPU does not start in {bound:?}");
            }
        }
    }

    /// Sends a message, with a client's socket if there is one.
    pub(super) fn send(&self, message: &ToDevice, fd: Option<&OwnedFd>) -> Result<()> {
        let socket = self.state.lock().socket.clone().context("the GPU is being restarted")?;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        link::send(&socket, message, &fds).context("the GPU does not answer")
    }

    /// Who is there?
    pub(super) fn report(&self) -> Result<Listing> {
        let (sender, receiver) = channel();
        {
            let mut state = self.state.lock();
            let Some(socket) = state.socket.clone() else { return Ok(Listing::default()) };
            // In one lock, so that reports and those who wait for them keep the same order.
            link::send(&socket, &ToDevice::Report, &[]).context("the GPU does not answer")?;
            state.reports.push(sender);
        }
        receiver.recv_timeout(REPORT_BOUND).context("the GPU does not answer")
    }
}

impl Control {
    /// The supervisor's thread: never ends, unless the GPU does not start.
    pub(super) fn supervise(self: Arc<Control>) {
        let mut failures = 0;
        loop {
            let start = Instant::now();
            match self.run_device() {
                Ok(()) if self.device.state.lock().ready.is_some() => failures = 0,
                Ok(()) => failures += 1,
                Err(error) => {
                    failures += 1;
                    tracing::error!("cannot run the device process: {error:#}");
                }
            }
            if failures >= TRIES || self.device.state.lock().ready.is_none() && failures > 0 {
                let mut state = self.device.state.lock();
                state.failed = Some("its process ended; the log says why".into());
                self.device.changed.notify_all();
                if state.ready.is_some() {
                    tracing::error!("the GPU failed {failures} times in a row; giving up");
                    std::process::exit(1);
                }
                return;
            }
            std::thread::sleep(BREATH.saturating_sub(start.elapsed()));
        }
    }

    /// One life of a device process.
    fn run_device(&self) -> Result<()> {
        let (ours, theirs) = unix::pair()?;
        unix::set_send_timeout(&ours, Some(link::SEND_BOUND))?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["device", "--gpu", &self.device.gpu.to_string()])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start")?;
        let ours = Arc::new(ours);
        let orders = self.tenants.lock().restart();
        self.device.state.lock().socket = Some(Arc::clone(&ours));
        self.order(orders);
        let listened = self.listen_to_device(&ours);
        {
            let mut state = self.device.state.lock();
            state.socket = None;
            // Their senders go: who waits is told at once.
            state.reports.clear();
        }
        // It is gone, or says what nobody understands.
        let _ = child.kill();
        let status = child.wait()?;
        tracing::warn!(%status, "the device process ended");
        listened
    }

    fn listen_to_device(&self, socket: &OwnedFd) -> Result<()> {
        let mut buffer = Vec::new();
        while let Some((message, _)) = link::receive(socket, &mut buffer)? {
            match message {
                FromDevice::Ready { name, memory_bytes } => {
                    self.device.state.lock().ready = Some((name, memory_bytes));
                    self.device.changed.notify_all();
                }
                FromDevice::Ended { session } => {
                    let orders = self.tenants.lock().close(session);
                    self.order(orders);
                }
                FromDevice::Report(sessions) => {
                    let mut state = self.device.state.lock();
                    if !state.reports.is_empty() {
                        // Who no longer waits does not mind.
                        let _ = state.reports.remove(0).send(Listing { sessions });
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells the device process what changed. If it is gone, the next one is told everything.
    pub(super) fn order(&self, orders: Orders) {
        for order in orders {
            if let Err(error) = self.device.send(&order, None) {
                tracing::debug!("{error:#}");
            }
        }
    }
}
