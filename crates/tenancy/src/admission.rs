//! Letting tenants in.

use std::collections::BTreeMap;

use fair_share::Priority;
use serde::{Deserialize, Serialize};

use crate::TenantId;
use crate::grant::OnFull;
use crate::placement::Load;

/// What a tenant asks for, or is given.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// Name for people; unique among the tenants present.
    pub name: String,
    /// Most GPU memory, bytes; `None`: the whole of it.
    pub memory_bytes: Option<u64>,
    /// Most memory of the host, bytes; `None`: what the policy says.
    pub host_bytes: Option<u64>,
    /// Share of GPU time while others want it too, percent; `None`: an equal part of what the others leave.
    pub share_percent: Option<f64>,
    /// What becomes of requests for GPU memory that do not fit; `None`: what the policy says.
    #[serde(default)]
    pub on_full: Option<OnFull>,
    /// Before whom it goes in GPU time that is promised to nobody; `None`: [`Priority::Normal`].
    #[serde(default)]
    pub priority: Option<Priority>,
}

/// Whether something may be called so: letters, digits and `-_.:`, 64 bytes at most.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !text.is_empty() && text.len() <= 64 && text.chars().all(plain)
}

/// Why a tenant is not let in.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum AdmissionError {
    /// Shares would exceed the whole.
    #[error("a share of {wanted} % is not free: {taken} % of the GPU's time is given to others")]
    Share {
        /// Asked for, percent.
        wanted: f64,
        /// Given to others, percent.
        taken: f64,
    },
    /// Not a share.
    #[error("a share must be at least {LEAST_SHARE} % and at most 100 %, not {wanted} %")]
    NoShare {
        /// Asked for, percent.
        wanted: f64,
    },
    /// More memory than there is.
    #[error("a memory limit of {wanted} bytes is more than the GPU's {limit}")]
    Memory {
        /// Asked for, bytes.
        wanted: u64,
        /// What the GPU, or the policy, has.
        limit: u64,
    },
    /// Limits of tenants would together exceed the GPU, and may not.
    #[error("a memory limit of {wanted} bytes is not free: {taken} of the GPU's {limit} are others' limits")]
    Overcommit {
        /// Asked for, bytes.
        wanted: u64,
        /// Limits of others together, bytes.
        taken: u64,
        /// The GPU's memory, bytes.
        limit: u64,
    },
    /// Too little memory to load a kernel.
    #[error("a memory limit of {wanted} bytes is too small; the least is {least}")]
    TooLittle {
        /// Asked for, bytes.
        wanted: u64,
        /// Least, bytes.
        least: u64,
    },
    /// More of the host's memory than the policy allows.
    #[error("a limit of {wanted} bytes of host memory is more than the {limit} that a tenant may have")]
    HostMemory {
        /// Asked for, bytes.
        wanted: u64,
        /// What the policy allows.
        limit: u64,
    },
    /// Too little for a session.
    #[error("a limit of {wanted} bytes of host memory is too small; the least is {least}")]
    TooLittleHost {
        /// Asked for, bytes.
        wanted: u64,
        /// Least, bytes.
        least: u64,
    },
    /// The name is taken.
    #[error("a tenant named `{name}` is present")]
    Name {
        /// The name that is taken.
        name: String,
    },
    /// There is no such tenant.
    #[error("no tenant named `{name}` is present")]
    Nobody {
        /// The name that nobody has.
        name: String,
    },
    /// Not a name.
    #[error("a tenant's name has 1 to 64 letters, digits, `-`, `_`, `.` or `:`")]
    NoName,
    /// No more tenants.
    #[error("{limit} tenants are present; no more are admitted")]
    Full {
        /// Most tenants at once.
        limit: usize,
    },
}

/// Least memory limit, bytes: a context's own needs and a small module.
pub const LEAST_MEMORY: u64 = 1 << 20;
/// Least share, percent: the less the least one is, the longer are all turns.
pub const LEAST_SHARE: f64 = 0.1;
/// Least limit of host memory, bytes: a session, and a kernel under way.
pub const LEAST_HOST_MEMORY: u64 = 32 << 20;

/// The tenants present, on one GPU or several.
#[derive(Debug)]
pub struct Admission {
    /// Of each GPU, bytes.
    memory_bytes: Vec<u64>,
    host_bytes: u64,
    overcommit: bool,
    most: usize,
    next: u64,
    tenants: BTreeMap<TenantId, Present>,
}

#[derive(Debug)]
struct Present {
    terms: Terms,
    /// The GPUs that it is on, by number; its terms hold on each.
    gpus: Vec<usize>,
}

