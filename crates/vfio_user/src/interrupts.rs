//! The client's interrupts: which eventfd belongs to which, what is masked, what waits.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::bell::{Bell, Eventfd};
use crate::device::Irq;
use crate::posted::Counter;
use crate::wire::{
    IRQ_AUTOMASKED, IRQ_MASKABLE, IRQ_SET_ACTION_MASK, IRQ_SET_ACTION_TRIGGER, IRQ_SET_ACTION_UNMASK,
    IRQ_SET_DATA_BOOL, IRQ_SET_DATA_EVENTFD, IRQ_SET_DATA_NONE, IRQ_SET_DATA_POSTED, IrqSet,
};

/// The interrupts of one client. The device triggers them, from any thread, without ever waiting for the client; what it
/// stored before, the client sees afterwards.
#[derive(Debug)]
pub struct Interrupts {
    kinds: Vec<Kind>,
    bell: Arc<Bell>,
    /// Where they are counted, if the client may want that.
    counter: Option<Arc<Counter>>,
}

/// Where an interrupt goes.
#[derive(Clone, Debug)]
enum Target {
    Eventfd(Arc<Eventfd>),
    Counter(Arc<Counter>),
}

impl Target {
    fn signal(&self, bell: &Bell) {
        match self {
            Target::Eventfd(eventfd) => bell.signal(eventfd),
            Target::Counter(counter) => counter.count(),
        }
    }
}

#[derive(Debug)]
struct Kind {
    irq: Irq,
    lines: Mutex<Vec<Line>>,
}

/// One interrupt.
///
/// ```text
///              trigger, level up              fires, if it masks itself
///   quiet ───────────────────────▶ target ───────────────────────────▶ masked
///     ▲                                                                  │ unmask: fires again if the level is up, or if
///     └──────────────────────────────────────────────────────────────────┘ it was triggered in the meantime
/// ```
#[derive(Debug, Default)]
struct Line {
    target: Option<Target>,
    masked: bool,
    /// The device holds it up.
    level: bool,
    /// Triggered while it could not fire.
    waiting: bool,
}

impl Line {
    /// Fires if there is a reason and nothing in the way; true if it fired.
    fn settle(&mut self, irq: Irq, bell: &Bell) -> bool {
        let Some(target) = &self.target else { return false };
        if self.masked || !(self.level || self.waiting) {
            return false;
        }
        target.signal(bell);
        self.waiting = false;
        self.masked = irq.flags & IRQ_AUTOMASKED != 0;
        true
    }

    fn trigger(&mut self, irq: Irq, bell: &Bell) -> bool {
        self.waiting = true;
        let fired = self.settle(irq, bell);
        // A message that nobody listens to is lost; a wire stays up.
        self.waiting &= irq.flags & IRQ_MASKABLE != 0;
        fired
    }
}

impl Interrupts {
    pub(crate) fn new(irqs: &[Irq], bell: &Arc<Bell>, counter: Option<Counter>) -> Interrupts {
        let kind = |&irq: &Irq| {
            let lines = (0..irq.count).map(|_| Line::default()).collect();
            Kind { irq, lines: Mutex::new(lines) }
        };
        Interrupts { kinds: irqs.iter().map(kind).collect(), bell: Arc::clone(bell), counter: counter.map(Arc::new) }
    }

    /// Triggers an interrupt once; true if the client is told now. One that is masked waits for the unmask, several
    /// are one then. False, too, where there is no such interrupt or nobody listens.
    pub fn trigger(&self, index: u32, vector: u32) -> bool {
        self.with(index, vector, Line::trigger)
    }

    /// Raises or lowers a wire; true if the client is told now. While it is up, each unmask fires it again.
    pub fn set_level(&self, index: u32, vector: u32, up: bool) -> bool {
        self.with(index, vector, |line, irq, bell| {
            line.level = up;
            line.settle(irq, bell)
        })
    }

    fn with(&self, index: u32, vector: u32, act: impl FnOnce(&mut Line, Irq, &Bell) -> bool) -> bool {
        let Some(kind) = self.kinds.get(index as usize) else { return false };
        kind.lines.lock().get_mut(vector as usize).is_some_and(|line| act(line, kind.irq, &self.bell))
    }

