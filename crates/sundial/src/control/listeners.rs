//! The two sockets.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hostmem::strangers::{self, MOST_STRANGERS};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use session::Manner;
use transport::unix::{self, PeerProcess};
use wire::handshake::features;
use wire::limits::MAX_HELLO_BYTES;
use wire::{Hello, Reply};

use super::Control;
use super::connections::{Connections, HELLO_BOUND, Limit, Serve, Then};
use super::rights::{self, Owner, View};
use super::supervisor::REPORT_BOUND;
use super::tenants::{Newcomer, Opened, Orders, Tenants};
use super::vgpus::Wish;
use crate::admin::{self, AdminReply, AdminRequest, Listing, SessionLine};
use crate::link::ToDevice;
use crate::remoting::Remoting;
use crate::size::Percent;
use crate::system::Activated;
use crate::threads;

/// Longest that one who has asked may take to read a part of the answer.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// Longest wait of a new session for a device process that is being started anew.
const RESTART_BOUND: Duration = Duration::from_secs(5);
/// Longest wait for sessions of a program that has ended.
const LEAVE_BOUND: Duration = Duration::from_secs(1);

impl Control {
    /// Opens both sockets and serves them on threads.
    pub(super) fn listen(self: &Arc<Control>) -> Result<()> {
        let (sessions, admin) = match self.system.activated.lock().take() {
            Some(Activated { sessions, admin }) => (sessions, admin),
            None => (self.open(&self.directory.session_socket())?, self.open(&self.directory.admin_socket())?),
        };
        let most = |this: &Arc<Control>| {
            let this = Arc::clone(this);
            move |peer: PeerProcess| this.most_connections(peer.into())
        };
        let (limit, this) = (most(self), Arc::clone(self));
        let greet = move |socket: &Arc<OwnedFd>, _| {
            this.greet(socket);
            Then::Leave
        };
        serve("sessions", sessions, limit, greet)?;
        let (limit, this) = (most(self), Arc::clone(self));
        serve("admin", admin, limit, move |socket, peer| this.administer(socket, peer))
    }

    /// Listens, for those who may come: the daemon's own user, and those of a group if it serves them.
    fn open(&self, path: &Path) -> Result<OwnedFd> {
        let listening = || format!("cannot listen at {}", path.display());
        let Some(group) = self.system.group else { return unix::listen(path, 0o600).with_context(listening) };
        let socket = unix::listen(path, 0o660).with_context(listening)?;
        rustix::fs::chown(path, None, Some(rustix::fs::Gid::from_raw(group)))
            .with_context(|| format!("cannot give {} to group {group}", path.display()))?;
        Ok(socket)
    }

    /// How many connections policy lets a user have.
    fn most_connections(&self, who: Owner) -> Option<usize> {
        if who.is_administrator() {
            return None;
        }
        self.settings().rules.of(who.user, who.group).connections.map(|(most, _)| most)
    }

    /// Reads one hello and passes the connection on.
    fn greet(&self, socket: &OwnedFd) {
        if let Err(reason) = self.pass_on(socket) {
            if self.quiet.may() {
                tracing::info!(reason, "session refused");
            }
            // A client that is gone already misses nothing.
            let _ = unix::send(socket, &Reply::Refused(reason).encode(), &[], false);
        }
    }

