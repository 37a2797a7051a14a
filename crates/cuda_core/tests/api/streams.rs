//! Streams, events and functions of the host: who waits for whom.

use std::collections::HashMap;
use std::sync::mpsc;

use std::time::{Duration, Instant};

use crate::support::{Host, Submitted, driver};
use cuda_core::{Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, JitLog, LaunchConfig, MemOp, Params, Stream};
use gpu::DevAddr;
use parking_lot::Mutex;

/// Holds a stream until told to let go.
fn hold(driver: &Driver, stream: Stream) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
    release
}

/// Waits until `done`, for ten seconds.
fn until(otherwise: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{otherwise}");
        std::thread::yield_now();
    }
}

fn word(driver: &Driver, at: DevAddr, stream: Stream) -> u32 {
    let host = Host::new(4);
    driver.memcpy_dtoh_async(host.range(0, 4), at, stream).unwrap();
    u32::from_le_bytes(host.bytes(0, 4).try_into().unwrap())
}

#[test]
fn a_stream_is_busy_until_it_is_done() {
    let (driver, _) = driver();
    let stream = driver.stream_create(1).unwrap();
    driver.stream_query(stream).unwrap();
    let release = hold(&driver, stream);
    assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
    drop(release);
    driver.stream_synchronize(stream).unwrap();
    driver.stream_query(stream).unwrap();
    driver.stream_destroy(stream).unwrap();
    assert_eq!(driver.stream_query(stream), Err(CudaError::INVALID_HANDLE));
}

#[test]
fn asking_again_and_again_adds_nothing() {
    let (driver, fake) = driver();
    let memory = driver.mem_alloc(4).unwrap();
    // Two that the rule of the legacy stream ties together, and one that is free.
    let streams = [Stream::LEGACY, driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap()];
    let held: Vec<_> = streams[1..].iter().map(|stream| hold(&driver, *stream)).collect();
    streams.iter().for_each(|stream| driver.memset_async(memory, 1, 4, 1, *stream).unwrap());
    fake.signals();
    for round in 0..100u32 {
        // Work that comes between the questions adds no signal either.
        driver.memset_async(memory, round, 4, 1, streams[2]).unwrap();
        for stream in streams {
            assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
        }
    }
    assert!(fake.signals() <= streams.len() as u32, "one for each stream");
    drop(held);
    // A program that does nothing but ask learns of the end.
    for stream in streams {
        let mut tries = 0;
        while driver.stream_query(stream) == Err(CudaError::NOT_READY) {
            tries += 1;
            assert!(tries < 20_000);
            std::thread::sleep(Duration::from_micros(500));
        }
        driver.stream_query(stream).unwrap();
    }
    fake.signals();
    // Behind an event that has been reached there is nothing to ask for.
    for flags in [0, 2] {
        let event = driver.event_create(flags).unwrap();
        driver.memset_async(memory, 2, 4, 1, streams[2]).unwrap();
        driver.event_record(event, streams[2]).unwrap();
        let recorded = fake.signals();
        assert!(recorded <= 2);
        driver.event_synchronize(event).unwrap();
        driver.stream_query(streams[2]).unwrap();
        driver.event_query(event).unwrap();
        driver.stream_synchronize(streams[2]).unwrap();
        assert_eq!(fake.signals(), 0);
    }
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let (driver, _) = driver();
    let memory = driver.mem_alloc(4).unwrap();
    let blocking = driver.stream_create(0).unwrap();
    let free = driver.stream_create(1).unwrap();
    // A blocking stream holds the legacy stream, not a non-blocking one.
    let release = hold(&driver, blocking);
    driver.memset_async(memory, 1, 4, 1, Stream::LEGACY).unwrap();
    assert_eq!(driver.stream_query(Stream::NULL), Err(CudaError::NOT_READY));
    assert_eq!(word(&driver, memory, free), 0);
    // And what comes after the legacy stream's work waits for it.
    let other = driver.stream_create(0).unwrap();
    driver.memset_async(memory, 2, 4, 1, other).unwrap();
    assert_eq!(driver.stream_query(other), Err(CudaError::NOT_READY));
    drop(release);
    assert_eq!(word(&driver, memory, other), 2);
    driver.stream_synchronize(Stream::LEGACY).unwrap();
    // The other way round.
    let release = hold(&driver, Stream::LEGACY);
    driver.memset_async(memory, 3, 4, 1, blocking).unwrap();
    driver.memset_async(memory, 4, 4, 1, Stream::PER_THREAD).unwrap();
    assert_eq!(driver.stream_query(blocking), Err(CudaError::NOT_READY));
    assert_eq!(driver.stream_query(Stream::PER_THREAD), Err(CudaError::NOT_READY));
    assert_eq!(word(&driver, memory, free), 2);
    drop(release);
    driver.ctx_synchronize().unwrap();
}

