//! The usual textures, several lanes at once: two dimensions, of one level, one format and one handle for all lanes; and
//! texels of linear memory by their index. The twin is [`texture::Access::perform`]; both give the same, bit by bit.
//!
//! Loops over arrays of as many elements as a block has lanes become vector instructions. A block that needs anything else (a
//! lane that is not there, a border) is left to the twin.

use std::sync::LazyLock;

use ptx::math::NAN_F32;
use texture::{Access, AddressMode, Filter, Format, Geometry, Mip, Object, Shape};

use super::Lanes;
use crate::abi::context::Context;

/// Lanes of a block, where a chunk has as many.
const BLOCK: usize = 8;

/// A number for each lane of a block.
type Row<T, const N: usize> = [T; N];

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
struct Plane {
    /// Host address of its first texel.
    base: *const u8,
    pitch: usize,
    texel: usize,
    kind: Kind,
    /// Width and height.
    size: [u32; 2],
    modes: [AddressMode; 2],
    normalized: bool,
    linear: bool,
}

/// Bits of a place behind the point, as a factor.
const WHOLE: f64 = (1 << 21) as f64;
/// Weights are 256ths.
const ONE: i32 = 256;

static AVAILABLE: LazyLock<bool> = LazyLock::new(|| std::arch::is_x86_feature_detected!("avx2"));

/// Performs the access for as many of the lanes `bits` as can be here; gives those that are left.
pub(super) fn perform(ctx: *mut Context, access: &Access, object: &Object, lanes: &Lanes, bits: u32) -> u32 {
    let index = match *access {
        Access::Sample { geometry: Geometry::D2, integer: false, mip: Mip::Base, offset: false } => false,
        Access::Sample { geometry: Geometry::D1, integer: true, mip: Mip::Base, offset: false } => true,
        _ => return bits,
    };
    if !*AVAILABLE {
        return bits;
    }
    let Some(plane) = Plane::new(ctx, object, index) else { return bits };
    let block = BLOCK.min(lanes.lanes);
    let mut left = bits;
    for first in (0..lanes.lanes).step_by(block) {
        let all = if block == BLOCK { 0xff } else { 0xf } << first;
        if bits & all != all {
            continue;
        }
        let done = if block == BLOCK {
            // SAFETY: the processor has been asked.
            unsafe { plane.block::<BLOCK>(lanes, first, index) }
        } else {
            // SAFETY: as above.
            unsafe { plane.block::<4>(lanes, first, index) }
        };
        if done {
            left &= !all;
        }
    }
    left
}

