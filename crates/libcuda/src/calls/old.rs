//! The interface before CUDA 3.2: sizes and device addresses have 32 bits. What is asked for so is what today's functions do; of the
//! answers, sizes that do not fit are the largest that do, and addresses that do not are none. Device memory of ours lies higher, so
//! that these functions serve what is known by handles and by the program's own addresses: arrays, and copies to and from them.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D_v1, CUarray, CUdevice, CUdeviceptr, CUdeviceptr_v1, CUmodule, CUresult, CUstream,
    CUtexref, HostAddr,
};
use cuda_core::Driver;

use crate::calls::{array, array_copy, copy, device, memory, module, texture_reference};
use crate::decode::{Core, In, Out, Text, given, result};
use crate::entry::{Answer, Refusal, refuse};
use crate::start::DEFAULT_STREAM;

/// A size as far as 32 bits say it.
fn short(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// An address, if 32 bits say it.
fn short_address(address: CUdeviceptr) -> Result<CUdeviceptr_v1, Refusal> {
    CUdeviceptr_v1::try_from(address).map_err(|_| Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))
}

pub(crate) fn device_total_mem(driver: &Driver, bytes: Out<u32>, dev: CUdevice) -> Answer {
    bytes.required()?;
    bytes.set(short(result(|bytes| device::device_total_mem(driver, bytes, dev))?));
    Ok(())
}

pub(crate) fn mem_get_info(driver: &Driver, free: Out<u32>, total: Out<u32>) -> Answer {
    free.required()?;
    total.required()?;
    let mut all = 0;
    let left = result(|free| {
        all = result(|total| memory::mem_get_info(driver, free, total))?;
        Ok(())
    })?;
    free.set(short(left));
    total.set(short(all));
    Ok(())
}

