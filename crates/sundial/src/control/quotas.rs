//! Quotas of GPU time: what tenants have used is added to their users' accounts, and who has used all that he may is held back.
//!
//! It is looked whenever the device process was asked what was used (`[usage] interval_seconds`), and before anybody is let in. The
//! accounts are kept in the database of usage; where that cannot be, they last as long as the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Control;
use super::rights::Owner;
use super::tenants::Exhausted;
use crate::quota::{Now, Payer, Spender};

impl Control {
    /// By what tenants a user gets no GPU time but what nobody else wants, and why.
    fn exhausted(&self, owner: Owner, now: &Now) -> Exhausted {
        if owner.is_administrator() {
            return Exhausted::new();
        }
        let settings = self.settings();
        let user = owner.user;
        let own = settings.rules.of(user, owner.group).quota.map(|(quota, place)| {
            let told = format!("you have used your GPU time: `quota = \"{quota}\"` of {place}");
            (None, Payer::User(user), quota, told)
        });
        let together = settings.rules.together(user, owner.group).map(|(group, quota, name)| {
            let told =
                format!("your group has used its GPU time: `quota_together = \"{quota}\"` of [policy.groups.{name}]");
            (None, Payer::Group(group), quota, told)
        });
        let profiles = settings.config.profiles.iter().filter_map(|(name, profile)| {
            let quota = profile.quota?;
            let told = format!("you have used the GPU time of profile `{name}`: `quota = \"{quota}\"`");
            Some((Some(name.clone()), Payer::Profile { user, name: name.clone() }, quota, told))
        });
        let mut accounts = self.usage.accounts.lock();
        let mut longest = BTreeMap::new();
        for (profile, payer, quota, told) in own.into_iter().chain(together).chain(profiles) {
            if let Some(again) = accounts.exhausted(&payer, quota, now) {
                let spender = Spender { user, profile };
                if longest.get(&spender).is_none_or(|(most, _)| again > *most) {
                    longest.insert(spender, (again, told));
                }
            }
        }
        let tell = |(spender, (again, told)): (Spender, (Duration, String))| {
            let again = humantime::format_duration(Duration::from_secs(again.as_secs().max(1)));
            (spender, format!("{told}; there is some again in {again}, or ask the administrator for more"))
        };
        longest.into_iter().map(tell).collect()
    }

    /// Before somebody is let in.
    pub(super) fn note_quota(&self, owner: Owner) {
        let exhausted = self.exhausted(owner, &Now::get());
        self.tenants.lock().note_exhausted(owner.user, exhausted);
    }

    /// Adds what was used to the accounts, and holds those back who have used all that they may.
    pub(super) fn account_quotas(&self) {
        let now = Now::get();
        let present = self.tenants.lock().users_present();
        let settings = self.settings();
        for (Spender { user, profile }, ns) in self.usage.take_spent() {
            // One who has left meanwhile is in the groups that name him.
            let group = present.iter().find(|owner| owner.user == user).map_or(u32::MAX, |owner| owner.group);
            let own = settings.rules.of(user, group).quota.map(|(quota, _)| (Payer::User(user), quota));
            let together = settings.rules.together(user, group).map(|(group, quota, _)| (Payer::Group(group), quota));
            let of_profile = profile.and_then(|name| {
                let quota = settings.config.profiles.get(&name)?.quota?;
                Some((Payer::Profile { user, name }, quota))
            });
            let mut accounts = self.usage.accounts.lock();
            own.into_iter()
                .chain(together)
                .chain(of_profile)
                .for_each(|(payer, quota)| accounts.add(payer, quota, ns, &now));
        }
        let exhausted = present.into_iter().flat_map(|owner| self.exhausted(owner, &now)).collect();
        self.change(|tenants| ((), tenants.hold_back(exhausted)));
    }
}
