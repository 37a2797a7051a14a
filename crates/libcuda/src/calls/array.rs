//! Arrays and mipmapped arrays.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR,
    CUarray, CUdevice, CUmipmappedArray, CUresult,
};
use cuda_core::{Driver, MipmappedArray};

use crate::decode::{Core, In, Out};
use crate::entry::{Answer, refuse};

pub(crate) fn array_create(driver: &Driver, array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) -> Answer {
    array.required()?;
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = descriptor.get()?;
    array.set(driver.array_3d_create(&CUDA_ARRAY3D_DESCRIPTOR {
        width,
        height,
        depth: 0,
        format,
        num_channels,
        flags: 0,
    })?);
    Ok(())
}

pub(crate) fn array_3d_create(driver: &Driver, array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) -> Answer {
    array.required()?;
    array.set(driver.array_3d_create(&descriptor.get()?)?);
    Ok(())
}

pub(crate) fn array_get_descriptor(driver: &Driver, out: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) -> Answer {
    out.required()?;
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } =
        driver.array_3d_get_descriptor(array.core())?;
    out.set_plain(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels });
    Ok(())
}

pub(crate) fn array_3d_get_descriptor(driver: &Driver, out: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) -> Answer {
    out.required()?;
    out.set_plain(driver.array_3d_get_descriptor(array.core())?);
    Ok(())
}

pub(crate) fn array_destroy(driver: &Driver, array: CUarray) -> Answer {
    Ok(driver.array_destroy(array.core())?)
}

pub(crate) fn mipmapped_array_create(
    driver: &Driver,
    array: Out<CUmipmappedArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: u32,
) -> Answer {
    array.required()?;
    array.set(driver.mipmapped_array_create(&descriptor.get()?, levels)?);
    Ok(())
}

pub(crate) fn mipmapped_array_get_level(
    driver: &Driver,
    level: Out<CUarray>,
    array: CUmipmappedArray,
    index: u32,
) -> Answer {
    level.required()?;
    level.set(driver.mipmapped_array_get_level(array.core(), index)?);
    Ok(())
}

pub(crate) fn mipmapped_array_destroy(driver: &Driver, array: CUmipmappedArray) -> Answer {
    Ok(driver.mipmapped_array_destroy(array.core())?)
}

/// There are no arrays of several planes: no format of them is supported.
pub(crate) fn array_get_plane(driver: &Driver, plane: Out<CUarray>, array: CUarray, _index: u32) -> Answer {
    plane.required()?;
    only_other_arrays_have_it(driver, array)
}

/// Arrays are not sparse.
pub(crate) fn array_get_sparse_properties(
    driver: &Driver,
    out: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUarray,
) -> Answer {
    out.required()?;
    only_other_arrays_have_it(driver, array)
}

/// Arrays have their memory from the beginning.
pub(crate) fn array_get_memory_requirements(
    driver: &Driver,
    out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: CUarray,
    _device: CUdevice,
) -> Answer {
    out.required()?;
    only_other_arrays_have_it(driver, array)
}

/// As of arrays.
pub(crate) fn mipmapped_array_get_sparse_properties(
    driver: &Driver,
    out: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUmipmappedArray,
) -> Answer {
    out.required()?;
    only_other_mipmapped_arrays_have_it(driver, array.core())
}

/// As of arrays.
pub(crate) fn mipmapped_array_get_memory_requirements(
    driver: &Driver,
    out: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: CUmipmappedArray,
    _device: CUdevice,
) -> Answer {
    out.required()?;
    only_other_mipmapped_arrays_have_it(driver, array.core())
}

fn only_other_arrays_have_it(driver: &Driver, array: CUarray) -> Answer {
    driver.array_3d_get_descriptor(array.core())?;
    refuse(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn only_other_mipmapped_arrays_have_it(driver: &Driver, array: MipmappedArray) -> Answer {
    driver.mipmapped_array_get_level(array, 0)?;
    refuse(CUresult::CUDA_ERROR_INVALID_VALUE)
}
