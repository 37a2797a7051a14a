//! Registrations, and the terms of those who did not register; how they stand (`standing`).

mod standing;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fair_share::Priority;
use tenancy::placement::{Load, Wish};
use tenancy::{Admission, AdmissionError, Limits, TenantId, Terms};
use transport::unix;
use wire::{Credential, Process};

use super::Settings;
use super::rights::Owner;
use super::vgpus::Vgpu;
use crate::config::Config;
use crate::link::ToDevice;
use crate::policy::{Grant, Held};
use crate::remoting::Remoting;
use crate::size::{GpuName, GpuWish, Percent, Scheduler, Size};
pub(super) use standing::Asked;

/// All tenants present, and the sessions passed on.
#[derive(Debug)]
pub(super) struct Tenants {
    settings: Arc<Settings>,
    pub(super) admission: Admission,
    /// Virtual GPUs: each has a tenant's number, and is that tenant.
    pub(super) vgpus: BTreeMap<TenantId, Vgpu>,
    /// Those that are being ended: they hold what they had until then.
    pub(super) leaving: BTreeSet<TenantId>,
    registered: HashMap<Credential, Registration>,
    /// Those whose lifeline is cut, and who have sessions: they stay until the last has ended, as what they have counts until then.
    orphans: BTreeSet<TenantId>,
    /// Whose tenants are.
    owners: BTreeMap<TenantId, Owner>,
    /// Users who have used all the GPU time that they may, and what they are told of that.
    exhausted: BTreeMap<u32, String>,
    /// What newcomers of those users are told, as of when they were looked at last: whether they have tenants here or not.
    refused: BTreeMap<u32, String>,
    /// Nobody comes in any more.
    draining: bool,
    /// Tenants made for users without a credential.
    users: BTreeMap<u32, TenantId>,
    /// Open sessions: number, tenant, GPU.
    sessions: BTreeMap<u64, (TenantId, usize)>,
    /// Whose they are: processes as they are called here, and as they say.
    processes: BTreeMap<u64, (i32, Process)>,
    /// GPUs whose device process works.
    up: BTreeSet<usize>,
    /// What the next one is called that a device process is given.
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

/// The share of those who have used all that they may, percent: what nobody else wants, and so little of the rest that nobody misses
/// it.
const LEFT_OVER: f64 = 0.1;

/// What device processes must be told, each by its GPU's number.
pub(super) type Orders = Vec<(usize, ToDevice)>;

/// A session that was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) session: u64,
    pub(super) tenant: TenantId,
    /// Its GPU, and how many its tenant has.
    pub(super) gpu: usize,
    pub(super) gpus: u32,
}

impl Tenants {
    pub(super) fn new(settings: &Arc<Settings>) -> Tenants {
        let config = &settings.config;
        Tenants {
            settings: Arc::clone(settings),
            admission: Admission::new(Vec::new(), settings.limits.host_bytes, usize::MAX),
            vgpus: BTreeMap::new(),
            leaving: BTreeSet::new(),
            registered: HashMap::new(),
            orphans: BTreeSet::new(),
            owners: BTreeMap::new(),
            exhausted: BTreeMap::new(),
            refused: BTreeMap::new(),
            draining: false,
            users: BTreeMap::new(),
            sessions: BTreeMap::new(),
            processes: BTreeMap::new(),
            up: BTreeSet::new(),
            next_number: 1,
            scheduler: config.scheduler,
        }
    }

    /// The memory of all GPUs is known, bytes.
    pub(super) fn start(&mut self, memory_bytes: Vec<u64>) {
        let config = &self.settings.config;
        self.admission = Admission::new(memory_bytes, self.settings.limits.host_bytes, usize::MAX)
            .overcommitting(config.memory.overcommit);
    }

    /// Another policy holds from now on, for those who are there as well; nobody has to go.
    pub(super) fn reconfigure(&mut self, settings: &Arc<Settings>) -> Orders {
        self.settings = Arc::clone(settings);
        self.introduce_all()
    }

    fn introduce_all(&self) -> Orders {
        self.admission.tenants().flat_map(|(tenant, _)| self.introduce(tenant)).collect()
    }

    /// Nobody comes in any more. Whether it was so already.
    pub(super) fn drain(&mut self) -> bool {
        std::mem::replace(&mut self.draining, true)
    }

    /// What counts for a user.
    pub(super) fn grant(&self, owner: Owner) -> Grant {
        let Owner { user, group } = owner;
        if owner.is_administrator() { Grant::default() } else { self.settings.rules.of(user, group) }
    }

    /// A user's tenants.
    fn of_user(&self, user: u32) -> impl Iterator<Item = (TenantId, &Terms)> {
        let own = move |(id, _): &(TenantId, &Terms)| self.owners.get(id).is_some_and(|owner| owner.user == user);
        self.admission.tenants().filter(own)
    }

    /// What a user's tenants have of a GPU, but one of them.
    fn held(&self, user: u32, gpu: usize, but: Option<TenantId>) -> Held {
        let there = |id| Some(id) != but && self.admission.gpus(id).contains(&gpu);
        let whole = self.admission.memory_bytes(gpu);
        self.of_user(user).filter(|(id, _)| there(*id)).fold(Held::default(), |held, (_, terms)| Held {
            share_percent: held.share_percent + terms.share_percent.unwrap_or(0.0),
            memory_bytes: held.memory_bytes.saturating_add(terms.memory_bytes.unwrap_or(whole)),
        })
    }

