//! The queues of a context, and the order between them.
//!
//! The legacy default stream waits for all blocking streams of its context, and they for it: one order of all their work,
//! whichever threads submit it. So the legacy stream submits alone (`rule`, held for writing), while blocking streams submit
//! together (held for reading); each side counts its submissions, so that without work on the other side the rule costs no
//! look at any queue.
//!
//! A green context's are apart from those of the context that it is a part of, with a legacy stream of their own; what concerns all work of a
//! context looks at both.
//!
//! Locks: `parts` alone; `rule`, then a queue's order, then those here, then those of the context, then a queue's progress.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gpu::Command;
use parking_lot::{Mutex, RwLock};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::handle::{Context, GreenContext};
use crate::resources::Provision;
use crate::work::host_queue::HostFunction;
use crate::work::queue::{Gate, LegacyRule, Queue};

/// How long work here may keep other threads from submitting, while it waits for what is nearly done.
const MOMENT: Duration = Duration::from_micros(50);

/// How long what [`Queues::run_here`] runs may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Length {
    /// So short that other threads can wait for it.
    Short,
    Long,
}

impl Length {
    /// Most bytes that are copied in about the time that a gate costs.
    const SHORT: usize = 64 << 10;

    pub(crate) fn of_copy(bytes: usize) -> Length {
        if bytes <= Length::SHORT { Length::Short } else { Length::Long }
    }
}

/// Whether the GPU does something for it that can fail. Signals and waits are about order, and may be for what comes later.
fn is_work(command: &Command<'_>) -> bool {
    match command {
        Command::Launch { .. } | Command::Copy { .. } | Command::Fill { .. } | Command::Write { .. } => true,
        Command::Signal { .. } | Command::Wait { .. } | Command::WriteValue { .. } | Command::WaitValue { .. } => false,
    }
}

/// How far [`Queues::run_here`] is.
enum Turn<R> {
    Over(R),
    /// It may run at `mark`; further work waits for `gate`.
    Gated {
        mark: Option<Mark>,
        gate: Gate,
    },
}

/// A point in the work of a context, which may be another GPU's.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) core: Arc<ContextCore>,
    pub(crate) mark: Mark,
}

/// A queue that is held: nobody else's work comes between what is appended here.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    queues: &'a Queues,
    queue: &'a Queue,
    /// Something was appended that can fail.
    worked: Cell<bool>,
}

impl Held<'_> {
    /// Appends commands.
    pub(crate) fn push(&self, commands: &[Command<'_>]) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        self.worked.set(self.worked.get() || commands.iter().any(is_work));
        self.queues.push(self.queue, commands)
    }

    /// The point behind all that was submitted; `None` if nothing ever was.
    pub(crate) fn tail(&self) -> Result<Option<Mark>> {
        self.queue.tail()
    }

    /// Makes what comes wait for a point. What is on another GPU a thread of the queue's waits for.
    pub(crate) fn wait_for(&self, point: &Point) -> Result<()> {
        let core = &self.queues.core;
        let here = Arc::ptr_eq(&core.gpu, &point.core.gpu);
        if point.core.slots().reached(&point.mark) || here && self.queue.owns(point.mark.slot) {
            return Ok(());
        }
        if here {
            return self.push(&[Command::Wait { slot: point.mark.slot, value: point.mark.value }]);
        }
        // It may still lie in a buffer.
        point.core.link().flush()?;
        let Point { core, mark } = point.clone();
        // If the other context fails, nothing is left to wait for; who uses it is told.
        self.run_on_host(Box::new(move |_| {
            let _ = core.wait(&mark, None);
        }))
    }

    /// As `run_on_host`, of a function that has the GPU work.
    pub(crate) fn run_work_on_host(&self, function: HostFunction) -> Result<()> {
        self.worked.set(true);
        self.run_on_host(function)
    }

    /// Has a function run in the queue's order, with the context's error if it failed before.
    pub(crate) fn run_on_host(&self, function: HostFunction) -> Result<()> {
        let ready = self.queue.tail()?;
        // The function first: a queue must not wait for something that nobody will do.
        let (slot, value) = self.queue.host.push(&self.queues.core, ready, function)?;
        let waits = self.queues.push(self.queue, &[Command::Wait { slot, value }]);
        waits.inspect_err(|_| self.queue.host.take_back(value))
    }
}