    fn pass_on(&self, socket: &OwnedFd) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let peer = unix::peer(socket).map_err(text)?;
        unix::set_timeout(socket, Some(HELLO_BOUND)).map_err(text)?;
        let mut buffer = [0; MAX_HELLO_BYTES];
        let length = unix::receive_bare(socket, &mut buffer).map_err(text)?;
        let hello = Hello::decode(&buffer[..length]).map_err(|error| error.to_string())?;
        if hello.features & features::STANDING != 0 {
            return self.tell_standing(socket, &hello, peer);
        }
        if hello.features & features::SHARED_MEMORY == 0 {
            return Err("sessions without shared memory are not served here".into());
        }
        let remoting = self.tenants.lock().remoting(&hello.credential);
        let remoting = remoting.unwrap_or_else(|| self.settings().config.remoting());
        let Manner { features, staging_block, .. } = remoting.manner(hello.features)?;
        unix::set_timeout(socket, None).map_err(text)?;
        if hello.credential.is_none() {
            self.note_quota(peer.into());
        }
        let until = Instant::now() + RESTART_BOUND;
        let mut gpu = self.tenants.lock().gpu_for(&hello.credential, peer.into(), hello.gpu)?;
        loop {
            // While the device process is started anew, its next tenant waits.
            let left = until.saturating_duration_since(Instant::now());
            gpu.map_or(Ok(()), |gpu| self.gpus[gpu].device.wait_ready(left).map(drop))
                .map_err(|error| format!("{error:#}"))?;
            // Whoever has opened a session is responsible for it: what can fail comes before.
            let theirs = socket.try_clone().map_err(text)?;
            let process = Pid::from_raw(peer.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let fds = [Some(theirs), process].into_iter().flatten().collect();
            let opened = self.change(|tenants| match tenants.open(hello.credential, peer.into(), hello.gpu) {
                Ok((opened, orders)) => {
                    // To whom was told of the tenant: the next one forgets who has no session.
                    self.tell(orders);
                    let Opened { session, tenant, gpu, gpus } = opened;
                    tenants.note_process(session, peer.pid, hello.process);
                    let order = ToDevice::Open { session, tenant, pid: peer.pid, features, staging_block, gpus };
                    (Ok((opened, self.gpus[gpu].device.hand_over(session, order, fds))), Orders::new())
                }
                Err(reason) => (Err(reason), Orders::new()),
            });
            let (Opened { session, gpu: on, .. }, taken) = opened?;
            gpu = Some(on);
            match taken.recv_timeout(HELLO_BOUND) {
                // Of one that takes its time nobody knows whether it has answered.
                Ok(()) | Err(RecvTimeoutError::Timeout) => return Ok(()),
                // It died, and has not said a word to this client: the next one shall.
                Err(RecvTimeoutError::Disconnected) => self.change(|tenants| ((), tenants.close(session))),
            }
        }
    }

    /// Serves one request of `run`, `ps` or `vgpu`.
    fn administer(self: &Arc<Control>, socket: &Arc<OwnedFd>, peer: PeerProcess) -> Then {
        if !self.is_system() && !Owner::from(peer).is_administrator() {
            return Then::Leave;
        }
        // It has said something, and takes the answer, or nobody waits for it.
        let received = unix::set_timeout(socket, Some(ANSWER_BOUND)).and_then(|()| admin::receive_all(socket));
        let (request, fds) = match received {
            Ok(Some(received)) => received,
            Ok(None) => return self.leave(),
            Err(error) => {
                tracing::debug!(%error, "admin connection");
                return self.leave();
            }
        };
        // Sockets are all that anybody has reason to send; nobody waits for what else is sent to be closed.
        let fds = strangers::sift(fds, peer.uid).filter(|_| strangers::strangers_of(peer.uid) < MOST_STRANGERS);
        let Some(fds) = fds else { return self.leave() };
        let reply = self.obey(socket, peer, request, fds);
        let then = if matches!(reply, AdminReply::Registered { .. }) { Then::Tenant } else { Then::Stay };
        if admin::send(socket, &reply).is_err() { self.leave() } else { then }
    }

    /// A connection is over. If it was somebody's lifeline, it is cut.
    fn leave(&self) -> Then {
        self.change(|tenants| ((), tenants.sweep()));
        Then::Leave
    }

