//! Texture and surface objects: what programs may ask for, and the descriptors that kernels get.

use cuda_abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode as Address,
    CUarray_format as Given, CUfilter_mode, CUresourceViewFormat as View,
};
use cuda_core::{Array, CudaError, Device, Driver, MipmappedArray, Resource, Stream};
use gpu::DevAddr;
use texture::{AddressMode, Descriptor, Filter, Format, Layout, Shape};

use crate::support::{Host, bare, driver, several};

const NULL: Stream = Stream::NULL;
const INVALID: CudaError = CudaError::INVALID_VALUE;
const FLOAT: Given = Given::CU_AD_FORMAT_FLOAT;
const BYTE: Given = Given::CU_AD_FORMAT_UNSIGNED_INT8;
const LINEAR: CUfilter_mode = CUfilter_mode::CU_TR_FILTER_MODE_LINEAR;
const SURFACE: u32 = 2;
/// `CU_TRSF_*`.
const AS_INTEGER: u32 = 1;
const NORMALIZED: u32 = 2;
const SRGB: u32 = 0x10;
const SEAMLESS: u32 = 0x40;

fn array(driver: &Driver, extent: [usize; 3], format: Given, num_channels: u32, flags: u32) -> Array {
    let [width, height, depth] = extent;
    driver.array_3d_create(&CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }).unwrap()
}

fn mipmapped(driver: &Driver, extent: [usize; 3], format: Given, levels: u32, flags: u32) -> MipmappedArray {
    let [width, height, depth] = extent;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels: 1, flags };
    driver.mipmapped_array_create(&descriptor, levels).unwrap()
}

pub(crate) fn plain() -> CUDA_TEXTURE_DESC {
    CUDA_TEXTURE_DESC {
        address_mode: [Address(0); 3],
        filter_mode: CUfilter_mode(0),
        flags: 0,
        max_anisotropy: 0,
        mipmap_filter_mode: CUfilter_mode(0),
        mipmap_level_bias: 0.0,
        min_mipmap_level_clamp: 0.0,
        max_mipmap_level_clamp: 0.0,
        border_color: [0.0; 4],
        reserved: [0; 12],
    }
}

fn flags(flags: u32) -> CUDA_TEXTURE_DESC {
    CUDA_TEXTURE_DESC { flags, ..plain() }
}

fn view(format: View, [width, height, depth]: [usize; 3]) -> CUDA_RESOURCE_VIEW_DESC {
    CUDA_RESOURCE_VIEW_DESC {
        format,
        width,
        height,
        depth,
        first_mipmap_level: 0,
        last_mipmap_level: 0,
        first_layer: 0,
        last_layer: 0,
        reserved: [0; 16],
    }
}

/// What a kernel finds at a handle.
fn described(driver: &Driver, handle: u64) -> Descriptor {
    let host = Host::new(Descriptor::BYTES);
    driver.memcpy_dtoh(host.range(0, Descriptor::BYTES), DevAddr(handle), NULL).unwrap();
    let bytes: [u8; Descriptor::BYTES] = host.bytes(0, Descriptor::BYTES).try_into().unwrap();
    assert!(handle.is_multiple_of(Descriptor::ALIGN));
    Descriptor::decode(&bytes).unwrap()
}

fn texture(driver: &Driver, resource: Resource, desc: &CUDA_TEXTURE_DESC) -> Result<Descriptor, CudaError> {
    let handle = driver.tex_object_create(&resource, desc, None)?;
    let found = described(driver, handle);
    assert_eq!(driver.tex_object_get_resource(handle), Ok(resource));
    assert!(driver.tex_object_get_texture(handle).is_ok_and(|found| found == *desc));
    assert!(driver.tex_object_get_view(handle).is_err());
    driver.tex_object_destroy(handle).unwrap();
    Ok(found)
}

