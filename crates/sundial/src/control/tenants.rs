//! Registrations, and the terms of those who did not register.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use tenancy::{Admission, AdmissionError, Limits, TenantId, Terms};
use transport::unix;
use wire::Credential;

use super::vgpus::Vgpu;
use crate::config::Config;
use crate::link::ToDevice;
use crate::remoting::Remoting;
use crate::size::{Percent, Scheduler};

/// All tenants present, and the sessions passed on.
#[derive(Debug)]
pub(super) struct Tenants {
    config: Config,
    memory_bytes: u64,
    pub(super) admission: Admission,
    /// Virtual GPUs: each has a tenant's number, and is that tenant.
    pub(super) vgpus: BTreeMap<TenantId, Vgpu>,
    /// Those that are being ended: they hold what they had until then.
    pub(super) leaving: BTreeSet<TenantId>,
    registered: HashMap<Credential, Registration>,
    /// Whose tenants are.
    owners: BTreeMap<TenantId, u32>,
    /// Tenants made for users without a credential.
    users: BTreeMap<u32, TenantId>,
    /// Open sessions: number, tenant.
    sessions: BTreeMap<u64, TenantId>,
    /// What the next one is called that the device process is given.
    next_number: u64,
    scheduler: Scheduler,
}

#[derive(Debug)]
struct Registration {
    tenant: TenantId,
    /// `run`'s connection, held by the program that it became: closed when the last of its processes ends.
    lifeline: Arc<OwnedFd>,
    /// How its sessions come here.
    remoting: Remoting,
}

/// What the device process must be told.
pub(super) type Orders = Vec<ToDevice>;

impl Tenants {
    pub(super) fn new(config: &Config) -> Tenants {
        Tenants {
            config: config.clone(),
            memory_bytes: 0,
            admission: Admission::new(0, config.limits.host_bytes, config.most_tenants),
            vgpus: BTreeMap::new(),
            leaving: BTreeSet::new(),
            registered: HashMap::new(),
            owners: BTreeMap::new(),
            users: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_number: 1,
            scheduler: config.scheduler,
        }
    }

    /// The GPU's memory is known.
    pub(super) fn start(&mut self, memory_bytes: u64) {
        self.memory_bytes = memory_bytes;
        self.admission = Admission::new(memory_bytes, self.config.limits.host_bytes, self.config.most_tenants)
            .overcommitting(self.config.memory.overcommit);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registered.is_empty() && self.sessions.is_empty() && self.vgpus.is_empty() && self.leaving.is_empty()
    }

    /// True if nobody is there but those who are just being cleaned up after.
    pub(super) fn is_being_left(&self) -> bool {
        let present = !(self.registered.is_empty() && self.users.is_empty() && self.vgpus.is_empty());
        !present && !self.is_empty()
    }

    /// How many sessions are open.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Lets a tenant in for as long as `lifeline` is open.
    ///
    /// # Errors
    /// There is no room for such a tenant, or its name is taken.
    pub(super) fn register(&mut self, terms: Terms, user: u32, lifeline: Arc<OwnedFd>) -> Result<(Credential, Orders)> {
        // Whose lifeline was cut a moment ago must not be in the way.
        let mut orders = self.sweep();
        self.check_room(false).map_err(anyhow::Error::msg)?;
        let tenant = self.admission.admit(terms)?;
        self.own(tenant, user);
        let credential = new_credential()?;
        let remoting = self.config.remoting();
        self.registered.insert(credential, Registration { tenant, lifeline, remoting });
        orders.extend(self.introduce(tenant));
        Ok((credential, orders))
    }

    /// How sessions of a registered tenant come here from now on.
    pub(super) fn arrange(&mut self, credential: &Credential, remoting: Remoting) {
        if let Some(registration) = self.registered.get_mut(credential) {
            registration.remoting = remoting;
        }
    }

    /// How sessions with a credential come here; `None` if it is nobody's.
    pub(super) fn remoting(&self, credential: &Credential) -> Option<Remoting> {
        self.registered.get(credential).map(|registration| registration.remoting)
    }

