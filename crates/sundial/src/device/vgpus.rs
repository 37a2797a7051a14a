//! Virtual GPUs, and their guests.
//!
//! ```text
//!              a guest connects                    it leaves, or is made to leave
//!   idle ───────────────────────────► attached ───────────────────────────────────► idle
//!                                        │  a fault of ours, in what it asked for;
//!                                        │  or not all that it had can be taken from it
//!                                        ▼
//!                                      failed, or ended: kept until it is destroyed
//! ```
//! Each has a thread that attends to it and one that will end it, from its beginning on; a guest has one for as long as it is
//! there. Whatever a guest does is done on those.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use gpu_driver::{Metered, Usage};
use parking_lot::{Condvar, Mutex};
use session::Charges;
use tenancy::{AccountAccess, Limits, TenantId, Used};
use transport::unix;
use vfio_user::{Capabilities, Server, ServerOptions, Stopper};
use vgpu::{Config, PassThrough};

use super::closing::Closing;
use super::served::Served;
use super::{Device, meters};
use crate::admin;
use crate::link::{self, FromDevice, VgpuStatus};
use crate::quiet::Quiet;
use crate::scheme::Scheme;
use crate::shadowing::{Costs, Shadowing, Trap};

/// Most DMA maps of a guest. Each may be a file and an entry of this process's memory map, and counts as both.
const MOST_MAPS: u64 = 1024;
/// What it takes besides: stacks and buffers of its threads, messages, copies of what is audited.
const OWN_BYTES: u64 = 8 << 20;
/// Its threads: one that attends, one that will end it, the guest's, that of a guest who waits, one that waits for a guest, and one
/// that lets a guest's threads go on who have stored into a page table.
const OWN_THREADS: u64 = 6;
/// Descriptors besides: two sockets with a copy each, eventfds, the file that shows its VRAM, and those of its guest's trap, of which
/// there may be two for a moment.
const OWN_FILES: u64 = 14;
/// Entries of the memory map besides: stacks with their guards, and what a guest's trap has noted.
const OWN_MAPS: u64 = 20;
/// Longest that anybody looks at one.
const LOOK_BOUND: Duration = Duration::from_secs(10);
/// Longest that a guest may take to give memory back, or to take it again: less than who asks for it waits.
const RESIZE_BOUND: Duration = Duration::from_secs(8);
/// Where the numbers of virtual GPUs begin, among those of sessions.
const NUMBERS: u64 = 1 << 63;
/// Longest that a guest waits for the one before it, which has left, to be cleaned up after.
const TURN_BOUND: Duration = Duration::from_secs(5);

/// A virtual GPU, in the registry: ended when it is dropped.
pub(super) struct Vgpu {
    pub(super) hosted: Arc<Hosted>,
    closing: Closing,
}

/// A virtual GPU with whoever uses it.
pub(super) struct Hosted {
    name: String,
    tenant: TenantId,
    served: Served,
    capabilities: Capabilities,
    slice_ns: AtomicU64,
    /// What it costs its tenant, and the memory of the GPU in that.
    cost: Mutex<Cost>,
    seat: Mutex<Seat>,
    changed: Condvar,
    quiet: Quiet,
}

/// What a virtual GPU costs its tenant: given back when nothing of it is left.
struct Cost {
    charges: Option<Charges>,
    vram_bytes: u64,
}

/// The place of its one guest.
#[derive(Default)]
struct Seat {
    guest: Option<Guest>,
    /// Who waits for it: a number of its own, and the connection.
    next: Option<(u64, OwnedFd)>,
    /// Who has ever waited.
    waited: u64,
    closed: bool,
    /// What of ours has failed.
    failed: Option<String>,
}

struct Guest {
    pid: i32,
    socket: OwnedFd,
    stopper: Stopper,
}

/// How many DMA maps the guests of a tenant may have, and what a virtual GPU costs from its beginning on.
fn own(limits: &Limits) -> (u64, Used) {
    let maps = MOST_MAPS.min(limits.maps / 2).min(limits.files / 2);
    let cost = Used {
        vram_bytes: limits.vram_bytes,
        host_bytes: OWN_BYTES,
        maps: maps + OWN_MAPS,
        files: maps + OWN_FILES,
        threads: OWN_THREADS,
        ..Used::default()
    };
    (maps, cost)
}

