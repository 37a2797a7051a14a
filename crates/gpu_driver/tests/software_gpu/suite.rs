//! The driver at work, and what happens when it goes wrong. On which GPU is for those to say who include this
//! (`crate::device::make`).

mod streams;
pub(crate) mod support;
mod wakeups;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, Compare, ContextError, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind,
    ModuleId, QueueId, Request, Response, RuntimeMemory, SlotId,
};
use gpu_driver::ClientConfig;
use support::{BOUND, LO, PTX, RANGE_BYTES, Tenant, driver, eventually, kernel};

fn bytes(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

#[test]
fn kernels_run_and_see_variables() {
    let driver = driver(256);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let info = tenant.load(0, PTX);
    assert_eq!(
        info.kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(),
        ["add", "spin", "store", "stop", "count"]
    );
    assert_eq!(info.kernels[0].param_bytes, 24);
    let global = |name: &str| info.globals.iter().find(|g| g.name == name).unwrap().address;
    let at = tenant.read(global("where"), 8);
    assert_eq!(u64::from_le_bytes(at.try_into().unwrap()), global("counter").0, "the initial value is an address");

    let (n, block) = (4096, 128);
    let [out, a, b] = [tenant.alloc(n * 4), tenant.alloc(n * 4), tenant.alloc(n * 4)];
    tenant.write(a, &bytes(0..n as u32));
    tenant.write(b, &bytes((0..n as u32).map(|i| i * 10)));
    tenant.launch(0, kernel::ADD, n as u32 / block, block, &[out.0, a.0, b.0]).unwrap();
    tenant.launch(0, kernel::COUNT, 10, 32, &[]).unwrap();
    tenant.sync(0);
    assert!(tenant.read_u32(out, n as usize).into_iter().eq((0..n as u32).map(|i| 31 * i)));
    assert_eq!(tenant.read_u32(global("counter"), 1), [325]);

    // Constant memory is written by copies between launches.
    tenant.submit(0, &[Command::Write { dst: global("factor"), data: &7u32.to_le_bytes() }]);
    tenant.launch(0, kernel::ADD, n as u32 / block, block, &[out.0, a.0, b.0]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(out, n as usize)[5], 5 + 7 * 50);
    let usage = tenant.client.usage();
    assert_eq!(usage.kernels, 3);
    assert!(usage.gpu_time_ns > 0);
}

/// Commands hold 40 bits of some addresses, and take the rest from elsewhere. Where a program's addresses lie is chance.
#[test]
fn addresses_may_lie_on_both_sides_of_a_tebibyte() {
    const BOUNDARY: u64 = 0x7100_0000_0000;
    let driver = driver(256);
    let private = (RANGE_BYTES - gpu::client_bytes(RANGE_BYTES)) / 2;
    // In front of everything, in the client's part, in the driver's part at its beginning and near its end, behind everything.
    for before in
        [0, RANGE_BYTES / 2, RANGE_BYTES - private, RANGE_BYTES - private / 2, RANGE_BYTES - (2 << 20), RANGE_BYTES]
    {
        let tenant = Tenant::at(&driver, ClientConfig::default(), BOUNDARY - before);
        tenant.load(0, PTX);
        tenant.queue(1, 0);
        let [out, a, b] = [(); 3].map(|()| tenant.alloc(512));
        for queue in [0, 1] {
            tenant.write(a, &bytes((0..128).map(|i| i + queue)));
            tenant.write(b, &bytes(0..128));
            tenant.launch(queue, kernel::ADD, 1, 128, &[out.0, a.0, b.0]).unwrap();
            tenant.sync(queue);
            let sums = (0..128).map(|i| i + queue + 3 * i);
            assert!(tenant.read_u32(out, 128).into_iter().eq(sums), "{before:#x} before the boundary");
        }
    }
}

#[test]
fn copies_fills_and_writes_keep_their_order() {
    let driver = driver(256);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let (a, b) = (tenant.alloc(1 << 20), tenant.alloc(1 << 20));
    let host = tenant.try_alloc(8192, MemoryKind::Host).unwrap();
    let data: Vec<u8> = (0..60_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let line =
        |dst, src, width, height, dst_pitch, src_pitch| Command::Copy { dst, src, width, height, dst_pitch, src_pitch };
    let fill = |dst, value, element, width, height, pitch| Command::Fill { dst, value, element, width, height, pitch };
    tenant.submit(
        0,
        &[
            fill(a, 0xab, 1, 1 << 20, 1, 0),
            Command::Write { dst: DevAddr(a.0 + 3), data: &data },
            line(b, a, 1 << 20, 1, 0, 0),
            fill(DevAddr(b.0 + 100_000), 0x1234, 2, 10, 3, 64),
            fill(DevAddr(b.0 + 200_000), 0x0102_0304, 4, 8, 2, 4096),
            // A window of 5 × 4 bytes.
            line(DevAddr(b.0 + 300_000), DevAddr(b.0 + 3), 5, 4, 8, 100),
            line(host.0, DevAddr(b.0 + 3), 8000, 1, 0, 0),
        ],
    );
    tenant.launch(0, kernel::STORE, 1, 1, &[b.0 + 400_000, 0x1122_3344_5566_7788]).unwrap();
    tenant.submit(0, &[line(DevAddr(b.0 + 400_008), DevAddr(b.0 + 400_000), 8, 1, 0, 0)]);
    tenant.sync(0);
    let back = tenant.read(b, 1 << 20);
    assert_eq!(back[..3], [0xab; 3]);
    assert_eq!(back[3..60_003], data);
    assert_eq!(back[60_003], 0xab);
    assert_eq!(back[100_064..100_068], [0x34, 0x12, 0x34, 0x12]);
    assert_eq!(back[100_000 + 20], 0xab, "the line ends");
    assert_eq!(back[204_096..204_100], [4, 3, 2, 1]);
    assert_eq!(back[300_008..300_013], data[100..105]);
    assert_eq!(back[400_000..400_008], back[400_008..400_016]);
    assert_eq!(tenant.read(host.0, 8000), data[..8000], "host memory is mapped as well");
    let place = tenant.client.host_memory(host.1).unwrap();
    let mut shared = vec![0; 8000];
    place.file.map().unwrap().read(place.offset as usize, &mut shared);
    assert_eq!(shared, data[..8000], "and its file can be mapped by anyone");
}

#[test]
fn queues_wait_for_each_other_and_for_the_client() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    for queue in 1..4 {
        tenant.queue(queue, 0);
    }
    let memory = tenant.alloc(4096);
    let (gate, one, two) = (tenant.slot(), tenant.slot(), tenant.slot());
    let store = |value| Command::Fill { dst: memory, value, element: 4, width: 1, height: 1, pitch: 0 };
    tenant.submit(2, &[Command::Wait { slot: two, value: 1 }, store(3), Command::Signal { slot: two, value: 2 }]);
    tenant.submit(1, &[Command::Wait { slot: one, value: 5 }, store(2), Command::Signal { slot: two, value: 1 }]);
    tenant.submit(0, &[Command::Wait { slot: gate, value: 1 }, store(1), Command::Signal { slot: one, value: 5 }]);
    let early = tenant.client.wait(ContextId(0), two, 2, Some(Duration::from_millis(20)));
    assert_eq!(early, Err(GpuError::TimedOut));
    assert_eq!(tenant.read_u32(memory, 1), [0]);
    // The client opens the gate itself.
    tenant.client.release(gate, 1).unwrap();
    tenant.client.wait(ContextId(0), two, 2, Some(BOUND)).unwrap();
    assert_eq!(tenant.read_u32(memory, 1), [3]);
    let time = |slot: SlotId| tenant.client.semaphores().time_ns(slot);
    assert!(time(one) > 0 && time(one) <= time(two), "signals carry the GPU's time");
}

#[test]
fn queues_wait_for_words_whoever_stores_them() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.queue(1, 0);
    let (memory, id) = tenant.try_alloc(4096, MemoryKind::Host).unwrap();
    let place = tenant.client.host_memory(id).unwrap();
    let (shared, offset) = (place.file.map().unwrap(), place.offset as usize);
    let word = |index: u64| DevAddr(memory.0 + index * 8);
    let done = tenant.slot();
    let mut round = 0;
    for (compare, wide, before, value, after) in [
        (Compare::CyclicGeq, true, 4, 5, 5),
        (Compare::CyclicGeq, false, u64::from(u32::MAX), 0, 3),
        (Compare::Equal, false, 1, 7 | 1 << 40, 7),
        (Compare::Equal, true, 7, 7 | 1 << 40, 7 | 1 << 40),
        (Compare::And, true, 0xff, 1 << 40, 3 << 40),
        (Compare::Nor, false, 0xffff_ff00, 0xff, 0xff00),
    ] {
        for by_host in [false, true] {
            round += 1;
            shared.u64_at(offset).store(before, Ordering::SeqCst);
            let wait = Command::WaitValue { at: word(0), value, wide, compare };
            tenant.submit(0, &[wait, Command::Signal { slot: done, value: round }]);
            let early = tenant.client.wait(ContextId(0), done, round, Some(Duration::from_millis(10)));
            assert_eq!(early, Err(GpuError::TimedOut), "{compare:?}");
            if by_host {
                shared.u64_at(offset).store(after, Ordering::SeqCst);
            } else {
                tenant.submit(1, &[Command::WriteValue { at: word(0), value: after, wide: true }]);
            }
            tenant.client.wait(ContextId(0), done, round, Some(BOUND)).unwrap();
        }
    }
    shared.u64_at(offset + 8).store(u64::MAX, Ordering::SeqCst);
    tenant.submit(1, &[Command::WriteValue { at: word(1), value: 5, wide: false }]);
    tenant.sync(1);
    assert_eq!(shared.u64_at(offset + 8).load(Ordering::SeqCst), 5 | u64::from(u32::MAX) << 32, "four bytes, no more");
    let odd = Command::WaitValue { at: DevAddr(memory.0 + 4), value: 0, wide: true, compare: Compare::Equal };
    assert!(matches!(tenant.client.submit(QueueId(0), &[odd]), Err(GpuError::InvalidValue { .. })));
}