#[test]
fn descriptors_say_what_arrays_are() {
    let (driver, _) = driver();
    for (extent, array_flags, shape, size) in [
        ([9, 0, 0], 0, Shape::D1, [9, 1, 1]),
        ([9, 5, 0], 0, Shape::D2, [9, 5, 1]),
        ([9, 5, 3], 0, Shape::D3, [9, 5, 3]),
        ([9, 0, 3], 1, Shape::D1Layered, [9, 1, 3]),
        ([9, 5, 3], 1, Shape::D2Layered, [9, 5, 3]),
        ([5, 5, 6], 4, Shape::Cube, [5, 5, 6]),
        ([5, 5, 12], 5, Shape::CubeLayered, [5, 5, 12]),
    ] {
        let found = array(&driver, extent, FLOAT, 2, array_flags);
        let image = texture(&driver, Resource::Array(found), &plain()).unwrap().image;
        assert_eq!((image.shape, image.extent, image.format, image.channels), (shape, size, Format::F32, 2));
        assert_eq!((image.levels, image.level_range, image.pitch), (1, [0, 0], 0));
        let last = if shape.is_layered() { size[2] - 1 } else { 0 };
        assert_eq!(image.layer_range, [0, last]);
    }
    // The levels of a mipmapped array, and one of them.
    let many = mipmapped(&driver, [20, 13, 0], FLOAT, 4, SURFACE);
    let whole = texture(&driver, Resource::Mipmapped(many), &flags(NORMALIZED)).unwrap().image;
    assert_eq!((whole.extent, whole.levels, whole.level_range), ([20, 13, 1], 4, [0, 3]));
    let layout = Layout::new(Shape::D2, 4, [20, 13, 1], 4).unwrap();
    let level = driver.mipmapped_array_get_level(many, 2).unwrap();
    let third = texture(&driver, Resource::Array(level), &plain()).unwrap().image;
    assert_eq!((third.extent, third.levels), ([5, 3, 1], 1));
    assert_eq!(third.base, whole.base + layout.levels()[2].offset);
    assert_eq!(texture(&driver, Resource::Mipmapped(many), &plain()), Err(INVALID), "not normalized");
}

#[test]
fn formats_are_read_as_the_flags_say() {
    let (driver, _) = driver();
    for (given, as_fraction, as_integer) in [
        (1, Format::Unorm8, Format::U8),
        (2, Format::Unorm16, Format::U16),
        (3, Format::U32, Format::U32),
        (8, Format::Snorm8, Format::S8),
        (9, Format::Snorm16, Format::S16),
        (10, Format::S32, Format::S32),
        (16, Format::F16, Format::F16),
        (32, Format::F32, Format::F32),
    ] {
        let resource = Resource::Array(array(&driver, [9, 5, 0], Given(given), 4, SURFACE));
        let read = |flags_given, filter_mode| {
            texture(&driver, resource, &CUDA_TEXTURE_DESC { filter_mode, ..flags(flags_given) })
        };
        let point = CUfilter_mode(0);
        assert_eq!(read(0, point).unwrap().image.format, as_fraction);
        assert_eq!(read(AS_INTEGER, point).unwrap().image.format, as_integer);
        // What is read as integers is not filtered.
        for (flags, format) in [(0, as_fraction), (AS_INTEGER, as_integer)] {
            let filtered = read(flags, LINEAR).map(|found| found.sampler.unwrap().filter);
            assert_eq!(filtered, if format.is_integer() { Err(INVALID) } else { Ok(Filter::Linear) }, "{format:?}");
        }
        let srgb = read(SRGB, point).map(|found| found.sampler.unwrap().srgb);
        assert_eq!(srgb, if as_fraction == Format::Unorm8 { Ok(true) } else { Err(INVALID) });
        let surface = driver.surf_object_create(&resource).unwrap();
        let found = described(&driver, surface);
        assert_eq!((found.image.format, found.sampler), (as_integer, None));
        driver.surf_object_destroy(surface).unwrap();
    }
    let fractions = array(&driver, [9, 5, 0], Given::CU_AD_FORMAT_SNORM_INT16X2, 2, SURFACE);
    let found = texture(&driver, Resource::Array(fractions), &flags(AS_INTEGER)).unwrap().image;
    assert_eq!((found.format, found.channels), (Format::Snorm16, 2));
    let surface = driver.surf_object_create(&Resource::Array(fractions)).unwrap();
    assert_eq!(described(&driver, surface).image.format, Format::S16);
}

