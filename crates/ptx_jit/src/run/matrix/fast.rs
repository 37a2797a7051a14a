//! Products in the processor's vectors: of f16, bf16 and tf32 with sums in f32 (rounded to f16 at the end, if they are
//! f16), and of bytes. The twin is [`ptx::math::matrix::product`]; both give the same, bit by bit.
//!
//! A row of eight sums is one vector. Factors are widened to words first: to f32, of which a product and a sum are one
//! `fma`, or to pairs of 16-bit integers, of which two products and their sum are one `pmaddwd`. For every such **step**
//! along k a word of A goes to all elements of a vector, and B's are transposed, so that a vector has eight columns' words.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_castps_si128, _mm_castsi128_ps,
    _mm_loadu_si128, _mm_shuffle_ps, _mm_storeu_si128, _mm_unpackhi_epi32, _mm_unpacklo_epi32, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_permute2x128_si256,
    _mm256_set_m128i, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srai_epi32,
    _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
    _mm256_xor_si256,
};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use ptx::math::NAN_F32;
use ptx::matrix::{Arithmetic, Element, MAX_REGISTERS, Product, factor_register, paired, sum_register};

use super::{LANES, LINE, LINE_WORDS, LINES, Words};
use crate::abi::joint::{Matrix, Slot};
use crate::run::joint::write_words;

/// Most steps along k.
const STEPS: usize = 16;

/// Kinds of factors.
const HALF: u8 = 0;
const BRAIN: u8 = 1;
const TENSOR: u8 = 2;
const SIGNED: u8 = 3;
const UNSIGNED: u8 = 4;

/// Has the processor all that is used here?
static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
});

/// Is the product one of those for which there is a way here, on this machine?
pub(crate) fn is_there(p: &Product) -> bool {
    let factors = match p.arithmetic {
        Arithmetic::Float { sat, .. } => !sat && matches!(p.a, Element::F16 | Element::BF16 | Element::TF32),
        Arithmetic::Integer { .. } => [p.a, p.b].iter().all(|of| matches!(of, Element::S8 | Element::U8)),
        _ => false,
    };
    let kind = if p.a == Element::TF32 { TENSOR } else { HALF };
    factors && p.sparse.is_none() && *AVAILABLE && p.k_tiles() as usize * steps(kind) <= STEPS
}

/// Computes the product for a whole warp, if there is a way here.
pub(super) fn multiply(p: &Product, site: &Matrix, frame: *mut u8) -> bool {
    if !is_there(p) {
        return false;
    }
    match (p.a, p.b) {
        (Element::F16, _) => wide::<HALF, HALF>(p, site, frame),
        (Element::BF16, _) => wide::<BRAIN, BRAIN>(p, site, frame),
        (Element::TF32, _) => wide::<TENSOR, TENSOR>(p, site, frame),
        (Element::S8, Element::S8) => wide::<SIGNED, SIGNED>(p, site, frame),
        (Element::S8, Element::U8) => wide::<SIGNED, UNSIGNED>(p, site, frame),
        (Element::U8, Element::S8) => wide::<UNSIGNED, SIGNED>(p, site, frame),
        (Element::U8, Element::U8) => wide::<UNSIGNED, UNSIGNED>(p, site, frame),
        _ => return false,
    }
    true
}

/// The same by number of tiles side by side.
fn wide<const A: u8, const B: u8>(p: &Product, site: &Matrix, frame: *mut u8) {
    match p.n {
        8 => {
            // SAFETY: the caller has asked the processor.
            unsafe { tiles::<A, B, 1>(p, site, frame) }
        }
        16 => {
            // SAFETY: as above.
            unsafe { tiles::<A, B, 2>(p, site, frame) }
        }
        _ => {
            // SAFETY: as above.
            unsafe { tiles::<A, B, 4>(p, site, frame) }
        }
    }
}

/// Eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn load(from: &[u32; 8]) -> __m256i {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut [u32; 8], value: __m256i) {
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

/// A register of all lanes, in a frame or beside it.
#[derive(Clone, Copy)]
struct Tile(*const u8);

