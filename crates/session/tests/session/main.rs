//! Whole sessions: `remote_gpu` on one side, the daemon's `session` over the toy GPU on the other.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod harness;
mod hostile;
mod manners;
mod several;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu::{
    AllocId, CodeImage, Command, Compare, ContextError, ContextId, DevAddr, GiveBack, Gpu, GpuError, MapAccess,
    MemoryKind, ModuleId, QueueId, Request, Response, RuntimeMemory, SlotId,
};
use harness::{BOUND, Daemon};
use hostmem::{Mapping, Memfd};
use remote_gpu::RemoteGpu;
use session::Ended;
use tenancy::{AccountAccess, Limits};
use wire::handshake::features;

const LO: u64 = 1 << 40;
const CONTEXT: ContextId = ContextId(1);
const QUEUE: QueueId = QueueId(1);
const MODULE: ModuleId = ModuleId(1);

fn done(gpu: &RemoteGpu, request: Request) {
    assert_eq!(gpu.request(request.clone()), Ok(Response::Done), "{request:?}");
}

/// A session with a context, a queue, a module, and `bytes` of memory mapped at `LO`.
fn client(daemon: &Daemon, tenant: u8, bytes: u64) -> Arc<RemoteGpu> {
    let gpu = daemon.connect(tenant);
    done(&gpu, Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
    done(&gpu, Request::CreateContext { id: CONTEXT, runtime: RuntimeMemory::default() });
    done(&gpu, Request::CreateQueue { id: QUEUE, context: CONTEXT, priority: 0 });
    done(&gpu, Request::Alloc { id: AllocId(1), bytes, kind: MemoryKind::Vram });
    let map = Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes, access: MapAccess::ReadWrite };
    done(&gpu, map);
    assert!(matches!(
        gpu.request(Request::LoadModule { id: MODULE, code: CodeImage::ptx(vec![b'.'; 50_000]), placed: vec![] }),
        Ok(Response::Module(_))
    ));
    gpu
}

fn memory(bytes: usize) -> Mapping {
    Memfd::create("client", bytes as u64).unwrap().map().unwrap()
}

fn launch(kernel: u32, params: &[u8]) -> Command<'_> {
    Command::Launch {
        module: MODULE,
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params,
    }
}

#[test]
fn everything_round_trips() {
    let usual = wire::limits::STAGING_BLOCK;
    for (features, block) in [
        (0, usual),
        (0, 64 << 10),
        (0, 16 << 20),
        (features::MESSAGES, usual),
        (features::ANSWERED | features::TIMED, usual),
        (features::ANSWERED | features::MESSAGES, usual),
    ] {
        let daemon = Daemon::start(Limits::default());
        daemon.wish(features, block);
        round_trip(&daemon);
    }
}

