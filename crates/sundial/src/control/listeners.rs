//! The two sockets.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hostmem::strangers::{self, MOST_STRANGERS};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use tenancy::Terms;
use transport::unix;
use wire::handshake::features;
use wire::limits::MAX_HELLO_BYTES;
use wire::{Hello, Reply};

use super::Control;
use super::connections::{Connections, Presence};
use super::tenants::Orders;
use super::vgpus::Wish;
use crate::admin::{self, AdminReply, AdminRequest, Listing};
use crate::config::Copies;
use crate::link::ToDevice;
use crate::size::{GpuSpec, Percent};
use crate::threads;

/// Longest time for a hello: who connects and says nothing holds a thread no longer than this.
const HELLO_BOUND: Duration = Duration::from_secs(5);
/// Longest that one who has asked may take to read a part of the answer.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// Longest wait of a new session for a device process that is being started anew.
const RESTART_BOUND: Duration = Duration::from_secs(5);

impl Control {
    /// Opens both sockets and serves them on threads.
    pub(super) fn listen(self: &Arc<Control>) -> Result<()> {
        let sessions = unix::listen(&self.directory.session_socket(), 0o600)?;
        let admin = unix::listen(&self.directory.admin_socket(), 0o600)?;
        let this = Arc::clone(self);
        let greet =
            |control: &Arc<Control>, socket: Arc<OwnedFd>, presence: &Presence| control.greet(&socket, presence);
        threads::essential("sessions", move || this.accept(&sessions, greet))?;
        let this = Arc::clone(self);
        let administer =
            |control: &Arc<Control>, socket: Arc<OwnedFd>, presence: &Presence| control.administer(socket, presence);
        threads::essential("admin", move || this.accept(&admin, administer))?;
        Ok(())
    }

