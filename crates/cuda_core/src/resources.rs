//! Resources of a device: what a green context has of its multiprocessors and work queues, and how they are divided.
//!
//! Multiprocessors are alike here, and in no groups; so a partition is a number of them, with where it comes from. Pure.

use crate::error::{CudaError, Result};
use crate::handle::Device;

/// `CU_DEV_SM_RESOURCE_GROUP_BACKFILL`.
const BACKFILL: u32 = 1;
/// `CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID`, `…_SUPPLEMENTAL_SMS`: of devices that have such domains.
const LOCALITY: u32 = 6;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`, `…_MAX_POTENTIAL_CLUSTER_SIZE`.
const BY_COUNT_FLAGS: u32 = 3;
/// Multiprocessors come in pairs, as on every GPU, where there are two.
const PAIR: u32 = 2;
/// Most multiprocessors that a program may ask to be scheduled together.
const MOST_TOGETHER: u32 = 32;
/// Streams that a program is expected to use at once, where it does not say: `CUDA_DEVICE_MAX_CONNECTIONS`, if it is not set.
const CONCURRENCY: u32 = 8;

/// A resource of a device, by `CUdevResourceType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevResource {
    /// `CU_DEV_RESOURCE_TYPE_SM`.
    Sm(SmResource),
    /// `CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG`.
    WorkqueueConfig(WorkqueueConfig),
    /// `CU_DEV_RESOURCE_TYPE_WORKQUEUE`.
    Workqueue(Workqueue),
}

/// Multiprocessors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmResource {
    /// Whose they are.
    pub device: Device,
    /// How many; at least one.
    pub count: u32,
    /// Fewest of a partition, and what the size of one is a multiple of.
    pub unit: u32,
    /// `CUdevSmResourceGroup_flags` with which they were split off.
    pub flags: u32,
    /// The split that has made them, and which part of it they are; `None` if a device or context was asked.
    pub part: Option<(u64, u32)>,
}

/// How work queues are to be used: taken as a hint, and told again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkqueueConfig {
    /// Whose they are.
    pub device: Device,
    /// Streams with work at once that are expected.
    pub concurrency: u32,
    /// `CUdevWorkqueueConfigScope`.
    pub scope: u32,
}

/// The work queues of a context that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workqueue {
    /// Whose they are.
    pub device: Device,
    /// The context's number.
    pub context: u64,
}

/// What a group of multiprocessors has to be: `CU_DEV_SM_RESOURCE_GROUP_PARAMS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmGroup {
    /// How many; 0: as many as there are, and that is told here.
    pub count: u32,
    /// How many of them are to be scheduled together; 0: as usual.
    pub together: u32,
    /// How many would be better.
    pub preferred_together: u32,
    /// `CUdevSmResourceGroup_flags`.
    pub flags: u32,
}

/// What a split gives: the groups, and what is left, if anything is.
pub type Split = (Vec<SmResource>, Option<SmResource>);

/// What a green context has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Provision {
    pub(crate) sms: SmResource,
    pub(crate) config: WorkqueueConfig,
    /// Whose work queues it has; `None`: its own.
    pub(crate) workqueue: Option<Workqueue>,
}

impl DevResource {
    fn device(&self) -> Device {
        match self {
            DevResource::Sm(sms) => sms.device,
            DevResource::WorkqueueConfig(config) => config.device,
            DevResource::Workqueue(queue) => queue.device,
        }
    }
}

impl WorkqueueConfig {
    /// What a device has to begin with.
    pub(crate) fn new(device: Device) -> WorkqueueConfig {
        WorkqueueConfig { device, concurrency: CONCURRENCY, scope: 0 }
    }
}

impl SmResource {
    /// All of a device that has so many.
    pub(crate) fn all(device: Device, count: u32) -> SmResource {
        SmResource { device, count, unit: if count < PAIR { 1 } else { PAIR }, flags: 0, part: None }
    }

    /// # Errors
    /// `INVALID_RESOURCE_CONFIGURATION` if it is a part already: a green context has to be made of it first.
    fn whole(&self) -> Result<()> {
        if self.part.is_some() { Err(CudaError::INVALID_RESOURCE_CONFIGURATION) } else { Ok(()) }
    }

    fn part(&self, split: u64, number: usize, count: u32, flags: u32) -> SmResource {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        SmResource { count, flags, part: Some((split, number)), ..*self }
    }

