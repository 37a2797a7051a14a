//! Kernels that read arrays through references of their module, and through objects.

use cuda_abi::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUaddress_mode, CUarray_format, CUfilter_mode};
use cuda_core::{
    Array, Copy3D, CopyEnd, CopyMemory, CudaError, Driver, JitLog, Module, Resource, Stream, SurfRef, TexRef,
};
use gpu::DevAddr;

use crate::support::{launch, memory, shape, start};

/// Each thread reads an element of a line of four, and of a plane of four by two, and adds 1 to an element of a surface.
const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.global .texref line;
.global .texref plane;
.global .surfref written;
.global .u64 ordinary;
.visible .entry read(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<12>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r1}];
    cvt.rn.f32.u32 %f5, %r1;
    add.f32 %f5, %f5, 0f3F000000;
    mov.f32 %f6, 0f3FC00000;
    tex.2d.v4.f32.f32 {%f7, %f8, %f9, %f10}, [plane, {%f5, %f6}];
    mul.wide.u32 %rd2, %r1, 8;
    add.s64 %rd3, %rd1, %rd2;
    st.global.v2.f32 [%rd3], {%f1, %f7};
    ret;
}
.visible .entry write()
{
    .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    suld.b.1d.b32.trap {%r3}, [written, {%r2}];
    add.u32 %r3, %r3, 1;
    sust.b.1d.b32.trap [written, {%r2}], {%r3};
    ret;
}
";

const FLOAT: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
const NULL: Stream = Stream::NULL;

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Linear memory with these numbers, and an array with them, of so many a line.
fn both(driver: &Driver, numbers: &[f32], width: usize, flags: u32) -> (DevAddr, Array) {
    let data = bytes(numbers);
    let host = memory(&data);
    let at = driver.mem_alloc(data.len() as u64).unwrap();
    driver.memcpy_htod(at, host.range(0, data.len()), NULL).unwrap();
    let height = if numbers.len() == width { 0 } else { numbers.len() / width };
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format: FLOAT, num_channels: 1, flags };
    let array = driver.array_3d_create(&descriptor).unwrap();
    driver
        .memcpy_3d(&whole(CopyMemory::Array(array), CopyMemory::Device(at), width, numbers.len() / width), NULL)
        .unwrap();
    (at, array)
}

fn whole<'a>(dst: CopyMemory<'a>, src: CopyMemory<'a>, width: usize, lines: usize) -> Copy3D<'a> {
    let (width, height) = (width as u64 * 4, lines as u64);
    let end = |memory| CopyEnd { memory, x: 0, y: 0, z: 0, pitch: width, height };
    Copy3D { src: end(src), dst: end(dst), width, height, depth: 1 }
}

/// What the threads of the kernel `read` get: of the line, and of the plane's second line.
fn read(driver: &Driver, module: Module) -> Result<[Vec<f32>; 2], CudaError> {
    let out = driver.mem_alloc(32)?;
    let kernel = driver.module_get_function(module, "read")?;
    launch(driver, kernel, &shape(1, 4, NULL), &[&out.0.to_le_bytes()])?;
    let host = memory(&[0; 32]);
    driver.memcpy_dtoh(host.range(0, 32), out, NULL)?;
    let mut got = [0; 32];
    host.read(0, &mut got);
    let number = |at: usize| f32::from_le_bytes(got[at * 4..at * 4 + 4].try_into().unwrap());
    Ok([0, 1].map(|which| (0..4).map(|thread| number(thread * 2 + which)).collect()))
}

fn load() -> (Driver, Module, [TexRef; 2], SurfRef) {
    let (driver, _) = start();
    let mut log = JitLog::default();
    let module = driver.module_load_data(&PTX.as_bytes(), &mut log).unwrap_or_else(|_| panic!("{}", log.error));
    let textures = ["line", "plane"].map(|name| driver.module_get_tex_ref(module, name).unwrap());
    let surface = driver.module_get_surf_ref(module, "written").unwrap();
    (driver, module, textures, surface)
}

