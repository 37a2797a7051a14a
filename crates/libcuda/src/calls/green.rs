//! Glue of green contexts: resources of devices, as the interface has them.
//!
//! A program gets a resource by value, and hands it back. What it may not change lies in the part of it that is ours: where it comes from
//! is believed only behind [`MARK`], and how much it is only where both parts say the same.

use cuda_abi::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUevent,
    CUgreenCtx, CUresult, CUstream, HostAddr,
};
use cuda_core::{DevResource, Device, Driver, SmGroup, SmResource, Split, Workqueue, WorkqueueConfig};

use crate::decode::{Core, Encode, In, InOut, Out};
use crate::entry::{Answer, Refusal, refuse};

/// What every resource of ours begins with.
const MARK: u64 = u64::from_le_bytes(*b"Sundial1");

/// Most elements of an array of resources: more than any GPU has multiprocessors.
const MOST: u32 = 1 << 16;

/// The 92 bytes that are ours, as words: the mark, the device, how much, two numbers of the kind's own.
type Own = [u64; 5];

fn resource(kind: CUdevResourceType, own: Own, shown: [u32; 5]) -> CUdevResource {
    let mut internal_padding = [0; 92];
    for (place, word) in internal_padding.as_chunks_mut::<8>().0.iter_mut().zip(own) {
        *place = word.to_ne_bytes();
    }
    let mut value = [0; 10];
    value[..5].copy_from_slice(&shown);
    CUdevResource { kind, internal_padding, value, next_resource: HostAddr::NULL }
}

impl Encode<CUdevResource> for DevResource {
    fn encode(self) -> CUdevResource {
        match self {
            DevResource::Sm(sms) => {
                let (split, number) = sms.part.map_or((0, 0), |(split, number)| (split, u64::from(number)));
                let own =
                    [MARK, sms.device.0 as u64, (u64::from(sms.unit) << 32) | u64::from(sms.count), split, number];
                resource(CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM, own, [sms.count, sms.unit, sms.unit, sms.flags, 0])
            }
            DevResource::WorkqueueConfig(config) => {
                let own = [MARK, config.device.0 as u64, 0, 0, 0];
                let shown = [config.device.0 as u32, config.concurrency, config.scope, 0, 0];
                resource(CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG, own, shown)
            }
            DevResource::Workqueue(queue) => {
                let own = [MARK, queue.device.0 as u64, 0, queue.context, 0];
                resource(CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE, own, [0; 5])
            }
        }
    }
}

/// A resource that a program hands back.
///
/// # Errors
/// `INVALID_RESOURCE_TYPE` for what is none; `INVALID_RESOURCE_CONFIGURATION` for one that was not made here, or has been changed.
fn given(resource: &CUdevResource) -> Result<DevResource, Refusal> {
    let words = resource.internal_padding.as_chunks::<8>().0;
    let [mark, device, much, split, number] = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
    let kind = resource.kind;
    if ![
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM,
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG,
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE,
    ]
    .contains(&kind)
    {
        return Err(Refusal(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE));
    }
    let changed = Err(Refusal(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION));
    let device = Device(device as i32);
    let [count, unit, _, flags, ..] = resource.value;
    match kind {
        _ if mark != MARK => changed,
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM => {
            if much != (u64::from(unit) << 32) | u64::from(count) || count == 0 || unit == 0 {
                return changed;
            }
            let part = (split != 0).then_some((split, number as u32));
            Ok(DevResource::Sm(SmResource { device, count, unit, flags, part }))
        }
        CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG => {
            // Programs configure it in its place.
            let [device, concurrency, scope, ..] = resource.value;
            Ok(DevResource::WorkqueueConfig(WorkqueueConfig { device: Device(device as i32), concurrency, scope }))
        }
        _ => Ok(DevResource::Workqueue(Workqueue { device, context: split })),
    }
}

