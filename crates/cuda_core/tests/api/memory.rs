//! Memory: allocation of every kind, copies, fills, what addresses tell.

use std::sync::Barrier;

use crate::support::{
    Host, ProgramProtection, bare, driver, file_pages, nowhere, own_pages, part, pattern, permissions, shared_pages,
};
use cuda_core::{
    AccessFlags, Array, AttributeValue, Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, Location, MemoryProps,
    PoolAttribute, Stream,
};
use gpu::DevAddr;
use hostmem::{Mapping, Memfd};
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
    // A chunk of 2 MiB is kept for what comes next; it can be had.
    assert_eq!(driver.mem_get_info().unwrap().0, all);
    assert!(all - fake.free() <= 2 << 20, "{} bytes are kept", all - fake.free());
    driver.mem_free(DevAddr(0)).unwrap();
    assert_eq!(driver.mem_alloc(0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_alloc(u64::MAX), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(driver.mem_get_address_range(DevAddr(64)), Err(CudaError::NOT_FOUND));
    let (at, pitch) = driver.mem_alloc_pitch(100, 3, 4).unwrap();
    assert_eq!((at.0 % 512, pitch), (0, 512));
    assert_eq!(driver.mem_alloc_pitch(100, 3, 5), Err(CudaError::INVALID_VALUE));
}

#[test]
fn who_allocates_and_frees_again_and_again_asks_nobody() {
    let (driver, fake) = bare(8 << 20);
    driver.ctx_create(0, Device(0)).unwrap();
    driver.mem_free(driver.mem_alloc(1 << 20).unwrap()).unwrap();
    let before = fake.requests();
    assert!(before.iter().any(|request| request.contains("Alloc")), "{before:?}");
    for bytes in [1 << 20, 1, 4096, 1 << 20] {
        driver.mem_free(driver.mem_alloc(bytes).unwrap()).unwrap();
    }
    assert_eq!(fake.requests(), [""; 0]);
    // What is kept is there for whoever needs all of it.
    let (free, _) = driver.mem_get_info().unwrap();
    let whole = driver.mem_alloc(free / (2 << 20) * (2 << 20)).unwrap();
    driver.mem_free(whole).unwrap();
    driver.mem_free(driver.mem_alloc(1).unwrap()).unwrap();
    let props = MemoryProps { location: Location::Device(0), handle_types: 0, max_bytes: 0 };
    let physical = driver.mem_create(free / (2 << 20) * (2 << 20), props, 0).unwrap();
    driver.mem_release(physical).unwrap();
}

#[test]
fn the_limit_can_be_used_up_to_a_few_pages() {
    let (driver, fake) = bare(5 << 20);
    driver.ctx_create(0, Device(0)).unwrap();
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
    let pages = own_pages(&pattern(20_000, 3)[100..12_100]);
    let range = pages.range();
    assert_eq!(driver.mem_host_get_device_pointer(range.address() as u64, 0), Err(CudaError::INVALID_VALUE));
    driver.mem_host_register(pages, 0).unwrap();
    assert_eq!(driver.mem_host_register(pages, 2), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
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
    assert_eq!(driver.mem_host_unregister(range.address() as u64 + 1), Err(CudaError::INVALID_VALUE));
    driver.mem_host_unregister(range.address() as u64).unwrap();
    range.part(51, 1).read(&mut seen[..1]);
    assert_eq!(seen[0], 9);
    range.write(&[1]);
    assert_eq!(driver.mem_host_get_device_pointer(range.address() as u64, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_host_register(pages, 4), Err(CudaError::NOT_SUPPORTED));
}

#[test]
fn shared_memory_stays_with_all_who_share_it() {
    const BYTES: usize = 12_000;
    let (driver, fake) = driver();
    let file = Memfd::create("shm", 16_384).unwrap();
    // As two processes map it.
    let (mine, others): (&'static Mapping, _) = (Box::leak(Box::new(file.map().unwrap())), file.map().unwrap());
    let pages = shared_pages(mine, 100, BYTES);
    let free = fake.free();
    // Without an address of the GPU's it can be had, for copies.
    assert_eq!(driver.mem_host_register(pages, 2), Err(CudaError::NOT_SUPPORTED));
    driver.mem_host_register(pages, 1).unwrap();
    assert_eq!(driver.mem_host_register(pages, 1), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
    let address = pages.address() as u64;
    assert_eq!(driver.mem_host_get_device_pointer(address, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.pointer_get_attribute(2, address + 5), Ok(AttributeValue::U32(1)), "host memory");
    assert_eq!(driver.pointer_get_attribute(4, address + 5), Ok(AttributeValue::U64(address + 5)));
    assert_eq!(driver.pointer_get_attribute(3, address), Err(CudaError::INVALID_VALUE), "no device pointer");
    let seen = |from: &Mapping| {
        let mut bytes = vec![0; BYTES];
        from.read(100, &mut bytes);
        bytes
    };
    let vram = driver.mem_alloc(BYTES as u64).unwrap();
    for round in 0..3 {
        // What the other writes, the copy takes; what the copy writes, the other sees. Registered or not.
        others.write(100, &pattern(BYTES, round));
        driver.memcpy_htod_async(vram, pages.range(), NULL).unwrap();
        assert_eq!(read(&driver, vram, BYTES), pattern(BYTES, round));
        driver.memset(vram, u32::from(round) + 7, 1, BYTES as u64, NULL).unwrap();
        driver.memcpy_dtoh_async(pages.range(), vram, NULL).unwrap();
        driver.ctx_synchronize().unwrap();
        assert_eq!(seen(&others), vec![round + 7; BYTES]);
        assert_eq!(seen(mine), seen(&others));
        match round {
            0 => driver.mem_host_unregister(address).unwrap(),
            1 => assert_eq!(driver.mem_host_unregister(address), Err(CudaError::INVALID_VALUE)),
            _ => {}
        }
    }
    driver.mem_free(vram).unwrap();
    // What a context forgets is not registered any more.
    driver.mem_host_register(pages, 0).unwrap();
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    others.write(100, &[1, 2, 3]);
    assert_eq!(seen(mine)[..3], [1, 2, 3]);
    assert!(fake.free() >= free, "nothing was kept");
}

#[test]
fn of_threads_that_register_the_same_one_does() {
    const PAGE: usize = 4096;
    let (driver, fake) = driver();
    let pages = own_pages(&pattern(8 * PAGE, 1));
    let all = fake.free();
    let begun = Barrier::new(2);
    let mut first = 0;
    for round in 0..300 {
        // Each has pages that the other has not.
        let [one, two] = [part(pages, 0, 5 * PAGE), part(pages, 3 * PAGE, 5 * PAGE)];
        let register = |pages| {
            begun.wait();
            driver.mem_host_register(pages, 0)
        };
        let results = std::thread::scope(|scope| {
            let driver = &driver;
            let current = driver.ctx_get_current().unwrap();
            let other = scope.spawn(move || {
                driver.ctx_set_current(current).unwrap();
                register(two)
            });
            [register(one), other.join().unwrap()]
        });
        let refused = Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
        assert!(results == [Ok(()), refused] || results == [refused, Ok(())], "round {round}: {results:?}");
        first += u32::from(results[0].is_ok());
        let registered = if results[0].is_ok() { one } else { two };
        // What the GPU has and what the program has are one.
        let at = driver.mem_host_get_device_pointer(registered.address() as u64, 0).unwrap();
        registered.range().part(PAGE, 1).write(&[round as u8]);
        assert_eq!(read(&driver, DevAddr(at.0 + PAGE as u64), 1), [round as u8]);
        driver.mem_host_unregister(registered.address() as u64).unwrap();
    }
    eprintln!("of 300 races the first thread won {first}");
    assert_eq!(fake.free(), all);
    let mut seen = [0; 3];
    pages.range().part(7, 3).read(&mut seen);
    assert_eq!(seen[..], pattern(8 * PAGE, 1)[7..10]);
}

#[test]
fn registered_neighbours_in_one_page_are_both_right() {
    let (driver, _) = driver();
    let pages = own_pages(&pattern(8192, 1));
    let [one, two] = [part(pages, 100, 900), part(pages, 1000, 3000)];
    for unregistered_first in [one, two] {
        driver.mem_host_register(one, 0).unwrap();
        // Its first page has moved already.
        assert_eq!(driver.mem_host_register(two, 2), Err(CudaError::NOT_SUPPORTED));
        driver.mem_host_register(two, 0).unwrap();
        let vram = driver.mem_alloc(4096).unwrap();
        let check = |value: u8| {
            for own in [one, two] {
                own.range().write(&[value; 16]);
                driver.memcpy_htod_async(vram, own.range(), NULL).unwrap();
                assert_eq!(read(&driver, vram, 16), [value; 16]);
                driver.memset(vram, u32::from(value) + 1, 1, 16, NULL).unwrap();
                driver.memcpy_dtoh_async(own.range().part(0, 16), vram, NULL).unwrap();
                driver.ctx_synchronize().unwrap();
                let mut seen = [0; 16];
                own.range().read(&mut seen);
                assert_eq!(seen, [value + 1; 16]);
            }
        };
        check(3);
        driver.mem_host_unregister(unregistered_first.address() as u64).unwrap();
        check(5);
        let other = if unregistered_first == one { two } else { one };
        driver.mem_host_unregister(other.address() as u64).unwrap();
        check(7);
        driver.mem_free(vram).unwrap();
    }
}

#[test]
fn memory_that_is_not_to_be_changed_is_not_changed_by_registering_it() {
    const BYTES: usize = 8192;
    let (driver, _) = driver();
    let file = Memfd::create("file", BYTES as u64).unwrap();
    file.map().unwrap().write(0, &pattern(BYTES, 4));
    for protection in [ProgramProtection::None, ProgramProtection::Read, ProgramProtection::ReadExecute] {
        let pages = file_pages(&file, BYTES, protection);
        for flags in [0, 1, 2] {
            assert_eq!(driver.mem_host_register(pages, flags), Err(CudaError::INVALID_VALUE), "{protection:?}");
        }
        assert_eq!(permissions(pages), protection.letters(), "as it was");
        if protection == ProgramProtection::None {
            assert_eq!(driver.mem_host_register(pages, 8), Err(CudaError::INVALID_VALUE));
            continue;
        }
        // Read-only memory can be read from.
        assert_eq!(driver.mem_host_register(pages, 8 | 2), Err(CudaError::NOT_SUPPORTED));
        driver.mem_host_register(pages, 8).unwrap();
        let vram = driver.mem_alloc(BYTES as u64).unwrap();
        driver.memcpy_htod_async(vram, pages.range(), NULL).unwrap();
        assert_eq!(read(&driver, vram, BYTES), pattern(BYTES, 4));
        assert_eq!(permissions(pages), protection.letters());
        driver.mem_host_unregister(pages.address() as u64).unwrap();
        assert_eq!(permissions(pages), protection.letters());
    }
    // The file ends before the mapping does: an error, and no signal.
    for protection in [ProgramProtection::Private, ProgramProtection::Shared] {
        let pages = file_pages(&file, 2 * BYTES, protection);
        for flags in [0, 2, 8] {
            assert_eq!(driver.mem_host_register(pages, flags), Err(CudaError::INVALID_VALUE), "{protection:?}");
        }
        driver.mem_host_register(part(pages, 0, BYTES), 0).unwrap();
        driver.mem_host_unregister(pages.address() as u64).unwrap();
    }
    // Nothing is there, or more than there can be.
    for bytes in [1, usize::MAX - BYTES, usize::MAX] {
        assert_eq!(driver.mem_host_register(nowhere(bytes), 0), Err(CudaError::INVALID_VALUE));
    }
}

#[test]
fn small_pinned_memory_is_apart_zero_and_shares_mappings() {
    let (driver, fake) = driver();
    let vram = driver.mem_alloc(4).unwrap();
    write(&driver, vram, &[1; 4]);
    assert_eq!(read(&driver, vram, 4), [1; 4]);
    let all = fake.free();
    fake.requests();
    let mut made = Vec::new();
    for index in 0..20_000_u64 {
        let at = if index % 2 == 0 {
            driver.mem_host_alloc(4096, 0).unwrap()
        } else {
            driver.mem_alloc_managed(4096, 1).unwrap().0
        };
        assert_eq!(at % 512, 0);
        made.push(at);
    }
    let maps = fake.requests().iter().filter(|request| *request == "Map").count();
    assert!(maps <= 40, "20,000 allocations in {maps} mappings");
    let mut sorted = made.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 4096), "they are apart");
    write(&driver, DevAddr(made[7]), &[7; 4096]);
    assert_eq!(driver.mem_free_host(made[7]), Err(CudaError::INVALID_VALUE), "managed memory");
    driver.mem_free(DevAddr(made[7])).unwrap();
    let again = driver.mem_host_alloc(4096, 0).unwrap();
    assert_eq!(again, made[7]);
    assert_eq!(read(&driver, DevAddr(again), 4096), [0; 4096], "what was there before is gone");
    made[7] = again;
    for (index, at) in made.into_iter().enumerate() {
        if index % 2 == 0 || index == 7 { driver.mem_free_host(at) } else { driver.mem_free(DevAddr(at)) }.unwrap();
    }
    assert_eq!(fake.free(), all);
}

/// A copy of lines, done naively.
fn naive(copy: &Copy3D<'_>, src: &[u8], dst: &mut [u8]) {
    for slice in 0..copy.depth {
        for line in 0..copy.height {
            for byte in 0..copy.width {
                let at = |end: &CopyEnd<'_>| {
                    (((end.z + slice) * end.height + end.y + line) * end.pitch + end.x + byte) as usize
                };
                dst[at(&copy.dst)] = src[at(&copy.src)];
            }
        }
    }
}

fn end(memory: CopyMemory<'_>, x: u64, y: u64, z: u64, pitch: u64, height: u64) -> CopyEnd<'_> {
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
        // Device memory, the program's own, or what both see: where it is for a copy, and its content at last.
        let place = |kind: u8, data: &[u8]| {
            let at = if kind == 0 { driver.mem_alloc(BYTES as u64).unwrap() } else { DevAddr(pinned(&driver, BYTES)) };
            write(&driver, at, data);
            (kind == 1, Host::with(data), at)
        };
        let (src_data, mut expect) = (pattern(BYTES, 11), pattern(BYTES, 99));
        let (from_program, src_host, src_at) = place(kinds.0, &src_data);
        let (to_program, dst_host, dst_at) = place(kinds.1, &expect);
        let src = if from_program { CopyMemory::Host(src_host.range(0, BYTES)) } else { CopyMemory::Device(src_at) };
        let dst = if to_program { CopyMemory::Host(dst_host.range(0, BYTES)) } else { CopyMemory::Device(dst_at) };
        let copy = Copy3D {
            src: end(src, from.0, from.1, from.2, from.0 + width + from.3, from.1 + height + from.4),
            dst: end(dst, to.0, to.1, to.2, to.0 + width + to.3, to.1 + height + to.4),
            width,
            height,
            depth,
        };
        driver.memcpy_3d(&copy, NULL).unwrap();
        naive(&copy, &src_data, &mut expect);
        let got = if to_program { dst_host.bytes(0, BYTES) } else { read(&driver, dst_at, BYTES) };
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
    let table: [(CopyEnd<'_>, CopyEnd<'_>, CudaError); 5] = [
        (end(device, 0, 0, 0, 15, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, 0, 0, 0, 16, 0), end(range(100), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, 0, 0, 0, 4096, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(device, u64::MAX, 0, 0, 16, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
        (end(CopyMemory::Array(Array(1)), 0, 0, 0, 16, 0), end(range(4096), 0, 0, 0, 16, 0), CudaError::INVALID_VALUE),
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
    let pool = driver.device_get_default_mem_pool(Device(0)).unwrap();
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
fn pools_of_memory_that_the_host_sees() {
    let (driver, _) = driver();
    let default = |location, managed| driver.mem_get_default_mem_pool(location, managed);
    let device = Location::Device(0);
    assert_eq!(default(device, false), driver.device_get_default_mem_pool(Device(0)));
    let (managed, pinned) = (default(device, true).unwrap(), default(Location::Host, false).unwrap());
    assert_ne!(managed, pinned);
    assert_eq!(default(Location::Invalid, true), Ok(managed), "no preference");
    assert_eq!(default(Location::Invalid, false), Err(CudaError::INVALID_VALUE));
    assert_eq!(default(Location::Device(1), true), Err(CudaError::INVALID_DEVICE));
    assert_eq!(driver.mem_set_mem_pool(device, true, pinned), Err(CudaError::INVALID_VALUE));

    let props = MemoryProps { location: Location::Host, handle_types: 0, max_bytes: 0 };
    let shared = MemoryProps { handle_types: 1, ..props };
    assert_eq!(driver.mem_pool_create_managed(shared), Err(CudaError::NOT_SUPPORTED));
    for (own, kind) in [(driver.mem_pool_create_managed(props), 2), (driver.mem_pool_create(props), 1)] {
        let own = own.unwrap();
        assert_eq!(driver.mem_pool_get_access(own, Location::Host), Ok(AccessFlags::ReadWrite));
        driver.mem_pool_set_access(own, &[(Location::Host, AccessFlags::ReadWrite)]).unwrap();
        let at = driver.mem_alloc_from_pool_async(10_000, own, NULL).unwrap();
        let get = |attribute| driver.pointer_get_attribute(attribute, at.0 + 5);
        assert_eq!(get(2), Ok(AttributeValue::U32(kind)));
        assert_eq!(get(8), Ok(AttributeValue::U32((kind == 2).into())));
        assert_eq!(get(4), Ok(AttributeValue::U64(at.0 + 5)), "the host sees it there");
        assert_eq!(get(17), Ok(AttributeValue::U64(own.0)));
        driver.memset(at, 7, 1, 10_000, NULL).unwrap();
        assert_eq!(read(&driver, DevAddr(at.0 + 9_999), 1), [7]);
        let advised = driver.mem_advise(at, 100, 5, Location::Host);
        assert_eq!(advised, if kind == 2 { Ok(()) } else { Err(CudaError::INVALID_VALUE) });
        driver.mem_free_async(at, NULL).unwrap();
        assert_eq!(driver.mem_alloc_from_pool_async(10_000, own, NULL), Ok(at), "in stream order at once");
        if kind == 2 {
            assert_eq!(driver.mem_range_accessed_by(at, 100), Ok(vec![]), "what was said of a former allocation");
        }
        driver.mem_free(at).unwrap();
        driver.mem_pool_destroy(own).unwrap();
        assert_eq!(get(2), Err(CudaError::INVALID_VALUE));
    }
    assert_eq!(driver.mem_pool_destroy(managed), Err(CudaError::INVALID_VALUE));
    driver.stream_begin_capture(Stream::PER_THREAD, 2).unwrap();
    assert_eq!(driver.mem_alloc_from_pool_async(8, managed, Stream::PER_THREAD), Err(CudaError::NOT_SUPPORTED));
    driver.stream_end_capture(Stream::PER_THREAD).unwrap();
    // No bytes are nowhere.
    assert_eq!(driver.mem_alloc_async(0, NULL), Ok(DevAddr(0)));
    driver.mem_free_async(DevAddr(0), NULL).unwrap();
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
fn physical_memory_of_the_host_is_mapped_by_its_pages() {
    const PAGE: u64 = 4096;
    let (driver, _) = driver();
    let on = |location| MemoryProps { location, handle_types: 0, max_bytes: 0 };
    let node = on(Location::HostNuma(0));
    for props in [node, on(Location::Host)] {
        assert_eq!(driver.mem_get_allocation_granularity(props, 0), Ok(PAGE));
        assert_eq!(driver.mem_get_allocation_granularity(props, 1), Ok(2 << 20));
    }
    for location in [Location::HostNuma(1), Location::HostNumaCurrent] {
        assert_eq!(driver.mem_create(PAGE, on(location), 0), Err(CudaError::INVALID_VALUE));
    }
    let shared = MemoryProps { handle_types: 1, ..on(Location::Host) };
    assert_eq!(driver.mem_create(PAGE, shared, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_create(PAGE / 2, node, 0), Err(CudaError::INVALID_VALUE));

    let at = driver.mem_address_reserve(16 * PAGE, 0, 0, 0).unwrap();
    let page = |index: u64| DevAddr(at.0 + index * PAGE);
    let memory = driver.mem_create(5 * PAGE, node, 0).unwrap();
    assert_eq!(driver.mem_map(DevAddr(at.0 + 8), PAGE, 0, memory, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_map(page(1), 5 * PAGE, PAGE, memory, 0), Err(CudaError::INVALID_VALUE));
    // Two views of it, of which the second begins where the first ends.
    driver.mem_map(page(1), 3 * PAGE, PAGE, memory, 0).unwrap();
    driver.mem_map(page(4), 5 * PAGE, 0, memory, 0).unwrap();
    let device = (Location::Device(0), AccessFlags::ReadWrite);
    driver.mem_set_access(page(1), 8 * PAGE, &[device, (Location::HostNuma(0), AccessFlags::Read)]).unwrap();
    assert_eq!(driver.mem_get_access(Location::Host, page(3)), Ok(AccessFlags::Read));
    driver.memset(page(4), 1, 1, 5 * PAGE, NULL).unwrap();
    driver.memset(page(2), 2, 1, PAGE, NULL).unwrap();
    assert_eq!(read(&driver, DevAddr(page(6).0 - 1), 2), [1, 2], "the third page of the memory");
    assert_eq!(read(&driver, DevAddr(page(7).0 - 1), 2), [2, 1]);
    driver.mem_unmap(page(4), 5 * PAGE).unwrap();
    assert_eq!(read(&driver, page(2), 1), [2]);
    driver.mem_unmap(page(1), 3 * PAGE).unwrap();
    driver.mem_release(memory).unwrap();

    // Who has no node is not reached from one.
    let memory = driver.mem_create(PAGE, on(Location::Host), 0).unwrap();
    driver.mem_map(at, PAGE, 0, memory, 0).unwrap();
    let from_node = [(Location::HostNuma(0), AccessFlags::ReadWrite)];
    assert_eq!(driver.mem_set_access(at, PAGE, &from_node), Err(CudaError::INVALID_VALUE));
    driver.mem_set_access(at, PAGE, &[(Location::Host, AccessFlags::ReadWrite)]).unwrap();
    driver.mem_unmap(at, PAGE).unwrap();
    driver.mem_release(memory).unwrap();
    driver.mem_address_free(at, 16 * PAGE).unwrap();
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
    assert_eq!([get(8, vram), get(8, managed), get(8, own)], [0, 1, 0].map(|word| Ok(AttributeValue::U32(word))));
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
    let accessed_by = |advice, location, expect: &[i32]| {
        driver.mem_advise(at, 10_000, advice, location).unwrap();
        assert_eq!(driver.mem_range_accessed_by(at, 100).unwrap(), expect);
    };
    accessed_by(5, Location::Host, &[-1]);
    accessed_by(5, Location::Device(0), &[0, -1]);
    accessed_by(6, Location::Host, &[0]);
    accessed_by(6, Location::Device(0), &[]);
    assert_eq!(driver.mem_advise(at, 20_000, 1, Location::Host), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_prefetch_async(at, 1, Location::Device(1), NULL), Err(CudaError::INVALID_DEVICE));
    assert_eq!(driver.mem_alloc_managed(10, 0), Err(CudaError::INVALID_VALUE));
    driver.stream_attach_mem_async(NULL, at, 0, 4).unwrap();
    let vram = driver.mem_alloc(4).unwrap();
    assert_eq!(driver.stream_attach_mem_async(NULL, vram, 0, 4), Err(CudaError::INVALID_VALUE));
    let host = Host::new(4);
    let range = host.range(0, 4);
    assert_eq!(driver.memcpy_htod(DevAddr(range.address() as u64), range, NULL), Err(CudaError::INVALID_VALUE));
}
