//! Green contexts: parts of a primary context, with some of the device's resources.

use std::sync::Arc;

use crate::context::green::GreenState;
use crate::context::state::ContextState;
use crate::devices::DeviceState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Context, Device, Event, GreenContext, ResourceDesc, Stream, Tag};
use crate::resources::{DevResource, Provision, SmGroup, SmResource, Split, Workqueue, WorkqueueConfig};
use crate::work::queues::{Part, Queues};
use crate::work::stream::{GREATEST_PRIORITY, NON_BLOCKING, StreamState};

/// `CUdevResourceType`.
const SM: u32 = 1;
const WORKQUEUE_CONFIG: u32 = 1000;
const WORKQUEUE: u32 = 10_000;

impl Driver {
    fn all_multiprocessors(&self, device: Device) -> Result<SmResource> {
        self.device(device).map(|state| SmResource::all(device, state.properties().multiprocessors))
    }

    /// A resource of a device, by `CUdevResourceType`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_RESOURCE_TYPE` for unknown ones.
    pub fn device_get_dev_resource(&self, device: Device, kind: u32) -> Result<DevResource> {
        let all = self.all_multiprocessors(device)?;
        match kind {
            SM => Ok(DevResource::Sm(all)),
            WORKQUEUE_CONFIG => Ok(DevResource::WorkqueueConfig(WorkqueueConfig::new(device))),
            // Those of no context in particular.
            WORKQUEUE => Ok(DevResource::Workqueue(Workqueue { device, context: 0 })),
            _ => Err(CudaError::INVALID_RESOURCE_TYPE),
        }
    }

    /// A resource of a context, green or not; null means current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `CONTEXT_IS_DESTROYED`; `INVALID_RESOURCE_TYPE` for unknown ones.
    pub fn ctx_get_dev_resource(&self, context: Context, kind: u32) -> Result<DevResource> {
        let context = self.context(context)?;
        if context.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        self.resource_of(&context.queues, kind)
    }

    fn resource_of(&self, queues: &Queues, kind: u32) -> Result<DevResource> {
        let device = Device(queues.core.gpu.ordinal as i32);
        match (kind, queues.part()) {
            (SM, Some(part)) => Ok(DevResource::Sm(part.provision.sms)),
            (WORKQUEUE_CONFIG, Some(part)) => Ok(DevResource::WorkqueueConfig(part.provision.config)),
            (WORKQUEUE, part) => {
                let own = Workqueue { device, context: queues.context_id() };
                let given = part.and_then(|part| part.provision.workqueue);
                Ok(DevResource::Workqueue(given.unwrap_or(own)))
            }
            (_, None) => self.device_get_dev_resource(device, kind),
            _ => Err(CudaError::INVALID_RESOURCE_TYPE),
        }
    }

    /// A resource of a green context.
    ///
    /// # Errors
    /// As `ctx_get_dev_resource`.
    pub fn green_ctx_get_dev_resource(&self, green: GreenContext, kind: u32) -> Result<DevResource> {
        self.resource_of(&self.green(green)?.context.queues, kind)
    }

    /// The multiprocessors of a stream's context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_RESOURCE_TYPE` for other resources.
    pub fn stream_get_dev_resource(&self, stream: Stream, kind: u32) -> Result<DevResource> {
        let stream = self.any_stream(stream)?;
        if kind == SM { self.resource_of(&stream.queues, kind) } else { Err(CudaError::INVALID_RESOURCE_TYPE) }
    }

    /// Divides multiprocessors into equal groups of `least` or a few more; at most `groups`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, no groups, and more than there are; `INVALID_RESOURCE_CONFIGURATION` if there cannot be
    /// one group, and for what comes from a split; `INVALID_DEVICE`.
    pub fn dev_sm_resource_split_by_count(
        &self,
        input: &SmResource,
        groups: Option<u32>,
        flags: u32,
        least: u32,
    ) -> Result<Split> {
        self.device(input.device)?;
        input.split_by_count(handle::fresh(Tag::ResourceDesc), groups, flags, least)
    }