impl Plane {
    fn new(ctx: *mut Context, object: &Object, index: bool) -> Option<Plane> {
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
        if bytes > context.window_bytes || offset > context.window_bytes - bytes {
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
            pitch: level.pitch as usize,
            texel: image.texel() as usize,
            kind,
            size: [level.width, level.height],
            modes: [mode(sampler.address[0]), mode(sampler.address[1])],
            normalized: sampler.normalized,
            linear,
        })
    }

    /// Performs the access for a block; false if the twin has to.
    #[target_feature(enable = "avx2")]
    fn block<const N: usize>(&self, lanes: &Lanes, first: usize, index: bool) -> bool {
        if index { self.fetch::<N>(lanes, first) } else { self.sample::<N>(lanes, first) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn sample<const N: usize>(&self, lanes: &Lanes, first: usize) -> bool {
        let coordinates = [0, 1].map(|axis| lanes.read::<Row<f32, N>>(lanes.rows.word(axis) + 4 * first));
        if !self.linear {
            let Some(x) = self.nearest(coordinates[0], 0) else { return false };
            let Some(y) = self.nearest(coordinates[1], 1) else { return false };
            let texels = self.valued(self.load(x, y));
            self.put(lanes, first, texels);
            return true;
        }
        let Some((xs, alpha)) = self.between(coordinates[0], 0) else { return false };
        let Some((ys, beta)) = self.between(coordinates[1], 1) else { return false };
        let taps = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(i, j)| self.load(xs[i], ys[j]));
        let weights = quads(alpha, beta);
        let mut texels = [[0; N]; 4];
        for (channel, texels) in texels.iter_mut().enumerate().take(self.channels()) {
            let taps = taps.each_ref().map(|tap| tap[channel]);
            *texels = match self.kind {
                Kind::Words(_) => floats(&weights, &taps),
                Kind::Bytes { .. } => fractions(&weights, &taps),
            };
        }
        self.put(lanes, first, texels);
        true
    }

    /// Texels of linear memory by index.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fetch<const N: usize>(&self, lanes: &Lanes, first: usize) -> bool {
        let x = lanes.read::<Row<i32, N>>(lanes.rows.word(0) + 4 * first);
        // At most 2^28.
        let width = self.size[0] as i32;
        if x.iter().any(|x| !(0..width).contains(x)) {
            return false;
        }
        let texels = self.valued(self.load(x, [0; N]));
        self.put(lanes, first, texels);
        true
    }

    fn channels(&self) -> usize {
        match self.kind {
            Kind::Words(channels) | Kind::Bytes { channels, .. } => channels,
        }
    }

    /// Values of texels: bytes may be parts of one.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn valued<const N: usize>(&self, mut texels: [Row<u32, N>; 4]) -> [Row<u32, N>; 4] {
        if let Kind::Bytes { normalized: true, .. } = self.kind {
            for row in &mut texels {
                for value in row {
                    *value = (*value as f32 / 255.0).to_bits();
                }
            }
        }
        texels
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn put<const N: usize>(&self, lanes: &Lanes, first: usize, texels: [Row<u32, N>; 4]) {
        for (i, row) in texels.into_iter().enumerate() {
            lanes.write(lanes.rows.result(i) + 4 * first, row);
        }
    }

    /// Coordinates as places in fixed point: in the first period where the image repeats.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn places<const N: usize>(&self, coordinates: Row<f32, N>, axis: usize) -> Row<f64, N> {
        let n = f64::from(self.size[axis]);
        let (period, scale) = match self.modes[axis] {
            _ if !self.normalized => (0.0, 1.0),
            AddressMode::Wrap => (WHOLE, n),
            AddressMode::Mirror => (2.0 * WHOLE, n),
            AddressMode::Clamp | AddressMode::Border => (0.0, n),
        };
        let mut at = [0.0; N];
        for lane in 0..N {
            let x = f64::from(coordinates[lane]);
            let x = if x.is_nan() { 0.0 } else { (x * WHOLE).floor() };
            at[lane] = x * scale;
            if period != 0.0 {
                let inside = (x - period * (x / period).floor()) * n;
                at[lane] = if x.is_finite() { inside } else { 0.0 };
            }
        }
        at
    }

    /// The texels at coordinates; none if one is outside a border.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn nearest<const N: usize>(&self, coordinates: Row<f32, N>, axis: usize) -> Option<Row<i32, N>> {
        let mut at = self.places(coordinates, axis);
        for at in &mut at {
            *at = (*at * (1.0 / WHOLE)).floor();
        }
        self.resolved(at, axis)
    }

    /// The texels before and behind coordinates, and the weight of the latter.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn between<const N: usize>(
        &self,
        coordinates: Row<f32, N>,
        axis: usize,
    ) -> Option<([Row<i32, N>; 2], Row<i32, N>)> {
        let at = self.places(coordinates, axis);
        let one = f64::from(ONE);
        // Steps between outermost centres, where places are clamped.
        let (least, most) = match self.modes[axis] {
            AddressMode::Clamp => (0.0, f64::from(self.size[axis] - 1) * one),
            _ => (f64::NEG_INFINITY, f64::INFINITY),
        };
        let (mut before, mut behind, mut weight) = ([0.0; N], [0.0; N], [0; N]);
        for lane in 0..N {
            let steps = ((at[lane] - 0.5 * WHOLE) * (one / WHOLE) + 0.5).floor();
            let steps = steps.max(least).min(most);
            let floor = (steps * (1.0 / one)).floor();
            let rest = steps - floor * one;
            before[lane] = floor;
            behind[lane] = floor + 1.0;
            // Of infinity there is none.
            weight[lane] = integer(if rest.is_nan() { 0.0 } else { rest });
        }
        Some(([self.resolved(before, axis)?, self.resolved(behind, axis)?], weight))
    }

    /// Indices from whole numbers, at most one outside a period where the image repeats; none if one is outside a border.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn resolved<const N: usize>(&self, at: Row<f64, N>, axis: usize) -> Option<Row<i32, N>> {
        let n = f64::from(self.size[axis]);
        let mut index = [0; N];
        match self.modes[axis] {
            AddressMode::Wrap => {
                for lane in 0..N {
                    let at = at[lane];
                    let at = if at < 0.0 { at + n } else { at };
                    index[lane] = (if at >= n { at - n } else { at }) as i32;
                }
            }
            AddressMode::Mirror => {
                for lane in 0..N {
                    let at = at[lane];
                    let at = if at >= n { 2.0 * n - 1.0 - at } else { at };
                    index[lane] = (if at < 0.0 { -1.0 - at } else { at }) as i32;
                }
            }
            AddressMode::Border if at.iter().any(|at| !(0.0..n).contains(at)) => return None,
            AddressMode::Clamp | AddressMode::Border => {
                for lane in 0..N {
                    index[lane] = integer(at[lane].max(0.0).min(n - 1.0));
                }
            }
        }
        Some(index)
    }

    /// Reads texels, which are there: bits of channels; the others are zero.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load<const N: usize>(&self, x: Row<i32, N>, y: Row<i32, N>) -> [Row<u32, N>; 4] {
        let mut texels = [[0; N]; 4];
        let at = |lane: usize| {
            let (x, y) = (x[lane] as u32 as usize, y[lane] as u32 as usize);
            debug_assert!(x < self.size[0] as usize && y < self.size[1] as usize);
            // SAFETY: the whole image lies in the window, and the texel in the image.
            unsafe { self.base.add(y * self.pitch + x * self.texel) }
        };
        match self.kind {
            // The number of words is known to the compiler, so that rows stay in registers.
            Kind::Words(1) => words::<1, N>(&mut texels, at),
            Kind::Words(2) => words::<2, N>(&mut texels, at),
            Kind::Words(_) => words::<4, N>(&mut texels, at),
            Kind::Bytes { channels, .. } => {
                let mut words = [0; N];
                for (lane, word) in words.iter_mut().enumerate() {
                    let at = at(lane);
                    *word = match channels {
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
                            unsafe { at.cast::<u32>().read_volatile() }
                        }
                    };
                }
                for (i, row) in texels.iter_mut().enumerate().take(channels) {
                    for lane in 0..N {
                        row[lane] = words[lane] >> (8 * i) & 0xff;
                    }
                }
            }
        }
        texels
    }
}

