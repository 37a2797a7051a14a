//! Exported functions implemented by `calls::copy`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUresult, CUstream, HostAddr,
};

use crate::calls::copy;
use crate::decode::In;
use crate::entry::Entry;
use crate::start::{DEFAULT_STREAM, per_thread};

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy");
    ENTRY.call(|driver| copy::memcpy(driver, DEFAULT_STREAM, dst, src, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy_ptds");
    ENTRY.call(|driver| copy::memcpy(driver, CUstream::PER_THREAD, dst, src, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2D_v2(p_copy: In<CUDA_MEMCPY2D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2D_v2");
    ENTRY.call(|driver| copy::memcpy_2d(driver, DEFAULT_STREAM, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2D_v2_ptds(p_copy: In<CUDA_MEMCPY2D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2D_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_2d(driver, CUstream::PER_THREAD, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DAsync_v2(p_copy: In<CUDA_MEMCPY2D>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DAsync_v2");
    ENTRY.call(|driver| copy::memcpy_2d_async(driver, p_copy, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DAsync_v2_ptsz(p_copy: In<CUDA_MEMCPY2D>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DAsync_v2_ptsz");
    ENTRY.call(|driver| copy::memcpy_2d_async(driver, p_copy, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DUnaligned_v2(p_copy: In<CUDA_MEMCPY2D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DUnaligned_v2");
    ENTRY.call(|driver| copy::memcpy_2d(driver, DEFAULT_STREAM, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DUnaligned_v2_ptds(p_copy: In<CUDA_MEMCPY2D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DUnaligned_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_2d(driver, CUstream::PER_THREAD, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3D_v2(p_copy: In<CUDA_MEMCPY3D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3D_v2");
    ENTRY.call(|driver| copy::memcpy_3d(driver, DEFAULT_STREAM, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3D_v2_ptds(p_copy: In<CUDA_MEMCPY3D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3D_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_3d(driver, CUstream::PER_THREAD, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DAsync_v2(p_copy: In<CUDA_MEMCPY3D>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DAsync_v2");
    ENTRY.call(|driver| copy::memcpy_3d_async(driver, p_copy, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DAsync_v2_ptsz(p_copy: In<CUDA_MEMCPY3D>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DAsync_v2_ptsz");
    ENTRY.call(|driver| copy::memcpy_3d_async(driver, p_copy, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DPeer(p_copy: In<CUDA_MEMCPY3D_PEER>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DPeer");
    ENTRY.call(|driver| copy::memcpy_3d_peer(driver, DEFAULT_STREAM, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DPeer_ptds(p_copy: In<CUDA_MEMCPY3D_PEER>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DPeer_ptds");
    ENTRY.call(|driver| copy::memcpy_3d_peer(driver, CUstream::PER_THREAD, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DPeerAsync(p_copy: In<CUDA_MEMCPY3D_PEER>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DPeerAsync");
    ENTRY.call(|driver| copy::memcpy_3d_peer_async(driver, p_copy, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DPeerAsync_ptsz(p_copy: In<CUDA_MEMCPY3D_PEER>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DPeerAsync_ptsz");
    ENTRY.call(|driver| copy::memcpy_3d_peer_async(driver, p_copy, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAsync");
    ENTRY.call(|driver| copy::memcpy_async(driver, dst, src, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAsync_ptsz(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAsync_ptsz");
    ENTRY.call(|driver| copy::memcpy_async(driver, dst, src, byte_count, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoD_v2(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoD_v2");
    ENTRY.call(|driver| copy::memcpy_dtod(driver, DEFAULT_STREAM, dst_device, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoD_v2_ptds(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoD_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_dtod(driver, CUstream::PER_THREAD, dst_device, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoDAsync_v2(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoDAsync_v2");
    ENTRY.call(|driver| copy::memcpy_dtod_async(driver, dst_device, src_device, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoDAsync_v2_ptsz(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoDAsync_v2_ptsz");
    ENTRY.call(|driver| copy::memcpy_dtod_async(driver, dst_device, src_device, byte_count, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoH_v2(dst_host: HostAddr, src_device: CUdeviceptr, byte_count: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoH_v2");
    ENTRY.call(|driver| copy::memcpy_dtoh(driver, DEFAULT_STREAM, dst_host, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoH_v2_ptds(
    dst_host: HostAddr,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoH_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_dtoh(driver, CUstream::PER_THREAD, dst_host, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoHAsync_v2(
    dst_host: HostAddr,
    src_device: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoHAsync_v2");
    ENTRY.call(|driver| copy::memcpy_dtoh_async(driver, dst_host, src_device, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoHAsync_v2_ptsz(
    dst_host: HostAddr,
    src_device: CUdeviceptr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoHAsync_v2_ptsz");
    ENTRY.call(|driver| copy::memcpy_dtoh_async(driver, dst_host, src_device, byte_count, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: HostAddr, byte_count: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoD_v2");
    ENTRY.call(|driver| copy::memcpy_htod(driver, DEFAULT_STREAM, dst_device, src_host, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoD_v2_ptds(
    dst_device: CUdeviceptr,
    src_host: HostAddr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoD_v2_ptds");
    ENTRY.call(|driver| copy::memcpy_htod(driver, CUstream::PER_THREAD, dst_device, src_host, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoDAsync_v2(
    dst_device: CUdeviceptr,
    src_host: HostAddr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoDAsync_v2");
    ENTRY.call(|driver| copy::memcpy_htod_async(driver, dst_device, src_host, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoDAsync_v2_ptsz(
    dst_device: CUdeviceptr,
    src_host: HostAddr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoDAsync_v2_ptsz");
    ENTRY.call(|driver| copy::memcpy_htod_async(driver, dst_device, src_host, byte_count, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyPeer(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyPeer");
    ENTRY.call(|driver| {
        copy::memcpy_peer(driver, DEFAULT_STREAM, dst_device, dst_context, src_device, src_context, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyPeer_ptds(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyPeer_ptds");
    ENTRY.call(|driver| {
        copy::memcpy_peer(driver, CUstream::PER_THREAD, dst_device, dst_context, src_device, src_context, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyPeerAsync(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyPeerAsync");
    ENTRY.call(|driver| {
        copy::memcpy_peer_async(driver, dst_device, dst_context, src_device, src_context, byte_count, h_stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyPeerAsync_ptsz(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyPeerAsync_ptsz");
    ENTRY.call(|driver| {
        copy::memcpy_peer_async(
            driver,
            dst_device,
            dst_context,
            src_device,
            src_context,
            byte_count,
            per_thread(h_stream),
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16_v2(dst_device: CUdeviceptr, us: u16, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD16_v2");
    ENTRY.call(|driver| copy::memset_d16(driver, DEFAULT_STREAM, dst_device, us, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16_v2_ptds(dst_device: CUdeviceptr, us: u16, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD16_v2_ptds");
    ENTRY.call(|driver| copy::memset_d16(driver, CUstream::PER_THREAD, dst_device, us, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16Async(dst_device: CUdeviceptr, us: u16, n: usize, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD16Async");
    ENTRY.call(|driver| copy::memset_d16_async(driver, dst_device, us, n, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16Async_ptsz(
    dst_device: CUdeviceptr,
    us: u16,
    n: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD16Async_ptsz");
    ENTRY.call(|driver| copy::memset_d16_async(driver, dst_device, us, n, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D16_v2(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    us: u16,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D16_v2");
    ENTRY.call(|driver| copy::memset_d2d16(driver, DEFAULT_STREAM, dst_device, dst_pitch, us, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D16_v2_ptds(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    us: u16,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D16_v2_ptds");
    ENTRY.call(|driver| copy::memset_d2d16(driver, CUstream::PER_THREAD, dst_device, dst_pitch, us, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D16Async(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    us: u16,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D16Async");
    ENTRY.call(|driver| copy::memset_d2d16_async(driver, dst_device, dst_pitch, us, width, height, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D16Async_ptsz(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    us: u16,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D16Async_ptsz");
    ENTRY
        .call(|driver| copy::memset_d2d16_async(driver, dst_device, dst_pitch, us, width, height, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D32_v2(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    ui: u32,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D32_v2");
    ENTRY.call(|driver| copy::memset_d2d32(driver, DEFAULT_STREAM, dst_device, dst_pitch, ui, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D32_v2_ptds(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    ui: u32,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D32_v2_ptds");
    ENTRY.call(|driver| copy::memset_d2d32(driver, CUstream::PER_THREAD, dst_device, dst_pitch, ui, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D32Async(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    ui: u32,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D32Async");
    ENTRY.call(|driver| copy::memset_d2d32_async(driver, dst_device, dst_pitch, ui, width, height, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D32Async_ptsz(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    ui: u32,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D32Async_ptsz");
    ENTRY
        .call(|driver| copy::memset_d2d32_async(driver, dst_device, dst_pitch, ui, width, height, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D8_v2(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    uc: u8,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D8_v2");
    ENTRY.call(|driver| copy::memset_d2d8(driver, DEFAULT_STREAM, dst_device, dst_pitch, uc, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D8_v2_ptds(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    uc: u8,
    width: usize,
    height: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D8_v2_ptds");
    ENTRY.call(|driver| copy::memset_d2d8(driver, CUstream::PER_THREAD, dst_device, dst_pitch, uc, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D8Async(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    uc: u8,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D8Async");
    ENTRY.call(|driver| copy::memset_d2d8_async(driver, dst_device, dst_pitch, uc, width, height, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D8Async_ptsz(
    dst_device: CUdeviceptr,
    dst_pitch: usize,
    uc: u8,
    width: usize,
    height: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D8Async_ptsz");
    ENTRY.call(|driver| copy::memset_d2d8_async(driver, dst_device, dst_pitch, uc, width, height, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32_v2(dst_device: CUdeviceptr, ui: u32, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD32_v2");
    ENTRY.call(|driver| copy::memset_d32(driver, DEFAULT_STREAM, dst_device, ui, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32_v2_ptds(dst_device: CUdeviceptr, ui: u32, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD32_v2_ptds");
    ENTRY.call(|driver| copy::memset_d32(driver, CUstream::PER_THREAD, dst_device, ui, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32Async(dst_device: CUdeviceptr, ui: u32, n: usize, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD32Async");
    ENTRY.call(|driver| copy::memset_d32_async(driver, dst_device, ui, n, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32Async_ptsz(
    dst_device: CUdeviceptr,
    ui: u32,
    n: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD32Async_ptsz");
    ENTRY.call(|driver| copy::memset_d32_async(driver, dst_device, ui, n, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8_v2(dst_device: CUdeviceptr, uc: u8, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD8_v2");
    ENTRY.call(|driver| copy::memset_d8(driver, DEFAULT_STREAM, dst_device, uc, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8_v2_ptds(dst_device: CUdeviceptr, uc: u8, n: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD8_v2_ptds");
    ENTRY.call(|driver| copy::memset_d8(driver, CUstream::PER_THREAD, dst_device, uc, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8Async(dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD8Async");
    ENTRY.call(|driver| copy::memset_d8_async(driver, dst_device, uc, n, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8Async_ptsz(
    dst_device: CUdeviceptr,
    uc: u8,
    n: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD8Async_ptsz");
    ENTRY.call(|driver| copy::memset_d8_async(driver, dst_device, uc, n, per_thread(h_stream)))
}
