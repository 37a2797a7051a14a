//! Single stores of another process: what neither end may do to the other.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "forks")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hostmem::{Mapping, Memfd, PAGE};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use write_trap::testing::{fuzz_remote, fuzz_servant};
use write_trap::{
    DecodeParts, DecodeServant, Fault, FaultParts, Kind, ProtectedPages, RemoteDecode, Tracker, TrackerParts,
    WriteTrap, Written, available,
};

const PAGES: u64 = 20;
/// Longer than any machine is busy.
const LONG: Duration = Duration::from_secs(60);

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn parts(control: OwnedFd) -> DecodeParts {
    let (_, file) = Written::create(PAGES).unwrap();
    DecodeParts { written: file.into_fd(), control, address: PAGE, bytes: PAGES * PAGE }
}

/// A mapping of this process, and what drives it.
fn driven() -> (Arc<Mapping>, DecodeServant, RemoteDecode) {
    let file = Memfd::create("watched", PAGES * PAGE).unwrap();
    let mapping = Arc::new(file.map().unwrap());
    let (parts, servant) = DecodeParts::new(&mapping, file.map().unwrap()).unwrap();
    (mapping, servant, RemoteDecode::from_parts(parts, LONG).unwrap())
}

fn stores(remote: &mut RemoteDecode) -> Vec<u64> {
    let mut stores = Vec::new();
    remote.take_stores(&mut stores);
    stores
}

fn store(mapping: &Mapping, page: u64) {
    mapping.u64_at((page * PAGE) as usize).fetch_add(1, Ordering::Relaxed);
}