    /// Lets somebody in on as many GPUs as he wishes, as policy has it; or on all of one, if there is nobody else.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn admit(&mut self, mut terms: Terms, owner: Owner, wish: &GpuWish, whole: bool) -> Result<TenantId> {
        if self.draining {
            bail!("the daemon is ending, and lets nobody in any more; try again when another has started");
        }
        if let Some(told) = self.refused.get(&owner.user).or_else(|| self.exhausted.get(&owner.user)) {
            bail!("{told}");
        }
        let grant = self.grant(owner);
        grant.check_tenants(self.of_user(owner.user).count()).map_err(anyhow::Error::msg)?;
        grant.prioritize(&mut terms).map_err(anyhow::Error::msg)?;
        let limit = self.settings.config.most_tenants;
        if self.admission.tenants().count() >= limit {
            return Err(AdmissionError::Full { limit }.into());
        }
        self.admission.check(&terms)?;
        let (mut there, mut loads) = (Vec::new(), Vec::new());
        for gpu in 0..self.gpus() {
            let mut terms = terms.clone();
            let refusal = self.check_on(gpu, &mut terms, owner, whole).err();
            let load = self.admission.load(gpu, terms.memory_bytes);
            loads.push(Load { is_up: self.up.contains(&gpu), refusal, ..load });
            there.push(terms);
        }
        let gpus = self.place(wish, &loads)?;
        if let Some(wanted) = terms.host_bytes
            && let least = tenancy::LEAST_HOST_MEMORY * gpus.len() as u64
            && wanted < least
        {
            // Each GPU's part is as much less.
            return Err(AdmissionError::TooLittleHost { wanted, least }.into());
        }
        // One limit for all of them.
        let memory_bytes = gpus.iter().filter_map(|gpu| there[*gpu].memory_bytes).min();
        let tenant = self.admission.admit(Terms { memory_bytes, ..terms }, &gpus)?;
        self.own(tenant, owner);
        Ok(tenant)
    }

    /// How many GPUs there are.
    pub(super) fn gpus(&self) -> usize {
        self.settings.config.gpu.len()
    }

    /// Whether somebody may go to a GPU, and with which limit of its memory.
    fn check_on(&self, gpu: usize, terms: &mut Terms, owner: Owner, whole: bool) -> Result<(), String> {
        let all = self.admission.memory_bytes(gpu);
        match terms.memory_bytes {
            Some(bytes) if whole && bytes != all => {
                return Err(format!("pass-through is all of the GPU: its memory is {}; leave --mem out", Size(all)));
            }
            None if whole => terms.memory_bytes = Some(all),
            _ => {}
        }
        self.check_room(gpu, whole)?;
        let says_nothing = terms.memory_bytes.is_none();
        self.grant(owner).admit(self.held(owner.user, gpu, None), terms)?;
        if says_nothing {
            // What policy leaves to him may be more than there is.
            terms.memory_bytes = terms.memory_bytes.map(|bytes| bytes.min(all));
        }
        self.admission.check_on(gpu, terms).map_err(|error| error.to_string())
    }

    /// On which GPUs a tenant goes.
    fn place(&self, wish: &GpuWish, loads: &[Load]) -> Result<Vec<usize>> {
        let Config { placement, gpu: specs, .. } = &self.settings.config;
        let names = match wish {
            GpuWish::Any(count) => return Ok(placement.place(&Wish::Any(*count), loads)?),
            GpuWish::These(names) => names,
        };
        let numbers = names.iter().filter_map(|name| match name {
            GpuName::Number(number) => Some(*number),
            GpuName::Spec(_) => None,
        });
        let mut taken: Vec<usize> = numbers.collect();
        let mut places = Vec::new();
        for name in names {
            let number = match name {
                GpuName::Number(number) => *number,
                GpuName::Spec(spec) => {
                    let all: Vec<usize> = (0..specs.len()).filter(|at| specs[*at] == *spec).collect();
                    let alike: Vec<usize> = all.iter().copied().filter(|at| !taken.contains(at)).collect();
                    match (&all[..], &alike[..]) {
                        ([], _) => bail!("the daemon serves {specs}, not {spec}; stop it, or leave --gpu out"),
                        (_, []) => bail!("the daemon has {} GPUs that are {spec}, and more are wanted", all.len()),
                        _ => {}
                    }
                    let of_them: Vec<Load> = alike.iter().map(|at| loads[*at].clone()).collect();
                    let number = match placement.place(&Wish::Any(1), &of_them) {
                        Ok(best) => best.first().and_then(|best| alike.get(*best)).copied(),
                        // Said of the first, by its own number.
                        Err(_) => alike.first().copied(),
                    };
                    let number = number.context("no GPU is like that")?;
                    taken.push(number);
                    number
                }
            };
            places.push(number);
        }
        Ok(placement.place(&Wish::These(places), loads)?)
    }

    /// Who has used all GPU time that he may, with what he is told; his tenants get what nobody else wants.
    pub(super) fn hold_back(&mut self, exhausted: BTreeMap<u32, String>) -> Orders {
        let same = exhausted.keys().eq(self.exhausted.keys());
        self.exhausted = exhausted;
        if same { Orders::new() } else { self.introduce_all() }
    }

    /// Before somebody is let in: what he is told, if he has used all GPU time that he may.
    pub(super) fn note_exhausted(&mut self, user: u32, told: Option<String>) {
        match told {
            Some(told) => self.refused.insert(user, told),
            None => self.refused.remove(&user),
        };
    }

    /// Users that have tenants here.
    pub(super) fn users_present(&self) -> Vec<Owner> {
        let mut all: Vec<Owner> = self.owners.values().copied().collect();
        all.sort_unstable_by_key(|owner| (owner.user, owner.group));
        all.dedup();
        all
    }

    /// Whose tenants are, by name.
    pub(super) fn owners_by_name(&self) -> BTreeMap<String, u32> {
        let owner = |(id, terms): (TenantId, &Terms)| Some((terms.name.clone(), self.owners.get(&id)?.user));
        self.admission.tenants().filter_map(owner).collect()
    }

    pub(super) fn owner(&self, tenant: TenantId) -> Option<Owner> {
        self.owners.get(&tenant).copied()
    }

    /// The GPUs of a tenant, by its name.
    pub(super) fn gpus_of(&self, name: &str) -> Vec<usize> {
        let found = self.admission.tenants().find(|(_, terms)| terms.name == name);
        found.map_or_else(Vec::new, |(id, _)| self.admission.gpus(id).to_vec())
    }

    fn named(&self, name: &str) -> Option<(TenantId, Owner)> {
        let (id, _) = self.admission.tenants().find(|(_, terms)| terms.name == name)?;
        Some((id, self.owner(id)?))
    }

    /// Whether policy lets a tenant have so much memory, whoever asks for it.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_memory(&self, id: TenantId, bytes: u64) -> Result<(), String> {
        let Some(owner) = self.owner(id) else { return Ok(()) };
        let grant = self.grant(owner);
        let check = |gpu: &usize| grant.check_memory(self.held(owner.user, *gpu, Some(id)).memory_bytes, bytes);
        self.admission.gpus(id).iter().try_for_each(check)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registered.is_empty() && self.sessions.is_empty() && self.vgpus.is_empty() && self.leaving.is_empty()
    }

    /// True if nobody is on some GPU but those who are just being cleaned up after.
    pub(super) fn is_being_left(&self) -> bool {
        let is_left = |gpu| !self.is_free(gpu) && !self.admission.tenants().any(|(id, _)| self.is_on(id, gpu));
        (0..self.gpus()).any(is_left)
    }

    /// Whether a tenant that is not leaving is on a GPU.
    fn is_on(&self, id: TenantId, gpu: usize) -> bool {
        self.admission.gpus(id).contains(&gpu) && !self.leaving.contains(&id) && !self.orphans.contains(&id)
    }

    /// Whether nobody is on a GPU.
    pub(super) fn is_free(&self, gpu: usize) -> bool {
        let there = self.admission.tenants().any(|(id, _)| self.admission.gpus(id).contains(&gpu));
        !there && !self.sessions.values().any(|(_, on)| *on == gpu)
    }

    /// How many sessions are open on a GPU.
    pub(super) fn sessions(&self, gpu: usize) -> usize {
        self.sessions.values().filter(|(_, on)| *on == gpu).count()
    }

    /// Lets a tenant in for as long as `lifeline` is open.
    ///
    /// # Errors
    /// There is no room for such a tenant, or its name is taken.
    pub(super) fn register(
        &mut self,
        terms: Terms,
        owner: Owner,
        wish: &GpuWish,
        lifeline: Arc<OwnedFd>,
    ) -> Result<(Credential, Orders)> {
        let tenant = self.admit(terms, owner, wish, false)?;
        let credential = new_credential()?;
        let remoting = self.settings.config.remoting();
        self.registered.insert(credential, Registration { tenant, lifeline, remoting });
        Ok((credential, self.introduce(tenant)))
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
            let Some(Registration { tenant, .. }) = self.registered.remove(&credential) else { continue };
            if self.sessions.values().any(|(of, _)| *of == tenant) {
                self.orphans.insert(tenant);
            } else {
                orders.extend(self.release(tenant));
            }
        }
        orders
    }

    /// Whether some tenant of a user's is about to go.
    pub(super) fn is_somebody_going(&self, user: u32) -> bool {
        self.orphans.iter().any(|tenant| self.owner(*tenant).is_some_and(|owner| owner.user == user))
    }

    /// What a tenant had is free.
    pub(super) fn release(&mut self, tenant: TenantId) -> Orders {
        let forget = |&gpu: &usize| (gpu, ToDevice::Forget { tenant });
        let orders = self.admission.gpus(tenant).iter().map(forget).collect();
        self.admission.release(tenant);
        orders
    }

    /// The GPU of a session that is to be opened; `None` if its tenant is to be made for it.
    ///
    /// # Errors
    /// Its tenant has no such GPU, or there is no such tenant.
    pub(super) fn gpu_for(&self, credential: &Credential, who: Owner, index: u32) -> Result<Option<usize>, String> {
        let tenant = match credential.is_none() {
            true => self.users.get(&who.user).copied(),
            false => Some(self.known(credential)?),
        };
        let gpus = tenant.map(|tenant| self.admission.gpus(tenant));
        let count = gpus.map_or(1, <[usize]>::len);
        match usize::try_from(index).ok().filter(|index| *index < count) {
            Some(index) => Ok(gpus.and_then(|gpus| gpus.get(index).copied())),
            None => Err(format!("there is no GPU {index}: this tenant has {count}")),
        }
    }

    fn known(&self, credential: &Credential) -> Result<TenantId, String> {
        let known = self.registered.get(credential);
        Ok(known.ok_or("the credential is not, or no longer, valid")?.tenant)
    }

    /// Opens a session with one of its tenant's GPUs for a client that said hello.
    ///
    /// # Errors
    /// Why not, for the client.
    pub(super) fn open(&mut self, credential: Credential, who: Owner, index: u32) -> Result<(Opened, Orders), String> {
        let known = self.gpu_for(&credential, who, index)?;
        let registered = if credential.is_none() { None } else { Some(self.known(&credential)?) };
        // Before a tenant is made for it.
        if let Some(owner) = registered.map_or(Some(who), |tenant| self.owner(tenant)) {
            check_owner(owner, who)?;
            let own = |(id, _): &&(TenantId, usize)| self.owner(*id).is_some_and(|other| other.user == owner.user);
            self.grant(owner).check_session(self.sessions.values().filter(own).count())?;
        }
        let (tenant, orders) = match registered {
            Some(tenant) => (tenant, Orders::new()),
            None => self.user(who)?,
        };
        let gpus = self.admission.gpus(tenant);
        let gpu = known.or_else(|| gpus.first().copied()).ok_or("this tenant has no GPU")?;
        let gpus = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let session = self.number();
        self.sessions.insert(session, (tenant, gpu));
        Ok((Opened { session, tenant, gpu, gpus }, orders))
    }

    /// A number that nobody has.
    pub(super) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// The tenant of a user without a credential.
    fn user(&mut self, who: Owner) -> Result<(TenantId, Orders), String> {
        let uid = who.user;
        if let Some(&tenant) = self.users.get(&uid) {
            return Ok((tenant, Orders::new()));
        }
        if !self.settings.config.unregistered.allow {
            return Err("programs must be started with `sundial run` here".into());
        }
        let least = (0..self.gpus()).map(|gpu| self.admission.memory_bytes(gpu)).min().unwrap_or(0);
        let terms = Terms {
            name: format!("uid-{uid}"),
            memory_bytes: self.settings.config.unregistered.memory.map(|size| size.0.min(least)),
            host_bytes: None,
            share_percent: None,
            on_full: None,
            priority: None,
        };
        let tenant = self.admit(terms, who, &GpuWish::default(), false).map_err(|error| error.to_string())?;
        self.users.insert(uid, tenant);
        Ok((tenant, self.introduce(tenant)))
    }

    /// Changes a tenant's share.
    ///
    /// # Errors
    /// There is no such tenant, or its share does not fit beside the others'.
    pub(super) fn reshare(&mut self, name: &str, share: Percent) -> Result<Orders> {
        if let Some((id, owner)) = self.named(name) {
            for &gpu in self.admission.gpus(id) {
                let held = self.held(owner.user, gpu, Some(id)).share_percent;
                self.grant(owner).check_share(held, Some(share.0)).map_err(anyhow::Error::msg)?;
            }
        }
        let tenant = self.admission.reshare(name, Some(share.0))?;
        Ok(self.introduce(tenant))
    }

    /// Changes a tenant's priority.
    ///
    /// # Errors
    /// There is no such tenant, or its owner may not have that.
    pub(super) fn prioritize(&mut self, name: &str, priority: Priority) -> Result<Orders> {
        if let Some((_, owner)) = self.named(name) {
            self.grant(owner).check_priority(priority).map_err(anyhow::Error::msg)?;
        }
        let tenant = self.admission.prioritize(name, priority)?;
        Ok(self.introduce(tenant))
    }

    /// The priority that a tenant has.
    pub(super) fn priority(&self, tenant: TenantId) -> Priority {
        if self.owner(tenant).is_some_and(|owner| self.exhausted.contains_key(&owner.user)) {
            return Priority::Low;
        }
        self.admission.terms(tenant).and_then(|terms| terms.priority).unwrap_or_default()
    }

    /// Who was given another priority than what is usual, by name.
    pub(super) fn prioritized(&self) -> BTreeMap<String, Priority> {
        let given = |(_, terms): (TenantId, &Terms)| Some((terms.name.clone(), terms.priority?));
        self.admission.tenants().filter_map(given).filter(|(_, priority)| *priority != Priority::Normal).collect()
    }

    /// Changes the limit of GPU memory of a tenant that is no virtual GPU.
    ///
    /// # Errors
    /// There is no such tenant, or it cannot have that.
    pub(super) fn resize(&mut self, name: &str, bytes: u64) -> Result<Orders> {
        let found = self.admission.tenants().find(|(_, terms)| terms.name == name);
        let (tenant, _) = found.ok_or_else(|| AdmissionError::Nobody { name: name.into() })?;
        if self.vgpus.contains_key(&tenant) {
            bail!("`{name}` is a virtual GPU, whose guest has to do its part; say: sundial vgpu set {name} --mem ...");
        }
        self.check_memory(tenant, bytes).map_err(anyhow::Error::msg)?;
        self.admission.resize(tenant, bytes)?;
        Ok(self.introduce(tenant))
    }

    /// How GPU time is shared.
    pub(super) fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Shares GPU time in another way.
    pub(super) fn schedule(&mut self, scheduler: Scheduler) -> Orders {
        self.scheduler = scheduler;
        (0..self.gpus()).map(|gpu| (gpu, ToDevice::Schedule { scheduler })).collect()
    }

    /// The device process of a GPU says that a session has ended. Of another's it is not believed.
    pub(super) fn close_on(&mut self, gpu: usize, session: u64) -> Orders {
        match self.sessions.get(&session) {
            Some((_, on)) if *on == gpu => self.close(session),
            _ => Orders::new(),
        }
    }

    /// A session has ended, or could not be passed on.
    pub(super) fn close(&mut self, session: u64) -> Orders {
        self.processes.remove(&session);
        let Some((tenant, _)) = self.sessions.remove(&session) else { return Orders::new() };
        let last = !self.sessions.values().any(|(other, _)| *other == tenant);
        if last && self.orphans.remove(&tenant) {
            return self.release(tenant);
        }
        let user = self.users.iter().find(|&(_, &of)| of == tenant).map(|(&uid, _)| uid);
        match user {
            Some(uid) if last => {
                self.users.remove(&uid);
                self.release(tenant)
            }
            _ => Orders::new(),
        }
    }

    /// The device process of a GPU has died, and with it all sessions there. Who is on another GPU as well, and is to be forgotten, is
    /// to be forgotten there.
    pub(super) fn lost(&mut self, gpu: usize) -> Orders {
        self.up.remove(&gpu);
        let gone = self.sessions.iter().filter(|(_, (_, on))| *on == gpu).map(|(session, _)| *session);
        let gone: Vec<u64> = gone.collect();
        gone.into_iter().flat_map(|session| self.close(session)).collect()
    }

    /// A device process works.
    pub(super) fn works(&mut self, gpu: usize) {
        self.up.insert(gpu);
    }

    /// All that a new device process of a GPU must be told.
    pub(super) fn restart(&self, gpu: usize) -> Orders {
        let scheduler = self.scheduler;
        // Virtual GPUs before anybody's session: they keep the memory that they have.
        let all = self.introduce_all().into_iter().chain(self.make_vgpus()).filter(|(on, _)| *on == gpu);
        [(gpu, ToDevice::Schedule { scheduler })].into_iter().chain(all).collect()
    }

    /// Notes whose a tenant is.
    fn own(&mut self, tenant: TenantId, owner: Owner) {
        self.owners.insert(tenant, owner);
        let present: BTreeSet<TenantId> = self.admission.tenants().map(|(id, _)| id).collect();
        self.owners.retain(|tenant, _| present.contains(tenant));
    }

    /// Most memory of a GPU that a tenant may have, bytes.
    fn memory_limit(&self, terms: &Terms, gpu: usize) -> u64 {
        let whole = self.admission.memory_bytes(gpu);
        terms.memory_bytes.unwrap_or(whole).min(self.settings.limits.vram_bytes)
    }

    pub(super) fn introduce(&self, id: TenantId) -> Orders {
        let Some(terms) = self.admission.terms(id) else { return Orders::new() };
        let owner = self.owner(id).unwrap_or_default();
        let config = &self.settings.config;
        let gpus = self.admission.gpus(id);
        let host_bytes = terms.host_bytes.unwrap_or(u64::MAX).min(self.settings.limits.host_bytes);
        // A device process counts what its own tenants take.
        let host_bytes = (host_bytes / gpus.len().max(1) as u64).max(tenancy::LEAST_HOST_MEMORY.min(host_bytes));
        let order = |&gpu: &usize| {
            let vram_bytes = self.memory_limit(terms, gpu);
            let order = ToDevice::Tenant {
                id,
                name: terms.name.clone(),
                user: owner.user,
                limits: Limits { vram_bytes, host_bytes, ..self.settings.limits.clone() },
                share_percent: if self.exhausted.contains_key(&owner.user) {
                    Some(LEFT_OVER)
                } else {
                    terms.share_percent
                },
                priority: self.priority(id),
                on_full: terms.on_full.unwrap_or(config.memory.on_full.0),
            };
            (gpu, order)
        };
        gpus.iter().map(order).collect()
    }
}