fn round_trip(daemon: &Daemon) {
    let gpu = client(daemon, 1, 16 << 20);
    assert_eq!(gpu.properties().name, "Toy");

    // Copies of odd sizes and places, larger than the staging area.
    const BYTES: usize = 9_000_001;
    let (there, back) = (memory(BYTES), memory(BYTES));
    let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 4096) as u8).collect();
    there.write(0, &pattern);
    gpu.write(DevAddr(LO + 5), there.range(0, BYTES)).unwrap();
    gpu.read(back.range(0, BYTES), DevAddr(LO + 5)).unwrap();
    let mut copy = vec![0; BYTES];
    back.read(0, &mut copy);
    assert!(copy == pattern);

    // Commands, with a launch in between, seen through a semaphore.
    let params = [7; 100];
    let long = vec![9; gpu::MAX_INLINE_BYTES];
    let commands = [
        Command::Fill { dst: DevAddr(LO), value: 0xAABB, element: 2, width: 8, height: 2, pitch: 32 },
        launch(0, &params),
        Command::Copy { dst: DevAddr(LO + 4096), src: DevAddr(LO), width: 64, height: 1, dst_pitch: 0, src_pitch: 0 },
        Command::Write { dst: DevAddr(LO + (1 << 20)), data: &long },
        Command::Signal { slot: SlotId(9), value: 5 },
    ];
    gpu.submit(QUEUE, &commands).unwrap();
    gpu.wait(CONTEXT, SlotId(9), 5, Some(BOUND)).unwrap();
    gpu.read(back.range(0, 64), DevAddr(LO + 4096)).unwrap();
    let mut lines = [0; 64];
    back.read(0, &mut lines);
    assert_eq!(lines[..16], [0xBB, 0xAA].repeat(8));
    assert_eq!(lines[32..48], [0xBB, 0xAA].repeat(8));
    gpu.read(back.range(0, 1), DevAddr(LO + (1 << 20) + 65535)).unwrap();
    back.read(0, &mut lines[..1]);
    assert_eq!(lines[0], 9);

    // The client releases a queue by storing a payload itself.
    gpu.submit(QUEUE, &[Command::Wait { slot: SlotId(3), value: 1 }, Command::Signal { slot: SlotId(9), value: 6 }])
        .unwrap();
    assert_eq!(gpu.wait(CONTEXT, SlotId(9), 6, Some(Duration::from_millis(20))), Err(GpuError::TimedOut));
    gpu.release(SlotId(3), 1).unwrap();
    assert_eq!(gpu.semaphores().payload(SlotId(3)), 1);
    gpu.wait(CONTEXT, SlotId(9), 6, Some(BOUND)).unwrap();

    // It waits for a word in memory, and writes one.
    let wait = Command::WaitValue { at: DevAddr(LO + 8), value: 3, wide: false, compare: Compare::CyclicGeq };
    gpu.submit(QUEUE, &[wait, Command::WriteValue { at: DevAddr(LO + 16), value: 9, wide: true }]).unwrap();
    gpu.submit(QUEUE, &[Command::Signal { slot: SlotId(9), value: 7 }]).unwrap();
    assert_eq!(gpu.wait(CONTEXT, SlotId(9), 7, Some(Duration::from_millis(20))), Err(GpuError::TimedOut));
    back.write(0, &4u32.to_le_bytes());
    gpu.write(DevAddr(LO + 8), back.range(0, 4)).unwrap();
    gpu.wait(CONTEXT, SlotId(9), 7, Some(BOUND)).unwrap();
    gpu.read(back.range(0, 8), DevAddr(LO + 16)).unwrap();
    assert_eq!(back.u64_at(0).load(Ordering::Relaxed), 9);

    // Host memory is one file for both.
    done(&gpu, Request::Alloc { id: AllocId(2), bytes: 8192, kind: MemoryKind::Host });
    let at = DevAddr(LO + (64 << 20));
    done(&gpu, Request::Map { at, id: AllocId(2), offset: 0, bytes: 8192, access: MapAccess::ReadWrite });
    let place = gpu.host_memory(AllocId(2)).unwrap();
    let host = place.file.map().unwrap();
    gpu.write(DevAddr(at.0 + 100), there.range(0, 16)).unwrap();
    host.read(place.offset as usize + 100, &mut lines[..16]);
    assert_eq!(lines[..16], pattern[..16]);
    assert!(gpu.host_memory(AllocId(1)).is_err());

    assert!(matches!(gpu.request(Request::MemoryInfo), Ok(Response::Memory { .. })));
    assert!(gpu.calls_remote().load(Ordering::Relaxed) > 10);
    gpu.calls_local().store(77, Ordering::Relaxed);
    let counted = daemon.handles.lock()[0].calls();
    assert_eq!(counted, (77, gpu.calls_remote().load(Ordering::Relaxed)));
    drop(gpu);
    assert!(matches!(daemon.ended.recv_timeout(BOUND), Ok(Ended::ClientLeft)));
    daemon.settle();
}

