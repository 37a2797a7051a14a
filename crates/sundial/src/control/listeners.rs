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
use session::Manner;
use tenancy::Terms;
use transport::unix::{self, PeerProcess};
use wire::handshake::features;
use wire::limits::MAX_HELLO_BYTES;
use wire::{Hello, Reply};

use super::Control;
use super::connections::{Connections, HELLO_BOUND, Serve, Then};
use super::tenants::Orders;
use super::vgpus::Wish;
use crate::admin::{self, AdminReply, AdminRequest, Listing};
use crate::link::ToDevice;
use crate::remoting::Remoting;
use crate::size::{GpuSpec, Percent};
use crate::threads;

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
        let greet = move |socket: &Arc<OwnedFd>, _| {
            this.greet(socket);
            Then::Leave
        };
        serve("sessions", sessions, greet)?;
        let this = Arc::clone(self);
        serve("admin", admin, move |socket, peer| this.administer(socket, peer))
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
        if hello.features & features::SHARED_MEMORY == 0 {
            return Err("sessions without shared memory are not served here".into());
        }
        let remoting = self.tenants.lock().remoting(&hello.credential).unwrap_or_else(|| self.config.remoting());
        let Manner { features, staging_block } = remoting.manner(hello.features)?;
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
                    let order = ToDevice::Open { session, tenant, pid: peer.pid, features, staging_block };
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

    /// Serves one request of `run`, `ps` or `vgpu`.
    fn administer(self: &Arc<Control>, socket: &Arc<OwnedFd>, peer: PeerProcess) -> Then {
        let own = rustix::process::getuid().as_raw();
        if peer.uid != own && peer.uid != 0 {
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
        let user = peer.uid;
        match request {
            AdminRequest::List => or_refused(self.device.report().and_then(|listing| {
                let mut listing = Listing { scheduler: self.tenants.lock().scheduler(), ..listing };
                if !fds.is_empty() {
                    return answer(fds, &listing);
                }
                admin::fit(&mut listing.sessions);
                Ok(AdminReply::Sessions(listing))
            })),
            AdminRequest::Share { tenant, share } => self.reshare(&tenant, share),
            AdminRequest::Schedule { scheduler } => {
                tracing::info!(%scheduler, "scheduler");
                self.change(|tenants| (AdminReply::Done, tenants.schedule(scheduler)))
            }
            AdminRequest::Register { terms, gpu, profile, remoting, timed } => {
                let remoting = self.config.remoting().wanted(remoting, timed);
                let register = |remoting| self.register(socket, user, terms, gpu, profile.as_deref(), remoting);
                or_refused(remoting.and_then(register))
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
            AdminRequest::ShadowVgpu { name, shadow, rebuild } => or_refused(self.shadow_vgpu(&name, shadow, rebuild)),
            AdminRequest::DestroyVgpu { name } => or_refused(self.destroy_vgpu(&name)),
        }
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
        socket: &Arc<OwnedFd>,
        user: u32,
        mut terms: Terms,
        gpu: Option<GpuSpec>,
        profile: Option<&str>,
        remoting: Remoting,
    ) -> Result<AdminReply> {
        self.check_gpu(gpu)?;
        self.config.profile(profile)?.fill(&mut terms);
        let lifeline = Arc::clone(socket);
        let (name, share) = (terms.name.clone(), terms.share_percent);
        let credential = self.change(|tenants| match tenants.register(terms, user, lifeline) {
            Ok((credential, orders)) => {
                tenants.arrange(&credential, remoting);
                (Ok(credential), orders)
            }
            Err(error) => (Err(error), Orders::new()),
        })?;
        tracing::info!(tenant = name, share, "tenant registered");
        Ok(AdminReply::Registered { credential: credential.to_hex(), socket: self.directory.session_socket() })
    }
}

/// Serves those who connect, on threads.
fn serve(name: &'static str, listener: OwnedFd, serve: impl Serve) -> Result<()> {
    let connections = Connections::new()?;
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