    fn accept(
        self: Arc<Control>,
        listener: &OwnedFd,
        serve: impl Fn(&Arc<Control>, Arc<OwnedFd>, &Presence) + Copy + Send + 'static,
    ) {
        let connections = Arc::new(Connections::default());
        loop {
            let socket = match unix::accept(listener) {
                Ok(socket) => Arc::new(socket),
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections");
                    std::thread::sleep(HELLO_BOUND / 10);
                    continue;
                }
            };
            let peer = unix::peer(&*socket).ok();
            let Some(presence) = peer.and_then(|peer| connections.enter(peer.pid, &socket)) else {
                if self.quiet.may() {
                    tracing::warn!("too many connections at once");
                }
                continue;
            };
            let control = Arc::clone(&self);
            // Without a thread, the connection and its place go.
            let _ = std::thread::Builder::new().spawn(move || serve(&control, socket, &presence));
        }
    }

    /// Reads one hello and passes the connection on.
    fn greet(&self, socket: &OwnedFd, presence: &Presence) {
        if let Err(reason) = self.pass_on(socket, presence) {
            if self.quiet.may() {
                tracing::info!(reason, "session refused");
            }
            // A client that is gone already misses nothing.
            let _ = unix::send(socket, &Reply::Refused(reason).encode(), &[], false);
        }
    }

    fn pass_on(&self, socket: &OwnedFd, presence: &Presence) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let peer = unix::peer(socket).map_err(text)?;
        unix::set_timeout(socket, Some(HELLO_BOUND)).map_err(text)?;
        let mut buffer = [0; MAX_HELLO_BYTES];
        let length = unix::receive_bare(socket, &mut buffer).map_err(text)?;
        presence.speaks();
        let hello = Hello::decode(&buffer[..length]).map_err(|error| error.to_string())?;
        if hello.features & features::SHARED_MEMORY == 0 {
            return Err("sessions without shared memory are not served here".into());
        }
        let mapped = self.config.copies == Copies::Mapped;
        let features = if mapped { hello.features } else { hello.features & !features::APERTURE };
        unix::set_timeout(socket, None).map_err(text)?;
        let until = Instant::now() + RESTART_BOUND;
        loop {
            // While the device process is started anew, its next tenant waits.
            let left = until.saturating_duration_since(Instant::now());
            self.device.wait_ready(left).map_err(|error| format!("{error:#}"))?;
            // Whoever has opened a session is responsible for it: what can fail comes before.
            let theirs = socket.try_clone().map_err(text)?;
            let process = Pid::from_raw(peer.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let fds = [Some(theirs), process].into_iter().flatten().collect();
            let (session, taken) = self.change(|tenants| match tenants.open(hello.credential, peer.uid) {
                Ok((session, tenant, orders)) => {
                    // To whom was told of the tenant: the next one forgets who has no session.
                    self.tell(orders);
                    let order = ToDevice::Open { session, tenant, pid: peer.pid, features };
                    (Ok((session, self.device.hand_over(session, order, fds))), Orders::new())
                }
                Err(reason) => (Err(reason), Orders::new()),
            })?;
            match taken.recv_timeout(HELLO_BOUND) {
                // Of one that takes its time nobody knows whether it has answered.
                Ok(()) | Err(RecvTimeoutError::Timeout) => return Ok(()),
                // It died, and has not said a word to this client: the next one shall.
                Err(RecvTimeoutError::Disconnected) => self.change(|tenants| ((), tenants.close(session))),
            }
        }
    }

    /// Serves one connection of `run`, `ps` or `vgpu`.
    fn administer(self: &Arc<Control>, socket: Arc<OwnedFd>, presence: &Presence) {
        let own = rustix::process::getuid().as_raw();
        let Some(user) = unix::peer(&*socket).ok().map(|peer| peer.uid).filter(|&uid| uid == own || uid == 0) else {
            return;
        };
        loop {
            let (request, fds) = match admin::receive_all(&socket) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "admin connection");
                    break;
                }
            };
            presence.speaks();
            // Sockets are all that anybody has reason to send; nobody waits for what else is sent to be closed.
            let Some(fds) = strangers::sift(fds, user).filter(|_| strangers::strangers_of(user) < MOST_STRANGERS)
            else {
                break;
            };
            let reply = match request {
                AdminRequest::List => match self.device.report() {
                    Ok(listing) => {
                        AdminReply::Sessions(Listing { scheduler: self.tenants.lock().scheduler(), ..listing })
                    }
                    Err(error) => AdminReply::Refused(format!("{error:#}")),
                },
                AdminRequest::Share { tenant, share } => self.reshare(&tenant, share),
                AdminRequest::Schedule { scheduler } => {
                    tracing::info!(%scheduler, "scheduler");
                    self.change(|tenants| (AdminReply::Done, tenants.schedule(scheduler)))
                }
                AdminRequest::Register { terms, gpu, profile } => {
                    or_refused(self.register(&socket, user, terms, gpu, profile.as_deref()))
                }
                AdminRequest::CreateVgpu { terms, gpu, scheme, shadowing, profile, path } => {
                    let socket = path.zip(fds.into_iter().next());
                    or_refused(self.create_vgpu(Wish { terms, user, gpu, scheme, shadowing, profile, socket }))
                }
                AdminRequest::Usage { since } => or_refused(answer(fds, &self.report_usage(since))),
                AdminRequest::Snapshot => or_refused(answer(fds, &self.snapshot())),
                AdminRequest::ListVgpus => or_refused(self.list_vgpus().map(AdminReply::Vgpus)),
                AdminRequest::ShareVgpu { name, share } => or_refused(self.share_vgpu(&name, share)),
                AdminRequest::ResizeVgpu { name, bytes } => or_refused(self.resize_vgpu(&name, bytes)),
                AdminRequest::TraceVgpu { name } => or_refused(self.trace_vgpu(&name, fds)),
                AdminRequest::ShadowVgpu { name, shadow, rebuild } => {
                    or_refused(self.shadow_vgpu(&name, shadow, rebuild))
                }
                AdminRequest::DestroyVgpu { name } => or_refused(self.destroy_vgpu(&name)),
            };
            if admin::send(&socket, &reply).is_err() {
                break;
            }
        }
        // If it was somebody's lifeline, it is cut: our own handles of it do not keep it open for the other side.
        drop(socket);
        self.change(|tenants| ((), tenants.sweep()));
    }

    fn reshare(&self, tenant: &str, share: Percent) -> AdminReply {
        self.change(|tenants| match tenants.reshare(tenant, share) {
            Ok(orders) => (AdminReply::Done, orders),
            Err(error) => (AdminReply::Refused(error.to_string()), Orders::new()),
        })
    }

    /// Whether it is this GPU that somebody wants, if any.
    pub(super) fn check_gpu(&self, wanted: Option<GpuSpec>) -> Result<()> {
        match wanted.filter(|wanted| *wanted != self.config.gpu) {
            Some(wanted) => bail!("the daemon serves {}, not {wanted}; stop it, or leave --gpu out", self.config.gpu),
            None => Ok(()),
        }
    }

    fn register(
        &self,
        socket: &OwnedFd,
        user: u32,
        mut terms: Terms,
        gpu: Option<GpuSpec>,
        profile: Option<&str>,
    ) -> Result<AdminReply> {
        self.check_gpu(gpu)?;
        self.config.profile(profile)?.fill(&mut terms);
        let lifeline = socket.try_clone()?;
        let (name, share) = (terms.name.clone(), terms.share_percent);
        let credential = self.change(|tenants| match tenants.register(terms, user, lifeline) {
            Ok((credential, orders)) => (Ok(credential), orders),
            Err(error) => (Err(error), Orders::new()),
        })?;
        tracing::info!(tenant = name, share, "tenant registered");
        Ok(AdminReply::Registered { credential: credential.to_hex(), socket: self.directory.session_socket() })
    }
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