/// What is a green context's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) green: GreenContext,
    /// What stands for it where a context is asked for.
    pub(crate) context: Context,
    pub(crate) id: u64,
    pub(crate) provision: Provision,
}

#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) core: Arc<ContextCore>,
    /// They are those of a green context: what it is, and of which context it is a part.
    part: Option<(Part, Arc<Queues>)>,
    /// Those of green contexts that are parts of this one.
    parts: Mutex<Vec<Arc<Queues>>>,
    /// The green context is gone.
    detached: AtomicBool,
    legacy: Arc<Queue>,
    /// For copies that the library makes in the place of a command of another queue.
    aside: Arc<Queue>,
    /// Those of streams, until the streams are destroyed.
    others: Mutex<Vec<Arc<Queue>>>,
    /// Those of destroyed streams whose work goes on.
    draining: Mutex<Vec<Arc<Queue>>>,
    rule: RwLock<()>,
    /// Submissions to blocking queues, for the legacy stream to know of.
    blocking_submissions: AtomicU64,
    /// Streams that are being captured, and those of them that are blocking.
    pub(crate) captured: AtomicU32,
    pub(crate) captured_blocking: AtomicU32,
}

impl Queues {
    pub(crate) fn new(core: &Arc<ContextCore>) -> Arc<Queues> {
        Queues::with(core, None)
    }

    /// Those of a green context, with an order of their own.
    pub(crate) fn part_of(whole: &Arc<Queues>, part: Part) -> Arc<Queues> {
        let queues = Queues::with(&whole.core, Some((part, Arc::clone(whole))));
        whole.parts.lock().push(Arc::clone(&queues));
        queues
    }

    fn with(core: &Arc<ContextCore>, part: Option<(Part, Arc<Queues>)>) -> Arc<Queues> {
        Arc::new(Queues {
            core: Arc::clone(core),
            part,
            parts: Mutex::default(),
            detached: AtomicBool::new(false),
            legacy: Queue::new(core, LegacyRule::Legacy, 0),
            aside: Queue::new(core, LegacyRule::NonBlocking, 0),
            others: Mutex::default(),
            draining: Mutex::default(),
            rule: RwLock::default(),
            blocking_submissions: AtomicU64::new(0),
            captured: AtomicU32::new(0),
            captured_blocking: AtomicU32::new(0),
        })
    }

    pub(crate) fn legacy(&self) -> &Arc<Queue> {
        &self.legacy
    }

    /// A new queue besides the legacy one.
    pub(crate) fn add(&self, rule: LegacyRule, priority: i32) -> Arc<Queue> {
        let queue = Queue::new(&self.core, rule, priority);
        self.others.lock().push(Arc::clone(&queue));
        queue
    }

    /// The green context, if they are those of one.
    pub(crate) fn part(&self) -> Option<&Part> {
        self.part.as_ref().map(|(part, _)| part)
    }

    /// The handle of their context.
    pub(crate) fn context(&self) -> Context {
        self.part().map_or(self.core.handle, |part| part.context)
    }

    /// The number of their context.
    pub(crate) fn context_id(&self) -> u64 {
        self.part().map_or(u64::from(self.core.id.0), |part| part.id)
    }

