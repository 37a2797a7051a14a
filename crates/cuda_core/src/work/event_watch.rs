//! Lets go the streams that wait for a record to which no GPU comes any more, of a process that has been killed or a context that failed.
//!
//! A GPU that waits for a word wakes nobody, and the operating system tells nobody of the end of a process that is not its own. So as
//! long as a stream here waits for a record, a thread looks from time to time whether its recorder is there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpu::ContextId;
use hostmem::Memfd;
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::work::event_words::{Awaited, EventWords, Page};
use crate::work::queues::Point;
use crate::work::recorder::Recorder;

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The events that streams here wait for, and who records some.
#[derive(Debug, Default)]
pub(crate) struct EventWatch {
    watched: Arc<Mutex<Watched>>,
    /// By file and context.
    recorders: Mutex<HashMap<(FileIdentity, ContextId), Weak<Recorder>>>,
    /// Words of destroyed events, for later ones.
    spare_pages: Mutex<Vec<Page>>,
}

/// Device and inode of a file.
type FileIdentity = (u64, u64);

#[derive(Debug, Default)]
struct Watched {
    events: Vec<Weak<EventWords>>,
    /// A thread looks after them.
    attended: bool,
}

impl EventWatch {
    /// Keeps the words of a destroyed event that another process may know of.
    pub(crate) fn keep_page(&self, page: Page) {
        self.spare_pages.lock().push(page);
    }

    /// Such words, for a new event.
    pub(crate) fn spare_page(&self) -> Option<Page> {
        self.spare_pages.lock().pop()
    }

    /// A context as a recorder of a file's events; `None` where that cannot be told to others.
    pub(crate) fn recorder(&self, file: &Memfd, core: &ContextCore) -> Option<Arc<Recorder>> {
        let key = (file.identity().ok()?, core.id);
        let mut recorders = self.recorders.lock();
        if let Some(known) = recorders.get(&key).and_then(Weak::upgrade) {
            return Some(known);
        }
        let made = Arc::new(Recorder::new(file, core.id)?);
        // Who ends a context looks for its recorders behind that.
        if core.dead() || core.failed() {
            made.end();
        }
        recorders.retain(|_, known| known.strong_count() > 0);
        recorders.insert(key, Arc::downgrade(&made));
        Some(made)
    }

    /// A context has failed or is over: no GPU comes to what it has recorded any more.
    pub(crate) fn end_recorders(&self, context: ContextId) {
        let recorders: Vec<_> = self.recorders.lock().values().filter_map(Weak::upgrade).collect();
        recorders.iter().filter(|recorder| recorder.context == context).for_each(|recorder| recorder.end());
    }

    /// A stream waits for a record of an event, up to a point.
    pub(crate) fn begin(&self, words: &Arc<EventWords>, record: Awaited, until: Point) {
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
                tracing::warn!(%error, "who waits for an event that no GPU comes to waits until it is recorded again");
            }
        }
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
