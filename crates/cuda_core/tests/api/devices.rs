//! Several devices: which is which, what is whose, and copies between them.

use std::sync::Arc;
use std::sync::mpsc;

use cuda_core::{
    AccessFlags, AttributeValue, Context, Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, JitLog, LaunchConfig,
    Location, MemoryProps, Params, Stream,
};
use gpu::{DevAddr, GpuError};

use crate::support::{FakeGpu, Host, own_pages, pattern, several};

const NULL: Stream = Stream::NULL;
const MIB: u64 = 1 << 20;

/// Two devices, their primary contexts, that of device 0 current.
fn two() -> (Driver, Vec<Arc<FakeGpu>>, [Context; 2]) {
    let (driver, fakes) = several(&[256 * MIB, 64 * MIB]);
    let contexts = [0, 1].map(|device| driver.device_primary_ctx_retain(Device(device)).unwrap());
    driver.ctx_set_current(contexts[0]).unwrap();
    (driver, fakes, contexts)
}

/// Memory of a device with content.
fn filled(driver: &Driver, context: Context, content: &[u8]) -> DevAddr {
    driver.ctx_push_current(context).unwrap();
    let at = driver.mem_alloc(content.len() as u64).unwrap();
    let host = Host::with(content);
    driver.memcpy_htod(at, host.range(0, content.len()), NULL).unwrap();
    driver.ctx_pop_current().unwrap();
    at
}

fn content(driver: &Driver, at: DevAddr, bytes: usize) -> Vec<u8> {
    let host = Host::new(bytes);
    driver.memcpy_dtoh(host.range(0, bytes), at, NULL).unwrap();
    host.bytes(0, bytes)
}

/// Holds a stream until told to let go.
fn hold(driver: &Driver, stream: Stream) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
    release
}

#[test]
fn devices_are_told_apart() {
    let (driver, _, contexts) = two();
    assert_eq!(driver.device_get_count(), Ok(2));
    assert_eq!([0, 1, 2, -1].map(|ordinal| driver.device_get(ordinal).is_ok()), [true, true, false, false]);
    assert_eq!(driver.device_get(2), Err(CudaError::INVALID_DEVICE));
    let memory = [0, 1].map(|device| driver.device_total_mem(Device(device)).unwrap());
    assert_eq!(memory, [256 * MIB, 64 * MIB]);
    let [first, second] = [0, 1].map(|device| driver.device_get_uuid(Device(device)).unwrap());
    assert_ne!(first, second);
    for device in [0, 1].map(Device) {
        let address = driver.device_get_pci_bus_id(device).unwrap();
        assert_eq!(driver.device_get_by_pci_bus_id(&address), Ok(device));
        // Bus, as an attribute.
        assert_eq!(driver.device_get_attribute(33, device), Ok(device.0 + 1));
    }
    assert_eq!(driver.device_get_by_pci_bus_id("0000:03:00.0"), Err(CudaError::INVALID_DEVICE));
    assert_ne!(contexts[0], contexts[1]);
    // Each has a primary context and pools of its own.
    driver.device_primary_ctx_set_flags(Device(1), 4).unwrap();
    assert_eq!(driver.device_primary_ctx_get_state(Device(0)).unwrap().flags, 0);
    let pools = [0, 1].map(|device| driver.device_get_default_mem_pool(Device(device)).unwrap());
    assert_ne!(pools[0], pools[1]);
    assert_eq!(driver.device_set_mem_pool(Device(0), pools[1]), Err(CudaError::INVALID_VALUE));
    let rights = |pool, device| driver.mem_pool_get_access(pool, Location::Device(device));
    assert_eq!((rights(pools[1], 1), rights(pools[1], 0)), (Ok(AccessFlags::ReadWrite), Ok(AccessFlags::None)));
}

