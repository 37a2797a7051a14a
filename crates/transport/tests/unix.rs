//! Message sockets: descriptors travel, limits hold, death is seen.

use std::os::fd::AsFd;
use std::time::Duration;

use hostmem::Memfd;
use transport::unix;

#[test]
fn messages_carry_descriptors_and_name_the_peer() {
    let directory = std::env::temp_dir().join(format!("transport-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("test.sock");
    let listener = unix::listen(&path, 0o600).unwrap();
    let client = unix::connect(&path).unwrap();
    let server = unix::accept(&listener).unwrap();
    assert_eq!(unix::peer(&server).unwrap().pid, std::process::id() as i32);

    let file = Memfd::create("sent", 4096).unwrap();
    file.map().unwrap().write(10, b"hello");
    unix::send(&client, b"take this", &[file.as_fd()], true).unwrap();
    let mut buffer = [0; 64];
    let unix::Received { length, fds, fds_lost } = unix::receive(&server, &mut buffer).unwrap();
    assert_eq!((&buffer[..length], fds_lost), (&b"take this"[..], false));
    let received = Memfd::from_fd(fds.into_iter().next().unwrap()).unwrap();
    let mut text = [0; 5];
    received.map().unwrap().read(10, &mut text);
    assert_eq!(&text, b"hello");

    unix::send(&client, &[7; 65], &[], true).unwrap();
    assert!(unix::receive(&server, &mut buffer).is_err(), "longer than the buffer");

    unix::set_timeout(&server, Some(Duration::from_millis(10))).unwrap();
    assert_eq!(unix::receive(&server, &mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(!unix::hung_up(&server));
    drop(client);
    assert!(unix::hung_up(&server));
    assert_eq!(unix::receive(&server, &mut buffer).unwrap().length, 0);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_strangers_send_is_taken_without_waiting_and_as_it_is() {
    let (ours, theirs) = unix::pair().unwrap();
    let mut buffer = [0; 4];
    assert!(unix::try_receive(&ours, &mut buffer).unwrap().is_none() && !unix::has_unreceived(&ours));
    let file = Memfd::create("sent", 4096).unwrap();
    let many = [file.as_fd(); 8];
    // Longer than the buffer; descriptors; descriptors without a byte.
    for (message, fds) in [(&b"too long"[..], &many[..1]), (b"four", &many), (b"", &many[..2])] {
        unix::send(&theirs, message, fds, true).unwrap();
        assert!(unix::has_unreceived(&ours) && unix::has_unreceived(&ours), "looking takes nothing");
        let received = unix::try_receive(&ours, &mut buffer).unwrap().unwrap();
        assert_eq!((received.length, received.fds.len(), received.fds_lost), (message.len(), fds.len(), false));
    }
    assert!(!unix::has_unreceived(&ours));
    unix::send(&theirs, b"last", &many[..1], true).unwrap();
    unix::shut_down(&ours);
    assert!(unix::hung_up(&theirs) && unix::send(&theirs, b"more", &[], true).is_err());
    assert!(unix::has_unreceived(&ours), "what came before is there");
    assert_eq!(unix::try_receive(&ours, &mut buffer).unwrap().unwrap().fds.len(), 1);
    assert!(!unix::has_unreceived(&ours));
    assert_eq!(unix::try_receive(&ours, &mut buffer).unwrap().unwrap().length, 0, "closed");
}

#[test]
fn a_full_socket_does_not_block_who_asks_not_to_wait() {
    let (a, _b) = unix::pair().unwrap();
    let refused = (0..100_000).find_map(|_| unix::send(&a, &[0; 1024], &[], false).err());
    assert_eq!(refused.unwrap().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn who_accepts_nobody_is_not_waited_for_longer_than_was_said() {
    let directory = std::env::temp_dir().join(format!("transport-full-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("test.sock");
    let _listener = unix::listen(&path, 0o600).unwrap();
    let bound = Duration::from_millis(20);
    let mut waiting = Vec::new();
    let error = loop {
        match unix::connect_within(&path, bound) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000, "nobody is ever refused");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let mut buffer = [0; 8];
    let unheard = unix::receive_bare(&waiting[0], &mut buffer).unwrap_err();
    assert_eq!(unheard.kind(), std::io::ErrorKind::WouldBlock);
    std::fs::remove_dir_all(&directory).unwrap();
}
