//! Shapes of arrays: what descriptors say, checked against the limits that the device's attributes tell.

use cuda_abi::{CUDA_ARRAY3D_DESCRIPTOR, CUarray_format};
use texture::{Format, Layout, Level, Shape};

use crate::error::{CudaError, Result};

/// Flags of `CUDA_ARRAY3D_DESCRIPTOR`.
const LAYERED: u32 = 0x01;
/// Surfaces may be made of it.
pub(crate) const SURFACE_LDST: u32 = 0x02;
const CUBEMAP: u32 = 0x04;
const TEXTURE_GATHER: u32 = 0x08;
const SPARSE: u32 = 0x40;
const DEFERRED_MAPPING: u32 = 0x80;
const VIDEO_ENCODE_DECODE: u32 = 0x100;
/// All there are; those not named here change nothing: depth textures, colour attachments.
const FLAGS: u32 = 0x1FF;

/// The shape of an array which the device can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayShape {
    pub(crate) shape: Shape,
    /// Elements, lines, and slices or layers: at least 1.
    pub(crate) extent: [u32; 3],
    pub(crate) format: Format,
    pub(crate) channels: u8,
    /// As it was given; of a level of a mipmapped array, as if that had been made alone.
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
}

/// What a channel of a format is, and how many channels the format itself says there are.
///
/// # Errors
/// `NOT_SUPPORTED` for formats of blocks, of packed bits and of video; `INVALID_VALUE` for numbers that are no format.
fn named(format: CUarray_format) -> Result<(Format, Option<u32>)> {
    use CUarray_format as F;
    Ok(match format {
        F::CU_AD_FORMAT_UNSIGNED_INT8 => (Format::U8, None),
        F::CU_AD_FORMAT_UNSIGNED_INT16 => (Format::U16, None),
        F::CU_AD_FORMAT_UNSIGNED_INT32 => (Format::U32, None),
        F::CU_AD_FORMAT_SIGNED_INT8 => (Format::S8, None),
        F::CU_AD_FORMAT_SIGNED_INT16 => (Format::S16, None),
        F::CU_AD_FORMAT_SIGNED_INT32 => (Format::S32, None),
        F::CU_AD_FORMAT_HALF => (Format::F16, None),
        F::CU_AD_FORMAT_FLOAT => (Format::F32, None),
        F::CU_AD_FORMAT_UNORM_INT8X1 => (Format::Unorm8, Some(1)),
        F::CU_AD_FORMAT_UNORM_INT8X2 => (Format::Unorm8, Some(2)),
        F::CU_AD_FORMAT_UNORM_INT8X4 => (Format::Unorm8, Some(4)),
        F::CU_AD_FORMAT_UNORM_INT16X1 => (Format::Unorm16, Some(1)),
        F::CU_AD_FORMAT_UNORM_INT16X2 => (Format::Unorm16, Some(2)),
        F::CU_AD_FORMAT_UNORM_INT16X4 => (Format::Unorm16, Some(4)),
        F::CU_AD_FORMAT_SNORM_INT8X1 => (Format::Snorm8, Some(1)),
        F::CU_AD_FORMAT_SNORM_INT8X2 => (Format::Snorm8, Some(2)),
        F::CU_AD_FORMAT_SNORM_INT8X4 => (Format::Snorm8, Some(4)),
        F::CU_AD_FORMAT_SNORM_INT16X1 => (Format::Snorm16, Some(1)),
        F::CU_AD_FORMAT_SNORM_INT16X2 => (Format::Snorm16, Some(2)),
        F::CU_AD_FORMAT_SNORM_INT16X4 => (Format::Snorm16, Some(4)),
        other if other.name().is_some() => return Err(CudaError::NOT_SUPPORTED),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

/// The format of an element, and its channels.
///
/// # Errors
/// `INVALID_VALUE` for other than 1, 2 or 4 channels, or not as many as the format says, and for numbers that are no format;
/// `NOT_SUPPORTED` for formats of blocks, of packed bits and of video.
pub(crate) fn element(format: CUarray_format, channels: u32) -> Result<(Format, u8)> {
    let (format, said) = named(format)?;
    if !matches!(channels, 1 | 2 | 4) || said.is_some_and(|said| said != channels) {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok((format, channels as u8))
}

impl ArrayShape {
    /// What a descriptor says, of an array or of a mipmapped one; `limit` gives a device attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what no array is, or is beyond the limits; `NOT_SUPPORTED` for formats and flags that arrays of this
    /// device cannot have.
    pub(crate) fn of(
        descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
        mipmapped: bool,
        limit: &dyn Fn(i32) -> u64,
    ) -> Result<ArrayShape> {
        let &CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags } = descriptor;
        if flags & !FLAGS != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if flags & (SPARSE | DEFERRED_MAPPING | VIDEO_ENCODE_DECODE) != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let (format, channels) = element(format, num_channels)?;
        let shape = shape([width, height, depth], flags).ok_or(CudaError::INVALID_VALUE)?;
        let mut extent = [1; 3];
        for (extent, given) in extent.iter_mut().zip([width, height, depth]) {
            *extent = u32::try_from(given.max(1)).map_err(|_| CudaError::INVALID_VALUE)?;
        }
        // Numbers of attributes: MAXIMUM_TEXTURE1D_WIDTH and its kin.
        let within = |limits: [i32; 3]| {
            let allowed = |(&extent, attribute): (&u32, i32)| attribute == 0 || u64::from(extent) <= limit(attribute);
            extent.iter().zip(limits).all(allowed)
        };
        let gather = flags & TEXTURE_GATHER != 0;
        let [as_texture, as_surface] = match shape {
            Shape::D1 => [[if mipmapped { 77 } else { 21 }, 0, 0], [55, 0, 0]],
            Shape::D2 if gather => [[45, 46, 0], [56, 57, 0]],
            Shape::D2 => [if mipmapped { [73, 74, 0] } else { [22, 23, 0] }, [56, 57, 0]],
            Shape::D3 => [[24, 25, 26], [58, 59, 60]],
            Shape::D1Layered => [[42, 0, 43], [61, 0, 62]],
            Shape::D2Layered => [[27, 28, 29], [63, 64, 65]],
            Shape::Cube => [[52, 52, 0], [66, 66, 0]],
            Shape::CubeLayered => [[53, 53, 54], [67, 67, 68]],
            Shape::Linear | Shape::Pitched => return Err(CudaError::INVALID_VALUE),
        };
        if !within(as_texture) || flags & SURFACE_LDST != 0 && !within(as_surface) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(ArrayShape { shape, extent, format, channels, descriptor: *descriptor })
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.descriptor.flags & flag != 0
    }

    /// Bytes of an element.
    pub(crate) fn element_bytes(&self) -> u64 {
        u64::from(self.texel())
    }

    fn texel(&self) -> u32 {
        self.format.bytes() * u32::from(self.channels)
    }

    /// Most levels that there can be: down to one element.
    pub(crate) fn most_levels(&self) -> u8 {
        self.shape.most_levels(self.extent)
    }

    /// Where so many levels are.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there cannot be as many.
    pub(crate) fn layout(&self, levels: u8) -> Result<Layout> {
        // The limits are those of the attributes, which were kept.
        Layout::new(self.shape, self.texel(), self.extent, levels).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// The shape of a level.
    pub(crate) fn level(&self, level: &Level) -> ArrayShape {
        let extent = [level.width, level.height, level.depth];
        let given = &self.descriptor;
        // What there was none of, there is none of.
        let part = |given: usize, part: u32| if given == 0 { 0 } else { part as usize };
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            width: part(given.width, level.width),
            height: part(given.height, level.height),
            depth: part(given.depth, level.depth),
            ..*given
        };
        ArrayShape { extent, descriptor, ..*self }
    }
}

/// What extents and flags make of an array, if they make anything.
fn shape(extent: [usize; 3], flags: u32) -> Option<Shape> {
    let (cube, layered) = (flags & CUBEMAP != 0, flags & LAYERED != 0);
    let found = match extent {
        [0, _, _] => None,
        [width, height, depth] if cube && layered => {
            (width == height && depth > 0 && depth % 6 == 0).then_some(Shape::CubeLayered)
        }
        [width, height, depth] if cube => (width == height && depth == 6).then_some(Shape::Cube),
        [_, _, 0] if layered => None,
        [_, 0, _] if layered => Some(Shape::D1Layered),
        _ if layered => Some(Shape::D2Layered),
        [_, 0, 0] => Some(Shape::D1),
        [_, 0, _] => None,
        [_, _, 0] => Some(Shape::D2),
        _ => Some(Shape::D3),
    };
    // Four texels are gathered from planes only.
    let gathers = !matches!(found, Some(Shape::D1 | Shape::D1Layered | Shape::D3));
    found.filter(|_| gathers || flags & TEXTURE_GATHER == 0)
}
