//! Memory and events of other processes, which here are other drivers of this one.

use std::sync::Arc;

use crate::graphs::{shape, word};
use crate::support::{FakeGpu, Host, driver};
use cuda_core::{
    AccessFlags, AttributeValue, CudaError, Driver, Event, JitLog, Location, MemoryProps, Params, Physical, Stream,
};
use gpu::DevAddr;
use hostmem::Memfd;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const SHARED: u32 = 6;

/// Two processes; the first one's GPU shows its memory.
fn two() -> [(Driver, Arc<FakeGpu>); 2] {
    let [one, other] = [driver(), driver()];
    one.1.show_memory();
    [one, other]
}

/// Calls made in a process; both are this thread's.
fn within<R>(driver: &Driver, f: impl FnOnce(&Driver) -> R) -> R {
    let context = driver.device_primary_ctx_retain(cuda_core::Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    let result = f(driver);
    driver.device_primary_ctx_release(cuda_core::Device(0)).unwrap();
    result
}

fn fill(driver: &Driver, at: DevAddr, value: u32, words: u64) {
    driver.memset(at, value, 4, words, Stream::NULL).unwrap();
    driver.ctx_synchronize().unwrap();
}

#[test]
fn what_one_process_has_another_reads_and_writes() {
    let [(one, _), (other, fake)] = two();
    for bytes in [3 << 20, 512] {
        let (first, at, handle) = within(&one, |one| {
            let first = one.mem_alloc(512).unwrap();
            let at = one.mem_alloc(bytes).unwrap();
            fill(one, first, 1, 128);
            fill(one, at, 7, bytes / 4);
            (first, at, one.ipc_get_mem_handle(at).unwrap())
        });
        // What contexts take they have before.
        within(&other, |other| {
            let context = other.ctx_create(0, cuda_core::Device(0)).unwrap();
            let at = other.mem_alloc(4).unwrap();
            fill(other, at, 1, 1);
            other.ctx_destroy(context).unwrap();
            let at = other.mem_alloc(4).unwrap();
            fill(other, at, 1, 1);
        });
        let free = fake.free();
        within(&other, |other| {
            let opened = other.ipc_open_mem_handle(&handle, LAZY).unwrap();
            assert_eq!(other.ipc_open_mem_handle(&handle, LAZY), Ok(opened), "it is at one address");
            assert_eq!(other.mem_get_address_range(DevAddr(opened.0 + 8)), Ok((opened, bytes)));
            assert_eq!([0, bytes - 4].map(|byte| word(other, DevAddr(opened.0 + byte))), [7; 2]);
            fill(other, DevAddr(opened.0 + bytes - 4), 9, 1);
            // It is not this process's to free or to hand on.
            assert_eq!(other.mem_free(opened), Err(CudaError::INVALID_VALUE));
            assert_eq!(other.mem_free_host(opened.0), Err(CudaError::INVALID_VALUE));
            assert_eq!(other.ipc_get_mem_handle(opened), Err(CudaError::INVALID_VALUE));
            other.ipc_close_mem_handle(opened).unwrap();
            assert_eq!(word(other, opened), 7, "it was opened twice");
            other.ipc_close_mem_handle(opened).unwrap();
            assert_eq!(other.ipc_close_mem_handle(opened), Err(CudaError::INVALID_VALUE));
            let host = Host::new(4);
            let gone = other.memcpy_dtoh(host.range(0, 4), opened, Stream::NULL);
            assert_eq!(gone, Err(CudaError::INVALID_VALUE));
            // Another context has its own, which ends with it.
            let context = other.ctx_create(0, cuda_core::Device(0)).unwrap();
            let again = other.ipc_open_mem_handle(&handle, LAZY).unwrap();
            assert_eq!(word(other, again), 7);
            other.ctx_destroy(context).unwrap();
        });
        assert_eq!(fake.free(), free, "the importer's GPU gave nothing for it");
        within(&one, |one| {
            assert_eq!(word(one, DevAddr(at.0 + bytes - 4)), 9);
            assert_eq!(word(one, first), 1, "its neighbour is as it was");
            one.mem_free(at).unwrap();
            let later = one.mem_alloc(bytes).unwrap();
            assert_ne!(one.ipc_get_mem_handle(later).unwrap(), handle, "later memory has another handle");
        });
    }
}

#[test]
fn handles_that_name_nothing_open_nothing() {
    let [(one, _), (other, fake)] = two();
    let (handle, pinned) = within(&one, |one| {
        let at = one.mem_alloc(4 << 20).unwrap();
        let handle = one.ipc_get_mem_handle(at).unwrap();
        assert_eq!(one.ipc_open_mem_handle(&handle, LAZY), Err(CudaError::INVALID_CONTEXT), "it is its own");
        assert_eq!(
            one.ipc_get_mem_handle(DevAddr(at.0 + 512)).unwrap(),
            handle,
            "an address inside tells of the allocation"
        );
        let pinned = DevAddr(one.mem_alloc_host(64).unwrap());
        assert_eq!(one.ipc_get_mem_handle(pinned), Err(CudaError::INVALID_VALUE));
        (handle, one.event_create(SHARED).and_then(|event| one.ipc_get_event_handle(event)).unwrap())
    });
    within(&other, |other| {
        let own = other.mem_alloc(4 << 20).unwrap();
        assert_eq!(other.ipc_get_mem_handle(own), Err(CudaError::NOT_SUPPORTED), "this GPU shows nothing");
        assert_eq!(other.ipc_open_mem_handle(&handle, 0), Err(CudaError::INVALID_VALUE));
        assert_eq!(other.ipc_open_mem_handle(&pinned, LAZY), Err(CudaError::INVALID_VALUE), "an event's");
        assert_eq!(other.ipc_open_event_handle(&handle), Err(CudaError::INVALID_VALUE));
        assert_eq!(other.ipc_open_mem_handle(&[0; 64], LAZY), Err(CudaError::INVALID_VALUE));
        let free = fake.free();
        // Its process has signed all of it: whatever is changed, nothing is opened.
        for byte in 0..handle.len() {
            let mut wrong = handle;
            wrong[byte] ^= 0x40;
            let refused = other.ipc_open_mem_handle(&wrong, LAZY);
            assert!(
                matches!(refused, Err(CudaError::INVALID_VALUE | CudaError::INVALID_HANDLE)),
                "{byte}: {refused:?}"
            );
        }
        assert_eq!(fake.free(), free);
    });
    drop(one);
    within(&other, |other| {
        assert_eq!(other.ipc_open_mem_handle(&handle, LAZY), Err(CudaError::INVALID_HANDLE), "its process has gone");
    });
}

/// A stream whose work waits until it is let go.
fn held(driver: &Driver) -> (Stream, std::sync::mpsc::Sender<()>) {
    let stream = driver.stream_create(1).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let wait = Box::new(move || {
        let _ = held.recv_timeout(std::time::Duration::from_secs(20));
    });
    driver.launch_host_func(stream, wait).unwrap();
    (stream, release)
}

#[test]
fn an_event_is_waited_for_in_another_process() {
    let [(one, _), (other, _)] = two();
    // Recorded by the one that has made it, then by the other.
    for turned in [false, true] {
        let (event, handle) = within(&one, |one| {
            let event = one.event_create(SHARED).unwrap();
            assert_eq!(one.event_query(event), Ok(()), "never recorded");
            (event, one.ipc_get_event_handle(event).unwrap())
        });
        let opened = within(&other, |other| other.ipc_open_event_handle(&handle).unwrap());
        let (records, waits): ((&Driver, Event), (&Driver, Event)) =
            if turned { ((&other, opened), (&one, event)) } else { ((&one, event), (&other, opened)) };
        let release = within(records.0, |driver| {
            let (stream, release) = held(driver);
            driver.event_record(records.1, stream).unwrap();
            release
        });
        within(waits.0, |driver| {
            let at = driver.mem_alloc(4).unwrap();
            driver.memset(at, 0, 4, 1, Stream::NULL).unwrap();
            driver.ctx_synchronize().unwrap();
            let stream = driver.stream_create(1).unwrap();
            driver.stream_wait_event(stream, waits.1, 0).unwrap();
            driver.memset_async(at, 5, 4, 1, stream).unwrap();
            assert_eq!(driver.event_query(waits.1), Err(CudaError::NOT_READY));
            assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
            // It is destroyed while the stream waits for it.
            if turned {
                driver.event_destroy(waits.1).unwrap();
            }
            release.send(()).unwrap();
            driver.stream_synchronize(stream).unwrap();
            assert_eq!(word(driver, at), 5);
            if !turned {
                driver.event_synchronize(waits.1).unwrap();
                assert_eq!(driver.event_query(waits.1), Ok(()));
            }
        });
    }
}

#[test]
fn an_event_tells_of_its_last_record_whichever_stream_is_faster() {
    let [(one, _), (other, _)] = two();
    let (event, release, slow) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        let (slow, release) = held(one);
        one.event_record(event, slow).unwrap();
        let quick = one.stream_create(1).unwrap();
        one.event_record(event, quick).unwrap();
        one.stream_synchronize(quick).unwrap();
        assert_eq!(one.event_query(event), Ok(()), "the last record was reached, if not the one before");
        (event, release, slow)
    });
    let opened = within(&one, |one| one.ipc_get_event_handle(event).unwrap());
    let opened = within(&other, |other| other.ipc_open_event_handle(&opened).unwrap());
    within(&one, |one| {
        release.send(()).unwrap();
        one.stream_synchronize(slow).unwrap();
        assert_eq!(one.event_query(event), Ok(()), "the record before comes late");
    });
    within(&other, |other| assert_eq!(other.event_query(opened), Ok(())));
}

