//! Matrices that the lanes of a warp hold in parts: which lane has which elements, and what a product of two is.
//!
//! A register of all 32 lanes is a **tile**: eight lines of four lanes each, lane 4 · line + t holding the elements from
//! t · `per` on, where `per` elements fit the register. Of the left matrix A (m × k) lines are rows, of the right matrix B
//! (k × n) columns, and elements run along k. Of C and D a line is a row, and lane t has columns 2t and 2t + 1 of the
//! tile's eight: in two registers, or in the halves of one if elements are f16. PTX says so for `mma.sync`
//! (but for `m8n8k4` in f16, see [`Arithmetic::Quads`]); for `wmma`, which leaves it open, a matrix is as the `mma.sync`
//! tiles that make it up, two tiles of lines before the next of k.
//!
//! Of a **sparse** product (`mma.sp`) A is held as a matrix of half as many columns, and the lanes hold in one register more,
//! the metadata, where these are in each **chunk** of a row: [`Product::column`].

use serde::{Deserialize, Serialize};

use crate::ir::{RegTy, Round};

/// The type of a matrix's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Element {
    F16,
    BF16,
    /// An f32 of which the upper 19 bits count.
    TF32,
    F32,
    F64,
    E4M3,
    E5M2,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
}

impl Element {
    /// Width in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Element::B1 => 1,
            Element::S4 | Element::U4 => 4,
            Element::E4M3 | Element::E5M2 | Element::S8 | Element::U8 => 8,
            Element::F16 | Element::BF16 => 16,
            Element::TF32 | Element::F32 | Element::S32 => 32,
            Element::F64 => 64,
        }
    }

    /// The class of the registers that hold a lane's elements.
    #[must_use]
    pub fn reg(self) -> RegTy {
        if self == Element::F64 { RegTy::B64 } else { RegTy::B32 }
    }

    /// Elements in a register.
    #[must_use]
    pub fn per(self) -> u32 {
        if self == Element::F64 { 1 } else { 32 / self.bits() }
    }
}

/// How products are summed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Arithmetic {
    /// `d = fma(a, b, d)` from `d = c` on, in the order of k, each rounded to f32; in f64 so, to f64. A `d` in f16 is rounded
    /// once more, at the end. PTX leaves order and rounding open, but for f64; products are exact in any case. `sat`: infinite
    /// results become the largest finite ones, NaN zero.
    Float {
        /// Of f64; the others are rounded to nearest.
        round: Round,
        /// `.satfinite`.
        sat: bool,
    },
    /// Exact, then wrapped to 32 bits, or with `sat` clamped.
    Integer {
        /// `.satfinite`.
        sat: bool,
    },
    /// Numbers of ones in `a & b`, or `a ^ b`; the sum wraps.
    Bits {
        /// `.and`, else `.xor`.
        and: bool,
    },
    /// `mma.m8n8k4` in f16: four products as in `Float`, by the lanes 4i … 4i + 3 and 16 more than these each.
    Quads {
        /// A is held in rows.
        a_row: bool,
        /// B is held in rows.
        b_row: bool,
    },
}

/// A product `d = a · b + c`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Product {
    /// Rows of A, C and D: a multiple of 8.
    pub m: u16,
    /// Columns of B, C and D: a multiple of 8.
    pub n: u16,
    /// Columns of A and rows of B: a multiple of a tile's length.
    pub k: u16,
    /// Elements of A.
    pub a: Element,
    /// Elements of B: as wide as those of A.
    pub b: Element,
    /// Elements of C.
    pub c: Element,
    /// Elements of D.
    pub d: Element,
    /// How it is computed.
    pub arithmetic: Arithmetic,
    /// Half of each chunk of A is zero and not held: which of its lanes each four have the metadata (the sparsity selector).
    pub sparse: Option<u8>,
}

/// Most registers of a matrix.
pub const MAX_REGISTERS: usize = 8;

impl Product {
    /// Tiles along k.
    #[must_use]
    pub fn k_tiles(&self) -> u32 {
        u32::from(self.k) >> (2 + self.a.per().trailing_zeros())
    }

    /// The same of A, as it is held.
    #[must_use]
    pub fn k_tiles_of_a(&self) -> u32 {
        if self.sparse.is_some() { self.k_tiles() / 2 } else { self.k_tiles() }
    }

    /// Elements of a chunk of A, of which a sparse product has half: 2 of tf32, 8 of four bits, else 4.
    fn chunk(&self) -> u32 {
        match self.a {
            Element::TF32 => 2,
            Element::S4 | Element::U4 => 8,
            _ => 4,
        }
    }

    /// How many of each four lanes have metadata that count; so selectors are below 4 over that.
    #[must_use]
    pub fn metadata_lanes(&self) -> u32 {
        u32::from(self.k) / self.chunk() / 4
    }

