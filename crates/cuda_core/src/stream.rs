//! Streams: queues of work in order.
//!
//! A stream has a queue of the GPU from its first work on, and one semaphore slot. Nothing is signalled per command: only
//! when somebody wants to know how far the stream is (synchronization, another stream's wait) is a signal appended behind
//! what was submitted last.
//!
//! The legacy default stream waits for all blocking streams of its context, and they for it: each side counts
//! submissions ("epochs"), so that without work on the other side the rule costs one load.
//!
//! Locks: `order`, then those of the context, then `inner` of any stream.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gpu::{Command, DevAddr, QueueId, Request, SlotId};
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Context, Device, Event, Stream, Tag};
use crate::host_fn::HostQueue;
use crate::shared::Mark;

/// Lowest number, highest urgency.
pub(crate) const GREATEST_PRIORITY: i32 = -5;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// Which kind of stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Legacy,
    PerThread,
    Created,
}

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) context: Arc<ContextState>,
    pub(crate) handle: Stream,
    pub(crate) kind: Kind,
    flags: u32,
    priority: i32,
    queue: QueueId,
    /// Held while work is submitted together with what it must wait for.
    order: Mutex<()>,
    inner: Mutex<Inner>,
    /// Submissions so far.
    epoch: AtomicU64,
    /// Epoch of the other side of the legacy rule that this stream has waited for.
    seen: AtomicU64,
    gone: AtomicBool,
    pub(crate) host: HostQueue,
    attributes: Mutex<Attributes>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The queue exists.
    exists: bool,
    slot: Option<SlotId>,
    /// Payload of the last signal.
    value: u64,
    /// Something was submitted behind it.
    dirty: bool,
}

/// `CUstreamAttrValue`s that are kept: they change nothing but what is read back.
#[derive(Clone, Debug)]
struct Attributes {
    access_policy: [u8; 64],
    sync_policy: [u8; 64],
    mem_sync_domain_map: [u8; 64],
    mem_sync_domain: [u8; 64],
}

impl Default for Attributes {
    fn default() -> Attributes {
        let mut sync_policy = [0; 64];
        sync_policy[0] = 1;
        Attributes { access_policy: [0; 64], sync_policy, mem_sync_domain_map: [0; 64], mem_sync_domain: [0; 64] }
    }
}

impl StreamState {
    pub(crate) fn new(context: &Arc<ContextState>, kind: Kind, flags: u32, priority: i32) -> Arc<StreamState> {
        let handle = match kind {
            Kind::Legacy => Stream::LEGACY,
            Kind::PerThread => Stream::PER_THREAD,
            Kind::Created => Stream(handle::fresh(Tag::Stream)),
        };
        Arc::new(StreamState {
            context: Arc::clone(context),
            handle,
            kind,
            flags,
            priority,
            queue: QueueId(context.shared.id()),
            order: Mutex::default(),
            inner: Mutex::default(),
            epoch: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            host: HostQueue::default(),
            attributes: Mutex::default(),
        })
    }

    /// Takes part in the rule of the legacy stream, from the other side.
    fn blocking(&self) -> bool {
        self.kind != Kind::Legacy && self.flags & NON_BLOCKING == 0
    }