#[test]
fn contexts_streams_and_events_are_of_one_device() {
    let (driver, fakes, contexts) = two();
    let created = driver.ctx_create(0, Device(1)).unwrap();
    assert_eq!(driver.ctx_get_device(), Ok(Device(1)));
    assert_eq!(driver.ctx_get_device_of(contexts[0]), Ok(Device(0)));
    assert_eq!(driver.ctx_get_device_of(created), Ok(Device(1)));
    driver.ctx_pop_current().unwrap();
    let here = driver.stream_create(0).unwrap();
    let here_event = driver.event_create(0).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    assert_eq!(driver.ctx_get_device(), Ok(Device(1)));
    let there = driver.stream_create(0).unwrap();
    assert_eq!([here, there].map(|stream| driver.stream_get_device(stream)), [Ok(Device(0)), Ok(Device(1))]);
    let there_event = driver.event_create(0).unwrap();
    assert_eq!(driver.event_record(here_event, there), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.ctx_record_event(contexts[1], here_event), Err(CudaError::INVALID_HANDLE));
    driver.event_record(here_event, here).unwrap();
    driver.event_record(there_event, there).unwrap();
    driver.event_synchronize(here_event).unwrap();
    driver.event_synchronize(there_event).unwrap();
    assert_eq!(driver.event_elapsed_time(here_event, there_event), Err(CudaError::INVALID_HANDLE));
    // A kernel runs on the device of its module's context, in a stream of that context.
    let ptx = ".version 8.0 .entry nothing ( ) { }";
    let module = driver.module_load_data(&ptx.as_bytes(), &mut JitLog::default()).unwrap();
    let function = driver.module_get_function(module, "nothing").unwrap();
    let launch = |stream| {
        let config = LaunchConfig::new([1; 3], [1; 3], 0, stream);
        driver.launch_kernel(function, &config, Params::Each(&mut |_, _| false))
    };
    launch(there).unwrap();
    assert_eq!(launch(here), Err(CudaError::INVALID_HANDLE));
    driver.ctx_synchronize().unwrap();
    assert_eq!([0, 1].map(|gpu: usize| fakes[gpu].launched().len()), [0, 1]);
}