#[test]
fn an_event_is_recorded_in_more_streams_and_more_often_than_it_has_places() {
    let [(one, _), (other, _)] = two();
    let (event, handle) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        (event, one.ipc_get_event_handle(event).unwrap())
    });
    let opened = within(&other, |other| other.ipc_open_event_handle(&handle).unwrap());
    let query = || {
        let of = [(&one, event), (&other, opened)];
        of.map(|(driver, event)| within(driver, |driver| driver.event_query(event)))
    };
    let is_over = |stream: Stream, release: std::sync::mpsc::Sender<()>| {
        within(&one, |one| {
            release.send(()).unwrap();
            one.stream_synchronize(stream).unwrap();
        });
    };
    let record = |stream| within(&one, |one| one.event_record(event, stream).unwrap());
    // Often in one stream: the others find places.
    let (busy, let_busy_go) = within(&one, held);
    (0..200).for_each(|_| record(busy));
    let (last, let_last_go) = within(&one, held);
    record(last);
    assert_eq!(query(), [Err(CudaError::NOT_READY); 2]);
    is_over(last, let_last_go);
    assert_eq!(query(), [Ok(()); 2]);
    is_over(busy, let_busy_go);
    assert_eq!(query(), [Ok(()); 2]);
    // In many: the first ones are let go last.
    let streams: Vec<_> = (0..270).map(|_| within(&one, held)).collect();
    for (stream, _) in &streams {
        record(*stream);
    }
    assert_eq!(query(), [Err(CudaError::NOT_READY); 2]);
    for (_, release) in streams.iter().rev() {
        release.send(()).unwrap();
    }
    for (stream, _) in streams {
        within(&one, |one| one.stream_synchronize(stream).unwrap());
    }
    assert_eq!(query(), [Ok(()); 2]);
}

