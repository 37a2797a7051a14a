//! Connections that have threads of their own: so many at once, and no place for long for who says nothing.
//!
//! ```text
//!            a place                     a first message
//!   (new) ────────────► silent ──────────────────────────► speaking
//!     │                   │                                    │
//!     │ none              │ closed, or cut off: all places     │ closed
//!     ▼                   ▼ are taken, and it is the next      ▼
//!   refused              gone ◄────────────────────────────────┘
//! ```
//! When all places are taken, the oldest silent one of whichever process has most makes room for who comes: as soon as it has
//! been silent for [`GRACE`]. So nobody keeps others out by saying nothing, with however many processes; and who says its hello
//! at once is never cut off.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, shutdown};

/// Most connections: a loop of them would take all threads.
const MOST: usize = 256;
/// Most of one process.
const MOST_OF_ONE: usize = 32;
/// So long nobody has to hurry, however many come.
const GRACE: Duration = Duration::from_millis(250);

/// The connections of one socket.
#[derive(Default)]
pub(super) struct Connections {
    present: Mutex<Present>,
    /// One is gone.
    left: Condvar,
}

#[derive(Default)]
struct Present {
    next: u64,
    /// By number, the oldest first.
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    peer: i32,
    since: Instant,
    /// To be cut off by, while it is silent.
    silent: Option<Arc<OwnedFd>>,
}

/// One connection, which has its place until this is dropped.
pub(super) struct Presence {
    all: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// A place for a connection of process `peer`, if it may have one; waits a moment if that is needed to make room.
    pub(super) fn enter(self: &Arc<Connections>, peer: i32, socket: &Arc<OwnedFd>) -> Option<Presence> {
        let mut present = self.present.lock();
        if present.counts().get(&peer).is_some_and(|&count| count >= MOST_OF_ONE) {
            return None;
        }
        while present.connections.len() >= MOST {
            let (number, since) = present.first_to_go()?;
            if since.elapsed() >= GRACE {
                present.cut_off(number);
            } else {
                self.left.wait_until(&mut present, since + GRACE);
            }
        }
        let number = present.next;
        present.next += 1;
        let connection = Connection { peer, since: Instant::now(), silent: Some(Arc::clone(socket)) };
        present.connections.insert(number, connection);
        Some(Presence { all: Arc::clone(self), number })
    }
}

impl Present {
    /// Connections of each process.
    fn counts(&self) -> HashMap<i32, usize> {
        let mut counts = HashMap::new();
        for connection in self.connections.values() {
            *counts.entry(connection.peer).or_default() += 1;
        }
        counts
    }

    /// The silent one that makes room first, and since when it is there.
    fn first_to_go(&self) -> Option<(u64, Instant)> {
        let counts = self.counts();
        let silent = self.connections.iter().filter(|(_, connection)| connection.silent.is_some());
        let first = silent.max_by_key(|&(&number, connection)| (counts.get(&connection.peer), Reverse(number)))?;
        Some((*first.0, first.1.since))
    }

    fn cut_off(&mut self, number: u64) {
        let gone = self.connections.remove(&number);
        if let Some(socket) = gone.and_then(|connection| connection.silent) {
            // Its thread sees the end, whatever this says.
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}

impl Presence {
    /// It has said something: it keeps its place until it goes by itself.
    pub(super) fn speaks(&self) {
        if let Some(connection) = self.all.present.lock().connections.get_mut(&self.number) {
            connection.silent = None;
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.all.present.lock().connections.remove(&self.number);
        self.all.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use transport::unix;

    use super::*;

    /// A connection that has its place, the other end, and ours, as its thread holds it.
    fn enter(all: &Arc<Connections>, peer: i32) -> Option<(Presence, OwnedFd, Arc<OwnedFd>)> {
        let (ours, theirs) = unix::pair().unwrap();
        let ours = Arc::new(ours);
        Some((all.enter(peer, &ours)?, theirs, ours))
    }

    #[test]
    fn one_process_has_some_places_only() {
        let all = Arc::new(Connections::default());
        let mut silent: Vec<_> = (0..1000).filter_map(|_| enter(&all, 1)).collect();
        assert_eq!(silent.len(), MOST_OF_ONE);
        assert!(enter(&all, 2).is_some());
        silent.pop();
        assert!(enter(&all, 1).is_some());
        drop(silent);
        assert!(all.present.lock().connections.is_empty());
    }

    #[test]
    fn who_says_nothing_makes_room_the_oldest_of_the_greediest_first() {
        let all = Arc::new(Connections::default());
        let start = Instant::now();
        let quiet = enter(&all, 1).unwrap();
        let greedy: Vec<_> = (0..MOST - 1).map(|n| enter(&all, 2 + (n / 30) as i32).unwrap()).collect();
        for (presence, ..) in greedy.iter().skip(1) {
            presence.speaks();
        }
        let newcomer = enter(&all, 1000).unwrap();
        assert!(start.elapsed() >= GRACE, "nobody has to hurry");
        assert!(unix::hung_up(&greedy[0].1) && !unix::hung_up(&quiet.1));
        newcomer.0.speaks();
        let another = enter(&all, 1001).unwrap();
        assert!(unix::hung_up(&quiet.1), "all others have spoken");
        another.0.speaks();
        assert!(enter(&all, 1002).is_none());
        assert_eq!(greedy.iter().filter(|(_, theirs, _)| unix::hung_up(theirs)).count(), 1);
        // Who was cut off has no place to give back.
        drop(quiet);
        assert_eq!(all.present.lock().connections.len(), MOST);
        drop(newcomer);
        assert!(enter(&all, 1002).is_some());
    }
}