#[test]
fn a_fault_ends_its_context_and_nothing_else() {
    let driver = driver(256);
    let [victim, bystander] = [(); 2].map(|()| Tenant::new(&driver, ClientConfig::default()));
    victim.load(0, PTX);
    bystander.load(0, PTX);
    victim.context(1);
    victim.queue(1, 1);
    let memory = victim.alloc(4096);
    let nowhere = LO + (100 << 20);
    victim.launch(0, kernel::STORE, 1, 1, &[nowhere + 8, 1]).unwrap();
    let line = PTX.lines().position(|line| line.contains("st.global.u64 [%rd1], %rd2")).unwrap() + 1;
    let site = format!("by thread (0,0,0) of block (0,0,0), at line {line} of PTX, in kernel store");
    let expected = ContextError::IllegalAddress { address: nowhere + 8, write: true, site };
    assert_eq!(victim.sync_in(0, 0), Err(GpuError::Context(expected.clone())));
    assert_eq!(gpu::context_error(&*victim.client, ContextId(0)), Ok(Some(expected.clone())));
    assert_eq!(gpu::context_error(&*victim.client, ContextId(1)), Ok(None));
    assert_eq!(victim.launch(0, kernel::STORE, 1, 1, &[memory.0, 1]), Err(GpuError::Context(expected)));
    // The other context of the same client goes on, and so does everybody else.
    victim.launch(1, kernel::STORE, 1, 1, &[memory.0, 42]).unwrap();
    victim.sync_in(1, 1).unwrap();
    assert_eq!(victim.read_u32(memory, 1), [42]);
    let theirs = bystander.alloc(4096);
    bystander.launch(0, kernel::STORE, 1, 1, &[theirs.0, 43]).unwrap();
    bystander.sync(0);
    assert_eq!(bystander.read_u32(theirs, 1), [43]);
    // And the context can be made anew.
    victim.client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
    victim.context(0);
    victim.queue(0, 0);
    victim.launch(0, kernel::STORE, 1, 1, &[memory.0, 44]).unwrap();
    victim.sync(0);
    assert_eq!(victim.read_u32(memory, 1), [44]);
}

