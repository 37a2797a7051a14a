//! Programs with several GPUs: a session with each.

use std::path::PathBuf;

use remote_gpu::{Address, ConnectError};
use tenancy::Limits;
use transport::unix;
use wire::handshake::features;
use wire::{Hello, Reply, Welcome};

use crate::harness::{self, Daemon, GPUS, RawClient};

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