#[test]
fn pointers_name_their_device_and_devices_have_their_own_memory() {
    let (driver, _, contexts) = two();
    let here = driver.mem_alloc(8 * MIB).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    let there = driver.mem_alloc(8 * MIB).unwrap();
    let (pinned, managed) = (driver.mem_alloc_host(4096).unwrap(), driver.mem_alloc_managed(64, 1).unwrap());
    const ORDINAL: i32 = 9;
    const CONTEXT: i32 = 1;
    let ask = |attribute, address| driver.pointer_get_attribute(attribute, address);
    assert_eq!(ask(ORDINAL, here.0 + 5), Ok(AttributeValue::U32(0)));
    for address in [there.0 + 5, pinned, managed.0] {
        assert_eq!(ask(ORDINAL, address), Ok(AttributeValue::U32(1)));
        assert_eq!(ask(CONTEXT, address), Ok(AttributeValue::U64(contexts[1].0)));
    }
    // One is full, the other is not.
    assert_eq!(driver.mem_alloc(60 * MIB), Err(CudaError::OUT_OF_MEMORY));
    let (free, total) = driver.mem_get_info().unwrap();
    assert_eq!((free, total), (56 * MIB, 64 * MIB));
    driver.ctx_set_current(contexts[0]).unwrap();
    let more = driver.mem_alloc(60 * MIB).unwrap();
    assert_eq!(driver.mem_get_info().unwrap(), (188 * MIB, 256 * MIB));
    // Freed from wherever, memory goes back to where it came from.
    driver.mem_free(there).unwrap();
    driver.mem_free(more).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    assert_eq!(driver.mem_get_info().unwrap(), (64 * MIB, 64 * MIB));
    // Kernels and the copy engine of one do not see what is the other's.
    assert_eq!(driver.memset(here, 1, 1, 16, NULL), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.stream_write_value(NULL, here, 1, false, 0), Err(CudaError::INVALID_VALUE));
    // The program's pages are registered once, for whomever.
    let pages = own_pages(&[1; 4096]);
    driver.mem_host_register(pages, 0).unwrap();
    driver.ctx_set_current(contexts[0]).unwrap();
    assert_eq!(driver.mem_host_register(pages, 0), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
    driver.mem_host_unregister(pages.address() as u64).unwrap();
    driver.mem_host_register(pages, 0).unwrap();
    driver.mem_host_unregister(pages.address() as u64).unwrap();
}

#[test]
fn memory_goes_with_its_context_and_only_that() {
    let (driver, fakes, contexts) = two();
    let (mine, theirs) = (filled(&driver, contexts[0], &[1; 4096]), filled(&driver, contexts[1], &[2; 4096]));
    driver.device_primary_ctx_reset(Device(1)).unwrap();
    assert_eq!(fakes[1].free(), 64 * MIB);
    assert_eq!(content(&driver, mine, 4096), [1; 4096]);
    let host = Host::new(16);
    assert_eq!(driver.memcpy_dtoh(host.range(0, 16), theirs, NULL), Err(CudaError::INVALID_VALUE));
}

#[test]
fn copies_between_devices_arrive() {
    let (driver, _, contexts) = two();
    // More than a block, and no whole number of them.
    let data = pattern(3 * MIB as usize + 77, 1);
    let bytes = data.len() as u64;
    let src = filled(&driver, contexts[0], &data);
    let zeros = vec![0; data.len()];
    for current in contexts {
        driver.ctx_set_current(current).unwrap();
        let stream = driver.stream_create(1).unwrap();
        let copies: [&dyn Fn(DevAddr); 5] = [
            &|dst| driver.memcpy_peer(dst, contexts[1], src, contexts[0], bytes, NULL).unwrap(),
            &|dst| driver.memcpy_dtod(dst, src, bytes, NULL).unwrap(),
            &|dst| driver.memcpy_peer_async(dst, contexts[1], src, contexts[0], bytes, stream).unwrap(),
            &|dst| driver.memcpy_dtod_async(dst, src, bytes, stream).unwrap(),
            &|dst| {
                let end = |at| CopyEnd { memory: CopyMemory::Device(at), x: 0, y: 0, z: 0, pitch: 0, height: 0 };
                let copy = Copy3D { src: end(src), dst: end(dst), width: bytes, height: 1, depth: 1 };
                driver.memcpy_3d_async(&copy, stream).unwrap();
            },
        ];
        for (number, copy) in copies.iter().enumerate() {
            let dst = filled(&driver, contexts[1], &zeros);
            copy(dst);
            driver.stream_synchronize(stream).unwrap();
            assert!(content(&driver, dst, data.len()) == data, "copy {number}");
            driver.mem_free(dst).unwrap();
        }
        driver.stream_destroy(stream).unwrap();
    }
    // Nothing is copied where something is not there.
    let dst = filled(&driver, contexts[1], &zeros);
    assert_eq!(driver.memcpy_dtod(dst, src, bytes + 600, NULL), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.memcpy_peer(dst, Context(5), src, contexts[0], bytes, NULL), Err(CudaError::INVALID_CONTEXT));
    // The program's memory reaches a device that is not current.
    driver.ctx_set_current(contexts[0]).unwrap();
    let host = Host::with(&data);
    driver.memcpy_htod(dst, host.range(0, data.len()), NULL).unwrap();
    assert!(content(&driver, dst, data.len()) == data);
}

#[test]
fn a_copy_between_devices_keeps_the_order_of_its_stream() {
    let (driver, _, contexts) = two();
    let src = filled(&driver, contexts[0], &[1; 4096]);
    let dst = filled(&driver, contexts[1], &[9; 4096]);
    let stream = driver.stream_create(1).unwrap();
    let release = hold(&driver, stream);
    driver.memset_async(src, 2, 1, 4096, stream).unwrap();
    // The caller is not kept.
    driver.memcpy_dtod_async(dst, src, 4096, stream).unwrap();
    driver.memset_async(src, 3, 1, 4096, stream).unwrap();
    assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
    driver.ctx_set_current(contexts[1]).unwrap();
    assert_eq!(content(&driver, dst, 4096), [9; 4096]);
    drop(release);
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(content(&driver, dst, 4096), [2; 4096]);
    assert_eq!(content(&driver, src, 4096), [3; 4096]);
}

#[test]
fn a_copy_of_a_default_stream_waits_for_both_devices() {
    let (driver, fakes, contexts) = two();
    let src = filled(&driver, contexts[1], &[1; 64]);
    let dst = filled(&driver, contexts[0], &[0; 64]);
    driver.ctx_set_current(contexts[1]).unwrap();
    let busy = driver.stream_create(1).unwrap();
    let release = hold(&driver, busy);
    driver.memset_async(src, 7, 1, 64, busy).unwrap();
    driver.ctx_set_current(contexts[0]).unwrap();
    let waits = fakes[1].waits();
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            driver.ctx_set_current(contexts[0]).unwrap();
            driver.memcpy_peer(dst, contexts[0], src, contexts[1], 64, NULL).unwrap();
            content(&driver, dst, 64)
        });
        // Until the copy waits for the device, or does not, the device is busy.
        while fakes[1].waits() == waits && !copy.is_finished() {
            std::thread::yield_now();
        }
        drop(release);
        assert_eq!(copy.join().unwrap(), [7; 64]);
    });
}

