//! Who may have how much of the GPU: `[policy]` of `config.toml`, for daemons that serve several users.
//!
//! ```toml
//! [policy.default]           # every user
//! tenants = 4                # at once, virtual GPUs among them
//! [policy.groups.students]   # each member
//! share = "20%"              # of GPU time, all tenants of one together
//! mem = "2g"                 # of GPU memory, the same
//! sessions = 16              # at once, all tenants of one together
//! connections = 64           # to the daemon's sockets
//! quota = "10h/day"          # of GPU time: so much at once, and what was used is forgotten evenly, so much in so much time
//! quota_together = "50h/day" # of all members together; not for users
//! priority = "normal"        # the highest that one may ask for; who does not ask has that, or normal
//! profiles = ["small"]       # which one may take; the first, if one does not say; and none of one's tenants has more than its
//!                            # profile says, on each of its GPUs, whatever one asks for
//! see = "shares"             # of others' tenants: nothing, shares (and memory, but neither names nor users), or all
//! [policy.users.mallory]
//! allow = false              # not at all
//! ```
//! Of each key counts what is said for the user; else the most that is said for one of his groups; else what is said for all. The
//! administrator (root, and the daemon's user) may do what he likes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use fair_share::Priority;
use serde::Deserialize;
use tenancy::Terms;

use crate::profile::{Profile, Taken};
use crate::quota::Quota;
use crate::size::{Percent, Size};

/// Place of what counts where policy says nothing.
const UNSAID: &str = "[policy]";

/// Longest wait for a directory of users.
const GETENT_BOUND: Duration = Duration::from_secs(5);

/// What a user sees of others' tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum See {
    Nothing,
    /// What they have and get; neither their names nor whose they are.
    #[default]
    Shares,
    All,
}

/// What is said for a user, a group, or everybody.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rule {
    allow: Option<bool>,
    tenants: Option<usize>,
    share: Option<Percent>,
    mem: Option<Size>,
    sessions: Option<usize>,
    connections: Option<usize>,
    quota: Option<Quota>,
    quota_together: Option<Quota>,
    priority: Option<Priority>,
    profiles: Option<Vec<String>>,
    see: Option<See>,
}

/// `[policy]`, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Policy {
    default: Rule,
    users: BTreeMap<String, Rule>,
    groups: BTreeMap<String, Rule>,
}

/// `[policy]`, with users and groups of this machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    default: Rule,
    users: BTreeMap<u32, (String, Rule)>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Group {
    name: String,
    number: u32,
    members: BTreeSet<u32>,
    rule: Rule,
}

/// A value, and where it is said.
type Said<T> = Option<(T, String)>;

/// What counts for one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grant {
    allow: Said<bool>,
    tenants: Said<usize>,
    share: Said<Percent>,
    mem: Said<Size>,
    sessions: Said<usize>,
    pub(crate) connections: Said<usize>,
    pub(crate) quota: Said<Quota>,
    /// Of a user there is one, whether policy says something or not.
    priority: Said<Priority>,
    /// The profiles that he may take, one at least: those of all his groups.
    profiles: Said<Vec<String>>,
    pub(crate) see: See,
}

/// What the tenants of a user have of a GPU.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Held {
    pub(crate) share_percent: f64,
    pub(crate) memory_bytes: u64,
}

impl Policy {
    /// Looks users and groups up.
    ///
    /// # Errors
    /// One is not known here, or something is said where it means nothing.
    pub(crate) fn resolve(&self, book: &impl Book, profiles: &BTreeMap<String, Profile>) -> Result<Rules> {
        if let Some(name) = profiles.keys().find(|name| !tenancy::is_name(name)) {
            bail!("[profiles.\"{name}\"]: a profile's name has letters, digits and -_.: only, 64 at most");
        }
        for (place, rule) in self.all() {
            match &rule.profiles {
                Some(named) if named.is_empty() => {
                    bail!("{place} says `profiles = []`, which lets nobody in; say `allow = false`");
                }
                Some(named) => {
                    if let Some(name) = named.iter().find(|name| !profiles.contains_key(*name)) {
                        bail!("{place} names the profile `{name}`, and there is no [profiles.{name}]");
                    }
                }
                None => {}
            }
        }
        let mut rules = Rules { default: self.default.clone(), ..Rules::default() };
        if rules.default.quota_together.is_some() {
            bail!("[policy.default] says `quota_together`, which is for groups; say `quota` for each user's own");
        }
        for (name, rule) in &self.users {
            if rule.quota_together.is_some() {
                bail!("[policy.users.{name}] says `quota_together`, which is for groups; say `quota`");
            }
            let Some(number) = name.parse().ok().or_else(|| book.user(name)) else {
                bail!("[policy.users.{name}]: there is no user `{name}` on this machine");
            };
            if let Some((other, _)) = rules.users.insert(number, (name.clone(), rule.clone())) {
                bail!("[policy.users.{name}] and [policy.users.{other}] are the same user");
            }
        }
        for (name, rule) in &self.groups {
            let Some((number, members)) = book.group(name) else {
                bail!("[policy.groups.{name}]: there is no group `{name}` on this machine");
            };
            rules.groups.push(Group { name: name.clone(), number, members, rule: rule.clone() });
        }
        Ok(rules)
    }
}

