//! Arbitrary messages between the two ends of a remote `Decode`: the bodies of the fuzz target, with oracles.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hostmem::{Memfd, PAGE};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use crate::remote::LONGEST;
use crate::{DecodeParts, RemoteDecode, WriteTrap, Written};

/// Pages of the mapping.
const PAGES: u64 = 70;
/// Most messages of one run: time is bounded by it.
const MOST: usize = 40;

/// Bytes as decisions; when they are used up, zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        first
    }

    /// A number of a page, mostly.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => 1 << 63,
            byte => u64::from(byte) % (PAGES + 3),
        }
    }

    fn pages(&mut self) -> Vec<u64> {
        (0..self.byte() % 6).map(|_| self.number()).collect()
    }
}

/// A driver that says anything. Panics if the process whose mapping it is does not notice a store that it should, or if it
/// obeys what is no request.
pub fn fuzz_servant(data: &[u8]) {
    let mut input = Input(data);
    let file = Memfd::create("watched", PAGES * PAGE).expect("memory");
    let mapping = Arc::new(file.map().expect("memory"));
    let (parts, servant) = DecodeParts::new(&mapping, file.map().expect("memory")).expect("a servant");
    let noted = Memfd::from_fd(parts.written).expect("sealed");
    let noted = Written::from_file(&noted, PAGES).expect("large enough");
    let mut protected = BTreeSet::new();
    for number in 1..=MOST as u64 {
        if input.0.is_empty() {
            break;
        }
        let message = if input.byte().is_multiple_of(8) {
            let bytes = usize::from(input.byte()) * 20;
            let mut message = input.take(bytes).to_vec();
            message.resize(bytes.max(1), 0);
            message
        } else {
            let mut words = vec![u64::from(input.byte() % 5)];
            (0..input.byte() % 4).for_each(|_| words.extend([input.number(), input.number()]));
            words.into_iter().flat_map(u64::to_ne_bytes).collect()
        };
        rustix::net::send(&parts.control, &message, SendFlags::NOSIGNAL).expect("somebody listens");
        let mut answer = [0; 16];
        let (_, got) =
            rustix::net::recv(&parts.control, &mut answer, RecvFlags::empty()).expect("an answer, or the end");
        let Some((protect, pages)) = request(&message) else {
            assert_eq!(got, 0, "no request, and yet an answer: {message:?}");
            protected.clear();
            break;
        };
        assert_eq!((got, &answer[..8]), (8, &[0; 8][..]), "{message:?}");
        pages.into_iter().for_each(|page| {
            if protect {
                protected.insert(page)
            } else {
                protected.remove(&page)
            };
        });
        for page in 0..PAGES {
            mapping.u64_at((page * PAGE + number * 8) as usize).store(number, Ordering::Relaxed);
        }
        let (mut stores, mut released) = (Vec::new(), Vec::new());
        noted.take_stores(|word| stores.push(word));
        noted.take_released(|page| released.push(page));
        let expected: Vec<u64> = protected.iter().map(|page| page * PAGE + number * 8).collect();
        assert_eq!((stores, released), (expected, vec![]));
    }
    drop(servant);
    mapping.fill(0, mapping.len(), 1);
    noted.take_stores(|word| panic!("a store to {word:#x} is noticed, and nobody watches"));
}

/// What a message asks for, understood in another way than the servant does.
fn request(message: &[u8]) -> Option<(bool, Vec<u64>)> {
    let words: Vec<u64> =
        message.chunks(8).map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?))).collect::<Option<_>>()?;
    if message.len() > LONGEST || words.len() < 3 || words.len().is_multiple_of(2) || !(1..=2).contains(&words[0]) {
        return None;
    }
    let mut all = Vec::new();
    for run in words[1..].chunks(2) {
        if run[0] >= PAGES || run[1] == 0 || run[1] > PAGES - run[0] {
            return None;
        }
        all.extend(run[0]..run[0] + run[1]);
    }
    Some((words[0] == 1, all))
}

/// A process that answers anything, or nothing, and notes anything. Panics if what is told was not asked for; does not end if a
/// call does not.
pub fn fuzz_remote(data: &[u8]) {
    let mut input = Input(data);
    let (written, file) = Written::create(PAGES).expect("memory");
    let noted = file.map().expect("memory");
    let (ours, control) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    // One that waits for what never comes takes a while; one that may not wait at all is as good for most.
    let within = Duration::from_millis(u64::from(input.byte() % 4));
    let parts = DecodeParts { written: file.into_fd(), control, address: 1 << 20, bytes: PAGES * PAGE };
    let mut remote = RemoteDecode::from_parts(parts, within).expect("good parts");
    let mut watched = BTreeSet::new();
    for _ in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        // Answers lie there before the question comes, or nobody answers.
        match input.byte() % 8 {
            0 => {
                let bytes = usize::from(input.byte() % 20).max(1);
                let mut answer = input.take(bytes).to_vec();
                answer.resize(bytes, 0);
                answer_with(&ours, &answer);
            }
            1 => answer_with(&ours, &u64::from(input.byte()).to_ne_bytes()),
            2 => {}
            _ => answer_with(&ours, &0_u64.to_ne_bytes()),
        }
        match input.byte() % 4 {
            0 => {
                let pages = input.pages();
                let known = pages.iter().all(|page| *page < PAGES);
                let done = remote.protect(&pages);
                assert!(known || done.is_err());
                watched.extend(pages.into_iter().filter(|_| known));
            }
            1 => {
                let pages = input.pages();
                let known = pages.iter().all(|page| *page < PAGES);
                let done = remote.release(&pages);
                assert!(known || done.is_err());
                watched.retain(|page| !known || !pages.contains(page));
            }
            2 => noted.fill(0, noted.len(), 0xff),
            _ => {
                let at = usize::from(input.byte()) * 97 * 8 % noted.len();
                noted.u64_at(at).store(u64::MAX, Ordering::Relaxed);
                written.stored(u64::from(input.byte()) % (PAGES * PAGE - 8), 8);
                written.released(3..=5);
            }
        }
        // Its socket does not fill.
        while readable(&ours) {
            let _ = rustix::net::recv(&ours, &mut [0; LONGEST], RecvFlags::DONTWAIT);
        }
        let (mut stores, mut released) = (Vec::new(), Vec::new());
        remote.take_stores(&mut |word| stores.push(word));
        remote.take_written(&mut released).expect("nobody is asked");
        assert!(stores.iter().all(|word| word.is_multiple_of(8) && watched.contains(&(word / PAGE))), "{stores:?}");
        assert!(released.iter().all(|page| watched.contains(page)), "{released:?}");
    }
}

fn answer_with(socket: &std::os::fd::OwnedFd, bytes: &[u8]) {
    // It may be full.
    let _ = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn readable(socket: &std::os::fd::OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
}