impl Device {
    /// Makes a tenant's virtual GPU, and says what came of it.
    pub(super) fn make_vgpu(
        self: &Arc<Device>,
        id: TenantId,
        how: (Scheme, Option<(Shadowing, Costs)>),
        most_bytes: u64,
    ) -> Result<()> {
        let refused = self.try_make_vgpu(id, how, most_bytes).err();
        Ok(link::send(&self.parent, &FromDevice::VgpuMade { vgpu: id, refused }, &[])?)
    }

    fn try_make_vgpu(
        self: &Arc<Device>,
        id: TenantId,
        (scheme, shadowing): (Scheme, Option<(Shadowing, Costs)>),
        most_bytes: u64,
    ) -> Result<(), String> {
        let tenant = match scheme {
            Scheme::PassThrough => self.give_whole(id)?,
            _ => self.registry.lock().tenants.get(&id).cloned().ok_or("there is no such tenant")?,
        };
        let limits = tenant.account.with(|account| account.limits().clone());
        if tenant.budget.is_some() {
            self.broker.fix(id, limits.vram_bytes);
        }
        let (maps, cost) = own(&limits);
        let charges = Charges::hold(&tenant.account, cost).map_err(|error| error.to_string())?;
        let name = tenant.name.clone();
        let served = match (scheme.mediated(), &tenant.budget) {
            (Some(scheme), Some(budget)) => {
                let watching = shadowing.map(|(it, costs)| it.watching(costs)).unwrap_or_default();
                let budget = Arc::clone(budget);
                let config = Config { name: name.clone(), vram_bytes: most_bytes, scheme, watching, budget };
                Served::Mediated(self.machine.vgpu(config, limits.vram_bytes)?)
            }
            _ => Served::Whole(self.pass_through(id, &name)?),
        };
        let whole = matches!(served, Served::Whole(_));
        let max_dma_maps = u32::try_from(maps).unwrap_or(u32::MAX);
        let hosted = Arc::new(Hosted {
            name,
            tenant: id,
            served,
            capabilities: Capabilities { max_dma_maps, ..Capabilities::default() },
            slice_ns: AtomicU64::new(0),
            cost: Mutex::new(Cost { charges: Some(charges), vram_bytes: limits.vram_bytes }),
            seat: Mutex::default(),
            changed: Condvar::new(),
            quiet: Quiet::new(),
        });
        let (device, parent) = (Arc::clone(self), Arc::clone(&self.parent));
        let number = hosted.number();
        self.books.with(|ledger| ledger.begin(number, id));
        let gone = move |charges, metered: &Metered| {
            device.books.with(|ledger| ledger.end(number, &meters::reading(metered)));
            if whole {
                device.take_back();
            }
            // All of it is given back and scrubbed by now: its owner's account may say so.
            drop(charges);
            // Fails only when the parent is gone, and then so are we.
            let _ = link::send(&parent, &FromDevice::VgpuEnded { vgpu: id }, &[]);
        };
        let closing = Arc::clone(&hosted).start(gone).map_err(|error| {
            if whole {
                self.take_back();
            }
            format!("no thread for it: {error}")
        })?;
        self.registry.lock().vgpus.insert(id, Vgpu { hosted, closing });
        self.shares.wake();
        Ok(())
    }

    /// Gives one guest the whole device, which nobody uses.
    fn pass_through(&self, id: TenantId, name: &str) -> Result<Arc<PassThrough>, String> {
        self.books.with(|ledger| self.machine.unused().map(|unused| ledger.unused(unused.idle_ns, unused.overhead_ns)));
        let power = self.machine.release()?;
        self.books.with(|ledger| ledger.give_whole(Some(id)));
        let (_, bytes) = self.machine.facts();
        PassThrough::new(name, bytes, power).map_err(|error| {
            self.take_back();
            format!("the GPU cannot be switched on: {error}")
        })
    }

    /// The device is for everybody again.
    fn take_back(&self) {
        self.books.with(|ledger| ledger.give_whole(None));
        if let Err(error) = self.machine.take_back() {
            // Another process may have it: its parent starts one.
            tracing::error!("the GPU does not come back: {error:#}");
            std::process::exit(1);
        }
    }

