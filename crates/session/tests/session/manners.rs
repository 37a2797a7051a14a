//! In which manner a session is served: what each promises, and what it keeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use gpu::{AllocId, Command, ContextError, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, Request, SlotId};
use remote_gpu::RemoteGpu;
use session::Ended;
use tenancy::{AccountAccess, Limits};
use transport::unix;
use wire::handshake::features;
use wire::{Transfer, frame, limits};

use crate::harness::{BOUND, Daemon, RawClient, until};
use crate::{CONTEXT, LO, QUEUE, client, done, launch, memory};

const MANNERS: [u64; 4] =
    [0, features::MESSAGES, features::ANSWERED, features::MESSAGES | features::ANSWERED | features::IMMEDIATE];

fn unknown_module() -> Command<'static> {
    let Command::Launch { kernel, grid, block, shared_bytes, cooperative, cluster, params, .. } = launch(0, &[]) else {
        unreachable!()
    };
    Command::Launch { module: ModuleId(99), kernel, grid, block, shared_bytes, cooperative, cluster, params }
}

#[test]
fn what_is_wrong_shows_at_the_call_where_calls_are_answered() {
    for manner in MANNERS {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(manner, limits::STAGING_BLOCK);
        let gpu = client(&daemon, 1, 1 << 20);
        assert_eq!(gpu.is_immediate(), manner & features::IMMEDIATE != 0);
        gpu.submit(QUEUE, &[launch(0, &[])]).unwrap();
        let refused = gpu.submit(QUEUE, &[unknown_module()]);
        let is_told = |result: &Result<(), GpuError>| {
            matches!(result, Err(GpuError::Context(ContextError::IllegalCommand { .. })))
        };
        if manner & features::ANSWERED != 0 {
            assert!(is_told(&refused), "{manner:#x}: {refused:?}");
            let later = gpu.submit(QUEUE, &[launch(0, &[])]);
            assert!(is_told(&later), "{manner:#x}: a context that has failed takes nothing more: {later:?}");
        } else {
            assert_eq!(refused, Ok(()), "{manner:#x}");
        }
        let waited = gpu.wait(CONTEXT, SlotId(1), 1, Some(BOUND));
        assert!(is_told(&waited), "{manner:#x}: {waited:?}");
    }
}

#[test]
fn round_trips_and_times_are_counted() {
    const ROUNDS: u64 = 20;
    for manner in MANNERS {
        for timed in [0, features::TIMED] {
            let daemon = Daemon::start(Limits::default());
            daemon.wish(manner | timed, limits::STAGING_BLOCK);
            let gpu = client(&daemon, 1, 4 << 20);
            let counted = || daemon.handles.lock()[0].remoting();
            let trips = |work: &dyn Fn()| {
                let before = counted().round_trips;
                work();
                assert_eq!(counted().round_trips, gpu.round_trips());
                counted().round_trips - before
            };
            let submitted = trips(&|| {
                for value in 1..=ROUNDS {
                    gpu.submit(QUEUE, &[launch(0, &[]), Command::Signal { slot: SlotId(1), value }]).unwrap();
                }
            });
            assert_eq!(submitted, if manner & features::ANSWERED != 0 { ROUNDS } else { 0 }, "{manner:#x}");
            gpu.wait(CONTEXT, SlotId(1), ROUNDS, Some(BOUND)).unwrap();
            assert_eq!(trips(&|| drop(gpu.request(Request::MemoryInfo))), 1);
            // Two blocks are two answers; in frames the whole copy has one, or each piece, if all is answered.
            let bytes = memory(2 * limits::STAGING_BLOCK);
            let copied = trips(&|| gpu.write(DevAddr(LO), bytes.range(0, 2 * limits::STAGING_BLOCK)).unwrap());
            let pieces = 2 * limits::STAGING_BLOCK / limits::PIECE_BYTES;
            let expected = match (manner & features::MESSAGES != 0, manner & features::ANSWERED != 0) {
                (true, true) => pieces as u64,
                (true, false) => 1,
                (false, _) => 2,
            };
            assert_eq!(copied, expected, "{manner:#x}");
            let seen = counted();
            assert_eq!((seen.copy_ns > 0, seen.wait_ns > 0), (timed != 0, timed != 0), "{seen:?}");
        }
    }
}

#[test]
fn a_copy_that_fails_leaves_the_session_as_it_was() {
    for manner in MANNERS {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(manner, limits::STAGING_BLOCK);
        let gpu = client(&daemon, 1, 1 << 20);
        let bytes = memory(2 << 20);
        // Its first half is mapped.
        for at in [DevAddr(LO), DevAddr(LO + (1 << 20) - 8)] {
            let whole = bytes.range(0, 2 << 20);
            assert!(matches!(gpu.write(at, whole), Err(GpuError::InvalidValue { .. })), "{manner:#x}");
            assert!(matches!(gpu.read(whole, at), Err(GpuError::InvalidValue { .. })), "{manner:#x}");
        }
        bytes.write(0, b"whole");
        gpu.write(DevAddr(LO), bytes.range(0, 5)).unwrap();
        gpu.read(bytes.range(8, 5), DevAddr(LO)).unwrap();
        let mut read = [0; 5];
        bytes.read(8, &mut read);
        assert_eq!(&read, b"whole", "{manner:#x}");
        gpu.write(DevAddr(LO), bytes.range(0, 0)).unwrap();
        gpu.read(bytes.range(0, 0), DevAddr(LO)).unwrap();
    }
}