/// Points of a queue's work, by what was submitted to it.
struct History(Vec<Submitted>);

impl History {
    fn launches(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(|&at| self.0[at] == Submitted::Launch)
    }

    /// For each point, how far the other queue is for certain when this one passes it.
    fn knows_of(&self, other: &History) -> Vec<usize> {
        let signals: HashMap<_, _> = other.0.iter().enumerate().map(|(at, submitted)| (*submitted, at)).collect();
        let mut known = 0;
        let mut follow = |submitted: &Submitted| {
            if let Submitted::Wait(slot, value) = *submitted
                && let Some(&at) = signals.get(&Submitted::Signal(slot, value))
            {
                known = known.max(at);
            }
            known
        };
        self.0.iter().map(&mut follow).collect()
    }
}

#[test]
fn threads_on_the_legacy_stream_and_on_a_blocking_stream_have_one_order() {
    const LAUNCHES: usize = 3000;
    let (driver, fake) = driver();
    let context = driver.ctx_get_current().unwrap();
    let module = driver.module_load_data(&&b".version 8 .entry nothing()"[..], &mut JitLog::default()).unwrap();
    let nothing = driver.module_get_function(module, "nothing").unwrap();
    let streams = [Stream::LEGACY, driver.stream_create(0).unwrap()];
    // Nothing is reached before all is submitted, so that all order is in what is submitted.
    let release = hold(&driver, streams[1]);
    fake.submitted();
    std::thread::scope(|scope| {
        for stream in streams {
            let driver = &driver;
            scope.spawn(move || {
                driver.ctx_set_current(context).unwrap();
                let config = LaunchConfig::new([1; 3], [1; 3], 0, stream);
                for _ in 0..LAUNCHES {
                    driver.launch_kernel(nothing, &config, Params::Each(&mut |_, _| true)).unwrap();
                }
            });
        }
    });
    let submitted = fake.submitted();
    drop(release);
    driver.ctx_synchronize().unwrap();
    let mut queues: Vec<_> = submitted.iter().map(|(queue, _)| *queue).collect();
    queues.sort();
    queues.dedup();
    let [a, b] = [0, 1].map(|at| {
        let of_queue = submitted.iter().filter(|(queue, _)| *queue == queues[at]);
        History(of_queue.map(|(_, submitted)| *submitted).collect())
    });
    let (a_knows, b_knows) = (a.knows_of(&b), b.knows_of(&a));
    for in_a in a.launches() {
        for in_b in b.launches() {
            let (a_first, b_first) = (b_knows[in_b] > in_a, a_knows[in_a] > in_b);
            assert!(a_first != b_first, "{in_a} and {in_b}: {a_first} {b_first}");
        }
    }
    assert_eq!((a.launches().count(), b.launches().count()), (LAUNCHES, LAUNCHES));
}

#[test]
fn a_copy_of_pageable_memory_has_its_place_among_other_threads_work() {
    const BYTES: usize = 1 << 20;
    let (driver, fake) = driver();
    let context = driver.ctx_get_current().unwrap();
    let stream = driver.stream_create(0).unwrap();
    let memory = driver.mem_alloc(BYTES as u64).unwrap();
    let release = hold(&driver, stream);
    // The legacy stream knows of all before the copy, which it must learn of nevertheless.
    driver.memset_async(memory, 1, 1, 16, Stream::LEGACY).unwrap();
    let host = Host::with(&vec![7; BYTES]);
    fake.submitted();
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| {
            driver.ctx_set_current(context).unwrap();
            driver.memcpy_htod_async(memory, host.range(0, BYTES), stream).unwrap();
        });
        // The copy has its place in the stream when it knows what it waits for: what is submitted now comes after it, and does
        // not wait here.
        until("the copy waits for nothing", || {
            fake.submitted().iter().any(|(_, submitted)| matches!(submitted, Submitted::Signal(..)))
        });
        driver.memset_async(memory, 9, 1, 16, Stream::LEGACY).unwrap();
        assert!(!copied.is_finished());
        drop(release);
    });
    driver.ctx_synchronize().unwrap();
    let back = Host::new(BYTES);
    driver.memcpy_dtoh(back.range(0, BYTES), memory, Stream::NULL).unwrap();
    assert_eq!((back.bytes(0, 17), back.bytes(BYTES - 1, 1)), ([vec![9; 16], vec![7]].concat(), vec![7]));
}

