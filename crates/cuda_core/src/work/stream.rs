//! Streams: work in order, as programs name it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpu::{Command, QueueId};
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::handle::{self, Stream, Tag};
use crate::work::host_queue::HostFunction;
use crate::work::queue::{LegacyRule, Queue};
use crate::work::queues::{Held, Length, Point, Queues};

/// Lowest number, highest urgency.
pub(crate) const GREATEST_PRIORITY: i32 = -5;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// A stream: a handle, and the queue behind it.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) core: Arc<ContextCore>,
    pub(crate) handle: Stream,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) queues: Arc<Queues>,
    queue: Arc<Queue>,
    attributes: Mutex<Attributes>,
    /// The capture that it takes part in; 0: none. Written under the lock of the graphs.
    capture: AtomicU64,
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
    fn new(queues: &Arc<Queues>, queue: Arc<Queue>, handle: Stream, flags: u32, priority: i32) -> Arc<StreamState> {
        let (core, queues) = (Arc::clone(&queues.core), Arc::clone(queues));
        let (attributes, capture) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(StreamState { core, handle, flags, priority, queues, queue, attributes, capture })
    }

    /// The legacy default stream of a context.
    pub(crate) fn legacy(queues: &Arc<Queues>) -> Arc<StreamState> {
        StreamState::new(queues, Arc::clone(queues.legacy()), Stream::LEGACY, 0, 0)
    }

    /// A stream with a handle of its own.
    pub(crate) fn created(queues: &Arc<Queues>, flags: u32, priority: i32) -> Arc<StreamState> {
        let rule = if flags & NON_BLOCKING == 0 { LegacyRule::Blocking } else { LegacyRule::NonBlocking };
        let queue = queues.add(rule, priority);
        StreamState::new(queues, queue, Stream(handle::fresh(Tag::Stream)), flags, priority)
    }

    /// The calling thread's default stream in a context. If it is made now, what `at_end` makes is called when the thread ends.
    ///
    /// # Errors
    /// `DEINITIALIZED` while the thread ends.
    pub(crate) fn per_thread(queues: &Arc<Queues>, at_end: impl FnOnce() -> AtEnd) -> Result<Arc<StreamState>> {
        PER_THREAD
            .try_with(|streams| {
                let streams = &mut streams.borrow_mut().0;
                if let Some((found, _)) = streams.iter().find(|(stream, _)| Arc::ptr_eq(&stream.queues, queues)) {
                    return Arc::clone(found);
                }
                streams.retain(|(stream, _)| !stream.core.dead());
                let queue = queues.add(LegacyRule::Blocking, 0);
                let made = StreamState::new(queues, queue, Stream::PER_THREAD, 0, 0);
                streams.push((Arc::clone(&made), at_end()));
                made
            })
            .map_err(|_| CudaError::DEINITIALIZED)
    }

    /// The name of its queue: a number never used again in this process.
    pub(crate) fn id(&self) -> QueueId {
        self.queue.id
    }

    /// Appends commands, behind what the legacy rule says, and sends them on.
    pub(crate) fn submit(&self, commands: &[Command<'_>]) -> Result<()> {
        self.queues.submit(&self.queue, commands)
    }

    /// The point behind all that was submitted; `None` if nothing ever was.
    pub(crate) fn tail(&self) -> Result<Option<Mark>> {
        self.queue.tail()
    }

    /// The point behind all that new work would have to wait for.
    pub(crate) fn point(&self) -> Result<Option<Mark>> {
        self.queues.point(&self.queue)
    }

    /// Calls `f` with the stream held: what `f` appends is one piece of work, into which nobody's else comes.
    pub(crate) fn hold<R>(&self, f: impl FnOnce(&Held<'_>) -> Result<R>) -> Result<R> {
        self.queues.hold(&self.queue, f)
    }

    /// The capture that it takes part in; 0: none.
    pub(crate) fn capture(&self) -> u64 {
        self.capture.load(Ordering::Acquire)
    }

    /// It takes part in a capture from now on, or in none (0).
    pub(crate) fn set_capture(&self, capture: u64) {
        let before = self.capture.swap(capture, Ordering::AcqRel);
        let count = |count: &std::sync::atomic::AtomicU32| match (before, capture) {
            (0, 1..) => drop(count.fetch_add(1, Ordering::AcqRel)),
            (1.., 0) => drop(count.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        };
        count(&self.queues.captured);
        if self.is_blocking() {
            count(&self.queues.captured_blocking);
        }
    }

    /// Whether it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.queue.rule == LegacyRule::Blocking
    }

    /// Whether it is the legacy stream while blocking streams of its context are captured: its work would have to wait for theirs.
    pub(crate) fn depends_on_captures(&self) -> bool {
        self.queue.rule == LegacyRule::Legacy && self.queues.captured_blocking.load(Ordering::Acquire) != 0
    }

    /// Makes further work wait for a point of a stream, of any device.
    pub(crate) fn wait_for(&self, point: &Point) -> Result<()> {
        self.queues.wait_for_point(&self.queue, point)
    }

    /// Runs `function` in stream order, with the context's error if it failed before.
    pub(crate) fn run_on_host(&self, function: HostFunction) -> Result<()> {
        self.queues.run_on_host(&self.queue, function)
    }

    /// Calls `f` in place of a command: after all that new work would have to wait for, and before all work to come.
    pub(crate) fn run_here<R>(&self, length: Length, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.queues.run_here(&self.queue, length, f)
    }

    /// Runs commands now and waits for them, within a [`Length::Long`] function of `run_here`.
    pub(crate) fn run_aside(&self, commands: &[Command<'_>]) -> Result<()> {
        self.queues.run_aside(commands)
    }

    /// Waits as `cuStreamSynchronize` does, and hands over what was printed.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.core.check()?;
        let mark = match self.queue.rule {
            // The legacy stream stands for the blocking streams too.
            LegacyRule::Legacy => self.point(),
            _ => self.queue.to_come(),
        };
        let result = mark.and_then(|mark| mark.map_or(Ok(()), |mark| self.core.wait(&mark, None)));
        self.print();
        result.and(self.core.check())
    }

    /// Whether what was submitted has completed. Nothing is made to wait for the answer.
    ///
    /// # Errors
    /// `NOT_READY` while work is pending.
    pub(crate) fn query(&self) -> Result<()> {
        self.core.check()?;
        let completed = self.queues.completed(&self.queue)?;
        self.core.check()?;
        if completed { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    /// Waits for all work of the whole context.
    pub(crate) fn synchronize_context(&self) -> Result<()> {
        self.queues.whole().synchronize()
    }

    /// True if no work of the whole context is under way, as far as can be seen without asking the GPU.
    pub(crate) fn context_idle(&self) -> bool {
        self.queues.idle()
    }

    /// Hands over what kernels of the context have printed, if nothing runs that may be printing.
    pub(crate) fn print(&self) {
        self.queues.print();
    }

    /// The stream is destroyed: its queue goes when its work has completed.
    pub(crate) fn retire(&self) {
        self.queues.retire(&self.queue);
    }

    /// Takes over another stream's attributes.
    pub(crate) fn copy_attributes(&self, from: &StreamState) {
        let attributes = from.attributes.lock().clone();
        *self.attributes.lock() = attributes;
    }

    /// A `CUstreamAttrValue` by `CUstreamAttrID`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for attributes that streams do not have.
    pub(crate) fn attribute(&self, attribute: u32) -> Result<[u8; 64]> {
        let attributes = self.attributes.lock();
        Ok(match attribute {
            ACCESS_POLICY_WINDOW => attributes.access_policy,
            SYNCHRONIZATION_POLICY => attributes.sync_policy,
            PRIORITY => {
                let mut value = [0; 64];
                value[..4].copy_from_slice(&self.priority.to_ne_bytes());
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
    /// `INVALID_VALUE` for attributes that cannot be set.
    pub(crate) fn set_attribute(&self, attribute: u32, value: &[u8; 64]) -> Result<()> {
        let mut attributes = self.attributes.lock();
        match attribute {
            ACCESS_POLICY_WINDOW => attributes.access_policy = *value,
            SYNCHRONIZATION_POLICY => attributes.sync_policy = *value,
            MEM_SYNC_DOMAIN_MAP => attributes.mem_sync_domain_map = *value,
            MEM_SYNC_DOMAIN => attributes.mem_sync_domain = *value,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }
}

/// Numbers of `CUstreamAttrID`.
const ACCESS_POLICY_WINDOW: u32 = 1;
const SYNCHRONIZATION_POLICY: u32 = 3;
const PRIORITY: u32 = 8;
const MEM_SYNC_DOMAIN_MAP: u32 = 9;
const MEM_SYNC_DOMAIN: u32 = 10;

/// Has others forget a thread's default stream, as the thread ends.
pub(crate) type AtEnd = Box<dyn Fn(&Arc<StreamState>)>;

/// The default streams of the calling thread, one per context.
#[derive(Default)]
struct PerThread(Vec<(Arc<StreamState>, AtEnd)>);

impl Drop for PerThread {
    fn drop(&mut self) {
        for (stream, at_end) in self.0.drain(..) {
            at_end(&stream);
            stream.retire();
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = RefCell::default();
}
