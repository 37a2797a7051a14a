//! Memory: allocation of every kind, copies, fills, what addresses tell.

use crate::support::{Host, bare, driver, pattern};
use cuda_core::{
    AccessFlags, AttributeValue, Copy3D, CopyEnd, CopyMemory, CudaError, Driver, Location, MemoryProps, PoolAttribute,
    Stream,
};
use gpu::DevAddr;
use hostmem::HostRange;
use proptest::prelude::*;

const NULL: Stream = Stream::NULL;

fn read(driver: &Driver, at: DevAddr, bytes: usize) -> Vec<u8> {
    let host = Host::new(bytes);
    driver.memcpy_dtoh(host.range(0, bytes), at, NULL).unwrap();
    host.bytes(0, bytes)
}

fn write(driver: &Driver, at: DevAddr, data: &[u8]) {
    driver.memcpy_htod(at, Host::with(data).range(0, data.len()), NULL).unwrap();
}

/// Pinned memory of the program, as it sees it.
fn pinned(driver: &Driver, bytes: usize) -> u64 {
    driver.mem_host_alloc(bytes as u64, 0).unwrap()
}

#[test]
fn allocations_are_apart_aligned_and_given_back() {
    let (driver, fake) = driver();
    driver.memset(driver.mem_alloc(1).unwrap(), 0, 1, 1, NULL).unwrap();
    let all = fake.free();
    let sizes = [1, 255, 256, 257, 4096, 1 << 20, (1 << 20) + 1, 5 << 20, 300];
    let mut made: Vec<(DevAddr, u64)> = Vec::new();
    for bytes in sizes.iter().cycle().take(60) {
        let at = driver.mem_alloc(*bytes).unwrap();
        assert_eq!(at.0 % 512, 0);
        assert!(made.iter().all(|(other, len)| at.0 + bytes <= other.0 || other.0 + len <= at.0));
        made.push((at, *bytes));
    }
    for &(at, bytes) in &made {
        assert_eq!(driver.mem_get_address_range(DevAddr(at.0 + bytes - 1)), Ok((at, bytes)));
        assert_eq!(driver.mem_free(DevAddr(at.0 + 1)), Err(CudaError::INVALID_VALUE));
        driver.mem_free(at).unwrap();
        assert_eq!(driver.mem_free(at), Err(CudaError::INVALID_VALUE));
    }
    assert_eq!(fake.free(), all);
    driver.mem_free(DevAddr(0)).unwrap();
    assert_eq!(driver.mem_alloc(0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_alloc(u64::MAX), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(driver.mem_get_address_range(DevAddr(64)), Err(CudaError::NOT_FOUND));
    let (at, pitch) = driver.mem_alloc_pitch(100, 3, 4).unwrap();
    assert_eq!((at.0 % 512, pitch), (0, 512));
    assert_eq!(driver.mem_alloc_pitch(100, 3, 5), Err(CudaError::INVALID_VALUE));
}

#[test]
fn the_limit_can_be_used_up_to_a_few_pages() {
    let (driver, fake) = bare(5 << 20);
    driver.ctx_create(0, cuda_core::Device(0)).unwrap();
    let big = driver.mem_alloc(4 << 20).unwrap();
    let mut small = Vec::new();
    while let Ok(at) = driver.mem_alloc(4096) {
        small.push(at);
    }
    assert_eq!(driver.mem_alloc(4096), Err(CudaError::OUT_OF_MEMORY));
    assert!(small.len() > 200, "{} pages", small.len());
    assert_eq!(driver.mem_get_info(), Ok((fake.free(), 5 << 20)));
    write(&driver, small[7], &[1, 2, 3]);
    assert_eq!(read(&driver, small[7], 3), [1, 2, 3]);
    small.into_iter().chain([big]).for_each(|at| driver.mem_free(at).unwrap());
}

#[test]
fn copies_between_all_kinds_of_memory() {
    let (driver, _) = driver();
    for bytes in [1, 1000, 65536, 65537, 3 << 20] {
        let data = pattern(bytes, 1);
        let size = bytes as u64;
        let vram = driver.mem_alloc(size).unwrap();
        let other = driver.mem_alloc(size).unwrap();
        let managed = driver.mem_alloc_managed(size, 1).unwrap();
        let host = DevAddr(pinned(&driver, bytes));
        write(&driver, vram, &data);
        driver.memcpy_dtod(other, vram, size, NULL).unwrap();
        driver.memcpy_dtod_async(managed, other, size, NULL).unwrap();
        driver.memcpy_dtod(host, managed, size, NULL).unwrap();
        assert_eq!(read(&driver, host, bytes), data);
        assert_eq!(read(&driver, managed, bytes), data);
        assert_eq!(driver.memcpy_dtod(other, vram, size + 256 * 8192, NULL), Err(CudaError::INVALID_VALUE));
        assert_eq!(driver.memcpy_dtod(DevAddr(64), vram, 1, NULL), Err(CudaError::INVALID_VALUE));
        for at in [vram, other, managed] {
            driver.mem_free(at).unwrap();
        }
        driver.mem_free_host(host.0).unwrap();
    }
    // By address alone.
    let (from, to) = (Host::with(&pattern(100_000, 2)), Host::new(100_000));
    driver.memcpy(to.range(0, 100_000), from.range(0, 100_000), NULL).unwrap();
    assert_eq!(to.bytes(0, 100_000), pattern(100_000, 2));
    assert_eq!(driver.memcpy(to.range(0, 1), from.range(0, 2), NULL), Err(CudaError::INVALID_VALUE));
}

#[test]
fn small_copies_do_not_wait() {
    let (driver, _) = driver();
    let stream = driver.stream_create(1).unwrap();
    for bytes in [64, 64 << 10] {
        let at = driver.mem_alloc(bytes as u64).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
        let host = Host::with(&vec![5; bytes]);
        driver.memcpy_htod_async(at, host.range(0, bytes), stream).unwrap();
        // What was passed is what is copied, whatever becomes of it.
        host.range(0, bytes).write(&vec![6; bytes]);
        assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
        drop(release);
        driver.stream_synchronize(stream).unwrap();
        assert_eq!(read(&driver, at, bytes), vec![5; bytes]);
        // Nothing is under way: a copy takes effect at once or later, but before what follows it.
        driver.memcpy_htod_async(at, host.range(0, bytes), stream).unwrap();
        driver.memset_async(at, 7, 1, 8, stream).unwrap();
        driver.stream_synchronize(stream).unwrap();
        assert_eq!(read(&driver, at, bytes), [vec![7; 8], vec![6; bytes - 8]].concat());
    }
}

#[test]
fn fills() {
    let (driver, _) = driver();
    let at = driver.mem_alloc(4096).unwrap();
    driver.memset(at, 0x1FF, 1, 4096, NULL).unwrap();
    assert_eq!(read(&driver, at, 4096), [0xFF; 4096]);
    driver.memset_async(at, 0x1_2345, 2, 3, NULL).unwrap();
    driver.memset(DevAddr(at.0 + 8), 0x0102_0304, 4, 1, NULL).unwrap();
    assert_eq!(read(&driver, at, 13), [0x45, 0x23, 0x45, 0x23, 0x45, 0x23, 0xFF, 0xFF, 4, 3, 2, 1, 0xFF]);
    driver.memset_2d(at, 16, 7, 1, 3, 4, NULL).unwrap();
    assert_eq!(read(&driver, DevAddr(at.0 + 48), 5), [7, 7, 7, 0xFF, 0xFF]);
    for (offset, element, count) in [(1, 2, 1), (2, 4, 1), (0, 3, 1), (0, 1, 1 << 40), (0, 4, u64::MAX)] {
        let answer = driver.memset(DevAddr(at.0 + offset), 0, element, count, NULL);
        assert_eq!(answer, Err(CudaError::INVALID_VALUE), "{offset} {element} {count}");
    }
    assert_eq!(driver.memset_2d(at, 2, 7, 1, 3, 4, NULL), Err(CudaError::INVALID_VALUE));
    driver.memset(at, 0, 4, 0, NULL).unwrap();
}

#[test]
fn a_programs_own_pages_can_be_registered() {
    let (driver, _) = driver();
    let host = Host::with(&pattern(20_000, 3));
    let range = host.range(100, 12_000);
    assert_eq!(driver.mem_host_get_device_pointer(range.address() as u64, 0), Err(CudaError::INVALID_VALUE));
    driver.mem_host_register(range, 0).unwrap();
    assert_eq!(driver.mem_host_register(host.range(11_000, 4), 0), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
    let at = driver.mem_host_get_device_pointer(range.address() as u64 + 50, 0).unwrap();
    assert_ne!(at.0, range.address() as u64 + 50);
    assert_eq!(driver.mem_host_get_flags(range.address() as u64), Ok(2));
    assert_eq!(read(&driver, at, 4), pattern(20_000, 3)[150..154]);
    // The GPU writes, the program sees; and the other way round.
    driver.memset_async(at, 9, 1, 10, NULL).unwrap();
    driver.ctx_synchronize().unwrap();
    let mut seen = [0; 12];
    range.part(49, 12).read(&mut seen);
    assert_eq!(seen[..], [&pattern(20_000, 3)[149..150], &[9; 10], &pattern(20_000, 3)[160..161]].concat());
    range.part(50, 1).write(&[77]);
    let vram = driver.mem_alloc(4).unwrap();
    driver.memcpy_htod(vram, range.part(50, 4), NULL).unwrap();
    assert_eq!(read(&driver, vram, 4), [77, 9, 9, 9]);
    let memory_type = driver.pointer_get_attribute(2, range.address() as u64).unwrap();
    assert_eq!(memory_type, AttributeValue::U32(1));
    assert_eq!(
        driver.pointer_get_attribute(3, range.address() as u64 + 50),
        Ok(AttributeValue::U64(at.0)),
        "device pointer"
    );
    assert_eq!(driver.mem_host_unregister(range.address() as u64 + 1), Err(CudaError::HOST_MEMORY_NOT_REGISTERED));
    driver.mem_host_unregister(range.address() as u64).unwrap();
    range.part(51, 1).read(&mut seen[..1]);
    assert_eq!(seen[0], 9);
    range.write(&[1]);
    assert_eq!(driver.mem_host_get_device_pointer(range.address() as u64, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_host_register(range, 4), Err(CudaError::NOT_SUPPORTED));
}

/// A copy of lines, done naively.
fn naive(copy: &Copy3D, src: &[u8], dst: &mut [u8]) {
    for slice in 0..copy.depth {
        for line in 0..copy.height {
            for byte in 0..copy.width {
                let at =
                    |end: &CopyEnd| (((end.z + slice) * end.height + end.y + line) * end.pitch + end.x + byte) as usize;
                dst[at(&copy.dst)] = src[at(&copy.src)];
            }
        }
    }
}

fn end(memory: CopyMemory, x: u64, y: u64, z: u64, pitch: u64, height: u64) -> CopyEnd {
    CopyEnd { memory, x, y, z, pitch, height }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn lines_and_slices_go_where_they_belong(
        shape in (1u64..40, 1u64..6, 1u64..4),
        from in (0u64..9, 0u64..3, 0u64..3, 0u64..9, 0u64..3),
        to in (0u64..9, 0u64..3, 0u64..3, 0u64..9, 0u64..3),
        kinds in (0u8..3, 0u8..3),
    ) {
        const BYTES: usize = 8192;
        let (driver, _) = driver();
        let (width, height, depth) = shape;
        let place = |kind: u8, data: &[u8]| -> (CopyMemory, Option<Host>, DevAddr) {
            match kind {
                0 => {
                    let at = driver.mem_alloc(BYTES as u64).unwrap();
                    write(&driver, at, data);
                    (CopyMemory::Device(at), None, at)
                }
                1 => {
                    let host = Host::with(data);
                    (CopyMemory::Host(host.range(0, BYTES)), Some(host), DevAddr(0))
                }
                _ => {
                    let at = DevAddr(pinned(&driver, BYTES));
                    write(&driver, at, data);
                    (CopyMemory::Device(at), None, at)
                }
            }
        };
        let (src_data, mut expect) = (pattern(BYTES, 11), pattern(BYTES, 99));
        let (src, _keep, _) = place(kinds.0, &src_data);
        let (dst, host, at) = place(kinds.1, &expect);
        let copy = Copy3D {
            src: end(src, from.0, from.1, from.2, from.0 + width + from.3, from.1 + height + from.4),
            dst: end(dst, to.0, to.1, to.2, to.0 + width + to.3, to.1 + height + to.4),
            width,
            height,
            depth,
        };
        driver.memcpy_3d(&copy, NULL).unwrap();
        naive(&copy, &src_data, &mut expect);
        let got = match host {
            Some(host) => host.bytes(0, BYTES),
            None => read(&driver, at, BYTES),
        };
        prop_assert!(got == expect);
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let (driver, _) = driver();
    let at = driver.mem_alloc(4096).unwrap();
    let host = Host::new(4096);
    let device = CopyMemory::Device(at);
    let range = |bytes| CopyMemory::Host(host.range(0, bytes));
    let table: [(CopyEnd, CopyEnd, CudaError); 5] = [
        (end(device, 0, 0, 0, 15, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, 0, 0, 0, 16, 0), end(range(100), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, 0, 0, 0, 4096, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, u64::MAX, 0, 0, 16, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(CopyMemory::Array(1), 0, 0, 0, 16, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::NOT_SUPPORTED),
    ];
    for (src, dst, error) in table {
        let copy = Copy3D { src, dst, width: 16, height: 8, depth: 1 };
        assert_eq!(driver.memcpy_3d(&copy, NULL), Err(error), "{copy:?}");
    }
}

#[test]
fn pools_reuse_in_stream_order_and_shrink() {
    let (driver, fake) = driver();
    driver.memset(driver.mem_alloc(4).unwrap(), 0, 4, 1, NULL).unwrap();
    let all = fake.free();
    let (a, b) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    let pool = driver.device_get_default_mem_pool(cuda_core::Device(0)).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    driver.launch_host_func(a, Box::new(move || held.recv().unwrap_or_default())).unwrap();
    let first = driver.mem_alloc_async(3 << 20, a).unwrap();
    driver.mem_free_async(first, a).unwrap();
    assert_eq!(driver.mem_free_async(first, a), Err(CudaError::INVALID_VALUE));
    // In the same stream at once, in another only when a has come so far.
    let other = driver.mem_alloc_async(3 << 20, b).unwrap();
    assert_ne!(other, first);
    assert_eq!(driver.mem_alloc_async(3 << 20, a), Ok(first));
    assert_eq!(driver.mem_pool_get_attribute(pool, PoolAttribute::UsedMemCurrent), Ok(6 << 20));
    driver.mem_free_async(first, a).unwrap();
    driver.mem_free_async(other, b).unwrap();
    drop(release);
    driver.ctx_synchronize().unwrap();
    assert_eq!(driver.mem_pool_get_attribute(pool, PoolAttribute::ReservedMemCurrent), Ok(0));
    assert_eq!(driver.mem_pool_get_attribute(pool, PoolAttribute::UsedMemHigh), Ok(6 << 20));
    assert_eq!(fake.free(), all);
    // A threshold keeps memory; an allocation in need gets it.
    driver.mem_pool_set_attribute(pool, PoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    let kept = driver.mem_alloc_async(600 << 20, a).unwrap();
    driver.mem_free_async(kept, a).unwrap();
    driver.ctx_synchronize().unwrap();
    assert_eq!(driver.mem_pool_get_attribute(pool, PoolAttribute::ReservedMemCurrent), Ok(600 << 20));
    let big = driver.mem_alloc(700 << 20).unwrap();
    driver.mem_free(big).unwrap();
    // Pools of one's own.
    let props = MemoryProps { location: Location::Device(0), handle_types: 0, max_bytes: 4 << 20 };
    let own = driver.mem_pool_create(props).unwrap();
    let inside = driver.mem_alloc_from_pool_async(3 << 20, own, a).unwrap();
    assert_eq!(driver.mem_alloc_from_pool_async(2 << 20, own, a), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(driver.pointer_get_attribute(17, inside.0), Ok(AttributeValue::U64(own.0)));
    driver.mem_pool_destroy(own).unwrap();
    driver.mem_free_async(inside, a).unwrap();
    assert_eq!(driver.mem_pool_trim_to(own, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_pool_destroy(pool), Err(CudaError::INVALID_VALUE));
    assert_eq!(fake.free(), all);
}

#[test]
fn addresses_and_physical_memory_apart() {
    const UNIT: u64 = 2 << 20;
    let (driver, fake) = driver();
    driver.memset(driver.mem_alloc(4).unwrap(), 0, 4, 1, NULL).unwrap();
    let all = fake.free();
    let props = MemoryProps { location: Location::Device(0), handle_types: 0, max_bytes: 0 };
    assert_eq!(driver.mem_get_allocation_granularity(props, 0), Ok(UNIT));
    let at = driver.mem_address_reserve(4 * UNIT, 0, 0, 0).unwrap();
    let (a, b) = (driver.mem_create(UNIT, props, 0).unwrap(), driver.mem_create(2 * UNIT, props, 0).unwrap());
    assert_eq!(driver.mem_create(UNIT + 1, props, 0), Err(CudaError::INVALID_VALUE));
    driver.mem_map(at, UNIT, 0, a, 0).unwrap();
    assert_eq!(driver.mem_map(at, UNIT, 0, a, 0), Err(CudaError::INVALID_VALUE));
    let next = DevAddr(at.0 + UNIT);
    driver.mem_map(next, 2 * UNIT, 0, b, 0).unwrap();
    assert_eq!(driver.memset(at, 1, 1, 1, NULL), Err(CudaError::INVALID_VALUE), "no rights yet");
    let rights = [(Location::Device(0), AccessFlags::ReadWrite)];
    driver.mem_set_access(at, 3 * UNIT, &rights).unwrap();
    assert_eq!(driver.mem_get_access(Location::Device(0), next), Ok(AccessFlags::ReadWrite));
    // One copy over both.
    driver.memset(at, 7, 1, 3 * UNIT, NULL).unwrap();
    assert_eq!(read(&driver, DevAddr(next.0 - 2), 4), [7; 4]);
    // The same memory elsewhere.
    let alias = driver.mem_address_reserve(UNIT, 0, 0, 0).unwrap();
    driver.mem_map(alias, UNIT, UNIT, b, 0).unwrap();
    driver.mem_set_access(alias, UNIT, &rights).unwrap();
    driver.memset(alias, 9, 1, 1, NULL).unwrap();
    assert_eq!(read(&driver, DevAddr(next.0 + UNIT), 2), [9, 7]);
    driver.mem_release(a).unwrap();
    driver.mem_release(b).unwrap();
    assert_eq!(driver.mem_release(b), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_retain_allocation_handle(next.0), Ok(b));
    driver.mem_release(b).unwrap();
    assert_eq!(driver.mem_address_free(at, 4 * UNIT), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_unmap(at, UNIT + 1), Err(CudaError::INVALID_VALUE));
    driver.mem_unmap(at, 3 * UNIT).unwrap();
    assert_ne!(fake.free(), all);
    driver.mem_unmap(alias, UNIT).unwrap();
    driver.mem_address_free(at, 4 * UNIT).unwrap();
    driver.mem_address_free(alias, UNIT).unwrap();
    assert_eq!(fake.free(), all);
}

#[test]
fn what_addresses_tell() {
    let (driver, _) = driver();
    let context = driver.ctx_get_current().unwrap();
    let vram = driver.mem_alloc(1000).unwrap().0;
    let managed = driver.mem_alloc_managed(1000, 1).unwrap().0;
    let pinned = driver.mem_alloc_host(1000).unwrap();
    let own = Host::new(1).range(0, 1).address() as u64;
    let get = |attribute, address| driver.pointer_get_attribute(attribute, address);
    let (no, yes) = (Ok(AttributeValue::Bool(false)), Ok(AttributeValue::Bool(true)));
    assert_eq!(get(1, vram + 5), Ok(AttributeValue::U64(context.0)));
    assert_eq!([get(2, vram), get(2, managed), get(2, pinned)], [2, 2, 1].map(|kind| Ok(AttributeValue::U32(kind))));
    assert_eq!(get(3, vram + 5), Ok(AttributeValue::U64(vram + 5)));
    assert_eq!(get(4, pinned + 5), Ok(AttributeValue::U64(pinned + 5)));
    assert_eq!(get(4, vram), Err(CudaError::INVALID_VALUE));
    assert_eq!([get(8, vram), get(8, managed)], [no, yes]);
    assert_eq!(get(11, vram + 5), Ok(AttributeValue::U64(vram)));
    assert_eq!(get(12, vram + 5), Ok(AttributeValue::U64(1000)));
    assert_ne!(get(7, vram), get(7, managed));
    assert_eq!(get(2, own), Err(CudaError::INVALID_VALUE));
    assert_eq!(get(13, own), no);
    assert_eq!(driver.pointer_get_attribute_or_default(2, own), Ok(AttributeValue::U32(0)));
    assert_eq!(driver.pointer_get_attribute_or_default(9, own), Ok(AttributeValue::U32(u32::MAX - 1)));
    driver.pointer_set_attribute(6, true, vram).unwrap();
    assert_eq!(get(6, vram), yes);
    assert_eq!(get(99, vram), Err(CudaError::INVALID_VALUE));
}

#[test]
fn managed_memory() {
    let (driver, _) = driver();
    let at = driver.mem_alloc_managed(10_000, 1).unwrap();
    driver.mem_advise(at, 10_000, 3, Location::Host).unwrap();
    assert_eq!(driver.mem_range_get_attribute(2, at, 100), Ok(-1));
    driver.mem_prefetch_async(at, 100, Location::Device(0), NULL).unwrap();
    assert_eq!(driver.mem_range_get_attribute(4, at, 100), Ok(0));
    assert_eq!(driver.mem_advise(at, 20_000, 1, Location::Host), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_prefetch_async(at, 1, Location::Device(1), NULL), Err(CudaError::INVALID_DEVICE));
    assert_eq!(driver.mem_alloc_managed(10, 0), Err(CudaError::INVALID_VALUE));
    driver.stream_attach_mem_async(NULL, at, 0, 4).unwrap();
    let vram = driver.mem_alloc(4).unwrap();
    assert_eq!(driver.stream_attach_mem_async(NULL, vram, 0, 4), Err(CudaError::INVALID_VALUE));
    let range: HostRange = Host::new(4).range(0, 4);
    assert_eq!(driver.memcpy_htod(DevAddr(range.address() as u64), range, NULL), Err(CudaError::INVALID_VALUE));
}