    /// The column in A of element `at` of those that are held of a row, of a sparse product. A chunk's metadata are four bits:
    /// where its elements are, two bits each; of elements of four bits, where its two pairs are; of tf32, `1110` or `0100` for the
    /// second or first. Others are undefined: here of tf32 the second of these bits says which, and elements may be twice in one place.
    #[must_use]
    pub fn column(&self, metadata: &[u64; 32], row: u32, at: u32) -> u32 {
        let held = self.chunk() / 2;
        let (chunk, part) = (at / held, at % held);
        // A lane has 4 chunks of two rows if elements are wide, else 8 of one, those of the lower rows before those of the upper.
        let (word, bit) = match self.a.bits() {
            16.. => (chunk / 4, row / 8 * 16 + chunk % 4 * 4),
            _ => (chunk / 8 * 2 + row / 8, chunk % 8 * 4),
        };
        let lane = row % 8 * 4 + u32::from(self.sparse.unwrap_or(0)) * self.metadata_lanes() + word;
        let bits = metadata[lane as usize] >> bit;
        let index = |of: u32| (bits >> (2 * of)) as u32 & 3;
        let inside = match held {
            1 => index(0) >> 1,
            2 => index(part),
            _ => 2 * index(part / 2) + part % 2,
        };
        chunk * self.chunk() + inside
    }

    /// Registers of A, B, C and D in a lane; the metadata of a sparse product are one more.
    #[must_use]
    pub fn registers(&self) -> [usize; 4] {
        if let Arithmetic::Quads { .. } = self.arithmetic {
            let wide = |of: Element| if of == Element::F32 { 8 } else { 4 };
            return [2, 2, wide(self.c), wide(self.d)];
        }
        let (m, n, k) = (u32::from(self.m / 8), u32::from(self.n / 8), self.k_tiles());
        let sums = |of: Element| m * n * 2 / of.per();
        [m * self.k_tiles_of_a(), n * k, sums(self.c), sums(self.d)].map(|count| count as usize)
    }

    /// Is this a product that [`crate::math::matrix::product`] computes?
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), String> {
        use Element::{B1, BF16, E4M3, E5M2, F16, F32, F64, S4, S8, S32, TF32, U4, U8};
        let types = (self.a, self.b, self.c, self.d);
        let known = match self.arithmetic {
            Arithmetic::Float { round, .. } => match types {
                (F64, F64, F64, F64) => round != Round::Rna,
                (F16, F16, F16 | F32, F16 | F32)
                | (E4M3 | E5M2, E4M3 | E5M2, F16 | F32, F16 | F32)
                | (BF16, BF16, F32, F32)
                | (TF32, TF32, F32, F32) => round == Round::Rn,
                _ => false,
            },
            Arithmetic::Integer { .. } => {
                matches!(types, (S8 | U8, S8 | U8, S32, S32) | (S4 | U4, S4 | U4, S32, S32))
            }
            Arithmetic::Bits { .. } => types == (B1, B1, S32, S32),
            Arithmetic::Quads { .. } => {
                matches!(types, (F16, F16, F16 | F32, F16 | F32)) && (self.m, self.n, self.k) == (8, 8, 4)
            }
        };
        let quads = matches!(self.arithmetic, Arithmetic::Quads { .. });
        let tiled = |side: u16| (8..=32).contains(&side) && side.is_power_of_two();
        let whole = quads || (1..=4).contains(&self.k_tiles()) && u32::from(self.k).is_multiple_of(4 * self.a.per());
        if !known || !tiled(self.m) || !tiled(self.n) || !whole {
            return Err("a matrix product of these types and this shape".into());
        }
        if let Some(selector) = self.sparse {
            let known = !quads && !matches!(self.a, F64 | B1) && self.m == 16 && self.k_tiles().is_multiple_of(2);
            if !known {
                return Err("a sparse matrix product of these types and this shape".into());
            }
            let most = 4 / self.metadata_lanes();
            if u32::from(selector) >= most {
                return Err(format!("a sparsity selector of {selector}, where it is below {most}"));
            }
        }
        if self.registers().into_iter().any(|count| !(1..=MAX_REGISTERS).contains(&count)) {
            return Err("a matrix of more registers than there may be".into());
        }
        Ok(())
    }
}

/// How many tiles of lines come before the next of k: two of A's, if there are so many.
#[must_use]
pub fn paired(lines: u16) -> u32 {
    if lines == 8 { 1 } else { 2 }
}

/// The register of A or B that has tile `(line, k)` of so many along k; `paired` is 1 for B.
#[must_use]
pub fn factor_register(paired: u32, k_tiles: u32, line: u32, k: u32) -> usize {
    by_pairs(paired, k_tiles, line, k) as usize
}

/// The place of tile `(line, at)` where one or two lines of so many tiles come together.
fn by_pairs(paired: u32, tiles: u32, line: u32, at: u32) -> u32 {
    if paired == 2 { (line / 2 * tiles + at) * 2 + line % 2 } else { line * tiles + at }
}

/// The register of C or D that has column `2t + part` of tile `(row, column)`, and where in it, in elements.
#[must_use]
pub fn sum_register(of: Element, m: u16, n: u16, row: u32, column: u32, part: u32) -> (usize, u32) {
    let (paired, n) = (paired(m), u32::from(n / 8));
    let tile = by_pairs(paired, n, row, column);
    let register = if of.per() == 2 { tile } else { 2 * tile + part };
    (register as usize, if of.per() == 2 { part } else { 0 })
}

/// The line and the word of a lane's register in its tile.
#[must_use]
pub fn place(lane: u32) -> (u32, u32) {
    (lane / 4, lane % 4)
}
