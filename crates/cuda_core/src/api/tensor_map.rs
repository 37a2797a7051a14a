//! Tensor maps: made and changed without a GPU, since they are values.

use cuda_abi::{
    CUtensorMap, CUtensorMapAllocClass, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use texture::{MAX_RANK, Region, Swizzle, TensorElement, TensorMap};

use crate::driver::Driver;
use crate::error::{CudaError, Result};

/// Which elements a map moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TensorRegion {
    /// Sides of a box, elements.
    Tiled(Vec<u32>),
    /// Pixels of images.
    Im2col {
        /// First coordinates of the bounding box, W first.
        lower: Vec<i32>,
        /// How far its last ones lie behind those of the image.
        upper: Vec<i32>,
        /// Channels of a pixel.
        channels: u32,
        /// Pixels in all.
        pixels: u32,
    },
}

/// What a program says of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as the function's parameters")]
pub struct TensorMapDesc {
    pub data_type: CUtensorMapDataType,
    pub global_address: u64,
    /// As many as the tensor has dimensions.
    pub global_dim: Vec<u64>,
    /// One less.
    pub global_strides: Vec<u64>,
    pub element_strides: Vec<u32>,
    pub interleave: CUtensorMapInterleave,
    pub swizzle: CUtensorMapSwizzle,
    pub l2_promotion: CUtensorMapL2promotion,
    pub oob_fill: CUtensorMapFloatOOBfill,
    pub region: TensorRegion,
}

/// So many values, or fewer and behind them `rest`.
fn padded<T: Copy, U: TryFrom<T>, const N: usize>(values: &[T], rest: U) -> Result<[U; N]>
where
    U: Copy,
{
    let mut all = [rest; N];
    if values.len() > N {
        return Err(CudaError::INVALID_VALUE);
    }
    for (to, &value) in all.iter_mut().zip(values) {
        *to = U::try_from(value).map_err(|_| CudaError::INVALID_VALUE)?;
    }
    Ok(all)
}

/// The map that these bytes are.
fn decoded(map: &CUtensorMap) -> Result<TensorMap> {
    let mut bytes = [0; TensorMap::BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(map.opaque) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    TensorMap::decode(&bytes).map_err(|_| CudaError::INVALID_VALUE)
}

fn encoded(map: &TensorMap) -> CUtensorMap {
    let mut opaque = [0; 16];
    for (word, bytes) in opaque.iter_mut().zip(map.encode().chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    }
    CUtensorMap { opaque }
}

impl Driver {
    /// The map of a tensor. Whether there is memory at its address is found out when it is used.
    ///
    /// # Errors
    /// `INVALID_VALUE` for values out of their ranges, as the function's description has them; `NOT_SUPPORTED` for packed elements
    /// of 4 and 6 bits, and for interleaved layouts.
    pub fn tensor_map_encode(&self, desc: &TensorMapDesc) -> Result<CUtensorMap> {
        self.ready()?;
        let invalid = CudaError::INVALID_VALUE;
        let known = desc.data_type.0 <= CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B.0
            && desc.interleave.0 <= CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_32B.0
            && desc.l2_promotion.0 <= CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B.0
            && desc.oob_fill.0 <= CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA.0;
        let swizzle = Swizzle::ALL.get(desc.swizzle.0 as usize).filter(|_| known).ok_or(invalid)?;
        let rank = desc.global_dim.len();
        if !(1..=MAX_RANK).contains(&rank)
            || desc.global_strides.len() + 1 != rank
            || desc.element_strides.len() != rank
        {
            return Err(invalid);
        }
        let element = TensorElement::ALL.get(desc.data_type.0 as usize);
        if element.is_none() || desc.interleave != CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let mut steps: [u8; MAX_RANK] = padded(&desc.element_strides, 1)?;
        if steps[0] == 0 || steps[0] > 8 {
            return Err(invalid);
        }
        // Along dimension 0 there is none.
        steps[0] = 1;
        let region = match &desc.region {
            TensorRegion::Tiled(sides) => Region::Tiled(padded(sides, 1)?),
            TensorRegion::Im2col { lower, upper, channels, pixels } => {
                if rank < 3 || lower.len() != rank - 2 || upper.len() != rank - 2 {
                    return Err(invalid);
                }
                let [channels, pixels] = padded(&[*channels, *pixels], 0)?;
                Region::Im2col { lower: padded(lower, 0)?, upper: padded(upper, 0)?, channels, pixels }
            }
        };
        let map = TensorMap {
            base: desc.global_address,
            rank: rank as u8,
            element: *element.ok_or(invalid)?,
            sizes: padded(&desc.global_dim, 1)?,
            strides: padded(&desc.global_strides, 0)?,
            steps,
            swizzle: *swizzle,
            nan_fill: desc.oob_fill != CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            region,
        };
        map.check().map_err(|_| invalid)?;
        Ok(encoded(&map))
    }

    /// The same map of another tensor of its kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a map that is none, and an address that is not aligned.
    pub fn tensor_map_replace_address(&self, map: &CUtensorMap, address: u64) -> Result<CUtensorMap> {
        self.ready()?;
        let map = TensorMap { base: address, ..decoded(map)? };
        map.check().map_err(|_| CudaError::INVALID_VALUE)?;
        Ok(encoded(&map))
    }

    /// The class of allocation that a map has after a request: none changes anything here.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a map that is none, and an unknown class.
    pub fn tensor_map_set_allocation_class(
        &self,
        map: &CUtensorMap,
        class: CUtensorMapAllocClass,
    ) -> Result<CUtensorMapAllocClass> {
        self.ready()?;
        decoded(map)?;
        if class.0 > CUtensorMapAllocClass::CU_TENSOR_MAP_ALLOC_CLASS_LARGE.0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(CUtensorMapAllocClass::CU_TENSOR_MAP_ALLOC_CLASS_SMALL)
    }
}
