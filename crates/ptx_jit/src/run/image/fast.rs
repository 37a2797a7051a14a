//! The usual textures, several lanes at once: two dimensions, of one level, one format and one handle for all lanes; and
//! texels of linear memory by their index. The twin is [`texture::Access::perform`]; both give the same, bit by bit.
//!
//! Loops over arrays of as many elements as a block has lanes become vector instructions. A block that needs anything else (a
//! lane that is not there, a border) is left to the twin.

use std::sync::LazyLock;

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
            let Some(x) = self.nearest(&coordinates[0], 0) else { return false };
            let Some(y) = self.nearest(&coordinates[1], 1) else { return false };
            let texels = self.valued(self.load(&x, &y));
            self.put(lanes, first, &texels);
            return true;
        }
        let Some((xs, alpha)) = self.between(&coordinates[0], 0) else { return false };
        let Some((ys, beta)) = self.between(&coordinates[1], 1) else { return false };
        let weights = quads(&alpha, &beta);
        // The number of channels is known to the compiler, so that rows stay in registers.
        match self.kind {
            Kind::Words(1) => self.floats::<1, N>(lanes, first, &xs, &ys, &weights),
            Kind::Words(2) => self.floats::<2, N>(lanes, first, &xs, &ys, &weights),
            Kind::Words(_) => self.floats::<4, N>(lanes, first, &xs, &ys, &weights),
            Kind::Bytes { channels, .. } => {
                self.fractions(lanes, first, &xs, &ys, &weights, channels);
                true
            }
        }
    }

    /// Sums of numbers, in f64; the last step rounds away from zero where two are equally near; false if one is
    /// infinite or none.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn floats<const WORDS: usize, const N: usize>(
        &self,
        lanes: &Lanes,
        first: usize,
        xs: &[Row<i32, N>; 2],
        ys: &[Row<i32, N>; 2],
        weights: &[Row<i32, N>; 4],
    ) -> bool {
        let mut sums = [[0.0_f64; N]; WORDS];
        for (tap, weights) in weights.iter().enumerate() {
            let texels = self.words::<WORDS, N>(&xs[tap & 1], &ys[tap >> 1]);
            for (sums, texels) in sums.iter_mut().zip(&texels) {
                for lane in 0..N {
                    sums[lane] += f64::from(weights[lane]) * f64::from(f32::from_bits(texels[lane]));
                }
            }
        }
        let mut texels = [[0; N]; 4];
        let mut finite = true;
        for (texels, sums) in texels.iter_mut().zip(&sums) {
            for lane in 0..N {
                let sum = sums[lane] * (1.0 / f64::from(ONE));
                finite &= sum.abs() < f64::INFINITY;
                let bits = sum.to_bits().wrapping_add(1 << 28) & (u64::MAX << 29);
                texels[lane] = (f64::from_bits(bits) as f32).to_bits();
            }
        }
        if finite {
            self.put(lanes, first, &texels);
        }
        finite
    }

    /// Sums of parts of 255, as parts of 65535.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fractions<const N: usize>(
        &self,
        lanes: &Lanes,
        first: usize,
        xs: &[Row<i32, N>; 2],
        ys: &[Row<i32, N>; 2],
        weights: &[Row<i32, N>; 4],
        channels: usize,
    ) {
        let mut sums = [[ONE / 2; N]; 4];
        for (tap, weights) in weights.iter().enumerate() {
            let words = self.bytes(&xs[tap & 1], &ys[tap >> 1], channels);
            for (channel, sums) in sums.iter_mut().enumerate() {
                for lane in 0..N {
                    sums[lane] += weights[lane] * (words[lane] >> (8 * channel) & 0xff) as i32 * 257;
                }
            }
        }
        let texels = sums.map(|sums| sums.map(|sum| ((sum >> 8) as f32 / 65535.0).to_bits()));
        self.put(lanes, first, &texels);
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
        let texels = self.valued(self.load(&x, &[0; N]));
        self.put(lanes, first, &texels);
        true
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
    fn put<const N: usize>(&self, lanes: &Lanes, first: usize, texels: &[Row<u32, N>; 4]) {
        for (i, row) in texels.iter().enumerate() {
            lanes.write(lanes.rows.result(i) + 4 * first, *row);
        }
    }

    /// Coordinates in 256ths of texels, less `shift`, rounded down: in the first period where the image repeats, elsewhere not
    /// far outside the image.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn steps<const N: usize>(&self, coordinates: &Row<f32, N>, axis: usize, shift: f64) -> Row<i32, N> {
        let (n, one) = (f64::from(self.size[axis]), f64::from(ONE));
        let period = match self.modes[axis] {
            AddressMode::Wrap => WHOLE,
            AddressMode::Mirror => 2.0 * WHOLE,
            AddressMode::Clamp | AddressMode::Border => 0.0,
        };
        // Two periods at most.
        let (least, most) = (-2.0 * one, 2.0 * one * (n + 1.0));
        let mut steps = [0; N];
        for lane in 0..N {
            let x = f64::from(coordinates[lane]);
            let x = if x.is_nan() { 0.0 } else { x };
            let at = if self.normalized {
                let fixed = (x * WHOLE).floor();
                let inside = fixed - period * (fixed / period).floor();
                let fixed = if period == 0.0 { fixed } else { inside };
                let fixed = if period == 0.0 || x.abs() < f64::INFINITY { fixed } else { 0.0 };
                fixed * (n * (one / WHOLE))
            } else {
                // What is rounded now was not a step before.
                x * one
            };
            let step = (at - shift).floor();
            let step = if step > least { step } else { least };
            steps[lane] = integer(if step < most { step } else { most });
        }
        steps
    }

    /// The texels at coordinates; none if one is outside a border.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn nearest<const N: usize>(&self, coordinates: &Row<f32, N>, axis: usize) -> Option<Row<i32, N>> {
        self.resolved(&self.steps(coordinates, axis, 0.0).map(|step| step >> 8), axis)
    }

    /// The texels before and behind coordinates, and the weight of the latter.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn between<const N: usize>(
        &self,
        coordinates: &Row<f32, N>,
        axis: usize,
    ) -> Option<([Row<i32, N>; 2], Row<i32, N>)> {
        // From the first texel's centre on, to the nearest step.
        let mut steps = self.steps(coordinates, axis, 0.5 * f64::from(ONE) - 0.5);
        if self.modes[axis] == AddressMode::Clamp {
            // At most 2^17 texels.
            let last = (self.size[axis] as i32 - 1) * ONE;
            steps = steps.map(|step| step.max(0).min(last));
        }
        let before = steps.map(|step| step >> 8);
        let behind = before.map(|before| before + 1);
        let weights = steps.map(|step| step & (ONE - 1));
        Some(([self.resolved(&before, axis)?, self.resolved(&behind, axis)?], weights))
    }

    /// Texels that indices mean, at most one outside a period where the image repeats; none if one is outside a border.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn resolved<const N: usize>(&self, at: &Row<i32, N>, axis: usize) -> Option<Row<i32, N>> {
        let n = self.size[axis] as i32;
        match self.modes[axis] {
            AddressMode::Wrap => Some(at.map(|at| {
                let at = if at < 0 { at + n } else { at };
                if at >= n { at - n } else { at }
            })),
            AddressMode::Mirror => Some(at.map(|at| {
                let at = if at >= n { 2 * n - 1 - at } else { at };
                if at < 0 { -1 - at } else { at }
            })),
            AddressMode::Border if at.iter().any(|at| !(0..n).contains(at)) => None,
            AddressMode::Clamp | AddressMode::Border => Some(at.map(|at| at.max(0).min(n - 1))),
        }
    }

    /// Where a texel is, which is there.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn at(&self, x: i32, y: i32) -> *const u8 {
        let (x, y) = (x as u32 as usize, y as u32 as usize);
        debug_assert!(x < self.size[0] as usize && y < self.size[1] as usize);
        // SAFETY: the whole image lies in the window, and the texel in the image.
        unsafe { self.base.add(y * self.pitch + x * self.texel) }
    }

    /// Reads texels, which are there: bits of channels; the others are zero.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load<const N: usize>(&self, x: &Row<i32, N>, y: &Row<i32, N>) -> [Row<u32, N>; 4] {
        let mut texels = [[0; N]; 4];
        match self.kind {
            Kind::Words(1) => texels[..1].copy_from_slice(&self.words::<1, N>(x, y)),
            Kind::Words(2) => texels[..2].copy_from_slice(&self.words::<2, N>(x, y)),
            Kind::Words(_) => texels = self.words::<4, N>(x, y),
            Kind::Bytes { channels, .. } => {
                let words = self.bytes(x, y, channels);
                for (i, row) in texels.iter_mut().enumerate() {
                    *row = words.map(|word| word >> (8 * i) & 0xff);
                }
            }
        }
        texels
    }

    /// Reads texels of so many words.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn words<const WORDS: usize, const N: usize>(&self, x: &Row<i32, N>, y: &Row<i32, N>) -> [Row<u32, N>; WORDS] {
        let mut texels = [[0; N]; WORDS];
        for lane in 0..N {
            let at = self.at(x[lane], y[lane]).cast::<u32>();
            for (i, row) in texels.iter_mut().enumerate() {
                // SAFETY: the texel has so many words; a page that is not there is a fault of the CTA.
                let word = unsafe { at.add(i) };
                // SAFETY: as above.
                row[lane] = unsafe { word.read_volatile() };
            }
        }
        texels
    }

    /// Reads texels of so many bytes; those of channels that are not there are zero.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes<const N: usize>(&self, x: &Row<i32, N>, y: &Row<i32, N>, channels: usize) -> Row<u32, N> {
        let mut words = [0; N];
        for lane in 0..N {
            let at = self.at(x[lane], y[lane]);
            words[lane] = match channels {
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
        words
    }
}

/// Weights of four neighbours, x first, by those of the second ones along x and y.
#[inline]
#[target_feature(enable = "avx2")]
fn quads<const N: usize>(alpha: &Row<i32, N>, beta: &Row<i32, N>) -> [Row<i32, N>; 4] {
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

/// A whole number of 32 bits as an integer.
#[inline]
fn integer(x: f64) -> i32 {
    debug_assert!((f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x));
    // SAFETY: it is finite, and in the range of the result.
    unsafe { x.to_int_unchecked() }
}