#[test]
fn every_error_has_its_name() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    tenant.load(1, ".version 8.5\n.target sm_75\n.address_size 64\n.entry bad() { nonsense.u32 %r1; ret; }\n");
    let read_only = tenant.try_alloc(4096, MemoryKind::Vram).unwrap();
    tenant.client.request(Request::Unmap { at: read_only.0, bytes: 4096 }).unwrap();
    let map = Request::Map { at: read_only.0, id: read_only.1, offset: 0, bytes: 4096, access: MapAccess::Read };
    tenant.client.request(map).unwrap();
    let mut context = 0;
    let mut check = |submit: &dyn Fn(u32), expected: &dyn Fn(&ContextError) -> bool| {
        context += 1;
        tenant.context(context);
        tenant.queue(context, context);
        submit(context);
        match tenant.sync_in(context, context) {
            Err(GpuError::Context(error)) => assert!(expected(&error), "{error:?}"),
            other => panic!("{other:?}"),
        }
        tenant.client.request(Request::DestroyContext { id: ContextId(context) }).unwrap();
    };
    check(
        &|queue| tenant.launch(queue, kernel::TRAP, 1, 32, &[]).unwrap(),
        &|error| matches!(error, ContextError::LaunchFailed { reason } if reason.contains("in kernel stop")),
    );
    check(
        &|queue| tenant.launch(queue, kernel::STORE, 1, 1, &[read_only.0.0, 1]).unwrap(),
        &|error| matches!(error, ContextError::IllegalAddress { address, write: true, .. } if *address == read_only.0.0),
    );
    check(&|queue| tenant.launch(queue, kernel::STORE, 1, 1, &[read_only.0.0 + 4, 1]).unwrap(), &|error| {
        matches!(error, ContextError::Misaligned { .. } | ContextError::IllegalAddress { .. })
    });
    let fill = Command::Fill { dst: DevAddr(LO + (700 << 20)), value: 1, element: 1, width: 9, height: 1, pitch: 0 };
    check(&|queue| tenant.submit(queue, &[fill]), &|error| {
        *error == ContextError::IllegalAddress { address: LO + (700 << 20), write: true, site: String::new() }
    });
    let bad = Command::Launch {
        module: ModuleId(1),
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &[],
    };
    check(
        &|queue| tenant.submit(queue, &[bad]),
        &|error| matches!(error, ContextError::InvalidKernel { log, .. } if log.contains("nonsense")),
    );
    // Who has the text can know that before; the driver does not read it.
    let prepared = tenant.client.request(Request::PrepareKernel { module: ModuleId(1), kernel: 0, stack_bytes: 0 });
    assert!(prepared.is_ok());
}