impl Policy {
    /// All that is said, and where.
    fn all(&self) -> impl Iterator<Item = (String, &Rule)> {
        let users = self.users.iter().map(|(name, rule)| (format!("[policy.users.{name}]"), rule));
        let groups = self.groups.iter().map(|(name, rule)| (format!("[policy.groups.{name}]"), rule));
        [("[policy.default]".to_owned(), &self.default)].into_iter().chain(users).chain(groups)
    }
}

impl Rules {
    fn groups_of(&self, user: u32, group: u32) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |it| it.number == group || it.members.contains(&user))
    }

    /// What counts for a user, whose own group is `group`.
    pub(crate) fn of(&self, user: u32, group: u32) -> Grant {
        Grant {
            allow: self.said(user, group, |rule| rule.allow, |a, b| a > b),
            tenants: self.said(user, group, |rule| rule.tenants, |a, b| a > b),
            share: self.said(user, group, |rule| rule.share, |a, b| a.0 > b.0),
            mem: self.said(user, group, |rule| rule.mem, |a, b| a > b),
            sessions: self.said(user, group, |rule| rule.sessions, |a, b| a > b),
            connections: self.said(user, group, |rule| rule.connections, |a, b| a > b),
            quota: self.said(user, group, |rule| rule.quota, |a, b| a.is_more_than(b)),
            priority: self
                .said(user, group, |rule| rule.priority, |a, b| a > b)
                .or_else(|| Some((Priority::Normal, UNSAID.into()))),
            profiles: self.profiles(user, group),
            see: self.said(user, group, |rule| rule.see, |a, b| a > b).map_or(See::default(), |(see, _)| see),
        }
    }

    fn said<T: Copy>(
        &self,
        user: u32,
        group: u32,
        key: impl Fn(&Rule) -> Option<T>,
        more: impl Fn(&T, &T) -> bool,
    ) -> Said<T> {
        if let Some((name, rule)) = self.users.get(&user)
            && let Some(value) = key(rule)
        {
            return Some((value, format!("[policy.users.{name}]")));
        }
        let groups = self.groups_of(user, group).filter_map(|it| Some((key(&it.rule)?, &it.name)));
        let most = groups.reduce(|most, other| if more(&other.0, &most.0) { other } else { most });
        let most = most.map(|(value, name)| (value, format!("[policy.groups.{name}]")));
        most.or_else(|| key(&self.default).map(|value| (value, "[policy.default]".into())))
    }

    /// Which profiles one may take: those of all one's groups, since there is no most of such.
    fn profiles(&self, user: u32, group: u32) -> Said<Vec<String>> {
        if let Some((name, Rule { profiles: Some(own), .. })) = self.users.get(&user) {
            return Some((own.clone(), format!("[policy.users.{name}]")));
        }
        let groups = self.groups_of(user, group).filter_map(|it| Some((it.rule.profiles.as_ref()?, &it.name)));
        let all = groups.fold(None, |all: Said<Vec<String>>, (profiles, name)| {
            let (mut names, mut places) = all.unwrap_or_default();
            names.extend(profiles.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
            places.push_str(if places.is_empty() { "" } else { " and " });
            places.push_str(&format!("[policy.groups.{name}]"));
            Some((names, places))
        });
        all.or_else(|| Some((self.default.profiles.clone()?, "[policy.default]".into())))
    }

    /// Whether anything is said of GPU time over hours.
    pub(crate) fn have_quotas(&self) -> bool {
        let users = self.users.values().map(|(_, rule)| rule);
        let mut rules = users.chain(self.groups.iter().map(|group| &group.rule)).chain([&self.default]);
        rules.any(|rule| rule.quota.is_some() || rule.quota_together.is_some())
    }

    /// The groups of a user that have a quota together, by number.
    pub(crate) fn together(&self, user: u32, group: u32) -> impl Iterator<Item = (u32, Quota, &str)> {
        self.groups_of(user, group).filter_map(|it| Some((it.number, it.rule.quota_together?, it.name.as_str())))
    }
}

