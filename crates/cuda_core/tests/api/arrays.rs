//! Arrays: which there can be, copies with them, and how they end.

use cuda_abi::{CUDA_ARRAY3D_DESCRIPTOR, CUarray_format as Format};
use cuda_core::{
    Array, Context, Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, MipmappedArray, NodeInfo, NodeParams,
    Result, Stream,
};
use gpu::DevAddr;
use proptest::prelude::*;

use crate::support::{Host, bare, driver, pattern, several};

const NULL: Stream = Stream::NULL;
const FLOAT: Format = Format::CU_AD_FORMAT_FLOAT;
const BYTE: Format = Format::CU_AD_FORMAT_UNSIGNED_INT8;
const LAYERED: u32 = 1;
const SURFACE: u32 = 2;
const CUBE: u32 = 4;
const GATHER: u32 = 8;

fn descriptor(extent: [usize; 3], format: Format, num_channels: u32, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let [width, height, depth] = extent;
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }
}

fn create(driver: &Driver, extent: [usize; 3], flags: u32) -> Result<Array> {
    driver.array_3d_create(&descriptor(extent, BYTE, 1, flags))
}

fn end(memory: CopyMemory<'_>, [x, y, z]: [u64; 3], pitch: u64, height: u64) -> CopyEnd<'_> {
    CopyEnd { memory, x, y, z, pitch, height }
}

/// All of an array or of lines that follow one another, in bytes.
fn whole<'a>(dst: CopyMemory<'a>, src: CopyMemory<'a>, [width, height, depth]: [u64; 3]) -> Copy3D<'a> {
    let end = |memory| end(memory, [0; 3], width, height);
    Copy3D { src: end(src), dst: end(dst), width, height, depth }
}

fn put(driver: &Driver, array: Array, data: &[u8], extent: [u64; 3]) {
    let host = Host::with(data);
    let src = CopyMemory::Host(host.range(0, data.len()));
    driver.memcpy_3d(&whole(CopyMemory::Array(array), src, extent), NULL).unwrap();
}

fn get(driver: &Driver, array: Array, extent: [u64; 3]) -> Vec<u8> {
    let bytes = extent.iter().product::<u64>() as usize;
    let host = Host::new(bytes);
    let dst = CopyMemory::Host(host.range(0, bytes));
    driver.memcpy_3d(&whole(dst, CopyMemory::Array(array), extent), NULL).unwrap();
    host.bytes(0, bytes)
}

#[test]
fn arrays_are_what_extents_and_flags_say() {
    let (driver, _) = driver();
    let fine: [([usize; 3], u32); 13] = [
        ([1, 0, 0], 0),
        ([7, 0, 0], SURFACE),
        ([7, 5, 0], SURFACE | GATHER),
        ([7, 5, 3], SURFACE),
        ([7, 0, 3], LAYERED | SURFACE),
        ([7, 5, 3], LAYERED | SURFACE),
        ([5, 5, 6], CUBE | SURFACE),
        ([5, 5, 12], CUBE | LAYERED | SURFACE),
        ([7, 5, 3], LAYERED | GATHER),
        ([7, 5, 0], 0x10),
        ([7, 5, 0], 0x20),
        ([131_072, 0, 0], 0),
        ([32_768, 0, 0], SURFACE),
    ];
    for (extent, flags) in fine {
        let wanted = descriptor(extent, FLOAT, 2, flags);
        let array = driver.array_3d_create(&wanted).unwrap_or_else(|error| panic!("{wanted:?}: {error:?}"));
        assert_eq!(driver.array_3d_get_descriptor(array), Ok(wanted));
        assert_eq!(driver.array_element_bytes(array), Ok(8));
        driver.array_destroy(array).unwrap();
    }
    let not: [([usize; 3], u32, CudaError); 22] = [
        ([0, 0, 0], 0, CudaError::INVALID_VALUE),
        ([0, 5, 0], 0, CudaError::INVALID_VALUE),
        ([7, 0, 3], 0, CudaError::INVALID_VALUE),
        ([7, 5, 0], LAYERED, CudaError::INVALID_VALUE),
        ([7, 5, 6], CUBE, CudaError::INVALID_VALUE),
        ([5, 5, 5], CUBE, CudaError::INVALID_VALUE),
        ([5, 5, 12], CUBE, CudaError::INVALID_VALUE),
        ([5, 5, 0], CUBE, CudaError::INVALID_VALUE),
        ([5, 5, 7], CUBE | LAYERED, CudaError::INVALID_VALUE),
        ([5, 5, 0], CUBE | LAYERED, CudaError::INVALID_VALUE),
        ([7, 0, 0], GATHER, CudaError::INVALID_VALUE),
        ([7, 5, 3], GATHER, CudaError::INVALID_VALUE),
        ([7, 5, 0], 0x200, CudaError::INVALID_VALUE),
        ([7, 5, 0], 0x40, CudaError::NOT_SUPPORTED),
        ([7, 5, 0], 0x80, CudaError::NOT_SUPPORTED),
        ([7, 5, 0], 0x100, CudaError::NOT_SUPPORTED),
        ([131_073, 0, 0], 0, CudaError::INVALID_VALUE),
        ([32_769, 0, 0], SURFACE, CudaError::INVALID_VALUE),
        ([32_769, 1, 0], GATHER, CudaError::INVALID_VALUE),
        ([1, 1, 2049], LAYERED, CudaError::INVALID_VALUE),
        ([1, 1, 2052], CUBE | LAYERED, CudaError::INVALID_VALUE),
        ([usize::MAX, 1, 0], 0, CudaError::INVALID_VALUE),
    ];
    for (extent, flags, error) in not {
        assert_eq!(create(&driver, extent, flags), Err(error), "{extent:?} {flags:#x}");
    }
    // What the limits allow need not be there.
    assert_eq!(create(&driver, [131_072, 65_536, 0], 0), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(create(&driver, [16_384, 16_384, 16_384], 0), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn elements_are_what_format_and_channels_say() {
    let (driver, _) = driver();
    let make = |format, channels| {
        let array = driver.array_3d_create(&descriptor([9, 9, 0], format, channels, 0))?;
        driver.array_element_bytes(array)
    };
    for (format, bytes) in [(1, 1), (2, 2), (3, 4), (8, 1), (9, 2), (10, 4), (16, 2), (32, 4)] {
        for channels in [1, 2, 4] {
            assert_eq!(make(Format(format), channels), Ok(bytes * u64::from(channels)));
        }
        for channels in [0, 3, 5, 8] {
            assert_eq!(make(Format(format), channels), Err(CudaError::INVALID_VALUE));
        }
    }
    for (format, own, bytes) in [(192, 1, 1), (193, 2, 2), (194, 4, 4), (195, 1, 2), (200, 4, 4), (203, 4, 8)] {
        for channels in [1, 2, 4] {
            let expected = if channels == own { Ok(bytes) } else { Err(CudaError::INVALID_VALUE) };
            assert_eq!(make(Format(format), channels), expected, "{format} {channels}");
        }
    }
    assert_eq!(make(Format(0), 1), Err(CudaError::INVALID_VALUE));
    assert_eq!(make(Format(12345), 1), Err(CudaError::INVALID_VALUE));
    for format in [Format::CU_AD_FORMAT_NV12, Format::CU_AD_FORMAT_BC1_UNORM, Format::CU_AD_FORMAT_Y410] {
        assert_eq!(make(format, 1), Err(CudaError::NOT_SUPPORTED));
    }
}

/// Every limit that an attribute tells is accepted, as far as its extents go, and one more is not.
#[test]
fn attributes_tell_the_limits() {
    let (driver, _) = driver();
    // Attributes of width, height, depth (0: none; negative: that extent itself), and the flags.
    let table: [([i32; 3], u32); 15] = [
        ([21, 0, 0], 0),
        ([22, 23, 0], 0),
        ([45, 46, 0], GATHER),
        ([24, 25, 26], 0),
        ([42, 0, 43], LAYERED),
        ([27, 28, 29], LAYERED),
        ([52, 52, -6], CUBE),
        ([53, 53, 54], CUBE | LAYERED),
        ([55, 0, 0], SURFACE),
        ([56, 57, 0], SURFACE),
        ([58, 59, 60], SURFACE),
        ([61, 0, 62], LAYERED | SURFACE),
        ([63, 64, 65], LAYERED | SURFACE),
        ([66, 66, -6], CUBE | SURFACE),
        ([67, 67, 68], CUBE | LAYERED | SURFACE),
    ];
    let limit = |attribute: i32| match attribute {
        ..=0 => -attribute as usize,
        _ => driver.device_get_attribute(attribute, Device(0)).unwrap() as usize,
    };
    for (attributes, flags) in table {
        let most = attributes.map(limit);
        // Too large for the memory that there is, or made.
        let found = create(&driver, most, flags);
        assert!(found.is_ok() || found == Err(CudaError::OUT_OF_MEMORY), "{attributes:?}: {found:?}");
        found.into_iter().for_each(|array| driver.array_destroy(array).unwrap());
        for index in (0..3).filter(|index| attributes[*index] > 0) {
            let mut more = most;
            more[index] += 1;
            assert_eq!(create(&driver, more, flags), Err(CudaError::INVALID_VALUE), "{attributes:?} {more:?}");
        }
    }
    // There is no second size of 3D textures.
    assert_eq!([47, 48, 49].map(limit), [0; 3]);
}

#[test]
fn levels_of_a_mipmapped_array_are_arrays() {
    let (driver, fake) = driver();
    // The context is on the GPU, and a chunk is kept.
    driver.memset(driver.mem_alloc(1).unwrap(), 0, 1, 1, NULL).unwrap();
    let all = (fake.free(), driver.mem_get_info().unwrap());
    let wanted = descriptor([20, 13, 9], BYTE, 4, SURFACE);
    let array = driver.mipmapped_array_create(&wanted, 99).unwrap();
    let extents = [[20, 13, 9], [10, 6, 4], [5, 3, 2], [2, 1, 1], [1, 1, 1]];
    let levels: Vec<Array> = (0..5).map(|level| driver.mipmapped_array_get_level(array, level).unwrap()).collect();
    assert_eq!(driver.mipmapped_array_get_level(array, 5), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mipmapped_array_get_level(array, 0), Ok(levels[0]), "one handle for each");
    for (level, extent) in levels.iter().zip(extents) {
        assert_eq!(driver.array_3d_get_descriptor(*level), Ok(descriptor(extent, BYTE, 4, SURFACE)));
    }
    // None lies on another.
    let bytes = |extent: [usize; 3]| [extent[0] as u64 * 4, extent[1] as u64, extent[2] as u64];
    let data = |at: usize| pattern(extents[at].iter().product::<usize>() * 4, at as u8 + 3);
    (0..5).for_each(|at| put(&driver, levels[at], &data(at), bytes(extents[at])));
    (0..5).for_each(|at| assert_eq!(get(&driver, levels[at], bytes(extents[at])), data(at), "level {at}"));
    assert_eq!(driver.array_destroy(levels[1]), Err(CudaError::INVALID_HANDLE), "it is the mipmapped array's");
    driver.mipmapped_array_destroy(array).unwrap();
    assert_eq!(driver.mipmapped_array_destroy(array), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.mipmapped_array_get_level(array, 0), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.array_3d_get_descriptor(levels[0]), Err(CudaError::INVALID_HANDLE));
    // Layers stay as many; what there was none of, there is none of.
    for (extent, flags, last, most) in [
        ([16, 0, 5], LAYERED, [1, 0, 5], 5),
        ([16, 16, 6], CUBE, [1, 1, 6], 5),
        ([16, 0, 0], 0, [1, 0, 0], 5),
        ([4, 32, 0], 0, [1, 1, 0], 6),
    ] {
        let array = driver.mipmapped_array_create(&descriptor(extent, FLOAT, 1, flags), most + 1).unwrap();
        let smallest = driver.mipmapped_array_get_level(array, most - 1).unwrap();
        assert_eq!(driver.array_3d_get_descriptor(smallest), Ok(descriptor(last, FLOAT, 1, flags)));
        assert_eq!(driver.mipmapped_array_get_level(array, most), Err(CudaError::INVALID_VALUE));
        driver.mipmapped_array_destroy(array).unwrap();
    }
    let single = driver.mipmapped_array_create(&wanted, 0).unwrap();
    assert_eq!(driver.mipmapped_array_get_level(single, 1), Err(CudaError::INVALID_VALUE));
    driver.mipmapped_array_destroy(single).unwrap();
    assert_eq!((fake.free(), driver.mem_get_info().unwrap()), all);
    // Smaller ones than arrays of one level.
    for extent in [[32_769, 0, 0], [32_769, 1, 0], [1, 32_769, 0]] {
        create(&driver, extent, 0).unwrap();
        let refused = driver.mipmapped_array_create(&descriptor(extent, BYTE, 1, 0), 2);
        assert_eq!(refused, Err(CudaError::INVALID_VALUE), "{extent:?}");
    }
}

/// A copy of texels, done naively on dense memory.
fn naive(src: &[u8], dst: &mut [u8], ends: [([usize; 3], [usize; 3]); 2], extent: [usize; 3]) {
    for z in 0..extent[2] {
        for y in 0..extent[1] {
            for x in 0..extent[0] {
                let at =
                    |(of, skip): ([usize; 3], [usize; 3])| ((skip[2] + z) * of[1] + skip[1] + y) * of[0] + skip[0] + x;
                dst[at(ends[1])] = src[at(ends[0])];
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]
    #[test]
    fn texels_go_where_they_belong(
        extent in [1usize..20, 1usize..7, 1usize..5],
        from in [0usize..9, 0usize..3, 0usize..3],
        to in [0usize..9, 0usize..3, 0usize..3],
        more in [0usize..9, 0usize..3, 0usize..3],
        channels in prop_oneof![Just(1u32), Just(2), Just(4)],
        kinds in (0u8..3, 0u8..3),
        asynchronous in any::<bool>(),
    ) {
        let (driver, _) = driver();
        let texel = channels as usize;
        let bytes = |[x, y, z]: [usize; 3]| [x * texel, y, z];
        let of = |skip: [usize; 3]| [0, 1, 2].map(|axis| skip[axis] + extent[axis] + more[axis]);
        let (src_of, dst_of) = (bytes(of(from)), bytes(of(to)));
        let (src_data, mut expect) =
            (pattern(src_of.iter().product(), 11), pattern(dst_of.iter().product(), 99));
        let wide = |extent: [usize; 3]| extent.map(|extent| extent as u64);
        let (src_host, dst_host) = (Host::with(&src_data), Host::with(&expect));
        // An array, device memory, or the program's own.
        let array = |of: [usize; 3], data: &[u8]| {
            let array = driver.array_3d_create(&descriptor([of[0] / texel, of[1], of[2]], BYTE, channels, 0)).unwrap();
            put(&driver, array, data, wide(of));
            CopyMemory::Array(array)
        };
        let device = |data: &[u8]| {
            let at = driver.mem_alloc(data.len() as u64).unwrap();
            driver.memcpy_htod(at, Host::with(data).range(0, data.len()), NULL).unwrap();
            CopyMemory::Device(at)
        };
        let src = match kinds.0 {
            0 => array(src_of, &src_data),
            1 => device(&src_data),
            _ => CopyMemory::Host(src_host.range(0, src_data.len())),
        };
        let dst = match kinds.1 {
            0 => array(dst_of, &expect),
            1 => device(&expect),
            _ => CopyMemory::Unified(dst_host.range(0, expect.len())),
        };
        // Pitch and height of arrays are not looked at.
        let place = |memory, skip: [usize; 3], of: [usize; 3]| match memory {
            CopyMemory::Array(_) => end(memory, wide(bytes(skip)), 3, 0),
            _ => end(memory, wide(bytes(skip)), of[0] as u64, of[1] as u64),
        };
        let [width, height, depth] = wide(bytes(extent));
        let copy = Copy3D { src: place(src, from, src_of), dst: place(dst, to, dst_of), width, height, depth };
        if asynchronous {
            // Little of the program's memory is still on its way when a copy returns.
            driver.ctx_synchronize().unwrap();
            let stream = driver.stream_create(1).unwrap();
            driver.memcpy_3d_async(&copy, stream).unwrap();
            driver.stream_synchronize(stream).unwrap();
        } else {
            driver.memcpy_3d(&copy, NULL).unwrap();
        }
        naive(&src_data, &mut expect, [(src_of, bytes(from)), (dst_of, bytes(to))], bytes(extent));
        let got = match dst {
            CopyMemory::Array(array) => get(&driver, array, wide(dst_of)),
            CopyMemory::Device(at) => {
                let host = Host::new(expect.len());
                driver.memcpy_dtoh(host.range(0, expect.len()), at, NULL).unwrap();
                host.bytes(0, expect.len())
            }
            _ => dst_host.bytes(0, expect.len()),
        };
        prop_assert!(got == expect);
    }
}

#[test]
fn copies_stay_inside_arrays_and_cut_no_element() {
    let (driver, _) = driver();
    let array = driver.array_3d_create(&descriptor([6, 5, 4], FLOAT, 1, 0)).unwrap();
    let line = driver.array_3d_create(&descriptor([6, 0, 0], FLOAT, 1, 0)).unwrap();
    let memory = CopyMemory::Device(driver.mem_alloc(4096).unwrap());
    let try_it = |array, skip, [width, height, depth]: [u64; 3]| {
        let (one, other) = (end(CopyMemory::Array(array), skip, 0, 0), end(memory, [0; 3], 24, 5));
        let there = driver.memcpy_3d(&Copy3D { src: one, dst: other, width, height, depth }, NULL);
        let back = driver.memcpy_3d_async(&Copy3D { src: other, dst: one, width, height, depth }, NULL);
        assert_eq!(there, back);
        there
    };
    assert_eq!(try_it(array, [0; 3], [24, 5, 4]), Ok(()));
    assert_eq!(try_it(array, [20, 4, 3], [4, 1, 1]), Ok(()));
    assert_eq!(try_it(line, [4, 0, 0], [20, 1, 1]), Ok(()));
    for (array, skip, extent) in [
        (array, [4, 0, 0], [24, 1, 1]),
        (array, [0, 1, 0], [4, 5, 1]),
        (array, [0, 0, 1], [4, 1, 4]),
        (array, [u64::MAX - 3, 0, 0], [8, 1, 1]),
        (array, [0, u64::MAX, 0], [4, 1, 1]),
        (array, [2, 0, 0], [4, 1, 1]),
        (array, [0, 0, 0], [6, 1, 1]),
        (line, [0, 1, 0], [4, 1, 1]),
        (line, [0, 0, 0], [4, 2, 1]),
        (line, [8, 0, 0], [20, 1, 1]),
        (Array(0), [0; 3], [4, 1, 1]),
        (Array(0x1234_5678), [0; 3], [4, 1, 1]),
    ] {
        assert_eq!(try_it(array, skip, extent), Err(CudaError::INVALID_VALUE), "{skip:?} {extent:?}");
    }
    driver.array_destroy(line).unwrap();
    assert_eq!(try_it(line, [0; 3], [4, 1, 1]), Err(CudaError::INVALID_VALUE), "destroyed");
}

#[test]
fn handles_name_arrays_while_there_are_any() {
    let (driver, fake) = bare(64 << 20);
    let array_of = |driver: &Driver| create(driver, [2000, 2000, 0], 0);
    assert_eq!(array_of(&driver), Err(CudaError::INVALID_CONTEXT));
    let first = driver.ctx_create(0, Device(0)).unwrap();
    let array = array_of(&driver).unwrap();
    let mipmapped = driver.mipmapped_array_create(&descriptor([64, 64, 0], FLOAT, 1, 0), 3).unwrap();
    let level = driver.mipmapped_array_get_level(mipmapped, 2).unwrap();
    let event = driver.event_create(0).unwrap();
    for garbage in [0, 7, event.0, mipmapped.0, array.0 + 1] {
        assert_eq!(driver.array_destroy(Array(garbage)), Err(CudaError::INVALID_HANDLE));
        assert_eq!(driver.array_3d_get_descriptor(Array(garbage)), Err(CudaError::INVALID_HANDLE));
        let mipmapped = MipmappedArray(if garbage == mipmapped.0 { array.0 } else { garbage });
        assert_eq!(driver.mipmapped_array_destroy(mipmapped), Err(CudaError::INVALID_HANDLE));
        assert_eq!(driver.mipmapped_array_get_level(mipmapped, 0), Err(CudaError::INVALID_HANDLE));
    }
    // Another context of the device may use and destroy it, as it may memory.
    let second = driver.ctx_create(0, Device(0)).unwrap();
    let data = pattern(4_000_000, 5);
    put(&driver, array, &data, [2000, 2000, 1]);
    assert_eq!(get(&driver, array, [2000, 2000, 1]), data);
    let before = fake.free();
    driver.array_destroy(array).unwrap();
    assert!(fake.free() >= before + 4_000_000, "{} bytes, {before} before", fake.free());
    assert_eq!(driver.array_destroy(array), Err(CudaError::INVALID_HANDLE));
    // With its context all goes.
    let kept = create(&driver, [4000, 4000, 0], 0).unwrap();
    driver.ctx_destroy(second).unwrap();
    driver.ctx_set_current(first).unwrap();
    assert_eq!(driver.array_destroy(kept), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.array_3d_get_descriptor(level), Ok(descriptor([16, 16, 0], FLOAT, 1, 0)));
    create(&driver, [7000, 7000, 0], 0).unwrap();
    driver.ctx_destroy(first).unwrap();
    driver.ctx_create(0, Device(0)).unwrap();
    assert_eq!(driver.array_3d_get_descriptor(level), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.mipmapped_array_destroy(mipmapped), Err(CudaError::INVALID_HANDLE));
    // Memory is charged, and not to be had again and again.
    let all = driver.mem_get_info().unwrap().0;
    create(&driver, [7000, 7000, 0], 0).unwrap();
    assert!(all - driver.mem_get_info().unwrap().0 >= 49_000_000);
    assert_eq!(create(&driver, [7000, 7000, 0], 0), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn an_array_ends_after_the_copies_that_use_it() {
    let (driver, _) = driver();
    let data = pattern(4096, 8);
    let stream = driver.stream_create(1).unwrap();
    let at = driver.mem_alloc(4096).unwrap();
    let single = create(&driver, [64, 64, 0], 0).unwrap();
    let many = driver.mipmapped_array_create(&descriptor([64, 64, 0], BYTE, 1, 0), 2).unwrap();
    let first = driver.mipmapped_array_get_level(many, 0).unwrap();
    let destroy_single: &dyn Fn() -> Result<()> = &|| driver.array_destroy(single);
    let destroy_many: &dyn Fn() -> Result<()> = &|| driver.mipmapped_array_destroy(many);
    for (array, destroy) in [(single, destroy_single), (first, destroy_many)] {
        put(&driver, array, &data, [64, 64, 1]);
        driver.ctx_synchronize().unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (destroyed, watched) = std::sync::mpsc::channel::<()>();
        driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
        let copy = whole(CopyMemory::Device(at), CopyMemory::Array(array), [64, 64, 1]);
        driver.memcpy_3d_async(&copy, stream).unwrap();
        // The copy goes on only after whoever does not wait for it would have been back.
        let releasing = std::thread::spawn(move || {
            let _ = watched.recv_timeout(std::time::Duration::from_millis(300));
            release.send(()).unwrap();
        });
        destroy().unwrap();
        let done = driver.stream_query(stream);
        destroyed.send(()).unwrap_or_default();
        releasing.join().unwrap();
        assert_eq!(done, Ok(()), "destroyed while a copy reads it");
        let host = Host::new(4096);
        driver.memcpy_dtoh(host.range(0, 4096), at, NULL).unwrap();
        assert_eq!(host.bytes(0, 4096), data);
    }
}

#[test]
fn graphs_copy_arrays() {
    let (driver, _) = driver();
    let [one, other] = [0; 2].map(|_| create(&driver, [40, 30, 0], 0).unwrap());
    let extent = [40, 30, 1];
    let data = pattern(1200, 21);
    put(&driver, one, &data, extent);
    let graph = driver.graph_create(0).unwrap();
    let copy = whole(CopyMemory::Array(other), CopyMemory::Array(one), extent);
    let node = driver.graph_add_node(graph, &[], NodeParams::Copy { copy, context: Context::NULL }).unwrap();
    assert!(matches!(driver.graph_node_get_params(node).unwrap(), NodeInfo::Copy { copy: found, .. } if found == copy));
    let beyond = Copy3D { height: 31, ..copy };
    let refused = driver.graph_add_node(graph, &[], NodeParams::Copy { copy: beyond, context: Context::NULL });
    assert_eq!(refused.err(), Some(CudaError::INVALID_VALUE));
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    put(&driver, other, &[0; 1200], extent);
    let stream = driver.stream_create(1).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(get(&driver, other, extent), data);
    // Captured: to the program's memory, by a thread of the stream; and what comes to be refused later.
    let host: &'static Host = Box::leak(Box::new(Host::new(1200)));
    driver.stream_begin_capture(stream, 2).unwrap();
    let out = whole(CopyMemory::Host(host.range(0, 1200)), CopyMemory::Array(other), extent);
    assert_eq!(driver.capture_copy(stream, || Ok::<_, CudaError>(out)), Ok(true));
    let captured = driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(captured, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(host.bytes(0, 1200), data);
    driver.array_destroy(one).unwrap();
    let refused = driver.graph_instantiate(graph, 0).map_err(|(error, _)| error);
    assert_eq!(refused, Err(CudaError::INVALID_VALUE), "its array is gone");
}

#[test]
fn arrays_are_copied_between_devices() {
    let (driver, _) = several(&[64 << 20; 2]);
    let extent = [100, 60, 1];
    let arrays = [0, 1].map(|ordinal| {
        driver.ctx_create(0, Device(ordinal)).unwrap();
        create(&driver, [100, 60, 0], 0).unwrap()
    });
    let data = pattern(6000, 13);
    put(&driver, arrays[0], &data, extent);
    put(&driver, arrays[1], &[0; 6000], extent);
    let part = Copy3D {
        src: end(CopyMemory::Array(arrays[0]), [10, 20, 0], 0, 0),
        dst: end(CopyMemory::Array(arrays[1]), [0, 1, 0], 0, 0),
        width: 50,
        height: 40,
        depth: 1,
    };
    driver.memcpy_3d(&part, NULL).unwrap();
    let mut expect = vec![0; 6000];
    naive(&data, &mut expect, [([100, 60, 1], [10, 20, 0]), ([100, 60, 1], [0, 1, 0])], [50, 40, 1]);
    assert_eq!(get(&driver, arrays[1], extent), expect);
}

/// Where an array is, programs are not told; and it is not theirs to free.
#[test]
fn memory_of_arrays_is_not_for_programs() {
    let (driver, _) = driver();
    let at = driver.mem_alloc(4096).unwrap();
    let array = create(&driver, [64, 64, 0], 0).unwrap();
    // The one behind the other, in their chunk.
    let there = DevAddr(at.0 + 4096);
    put(&driver, array, &[7; 4096], [64, 64, 1]);
    let host = Host::new(1);
    driver.memcpy_dtoh(host.range(0, 1), there, NULL).unwrap();
    assert_eq!(host.bytes(0, 1), [7], "not where the test thinks that it is");
    assert_eq!(driver.mem_free(there), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.pointer_get_attribute(2, there.0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_free_async(there, NULL), Err(CudaError::INVALID_VALUE));
}