/// Weights of four neighbours, x first, by those of the second ones along x and y.
#[inline]
#[target_feature(enable = "avx2")]
fn quads<const N: usize>(alpha: Row<i32, N>, beta: Row<i32, N>) -> [Row<i32, N>; 4] {
    let mut weights = [[0; N]; 4];
    for lane in 0..N {
        let (right, beta) = (alpha[lane], beta[lane]);
        let left = ONE - right;
        let first = (left * (ONE - beta) + ONE / 2) >> 8;
        let last = (right * beta + ONE / 2) >> 8;
        weights[0][lane] = first;
        weights[1][lane] = right - last;
        weights[2][lane] = left - first;
        weights[3][lane] = last;
    }
    weights
}

/// Sums of numbers, in f64; the last step rounds away from zero where two are equally near.
#[inline]
#[target_feature(enable = "avx2")]
fn floats<const N: usize>(weights: &[Row<i32, N>; 4], taps: &[Row<u32, N>; 4]) -> Row<u32, N> {
    let mut sums = [0.0_f64; N];
    for (weights, taps) in weights.iter().zip(taps) {
        for lane in 0..N {
            let part = f64::from(weights[lane]) * f64::from(f32::from_bits(taps[lane]));
            sums[lane] += if weights[lane] == 0 { 0.0 } else { part };
        }
    }
    let mut texels = [0; N];
    for lane in 0..N {
        let sum = sums[lane] * (1.0 / f64::from(ONE));
        let bits = sum.to_bits().wrapping_add(1 << 28) & (u64::MAX << 29);
        let rounded = (f64::from_bits(bits) as f32).to_bits();
        texels[lane] = if sum.is_nan() { NAN_F32 } else { rounded };
    }
    texels
}

/// Sums of parts of 255, as parts of 65535.
#[inline]
#[target_feature(enable = "avx2")]
fn fractions<const N: usize>(weights: &[Row<i32, N>; 4], taps: &[Row<u32, N>; 4]) -> Row<u32, N> {
    let mut texels = [0; N];
    for lane in 0..N {
        let mut sum = ONE / 2;
        for (weights, taps) in weights.iter().zip(taps) {
            sum += weights[lane] * taps[lane] as i32 * 257;
        }
        texels[lane] = ((sum >> 8) as f32 / 65535.0).to_bits();
    }
    texels
}

/// Reads the words of texels at addresses that `at` gives.
#[inline]
#[target_feature(enable = "avx2")]
fn words<const WORDS: usize, const N: usize>(texels: &mut [Row<u32, N>; 4], at: impl Fn(usize) -> *const u8) {
    for lane in 0..N {
        let at = at(lane).cast::<u32>();
        for (i, row) in texels.iter_mut().enumerate().take(WORDS) {
            // SAFETY: the texel has so many words; a page that is not there is a fault of the CTA.
            let word = unsafe { at.add(i) };
            // SAFETY: as above.
            row[lane] = unsafe { word.read_volatile() };
        }
    }
}

/// A whole number from 0 to 2^31 - 1, or a fraction of one, as an integer.
#[inline]
fn integer(x: f64) -> i32 {
    debug_assert!((0.0..=f64::from(i32::MAX)).contains(&x));
    // SAFETY: it is finite, and in the range of the result.
    unsafe { x.to_int_unchecked() }
}