#[test]
fn who_does_not_answer_is_asked_once() {
    let (_silent, control) = sockets();
    let mut remote = RemoteDecode::from_parts(parts(control), Duration::from_millis(20)).unwrap();
    assert_eq!(remote.protect(&[1, 2]).unwrap_err().kind(), ErrorKind::TimedOut);
    for _ in 0..100 {
        assert_eq!(remote.protect(&[3]).unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(remote.release(&[3]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

/// The socket is full before the first request: nobody waits for room longer than for an answer.
#[test]
fn who_does_not_listen_is_not_waited_for() {
    let (_silent, control) = sockets();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while rustix::net::send(&control, &[0; 4096], flags).is_ok() {}
    let mut remote = RemoteDecode::from_parts(parts(control), Duration::from_millis(20)).unwrap();
    assert_eq!(remote.protect(&[1]).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn answers_are_numbers_of_errors() {
    let ask = |answer: &[u8]| {
        let (ours, control) = sockets();
        let mut remote = RemoteDecode::from_parts(parts(control), LONG).unwrap();
        rustix::net::send(&ours, answer, SendFlags::empty()).unwrap();
        let first = remote.protect(&[0, 1, 5]);
        // What was asked for: a word, and two runs of two.
        let (_, asked) = rustix::net::recv(&ours, &mut [0; 64], RecvFlags::empty()).unwrap();
        assert_eq!(asked, 40);
        rustix::net::send(&ours, &[0; 8], SendFlags::empty()).unwrap();
        (first.map_err(|error| error.kind()), remote.release(&[5]).is_ok())
    };
    assert_eq!(ask(&[0; 8]), (Ok(()), true));
    // It has no memory now, and may have later.
    assert_eq!(ask(&12_u64.to_ne_bytes()), (Err(ErrorKind::OutOfMemory), true));
    for nonsense in [4096, u64::MAX, 1 << 32, 1 << 31] {
        assert_eq!(ask(&nonsense.to_ne_bytes()), (Err(ErrorKind::InvalidData), false), "{nonsense}");
    }
    for length in [0, 1, 7, 9, 16, 5000] {
        assert_eq!(ask(&vec![0; length]), (Err(ErrorKind::InvalidData), false), "{length}");
    }
}

#[test]
fn what_cannot_be_right_is_refused() {
    let (_ours, control) = sockets();
    let parts = || parts(control.try_clone().unwrap());
    let refused = |parts| RemoteDecode::from_parts(parts, LONG).unwrap_err().kind();
    let file = |bytes, seals| {
        let file = rustix::fs::memfd_create("some", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    for (written, why) in [
        (file(1 << 20, SealFlags::GROW), ErrorKind::InvalidData),
        (file(PAGE + 1, SealFlags::SHRINK), ErrorKind::InvalidData),
        // What has no seals.
        (std::fs::File::open("/proc/self/exe").unwrap().into(), ErrorKind::InvalidInput),
        (rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap(), ErrorKind::InvalidInput),
    ] {
        assert_eq!(refused(DecodeParts { written, ..parts() }), why);
    }
    let (stream, _other) = UnixStream::pair().unwrap();
    assert_eq!(refused(DecodeParts { control: stream.into(), ..parts() }), ErrorKind::InvalidData);
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let none = RemoteDecode::from_parts(DecodeParts { control: eventfd, ..parts() }, LONG).unwrap_err();
    assert_eq!(none.raw_os_error(), Some(rustix::io::Errno::NOTSOCK.raw_os_error()));
    // The file is for fewer pages.
    let large = DecodeParts { bytes: 1000 * PAGE, ..parts() };
    assert_eq!(refused(large), ErrorKind::InvalidInput);
    for (address, bytes) in [(0, PAGE), (PAGE, 0), (1, PAGE), (PAGE, !(PAGE - 1))] {
        assert_eq!(refused(DecodeParts { address, bytes, ..parts() }), ErrorKind::InvalidInput);
    }
}

/// However much somebody says was stored, only what is watched is told.
#[test]
fn only_what_is_watched_is_told() {
    let (ours, control) = sockets();
    let parts = parts(control);
    let noted = Memfd::from_fd(parts.written.try_clone().unwrap()).unwrap().map().unwrap();
    let mut remote = RemoteDecode::from_parts(parts, LONG).unwrap();
    (0..3).for_each(|_| assert_eq!(rustix::net::send(&ours, &[0; 8], SendFlags::empty()), Ok(8)));
    let told = |remote: &mut RemoteDecode| {
        noted.fill(0, noted.len(), 0xff);
        let mut pages = Vec::new();
        remote.take_written(&mut pages).unwrap();
        (stores(remote), pages)
    };
    assert_eq!(told(&mut remote), (vec![], vec![]));
    remote.protect(&[2, 7, 8, 19]).unwrap();
    remote.release(&[7]).unwrap();
    let words = [2, 8, 19].into_iter().flat_map(|page| (page * PAGE..(page + 1) * PAGE).step_by(8)).collect();
    assert_eq!(told(&mut remote), (words, vec![2, 8, 19]));
    // What nobody wanted before is there when it is.
    noted.fill(0, noted.len(), 0xff);
    assert!(!stores(&mut remote).is_empty());
    remote.protect(&[3]).unwrap();
    noted.fill(0, noted.len(), 0xff);
    assert_eq!(stores(&mut remote).len(), 4 * 512);
}

/// More runs than go into one request.
#[test]
fn many_runs_are_protected_and_released() {
    let pages = 4000;
    let file = Memfd::create("watched", pages * PAGE).unwrap();
    let mapping = Arc::new(file.map().unwrap());
    let (parts, _servant) = DecodeParts::new(&mapping, file.map().unwrap()).unwrap();
    let mut remote = RemoteDecode::from_parts(parts, LONG).unwrap();
    let odd: Vec<u64> = (1..pages).step_by(2).collect();
    remote.protect(&odd).unwrap();
    (0..pages).for_each(|page| store(&mapping, page));
    assert_eq!(stores(&mut remote), odd.iter().map(|page| page * PAGE).collect::<Vec<_>>());
    remote.release(&odd[..1000]).unwrap();
    (0..pages).for_each(|page| store(&mapping, page));
    assert_eq!(stores(&mut remote), odd[1000..].iter().map(|page| page * PAGE).collect::<Vec<_>>());
}

#[test]
fn whichever_end_goes_pages_are_writable() {
    let (mapping, servant, mut remote) = driven();
    remote.protect(&[1, 2, 3]).unwrap();
    store(&mapping, 2);
    assert_eq!(stores(&mut remote), [2 * PAGE]);
    drop(servant);
    store(&mapping, 2);
    assert!(stores(&mut remote).is_empty() && remote.protect(&[4]).is_err());

    let (mapping, servant, mut remote) = driven();
    remote.protect(&[1, 2, 3]).unwrap();
    drop(remote);
    // It hears of it at some time.
    let writable = || hostmem::is_writable(mapping.address() + 2 * PAGE as usize);
    while !writable() {
        std::thread::yield_now();
    }
    store(&mapping, 2);
    drop(servant);
}

/// A forked child has neither the thread nor a say; what it stores is noticed.
#[test]
fn a_forked_child_leaves_its_parents_service_alone() {
    let (mapping, servant, mut remote) = driven();
    remote.protect(&[1, 2]).unwrap();
    // SAFETY: the child stores words, drops what allocates and waits for nothing, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        store(&mapping, 1);
        drop(servant);
        store(&mapping, 2);
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((status, stores(&mut remote)), (0, vec![PAGE, 2 * PAGE]));
    remote.protect(&[3]).unwrap();
    store(&mapping, 3);
    assert_eq!(stores(&mut remote), [3 * PAGE]);
    drop(servant);
    store(&mapping, 3);
    assert!(stores(&mut remote).is_empty());
}

/// The fuzz target's bodies, with the same bytes each time. `cargo xtask fuzz` looks for what is new.
fn some(body: fn(&[u8])) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    for run in 0..300 {
        let data: Vec<u8> = (0..run).map(|_| byte()).collect();
        body(&data);
    }
}

#[test]
fn a_servant_survives_any_driver() {
    some(fuzz_servant);
}

#[test]
fn a_driver_survives_any_servant() {
    some(fuzz_remote);
}

#[test]
fn descriptors_in_answers_are_nobodys() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    let (ours, control) = sockets();
    let mut remote = RemoteDecode::from_parts(parts(control), LONG).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [writer.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(&ours, &[std::io::IoSlice::new(&[0; 8])], &mut ancillary, SendFlags::empty()).unwrap();
    remote.protect(&[1]).unwrap();
    drop(writer);
    // The kernel has closed the other one.
    assert_eq!(std::io::Read::read(&mut &reader, &mut [0]).unwrap(), 0);
}

/// A hole is no store: pages that are protected can be asked for, and a store makes it known.
#[test]
fn pages_that_are_protected_are_known_where_the_mapping_is() {
    for kind in Kind::ALL {
        if let Err(why) = available(kind) {
            eprintln!("SKIPPED: {kind:?}: {why}");
            continue;
        }
        let pages = 1200;
        let file = Memfd::create("watched", pages * PAGE).unwrap();
        let mapping = Arc::new(file.map().unwrap());
        mapping.fill(0, 600 * PAGE as usize, 1);
        let (mut servant, known) = (None, ProtectedPages::new(&mapping).unwrap());
        let mut trap: Box<dyn WriteTrap> = match kind {
            Kind::Decode => {
                let (parts, serves) = DecodeParts::new(&mapping, file.map().unwrap()).unwrap();
                servant = Some(serves);
                Box::new(RemoteDecode::from_parts(parts, LONG).unwrap())
            }
            Kind::Fault => Box::new(Fault::from_parts(FaultParts::new(&mapping).unwrap()).unwrap()),
            Kind::Tracker => Box::new(Tracker::from_parts(TrackerParts::new(&mapping).unwrap()).unwrap()),
        };
        let protected = |range: Range<u64>| {
            let mut out = Vec::new();
            match &servant {
                Some(servant) => servant.protected(range, &mut out).map(|()| out),
                None => known.among(range, &mut out).map(|()| out),
            }
        };
        assert_eq!(protected(0..pages).unwrap(), [0; 0]);
        let some = [3, 4, 511, 512, 599, 600, 1199];
        trap.protect(&some).unwrap();
        assert_eq!(protected(0..pages).unwrap(), some);
        assert_eq!(protected(4..600).unwrap(), some[1..5]);
        file.punch(0, pages * PAGE).unwrap();
        assert_eq!(protected(0..pages).unwrap(), some, "{kind:?}: pages of a hole");
        let mut told = Vec::new();
        for page in some {
            mapping.fill((page * PAGE) as usize, PAGE as usize, 0);
            trap.take_written(&mut told).unwrap();
            let mut stores = Vec::new();
            trap.take_stores(&mut stores);
            if kind.names_stores() {
                assert_eq!(stores, (page * PAGE..(page + 1) * PAGE).step_by(8).collect::<Vec<_>>());
                told.push(page);
            }
        }
        assert_eq!(told, some, "{kind:?}");
        for wrong in [0..0, 0..pages + 1, Range { start: 5, end: 4 }] {
            assert_eq!(protected(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
