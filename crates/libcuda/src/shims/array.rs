//! Exported functions implemented by `calls::array`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR,
    CUarray, CUdevice, CUmipmappedArray, CUresult,
};

use crate::calls::array;
use crate::decode::{In, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArray3DCreate_v2(
    p_handle: Out<CUarray>,
    p_allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArray3DCreate_v2");
    ENTRY.call(|driver| array::array_3d_create(driver, p_handle, p_allocate_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArray3DGetDescriptor_v2(
    p_array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>,
    h_array: CUarray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArray3DGetDescriptor_v2");
    ENTRY.call(|driver| array::array_3d_get_descriptor(driver, p_array_descriptor, h_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayCreate_v2(
    p_handle: Out<CUarray>,
    p_allocate_array: In<CUDA_ARRAY_DESCRIPTOR>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayCreate_v2");
    ENTRY.call(|driver| array::array_create(driver, p_handle, p_allocate_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayDestroy(h_array: CUarray) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayDestroy");
    ENTRY.call(|driver| array::array_destroy(driver, h_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayGetDescriptor_v2(
    p_array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR>,
    h_array: CUarray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayGetDescriptor_v2");
    ENTRY.call(|driver| array::array_get_descriptor(driver, p_array_descriptor, h_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayGetMemoryRequirements(
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: CUarray,
    device: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayGetMemoryRequirements");
    ENTRY.call(|driver| array::array_get_memory_requirements(driver, memory_requirements, array, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayGetPlane(p_plane_array: Out<CUarray>, h_array: CUarray, plane_idx: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayGetPlane");
    ENTRY.call(|driver| array::array_get_plane(driver, p_plane_array, h_array, plane_idx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayGetSparseProperties(
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUarray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayGetSparseProperties");
    ENTRY.call(|driver| array::array_get_sparse_properties(driver, sparse_properties, array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMipmappedArrayCreate(
    p_handle: Out<CUmipmappedArray>,
    p_mipmapped_array_desc: In<CUDA_ARRAY3D_DESCRIPTOR>,
    num_mipmap_levels: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMipmappedArrayCreate");
    ENTRY.call(|driver| array::mipmapped_array_create(driver, p_handle, p_mipmapped_array_desc, num_mipmap_levels))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMipmappedArrayDestroy(h_mipmapped_array: CUmipmappedArray) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMipmappedArrayDestroy");
    ENTRY.call(|driver| array::mipmapped_array_destroy(driver, h_mipmapped_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMipmappedArrayGetLevel(
    p_level_array: Out<CUarray>,
    h_mipmapped_array: CUmipmappedArray,
    level: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMipmappedArrayGetLevel");
    ENTRY.call(|driver| array::mipmapped_array_get_level(driver, p_level_array, h_mipmapped_array, level))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMipmappedArrayGetMemoryRequirements(
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMipmappedArrayGetMemoryRequirements");
    ENTRY.call(|driver| array::mipmapped_array_get_memory_requirements(driver, memory_requirements, mipmap, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMipmappedArrayGetSparseProperties(
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    mipmap: CUmipmappedArray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMipmappedArrayGetSparseProperties");
    ENTRY.call(|driver| array::mipmapped_array_get_sparse_properties(driver, sparse_properties, mipmap))
}
