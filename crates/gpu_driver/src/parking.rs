//! Queues that wait for a slot which nothing has promised to signal yet, and what they are to do then.
//!
//! A wait in a shared channel holds up all that lies behind it, of other queues too. That is harmless if what it waits for
//! has been submitted before: of all that is unfinished the oldest can always run. It is not if the client releases the slot
//! itself, after it has seen other work done, or if the signal is yet to be submitted: the signal might be submitted to the
//! same channel, and never be reached. So a wait enters a channel only once a `Signal` of its slot with a value as high has
//! been submitted by the same context; until then the queue is *parked*, with all that is submitted to it:
//!
//! ```text
//!                 wait: payload there ─► skipped     submitted (Signal), or released by the client
//!   ┌─────────┐   wait: promised ──────► emitted   ┌────────┐
//!   │ Running │ ─────────────────────────────────► │ Parked │ commands are kept
//!   └─────────┘   wait: neither                    └────────┘
//!        ▲                                              │ promised, or payload there
//!        └──────────────────────────────────────────────┘ what was kept is emitted, up to the next such wait
//! ```
//! Nobody looks at slots again and again: both ways out are calls of the client ([`gpu::Gpu::submit`], [`gpu::Gpu::release`]).
//! A promise of another context may be broken by that context's end, and one that lies behind a wait on memory may never be
//! kept: waits for these enter a channel of their own ([`crate::channels`]), and what is signalled from there is as unsure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use gpu::{Command, SEMAPHORE_SLOTS, SlotId};
use parking_lot::Mutex;

use crate::module::Module;
use crate::queues::Queue;

/// Instead of a context's number: the signal lies behind a wait on memory, and may never be reached.
const UNSURE: u32 = u32::MAX;
/// Slots whose promises are made room for at once.
const CHUNK: u32 = 256;

/// What will be signalled: the highest value that submitted commands will store, and whose context's they are.
#[derive(Debug, Default)]
struct Promise {
    value: AtomicU64,
    context: AtomicU32,
}

/// The promises of all slots. Room for them is made as slots are used.
#[derive(Debug)]
struct Promises(Vec<OnceLock<Box<[Promise]>>>);

impl Promises {
    fn new() -> Promises {
        Promises((0..SEMAPHORE_SLOTS / CHUNK).map(|_| OnceLock::new()).collect())
    }

    /// A signal is in a channel of `context`, and will be reached if the context lives.
    fn add(&self, slot: SlotId, value: u64, context: u32) {
        let chunk = self.0[(slot.0 / CHUNK) as usize].get_or_init(|| (0..CHUNK).map(|_| Promise::default()).collect());
        let promise = &chunk[(slot.0 % CHUNK) as usize];
        promise.context.store(context, Ordering::Relaxed);
        promise.value.fetch_max(value, Ordering::SeqCst);
    }

    /// The context that will signal at least `value`, if any.
    fn of(&self, slot: SlotId, value: u64) -> Option<u32> {
        let promise = &self.0[(slot.0 / CHUNK) as usize].get()?[(slot.0 % CHUNK) as usize];
        let promised = promise.value.load(Ordering::SeqCst) >= value;
        promised.then(|| promise.context.load(Ordering::Relaxed))
    }
}

/// What a queue that comes to a wait has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outlook {
    /// Nothing: the payload is there.
    Met,
    /// Wait in its channel: the same context signals.
    Promised,
    /// Wait in a channel of its own: another context signals, if it lives; or what lies behind a wait on memory.
    PromisedElsewhere,
    /// Be parked.
    Open,
}

/// Commands that are kept, with the module of each launch.
#[derive(Debug)]
pub(crate) struct Kept {
    command: Command<'static>,
    /// Parameters of a launch, bytes of a write.
    data: Vec<u8>,
    pub(crate) module: Option<Arc<Module>>,
}

