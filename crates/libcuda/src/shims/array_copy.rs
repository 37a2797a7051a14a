//! Exported functions implemented by `calls::array_copy`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUarray, CUdeviceptr, CUresult, CUstream, HostAddr};

use crate::calls::array_copy;
use crate::entry::Entry;
use crate::start::{DEFAULT_STREAM, per_thread};

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoA_v2");
    ENTRY.call(|driver| {
        array_copy::memcpy_atoa(driver, DEFAULT_STREAM, dst_array, dst_offset, src_array, src_offset, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoA_v2_ptds(
    dst_array: CUarray,
    dst_offset: usize,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoA_v2_ptds");
    ENTRY.call(|driver| {
        array_copy::memcpy_atoa(driver, CUstream::PER_THREAD, dst_array, dst_offset, src_array, src_offset, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoD_v2(
    dst_device: CUdeviceptr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoD_v2");
    ENTRY.call(|driver| array_copy::memcpy_atod(driver, DEFAULT_STREAM, dst_device, src_array, src_offset, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoD_v2_ptds(
    dst_device: CUdeviceptr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoD_v2_ptds");
    ENTRY.call(|driver| {
        array_copy::memcpy_atod(driver, CUstream::PER_THREAD, dst_device, src_array, src_offset, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoH_v2(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoH_v2");
    ENTRY.call(|driver| array_copy::memcpy_atoh(driver, DEFAULT_STREAM, dst_host, src_array, src_offset, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoH_v2_ptds(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoH_v2_ptds");
    ENTRY.call(|driver| {
        array_copy::memcpy_atoh(driver, CUstream::PER_THREAD, dst_host, src_array, src_offset, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoHAsync_v2(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoHAsync_v2");
    ENTRY.call(|driver| array_copy::memcpy_atoh_async(driver, dst_host, src_array, src_offset, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoHAsync_v2_ptsz(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoHAsync_v2_ptsz");
    ENTRY.call(|driver| {
        array_copy::memcpy_atoh_async(driver, dst_host, src_array, src_offset, byte_count, per_thread(h_stream))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoA_v2");
    ENTRY.call(|driver| array_copy::memcpy_dtoa(driver, DEFAULT_STREAM, dst_array, dst_offset, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoA_v2_ptds(
    dst_array: CUarray,
    dst_offset: usize,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoA_v2_ptds");
    ENTRY.call(|driver| {
        array_copy::memcpy_dtoa(driver, CUstream::PER_THREAD, dst_array, dst_offset, src_device, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: HostAddr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoA_v2");
    ENTRY.call(|driver| array_copy::memcpy_htoa(driver, DEFAULT_STREAM, dst_array, dst_offset, src_host, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoA_v2_ptds(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: HostAddr,
    byte_count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoA_v2_ptds");
    ENTRY.call(|driver| {
        array_copy::memcpy_htoa(driver, CUstream::PER_THREAD, dst_array, dst_offset, src_host, byte_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoAAsync_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: HostAddr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoAAsync_v2");
    ENTRY.call(|driver| array_copy::memcpy_htoa_async(driver, dst_array, dst_offset, src_host, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoAAsync_v2_ptsz(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: HostAddr,
    byte_count: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoAAsync_v2_ptsz");
    ENTRY.call(|driver| {
        array_copy::memcpy_htoa_async(driver, dst_array, dst_offset, src_host, byte_count, per_thread(h_stream))
    })
}
