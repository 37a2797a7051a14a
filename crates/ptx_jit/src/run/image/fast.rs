//! The usual textures, eight lanes at once: two dimensions, of one level, one format and one handle for all lanes; and texels of linear
//! memory by their index. The twin is [`texture::Access::perform`]; both give the same, bit by bit.
//!
//! A block that needs anything else (a lane that is not there, a border) is left to the twin.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use texture::{Access, AddressMode, Filter, Format, Geometry, Mip, Object, Shape};

use super::{Lanes, Seen};
use crate::abi::context::Context;

/// Lanes of a block. Chunks of half as many fill it twice.
const BLOCK: usize = 8;

/// A word for each lane of a block.
type Row = __m256i;

/// What texels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// So many channels of 32 bits, taken as they are; filtered as f32.
    Words(usize),
    /// So many bytes, each as an integer, or as a part of one.
    Bytes { channels: usize, normalized: bool },
}

/// An image that can be read without further ado: all of it lies in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// Host address of its first texel.
    base: *const u8,
    /// Bytes from a row to the next, if there is one, and of a texel. All of it has no more than 2^31.
    pitch: i32,
    texel: i32,
    kind: Kind,
    /// Width and height.
    size: [i32; 2],
    modes: [AddressMode; 2],
    normalized: bool,
    linear: bool,
}

/// Bits of a place behind the point, as a factor.
const WHOLE: f64 = (1 << 21) as f64;
/// Weights are 256ths.
const ONE: i32 = 256;

static AVAILABLE: LazyLock<bool> =
    LazyLock::new(|| std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"));

/// Performs the access for as many of the lanes `bits` as can be here; gives those that are left.
pub(super) fn perform(access: &Access, seen: &Seen, lanes: &Lanes<'_>, bits: u32) -> u32 {
    let index = match *access {
        Access::Sample { geometry: Geometry::D2, integer: false, mip: Mip::Base, offset: false } => false,
        Access::Sample { geometry: Geometry::D1, integer: true, mip: Mip::Base, offset: false } => true,
        _ => return bits,
    };
    let Some(plane) = &seen.planes[usize::from(index)] else { return bits };
    let count = lanes.rows.lanes;
    let block = BLOCK.min(count);
    let mut left = bits;
    // A chunk has 32 lanes at most. By steps that are not known beforehand it would take a division.
    for first in (0..32).step_by(BLOCK).take_while(|&first| first < count) {
        let all = if block == BLOCK { 0xff } else { 0xf } << first;
        if bits & all != all {
            continue;
        }
        let rows = Rows { lanes, first };
        let done = if index {
            // SAFETY: the processor has been asked.
            unsafe { plane.fetch(&rows) }
        } else {
            // SAFETY: as above.
            unsafe { plane.sample(&rows) }
        };
        if done {
            left &= !all;
        }
    }
    left
}

/// The part of the lanes' rows that a block has.
struct Rows<'a> {
    lanes: &'a Lanes<'a>,
    first: usize,
}

impl Rows<'_> {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn word(&self, i: usize) -> Row {
        let at = self.lanes.rows.word(i) + 4 * self.first;
        let low = self.lanes.read(at);
        // Machine code has stored four lanes at a time: what it has just stored is not read eight at a time.
        let high = if self.lanes.rows.lanes < BLOCK { low } else { self.lanes.read(at + 16) };
        _mm256_set_m128i(high, low)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn put(&self, texels: &[Row; 4]) {
        for (i, &row) in texels.iter().enumerate() {
            let at = self.lanes.rows.result(i) + 4 * self.first;
            if self.lanes.rows.lanes < BLOCK {
                self.lanes.write(at, _mm256_castsi256_si128(row));
            } else {
                self.lanes.write(at, row);
            }
        }
    }
}