    /// Divides multiprocessors into groups as asked for, and fills in how many each has; `give`: the groups are wanted, and none may
    /// be empty.
    ///
    /// # Errors
    /// `INVALID_VALUE` for flags and for what no group can be; `INVALID_RESOURCE_CONFIGURATION` for one that cannot be of what is left,
    /// and for what comes from a split; `INVALID_DEVICE`.
    pub fn dev_sm_resource_split(
        &self,
        input: &SmResource,
        groups: &mut [SmGroup],
        flags: u32,
        give: bool,
    ) -> Result<Split> {
        self.device(input.device)?;
        input.split(handle::fresh(Tag::ResourceDesc), groups, flags, give)
    }

    /// Describes what a green context is to have. It is never forgotten.
    ///
    /// # Errors
    /// `INVALID_VALUE` for none, and configurations that cannot be; `INVALID_RESOURCE_CONFIGURATION` for those that do not go together.
    pub fn dev_resource_generate_desc(&self, resources: &[DevResource]) -> Result<ResourceDesc> {
        self.ready()?;
        let provision = Provision::of(resources, |device| self.all_multiprocessors(device))?;
        let desc = ResourceDesc(handle::fresh(Tag::ResourceDesc));
        self.descs.insert(desc.0, Arc::new(provision));
        Ok(desc)
    }

    /// Makes a green context; the device's primary context is retained as long as there is. Its default stream, and its blocking
    /// streams, are in an order of their own, with the flag `CU_GREEN_CTX_DEFAULT_STREAM` and without.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_VALUE` for unknown flags and descriptors, also those of another device; `OUT_OF_MEMORY`.
    pub fn green_ctx_create(&self, desc: ResourceDesc, device: Device, flags: u32) -> Result<GreenContext> {
        self.device(device)?;
        let provision = self.descs.get(desc.0).map_err(|_| CudaError::INVALID_VALUE)?;
        if flags > 1 || provision.sms.device != device {
            return Err(CudaError::INVALID_VALUE);
        }
        let primary = self.device_primary_ctx_retain(device)?;
        self.green_of(primary, *provision).inspect_err(|_| {
            // Somebody else has released it meanwhile.
            let _ = self.device_primary_ctx_release(device);
        })
    }

