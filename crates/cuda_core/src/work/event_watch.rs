//! Lets go whoever waits for an event that another process has recorded, and that process has been killed.
//!
//! A GPU that waits for a word wakes nobody, and the operating system tells nobody of the end of a process that is not its own. So as
//! long as something here waits for another's record, a thread looks from time to time whether that process is there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hostmem::Memfd;
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::work::event_words::{Awaited, EventWords};
use crate::work::queues::Point;
use crate::work::recorder::Recorder;

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The events of other processes' records that something here waits for.
#[derive(Debug, Default)]
pub(crate) struct EventWatch {
    watched: Arc<Mutex<Watched>>,
    /// This process as a recorder, by file.
    recorders: Mutex<HashMap<(u64, u64), Weak<Recorder>>>,
}

#[derive(Debug, Default)]
struct Watched {
    events: Vec<Weak<EventWords>>,
    /// A thread looks after them.
    attended: bool,
}

impl EventWatch {
    /// This process as a recorder of a file's events; `None` where that cannot be told to others.
    pub(crate) fn recorder(&self, file: &Memfd) -> Option<Arc<Recorder>> {
        let identity = file.identity().ok()?;
        let mut recorders = self.recorders.lock();
        if let Some(known) = recorders.get(&identity).and_then(Weak::upgrade) {
            return Some(known);
        }
        let made = Arc::new(Recorder::new(file.described_anew().ok()?)?);
        recorders.retain(|_, known| known.strong_count() > 0);
        recorders.insert(identity, Arc::downgrade(&made));
        Some(made)
    }

    /// Something here waits for a record of an event: a stream up to a point, or the host.
    pub(crate) fn begin(&self, words: &Arc<EventWords>, record: Awaited, until: Option<Point>) {
        let first = words.begin_to_await(record, until);
        let mut watched = self.watched.lock();
        if first {
            watched.events.push(Arc::downgrade(words));
        }
        if !watched.attended && !watched.events.is_empty() {
            let list = Arc::clone(&self.watched);
            let thread = std::thread::Builder::new().name("cuda-events".into()).spawn(move || attend(&list));
            watched.attended = thread.is_ok();
            if let Err(error) = thread {
                tracing::warn!(%error, "who waits for an event of a process that is killed waits until it is recorded again");
            }
        }
    }

    /// A context has died, and is about to take its memory back.
    pub(crate) fn end_context(&self, core: &Arc<ContextCore>) {
        let events = self.watched.lock().events.clone();
        events.iter().filter_map(Weak::upgrade).filter(|words| words.is_of(core)).for_each(|words| words.end());
    }
}

/// What the thread does, as long as something is waited for.
fn attend(list: &Mutex<Watched>) {
    loop {
        let events = list.lock().events.clone();
        let over: Vec<_> =
            events.iter().filter(|words| !words.upgrade().is_some_and(|words| words.give_up_gone())).collect();
        let mut watched = list.lock();
        for over in over {
            // Who has begun to wait meanwhile has entered it once more.
            if let Some(at) = watched.events.iter().position(|words| words.ptr_eq(over)) {
                watched.events.remove(at);
            }
        }
        if watched.events.is_empty() {
            watched.attended = false;
            return;
        }
        drop(watched);
        std::thread::sleep(LOOK_AGAIN);
    }
}