    fn obey(
        self: &Arc<Control>,
        socket: &Arc<OwnedFd>,
        peer: PeerProcess,
        request: AdminRequest,
        fds: Vec<OwnedFd>,
    ) -> AdminReply {
        let who = Owner::from(peer);
        let owner_of = |name: &str| self.tenants.lock().owners_by_name().get(name).copied();
        if let Err(reason) = rights::check(who, &request, owner_of) {
            return AdminReply::Refused(reason);
        }
        let view = || View::of(who, &self.tenants.lock());
        match request {
            AdminRequest::List => or_refused(self.report().and_then(|listing| {
                let sessions = view().sessions(listing.sessions);
                let scheduler = self.tenants.lock().scheduler();
                let mut listing = Listing { scheduler, sessions, ..listing };
                if !fds.is_empty() {
                    return answer(fds, &listing);
                }
                admin::fit(&mut listing.sessions);
                Ok(AdminReply::Sessions(listing))
            })),
            AdminRequest::Share { tenant, share } => self.reshare(&tenant, share),
            AdminRequest::Prioritize { tenant, priority } => {
                or_refused(self.prioritize(|tenants| tenants.prioritize(&tenant, priority)))
            }
            AdminRequest::Schedule { scheduler } => {
                tracing::info!(%scheduler, "scheduler");
                let prioritized = self.tenants.lock().prioritized();
                if !scheduler.knows_priorities() && !prioritized.is_empty() {
                    tracing::warn!(%scheduler, tenants = prioritized.len(), "this scheduler knows no priorities, and some have one");
                }
                self.change(|tenants| (AdminReply::Done, tenants.schedule(scheduler)))
            }
            AdminRequest::Register { terms, gpus, profile, remoting, timed } => {
                let remoting = self.settings().config.remoting().wanted(remoting, timed);
                let newcomer = Newcomer { terms, profile: profile.as_deref(), gpus: &gpus };
                let register = |remoting| self.register(socket, who, &newcomer, remoting);
                or_refused(remoting.and_then(register))
            }
            AdminRequest::CreateVgpu { terms, gpu, scheme, shadowing, profile, path } => {
                let socket = path.zip(fds.into_iter().next());
                or_refused(self.create_vgpu(Wish { terms, owner: who, gpu, scheme, shadowing, profile, socket }))
            }
            AdminRequest::Usage { since } => or_refused(answer(fds, &self.report_usage(since, &view()))),
            AdminRequest::Snapshot => or_refused(answer(fds, &view().snapshot(self.snapshot()))),
            AdminRequest::Memory { tenant, bytes } => or_refused(self.resize_tenant(&tenant, bytes)),
            AdminRequest::Reload => or_refused(self.reload().map(|()| AdminReply::Done)),
            AdminRequest::ListVgpus => or_refused(self.list_vgpus(&view()).map(AdminReply::Vgpus)),
            AdminRequest::ShareVgpu { name, share } => or_refused(self.share_vgpu(&name, share)),
            AdminRequest::PrioritizeVgpu { name, priority } => or_refused(self.prioritize_vgpu(&name, priority)),
            AdminRequest::ResizeVgpu { name, bytes } => or_refused(self.resize_vgpu(&name, bytes)),
            AdminRequest::TraceVgpu { name } => or_refused(self.trace_vgpu(&name, fds)),
            AdminRequest::ShadowVgpu { name, shadow, rebuild } => or_refused(self.shadow_vgpu(&name, shadow, rebuild)),
            AdminRequest::DestroyVgpu { name } => or_refused(self.destroy_vgpu(&name)),
        }
    }

    /// Changes somebody's priority.
    pub(super) fn prioritize(&self, change: impl FnOnce(&mut Tenants) -> Result<Orders>) -> Result<AdminReply> {
        self.change(|tenants| match change(tenants) {
            Ok(orders) => (Ok(AdminReply::Prioritized { scheduler: tenants.scheduler() }), orders),
            Err(error) => (Err(error), Orders::new()),
        })
    }

    /// Who has a priority where it means nothing has it said in the log.
    pub(super) fn note_priority(&self, tenant: &str) {
        let (scheduler, prioritized) = {
            let tenants = self.tenants.lock();
            (tenants.scheduler(), tenants.prioritized())
        };
        if let Some(priority) = prioritized.get(tenant)
            && !scheduler.knows_priorities()
        {
            tracing::warn!(tenant, %priority, %scheduler, "this scheduler knows no priorities");
        }
    }

    fn reshare(&self, tenant: &str, share: Percent) -> AdminReply {
        self.change(|tenants| match tenants.reshare(tenant, share) {
            Ok(orders) => (AdminReply::Done, orders),
            Err(error) => (AdminReply::Refused(format!("{error:#}")), Orders::new()),
        })
    }