/// Every other 16 bytes on the GPU, from those of the program without gaps.
fn every_other<'a>(memory: DevAddr, host: &'a Host, lines: u64) -> Copy3D<'a> {
    let end = |memory, pitch| CopyEnd { memory, x: 0, y: 0, z: 0, pitch, height: lines };
    Copy3D {
        src: end(CopyMemory::Host(host.range(0, 16 * lines as usize)), 16),
        dst: end(CopyMemory::Device(memory), 32),
        width: 16,
        height: lines,
        depth: 1,
    }
}

#[test]
fn a_copy_of_lines_has_its_place_too_and_delays_no_other_streams() {
    const LINES: u64 = 64;
    let (driver, fake) = driver();
    let context = driver.ctx_get_current().unwrap();
    let (held, other) = (driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap());
    let [memory, elsewhere] = [0; 2].map(|_| driver.mem_alloc(32 * LINES).unwrap());
    let release = hold(&driver, held);
    let host = Host::with(&vec![7; 16 * LINES as usize]);
    fake.submitted();
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| {
            driver.ctx_set_current(context).unwrap();
            driver.memcpy_3d_async(&every_other(memory, &host, LINES), held).unwrap();
        });
        until("the copy waits for nothing", || {
            fake.submitted().iter().any(|(_, submitted)| matches!(submitted, Submitted::Signal(..)))
        });
        driver.memset_async(memory, 9, 1, 16, held).unwrap();
        driver.memcpy_3d_async(&every_other(elsewhere, &host, LINES), other).unwrap();
        assert!(!copied.is_finished());
        drop(release);
    });
    driver.ctx_synchronize().unwrap();
    for (memory, first) in [(memory, 9), (elsewhere, 7)] {
        let back = Host::new(48);
        driver.memcpy_dtoh(back.range(0, 48), memory, Stream::NULL).unwrap();
        assert_eq!((back.bytes(0, 16), back.bytes(32, 16)), (vec![first; 16], vec![7; 16]));
    }
}

#[test]
fn the_gpu_hears_of_a_copy_when_something_comes_behind_it() {
    const BYTES: usize = 1 << 20;
    let (driver, fake) = driver();
    let context = driver.ctx_get_current().unwrap();
    let host = Host::with(&vec![7; BYTES]);
    let memory = driver.mem_alloc(BYTES as u64).unwrap();
    for (copies_in, comes_behind) in
        [(0, None), (1, None), (0, Some(0)), (1, Some(1)), (0, Some(2)), (2, Some(0)), (2, Some(2))]
    {
        let streams = [driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap(), Stream::LEGACY];
        let (stream, begun) = (streams[copies_in], fake.writes_begun());
        fake.submitted();
        let held = fake.hold_writes();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                driver.ctx_set_current(context).unwrap();
                driver.memcpy_htod_async(memory, host.range(0, BYTES), stream).unwrap();
            });
            until("no copy begins", || fake.writes_begun() > begun);
            assert_eq!(fake.submitted(), []);
            if let Some(other) = comes_behind {
                driver.memset_async(memory, 9, 1, 16, streams[other]).unwrap();
                assert!(fake.submitted().iter().any(|(_, submitted)| matches!(submitted, Submitted::Wait(..))));
                assert_eq!(driver.stream_query(streams[other]), Err(CudaError::NOT_READY));
            }
            assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
            drop(held);
        });
        driver.ctx_synchronize().unwrap();
        let back = Host::new(BYTES);
        driver.memcpy_dtoh(back.range(0, BYTES), memory, Stream::NULL).unwrap();
        let first = if comes_behind.is_some() { 9 } else { 7 };
        assert_eq!((back.bytes(0, 17), back.bytes(BYTES - 1, 1)), ([vec![first; 16], vec![7]].concat(), vec![7]));
        for stream in &streams[..2] {
            driver.stream_destroy(*stream).unwrap();
        }
    }
}