#[test]
fn nobody_waits_for_an_event_of_a_context_that_ended() {
    let [(one, _), _] = two();
    within(&one, |one| {
        let first = one.ctx_get_current().unwrap();
        let stream = one.stream_create(1).unwrap();
        let context = one.ctx_create(0, cuda_core::Device(0)).unwrap();
        let event = one.event_create(SHARED).unwrap();
        one.ctx_destroy(context).unwrap();
        one.ctx_set_current(first).unwrap();
        // What lies there now looks like a record that is not reached.
        for bytes in [512, 4104, 4104, 8192, 64 << 10] {
            let other = one.mem_alloc_host(bytes).unwrap();
            one.memset(DevAddr(other), 0x21, 4, 1, Stream::NULL).unwrap();
        }
        one.ctx_synchronize().unwrap();
        one.stream_wait_event(stream, event, 0).unwrap();
        assert_eq!(one.stream_query(stream), Ok(()));
        assert_eq!(one.event_record(event, stream), Err(CudaError::INVALID_HANDLE));
    });
}

#[test]
fn nobody_waits_for_a_record_that_no_gpu_comes_to() {
    let [(one, _), (other, _)] = two();
    let (event, handle) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        (event, one.ipc_get_event_handle(event).unwrap())
    });
    let (context, _release) = within(&other, |other| {
        let context = other.ctx_create(0, cuda_core::Device(0)).unwrap();
        let opened = other.ipc_open_event_handle(&handle).unwrap();
        let (stream, release) = held(other);
        other.event_record(opened, stream).unwrap();
        let module = other.module_load_data(&&b".version 8 .entry trap()"[..], &mut JitLog::default()).unwrap();
        let function = other.module_get_function(module, "trap").unwrap();
        let failing = other.stream_create(1).unwrap();
        other.launch_kernel(function, &shape(failing), Params::Each(&mut |_, _| true)).unwrap();
        assert_eq!(other.stream_synchronize(failing), Err(CudaError::ILLEGAL_ADDRESS));
        (context, release)
    });
    within(&one, |one| assert_eq!(one.event_query(event), Ok(())));
    other.ctx_destroy(context).unwrap();
}

