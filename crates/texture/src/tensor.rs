//! Tensor maps: what a tensor copy is told, and its 128 bytes.
//!
//! ```text
//! byte  0  magic, 8 bytes            28  sizes of the dimensions, less one, 5 × 4 bytes
//!       8  base address, 8 bytes     48  strides of dimensions 1 to 4, 4 × 8 bytes
//!      16  mode                      80  traversal strides, 5 bytes
//!      17  rank                      86  tiled: the box, 5 × 2 bytes
//!      18  element                   86  im2col: lower corners, 3 × 2 bytes; upper corners, 3 × 2 bytes;
//!      19  swizzle                       channels of a pixel, 2 bytes; pixels of a column, 2 bytes
//!      20  fill                     102  zero
//!      21  zero                     all little-endian
//! ```

const MAGIC: u64 = u64::from_le_bytes(*b"\xa7sdTma\x01\xe3");

const TILED: u8 = 1;
const IM2COL: u8 = 2;

/// Most dimensions.
pub const MAX_RANK: usize = 5;

/// What an element is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub enum TensorElement {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    BF16,
    /// Subnormals are taken as zero.
    F32Ftz,
    /// Rounded to 10 bits of fraction when it is loaded.
    TF32,
    /// Both.
    TF32Ftz,
}

impl TensorElement {
    /// All of them, in the order of their codes from 0 on, which are CUDA's.
    pub const ALL: [TensorElement; 13] = [
        TensorElement::U8,
        TensorElement::U16,
        TensorElement::U32,
        TensorElement::S32,
        TensorElement::U64,
        TensorElement::S64,
        TensorElement::F16,
        TensorElement::F32,
        TensorElement::F64,
        TensorElement::BF16,
        TensorElement::F32Ftz,
        TensorElement::TF32,
        TensorElement::TF32Ftz,
    ];

    /// Bytes of an element: 1, 2, 4 or 8.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            TensorElement::U8 => 1,
            TensorElement::U16 | TensorElement::F16 | TensorElement::BF16 => 2,
            TensorElement::U64 | TensorElement::S64 | TensorElement::F64 => 8,
            _ => 4,
        }
    }

    /// Is it a floating-point number?
    #[must_use]
    pub fn is_float(self) -> bool {
        !matches!(
            self,
            TensorElement::U8
                | TensorElement::U16
                | TensorElement::U32
                | TensorElement::S32
                | TensorElement::U64
                | TensorElement::S64
        )
    }

    /// Are subnormals taken as zero?
    #[must_use]
    pub fn flushes(self) -> bool {
        matches!(self, TensorElement::F32Ftz | TensorElement::TF32Ftz)
    }

    /// What is loaded outside the tensor where that is to be no number: a quiet NaN all of whose bits but the sign are set. 0 for
    /// integers.
    #[must_use]
    pub fn nan(self) -> u64 {
        match (self.is_float(), self.bytes()) {
            (true, 2) => 0x7fff,
            (true, 4) => 0x7fff_ffff,
            (true, 8) => 0x7fff_ffff_ffff_ffff,
            _ => 0,
        }
    }
}

/// How 16-byte pieces are exchanged in shared memory, by the number of the 128-byte line that they are in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub enum Swizzle {
    None,
    B32,
    B64,
    B128,
    /// Pieces of 32 bytes.
    B128Atom32,
    /// The same, and the halves of each 16 bytes are exchanged in every other line.
    B128Atom32Flip8,
    /// Pieces of 64 bytes.
    B128Atom64,
}

impl Swizzle {
    /// All of them, in the order of their codes from 0 on, which are CUDA's.
    pub const ALL: [Swizzle; 7] = [
        Swizzle::None,
        Swizzle::B32,
        Swizzle::B64,
        Swizzle::B128,
        Swizzle::B128Atom32,
        Swizzle::B128Atom32Flip8,
        Swizzle::B128Atom64,
    ];

