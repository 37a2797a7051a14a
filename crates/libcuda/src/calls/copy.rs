//! Copies and fills.
//!
//! Functions without a stream get the default stream they work on as their first argument: the legacy one, or the calling
//! thread's in their `_ptds` variants.

use cuda_abi::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUdeviceptr, CUmemorytype, CUresult,
    CUstream, HostAddr,
};
use cuda_core::{Copy3D, CopyEnd, CopyMemory, Driver};
use gpu::DevAddr;

use crate::decode::{Core, In, range};
use crate::entry::{Answer, Refusal, refuse};

pub(crate) fn memcpy(driver: &Driver, stream: CUstream, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy(unsafe { range(dst, bytes) }?, unsafe { range(src, bytes) }?, stream.core())?)
}

/// Records a copy of one run, if the stream is being captured.
fn captured(
    driver: &Driver,
    stream: CUstream,
    dst: (CUmemorytype, u64),
    src: (CUmemorytype, u64),
    bytes: usize,
) -> Result<bool, Refusal> {
    let end = |(kind, at)| End {
        kind,
        host: HostAddr(at),
        device: at,
        array: CUarray::NULL,
        skip: [0; 3],
        pitch: bytes,
        height: 1,
        level: 0,
    };
    driver.capture_copy(stream.core(), || {
        let width = bytes as u64;
        let (src, dst) = (self::end(&end(src), width, 1, 1)?, self::end(&end(dst), width, 1, 1)?);
        Ok(Copy3D { src, dst, width, height: 1, depth: 1 })
    })
}

/// The kinds of memory that functions name by their names.
const DEVICE: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_DEVICE;
const ANY: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_UNIFIED;

pub(crate) fn memcpy_async(
    driver: &Driver,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    if captured(driver, stream, (ANY, dst), (ANY, src), bytes)? {
        return Ok(());
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_async(unsafe { range(dst, bytes) }?, unsafe { range(src, bytes) }?, stream.core())?)
}

pub(crate) fn memcpy_htod(driver: &Driver, stream: CUstream, dst: CUdeviceptr, src: HostAddr, bytes: usize) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_htod(DevAddr(dst), unsafe { range(src.0, bytes) }?, stream.core())?)
}

pub(crate) fn memcpy_htod_async(
    driver: &Driver,
    dst: CUdeviceptr,
    src: HostAddr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    if captured(driver, stream, (DEVICE, dst), (ANY, src.0), bytes)? {
        return Ok(());
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_htod_async(DevAddr(dst), unsafe { range(src.0, bytes) }?, stream.core())?)
}

pub(crate) fn memcpy_dtoh(driver: &Driver, stream: CUstream, dst: HostAddr, src: CUdeviceptr, bytes: usize) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_dtoh(unsafe { range(dst.0, bytes) }?, DevAddr(src), stream.core())?)
}

pub(crate) fn memcpy_dtoh_async(
    driver: &Driver,
    dst: HostAddr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    if captured(driver, stream, (ANY, dst.0), (DEVICE, src), bytes)? {
        return Ok(());
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_dtoh_async(unsafe { range(dst.0, bytes) }?, DevAddr(src), stream.core())?)
}

