//! How arrays lie in memory.
//!
//! Arrays are opaque to programs, so they may lie as is simplest: rows of texels, one behind another, from the level's offset on.
//!
//! ```text
//! level 0: slice 0: row 0 | row 1 | …      a row:   width texels, padded to a multiple of 32 bytes: the pitch
//!          slice 1: row 0 | row 1 | …      a slice: height rows; one for each z, layer or face (layer · 6 + face)
//! level 1, at the next multiple of 512 bytes: as level 0, width and height (and depth, of 3D) halved, but not below 1
//! ```
//!
//! So a level of a mipmapped array is as an array of its own that begins at the level's offset.

use crate::descriptor::Malformed;

/// Most levels of an array: down to one texel from the largest width there is.
pub const MAX_LEVELS: u8 = 18;

/// Rows begin at multiples of so many bytes.
const PITCH_ALIGN: u64 = 32;

/// What an image is, and which coordinates it has. Of what it does not have (height of a 1D image) there is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// Texels one behind another in memory of the program's, by index.
    Linear,
    /// Rows in memory of the program's, with a pitch of the program's.
    Pitched,
    /// 1D array.
    D1,
    /// 2D array.
    D2,
    /// 3D array.
    D3,
    /// 1D array of layers; `depth` says how many.
    D1Layered,
    /// 2D array of layers; `depth` says how many.
    D2Layered,
    /// Six faces, `depth` 6.
    Cube,
    /// Layers of six faces each; `depth` is six times as much.
    CubeLayered,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 9] = [
        Shape::Linear,
        Shape::Pitched,
        Shape::D1,
        Shape::D2,
        Shape::D3,
        Shape::D1Layered,
        Shape::D2Layered,
        Shape::Cube,
        Shape::CubeLayered,
    ];

    /// Largest width, height and depth, in texels and layers (faces, of cubes).
    #[must_use]
    pub fn limits(self) -> [u32; 3] {
        match self {
            Shape::Linear => [1 << 28, 1, 1],
            Shape::Pitched => [131_072, 65_000, 1],
            Shape::D1 => [131_072, 1, 1],
            Shape::D2 => [131_072, 65_536, 1],
            Shape::D3 => [16_384, 16_384, 16_384],
            Shape::D1Layered => [32_768, 1, 2_048],
            Shape::D2Layered => [32_768, 32_768, 2_048],
            Shape::Cube => [32_768, 32_768, 6],
            Shape::CubeLayered => [32_768, 32_768, 2_046],
        }
    }

    /// Is it an array, whose layout is [`Layout`]'s?
    #[must_use]
    pub fn is_array(self) -> bool {
        !matches!(self, Shape::Linear | Shape::Pitched)
    }

    /// Does `depth` count layers or faces, which stay as many in all levels?
    #[must_use]
    pub fn is_layered(self) -> bool {
        matches!(self, Shape::D1Layered | Shape::D2Layered | Shape::Cube | Shape::CubeLayered)
    }

    /// Does it have six faces?
    #[must_use]
    pub fn is_cube(self) -> bool {
        matches!(self, Shape::Cube | Shape::CubeLayered)
    }

    /// Is it of this size?
    pub(crate) fn check(self, [width, height, depth]: [u32; 3]) -> Result<(), Malformed> {
        let limits = self.limits();
        let within = [width, height, depth].iter().zip(limits).all(|(size, limit)| (1..=limit).contains(size));
        let cube = !self.is_cube() || (width == height && depth % 6 == 0);
        if within && cube { Ok(()) } else { Err(Malformed::Extent([width, height, depth], self)) }
    }

    /// Most levels of an array of this shape and size: down to one texel.
    #[must_use]
    pub fn most_levels(self, [width, height, depth]: [u32; 3]) -> u8 {
        let longest = if self == Shape::D3 { width.max(height).max(depth) } else { width.max(height) };
        // At most 17 by the limits.
        if self.is_array() { 1 + longest.max(1).ilog2().min(u32::from(MAX_LEVELS) - 1) as u8 } else { 1 }
    }
}

/// A level of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Where it begins, in bytes from the array's begin.
    pub offset: u64,
    /// From a row to the next, bytes.
    pub pitch: u64,
    /// From a slice to the next, bytes.
    pub slice: u64,
    /// Width in texels.
    pub width: u32,
    /// Height in texels.
    pub height: u32,
    /// Slices: depth in texels, layers or faces.
    pub depth: u32,
}

impl Level {
    /// From its first byte to the last one that belongs to a texel, in bytes of `texel` bytes each.
    #[must_use]
    pub fn bytes(&self, texel: u32) -> u64 {
        let row = u64::from(self.width) * u64::from(texel);
        self.slice * u64::from(self.depth - 1) + self.pitch * u64::from(self.height - 1) + row
    }
}

/// The layout of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    levels: [Level; MAX_LEVELS as usize],
    count: u8,
    bytes: u64,
}

impl Layout {
    /// Arrays, and so their levels, begin at multiples of so many bytes.
    pub const ALIGN: u64 = 512;

    /// The layout of an array of this shape and size (width, height, depth: as [`Shape`] says), of texels of so many bytes (1, 2,
    /// 4, 8 or 16), with so many levels.
    ///
    /// # Errors
    /// What no array is: no array's shape, a size or a number of levels beyond [`Shape::limits`] and [`Shape::most_levels`], a
    /// texel of another length.
    pub fn new(shape: Shape, texel: u32, extent: [u32; 3], levels: u8) -> Result<Layout, Malformed> {
        shape.check(extent)?;
        if !shape.is_array() {
            return Err(Malformed::Shape(shape));
        }
        if !matches!(texel, 1 | 2 | 4 | 8 | 16) {
            return Err(Malformed::Texel(texel));
        }
        if levels == 0 || levels > shape.most_levels(extent) {
            return Err(Malformed::Levels(levels));
        }
        let mut layout = Layout { levels: [Level::default(); MAX_LEVELS as usize], count: levels, bytes: 0 };
        for (at, level) in layout.levels[..usize::from(levels)].iter_mut().enumerate() {
            let smaller = |size: u32| (size >> at).max(1);
            let [width, height, depth] = extent;
            let (width, height) = (smaller(width), smaller(height));
            let depth = if shape == Shape::D3 { smaller(depth) } else { depth };
            // At most 2^14 · 2^14 · 2^14 · 16 or 2^15 · 2^15 · 2^11 · 16 bytes a level: far from overflow.
            let pitch = (u64::from(width) * u64::from(texel)).next_multiple_of(PITCH_ALIGN);
            let slice = pitch * u64::from(height);
            *level = Level { offset: layout.bytes, pitch, slice, width, height, depth };
            layout.bytes = (layout.bytes + slice * u64::from(depth)).next_multiple_of(Layout::ALIGN);
        }
        Ok(layout)
    }

    /// Bytes of the whole array: a multiple of [`Layout::ALIGN`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The levels, the largest first.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels[..usize::from(self.count)]
    }
}
