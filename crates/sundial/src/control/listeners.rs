//! The two sockets.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tenancy::Terms;
use transport::unix;
use wire::limits::MAX_HELLO_BYTES;
use wire::{Hello, Reply};

use super::Control;
use crate::admin::{self, AdminReply, AdminRequest};
use crate::link::ToDevice;
use crate::size::GpuSpec;

/// Longest time for a hello: who connects and says nothing holds a thread no longer than this.
const HELLO_BOUND: Duration = Duration::from_secs(5);
/// Most connections that have not said their hello, or are on the admin socket: more are closed at once, or a loop of
/// connections would take all threads.
const MOST_WAITING: usize = 256;

impl Control {
    /// Opens both sockets and serves them on threads.
    pub(super) fn listen(self: &Arc<Control>) -> Result<()> {
        let sessions = unix::listen(&self.place.session_socket(), 0o600)?;
        let admin = unix::listen(&self.place.admin_socket(), 0o600)?;
        let this = Arc::clone(self);
        let greet = move |control: &Control, socket| control.greet(socket);
        std::thread::Builder::new().name("sessions".into()).spawn(move || this.accept(&sessions, greet))?;
        let this = Arc::clone(self);
        let administer = move |control: &Control, socket| control.administer(socket);
        std::thread::Builder::new().name("admin".into()).spawn(move || this.accept(&admin, administer))?;
        Ok(())
    }

    fn accept(self: Arc<Control>, listener: &OwnedFd, serve: impl Fn(&Control, OwnedFd) + Copy + Send + 'static) {
        let waiting = Arc::new(AtomicUsize::new(0));
        loop {
            let socket = match unix::accept(listener) {
                Ok(socket) => socket,
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections");
                    std::thread::sleep(HELLO_BOUND / 10);
                    continue;
                }
            };
            if waiting.load(Ordering::SeqCst) >= MOST_WAITING {
                if self.quiet.may() {
                    tracing::warn!("too many connections at once");
                }
                continue;
            }
            waiting.fetch_add(1, Ordering::SeqCst);
            let (control, count) = (Arc::clone(&self), Arc::clone(&waiting));
            let spawned = std::thread::Builder::new().spawn(move || {
                serve(&control, socket);
                count.fetch_sub(1, Ordering::SeqCst);
            });
            if spawned.is_err() {
                waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Reads one hello and passes the connection on.
    fn greet(&self, socket: OwnedFd) {
        if let Err(reason) = self.pass_on(&socket) {
            if self.quiet.may() {
                tracing::info!(reason, "session refused");
            }
            // A client that is gone already misses nothing.
            let _ = unix::send(&socket, &Reply::Refused(reason).encode(), &[], false);
        }
    }

    fn pass_on(&self, socket: &OwnedFd) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let peer = unix::peer(socket).map_err(text)?;
        unix::set_timeout(socket, Some(HELLO_BOUND)).map_err(text)?;
        let mut buffer = [0; MAX_HELLO_BYTES];
        let (length, _) = unix::receive(socket, &mut buffer).map_err(text)?;
        let hello = Hello::decode(&buffer[..length]).map_err(|error| error.to_string())?;
        unix::set_timeout(socket, None).map_err(text)?;
        let (session, tenant, orders) = self.tenants.lock().open(hello.credential, peer.uid)?;
        self.order(orders);
        let passed = self.device.send(&ToDevice::Open { session, tenant, pid: peer.pid }, Some(socket));
        passed.map_err(|error| {
            let orders = self.tenants.lock().close(session);
            self.order(orders);
            format!("{error:#}")
        })
    }

    /// Serves one connection of `run` or `ps`.
    fn administer(&self, socket: OwnedFd) {
        let own = rustix::process::getuid().as_raw();
        let allowed = unix::peer(&socket).is_ok_and(|peer| peer.uid == own || peer.uid == 0);
        if !allowed {
            return;
        }
        loop {
            let request = match admin::receive(&socket) {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "admin connection");
                    break;
                }
            };
            let reply = match request {
                AdminRequest::List => match self.device.report() {
                    Ok(listing) => AdminReply::Sessions(listing),
                    Err(error) => AdminReply::Refused(format!("{error:#}")),
                },
                AdminRequest::Register { terms, gpu } => match self.register(&socket, terms, gpu) {
                    Ok(reply) => reply,
                    Err(error) => AdminReply::Refused(format!("{error:#}")),
                },
            };
            if admin::send(&socket, &reply).is_err() {
                break;
            }
        }
        // If it was somebody's lifeline, it is cut: our own handles of it do not keep it open for the other side.
        drop(socket);
        let orders = self.tenants.lock().sweep();
        self.order(orders);
    }

    fn register(&self, socket: &OwnedFd, terms: Terms, gpu: Option<GpuSpec>) -> Result<AdminReply> {
        if let Some(wanted) = gpu.filter(|wanted| *wanted != self.config.gpu) {
            anyhow::bail!("the daemon serves {}, not {wanted}; stop it, or leave --gpu out", self.config.gpu);
        }
        let lifeline = socket.try_clone()?;
        let (name, share) = (terms.name.clone(), terms.share_percent);
        let (credential, orders) = self.tenants.lock().register(terms, lifeline)?;
        self.order(orders);
        tracing::info!(tenant = name, share, "tenant registered");
        Ok(AdminReply::Registered { credential: credential.to_hex(), socket: self.place.session_socket() })
    }
}