impl Plane {
    /// Of an object whose texels are sampled, or fetched by their `index`; none if the twin has to, or the processor cannot.
    pub(super) fn new(ctx: *mut Context, object: &Object, index: bool) -> Option<Plane> {
        if !*AVAILABLE {
            return None;
        }
        let (image, sampler) = (object.image(), object.sampler()?);
        let fits = match image.shape {
            Shape::Linear => index,
            Shape::D2 | Shape::Pitched => !index,
            _ => false,
        };
        let kind = match image.format {
            Format::F32 | Format::U32 | Format::S32 => Kind::Words(image.channels.into()),
            Format::U8 | Format::Unorm8 if !sampler.srgb => {
                Kind::Bytes { channels: image.channels.into(), normalized: image.format == Format::Unorm8 }
            }
            _ => return None,
        };
        if !fits {
            return None;
        }
        let level = object.level(0);
        let bytes = level.bytes(image.texel());
        // SAFETY: the context is live while its CTA runs.
        let context = unsafe { &*ctx };
        let offset = level.offset.wrapping_sub(context.window_lo);
        if bytes > context.window_bytes || offset > context.window_bytes - bytes || bytes > i32::MAX as u64 {
            return None;
        }
        let base = std::ptr::with_exposed_provenance(level.offset.wrapping_add(context.delta) as usize);
        let linear = sampler.filter == Filter::Linear;
        // A texel that goes through the filter alone is no longer any NaN.
        let filtered = sampler.max_anisotropy > 1 || sampler.mip_filter == Filter::Linear && object.levels() > 1;
        if filtered && !index && !linear {
            return None;
        }
        let mode = |mode| match mode {
            AddressMode::Wrap | AddressMode::Mirror if !sampler.normalized => AddressMode::Clamp,
            mode => mode,
        };
        Some(Plane {
            base,
            pitch: level.pitch as i32,
            texel: image.texel() as i32,
            kind,
            size: [level.width as i32, level.height as i32],
            modes: [mode(sampler.address[0]), mode(sampler.address[1])],
            normalized: sampler.normalized,
            linear,
        })
    }

    /// Performs the access for a block; false if the twin has to.
    #[target_feature(enable = "avx2,fma")]
    fn sample(&self, rows: &Rows<'_>) -> bool {
        let (shift, last) = if self.linear { (0.5 * f64::from(ONE) - 0.5, 1) } else { (0.0, 0) };
        // By axis: the texels before and behind a coordinate, or the one at it, and the weight of the second.
        let mut texels = [[_mm256_setzero_si256(); 2]; 2];
        let mut weights = [_mm256_setzero_si256(); 2];
        for axis in 0..2 {
            // From the first texel's centre on, to the nearest step; or down.
            let mut steps = self.steps(_mm256_castsi256_ps(rows.word(axis)), axis, shift);
            if self.linear && self.modes[axis] == AddressMode::Clamp {
                // At most 2^17 texels.
                steps = clamped(steps, (self.size[axis] - 1) * ONE);
            }
            let before = _mm256_srai_epi32::<8>(steps);
            weights[axis] = _mm256_and_si256(steps, _mm256_set1_epi32(ONE - 1));
            for behind in 0..=last {
                let at = _mm256_add_epi32(before, _mm256_set1_epi32(behind));
                let Some(at) = self.resolved(at, axis) else { return false };
                texels[axis][behind as usize] = at;
            }
        }
        let [xs, ys] = texels;
        let xs = xs.map(|x| _mm256_mullo_epi32(x, _mm256_set1_epi32(self.texel)));
        let ys = ys.map(|y| _mm256_mullo_epi32(y, _mm256_set1_epi32(self.pitch)));
        if !self.linear {
            rows.put(&self.values(_mm256_add_epi32(xs[0], ys[0])));
            return true;
        }
        let weights = quads(weights[0], weights[1]);
        match self.kind {
            Kind::Words(1) => self.numbers(rows, xs, ys, &weights),
            Kind::Words(channels) => self.vectors(rows, xs, ys, &weights, channels),
            Kind::Bytes { channels, .. } => {
                self.fractions(rows, xs, ys, &weights, channels);
                true
            }
        }
    }

