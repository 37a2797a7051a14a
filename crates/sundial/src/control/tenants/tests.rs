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

pub(super) fn newcomer(terms: Terms) -> Newcomer<'static> {
    Newcomer { terms, profile: None, gpus: &GpuWish::Any(1) }
}

/// Its other end, which keeps it, and what came of it.
fn register(tenants: &mut Tenants, terms: Terms, user: u32) -> Result<OwnedFd, String> {
    let (ours, theirs) = unix::pair().unwrap();
    let registered = tenants.register(newcomer(terms), owner(user), Arc::new(ours));
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

/// A user who has used his GPU time: all, or that of a profile.
fn used_up(user: u32, profile: Option<&str>) -> Exhausted {
    Exhausted::from([(Spender { user, profile: profile.map(Into::into) }, "enough".to_owned())])
}

#[test]
fn who_has_used_what_a_profile_has_may_take_another() {
    let mut tenants = tenants_with("[profiles.big]\n[profiles.small]\n");
    let come = |tenants: &mut Tenants, name, profile| {
        let newcomer = Newcomer { terms: terms(name, 1.0), profile, gpus: &GpuWish::default() };
        tenants.admit(newcomer, Owner { user: 7, group: 7 }, false)
    };
    let big = come(&mut tenants, "a", Some("big")).unwrap();
    let small = come(&mut tenants, "b", Some("small")).unwrap();
    let none = come(&mut tenants, "c", None).unwrap();
    tenants.note_exhausted(7, used_up(7, Some("big")));
    assert_eq!(come(&mut tenants, "d", Some("big")).unwrap_err().to_string(), "enough");
    come(&mut tenants, "e", Some("small")).unwrap();
    tenants.hold_back(used_up(7, Some("big")));
    assert_eq!([big, small, none].map(|id| tenants.is_exhausted(id)), [true, false, false]);
    tenants.hold_back(used_up(7, None));
    assert_eq!([big, small, none].map(|id| tenants.is_exhausted(id)), [true; 3]);
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
    let seven = || used_up(7, None);
    // Who has been refused meanwhile is held back all the same.
    tenants.note_exhausted(7, seven());
    assert_eq!(shares(tenants.hold_back(seven())), [LEFT_OVER, 30.0]);
    tenants.note_exhausted(7, Exhausted::new());
    assert!(tenants.hold_back(seven()).is_empty(), "nothing is new");
    assert_eq!(register(&mut tenants, terms("c", 1.0), 7).unwrap_err(), "enough");
    assert_eq!(shares(tenants.restart(0)), [LEFT_OVER, 30.0], "the next device process is told so, too");
    assert_eq!(shares(tenants.hold_back(BTreeMap::new())), [30.0, 30.0]);
}

#[test]
fn a_priority_is_told_and_kept_as_far_as_policy_has_it() {
    let mut tenants = tenants_with("[policy.default]\npriority = \"normal\"\n[policy.users.0]\npriority = \"high\"\n");
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
    assert_eq!(told(tenants.hold_back(used_up(0, None))), [Priority::Low; 2]);
    assert_eq!(told(tenants.hold_back(BTreeMap::new())), [Priority::High, Priority::Low]);
}

#[test]
fn who_may_take_some_profiles_has_no_more_than_they_say() {
    let mut tenants = tenants_with(
        "[profiles.small]\nmem = \"128m\"\nshare = \"10%\"\n[profiles.large]\nmem = \"512m\"\ntenants = 1\n\
         [policy.default]\nprofiles = [\"small\", \"large\"]\n[unregistered]\nmemory = \"512m\"\n",
    );
    let user = 4_000_001;
    let open = |name: &str, memory_bytes| Terms { memory_bytes, share_percent: None, ..terms(name, 0.0) };
    let come = |tenants: &mut Tenants, terms, profile, user| {
        let come = tenants.register(Newcomer { profile, ..newcomer(terms) }, owner(user), alive());
        come.map(|(_, orders)| limit(&orders)).map_err(|error| format!("{error:#}"))
    };
    assert_eq!(come(&mut tenants, open("a", None), None, user), Ok(128 << 20), "the first of them");
    let told = come(&mut tenants, open("b", Some(256 << 20)), None, user).unwrap_err();
    assert!(told.contains("profile `small`") && told.contains("or for another profile"), "{told}");
    assert_eq!(come(&mut tenants, open("b", Some(256 << 20)), Some("large"), user), Ok(256 << 20));
    assert!(tenants.resize("b", 513 << 20).unwrap_err().to_string().contains("profile `large`"));
    assert_eq!(limit(&tenants.resize("b", 512 << 20).unwrap()), 512 << 20);
    assert!(tenants.reshare("a", Percent(11.0)).is_err() && tenants.reshare("a", Percent(9.0)).is_ok());
    let told = come(&mut tenants, open("c", None), Some("large"), user).unwrap_err();
    assert!(told.contains("is for 1 tenants at once"), "{told}");
    assert!(come(&mut tenants, open("c", None), Some("huge"), user).unwrap_err().contains("lets you take"));
    // The administrator takes any, and has what he says.
    assert_eq!(come(&mut tenants, open("c", Some(256 << 20)), Some("small"), 0), Ok(256 << 20));
    let (_, orders) = tenants.open(Credential::default(), owner(4_000_002), 0).unwrap();
    assert_eq!(limit(&orders), 128 << 20, "who does not come with `run` has the first, too");
    let large = tenants.named("b").unwrap().0;
    tenants.release(large);
    assert_eq!(come(&mut tenants, open("d", None), Some("large"), user), Ok(512 << 20), "one has ended");
}

#[test]
fn a_profile_that_policy_gives_may_have_a_priority() {
    let profiles = "[profiles.urgent]\npriority = \"high\"\n[policy.default]\nprofiles = [\"urgent\"]\n";
    let come = |tenants: &mut Tenants| {
        let terms = Terms { share_percent: None, ..terms("a", 0.0) };
        tenants.register(newcomer(terms), owner(4_000_001), alive())?;
        Ok::<_, anyhow::Error>(tenants.named("a").map(|(tenant, _)| tenants.priority(tenant)))
    };
    let mut tenants = tenants_with(profiles);
    assert_eq!(come(&mut tenants).unwrap(), Some(Priority::High));
    assert!(tenants.prioritize("a", Priority::Low).is_ok() && tenants.prioritize("a", Priority::High).is_ok());
    let mut tenants = tenants_with(&format!("{profiles}priority = \"normal\"\n"));
    assert!(come(&mut tenants).unwrap_err().to_string().contains("--priority normal at most"), "policy says it itself");
}

/// The limit of GPU memory that a device process is told, bytes.
fn limit(orders: &Orders) -> u64 {
    match &orders[..] {
        [(_, ToDevice::Tenant { limits, .. })] => limits.vram_bytes,
        other => panic!("{other:?}"),
    }
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
    let (credential, orders) = tenants.register(newcomer(terms("a", 80.0)), owner(5), Arc::new(ours)).unwrap();
    assert!(
        matches!(&orders[..], [(_, ToDevice::Tenant { share_percent: Some(_), limits, .. })] if limits.vram_bytes == 1 << 28)
    );
    let (session, ..) = tenants.open(credential, owner(5), 0).unwrap();
    assert!(tenants.open(credential, owner(4_000_001), 0).unwrap_err().contains("another user's"));
    let (other, _keep) = unix::pair().unwrap();
    let other = Arc::new(other);
    assert!(tenants.register(newcomer(terms("b", 30.0)), owner(5), Arc::clone(&other)).is_err(), "80 % are given");
    drop(theirs);
    assert!(tenants.sweep().is_empty() && tenants.is_somebody_going(5) && !tenants.is_somebody_going(6));
    assert!(tenants.open(credential, owner(5), 0).is_err(), "the credential went with its lifeline");
    assert!(tenants.open(Credential([9; 32]), owner(5), 0).is_err());
    assert!(
        tenants.register(newcomer(terms("b", 30.0)), owner(5), Arc::clone(&other)).is_err(),
        "whoever has a session has its share"
    );
    let orders = tenants.close(session.session);
    assert!(matches!(&orders[..], [(_, ToDevice::Forget { .. })]) && !tenants.is_somebody_going(5));
    let (_, orders) = tenants.register(newcomer(terms("b", 30.0)), owner(5), other).unwrap();
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
        tenants.register(Newcomer { gpus: &wish, ..newcomer(terms) }, owner(5), Arc::new(ours)).map(
            |(credential, orders)| {
                let told: Vec<usize> = orders.iter().map(|(gpu, _)| *gpu).collect();
                (credential, told, theirs)
            },
        )
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
        (GpuWish::These(vec![GpuName::Number(1), spec("soft:2g")]), "has 1 GPUs that are soft:2147483648, and more"),
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
    assert!(tenants.close_on(1, first.session).is_empty() && tenants.sessions(0) == 1, "it is not the other's to end");
    drop(life);
    assert!(tenants.sweep().is_empty(), "it has a session");
    let told: Vec<usize> = tenants.lost(0).iter().map(|(gpu, _)| *gpu).collect();
    assert_eq!((told, tenants.sessions(0)), (vec![0, 1], 0), "with its last session it is forgotten on the other, too");
    assert!(
        tenants
            .register(Newcomer { gpus: &GpuWish::Any(2), ..newcomer(terms("both", 1.0)) }, owner(5), alive())
            .is_ok()
    );
    assert!(tenants.close(first.session).is_empty());
    let little = Terms { host_bytes: Some(32 << 20), ..terms("little", 1.0) };
    let refused =
        tenants.register(Newcomer { gpus: &GpuWish::Any(2), ..newcomer(little) }, owner(5), alive()).unwrap_err();
    assert!(refused.to_string().contains("the least is 67108864"), "{refused}");
}

#[test]
fn what_policy_says_holds_on_each_gpu() {
    let mut tenants = two("[policy.default]\ntenants = 3\nshare = \"50%\"\nmem = \"600m\"\n");
    let user = 4_000_001;
    let mut come = |name: &str, share: f64, bytes, wish: GpuWish| {
        let (ours, theirs) = unix::pair().unwrap();
        let terms = Terms { memory_bytes: bytes, ..terms(name, share) };
        let admitted = tenants.register(Newcomer { gpus: &wish, ..newcomer(terms) }, owner(user), Arc::new(ours));
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