    /// Changes a tenant's limit of GPU memory, down to what it has at least.
    fn resize_tenant(&self, name: &str, bytes: u64) -> Result<AdminReply> {
        let gpus = self.tenants.lock().gpus_of(name);
        let reports: Vec<Listing> = gpus.iter().map(|gpu| self.gpus[*gpu].device.report()).collect::<Result<_>>()?;
        let lines: Vec<SessionLine> = reports.into_iter().flat_map(|report| report.sessions).collect();
        let has = lines.iter().filter(|line| line.tenant == name).map(|line| line.memory_reserved).max().unwrap_or(0);
        let bytes = bytes.max(has);
        self.change(|tenants| match tenants.resize(name, bytes) {
            Ok(orders) => (Ok(()), orders),
            Err(error) => (Err(error), Orders::new()),
        })?;
        // Device processes do what they are told in order: who has said something behind it has done it. One that does not
        // answer now is told again when it is started anew.
        for gpu in gpus {
            let _ = self.gpus[gpu].device.report();
        }
        tracing::info!(tenant = name, bytes, "limit of GPU memory");
        Ok(AdminReply::Limit { bytes })
    }

    /// Who is on each GPU? Those that do not answer are named.
    ///
    /// # Errors
    /// None answers.
    fn report(&self) -> Result<Listing> {
        let mut all = Listing::default();
        for (gpu, told) in self.ask_all(REPORT_BOUND).into_iter().enumerate() {
            match told {
                Ok(Listing { sessions, device_deaths, .. }) => {
                    all.sessions.extend(sessions);
                    all.device_deaths += device_deaths;
                }
                Err(error) => all.silent.push(format!("GPU {gpu}: {error:#}")),
            }
        }
        if all.silent.len() == self.gpus.len() {
            bail!("{}", all.silent.join("; "));
        }
        Ok(all)
    }

    /// Lets somebody in. Whose lifeline was cut a moment ago must not be in the way: while sessions of the same user's are just ending,
    /// who is refused is tried again, for a while.
    pub(super) fn admit<R>(
        &self,
        owner: Owner,
        mut admit: impl FnMut(&mut Tenants) -> Result<(R, Orders)>,
    ) -> Result<R> {
        let since = Instant::now();
        loop {
            let (admitted, again) = self.change(|tenants| {
                let swept = tenants.sweep();
                match admit(tenants) {
                    Ok((result, orders)) => ((Ok(result), false), swept.into_iter().chain(orders).collect()),
                    Err(error) => ((Err(error), tenants.is_somebody_going(owner.user)), swept),
                }
            });
            if !again || since.elapsed() > LEAVE_BOUND {
                return admitted;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn register(
        &self,
        socket: &Arc<OwnedFd>,
        owner: Owner,
        newcomer: &Newcomer<'_>,
        remoting: Remoting,
    ) -> Result<AdminReply> {
        self.note_quota(owner);
        let lifeline = Arc::clone(socket);
        let name = &newcomer.terms.name;
        let credential = self.admit(owner, |tenants| {
            let (credential, orders) = tenants.register(newcomer.clone(), owner, Arc::clone(&lifeline))?;
            tenants.arrange(&credential, remoting);
            Ok((credential, orders))
        })?;
        self.note_priority(name);
        tracing::info!(
            tenant = name,
            profile = newcomer.profile,
            share = newcomer.terms.share_percent,
            "tenant registered"
        );
        Ok(AdminReply::Registered { credential: credential.to_hex(), socket: self.directory.session_socket() })
    }
}

/// Serves those who connect, on threads.
fn serve(name: &'static str, listener: OwnedFd, limit: impl Limit, serve: impl Serve) -> Result<()> {
    let connections = Connections::new(limit)?;
    let serve = Arc::new(serve);
    threads::essential(name, move || {
        if let Err(error) = connections.run(&listener, &serve) {
            tracing::error!("{name}: {error:#}");
        }
    })?;
    Ok(())
}

/// Writes an answer, however long, into the stream socket that came with its question.
fn answer(fds: Vec<OwnedFd>, answer: &impl Serialize) -> Result<AdminReply> {
    let stream = fds.into_iter().next().context("nowhere to write the answer")?;
    // Of what is no socket, this is refused.
    unix::set_send_timeout(&stream, Some(ANSWER_BOUND))?;
    UnixStream::from(stream).write_all(&serde_json::to_vec(answer)?)?;
    Ok(AdminReply::Done)
}

fn or_refused(reply: Result<AdminReply>) -> AdminReply {
    reply.unwrap_or_else(|error| AdminReply::Refused(format!("{error:#}")))
}
