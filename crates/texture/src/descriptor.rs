//! What a texture or surface handle stands for, and its 128 bytes in GPU memory.
//!
//! ```text
//! byte  0  magic, 8 bytes           24  width, 4 bytes            52  mip bias, f32
//!       8  role: texture, surface   28  height                    56  least level, f32
//!       9  shape                    32  depth                     60  greatest level, f32
//!      10  format                   36  pitch                     64  border, 4 × 4 bytes
//!      11  channels                 40  first layer               80  zero
//!      12  levels of the array      44  last layer
//!      13  first level              48  address modes, x y z
//!      14  last level               51  anisotropy
//!      15  flags
//!      16  base address, 8 bytes    all little-endian
//! ```

use crate::layout::{Layout, Level, Shape};

const MAGIC: u64 = u64::from_le_bytes(*b"\xa7sdTex\x01\xe3");

const ROLE_TEXTURE: u8 = 1;
const ROLE_SURFACE: u8 = 2;

const NORMALIZED: u8 = 1 << 0;
const LINEAR: u8 = 1 << 1;
const MIP_LINEAR: u8 = 1 << 2;
const SRGB: u8 = 1 << 3;
const SEAMLESS: u8 = 1 << 4;

/// What a channel of a texel is, and how a texture reads it.
///
/// An 8- or 16-bit integer array with CUDA's normalized read mode has `Unorm` or `Snorm` in its textures' descriptors, and the
/// integer format in those of its surfaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// Unsigned integer, read as u32.
    U8,
    /// Unsigned integer, read as u32.
    U16,
    /// Unsigned integer.
    U32,
    /// Signed integer, read as s32.
    S8,
    /// Signed integer, read as s32.
    S16,
    /// Signed integer.
    S32,
    /// Half, read as f32.
    F16,
    /// Float.
    F32,
    /// Read as f32: 0 to 1.
    Unorm8,
    /// Read as f32: 0 to 1.
    Unorm16,
    /// Read as f32: -1 to 1; the least integer is -1, too.
    Snorm8,
    /// Read as f32: -1 to 1; the least integer is -1, too.
    Snorm16,
}

impl Format {
    /// All of them, in the order of their codes from 1 on.
    pub const ALL: [Format; 12] = [
        Format::U8,
        Format::U16,
        Format::U32,
        Format::S8,
        Format::S16,
        Format::S32,
        Format::F16,
        Format::F32,
        Format::Unorm8,
        Format::Unorm16,
        Format::Snorm8,
        Format::Snorm16,
    ];

    /// Bytes of a channel.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Format::U8 | Format::S8 | Format::Unorm8 | Format::Snorm8 => 1,
            Format::U16 | Format::S16 | Format::F16 | Format::Unorm16 | Format::Snorm16 => 2,
            Format::U32 | Format::S32 | Format::F32 => 4,
        }
    }

    /// Is it read as an integer, which cannot be filtered?
    #[must_use]
    pub fn is_integer(self) -> bool {
        matches!(self, Format::U8 | Format::U16 | Format::U32 | Format::S8 | Format::S16 | Format::S32)
    }
}

/// What a coordinate outside the image means. Wrap and mirror are clamp where coordinates are not normalized.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressMode {
    /// The image repeats.
    Wrap,
    /// The nearest texel inside.
    Clamp,
    /// The image repeats, every other time mirrored.
    Mirror,
    /// The border's colour.
    Border,
}

impl AddressMode {
    /// All of them, in the order of their codes from 0 on, which are CUDA's.
    pub const ALL: [AddressMode; 4] = [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border];
}

/// How a value between texels, or between levels, comes about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filter {
    /// The nearest one.
    Point,
    /// Of neighbours, by their distance.
    Linear,
}

/// Texels in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// What it is.
    pub shape: Shape,
    /// Its channels' format.
    pub format: Format,
    /// Channels of a texel: 1, 2 or 4.
    pub channels: u8,
    /// GPU virtual address of its first texel: a multiple of a texel's length; of [`Layout::ALIGN`] if it is an array.
    pub base: u64,
    /// Width, height and depth in texels, layers or faces, as [`Shape`] says; of an array, those of its level 0.
    pub extent: [u32; 3],
    /// Of [`Shape::Pitched`]: from a row to the next, bytes; a multiple of a texel's length. Otherwise 0.
    pub pitch: u32,
    /// Levels of the array, as its [`Layout`] has them; 1 if it is none.
    pub levels: u8,
    /// First and last level that accesses see, and count from.
    pub level_range: [u8; 2],
    /// First and last layer or face that accesses see, and count from; `[0, 0]` if there are no layers. Whole cubes if it is one.
    pub layer_range: [u32; 2],
}