impl Grant {
    /// Whether somebody may come at all who has so many tenants.
    ///
    /// # Errors
    /// What forbids it.
    pub(crate) fn check_tenants(&self, have: usize) -> Result<(), String> {
        if let Some((false, place)) = &self.allow {
            return Err(format!("{place} does not let you use the GPU (`allow = false`); ask the administrator"));
        }
        if let Some((most, place)) = &self.tenants
            && have >= *most
        {
            return Err(format!(
                "you have {have} tenants, and {place} allows `tenants = {most}` at once; end one, or ask the administrator"
            ));
        }
        Ok(())
    }

    /// The profile that somebody takes: what he says, or the first that he may take.
    ///
    /// # Errors
    /// He may not take that one, or there is none of that name.
    pub(crate) fn profile(
        &self,
        wanted: Option<&str>,
        profiles: &BTreeMap<String, Profile>,
    ) -> Result<Option<Taken>, String> {
        let first = self.profiles.as_ref().and_then(|(names, _)| names.first()).map(String::as_str);
        let Some(name) = wanted.or(first) else { return Ok(None) };
        if let Some((names, place)) = &self.profiles
            && !names.iter().any(|known| known == name)
        {
            return Err(format!("{place} lets you take {}, not `{name}`; ask the administrator", listed(names)));
        }
        let Some(profile) = profiles.get(name) else {
            let known: Vec<String> = profiles.keys().cloned().collect();
            return Err(match &known[..] {
                [] => format!("no profile named `{name}`: the daemon's config.toml has none"),
                known => format!("no profile named `{name}`: the daemon's config.toml has {}", listed(known)),
            });
        };
        let bound_by = self.profiles.as_ref().map(|(_, place)| place.clone());
        Ok(Some(Taken { name: name.to_owned(), profile: *profile, bound_by }))
    }

    /// Lets somebody in on a GPU, beside what the same user has there; what his terms leave open of GPU memory is what is left
    /// to him.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn admit(&self, held: Held, terms: &mut Terms) -> Result<(), String> {
        self.check_share(held.share_percent, terms.share_percent)?;
        let Some((most, _)) = self.mem else { return Ok(()) };
        let left = most.0.saturating_sub(held.memory_bytes);
        let wanted = terms.memory_bytes.unwrap_or(left);
        self.check_memory(held.memory_bytes, wanted)?;
        terms.memory_bytes = Some(wanted);
        Ok(())
    }

    /// Whether a tenant may have a share beside what others of the same user have.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_share(&self, held: f64, wanted: Option<f64>) -> Result<(), String> {
        let (Some((most, place)), Some(wanted)) = (&self.share, wanted) else { return Ok(()) };
        let left = (most.0 - held).max(0.0);
        if wanted <= left + 1e-9 {
            return Ok(());
        }
        let ask = if left > 0.0 { format!("ask for --share {left}% at most") } else { "leave --share out".into() };
        Err(format!(
            "a share of {wanted} % is more than {place} allows: `share = \"{most}\"`, of which you have {held} %; {ask}"
        ))
    }

    /// The same for GPU memory, bytes.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_memory(&self, held: u64, wanted: u64) -> Result<(), String> {
        let Some((most, place)) = &self.mem else { return Ok(()) };
        let left = most.0.saturating_sub(held);
        if wanted <= left && wanted >= tenancy::LEAST_MEMORY {
            return Ok(());
        }
        let (wanted, held) = (Size(wanted), Size(held));
        let ask = match left >> 20 {
            0 => "end one of your tenants".into(),
            left => format!("ask for --mem {left}m at most"),
        };
        Err(format!(
            "{wanted} of GPU memory is more than {place} allows: `mem = \"{most}\"`, of which your tenants have {held}; {ask}"
        ))
    }

    /// Lets somebody in with a priority; with the highest that he may have, if that is lower than what is usual.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn prioritize(&self, terms: &mut Terms) -> Result<(), String> {
        match (terms.priority, &self.priority) {
            (Some(wanted), _) => self.check_priority(wanted),
            (None, Some((most, _))) if *most < Priority::default() => {
                terms.priority = Some(*most);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// Whether a tenant may have a priority.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_priority(&self, wanted: Priority) -> Result<(), String> {
        match &self.priority {
            Some((most, place)) if wanted > *most => Err(format!(
                "priority {wanted} is higher than {place} allows, `priority = \"{most}\"`; ask for --priority {most} at most, or the \
                 administrator"
            )),
            _ => Ok(()),
        }
    }

    /// The same with a profile that policy gives: where policy says nothing of priorities, the profile does.
    pub(crate) fn with(mut self, profile: Option<&Taken>) -> Grant {
        if let Some(Taken { profile: Profile { priority: Some(priority), .. }, bound_by: Some(place), .. }) = profile
            && self.priority.as_ref().is_some_and(|(_, place)| place == UNSAID)
        {
            self.priority = Some((*priority, place.clone()));
        }
        self
    }

    /// Whether one more session may be opened.
    ///
    /// # Errors
    /// What forbids it.
    pub(crate) fn check_session(&self, held: usize) -> Result<(), String> {
        match &self.sessions {
            Some((most, place)) if held >= *most => {
                Err(format!("you have {held} sessions open, and {place} allows `sessions = {most}` at once"))
            }
            _ => Ok(()),
        }
    }
}

