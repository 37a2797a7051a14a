//! Connections: so many for each user, and a thread only for those who have said something.
//!
//! ```text
//!             a place               a message            a thread
//!   (comes) ──────────► silent ────────────────► ready ────────────► served ───► gone
//!      │                  │                        ▲                    │
//!      │ none             │ too long, or the       └─────── idle ◄──────┤ it may go on
//!      ▼                  ▼ oldest of too many         a message        ▼
//!   refused              gone                                        tenant: as idle, and counted elsewhere
//! ```
//! Who says nothing costs a descriptor. When a user has all the places that one may have, the oldest of his that says nothing
//! makes room for the next; when all places of all are taken, that of the user who has most. So nobody keeps others out by
//! saying nothing, with however many processes; whoever has said something is never cut off; and the administrator (root, and the
//! daemon's own user) is not counted among the others.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use hostmem::strangers::{self, FAR_TOO_MANY_STRANGERS};
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use transport::unix::{self, PeerProcess};

use crate::quiet::Quiet;

/// Longest time for a first message.
pub(super) const HELLO_BOUND: Duration = Duration::from_secs(5);
/// Between two tries to accept where there is no room for a descriptor.
const PAUSE: Duration = Duration::from_millis(500);
/// What an event is about, if not a connection.
const LISTENER: u64 = u64::MAX;

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps {
    /// Of all users but the administrator.
    pub(super) most: usize,
    /// Of one.
    pub(super) of_one: usize,
    /// Threads of one.
    pub(super) served: usize,
}

impl Caps {
    /// For a process that may open so many files: the most of them are others'.
    pub(super) fn of(files: u64) -> Caps {
        let part = usize::try_from(files / 16).unwrap_or(usize::MAX);
        Caps { most: part.clamp(64, 4096), of_one: (part / 2).clamp(32, 1024), served: 32 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Has said nothing yet.
    Silent,
    /// Has said something, and waits for a thread.
    Ready,
    Served,
    /// Has been served, and may go on.
    Idle,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    user: u32,
    since: Instant,
    state: State,
    /// It is somebody's lifeline: their number is limited elsewhere.
    tenant: bool,
}

/// Whether a connection that was served goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Leave,
    Stay,
    /// It is somebody's lifeline from now on.
    Tenant,
}

/// Who has a place: decides, and does nothing.
#[derive(Debug)]
struct Places {
    caps: Caps,
    /// The users that are not counted among all.
    administrators: [u32; 2],
    next: u64,
    /// By number, the oldest first.
    all: BTreeMap<u64, Place>,
    counts: HashMap<u32, usize>,
}

impl Places {
    fn new(caps: Caps, administrators: [u32; 2]) -> Places {
        Places { caps, administrators, next: 0, all: BTreeMap::new(), counts: HashMap::new() }
    }

    /// Whose places are all taken that a user would need for one more: of his own there are at most `limit`, if that is said.
    fn full(&self, user: u32, limit: Option<usize>) -> Option<u32> {
        let count = self.counts.get(&user).copied().unwrap_or(0);
        if count >= limit.unwrap_or(self.caps.of_one).min(self.caps.of_one) {
            return Some(user);
        }
        let others = || self.counts.iter().filter(|(user, _)| !self.administrators.contains(user));
        if self.administrators.contains(&user) || others().map(|(_, count)| count).sum::<usize>() < self.caps.most {
            return None;
        }
        others().max_by_key(|&(&user, &count)| (count, user)).map(|(&user, _)| user)
    }

    /// A place for a newcomer, and who makes room for it: the oldest of a user's that says nothing, as `is_silent` finds as well.
    fn enter(
        &mut self,
        (user, limit): (u32, Option<usize>),
        now: Instant,
        is_silent: impl Fn(u64) -> bool,
    ) -> Option<(u64, Option<u64>)> {
        let evicted = match self.full(user, limit) {
            None => None,
            Some(full) => {
                let quiet = |place: &Place| {
                    place.user == full && !place.tenant && matches!(place.state, State::Silent | State::Idle)
                };
                let mut candidates = self.all.iter().filter(|(_, place)| quiet(place)).map(|(&number, _)| number);
                Some(candidates.find(|&number| is_silent(number))?)
            }
        };
        if let Some(number) = evicted {
            self.remove(number);
        }
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Place { user, since: now, state: State::Silent, tenant: false });
        *self.counts.entry(user).or_default() += 1;
        Some((number, evicted))
    }