impl Image {
    /// All of an array of this shape and size.
    #[must_use]
    pub fn array(shape: Shape, format: Format, channels: u8, base: u64, extent: [u32; 3], levels: u8) -> Image {
        let layer_range = [0, if shape.is_layered() { extent[2].saturating_sub(1) } else { 0 }];
        let level_range = [0, levels.saturating_sub(1)];
        Image { shape, format, channels, base, extent, pitch: 0, levels, level_range, layer_range }
    }

    /// So many texels of linear memory.
    #[must_use]
    pub fn linear(format: Format, channels: u8, base: u64, texels: u32) -> Image {
        Image::array(Shape::Linear, format, channels, base, [texels, 1, 1], 1)
    }

    /// Rows of linear memory, `pitch` bytes apart.
    #[must_use]
    pub fn pitched(format: Format, channels: u8, base: u64, [width, height]: [u32; 2], pitch: u32) -> Image {
        Image { pitch, ..Image::array(Shape::Pitched, format, channels, base, [width, height, 1], 1) }
    }

    /// Bytes of a texel: 1, 2, 4, 8 or 16.
    #[must_use]
    pub fn texel(&self) -> u32 {
        self.format.bytes() * u32::from(self.channels)
    }

    /// Level `at` of the view, counted from the first one of [`Image::level_range`]; the last one if there are not so many.
    /// Its depth is that of the whole level, not of [`Image::layer_range`].
    #[must_use]
    pub fn level(&self, at: u8) -> Level {
        let [width, height, depth] = self.extent;
        let at = self.level_range[0].saturating_add(at).min(self.level_range[1]);
        match Layout::new(self.shape, self.texel(), self.extent, self.levels) {
            Ok(layout) => layout.levels().get(usize::from(at)).copied().unwrap_or_default(),
            Err(_) => {
                let row = u64::from(width) * u64::from(self.texel());
                let pitch = if self.shape == Shape::Pitched { u64::from(self.pitch) } else { row };
                Level { offset: 0, pitch, slice: pitch * u64::from(height), width, height, depth }
            }
        }
    }

    /// Do all rules hold that are said at the fields?
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), Malformed> {
        if !matches!(self.channels, 1 | 2 | 4) {
            return Err(Malformed::Channels(self.channels));
        }
        self.shape.check(self.extent)?;
        let texel = self.texel();
        let align = if self.shape.is_array() { Layout::ALIGN } else { texel.into() };
        if !self.base.is_multiple_of(align) {
            return Err(Malformed::Base(self.base));
        }
        let row = u64::from(self.extent[0]) * u64::from(texel);
        let pitch = match self.shape {
            Shape::Pitched => self.pitch.is_multiple_of(texel) && u64::from(self.pitch) >= row,
            _ => self.pitch == 0,
        };
        if !pitch {
            return Err(Malformed::Pitch(self.pitch));
        }
        let bytes = if self.shape.is_array() {
            Layout::new(self.shape, texel, self.extent, self.levels)?.bytes()
        } else if self.levels == 1 {
            self.level(0).bytes(texel)
        } else {
            return Err(Malformed::Levels(self.levels));
        };
        // No sum of an address and an offset in the image overflows.
        if self.base.checked_add(bytes).is_none() {
            return Err(Malformed::Base(self.base));
        }
        let [first, last] = self.level_range;
        if first > last || last >= self.levels {
            return Err(Malformed::LevelRange(self.level_range));
        }
        let [first, last] = self.layer_range;
        let whole = !self.shape.is_cube() || (first % 6 == 0 && last % 6 == 5);
        let within =
            if self.shape.is_layered() { first <= last && last < self.extent[2] } else { last == 0 && first == 0 };
        if whole && within { Ok(()) } else { Err(Malformed::LayerRange(self.layer_range)) }
    }
}