#[test]
fn streams_wait_for_events_of_other_devices() {
    let (driver, _, contexts) = two();
    let src = filled(&driver, contexts[0], &[1; 64]);
    let dst = filled(&driver, contexts[1], &[0; 64]);
    let producer = driver.stream_create(1).unwrap();
    let ready = driver.event_create(2).unwrap();
    let release = hold(&driver, producer);
    driver.memset_async(src, 5, 1, 64, producer).unwrap();
    driver.event_record(ready, producer).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    let consumer = driver.stream_create(1).unwrap();
    driver.stream_wait_event(consumer, ready, 0).unwrap();
    driver.memcpy_dtod_async(dst, src, 64, consumer).unwrap();
    let done = driver.event_create(2).unwrap();
    driver.event_record(done, consumer).unwrap();
    assert_eq!(driver.event_query(done), Err(CudaError::NOT_READY));
    drop(release);
    driver.event_synchronize(done).unwrap();
    assert_eq!(content(&driver, dst, 64), [5; 64]);
    // All streams of a context.
    driver.ctx_set_current(contexts[0]).unwrap();
    let release = hold(&driver, producer);
    driver.event_record(ready, producer).unwrap();
    driver.ctx_wait_event(contexts[1], ready).unwrap();
    assert_eq!(driver.stream_query(consumer), Err(CudaError::NOT_READY));
    drop(release);
    driver.stream_synchronize(consumer).unwrap();
    // What ends while others wait for it lets them go.
    let release = hold(&driver, producer);
    driver.event_record(ready, producer).unwrap();
    driver.stream_wait_event(consumer, ready, 0).unwrap();
    drop(release);
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    driver.stream_synchronize(consumer).unwrap();
}

#[test]
fn lines_are_copied_between_devices() {
    let (driver, _, contexts) = two();
    let data = pattern(64 * 40 * 3, 9);
    let src = filled(&driver, contexts[0], &data);
    let dst = filled(&driver, contexts[1], &[0; 48 * 20 * 2]);
    let copy = Copy3D {
        src: CopyEnd { memory: CopyMemory::Device(src), x: 3, y: 2, z: 1, pitch: 64, height: 40 },
        dst: CopyEnd { memory: CopyMemory::Device(dst), x: 5, y: 1, z: 0, pitch: 48, height: 20 },
        width: 33,
        height: 15,
        depth: 2,
    };
    let mut expected = vec![0; 48 * 20 * 2];
    for slice in 0..2 {
        for line in 0..15 {
            let from = ((slice + 1) * 40 + line + 2) * 64 + 3;
            let to = (slice * 20 + line + 1) * 48 + 5;
            expected[to..to + 33].copy_from_slice(&data[from..from + 33]);
        }
    }
    driver.memcpy_3d(&copy, NULL).unwrap();
    assert_eq!(content(&driver, dst, expected.len()), expected);
    // The program's lines, to and from a device that is not current.
    let host = Host::with(&data);
    let back = Host::new(expected.len());
    driver.memset_d8_of(contexts[1], dst, expected.len());
    let from = CopyEnd { memory: CopyMemory::Host(host.range(0, data.len())), ..copy.src };
    driver.memcpy_3d(&Copy3D { src: from, ..copy }, NULL).unwrap();
    assert_eq!(content(&driver, dst, expected.len()), expected);
    let to = CopyEnd { memory: CopyMemory::Host(back.range(0, expected.len())), ..copy.dst };
    driver.memcpy_3d(&Copy3D { src: copy.dst, dst: to, ..copy }, NULL).unwrap();
    assert_eq!(back.bytes(0, expected.len()), expected);
}

trait Clear {
    fn memset_d8_of(&self, context: Context, at: DevAddr, bytes: usize);
}