/// Adds the numbers to `n` by calling itself.
const RECURSIVE: &str = "
.version 8.5
.target sm_75
.address_size 64
.func (.param .b64 out) sum(.param .b64 n) {
    .reg .pred %p; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [n];
    mov.u64 %rd3, 0;
    setp.eq.u64 %p, %rd1, 0;
    @%p bra END;
    sub.u64 %rd2, %rd1, 1;
    { .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call.uni (r), sum, (a); ld.param.b64 %rd3, [r]; }
END:
    add.u64 %rd4, %rd3, %rd1;
    st.param.b64 [out], %rd4;
    ret;
}
.visible .entry total(.param .u64 out, .param .u64 n) {
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [n];
    { .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call.uni (r), sum, (a); ld.param.b64 %rd3, [r]; }
    st.global.u64 [%rd1], %rd3;
    ret;
}
";

#[test]
fn recursion_goes_as_deep_as_its_stack() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, RECURSIVE);
    let memory = tenant.alloc(4096);
    let prepare = |stack_bytes| {
        tenant.client.request(Request::PrepareKernel { module: ModuleId(0), kernel: 0, stack_bytes }).unwrap();
    };
    prepare(1024);
    tenant.launch(0, 0, 1, 64, &[memory.0, 20]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(memory, 1), [210]);
    prepare(16 << 10);
    tenant.launch(0, 0, 1, 64, &[memory.0, 400]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(memory, 1), [80_200]);
    prepare(1024);
    tenant.launch(0, 0, 1, 64, &[memory.0, 400]).unwrap();
    let ended = tenant.sync_in(0, 0);
    assert!(matches!(ended, Err(GpuError::Context(ContextError::LaunchFailed { .. }))), "{ended:?}");
}