/// Memory that this interface cannot name is given back.
fn allocated(driver: &Driver, out: Out<CUdeviceptr_v1>, address: CUdeviceptr) -> Answer {
    if let Ok(address) = short_address(address) {
        out.set(address);
        return Ok(());
    }
    memory::mem_free(driver, address)?;
    refuse(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

pub(crate) fn mem_alloc(driver: &Driver, dptr: Out<CUdeviceptr_v1>, bytes: u32) -> Answer {
    dptr.required()?;
    let address = result(|address| memory::mem_alloc(driver, address, bytes as usize))?;
    allocated(driver, dptr, address)
}

pub(crate) fn mem_alloc_pitch(
    driver: &Driver,
    dptr: Out<CUdeviceptr_v1>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    element: u32,
) -> Answer {
    dptr.required()?;
    pitch.required()?;
    let mut address = 0;
    let line = result(|line| {
        address = result(|at| memory::mem_alloc_pitch(driver, at, line, width as usize, height as usize, element))?;
        Ok(())
    })?;
    allocated(driver, dptr, address)?;
    pitch.set(short(line));
    Ok(())
}

pub(crate) fn mem_free(driver: &Driver, dptr: CUdeviceptr_v1) -> Answer {
    memory::mem_free(driver, dptr.into())
}

pub(crate) fn mem_get_address_range(
    driver: &Driver,
    base: Out<CUdeviceptr_v1>,
    size: Out<u32>,
    dptr: CUdeviceptr_v1,
) -> Answer {
    let mut bytes = 0;
    let start = result(|start| {
        bytes = result(|bytes| memory::mem_get_address_range(driver, start, bytes, dptr.into()))?;
        Ok(())
    })?;
    base.set(short_address(start)?);
    size.set(short(bytes));
    Ok(())
}

pub(crate) fn mem_alloc_host(driver: &Driver, pp: Out<HostAddr>, bytes: u32) -> Answer {
    memory::mem_alloc_host(driver, pp, bytes as usize)
}

pub(crate) fn mem_host_get_device_pointer(
    driver: &Driver,
    dptr: Out<CUdeviceptr_v1>,
    p: HostAddr,
    flags: u32,
) -> Answer {
    dptr.required()?;
    dptr.set(short_address(result(|address| memory::mem_host_get_device_pointer(driver, address, p, flags))?)?);
    Ok(())
}

pub(crate) fn module_get_global(
    driver: &Driver,
    dptr: Out<CUdeviceptr_v1>,
    bytes: Out<u32>,
    hmod: CUmodule,
    name: Text,
) -> Answer {
    let mut size = 0;
    let address = result(|address| {
        size = result(|size| module::module_get_global(driver, address, size, hmod, name))?;
        Ok(())
    })?;
    if !dptr.is_null() {
        dptr.set(short_address(address)?);
    }
    bytes.set(short(size));
    Ok(())
}

pub(crate) fn array_create(driver: &Driver, out: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR_v1>) -> Answer {
    let descriptor = CUDA_ARRAY_DESCRIPTOR::from(descriptor.get()?);
    given(&descriptor, |descriptor| array::array_create(driver, out, descriptor))
}

pub(crate) fn array_3d_create(
    driver: &Driver,
    out: Out<CUarray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR_v1>,
) -> Answer {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR::from(descriptor.get()?);
    given(&descriptor, |descriptor| array::array_3d_create(driver, out, descriptor))
}

pub(crate) fn array_get_descriptor(driver: &Driver, out: Out<CUDA_ARRAY_DESCRIPTOR_v1>, of: CUarray) -> Answer {
    out.required()?;
    let CUDA_ARRAY3D_DESCRIPTOR_v1 { width, height, format, num_channels, .. } = descriptor(driver, of)?;
    out.set_plain(CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format, num_channels });
    Ok(())
}

pub(crate) fn array_3d_get_descriptor(driver: &Driver, out: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>, of: CUarray) -> Answer {
    out.required()?;
    out.set_plain(descriptor(driver, of)?);
    Ok(())
}

fn descriptor(driver: &Driver, of: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR_v1, Refusal> {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags } =
        driver.array_3d_get_descriptor(of.core())?;
    let [width, height, depth] = [width, height, depth].map(short);
    Ok(CUDA_ARRAY3D_DESCRIPTOR_v1 { width, height, depth, format, num_channels, flags })
}

pub(crate) fn memcpy_2d(driver: &Driver, what: In<CUDA_MEMCPY2D_v1>) -> Answer {
    given(&what.get()?.into(), |what| copy::memcpy_2d(driver, DEFAULT_STREAM, what))
}

pub(crate) fn memcpy_2d_async(driver: &Driver, what: In<CUDA_MEMCPY2D_v1>, stream: CUstream) -> Answer {
    given(&what.get()?.into(), |what| copy::memcpy_2d_async(driver, what, stream))
}

pub(crate) fn memcpy_3d(driver: &Driver, what: In<CUDA_MEMCPY3D_v1>) -> Answer {
    given(&what.get()?.into(), |what| copy::memcpy_3d(driver, DEFAULT_STREAM, what))
}

pub(crate) fn memcpy_3d_async(driver: &Driver, what: In<CUDA_MEMCPY3D_v1>, stream: CUstream) -> Answer {
    given(&what.get()?.into(), |what| copy::memcpy_3d_async(driver, what, stream))
}

/// Functions that are told sizes and addresses of 32 bits, and tell none.
macro_rules! widened {
    ($($name:ident($($argument:ident: $kind:ty),*) = $family:ident::$function:ident($($given:expr),*);)*) => {$(
        pub(crate) fn $name(driver: &Driver, $($argument: $kind),*) -> Answer {
            $family::$function(driver, $($given),*)
        }
    )*};
}

widened! {
    memcpy_htod(dst: CUdeviceptr_v1, src: HostAddr, bytes: u32) =
        copy::memcpy_htod(DEFAULT_STREAM, dst.into(), src, bytes as usize);
    memcpy_htod_async(dst: CUdeviceptr_v1, src: HostAddr, bytes: u32, stream: CUstream) =
        copy::memcpy_htod_async(dst.into(), src, bytes as usize, stream);
    memcpy_dtoh(dst: HostAddr, src: CUdeviceptr_v1, bytes: u32) =
        copy::memcpy_dtoh(DEFAULT_STREAM, dst, src.into(), bytes as usize);
    memcpy_dtoh_async(dst: HostAddr, src: CUdeviceptr_v1, bytes: u32, stream: CUstream) =
        copy::memcpy_dtoh_async(dst, src.into(), bytes as usize, stream);
    memcpy_dtod(dst: CUdeviceptr_v1, src: CUdeviceptr_v1, bytes: u32) =
        copy::memcpy_dtod(DEFAULT_STREAM, dst.into(), src.into(), bytes as usize);
    memcpy_dtod_async(dst: CUdeviceptr_v1, src: CUdeviceptr_v1, bytes: u32, stream: CUstream) =
        copy::memcpy_dtod_async(dst.into(), src.into(), bytes as usize, stream);
    memcpy_dtoa(dst: CUarray, offset: u32, src: CUdeviceptr_v1, bytes: u32) =
        array_copy::memcpy_dtoa(DEFAULT_STREAM, dst, offset as usize, src.into(), bytes as usize);
    memcpy_atod(dst: CUdeviceptr_v1, src: CUarray, offset: u32, bytes: u32) =
        array_copy::memcpy_atod(DEFAULT_STREAM, dst.into(), src, offset as usize, bytes as usize);
    memcpy_htoa(dst: CUarray, offset: u32, src: HostAddr, bytes: u32) =
        array_copy::memcpy_htoa(DEFAULT_STREAM, dst, offset as usize, src, bytes as usize);
    memcpy_htoa_async(dst: CUarray, offset: u32, src: HostAddr, bytes: u32, stream: CUstream) =
        array_copy::memcpy_htoa_async(dst, offset as usize, src, bytes as usize, stream);
    memcpy_atoh(dst: HostAddr, src: CUarray, offset: u32, bytes: u32) =
        array_copy::memcpy_atoh(DEFAULT_STREAM, dst, src, offset as usize, bytes as usize);
    memcpy_atoh_async(dst: HostAddr, src: CUarray, offset: u32, bytes: u32, stream: CUstream) =
        array_copy::memcpy_atoh_async(dst, src, offset as usize, bytes as usize, stream);
    memcpy_atoa(dst: CUarray, dst_offset: u32, src: CUarray, src_offset: u32, bytes: u32) =
        array_copy::memcpy_atoa(DEFAULT_STREAM, dst, dst_offset as usize, src, src_offset as usize, bytes as usize);
    memset_d8(dst: CUdeviceptr_v1, value: u8, count: u32) =
        copy::memset_d8(DEFAULT_STREAM, dst.into(), value, count as usize);
    memset_d16(dst: CUdeviceptr_v1, value: u16, count: u32) =
        copy::memset_d16(DEFAULT_STREAM, dst.into(), value, count as usize);
    memset_d32(dst: CUdeviceptr_v1, value: u32, count: u32) =
        copy::memset_d32(DEFAULT_STREAM, dst.into(), value, count as usize);
    memset_d2d8(dst: CUdeviceptr_v1, pitch: u32, value: u8, width: u32, height: u32) =
        copy::memset_d2d8(DEFAULT_STREAM, dst.into(), pitch as usize, value, width as usize, height as usize);
    memset_d2d16(dst: CUdeviceptr_v1, pitch: u32, value: u16, width: u32, height: u32) =
        copy::memset_d2d16(DEFAULT_STREAM, dst.into(), pitch as usize, value, width as usize, height as usize);
    memset_d2d32(dst: CUdeviceptr_v1, pitch: u32, value: u32, width: u32, height: u32) =
        copy::memset_d2d32(DEFAULT_STREAM, dst.into(), pitch as usize, value, width as usize, height as usize);
}

pub(crate) fn tex_ref_set_address(
    driver: &Driver,
    byte_offset: Out<u32>,
    reference: CUtexref,
    dptr: CUdeviceptr_v1,
    bytes: u32,
) -> Answer {
    let set = |offset| texture_reference::tex_ref_set_address(driver, offset, reference, dptr.into(), bytes as usize);
    byte_offset.set(short(result(set)?));
    Ok(())
}

pub(crate) fn tex_ref_set_address_2d(
    driver: &Driver,
    reference: CUtexref,
    descriptor: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    dptr: CUdeviceptr_v1,
    pitch: u32,
) -> Answer {
    let descriptor = CUDA_ARRAY_DESCRIPTOR::from(descriptor.get()?);
    given(&descriptor, |descriptor| {
        texture_reference::tex_ref_set_address_2d(driver, reference, descriptor, dptr.into(), pitch as usize)
    })
}

pub(crate) fn tex_ref_get_address(driver: &Driver, dptr: Out<CUdeviceptr_v1>, reference: CUtexref) -> Answer {
    dptr.required()?;
    dptr.set(short_address(result(|address| texture_reference::tex_ref_get_address(driver, address, reference))?)?);
    Ok(())
}
