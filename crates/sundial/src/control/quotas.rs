//! Quotas of GPU time: what tenants have used is added to their users' accounts, and who has used all that he may is held back.
//!
//! It is looked whenever the device process was asked what was used (`[usage] interval_seconds`), and before anybody is let in. The
//! accounts are kept in the database of usage; where that cannot be, they last as long as the daemon.

use std::collections::BTreeMap;

use super::Control;
use super::rights::Owner;
use crate::quota::{Now, Payer};

impl Control {
    /// Why a user gets no GPU time but what nobody else wants, if that is so now.
    fn exhausted(&self, owner: Owner, now: &Now) -> Option<String> {
        if owner.is_administrator() {
            return None;
        }
        let settings = self.settings();
        let own = settings.rules.of(owner.user, owner.group).quota.map(|(quota, place)| {
            let told = format!("you have used your GPU time: `quota = \"{quota}\"` of {place}");
            (Payer::User(owner.user), quota, told)
        });
        let together = settings.rules.together(owner.user, owner.group).map(|(group, quota, name)| {
            let told =
                format!("your group has used its GPU time: `quota_together = \"{quota}\"` of [policy.groups.{name}]");
            (Payer::Group(group), quota, told)
        });
        let mut accounts = self.usage.accounts.lock();
        let over = own
            .into_iter()
            .chain(together)
            .filter_map(|(payer, quota, told)| Some((accounts.exhausted(payer, quota, now)?, told)));
        let (again, told) = over.max_by_key(|(again, _)| *again)?;
        let again = humantime::format_duration(std::time::Duration::from_secs(again.as_secs().max(1)));
        Some(format!("{told}; there is some again in {again}, or ask the administrator for more"))
    }

    /// Before somebody is let in.
    pub(super) fn note_quota(&self, owner: Owner) {
        let told = self.exhausted(owner, &Now::get());
        self.tenants.lock().note_exhausted(owner.user, told);
    }

    /// Adds what was used to the accounts, and holds those back who have used all that they may.
    pub(super) fn account_quotas(&self) {
        let now = Now::get();
        let present = self.tenants.lock().users_present();
        let settings = self.settings();
        for (user, ns) in self.usage.take_spent() {
            // One who has left meanwhile is in the groups that name him.
            let group = present.iter().find(|owner| owner.user == user).map_or(u32::MAX, |owner| owner.group);
            let own = settings.rules.of(user, group).quota.map(|(quota, _)| (Payer::User(user), quota));
            let together = settings.rules.together(user, group).map(|(group, quota, _)| (Payer::Group(group), quota));
            let mut accounts = self.usage.accounts.lock();
            own.into_iter().chain(together).for_each(|(payer, quota)| accounts.add(payer, quota, ns, &now));
        }
        let exhausted = present.into_iter().filter_map(|owner| Some((owner.user, self.exhausted(owner, &now)?)));
        let exhausted: BTreeMap<u32, String> = exhausted.collect();
        self.change(|tenants| ((), tenants.hold_back(exhausted)));
    }
}