/// Whether somebody may come as a tenant of a user's.
fn check_owner(owner: Owner, who: Owner) -> Result<(), String> {
    if owner.user != who.user && !owner.is_administrator() && !who.is_administrator() {
        return Err("the credential is another user's".into());
    }
    Ok(())
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
    use crate::host::Host;

    pub(super) fn tenants_with(config: &str) -> Tenants {
        let settings = Settings::new(Config::parse(config).unwrap(), Host::look()).unwrap();
        let mut tenants = Tenants::new(&Arc::new(settings));
        tenants.start(vec![1 << 30; tenants.gpus()]);
        (0..tenants.gpus()).for_each(|gpu| tenants.works(gpu));
        tenants
    }

    fn tenants() -> Tenants {
        tenants_with("")
    }

    pub(super) fn owner(user: u32) -> Owner {
        Owner { user, group: user }
    }

    /// Its other end, which keeps it, and what came of it.
    fn register(tenants: &mut Tenants, terms: Terms, user: u32) -> Result<OwnedFd, String> {
        let (ours, theirs) = unix::pair().unwrap();
        let registered = tenants.register(terms, owner(user), &GpuWish::default(), Arc::new(ours));
        registered.map(|_| theirs).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn policy_holds_for_all_tenants_of_a_user_together() {
        let mut tenants = tenants_with(
            "most_tenants = 4\n[policy.default]\ntenants = 2\nshare = \"50%\"\nmem = \"600m\"\nsessions = 1\n",
        );
        let user = 4_000_001;
        let _a = register(&mut tenants, terms("a", 30.0), user).unwrap();
        assert!(register(&mut tenants, terms("b", 30.0), user).unwrap_err().contains("--share 20%"));
        let more = Terms { memory_bytes: Some(512 << 20), ..terms("b", 20.0) };
        assert!(register(&mut tenants, more, user).unwrap_err().contains("--mem 344m"));
        let _b = register(&mut tenants, Terms { memory_bytes: None, ..terms("b", 20.0) }, user).unwrap();
        assert!(register(&mut tenants, terms("c", 1.0), user).unwrap_err().contains("`tenants = 2`"));
        assert!(tenants.resize("a", 600 << 20).unwrap_err().to_string().contains("--mem 256m"));
        assert!(tenants.resize("nobody", 1 << 20).is_err());
        let limit = |orders: &Orders| match &orders[..] {
            [(_, ToDevice::Tenant { limits, .. })] => limits.vram_bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(limit(&tenants.resize("a", 100 << 20).unwrap()), 100 << 20);
        assert_eq!(limit(&tenants.resize("a", 256 << 20).unwrap()), 256 << 20);
        assert!(tenants.reshare("a", Percent(31.0)).is_err() && tenants.reshare("a", Percent(29.0)).is_ok());
        // The administrator is bound by what there is, and nothing else.
        let _c = register(&mut tenants, Terms { memory_bytes: Some(1 << 30), ..terms("c", 50.0) }, 0).unwrap();
        let _d = register(&mut tenants, terms("d", 1.0), 0).unwrap();
        assert!(register(&mut tenants, terms("e", 1.0), 0).unwrap_err().contains("4 tenants are present"));

        let unregistered = owner(4_000_002);
        tenants.admission.release(TenantId(4));
        let (first, ..) = tenants.open(Credential::default(), unregistered, 0).unwrap();
        assert!(tenants.open(Credential::default(), unregistered, 0).unwrap_err().contains("`sessions = 1`"));
        tenants.close(first.session);
        tenants.drain();
        assert!(tenants.open(Credential::default(), unregistered, 0).unwrap_err().contains("is ending"));
        assert!(register(&mut tenants, terms("f", 1.0), 0).is_err());
    }

    #[test]
    fn who_has_used_all_that_he_may_gets_what_is_left_over() {
        let mut tenants = tenants();
        let _a = register(&mut tenants, terms("a", 30.0), 7).unwrap();
        let _b = register(&mut tenants, terms("b", 30.0), 8).unwrap();
        let shares = |orders: Orders| -> Vec<f64> {
            let share = |(_, order): (usize, ToDevice)| match order {
                ToDevice::Tenant { share_percent, .. } => share_percent,
                _ => None,
            };
            orders.into_iter().filter_map(share).collect()
        };
        let seven = || BTreeMap::from([(7, "enough".to_owned())]);
        // Who has been refused meanwhile is held back all the same.
        tenants.note_exhausted(7, Some("enough".into()));
        assert_eq!(shares(tenants.hold_back(seven())), [LEFT_OVER, 30.0]);
        tenants.note_exhausted(7, None);
        assert!(tenants.hold_back(seven()).is_empty(), "nothing is new");
        assert_eq!(register(&mut tenants, terms("c", 1.0), 7).unwrap_err(), "enough");
        assert_eq!(shares(tenants.restart(0)), [LEFT_OVER, 30.0], "the next device process is told so, too");
        assert_eq!(shares(tenants.hold_back(BTreeMap::new())), [30.0, 30.0]);
    }

    #[test]
    fn a_priority_is_told_and_kept_as_far_as_policy_has_it() {
        let mut tenants =
            tenants_with("[policy.default]\npriority = \"normal\"\n[policy.users.0]\npriority = \"high\"\n");
        let user = 4_000_001;
        let high = |name| Terms { priority: Some(Priority::High), ..terms(name, 1.0) };
        let _a = register(&mut tenants, high("a"), 0).unwrap();
        let refused = register(&mut tenants, high("b"), user).unwrap_err();
        assert!(refused.contains("[policy.default]") && refused.contains("--priority normal at most"), "{refused}");
        let _b = register(&mut tenants, terms("b", 1.0), user).unwrap();
        let told = |orders: Orders| -> Vec<Priority> {
            let priority = |(_, order): (usize, ToDevice)| match order {
                ToDevice::Tenant { priority, .. } => Some(priority),
                _ => None,
            };
            orders.into_iter().filter_map(priority).collect()
        };
        assert_eq!(told(tenants.introduce_all()), [Priority::High, Priority::Normal]);
        assert!(tenants.prioritize("b", Priority::High).is_err());
        assert!(tenants.prioritize("nobody", Priority::Low).unwrap_err().to_string().contains("no tenant named"));
        assert_eq!(told(tenants.prioritize("b", Priority::Low).unwrap()), [Priority::Low]);
        assert_eq!(told(tenants.prioritize("a", Priority::Normal).unwrap()), [Priority::Normal]);
        assert_eq!(told(tenants.prioritize("a", Priority::High).unwrap()), [Priority::High]);
        // The next device process is told so, and another policy takes nothing away from who is there.
        assert_eq!(told(tenants.restart(0)), [Priority::High, Priority::Low]);
        let settings =
            Settings::new(Config::parse("[policy.default]\npriority = \"low\"\n").unwrap(), Host::look()).unwrap();
        assert_eq!(told(tenants.reconfigure(&Arc::new(settings))), [Priority::High, Priority::Low]);
        assert_eq!(tenants.prioritized().into_values().collect::<Vec<_>>(), [Priority::High, Priority::Low]);
        // Who has used all that he may goes before nobody.
        assert_eq!(told(tenants.hold_back(BTreeMap::from([(0, "enough".to_owned())]))), [Priority::Low; 2]);
        assert_eq!(told(tenants.hold_back(BTreeMap::new())), [Priority::High, Priority::Low]);
    }

    pub(super) fn terms(name: &str, share: f64) -> Terms {
        Terms {
            name: name.into(),
            memory_bytes: Some(1 << 28),
            host_bytes: None,
            share_percent: Some(share),
            on_full: None,
            priority: None,
        }
    }

    #[test]
    fn a_registration_lasts_as_long_as_its_lifeline() {
        let mut tenants = tenants();
        let (ours, theirs) = unix::pair().unwrap();
        let (credential, orders) =
            tenants.register(terms("a", 80.0), owner(5), &GpuWish::default(), Arc::new(ours)).unwrap();
        assert!(
            matches!(&orders[..], [(_, ToDevice::Tenant { share_percent: Some(_), limits, .. })] if limits.vram_bytes == 1 << 28)
        );
        let (session, ..) = tenants.open(credential, owner(5), 0).unwrap();
        assert!(tenants.open(credential, owner(4_000_001), 0).unwrap_err().contains("another user's"));
        let (other, _keep) = unix::pair().unwrap();
        let other = Arc::new(other);
        assert!(
            tenants.register(terms("b", 30.0), owner(5), &GpuWish::default(), Arc::clone(&other)).is_err(),
            "80 % are given"
        );
        drop(theirs);
        assert!(tenants.sweep().is_empty() && tenants.is_somebody_going(5) && !tenants.is_somebody_going(6));
        assert!(tenants.open(credential, owner(5), 0).is_err(), "the credential went with its lifeline");
        assert!(tenants.open(Credential([9; 32]), owner(5), 0).is_err());
        assert!(
            tenants.register(terms("b", 30.0), owner(5), &GpuWish::default(), Arc::clone(&other)).is_err(),
            "whoever has a session has its share"
        );
        let orders = tenants.close(session.session);
        assert!(matches!(&orders[..], [(_, ToDevice::Forget { .. })]) && !tenants.is_somebody_going(5));
        let (_, orders) = tenants.register(terms("b", 30.0), owner(5), &GpuWish::default(), other).unwrap();
        assert!(matches!(&orders[..], [(_, ToDevice::Tenant { .. })]));
        assert!(!tenants.is_empty());
        let orders = tenants.reshare("b", Percent(100.0)).unwrap();
        assert!(matches!(&orders[..], [(_, ToDevice::Tenant { share_percent: Some(100.0), .. })]));
        assert!(tenants.reshare("a", Percent(1.0)).is_err(), "it has left");
    }

    #[test]
    fn the_next_device_process_is_told_how_time_is_shared() {
        let mut tenants = tenants();
        let band = Scheduler(fair_share::Policy::Band);
        for orders in [tenants.schedule(band), tenants.restart(0)] {
            assert!(matches!(&orders[..], [(0, ToDevice::Schedule { scheduler })] if *scheduler == band));
        }
    }

    #[test]
    fn users_without_credential_share_one_tenant_each() {
        let mut tenants = tenants();
        let (first, orders) = tenants.open(Credential::default(), owner(7), 0).unwrap();
        assert_eq!(orders.len(), 1);
        let (second, orders) = tenants.open(Credential::default(), owner(7), 0).unwrap();
        assert!(first.tenant == second.tenant && orders.is_empty());
        let (third, _) = tenants.open(Credential::default(), owner(8), 0).unwrap();
        assert_ne!(first.tenant, third.tenant);
        assert!(tenants.close(first.session).is_empty());
        assert!(
            matches!(&tenants.close(second.session)[..], [(0, ToDevice::Forget { tenant })] if *tenant == first.tenant)
        );
        assert_eq!(tenants.lost(0).len(), 1);
        assert!(matches!(&tenants.restart(0)[..], [(0, ToDevice::Schedule { .. })]) && tenants.is_empty());

        let mut tenants = tenants_with("[unregistered]\nallow = false");
        assert!(tenants.open(Credential::default(), owner(7), 0).is_err());
    }

    /// A lifeline that is never cut.
    pub(super) fn alive() -> Arc<OwnedFd> {
        let (ours, theirs) = unix::pair().unwrap();
        std::mem::forget(theirs);
        Arc::new(ours)
    }

    /// Two GPUs of 1 GiB.
    fn two(config: &str) -> Tenants {
        tenants_with(&format!("gpu = [\"soft:1g\", \"soft:2g\"]\n{config}"))
    }

    #[test]
    fn a_tenant_of_two_gpus_is_told_of_and_forgotten_on_both() {
        let mut tenants = two("");
        let mut come = |name: &str, wish| {
            let (ours, theirs) = unix::pair().unwrap();
            let terms = Terms { memory_bytes: None, ..terms(name, 10.0) };
            tenants.register(terms, owner(5), &wish, Arc::new(ours)).map(|(credential, orders)| {
                let told: Vec<usize> = orders.iter().map(|(gpu, _)| *gpu).collect();
                (credential, told, theirs)
            })
        };
        let (one, told, _alive) = come("one", GpuWish::Any(1)).unwrap();
        assert_eq!(told, [0]);
        let (both, told, life) = come("both", GpuWish::Any(2)).unwrap();
        assert_eq!(told, [0, 1]);
        let spec = |text: &str| GpuName::Spec(text.parse().unwrap());
        let (turned, told, _alive) = come("turned", GpuWish::These(vec![spec("soft:2g"), GpuName::Number(0)])).unwrap();
        assert_eq!(told, [1, 0], "in the order that was asked for");
        for (wish, what) in [
            (GpuWish::Any(3), "the daemon has 2 GPUs, not 3"),
            (GpuWish::Any(0), "at least one"),
            (GpuWish::These(vec![GpuName::Number(2)]), "there is no GPU 2: the daemon has 2"),
            (GpuWish::These(vec![GpuName::Number(usize::MAX)]), "there is no GPU"),
            (GpuWish::These(vec![spec("soft:4g")]), "serves soft:1073741824, soft:2147483648, not soft:4294967296"),
            (GpuWish::These(vec![spec("soft:2g"); 2]), "has 1 GPUs that are soft:2147483648, and more"),
            (
                GpuWish::These(vec![GpuName::Number(1), spec("soft:2g")]),
                "has 1 GPUs that are soft:2147483648, and more",
            ),
        ] {
            let refused = format!("{:#}", come("x", wish).unwrap_err());
            assert!(refused.contains(what), "{refused}");
        }

        let opened = |tenants: &mut Tenants, of, index| tenants.open(of, owner(5), index).map(|(opened, _)| opened);
        let second = opened(&mut tenants, both, 1).unwrap();
        assert_eq!((second.gpu, second.gpus), (1, 2));
        assert_eq!(opened(&mut tenants, turned, 0).unwrap().gpu, 1);
        assert!(opened(&mut tenants, one, 1).unwrap_err().contains("this tenant has 1"));
        assert!(opened(&mut tenants, Credential::default(), 1).unwrap_err().contains("this tenant has 1"));
        let first = opened(&mut tenants, both, 0).unwrap();
        // The death of one GPU's process is not the other's: who comes goes there.
        assert!(tenants.lost(1).is_empty());
        assert_eq!((tenants.sessions(0), tenants.sessions(1)), (1, 0));
        let (alone, orders) = tenants.open(Credential::default(), owner(9), 0).unwrap();
        assert_eq!((alone.gpu, orders.len()), (0, 1), "though more tenants are there");
        tenants.close(alone.session);
        let again: Vec<usize> = tenants.restart(1).iter().map(|(gpu, _)| *gpu).collect();
        assert_eq!(again, [1, 1, 1], "how time is shared, and both tenants there");
        tenants.works(1);
        assert!(
            tenants.close_on(1, first.session).is_empty() && tenants.sessions(0) == 1,
            "it is not the other's to end"
        );
        drop(life);
        assert!(tenants.sweep().is_empty(), "it has a session");
        let told: Vec<usize> = tenants.lost(0).iter().map(|(gpu, _)| *gpu).collect();
        assert_eq!(
            (told, tenants.sessions(0)),
            (vec![0, 1], 0),
            "with its last session it is forgotten on the other, too"
        );
        assert!(tenants.register(terms("both", 1.0), owner(5), &GpuWish::Any(2), alive()).is_ok());
        assert!(tenants.close(first.session).is_empty());
        let little = Terms { host_bytes: Some(32 << 20), ..terms("little", 1.0) };
        let refused = tenants.register(little, owner(5), &GpuWish::Any(2), alive()).unwrap_err();
        assert!(refused.to_string().contains("the least is 67108864"), "{refused}");
    }

    #[test]
    fn what_policy_says_holds_on_each_gpu() {
        let mut tenants = two("[policy.default]\ntenants = 3\nshare = \"50%\"\nmem = \"600m\"\n");
        let user = 4_000_001;
        let mut come = |name: &str, share: f64, bytes, wish: GpuWish| {
            let (ours, theirs) = unix::pair().unwrap();
            let terms = Terms { memory_bytes: bytes, ..terms(name, share) };
            let admitted = tenants.register(terms, owner(user), &wish, Arc::new(ours));
            std::mem::forget(theirs);
            admitted.map(|(_, orders)| orders).map_err(|error| format!("{error:#}"))
        };
        let on = |number| GpuWish::These(vec![GpuName::Number(number)]);
        come("a", 40.0, Some(400 << 20), on(0)).unwrap();
        assert!(come("b", 40.0, None, on(0)).unwrap_err().starts_with("GPU 0: a share of 40 %"));
        assert!(come("b", 40.0, None, GpuWish::Any(2)).unwrap_err().starts_with("GPU 0: a share of 40 %"));
        let limits = |orders: &Orders| -> Vec<u64> {
            let limit = |(_, order): &(usize, ToDevice)| match order {
                ToDevice::Tenant { limits, .. } => Some(limits.vram_bytes),
                _ => None,
            };
            orders.iter().filter_map(limit).collect()
        };
        let both = come("b", 10.0, None, GpuWish::Any(2)).unwrap();
        assert_eq!(limits(&both), [200 << 20; 2], "what is left on the fuller one, on both");
        assert_eq!(limits(&come("c", 40.0, None, GpuWish::Any(1)).unwrap()), [400 << 20], "where it fits");
        assert!(come("d", 1.0, None, on(1)).unwrap_err().contains("`tenants = 3`"));
    }
}