/// How a texture is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampler {
    /// For x, y and z.
    pub address: [AddressMode; 3],
    /// Between texels of a level; [`Filter::Point`] if the format is an integer's.
    pub filter: Filter,
    /// Between levels; the same.
    pub mip_filter: Filter,
    /// Are coordinates from 0 to 1, rather than to the image's size? Of cubes they always are.
    pub normalized: bool,
    /// Are the first three channels in sRGB, read as linear? Of [`Format::Unorm8`] only.
    pub srgb: bool,
    /// Does filtering at the edge of a cube's face go on in the next face?
    pub seamless: bool,
    /// At most so many samples for one pixel, 0 to 16. There is one; above 1, two levels are mixed around their middle only.
    pub max_anisotropy: u8,
    /// Added to the level of detail; no NaN.
    pub mip_bias: f32,
    /// Bounds of the level of detail, counted from the view's first level; no NaN.
    pub level_clamp: [f32; 2],
    /// The value of [`AddressMode::Border`], channel by channel, as a read gives it: bits of f32, or integers.
    pub border: [u32; 4],
}

impl Default for Sampler {
    /// CUDA's: everything zero, which is wrap, point, and coordinates as they are.
    fn default() -> Sampler {
        Sampler {
            address: [AddressMode::Wrap; 3],
            filter: Filter::Point,
            mip_filter: Filter::Point,
            normalized: false,
            srgb: false,
            seamless: false,
            max_anisotropy: 0,
            mip_bias: 0.0,
            level_clamp: [0.0; 2],
            border: [0; 4],
        }
    }
}

impl Sampler {
    fn check(&self, format: Format) -> Result<(), Malformed> {
        if [self.filter, self.mip_filter].contains(&Filter::Linear) && format.is_integer() {
            return Err(Malformed::Filter(format));
        }
        if self.srgb && format != Format::Unorm8 {
            return Err(Malformed::Srgb(format));
        }
        if self.max_anisotropy > 16 {
            return Err(Malformed::Anisotropy(self.max_anisotropy));
        }
        let [least, greatest] = self.level_clamp;
        if [self.mip_bias, least, greatest].iter().any(|x| x.is_nan()) {
            return Err(Malformed::LevelOfDetail);
        }
        Ok(())
    }
}

/// Why something is no descriptor.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the text says it")]
pub enum Malformed {
    #[error("no texture or surface is described there")]
    Magic,
    #[error("byte {at} of the descriptor is {value}, which means nothing")]
    Code { at: usize, value: u8 },
    #[error("width, height and depth of a {1:?} image are {0:?}")]
    Extent([u32; 3], Shape),
    #[error("{0:?} memory is no array")]
    Shape(Shape),
    #[error("a texel of {0} bytes")]
    Texel(u32),
    #[error("a texel of {0} channels, not 1, 2 or 4")]
    Channels(u8),
    #[error("{0} levels")]
    Levels(u8),
    #[error("levels {0:?} of an image")]
    LevelRange([u8; 2]),
    #[error("layers {0:?} of an image")]
    LayerRange([u32; 2]),
    #[error("an image at {0:#x}, which is not aligned, or too high")]
    Base(u64),
    #[error("rows {0} bytes apart")]
    Pitch(u32),
    #[error("{0:?} cannot be filtered")]
    Filter(Format),
    #[error("{0:?} is never sRGB")]
    Srgb(Format),
    #[error("an anisotropy of {0}, more than 16")]
    Anisotropy(u8),
    #[error("a level of detail that is no number")]
    LevelOfDetail,
}

/// What a handle stands for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Descriptor {
    /// The texels.
    pub image: Image,
    /// How a texture reads them; a surface has none.
    pub sampler: Option<Sampler>,
}

impl Descriptor {
    /// Its length in memory.
    pub const BYTES: usize = 128;
    /// Its alignment in memory.
    pub const ALIGN: u64 = 64;

