//! Clients that break the rules, or die.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory, SlotId,
};
use proptest::prelude::*;
use session::{Ended, OWN};
use tenancy::{AccountAccess, Limits};
use transport::unix;
use wire::handshake::features;
use wire::{Transfer, WireError, encode_command, frame};

use crate::harness::{BOUND, Daemon, FAULT, RawClient, until};

const LO: u64 = 1 << 40;

/// The first requests of a client: a queue, a module, memory.
fn beginning() -> Vec<Request> {
    vec![
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(1), context: ContextId(1), priority: 0 },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![b'x'; 40_000]), placed: vec![] },
        Request::Alloc { id: AllocId(1), bytes: 1 << 20, kind: MemoryKind::Vram },
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes: 1 << 20, access: MapAccess::ReadWrite },
        Request::Alloc { id: AllocId(2), bytes: 1 << 20, kind: MemoryKind::Host },
    ]
}

fn submission(commands: &[Command<'_>]) -> Vec<u8> {
    let mut bytes = frame::submit_header(QueueId(1)).to_vec();
    for command in commands {
        encode_command(command, &mut bytes).unwrap();
    }
    bytes
}

fn endless() -> Vec<u8> {
    let launch = Command::Launch {
        module: ModuleId(1),
        kernel: 1,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &[],
    };
    submission(&[launch])
}

fn prepared(daemon: &Daemon) -> RawClient {
    let mut client = RawClient::connect(daemon, 1);
    for request in beginning() {
        client.ask(&request);
    }
    client
}

/// Another client of the same daemon still works.
fn neighbour_is_well(daemon: &Daemon) {
    let gpu = daemon.connect(2);
    for request in beginning() {
        gpu.request(request).unwrap();
    }
    gpu.submit(QueueId(1), &[Command::Signal { slot: SlotId(0), value: 1 }]).unwrap();
    gpu.wait(ContextId(1), SlotId(0), 1, Some(BOUND)).unwrap();
}

#[test]
fn a_client_that_dies_while_its_thread_is_busy_is_cleared_away() {
    let daemon = Daemon::start(Limits::default());
    let mut client = prepared(&daemon);
    client.push(&endless());
    // The session's thread now waits for a queue that will never be empty.
    client.request(0, &Request::DestroyQueue { id: QueueId(1) });
    neighbour_is_well(&daemon);
    let died = Instant::now();
    drop(client);
    daemon.settle();
    assert!(died.elapsed() < Duration::from_secs(5), "{:?}", died.elapsed());
}

#[test]
fn garbage_in_the_ring_ends_only_its_session() {
    let bad: [(&str, Vec<u8>); 8] = [
        ("no frame", vec![1, 2]),
        ("unknown kind", vec![99; 16]),
        ("cut command", submission(&[Command::Signal { slot: SlotId(0), value: 1 }])[..20].to_vec()),
        ("command longer than its frame", {
            let mut bytes = submission(&[Command::Signal { slot: SlotId(0), value: 1 }]);
            bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
            bytes
        }),
        ("cut request", frame::fragments(true, 1, &[3, 0, 0, 0, 1]).flat_map(|(h, b)| [&h, b].concat()).collect()),
        ("staging beyond its end", {
            frame::transfer(1, true, Transfer { at: DevAddr(LO), staging: u32::MAX, bytes: u32::MAX })
        }),
        ("short transfer", frame::transfer(1, true, Transfer { at: DevAddr(LO), staging: 0, bytes: 8 })[..12].to_vec()),
        ("answer as request", {
            let (header, body) = frame::fragments(false, 1, &[0]).next().unwrap();
            [&header, body].concat()
        }),
    ];
    let daemon = Daemon::start(Limits::default());
    for (name, bytes) in bad {
        let mut client = prepared(&daemon);
        client.push(&bytes);
        let ended = daemon.ended.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{name}: the session goes on"));
        assert!(matches!(ended, Ended::Protocol(_)), "{name}: {ended}");
        until("the client is told", || unix::hung_up(&client.socket));
    }
    neighbour_is_well(&daemon);
    daemon.settle();
}

#[test]
fn a_request_of_a_newer_protocol_is_answered() {
    let daemon = Daemon::start(Limits::default());
    let mut client = prepared(&daemon);
    for (header, body) in frame::fragments(true, 5, &[255; 40]) {
        client.push(&[&header, body].concat());
    }
    let mut answer = Vec::new();
    client.answers.pop(&mut answer, &|| !unix::hung_up(&client.socket)).unwrap();
    let (number, _, body) = wire::parse_answer(&answer).unwrap();
    assert_eq!(number, 5);
    assert!(matches!(wire::decode_answer(body), Ok(Err(GpuError::Unsupported { .. }))));
    client.ask(&Request::MemoryInfo);
}

fn until_some<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until("it is there", || {
        found = look();
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_panic_ends_its_session_and_leaves_nothing() {
    let daemon = Daemon::start(Limits::default());
    let context = Request::CreateContext { id: ContextId(FAULT), runtime: RuntimeMemory::default() };
    let queue = Request::CreateQueue { id: QueueId(FAULT), context: ContextId(1), priority: 0 };
    for fault in [true, false] {
        let mut client = prepared(&daemon);
        if fault {
            client.request(0, &context);
        } else {
            client.ask(&queue);
            let mut bytes = frame::submit_header(QueueId(FAULT)).to_vec();
            encode_command(&Command::Signal { slot: SlotId(0), value: 1 }, &mut bytes).unwrap();
            client.push(&bytes);
        }
        // Neighbours of before leave as well.
        let ended =
            until_some(|| daemon.ended.recv_timeout(BOUND).ok().filter(|ended| !matches!(ended, Ended::ClientLeft)));
        assert!(matches!(&ended, Ended::Panicked(text) if text.contains("a fault of the driver")), "{ended}");
        // Whoever sees this knows that all has been given back.
        until("the client is told", || unix::hung_up(&client.socket));
        neighbour_is_well(&daemon);
        daemon.settle();
    }
}

#[test]
fn a_submission_to_no_queue_fails_nothing_but_its_session() {
    let daemon = Daemon::start(Limits::default());
    let mut client = prepared(&daemon);
    let mut bytes = frame::submit_header(QueueId(77)).to_vec();
    encode_command(&Command::Signal { slot: SlotId(0), value: 1 }, &mut bytes).unwrap();
    client.push(&bytes);
    let ended = daemon.ended.recv_timeout(BOUND).unwrap();
    assert!(matches!(ended, Ended::Protocol(WireError::Unknown { what: "queue", code: 77 })), "{ended}");
    neighbour_is_well(&daemon);
    daemon.settle();
}

#[test]
fn long_requests_are_paid_for_while_they_come() {
    // Room for a session and its objects, and for a request of some megabytes.
    let limits = Limits { host_bytes: OWN.host_bytes + (24 << 20), ..Limits::default() };
    let daemon = Daemon::start(limits);
    let mut client = prepared(&daemon);
    let used = || daemon.accounts[0].with(|account| account.host_bytes());
    let before = used();
    let load =
        |id, bytes| Request::LoadModule { id: ModuleId(id), code: CodeImage::ptx(vec![b'x'; bytes]), placed: vec![] };
    // All but its last part.
    let whole = wire::encode_request(&load(7, 4 << 20)).unwrap();
    let frames: Vec<Vec<u8>> = wire::fragments(true, 1, &whole).map(|(head, body)| [&head, body].concat()).collect();
    let (last, first) = frames.split_last().unwrap();
    first.iter().for_each(|frame| client.push(frame));
    until("what has come is charged", || used() >= before + (16 << 20) - (64 << 10));
    client.push(last);
    let mut answer = Vec::new();
    client.answers.pop(&mut answer, &|| !unix::hung_up(&client.socket)).unwrap();
    assert!(matches!(wire::decode_answer(wire::parse_answer(&answer).unwrap().2), Ok(Ok(_))));
    until("only the module stays", || used() < before + (5 << 20));

    let held = used();
    client.request(2, &load(8, 32 << 20));
    client.answers.pop(&mut answer, &|| !unix::hung_up(&client.socket)).unwrap();
    let refused = wire::decode_answer(wire::parse_answer(&answer).unwrap().2);
    assert!(matches!(refused, Ok(Err(GpuError::OutOfMemory { .. }))), "{refused:?}");
    until("a refused request costs nothing", || used() == held);
    client.ask(&Request::MemoryInfo);
    drop(client);
    daemon.settle();
}

#[test]
fn absurd_indices_end_only_their_session() {
    let daemon = Daemon::start(Limits::default());
    for head in [u64::MAX, 1 << 40, 7, 1 << 63] {
        let mut client = prepared(&daemon);
        let at = client.welcome.command_ring.0 as usize;
        client.area.u64_at(at).store(head, Ordering::SeqCst);
        client.area.u32_at(at + 128).store(0, Ordering::SeqCst);
        client.area.wake_all(at + 128);
        client.push(&[]);
        assert!(matches!(daemon.ended.recv_timeout(BOUND), Ok(Ended::Ring(_) | Ended::Protocol(_))), "{head:#x}");
    }
    // A consumer index of answers that lies: the session's producer refuses it.
    let mut client = prepared(&daemon);
    let tail = client.welcome.answer_ring.0 as usize + 64;
    client.area.u64_at(tail).store(u64::MAX, Ordering::SeqCst);
    for number in 0..20_000 {
        if unix::hung_up(&client.socket) {
            break;
        }
        client.request(number, &Request::MemoryInfo);
    }
    assert!(matches!(daemon.ended.recv_timeout(BOUND), Ok(Ended::Ring(_))));
    neighbour_is_well(&daemon);
    daemon.settle();
}

#[test]
fn talk_on_the_socket_and_bad_hellos_are_refused() {
    let daemon = Daemon::start(Limits::default());
    // Of a session in which nothing is handed over: the monitor does not let it say a word.
    let client = RawClient::knowing(&daemon, 1, features::ALL & !features::SEVERAL_GPUS);
    unix::send(&client.socket, b"and another thing", &[], true).unwrap();
    assert!(matches!(daemon.ended.recv_timeout(BOUND), Ok(Ended::ClientLeft)));

    for hello in [&b"GET / HTTP/1.1\r\n"[..], &[0; 200], b"SUNDIAL\0\x09\0\0\0\0\0\0\0"] {
        let socket = unix::connect(&daemon.path).unwrap();
        unix::send(&socket, hello, &[socket.as_fd()], true).unwrap();
        let mut buffer = [0; 2048];
        let length = unix::receive(&socket, &mut buffer).unwrap().length;
        let reply = wire::Reply::decode(&buffer[..length]);
        assert!(matches!(reply, Ok(wire::Reply::Refused(_))), "{reply:?}");
    }
    drop(unix::connect(&daemon.path).unwrap());
    neighbour_is_well(&daemon);
    daemon.settle();
}

#[test]
fn a_client_that_takes_nothing_blocks_only_itself() {
    let daemon = Daemon::start(Limits::default());
    let mut client = prepared(&daemon);
    // Fill the answer ring: the session's thread waits for room.
    let full = client.welcome.command_ring.1 as usize + client.welcome.answer_ring.1 as usize;
    for number in 0..(full / 16) as u32 {
        let whole = wire::encode_request(&Request::MemoryInfo).unwrap();
        let (header, body) = frame::fragments(true, number, &whole).next().unwrap();
        if !client.commands.try_push(&[&header, body]).unwrap() {
            break;
        }
    }
    neighbour_is_well(&daemon);
    drop(client);
    daemon.settle();

    // Descriptors that nobody takes.
    let mut client = prepared(&daemon);
    for id in 10..2000 {
        client.request(0, &Request::Alloc { id: AllocId(id), bytes: 4096, kind: MemoryKind::Host });
        while client.answers.try_pop(&mut Vec::new()).unwrap() {}
        if unix::hung_up(&client.socket) {
            break;
        }
    }
    neighbour_is_well(&daemon);
    drop(client);
    daemon.settle();
}

#[test]
fn waiters_learn_that_the_daemon_is_gone() {
    let daemon = Daemon::start(Limits::default());
    let gpu = daemon.connect(1);
    for request in beginning() {
        gpu.request(request).unwrap();
    }
    let waiting = Arc::clone(&gpu);
    let waiter = std::thread::spawn(move || waiting.wait(ContextId(1), SlotId(5), 1, None));
    daemon.handles.lock()[0].end();
    assert!(matches!(waiter.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(matches!(gpu.request(Request::MemoryInfo), Err(GpuError::Lost { .. })));
    assert!(matches!(gpu.submit(QueueId(1), &[]), Err(GpuError::Lost { .. })));
    assert!(matches!(gpu.flush(), Err(GpuError::Lost { .. })));
    daemon.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// A client does part of its work, and dies: whatever the moment, nothing stays.
    #[test]
    fn death_at_any_moment_leaves_nothing(steps in 0usize..14, wait in any::<bool>(), noise in prop::collection::vec(any::<u8>(), 0..64)) {
        let daemon = Daemon::start(Limits::default());
        let mut client = RawClient::connect(&daemon, 1);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        for request in beginning() {
            let whole = wire::encode_request(&request).unwrap();
            frames.extend(wire::fragments(true, 0, &whole).map(|(header, body)| [&header, body].concat()));
        }
        frames.push(submission(&[Command::Write { dst: DevAddr(LO), data: &[1; 5000] }]));
        frames.push(endless());
        frames.push(noise);
        for bytes in frames.iter().take(steps) {
            client.push(bytes);
        }
        if wait && steps < frames.len() {
            let at = client.welcome.command_ring.0 as usize;
            let head = client.area.u64_at(at).load(Ordering::SeqCst);
            until("the session has read all", || client.area.u64_at(at + 64).load(Ordering::SeqCst) == head);
        }
        drop(client);
        daemon.settle();
    }

    /// Arbitrary frames never end more than their own session.
    #[test]
    fn arbitrary_frames_are_survived(frames in prop::collection::vec((0u8..6, 0u8..8, prop::collection::vec(any::<u8>(), 0..300)), 1..30)) {
        let daemon = Daemon::start(Limits { allocations: 100, vram_bytes: 1 << 24, ..Limits::default() });
        let mut client = prepared(&daemon);
        for (kind, operation, mut bytes) in frames {
            if bytes.len() >= 12 {
                bytes[..8].copy_from_slice(&[kind, 0, 0, 0, 1, 0, 0, 0]);
                bytes[8..12].copy_from_slice(&[operation, 0, 0, 0]);
            }
            client.push(&bytes);
            while matches!(client.answers.try_pop(&mut Vec::new()), Ok(true)) {}
        }
        drop(client);
        neighbour_is_well(&daemon);
        daemon.settle();
    }
}
