//! From what programs say of textures and surfaces to descriptors.

use cuda_abi::{CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode, CUfilter_mode, CUresourceViewFormat};
use texture::{AddressMode, Descriptor, Filter, Format, Image, Sampler, Shape};

use crate::error::{CudaError, Result};

/// `CU_TRSF_*`.
pub(crate) const READ_AS_INTEGER: u32 = 0x01;
pub(crate) const NORMALIZED: u32 = 0x02;
const SRGB: u32 = 0x10;
const DISABLE_TRILINEAR_OPTIMIZATION: u32 = 0x20;
const SEAMLESS: u32 = 0x40;
const FLAGS: u32 = READ_AS_INTEGER | NORMALIZED | SRGB | DISABLE_TRILINEAR_OPTIMIZATION | SEAMLESS;

/// Most samples of anisotropic filtering.
const MOST_ANISOTROPY: u32 = 16;

/// The descriptor of a texture that reads an image; `mipmapped`: of a mipmapped array.
///
/// # Errors
/// `INVALID_VALUE` for flags, modes and numbers that mean nothing, integers to be filtered, sRGB of other than normalized bytes,
/// mipmapped arrays without normalized coordinates, seams where there are no faces; and as [`viewed`].
pub(crate) fn as_texture(
    image: Image,
    mipmapped: bool,
    given: &CUDA_TEXTURE_DESC,
    view: Option<&CUDA_RESOURCE_VIEW_DESC>,
) -> Result<Descriptor> {
    let has = |flag| given.flags & flag != 0;
    if given.flags & !FLAGS != 0 || mipmapped && !has(NORMALIZED) || has(SEAMLESS) && !image.shape.is_cube() {
        return Err(CudaError::INVALID_VALUE);
    }
    let mut image = view.map_or(Ok(image), |view| viewed(image, view))?;
    if !has(READ_AS_INTEGER) {
        image.format = promoted(image.format);
    }
    // Neither is looked at for memory that is read by index.
    let (address, filter) = if image.shape == Shape::Linear {
        ([AddressMode::Clamp; 3], Filter::Point)
    } else {
        let [x, y, z] = given.address_mode;
        ([address_mode(x)?, address_mode(y)?, address_mode(z)?], filter_mode(given.filter_mode)?)
    };
    // Integers are the nearest level's, whatever is said.
    let mip_filter = match filter_mode(given.mipmap_filter_mode)? {
        _ if image.format.is_integer() => Filter::Point,
        said => said,
    };
    let sampler = Sampler {
        address,
        filter,
        mip_filter,
        normalized: has(NORMALIZED),
        srgb: has(SRGB),
        seamless: has(SEAMLESS),
        max_anisotropy: given.max_anisotropy.min(MOST_ANISOTROPY) as u8,
        mip_bias: given.mipmap_level_bias,
        level_clamp: [given.min_mipmap_level_clamp, given.max_mipmap_level_clamp],
        // Whoever has integers gives their bits.
        border: given.border_color.map(f32::to_bits),
    };
    checked(Descriptor { image, sampler: Some(sampler) })
}

/// The descriptor of a surface: integers stay what they are.
///
/// # Errors
/// `INVALID_VALUE` for what is no image.
pub(crate) fn as_surface(mut image: Image) -> Result<Descriptor> {
    image.format = match image.format {
        Format::Unorm8 => Format::U8,
        Format::Unorm16 => Format::U16,
        Format::Snorm8 => Format::S8,
        Format::Snorm16 => Format::S16,
        other => other,
    };
    checked(Descriptor { image, sampler: None })
}

fn checked(descriptor: Descriptor) -> Result<Descriptor> {
    descriptor.check().map_err(|error| {
        tracing::warn!(%error, "not a texture or surface");
        CudaError::INVALID_VALUE
    })?;
    Ok(descriptor)
}

/// Short integers as fractions, which is how they are read if nothing else is said.
fn promoted(format: Format) -> Format {
    match format {
        Format::U8 => Format::Unorm8,
        Format::U16 => Format::Unorm16,
        Format::S8 => Format::Snorm8,
        Format::S16 => Format::Snorm16,
        other => other,
    }
}

/// # Errors
/// `INVALID_VALUE` if it is none.
pub(crate) fn address_mode(mode: CUaddress_mode) -> Result<AddressMode> {
    AddressMode::ALL.get(mode.0 as usize).copied().ok_or(CudaError::INVALID_VALUE)
}

/// # Errors
/// `INVALID_VALUE` if it is none.
pub(crate) fn filter_mode(mode: CUfilter_mode) -> Result<Filter> {
    match mode {
        CUfilter_mode::CU_TR_FILTER_MODE_POINT => Ok(Filter::Point),
        CUfilter_mode::CU_TR_FILTER_MODE_LINEAR => Ok(Filter::Linear),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// An array seen as elements of another format, or a part of its levels and layers.
///
/// # Errors
/// `INVALID_VALUE` if elements have another size, extents are not the array's, or parts are none; `NOT_SUPPORTED` for blocks.
fn viewed(image: Image, view: &CUDA_RESOURCE_VIEW_DESC) -> Result<Image> {
    if !image.shape.is_array() {
        return Err(CudaError::INVALID_VALUE);
    }
    let (format, channels) = match view.format {
        CUresourceViewFormat::CU_RES_VIEW_FORMAT_NONE => (image.format, image.channels),
        format => viewed_format(format)?,
    };
    // There is one of what there is none of.
    let extent = [view.width, view.height, view.depth].map(|extent| extent.max(1) as u64);
    let level = |level: u32| u8::try_from(level).map_err(|_| CudaError::INVALID_VALUE);
    let whole = image.shape == Shape::Cube && [view.first_layer, view.last_layer] == [0, 0];
    let seen = Image {
        format,
        channels,
        level_range: [level(view.first_mipmap_level)?, level(view.last_mipmap_level)?],
        layer_range: if whole { image.layer_range } else { [view.first_layer, view.last_layer] },
        ..image
    };
    if view.width == 0 || extent != image.extent.map(u64::from) || seen.texel() != image.texel() {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(seen)
}

/// Format and channels of a view: in the order of their numbers, 1, 2 and 4 channels of each.
fn viewed_format(format: CUresourceViewFormat) -> Result<(Format, u8)> {
    const FORMATS: [Format; 8] =
        [Format::U8, Format::S8, Format::U16, Format::S16, Format::U32, Format::S32, Format::F16, Format::F32];
    let at = (format.0 as usize).checked_sub(1).ok_or(CudaError::INVALID_VALUE)?;
    match FORMATS.get(at / 3) {
        Some(format) => Ok((*format, 1 << (at % 3))),
        None if format.name().is_some() => Err(CudaError::NOT_SUPPORTED),
        None => Err(CudaError::INVALID_VALUE),
    }
}
