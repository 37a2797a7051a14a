//! Who has touched which byte of a CTA's shared memory since its threads were last together.
//!
//! Two accesses to a byte, one of them a write, are a hazard if they are of different warps and nothing orders them: no barrier of all
//! threads, and no way from the one warp's arrival at something (a barrier, an atomic) behind its access to something that has let the
//! other go on before its. Lanes of a warp run in lock step, and are ordered; only what one instruction writes to one place is
//! not. Atomics, and accesses that say an order (`volatile`, `relaxed` and stronger), are no hazard among themselves, and order what
//! is around them. A value that is written where it stands already is no hazard.
//!
//! What orders warps through others is taken to order them all: hazards that hide behind barriers of some warps may be missed, and
//! none is made up.

use std::collections::HashMap;

use crate::check::{Hazard, HazardKind};
use crate::ir::Order;
use crate::launch::{Access, WARP};

/// An access as it is about to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch<'a> {
    pub(super) access: Access,
    pub(super) order: Order,
    /// What is written, if it is known.
    pub(super) data: Option<&'a [u8]>,
}

impl<'a> Touch<'a> {
    /// One that says no order.
    pub(super) fn plain(access: Access, data: Option<&'a [u8]>) -> Touch<'a> {
        Touch { access, order: Order::Weak, data }
    }

    /// It is no hazard to others like it.
    fn strong(&self) -> bool {
        self.access == Access::Atomic || self.order != Order::Weak
    }
}

/// Who makes an access; `step` is the same for all lanes that execute an instruction together.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) thread: u16,
    pub(super) line: u32,
    pub(super) step: u64,
}

impl By {
    fn warp(self) -> usize {
        usize::from(self.thread) / WARP as usize
    }
}

/// An access that was made; of no generation: none.
#[derive(Clone, Copy, Debug)]
struct Mark {
    by: By,
    /// Meetings of all threads before it, and 1.
    generation: u32,
    /// Arrivals of its warp before it, since then.
    arrivals: u32,
    strong: bool,
}

impl Mark {
    const NONE: Mark = Mark { by: By { thread: 0, line: 0, step: 0 }, generation: 0, arrivals: 0, strong: false };
}

#[derive(Clone, Copy, Debug)]
struct Byte {
    /// Who has given it its value, and which warps have written the same.
    write: Mark,
    writers: u32,
    /// Reads of two warps.
    reads: [Mark; 2],
}

/// A warp since all threads have met.
#[derive(Clone, Debug, Default)]
struct Warp {
    /// When it has arrived at something that orders.
    arrivals: Vec<u32>,
    /// When something has last let it go on.
    released: u32,
}

#[derive(Debug)]
pub(super) struct Races {
    bytes: Vec<Byte>,
    warps: Vec<Warp>,
    generation: u32,
    clock: u32,
    /// The warp that has last accessed an address with an order.
    strong: HashMap<usize, usize>,
}

impl Races {
    pub(super) fn new(bytes: usize, warps: usize) -> Races {
        let untouched = Byte { write: Mark::NONE, writers: 0, reads: [Mark::NONE; 2] };
        Races {
            bytes: vec![untouched; bytes],
            warps: vec![Warp::default(); warps],
            generation: 1,
            clock: 0,
            strong: HashMap::new(),
        }
    }

    /// All threads are together.
    pub(super) fn all_meet(&mut self) {
        self.generation += 1;
        self.clock = 0;
        self.warps.fill(Warp::default());
        self.strong.clear();
    }

    /// A warp arrives at something.
    pub(super) fn arrive(&mut self, warp: usize) {
        self.clock += 1;
        self.warps[warp].arrivals.push(self.clock);
    }

    /// Something lets a warp go on.
    pub(super) fn release(&mut self, warp: usize) {
        self.clock += 1;
        self.warps[warp].released = self.clock;
    }

    /// An access is about to be made to what is `there`, within shared memory; the first hazard, if it is one.
    pub(super) fn touch(&mut self, by: By, offset: usize, there: &[u8], touch: Touch<'_>) -> Option<Hazard> {
        let warp = by.warp();
        let strong = touch.strong();
        if strong {
            let before = self.strong.insert(offset, warp);
            if before.is_some_and(|other| other != warp) {
                self.release(warp);
            }
        }
        let arrivals = self.warps[warp].arrivals.len() as u32;
        let mark = Mark { by, generation: self.generation, arrivals, strong };
        let mut hazard = None;
        for (at, old) in there.iter().enumerate() {
            let new = touch.data.map(|data| data[at]);
            let found = match touch.access {
                Access::Read => self.read(offset + at, mark),
                // What an atomic leaves is not known here.
                Access::Write | Access::Atomic => self.write(offset + at, mark, new == Some(*old)),
            };
            hazard = hazard.or(found);
        }
        if strong && touch.access != Access::Read {
            // What comes behind is not before it.
            self.arrive(warp);
        }
        hazard
    }

    fn read(&mut self, at: usize, mark: Mark) -> Option<Hazard> {
        let byte = self.bytes[at];
        let own = byte.writers >> mark.by.warp() & 1 != 0;
        let hazard =
            (!own && self.collide(&byte.write, &mark)).then(|| found(HazardKind::ReadAfterWrite, at, &byte.write));
        let reads = &mut self.bytes[at].reads;
        let replaced =
            reads.iter().position(|read| read.generation != mark.generation || read.by.warp() == mark.by.warp());
        reads[replaced.unwrap_or(1)] = mark;
        hazard
    }

    fn write(&mut self, at: usize, mark: Mark, same: bool) -> Option<Hazard> {
        let byte = self.bytes[at];
        let warp = mark.by.warp();
        if same && byte.write.generation != 0 {
            // Nobody can tell that it was.
            if byte.write.generation == mark.generation {
                self.bytes[at].writers |= 1 << warp;
            }
            return None;
        }
        let last = byte.write;
        let together = last.generation == mark.generation
            && last.by.step == mark.by.step
            && last.by.warp() == warp
            && last.by.thread != mark.by.thread
            && !(last.strong && mark.strong);
        let hazard = if together || self.collide(&last, &mark) {
            Some(found(HazardKind::WriteAfterWrite, at, &last))
        } else {
            let read = byte.reads.iter().find(|read| self.collide(read, &mark));
            read.map(|read| found(HazardKind::WriteAfterRead, at, read))
        };
        let byte = &mut self.bytes[at];
        byte.write = mark;
        byte.writers = 1 << warp;
        hazard
    }

    /// Whether nothing orders two accesses, of which one is a write.
    fn collide(&self, earlier: &Mark, later: &Mark) -> bool {
        if earlier.generation != self.generation || earlier.strong && later.strong {
            return false;
        }
        let (one, other) = (earlier.by.warp(), later.by.warp());
        let arrived = self.warps[one].arrivals.get(earlier.arrivals as usize);
        one != other && arrived.is_none_or(|arrived| *arrived > self.warps[other].released)
    }
}

fn found(kind: HazardKind, at: usize, earlier: &Mark) -> Hazard {
    Hazard { kind, offset: at as u64, line: earlier.by.line, thread: earlier.by.thread.into() }
}