/// Names of profiles, for people.
fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("{} {}", if names.len() == 1 { "profile" } else { "profiles" }, names.join(", "))
}

/// Knows users and groups by name.
pub(crate) trait Book {
    fn user(&self, name: &str) -> Option<u32>;

    /// Its number, and those of its members; of those whose own group it is, as far as they can be known.
    fn group(&self, name: &str) -> Option<(u32, BTreeSet<u32>)>;
}

/// The machine's, files and whatever else its name service knows.
#[derive(Debug)]
pub(crate) struct Machine;

impl Machine {
    /// A line of one of its tables, split.
    fn entry(table: &str, name: &str) -> Option<Vec<String>> {
        let split = |line: &str| -> Vec<String> { line.trim_end().split(':').map(str::to_owned).collect() };
        // By name, or by number: the third field of both tables.
        let named = |line: &&str| {
            let mut fields = line.split(':');
            fields.next() == Some(name) || fields.nth(1) == Some(name)
        };
        let file = std::fs::read_to_string(format!("/etc/{table}")).unwrap_or_default();
        if let Some(line) = file.lines().find(named) {
            return Some(split(line));
        }
        getent(&[table, "--", name])?.lines().find(named).map(split)
    }

    /// The users whose own group has a number: those of this machine, and of a directory that lists its users.
    fn own_members(number: u32) -> BTreeSet<u32> {
        let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let all = getent(&["passwd"]).unwrap_or_default();
        own_members(file.lines().chain(all.lines()), number)
    }
}

/// The users of lines of `passwd` whose own group has a number.
fn own_members<'a>(lines: impl Iterator<Item = &'a str>, number: u32) -> BTreeSet<u32> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.trim_end().split(':').collect();
        let [_, _, user, group, ..] = fields[..] else { return None };
        (group.parse() == Ok(number)).then(|| user.parse().ok())?
    };
    lines.filter_map(of).collect()
}

/// What `getent` says; nothing if it takes too long, as a directory that does not answer has it.
fn getent(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("getent");
    let mut child =
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut out = child.stdout.take()?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let reading = std::thread::Builder::new().spawn(move || {
        let mut text = String::new();
        // Who no longer waits does not mind.
        let _ = sender.send(out.read_to_string(&mut text).ok().map(|_| text));
    });
    let text = reading.ok().and_then(|_| receiver.recv_timeout(GETENT_BOUND).ok().flatten());
    if text.is_none() {
        tracing::warn!(asked = arguments.join(" "), "the machine's directory of users does not answer");
    }
    // It has said everything, or will be heard no more.
    let _ = child.kill();
    let _ = child.wait();
    text
}

impl Book for Machine {
    fn user(&self, name: &str) -> Option<u32> {
        Machine::entry("passwd", name)?.get(2)?.parse().ok()
    }