    /// Bytes inside which pieces are exchanged: the most that a row may be long.
    #[must_use]
    pub fn span(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            _ => Some(128),
        }
    }

    /// Where the byte goes that would be at this address of shared memory without.
    #[must_use]
    pub fn place(self, address: u64) -> u64 {
        let line = address >> 7;
        match self {
            Swizzle::None => address,
            Swizzle::B32 => address ^ (line & 1) << 4,
            Swizzle::B64 => address ^ (line & 3) << 4,
            Swizzle::B128 => address ^ (line & 7) << 4,
            Swizzle::B128Atom32 => address ^ (line & 3) << 5,
            Swizzle::B128Atom32Flip8 => address ^ (line & 3) << 5 ^ (line & 1) << 3,
            Swizzle::B128Atom64 => address ^ (line & 1) << 6,
        }
    }
}

/// Which elements a copy moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// A box: so many elements along each dimension from where the instruction says on, of which every one is taken that is a
    /// multiple of the traversal stride away. 1 to 256.
    Tiled([u16; MAX_RANK]),
    /// Pixels of images, whose dimensions are channels, W, (H, (D,)) N.
    Im2col {
        /// First coordinates of the bounding box: W, H, D; below zero or above.
        lower: [i16; 3],
        /// How far its last coordinates lie behind those of the image.
        upper: [i16; 3],
        /// Channels of a pixel, 1 to 256.
        channels: u16,
        /// Pixels in all, 1 to 1,024.
        pixels: u16,
    },
}

/// Something that no instruction may be given: a value out of its range, or bytes that are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no tensor map")]
pub struct NoTensorMap;

/// A tensor in global memory, and which part of it a copy moves.
///
/// Invariant: as [`TensorMap::check`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// GPU virtual address of the first element; a multiple of 16.
    pub base: u64,
    /// Dimensions, 1 to 5; 3 to 5 of images.
    pub rank: u8,
    /// What an element is.
    pub element: TensorElement,
    /// Elements along each dimension, 1 to 2^31; 1 behind the rank.
    pub sizes: [u64; MAX_RANK],
    /// From an element to the next along dimensions 1 to 4, bytes: multiples of 16 below 2^40; 0 behind the rank.
    pub strides: [u64; MAX_RANK - 1],
    /// Traversal strides, 1 to 8; the first one is 1, and those behind the rank.
    pub steps: [u8; MAX_RANK],
    /// How rows lie in shared memory.
    pub swizzle: Swizzle,
    /// Is what lies outside the tensor no number, instead of zero?
    pub nan_fill: bool,
    /// Which elements.
    pub region: Region,
}

impl TensorMap {
    /// Length in memory.
    pub const BYTES: usize = 128;

    /// The least and the greatest corner of images of that rank.
    #[must_use]
    pub fn corners(rank: u8) -> (i32, i32) {
        match rank {
            3 => (-(1 << 15), (1 << 15) - 1),
            4 => (-(1 << 7), (1 << 7) - 1),
            _ => (-(1 << 4), (1 << 4) - 1),
        }
    }

    /// Elements of a row: along dimension 0.
    #[must_use]
    pub fn row(&self) -> u32 {
        match self.region {
            Region::Tiled(sides) => sides[0].into(),
            Region::Im2col { channels, .. } => channels.into(),
        }
    }