#[test]
fn kernels_read_what_references_are_bound_to_device() {
    let (driver, module, [line, plane], surface) = load();
    assert_eq!(driver.module_get_tex_ref(module, "line"), Ok(line), "one for each name");
    for name in ["ordinary", "written", "nothing", "read"] {
        assert_eq!(driver.module_get_tex_ref(module, name), Err(CudaError::NOT_FOUND), "{name}");
    }
    assert_eq!(driver.module_get_surf_ref(module, "line"), Err(CudaError::NOT_FOUND));
    let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let (at, array) = both(&driver, &numbers, 4, 0);
    assert_eq!(driver.tex_ref_set_address(line, at, 32), Ok(0));
    driver.tex_ref_set_array(plane, array, 1).unwrap();
    assert_eq!(driver.tex_ref_get_resource(plane), Ok(Resource::Array(array)));
    assert_eq!(read(&driver, module).unwrap(), [vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]]);
    // What its elements are may be said after the address.
    driver.tex_ref_set_format(line, FLOAT, 2).unwrap();
    assert_eq!(read(&driver, module).unwrap()[0], [1.0, 3.0, 5.0, 7.0]);
    driver.tex_ref_set_format(line, FLOAT, 1).unwrap();
    // Another address, another array: what is launched from then on.
    let far = driver.mem_alloc(4096).unwrap();
    driver.memset(far, 0x4000_0000, 4, 1024, NULL).unwrap();
    assert_eq!(driver.tex_ref_set_address(line, DevAddr(far.0 + 516), 64), Ok(4));
    let (_, other) = both(&driver, &[0.5; 8], 4, 0);
    driver.tex_ref_set_array(plane, other, 1).unwrap();
    assert_eq!(read(&driver, module).unwrap(), [vec![2.0; 4], vec![0.5; 4]]);
    // Lines with a pitch, filtered: half of one, half of the next.
    let lines = driver.mem_alloc(1024).unwrap();
    driver.memset(lines, 0, 4, 256, NULL).unwrap();
    driver.memset(DevAddr(lines.0 + 512), 0x4080_0000, 4, 4, NULL).unwrap();
    let descriptor = CUDA_ARRAY_DESCRIPTOR { width: 4, height: 2, format: FLOAT, num_channels: 1 };
    driver.tex_ref_set_address_2d(plane, &descriptor, lines, 512).unwrap();
    assert_eq!(read(&driver, module).unwrap()[1], [4.0; 4]);
    driver.tex_ref_set_filter_mode(plane, CUfilter_mode::CU_TR_FILTER_MODE_LINEAR).unwrap();
    driver.tex_ref_set(plane, |texture| texture.flags = 2).unwrap();
    driver.tex_ref_set_address_mode(plane, 0, CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP).unwrap();
    driver.tex_ref_set_address_mode(plane, 1, CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP).unwrap();
    // Normalized, 1.5 is half a texture away from the first line's middle: between the lines.
    assert_eq!(read(&driver, module).unwrap()[1], [2.0; 4]);
    // A surface: read and written.
    let (_, written) = both(&driver, &[f32::from_bits(7); 4], 4, 2);
    driver.surf_ref_set_array(surface, written, 0).unwrap();
    assert_eq!(driver.surf_ref_get_array(surface), Ok(written));
    let kernel = driver.module_get_function(module, "write").unwrap();
    launch(&driver, kernel, &shape(1, 4, NULL), &[]).unwrap();
    let host = memory(&[0; 16]);
    driver.memcpy_3d(&whole(CopyMemory::Host(host.range(0, 16)), CopyMemory::Array(written), 4, 1), NULL).unwrap();
    let mut got = [0; 16];
    host.read(0, &mut got);
    assert_eq!(got, *bytes(&[f32::from_bits(8); 4]));
}

#[test]
fn references_refuse_what_they_cannot_be_told_device() {
    const NO: CudaError = CudaError::INVALID_VALUE;
    let (driver, module, [line, plane], surface) = load();
    let (at, array) = both(&driver, &[0.0; 8], 4, 0);
    assert_eq!(driver.tex_ref_get_resource(line), Err(NO), "bound to nothing");
    assert_eq!(driver.surf_ref_get_array(surface), Err(NO));
    assert_eq!(driver.surf_ref_set_array(surface, array, 0), Err(NO), "not made for surfaces");
    assert_eq!(driver.tex_ref_set_array(plane, array, 0), Err(NO));
    assert_eq!(driver.tex_ref_set_array(plane, Array(5), 1), Err(NO));
    assert_eq!(driver.tex_ref_set_array(TexRef(surface.0), array, 1), Err(NO));
    assert_eq!(driver.tex_ref_set_format(line, CUarray_format(5), 1), Err(NO));
    assert_eq!(driver.tex_ref_set_format(line, FLOAT, 3), Err(NO));
    assert_eq!(driver.tex_ref_set_address(line, at, 1 << 40), Err(NO));
    assert_eq!(driver.tex_ref_set_address_mode(line, 3, CUaddress_mode(0)), Err(NO));
    assert_eq!(driver.tex_ref_set_address_mode(line, 0, CUaddress_mode(4)), Err(NO));
    assert_eq!(driver.tex_ref_set_filter_mode(line, CUfilter_mode(2)), Err(NO));
    assert_eq!(driver.tex_ref_set(line, |texture| texture.flags = 0x40), Err(NO));
    assert_eq!(driver.tex_ref_set(line, |texture| texture.mipmap_level_bias = f32::NAN), Err(NO));
    assert_eq!(driver.tex_ref_get(line).unwrap().flags, 0, "nothing of it was kept");
    let kernel = driver.module_get_function(module, "read").unwrap();
    assert_eq!(driver.param_set_tex_ref(kernel, -1, line), Ok(()));
    assert_eq!(driver.param_set_tex_ref(kernel, 0, line), Err(NO));
    let own = driver.tex_ref_create().unwrap();
    driver.tex_ref_set_array(own, array, 1).unwrap();
    assert_eq!(driver.tex_ref_get_format(own), Ok((FLOAT, 1)));
    assert_eq!(driver.param_set_tex_ref(kernel, -1, own), Err(NO), "it is no module's");
    driver.tex_ref_destroy(own).unwrap();
    assert_eq!(driver.tex_ref_destroy(own), Err(NO));
    assert_eq!(driver.tex_ref_destroy(line), Err(NO), "it is the module's");
    // With the module they go.
    driver.module_unload(module).unwrap();
    assert_eq!(driver.tex_ref_get(line).map(drop), Err(NO));
    assert_eq!(driver.surf_ref_get_array(surface), Err(NO));
}

/// A reference that is bound to nothing ends its kernel, and the context; nothing else.
#[test]
fn a_kernel_that_reads_nothing_fails_device() {
    let (driver, module, [line, _], _) = load();
    let (at, _) = both(&driver, &[0.0; 8], 4, 0);
    driver.tex_ref_set_address(line, at, 32).unwrap();
    assert_eq!(read(&driver, module).map(drop), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.tex_ref_set_address(line, at, 32), Err(CudaError::ILLEGAL_ADDRESS));
}
