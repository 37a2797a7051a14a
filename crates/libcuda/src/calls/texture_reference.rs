//! Texture and surface references.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUaddress_mode, CUarray, CUarray_format, CUdeviceptr, CUfilter_mode, CUfunction,
    CUmipmappedArray, CUmodule, CUresult, CUsurfref, CUtexref,
};
use cuda_core::{Driver, Resource};
use gpu::DevAddr;

use crate::decode::{Core, In, Out, Text};
use crate::entry::{Answer, Refusal, refuse};

pub(crate) fn module_get_tex_ref(driver: &Driver, out: Out<CUtexref>, module: CUmodule, name: Text) -> Answer {
    out.required()?;
    out.set(driver.module_get_tex_ref(module.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn module_get_surf_ref(driver: &Driver, out: Out<CUsurfref>, module: CUmodule, name: Text) -> Answer {
    out.required()?;
    out.set(driver.module_get_surf_ref(module.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn param_set_tex_ref(driver: &Driver, function: CUfunction, unit: i32, reference: CUtexref) -> Answer {
    Ok(driver.param_set_tex_ref(function.core(), unit, reference.core())?)
}

pub(crate) fn tex_ref_create(driver: &Driver, out: Out<CUtexref>) -> Answer {
    out.required()?;
    out.set(driver.tex_ref_create()?);
    Ok(())
}

pub(crate) fn tex_ref_destroy(driver: &Driver, reference: CUtexref) -> Answer {
    Ok(driver.tex_ref_destroy(reference.core())?)
}

pub(crate) fn tex_ref_set_array(driver: &Driver, reference: CUtexref, array: CUarray, flags: u32) -> Answer {
    Ok(driver.tex_ref_set_array(reference.core(), array.core(), flags)?)
}

pub(crate) fn tex_ref_set_mipmapped_array(
    driver: &Driver,
    reference: CUtexref,
    array: CUmipmappedArray,
    flags: u32,
) -> Answer {
    Ok(driver.tex_ref_set_mipmapped_array(reference.core(), array.core(), flags)?)
}

pub(crate) fn tex_ref_set_address(
    driver: &Driver,
    offset: Out<usize>,
    reference: CUtexref,
    at: CUdeviceptr,
    bytes: usize,
) -> Answer {
    offset.set(driver.tex_ref_set_address(reference.core(), DevAddr(at), bytes as u64)?);
    Ok(())
}

pub(crate) fn tex_ref_set_address_2d(
    driver: &Driver,
    reference: CUtexref,
    descriptor: In<CUDA_ARRAY_DESCRIPTOR>,
    at: CUdeviceptr,
    pitch: usize,
) -> Answer {
    Ok(driver.tex_ref_set_address_2d(reference.core(), &descriptor.get()?, DevAddr(at), pitch as u64)?)
}

pub(crate) fn tex_ref_set_format(
    driver: &Driver,
    reference: CUtexref,
    format: CUarray_format,
    channels: i32,
) -> Answer {
    let channels = u32::try_from(channels).map_err(|_| Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?;
    Ok(driver.tex_ref_set_format(reference.core(), format, channels)?)
}

pub(crate) fn tex_ref_set_address_mode(
    driver: &Driver,
    reference: CUtexref,
    dimension: i32,
    mode: CUaddress_mode,
) -> Answer {
    Ok(driver.tex_ref_set_address_mode(reference.core(), dimension, mode)?)
}

pub(crate) fn tex_ref_set_filter_mode(driver: &Driver, reference: CUtexref, mode: CUfilter_mode) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.filter_mode = mode)?)
}

pub(crate) fn tex_ref_set_mipmap_filter_mode(driver: &Driver, reference: CUtexref, mode: CUfilter_mode) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.mipmap_filter_mode = mode)?)
}

pub(crate) fn tex_ref_set_mipmap_level_bias(driver: &Driver, reference: CUtexref, bias: f32) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.mipmap_level_bias = bias)?)
}

pub(crate) fn tex_ref_set_mipmap_level_clamp(driver: &Driver, reference: CUtexref, least: f32, most: f32) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| {
        (texture.min_mipmap_level_clamp, texture.max_mipmap_level_clamp) = (least, most);
    })?)
}

pub(crate) fn tex_ref_set_max_anisotropy(driver: &Driver, reference: CUtexref, most: u32) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.max_anisotropy = most)?)
}

pub(crate) fn tex_ref_set_border_color(driver: &Driver, reference: CUtexref, color: Out<f32>) -> Answer {
    // SAFETY: the C caller promised four numbers there (`decode`).
    let color = unsafe { color.input().list(4) }?;
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.border_color.copy_from_slice(&color))?)
}