    /// Is it what an instruction may be given?
    ///
    /// # Errors
    /// [`NoTensorMap`]: a value out of its range, or rows of a box that are no multiple of 16 bytes, or rows
    /// longer than the swizzle's span.
    pub fn check(&self) -> Result<(), NoTensorMap> {
        let rank = usize::from(self.rank);
        let used = |at: usize| at < rank;
        let dimensions = (0..MAX_RANK).all(|at| {
            let most = if used(at) { 1 << 31 } else { 1 };
            (1..=most).contains(&self.sizes[at])
        });
        let strides = (0..MAX_RANK - 1).all(|at| {
            let most = if used(at + 1) { 1 << 40 } else { 1 };
            self.strides[at].is_multiple_of(16) && self.strides[at] < most
        });
        let steps = (0..MAX_RANK).all(|at| {
            let most = if used(at) && at > 0 { 8 } else { 1 };
            (1..=most).contains(&self.steps[at])
        });
        let bytes = self.row() * self.element.bytes();
        let pieces = bytes.is_multiple_of(16) || !matches!(self.region, Region::Tiled(_));
        let row = pieces && self.swizzle.span().is_none_or(|span| bytes <= span);
        let region = match self.region {
            Region::Tiled(sides) => (0..MAX_RANK).all(|at| {
                let most = if used(at) { 256 } else { 1 };
                (1..=most).contains(&sides[at])
            }),
            Region::Im2col { lower, upper, channels, pixels } => {
                let (least, most) = TensorMap::corners(self.rank);
                let images = rank >= 3 && (1..=256).contains(&channels) && (1..=1024).contains(&pixels);
                images
                    && (0..3).all(|at| {
                        let (low, high) = (i32::from(lower[at]), i32::from(upper[at]));
                        let inside = (least..=most).contains(&low) && (least..=most).contains(&high);
                        let wide = self.sizes[at + 1].cast_signed() + i64::from(high) > i64::from(low);
                        if at < rank - 2 { inside && wide } else { low == 0 && high == 0 }
                    })
            }
        };
        let fill = !self.nan_fill || self.element.is_float();
        let whole = (1..=MAX_RANK).contains(&rank) && self.base.is_multiple_of(16);
        if whole && dimensions && strides && steps && row && region && fill { Ok(()) } else { Err(NoTensorMap) }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; TensorMap::BYTES] {
        let mut bytes = [0; TensorMap::BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let code = |found: Option<usize>| found.unwrap_or(usize::from(u8::MAX)) as u8;
        let mode = if matches!(self.region, Region::Tiled(_)) { TILED } else { IM2COL };
        let element = code(TensorElement::ALL.iter().position(|e| *e == self.element));
        let swizzle = code(Swizzle::ALL.iter().position(|s| *s == self.swizzle));
        put(0, &MAGIC.to_le_bytes());
        put(8, &self.base.to_le_bytes());
        put(16, &[mode, self.rank, element, swizzle, self.nan_fill.into()]);
        for (at, size) in self.sizes.iter().enumerate() {
            put(28 + 4 * at, &(size.wrapping_sub(1) as u32).to_le_bytes());
        }
        for (at, stride) in self.strides.iter().enumerate() {
            put(48 + 8 * at, &stride.to_le_bytes());
        }
        put(80, &self.steps);
        match self.region {
            Region::Tiled(sides) => {
                for (at, side) in sides.iter().enumerate() {
                    put(86 + 2 * at, &side.to_le_bytes());
                }
            }
            Region::Im2col { lower, upper, channels, pixels } => {
                for (at, corner) in lower.iter().chain(&upper).enumerate() {
                    put(86 + 2 * at, &corner.to_le_bytes());
                }
                put(98, &channels.to_le_bytes());
                put(100, &pixels.to_le_bytes());
            }
        }
        bytes
    }

    /// The map that these bytes are, if it is one that an instruction may be given.
    ///
    /// # Errors
    /// [`NoTensorMap`].
    pub fn decode(bytes: &[u8; TensorMap::BYTES]) -> Result<TensorMap, NoTensorMap> {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let corner = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(value)
        };
        let size = |at: usize| u64::from(word(at)) + (u64::from(word(at + 2)) << 16) + 1;
        let region = match bytes[16] {
            TILED => Region::Tiled([86, 88, 90, 92, 94].map(word)),
            IM2COL => Region::Im2col {
                lower: [86, 88, 90].map(corner),
                upper: [92, 94, 96].map(corner),
                channels: word(98),
                pixels: word(100),
            },
            _ => return Err(NoTensorMap),
        };
        let map = TensorMap {
            base: long(8),
            rank: bytes[17],
            element: *TensorElement::ALL.get(usize::from(bytes[18])).ok_or(NoTensorMap)?,
            sizes: [28, 32, 36, 40, 44].map(size),
            strides: [48, 56, 64, 72].map(long),
            steps: [80, 81, 82, 83, 84].map(|at| bytes[at]),
            swizzle: *Swizzle::ALL.get(usize::from(bytes[19])).ok_or(NoTensorMap)?,
            nan_fill: bytes[20] == 1,
            region,
        };
        // What is said twice, or means nothing, is no map.
        if long(0) != MAGIC || map.encode() != *bytes {
            return Err(NoTensorMap);
        }
        map.check()?;
        Ok(map)
    }
}