/// Multiprocessors to be divided.
fn sms(input: In<CUdevResource>) -> Result<SmResource, Refusal> {
    match given(&input.get()?)? {
        DevResource::Sm(sms) => Ok(sms),
        _ => Err(Refusal(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE)),
    }
}

/// Stores what is left of a split: if nothing is, what is no resource.
fn set_rest(remainder: Out<CUdevResource>, rest: Option<SmResource>) {
    let nothing = || resource(CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID, [0; 5], [0; 5]);
    remainder.set_plain(rest.map_or_else(nothing, |rest| DevResource::Sm(rest).encode()));
}

/// Stores the groups of a split.
///
/// # Safety
/// The caller promised room for so many, or null.
unsafe fn set_groups(result: Out<CUdevResource>, groups: &[SmResource]) {
    for (index, group) in groups.iter().enumerate() {
        // SAFETY: as our caller knows.
        unsafe { result.set_at(index, DevResource::Sm(*group)) }
    }
}

pub(crate) fn device_get_dev_resource(
    driver: &Driver,
    device: CUdevice,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    resource.required()?;
    resource.set(driver.device_get_dev_resource(Device(device), kind.0)?);
    Ok(())
}

pub(crate) fn ctx_get_dev_resource(
    driver: &Driver,
    ctx: CUcontext,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    resource.required()?;
    resource.set(driver.ctx_get_dev_resource(ctx.core(), kind.0)?);
    Ok(())
}

pub(crate) fn green_ctx_get_dev_resource(
    driver: &Driver,
    green: CUgreenCtx,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    resource.required()?;
    resource.set(driver.green_ctx_get_dev_resource(green.core(), kind.0)?);
    Ok(())
}

pub(crate) fn stream_get_dev_resource(
    driver: &Driver,
    stream: CUstream,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    resource.required()?;
    resource.set(driver.stream_get_dev_resource(stream.core(), kind.0)?);
    Ok(())
}

pub(crate) fn dev_sm_resource_split_by_count(
    driver: &Driver,
    result: Out<CUdevResource>,
    groups: InOut<u32>,
    input: In<CUdevResource>,
    remainder: Out<CUdevResource>,
    flags: u32,
    least: u32,
) -> Answer {
    let room = groups.input().get()?;
    let wanted = (!result.is_null()).then_some(room);
    let (made, rest) = driver.dev_sm_resource_split_by_count(&sms(input)?, wanted, flags, least)?;
    // SAFETY: the caller promised room for as many as there may be, and no more are made.
    unsafe { set_groups(result, &made) }
    groups.output().set(made.len() as u32);
    set_rest(remainder, rest);
    Ok(())
}