impl Clear for Driver {
    fn memset_d8_of(&self, context: Context, at: DevAddr, bytes: usize) {
        self.ctx_push_current(context).unwrap();
        self.memset(at, 0, 1, bytes as u64, NULL).unwrap();
        self.ctx_synchronize().unwrap();
        self.ctx_pop_current().unwrap();
    }
}

#[test]
fn host_memory_of_one_device_is_seen_by_all() {
    let (driver, fakes) = several(&[256 * MIB, 64 * MIB, 64 * MIB]);
    let contexts = [0, 1].map(|device| driver.device_primary_ctx_retain(Device(device)).unwrap());
    driver.ctx_set_current(contexts[0]).unwrap();
    // Small ones share memory, large ones have their own; and registered memory.
    let small = DevAddr(driver.mem_alloc_host(64).unwrap());
    let large = driver.mem_alloc_managed(3 * MIB, 1).unwrap();
    let pages = own_pages(&pattern(8192, 3));
    driver.mem_host_register(pages, 0).unwrap();
    let own = pages.address() as u64;
    let registered = driver.mem_host_get_device_pointer(own, 0).unwrap();
    // The third device comes later, and sees what was there.
    let late = driver.device_primary_ctx_retain(Device(2)).unwrap();
    for context in [contexts[1], late] {
        driver.ctx_set_current(context).unwrap();
        assert_eq!(driver.mem_host_get_device_pointer(small.0, 0), Ok(small));
        assert_eq!(driver.mem_host_get_device_pointer(own, 0), Ok(registered));
        let stream = driver.stream_create(1).unwrap();
        // Its own engine writes there, in stream order.
        driver.memset_async(small, 0x11, 1, 64, stream).unwrap();
        driver.memset_async(DevAddr(large.0 + MIB), 0x22, 1, MIB, stream).unwrap();
        driver.memset_async(registered, 0x33, 1, 8192, stream).unwrap();
        driver.stream_write_value(stream, DevAddr(small.0 + 8), 0x4444_4444, false, 0).unwrap();
        driver.stream_synchronize(stream).unwrap();
        assert_eq!(content(&driver, small, 64)[..12], [&[0x11; 8][..], &[0x44; 4]].concat());
        assert!(content(&driver, large, 3 * MIB as usize)[MIB as usize..].starts_with(&[0x22; MIB as usize]));
        let mut seen = [0; 8192];
        pages.range().read(&mut seen);
        assert_eq!(seen, [0x33; 8192]);
        driver.ctx_set_current(contexts[0]).unwrap();
        driver.memset(small, 0, 1, 64, NULL).unwrap();
        driver.memset(registered, 0, 1, 8192, NULL).unwrap();
        driver.memset(large, 0, 1, 3 * MIB, NULL).unwrap();
        driver.ctx_synchronize().unwrap();
    }
    // What is freed nobody sees.
    fakes[1].requests();
    for address in [small.0, large.0] {
        if address == large.0 { driver.mem_free(large) } else { driver.mem_free_host(address) }.unwrap();
        driver.ctx_set_current(late).unwrap();
        assert_eq!(driver.memset(DevAddr(address), 1, 1, 8, NULL), Err(CudaError::INVALID_VALUE));
        driver.ctx_set_current(contexts[0]).unwrap();
    }
    driver.mem_host_unregister(own).unwrap();
    let maps = |requests: Vec<String>| {
        let count = |word| requests.iter().filter(|request| *request == word).count();
        (count("Map"), count("Unmap"), count("Free"))
    };
    // The empty piece that small ones share is kept.
    assert_eq!(maps(fakes[1].requests()), (0, 2, 2));
}

