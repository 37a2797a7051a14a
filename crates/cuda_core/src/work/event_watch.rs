//! Lets go whoever waits for an event that another process has recorded, and that process has been killed.
//!
//! A GPU that waits for a word wakes nobody, and the operating system tells nobody of the end of a process that is not its own. So as
//! long as something here waits for another's record, a thread looks from time to time whether that process is there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::work::event_words::{Awaited, EventWords};
use crate::work::queues::Point;

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The events of other processes' records that something here waits for.
#[derive(Debug, Default)]
pub(crate) struct EventWatch(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    events: Vec<Weak<EventWords>>,
    /// A thread looks after them.
    attended: bool,
}

impl EventWatch {
    /// Something here waits for a record of an event: a stream up to a point, or the host.
    pub(crate) fn begin(&self, words: &Arc<EventWords>, record: Awaited, until: Option<Point>) {
        if !words.begin_to_await(record, until) {
            return;
        }
        let mut watched = self.0.lock();
        watched.events.push(Arc::downgrade(words));
        if !watched.attended {
            let list = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("cuda-events".into()).spawn(move || attend(&list));
            watched.attended = thread.is_ok();
            if let Err(error) = thread {
                tracing::warn!(%error, "who waits for an event of a process that is killed waits until it is recorded again");
            }
        }
    }
}

/// What the thread does, as long as something is waited for.
fn attend(list: &Mutex<Watched>) {
    loop {
        let mut events = std::mem::take(&mut list.lock().events);
        events.retain(|words| words.upgrade().is_some_and(|words| words.give_up_gone()));
        let mut watched = list.lock();
        watched.events.append(&mut events);
        if watched.events.is_empty() {
            watched.attended = false;
            return;
        }
        drop(watched);
        std::thread::sleep(LOOK_AGAIN);
    }
}