    /// Takes one away; its parent is told when it is gone.
    pub(super) fn end_vgpu(&self, id: TenantId) -> Result<()> {
        let vgpu = self.registry.lock().vgpus.remove(&id);
        match vgpu {
            Some(vgpu) => vgpu.closing.begin(),
            None => link::send(&self.parent, &FromDevice::VgpuEnded { vgpu: id }, &[])?,
        }
        Ok(())
    }

    /// Shadows the page tables of its guest in another way, from its next submission on: waits for nobody.
    pub(super) fn shadow_vgpu(&self, id: TenantId, shadowing: Shadowing) {
        if let Some(vgpu) = self.registry.lock().vgpus.get(&id) {
            vgpu.hosted.served.set_policy(shadowing.policy());
        }
    }

    /// Changes how much memory one has, on a thread of its own, because its guest may take its time; and says what came of it.
    pub(super) fn resize_vgpu(self: &Arc<Device>, id: TenantId, bytes: u64) -> Result<()> {
        let (device, parent) = (Arc::clone(self), Arc::clone(&self.parent));
        let work = move || {
            let hosted = device.registry.lock().vgpus.get(&id).map(|vgpu| Arc::clone(&vgpu.hosted));
            let (bytes, refused) = match hosted {
                Some(hosted) => device.resize(&hosted, bytes),
                None => (0, Some("it is being destroyed".into())),
            };
            // Fails only when the parent is gone, and then so are we.
            let _ = link::send(&device.parent, &FromDevice::VgpuResized { vgpu: id, bytes, refused }, &[]);
        };
        if let Err(error) = std::thread::Builder::new().name("resizing".into()).spawn(work) {
            let refused = Some(format!("no thread for it: {error}"));
            link::send(&parent, &FromDevice::VgpuResized { vgpu: id, bytes: 0, refused }, &[])?;
        }
        Ok(())
    }

    /// What it has then, and why not what was asked for.
    fn resize(&self, hosted: &Hosted, bytes: u64) -> (u64, Option<String>) {
        let account = self.registry.lock().tenants.get(&hosted.tenant).map(|tenant| Arc::clone(&tenant.account));
        let Some(account) = account else { return (0, Some("it is being destroyed".into())) };
        let (mut refused, mut held) = (None, hosted.served.vram_used());
        // Until it is known what comes of it, its tenant's limit is the larger one.
        let limit = |change: &dyn Fn(u64) -> u64| {
            account.with(|account| {
                let limits = account.limits().clone();
                account.set_limits(Limits { vram_bytes: change(limits.vram_bytes), ..limits });
            });
        };
        limit(&|limit| limit.max(bytes));
        hosted.whole("resizing", || {
            let mut cost = hosted.cost.lock();
            let before = cost.vram_bytes;
            if let Some(charges) = cost.charges.as_mut()
                && let Err(error) = charges.resize(before, before.max(bytes))
            {
                refused = Some(error.to_string());
                return;
            }
            drop(cost);
            refused = hosted.served.resize(bytes, RESIZE_BOUND).err();
            let mut cost = hosted.cost.lock();
            held = hosted.served.vram_used();
            if let Some(charges) = cost.charges.as_mut()
                && let Err(error) = charges.resize(before.max(bytes), held)
            {
                tracing::error!(%error, vgpu = hosted.name, "what it has is not what it is charged for");
            }
            cost.vram_bytes = held;
        });
        limit(&|_| held);
        if held != bytes && refused.is_none() {
            refused = Some("it has failed".into());
        }
        (held, refused)
    }

    /// Records what a guest does to its page tables, for whoever reads at the other end of the socket that came along.
    pub(super) fn trace_vgpu(&self, id: TenantId, fds: Vec<OwnedFd>) {
        let hosted = self.registry.lock().vgpus.get(&id).map(|vgpu| Arc::clone(&vgpu.hosted));
        let (Some(hosted), Some(socket)) = (hosted, fds.into_iter().next()) else { return };
        // Who reads finds it closed.
        if let Err(error) = hosted.served.record(socket.into()) {
            tracing::warn!(%error, vgpu = hosted.name, "its page tables are not recorded");
        }
    }