#[test]
fn who_copies_on_waits_for_work_only() {
    const BYTES: usize = 3 << 20;
    let (driver, fake) = driver();
    let (stream, blocking) = (driver.stream_create(1).unwrap(), driver.stream_create(0).unwrap());
    let memory = driver.mem_alloc(BYTES as u64).unwrap();
    let host = Host::with(&vec![7; BYTES]);
    for stream in [stream, blocking, Stream::LEGACY] {
        driver.memset_async(memory, 1, 1, 16, stream).unwrap();
        // This waits for the work, and the others for nothing that the GPU would have to tell of.
        driver.memcpy_htod_async(memory, host.range(0, BYTES), stream).unwrap();
        fake.submitted();
        for _ in 0..10 {
            driver.memcpy_htod_async(memory, host.range(0, BYTES), stream).unwrap();
            driver.stream_synchronize(stream).unwrap();
            driver.stream_query(stream).unwrap();
        }
        assert_eq!(fake.submitted(), []);
    }
    // Work that came after one is waited for.
    let release = hold(&driver, stream);
    assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
    drop(release);
    driver.memset_async(memory, 9, 1, 16, stream).unwrap();
    driver.memcpy_htod_async(memory, host.range(0, BYTES), stream).unwrap();
    assert_eq!(word(&driver, memory, stream), 0x0707_0707);
}