#[test]
fn host_memory_that_a_device_cannot_import_is_copied_through_the_process_in_order() {
    let (driver, fakes, contexts) = two();
    fakes[1].refuse_import(GpuError::Unsupported { what: "imports".into() });
    let pinned = driver.mem_alloc_host(2 * MIB).unwrap();
    let data = pattern(2 * MIB as usize, 4);
    let source = filled(&driver, contexts[0], &data);
    driver.memcpy_dtod(DevAddr(pinned), source, 2 * MIB, NULL).unwrap();
    driver.ctx_synchronize().unwrap();
    let dst = filled(&driver, contexts[1], &vec![0; data.len()]);
    driver.ctx_set_current(contexts[1]).unwrap();
    assert_eq!(driver.mem_host_get_device_pointer(pinned, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.memset(DevAddr(pinned), 1, 1, 8, NULL), Err(CudaError::INVALID_VALUE));
    let stream = driver.stream_create(1).unwrap();
    let release = hold(&driver, stream);
    driver.memcpy_dtod_async(dst, DevAddr(pinned), 2 * MIB, stream).unwrap();
    assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
    drop(release);
    driver.stream_synchronize(stream).unwrap();
    assert!(content(&driver, dst, data.len()) == data);
    // Where there is no room, there is no memory that only some see.
    driver.ctx_set_current(contexts[0]).unwrap();
    fakes[1].refuse_import(GpuError::OutOfMemory { wanted: 0, free: 0, limit: 0 });
    assert_eq!(driver.mem_alloc_host(4 * MIB), Err(CudaError::OUT_OF_MEMORY));
    driver.mem_alloc_host(4 * MIB).unwrap();
}

#[test]
fn pools_take_blocks_back_from_streams_of_other_devices() {
    let (driver, fakes, contexts) = two();
    let here = driver.stream_create(0).unwrap();
    driver.ctx_set_current(contexts[1]).unwrap();
    let there = driver.stream_create(0).unwrap();
    let at = driver.mem_alloc_async(4 * MIB, there).unwrap();
    assert_eq!(driver.pointer_get_attribute(9, at.0), Ok(AttributeValue::U32(1)));
    assert_eq!(fakes[1].free(), 60 * MIB);
    driver.mem_free_async(at, here).unwrap();
    driver.stream_synchronize(there).unwrap();
    assert_eq!(fakes[1].free(), 64 * MIB);
}

#[test]
fn kernels_reach_no_other_devices_memory_and_are_told_so() {
    let (driver, _, contexts) = two();
    let (zero, one) = (Device(0), Device(1));
    assert_eq!(driver.device_can_access_peer(zero, one), Ok(false));
    assert_eq!(driver.device_can_access_peer(zero, Device(2)), Err(CudaError::INVALID_DEVICE));
    for attribute in 1..=5 {
        assert_eq!(driver.device_get_p2p_attribute(attribute, zero, one), Ok(0));
    }
    assert_eq!(driver.device_get_p2p_attribute(1, zero, zero), Err(CudaError::INVALID_DEVICE));
    assert_eq!(driver.device_get_p2p_attribute(9, zero, one), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.ctx_enable_peer_access(contexts[1], 0), Err(CudaError::PEER_ACCESS_UNSUPPORTED));
    assert_eq!(driver.ctx_enable_peer_access(contexts[0], 0), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_enable_peer_access(contexts[1], 1), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.ctx_disable_peer_access(contexts[1]), Err(CudaError::PEER_ACCESS_NOT_ENABLED));
}

#[test]
fn physical_memory_and_advice_name_devices() {
    let (driver, fakes, _) = two();
    let props = |device| MemoryProps { location: Location::Device(device), handle_types: 0, max_bytes: 0 };
    let memory = driver.mem_create(2 * MIB, props(1), 0).unwrap();
    assert_eq!([0, 1].map(|gpu: usize| fakes[gpu].free()), [256 * MIB, 62 * MIB]);
    assert_eq!(driver.mem_create(2 * MIB, props(2), 0), Err(CudaError::INVALID_DEVICE));
    let at = driver.mem_address_reserve(2 * MIB, 0, 0, 0).unwrap();
    driver.mem_map(at, 2 * MIB, 0, memory, 0).unwrap();
    let give = |device| driver.mem_set_access(at, 2 * MIB, &[(Location::Device(device), AccessFlags::ReadWrite)]);
    assert_eq!((give(0), give(2)), (Err(CudaError::INVALID_DEVICE), Err(CudaError::INVALID_DEVICE)));
    give(1).unwrap();
    assert_eq!(driver.mem_get_access(Location::Device(1), at), Ok(AccessFlags::ReadWrite));
    assert_eq!(driver.mem_get_access(Location::Device(0), at), Ok(AccessFlags::None));
    assert_eq!(driver.pointer_get_attribute(9, at.0), Ok(AttributeValue::U32(1)));
    driver.mem_unmap(at, 2 * MIB).unwrap();
    driver.mem_release(memory).unwrap();
    assert_eq!(fakes[1].free(), 64 * MIB);
    let managed = driver.mem_alloc_managed(4096, 1).unwrap();
    driver.mem_advise(managed, 4096, 3, Location::Device(1)).unwrap();
    assert_eq!(driver.mem_range_get_attribute(2, managed, 4096), Ok(1));
    assert_eq!(driver.mem_advise(managed, 4096, 3, Location::Device(2)), Err(CudaError::INVALID_DEVICE));
}

#[test]
fn a_device_that_is_lost_takes_no_other_with_it() {
    let (driver, fakes, contexts) = two();
    let mine = filled(&driver, contexts[0], &[1; 64]);
    let stream = driver.stream_create(1).unwrap();
    fakes[1].lose();
    driver.ctx_set_current(contexts[1]).unwrap();
    let theirs = driver.mem_alloc(64).unwrap();
    assert_eq!(driver.memset(theirs, 1, 1, 64, NULL), Err(CudaError::DEVICE_UNAVAILABLE));
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::DEVICE_UNAVAILABLE));
    assert_eq!(driver.device_total_mem(Device(1)), Err(CudaError::DEVICE_UNAVAILABLE));
    assert_eq!(driver.device_get_count(), Ok(2));
    driver.ctx_set_current(contexts[0]).unwrap();
    driver.memset(mine, 2, 1, 64, NULL).unwrap();
    assert_eq!(content(&driver, mine, 64), [2; 64]);
    // A copy from it cannot be made: the context that was to make it says so.
    driver.memcpy_dtod_async(mine, theirs, 64, stream).unwrap();
    assert_eq!(driver.stream_synchronize(stream), Err(CudaError::DEVICE_UNAVAILABLE));
    // All are lost.
    fakes[0].lose();
    let other = driver.ctx_create(0, Device(0)).unwrap();
    driver.ctx_set_current(other).unwrap();
    assert_eq!(driver.memset(mine, 2, 1, 64, NULL), Err(CudaError::DEVICE_UNAVAILABLE));
    assert_eq!(driver.device_get_count(), Err(CudaError::DEVICE_UNAVAILABLE));
}

