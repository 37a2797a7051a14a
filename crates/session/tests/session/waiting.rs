//! Sessions that wait for memory of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gpu::{
    AllocId, CodeImage, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, Request, Response, RuntimeMemory,
};
use remote_gpu::RemoteGpu;
use session::{MemoryBroker, reserve};
use tenancy::grant::{OnFull, Rules};
use tenancy::{AccountAccess, TenantId};
use transport::unix;
use wire::handshake::features;

use crate::harness::{BOUND, Daemon, RawClient, until};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 64 * MIB;

fn broker() -> Arc<MemoryBroker> {
    MemoryBroker::new(TOTAL, Rules::default(), Duration::from_secs(3600), || 0)
}

/// What there is for tenants.
fn capacity() -> u64 {
    TOTAL - reserve(TOTAL)
}

fn alloc(id: u32, bytes: u64) -> Request {
    Request::Alloc { id: AllocId(id), bytes, kind: MemoryKind::Vram }
}

fn free(id: u32) -> Request {
    Request::Free { id: AllocId(id) }
}

/// Asks again whenever there is something new, as a client's library does.
fn insist(gpu: &RemoteGpu, request: &Request) -> Result<Response, GpuError> {
    let deferring = gpu.deferring().expect("the daemon defers");
    loop {
        let seen = deferring.news();
        match gpu.request(request.clone()) {
            Err(GpuError::Deferred) => deferring.wait_for_news(seen, BOUND).unwrap(),
            answer => return answer,
        }
    }
}

fn connect(daemon: &Daemon, tenant: u8) -> Arc<RemoteGpu> {
    let gpu = daemon.connect(tenant);
    assert_eq!(gpu.request(Request::SetAddressRange { lo: 1 << 40, bytes: 1 << 30 }), Ok(Response::Done));
    gpu
}

/// The waiting bytes of a session, as `ps` shows them.
fn waits_for(daemon: &Daemon, session: usize) -> u64 {
    daemon.handles.lock()[session].waiting().map_or(0, |(bytes, _)| bytes)
}

#[test]
fn a_request_waits_and_nothing_waits_with_it() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(None));
    let (one, two) = (connect(&daemon, 1), connect(&daemon, 2));
    assert_eq!(one.request(alloc(1, 40 * MIB)), Ok(Response::Done));
    assert_eq!(two.request(alloc(7, 30 * MIB)), Err(GpuError::Deferred));
    assert_eq!(two.request(alloc(7, 30 * MIB)), Err(GpuError::Deferred), "it stands in line once");
    assert_eq!((waits_for(&daemon, 0), waits_for(&daemon, 1)), (0, 30 * MIB));
    until("those who could give something back are told", || {
        [&one, &two].iter().all(|gpu| gpu.deferring().unwrap().is_wanted())
    });
    // Everything else of the same client goes on.
    let at = DevAddr(1 << 40);
    for _ in 0..3 {
        assert_eq!(two.request(Request::MemoryInfo).map(drop), Ok(()));
        assert_eq!(two.request(free(8)).map_err(drop), Err(()), "there is none of this name");
        assert_eq!(
            two.request(Request::CreateContext { id: gpu::ContextId(1), runtime: RuntimeMemory::default() }),
            Ok(Response::Done)
        );
        assert_eq!(two.request(Request::DestroyContext { id: gpu::ContextId(1) }), Ok(Response::Done));
        let host = Request::Alloc { id: AllocId(9), bytes: 4096, kind: MemoryKind::Host };
        assert_eq!(two.request(host), Ok(Response::Done));
        let access = MapAccess::ReadWrite;
        assert_eq!(
            two.request(Request::Map { at, id: AllocId(9), offset: 0, bytes: 4096, access }),
            Ok(Response::Done)
        );
        assert_eq!(two.request(Request::Unmap { at, bytes: 4096 }), Ok(Response::Done));
        assert_eq!(two.request(free(9)), Ok(Response::Done));
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| insist(&two, &alloc(7, 30 * MIB)));
        assert_eq!(one.request(free(1)), Ok(Response::Done));
        assert_eq!(waits.join().unwrap(), Ok(Response::Done));
    });
    assert_eq!(waits_for(&daemon, 1), 0);
    assert_eq!((broker.held(TenantId(0)), broker.held(TenantId(1))), (0, 30 * MIB));
    until("everybody is told that nobody waits", || !one.deferring().unwrap().is_wanted());
    assert_eq!(two.request(free(7)), Ok(Response::Done));
    drop((one, two));
    daemon.settle();
    broker.end();
}

