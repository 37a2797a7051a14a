//! Programs with several GPUs: a session with each.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use gpu::{AllocId, Gpu, GpuError, Request, Response};
use hostmem::{Memfd, PAGE};
use remote_gpu::{Address, ConnectError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use session::Ended;
use tenancy::Limits;
use transport::unix;
use wire::handshake::features;
use wire::{Hello, Import, Reply, Welcome, frame};

use crate::LO;
use crate::harness::{self, BOUND, Daemon, GPUS, RawClient};

fn address(daemon: &Daemon) -> Address {
    Address { path: daemon.path.clone(), credential: harness::tenant(1) }
}

#[test]
fn the_first_session_says_how_many_there_are() {
    let daemon = Daemon::start(Limits::default());
    let all = address(&daemon).open_all().unwrap();
    assert_eq!(all.iter().map(|gpu| gpu.gpus()).collect::<Vec<_>>(), [GPUS; 2]);
    assert_eq!(*daemon.asked.lock(), [0, 1]);
    let second = address(&daemon).open(1).unwrap();
    assert_eq!((second.gpus(), daemon.asked.lock()[2]), (GPUS, 1), "whoever knows which it wants needs no other");
    let beyond = address(&daemon).open(2).unwrap_err();
    let ConnectError::Gpu { gpu: 2, source } = beyond else { panic!("{beyond}") };
    assert_eq!(source.to_string(), "the Sundial daemon refused: no GPU 2");
    drop((all, second));
    daemon.settle();
}

#[test]
fn one_that_cannot_be_had_is_the_end_of_all() {
    let daemon = Daemon::start(Limits { sessions: 1, ..Limits::default() });
    let refused = address(&daemon).open_all().unwrap_err();
    let ConnectError::Gpu { gpu: 1, source } = refused else { panic!("{refused}") };
    assert!(source.to_string().contains("too many sessions"), "{source}");
    daemon.settle();
}

/// A client that does not know of other GPUs is not told of them; a daemon that does not know of them is not believed to have
/// opened another than its one.
#[test]
fn older_sides_have_one() {
    let daemon = Daemon::start(Limits::default());
    let old = RawClient::knowing(&daemon, 1, features::SHARED_MEMORY);
    assert_eq!((old.welcome.features & features::SEVERAL_GPUS, old.welcome.gpus), (0, 1));

    let path = PathBuf::from(format!("{}-old", daemon.path.display()));
    let listener = unix::listen(&path, 0o600).unwrap();
    let welcome = Welcome { features: features::SHARED_MEMORY, ..old.welcome.clone() };
    let served = std::thread::spawn(move || {
        let socket = unix::accept(&listener).unwrap();
        let mut buffer = [0; wire::limits::MAX_HELLO_BYTES];
        let length = unix::receive(&socket, &mut buffer).unwrap().length;
        unix::send(&socket, &Reply::Welcome(Box::new(welcome)).encode(), &[], true).unwrap();
        Hello::decode(&buffer[..length]).unwrap().gpu
    });
    let refused = Address { path: path.clone(), credential: harness::tenant(1) }.open(1).unwrap_err();
    let _ = std::fs::remove_file(&path);
    assert_eq!(served.join().unwrap(), 1);
    let ConnectError::Gpu { gpu: 1, source } = refused else { panic!("{refused}") };
    assert_eq!(source.to_string(), "there is no GPU 1: the Sundial daemon has 1 for this program");
}

/// A client with a range of addresses that imports what it likes.
struct Importer {
    client: RawClient,
    number: u32,
}

impl Importer {
    fn new(daemon: &Daemon) -> Importer {
        let mut client = RawClient::connect(daemon, 1);
        client.ask(&Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
        Importer { client, number: 0 }
    }

    /// Sends `fds` for an import, and asks for it: its answer.
    fn import(&mut self, fds: &[BorrowedFd<'_>], id: u32, offset: u64, bytes: u64) -> Result<Response, GpuError> {
        self.number += 1;
        unix::send(&self.client.socket, &frame::import_message(self.number), fds, true).unwrap();
        self.ask(id, offset, bytes)
    }

    fn ask(&mut self, id: u32, offset: u64, bytes: u64) -> Result<Response, GpuError> {
        self.client.push(&frame::import(self.number, Import { id: AllocId(id), offset, bytes }));
        let (mut answer, socket) = (Vec::new(), &self.client.socket);
        self.client.answers.pop(&mut answer, &|| !unix::hung_up(socket)).unwrap();
        let (number, _, body) = wire::parse_answer(&answer).unwrap();
        assert_eq!(number, self.number);
        wire::decode_answer(body).unwrap()
    }
}

/// A memory file with these flags and seals.
fn stranger(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> rustix::io::Result<OwnedFd> {
    let file = memfd_create("stranger's", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, seals)?;
    Ok(file)
}

#[test]
fn what_cannot_be_imported_is_refused_and_the_session_goes_on() {
    let daemon = Daemon::start(Limits::default());
    let mut client = Importer::new(&daemon);
    let file = Memfd::create("good", 4 * PAGE).unwrap();
    let good = file.as_fd();
    let invalid = |answer: &Result<Response, GpuError>| matches!(answer, Err(GpuError::InvalidValue { .. }));
    // None came, or more than one, or more than anybody takes.
    client.number += 1;
    let answer = client.ask(1, 0, PAGE);
    assert!(invalid(&answer), "{answer:?}");
    for count in [0, 2, 8] {
        let answer = client.import(&vec![good; count], 1, 0, PAGE);
        assert!(invalid(&answer), "{count}: {answer:?}");
    }
    // What is no memory file that stays as large as it is.
    let (socket, _peer) = unix::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    let shared = File::open("/proc/self/status").unwrap();
    let none = MemfdFlags::empty();
    let mut wrong = vec![
        ("a socket", socket),
        ("/dev/null", null.into()),
        ("of /proc", shared.into()),
        ("not sealed", stranger(none, 4 * PAGE, SealFlags::GROW).unwrap()),
        ("half a page", stranger(none, 4 * PAGE + 7, SealFlags::SHRINK).unwrap()),
        ("empty", stranger(none, 0, SealFlags::SHRINK).unwrap()),
    ];
    match stranger(MemfdFlags::HUGETLB, 2 << 20, SealFlags::SHRINK | SealFlags::GROW) {
        Ok(huge) => wrong.push(("of huge pages", huge)),
        Err(error) => eprintln!("SKIPPED: no file of huge pages: {error}"),
    }
    for (what, fd) in &wrong {
        let answer = client.import(&[fd.as_fd()], 1, 0, PAGE);
        assert!(invalid(&answer), "{what}: {answer:?}");
    }
    // What it does not have; what is no memory; a name that is taken.
    for (offset, bytes) in [(0, 5 * PAGE), (4 * PAGE, PAGE), (u64::MAX - PAGE + 1, PAGE), (7, PAGE), (0, 0), (0, 7)] {
        let answer = client.import(&[good], 1, offset, bytes);
        assert!(invalid(&answer), "{offset:#x} {bytes:#x}: {answer:?}");
    }
    assert!(matches!(client.import(&[good], 1, 0, !(PAGE - 1)), Err(GpuError::OutOfMemory { .. })));
    assert_eq!(client.import(&[good], 1, PAGE, 2 * PAGE), Ok(Response::Done));
    assert!(matches!(client.import(&[good], 1, PAGE, PAGE), Err(GpuError::InvalidId { .. })));
    assert_eq!(client.import(&[good], 2, 0, PAGE), Ok(Response::Done));
    drop(client);
    assert!(matches!(daemon.ended.recv_timeout(BOUND), Ok(Ended::ClientLeft)), "it has gone on all the time");
    daemon.settle();
}

#[test]
fn who_does_not_know_what_it_hands_over_loses_its_session() {
    let daemon = Daemon::start(Limits::default());
    let file = Memfd::create("good", PAGE).unwrap();
    for (message, features) in [
        // For another import; none at all; more than one.
        (&frame::import_message(8)[..], features::ALL),
        (b"abc", features::ALL),
        (b"abcdefgh", features::ALL),
        // An import where there are none.
        (b"", features::ALL & !features::SEVERAL_GPUS),
    ] {
        let mut client = RawClient::knowing(&daemon, 1, features);
        if !message.is_empty() {
            unix::send(&client.socket, message, &[file.as_fd()], true).unwrap();
        }
        client.push(&frame::import(7, Import { id: AllocId(1), offset: 0, bytes: PAGE }));
        let ended = daemon.ended.recv_timeout(BOUND).unwrap();
        assert!(matches!(ended, Ended::Protocol(_)), "{message:?}: {ended}");
    }
    daemon.settle();
}

#[test]
fn what_lies_in_the_socket_holds_nobody_up() {
    let daemon = Daemon::start(Limits::default());
    let mut client = Importer::new(&daemon);
    let file = Memfd::create("good", PAGE).unwrap();
    // As many as there is room for; nobody takes them, and the session serves what it is asked.
    while unix::send(&client.client.socket, &frame::import_message(1), &[file.as_fd()], false).is_ok() {}
    client.client.ask(&Request::MemoryInfo);
    client.number = 1;
    assert_eq!(client.ask(1, 0, PAGE), Ok(Response::Done), "one of them is for it");
    let gpu = daemon.connect(2);
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    drop((client, gpu));
    daemon.settle();
}
