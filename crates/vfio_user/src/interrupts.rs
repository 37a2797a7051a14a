//! The client's interrupts: which eventfd belongs to which, what is masked, what waits.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::bell::{Bell, Eventfd};
use crate::device::Irq;
use crate::wire::{
    IRQ_AUTOMASKED, IRQ_MASKABLE, IRQ_SET_ACTION_MASK, IRQ_SET_ACTION_TRIGGER, IRQ_SET_ACTION_UNMASK,
    IRQ_SET_DATA_BOOL, IRQ_SET_DATA_EVENTFD, IRQ_SET_DATA_NONE, IrqSet,
};

/// The interrupts of one client. The device triggers them, from any thread, without ever waiting for the client; what it
/// stored before, the client sees afterwards.
#[derive(Debug)]
pub struct Interrupts {
    kinds: Vec<Kind>,
    bell: Arc<Bell>,
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
///   quiet ───────────────────────▶ eventfd ──────────────────────────▶ masked
///     ▲                                                                  │ unmask: fires again if the level is up, or if
///     └──────────────────────────────────────────────────────────────────┘ it was triggered in the meantime
/// ```
#[derive(Debug, Default)]
struct Line {
    eventfd: Option<Arc<Eventfd>>,
    masked: bool,
    /// The device holds it up.
    level: bool,
    /// Triggered while it could not fire.
    waiting: bool,
}

impl Line {
    /// Fires if there is a reason and nothing in the way; true if it fired.
    fn settle(&mut self, irq: Irq, bell: &Bell) -> bool {
        let Some(eventfd) = &self.eventfd else { return false };
        if self.masked || !(self.level || self.waiting) {
            return false;
        }
        bell.signal(eventfd);
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
    pub(crate) fn new(irqs: &[Irq], bell: &Arc<Bell>) -> Interrupts {
        let kind = |&irq: &Irq| {
            let lines = (0..irq.count).map(|_| Line::default()).collect();
            Kind { irq, lines: Mutex::new(lines) }
        };
        Interrupts { kinds: irqs.iter().map(kind).collect(), bell: Arc::clone(bell) }
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
        if action != IRQ_SET_ACTION_TRIGGER && (!maskable || data == IRQ_SET_DATA_EVENTFD) {
            return Err(Errno::NOTTY);
        }
        let expected = if data == IRQ_SET_DATA_BOOL { range.len() } else { 0 };
        if booleans.len() != expected || (data != IRQ_SET_DATA_EVENTFD && !fds.is_empty()) {
            return Err(Errno::INVAL);
        }
        if data == IRQ_SET_DATA_EVENTFD {
            return kind.connect(range, fds, &self.bell);
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
        let old: Vec<_> = lines.iter_mut().map(|line| line.eventfd.take()).collect();
        drop(lines);
        forget(old);
    }

    /// Gives the lines of `range` these eventfds, or none if there are none.
    fn connect(&self, range: Range<usize>, fds: Vec<OwnedFd>, bell: &Bell) -> Result<(), Errno> {
        if !fds.is_empty() && fds.len() != range.len() {
            return Err(Errno::INVAL);
        }
        let eventfds: Vec<_> = fds.into_iter().map(Eventfd::new).collect::<Result<_, _>>()?;
        let mut eventfds = eventfds.into_iter();
        let mut lines = self.lines.lock();
        let mut old = Vec::with_capacity(range.len());
        for line in &mut lines[range] {
            old.push(std::mem::replace(&mut line.eventfd, eventfds.next()));
            line.settle(self.irq, bell);
        }
        drop(lines);
        forget(old);
        Ok(())
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
fn forget(eventfds: Vec<Option<Arc<Eventfd>>>) {
    eventfds.iter().flatten().for_each(|eventfd| eventfd.disconnect());
}

/// The one kind of data and the one action that `flags` names.
fn split(flags: u32) -> Result<(u32, u32), Errno> {
    let data = flags & (IRQ_SET_DATA_NONE | IRQ_SET_DATA_BOOL | IRQ_SET_DATA_EVENTFD);
    let action = flags & (IRQ_SET_ACTION_MASK | IRQ_SET_ACTION_UNMASK | IRQ_SET_ACTION_TRIGGER);
    if data.count_ones() == 1 && action.count_ones() == 1 && data | action == flags {
        Ok((data, action))
    } else {
        Err(Errno::INVAL)
    }
}