#[test]
fn a_waiter_is_served_by_what_its_own_threads_give_back() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(None));
    let gpu = connect(&daemon, 1);
    assert_eq!(gpu.request(alloc(1, 40 * MIB)), Ok(Response::Done));
    // Its limit would be exceeded: that is not waited for.
    assert!(matches!(gpu.request(alloc(2, 30 * MIB)), Err(GpuError::OutOfMemory { .. })));
    let other = connect(&daemon, 2);
    assert_eq!(other.request(alloc(1, 10 * MIB)), Err(GpuError::Deferred), "one may want all of it");
    assert_eq!(gpu.request(alloc(3, 10 * MIB)), Ok(Response::Done), "and goes on");
    assert_eq!(gpu.request(free(3)), Ok(Response::Done));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| insist(&other, &alloc(1, 10 * MIB)));
        assert_eq!(gpu.request(free(1)), Ok(Response::Done));
        assert_eq!(waits.join().unwrap(), Ok(Response::Done));
    });
    // Now the first waits for the second; and gives up.
    assert_eq!(gpu.request(alloc(4, 20 * MIB)), Err(GpuError::Deferred));
    assert_eq!(gpu.request(free(4)), Ok(Response::Done));
    assert!(gpu.request(free(4)).is_err());
    assert_eq!(waits_for(&daemon, 0), 0);
    let module = Request::LoadModule { id: ModuleId(5), code: CodeImage::ptx("."), placed: vec![] };
    assert_eq!(gpu.request(module.clone()), Err(GpuError::Deferred), "modules wait as well");
    assert_eq!(other.request(free(1)), Ok(Response::Done));
    assert!(matches!(insist(&gpu, &module), Ok(Response::Module(_))));
    assert_eq!(gpu.request(Request::UnloadModule { id: ModuleId(5) }), Ok(Response::Done));
    drop((gpu, other));
    daemon.settle();
    broker.end();
}

#[test]
fn a_wait_ends_in_time_with_its_client_and_with_its_memory() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(Some(Duration::from_millis(30))));
    let one = connect(&daemon, 1);
    assert_eq!(one.request(alloc(1, 40 * MIB)), Ok(Response::Done));
    let two = connect(&daemon, 2);
    let answer = insist(&two, &alloc(1, 30 * MIB));
    assert_eq!(
        answer,
        Err(GpuError::OutOfMemory { wanted: 30 * MIB, free: capacity() - 40 * MIB, limit: capacity() }),
        "it has waited long enough"
    );
    until("nobody waits", || !two.deferring().unwrap().is_wanted());
    // One that dies in line, and one that dies after its memory was granted and before it asks for it.
    let mut raw = RawClient::connect(&daemon, 2);
    raw.ask(&alloc(1, 30 * MIB));
    drop(raw);
    until("it does not stand in line any more", || !one.deferring().unwrap().is_wanted());
    let mut raw = RawClient::connect(&daemon, 2);
    raw.ask(&alloc(1, 30 * MIB));
    assert_eq!(one.request(free(1)), Ok(Response::Done));
    drop(raw);
    until("what was granted is given back", || broker.held(TenantId(1)) == 0);
    assert_eq!(one.request(alloc(1, 50 * MIB)), Ok(Response::Done));
    drop((one, two));
    daemon.settle();
    broker.end();
}

#[test]
fn who_does_not_know_of_waiting_does_not_wait() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(None));
    let one = connect(&daemon, 1);
    assert_eq!(one.request(alloc(1, 40 * MIB)), Ok(Response::Done));
    let mut old = RawClient::knowing(&daemon, 2, features::SHARED_MEMORY);
    assert_eq!(old.welcome.features, features::SHARED_MEMORY);
    old.request(1, &alloc(1, 30 * MIB));
    let mut answer = Vec::new();
    let socket = &old.socket;
    old.answers.pop(&mut answer, &|| !unix::hung_up(socket)).unwrap();
    let answer = wire::decode_answer(wire::parse_answer(&answer).unwrap().2).unwrap();
    assert!(matches!(answer, Err(GpuError::OutOfMemory { .. })), "{answer:?}");
    drop((one, old));
    daemon.settle();
    broker.end();
}