    /// Divides them into equal groups of at least `least`; as many as there can be, but at most `groups`. `split` is the split's number.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags and more than there are; `INVALID_RESOURCE_CONFIGURATION` if there cannot be one group, and for
    /// what comes from a split.
    pub(crate) fn split_by_count(&self, split: u64, groups: Option<u32>, flags: u32, least: u32) -> Result<Split> {
        if flags & !BY_COUNT_FLAGS != 0 || least > self.count || groups == Some(0) {
            return Err(CudaError::INVALID_VALUE);
        }
        self.whole()?;
        let each = least.max(1).next_multiple_of(self.unit);
        let groups = (self.count / each).min(groups.unwrap_or(u32::MAX));
        if groups == 0 {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        let made: Vec<SmResource> = (0..groups as usize).map(|number| self.part(split, number, each, 0)).collect();
        let left = self.count - groups * each;
        let rest = (left > 0).then(|| self.part(split, made.len(), left, 0));
        Ok((made, rest))
    }

    /// Divides them into groups as asked for, one after the other, and fills in how many each has. `give`: the groups are wanted, so none
    /// may be empty.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what no group can be; `INVALID_RESOURCE_CONFIGURATION` for one that cannot be of what is left, and for
    /// what comes from a split.
    pub(crate) fn split(&self, split: u64, groups: &mut [SmGroup], flags: u32, give: bool) -> Result<Split> {
        if flags != 0 || groups.is_empty() {
            return Err(CudaError::INVALID_VALUE);
        }
        self.whole()?;
        let mut left = self.count;
        let mut counts = Vec::with_capacity(groups.len());
        for group in &*groups {
            let count = self.fit(group, left)?;
            if give && count < group.together.max(1) {
                return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
            }
            left -= count;
            counts.push(count);
        }
        for (group, count) in groups.iter_mut().zip(counts) {
            group.count = count;
        }
        let part = |(number, group): (usize, &SmGroup)| self.part(split, number, group.count, group.flags);
        let made = if give { groups.iter().enumerate().map(part).collect() } else { Vec::new() };
        let rest = (left > 0).then(|| self.part(split, groups.len(), left, 0));
        Ok((made, rest))
    }

    /// How many a group has of what is left.
    fn fit(&self, group: &SmGroup, left: u32) -> Result<u32> {
        let together = if group.together == 0 { self.unit } else { group.together };
        let possible = |together: u32| together.is_multiple_of(self.unit) && together <= MOST_TOGETHER;
        let counted = group.count.is_multiple_of(self.unit) && group.count <= self.count;
        let known = group.flags & !(BACKFILL | LOCALITY) == 0;
        if !known || !counted || !possible(together) || group.preferred_together > MOST_TOGETHER {
            return Err(CudaError::INVALID_VALUE);
        }
        let backfill = group.flags & BACKFILL != 0;
        let count = match group.count {
            0 if backfill && left >= together => left,
            0 => left / together * together,
            count => count,
        };
        // No multiprocessor is in a locality domain.
        if group.flags & LOCALITY != 0 || count > left || !(backfill || count.is_multiple_of(together)) {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(count)
    }
}

impl Provision {
    /// What resources are together; of what is not among them, all that a device has.
    ///
    /// # Errors
    /// `INVALID_VALUE` for none, and configurations that cannot be; `INVALID_RESOURCE_CONFIGURATION` for those of several devices,
    /// multiprocessors that are not different parts of one split, and two of another kind.
    pub(crate) fn of(resources: &[DevResource], device: impl Fn(Device) -> Result<SmResource>) -> Result<Provision> {
        let wrong = Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        let first = resources.first().ok_or(CudaError::INVALID_VALUE)?;
        if resources.iter().any(|resource| resource.device() != first.device()) {
            return wrong;
        }
        let (mut sms, mut config, mut workqueue) = (Vec::<SmResource>::new(), None, None);
        for resource in resources {
            let twice = match *resource {
                DevResource::Sm(new) => {
                    let fits = |old: &SmResource| match (old.part, new.part) {
                        (Some((one, old)), Some((other, new))) => one == other && old != new,
                        _ => false,
                    };
                    let twice = !sms.iter().all(fits);
                    sms.push(new);
                    twice
                }
                DevResource::WorkqueueConfig(new) if new.concurrency == 0 || new.scope > 1 => {
                    return Err(CudaError::INVALID_VALUE);
                }
                DevResource::WorkqueueConfig(new) => config.replace(new).is_some(),
                DevResource::Workqueue(new) => workqueue.replace(new).is_some(),
            };
            if twice {
                return wrong;
            }
        }
        let all = device(first.device())?;
        let count = if sms.is_empty() { all.count } else { sms.iter().map(|sms| sms.count).sum() };
        let flags = sms.iter().fold(0, |flags, sms| flags | sms.flags);
        let config = config.unwrap_or(WorkqueueConfig::new(first.device()));
        Ok(Provision { sms: SmResource { count, flags, ..all }, config, workqueue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device(0);

    fn counts(split: Result<Split>) -> Result<(Vec<u32>, u32)> {
        let (groups, rest) = split?;
        Ok((groups.iter().map(|group| group.count).collect(), rest.map_or(0, |rest| rest.count)))
    }

    fn groups(all: u32, wanted: &[(u32, u32, u32)]) -> Result<(Vec<u32>, u32)> {
        let group = |&(count, together, flags)| SmGroup { count, together, preferred_together: 0, flags };
        let mut groups: Vec<SmGroup> = wanted.iter().map(group).collect();
        let split = SmResource::all(DEVICE, all).split(1, &mut groups, 0, true);
        if let Ok((made, _)) = &split {
            assert!(made.iter().zip(&groups).all(|(made, group)| made.count == group.count));
        }
        counts(split)
    }

    #[test]
    fn equal_groups() {
        let split = |all, groups, least| {
            counts(SmResource::all(DEVICE, all).split_by_count(1, groups, 0, least)).map_err(|e| e.code())
        };
        assert_eq!(split(16, Some(3), 4), Ok((vec![4, 4, 4], 4)));
        assert_eq!(split(16, Some(9), 3), Ok((vec![4; 4], 0)));
        assert_eq!(split(7, None, 0), Ok((vec![2; 3], 1)));
        assert_eq!(split(1, None, 0), Ok((vec![1], 0)));
        assert_eq!(split(1, None, 1), Ok((vec![1], 0)));
        assert_eq!(split(4, None, 5), Err(1));
        assert_eq!(split(4, Some(0), 2), Err(1));
        assert_eq!(split(3, None, 3), Err(915), "three would be four");
        assert_eq!(SmResource::all(DEVICE, 4).split_by_count(1, None, 4, 2), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn groups_as_asked_for() {
        let wrong = Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        assert_eq!(groups(10, &[(4, 2, 0), (4, 2, 0)]), Ok((vec![4, 4], 2)));
        assert_eq!(groups(11, &[(8, 4, 0), (0, 2, BACKFILL)]), Ok((vec![8, 3], 0)));
        assert_eq!(groups(11, &[(0, 4, 0)]), Ok((vec![8], 3)));
        assert_eq!(groups(11, &[(0, 0, 0)]), Ok((vec![10], 1)));
        assert_eq!(groups(10, &[(6, 4, BACKFILL)]), Ok((vec![6], 4)));
        assert_eq!(groups(10, &[(6, 4, 0)]), wrong);
        assert_eq!(groups(10, &[(6, 2, 0), (6, 2, 0)]), wrong);
        assert_eq!(groups(10, &[(10, 2, 0), (0, 2, BACKFILL)]), wrong, "nothing is left");
        assert_eq!(groups(10, &[(4, 2, 2)]), wrong, "no locality domains");
        for invalid in [(3, 0, 0), (12, 2, 0), (4, 3, 0), (4, 64, 0), (4, 2, 8)] {
            assert_eq!(groups(10, &[invalid]), Err(CudaError::INVALID_VALUE), "{invalid:?}");
        }
        assert_eq!(groups(10, &[]), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn a_group_may_turn_out_empty_where_it_is_only_asked_for() {
        let mut wanted = [SmGroup { count: 4, ..SmGroup::default() }, SmGroup::default()];
        let split = SmResource::all(DEVICE, 4).split(1, &mut wanted, 0, false);
        assert_eq!((split, wanted[1].count), (Ok((Vec::new(), None)), 0));
    }

    #[test]
    fn what_goes_together() {
        let all = |_| Ok(SmResource::all(DEVICE, 10));
        let (parts, rest) = SmResource::all(DEVICE, 10).split_by_count(1, Some(2), 0, 4).unwrap();
        let (others, _) = SmResource::all(DEVICE, 10).split_by_count(2, Some(2), 0, 4).unwrap();
        let of = |resources: &[SmResource]| {
            let resources: Vec<DevResource> = resources.iter().map(|&sms| DevResource::Sm(sms)).collect();
            Provision::of(&resources, all).map(|provision| provision.sms.count)
        };
        let wrong = Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        assert_eq!((of(&parts), of(&parts[..1]), of(&[parts[1], rest.unwrap()])), (Ok(8), Ok(4), Ok(6)));
        assert_eq!(of(&[SmResource::all(DEVICE, 10)]), Ok(10));
        assert_eq!((of(&[parts[0], others[1]]), of(&[parts[0], parts[0]])), (wrong, wrong));
        assert_eq!(of(&[SmResource { device: Device(1), ..parts[0] }, parts[1]]), wrong);
        assert_eq!(of(&[]), Err(CudaError::INVALID_VALUE));
        assert_eq!(parts[0].split_by_count(3, None, 0, 2), Err(CudaError::INVALID_RESOURCE_CONFIGURATION));

        let config =
            |concurrency, scope| DevResource::WorkqueueConfig(WorkqueueConfig { device: DEVICE, concurrency, scope });
        let only = Provision::of(&[config(3, 1)], all).unwrap();
        assert_eq!((only.sms.count, only.config.concurrency, only.config.scope), (10, 3, 1));
        assert_eq!(
            Provision::of(&[config(3, 1), config(3, 1)], all).map(drop),
            Err(CudaError::INVALID_RESOURCE_CONFIGURATION)
        );
        assert_eq!(Provision::of(&[config(0, 1)], all).map(drop), Err(CudaError::INVALID_VALUE));
        assert_eq!(Provision::of(&[config(1, 2)], all).map(drop), Err(CudaError::INVALID_VALUE));
    }
}