    /// Sums of numbers that are a texel each. Where both along x lie side by side, as they do inside an image, one load has them.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn numbers(&self, rows: &Rows<'_>, xs: [Row; 2], ys: [Row; 2], weights: &[Row; 4]) -> bool {
        let apart = _mm256_cmpeq_epi32(_mm256_sub_epi32(xs[1], xs[0]), _mm256_set1_epi32(4));
        let side_by_side = _mm256_movemask_epi8(apart) == -1;
        let mut sum = [_mm256_setzero_pd(); 2];
        for (y, weights) in ys.into_iter().zip(weights.chunks_exact(2)) {
            let texels = if side_by_side {
                self.pairs(_mm256_add_epi32(xs[0], y))
            } else {
                xs.map(|x| self.words(_mm256_add_epi32(x, y), 0))
            };
            for (texel, &weight) in texels.into_iter().zip(weights) {
                add(&mut sum, weight, texel);
            }
        }
        let Some(texel) = rounded(sum) else { return false };
        let zero = _mm256_setzero_si256();
        rows.put(&[texel, zero, zero, zero]);
        true
    }

    /// Sums of vectors of numbers; false if one is infinite or none.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn vectors(&self, rows: &Rows<'_>, xs: [Row; 2], ys: [Row; 2], weights: &[Row; 4], channels: usize) -> bool {
        let mut texels = [_mm256_setzero_si256(); 4];
        for (i, texel) in texels.iter_mut().enumerate().take(channels) {
            let mut sum = [_mm256_setzero_pd(); 2];
            for (tap, &weight) in weights.iter().enumerate() {
                add(&mut sum, weight, self.words(_mm256_add_epi32(xs[tap & 1], ys[tap >> 1]), i));
            }
            let Some(rounded) = rounded(sum) else { return false };
            *texel = rounded;
        }
        rows.put(&texels);
        true
    }

    /// Sums of parts of 255, as parts of 65535.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn fractions(&self, rows: &Rows<'_>, xs: [Row; 2], ys: [Row; 2], weights: &[Row; 4], channels: usize) {
        let mut sums = [_mm256_set1_epi32(ONE / 2); 4];
        for (tap, &weight) in weights.iter().enumerate() {
            let words = self.bytes(_mm256_add_epi32(xs[tap & 1], ys[tap >> 1]), channels);
            let weight = _mm256_mullo_epi32(weight, _mm256_set1_epi32(257));
            for (sum, byte) in sums.iter_mut().zip(split(words)) {
                *sum = _mm256_add_epi32(*sum, _mm256_mullo_epi32(weight, byte));
            }
        }
        let part = |sum| _mm256_div_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32::<8>(sum)), _mm256_set1_ps(65535.0));
        rows.put(&sums.map(|sum| _mm256_castps_si256(part(sum))));
    }

    /// Texels of linear memory by index; false if one is not there.
    #[target_feature(enable = "avx2,fma")]
    fn fetch(&self, rows: &Rows<'_>) -> bool {
        let x = rows.word(0);
        // At most 2^28.
        if any_outside(x, self.size[0]) {
            return false;
        }
        rows.put(&self.values(_mm256_mullo_epi32(x, _mm256_set1_epi32(self.texel))));
        true
    }

    /// Coordinates in 256ths of texels, less `shift`, rounded down: in the first period where the image repeats, elsewhere not
    /// far outside the image.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn steps(&self, coordinates: __m256, axis: usize, shift: f64) -> Row {
        let low = self.half_of_steps(_mm256_castps256_ps128(coordinates), axis, shift);
        let high = self.half_of_steps(_mm256_extractf128_ps::<1>(coordinates), axis, shift);
        _mm256_set_m128i(high, low)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn half_of_steps(&self, coordinates: __m128, axis: usize, shift: f64) -> __m128i {
        let (n, one) = (f64::from(self.size[axis]), f64::from(ONE));
        let all = |number| _mm256_set1_pd(number);
        let x = _mm256_cvtps_pd(coordinates);
        let x = _mm256_and_pd(x, _mm256_cmp_pd::<_CMP_ORD_Q>(x, x));
        let at = if self.normalized {
            let fixed = _mm256_floor_pd(_mm256_mul_pd(x, all(WHOLE)));
            let period = match self.modes[axis] {
                AddressMode::Wrap => WHOLE,
                AddressMode::Mirror => 2.0 * WHOLE,
                AddressMode::Clamp | AddressMode::Border => 0.0,
            };
            let fixed = if period == 0.0 {
                fixed
            } else {
                // A division by a power of two.
                let periods = _mm256_floor_pd(_mm256_mul_pd(fixed, all(1.0 / period)));
                let inside = _mm256_sub_pd(fixed, _mm256_mul_pd(all(period), periods));
                let infinite = _mm256_cmp_pd::<_CMP_EQ_OQ>(_mm256_andnot_pd(all(-0.0), x), all(f64::INFINITY));
                _mm256_andnot_pd(infinite, inside)
            };
            _mm256_mul_pd(fixed, all(n * (one / WHOLE)))
        } else {
            // What is rounded now was not a step before.
            _mm256_mul_pd(x, all(one))
        };
        let step = _mm256_floor_pd(_mm256_sub_pd(at, all(shift)));
        // Two periods at most.
        let step = _mm256_max_pd(step, all(-2.0 * one));
        _mm256_cvttpd_epi32(_mm256_min_pd(step, all(2.0 * one * (n + 1.0))))
    }

    /// Texels that indices mean, at most one outside a period where the image repeats; none if one is outside a border.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn resolved(&self, at: Row, axis: usize) -> Option<Row> {
        let n = self.size[axis];
        let (all, last) = (_mm256_set1_epi32(n), _mm256_set1_epi32(n - 1));
        let below = _mm256_srai_epi32::<31>(at);
        match self.modes[axis] {
            AddressMode::Wrap => {
                let at = _mm256_add_epi32(at, _mm256_and_si256(below, all));
                Some(_mm256_sub_epi32(at, _mm256_and_si256(_mm256_cmpgt_epi32(at, last), all)))
            }
            AddressMode::Mirror => {
                let mirrored = _mm256_sub_epi32(_mm256_set1_epi32(2 * n - 1), at);
                let at = _mm256_blendv_epi8(at, mirrored, _mm256_cmpgt_epi32(at, last));
                // -1 - at.
                Some(_mm256_xor_si256(at, _mm256_srai_epi32::<31>(at)))
            }
            AddressMode::Border if any_outside(at, n) => None,
            AddressMode::Clamp | AddressMode::Border => Some(clamped(at, n - 1)),
        }
    }

    /// Where texels are, which are there.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn places(&self, offsets: Row) -> [*const u8; BLOCK] {
        let mut list = [0_i32; BLOCK];
        // SAFETY: the array is as long.
        unsafe { _mm256_storeu_si256(list.as_mut_ptr().cast(), offsets) };
        // SAFETY: the whole image lies in the window, and the texel in the image.
        list.map(|offset| unsafe { self.base.add(offset as u32 as usize) })
    }

    /// The words `i` of texels.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn words(&self, offsets: Row, i: usize) -> Row {
        let [a, b, c, d, e, f, g, h] = self.places(offsets).map(|at| {
            // SAFETY: the texel has such a word.
            let word = unsafe { at.cast::<i32>().add(i) };
            // SAFETY: as above; a page that is not there is a fault of the CTA.
            unsafe { word.read_volatile() }
        });
        _mm256_setr_epi32(a, b, c, d, e, f, g, h)
    }

    /// Texels of a word, and those behind them.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn pairs(&self, offsets: Row) -> [Row; 2] {
        let places = self.places(offsets);
        let two = |i: usize| {
            // SAFETY: as above; both texels are there. What others write meanwhile may be seen or not.
            let low = unsafe { _mm_loadl_epi64(places[i].cast()) };
            // SAFETY: as above.
            let high = unsafe { _mm_loadl_epi64(places[i + 1].cast()) };
            _mm_unpacklo_epi64(low, high)
        };
        // Lanes 0, 1, 4, 5, and 2, 3, 6, 7, as the halves are shuffled apart.
        let lanes = |low, high| _mm256_castsi256_ps(_mm256_set_m128i(two(high), two(low)));
        let (first, then) = (lanes(0, 4), lanes(2, 6));
        [_mm256_shuffle_ps::<0x88>(first, then), _mm256_shuffle_ps::<0xdd>(first, then)]
            .map(|row| _mm256_castps_si256(row))
    }

    /// Texels of so many bytes; those of channels that are not there are zero.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn bytes(&self, offsets: Row, channels: usize) -> Row {
        let [a, b, c, d, e, f, g, h] = self.places(offsets).map(|at| match channels {
            1 => {
                // SAFETY: as above.
                unsafe { at.read_volatile() }.into()
            }
            2 => {
                // SAFETY: as above.
                unsafe { at.cast::<u16>().read_volatile() }.into()
            }
            _ => {
                // SAFETY: as above.
                unsafe { at.cast::<i32>().read_volatile() }
            }
        });
        _mm256_setr_epi32(a, b, c, d, e, f, g, h)
    }

    /// The values of texels; those of channels that are not there are zero.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn values(&self, offsets: Row) -> [Row; 4] {
        match self.kind {
            Kind::Words(channels) => {
                let mut texels = [_mm256_setzero_si256(); 4];
                for (i, texel) in texels.iter_mut().enumerate().take(channels) {
                    *texel = self.words(offsets, i);
                }
                texels
            }
            Kind::Bytes { channels, normalized } => {
                let part = |byte| _mm256_div_ps(_mm256_cvtepi32_ps(byte), _mm256_set1_ps(255.0));
                let bytes = split(self.bytes(offsets, channels));
                if normalized { bytes.map(|byte| _mm256_castps_si256(part(byte))) } else { bytes }
            }
        }
    }
}

