//! Products of f64 in the processor's vectors. The twin is [`ptx::math::matrix::product`]; both give the same, bit by bit.
//!
//! A line of a register of C and D is every other column of a row of sums: four numbers, one vector. So a row of eight sums is two vectors, the even
//! columns and the odd ones; every step along k adds a word of A times those of B's columns, which are transposed first.

use std::arch::x86_64::{
    __m256d, _CMP_UNORD_Q, _mm256_blendv_pd, _mm256_cmp_pd, _mm256_fmadd_pd, _mm256_loadu_pd, _mm256_permute2f128_pd,
    _mm256_set1_pd, _mm256_setzero_pd, _mm256_storeu_pd, _mm256_unpackhi_pd, _mm256_unpacklo_pd,
};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use ptx::ir::{RegTy, Round};
use ptx::math::NAN_F64;
use ptx::math::matrix::Row;
use ptx::matrix::{Arithmetic, Element, MAX_REGISTERS, Product, factor_register, paired, sum_register};

use super::{LANES, LINES};
use crate::abi::joint::{Matrix, Slot};

/// Numbers of a line, and steps of a tile along k.
const NUMBERS: usize = 4;
/// Lines whose sums stay in registers.
const TOGETHER: usize = 4;

/// Has the processor all that is used here?
static AVAILABLE: LazyLock<bool> =
    LazyLock::new(|| std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"));

/// Is the product one of those for which there is a way here, on this machine?
pub(super) fn is_there(p: &Product) -> bool {
    let nearest = matches!(p.arithmetic, Arithmetic::Float { round: Round::Rn, .. });
    nearest && p.a == Element::F64 && p.sparse.is_none() && *AVAILABLE
}

/// Computes the product for a whole warp, if there is a way here.
pub(super) fn multiply(p: &Product, site: &Matrix, frame: *mut u8) -> bool {
    let there = is_there(p);
    if there {
        // SAFETY: the processor has been asked.
        unsafe { tiles(p, site, frame) }
    }
    there
}

/// A register of all lanes, in a frame or beside it.
#[derive(Clone, Copy)]
struct Tile(*const u8);

#[inline]
#[target_feature(enable = "avx2")]
fn load_line(tile: Tile, line: usize) -> __m256d {
    // SAFETY: a tile has eight lines.
    let at = unsafe { tile.0.add(8 * NUMBERS * (line % LINES)) };
    // SAFETY: of 32 bytes each.
    unsafe { _mm256_loadu_pd(at.cast()) }
}

/// A number of a tile, in all places.
#[inline]
#[target_feature(enable = "avx2")]
fn load_number(tile: Tile, at: usize) -> __m256d {
    // SAFETY: a tile has 32 numbers.
    let at = unsafe { tile.0.add(8 * (at % LANES)) };
    // SAFETY: as above.
    _mm256_set1_pd(unsafe { at.cast::<f64>().read_unaligned() })
}

/// Four lines, transposed.
#[inline]
#[target_feature(enable = "avx2")]
fn turned([a, b, c, d]: [__m256d; NUMBERS]) -> [__m256d; NUMBERS] {
    let (even, odd) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
    let (even_behind, odd_behind) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
    [
        _mm256_permute2f128_pd::<0x20>(even, even_behind),
        _mm256_permute2f128_pd::<0x20>(odd, odd_behind),
        _mm256_permute2f128_pd::<0x31>(even, even_behind),
        _mm256_permute2f128_pd::<0x31>(odd, odd_behind),
    ]
}

/// The only NaN there is.
#[inline]
#[target_feature(enable = "avx2")]
fn canonical(sums: __m256d) -> __m256d {
    let nan = _mm256_set1_pd(f64::from_bits(NAN_F64));
    _mm256_blendv_pd(sums, nan, _mm256_cmp_pd::<_CMP_UNORD_Q>(sums, sums))
}

/// Computes all tiles of a product.
#[target_feature(enable = "avx2,fma")]
fn tiles(p: &Product, site: &Matrix, frame: *mut u8) {
    let mut beside = [const { MaybeUninit::<Row>::uninit() }; 3 * MAX_REGISTERS];
    let mut srcs = [Tile(frame); 3 * MAX_REGISTERS];
    for ((tile, src), row) in srcs.iter_mut().zip(&site.srcs).zip(&mut beside) {
        *tile = match *src {
            // SAFETY: offsets come from the plan that the frame was made for.
            Slot::Lanes64(offset) => Tile(unsafe { frame.add(offset as usize) }),
            src => Tile(row.write(std::array::from_fn(|lane| src.lane(frame, lane))).as_ptr().cast()),
        };
    }
    let (rows, columns, k_tiles) = (u32::from(p.m / 8), u32::from(p.n / 8), p.k_tiles());
    let (of_a, of_b) = ((rows * k_tiles) as usize, (columns * k_tiles) as usize);
    let (a, b, c) = (&srcs[..of_a], &srcs[of_a..][..of_b], &srcs[of_a + of_b..]);
    // Of each tile of B, step by step, the even columns and the odd ones.
    let mut right = [[[_mm256_setzero_pd(); NUMBERS]; 2]; MAX_REGISTERS];
    for (right, &tile) in right.iter_mut().zip(b) {
        let mut lines = [[_mm256_setzero_pd(); NUMBERS]; 2];
        for line in 0..LINES {
            lines[line % 2][line / 2] = load_line(tile, line);
        }
        *right = [turned(lines[0]), turned(lines[1])];
    }
    let mut results = [[0.0_f64; LANES]; MAX_REGISTERS];
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let (at, _) = sum_register(Element::F64, p.m, p.n, row, column, 0);
        for first in (0..LINES).step_by(TOGETHER) {
            let mut sums = [[_mm256_setzero_pd(); 2]; TOGETHER];
            for (line, [even, odd]) in sums.iter_mut().enumerate() {
                (*even, *odd) = (load_line(c[at], first + line), load_line(c[at + 1], first + line));
            }
            for k in 0..k_tiles {
                let left = a[factor_register(paired(p.m), k_tiles, row, k)];
                let [evens, odds] = &right[factor_register(1, k_tiles, column, k)];
                for (step, (&even_columns, &odd_columns)) in evens.iter().zip(odds).enumerate() {
                    for (line, [even, odd]) in sums.iter_mut().enumerate() {
                        let factor = load_number(left, (first + line) * NUMBERS + step);
                        *even = _mm256_fmadd_pd(factor, even_columns, *even);
                        *odd = _mm256_fmadd_pd(factor, odd_columns, *odd);
                    }
                }
            }
            for (line, sums) in sums.into_iter().enumerate() {
                for (part, sums) in sums.into_iter().enumerate() {
                    let to: &mut [f64] = &mut results[at + part][(first + line) * NUMBERS..][..NUMBERS];
                    let sums = canonical(sums);
                    // SAFETY: there are four numbers.
                    unsafe { _mm256_storeu_pd(to.as_mut_ptr(), sums) };
                }
            }
        }
    }
    // Only now: results may replace what was read.
    for (row, &dst) in results.iter().zip(&site.dsts) {
        let Some((offset, RegTy::B64)) = dst else { continue };
        // SAFETY: as above.
        let at = unsafe { frame.add(offset as usize) };
        // SAFETY: a register of 64 bits of all lanes is there.
        unsafe { at.cast::<[f64; LANES]>().write_unaligned(*row) };
    }
}