#[test]
fn without_devices_there_is_nothing_to_initialize() {
    let host = cuda_core::HostServices { print: |_| (), context_destroyed: |_| () };
    let driver = Driver::new(Vec::new(), host);
    assert_eq!(driver.init(0), Err(CudaError::NO_DEVICE));
    assert_eq!(driver.device_get_count(), Err(CudaError::NOT_INITIALIZED));
}

#[test]
fn launches_on_several_devices_are_checked_before_any_is_made() {
    let (driver, fakes, contexts) = two();
    let made = contexts.map(|context| {
        driver.ctx_set_current(context).unwrap();
        let module = driver.module_load_data(&&b".version 8.0 .entry gaps()"[..], &mut JitLog::default()).unwrap();
        (driver.module_get_function(module, "gaps").unwrap(), driver.stream_create(1).unwrap())
    });
    let launched = || [0, 1].map(|gpu: usize| fakes[gpu].launched().len());
    let config = |of: usize, grid| LaunchConfig::new([grid, 1, 1], [32, 1, 1], 0, made[of].1);
    let launch = |list: [(usize, LaunchConfig, bool); 2]| {
        let mut params = list.map(|(_, _, there)| move |_: usize, _: &mut [u8]| there);
        let [one, other] = &mut params;
        let mut list =
            [(made[list[0].0].0, list[0].1, Params::Each(one)), (made[list[1].0].0, list[1].1, Params::Each(other))];
        driver.launch_on_several_devices(&mut list, [true; 2])
    };
    const NO: Result<(), CudaError> = Err(CudaError::INVALID_VALUE);
    assert_eq!(launch([(0, config(0, 1), true), (0, config(0, 1), true)]), NO, "two on one");
    assert_eq!(launch([(0, config(0, 1), true), (1, config(1, 2), true)]), NO, "they differ");
    assert_eq!(launch([(0, config(0, 1), true), (1, config(1, 1), false)]), NO, "the second lacks a parameter");
    assert_eq!(launched(), [0; 2]);
    assert_eq!(launch([(0, config(0, 1), true), (1, config(1, 1), true)]), Ok(()));
    driver.ctx_synchronize().unwrap();
    assert_eq!(launched(), [1; 2]);
}