pub(crate) fn tex_ref_set_flags(driver: &Driver, reference: CUtexref, flags: u32) -> Answer {
    Ok(driver.tex_ref_set(reference.core(), |texture| texture.flags = flags)?)
}

pub(crate) fn tex_ref_get_address(driver: &Driver, out: Out<CUdeviceptr>, reference: CUtexref) -> Answer {
    out.required()?;
    match driver.tex_ref_get_resource(reference.core())? {
        Resource::Linear { at, .. } | Resource::Pitched { at, .. } => out.set(at),
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn tex_ref_get_array(driver: &Driver, out: Out<CUarray>, reference: CUtexref) -> Answer {
    out.required()?;
    let Resource::Array(array) = driver.tex_ref_get_resource(reference.core())? else {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    out.set(array);
    Ok(())
}

pub(crate) fn tex_ref_get_mipmapped_array(driver: &Driver, out: Out<CUmipmappedArray>, reference: CUtexref) -> Answer {
    out.required()?;
    let Resource::Mipmapped(array) = driver.tex_ref_get_resource(reference.core())? else {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    out.set(array);
    Ok(())
}

pub(crate) fn tex_ref_get_address_mode(
    driver: &Driver,
    out: Out<CUaddress_mode>,
    reference: CUtexref,
    dimension: i32,
) -> Answer {
    out.required()?;
    let modes = driver.tex_ref_get(reference.core())?.address_mode;
    match usize::try_from(dimension).ok().and_then(|at| modes.get(at)) {
        Some(mode) => out.set_plain(*mode),
        None => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn tex_ref_get_filter_mode(driver: &Driver, out: Out<CUfilter_mode>, reference: CUtexref) -> Answer {
    out.required()?;
    out.set_plain(driver.tex_ref_get(reference.core())?.filter_mode);
    Ok(())
}

pub(crate) fn tex_ref_get_mipmap_filter_mode(driver: &Driver, out: Out<CUfilter_mode>, reference: CUtexref) -> Answer {
    out.required()?;
    out.set_plain(driver.tex_ref_get(reference.core())?.mipmap_filter_mode);
    Ok(())
}

pub(crate) fn tex_ref_get_mipmap_level_bias(driver: &Driver, out: Out<f32>, reference: CUtexref) -> Answer {
    out.required()?;
    out.set(driver.tex_ref_get(reference.core())?.mipmap_level_bias);
    Ok(())
}

pub(crate) fn tex_ref_get_mipmap_level_clamp(
    driver: &Driver,
    least: Out<f32>,
    most: Out<f32>,
    reference: CUtexref,
) -> Answer {
    least.required()?;
    most.required()?;
    let texture = driver.tex_ref_get(reference.core())?;
    least.set(texture.min_mipmap_level_clamp);
    most.set(texture.max_mipmap_level_clamp);
    Ok(())
}

pub(crate) fn tex_ref_get_max_anisotropy(driver: &Driver, out: Out<i32>, reference: CUtexref) -> Answer {
    out.required()?;
    out.set(i32::try_from(driver.tex_ref_get(reference.core())?.max_anisotropy).unwrap_or(i32::MAX));
    Ok(())
}

pub(crate) fn tex_ref_get_border_color(driver: &Driver, out: Out<f32>, reference: CUtexref) -> Answer {
    out.required()?;
    for (index, value) in driver.tex_ref_get(reference.core())?.border_color.into_iter().enumerate() {
        // SAFETY: the C caller promised room for four numbers there (`decode`).
        unsafe { out.set_at(index, value) };
    }
    Ok(())
}

pub(crate) fn tex_ref_get_flags(driver: &Driver, out: Out<u32>, reference: CUtexref) -> Answer {
    out.required()?;
    out.set(driver.tex_ref_get(reference.core())?.flags);
    Ok(())
}

pub(crate) fn tex_ref_get_format(
    driver: &Driver,
    format: Out<CUarray_format>,
    channels: Out<i32>,
    reference: CUtexref,
) -> Answer {
    format.required()?;
    let (is, count) = driver.tex_ref_get_format(reference.core())?;
    format.set_plain(is);
    channels.set(count.cast_signed());
    Ok(())
}

pub(crate) fn surf_ref_set_array(driver: &Driver, reference: CUsurfref, array: CUarray, flags: u32) -> Answer {
    Ok(driver.surf_ref_set_array(reference.core(), array.core(), flags)?)
}

pub(crate) fn surf_ref_get_array(driver: &Driver, out: Out<CUarray>, reference: CUsurfref) -> Answer {
    out.required()?;
    out.set(driver.surf_ref_get_array(reference.core())?);
    Ok(())
}
