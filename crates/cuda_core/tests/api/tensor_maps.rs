//! Tensor maps: what programs may say of a tensor, and what kernels are told.

use cuda_abi::{
    CUtensorMap, CUtensorMapAllocClass as Class, CUtensorMapDataType as Data, CUtensorMapFloatOOBfill as Fill,
    CUtensorMapInterleave as Interleave, CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Given,
};
use cuda_core::{CudaError, TensorMapDesc, TensorRegion};
use texture::{Region, Swizzle, TensorElement, TensorMap};

use crate::support::driver;

fn decoded(map: &CUtensorMap) -> TensorMap {
    let bytes: Vec<u8> = map.opaque.iter().flat_map(|word| word.to_le_bytes()).collect();
    TensorMap::decode(&bytes.try_into().unwrap()).unwrap()
}

fn tiled() -> TensorMapDesc {
    TensorMapDesc {
        data_type: Data::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        global_address: 0x7000_0000,
        global_dim: vec![100, 40, 3],
        global_strides: vec![208, 208 * 41],
        element_strides: vec![5, 1, 2],
        interleave: Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle: Given::CU_TENSOR_MAP_SWIZZLE_128B,
        l2_promotion: Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        oob_fill: Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
        region: TensorRegion::Tiled(vec![64, 8, 3]),
    }
}

fn images() -> TensorMapDesc {
    let (lower, upper) = (vec![-1, 2, -16], vec![0, -2, 15]);
    TensorMapDesc {
        global_dim: vec![16, 9, 14, 20, 2],
        global_strides: vec![32, 288, 4032, 80640],
        element_strides: vec![1, 2, 1, 1, 1],
        region: TensorRegion::Im2col { lower, upper, channels: 16, pixels: 300 },
        ..tiled()
    }
}

#[test]
fn a_map_says_what_it_was_made_of() {
    let (driver, _) = driver();
    let map = decoded(&driver.tensor_map_encode(&tiled()).unwrap());
    let expected = TensorMap {
        base: 0x7000_0000,
        rank: 3,
        element: TensorElement::F16,
        sizes: [100, 40, 3, 1, 1],
        strides: [208, 208 * 41, 0, 0],
        // There is none along the first dimension.
        steps: [1, 1, 2, 1, 1],
        swizzle: Swizzle::B128,
        nan_fill: true,
        region: Region::Tiled([64, 8, 3, 1, 1]),
    };
    assert_eq!(map, expected);
    let map = decoded(&driver.tensor_map_encode(&images()).unwrap());
    let region = Region::Im2col { lower: [-1, 2, -16], upper: [0, -2, 15], channels: 16, pixels: 300 };
    assert_eq!((map.rank, map.steps, map.region), (5, [1, 2, 1, 1, 1], region));
}

#[test]
fn another_address_and_class() {
    let (driver, _) = driver();
    let map = driver.tensor_map_encode(&tiled()).unwrap();
    let moved = driver.tensor_map_replace_address(&map, 0x9000_0010).unwrap();
    assert_eq!(decoded(&moved), TensorMap { base: 0x9000_0010, ..decoded(&map) });
    let invalid = CudaError::INVALID_VALUE;
    assert_eq!(driver.tensor_map_replace_address(&map, 0x9000_0008).map(decoded_ref), Err(invalid));
    let none = CUtensorMap { opaque: [7; 16] };
    assert_eq!(driver.tensor_map_replace_address(&none, 0x9000_0000).map(decoded_ref), Err(invalid));
    let small = Class::CU_TENSOR_MAP_ALLOC_CLASS_SMALL;
    assert_eq!(driver.tensor_map_set_allocation_class(&map, Class::CU_TENSOR_MAP_ALLOC_CLASS_LARGE), Ok(small));
    assert_eq!(driver.tensor_map_set_allocation_class(&map, Class(3)), Err(invalid));
    assert_eq!(driver.tensor_map_set_allocation_class(&none, small), Err(invalid));
}

fn decoded_ref(map: CUtensorMap) -> TensorMap {
    decoded(&map)
}

#[test]
fn what_cannot_be_is_refused() {
    let (driver, _) = driver();
    let check = |error: CudaError, mut desc: TensorMapDesc, change: &dyn Fn(&mut TensorMapDesc)| {
        change(&mut desc);
        assert_eq!(driver.tensor_map_encode(&desc).map(decoded_ref), Err(error), "{desc:?}");
    };
    let invalid: [&dyn Fn(&mut TensorMapDesc); 19] = [
        &|d| d.data_type = Data(16),
        &|d| d.interleave = Interleave(3),
        &|d| d.swizzle = Given(7),
        &|d| d.l2_promotion = Promotion(4),
        &|d| d.oob_fill = Fill(2),
        // Integers have no NaN.
        &|d| d.data_type = Data::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        &|d| d.global_address += 8,
        &|d| d.global_dim = vec![100; 6],
        &|d| d.global_dim[1] = 0,
        &|d| d.global_dim[1] = (1 << 31) + 1,
        &|d| d.global_strides[0] = 200,
        &|d| d.global_strides[1] = 1 << 40,
        &|d| d.global_strides.push(16),
        &|d| d.element_strides[0] = 9,
        &|d| d.element_strides[2] = 0,
        &|d| d.region = TensorRegion::Tiled(vec![64, 257, 1]),
        &|d| d.region = TensorRegion::Tiled(vec![4, 1, 1]),
        // 144 bytes, more than the swizzle's span.
        &|d| d.region = TensorRegion::Tiled(vec![72, 1, 1]),
        &|d| d.region = TensorRegion::Tiled(vec![65_600, 1, 1]),
    ];
    invalid.iter().for_each(|change| check(CudaError::INVALID_VALUE, tiled(), change));
    let unsupported: [&dyn Fn(&mut TensorMapDesc); 2] =
        [&|d| d.data_type = Data::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, &|d| {
            d.interleave = Interleave::CU_TENSOR_MAP_INTERLEAVE_16B
        }];
    unsupported.iter().for_each(|change| check(CudaError::NOT_SUPPORTED, tiled(), change));
    let corners = |d: &mut TensorMapDesc, low: [i32; 3], high: [i32; 3]| {
        let (lower, upper) = (low.to_vec(), high.to_vec());
        d.region = TensorRegion::Im2col { lower, upper, channels: 16, pixels: 300 };
    };
    let invalid: [&dyn Fn(&mut TensorMapDesc); 6] = [
        &|d| corners(d, [-17, 0, 0], [0; 3]),
        &|d| corners(d, [0; 3], [0, 0, 16]),
        &|d| corners(d, [0; 3], [-9, 0, 0]),
        &|d| d.region = TensorRegion::Im2col { lower: vec![0], upper: vec![0], channels: 16, pixels: 300 },
        &|d| d.region = TensorRegion::Im2col { lower: vec![0; 3], upper: vec![0; 3], channels: 0, pixels: 300 },
        &|d| d.region = TensorRegion::Im2col { lower: vec![0; 3], upper: vec![0; 3], channels: 16, pixels: 1025 },
    ];
    invalid.iter().for_each(|change| check(CudaError::INVALID_VALUE, images(), change));
}