#[test]
fn who_fails_is_told_what_it_could_have() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(), 50 * MIB], OnFull::Fail);
    let info = |gpu: &RemoteGpu| match gpu.request(Request::MemoryInfo) {
        Ok(Response::Memory { free, total }) => (free / MIB, total / MIB),
        other => panic!("{other:?}"),
    };
    let (one, two) = (connect(&daemon, 1), connect(&daemon, 2));
    assert_eq!(one.request(alloc(1, 40 * MIB)), Ok(Response::Done));
    assert_eq!(info(&two), (50, 50), "nobody waits: the GPU itself is asked");
    assert_eq!(two.request(alloc(1, 30 * MIB)), Ok(Response::Done));
    assert_eq!(two.request(free(1)), Ok(Response::Done));
    // From now on somebody may.
    broker.set(TenantId(0), capacity(), OnFull::Wait(None));
    let free_bytes = (capacity() - 40 * MIB) / MIB;
    assert_eq!(info(&two), (free_bytes, 50));
    assert_eq!(info(&one), (free_bytes, capacity() / MIB));
    assert!(matches!(two.request(alloc(1, 30 * MIB)), Err(GpuError::OutOfMemory { .. })));
    assert_eq!(two.request(alloc(1, 10 * MIB)), Ok(Response::Done));
    assert_eq!(one.request(alloc(2, 10 * MIB)), Err(GpuError::Deferred));
    assert_eq!(info(&one).0, free_bytes - 10, "with what it waits for it comes to its limit");
    assert_eq!(info(&two).0, free_bytes - 10);
    drop((one, two));
    daemon.settle();
    broker.end();
}

#[test]
fn a_tenant_may_have_so_many_waits_and_no_more() {
    let broker = broker();
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(None));
    let one = connect(&daemon, 1);
    assert_eq!(one.request(alloc(1, 58 * MIB)), Ok(Response::Done));
    let two = connect(&daemon, 2);
    let mut waits = 0;
    let refused = loop {
        match two.request(alloc(100 + waits, 4096)) {
            Err(GpuError::Deferred) => waits += 1,
            other => break other,
        }
    };
    assert!(matches!(refused, Err(GpuError::TooMany { .. })) && waits == 64, "{refused:?} after {waits}");
    // All sessions of its tenant together.
    let again = connect(&daemon, 2);
    assert!(matches!(again.request(alloc(1, 4096)), Err(GpuError::TooMany { .. })));
    drop(again);
    assert_eq!(one.request(free(1)), Ok(Response::Done));
    for id in 0..waits {
        assert_eq!(insist(&two, &alloc(100 + id, 4096)), Ok(Response::Done));
    }
    assert_eq!(daemon.machine.bytes.load(Ordering::SeqCst), u64::from(waits) * 4096);
    assert_eq!(daemon.accounts[1].with(|account| account.used().vram_bytes), u64::from(waits) * 4096);
    drop((one, two));
    daemon.settle();
    broker.end();
}

/// What is taken beside the ledger comes and goes while memory is asked for: nobody is refused for a moment's sake, and who waits is
/// served.
#[test]
fn what_lies_beside_the_ledger_only_delays() {
    let beside = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&beside);
    let broker =
        MemoryBroker::new(TOTAL, Rules::default(), Duration::from_secs(3600), move || read.load(Ordering::SeqCst));
    let daemon = Daemon::sharing(&broker, [capacity(); 2], OnFull::Wait(None));
    let (one, two) = (connect(&daemon, 1), connect(&daemon, 2));
    // All of the GPU is lost, for now: what would fit an empty one waits.
    beside.store(TOTAL, Ordering::SeqCst);
    assert_eq!(one.request(alloc(1, 50 * MIB)), Err(GpuError::Deferred));
    assert_eq!(two.request(alloc(1, 4096)), Err(GpuError::Deferred));
    assert_eq!(two.request(free(1)), Ok(Response::Done));
    assert_eq!(
        one.request(alloc(1, 50 * MIB)),
        Err(GpuError::Deferred),
        "and is not refused by what is asked meanwhile"
    );
    beside.store(0, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| insist(&one, &alloc(1, 50 * MIB)));
        assert_eq!(waits.join().unwrap(), Ok(Response::Done), "nobody else asks for anything");
    });
    assert_eq!(one.request(free(1)), Ok(Response::Done));
    // The same while it changes all the time.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                beside.store(40 * MIB, Ordering::SeqCst);
                beside.store(0, Ordering::SeqCst);
            }
        });
        for round in 0..200 {
            assert_eq!(insist(&two, &alloc(10 + round, MIB)), Ok(Response::Done));
            assert_eq!(two.request(free(10 + round)), Ok(Response::Done));
        }
        done.store(true, Ordering::SeqCst);
    });
    drop((one, two));
    daemon.settle();
    broker.end();
}