#[test]
fn a_kernel_says_for_how_many_threads_there_is_local_memory() {
    const LARGE: &str = ".visible .entry large(.param .u64 out) {
        .local .b8 a[65552]; .reg .b64 %rd<3>; .reg .b32 %r<5>;
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u64 %rd2, a;
        st.local.u32 [%rd2+65548], %r1; ld.local.u32 %r2, [%rd2+65548]; ld.local.u32 %r3, [%rd2];
        add.u32 %r4, %r2, %r3; atom.global.add.u32 %r4, [%rd1], %r4; ret; }";
    // Its stack has room for what the functions that it calls have, once.
    const BOTH: &str = ".visible .entry both(.param .u64 out, .param .u64 n) {
        .local .b8 a[32768]; .reg .b64 %rd<6>;
        ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [n]; mov.u64 %rd4, a; st.local.u64 [%rd4+32760], %rd2;
        { .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call.uni (r), sum, (a); ld.param.b64 %rd3, [r]; }
        ld.local.u64 %rd5, [%rd4+32760]; add.u64 %rd3, %rd3, %rd5; st.global.u64 [%rd1], %rd3; ret; }";
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let text = format!("{RECURSIVE}{LARGE}{BOTH}");
    let info = tenant.load(0, &text);
    let memory = tenant.alloc(4096);
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let most = |kernel, stack_bytes| {
        let request = Request::PrepareKernel { module: ModuleId(0), kernel, stack_bytes };
        tenant.client.request(request).unwrap();
        let stack = stack_bytes.max(info.kernels[kernel as usize].local_bytes);
        program.lower(kernel as usize, &|_| None).unwrap().local_memory().most_threads(stack)
    };
    assert_eq!(most(0, 1024), 1024);
    let deep = most(0, 1 << 20);
    assert_eq!(deep, 128, "half a megabyte each");
    let large = most(1, 0);
    assert_eq!(large, 1023);
    assert_eq!(most(1, 1 << 20), large, "it has no stack");
    // So many can be launched indeed, and no more.
    tenant.launch(0, 1, 1, large, &[memory.0]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(memory, 1), [(0..large).sum::<u32>()]);
    tenant.launch(0, 0, 1, deep, &[memory.0, 400]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(memory, 1), [80_200]);
    most(0, 1024);
    let both = most(2, 1024);
    assert!((600..700).contains(&both), "32 KiB, and a stack of twice as much: {both}");
    tenant.launch(0, 2, 1, both, &[memory.0, 20]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(memory, 1), [230]);
    tenant.launch(0, 1, 1, large + 1, &[memory.0]).unwrap();
    let ended = tenant.sync_in(0, 0);
    let refused = |log: &str| log.contains("bytes of local memory");
    assert!(
        matches!(&ended, Err(GpuError::Context(ContextError::InvalidKernel { log, .. })) if refused(log)),
        "{ended:?}"
    );
}

#[test]
fn memory_is_zero_when_first_seen() {
    let driver = driver(64);
    let mib = 1 << 20;
    for _ in 0..3 {
        let tenant = Tenant::new(&driver, ClientConfig::default());
        let mut held = Vec::new();
        for bytes in [4096, 20_480, mib, 7 * mib, 20 * mib].into_iter().cycle().take(20) {
            let Ok((at, id)) = tenant.try_alloc(bytes, MemoryKind::Vram) else { break };
            assert!(tenant.read(at, bytes as usize).iter().all(|byte| *byte == 0));
            tenant.submit(0, &[Command::Fill { dst: at, value: 0xff, element: 1, width: bytes, height: 1, pitch: 0 }]);
            held.push((at, id, bytes));
            if held.len() % 3 == 0 {
                tenant.sync(0);
                let (at, id, bytes) = held.remove(0);
                tenant.client.request(Request::Unmap { at, bytes }).unwrap();
                tenant.client.request(Request::Free { id }).unwrap();
            }
        }
    }
    assert_eq!(driver.counts().clients, 0);
}