#[test]
fn long_batches_and_many_threads_keep_their_order() {
    let daemon = Daemon::start(Limits::default());
    let gpu = client(&daemon, 1, 1 << 20);
    let data = [1; 1000];
    let batch: Vec<Command<'_>> = (0..10_000)
        .map(|i| match i % 3 {
            0 => Command::Write { dst: DevAddr(LO), data: &data },
            1 => Command::Signal { slot: SlotId(1), value: i },
            _ => launch(0, &data),
        })
        .chain([Command::Signal { slot: SlotId(1), value: 10_000 }])
        .collect();
    gpu.submit(QUEUE, &batch).unwrap();
    gpu.wait(CONTEXT, SlotId(1), 10_000, Some(BOUND)).unwrap();

    let threads: Vec<_> = (10..14)
        .map(|n| {
            let gpu = Arc::clone(&gpu);
            std::thread::spawn(move || {
                done(&gpu, Request::CreateQueue { id: QueueId(n), context: CONTEXT, priority: 0 });
                for value in 1..300 {
                    gpu.submit(QueueId(n), &[launch(0, &[]), Command::Signal { slot: SlotId(n), value }]).unwrap();
                    if value % 10 == 0 {
                        gpu.wait(CONTEXT, SlotId(n), value, Some(BOUND)).unwrap();
                        assert!(gpu.request(Request::MemoryInfo).is_ok());
                    }
                }
                gpu.wait(CONTEXT, SlotId(n), 299, Some(BOUND)).unwrap();
                done(&gpu, Request::DestroyQueue { id: QueueId(n) });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn faults_and_refusals_are_errors_of_their_context() {
    let daemon = Daemon::start(Limits::default());
    let gpu = client(&daemon, 1, 1 << 20);
    done(&gpu, Request::CreateContext { id: ContextId(2), runtime: RuntimeMemory::default() });
    done(&gpu, Request::CreateQueue { id: QueueId(2), context: ContextId(2), priority: 0 });

    // The GPU finds a fault.
    let outside = DevAddr(LO + (512 << 20));
    gpu.submit(QUEUE, &[Command::Write { dst: outside, data: &[1] }, Command::Signal { slot: SlotId(1), value: 1 }])
        .unwrap();
    let error = gpu.wait(CONTEXT, SlotId(1), 1, Some(BOUND)).unwrap_err();
    assert_eq!(
        error,
        GpuError::Context(ContextError::IllegalAddress { address: outside.0, write: true, site: String::new() })
    );

    // The session refuses what names nothing.
    gpu.submit(
        QueueId(2),
        &[Command::Launch {
            module: ModuleId(99),
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: false,
            cluster: [1; 3],
            params: &[],
        }],
    )
    .unwrap();
    let error = gpu.wait(ContextId(2), SlotId(2), 1, Some(BOUND)).unwrap_err();
    assert!(matches!(error, GpuError::Context(ContextError::IllegalCommand { .. })), "{error}");

    // A third context is well, and stays so.
    done(&gpu, Request::CreateContext { id: ContextId(3), runtime: RuntimeMemory::default() });
    done(&gpu, Request::CreateQueue { id: QueueId(3), context: ContextId(3), priority: 0 });
    gpu.submit(QueueId(3), &[Command::Signal { slot: SlotId(3), value: 1 }]).unwrap();
    gpu.wait(ContextId(3), SlotId(3), 1, Some(BOUND)).unwrap();

    // Failed requests change nothing.
    let unmapped = memory(4096);
    assert!(matches!(gpu.write(outside, unmapped.range(0, 10)), Err(GpuError::InvalidValue { .. })));
    assert!(matches!(gpu.read(unmapped.range(0, 10), DevAddr(0)), Err(GpuError::InvalidValue { .. })));
    assert!(matches!(gpu.request(Request::Free { id: AllocId(1) }), Err(GpuError::InvalidValue { .. })));
    assert!(matches!(gpu.request(Request::Free { id: AllocId(50) }), Err(GpuError::InvalidId { .. })));
    let long = vec![0; gpu::MAX_INLINE_BYTES + 1];
    let refused = gpu.submit(QueueId(3), &[Command::Write { dst: DevAddr(LO), data: &long }]);
    assert!(matches!(refused, Err(GpuError::InvalidValue { .. })));
    done(&gpu, Request::Unmap { at: DevAddr(LO), bytes: 1 << 20 });
    done(&gpu, Request::Free { id: AllocId(1) });
}

#[test]
fn tenants_are_apart_and_limits_cover_all_their_sessions() {
    let limits = Limits { vram_bytes: 8 << 20, sessions: 2, ..Limits::default() };
    let daemon = Daemon::start(limits);
    let (a, b) = (client(&daemon, 1, 4 << 20), client(&daemon, 2, 4 << 20));
    let data = memory(4096);
    data.write(0, b"of tenant one");
    a.write(DevAddr(LO), data.range(0, 13)).unwrap();
    let seen = memory(4096);
    b.read(seen.range(0, 13), DevAddr(LO)).unwrap();
    let mut bytes = [1; 13];
    seen.read(0, &mut bytes);
    assert_eq!(bytes, [0; 13], "same names, same addresses, other memory");

    // A second session of tenant 1 finds what the first has used; a third is not let in.
    let a2 = daemon.connect(1);
    let Ok(Response::Memory { free, total }) = a2.request(Request::MemoryInfo) else { panic!("memory info") };
    assert_eq!(total, 8 << 20);
    assert!(free < 4 << 20, "the module counts as well: {free}");
    let refused = a2.request(Request::Alloc { id: AllocId(1), bytes: 4 << 20, kind: MemoryKind::Vram });
    assert!(matches!(refused, Err(GpuError::OutOfMemory { limit: 0x80_0000, .. })), "{refused:?}");
    done(&a2, Request::Alloc { id: AllocId(1), bytes: 2 << 20, kind: MemoryKind::Vram });
    let third = remote_gpu::connect_as(&daemon.path, harness::tenant(1)).unwrap_err();
    assert!(third.to_string().contains("too many sessions"), "{third}");
    let stranger = remote_gpu::connect_as(&daemon.path, harness::tenant(9)).unwrap_err();
    assert!(stranger.to_string().contains("tenant"), "{stranger}");

    drop((a, a2));
    harness::until("tenant 1 may use all again", || {
        daemon.accounts[0].with(|account| account.used()) == tenancy::Used::default()
    });
    drop(b);
    daemon.settle();
}

#[test]
fn what_is_posted_comes_before_what_is_asked() {
    let daemon = Daemon::start(Limits { allocations: 4, ..Limits::default() });
    let gpu = client(&daemon, 1, 1 << 20);
    // Many times more than the daemon may owe answers, and more at once than the tenant may have.
    for round in 0u32..300 {
        let (id, at) = (AllocId(10 + round), DevAddr(LO + (64 << 20)));
        done(&gpu, Request::Alloc { id, bytes: 4096, kind: MemoryKind::Vram });
        done(&gpu, Request::Map { at, id, offset: 0, bytes: 4096, access: MapAccess::ReadWrite });
        gpu.post(GiveBack::Unmap { at, bytes: 4096 }).unwrap();
        gpu.post(GiveBack::Free { id }).unwrap();
    }
    for _ in 0..500 {
        // Refused, and nobody hears of it.
        gpu.post(GiveBack::Free { id: AllocId(7777) }).unwrap();
    }
    let bytes = memory(64);
    gpu.read(bytes.range(0, 64), DevAddr(LO)).unwrap();
    done(&gpu, Request::Alloc { id: AllocId(8), bytes: 4096, kind: MemoryKind::Vram });
}