    /// How many multiprocessors their context has.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.part().map_or(self.core.link().properties().multiprocessors, |part| part.provision.sms.count)
    }

    /// Those of the whole context.
    pub(crate) fn whole(&self) -> &Queues {
        self.part.as_ref().map_or(self, |(_, whole)| whole)
    }

    /// Whether `other` is these, or those of a part of their context.
    pub(crate) fn covers(&self, other: &Queues) -> bool {
        std::ptr::eq(self, other) || std::ptr::eq(self, other.whole())
    }

    /// # Errors
    /// `STREAM_DETACHED` if they were a green context's that is gone.
    pub(crate) fn attached(&self) -> Result<()> {
        if self.detached.load(Ordering::Acquire) { Err(CudaError::STREAM_DETACHED) } else { Ok(()) }
    }

    /// The green context is gone: they get no work any more.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Waits for the work of a green context that is gone. Its streams' queues go when those are destroyed.
    pub(crate) fn end_part(&self) {
        // A context that failed runs nothing any more.
        let _ = self.wait_for_all();
        self.print();
        self.whole().reap();
    }

    /// Whether a part is gone, and nothing of it is left.
    fn finished(&self) -> bool {
        self.attached().is_err()
            && self.others.lock().is_empty()
            && self.draining.lock().is_empty()
            && [&self.legacy, &self.aside].iter().all(|queue| queue.destroy_if_completed())
    }

    /// Whether a stream of the context, or of a part of it, is being captured.
    pub(crate) fn any_captured(&self) -> bool {
        let any = |queues: &Queues| queues.captured.load(Ordering::Acquire) != 0;
        any(self) || self.parts.lock().iter().any(|part| any(part))
    }

    /// All queues but those of parts; those of destroyed streams too.
    fn own(&self) -> Vec<Arc<Queue>> {
        let others = self.others.lock();
        let draining = self.draining.lock();
        [&self.legacy, &self.aside].into_iter().chain(&*others).chain(&*draining).cloned().collect()
    }

    /// All queues, those of parts and of destroyed streams too.
    fn all(&self) -> Vec<Arc<Queue>> {
        let parts = self.parts.lock().clone();
        let mut all = self.own();
        parts.iter().for_each(|part| all.extend(part.own()));
        all
    }

    /// The points behind all work that was submitted.
    ///
    /// # Errors
    /// The context's.
    pub(crate) fn tails(&self) -> Result<Vec<Mark>> {
        self.all().iter().filter_map(|queue| queue.tail().transpose()).collect()
    }

    fn blocking(&self) -> impl Iterator<Item = Arc<Queue>> {
        self.own().into_iter().filter(|queue| queue.rule == LegacyRule::Blocking)
    }

    /// Calls `f` when further work of the queue has been made to wait for what the rule says, and no work that would have to
    /// wait for it, or it for, can come between.
    fn in_order<R>(&self, queue: &Queue, f: impl FnOnce() -> Result<R>) -> Result<R> {
        match queue.rule {
            LegacyRule::NonBlocking => {
                let _order = queue.lock_order();
                f()
            }
            LegacyRule::Blocking => {
                let _together = self.rule.read();
                let _order = queue.lock_order();
                let submissions = self.legacy.submissions.load(Ordering::Acquire);
                if submissions != queue.waited_for.load(Ordering::Relaxed) {
                    if let Some(mark) = self.legacy.to_come()? {
                        queue.push_wait(mark)?;
                    }
                    queue.waited_for.store(submissions, Ordering::Relaxed);
                }
                f()
            }
            LegacyRule::Legacy => {
                let _alone = self.rule.write();
                let submissions = self.blocking_submissions.load(Ordering::Acquire);
                if submissions != queue.waited_for.load(Ordering::Relaxed) {
                    for other in self.blocking() {
                        if let Some(mark) = other.to_come()? {
                            queue.push_wait(mark)?;
                        }
                    }
                    queue.waited_for.store(submissions, Ordering::Relaxed);
                }
                f()
            }
        }
    }

    /// Appends commands, behind what the legacy rule says, and sends them on. Where work is immediate, waits for it, which may
    /// wait for what is before it in the queue, and for what the program has to do first.
    pub(crate) fn submit(&self, queue: &Queue, commands: &[Command<'_>]) -> Result<()> {
        if !commands.is_empty() {
            self.in_order(queue, || self.push(queue, commands))?;
        }
        self.core.link().flush()?;
        if commands.iter().any(is_work) { self.wait_if_immediate(queue) } else { Ok(()) }
    }

    /// Waits for what was submitted, where work is immediate.
    fn wait_if_immediate(&self, queue: &Queue) -> Result<()> {
        if !self.core.link().is_immediate() {
            return Ok(());
        }
        let mark = queue.tail()?;
        let done = mark.map_or(Ok(()), |mark| self.core.wait(&mark, None));
        self.print();
        done.and_then(|()| self.core.check())
    }

    /// Calls `f` with the queue held: what `f` appends is one piece of work, into which nobody's else comes.
    pub(crate) fn hold<R>(&self, queue: &Queue, f: impl FnOnce(&Held<'_>) -> Result<R>) -> Result<R> {
        let held = Held { queues: self, queue, worked: Cell::new(false) };
        let result = self.in_order(queue, || f(&held));
        self.core.link().flush()?;
        if held.worked.get() && result.is_ok() {
            self.wait_if_immediate(queue)?;
        }
        result
    }

    /// Appends commands, in order already, and counts them for the legacy stream.
    fn push(&self, queue: &Queue, commands: &[Command<'_>]) -> Result<()> {
        queue.push(commands)?;
        self.count(queue);
        Ok(())
    }

    /// Counts a submission to the queue for the legacy stream.
    fn count(&self, queue: &Queue) {
        if queue.rule == LegacyRule::Blocking {
            self.blocking_submissions.fetch_add(1, Ordering::Release);
        }
    }

    /// Runs commands now, whatever is in the queues of streams, and waits for them: for functions that [`Queues::run_here`]
    /// runs, `Long` ones.
    pub(crate) fn run_aside(&self, commands: &[Command<'_>]) -> Result<()> {
        self.submit(&self.aside, commands)?;
        self.aside.tail()?.map_or(Ok(()), |mark| self.core.wait(&mark, None))
    }

    /// The point behind all that new work would have to wait for.
    pub(crate) fn point(&self, queue: &Queue) -> Result<Option<Mark>> {
        self.in_order(queue, || queue.to_come())
    }

    /// Calls `f` in place of a command of the queue: after all that new work would have to wait for, and before all work that
    /// is submitted from now on, by whichever thread.
    pub(crate) fn run_here<R>(&self, queue: &Queue, length: Length, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let core = &self.core;
        let mut f = Some(f);
        let mut run = || f.take().map_or(Err(CudaError::UNKNOWN), |f| f());
        let turn = self.in_order(queue, || {
            let mark = queue.to_come()?;
            if length == Length::Short {
                match mark.as_ref().map_or(Ok(()), |mark| core.wait(mark, Some(MOMENT))) {
                    Ok(()) => return run().map(Turn::Over),
                    Err(CudaError::LAUNCH_TIMEOUT) => {}
                    Err(error) => return Err(error),
                }
            }
            // What comes later waits on the GPU, not for this lock, which others may need meanwhile.
            let gate = queue.shut()?;
            self.count(queue);
            Ok(Turn::Gated { mark, gate })
        })?;
        match turn {
            Turn::Over(result) => Ok(result),
            Turn::Gated { mark, gate } => {
                let ready = mark.map_or(Ok(()), |mark| core.wait(&mark, None));
                let is_ready = ready.is_ok();
                let result = ready.and_then(|()| {
                    // Behind the closed gate this queue does nothing.
                    core.print(|| self.idle_but(queue));
                    run()
                });
                queue.open(gate, is_ready);
                result
            }
        }
    }

    /// Makes further work of a queue wait for a mark.
    pub(crate) fn wait_for(&self, queue: &Queue, mark: Mark) -> Result<()> {
        if queue.owns(mark.slot) || self.core.slots().reached(&mark) {
            return Ok(());
        }
        self.submit(queue, &[Command::Wait { slot: mark.slot, value: mark.value }])
    }

    /// Makes further work of the legacy stream wait for what every stream has now, destroyed ones too.
    pub(crate) fn legacy_waits_for_all(&self) -> Result<()> {
        self.all().iter().try_for_each(|other| match other.tail()? {
            Some(mark) => self.wait_for(&self.legacy, mark),
            None => Ok(()),
        })
    }

    /// Makes further work of a queue wait for a point. What is on another GPU a thread of the queue's waits for.
    pub(crate) fn wait_for_point(&self, queue: &Queue, point: &Point) -> Result<()> {
        if queue.owns(point.mark.slot) && Arc::ptr_eq(&self.core.gpu, &point.core.gpu)
            || point.core.slots().reached(&point.mark)
        {
            return Ok(());
        }
        self.hold(queue, |held| held.wait_for(point))
    }

    /// Makes further work of every stream wait for a point.
    pub(crate) fn all_wait_for(&self, point: &Point) -> Result<()> {
        self.wait_for_point(&self.legacy, point)?;
        let others = self.others.lock().clone();
        others.iter().try_for_each(|other| self.wait_for_point(other, point))?;
        let parts = self.parts.lock().clone();
        parts.iter().try_for_each(|part| part.all_wait_for(point))
    }

    /// Runs `function` in a queue's order, with the context's error if it failed before.
    pub(crate) fn run_on_host(&self, queue: &Queue, function: HostFunction) -> Result<()> {
        self.hold(queue, |held| held.run_on_host(function))
    }

    /// Whether a queue's work has completed; the legacy one stands for the blocking ones too.
    pub(crate) fn completed(&self, queue: &Queue) -> Result<bool> {
        let mut done = queue.completed()?;
        if queue.rule == LegacyRule::Legacy {
            for other in self.blocking() {
                done &= other.completed()?;
            }
        }
        Ok(done)
    }

    /// Waits for all work of the context.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.core.check()?;
        let result = self.wait_for_all();
        self.reap();
        self.print();
        result.and(self.core.check())
    }

    /// Waits for the work of every queue, though one fails; gives the first error.
    pub(crate) fn wait_for_all(&self) -> Result<()> {
        let wait = |queue: Arc<Queue>| match queue.to_come()? {
            Some(mark) => self.core.wait(&mark, None),
            None => Ok(()),
        };
        self.all().into_iter().map(wait).fold(Ok(()), Result::and)
    }

    /// True if no work of the whole context is under way.
    pub(crate) fn idle(&self) -> bool {
        self.whole().all().iter().all(|queue| queue.idle())
    }

    /// True if no work of the whole context is under way but that of one queue.
    fn idle_but(&self, but: &Queue) -> bool {
        self.whole().all().iter().all(|queue| std::ptr::eq(&raw const **queue, but) || queue.idle())
    }

    /// Hands over what kernels have printed, if nothing runs that may be printing.
    pub(crate) fn print(&self) {
        self.core.print(|| self.idle());
    }

    /// A stream was destroyed: its queue goes when its work has completed.
    pub(crate) fn retire(&self, queue: &Arc<Queue>) {
        // Listed here before it is not listed there: whoever looks for all queues meanwhile finds it.
        if !self.core.dead() {
            self.draining.lock().push(Arc::clone(queue));
        }
        self.others.lock().retain(|other| !Arc::ptr_eq(other, queue));
        self.whole().reap();
    }

    /// Destroys the queues of destroyed streams whose work has completed.
    pub(crate) fn reap(&self) {
        self.draining.lock().retain(|queue| !queue.destroy_if_completed());
        let parts = self.parts.lock().clone();
        for part in parts {
            part.reap();
            if part.finished() {
                self.parts.lock().retain(|other| !Arc::ptr_eq(other, &part));
            }
        }
    }

    /// The context goes: nothing comes to its queues any more.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|queue| queue.close());
    }

    /// The context is over: nothing waits for its queues any more.
    pub(crate) fn abandon(&self) {
        let parts = std::mem::take(&mut *self.parts.lock());
        parts.iter().for_each(|part| part.abandon());
        let queues = self.own();
        self.others.lock().clear();
        self.draining.lock().clear();
        queues.iter().for_each(|queue| queue.abandon());
    }
}