#[test]
fn endless_kernels_end_with_their_client() {
    let driver = driver(64);
    let before = driver.counts();
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let flag = tenant.alloc(4096);
    tenant.launch(0, kernel::SPIN, 8, 64, &[flag.0]).unwrap();
    tenant.launch(0, kernel::SPIN, 8, 64, &[flag.0]).unwrap();
    // Somebody else works beside it.
    let other = Tenant::new(&driver, ClientConfig::default());
    other.load(0, PTX);
    let memory = other.alloc(4096);
    other.launch(0, kernel::STORE, 1, 1, &[memory.0, 9]).unwrap();
    other.sync(0);
    assert_eq!(other.read_u32(memory, 1), [9]);
    let waiter = Arc::clone(&tenant.client);
    let waiting = std::thread::spawn(move || waiter.wait(ContextId(0), SlotId(77), 1, None));
    tenant.client.close();
    assert!(matches!(waiting.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(matches!(tenant.client.request(Request::MemoryInfo), Err(GpuError::Lost { .. })));
    drop(other);
    assert_eq!(driver.counts(), before);
}

#[test]
fn a_held_client_does_not_run() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let memory = tenant.alloc(4096);
    tenant.client.set_runnable(false).unwrap();
    tenant.launch(0, kernel::STORE, 1, 1, &[memory.0, 5]).unwrap();
    let slot = tenant.slot();
    tenant.submit(0, &[Command::Signal { slot, value: 1 }]);
    let held = tenant.client.wait(ContextId(0), slot, 1, Some(Duration::from_millis(30)));
    assert_eq!(held, Err(GpuError::TimedOut));
    tenant.client.set_time_slice(Duration::from_millis(4)).unwrap();
    tenant.client.set_runnable(true).unwrap();
    tenant.client.wait(ContextId(0), slot, 1, Some(BOUND)).unwrap();
    assert_eq!(tenant.read_u32(memory, 1), [5]);
}

#[test]
fn many_queues_and_threads() {
    let driver = driver(256);
    let tenant = Arc::new(Tenant::new(&driver, ClientConfig::default()));
    tenant.load(0, PTX);
    let memory = tenant.alloc(64 * 4096);
    for queue in 1..64 {
        tenant.queue(queue, 0);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tenant = Arc::clone(&tenant);
            scope.spawn(move || {
                for round in 0..40u64 {
                    for queue in (thread..64).step_by(4) {
                        let at = memory.0 + u64::from(queue) * 4096;
                        tenant.launch(queue, kernel::STORE, 1, 1, &[at + round * 8, round + 1]).unwrap();
                    }
                }
                for queue in (thread..64).step_by(4) {
                    tenant.sync(queue);
                }
            });
        }
    });
    for queue in 0..64 {
        let words = tenant.read_u32(DevAddr(memory.0 + queue * 4096), 80);
        assert!(words.chunks(2).zip(1..).all(|(pair, round)| pair == [round, 0]));
        tenant.client.request(Request::DestroyQueue { id: QueueId(queue as u32) }).unwrap();
    }
    eventually("channels go when their work is done, but for a few", || {
        tenant.client.request(Request::MemoryInfo).unwrap();
        driver.counts().channels <= 4
    });
    tenant.client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
    assert_eq!(driver.counts().channels, 0);
}

#[test]
fn a_long_queue_wraps_its_rings() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let memory = tenant.alloc(64 << 10);
    let counter = tenant.load(1, PTX).globals.iter().find(|g| g.name == "counter").unwrap().address;
    let data: Vec<u8> = (0..40_000).map(|i| i as u8).collect();
    for round in 0..1500u32 {
        let launch = Command::Launch {
            module: ModuleId(1),
            kernel: kernel::COUNT,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: round % 2 == 0,
            cluster: [1; 3],
            params: &[],
        };
        tenant.submit(0, &[launch]);
        if round % 50 == 0 {
            tenant.submit(0, &[Command::Write { dst: memory, data: &data[..(round as usize * 37) % 40_000] }]);
        }
    }
    tenant.sync(0);
    assert_eq!(tenant.read_u32(counter, 1), [1505]);
}

