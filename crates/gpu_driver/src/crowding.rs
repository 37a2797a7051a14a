//! Waiters that are full: what does not fit behind a wait on memory is kept, and follows as the channel empties.
//!
//! A shared channel that is full empties by itself, and whoever submits to it waits. A waiter may stay full until the word
//! that it waits for is stored, perhaps by a command that the same thread submits next; who submits must not wait there. Nothing
//! tells the driver when the device has gone on, so a thread of the client looks while there is such a queue, and ends
//! when there is none.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::client::Client;
use crate::queues::Queue;

/// How often full waiters are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// The queues of a client that keep what their waiters have no room for.
#[derive(Debug, Default)]
pub(crate) struct Crowded {
    queues: Vec<Arc<Queue>>,
    /// A thread looks at them.
    watched: bool,
}

impl Crowded {
    fn add(&mut self, queue: &Arc<Queue>) {
        if !self.queues.iter().any(|other| Arc::ptr_eq(other, queue)) {
            self.queues.push(Arc::clone(queue));
        }
    }
}

impl Client {
    /// Puts a queue, whose next command its waiter has no room for, among those that are looked at; false if nobody can.
    pub(crate) fn watch(&self, queue: &Arc<Queue>) -> bool {
        let mut crowded = self.crowded.lock();
        if !crowded.watched {
            let Some(client) = self.itself.get().cloned() else { return false };
            let thread = std::thread::Builder::new().name("gpu-crowded".into());
            if let Err(error) = thread.spawn(move || look(&client)) {
                log_limit::warn!(%error, "no thread for a full queue");
                return false;
            }
            crowded.watched = true;
        }
        crowded.add(queue);
        true
    }

    /// Lets crowded queues go on as far as they can; false if there are none any more.
    fn uncrowd(&self) -> bool {
        let queues = {
            let mut crowded = self.crowded.lock();
            crowded.watched = !crowded.queues.is_empty();
            std::mem::take(&mut crowded.queues)
        };
        if queues.is_empty() {
            return false;
        }
        let mut signalled = Vec::new();
        for queue in queues {
            let Some(mut state) = queue.state.try_lock() else {
                // Somebody submits to it: the next look will do.
                self.crowded.lock().add(&queue);
                continue;
            };
            // An error is its context's, which whoever uses the queue next is told.
            let _ = self.resume(&queue, &mut state, &mut signalled);
        }
        self.unpark(signalled);
        true
    }
}

/// Ends the client if the thread that looks after its queues panics: nobody would let them go on.
struct Guard<'a>(&'a Weak<Client>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(client) = self.0.upgrade()
        {
            client.close();
        }
    }
}

fn look(client: &Weak<Client>) {
    let _guard = Guard(client);
    while client.upgrade().is_some_and(|client| client.uncrowd()) {
        std::thread::sleep(LOOK);
    }
}
