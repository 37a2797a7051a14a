//! Virtual GPUs: tenants that are there without a program, each with a socket where guests connect.
//!
//! This process listens and looks at who comes; whatever a guest says goes to the device process, unread. The sockets stay
//! where they are while the device process is started anew, which makes all virtual GPUs again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fair_share::Priority;
use rustix::net::{Shutdown, shutdown};
use tenancy::{TenantId, Terms};
use transport::unix;
use vfio_user::Listener;

use super::rights::{Owner, View};
use super::supervisor::DeviceLink;
use super::tenants::{Newcomer, Orders, Tenants};
use super::{Control, Seat};
use crate::admin::{self, AdminReply, VgpuLine, VgpuListing};
use crate::link::{ToDevice, VgpuStatus};
use crate::scheme::Scheme;
use crate::shadowing::{self, Costs, Rebuild, Shadow, Shadowing, TablePages};
use crate::size::{GpuWish, Percent, Size};

/// Longest that one may take to be made or to be ended: less than the command waits.
const BOUND: Duration = Duration::from_secs(15);
/// Longest wait for a device process that is being started anew.
const RESTART_BOUND: Duration = Duration::from_secs(5);
/// Between two tries to accept where there is no room for a descriptor.
const PAUSE: Duration = Duration::from_millis(500);

/// A virtual GPU, as this process knows it.
#[derive(Debug)]
pub(super) struct Vgpu {
    name: String,
    scheme: Scheme,
    /// How its guest's page tables are shadowed, and what that costs here, if they are.
    shadowing: Option<(Shadowing, Costs)>,
    /// All the memory that it may have, bytes; its terms say what it has now.
    most_bytes: u64,
    door: Arc<Door>,
    /// Waits for guests, until the door is shut.
    waiting: Option<JoinHandle<()>>,
}

/// Where guests connect.
#[derive(Debug)]
struct Door {
    path: PathBuf,
    socket: DoorSocket,
}

#[derive(Debug)]
enum DoorSocket {
    /// In the runtime directory: its name goes with it.
    Ours(Listener),
    /// Made by whoever created the virtual GPU, who has to remove the name.
    Theirs(OwnedFd),
}

impl Door {
    fn is_theirs(&self) -> bool {
        matches!(self.socket, DoorSocket::Theirs(_))
    }

    /// Nobody comes in any more, and who waits for them stops.
    fn shut(&self) {
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            DoorSocket::Ours(listener) => listener.as_fd(),
            DoorSocket::Theirs(socket) => socket.as_fd(),
        }
    }
}

/// What somebody asks for.
pub(super) struct Wish {
    pub(super) terms: Terms,
    /// Whose it will be.
    pub(super) owner: Owner,
    pub(super) gpu: GpuWish,
    pub(super) scheme: Option<Scheme>,
    pub(super) shadowing: shadowing::Wish,
    pub(super) profile: Option<String>,
    /// A socket of theirs, and where it is.
    pub(super) socket: Option<(PathBuf, OwnedFd)>,
}