#[test]
fn variables_lie_where_the_client_has_placed_them() {
    const TEXT: &str = ".version 8.5\n.target sm_75\n.address_size 64\n\
        .global .attribute(.managed) .align 8 .u64 sum = 5;\n\
        .global .align 8 .u64 pointer = sum;\n\
        .const .u32 fixed = 3;\n\
        .entry k() {\n.reg .b64 %rd<4>;\nld.global.u64 %rd1, [pointer];\nld.u64 %rd2, [%rd1];\n\
        add.u64 %rd2, %rd2, 1;\nst.global.u64 [sum], %rd2;\nret;\n}\n";
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let (memory, _) = tenant.try_alloc(4096, MemoryKind::Host).unwrap();
    let place = DevAddr(memory.0 + 64);
    for (refused, placed) in [
        ("no such variable", &[("some", place)][..]),
        ("a constant", &[("fixed", place)]),
        ("twice", &[("sum", place), ("sum", place)]),
        ("misaligned", &[("sum", DevAddr(place.0 + 4))]),
        ("not mapped", &[("sum", DevAddr(memory.0 + 4096))]),
        ("around the end of memory", &[("sum", DevAddr(u64::MAX - 7))]),
        ("overlapping", &[("sum", place), ("pointer", place)]),
    ] {
        let result = tenant.load_placed(0, TEXT, placed);
        assert!(matches!(result, Err(GpuError::InvalidValue { .. })), "{refused}: {result:?}");
    }
    let used = tenant.client.memory_used();
    let info = tenant.load_placed(0, TEXT, &[("sum", place)]).unwrap();
    let at = |name: &str| info.globals.iter().find(|global| global.name == name).unwrap().address;
    assert_eq!(at("sum"), place);
    assert_eq!(tenant.read(at("pointer"), 8), place.0.to_le_bytes(), "what refers to it knows the place");
    assert_eq!(tenant.read(place, 8), [0; 8], "its initial value is the client's affair");
    tenant.write(place, &41u64.to_le_bytes());
    tenant.launch(0, 0, 1, 1, &[]).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read(place, 8), 42u64.to_le_bytes());
    tenant.client.request(Request::UnloadModule { id: ModuleId(0) }).unwrap();
    assert_eq!(tenant.client.memory_used(), used);
    assert_eq!(tenant.read(place, 8), 42u64.to_le_bytes(), "the memory stays the client's");
}

#[test]
fn modules_come_and_go() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(4096);
    let used = tenant.client.memory_used();
    for value in 1..20u32 {
        let ptx = format!(
            ".version 8.5\n.target sm_75\n.address_size 64\n.entry k(.param .u64 at) {{\n.reg .b64 %rd1;\n\
             ld.param.u64 %rd1, [at];\nst.global.u32 [%rd1], {value};\nret;\n}}\n"
        );
        tenant.load(0, &ptx);
        tenant.launch(0, 0, 1, 1, &[memory.0]).unwrap();
        tenant.sync(0);
        assert_eq!(tenant.read_u32(memory, 1), [value], "the program at this address is the new one");
        tenant.client.request(Request::UnloadModule { id: ModuleId(0) }).unwrap();
        assert_eq!(tenant.client.memory_used(), used);
    }
}

#[test]
fn clients_can_be_killed_at_any_moment() {
    let driver = driver(256);
    let before = driver.counts();
    let mut seed = 1u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let fill = Command::Fill { dst: DevAddr(LO), value: 1, element: 4, width: 4096, height: 1, pitch: 0 };
    let mut late = 0;
    for _ in 0..1000 {
        let tenant = Tenant::new(&driver, ClientConfig { memory_limit: Some(64 << 20), ..ClientConfig::default() });
        for _ in 0..next(4) {
            match next(6) {
                0 => drop(tenant.try_alloc(next(4 << 20) + 1, MemoryKind::Vram)),
                1 => drop(tenant.try_alloc(next(1 << 20) + 1, MemoryKind::Host)),
                2 => drop(tenant.client.request(Request::LoadModule {
                    id: ModuleId(0),
                    code: CodeImage::ptx(PTX),
                    placed: vec![],
                })),
                3 => drop(tenant.launch(0, kernel::SPIN, 4, 32, &[LO])),
                4 => drop(tenant.client.submit(QueueId(0), &[Command::Wait { slot: SlotId(1), value: 1 }])),
                _ => drop(tenant.client.submit(QueueId(0), &[fill])),
            }
        }
        let killed = Instant::now();
        drop(tenant);
        late += u32::from(killed.elapsed() > Duration::from_secs(1));
    }
    assert_eq!(driver.counts(), before, "nothing is leaked");
    // Gone within a second, that is the promise; where others take the processors away, a few may miss it.
    assert!(late <= 10, "{late} of 1000 clients took more than a second to end");
}