    fn remove(&mut self, number: u64) {
        if let Some(place) = self.all.remove(&number)
            && !place.tenant
        {
            self.uncount(place.user);
        }
    }

    fn uncount(&mut self, user: u32) {
        if let Some(count) = self.counts.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&user);
            }
        }
    }

    fn served(&self, user: u32) -> usize {
        self.all.values().filter(|place| place.user == user && place.state == State::Served).count()
    }

    /// One has said something, or has gone: whether it gets a thread now.
    fn speaks(&mut self, number: u64) -> bool {
        let Some(user) = self.all.get(&number).map(|place| place.user) else { return false };
        let now = self.served(user) < self.caps.served;
        if let Some(place) = self.all.get_mut(&number) {
            place.state = if now { State::Served } else { State::Ready };
        }
        now
    }

    /// One has been served: who has its thread next.
    fn finish(&mut self, number: u64, then: Then, now: Instant) -> Option<u64> {
        let user = self.all.get(&number)?.user;
        match (then, self.all.get_mut(&number)) {
            (Then::Leave, _) | (_, None) => self.remove(number),
            (then, Some(place)) => {
                (place.state, place.since) = (State::Idle, now);
                if then == Then::Tenant && !place.tenant {
                    place.tenant = true;
                    self.uncount(user);
                }
            }
        }
        let next = self.all.iter_mut().find(|(_, place)| place.user == user && place.state == State::Ready);
        next.map(|(&number, place)| {
            place.state = State::Served;
            number
        })
    }

    /// Those who have said nothing for too long have no place any more; and when to look again.
    fn expire(&mut self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let ends = |place: &Place| (place.state == State::Silent).then(|| place.since + HELLO_BOUND);
        let late = self.all.iter().filter(|(_, place)| ends(place).is_some_and(|end| end <= now));
        let late: Vec<u64> = late.map(|(&number, _)| number).collect();
        late.iter().for_each(|&number| self.remove(number));
        (late, self.all.values().find_map(ends))
    }
}

/// The connections of one socket.
pub(super) struct Connections {
    epoll: OwnedFd,
    present: Mutex<Present>,
    limit: Box<dyn Limit>,
    quiet: Quiet,
}

/// How many a user may have, where policy says it.
pub(super) trait Limit: Fn(PeerProcess) -> Option<usize> + Send + Sync + 'static {}

impl<F: Fn(PeerProcess) -> Option<usize> + Send + Sync + 'static> Limit for F {}

struct Present {
    places: Places,
    sockets: HashMap<u64, (Arc<OwnedFd>, PeerProcess)>,
}

/// Serves a connection that has said something, once.
pub(super) trait Serve: Fn(&Arc<OwnedFd>, PeerProcess) -> Then + Send + Sync + 'static {}

impl<F: Fn(&Arc<OwnedFd>, PeerProcess) -> Then + Send + Sync + 'static> Serve for F {}

impl Connections {
    pub(super) fn new(limit: impl Limit) -> Result<Arc<Connections>> {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let caps = Caps::of(files.unwrap_or(u64::MAX));
        Ok(Arc::new(Connections {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            present: Mutex::new(Present {
                places: Places::new(caps, [0, rustix::process::getuid().as_raw()]),
                sockets: HashMap::new(),
            }),
            limit: Box::new(limit),
            quiet: Quiet::new(),
        }))
    }