impl Control {
    /// Makes one, and lets guests in.
    pub(super) fn create_vgpu(self: &Arc<Control>, wish: Wish) -> Result<AdminReply> {
        let Wish { terms, owner, gpu, scheme, shadowing, profile, socket } = wish;
        let taken = self.tenants.lock().profile(owner, profile.as_deref()).map_err(anyhow::Error::msg)?;
        let scheme = match &taken {
            Some(taken) => taken.scheme(scheme).map_err(anyhow::Error::msg)?,
            None => scheme,
        };
        let scheme = scheme.unwrap_or_default();
        let is_given = taken.as_ref().is_some_and(|taken| taken.gives(scheme));
        if scheme == Scheme::PassThrough && !owner.is_administrator() && !is_given {
            bail!(
                "only the administrator may give all of the GPU away (scheme pass-through), or policy that names such a profile"
            );
        }
        let said = taken.as_ref().map(|taken| taken.profile).unwrap_or_default();
        if scheme != Scheme::Fv && shadowing.is_some() {
            bail!(
                "--trap, --shadow and --rebuild are for scheme fv: in {scheme} stores into page tables are not looked for"
            );
        }
        let shadowing = match scheme {
            Scheme::Fv => Some(shadowing.or(said.shadowing()).map_err(anyhow::Error::msg)?),
            _ => None,
        };
        let shadowing = shadowing.map(|it| (it, self.costs(it)));
        if terms.memory_bytes.is_none() && said.mem.is_none() && scheme != Scheme::PassThrough {
            bail!("a virtual GPU needs to be told its memory: --mem 1g, or a profile that says `mem`");
        }
        if scheme == Scheme::PassThrough {
            self.await_leavers();
        }
        self.note_quota(owner);
        let (name, share) = (terms.name.clone(), terms.share_percent);
        let door = Arc::new(self.open_door(&name, socket)?);
        let (path, theirs) = (door.path.clone(), door.is_theirs());
        let newcomer = Newcomer { terms, profile: profile.as_deref(), gpus: &gpu };
        let (vgpu, made) = self.admit(owner, |tenants| {
            let (vgpu, orders) = tenants.admit_vgpu(newcomer.clone(), owner, (scheme, shadowing), &door)?;
            // Whoever waits is there before the device process can answer.
            let made = self.device_of(tenants, vgpu)?.expect(vgpu);
            Ok(((vgpu, made), orders))
        })?;
        let made = match made.recv_timeout(BOUND) {
            Ok(None) => self.let_guests_in(vgpu, &name, door),
            Ok(Some(refused)) => Err(anyhow::Error::msg(refused)),
            Err(_) => Err(anyhow::anyhow!("the GPU is being restarted; try again")),
        };
        if let Err(error) = made {
            self.end_vgpu(vgpu);
            return Err(error);
        }
        self.note_priority(&name);
        tracing::info!(vgpu = name, %scheme, share, socket = %path.display(), "virtual GPU created");
        Ok(AdminReply::Vgpu { socket: path, theirs })
    }

    /// Where a virtual GPU is.
    fn device_of(&self, tenants: &Tenants, vgpu: TenantId) -> Result<&DeviceLink> {
        let gpu = tenants.admission.gpus(vgpu).first().context("its virtual GPU is being destroyed")?;
        Ok(&self.gpus[*gpu].device)
    }