/// A context that fails with records of an event under way in so many streams, and what lets these go.
fn failed_records(driver: &Driver, handle: &[u8; 64], streams: usize) -> Vec<std::sync::mpsc::Sender<()>> {
    within(driver, |driver| {
        let context = driver.ctx_create(0, cuda_core::Device(0)).unwrap();
        let opened = driver.ipc_open_event_handle(handle).unwrap();
        let releases = (0..streams).map(|_| {
            let (stream, release) = held(driver);
            driver.event_record(opened, stream).unwrap();
            release
        });
        let releases = releases.collect();
        // It may be destroyed meanwhile.
        driver.event_destroy(opened).unwrap();
        let module = driver.module_load_data(&&b".version 8 .entry trap()"[..], &mut JitLog::default()).unwrap();
        let function = driver.module_get_function(module, "trap").unwrap();
        let failing = driver.stream_create(1).unwrap();
        driver.launch_kernel(function, &shape(failing), Params::Each(&mut |_, _| true)).unwrap();
        assert_eq!(driver.stream_synchronize(failing), Err(CudaError::ILLEGAL_ADDRESS));
        driver.ctx_destroy(context).unwrap();
        releases
    })
}

#[test]
fn places_of_records_that_no_gpu_comes_to_are_used_again() {
    let [(one, _), (other, _)] = two();
    let (event, handle) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        (event, one.ipc_get_event_handle(event).unwrap())
    });
    let _releases: Vec<_> = (0..3).flat_map(|_| failed_records(&other, &handle, 100)).collect();
    within(&one, |one| {
        assert_eq!(one.event_query(event), Ok(()));
        let (slow, release) = held(one);
        one.event_record(event, slow).unwrap();
        assert_eq!(one.event_query(event), Err(CudaError::NOT_READY));
        // With no place of its own it would come behind the slow one.
        let quick = one.stream_create(1).unwrap();
        one.event_record(event, quick).unwrap();
        one.stream_synchronize(quick).unwrap();
        assert_eq!((one.event_query(event), one.stream_query(slow)), (Ok(()), Err(CudaError::NOT_READY)));
        release.send(()).unwrap();
        one.stream_synchronize(slow).unwrap();
        assert_eq!(one.event_query(event), Ok(()));
    });
}

#[test]
fn records_beyond_all_places_are_given_up_like_others() {
    let [(one, _), (other, _)] = two();
    let (event, handle) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        (event, one.ipc_get_event_handle(event).unwrap())
    });
    // Some of a process that goes on, to which the event does not belong at last.
    let slow: Vec<_> = within(&one, |one| (0..100).map(|_| held(one)).collect());
    within(&one, |one| slow.iter().for_each(|(stream, _)| one.event_record(event, *stream).unwrap()));
    let _releases = failed_records(&other, &handle, 300);
    within(&one, |one| {
        assert_eq!(one.event_query(event), Ok(()));
        let stream = one.stream_create(1).unwrap();
        one.stream_wait_event(stream, event, 0).unwrap();
        assert_eq!(one.stream_synchronize(stream), Ok(()));
        for (stream, release) in slow {
            assert_eq!(one.stream_query(stream), Err(CudaError::NOT_READY));
            release.send(()).unwrap();
            one.stream_synchronize(stream).unwrap();
        }
    });
}