    /// Accepts connections and has them served, for ever.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn run(self: &Arc<Connections>, listener: &OwnedFd, serve: &Arc<impl Serve>) -> Result<()> {
        epoll::add(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let mut events = Vec::with_capacity(64);
        loop {
            let (late, look) = self.present.lock().places.expire(Instant::now());
            late.into_iter().for_each(|number| self.close(number));
            let pause = look.map(|look| look.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), pause.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(listener),
                    number => self.attend(number, serve),
                }
            }
        }
    }

    fn accept(&self, listener: &OwnedFd) {
        let socket = match unix::accept(listener) {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                std::thread::sleep(PAUSE);
                return;
            }
        };
        let Ok(peer) = unix::peer(&*socket) else { return };
        if strangers::strangers_of(peer.uid) >= FAR_TOO_MANY_STRANGERS {
            if self.quiet.may() {
                tracing::warn!(user = peer.uid, "too many descriptors of this user's are still being closed");
            }
            return;
        }
        let limit = (self.limit)(peer);
        let mut present = self.present.lock();
        let Present { places, sockets } = &mut *present;
        let says_nothing = |number: u64| {
            let socket = sockets.get(&number).map(|(socket, _)| socket);
            socket.is_none_or(|socket| !unix::readable(socket, Duration::ZERO).unwrap_or(true))
        };
        let Some((number, evicted)) = places.enter((peer.uid, limit), Instant::now(), says_nothing) else {
            drop(present);
            if self.quiet.may() {
                tracing::warn!(user = peer.uid, "too many connections at once");
            }
            return;
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        let added = epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), flags);
        sockets.insert(number, (socket, peer));
        drop(present);
        for gone in evicted.into_iter().chain(added.is_err().then_some(number)) {
            self.close(gone);
        }
    }

    /// Takes one out of sight, which has no place any more.
    fn close(&self, number: u64) {
        let mut present = self.present.lock();
        present.places.remove(number);
        let gone = present.sockets.remove(&number);
        drop(present);
        gone.into_iter().for_each(|gone| self.let_go(gone));
    }

    /// Closes one, unless others hold it: where nothing is locked, and if something lies in it that nobody has received, aside. That
    /// may be descriptors, and to close those may take for ever.
    fn let_go(&self, (socket, peer): (Arc<OwnedFd>, PeerProcess)) {
        // Others may hold it open. It fails if it was never there.
        let _ = epoll::delete(&self.epoll, &socket);
        if Arc::strong_count(&socket) > 1 {
            return;
        }
        if unix::has_unreceived(&*socket) {
            strangers::drop_aside(socket, peer.uid);
        }
    }

    /// One has said something.
    fn attend(self: &Arc<Connections>, number: u64, serve: &Arc<impl Serve>) {
        if !self.present.lock().places.speaks(number) {
            return;
        }
        let (all, serve) = (Arc::clone(self), Arc::clone(serve));
        let work = move || {
            let mut next = Some(number);
            while let Some(number) = next {
                next = all.serve(number, &*serve);
            }
        };
        if std::thread::Builder::new().spawn(work).is_err() {
            // Whoever waits for a thread of this user's, too, waits for another.
            self.close(number);
        }
    }

    /// Serves one, and says who is next.
    fn serve(&self, number: u64, serve: &impl Serve) -> Option<u64> {
        let found = self.present.lock().sockets.get(&number).map(|(socket, peer)| (Arc::clone(socket), *peer));
        let then = found.map_or(Then::Leave, |(socket, peer)| {
            // What a panic leaves half done is this connection's own.
            catch_unwind(AssertUnwindSafe(|| serve(&socket, peer))).unwrap_or(Then::Leave)
        });
        let mut present = self.present.lock();
        let next = present.places.finish(number, then, Instant::now());
        let Present { sockets, .. } = &mut *present;
        if then == Then::Leave {
            let gone = sockets.remove(&number);
            drop(present);
            gone.into_iter().for_each(|gone| self.let_go(gone));
        } else if let Some((socket, _)) = sockets.get(&number) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
            // It is there: who cannot be heard any more would only stay silent.
            let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(number), flags);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: Caps = Caps { most: 20, of_one: 8, served: 2 };
    const ROOT: u32 = 0;
    const OWN: u32 = 7;

    fn places() -> Places {
        Places::new(CAPS, [ROOT, OWN])
    }

    fn enter(places: &mut Places, user: u32) -> Option<(u64, Option<u64>)> {
        places.enter((user, None), Instant::now(), |_| true)
    }

    #[test]
    fn the_oldest_of_ones_own_that_says_nothing_makes_room() {
        let mut places = places();
        let mine: Vec<u64> = (0..CAPS.of_one).map(|_| enter(&mut places, 1).unwrap().0).collect();
        let (other, none) = enter(&mut places, 2).unwrap();
        assert_eq!(none, None, "another user has places of his own");
        assert!(places.speaks(mine[0]), "it is served, and stays");
        assert_eq!(enter(&mut places, 1).unwrap().1, Some(mine[1]));
        // The next has said something of which nobody has heard yet.
        let newcomer = places.enter((1, None), Instant::now(), |number| number != mine[2]).unwrap();
        assert_eq!(newcomer.1, Some(mine[3]));
        assert!(places.all.contains_key(&other));
        // When all of one's own have said something, there is no room.
        let all: Vec<u64> = places.all.iter().filter(|(_, place)| place.user == 1).map(|(&number, _)| number).collect();
        all.iter().for_each(|&number| _ = places.speaks(number));
        assert_eq!(enter(&mut places, 1), None);
        places.finish(mine[0], Then::Leave, Instant::now());
        assert!(enter(&mut places, 1).is_some());
        // As policy has it.
        assert!(places.enter((3, Some(1)), Instant::now(), |_| true).unwrap().1.is_none());
        assert!(places.enter((3, Some(1)), Instant::now(), |_| true).unwrap().1.is_some());
    }

    #[test]
    fn all_places_of_others_are_none_of_the_administrators() {
        let mut places = places();
        let mut greedy = Vec::new();
        for user in 10.. {
            let free = CAPS.most - places.all.len();
            let count = CAPS.of_one.min(free);
            greedy.extend((0..count).map(|_| enter(&mut places, user).unwrap().0));
            if count == free {
                break;
            }
        }
        // The one who has most makes room, the one who was there first of those.
        let (_, evicted) = enter(&mut places, 5).unwrap();
        assert_eq!(places.counts.values().sum::<usize>(), CAPS.most);
        assert!(greedy.contains(&evicted.unwrap()) && places.counts[&5] == 1);
        for administrator in [ROOT, OWN] {
            for _ in 0..CAPS.of_one {
                assert_eq!(enter(&mut places, administrator).unwrap().1, None);
            }
            assert!(enter(&mut places, administrator).unwrap().1.is_some(), "of his own");
        }
    }

    #[test]
    fn threads_are_for_so_many_of_one_and_the_others_wait_in_order() {
        let (mut places, now) = (places(), Instant::now());
        let mine: Vec<u64> = (0..5).map(|_| enter(&mut places, 1).unwrap().0).collect();
        let served: Vec<bool> = mine.iter().map(|&number| places.speaks(number)).collect();
        assert_eq!(served, [true, true, false, false, false]);
        let other = enter(&mut places, 2).unwrap().0;
        assert!(places.speaks(other));
        assert_eq!(places.finish(mine[1], Then::Leave, now), Some(mine[2]));
        assert_eq!(places.finish(mine[0], Then::Stay, now), Some(mine[3]));
        assert!(!places.speaks(mine[0]), "it goes on, when it is its turn");
        assert_eq!(places.finish(mine[2], Then::Tenant, now), Some(mine[0]), "the one that is there for longest");
        assert_eq!(places.counts[&1], 3, "who is a tenant is counted there");
        assert_eq!(places.finish(mine[3], Then::Leave, now), Some(mine[4]));
        for number in [mine[0], mine[2], mine[4]] {
            places.finish(number, Then::Leave, now);
        }
        assert!(!places.counts.contains_key(&1));
    }

    #[test]
    fn who_says_nothing_for_too_long_goes() {
        let (mut places, start) = (places(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = places.enter((1, None), at(0), |_| true).unwrap().0;
        let second = places.enter((1, None), at(3), |_| true).unwrap().0;
        let third = places.enter((1, None), at(3), |_| true).unwrap().0;
        assert_eq!(places.expire(at(4)), (vec![], Some(at(0) + HELLO_BOUND)));
        places.speaks(second);
        assert_eq!(places.expire(at(0) + HELLO_BOUND), (vec![first], Some(at(3) + HELLO_BOUND)));
        places.finish(second, Then::Stay, at(6));
        assert_eq!(places.expire(at(1000)), (vec![third], None), "who has been served may be silent");
        assert_eq!(places.counts[&1], 1);
    }
}