    /// Calls `f` for each point in other streams that new work must wait for by the legacy rule. `order` must be held.
    fn dependencies(&self, f: &mut dyn FnMut(Mark) -> Result<()>) -> Result<()> {
        let context = &self.context;
        if self.kind == Kind::Legacy {
            let epoch = context.blocking_epoch.load(Ordering::Acquire);
            if epoch == self.seen.load(Ordering::Relaxed) {
                return Ok(());
            }
            for stream in context.all_streams().into_iter().filter(|stream| stream.blocking()) {
                if let Some(mark) = stream.tail()? {
                    f(mark)?;
                }
            }
            self.seen.store(epoch, Ordering::Relaxed);
        } else if self.blocking() {
            let legacy = context.legacy()?;
            let epoch = legacy.epoch.load(Ordering::Acquire);
            if epoch == self.seen.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Some(mark) = legacy.tail()? {
                f(mark)?;
            }
            self.seen.store(epoch, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Appends commands, behind what the legacy rule says, and sends them on.
    pub(crate) fn submit(&self, commands: &[Command<'_>]) -> Result<()> {
        let order = self.order.lock();
        self.submit_ordered(commands)?;
        drop(order);
        let shared = &self.context.shared;
        shared.note(shared.gpu.flush())
    }

    fn submit_ordered(&self, commands: &[Command<'_>]) -> Result<()> {
        self.dependencies(&mut |mark| {
            let done = self.context.shared.done(&mark);
            if done { Ok(()) } else { self.push(&[Command::Wait { slot: mark.slot, value: mark.value }]) }
        })?;
        self.push(commands)
    }

    /// Appends commands as they are.
    fn push(&self, commands: &[Command<'_>]) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        let shared = &self.context.shared;
        let mut inner = self.inner.lock();
        if !inner.exists {
            self.begin(&mut inner)?;
        }
        shared.note(shared.gpu.submit(self.queue, commands))?;
        inner.dirty = true;
        self.epoch.fetch_add(1, Ordering::Release);
        if self.blocking() {
            self.context.blocking_epoch.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Creates the queue.
    fn begin(&self, inner: &mut Inner) -> Result<()> {
        if self.gone.load(Ordering::Acquire) {
            return Err(CudaError::INVALID_HANDLE);
        }
        self.context.ensure_on_gpu()?;
        let (slot, value) = self.context.shared.take_slot()?;
        let made = self.context.shared.request(Request::CreateQueue {
            id: self.queue,
            context: self.context.gpu_id,
            priority: self.priority,
        });
        if let Err(error) = made {
            self.context.shared.give_slot(slot, value);
            return Err(error);
        }
        *inner = Inner { exists: true, slot: Some(slot), value, dirty: false };
        Ok(())
    }

    /// The point behind all that was submitted; `None` if nothing ever was.
    pub(crate) fn tail(&self) -> Result<Option<Mark>> {
        let shared = &self.context.shared;
        let mut inner = self.inner.lock();
        let Some(slot) = inner.slot else { return Ok(None) };
        if inner.dirty {
            shared.up()?;
            let value = inner.value + 1;
            shared.note(shared.gpu.submit(self.queue, &[Command::Signal { slot, value }]))?;
            inner.value = value;
            inner.dirty = false;
        }
        Ok(Some(Mark { context: self.context.gpu_id, slot, value: inner.value }))
    }

    /// The point behind all that new work would have to wait for.
    pub(crate) fn point(&self) -> Result<Option<Mark>> {
        let _order = self.order.lock();
        self.submit_ordered(&[])?;
        self.tail()
    }

    /// Appends a signal of a slot that is not this stream's own.
    pub(crate) fn signal(&self, slot: SlotId, value: u64) -> Result<Mark> {
        self.submit(&[Command::Signal { slot, value }])?;
        Ok(Mark { context: self.context.gpu_id, slot, value })
    }

    /// Makes further work wait for a mark.
    pub(crate) fn wait_mark(&self, mark: Mark) -> Result<()> {
        let own = self.inner.lock().slot == Some(mark.slot);
        if own || self.context.shared.done(&mark) {
            return Ok(());
        }
        self.submit(&[Command::Wait { slot: mark.slot, value: mark.value }])
    }

    /// Makes further work wait for what another stream has now.
    pub(crate) fn wait_for(&self, other: &StreamState) -> Result<()> {
        match other.tail()? {
            Some(mark) => self.wait_mark(mark),
            None => Ok(()),
        }
    }

    /// Waits, here, for all that new work would have to wait for: then the caller may touch memory in its place.
    pub(crate) fn fence(&self) -> Result<()> {
        match self.point()? {
            Some(mark) => self.context.shared.wait(&self.context, &mark, None),
            None => Ok(()),
        }
    }

    /// Waits for what was submitted.
    pub(crate) fn wait_tail(&self, timeout: Option<Duration>) -> Result<()> {
        match self.tail()? {
            Some(mark) => self.context.shared.wait(&self.context, &mark, timeout),
            None => Ok(()),
        }
    }

    /// Waits as `cuStreamSynchronize` does, and hands over what was printed.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.check()?;
        // The legacy stream stands for the blocking streams too.
        let result = if self.kind == Kind::Legacy { self.fence() } else { self.wait_tail(None) };
        self.context.print();
        result.and(self.context.check())
    }

    /// Whether what was submitted has completed. Nothing is made to wait for the answer.
    ///
    /// # Errors
    /// `NOT_READY` while work is pending.
    fn query(&self) -> Result<()> {
        self.context.check()?;
        let mut done = self.reached()?;
        // The legacy stream stands for the blocking streams too.
        if self.kind == Kind::Legacy {
            for stream in self.context.all_streams().into_iter().filter(|stream| stream.blocking()) {
                done &= stream.reached()?;
            }
        }
        self.context.check()?;
        if done { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    /// Whether the work of this stream alone has completed. However often a program asks, one signal at most is under way
    /// for it: until the last one has arrived, what came behind it has not completed either.
    fn reached(&self) -> Result<bool> {
        let shared = &self.context.shared;
        let behind = {
            let inner = self.inner.lock();
            inner.slot.filter(|slot| shared.payload(*slot) < inner.value).map(|_| inner.dirty)
        };
        let mark = match behind {
            Some(true) => None,
            _ => match self.tail()? {
                Some(mark) if !shared.done(&mark) => Some(mark),
                _ => return Ok(true),
            },
        };
        shared.note(shared.gpu.flush())?;
        Ok(mark.is_some_and(|mark| shared.done(&mark)))
    }

    /// True if nothing is under way, as far as can be seen without asking the GPU.
    pub(crate) fn idle(&self) -> bool {
        let inner = self.inner.lock();
        match inner.slot {
            None => true,
            Some(slot) => !inner.dirty && self.context.shared.payload(slot) >= inner.value,
        }
    }

    /// Destroys the queue if its work has completed.
    pub(crate) fn try_remove(&self) -> bool {
        match self.tail() {
            Ok(None) => true,
            Ok(Some(mark)) if !self.context.shared.done(&mark) => false,
            Ok(Some(_)) => {
                self.context.shared.give_back(Request::DestroyQueue { id: self.queue });
                self.abandon();
                true
            }
            // The context is dying; it takes its queues with it.
            Err(_) => false,
        }
    }

    /// Forgets a queue that does not exist any more, and lets go whoever waits for its work.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        if let Some(slot) = inner.slot.take() {
            if self.context.shared.payload(slot) < inner.value {
                self.context.shared.release(slot, inner.value);
            }
            self.context.shared.give_slot(slot, inner.value);
        }
        inner.exists = false;
        inner.dirty = false;
        drop(inner);
        self.host.close(&self.context.shared);
    }
}

/// The default streams of the calling thread, one per context.
#[derive(Default)]
struct PerThread(Vec<Arc<StreamState>>);

impl Drop for PerThread {
    fn drop(&mut self) {
        for stream in self.0.drain(..) {
            retire(&stream);
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = RefCell::default();
}

/// Takes a stream out of its context; its queue goes when its work has completed.
fn retire(stream: &Arc<StreamState>) {
    let context = &stream.context;
    context.streams.lock().retain(|other| !Arc::ptr_eq(other, stream));
    if !context.dead() {
        context.fading.lock().push(Arc::clone(stream));
        context.reap();
    }
}

impl Driver {
    /// The calling thread's default stream.
    pub(crate) fn per_thread_stream(&self, context: &Arc<ContextState>) -> Result<Arc<StreamState>> {
        PER_THREAD
            .try_with(|streams| {
                let streams = &mut streams.borrow_mut().0;
                if let Some(found) = streams.iter().find(|stream| Arc::ptr_eq(&stream.context, context)) {
                    return Arc::clone(found);
                }
                streams.retain(|stream| !stream.context.dead());
                let made = StreamState::new(context, Kind::PerThread, 0, 0);
                context.streams.lock().push(Arc::clone(&made));
                streams.push(Arc::clone(&made));
                made
            })
            .map_err(|_| CudaError::DEINITIALIZED)
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `INVALID_CONTEXT`.
    pub fn stream_create(&self, flags: u32) -> Result<Stream> {
        self.stream_create_with_priority(flags, 0)
    }

    /// Creates a stream with a priority, clamped to what there is. Its queue is made when it is first used.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `INVALID_CONTEXT`.
    pub fn stream_create_with_priority(&self, flags: u32, priority: i32) -> Result<Stream> {
        let context = self.current()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        context.reap();
        let stream = StreamState::new(&context, Kind::Created, flags, priority.clamp(GREATEST_PRIORITY, 0));
        context.streams.lock().push(Arc::clone(&stream));
        let handle = stream.handle;
        self.streams.insert(handle.0, stream);
        Ok(handle)
    }

    /// Destroys a stream; its work still completes.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none, or a default stream.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.ready()?;
        let state = self.streams.remove(stream.0)?;
        retire(&state);
        Ok(())
    }

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let result = self.stream(stream)?.synchronize();
        self.trim_pools();
        result
    }

    /// Whether all work of a stream has completed.
    ///
    /// # Errors
    /// `NOT_READY` while work is pending; the context's error.
    pub fn stream_query(&self, stream: Stream) -> Result<()> {
        self.stream(stream)?.query()
    }

    /// Makes further work wait for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let event = self.event(event)?;
        let stream = self.stream(stream)?;
        event.mark().map_or(Ok(()), |mark| stream.wait_mark(mark))
    }

    /// Flags.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_flags(&self, stream: Stream) -> Result<u32> {
        self.stream(stream).map(|stream| stream.flags)
    }

    /// Priority.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_priority(&self, stream: Stream) -> Result<i32> {
        self.stream(stream).map(|stream| stream.priority)
    }

    /// A number never used again in this process.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_id(&self, stream: Stream) -> Result<u64> {
        self.stream(stream).map(|stream| u64::from(stream.queue.0))
    }

    /// Context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_ctx(&self, stream: Stream) -> Result<Context> {
        self.stream(stream).map(|stream| stream.context.handle)
    }

    /// Device.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_device(&self, stream: Stream) -> Result<Device> {
        self.stream(stream).map(|_| Device(0))
    }

    /// Copies attributes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_copy_attributes(&self, dst: Stream, src: Stream) -> Result<()> {
        let (dst, src) = (self.stream(dst)?, self.stream(src)?);
        let attributes = src.attributes.lock().clone();
        *dst.attributes.lock() = attributes;
        Ok(())
    }

    /// A `CUstreamAttrValue` by `CUstreamAttrID`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that streams do not have.
    pub fn stream_get_attribute(&self, stream: Stream, attribute: u32) -> Result<[u8; 64]> {
        let stream = self.stream(stream)?;
        let attributes = stream.attributes.lock();
        Ok(match attribute {
            ACCESS_POLICY_WINDOW => attributes.access_policy,
            SYNCHRONIZATION_POLICY => attributes.sync_policy,
            PRIORITY => {
                let mut value = [0; 64];
                value[..4].copy_from_slice(&stream.priority.to_ne_bytes());
                value
            }
            MEM_SYNC_DOMAIN_MAP => attributes.mem_sync_domain_map,
            MEM_SYNC_DOMAIN => attributes.mem_sync_domain,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// Sets a `CUstreamAttrValue`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that cannot be set.
    pub fn stream_set_attribute(&self, stream: Stream, attribute: u32, value: &[u8; 64]) -> Result<()> {
        let stream = self.stream(stream)?;
        let mut attributes = stream.attributes.lock();
        match attribute {
            ACCESS_POLICY_WINDOW => attributes.access_policy = *value,
            SYNCHRONIZATION_POLICY => attributes.sync_policy = *value,
            MEM_SYNC_DOMAIN_MAP => attributes.mem_sync_domain_map = *value,
            MEM_SYNC_DOMAIN => attributes.mem_sync_domain = *value,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// Attaches managed memory to a stream: every stream and the host may use it at any time, so nothing changes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` if the address is not managed or the flags are unknown.
    pub fn stream_attach_mem_async(&self, stream: Stream, address: DevAddr, _bytes: u64, flags: u32) -> Result<()> {
        self.stream(stream)?;
        if !matches!(flags, 1 | 2 | 4) || !self.shared.memory.is_managed(address.0) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(())
    }

    /// `CUstreamCaptureStatus`: 0, none.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_is_capturing(&self, stream: Stream) -> Result<u32> {
        self.stream(stream).map(|_| 0)
    }

    /// Capture is not supported.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, `INVALID_HANDLE`.
    pub fn stream_begin_capture(&self, stream: Stream, _mode: u32) -> Result<()> {
        self.stream(stream)?;
        Err(CudaError::NOT_SUPPORTED)
    }

    /// Capture is not supported: no stream is capturing.
    ///
    /// # Errors
    /// `ILLEGAL_STATE`, `INVALID_HANDLE`.
    pub fn stream_end_capture(&self, stream: Stream) -> Result<u64> {
        self.stream(stream)?;
        Err(CudaError::ILLEGAL_STATE)
    }

    /// Sets the thread's capture mode; returns the former.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn thread_exchange_stream_capture_mode(&self, mode: u32) -> Result<u32> {
        thread_local! {
            static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        self.ready()?;
        if mode > 2 { Err(CudaError::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
    }
}

const ACCESS_POLICY_WINDOW: u32 = 1;
const SYNCHRONIZATION_POLICY: u32 = 3;
const PRIORITY: u32 = 8;
const MEM_SYNC_DOMAIN_MAP: u32 = 9;
const MEM_SYNC_DOMAIN: u32 = 10;