#[test]
fn samplers_are_what_programs_say() {
    let (driver, _) = driver();
    let resource = Resource::Array(array(&driver, [8, 8, 6], BYTE, 1, 4));
    let full = CUDA_TEXTURE_DESC {
        address_mode: [Address(3), Address(2), Address(1)],
        filter_mode: LINEAR,
        flags: NORMALIZED | SEAMLESS | 0x20,
        max_anisotropy: 99,
        mipmap_filter_mode: LINEAR,
        mipmap_level_bias: -1.5,
        min_mipmap_level_clamp: 0.5,
        max_mipmap_level_clamp: 7.25,
        border_color: [0.5, 1.0, -2.0, f32::from_bits(7)],
        reserved: [0; 12],
    };
    let found = texture(&driver, resource, &full).unwrap().sampler.unwrap();
    assert_eq!(found.address, [AddressMode::Border, AddressMode::Mirror, AddressMode::Clamp]);
    assert_eq!((found.filter, found.mip_filter), (Filter::Linear, Filter::Linear));
    assert_eq!((found.normalized, found.seamless, found.srgb, found.max_anisotropy), (true, true, false, 16));
    assert_eq!((found.mip_bias, found.level_clamp), (-1.5, [0.5, 7.25]));
    assert_eq!(found.border, [0x3F00_0000, 0x3F80_0000, 0xC000_0000, 7]);
    let refused = [
        CUDA_TEXTURE_DESC { flags: 4, ..plain() },
        CUDA_TEXTURE_DESC { flags: 0x80, ..plain() },
        CUDA_TEXTURE_DESC { address_mode: [Address(0), Address(4), Address(0)], ..plain() },
        CUDA_TEXTURE_DESC { filter_mode: CUfilter_mode(2), ..plain() },
        CUDA_TEXTURE_DESC { mipmap_filter_mode: CUfilter_mode(u32::MAX), ..plain() },
        CUDA_TEXTURE_DESC { mipmap_level_bias: f32::NAN, ..plain() },
        CUDA_TEXTURE_DESC { max_mipmap_level_clamp: f32::NAN, ..plain() },
    ];
    for desc in refused {
        assert_eq!(texture(&driver, resource, &desc), Err(INVALID), "{desc:?}");
    }
    let plane = Resource::Array(array(&driver, [8, 8, 0], BYTE, 1, 0));
    assert_eq!(texture(&driver, plane, &flags(SEAMLESS)), Err(INVALID), "no faces");
}