    /// Forgets those whose lifeline is cut.
    pub(super) fn sweep(&mut self) -> Orders {
        let gone: Vec<Credential> = self
            .registered
            .iter()
            .filter(|(_, registration)| unix::hung_up(&*registration.lifeline))
            .map(|(&credential, _)| credential)
            .collect();
        let mut orders = Orders::new();
        for credential in gone {
            if let Some(Registration { tenant, .. }) = self.registered.remove(&credential) {
                self.admission.release(tenant);
                orders.push(ToDevice::Forget { tenant });
            }
        }
        orders
    }

    /// Opens a session for a client that said hello: its number and tenant.
    ///
    /// # Errors
    /// Why not, for the client.
    pub(super) fn open(&mut self, credential: Credential, uid: u32) -> Result<(u64, TenantId, Orders), String> {
        let (tenant, orders) = if credential.is_none() {
            self.user(uid)?
        } else {
            let known = self.registered.get(&credential);
            (known.ok_or("the credential is not, or no longer, valid")?.tenant, Orders::new())
        };
        let number = self.number();
        self.sessions.insert(number, tenant);
        Ok((number, tenant, orders))
    }

    /// A number that nobody has.
    pub(super) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// The tenant of a user without a credential.
    fn user(&mut self, uid: u32) -> Result<(TenantId, Orders), String> {
        if let Some(&tenant) = self.users.get(&uid) {
            return Ok((tenant, Orders::new()));
        }
        if !self.config.unregistered.allow {
            return Err("programs must be started with `sundial run` here".into());
        }
        self.check_room(false)?;
        let terms = Terms {
            name: format!("uid-{uid}"),
            memory_bytes: self.config.unregistered.memory.map(|size| size.0.min(self.memory_bytes)),
            host_bytes: None,
            share_percent: None,
            on_full: None,
        };
        let tenant = self.admission.admit(terms).map_err(|error: AdmissionError| error.to_string())?;
        self.users.insert(uid, tenant);
        self.own(tenant, uid);
        Ok((tenant, self.introduce(tenant)))
    }

    /// Changes a tenant's share.
    ///
    /// # Errors
    /// There is no such tenant, or its share does not fit beside the others'.
    pub(super) fn reshare(&mut self, name: &str, share: Percent) -> Result<Orders, AdmissionError> {
        let tenant = self.admission.reshare(name, Some(share.0))?;
        Ok(self.introduce(tenant))
    }

    /// How GPU time is shared.
    pub(super) fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Shares GPU time in another way.
    pub(super) fn schedule(&mut self, scheduler: Scheduler) -> Orders {
        self.scheduler = scheduler;
        vec![ToDevice::Schedule { scheduler }]
    }

    /// A session has ended, or could not be passed on.
    pub(super) fn close(&mut self, session: u64) -> Orders {
        let Some(tenant) = self.sessions.remove(&session) else { return Orders::new() };
        let last = !self.sessions.values().any(|&other| other == tenant);
        let user = self.users.iter().find(|&(_, &of)| of == tenant).map(|(&uid, _)| uid);
        match user {
            Some(uid) if last => {
                self.users.remove(&uid);
                self.admission.release(tenant);
                vec![ToDevice::Forget { tenant }]
            }
            _ => Orders::new(),
        }
    }

    /// The device process died: no session is left, and a new one must be told of everybody.
    pub(super) fn restart(&mut self) -> Orders {
        for session in std::mem::take(&mut self.sessions).into_keys() {
            self.close(session);
        }
        for (_, tenant) in std::mem::take(&mut self.users) {
            self.admission.release(tenant);
        }
        let tenants: Vec<TenantId> = self.admission.tenants().map(|(id, _)| id).collect();
        let introductions = tenants.into_iter().flat_map(|tenant| self.introduce(tenant));
        let scheduler = self.scheduler;
        // Virtual GPUs before anybody's session: they keep the memory that they have.
        [ToDevice::Schedule { scheduler }].into_iter().chain(introductions).chain(self.make_vgpus()).collect()
    }

    /// Notes whose a tenant is.
    pub(super) fn own(&mut self, tenant: TenantId, user: u32) {
        self.owners.insert(tenant, user);
        let present: BTreeSet<TenantId> = self.admission.tenants().map(|(id, _)| id).collect();
        self.owners.retain(|tenant, _| present.contains(tenant));
    }