impl Admission {
    /// For GPUs with `memory_bytes` each, at most `host_bytes` of the host's for a tenant, at most `most` tenants.
    #[must_use]
    pub fn new(memory_bytes: Vec<u64>, host_bytes: u64, most: usize) -> Admission {
        Admission { memory_bytes, host_bytes, overcommit: true, most, next: 1, tenants: BTreeMap::new() }
    }

    /// Whether limits of GPU memory may together exceed what there is.
    #[must_use]
    pub fn overcommitting(self, overcommit: bool) -> Admission {
        Admission { overcommit, ..self }
    }

    /// Memory of a GPU, bytes; 0 if there is no such.
    #[must_use]
    pub fn memory_bytes(&self, gpu: usize) -> u64 {
        self.memory_bytes.get(gpu).copied().unwrap_or(0)
    }

    /// Terms of those on a GPU, but one.
    fn on(&self, gpu: usize, but: Option<TenantId>) -> impl Iterator<Item = &Terms> {
        let there = move |(id, present): &(&TenantId, &Present)| present.gpus.contains(&gpu) && Some(**id) != but;
        self.tenants.iter().filter(there).map(|(_, present)| &present.terms)
    }

    /// Whether somebody may have a limit of `wanted` bytes on a GPU beside all but one of those there.
    fn check_sum(&self, gpu: usize, wanted: Option<u64>, but: Option<TenantId>) -> Result<(), AdmissionError> {
        let limit = self.memory_bytes(gpu);
        let whole = |bytes: Option<u64>| bytes.unwrap_or(limit);
        let taken = self.on(gpu, but).fold(0u64, |sum, terms| sum.saturating_add(whole(terms.memory_bytes)));
        let wanted = whole(wanted);
        match self.overcommit || taken.saturating_add(wanted) <= limit {
            true => Ok(()),
            false => Err(AdmissionError::Overcommit { wanted, taken, limit }),
        }
    }

    /// Whether a tenant would be let in, as far as it does not matter where.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, terms: &Terms) -> Result<(), AdmissionError> {
        if !is_name(&terms.name) {
            return Err(AdmissionError::NoName);
        }
        if self.tenants.len() >= self.most {
            return Err(AdmissionError::Full { limit: self.most });
        }
        if self.tenants().any(|(_, present)| present.name == terms.name) {
            return Err(AdmissionError::Name { name: terms.name.clone() });
        }
        match terms.host_bytes {
            Some(wanted) if wanted > self.host_bytes => {
                Err(AdmissionError::HostMemory { wanted, limit: self.host_bytes })
            }
            Some(wanted) if wanted < LEAST_HOST_MEMORY => {
                Err(AdmissionError::TooLittleHost { wanted, least: LEAST_HOST_MEMORY })
            }
            _ => check_share(terms.share_percent, 0.0),
        }
    }

    /// Whether a GPU has room for a tenant.
    ///
    /// # Errors
    /// Why not.
    pub fn check_on(&self, gpu: usize, terms: &Terms) -> Result<(), AdmissionError> {
        terms.memory_bytes.map_or(Ok(()), |wanted| check_memory(wanted, self.memory_bytes(gpu)))?;
        self.check_sum(gpu, terms.memory_bytes, None)?;
        check_share(terms.share_percent, self.shares(gpu, None))
    }

    /// Lets a tenant in, on each of `gpus`.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn admit(&mut self, terms: Terms, gpus: &[usize]) -> Result<TenantId, AdmissionError> {
        self.check(&terms)?;
        gpus.iter().try_for_each(|gpu| self.check_on(*gpu, &terms))?;
        let id = TenantId(self.next);
        self.next += 1;
        self.tenants.insert(id, Present { terms, gpus: gpus.to_vec() });
        Ok(id)
    }

    /// Changes a tenant's share of each of its GPUs.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn reshare(&mut self, name: &str, share_percent: Option<f64>) -> Result<TenantId, AdmissionError> {
        let found = self.tenants.iter().find(|(_, present)| present.terms.name == name);
        let (&id, present) = found.ok_or_else(|| AdmissionError::Nobody { name: name.into() })?;
        present.gpus.iter().try_for_each(|gpu| check_share(share_percent, self.shares(*gpu, Some(id))))?;
        self.edit(id, |terms| terms.share_percent = share_percent);
        Ok(id)
    }

    /// Changes a tenant's priority on each of its GPUs.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn prioritize(&mut self, name: &str, priority: Priority) -> Result<TenantId, AdmissionError> {
        let found = self.tenants().find(|(_, terms)| terms.name == name);
        let (id, _) = found.ok_or_else(|| AdmissionError::Nobody { name: name.into() })?;
        self.edit(id, |terms| terms.priority = Some(priority));
        Ok(id)
    }

    /// Changes a tenant's memory on each of its GPUs.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn resize(&mut self, id: TenantId, memory_bytes: u64) -> Result<(), AdmissionError> {
        self.gpus(id).iter().try_for_each(|&gpu| {
            check_memory(memory_bytes, self.memory_bytes(gpu))?;
            self.check_sum(gpu, Some(memory_bytes), Some(id))
        })?;
        self.edit(id, |terms| terms.memory_bytes = Some(memory_bytes));
        Ok(())
    }

    fn edit(&mut self, id: TenantId, edit: impl FnOnce(&mut Terms)) {
        if let Some(present) = self.tenants.get_mut(&id) {
            edit(&mut present.terms);
        }
    }

    /// Forgets a tenant.
    pub fn release(&mut self, id: TenantId) {
        self.tenants.remove(&id);
    }

    /// The tenants present.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, &Terms)> {
        self.tenants.iter().map(|(&id, present)| (id, &present.terms))
    }

    /// The terms of one.
    #[must_use]
    pub fn terms(&self, id: TenantId) -> Option<&Terms> {
        self.tenants.get(&id).map(|present| &present.terms)
    }

    /// The GPUs that a tenant is on, by number, in the order in which its programs count them; none of one that is not present.
    #[must_use]
    pub fn gpus(&self, id: TenantId) -> &[usize] {
        self.tenants.get(&id).map_or(&[], |present| &present.gpus)
    }

    /// Limits of GPU memory together on a GPU, bytes: who has none may use all of it.
    #[must_use]
    pub fn promised_bytes(&self, gpu: usize) -> u64 {
        let limits = self.on(gpu, None).map(|terms| terms.memory_bytes.unwrap_or(self.memory_bytes(gpu)));
        limits.fold(0, u64::saturating_add)
    }

    /// Given shares of a GPU together, percent, but for one tenant's.
    #[must_use]
    pub fn shares(&self, gpu: usize, but: Option<TenantId>) -> f64 {
        self.on(gpu, but).filter_map(|terms| terms.share_percent).sum()
    }

    /// What a GPU has to do already, for one who wants so much of its memory there (`None`: all of it).
    #[must_use]
    pub fn load(&self, gpu: usize, wanted_bytes: Option<u64>) -> Load {
        Load {
            tenants: self.on(gpu, None).count(),
            memory_bytes: self.memory_bytes(gpu),
            promised_bytes: self.promised_bytes(gpu),
            wanted_bytes,
            is_up: true,
            refusal: None,
        }
    }
}

