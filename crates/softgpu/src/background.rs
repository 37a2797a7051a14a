//! Work that no worker should do because nobody can say how long it takes, and none waits for: reading programs, freeing
//! memory. A thread for each: reading takes turns among those who ask, and does not wait for what is freed, which may be much.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

use hostmem::Freed;
use parking_lot::{Condvar, Mutex};

use crate::budget::{Budgets, Dropping};
use crate::channel::Channel;
use crate::children::Family;
use crate::chip::Chip;
use crate::job::{Active, Resident};
use crate::program::{Forgotten, Kernel, Load, LoadError};
use crate::space::Space;

/// Something to drop where nobody waits: it may hold much memory.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped")]
pub(crate) enum Trash {
    Job(Active),
    Cta(Box<Resident>),
    Channel(Box<Channel>),
    Family(Family),
    Programs(Forgotten),
    Space(Arc<Space>),
}

impl Trash {
    /// True if dropping it may take long.
    fn is_heavy(&self) -> bool {
        match self {
            Trash::Job(active) => active.is_heavy(),
            Trash::Space(space) => Arc::strong_count(space) == 1,
            Trash::Cta(_) | Trash::Channel(_) | Trash::Family(_) | Trash::Programs(_) => true,
        }
    }
}

/// What is to be dropped together. As long as it is not, it is counted: who waits for room waits for it.
#[derive(Debug, Default)]
pub(crate) struct Rubbish {
    // Dropped before the count.
    items: Vec<Trash>,
    #[expect(dead_code, reason = "counts while it lives")]
    counted: Option<Dropping>,
}

impl Rubbish {
    pub(crate) fn new(budgets: &Arc<Budgets>, items: Vec<Trash>) -> Rubbish {
        let counted = (!items.is_empty()).then(|| budgets.dropping());
        Rubbish { items, counted }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// True if dropping it may take long.
    pub(crate) fn is_heavy(&self) -> bool {
        self.items.iter().any(Trash::is_heavy)
    }
}

/// Whose load it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    pub(crate) channel: u32,
    pub(crate) job: u64,
    pub(crate) tsg: usize,
    /// Which of what was begun for the job: it may have been given up, and begun again.
    pub(crate) attempt: u64,
}

/// A load that is asked for. It ends when nobody holds what `wanted` points to any more.
#[derive(Debug)]
struct Asked {
    asker: Asker,
    wanted: Weak<()>,
    load: Load,
    /// Time that it took so far, nanoseconds.
    elapsed: u64,
}

/// What came of a load, and the time it took, nanoseconds.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) asker: Asker,
    pub(crate) result: Result<Kernel, LoadError>,
    pub(crate) elapsed: u64,
}

/// What the threads have to do.
#[derive(Debug, Default)]
pub(crate) struct Background {
    loads: Queue<Asked>,
    trash: Queue<Rubbish>,
}

/// What one of them has to do.
#[derive(Debug)]
struct Queue<T> {
    /// And whether it is to end.
    items: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { items: Mutex::default(), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    fn push(&self, items: impl IntoIterator<Item = T>) {
        self.items.lock().0.extend(items);
        self.changed.notify_one();
    }

    /// Waits for the next; none at the end.
    fn pop(&self) -> Option<T> {
        let mut items = self.items.lock();
        while !items.1 && items.0.is_empty() {
            self.changed.wait(&mut items);
        }
        if items.1 { None } else { items.0.pop_front() }
    }

    fn end(&self) {
        self.items.lock().1 = true;
        self.changed.notify_all();
    }

    /// Drops what was left at the end.
    fn clear(&self) {
        let rest = std::mem::take(&mut self.items.lock().0);
        drop(rest);
    }
}

impl Background {
    /// Asks for a load; it is under way as long as the answer lives.
    pub(crate) fn load(&self, asker: Asker, load: Load) -> Arc<()> {
        let wanted = Arc::new(());
        let asked = Asked { asker, wanted: Arc::downgrade(&wanted), load, elapsed: 0 };
        self.loads.push([asked]);
        wanted
    }

    pub(crate) fn discard(&self, rubbish: Rubbish) {
        if !rubbish.is_empty() {
            self.trash.push([rubbish]);
        }
    }

    pub(crate) fn end(&self) {
        self.loads.end();
        self.trash.end();
    }

    /// The life of the thread that reads: parts of loads in turn; `tell` what was loaded.
    pub(crate) fn read(&self, chip: &Chip, tell: impl Fn(Loaded)) {
        while let Some(asked) = self.loads.pop() {
            self.loads.push(step(chip, asked, &tell));
        }
        self.loads.clear();
    }

    /// The life of the thread that frees, one after the other; `tell` that somebody waits for what was freed. Whatever the allocator
    /// keeps of it is `freed`, unless others in this process had better keep it.
    pub(crate) fn free(&self, chip: &Chip, freed: Option<&Freed>, tell: impl Fn()) {
        while let Some(rubbish) = self.trash.pop() {
            let heavy = rubbish.is_heavy();
            drop(rubbish);
            if chip.budgets.is_freed() {
                tell();
            }
            if heavy && let Some(Err(error)) = freed.map(|freed| freed.give_back(chip.budgets.charged())) {
                log_limit::warn!(%error, "this process may keep what it has freed");
            }
        }
        self.trash.clear();
    }
}

/// One part of a load; gives it back if there are more.
fn step(chip: &Chip, mut asked: Asked, tell: &impl Fn(Loaded)) -> Option<Asked> {
    // Who asked is gone: what it wanted to be read may be somebody else's memory by now.
    asked.wanted.upgrade()?;
    let begin = Instant::now();
    let result = asked.load.step(chip);
    asked.elapsed += begin.elapsed().as_nanos() as u64;
    let Some(result) = result else { return Some(asked) };
    let result = result.map(|(kernel, forgotten)| {
        if !forgotten.is_empty() {
            chip.background.discard(Rubbish::new(&chip.budgets, vec![Trash::Programs(forgotten)]));
        }
        kernel
    });
    tell(Loaded { asker: asked.asker, result, elapsed: asked.elapsed });
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_pushed_comes_in_order_until_the_end() {
        let queue = Arc::new(Queue::default());
        let (send, receive) = mpsc::channel();
        let of_thread = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            while let Some(item) = of_thread.pop() {
                send.send(item).unwrap();
            }
        });
        queue.push([1, 2]);
        queue.push(Some(3));
        let next = || receive.recv_timeout(Duration::from_secs(60));
        assert_eq!([next(), next(), next()], [Ok(1), Ok(2), Ok(3)]);
        queue.end();
        thread.join().unwrap();
        queue.push([4]);
        assert_eq!(queue.pop(), None);
        queue.clear();
        assert!(queue.items.lock().0.is_empty());
    }
}