#[test]
fn memory_is_read_where_it_is_aligned_and_allocated() {
    let (driver, _) = driver();
    let at = driver.mem_alloc(4 << 20).unwrap();
    let pinned = DevAddr(driver.mem_host_alloc(4096, 0).unwrap());
    let linear = |at, format, channels, bytes| {
        let resource = Resource::Linear { at, format, channels, bytes };
        // Modes are not looked at.
        let desc = CUDA_TEXTURE_DESC { address_mode: [Address(77); 3], filter_mode: LINEAR, ..flags(AS_INTEGER) };
        texture(&driver, resource, &desc).map(|found| found.image)
    };
    let image = linear(at, BYTE, 4, 4001).unwrap();
    assert_eq!((image.shape, image.base, image.extent), (Shape::Linear, at.0, [1000, 1, 1]));
    assert_eq!(linear(DevAddr(at.0 + 512), FLOAT, 1, 4096).unwrap().base, at.0 + 512);
    assert_eq!(linear(pinned, FLOAT, 4, 4096).unwrap().extent, [256, 1, 1]);
    for (wrong, channels, bytes) in [
        (DevAddr(at.0 + 256), 1, 4096),
        (at, 1, 4 << 28 | 4),
        (DevAddr(0), 1, 4096),
        (DevAddr(0x7000_0000_0000), 1, 4096),
        (at, 1, 0),
        (at, 4, 15),
        (at, 3, 4096),
        (at, 1, 1 << 40),
        (at, 1, u64::MAX),
    ] {
        assert_eq!(linear(wrong, FLOAT, channels, bytes), Err(INVALID), "{wrong:?} {channels} {bytes}");
    }
    assert_eq!(linear(at, Given::CU_AD_FORMAT_NV12, 1, 4096), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(linear(at, Given(5), 1, 4096), Err(INVALID));
    // As wide as the device says.
    let most = driver.device_get_texture_1d_linear_max_width(1, Device(0)).unwrap();
    let big = driver.mem_alloc(most + 1).unwrap();
    assert_eq!(linear(big, BYTE, 1, most).unwrap().extent[0], most as u32);
    assert_eq!(linear(big, BYTE, 1, most + 1), Err(INVALID));
    driver.mem_free(big).unwrap();

    let pitched = |at, format, width, height, pitch| {
        let resource = Resource::Pitched { at, format, channels: 2, width, height, pitch };
        texture(&driver, resource, &plain()).map(|found| found.image)
    };
    let image = pitched(at, FLOAT, 100, 50, 832).unwrap();
    assert_eq!((image.shape, image.base, image.extent, image.pitch), (Shape::Pitched, at.0, [100, 50, 1], 832));
    // The last line ends where its elements do.
    assert!(pitched(DevAddr(at.0 + 512), FLOAT, 100, 4095, 1024).is_ok());
    for (wrong, width, height, pitch) in [
        (DevAddr(at.0 + 32), 100, 50, 832),
        (at, 100, 50, 816),
        (at, 100, 50, 768),
        (at, 0, 50, 832),
        (at, 100, 0, 832),
        (at, 100, 50, 0),
        (at, 131_073, 1, 1_048_608),
        (at, 1, 65_001, 32),
        (at, 1, 2, 2_097_152),
        (at, u64::MAX, u64::MAX, u64::MAX / 32 * 32),
        (DevAddr(0), 100, 50, 832),
    ] {
        assert_eq!(pitched(wrong, FLOAT, width, height, pitch), Err(INVALID), "{width} {height} {pitch}");
    }
    let surface = Resource::Linear { at, format: FLOAT, channels: 1, bytes: 4096 };
    assert_eq!(driver.surf_object_create(&surface), Err(INVALID), "surfaces are arrays");
}

/// As CUDA has it: what is read there is another matter, the page tables'.
#[test]
fn memory_may_be_said_to_go_on_behind_its_allocation() {
    let (driver, _) = driver();
    let at = driver.mem_alloc(4 << 20).unwrap();
    let pinned = DevAddr(driver.mem_host_alloc(4096, 0).unwrap());
    let most = driver.device_get_texture_1d_linear_max_width(4, Device(0)).unwrap();
    for at in [at, DevAddr(at.0 + (4 << 20) - 512), pinned] {
        let linear = Resource::Linear { at, format: FLOAT, channels: 4, bytes: 16 * most };
        let image = texture(&driver, linear, &plain()).unwrap().image;
        assert_eq!((image.base, image.extent), (at.0, [most as u32, 1, 1]));
        let pitched = Resource::Pitched { at, format: FLOAT, channels: 2, width: 100, height: 65_000, pitch: 1024 };
        let image = texture(&driver, pitched, &plain()).unwrap().image;
        assert_eq!((image.base, image.extent, image.pitch), (at.0, [100, 65_000, 1], 1024));
    }
    // Its begin has to be there.
    let behind = DevAddr(at.0 + (64 << 20));
    let linear = Resource::Linear { at: behind, format: FLOAT, channels: 4, bytes: 16 };
    assert_eq!(texture(&driver, linear, &plain()), Err(INVALID));
    driver.mem_free(at).unwrap();
    let linear = Resource::Linear { at, format: FLOAT, channels: 4, bytes: 16 };
    assert_eq!(texture(&driver, linear, &plain()), Err(INVALID), "freed");
}

#[test]
fn views_show_other_formats_and_parts() {
    let (driver, _) = driver();
    let many = mipmapped(&driver, [16, 8, 4], FLOAT, 4, 1);
    let see = |resource, desc: &CUDA_TEXTURE_DESC, view: CUDA_RESOURCE_VIEW_DESC| {
        let handle = driver.tex_object_create(&resource, desc, Some(&view))?;
        assert!(driver.tex_object_get_view(handle).is_ok_and(|found| found == view));
        let image = described(&driver, handle).image;
        driver.tex_object_destroy(handle)?;
        Ok(image)
    };
    let part = CUDA_RESOURCE_VIEW_DESC {
        first_mipmap_level: 1,
        last_mipmap_level: 2,
        first_layer: 2,
        last_layer: 3,
        ..view(View::CU_RES_VIEW_FORMAT_UINT_4X8, [16, 8, 4])
    };
    let resource = Resource::Mipmapped(many);
    let image = see(resource, &flags(NORMALIZED), part).unwrap();
    assert_eq!((image.format, image.channels), (Format::Unorm8, 4));
    assert_eq!((image.level_range, image.layer_range), ([1, 2], [2, 3]));
    let image = see(resource, &flags(NORMALIZED | AS_INTEGER), part).unwrap();
    assert_eq!(image.format, Format::U8);
    let sizes = [(1, 1), (4, 1), (7, 2), (10, 2), (13, 4), (16, 4), (19, 2), (22, 4)];
    for (first, bytes) in sizes {
        for channels in [1, 2, 4] {
            let format = View(first + u32::trailing_zeros(channels));
            let seen = see(resource, &flags(NORMALIZED), CUDA_RESOURCE_VIEW_DESC { format, ..part });
            let same = bytes * channels == 4;
            assert_eq!(seen.map(|image| image.texel()), if same { Ok(4) } else { Err(INVALID) }, "{format:?}");
        }
    }
    let unlike = [
        CUDA_RESOURCE_VIEW_DESC { width: 32, ..part },
        CUDA_RESOURCE_VIEW_DESC { height: 0, ..part },
        CUDA_RESOURCE_VIEW_DESC { depth: 2, ..part },
        CUDA_RESOURCE_VIEW_DESC { first_mipmap_level: 3, ..part },
        CUDA_RESOURCE_VIEW_DESC { last_mipmap_level: 4, ..part },
        CUDA_RESOURCE_VIEW_DESC { last_mipmap_level: 256, ..part },
        CUDA_RESOURCE_VIEW_DESC { last_layer: 4, ..part },
        CUDA_RESOURCE_VIEW_DESC { last_layer: 1, ..part },
        CUDA_RESOURCE_VIEW_DESC { format: View(35), ..part },
    ];
    for view in unlike {
        assert_eq!(see(resource, &flags(NORMALIZED), view), Err(INVALID), "{view:?}");
    }
    let blocks = CUDA_RESOURCE_VIEW_DESC { format: View::CU_RES_VIEW_FORMAT_UNSIGNED_BC1, ..part };
    assert_eq!(see(resource, &flags(NORMALIZED), blocks), Err(CudaError::NOT_SUPPORTED));
    // Arrays without levels and layers, with what there is none of said in either way; and cubes.
    let line = Resource::Array(array(&driver, [16, 0, 0], FLOAT, 1, 0));
    for extent in [[16, 0, 0], [16, 1, 1]] {
        let image = see(line, &plain(), view(View::CU_RES_VIEW_FORMAT_NONE, extent)).unwrap();
        assert_eq!((image.format, image.layer_range), (Format::F32, [0, 0]));
    }
    let cube = Resource::Array(array(&driver, [8, 8, 6], FLOAT, 1, 4));
    let image = see(cube, &plain(), view(View::CU_RES_VIEW_FORMAT_NONE, [8, 8, 6])).unwrap();
    assert_eq!(image.layer_range, [0, 5]);
    // Memory is seen as what it is.
    let at = driver.mem_alloc(4096).unwrap();
    let linear = Resource::Linear { at, format: FLOAT, channels: 1, bytes: 4096 };
    assert_eq!(see(linear, &plain(), view(View::CU_RES_VIEW_FORMAT_NONE, [1024, 1, 1])), Err(INVALID));
}

#[test]
fn handles_are_told_apart() {
    let (driver, _) = bare(64 << 20);
    let first = driver.ctx_create(0, Device(0)).unwrap();
    let flat = array(&driver, [8, 8, 0], FLOAT, 1, SURFACE);
    let bare_array = array(&driver, [8, 8, 0], FLOAT, 1, 0);
    let bare = driver.surf_object_create(&Resource::Array(bare_array)).unwrap();
    assert_eq!(described(&driver, bare).image.extent, [8, 8, 1], "objects ask for no flag");
    driver.surf_object_destroy(bare).unwrap();
    let many = mipmapped(&driver, [8, 8, 0], FLOAT, 2, SURFACE);
    assert_eq!(driver.surf_object_create(&Resource::Mipmapped(many)), Err(INVALID));
    let level = driver.mipmapped_array_get_level(many, 1).unwrap();
    let small = driver.surf_object_create(&Resource::Array(level)).unwrap();
    assert_eq!(described(&driver, small).image.extent, [4, 4, 1]);
    let tex = driver.tex_object_create(&Resource::Array(flat), &plain(), None).unwrap();
    let surf = driver.surf_object_create(&Resource::Array(flat)).unwrap();
    assert_eq!(driver.surf_object_get_resource(surf), Ok(Resource::Array(flat)));
    for garbage in [0, 1, 8, tex + 1, tex + 64, flat.0, u64::MAX, surf] {
        assert_eq!(driver.tex_object_destroy(garbage), Err(INVALID));
        assert_eq!(driver.tex_object_get_resource(garbage), Err(INVALID));
        let garbage = if garbage == surf { tex } else { garbage };
        assert_eq!(driver.surf_object_destroy(garbage), if garbage == 0 { Ok(()) } else { Err(INVALID) });
        assert_eq!(driver.surf_object_get_resource(garbage), Err(INVALID));
    }
    for array in [Array(0), Array(77), Array(many.0)] {
        assert_eq!(texture(&driver, Resource::Array(array), &plain()), Err(INVALID));
        assert_eq!(driver.surf_object_create(&Resource::Array(array)), Err(INVALID));
    }
    assert_eq!(texture(&driver, Resource::Mipmapped(MipmappedArray(flat.0)), &flags(NORMALIZED)), Err(INVALID));
    driver.array_destroy(bare_array).unwrap();
    assert_eq!(texture(&driver, Resource::Array(bare_array), &plain()), Err(INVALID), "destroyed");
    // Arrays are of their context; objects go with theirs.
    driver.ctx_create(0, Device(0)).unwrap();
    assert_eq!(texture(&driver, Resource::Array(flat), &plain()), Err(INVALID));
    driver.ctx_destroy(first).unwrap();
    assert_eq!(driver.tex_object_destroy(tex), Err(INVALID));
    assert_eq!(driver.surf_object_destroy(small), Err(INVALID));
    driver.ctx_pop_current().unwrap();
    assert_eq!(driver.tex_object_destroy(tex), Err(CudaError::CONTEXT_IS_DESTROYED));
}

#[test]
fn a_texture_of_another_devices_memory_is_refused() {
    let (driver, _) = several(&[64 << 20; 2]);
    driver.ctx_create(0, Device(0)).unwrap();
    let at = driver.mem_alloc(4096).unwrap();
    let there = array(&driver, [8, 8, 0], FLOAT, 1, 0);
    driver.ctx_create(0, Device(1)).unwrap();
    let linear = Resource::Linear { at, format: FLOAT, channels: 1, bytes: 4096 };
    for resource in [linear, Resource::Array(there)] {
        assert_eq!(texture(&driver, resource, &plain()), Err(INVALID));
    }
}

/// Programs destroy textures behind launches that use them; nothing else may be where theirs were until those are done.
#[test]
fn descriptors_stay_while_work_may_use_them() {
    let (driver, fake) = driver();
    let resource = Resource::Array(array(&driver, [8, 8, 0], FLOAT, 1, 0));
    let make = || driver.tex_object_create(&resource, &plain(), None).unwrap();
    let stream = driver.stream_create(1).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
    let mut used = std::collections::HashSet::new();
    // More than anybody would keep back without looking: and nobody waits for that stream.
    for _ in 0..3000 {
        let handle = make();
        assert!(used.insert(handle), "a place is used again while a stream is busy");
        driver.tex_object_destroy(handle).unwrap();
    }
    release.send(()).unwrap();
    driver.stream_synchronize(stream).unwrap();
    let before = fake.free();
    for _ in 0..2000 {
        let handle = make();
        used.insert(handle);
        driver.tex_object_destroy(handle).unwrap();
    }
    // What was left alone is used again.
    assert_eq!(fake.free(), before);
    assert!(used.len() <= 3000 + 64, "{} places", used.len());
}
