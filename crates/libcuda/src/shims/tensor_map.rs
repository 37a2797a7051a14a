//! Exported functions implemented by `calls::tensor_map`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUresult, CUtensorMap, CUtensorMapAllocClass, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, HostAddr,
};

use crate::calls::tensor_map;
use crate::decode::{In, InOut, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTensorMapEncodeIm2col(
    tensor_map: Out<CUtensorMap>,
    tensor_data_type: CUtensorMapDataType,
    tensor_rank: u32,
    global_address: HostAddr,
    global_dim: In<u64>,
    global_strides: In<u64>,
    pixel_box_lower_corner: In<i32>,
    pixel_box_upper_corner: In<i32>,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: In<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTensorMapEncodeIm2col");
    ENTRY.call(|driver| {
        tensor_map::encode_im2col(
            driver,
            tensor_map,
            tensor_data_type,
            tensor_rank,
            global_address,
            global_dim,
            global_strides,
            pixel_box_lower_corner,
            pixel_box_upper_corner,
            channels_per_pixel,
            pixels_per_column,
            element_strides,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTensorMapEncodeTiled(
    tensor_map: Out<CUtensorMap>,
    tensor_data_type: CUtensorMapDataType,
    tensor_rank: u32,
    global_address: HostAddr,
    global_dim: In<u64>,
    global_strides: In<u64>,
    box_dim: In<u32>,
    element_strides: In<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTensorMapEncodeTiled");
    ENTRY.call(|driver| {
        tensor_map::encode_tiled(
            driver,
            tensor_map,
            tensor_data_type,
            tensor_rank,
            global_address,
            global_dim,
            global_strides,
            box_dim,
            element_strides,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTensorMapReplaceAddress(
    tensor_map: InOut<CUtensorMap>,
    global_address: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTensorMapReplaceAddress");
    ENTRY.call(|driver| tensor_map::replace_address(driver, tensor_map, global_address))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTensorMapSetAllocationClass(
    tensor_map: InOut<CUtensorMap>,
    alloc_class: CUtensorMapAllocClass,
    out_alloc_class: Out<CUtensorMapAllocClass>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTensorMapSetAllocationClass");
    ENTRY.call(|driver| tensor_map::set_allocation_class(driver, tensor_map, alloc_class, out_alloc_class))
}