/// Line `line` of a tile.
#[inline]
#[target_feature(enable = "avx2")]
fn load_line(tile: Tile, line: usize) -> __m128i {
    // SAFETY: a tile has eight lines.
    let at = unsafe { tile.0.add(LINE * (line % LINES)) };
    // SAFETY: of 16 bytes each.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// A word of a tile.
#[inline]
fn load_word(tile: Tile, at: usize) -> u32 {
    // SAFETY: a tile has 32 words.
    let at = unsafe { tile.0.add(4 * (at % LANES)) };
    // SAFETY: as above.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// Where a register of all lanes goes.
#[derive(Clone, Copy)]
struct Target(*mut u8);

#[inline]
#[target_feature(enable = "avx2")]
fn store_line(tile: Target, line: usize, value: __m128i) {
    // SAFETY: a tile has eight lines.
    let at = unsafe { tile.0.add(LINE * (line % LINES)) };
    // SAFETY: of 16 bytes each.
    unsafe { _mm_storeu_si128(at.cast(), value) }
}

/// The words of a line of factors.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widened<const KIND: u8>(line: __m128i) -> __m256i {
    match KIND {
        HALF => _mm256_castps_si256(_mm256_cvtph_ps(line)),
        BRAIN => _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(line)),
        SIGNED => _mm256_cvtepi8_epi16(line),
        UNSIGNED => _mm256_cvtepu8_epi16(line),
        _ => _mm256_set_m128i(line, line),
    }
}

/// Steps of a tile.
const fn steps(kind: u8) -> usize {
    if kind == TENSOR { LINE_WORDS } else { 8 }
}

/// What of an f32 is there in tf32.
const TENSOR_BITS: u32 = !0x1fff;

/// The words of eight rows of A, row by row.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn rows<const KIND: u8>(tile: Tile, k: usize, to: &mut [[u32; STEPS]; LINES]) {
    for (line, row) in to.iter_mut().enumerate() {
        if KIND == TENSOR {
            for (i, word) in row[k * LINE_WORDS..][..LINE_WORDS].iter_mut().enumerate() {
                *word = load_word(tile, line * LINE_WORDS + i) & TENSOR_BITS;
            }
        } else if let Some(part) = row.as_chunks_mut().0.get_mut(k) {
            store(part, widened::<KIND>(load_line(tile, line)));
        }
    }
}

/// The words of eight columns of B, step by step.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn columns<const KIND: u8>(tile: Tile, to: &mut [[u32; LINES]]) {
    if KIND == TENSOR {
        for (step, words) in to.iter_mut().enumerate() {
            for (line, word) in words.iter_mut().enumerate() {
                *word = load_word(tile, line * LINE_WORDS + step) & TENSOR_BITS;
            }
        }
        return;
    }
    let mut lines = [_mm256_setzero_si256(); LINES];
    for (line, words) in lines.iter_mut().enumerate() {
        *words = widened::<KIND>(load_line(tile, line));
    }
    for (step, words) in to.iter_mut().zip(turned(lines)) {
        store(step, words);
    }
}

/// Eight by eight words, transposed.
#[inline]
#[target_feature(enable = "avx2")]
fn turned(x: [__m256i; LINES]) -> [__m256i; LINES] {
    let two = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let four = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let ((a, b), (c, d)) = (two(x[0], x[1]), two(x[2], x[3]));
    let ((e, f), (g, h)) = (two(x[4], x[5]), two(x[6], x[7]));
    let ((a, c), (b, d)) = (four(a, c), four(b, d));
    let ((e, g), (f, h)) = (four(e, g), four(f, h));
    let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
    let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
    [low(a, e), low(c, g), low(b, f), low(d, h), high(a, e), high(c, g), high(b, f), high(d, h)]
}

