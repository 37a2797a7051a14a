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
use crate::profile::Taken;
use crate::quota::Spender;
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
    /// The profiles that they took.
    profiles: BTreeMap<TenantId, Taken>,
    /// Who has used all the GPU time that he may, and what he is told of that.
    exhausted: Exhausted,
    /// What newcomers are told, as of when their user was looked at last: whether he has tenants here or not.
    refused: Exhausted,
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

/// What somebody asks for who wants to be let in.
#[derive(Clone, Debug)]
pub(super) struct Newcomer<'a> {
    pub(super) terms: Terms,
    pub(super) profile: Option<&'a str>,
    pub(super) gpus: &'a GpuWish,
}

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
            profiles: BTreeMap::new(),
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

    /// The profile that somebody takes who names one, or none.
    ///
    /// # Errors
    /// There is no such profile, or he may not take it.
    pub(super) fn profile(&self, owner: Owner, name: Option<&str>) -> Result<Option<Taken>, String> {
        self.grant(owner).profile(name, &self.settings.config.profiles)
    }

    /// Whether one more may have a profile.
    fn check_profile(&self, taken: &Taken) -> Result<(), String> {
        let has_it = |(tenant, other): &(&TenantId, &Taken)| {
            other.name == taken.name && self.admission.terms(**tenant).is_some()
        };
        match taken.profile.tenants {
            Some(most) if self.profiles.iter().filter(has_it).count() >= most => Err(format!(
                "profile `{}` is for {most} tenants at once, and so many have it; try again when one has ended, or take another",
                taken.name
            )),
            _ => Ok(()),
        }
    }

    /// Lets somebody in on as many GPUs as he wishes, as policy has it; or on all of one, if there is nobody else.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn admit(&mut self, newcomer: Newcomer<'_>, owner: Owner, whole: bool) -> Result<TenantId> {
        let Newcomer { mut terms, profile, gpus: wish } = newcomer;
        if self.draining {
            bail!("the daemon is ending, and lets nobody in any more; try again when another has started");
        }
        let taken = self.profile(owner, profile).map_err(anyhow::Error::msg)?;
        let spender = Spender { user: owner.user, profile: taken.as_ref().map(|taken| taken.name.clone()) };
        if let Some(told) = why_exhausted(&self.refused, &spender).or_else(|| why_exhausted(&self.exhausted, &spender))
        {
            bail!("{told}");
        }
        if let Some(taken) = &taken {
            taken.fill(&mut terms).map_err(anyhow::Error::msg)?;
            self.check_profile(taken).map_err(anyhow::Error::msg)?;
        }
        let grant = self.grant(owner).with(taken.as_ref());
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
        if let Some(taken) = taken {
            self.profiles.insert(tenant, taken);
        }
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
    pub(super) fn hold_back(&mut self, exhausted: Exhausted) -> Orders {
        let same = exhausted.keys().eq(self.exhausted.keys());
        self.exhausted = exhausted;
        if same { Orders::new() } else { self.introduce_all() }
    }

    /// Before a user is let in: what he has used all of.
    pub(super) fn note_exhausted(&mut self, user: u32, exhausted: Exhausted) {
        self.refused.retain(|spender, _| spender.user != user);
        self.refused.extend(exhausted);
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

    /// Whose GPU time a tenant uses.
    fn spender(&self, tenant: TenantId) -> Spender {
        let profile = self.profiles.get(&tenant).map(|taken| taken.name.clone());
        Spender { user: self.owner(tenant).unwrap_or_default().user, profile }
    }

    /// Whether a tenant gets what nobody else wants.
    fn is_exhausted(&self, tenant: TenantId) -> bool {
        why_exhausted(&self.exhausted, &self.spender(tenant)).is_some()
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
        if let Some(taken) = self.profiles.get(&id) {
            taken.check_memory(bytes)?;
        }
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
        newcomer: Newcomer<'_>,
        owner: Owner,
        lifeline: Arc<OwnedFd>,
    ) -> Result<(Credential, Orders)> {
        let tenant = self.admit(newcomer, owner, false)?;
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
        let mut terms = Terms {
            name: format!("uid-{uid}"),
            memory_bytes: self.settings.config.unregistered.memory.map(|size| size.0.min(least)),
            host_bytes: None,
            share_percent: None,
            on_full: None,
            priority: None,
        };
        if let Some(taken) = self.profile(who, None)? {
            taken.bound(&mut terms);
        }
        let newcomer = Newcomer { terms, profile: None, gpus: &GpuWish::default() };
        let tenant = self.admit(newcomer, who, false).map_err(|error| error.to_string())?;
        self.users.insert(uid, tenant);
        Ok((tenant, self.introduce(tenant)))
    }

    /// Changes a tenant's share.
    ///
    /// # Errors
    /// There is no such tenant, or its share does not fit beside the others'.
    pub(super) fn reshare(&mut self, name: &str, share: Percent) -> Result<Orders> {
        if let Some((id, owner)) = self.named(name) {
            if let Some(taken) = self.profiles.get(&id) {
                taken.check_share(share.0).map_err(anyhow::Error::msg)?;
            }
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
        if let Some((id, owner)) = self.named(name) {
            let taken = self.profiles.get(&id);
            if let Some(taken) = taken {
                taken.check_priority(priority).map_err(anyhow::Error::msg)?;
            }
            self.grant(owner).with(taken).check_priority(priority).map_err(anyhow::Error::msg)?;
        }
        let tenant = self.admission.prioritize(name, priority)?;
        Ok(self.introduce(tenant))
    }

    /// The priority that a tenant has.
    pub(super) fn priority(&self, tenant: TenantId) -> Priority {
        if self.is_exhausted(tenant) {
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
        self.profiles.retain(|tenant, _| present.contains(tenant));
    }

    /// Most memory of a GPU that a tenant may have, bytes.
    fn memory_limit(&self, terms: &Terms, gpu: usize) -> u64 {
        let whole = self.admission.memory_bytes(gpu);
        terms.memory_bytes.unwrap_or(whole).min(self.settings.limits.vram_bytes)
    }

    pub(super) fn introduce(&self, id: TenantId) -> Orders {
        let Some(terms) = self.admission.terms(id) else { return Orders::new() };
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
                spender: self.spender(id),
                limits: Limits { vram_bytes, host_bytes, ..self.settings.limits.clone() },
                share_percent: if self.is_exhausted(id) { Some(LEFT_OVER) } else { terms.share_percent },
                priority: self.priority(id),
                on_full: terms.on_full.unwrap_or(config.memory.on_full.0),
            };
            (gpu, order)
        };
        gpus.iter().map(order).collect()
    }
}

/// Who has used all GPU time that he may, and what he is told: a user by all his tenants, or by those that have a profile.
pub(super) type Exhausted = BTreeMap<Spender, String>;

fn why_exhausted<'a>(exhausted: &'a Exhausted, spender: &Spender) -> Option<&'a String> {
    exhausted.get(&Spender { user: spender.user, profile: None }).or_else(|| exhausted.get(spender))
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
mod tests;