#[test]
fn words_that_others_know_of_become_those_of_later_events_only() {
    let [(one, fake), (other, _)] = two();
    let offset = |handle: &[u8; 64]| handle[16..48].to_vec();
    let create = || {
        within(&one, |one| {
            let event = one.event_create(SHARED).unwrap();
            (event, one.ipc_get_event_handle(event).unwrap())
        })
    };
    let (event, first) = create();
    // A stream of another process is left waiting for one that nobody comes to any more.
    let _releases = failed_records(&other, &first, 3);
    let (stream, release) = within(&one, held);
    within(&one, |one| one.event_record(event, stream).unwrap());
    let opened = within(&other, |other| other.ipc_open_event_handle(&first).unwrap());
    let waiting = within(&other, |other| {
        let waiting = other.stream_create(1).unwrap();
        other.stream_wait_event(waiting, opened, 0).unwrap();
        waiting
    });
    within(&one, |one| one.event_destroy(event).unwrap());
    release.send(()).unwrap();
    within(&one, |one| one.stream_synchronize(stream).unwrap());
    within(&other, |other| other.stream_synchronize(waiting).unwrap());
    let free = fake.free();
    for _ in 0..3 {
        let (event, handle) = create();
        assert_eq!(offset(&handle), offset(&first), "it lies elsewhere");
        let opened = within(&other, |other| other.ipc_open_event_handle(&handle).unwrap());
        let query = || {
            let of = [(&one, event), (&other, opened)];
            of.map(|(driver, event)| within(driver, |driver| driver.event_query(event)))
        };
        assert_eq!(query(), [Ok(()); 2], "never recorded");
        let (stream, release) = within(&one, held);
        within(&one, |one| one.event_record(event, stream).unwrap());
        assert_eq!(query(), [Err(CudaError::NOT_READY); 2]);
        release.send(()).unwrap();
        within(&one, |one| one.stream_synchronize(stream).unwrap());
        assert_eq!(query(), [Ok(()); 2]);
        within(&other, |other| other.event_destroy(opened).unwrap());
        within(&one, |one| one.event_destroy(event).unwrap());
    }
    assert_eq!(fake.free(), free);
}

#[test]
fn a_stream_goes_on_waiting_for_an_event_whose_context_ends() {
    let [(one, _), (other, _)] = two();
    let (event, handle) = within(&one, |one| {
        let event = one.event_create(SHARED).unwrap();
        (event, one.ipc_get_event_handle(event).unwrap())
    });
    let release = within(&one, |one| {
        let (stream, release) = held(one);
        one.event_record(event, stream).unwrap();
        release
    });
    within(&other, |other| {
        let first = other.ctx_get_current().unwrap();
        let stream = other.stream_create(1).unwrap();
        let context = other.ctx_create(0, cuda_core::Device(0)).unwrap();
        let opened = other.ipc_open_event_handle(&handle).unwrap();
        other.ctx_set_current(first).unwrap();
        other.stream_wait_event(stream, opened, 0).unwrap();
        other.ctx_destroy(context).unwrap();
        // What lies there now, if anything else did, would look like a record that is not reached.
        let at = other.mem_alloc_host(4 << 10).unwrap();
        other.memset(DevAddr(at), 0x21, 4, 1 << 10, Stream::NULL).unwrap();
        other.stream_synchronize(Stream::NULL).unwrap();
        assert_eq!(other.stream_query(stream), Err(CudaError::NOT_READY));
        release.send(()).unwrap();
        other.stream_synchronize(stream).unwrap();
    });
}

