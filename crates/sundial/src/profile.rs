//! Profiles: terms with a name, `[profiles.<name>]` of `config.toml`, and what it means to have taken one.

use fair_share::Priority;
use serde::Deserialize;
use tenancy::Terms;

use crate::memory_policy::OnFull;
use crate::quota::Quota;
use crate::scheme::Scheme;
use crate::shadowing::{Rebuild, Shadow, Trap, Wish};
use crate::size::{Percent, Size};

/// Terms with a name, for those that say nothing else.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) mem: Option<Size>,
    pub(crate) host_mem: Option<Size>,
    pub(crate) share: Option<Percent>,
    pub(crate) on_full: Option<OnFull>,
    pub(crate) priority: Option<Priority>,
    /// At most so many tenants have it at once.
    pub(crate) tenants: Option<usize>,
    /// Of GPU time, for all tenants of one user that have it together.
    pub(crate) quota: Option<Quota>,
    /// For virtual GPUs; sessions have none.
    pub(crate) scheme: Option<Scheme>,
    /// The same, in scheme fv.
    pub(crate) trap: Option<Trap>,
    pub(crate) shadow: Option<Shadow>,
    pub(crate) rebuild: Option<Rebuild>,
}

impl Profile {
    /// How page tables are shadowed.
    pub(crate) fn shadowing(&self) -> Wish {
        Wish { trap: self.trap, shadow: self.shadow, rebuild: self.rebuild }
    }
}

/// A profile that somebody has taken.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Taken {
    pub(crate) name: String,
    pub(crate) profile: Profile,
    /// Where policy says which profiles he may take: then he has no more than his profile says, whatever he asks for.
    pub(crate) bound_by: Option<String>,
}

impl Taken {
    /// What `terms` leave open is as in the profile.
    ///
    /// # Errors
    /// They say more than it does, and that is forbidden.
    pub(crate) fn fill(&self, terms: &mut Terms) -> Result<(), String> {
        let Profile { mem, host_mem, share, on_full, priority, .. } = self.profile;
        if let Some(bytes) = terms.memory_bytes {
            self.check_memory(bytes)?;
        }
        if let Some(bytes) = terms.host_bytes {
            self.check("host memory", Size(bytes), host_mem, |most| format!("--host-mem {}m", most.0 >> 20))?;
        }
        if let Some(share) = terms.share_percent {
            self.check_share(share)?;
        }
        if let Some(priority) = terms.priority {
            self.check_priority(priority)?;
        }
        terms.memory_bytes = terms.memory_bytes.or(mem.map(|size| size.0));
        terms.host_bytes = terms.host_bytes.or(host_mem.map(|size| size.0));
        terms.share_percent = terms.share_percent.or(share.map(|share| share.0));
        terms.on_full = terms.on_full.or(on_full.map(|on_full| on_full.0));
        terms.priority = terms.priority.or(priority);
        Ok(())
    }

    /// The same for who did not say himself what he has: the lesser counts.
    pub(crate) fn bound(&self, terms: &mut Terms) {
        let least = self.profile.mem.filter(|_| self.bound_by.is_some());
        terms.memory_bytes = terms.memory_bytes.map(|bytes| least.map_or(bytes, |least| bytes.min(least.0)));
    }