#[test]
fn what_is_submitted_while_its_context_or_stream_goes_comes_before_or_not_at_all() {
    let (driver, fake) = driver();
    let kept = driver.ctx_get_current().unwrap();
    let memory = driver.mem_alloc(16).unwrap();
    for round in 0..200 {
        let context = driver.ctx_create(0, Device(0)).unwrap();
        let stream = driver.stream_create(1).unwrap();
        std::thread::scope(|scope| {
            for stream in [Stream::NULL, stream] {
                let driver = &driver;
                scope.spawn(move || {
                    if driver.ctx_set_current(context).is_ok() {
                        while driver.memset_async(memory, 1, 1, 16, stream).is_ok()
                            && driver.stream_query(stream) != Err(CudaError::INVALID_HANDLE)
                        {}
                    }
                });
            }
            std::thread::yield_now();
            if round % 2 == 0 {
                driver.stream_destroy(stream).unwrap();
            }
            driver.ctx_destroy(context).unwrap();
        });
        driver.ctx_set_current(kept).unwrap();
    }
    assert_eq!(fake.astray(), 0);
    driver.ctx_synchronize().unwrap();
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    let (driver, fake) = driver();
    let memory = driver.mem_alloc(4).unwrap();
    let stream = driver.stream_create(1).unwrap();
    let release = hold(&driver, stream);
    driver.memset_async(memory, 7, 4, 1, stream).unwrap();
    driver.stream_destroy(stream).unwrap();
    assert_eq!(driver.stream_destroy(stream), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.stream_destroy(Stream::LEGACY), Err(CudaError::INVALID_HANDLE));
    drop(release);
    let done = || word(&driver, memory, Stream::NULL) == 7;
    for _ in 0..2000 {
        if done() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(done());
    for _ in 0..2000 {
        driver.ctx_synchronize().unwrap();
        if fake.requests().contains(&"DestroyQueue".to_string()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the queue stays");
}

#[test]
fn unused_streams_cost_nothing() {
    let (driver, fake) = driver();
    fake.requests();
    let streams: Vec<Stream> = (0..128).map(|_| driver.stream_create_with_priority(1, -9).unwrap()).collect();
    assert_eq!(driver.stream_get_priority(streams[0]), Ok(-5));
    assert_eq!(driver.stream_get_flags(streams[0]), Ok(1));
    assert_ne!(driver.stream_get_id(streams[0]), driver.stream_get_id(streams[1]));
    for stream in streams {
        driver.stream_synchronize(stream).unwrap();
        driver.stream_destroy(stream).unwrap();
    }
    assert_eq!(fake.requests(), Vec::<String>::new());
}

#[test]
fn a_launch_is_one_command() {
    let (driver, fake) = driver();
    let module = driver.module_load_data(&&b".version 8 .entry nothing()"[..], &mut JitLog::default()).unwrap();
    let function = driver.module_get_function(module, "nothing").unwrap();
    let config = LaunchConfig::new([1; 3], [1; 3], 0, Stream::NULL);
    let launch = || driver.launch_kernel(function, &config, Params::Each(&mut |_, _| true)).unwrap();
    launch();
    fake.requests();
    (0..100).for_each(|_| launch());
    driver.ctx_synchronize().unwrap();
    assert_eq!(fake.requests(), Vec::<String>::new());
    assert_eq!(fake.launched().len(), 101);
}

#[test]
fn events_order_streams_and_keep_time() {
    let (driver, _) = driver();
    let memory = driver.mem_alloc(4).unwrap();
    let (a, b) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    for flags in [0, 2] {
        let event = driver.event_create(flags).unwrap();
        driver.event_query(event).unwrap();
        driver.event_synchronize(event).unwrap();
        let release = hold(&driver, a);
        driver.memset_async(memory, 5 + flags, 4, 1, a).unwrap();
        driver.event_record(event, a).unwrap();
        driver.stream_wait_event(b, event, 0).unwrap();
        assert_eq!(driver.event_query(event), Err(CudaError::NOT_READY));
        assert_eq!(driver.stream_query(b), Err(CudaError::NOT_READY));
        drop(release);
        assert_eq!(word(&driver, memory, b), 5 + flags);
        driver.event_synchronize(event).unwrap();
        driver.event_query(event).unwrap();
        driver.event_destroy(event).unwrap();
        assert_eq!(driver.event_query(event), Err(CudaError::INVALID_HANDLE));
    }
    let (start, end, untimed) =
        (driver.event_create(0).unwrap(), driver.event_create(1).unwrap(), driver.event_create(2).unwrap());
    assert_eq!(driver.event_elapsed_time(start, end), Err(CudaError::INVALID_HANDLE));
    driver.event_record(start, a).unwrap();
    driver.memset_async(memory, 0, 4, 1, a).unwrap();
    driver.event_record(end, a).unwrap();
    driver.event_record(untimed, a).unwrap();
    driver.stream_synchronize(a).unwrap();
    assert!(driver.event_elapsed_time(start, end).unwrap() > 0.0);
    assert!(driver.event_elapsed_time(end, start).unwrap() < 0.0);
    assert_eq!(driver.event_elapsed_time(start, untimed), Err(CudaError::INVALID_HANDLE));
    let release = hold(&driver, a);
    driver.event_record(end, a).unwrap();
    assert_eq!(driver.event_elapsed_time(start, end), Err(CudaError::NOT_READY));
    drop(release);
    driver.stream_synchronize(a).unwrap();
    assert_eq!(driver.event_create(8), Err(CudaError::INVALID_VALUE));
}

#[test]
fn an_event_recorded_again_elsewhere_means_the_last_record() {
    let (driver, _) = driver();
    let (a, b) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    let event = driver.event_create(0).unwrap();
    let release_a = hold(&driver, a);
    let release_b = hold(&driver, b);
    driver.event_record(event, a).unwrap();
    driver.event_record(event, b).unwrap();
    drop(release_a);
    driver.stream_synchronize(a).unwrap();
    assert_eq!(driver.event_query(event), Err(CudaError::NOT_READY));
    drop(release_b);
    driver.event_synchronize(event).unwrap();
    // Destroyed while under way: its slot is used again only when that is safe.
    let release = hold(&driver, a);
    driver.event_record(event, a).unwrap();
    driver.event_destroy(event).unwrap();
    for _ in 0..50 {
        let other = driver.event_create(0).unwrap();
        driver.event_record(other, b).unwrap();
        driver.event_synchronize(other).unwrap();
        driver.event_destroy(other).unwrap();
    }
    drop(release);
    driver.ctx_synchronize().unwrap();
}

#[test]
fn host_functions_run_in_order_even_across_streams() {
    static ORDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let (driver, _) = driver();
    let (a, b) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    let event = driver.event_create(2).unwrap();
    let note = |n| Box::new(move || ORDER.lock().push(n));
    // The first in b must not hold up the first in a, though a's second waits for it.
    let release = hold(&driver, b);
    driver.launch_host_func(b, note(2)).unwrap();
    driver.event_record(event, b).unwrap();
    driver.launch_host_func(a, note(1)).unwrap();
    driver.stream_wait_event(a, event, 0).unwrap();
    driver.launch_host_func(a, note(3)).unwrap();
    driver.stream_add_callback(a, Box::new(|result| ORDER.lock().push(4 + u32::from(result.is_err())))).unwrap();
    for _ in 0..2000 {
        if ORDER.lock().len() == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(release);
    driver.ctx_synchronize().unwrap();
    assert_eq!(*ORDER.lock(), [1, 2, 3, 4]);
}

#[test]
fn callbacks_learn_of_errors_host_functions_do_not_run() {
    let (driver, _) = driver();
    let code = &b".version 8 .entry trap()"[..];
    let module = driver.module_load_data(&code, &mut JitLog::default()).unwrap();
    let trap = driver.module_get_function(module, "trap").unwrap();
    let (tell, told) = mpsc::channel();
    let release = hold(&driver, Stream::NULL);
    let config = LaunchConfig::new([1; 3], [1; 3], 0, Stream::NULL);
    driver.launch_kernel(trap, &config, Params::Each(&mut |_, _| true)).unwrap();
    let (never, ran) = (tell.clone(), tell.clone());
    driver.launch_host_func(Stream::NULL, Box::new(move || never.send(None).unwrap())).unwrap();
    driver.stream_add_callback(Stream::NULL, Box::new(move |result| ran.send(Some(result)).unwrap())).unwrap();
    drop(release);
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::ILLEGAL_ADDRESS));
    let limit = Duration::from_secs(10);
    assert_eq!(told.recv_timeout(limit), Ok(Some(Err(CudaError::ILLEGAL_ADDRESS))));
}

#[test]
fn memory_operations() {
    let (driver, _) = driver();
    let (a, b) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    let flag = driver.mem_alloc(8).unwrap();
    driver.memset(flag, 0, 4, 2, Stream::NULL).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.stream_wait_value(a, flag, 7, false, 0).unwrap();
    driver.memset_async(flag, 9, 4, 1, a).unwrap();
    assert_eq!(driver.stream_query(a), Err(CudaError::NOT_READY));
    driver.stream_write_value(b, flag, 7, false, 0).unwrap();
    driver.stream_synchronize(a).unwrap();
    assert_eq!(word(&driver, flag, a), 9);
    assert_eq!(driver.stream_write_value(a, DevAddr(flag.0 + 2), 7, false, 0), Err(CudaError::INVALID_VALUE));
    // All operations of a batch, or none.
    let write = |address, value| MemOp::Write { address, value, wide: false, flags: 0 };
    let batch = [write(flag, 1), MemOp::Nothing(6), write(DevAddr(flag.0 + 2), 2)];
    assert_eq!(driver.stream_batch_mem_op(a, &batch, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(word(&driver, flag, a), 9);
    let wait = MemOp::Wait { address: flag, value: 3, wide: false, flags: 1 };
    driver.stream_batch_mem_op(a, &[write(flag, 3), wait, write(flag, 4)], 0).unwrap();
    assert_eq!(word(&driver, flag, a), 4);
    assert_eq!(driver.stream_wait_value(a, flag, 7, false, 5), Err(CudaError::INVALID_VALUE));
}

#[test]
fn attributes_and_modes_of_capture() {
    let (driver, _) = driver();
    let (a, b) = (driver.stream_create(0).unwrap(), driver.stream_create_with_priority(0, -2).unwrap());
    let mut value = [0; 64];
    value[0] = 3;
    driver.stream_set_attribute(a, 3, &value).unwrap();
    driver.stream_copy_attributes(b, a).unwrap();
    assert_eq!(driver.stream_get_attribute(b, 3), Ok(value));
    assert_eq!(driver.stream_get_attribute(b, 8).unwrap()[..4], (-2i32).to_ne_bytes());
    assert_eq!(driver.stream_get_attribute(b, 77), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.thread_exchange_stream_capture_mode(2), Ok(0));
    assert_eq!(driver.thread_exchange_stream_capture_mode(0), Ok(2));
}