    pub(super) fn introduce(&self, id: TenantId) -> Orders {
        let found = self.admission.tenants().find(|(tenant, _)| *tenant == id);
        let order = found.map(|(_, terms)| {
            let vram_bytes = terms.memory_bytes.unwrap_or(self.memory_bytes).min(self.config.limits.vram_bytes);
            ToDevice::Tenant {
                id,
                name: terms.name.clone(),
                user: self.owners.get(&id).copied().unwrap_or_default(),
                limits: Limits {
                    vram_bytes,
                    host_bytes: terms.host_bytes.unwrap_or(u64::MAX).min(self.config.limits.host_bytes),
                    ..self.config.limits.clone()
                },
                share_percent: terms.share_percent,
                on_full: terms.on_full.unwrap_or(self.config.memory.on_full.0),
            }
        });
        order.into_iter().collect()
    }
}

fn new_credential() -> Result<Credential> {
    let mut secret = [0; 32];
    let mut random = std::fs::File::open("/dev/urandom").context("no source of randomness")?;
    random.read_exact(&mut secret).context("no source of randomness")?;
    Ok(Credential(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants() -> Tenants {
        let mut tenants = Tenants::new(&Config::default());
        tenants.start(1 << 30);
        tenants
    }

    fn terms(name: &str, share: f64) -> Terms {
        Terms {
            name: name.into(),
            memory_bytes: Some(1 << 28),
            host_bytes: None,
            share_percent: Some(share),
            on_full: None,
        }
    }

    #[test]
    fn a_registration_lasts_as_long_as_its_lifeline() {
        let mut tenants = tenants();
        let (ours, theirs) = unix::pair().unwrap();
        let (credential, orders) = tenants.register(terms("a", 80.0), 5, Arc::new(ours)).unwrap();
        assert!(
            matches!(&orders[..], [ToDevice::Tenant { share_percent: Some(_), limits, .. }] if limits.vram_bytes == 1 << 28)
        );
        let (session, ..) = tenants.open(credential, 1000).unwrap();
        let (other, _keep) = unix::pair().unwrap();
        let other = Arc::new(other);
        assert!(tenants.register(terms("b", 30.0), 5, Arc::clone(&other)).is_err(), "80 % are given");
        drop(theirs);
        let (_, orders) = tenants.register(terms("b", 30.0), 5, other).unwrap();
        assert!(matches!(&orders[..], [ToDevice::Forget { .. }, ToDevice::Tenant { .. }]));
        assert!(tenants.open(credential, 1000).is_err(), "the credential went with its tenant");
        assert!(tenants.open(Credential([9; 32]), 1000).is_err());
        tenants.close(session);
        assert!(!tenants.is_empty());
        let orders = tenants.reshare("b", Percent(100.0)).unwrap();
        assert!(matches!(&orders[..], [ToDevice::Tenant { share_percent: Some(100.0), .. }]));
        assert!(tenants.reshare("a", Percent(1.0)).is_err(), "it has left");
    }

    #[test]
    fn the_next_device_process_is_told_how_time_is_shared() {
        let mut tenants = tenants();
        let band = Scheduler(fair_share::Policy::Band);
        for orders in [tenants.schedule(band), tenants.restart()] {
            assert!(matches!(&orders[..], [ToDevice::Schedule { scheduler }] if *scheduler == band));
        }
    }

    #[test]
    fn users_without_credential_share_one_tenant_each() {
        let mut tenants = tenants();
        let (first, a, orders) = tenants.open(Credential::default(), 7).unwrap();
        assert_eq!(orders.len(), 1);
        let (second, b, orders) = tenants.open(Credential::default(), 7).unwrap();
        assert!(a == b && orders.is_empty());
        let (_, c, _) = tenants.open(Credential::default(), 8).unwrap();
        assert_ne!(a, c);
        assert!(tenants.close(first).is_empty());
        assert!(matches!(&tenants.close(second)[..], [ToDevice::Forget { tenant }] if *tenant == a));
        assert!(matches!(&tenants.restart()[..], [ToDevice::Schedule { .. }]) && tenants.is_empty());

        let mut config = Config::default();
        config.unregistered.allow = false;
        assert!(Tenants::new(&config).open(Credential::default(), 7).is_err());
    }
}