/// Computes all tiles of a product, of which there are so many side by side.
#[target_feature(enable = "avx2,fma,f16c")]
fn tiles<const A: u8, const B: u8, const N: usize>(p: &Product, site: &Matrix, frame: *mut u8) {
    let mut beside = [const { MaybeUninit::<Words>::uninit() }; 3 * MAX_REGISTERS];
    let mut srcs = [Tile(frame); 3 * MAX_REGISTERS];
    for ((tile, src), words) in srcs.iter_mut().zip(&site.srcs).zip(&mut beside) {
        *tile = match *src {
            // SAFETY: offsets come from the plan that the frame was made for.
            Slot::Lanes32(offset) => Tile(unsafe { frame.add(offset as usize) }),
            src => Tile(words.write(src.words(frame)).as_ptr().cast()),
        };
    }
    let sat = matches!(p.arithmetic, Arithmetic::Integer { sat: true });
    let (rows_of_tiles, k_tiles) = (u32::from(p.m / 8), p.k_tiles());
    let (of_a, of_b) = ((rows_of_tiles * k_tiles) as usize, N * k_tiles as usize);
    let (a, b, c) = (&srcs[..of_a], &srcs[of_a..][..of_b], &srcs[of_a + of_b..]);
    let mut right = [[[0; LINES]; STEPS]; N];
    for (words, column) in right.iter_mut().zip(b.chunks_exact(k_tiles as usize)) {
        for (words, tile) in words.chunks_exact_mut(steps(B)).zip(column) {
            columns::<B>(*tile, words);
        }
    }
    let count = k_tiles as usize * steps(A);
    let mut left = [[0; STEPS]; LINES];
    let mut results = [const { MaybeUninit::<Words>::uninit() }; MAX_REGISTERS];
    let mut d = [Target(frame); MAX_REGISTERS];
    for ((target, dst), words) in d.iter_mut().zip(&site.dsts).zip(&mut results) {
        *target = match *dst {
            // SAFETY: as above.
            Some((offset, _)) if site.straight => Target(unsafe { frame.add(offset as usize) }),
            _ => Target(words.write([0; LANES]).as_mut_ptr().cast()),
        };
    }
    for row in 0..rows_of_tiles {
        for k in 0..k_tiles {
            rows::<A>(a[factor_register(paired(p.m), k_tiles, row, k)], k as usize, &mut left);
        }
        for (column, right) in right.iter().enumerate() {
            let (from, _) = sum_register(p.c, p.m, p.n, row, column as u32, 0);
            let (to, _) = sum_register(p.d, p.m, p.n, row, column as u32, 0);
            let mut sums = [_mm256_setzero_si256(); LINES];
            if A < SIGNED {
                for (line, sum) in sums.iter_mut().enumerate() {
                    *sum = old(p.c, &c[from..], line);
                }
            }
            for (step, right) in right[..count].iter().enumerate() {
                let right = load(right);
                for (sum, left) in sums.iter_mut().zip(&left) {
                    let left = _mm256_set1_epi32(left[step].cast_signed());
                    *sum = if A < SIGNED {
                        let (left, right) = (_mm256_castsi256_ps(left), _mm256_castsi256_ps(right));
                        _mm256_castps_si256(_mm256_fmadd_ps(left, right, _mm256_castsi256_ps(*sum)))
                    } else {
                        _mm256_add_epi32(*sum, _mm256_madd_epi16(left, right))
                    };
                }
            }
            for (line, sum) in sums.into_iter().enumerate() {
                let sum = if A < SIGNED {
                    canonical(_mm256_castsi256_ps(sum))
                } else {
                    added(old(p.c, &c[from..], line), sum, sat)
                };
                new(p.d, &d[to..], line, sum);
            }
        }
    }
    if site.straight {
        return;
    }
    // Only now: results may replace what was read.
    for (words, &dst) in results.iter().zip(&site.dsts) {
        // SAFETY: it was written above.
        write_words(frame, dst, u32::MAX, unsafe { words.assume_init_ref() });
    }
}

/// A line of C, eight words.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn old(of: Element, c: &[Tile], line: usize) -> __m256i {
    if of == Element::F16 {
        return _mm256_castps_si256(_mm256_cvtph_ps(load_line(c[0], line)));
    }
    let (even, odd) = (load_line(c[0], line), load_line(c[1], line));
    _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd))
}

/// A line of D from its eight words.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn new(of: Element, d: &[Target], line: usize, value: __m256i) {
    if of == Element::F16 {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(value));
        return store_line(d[0], line, halves);
    }
    let low = _mm256_castps256_ps128(_mm256_castsi256_ps(value));
    let high = _mm_castsi128_ps(_mm256_extracti128_si256::<1>(value));
    store_line(d[0], line, _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(low, high)));
    store_line(d[1], line, _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(low, high)));
}

/// The only NaN there is.
#[inline]
#[target_feature(enable = "avx2")]
fn canonical(sums: __m256) -> __m256i {
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN_F32.cast_signed()));
    _mm256_castps_si256(_mm256_blendv_ps(sums, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(sums, sums)))
}

/// Sums of 32 bits, wrapped or clamped.
#[inline]
#[target_feature(enable = "avx2")]
fn added(a: __m256i, b: __m256i, sat: bool) -> __m256i {
    let sum = _mm256_add_epi32(a, b);
    if !sat {
        return sum;
    }
    // It has overflown if its sign is neither operand's; then it is the limit on the side of `a`.
    let over = _mm256_and_si256(_mm256_xor_si256(a, sum), _mm256_xor_si256(b, sum));
    let limit = _mm256_xor_si256(_mm256_srai_epi32::<31>(a), _mm256_set1_epi32(i32::MAX));
    let picked = _mm256_blendv_ps(_mm256_castsi256_ps(sum), _mm256_castsi256_ps(limit), _mm256_castsi256_ps(over));
    _mm256_castps_si256(picked)
}