pub(crate) fn memcpy_dtod(
    driver: &Driver,
    stream: CUstream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> Answer {
    Ok(driver.memcpy_dtod(DevAddr(dst), DevAddr(src), bytes as u64, stream.core())?)
}

pub(crate) fn memcpy_dtod_async(
    driver: &Driver,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    if captured(driver, stream, (DEVICE, dst), (DEVICE, src), bytes)? {
        return Ok(());
    }
    Ok(driver.memcpy_dtod_async(DevAddr(dst), DevAddr(src), bytes as u64, stream.core())?)
}

pub(crate) fn memcpy_peer(
    driver: &Driver,
    stream: CUstream,
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
) -> Answer {
    let (to, from) = (DevAddr(dst), DevAddr(src));
    Ok(driver.memcpy_peer(to, dst_context.core(), from, src_context.core(), bytes as u64, stream.core())?)
}

pub(crate) fn memcpy_peer_async(
    driver: &Driver,
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    if captured(driver, stream, (DEVICE, dst), (DEVICE, src), bytes)? {
        return Ok(());
    }
    let (to, from) = (DevAddr(dst), DevAddr(src));
    Ok(driver.memcpy_peer_async(to, dst_context.core(), from, src_context.core(), bytes as u64, stream.core())?)
}

/// One end of a copy as the interface's structures describe it.
struct End {
    kind: CUmemorytype,
    host: HostAddr,
    device: CUdeviceptr,
    array: CUarray,
    skip: [usize; 3],
    pitch: usize,
    height: usize,
    level: usize,
}

fn end<'a>(of: &End, width: u64, height: u64, depth: u64) -> Result<CopyEnd<'a>, Refusal> {
    let mut end = CopyEnd {
        memory: CopyMemory::Device(DevAddr(of.device)),
        x: of.skip[0] as u64,
        y: of.skip[1] as u64,
        z: of.skip[2] as u64,
        pitch: of.pitch as u64,
        height: of.height as u64,
    };
    if of.kind == CUmemorytype::CU_MEMORYTYPE_ARRAY {
        // A level of a mipmapped array is an array.
        if of.level != 0 {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        end.memory = CopyMemory::Array(of.array.core());
        return Ok(end);
    }
    let Some(extent) = end.extent(width, height, depth).and_then(|extent| usize::try_from(extent).ok()) else {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    end.memory = match of.kind {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        CUmemorytype::CU_MEMORYTYPE_HOST => CopyMemory::Host(unsafe { range(of.host.0, extent) }?),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => end.memory,
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        CUmemorytype::CU_MEMORYTYPE_UNIFIED => CopyMemory::Unified(unsafe { range(of.device, extent) }?),
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    Ok(end)
}

fn lines<'a>(copy: &CUDA_MEMCPY2D) -> Result<Copy3D<'a>, Refusal> {
    let (width, height) = (copy.width_in_bytes as u64, copy.height as u64);
    let src = End {
        kind: copy.src_memory_type,
        host: copy.src_host,
        device: copy.src_device,
        array: copy.src_array,
        skip: [copy.src_x_in_bytes, copy.src_y, 0],
        pitch: copy.src_pitch,
        height: copy.height,
        level: 0,
    };
    let dst = End {
        kind: copy.dst_memory_type,
        host: copy.dst_host,
        device: copy.dst_device,
        array: copy.dst_array,
        skip: [copy.dst_x_in_bytes, copy.dst_y, 0],
        pitch: copy.dst_pitch,
        height: copy.height,
        level: 0,
    };
    Ok(Copy3D { src: end(&src, width, height, 1)?, dst: end(&dst, width, height, 1)?, width, height, depth: 1 })
}

pub(crate) fn slices<'a>(copy: &CUDA_MEMCPY3D) -> Result<Copy3D<'a>, Refusal> {
    let (width, height, depth) = (copy.width_in_bytes as u64, copy.height as u64, copy.depth as u64);
    let src = End {
        kind: copy.src_memory_type,
        host: copy.src_host,
        device: copy.src_device,
        array: copy.src_array,
        skip: [copy.src_x_in_bytes, copy.src_y, copy.src_z],
        pitch: copy.src_pitch,
        height: copy.src_height,
        level: copy.src_lod,
    };
    let dst = End {
        kind: copy.dst_memory_type,
        host: copy.dst_host,
        device: copy.dst_device,
        array: copy.dst_array,
        skip: [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z],
        pitch: copy.dst_pitch,
        height: copy.dst_height,
        level: copy.dst_lod,
    };
    Ok(Copy3D { src: end(&src, width, height, depth)?, dst: end(&dst, width, height, depth)?, width, height, depth })
}

/// The contexts add nothing: each address names its device.
fn between(copy: &CUDA_MEMCPY3D_PEER) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes,
        src_y: copy.src_y,
        src_z: copy.src_z,
        src_lod: copy.src_lod,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device,
        src_array: copy.src_array,
        reserved0: HostAddr::NULL,
        src_pitch: copy.src_pitch,
        src_height: copy.src_height,
        dst_x_in_bytes: copy.dst_x_in_bytes,
        dst_y: copy.dst_y,
        dst_z: copy.dst_z,
        dst_lod: copy.dst_lod,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device,
        dst_array: copy.dst_array,
        reserved1: HostAddr::NULL,
        dst_pitch: copy.dst_pitch,
        dst_height: copy.dst_height,
        width_in_bytes: copy.width_in_bytes,
        height: copy.height,
        depth: copy.depth,
    }
}

pub(crate) fn memcpy_2d(driver: &Driver, stream: CUstream, copy: In<CUDA_MEMCPY2D>) -> Answer {
    Ok(driver.memcpy_3d(&lines(&copy.get()?)?, stream.core())?)
}

pub(crate) fn memcpy_2d_async(driver: &Driver, copy: In<CUDA_MEMCPY2D>, stream: CUstream) -> Answer {
    if driver.capture_copy(stream.core(), || lines(&copy.get()?))? {
        return Ok(());
    }
    Ok(driver.memcpy_3d_async(&lines(&copy.get()?)?, stream.core())?)
}

pub(crate) fn memcpy_3d(driver: &Driver, stream: CUstream, copy: In<CUDA_MEMCPY3D>) -> Answer {
    Ok(driver.memcpy_3d(&slices(&copy.get()?)?, stream.core())?)
}

pub(crate) fn memcpy_3d_async(driver: &Driver, copy: In<CUDA_MEMCPY3D>, stream: CUstream) -> Answer {
    if driver.capture_copy(stream.core(), || slices(&copy.get()?))? {
        return Ok(());
    }
    Ok(driver.memcpy_3d_async(&slices(&copy.get()?)?, stream.core())?)
}

pub(crate) fn memcpy_3d_peer(driver: &Driver, stream: CUstream, copy: In<CUDA_MEMCPY3D_PEER>) -> Answer {
    Ok(driver.memcpy_3d(&slices(&between(&copy.get()?))?, stream.core())?)
}

pub(crate) fn memcpy_3d_peer_async(driver: &Driver, copy: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) -> Answer {
    if driver.capture_copy(stream.core(), || slices(&between(&copy.get()?)))? {
        return Ok(());
    }
    Ok(driver.memcpy_3d_async(&slices(&between(&copy.get()?))?, stream.core())?)
}

macro_rules! fills {
    ($($kind:ident $bytes:literal: $line:ident $line_async:ident $lines:ident $lines_async:ident;)*) => {$(
        pub(crate) fn $line(driver: &Driver, stream: CUstream, dst: CUdeviceptr, value: $kind, count: usize) -> Answer {
            Ok(driver.memset(DevAddr(dst), u32::from(value), $bytes, count as u64, stream.core())?)
        }

        pub(crate) fn $line_async(
            driver: &Driver,
            dst: CUdeviceptr,
            value: $kind,
            count: usize,
            stream: CUstream,
        ) -> Answer {
            Ok(driver.memset_async(DevAddr(dst), u32::from(value), $bytes, count as u64, stream.core())?)
        }

        pub(crate) fn $lines(
            driver: &Driver,
            stream: CUstream,
            dst: CUdeviceptr,
            pitch: usize,
            value: $kind,
            width: usize,
            height: usize,
        ) -> Answer {
            let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
            Ok(driver.memset_2d(DevAddr(dst), pitch, u32::from(value), $bytes, width, height, stream.core())?)
        }

        pub(crate) fn $lines_async(
            driver: &Driver,
            dst: CUdeviceptr,
            pitch: usize,
            value: $kind,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> Answer {
            let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
            Ok(driver.memset_2d_async(DevAddr(dst), pitch, u32::from(value), $bytes, width, height, stream.core())?)
        }
    )*};
}

fills! {
    u8 1: memset_d8 memset_d8_async memset_d2d8 memset_d2d8_async;
    u16 2: memset_d16 memset_d16_async memset_d2d16 memset_d2d16_async;
    u32 4: memset_d32 memset_d32_async memset_d2d32 memset_d2d32_async;
}