    /// What `DEVICE_SET_IRQS` asks for. `booleans` is what follows in its payload.
    pub(crate) fn set(&self, set: &IrqSet, booleans: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let kind = self.kinds.get(set.index as usize).ok_or(Errno::INVAL)?;
        let (data, action) = split(set.flags)?;
        if data == IRQ_SET_DATA_NONE && set.count == 0 {
            return match (action, set.start, fds.len()) {
                (IRQ_SET_ACTION_TRIGGER, 0, 0) => {
                    kind.disable();
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            };
        }
        let end = set.start.checked_add(set.count).filter(|&end| end <= kind.irq.count && set.count > 0);
        let range = set.start as usize..end.ok_or(Errno::INVAL)? as usize;
        let maskable = kind.irq.flags & IRQ_MASKABLE != 0;
        let connects = matches!(data, IRQ_SET_DATA_EVENTFD | IRQ_SET_DATA_POSTED);
        if action != IRQ_SET_ACTION_TRIGGER && (!maskable || connects) {
            return Err(Errno::NOTTY);
        }
        let expected = if data == IRQ_SET_DATA_BOOL { range.len() } else { 0 };
        if booleans.len() != expected || (data != IRQ_SET_DATA_EVENTFD && !fds.is_empty()) {
            return Err(Errno::INVAL);
        }
        if data == IRQ_SET_DATA_EVENTFD {
            if !fds.is_empty() && fds.len() != range.len() {
                return Err(Errno::INVAL);
            }
            let eventfds = fds.into_iter().map(|fd| Eventfd::new(fd).map(Target::Eventfd));
            let eventfds: Vec<_> = eventfds.collect::<Result<_, _>>()?;
            kind.connect(range, eventfds, &self.bell);
            return Ok(());
        }
        if data == IRQ_SET_DATA_POSTED {
            let counter = self.counter.as_ref().ok_or(Errno::INVAL)?;
            let counters = range.clone().map(|_| Target::Counter(Arc::clone(counter)));
            kind.connect(range, counters, &self.bell);
            return Ok(());
        }
        let mut lines = kind.lines.lock();
        for (at, line) in lines[range].iter_mut().enumerate() {
            if booleans.get(at) != Some(&0) {
                kind.act(line, action, &self.bell);
            }
        }
        Ok(())
    }

    /// Forgets all that the client has set.
    pub(crate) fn disconnect(&self) {
        self.kinds.iter().for_each(Kind::disable);
    }
}

impl Kind {
    fn disable(&self) {
        let mut lines = self.lines.lock();
        for line in lines.iter_mut() {
            (line.masked, line.waiting) = (false, false);
        }
        let old: Vec<_> = lines.iter_mut().map(|line| line.target.take()).collect();
        drop(lines);
        forget(old);
    }

    /// Has the lines of `range` go there, or nowhere if that is nothing.
    fn connect(&self, range: Range<usize>, targets: impl IntoIterator<Item = Target>, bell: &Bell) {
        let mut targets = targets.into_iter();
        let mut lines = self.lines.lock();
        let mut old = Vec::with_capacity(range.len());
        for line in &mut lines[range] {
            old.push(std::mem::replace(&mut line.target, targets.next()));
            line.settle(self.irq, bell);
        }
        drop(lines);
        forget(old);
    }

    fn act(&self, line: &mut Line, action: u32, bell: &Bell) {
        match action {
            IRQ_SET_ACTION_MASK => line.masked = true,
            IRQ_SET_ACTION_UNMASK => {
                line.masked = false;
                line.settle(self.irq, bell);
            }
            _ => {
                line.trigger(self.irq, bell);
            }
        }
    }
}

/// Closes eventfds that are not connected any more: not under a lock, since closing a file can take long.
fn forget(targets: Vec<Option<Target>>) {
    for target in targets.iter().flatten() {
        if let Target::Eventfd(eventfd) = target {
            eventfd.disconnect();
        }
    }
}

/// The one kind of data and the one action that `flags` names.
fn split(flags: u32) -> Result<(u32, u32), Errno> {
    let data = flags & (IRQ_SET_DATA_NONE | IRQ_SET_DATA_BOOL | IRQ_SET_DATA_EVENTFD | IRQ_SET_DATA_POSTED);
    let action = flags & (IRQ_SET_ACTION_MASK | IRQ_SET_ACTION_UNMASK | IRQ_SET_ACTION_TRIGGER);
    if data.count_ones() == 1 && action.count_ones() == 1 && data | action == flags {
        Ok((data, action))
    } else {
        Err(Errno::INVAL)
    }
}
