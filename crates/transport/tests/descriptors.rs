//! A process that has no room for descriptors. By itself, because no other test may open any meanwhile.

use std::os::fd::AsFd;

use hostmem::Memfd;
use rustix::process::{Resource, Rlimit};
use transport::unix;

#[test]
fn a_message_arrives_without_the_descriptors_for_which_there_is_no_room() {
    let (ours, theirs) = unix::pair().unwrap();
    let files: Vec<Memfd> = (0..3).map(|_| Memfd::create("sent", 4096).unwrap()).collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    unix::send(&ours, b"take these", &fds, true).unwrap();
    unix::send(&ours, b"and this", &fds[..1], true).unwrap();
    // Room for one of the three.
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let mut taken = Vec::new();
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limits }).unwrap();
    let room = loop {
        match rustix::io::dup(&theirs) {
            Ok(fd) => taken.push(fd),
            Err(error) => break error,
        }
    };
    assert_eq!(room, rustix::io::Errno::MFILE);
    taken.pop();
    let mut buffer = [0; 64];
    let cut = unix::receive(&theirs, &mut buffer);
    let text = buffer;
    // Nothing that came through is kept: there is room for one again.
    let whole = unix::receive(&theirs, &mut buffer);
    drop(taken);
    rustix::process::setrlimit(Resource::Nofile, limits).unwrap();
    let cut = cut.unwrap();
    assert_eq!(&text[..cut.length], b"take these");
    assert!(cut.fds_lost && cut.fds.is_empty(), "{cut:?}");
    let whole = whole.unwrap();
    assert!(!whole.fds_lost && whole.fds.len() == 1, "{whole:?}");
}
