//! Tensor maps.

use cuda_abi::{
    CUresult, CUtensorMap, CUtensorMapAllocClass, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, HostAddr,
};
use cuda_core::{Driver, TensorMapDesc, TensorRegion};

use crate::decode::{In, InOut, Out};
use crate::entry::{Answer, Refusal, refuse};

/// Most dimensions of a tensor.
const MAX_RANK: usize = 5;

/// Dimensions, if there can be so many.
fn rank(rank: u32, least: usize) -> Result<usize, Refusal> {
    match usize::try_from(rank) {
        Ok(rank) if (least..=MAX_RANK).contains(&rank) => Ok(rank),
        _ => refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Maps are aligned to 64 bytes.
fn aligned(map: HostAddr) -> Answer {
    if map.0.is_multiple_of(64) { Ok(()) } else { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

#[expect(clippy::too_many_arguments, reason = "the function's parameters")]
pub(crate) fn encode_tiled(
    driver: &Driver,
    map: Out<CUtensorMap>,
    data_type: CUtensorMapDataType,
    dimensions: u32,
    address: HostAddr,
    global_dim: In<u64>,
    global_strides: In<u64>,
    box_dim: In<u32>,
    element_strides: In<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> Answer {
    map.required()?;
    aligned(map.address())?;
    let rank = rank(dimensions, 1)?;
    // SAFETY: the caller promised as many elements as the tensor has dimensions.
    let global_dim = unsafe { global_dim.list(rank)? };
    // SAFETY: as above, and one stride less.
    let global_strides = unsafe { global_strides.list(rank - 1)? };
    // SAFETY: as above.
    let sides = unsafe { box_dim.list(rank)? };
    // SAFETY: as above.
    let element_strides = unsafe { element_strides.list(rank)? };
    map.set_plain(driver.tensor_map_encode(&TensorMapDesc {
        data_type,
        global_address: address.0,
        global_dim,
        global_strides,
        element_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        region: TensorRegion::Tiled(sides),
    })?);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the function's parameters")]
pub(crate) fn encode_im2col(
    driver: &Driver,
    map: Out<CUtensorMap>,
    data_type: CUtensorMapDataType,
    dimensions: u32,
    address: HostAddr,
    global_dim: In<u64>,
    global_strides: In<u64>,
    lower: In<i32>,
    upper: In<i32>,
    channels: u32,
    pixels: u32,
    element_strides: In<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> Answer {
    map.required()?;
    aligned(map.address())?;
    let rank = rank(dimensions, 3)?;
    // SAFETY: the caller promised as many elements as the tensor has dimensions.
    let global_dim = unsafe { global_dim.list(rank)? };
    // SAFETY: as above, and one stride less.
    let global_strides = unsafe { global_strides.list(rank - 1)? };
    // SAFETY: the caller promised as many corners as an image has dimensions: channels and images have none.
    let lower = unsafe { lower.list(rank - 2)? };
    // SAFETY: as above.
    let upper = unsafe { upper.list(rank - 2)? };
    // SAFETY: as above.
    let element_strides = unsafe { element_strides.list(rank)? };
    map.set_plain(driver.tensor_map_encode(&TensorMapDesc {
        data_type,
        global_address: address.0,
        global_dim,
        global_strides,
        element_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        region: TensorRegion::Im2col { lower, upper, channels, pixels },
    })?);
    Ok(())
}

pub(crate) fn replace_address(driver: &Driver, map: InOut<CUtensorMap>, address: HostAddr) -> Answer {
    aligned(map.output().address())?;
    let changed = driver.tensor_map_replace_address(&map.input().get()?, address.0)?;
    map.output().set_plain(changed);
    Ok(())
}

pub(crate) fn set_allocation_class(
    driver: &Driver,
    map: InOut<CUtensorMap>,
    class: CUtensorMapAllocClass,
    out: Out<CUtensorMapAllocClass>,
) -> Answer {
    out.set_plain(CUtensorMapAllocClass::CU_TENSOR_MAP_ALLOC_CLASS_SMALL);
    out.set_plain(driver.tensor_map_set_allocation_class(&map.input().get()?, class)?);
    Ok(())
}