    /// Whether he may have so much GPU memory, bytes.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<(), String> {
        self.check("GPU memory", Size(bytes), self.profile.mem, |most| format!("--mem {}m", most.0 >> 20))
    }

    /// The same for a share of GPU time, percent.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_share(&self, percent: f64) -> Result<(), String> {
        self.check("share", Percent(percent), self.profile.share, |most| format!("--share {most}"))
    }

    /// The same for a priority.
    ///
    /// # Errors
    /// What forbids it, and what to ask for.
    pub(crate) fn check_priority(&self, priority: Priority) -> Result<(), String> {
        self.check("priority", priority, self.profile.priority, |most| format!("--priority {most}"))
    }

    /// Whether policy gives him this scheme: by a profile that says it.
    pub(crate) fn gives(&self, scheme: Scheme) -> bool {
        self.bound_by.is_some() && self.profile.scheme == Some(scheme)
    }

    /// The scheme of a virtual GPU, if he wants a certain one.
    ///
    /// # Errors
    /// The profile says another, and that counts.
    pub(crate) fn scheme(&self, wanted: Option<Scheme>) -> Result<Option<Scheme>, String> {
        match (wanted, self.profile.scheme, &self.bound_by) {
            (Some(wanted), Some(said), Some(place)) if wanted != said => Err(format!(
                "profile `{}` says `scheme = \"{said}\"`, and {place} gives you no other; leave --scheme out",
                self.name
            )),
            _ => Ok(wanted.or(self.profile.scheme)),
        }
    }

    fn check<T: PartialOrd + std::fmt::Display>(
        &self,
        what: &str,
        wanted: T,
        most: Option<T>,
        ask: impl Fn(&T) -> String,
    ) -> Result<(), String> {
        match (most, &self.bound_by) {
            (Some(most), Some(place)) if wanted > most => Err(format!(
                "{what} {wanted} is more than profile `{}` has, {most}, and {place} gives you no more; ask for {} at most, or for another \
                 profile",
                self.name,
                ask(&most)
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(memory_bytes: Option<u64>, share_percent: Option<f64>, priority: Option<Priority>) -> Terms {
        Terms { name: "a".into(), memory_bytes, host_bytes: None, share_percent, on_full: None, priority }
    }

    fn taken(bound: bool) -> Taken {
        let profile = Profile {
            mem: Some(Size(1 << 30)),
            share: Some(Percent(30.0)),
            priority: Some(Priority::Normal),
            scheme: Some(Scheme::Pv),
            ..Profile::default()
        };
        Taken { name: "small".into(), profile, bound_by: bound.then(|| "[policy.default]".into()) }
    }

    #[test]
    fn what_is_said_counts_more_than_the_profile() {
        let mut said = terms(Some(2 << 30), None, Some(Priority::High));
        taken(false).fill(&mut said).unwrap();
        assert_eq!(said, terms(Some(2 << 30), Some(30.0), Some(Priority::High)));
        assert_eq!(taken(false).scheme(Some(Scheme::Fv)), Ok(Some(Scheme::Fv)));
        assert_eq!(taken(false).scheme(None), Ok(Some(Scheme::Pv)));
    }

    #[test]
    fn who_is_bound_to_a_profile_has_no_more_than_it_says() {
        let mut less = terms(Some(1 << 29), Some(30.0), Some(Priority::Low));
        taken(true).fill(&mut less).unwrap();
        assert_eq!(less, terms(Some(1 << 29), Some(30.0), Some(Priority::Low)));
        let mut nothing = terms(None, None, None);
        taken(true).fill(&mut nothing).unwrap();
        assert_eq!(nothing, terms(Some(1 << 30), Some(30.0), Some(Priority::Normal)));
        for (more, ask) in [
            (terms(Some((1 << 30) + 1), None, None), "--mem 1024m at most"),
            (terms(None, Some(30.5), None), "--share 30% at most"),
            (terms(None, None, Some(Priority::High)), "--priority normal at most"),
        ] {
            let told = taken(true).fill(&mut more.clone()).unwrap_err();
            assert!(told.contains(ask) && told.contains("`small`") && told.contains("[policy.default]"), "{told}");
        }
        assert!(taken(true).scheme(Some(Scheme::Fv)).unwrap_err().contains("leave --scheme out"));
        assert_eq!(taken(true).scheme(Some(Scheme::Pv)), Ok(Some(Scheme::Pv)));
        assert!(
            taken(true).gives(Scheme::Pv) && !taken(true).gives(Scheme::PassThrough) && !taken(false).gives(Scheme::Pv)
        );
        // A profile that says no scheme lets him choose, and gives none.
        let mut open = taken(true);
        open.profile.scheme = None;
        assert_eq!(open.scheme(Some(Scheme::PassThrough)), Ok(Some(Scheme::PassThrough)));
        assert!(!open.gives(Scheme::PassThrough));
        let mut unsaid = terms(Some(4 << 30), None, None);
        taken(true).bound(&mut unsaid);
        assert_eq!(unsaid.memory_bytes, Some(1 << 30));
    }
}