#[test]
fn closing_races_with_every_use() {
    let driver = driver(128);
    let before = driver.counts();
    for round in 0..30u64 {
        let tenant = Arc::new(Tenant::new(&driver, ClientConfig::default()));
        tenant.load(0, PTX);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let tenant = &tenant;
                scope.spawn(move || use_until_lost(tenant, thread));
            }
            std::thread::sleep(Duration::from_millis(round % 7));
            tenant.client.close();
        });
        assert_eq!(tenant.client.memory_used(), 0, "round {round}");
        drop(tenant);
        assert_eq!(driver.counts(), before, "round {round}");
    }
}

#[test]
fn who_waits_while_a_client_is_closed_is_told_so_and_nothing_else() {
    let driver = driver(64);
    for round in 0..60u64 {
        let tenant = Tenant::new(&driver, ClientConfig::default());
        let wait = || loop {
            match tenant.client.wait(ContextId(0), SlotId(77), 1, Some(Duration::from_nanos(100))) {
                Err(GpuError::TimedOut) => {}
                other => break other,
            }
        };
        std::thread::scope(|scope| {
            let waiting = [(); 4].map(|()| scope.spawn(wait));
            std::thread::sleep(Duration::from_micros(10 * (round % 30)));
            tenant.client.close();
            for result in waiting.map(|thread| thread.join().unwrap()) {
                assert!(matches!(result, Err(GpuError::Lost { .. })), "round {round}: {result:?}");
            }
        });
    }
}

/// Does this and that until the client is closed. Errors other than that are part of the game.
fn use_until_lost(tenant: &Tenant, thread: u32) {
    let (context, queue) = (ContextId(10 + thread), QueueId(10 + thread));
    for step in 0u32.. {
        let fill = Command::Fill { dst: DevAddr(LO), value: step, element: 4, width: 1024, height: 1, pitch: 0 };
        let result = match (step + thread) % 9 {
            0 => tenant
                .client
                .request(Request::CreateContext { id: context, runtime: RuntimeMemory::default() })
                .map(drop),
            1 => tenant.client.request(Request::CreateQueue { id: queue, context, priority: -1 }).map(drop),
            2 => tenant.try_alloc(1 << 20, MemoryKind::Vram).map(drop),
            3 => tenant.client.submit(queue, &[fill, Command::Signal { slot: SlotId(thread), value: step.into() }]),
            4 => tenant.launch(0, kernel::SPIN, 1, 32, &[LO]),
            5 => tenant.client.wait(context, SlotId(thread), step.into(), Some(Duration::from_millis(1))),
            6 => tenant.client.request(Request::UnloadModule { id: ModuleId(thread) }).map(drop),
            7 => tenant.client.request(Request::DestroyQueue { id: queue }).map(drop),
            _ => tenant.client.request(Request::DestroyContext { id: context }).map(drop),
        };
        if matches!(result, Err(GpuError::Lost { .. })) {
            return;
        }
    }
}

#[test]
fn two_clients_share_addresses_but_not_memory() {
    let driver = driver(64);
    let [a, b] = [(); 2].map(|()| Tenant::new(&driver, ClientConfig::default()));
    let (at_a, at_b) = (a.alloc(4096), b.alloc(4096));
    assert_eq!(at_a, at_b);
    a.submit(0, &[Command::Fill { dst: at_a, value: 1, element: 4, width: 4, height: 1, pitch: 0 }]);
    b.submit(0, &[Command::Fill { dst: at_b, value: 2, element: 4, width: 4, height: 1, pitch: 0 }]);
    a.sync(0);
    b.sync(0);
    assert_eq!((a.read_u32(at_a, 4), b.read_u32(at_b, 4)), (vec![1; 4], vec![2; 4]));
    let info = a.client.request(Request::MemoryInfo).unwrap();
    assert!(matches!(info, Response::Memory { total, .. } if total == 64 << 20));
    assert!(a.client.host_memory(AllocId(0)).is_err(), "VRAM has no file");
}