impl Kept {
    pub(crate) fn new(command: &Command<'_>, module: Option<Arc<Module>>) -> Kept {
        let (command, data) = match *command {
            Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params } => (
                Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params: &[] },
                params.to_vec(),
            ),
            Command::Write { dst, data } => (Command::Write { dst, data: &[] }, data.to_vec()),
            Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
                (Command::Copy { dst, src, width, height, dst_pitch, src_pitch }, Vec::new())
            }
            Command::Fill { dst, value, element, width, height, pitch } => {
                (Command::Fill { dst, value, element, width, height, pitch }, Vec::new())
            }
            Command::Signal { slot, value } => (Command::Signal { slot, value }, Vec::new()),
            Command::Wait { slot, value } => (Command::Wait { slot, value }, Vec::new()),
            Command::WriteValue { at, value, wide } => (Command::WriteValue { at, value, wide }, Vec::new()),
            Command::WaitValue { at, value, wide, compare } => {
                (Command::WaitValue { at, value, wide, compare }, Vec::new())
            }
        };
        Kept { command, data, module }
    }

    pub(crate) fn command(&self) -> Command<'_> {
        match self.command {
            Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, .. } => {
                Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params: &self.data }
            }
            Command::Write { dst, .. } => Command::Write { dst, data: &self.data },
            other => other,
        }
    }

    /// Host memory that it takes, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<Kept>() + self.data.len()) as u64
    }
}

/// The parked queues of a client, and what slots promise.
#[derive(Debug)]
pub(crate) struct Parking {
    promises: Promises,
    /// Queues by the slot that they wait for.
    parked: Mutex<HashMap<SlotId, Vec<Arc<Queue>>>>,
    /// Number of them, to be looked at without the lock.
    count: AtomicUsize,
}

impl Parking {
    pub(crate) fn new() -> Parking {
        Parking { promises: Promises::new(), parked: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Notes that a signal is in a shared channel of a context, or in a waiter (`None`); true if a queue may be parked for it.
    pub(crate) fn promise(&self, slot: SlotId, value: u64, context: Option<u32>) -> bool {
        self.promises.add(slot, value, context.unwrap_or(UNSURE));
        // Ordered after the promise: either this sees who parks, or who parks sees the promise.
        self.count.load(Ordering::SeqCst) > 0
    }

    /// What a queue of `context` has to do that waits for `value`; `payload` is what the slot holds.
    pub(crate) fn outlook(&self, slot: SlotId, value: u64, payload: u64, context: u32) -> Outlook {
        if payload >= value {
            return Outlook::Met;
        }
        match self.promises.of(slot, value) {
            Some(by) if by == context => Outlook::Promised,
            Some(_) => Outlook::PromisedElsewhere,
            None => Outlook::Open,
        }
    }

    /// Parks a queue if `outlook`, asked once more, is open; gives what it says.
    pub(crate) fn park(&self, slot: SlotId, queue: &Arc<Queue>, outlook: impl FnOnce() -> Outlook) -> Outlook {
        let mut parked = self.parked.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let outlook = outlook();
        if outlook == Outlook::Open {
            parked.entry(slot).or_default().push(Arc::clone(queue));
        } else {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        outlook
    }

    /// The queues that are parked for a slot; each looks again what it has to do, and may be parked again.
    pub(crate) fn take(&self, slot: SlotId) -> Vec<Arc<Queue>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let queues = self.parked.lock().remove(&slot).unwrap_or_default();
        self.count.fetch_sub(queues.len(), Ordering::SeqCst);
        queues
    }

    /// Forgets the queues of a context, and gives them.
    pub(crate) fn forget(&self, context: u32) -> Vec<Arc<Queue>> {
        let mut gone = Vec::new();
        let mut parked = self.parked.lock();
        for queues in parked.values_mut() {
            gone.extend(queues.extract_if(.., |queue| queue.entry.number == context));
        }
        parked.retain(|_, queues| !queues.is_empty());
        self.count.fetch_sub(gone.len(), Ordering::SeqCst);
        gone
    }
}