    /// A guest has come.
    pub(super) fn let_guest_in(&self, id: TenantId, pid: i32, fds: Vec<OwnedFd>) {
        let hosted = self.registry.lock().vgpus.get(&id).map(|vgpu| Arc::clone(&vgpu.hosted));
        let (Some(hosted), Some(socket)) = (hosted, fds.into_iter().next()) else { return };
        let name = format!("guest of {}", hosted.name);
        // Without a thread, it finds its connection closed.
        if let Err(error) = std::thread::Builder::new().name(name).spawn(move || hosted.host(pid, socket)) {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    /// What they do: waits for no guest.
    pub(super) fn report_vgpus(&self) -> Vec<VgpuStatus> {
        let all: Vec<Arc<Hosted>> = self.registry.lock().vgpus.values().map(|vgpu| Arc::clone(&vgpu.hosted)).collect();
        let mut statuses: Vec<VgpuStatus> = all.iter().map(|hosted| hosted.status(self)).collect();
        statuses.sort_by_key(|status| status.vgpu);
        admin::fit(&mut statuses);
        statuses
    }
}

impl Hosted {
    /// Starts its threads; `gone` is called on the one that ends it, when nothing of it is left.
    fn start(self: Arc<Hosted>, gone: impl FnOnce(Option<Charges>, &Metered) + Send + 'static) -> io::Result<Closing> {
        let attended = Arc::clone(&self);
        let attend = move || attended.whole("attending to", || attended.served.attend());
        let attending = std::thread::Builder::new().name(format!("vgpu {}", self.name)).spawn(attend)?;
        let spare = Arc::clone(&self);
        let close = move || {
            self.empty();
            self.served.end();
            // Its panic, if it had one, is dealt with.
            let _ = attending.join();
            let (charges, metered) = (self.cost.lock().charges.take(), self.metered());
            self.dissolve();
            gone(charges, &metered);
        };
        Closing::prepare(close).inspect_err(|_| spare.served.end())
    }

    /// Nobody uses it from now on.
    fn empty(&self) {
        let mut seat = self.seat.lock();
        seat.closed = true;
        if let Some(guest) = &seat.guest {
            guest.stopper.stop();
        }
        self.served.hurry();
        self.changed.notify_all();
        self.changed.wait_while(&mut seat, |seat| seat.guest.is_some() || seat.next.is_some());
    }

    /// Gives back all that it has, when those have looked away who look at it just now: they never wait for a guest.
    fn dissolve(mut self: Arc<Hosted>) {
        let start = Instant::now();
        while let Err(shared) = Arc::try_unwrap(self) {
            if start.elapsed() > LOOK_BOUND {
                return tracing::error!(vgpu = shared.name, "somebody does not let go of a virtual GPU");
            }
            self = shared;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does something for the guest. A fault of ours in it is the end of this virtual GPU, whose state nobody knows then, and of
    /// nothing else.
    fn whole(&self, what: &str, work: impl FnOnce()) {
        // Nobody uses what the panic left behind.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(vgpu = self.name, "{what} a virtual GPU failed; it has to be destroyed");
            let mut seat = self.seat.lock();
            seat.failed.get_or_insert(format!("{what} it has failed; the daemon's log says how"));
            if let Some(guest) = &seat.guest {
                guest.stopper.stop();
            }
        }
    }

    /// Serves a guest to its end, on its own thread.
    fn host(&self, pid: i32, socket: OwnedFd) {
        let stream = UnixStream::from(socket);
        let Ok(copy) = stream.try_clone() else { return };
        let options = ServerOptions { capabilities: self.capabilities.clone(), ..ServerOptions::default() };
        let server = Server::new(stream, options);
        let guest = Guest { pid, socket: copy.into(), stopper: server.stopper() };
        if let Err(reason) = self.seat(guest) {
            return self.log(pid, reason);
        }
        self.log(pid, "guest attached");
        self.whole("serving", || {
            let ended = self.served.serve(server);
            self.log(pid, &format!("guest ended: {ended}"));
        });
        self.seat.lock().guest = None;
        self.changed.notify_all();
    }

    /// Gives a guest the place, if it is free or will be at once. One may wait, while the one before it is cleaned up after;
    /// if it goes as well, the next takes its turn.
    fn seat(&self, guest: Guest) -> Result<(), &'static str> {
        let mut seat = self.seat.lock();
        if let Some(present) = &seat.guest {
            let stays = |socket: &OwnedFd| !unix::hung_up(socket);
            if stays(&present.socket) || seat.next.as_ref().is_some_and(|(_, socket)| stays(socket)) {
                return Err("guest refused: another one is there");
            }
            let socket = guest.socket.try_clone().map_err(|_| "guest refused: no descriptor is left")?;
            seat.waited += 1;
            let ours = seat.waited;
            seat.next = Some((ours, socket));
            // Whoever waited here knows that it does not any more.
            self.changed.notify_all();
            let is_next = |seat: &Seat| seat.next.as_ref().is_some_and(|(number, _)| *number == ours);
            let busy = |seat: &mut Seat| seat.guest.is_some() && !seat.closed && is_next(seat);
            self.changed.wait_while_for(&mut seat, busy, TURN_BOUND);
            if !is_next(&seat) {
                return Err("guest refused: it has gone, and another one has come");
            }
            seat.next = None;
            self.changed.notify_all();
        }
        match () {
            () if seat.closed => Err("guest refused: its virtual GPU is being destroyed"),
            () if seat.failed.is_some() => Err("guest refused: its virtual GPU has failed, and has to be destroyed"),
            () if seat.guest.is_some() => Err("guest refused: the one before it does not end"),
            () => {
                seat.guest = Some(guest);
                Ok(())
            }
        }
    }

    /// Guests come and go as often as they like: some lines of theirs are enough.
    fn log(&self, pid: i32, what: &str) {
        if self.quiet.may() {
            tracing::info!(vgpu = self.name, pid, "{what}");
        }
    }

    /// Its guest's process, what it does, and why it is of no use any more.
    fn state(&self, backlogged: bool) -> (Option<i32>, &'static str, Option<String>) {
        let (guest, failed) = {
            let seat = self.seat.lock();
            (seat.guest.as_ref().map(|guest| guest.pid), seat.failed.clone())
        };
        let ended = self.served.ended();
        let state = match guest {
            _ if failed.is_some() => "failed",
            _ if ended.is_some() => "ended",
            None => "idle",
            Some(_) if backlogged || self.is_busy() => "running",
            Some(_) => "attached",
        };
        (guest, state, failed.or(ended))
    }

    fn status(&self, device: &Device) -> VgpuStatus {
        let (guest, state, reason) = self.state(device.shares.is_backlogged(self.number()));
        let standing = device.shares.standing(self.tenant);
        let counts = self.served.counts();
        VgpuStatus {
            vgpu: self.tenant,
            guest,
            memory_used: self.served.vram_used(),
            memory_overhead: self.served.vram_overhead(),
            share_entitled: standing.map_or(0.0, |standing| standing.entitled_percent),
            share_received: standing.map_or(0.0, |standing| standing.received_percent),
            gpu_time_ns: standing.map_or(0, |standing| standing.used_ns),
            channels: self.served.channels(),
            traps: counts.traps,
            looks: counts.looks,
            shadow_updates: counts.shadow_updates,
            entries_scanned: counts.entries_scanned,
            hypercalls: counts.hypercalls,
            trap_in_effect: guest.and(counts.trap).map(Trap::from),
            pages: counts.tracked.into(),
            state: state.into(),
            reason,
        }
    }

    /// Its number among all who have time of the GPU: no session's.
    pub(super) fn number(&self) -> u64 {
        NUMBERS | self.tenant.0
    }

    pub(super) fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// What its guests have had of the GPU.
    pub(super) fn usage(&self) -> Usage {
        self.served.usage()
    }

    /// The same in full.
    pub(super) fn metered(&self) -> Metered {
        self.served.metered()
    }

    /// Whether somebody uses it.
    pub(super) fn has_guest(&self) -> bool {
        self.seat.lock().guest.is_some()
    }

    /// Whether its guest has work that waits for nothing but its turn, or does it now.
    pub(super) fn is_busy(&self) -> bool {
        self.served.is_busy()
    }

    /// Lets it run, or holds it.
    pub(super) fn run(&self, run: bool) {
        self.served.set_runnable(run);
    }

    /// Sets its time slice, ns. Small changes are not worth telling the device.
    pub(super) fn set_slice(&self, ns: u64) {
        let before = self.slice_ns.load(Ordering::Relaxed);
        if before.abs_diff(ns) > before / 20 {
            self.served.set_time_slice(ns);
            self.slice_ns.store(ns, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use gpu_driver::{Driver, HostCost};
    use softgpu::SoftGpu;
    use vgpu::Scheme;

    use super::*;

    fn hosted() -> Arc<Hosted> {
        let gpu = SoftGpu::new(&softgpu::Config { vram_bytes: 64 << 20, ..softgpu::Config::default() }).unwrap();
        let driver = Driver::start(gpu).unwrap();
        let budget = driver.budget(HostCost::default()).unwrap();
        let config = Config {
            name: "one".into(),
            vram_bytes: 16 << 20,
            scheme: Scheme::Fv,
            watching: vgpu::Watching::default(),
            budget,
        };
        Arc::new(Hosted {
            name: "one".into(),
            tenant: TenantId(1),
            served: Served::Mediated(vgpu::Vgpu::new(&driver, config).unwrap()),
            capabilities: Capabilities::default(),
            slice_ns: AtomicU64::new(0),
            cost: Mutex::new(Cost { charges: None, vram_bytes: 16 << 20 }),
            seat: Mutex::default(),
            changed: Condvar::new(),
            quiet: Quiet::new(),
        })
    }

    /// A guest that comes, and its end of the connection.
    fn comes() -> (Guest, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = ours.try_clone().unwrap().into();
        let stopper = Server::new(ours, ServerOptions::default()).stopper();
        (Guest { pid: 7, socket, stopper }, theirs)
    }

    fn leaves(hosted: &Hosted) {
        hosted.seat.lock().guest = None;
        hosted.changed.notify_all();
    }

    #[test]
    fn a_panic_of_ours_is_the_end_of_one_virtual_gpu() {
        let hosted = hosted();
        let (guest, mut theirs) = comes();
        hosted.seat(guest).unwrap();
        assert_eq!(hosted.state(false), (Some(7), "attached", None));
        hosted.whole("testing", || panic!("a fault of ours"));
        let failed = Some("testing it has failed; the daemon's log says how".to_owned());
        assert_eq!(hosted.state(true), (Some(7), "failed", failed.clone()));
        assert_eq!(theirs.read(&mut [0; 16]).unwrap(), 0, "its guest is made to leave");
        leaves(&hosted);
        let (guest, _theirs) = comes();
        assert!(hosted.seat(guest).unwrap_err().contains("has failed"));
        assert_eq!(hosted.state(false), (None, "failed", failed));
        // It can be destroyed all the same.
        hosted.empty();
    }

    #[test]
    fn one_that_has_ended_says_why() {
        let hosted = hosted();
        let (guest, _theirs) = comes();
        hosted.seat(guest).unwrap();
        hosted.served.end();
        assert_eq!(hosted.state(true), (Some(7), "ended", Some("it is being destroyed".into())));
    }

    #[test]
    fn whoever_comes_last_is_next() {
        let hosted = hosted();
        let (first, first_end) = comes();
        hosted.seat(first).unwrap();
        let (guest, _end) = comes();
        assert!(hosted.seat(guest).is_err(), "one at a time");
        // It leaves, and the next two wait while it is cleaned up after; but the one of them leaves as well.
        drop(first_end);
        std::thread::scope(|scope| {
            let (second, second_end) = comes();
            let waits = scope.spawn(|| hosted.seat(second));
            while hosted.seat.lock().next.is_none() {
                std::thread::yield_now();
            }
            let (guest, _end) = comes();
            assert!(hosted.seat(guest).is_err(), "one waits at a time");
            drop(second_end);
            let (third, _third_end) = comes();
            let comes = scope.spawn(|| hosted.seat(third));
            assert!(waits.join().unwrap().is_err());
            assert!(!comes.is_finished());
            leaves(&hosted);
            comes.join().unwrap().unwrap();
        });
        assert_eq!(hosted.state(false).1, "attached");
        assert!(hosted.seat.lock().next.is_none());
    }
}