/// Whether somebody can have so much memory of a GPU with `limit`.
fn check_memory(wanted: u64, limit: u64) -> Result<(), AdmissionError> {
    match wanted {
        _ if wanted > limit => Err(AdmissionError::Memory { wanted, limit }),
        _ if wanted < LEAST_MEMORY => Err(AdmissionError::TooLittle { wanted, least: LEAST_MEMORY }),
        _ => Ok(()),
    }
}

/// Whether a share can be given while others have `taken`.
fn check_share(share_percent: Option<f64>, taken: f64) -> Result<(), AdmissionError> {
    match share_percent {
        // What is no number is in no range.
        Some(wanted) if !(LEAST_SHARE..=100.0).contains(&wanted) => Err(AdmissionError::NoShare { wanted }),
        Some(wanted) if taken + wanted > 100.0 + 1e-9 => Err(AdmissionError::Share { wanted, taken }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(name: &str, memory: Option<u64>, share: Option<f64>) -> Terms {
        Terms {
            name: name.into(),
            memory_bytes: memory,
            host_bytes: None,
            share_percent: share,
            on_full: None,
            priority: None,
        }
    }

    #[test]
    fn limits_may_exceed_the_gpu_or_not() {
        for overcommit in [true, false] {
            let mut admission = Admission::new(vec![4 << 30], 1 << 30, 9).overcommitting(overcommit);
            let a = admission.admit(terms("a", Some(3 << 30), None), &[0]).unwrap();
            let beyond = admission.admit(terms("b", Some(2 << 30), None), &[0]);
            assert_eq!(beyond.is_ok(), overcommit, "{beyond:?}");
            assert_eq!(admission.admit(terms("whole", None, None), &[0]).is_ok(), overcommit);
            assert_eq!(admission.resize(a, 4 << 30), Ok(()), "it is not in its own way");
            assert_eq!(admission.admit(terms("c", Some(1 << 30), None), &[0]).is_ok(), overcommit);
            admission.release(a);
            admission.admit(terms("d", Some(3 << 30), None), &[0]).unwrap();
        }
    }

    #[test]
    fn shares_and_memory_are_bounded() {
        let mut admission = Admission::new(vec![4 << 30], 1 << 30, 4);
        let a = admission.admit(terms("a", Some(4 << 30), Some(60.0)), &[0]).unwrap();
        let error = admission.admit(terms("b", None, Some(50.0)), &[0]).unwrap_err();
        assert_eq!(error.to_string(), "a share of 50 % is not free: 60 % of the GPU's time is given to others");
        admission.admit(terms("b", None, Some(40.0)), &[0]).unwrap();
        admission.admit(terms("c", None, None), &[0]).unwrap();
        assert_eq!(admission.reshare("a", Some(60.0)), Ok(a));
        assert!(matches!(admission.reshare("a", Some(61.0)), Err(AdmissionError::Share { .. })));
        assert!(matches!(admission.reshare("a", Some(f64::NAN)), Err(AdmissionError::NoShare { .. })));
        assert!(matches!(admission.reshare("x", None), Err(AdmissionError::Nobody { .. })));
        assert_eq!(admission.prioritize("a", Priority::High), Ok(a));
        assert_eq!(admission.terms(a).unwrap().priority, Some(Priority::High));
        assert!(matches!(admission.prioritize("x", Priority::High), Err(AdmissionError::Nobody { .. })));
        assert_eq!(admission.shares(0, None), 100.0);
        for (bad, name) in [
            (terms("a", None, None), "taken name"),
            (terms("", None, None), "no name"),
            (terms("a b\u{7}", None, None), "control character"),
            (terms("d", Some((4 << 30) + 1), None), "memory"),
            (terms("d", Some(1), None), "little memory"),
            (terms("d", None, Some(0.0)), "zero share"),
            (terms("d", None, Some(1e-300)), "hardly a share"),
            (terms("d", None, Some(f64::NAN)), "no number"),
        ] {
            assert!(admission.admit(bad, &[0]).is_err(), "{name}");
        }
        let host = |host_bytes| Terms { host_bytes, ..terms("d", None, None) };
        assert!(matches!(admission.admit(host(Some(2 << 30)), &[0]), Err(AdmissionError::HostMemory { .. })));
        assert!(matches!(admission.admit(host(Some(1 << 20)), &[0]), Err(AdmissionError::TooLittleHost { .. })));
        for (bytes, fits) in [(1 << 30, true), ((4 << 30) + 1, false), (1, false), (4 << 30, true)] {
            let before = admission.tenants().find(|(id, _)| *id == a).and_then(|(_, terms)| terms.memory_bytes);
            assert_eq!(admission.resize(a, bytes).is_ok(), fits, "{bytes}");
            let after = admission.tenants().find(|(id, _)| *id == a).and_then(|(_, terms)| terms.memory_bytes);
            assert_eq!(after, if fits { Some(bytes) } else { before });
        }
        admission.release(a);
        admission.admit(terms("d", None, Some(60.0)), &[0]).unwrap();
        admission.admit(terms("e", None, None), &[0]).unwrap();
        assert_eq!(admission.admit(terms("f", None, None), &[0]), Err(AdmissionError::Full { limit: 4 }));
    }

    #[test]
    fn what_is_promised_on_one_gpu_is_not_on_another() {
        let mut admission = Admission::new(vec![4 << 30, 2 << 30], 1 << 30, 9).overcommitting(false);
        let both = admission.admit(terms("both", Some(1 << 30), Some(60.0)), &[1, 0]).unwrap();
        assert_eq!(admission.gpus(both), [1, 0]);
        let one = admission.admit(terms("one", Some(3 << 30), Some(40.0)), &[0]).unwrap();
        assert!(matches!(
            admission.check_on(0, &terms("c", Some(1 << 30), None)),
            Err(AdmissionError::Overcommit { .. })
        ));
        assert_eq!(admission.check_on(1, &terms("c", Some(1 << 30), Some(40.0))), Ok(()));
        assert!(matches!(admission.check_on(1, &terms("c", Some(3 << 30), None)), Err(AdmissionError::Memory { .. })));
        // What changes has to fit on each of its GPUs.
        assert!(admission.reshare("both", Some(61.0)).is_err() && admission.resize(both, 2 << 30).is_err());
        admission.release(one);
        assert!(admission.reshare("both", Some(61.0)).is_ok() && admission.resize(both, 2 << 30).is_ok());
        let load = |gpu| admission.load(gpu, None);
        assert_eq!((load(0).promised_bytes, load(1).promised_bytes, load(1).tenants), (2 << 30, 2 << 30, 1));
        assert_eq!((admission.gpus(one), admission.memory_bytes(7)), (&[][..], 0));
    }
}
