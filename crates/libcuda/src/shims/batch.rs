//! Exported functions implemented by `calls::batch`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUDA_MEMCPY3D_BATCH_OP, CUdeviceptr, CUmemLocation, CUmemcpyAttributes, CUresult, CUstream};

use crate::calls::batch;
use crate::decode::{In, Out};
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemDiscardAndPrefetchBatchAsync(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    prefetch_locs: In<CUmemLocation>,
    prefetch_loc_idxs: In<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemDiscardAndPrefetchBatchAsync");
    ENTRY.call(|driver| {
        batch::mem_prefetch_batch_async(
            driver,
            dptrs,
            sizes,
            count,
            prefetch_locs,
            prefetch_loc_idxs,
            num_prefetch_locs,
            flags,
            h_stream,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemDiscardAndPrefetchBatchAsync_ptsz(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    prefetch_locs: In<CUmemLocation>,
    prefetch_loc_idxs: In<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemDiscardAndPrefetchBatchAsync_ptsz");
    ENTRY.call(|driver| {
        batch::mem_prefetch_batch_async(
            driver,
            dptrs,
            sizes,
            count,
            prefetch_locs,
            prefetch_loc_idxs,
            num_prefetch_locs,
            flags,
            per_thread(h_stream),
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemDiscardBatchAsync(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemDiscardBatchAsync");
    ENTRY.call(|driver| batch::mem_discard_batch_async(driver, dptrs, sizes, count, flags, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemDiscardBatchAsync_ptsz(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemDiscardBatchAsync_ptsz");
    ENTRY.call(|driver| batch::mem_discard_batch_async(driver, dptrs, sizes, count, flags, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchBatchAsync(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    prefetch_locs: In<CUmemLocation>,
    prefetch_loc_idxs: In<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchBatchAsync");
    ENTRY.call(|driver| {
        batch::mem_prefetch_batch_async(
            driver,
            dptrs,
            sizes,
            count,
            prefetch_locs,
            prefetch_loc_idxs,
            num_prefetch_locs,
            flags,
            h_stream,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchBatchAsync_ptsz(
    dptrs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    prefetch_locs: In<CUmemLocation>,
    prefetch_loc_idxs: In<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchBatchAsync_ptsz");
    ENTRY.call(|driver| {
        batch::mem_prefetch_batch_async(
            driver,
            dptrs,
            sizes,
            count,
            prefetch_locs,
            prefetch_loc_idxs,
            num_prefetch_locs,
            flags,
            per_thread(h_stream),
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DBatchAsync(
    num_ops: usize,
    op_list: In<CUDA_MEMCPY3D_BATCH_OP>,
    fail_idx: Out<usize>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DBatchAsync");
    ENTRY.call(|driver| batch::memcpy_3d_batch_async_v1(driver, num_ops, op_list, fail_idx, flags, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DBatchAsync_v2(
    num_ops: usize,
    op_list: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DBatchAsync_v2");
    ENTRY.call(|driver| batch::memcpy_3d_batch_async(driver, num_ops, op_list, flags, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DBatchAsync_ptsz(
    num_ops: usize,
    op_list: In<CUDA_MEMCPY3D_BATCH_OP>,
    fail_idx: Out<usize>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DBatchAsync_ptsz");
    ENTRY
        .call(|driver| batch::memcpy_3d_batch_async_v1(driver, num_ops, op_list, fail_idx, flags, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DBatchAsync_v2_ptsz(
    num_ops: usize,
    op_list: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DBatchAsync_v2_ptsz");
    ENTRY.call(|driver| batch::memcpy_3d_batch_async(driver, num_ops, op_list, flags, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DWithAttributesAsync(
    op: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DWithAttributesAsync");
    ENTRY.call(|driver| batch::memcpy_3d_with_attributes_async(driver, op, flags, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DWithAttributesAsync_ptsz(
    op: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DWithAttributesAsync_ptsz");
    ENTRY.call(|driver| batch::memcpy_3d_with_attributes_async(driver, op, flags, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyBatchAsync(
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attrs: In<CUmemcpyAttributes>,
    attrs_idxs: In<usize>,
    num_attrs: usize,
    fail_idx: Out<usize>,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyBatchAsync");
    ENTRY.call(|driver| {
        batch::memcpy_batch_async_v1(driver, dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs, fail_idx, h_stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyBatchAsync_v2(
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attrs: In<CUmemcpyAttributes>,
    attrs_idxs: In<usize>,
    num_attrs: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyBatchAsync_v2");
    ENTRY.call(|driver| {
        batch::memcpy_batch_async(driver, dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs, h_stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyBatchAsync_ptsz(
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attrs: In<CUmemcpyAttributes>,
    attrs_idxs: In<usize>,
    num_attrs: usize,
    fail_idx: Out<usize>,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyBatchAsync_ptsz");
    ENTRY.call(|driver| {
        batch::memcpy_batch_async_v1(
            driver,
            dsts,
            srcs,
            sizes,
            count,
            attrs,
            attrs_idxs,
            num_attrs,
            fail_idx,
            per_thread(h_stream),
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyBatchAsync_v2_ptsz(
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attrs: In<CUmemcpyAttributes>,
    attrs_idxs: In<usize>,
    num_attrs: usize,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyBatchAsync_v2_ptsz");
    ENTRY.call(|driver| {
        batch::memcpy_batch_async(driver, dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs, per_thread(h_stream))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyWithAttributesAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    size: usize,
    attr: In<CUmemcpyAttributes>,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyWithAttributesAsync");
    ENTRY.call(|driver| batch::memcpy_with_attributes_async(driver, dst, src, size, attr, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyWithAttributesAsync_ptsz(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    size: usize,
    attr: In<CUmemcpyAttributes>,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyWithAttributesAsync_ptsz");
    ENTRY.call(|driver| batch::memcpy_with_attributes_async(driver, dst, src, size, attr, per_thread(h_stream)))
}
