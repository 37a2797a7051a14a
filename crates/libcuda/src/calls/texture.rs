//! Texture and surface objects.

use cuda_abi::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray, CUarray_format, CUmipmappedArray,
    CUresourcetype, CUresult, CUsurfObject, CUtexObject,
};
use cuda_core::{Driver, Resource};
use gpu::DevAddr;

use crate::decode::{Core, In, Out};
use crate::entry::{Answer, Refusal, refuse};

/// The memory that a description names: the union's members are read as its kind says.
fn resource(of: &CUDA_RESOURCE_DESC) -> Result<Resource, Refusal> {
    if of.flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let value = &of.value;
    // {format, channels}: two words of 32 bits.
    let (format, channels) = (CUarray_format(value[1] as u32), (value[1] >> 32) as u32);
    Ok(match of.res_type {
        CUresourcetype::CU_RESOURCE_TYPE_ARRAY => Resource::Array(CUarray(value[0]).core()),
        CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => Resource::Mipmapped(CUmipmappedArray(value[0]).core()),
        CUresourcetype::CU_RESOURCE_TYPE_LINEAR => {
            Resource::Linear { at: DevAddr(value[0]), format, channels, bytes: value[2] }
        }
        CUresourcetype::CU_RESOURCE_TYPE_PITCH2D => {
            let [_, _, width, height, pitch, ..] = *value;
            Resource::Pitched { at: DevAddr(value[0]), format, channels, width, height, pitch }
        }
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

/// The description that says this.
fn described(resource: &Resource) -> CUDA_RESOURCE_DESC {
    let element = |format: CUarray_format, channels: u32| u64::from(format.0) | u64::from(channels) << 32;
    let mut value = [0; 16];
    let (res_type, words): (_, &[u64]) = match *resource {
        Resource::Array(array) => (CUresourcetype::CU_RESOURCE_TYPE_ARRAY, &[array.0]),
        Resource::Mipmapped(array) => (CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, &[array.0]),
        Resource::Linear { at, format, channels, bytes } => {
            (CUresourcetype::CU_RESOURCE_TYPE_LINEAR, &[at.0, element(format, channels), bytes])
        }
        Resource::Pitched { at, format, channels, width, height, pitch } => {
            (CUresourcetype::CU_RESOURCE_TYPE_PITCH2D, &[at.0, element(format, channels), width, height, pitch])
        }
    };
    value[..words.len()].copy_from_slice(words);
    CUDA_RESOURCE_DESC { res_type, value, flags: 0 }
}

pub(crate) fn tex_object_create(
    driver: &Driver,
    object: Out<CUtexObject>,
    of: In<CUDA_RESOURCE_DESC>,
    texture: In<CUDA_TEXTURE_DESC>,
    view: In<CUDA_RESOURCE_VIEW_DESC>,
) -> Answer {
    object.required()?;
    let view = if view.is_null() { None } else { Some(view.get()?) };
    object.set(driver.tex_object_create(&resource(&of.get()?)?, &texture.get()?, view.as_ref())?);
    Ok(())
}

pub(crate) fn tex_object_destroy(driver: &Driver, object: CUtexObject) -> Answer {
    Ok(driver.tex_object_destroy(object)?)
}

pub(crate) fn tex_object_get_resource_desc(
    driver: &Driver,
    out: Out<CUDA_RESOURCE_DESC>,
    object: CUtexObject,
) -> Answer {
    out.required()?;
    out.set_plain(described(&driver.tex_object_get_resource(object)?));
    Ok(())
}

pub(crate) fn tex_object_get_texture_desc(driver: &Driver, out: Out<CUDA_TEXTURE_DESC>, object: CUtexObject) -> Answer {
    out.required()?;
    out.set_plain(driver.tex_object_get_texture(object)?);
    Ok(())
}

pub(crate) fn tex_object_get_resource_view_desc(
    driver: &Driver,
    out: Out<CUDA_RESOURCE_VIEW_DESC>,
    object: CUtexObject,
) -> Answer {
    out.required()?;
    out.set_plain(driver.tex_object_get_view(object)?);
    Ok(())
}

pub(crate) fn surf_object_create(driver: &Driver, object: Out<CUsurfObject>, of: In<CUDA_RESOURCE_DESC>) -> Answer {
    object.required()?;
    object.set(driver.surf_object_create(&resource(&of.get()?)?)?);
    Ok(())
}

pub(crate) fn surf_object_destroy(driver: &Driver, object: CUsurfObject) -> Answer {
    Ok(driver.surf_object_destroy(object)?)
}

pub(crate) fn surf_object_get_resource_desc(
    driver: &Driver,
    out: Out<CUDA_RESOURCE_DESC>,
    object: CUsurfObject,
) -> Answer {
    out.required()?;
    out.set_plain(described(&driver.surf_object_get_resource(object)?));
    Ok(())
}