pub(crate) fn dev_sm_resource_split(
    driver: &Driver,
    result: Out<CUdevResource>,
    count: u32,
    input: In<CUdevResource>,
    remainder: Out<CUdevResource>,
    flags: u32,
    params: InOut<CU_DEV_SM_RESOURCE_GROUP_PARAMS>,
) -> Answer {
    let input = sms(input)?;
    if count > MOST {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller promised a description of each group.
    let given = unsafe { params.input().list(count as usize) }?;
    if given.iter().any(|params| params.reserved != [0; 11]) {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let group = |params: &CU_DEV_SM_RESOURCE_GROUP_PARAMS| SmGroup {
        count: params.sm_count,
        together: params.coscheduled_sm_count,
        preferred_together: params.preferred_coscheduled_sm_count,
        flags: params.flags,
    };
    let mut groups: Vec<SmGroup> = given.iter().map(group).collect();
    let (made, rest): Split = driver.dev_sm_resource_split(&input, &mut groups, flags, !result.is_null())?;
    // SAFETY: the caller promised room for each group.
    unsafe { set_groups(result, &made) }
    for (index, (mut own, group)) in given.into_iter().zip(&groups).enumerate() {
        own.sm_count = group.count;
        // SAFETY: it was read there.
        unsafe { params.output().set_at(index, own) }
    }
    set_rest(remainder, rest);
    Ok(())
}

pub(crate) fn dev_resource_generate_desc(
    driver: &Driver,
    desc: Out<CUdevResourceDesc>,
    resources: In<CUdevResource>,
    count: u32,
) -> Answer {
    desc.required()?;
    if count > MOST {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller promised so many.
    let resources = unsafe { resources.list(count as usize) }?;
    let resources = resources.iter().map(given).collect::<Result<Vec<_>, _>>()?;
    desc.set(driver.dev_resource_generate_desc(&resources)?);
    Ok(())
}

pub(crate) fn green_ctx_create(
    driver: &Driver,
    green: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> Answer {
    green.required()?;
    green.set(driver.green_ctx_create(desc.core(), Device(device), flags)?);
    Ok(())
}

pub(crate) fn green_ctx_destroy(driver: &Driver, green: CUgreenCtx) -> Answer {
    Ok(driver.green_ctx_destroy(green.core())?)
}

pub(crate) fn ctx_from_green_ctx(driver: &Driver, ctx: Out<CUcontext>, green: CUgreenCtx) -> Answer {
    ctx.required()?;
    ctx.set(driver.ctx_from_green_ctx(green.core())?);
    Ok(())
}

pub(crate) fn green_ctx_get_id(driver: &Driver, green: CUgreenCtx, id: Out<u64>) -> Answer {
    id.required()?;
    id.set(driver.green_ctx_get_id(green.core())?);
    Ok(())
}

pub(crate) fn green_ctx_record_event(driver: &Driver, green: CUgreenCtx, event: CUevent) -> Answer {
    Ok(driver.green_ctx_record_event(green.core(), event.core())?)
}

pub(crate) fn green_ctx_wait_event(driver: &Driver, green: CUgreenCtx, event: CUevent) -> Answer {
    Ok(driver.green_ctx_wait_event(green.core(), event.core())?)
}

pub(crate) fn green_ctx_stream_create(
    driver: &Driver,
    stream: Out<CUstream>,
    green: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> Answer {
    stream.required()?;
    stream.set(driver.green_ctx_stream_create(green.core(), flags, priority)?);
    Ok(())
}

pub(crate) fn stream_get_green_ctx(driver: &Driver, stream: CUstream, green: Out<CUgreenCtx>) -> Answer {
    green.required()?;
    green.set(driver.stream_get_green_ctx(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_ctx_v2(
    driver: &Driver,
    stream: CUstream,
    ctx: Out<CUcontext>,
    green: Out<CUgreenCtx>,
) -> Answer {
    ctx.required()?;
    let contexts = driver.stream_get_contexts(stream.core())?;
    ctx.set(contexts.0);
    green.set(contexts.1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMS: SmResource = SmResource { device: Device(1), count: 6, unit: 2, flags: 1, part: Some((7, 3)) };

    #[test]
    fn resources_come_back_as_they_were() {
        let config = WorkqueueConfig { device: Device(1), concurrency: 4, scope: 1 };
        for resource in [
            DevResource::Sm(SMS),
            DevResource::Sm(SmResource { part: None, ..SMS }),
            DevResource::WorkqueueConfig(config),
            DevResource::Workqueue(Workqueue { device: Device(1), context: 9 }),
        ] {
            assert_eq!(given(&resource.encode()).ok(), Some(resource));
        }
    }

    #[test]
    fn what_a_program_has_changed_is_refused() {
        let own: CUdevResource = DevResource::Sm(SMS).encode();
        let refused = |resource: &CUdevResource| given(resource).unwrap_err().0;
        let more = CUdevResource { value: [8, 2, 2, 1, 0, 0, 0, 0, 0, 0], ..own };
        assert_eq!(refused(&more), CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        let made_up = CUdevResource { internal_padding: [0; 92], ..own };
        assert_eq!(refused(&made_up), CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        for kind in [0, 2, 999] {
            let other = CUdevResource { kind: CUdevResourceType(kind), ..own };
            assert_eq!(refused(&other), CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE);
        }
    }
}