/// Bytes of words.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn split(words: Row) -> [Row; 4] {
    let low = _mm256_set1_epi32(0xff);
    [
        _mm256_and_si256(words, low),
        _mm256_and_si256(_mm256_srli_epi32::<8>(words), low),
        _mm256_and_si256(_mm256_srli_epi32::<16>(words), low),
        _mm256_srli_epi32::<24>(words),
    ]
}

/// From 0 to `last`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn clamped(row: Row, last: i32) -> Row {
    _mm256_min_epi32(_mm256_max_epi32(row, _mm256_setzero_si256()), _mm256_set1_epi32(last))
}

/// Is one of them not from 0 to before `n`?
#[inline]
#[target_feature(enable = "avx2,fma")]
fn any_outside(row: Row, n: i32) -> bool {
    let outside = _mm256_or_si256(row, _mm256_cmpgt_epi32(row, _mm256_set1_epi32(n - 1)));
    _mm256_movemask_ps(_mm256_castsi256_ps(outside)) != 0
}

/// Weights of four neighbours, x first, by those of the second ones along x and y.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn quads(right: Row, below: Row) -> [Row; 4] {
    let one = _mm256_set1_epi32(ONE);
    // Of numbers up to 256, rounded.
    let part = |a, b| {
        let product = _mm256_add_epi32(_mm256_madd_epi16(a, b), _mm256_set1_epi32(ONE / 2));
        _mm256_srli_epi32::<8>(product)
    };
    let left = _mm256_sub_epi32(one, right);
    let first = part(left, _mm256_sub_epi32(one, below));
    let last = part(right, below);
    [first, _mm256_sub_epi32(right, last), _mm256_sub_epi32(left, first), last]
}