    /// Do all rules hold that are said at the fields of [`Image`] and [`Sampler`]?
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), Malformed> {
        self.image.check()?;
        self.sampler.map_or(Ok(()), |sampler| sampler.check(self.image.format))
    }

    /// Its bytes in memory. What [`Descriptor::check`] refuses, [`Descriptor::decode`] does as well.
    #[must_use]
    pub fn encode(&self) -> [u8; Descriptor::BYTES] {
        let mut bytes = [0; Descriptor::BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let image = &self.image;
        put(0, &MAGIC.to_le_bytes());
        put(9, &[code(&Shape::ALL, image.shape), 1 + code(&Format::ALL, image.format), image.channels]);
        put(12, &[image.levels]);
        put(13, &image.level_range);
        put(16, &image.base.to_le_bytes());
        let words = [image.extent.as_slice(), &[image.pitch], &image.layer_range].concat();
        for (word, at) in words.iter().zip((24..).step_by(4)) {
            put(at, &word.to_le_bytes());
        }
        let Some(sampler) = &self.sampler else {
            put(8, &[ROLE_SURFACE]);
            return bytes;
        };
        put(8, &[ROLE_TEXTURE]);
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        let flags = flag(sampler.normalized, NORMALIZED)
            | flag(sampler.filter == Filter::Linear, LINEAR)
            | flag(sampler.mip_filter == Filter::Linear, MIP_LINEAR)
            | flag(sampler.srgb, SRGB)
            | flag(sampler.seamless, SEAMLESS);
        put(15, &[flags]);
        put(48, &sampler.address.map(|mode| code(&AddressMode::ALL, mode)));
        put(51, &[sampler.max_anisotropy]);
        let [least, greatest] = sampler.level_clamp;
        for (value, at) in [sampler.mip_bias, least, greatest].iter().zip((52..).step_by(4)) {
            put(at, &value.to_le_bytes());
        }
        for (value, at) in sampler.border.iter().zip((64..).step_by(4)) {
            put(at, &value.to_le_bytes());
        }
        bytes
    }

    /// Reads a descriptor; any bytes may be there.
    ///
    /// # Errors
    /// Why these are none.
    pub fn decode(bytes: &[u8; Descriptor::BYTES]) -> Result<Descriptor, Malformed> {
        let u8_at = |at: usize| bytes[at];
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let f32_at = |at: usize| f32::from_bits(u32_at(at));
        if u64_at(0) != MAGIC {
            return Err(Malformed::Magic);
        }
        let role = u8_at(8);
        // A surface ends before the sampler.
        let end = if role == ROLE_SURFACE { 48 } else { 80 };
        let bad = |at: usize| Malformed::Code { at, value: bytes[at] };
        if let Some(at) = (end..Descriptor::BYTES).find(|at| bytes[*at] != 0) {
            return Err(bad(at));
        }
        let shape = *Shape::ALL.get(usize::from(u8_at(9))).ok_or(bad(9))?;
        let format = usize::from(u8_at(10)).checked_sub(1).and_then(|at| Format::ALL.get(at)).ok_or(bad(10))?;
        let image = Image {
            shape,
            format: *format,
            channels: u8_at(11),
            base: u64_at(16),
            extent: [u32_at(24), u32_at(28), u32_at(32)],
            pitch: u32_at(36),
            levels: u8_at(12),
            level_range: [u8_at(13), u8_at(14)],
            layer_range: [u32_at(40), u32_at(44)],
        };
        let flags = u8_at(15);
        let sampler = match role {
            ROLE_SURFACE if flags == 0 => None,
            ROLE_TEXTURE if flags & !(NORMALIZED | LINEAR | MIP_LINEAR | SRGB | SEAMLESS) == 0 => {
                let mode = |at: usize| AddressMode::ALL.get(usize::from(bytes[at])).copied().ok_or(bad(at));
                let filter = |flag: u8| if flags & flag == 0 { Filter::Point } else { Filter::Linear };
                Some(Sampler {
                    address: [mode(48)?, mode(49)?, mode(50)?],
                    filter: filter(LINEAR),
                    mip_filter: filter(MIP_LINEAR),
                    normalized: flags & NORMALIZED != 0,
                    srgb: flags & SRGB != 0,
                    seamless: flags & SEAMLESS != 0,
                    max_anisotropy: u8_at(51),
                    mip_bias: f32_at(52),
                    level_clamp: [f32_at(56), f32_at(60)],
                    border: [64, 68, 72, 76].map(u32_at),
                })
            }
            ROLE_SURFACE | ROLE_TEXTURE => return Err(bad(15)),
            _ => return Err(bad(8)),
        };
        let descriptor = Descriptor { image, sampler };
        descriptor.check()?;
        Ok(descriptor)
    }
}

/// The place of `value` in the list of all.
fn code<T: PartialEq>(all: &[T], value: T) -> u8 {
    // Every list has all values of its type, and few.
    all.iter().zip(0u8..).find(|(each, _)| **each == value).map_or(u8::MAX, |(_, at)| at)
}