#[test]
fn what_a_session_did_not_ask_for_ends_it() {
    let inner = frame::release(SlotId(1), 1);
    let answered = |inner: &[u8]| [&frame::answered_header(1), inner].concat();
    let request: Vec<u8> = frame::fragments(true, 1, &[0]).flat_map(|(head, body)| [&head, body].concat()).collect();
    let over = |area: u32| frame::transfer(1, true, Transfer { at: DevAddr(LO), staging: area, bytes: 8 });
    for (name, manner, bytes) in [
        ("an answer is wanted", 0, answered(&inner)),
        ("a piece in a frame", 0, frame::put_header(1, true, DevAddr(LO)).to_vec()),
        ("pieces in frames", features::ANSWERED, frame::get(1, DevAddr(LO), 8).to_vec()),
        ("a request is answered anyway", features::ANSWERED, answered(&request)),
        ("an envelope in another", features::ANSWERED, answered(&answered(&inner))),
        ("an empty envelope", features::ANSWERED, answered(&[])),
        ("nothing at all", features::MESSAGES, frame::get(1, DevAddr(LO), 0).to_vec()),
        ("behind the staging area", 0, over(limits::STAGING_BYTES as u32)),
    ] {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(manner, limits::STAGING_BLOCK);
        let mut client = RawClient::connect(&daemon, 1);
        client.push(&bytes);
        let ended = daemon.ended.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{name}: the session goes on"));
        assert!(matches!(ended, Ended::Protocol(_)), "{name}: {ended}");
        daemon.settle();
    }
}

/// A client in frames that asks for what takes long, and takes nothing of it, waits for itself.
#[test]
fn who_takes_nothing_holds_up_nobody_and_has_no_more_than_its_buffers() {
    let daemon = Daemon::start(Limits::default());
    daemon.wish(features::MESSAGES, limits::STAGING_BLOCK);
    let mut silent = RawClient::connect(&daemon, 1);
    silent.ask(&Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
    silent.ask(&Request::Alloc { id: AllocId(1), bytes: 64 << 20, kind: MemoryKind::Vram });
    let access = MapAccess::ReadWrite;
    silent.ask(&Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes: 64 << 20, access });
    silent.push(&frame::get(1, DevAddr(LO), 64 << 20));
    let other = client(&daemon, 2, 1 << 20);
    let bytes = memory(1 << 20);
    other.write(DevAddr(LO), bytes.range(0, 1 << 20)).unwrap();
    assert!(!unix::hung_up(&silent.socket));
    drop((silent, other));
    daemon.settle();
}

/// Whatever is copied, the memory for it is what the session was charged for when it began.
#[test]
fn buffers_are_charged_and_do_not_grow() {
    for (manner, block) in [(0, limits::STAGING_BLOCK), (0, 8 << 20), (features::MESSAGES, limits::STAGING_BLOCK)] {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(manner, block);
        let raw = RawClient::connect(&daemon, 2);
        let charged = || daemon.accounts.each_ref().map(|account| account.with(|account| account.used()));
        assert!(raw.shared_bytes <= charged()[1].host_bytes, "{} {:?}", raw.shared_bytes, charged()[1]);
        assert_eq!(raw.welcome.staging_block as usize, block);
        assert!(raw.welcome.staging_bytes as usize >= 2 * block);
        let gpu = client(&daemon, 1, 64 << 20);
        let before = charged()[0];
        let bytes = memory(64 << 20);
        gpu.write(DevAddr(LO), bytes.range(0, 64 << 20)).unwrap();
        gpu.read(bytes.range(0, 64 << 20), DevAddr(LO)).unwrap();
        assert_eq!(charged()[0], before);
    }
    // More than its tenant may have is refused before there is a session.
    let daemon = Daemon::start(Limits { host_bytes: 64 << 20, ..Limits::default() });
    daemon.wish(0, 64 << 20);
    let refused = remote_gpu::connect_as(&daemon.path, crate::harness::tenant(1)).unwrap_err();
    assert!(refused.to_string().contains("memory"), "{refused}");
    daemon.settle();
}

/// A block of one tenant's copy that takes its time, in the device's hands, holds up no block of another's.
#[test]
fn blocks_of_several_tenants_go_side_by_side() {
    const BYTES: usize = 8 << 20;
    for manner in [0, features::MESSAGES] {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(manner, limits::STAGING_BLOCK);
        let (one, other) = (client(&daemon, 1, BYTES as u64), client(&daemon, 2, BYTES as u64));
        let copy = |gpu: &Arc<RemoteGpu>| {
            let gpu = Arc::clone(gpu);
            thread::spawn(move || {
                let bytes = memory(BYTES);
                gpu.write(DevAddr(LO), bytes.range(0, BYTES))
            })
        };
        daemon.gate.close(DevAddr(LO + (BYTES / 2) as u64));
        let held = copy(&one);
        daemon.gate.wait_for_somebody();
        // As many blocks as the first one's, none of which meets the gate: it is the first one's alone.
        let sent = other.calls_remote().load(Ordering::Relaxed);
        let bytes = memory(BYTES);
        other.write(DevAddr(LO), bytes.range(0, BYTES / 2)).unwrap();
        assert!(other.calls_remote().load(Ordering::Relaxed) > sent);
        assert!(!held.is_finished());
        done(&other, Request::Unmap { at: DevAddr(LO), bytes: BYTES as u64 });
        daemon.gate.open();
        held.join().unwrap().unwrap();
        drop((one, other));
        until("both have left", || daemon.ended.try_iter().count() > 0);
    }
}