/// Adds weighted numbers to sums in f64, the lower lanes' first. The products are exact.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(sums: &mut [__m256d; 2], weights: Row, numbers: Row) {
    let numbers = _mm256_castsi256_ps(numbers);
    let low = (_mm256_castsi256_si128(weights), _mm256_castps256_ps128(numbers));
    let high = (_mm256_extracti128_si256::<1>(weights), _mm256_extractf128_ps::<1>(numbers));
    for (sum, (weight, number)) in sums.iter_mut().zip([low, high]) {
        *sum = _mm256_fmadd_pd(_mm256_cvtepi32_pd(weight), _mm256_cvtps_pd(number), *sum);
    }
}

/// Sums in 256ths as f32, away from zero where two are equally near; none if one is infinite or none.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn rounded(sums: [__m256d; 2]) -> Option<Row> {
    let mut finite = 0xf;
    let mut halves = [_mm_setzero_ps(); 2];
    for (half, sum) in halves.iter_mut().zip(sums) {
        let sum = _mm256_mul_pd(sum, _mm256_set1_pd(1.0 / f64::from(ONE)));
        let size = _mm256_andnot_pd(_mm256_set1_pd(-0.0), sum);
        finite &= _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LT_OQ>(size, _mm256_set1_pd(f64::INFINITY)));
        let bits = _mm256_add_epi64(_mm256_castpd_si256(sum), _mm256_set1_epi64x(1 << 28));
        let bits = _mm256_and_si256(bits, _mm256_set1_epi64x(-1 << 29));
        *half = _mm256_cvtpd_ps(_mm256_castsi256_pd(bits));
    }
    (finite == 0xf).then(|| _mm256_castps_si256(_mm256_set_m128(halves[1], halves[0])))
}