    /// Who has left a moment ago is not in the way.
    fn await_leavers(&self) {
        let since = Instant::now();
        loop {
            let left = self.change(|tenants| {
                let orders = tenants.sweep();
                (tenants.is_being_left(), orders)
            });
            if !left || since.elapsed() > RESTART_BOUND {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn open_door(&self, name: &str, socket: Option<(PathBuf, OwnedFd)>) -> Result<Door> {
        if let Some((path, socket)) = socket {
            let listens = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false);
            if !listens {
                bail!("what came as its socket is none that listens");
            }
            return Ok(Door { path, socket: DoorSocket::Theirs(socket) });
        }
        // Admission has not looked at the name yet.
        if name.is_empty() || name.contains('/') {
            bail!("{}", tenancy::AdmissionError::NoName);
        }
        let path = self.directory.vgpu_socket(name);
        // Where others may be its guests' users, they are told apart as they come.
        let listener = Listener::bind(&path, if self.is_system() { 0o666 } else { 0o600 });
        let listener = match listener {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => bail!("a virtual GPU named `{name}` is present"),
            other => other.with_context(|| format!("cannot listen at {}", path.display()))?,
        };
        Ok(Door { path, socket: DoorSocket::Ours(listener) })
    }

    fn let_guests_in(self: &Arc<Control>, vgpu: TenantId, name: &str, door: Arc<Door>) -> Result<()> {
        let control = Arc::clone(self);
        let work = move || control.accept_guests(vgpu, &door);
        let waiting = std::thread::Builder::new().name(format!("guests of {name}")).spawn(work);
        let waiting = waiting.context("cannot start a thread")?;
        // One that was destroyed meanwhile has shut the door.
        if let Some(vgpu) = self.tenants.lock().vgpus.get_mut(&vgpu) {
            vgpu.waiting = Some(waiting);
        }
        Ok(())
    }

    /// The thread of one door; ends when it is shut.
    fn accept_guests(&self, vgpu: TenantId, door: &Door) {
        loop {
            match unix::accept(door) {
                Ok(socket) => {
                    if let Err(error) = self.pass_guest(vgpu, socket)
                        && self.quiet.may()
                    {
                        tracing::warn!(socket = %door.path.display(), "guest refused: {error:#}");
                    }
                }
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot accept guests");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn pass_guest(&self, vgpu: TenantId, socket: OwnedFd) -> Result<()> {
        let peer = unix::peer(&socket)?;
        let owner = self.tenants.lock().owner(vgpu);
        if !Owner::from(peer).is_administrator() && owner.is_none_or(|owner| owner.user != peer.uid) {
            bail!("it is of another user");
        }
        let until = Instant::now() + RESTART_BOUND;
        loop {
            // While the device process is started anew, the guest waits.
            let device = self.device_of(&self.tenants.lock(), vgpu)?;
            device.wait_ready(until.saturating_duration_since(Instant::now()))?;
            let theirs = socket.try_clone()?;
            let taken = self.change(|tenants| {
                let present = tenants.vgpus.contains_key(&vgpu);
                let handed = present.then(|| {
                    let number = tenants.number();
                    device.hand_over(number, ToDevice::Guest { number, vgpu, pid: peer.pid }, vec![theirs])
                });
                (handed, Orders::new())
            });
            let taken = taken.context("its virtual GPU is being destroyed")?;
            match taken.recv_timeout(RESTART_BOUND) {
                // Of one that takes its time nobody knows whether it listens.
                Ok(()) | Err(RecvTimeoutError::Timeout) => return Ok(()),
                // It died, and has not listened to this guest: the next one shall.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Has what a guest does to its page tables written into a socket.
    pub(super) fn trace_vgpu(&self, name: &str, socket: Vec<OwnedFd>) -> Result<AdminReply> {
        let (vgpu, device) = {
            let tenants = self.tenants.lock();
            let found = tenants.vgpus.iter().find(|(_, vgpu)| vgpu.name == name);
            let (id, vgpu) = found.with_context(|| format!("no virtual GPU named `{name}` is present"))?;
            if matches!(vgpu.scheme, Scheme::Pv | Scheme::PassThrough) {
                bail!("`{name}` has scheme {}, in which nobody looks at its guest's page tables", vgpu.scheme);
            }
            (*id, self.device_of(&tenants, *id)?)
        };
        device.wait_ready(RESTART_BOUND)?;
        device.send(ToDevice::TraceVgpu { vgpu }, socket)?;
        Ok(AdminReply::Done)
    }

    /// Takes one away.
    pub(super) fn destroy_vgpu(&self, name: &str) -> Result<AdminReply> {
        let found = self.tenants.lock().vgpu_named(name);
        let (vgpu, socket, theirs) = found.with_context(|| format!("no virtual GPU named `{name}` is present"))?;
        if !self.end_vgpu(vgpu) {
            bail!("`{name}` is being destroyed by somebody else");
        }
        tracing::info!(vgpu = name, "virtual GPU destroyed");
        Ok(AdminReply::Vgpu { socket, theirs })
    }

    /// Ends one, and waits until all of it is given back. False if somebody else does that.
    fn end_vgpu(&self, vgpu: TenantId) -> bool {
        let closed = self.change(|tenants| {
            let gpu = tenants.admission.gpus(vgpu).first().copied();
            match gpu.and_then(|gpu| Some((gpu, tenants.close_vgpu(vgpu)?))) {
                Some((gpu, closed)) => {
                    (Some((closed, self.gpus[gpu].device.expect(vgpu))), vec![(gpu, ToDevice::EndVgpu { vgpu })])
                }
                None => (None, Orders::new()),
            }
        });
        let Some((closed, ended)) = closed else { return false };
        // A device process that died meanwhile has given everything back.
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(BOUND) {
            tracing::error!(?vgpu, "a virtual GPU does not end");
        }
        // The name of its socket is free before its own is.
        if let Some(waiting) = closed.waiting {
            let _ = waiting.join();
        }
        drop(closed.door);
        self.change(|tenants| ((), tenants.forget_vgpu(vgpu)));
        true
    }

    pub(super) fn share_vgpu(&self, name: &str, share: Percent) -> Result<AdminReply> {
        self.change(|tenants| match tenants.share_vgpu(name, share) {
            Ok(orders) => (Ok(AdminReply::Done), orders),
            Err(error) => (Err(error), Orders::new()),
        })
    }

    pub(super) fn prioritize_vgpu(&self, name: &str, priority: Priority) -> Result<AdminReply> {
        self.prioritize(|tenants| tenants.prioritize_vgpu(name, priority))
    }

    /// Changes how its guest's page tables are shadowed, from its next submission on.
    pub(super) fn shadow_vgpu(
        &self,
        name: &str,
        shadow: Option<Shadow>,
        rebuild: Option<Rebuild>,
    ) -> Result<AdminReply> {
        self.change(|tenants| match tenants.shadow_vgpu(name, shadow, rebuild) {
            Ok(orders) => (Ok(AdminReply::Done), orders),
            Err(error) => (Err(error), Orders::new()),
        })
    }

    /// What its trap costs on this machine.
    fn costs(&self, shadowing: Shadowing) -> Costs {
        shadowing.kind().and_then(|kind| self.trap_costs.get(&kind).copied()).unwrap_or(Costs::NONE)
    }

    /// Changes how much memory one has; its guest has to do its part.
    pub(super) fn resize_vgpu(&self, name: &str, bytes: u64) -> Result<AdminReply> {
        let found = self.tenants.lock().vgpu_named(name);
        let (vgpu, ..) = found.with_context(|| format!("no virtual GPU named `{name}` is present"))?;
        let device = {
            let tenants = self.tenants.lock();
            tenants.check_memory(vgpu, bytes).map_err(anyhow::Error::msg)?;
            self.device_of(&tenants, vgpu)?
        };
        device.wait_ready(RESTART_BOUND)?;
        let waiting = device.resize(vgpu, bytes)?;
        let waiting = waiting.with_context(|| format!("the memory of `{name}` is being changed already"))?;
        match waiting.recv_timeout(BOUND) {
            Ok((bytes, None)) => {
                tracing::info!(vgpu = name, bytes, "virtual GPU resized");
                Ok(AdminReply::Done)
            }
            Ok((held, Some(refused))) => bail!("`{name}` has {}: {refused}", Size(held)),
            Err(_) => bail!("the GPU is being restarted; try again"),
        }
    }

    /// All of them, with what the device process says.
    pub(super) fn list_vgpus(&self, view: &View) -> Result<VgpuListing> {
        // One that does not answer is as one that is being started anew.
        let told = |seat: &Seat| seat.device.vgpu_report().unwrap_or_default();
        let statuses: Vec<Vec<VgpuStatus>> = self.gpus.iter().map(told).collect();
        let mut vgpus = view.vgpus(self.tenants.lock().vgpu_lines(&statuses));
        // In the order of the statuses and longer than they are: none is left whose status was left out.
        admin::fit(&mut vgpus);
        Ok(VgpuListing { vgpus })
    }
}

impl Tenants {
    /// Lets one in.
    fn admit_vgpu(
        &mut self,
        newcomer: Newcomer<'_>,
        owner: Owner,
        how: (Scheme, Option<(Shadowing, Costs)>),
        door: &Arc<Door>,
    ) -> Result<(TenantId, Orders)> {
        let (scheme, shadowing) = how;
        let name = newcomer.terms.name.clone();
        let vgpu = self.admit(newcomer, owner, scheme == Scheme::PassThrough)?;
        let mut orders = self.introduce(vgpu);
        let gpu = self.admission.gpus(vgpu).first().copied().unwrap_or(0);
        let most_bytes = orders.iter().find_map(limit_of).unwrap_or(0);
        self.vgpus.insert(vgpu, Vgpu { name, scheme, shadowing, most_bytes, door: Arc::clone(door), waiting: None });
        orders.push((gpu, ToDevice::MakeVgpu { vgpu, scheme, shadowing, most_bytes }));
        Ok((vgpu, orders))
    }

    /// Whether somebody may come to a GPU, or nobody must be there: who has the whole of it is alone.
    pub(super) fn check_room(&self, gpu: usize, whole: bool) -> Result<(), String> {
        let there = |id: &TenantId| self.admission.gpus(*id).contains(&gpu);
        let alone = |(id, vgpu): &(&TenantId, &Vgpu)| vgpu.scheme == Scheme::PassThrough && there(id);
        if let Some((_, vgpu)) = self.vgpus.iter().find(alone) {
            let name = &vgpu.name;
            return Err(format!(
                "the whole GPU is passed through to `{name}`; others can use it after `sundial vgpu destroy {name}`"
            ));
        }
        let others = self.admission.tenants().filter(|(id, _)| there(id)).map(|(_, terms)| terms.name.as_str());
        let others: Vec<&str> = others.take(3).collect();
        if whole && !self.is_free(gpu) {
            return Err(format!("pass-through takes the whole GPU, and others are on it: {}", others.join(", ")));
        }
        Ok(())
    }

    /// The names of sockets of ours.
    pub(super) fn doors(&self) -> Vec<PathBuf> {
        let own = self.vgpus.values().filter(|vgpu| !vgpu.door.is_theirs());
        own.map(|vgpu| vgpu.door.path.clone()).collect()
    }

    fn vgpu_named(&self, name: &str) -> Option<(TenantId, PathBuf, bool)> {
        let (id, vgpu) = self.vgpus.iter().find(|(_, vgpu)| vgpu.name == name)?;
        Some((*id, vgpu.door.path.clone(), vgpu.door.is_theirs()))
    }

    /// No guest comes any more.
    fn close_vgpu(&mut self, id: TenantId) -> Option<Vgpu> {
        let vgpu = self.vgpus.remove(&id)?;
        vgpu.door.shut();
        self.leaving.insert(id);
        Some(vgpu)
    }

    /// What it had is free.
    fn forget_vgpu(&mut self, id: TenantId) -> Orders {
        self.leaving.remove(&id);
        self.release(id)
    }

    fn share_vgpu(&mut self, name: &str, share: Percent) -> Result<Orders> {
        self.vgpu_named(name).with_context(|| format!("no virtual GPU named `{name}` is present"))?;
        self.reshare(name, share)
    }

    fn prioritize_vgpu(&mut self, name: &str, priority: Priority) -> Result<Orders> {
        self.vgpu_named(name).with_context(|| format!("no virtual GPU named `{name}` is present"))?;
        self.prioritize(name, priority)
    }

    fn shadow_vgpu(&mut self, name: &str, shadow: Option<Shadow>, rebuild: Option<Rebuild>) -> Result<Orders> {
        let found = self.vgpus.iter_mut().find(|(_, vgpu)| vgpu.name == name);
        let (id, vgpu) = found.with_context(|| format!("no virtual GPU named `{name}` is present"))?;
        let Some((shadowing, _)) = &mut vgpu.shadowing else {
            bail!("`{name}` is of scheme {}, in which stores into page tables are not looked for", vgpu.scheme);
        };
        *shadowing = shadowing.with(shadow, rebuild).map_err(|why| anyhow::anyhow!("`{name}`: {why}"))?;
        let order = ToDevice::ShadowVgpu { vgpu: *id, shadowing: *shadowing };
        Ok(self.admission.gpus(*id).first().map(|gpu| (*gpu, order)).into_iter().collect())
    }

    /// It has so much memory from now on, as the device process of a GPU says: not believed of what is on another.
    pub(super) fn resized_vgpu(&mut self, gpu: usize, id: TenantId, bytes: u64) -> Orders {
        if self.admission.gpus(id) != [gpu] || !self.vgpus.contains_key(&id) {
            return Orders::new();
        }
        match self.admission.resize(id, bytes) {
            Ok(()) => self.introduce(id),
            // One that has lost all that it had.
            Err(error) => {
                tracing::warn!(%error, vgpu = ?id, bytes, "a virtual GPU's memory");
                Orders::new()
            }
        }
    }

    /// For a new device process.
    pub(super) fn make_vgpus(&self) -> impl Iterator<Item = (usize, ToDevice)> {
        let make = |(id, vgpu): (&TenantId, &Vgpu)| {
            let Vgpu { scheme, shadowing, most_bytes, .. } = *vgpu;
            let gpu = *self.admission.gpus(*id).first()?;
            Some((gpu, ToDevice::MakeVgpu { vgpu: *id, scheme, shadowing, most_bytes }))
        };
        self.vgpus.iter().filter_map(make)
    }

    /// `statuses`: what each GPU's device process says.
    fn vgpu_lines(&self, statuses: &[Vec<VgpuStatus>]) -> Vec<VgpuLine> {
        let line = |(id, terms): (TenantId, &Terms)| {
            let vgpu = self.vgpus.get(&id)?;
            let shadowing = vgpu.shadowing.map(|(it, _)| it);
            let blank = VgpuLine {
                name: vgpu.name.clone(),
                gpu: self.admission.gpus(id).first().copied().unwrap_or(0),
                scheme: vgpu.scheme,
                socket: vgpu.door.path.clone(),
                guest: None,
                memory_used: 0,
                memory_limit: terms.memory_bytes.unwrap_or(0),
                memory_overhead: 0,
                share_entitled: 0.0,
                share_received: 0.0,
                priority: self.priority(id),
                gpu_time_ns: 0,
                channels: 0,
                traps: 0,
                looks: 0,
                shadow_updates: 0,
                entries_scanned: 0,
                hypercalls: 0,
                trap: shadowing.map(|it| it.trap),
                trap_in_effect: None,
                shadow: shadowing.and_then(|it| it.shadow),
                rebuild: shadowing.and_then(|it| it.rebuild),
                pages: TablePages::default(),
                state: "restarting".into(),
                reason: None,
            };
            let of_gpu = statuses.get(blank.gpu).into_iter().flatten();
            let Some(status) = of_gpu.into_iter().find(|status| status.vgpu == id) else { return Some(blank) };
            Some(VgpuLine {
                guest: status.guest,
                memory_used: status.memory_used,
                memory_overhead: status.memory_overhead,
                share_entitled: status.share_entitled,
                share_received: status.share_received,
                gpu_time_ns: status.gpu_time_ns,
                channels: status.channels,
                traps: status.traps,
                looks: status.looks,
                shadow_updates: status.shadow_updates,
                entries_scanned: status.entries_scanned,
                hypercalls: status.hypercalls,
                trap_in_effect: status.trap_in_effect,
                pages: status.pages,
                state: status.state.clone(),
                reason: status.reason.clone(),
                ..blank
            })
        };
        self.admission.tenants().filter_map(line).collect()
    }
}

/// The memory that an introduction of a tenant names.
fn limit_of((_, order): &(usize, ToDevice)) -> Option<u64> {
    match order {
        ToDevice::Tenant { limits, .. } => Some(limits.vram_bytes),
        _ => None,
    }
}