    fn green_of(&self, primary: Context, provision: Provision) -> Result<GreenContext> {
        let primary = self.contexts.get(primary.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        let green = GreenContext(handle::fresh(Tag::GreenContext));
        let context = Context(handle::fresh(Tag::Context));
        let id = u64::from(primary.core.link().fresh_id());
        let part = Part { green, context, id, provision };
        let context = ContextState::part_of(&primary, part);
        primary.alive_or(|| {})?;
        self.contexts.insert(context.handle.0, Arc::clone(&context));
        self.greens.insert(green.0, Arc::new(GreenState { context }));
        Ok(green)
    }

    /// Ends a green context, after its work. Its streams are of no use from then on, and to be destroyed.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none.
    pub fn green_ctx_destroy(&self, green: GreenContext) -> Result<()> {
        self.ready()?;
        let green = self.named_green(green);
        let state = self.greens.remove(green.0).map_err(|_| CudaError::INVALID_CONTEXT)?.context.clone();
        // Nobody else does it: the handle was there.
        let _ = self.contexts.remove(state.handle.0);
        state.queues.detach();
        self.graphs.invalidate_captures_in(&state.queues);
        state.queues.end_part();
        (state.core.gpu.host.context_destroyed)(state.handle);
        let device: &DeviceState = self.device_of(&state);
        // Whoever has reset it, or released it once too often, has ended it already.
        let _ = self.device_primary_ctx_release(Device(device.core.ordinal as i32));
        Ok(())
    }

    /// A green context by handle. CUDA's runtime names it by that of the context that stands for it.
    fn green(&self, green: GreenContext) -> Result<Arc<GreenState>> {
        self.ready()?;
        let found = self.greens.get(self.named_green(green).0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        found.context.alive_or(|| {})?;
        Ok(found)
    }

    fn named_green(&self, green: GreenContext) -> GreenContext {
        let stands_for =
            self.contexts.get(green.0).ok().and_then(|context| context.queues.part().map(|part| part.green));
        stands_for.unwrap_or(green)
    }

    /// Whether a context stands for a green one.
    #[must_use]
    pub fn is_green(&self, context: Context) -> bool {
        self.contexts.get(context.0).is_ok_and(|context| context.queues.part().is_some())
    }

    /// What stands for a green context where a context is asked for.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `CONTEXT_IS_DESTROYED`.
    pub fn ctx_from_green_ctx(&self, green: GreenContext) -> Result<Context> {
        self.green(green).map(|green| green.context.handle)
    }

    /// A number never used again in this process; null means the current context, if it is green.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `CONTEXT_IS_DESTROYED`.
    pub fn green_ctx_get_id(&self, green: GreenContext) -> Result<u64> {
        if !green.is_null() {
            return self.green(green).map(|green| green.context.queues.context_id());
        }
        let current = self.current()?;
        current.queues.part().map(|part| part.id).ok_or(CudaError::INVALID_CONTEXT)
    }

    /// Records an event behind all work of a green context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`; `INVALID_HANDLE`, also if the event is of another primary context; `STREAM_CAPTURE_UNSUPPORTED` if a stream
    /// of it is being captured.
    pub fn green_ctx_record_event(&self, green: GreenContext, event: Event) -> Result<()> {
        let context = self.green(green)?.context.handle;
        self.ctx_record_event(context, event)
    }

    /// Makes all further work of a green context wait for an event.
    ///
    /// # Errors
    /// As `ctx_wait_event`.
    pub fn green_ctx_wait_event(&self, green: GreenContext, event: Event) -> Result<()> {
        let context = self.green(green)?.context.handle;
        self.ctx_wait_event(context, event)
    }

    /// Creates a stream of a green context, whatever is current; `flags` has to be `CU_STREAM_NON_BLOCKING`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`; `INVALID_VALUE` for other flags.
    pub fn green_ctx_stream_create(&self, green: GreenContext, flags: u32, priority: i32) -> Result<Stream> {
        let context = Arc::clone(&self.green(green)?.context);
        context.check()?;
        if flags != NON_BLOCKING {
            return Err(CudaError::INVALID_VALUE);
        }
        self.stream_of(&context, flags, priority)
    }

    /// Creates a stream of a context, with a priority, clamped to what there is.
    pub(crate) fn stream_of(&self, context: &Arc<ContextState>, flags: u32, priority: i32) -> Result<Stream> {
        context.queues.reap();
        let stream = StreamState::created(&context.queues, flags, priority.clamp(GREATEST_PRIORITY, 0));
        let handle = stream.handle;
        self.streams.insert(handle.0, Arc::clone(&stream));
        context.alive_or(|| {
            let _ = self.streams.remove(handle.0);
            stream.retire();
        })?;
        Ok(handle)
    }

    /// The green context that a stream is of; null if it is of none.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn stream_get_green_ctx(&self, stream: Stream) -> Result<GreenContext> {
        let stream = self.any_stream(stream)?;
        Ok(stream.queues.part().map_or(GreenContext::NULL, |part| part.green))
    }

    /// The context that a stream is of, and the green context; where it is of one, the context is the primary one.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn stream_get_contexts(&self, stream: Stream) -> Result<(Context, GreenContext)> {
        let stream = self.any_stream(stream)?;
        let green = stream.queues.part().map_or(GreenContext::NULL, |part| part.green);
        Ok((stream.core.handle, green))
    }
}