    fn group(&self, name: &str) -> Option<(u32, BTreeSet<u32>)> {
        let Some(entry) = Machine::entry("group", name) else {
            let number = name.parse().ok()?;
            return Some((number, Machine::own_members(number)));
        };
        let number = entry.get(2)?.parse().ok()?;
        let names = entry.get(3).map(|names| names.split(',').filter(|name| !name.is_empty()));
        let members = names.into_iter().flatten().filter_map(|name| self.user(name));
        Some((number, members.chain(Machine::own_members(number)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Few;

    impl Book for Few {
        fn user(&self, name: &str) -> Option<u32> {
            ["root", "ada", "bob", "eve"].iter().position(|known| *known == name).map(|at| at as u32)
        }

        fn group(&self, name: &str) -> Option<(u32, BTreeSet<u32>)> {
            match name {
                "students" => Some((100, BTreeSet::from([2]))),
                "staff" => Some((200, BTreeSet::from([2]))),
                _ => None,
            }
        }
    }

    fn profiles() -> BTreeMap<String, Profile> {
        ["small", "large", "huge"].into_iter().map(|name| (name.to_owned(), Profile::default())).collect()
    }

    fn rules(text: &str) -> Rules {
        toml::from_str::<Policy>(text).unwrap().resolve(&Few, &profiles()).unwrap()
    }

    fn terms(memory_bytes: Option<u64>, share_percent: Option<f64>) -> Terms {
        Terms { name: "a".into(), memory_bytes, host_bytes: None, share_percent, on_full: None, priority: None }
    }

    #[test]
    fn a_users_own_counts_first_then_the_most_of_his_groups_then_the_default() {
        let rules = rules(
            "[default]\ntenants = 1\nsee = \"nothing\"\n[users.ada]\ntenants = 9\n[users.3]\nallow = false\n\
             [groups.students]\ntenants = 3\nmem = \"1g\"\nquota = \"1h/day\"\n\
             [groups.staff]\ntenants = 2\nmem = \"2g\"\nquota = \"24h/week\"\nsee = \"all\"\nquota_together = \"9h/day\"\n",
        );
        let tenants = |user, group| rules.of(user, group).tenants.unwrap();
        assert_eq!(tenants(1, 100), (9, "[policy.users.ada]".into()));
        assert_eq!(tenants(2, 7), (3, "[policy.groups.students]".into()));
        assert_eq!(tenants(7, 200), (2, "[policy.groups.staff]".into()), "by his own group");
        assert_eq!(tenants(7, 7), (1, "[policy.default]".into()));
        let bob = rules.of(2, 7);
        assert_eq!((bob.mem.unwrap().0, bob.see), (Size(2 << 30), See::All));
        assert_eq!(bob.quota.unwrap().1, "[policy.groups.staff]");
        assert_eq!(rules.of(7, 7).see, See::Nothing);
        assert_eq!(rules.together(2, 7).map(|(number, ..)| number).collect::<Vec<_>>(), [200]);
        assert!(rules.of(3, 7).check_tenants(0).unwrap_err().contains("[policy.users.3]"));
    }

    #[test]
    fn who_is_refused_is_told_what_forbids_it_and_what_to_ask_for() {
        let rules = rules("[default]\ntenants = 2\nshare = \"50%\"\nmem = \"1g\"\nsessions = 3\n");
        let grant = rules.of(5, 5);
        let held = Held { share_percent: 20.0, memory_bytes: 768 << 20 };
        let refused = |memory, share| grant.admit(held, &mut terms(memory, share)).unwrap_err();
        assert!(refused(None, Some(40.0)).contains("--share 30% at most"), "{}", refused(None, Some(40.0)));
        assert!(refused(Some(1 << 30), None).contains("--mem 256m at most"), "{}", refused(Some(1 << 30), None));
        let mut fits = terms(None, Some(30.0));
        grant.admit(held, &mut fits).unwrap();
        assert_eq!(fits.memory_bytes, Some(256 << 20), "what is left");
        assert!(grant.check_tenants(1).is_ok() && grant.check_tenants(2).unwrap_err().contains("`tenants = 2`"));
        let nothing = Held { memory_bytes: 1 << 30, ..held };
        assert!(grant.admit(nothing, &mut terms(None, None)).unwrap_err().contains("end one"));
        let prioritized = |grant: &Grant, priority| {
            let mut terms = Terms { priority, ..terms(None, None) };
            grant.prioritize(&mut terms).map(|()| terms.priority)
        };
        assert_eq!(prioritized(&grant, None), Ok(None));
        assert_eq!(prioritized(&grant, Some(Priority::Normal)), Ok(Some(Priority::Normal)));
        let told = prioritized(&grant, Some(Priority::High)).unwrap_err();
        assert!(told.contains("[policy] allows") && told.contains("--priority normal at most"), "{told}");
        assert_eq!(prioritized(&Grant::default(), Some(Priority::High)), Ok(Some(Priority::High)), "the administrator");
        let last = self::rules("[default]\npriority = \"low\"\n[users.ada]\npriority = \"high\"\n");
        assert_eq!(prioritized(&last.of(1, 7), Some(Priority::High)), Ok(Some(Priority::High)));
        assert_eq!(prioritized(&last.of(5, 5), None), Ok(Some(Priority::Low)), "the highest that there is for him");
        let told = last.of(5, 5).check_priority(Priority::Normal).unwrap_err();
        assert!(told.contains("[policy.default]") && told.contains("--priority low at most"), "{told}");
        assert!(grant.check_session(2).is_ok() && grant.check_session(3).unwrap_err().contains("`sessions = 3`"));
        assert!(Rules::default().of(5, 5).admit(nothing, &mut terms(None, Some(99.0))).is_ok(), "nothing is said");
    }

    #[test]
    fn one_takes_a_profile_that_one_may_take() {
        let rules = rules(
            "[default]\nprofiles = [\"small\"]\n[users.ada]\nprofiles = [\"huge\"]\n[groups.staff]\nprofiles = [\"large\"]\n\
             [groups.students]\nprofiles = [\"small\", \"large\"]\n",
        );
        let take = |user, group, name| {
            let taken = rules.of(user, group).profile(name, &profiles());
            taken.map(|taken| taken.map(|taken| (taken.name, taken.bound_by.unwrap_or_default())))
        };
        let both = "[policy.groups.staff] and [policy.groups.students]";
        assert_eq!(take(2, 7, None), Ok(Some(("large".into(), both.into()))), "the first of those of all groups");
        assert_eq!(take(2, 7, Some("small")).unwrap().unwrap().0, "small");
        assert_eq!(take(1, 100, None), Ok(Some(("huge".into(), "[policy.users.ada]".into()))));
        assert_eq!(take(5, 5, None), Ok(Some(("small".into(), "[policy.default]".into()))));
        let told = take(5, 5, Some("huge")).unwrap_err();
        assert!(told.contains("[policy.default] lets you take profile `small`, not `huge`"), "{told}");
        let anybody = Grant::default();
        assert_eq!(anybody.profile(None, &profiles()), Ok(None));
        assert_eq!(anybody.profile(Some("huge"), &profiles()).unwrap().unwrap().bound_by, None);
        let told = anybody.profile(Some("tiny"), &profiles()).unwrap_err();
        assert!(told.contains("has profiles `huge`, `large`, `small`"), "{told}");
        assert!(anybody.profile(Some("tiny"), &BTreeMap::new()).unwrap_err().contains("has none"));
    }

    #[test]
    fn a_group_has_those_whose_own_it_is() {
        let lines = "root:x:0:0::/root:/bin/sh\nada:x:1000:100:Ada:/home/ada:\nbob:x:1001:1001::/:\neve:x:1002:100\nshort:x:7\n:::";
        assert_eq!(own_members(lines.lines(), 100), BTreeSet::from([1000, 1002]));
        assert!(own_members(lines.lines(), 7).is_empty());
        // Root's own, on every machine.
        assert!(Machine.group("0").unwrap().1.contains(&0));
        assert_eq!(getent(&["passwd", "--", "nobody-of-this-name"]).unwrap_or_default(), "");
    }

    #[test]
    fn what_cannot_be_meant_is_an_error() {
        for (bad, what) in [
            ("[users.nobody-here]\ntenants = 1", "no user `nobody-here`"),
            ("[groups.nobody-here]\ntenants = 1", "no group `nobody-here`"),
            ("[users.ada]\ntenants = 1\n[users.1]\ntenants = 2", "the same user"),
            ("[users.ada]\nquota_together = \"1h/day\"", "for groups"),
            ("[default]\nquota_together = \"1h/day\"", "for groups"),
            ("[groups.staff]\nprofiles = [\"small\", \"tiny\"]", "there is no [profiles.tiny]"),
            ("[users.ada]\nprofiles = []", "say `allow = false`"),
        ] {
            let error = toml::from_str::<Policy>(bad).unwrap().resolve(&Few, &profiles()).unwrap_err().to_string();
            assert!(error.contains(what), "{bad}: {error}");
        }
        for bad in
            ["[default]\nsee = \"names\"", "[default]\nshare = \"200%\"", "[defaults]\n", "[default]\nquota = \"5\""]
        {
            assert!(toml::from_str::<Policy>(bad).is_err(), "{bad}");
        }
        assert_eq!(Machine.user("root"), Some(0));
        assert_eq!(Machine.group("root").unwrap().0, 0);
        assert_eq!(Machine.user("nobody-has-this-name"), None);
    }
}