#[test]
fn events_of_one_process_are_not_shared() {
    let (driver, _) = driver();
    let own = driver.event_create(2).unwrap();
    assert_eq!(driver.ipc_get_event_handle(own), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.event_create(4), Err(CudaError::INVALID_VALUE), "shared events keep no time");
    let shared = driver.event_create(SHARED).unwrap();
    assert_eq!(driver.event_elapsed_time(shared, shared), Err(CudaError::INVALID_HANDLE));
    let handle = driver.ipc_get_event_handle(shared).unwrap();
    assert_eq!(driver.ipc_open_event_handle(&handle), Err(CudaError::INVALID_CONTEXT));
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES`.
const ALLOWED_HANDLE_TYPES: i32 = 14;
const BYTES: u64 = 4 << 20;

fn shared_props() -> MemoryProps {
    MemoryProps { location: Location::Device(0), handle_types: POSIX, max_bytes: 0 }
}

/// Maps physical memory for the GPU.
fn mapped(driver: &Driver, memory: Physical) -> DevAddr {
    let at = driver.mem_address_reserve(BYTES, 0, 0, 0).unwrap();
    driver.mem_map(at, BYTES, 0, memory, 0).unwrap();
    driver.mem_set_access(at, BYTES, &[(Location::Device(0), AccessFlags::ReadWrite)]).unwrap();
    at
}

fn unmapped(driver: &Driver, at: DevAddr) {
    driver.ctx_synchronize().unwrap();
    driver.mem_unmap(at, BYTES).unwrap();
    driver.mem_address_free(at, BYTES).unwrap();
}

#[test]
fn physical_memory_is_imported_by_its_descriptor() {
    let [(one, fake), (other, _)] = two();
    let free = within(&one, |one| {
        let at = one.mem_alloc(4).unwrap();
        fill(one, at, 1, 1);
        fake.free()
    });
    let (memory, at, [fd, own, late]) = within(&one, |one| {
        let memory = one.mem_create(BYTES, shared_props(), 0).unwrap();
        let at = mapped(one, memory);
        fill(one, at, 7, BYTES / 4);
        assert_eq!(one.pointer_get_attribute(ALLOWED_HANDLE_TYPES, at.0), Ok(AttributeValue::U64(POSIX.into())));
        (memory, at, std::array::from_fn(|_| one.mem_export(memory, POSIX).unwrap()))
    });
    within(&one, |one| {
        // Where it is from it is the same memory.
        let again = one.mem_import(own, POSIX).unwrap();
        let second = mapped(one, again);
        fill(one, second, 8, 1);
        assert_eq!(word(one, at), 8);
        unmapped(one, second);
        one.mem_release(again).unwrap();
    });
    within(&other, |other| {
        let here = other.mem_import(fd, POSIX).unwrap();
        let seen = mapped(other, here);
        assert_eq!([0, 4, BYTES - 4].map(|byte| word(other, DevAddr(seen.0 + byte))), [8, 7, 7]);
        fill(other, DevAddr(seen.0 + 4), 9, 1);
        unmapped(other, seen);
        other.mem_release(here).unwrap();
    });
    within(&one, |one| {
        assert_eq!(word(one, DevAddr(at.0 + 4)), 9);
        unmapped(one, at);
        one.mem_release(memory).unwrap();
        assert_eq!(one.mem_release(memory), Err(CudaError::INVALID_VALUE));
    });
    // Released, but a descriptor is open.
    within(&other, |other| {
        let here = other.mem_import(late, POSIX).unwrap();
        let seen = mapped(other, here);
        assert_eq!(word(other, DevAddr(seen.0 + 4)), 9);
        assert!(fake.free() < free);
        unmapped(other, seen);
        other.mem_release(here).unwrap();
    });
    within(&one, |one| {
        let next = one.mem_create(BYTES, shared_props(), 0).unwrap();
        one.mem_release(next).unwrap();
        assert_eq!(fake.free(), free, "nobody has it any more");
    });
}

#[test]
fn physical_memory_of_the_host_is_imported_as_what_it_is() {
    let [(one, _), (other, _)] = two();
    // Less than a page of a device's memory.
    const BYTES: u64 = 64 << 10;
    let node = Location::HostNuma(0);
    let props = MemoryProps { location: node, ..shared_props() };
    let at = |driver: &Driver, memory| {
        let at = driver.mem_address_reserve(BYTES, 0, 0, 0).unwrap();
        driver.mem_map(at, BYTES, 0, memory, 0).unwrap();
        let rights = [(Location::Device(0), AccessFlags::ReadWrite), (node, AccessFlags::ReadWrite)];
        driver.mem_set_access(at, BYTES, &rights).unwrap();
        at
    };
    let (memory, fd) = within(&one, |one| {
        let memory = one.mem_create(BYTES, props, 0).unwrap();
        fill(one, at(one, memory), 7, BYTES / 4);
        (memory, one.mem_export(memory, POSIX).unwrap())
    });
    within(&other, |other| {
        let here = other.mem_import(fd, POSIX).unwrap();
        assert_eq!(other.mem_get_allocation_properties(here), Ok(props));
        let seen = at(other, here);
        assert_eq!(word(other, DevAddr(seen.0 + BYTES - 4)), 7);
        assert_eq!(other.pointer_get_attribute(2, seen.0), Ok(AttributeValue::U32(1)), "it is the host's");
        // Who has it may hand it on.
        let again = other.mem_export(here, POSIX).unwrap();
        let itself = other.mem_import(again, POSIX).unwrap();
        other.mem_release(itself).unwrap();
    });
    within(&one, |one| one.mem_release(memory).unwrap());
}

#[test]
fn memory_is_lent_by_one_file_to_whoever_does_not_keep_it_to_himself() {
    let [(one, _), (other, _)] = two();
    let memory = within(&one, |one| one.mem_create(BYTES, shared_props(), 0).unwrap());
    let lend = || Memfd::from_fd(within(&one, |one| one.mem_export(memory, POSIX).unwrap())).unwrap();
    let files: Vec<Memfd> = (0..3).map(|_| lend()).collect();
    let identity = files[0].identity().unwrap();
    assert!(files.iter().all(|file| file.identity().unwrap() == identity));
    drop(files);
    let greedy = std::fs::File::from(lend().into_fd());
    greedy.try_lock().unwrap();
    let next = within(&one, |one| one.mem_export(memory, POSIX).unwrap());
    within(&other, |other| {
        let here = other.mem_import(next, POSIX).unwrap();
        other.mem_release(here).unwrap();
    });
    within(&one, |one| one.mem_release(memory).unwrap());
}

#[test]
fn descriptors_that_name_nothing_import_nothing() {
    let [(one, _), (other, fake)] = two();
    let (memory, handle) = within(&one, |one| {
        let plain = one.mem_create(BYTES, MemoryProps { handle_types: 0, ..shared_props() }, 0).unwrap();
        assert!(matches!(one.mem_export(plain, POSIX), Err(CudaError::INVALID_VALUE)), "it was not made for it");
        let memory = one.mem_create(BYTES, shared_props(), 0).unwrap();
        assert!(matches!(one.mem_export(memory, 2), Err(CudaError::INVALID_VALUE)));
        let at = one.mem_alloc(BYTES).unwrap();
        (one.mem_export(memory, POSIX).unwrap(), one.ipc_get_mem_handle(at).unwrap())
    });
    let file = Memfd::from_fd(memory).unwrap();
    let name = file.map().unwrap();
    let import = |bytes: &[u8]| {
        let forged = Memfd::create("forged", 4096).unwrap();
        forged.map().unwrap().write(0, bytes);
        within(&other, |other| other.mem_import(forged.into_fd(), POSIX))
    };
    let mut good = [0; 64];
    name.read(0, &mut good);
    let free = fake.free();
    for byte in 0..good.len() {
        let mut wrong = good;
        wrong[byte] ^= 0x10;
        assert!(import(&wrong).is_err(), "{byte}");
    }
    assert!(import(&handle).is_err(), "an allocation's");
    assert!(import(&[0; 64]).is_err());
    for path in ["/dev/null", "/", "/proc/self/status"] {
        let file = std::fs::File::open(path).unwrap();
        let refused = within(&other, |other| other.mem_import(file.into(), POSIX));
        assert_eq!(refused, Err(CudaError::INVALID_VALUE), "{path}");
    }
    assert_eq!(fake.free(), free);
    // A copy of the name is as good as the file, as long as the memory is there.
    let copy = import(&good).unwrap();
    within(&other, |other| other.mem_release(copy).unwrap());
    drop(one);
    assert_eq!(import(&good), Err(CudaError::INVALID_VALUE), "its process has gone");
}

#[test]
fn pools_are_imported_by_their_descriptors() {
    let [(one, _), (other, fake)] = two();
    let (pool, stream, at, fds, [data, foreign]) = within(&one, |one| {
        let stream = one.stream_create(1).unwrap();
        let pools = [0; 2].map(|_| one.mem_pool_create(shared_props()).unwrap());
        let [at, elsewhere] = pools.map(|pool| one.mem_alloc_from_pool_async(BYTES, pool, stream).unwrap());
        one.memset_async(at, 7, 4, BYTES / 4, stream).unwrap();
        one.stream_synchronize(stream).unwrap();
        let private = one.mem_alloc_async(BYTES, stream).unwrap();
        assert_eq!(one.mem_pool_export_pointer(private), Err(CudaError::INVALID_VALUE));
        assert_eq!(one.mem_pool_export_pointer(DevAddr(at.0 + 4)), Err(CudaError::INVALID_VALUE));
        let data = [at, elsewhere].map(|at| one.mem_pool_export_pointer(at).unwrap());
        let fds: [_; 2] = std::array::from_fn(|_| one.mem_pool_export(pools[0], POSIX).unwrap());
        (pools[0], stream, at, fds, data)
    });
    let [fd, own] = fds;
    within(&one, |one| assert_eq!(one.mem_pool_import(own, POSIX), Err(CudaError::INVALID_VALUE), "it is its own"));
    within(&other, |other| {
        let here = other.mem_pool_import(fd, POSIX).unwrap();
        // Nor is it in graphs.
        let stream = other.stream_create(1).unwrap();
        other.stream_begin_capture(stream, 0).unwrap();
        for bytes in [4, 0] {
            assert_eq!(other.mem_alloc_from_pool_async(bytes, here, stream), Err(CudaError::INVALID_VALUE));
        }
        other.graph_destroy(other.stream_end_capture(stream).unwrap()).unwrap();
        assert_eq!(other.mem_alloc_from_pool_async(4, here, Stream::NULL), Err(CudaError::INVALID_VALUE));
        assert_eq!(other.mem_pool_import_pointer(here, &foreign), Err(CudaError::INVALID_VALUE), "of another pool");
        let free = fake.free();
        for byte in 0..data.len() {
            let mut wrong = data;
            wrong[byte] ^= 2;
            assert!(other.mem_pool_import_pointer(here, &wrong).is_err(), "{byte}");
        }
        assert_eq!(fake.free(), free);
        let seen = other.mem_pool_import_pointer(here, &data).unwrap();
        assert_eq!(other.mem_pool_import_pointer(here, &data), Ok(seen), "it is at one address");
        assert_eq!(word(other, DevAddr(seen.0 + BYTES - 4)), 7);
        fill(other, seen, 9, 1);
        // Freed as often as it was imported.
        other.mem_free_async(seen, Stream::NULL).unwrap();
        assert_eq!(word(other, seen), 9);
        other.mem_free(seen).unwrap();
        assert_eq!(other.mem_free(seen), Err(CudaError::INVALID_VALUE));
        other.mem_pool_destroy(here).unwrap();
    });
    within(&one, |one| {
        assert_eq!(word(one, at), 9);
        // Freed memory is nobody's, whatever may still use it.
        let freed = one.mem_alloc_from_pool_async(BYTES, pool, stream).unwrap();
        assert_eq!(one.pointer_get_attribute(ALLOWED_HANDLE_TYPES, freed.0), Ok(AttributeValue::U64(POSIX.into())));
        one.mem_free_async(freed, stream).unwrap();
        assert_eq!(one.mem_pool_export_pointer(freed), Err(CudaError::INVALID_VALUE));
        one.mem_free_async(at, stream).unwrap();
        one.stream_synchronize(stream).unwrap();
        one.mem_pool_destroy(pool).unwrap();
    });
}
