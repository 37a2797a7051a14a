//! What `tex` and `tld4` give.
//!
//! The formulas are those of the CUDA programming guide. Where they leave something open, this is so:
//!
//! - coordinates are taken as they are (f32), and computed with in f64, exactly but for those of cubes, which are the quotient
//!   of two exact sums; NaN is 0, and so is infinity where the image repeats;
//! - the weights of linear filtering are rounded to 8 bits behind the point, to even where two are equally near;
//! - products of weights are exact; each product of a weight and a texel, and each sum, is rounded to f32, in the order of the
//!   guide's formula; a texel of weight 0 does not count, whatever it is, but it is read; a NaN is the canonical one;
//! - where coordinates are clamped it is texels' indices that are, one by one;
//! - channels that a texel does not have are 0, the last one 1.

use half::f16;

use crate::access::Memory;
use crate::cube;
use crate::descriptor::{AddressMode, Filter, Format, Image, Sampler};
use crate::layout::{Level, Shape};
use crate::object::Object;

/// Where a texture is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The coordinates are a direction.
    pub(crate) cube: bool,
    pub(crate) layer: u32,
    /// Bits of f32, or of i32 if these are indices.
    pub(crate) at: [u32; 3],
    pub(crate) integer: bool,
    pub(crate) offset: [i64; 3],
}

/// At which level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail {
    Base,
    Level(f64),
    Gradient([f32; 3], [f32; 3]),
}

/// One, as a weight.
pub(crate) const ONE: u32 = 256;
/// The canonical NaN.
const NAN: u32 = 0x7fff_ffff;

/// A texel's four channels as 32 bits each: f32, or integers.
pub(crate) type Texel = [u32; 4];

/// Along one axis: the two texels next to a coordinate, none where the border is, and the weight of the second one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Axis {
    pub(crate) texels: [Option<u32>; 2],
    pub(crate) weight: u32,
}

/// The texture's value.
pub(crate) fn sample<M: Memory>(
    object: &Object,
    request: &Request,
    detail: Detail,
    memory: &mut M,
) -> Result<Texel, M::Fault> {
    let sampler = object.sampler().copied().unwrap_or_default();
    let (level, weight) = levels(object, &sampler, request, detail);
    let texel = on_level(object, &sampler, request, level, memory)?;
    if weight == 0 {
        return Ok(texel);
    }
    let next = on_level(object, &sampler, request, level + 1, memory)?;
    Ok(mixed(&[(ONE - weight, texel), (weight, next)], ONE))
}

/// The first of two levels, and the weight of the second.
fn levels(object: &Object, sampler: &Sampler, request: &Request, detail: Detail) -> (u8, u32) {
    let last = object.levels() - 1;
    let detail = match detail {
        _ if last == 0 => return (0, 0),
        Detail::Base => return (0, 0),
        Detail::Level(level) => level,
        Detail::Gradient(dx, dy) => log2(steepest(object, sampler, request, dx, dy)),
    };
    let [least, greatest] = sampler.level_clamp;
    let detail = if detail.is_nan() { 0.0 } else { detail };
    // Their sum is no NaN, unless infinities cancel each other.
    let detail = (detail + f64::from(sampler.mip_bias)).max(least.into()).min(greatest.into());
    let detail = detail.max(0.0).min(last.into());
    match sampler.mip_filter {
        Filter::Point => ((detail + 0.5).floor() as u8, 0),
        Filter::Linear => {
            let level = detail.floor();
            let weight = ((detail - level) * f64::from(ONE)).round_ties_even() as u32;
            let level = level as u8;
            if weight == ONE { (level + 1, 0) } else { (level, weight) }
        }
    }
}

/// The square of the longer of two steps, in texels of the first level.
fn steepest(object: &Object, sampler: &Sampler, request: &Request, dx: [f32; 3], dy: [f32; 3]) -> f64 {
    let Level { width, height, depth, .. } = object.level(0);
    if request.cube {
        let at = request.at.map(|bits| f64::from(f32::from_bits(bits)));
        let length = |d: [f32; 3]| cube::step(at, d.map(f64::from), width);
        return length(dx).max(length(dy));
    }
    let sizes = if sampler.normalized { [width, height, depth].map(f64::from) } else { [1.0; 3] };
    let length = |d: [f32; 3]| {
        let part = |i: usize| (f64::from(d[i]) * sizes[i]) * (f64::from(d[i]) * sizes[i]);
        part(0) + part(1) + part(2)
    };
    length(dx).max(length(dy))
}

/// Half the base-2 logarithm of a square, rounded down to 16 bits behind the point; far below 0 for 0 and NaN.
fn log2(square: f64) -> f64 {
    let bits = square.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32;
    if exponent == 0 || exponent == 0x7ff {
        return if square == f64::INFINITY { 1024.0 } else { -1024.0 };
    }
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let mut log = f64::from(exponent - 1023);
    let mut digit = 0.5;
    for _ in 0..17 {
        mantissa *= mantissa;
        if mantissa >= 2.0 {
            mantissa *= 0.5;
            log += digit;
        }
        digit *= 0.5;
    }
    log * 0.5
}

/// The value on one level.
fn on_level<M: Memory>(
    object: &Object,
    sampler: &Sampler,
    request: &Request,
    level: u8,
    memory: &mut M,
) -> Result<Texel, M::Fault> {
    let image = object.image();
    let linear = sampler.filter == Filter::Linear && !request.integer && image.shape != Shape::Linear;
    let foot = Footprint::new(object, sampler, request, level, linear);
    if !linear {
        let at = foot.axes.map(|axis| axis.texels[0]);
        return foot.texel(object, sampler, at, memory);
    }
    let axes = foot.dimensions;
    let mut taps = [(0, [0; 4]); 8];
    let mut missing = None;
    for (tap, slot) in taps[..1 << axes].iter_mut().enumerate() {
        let mut weight = 1;
        let mut at = foot.axes.map(|axis| axis.texels[0]);
        for (axis, Axis { texels, weight: second }) in foot.axes.iter().enumerate().take(axes) {
            let is_second = tap >> axis & 1 != 0;
            weight *= if is_second { *second } else { ONE - second };
            at[axis] = texels[usize::from(is_second)];
        }
        slot.0 = weight;
        match foot.seam(at) {
            Seam::Corner => missing = Some(tap),
            Seam::At(at) => slot.1 = foot.texel(object, sampler, at, memory)?,
        }
    }
    if let Some(missing) = missing {
        // Three faces meet: what is missing is the mean of the other three.
        let others = [1, 2, 3].map(|i| taps[(missing + i) % 4].1);
        taps[missing].1 = [0, 1, 2, 3].map(|c| {
            let [a, b, c] = others.map(|texel| f32::from_bits(texel[c]));
            canonical((a + b + c) / 3.0)
        });
    }
    Ok(mixed(&taps[..1 << axes], ONE.pow(axes as u32)))
}

/// Four texels' component: those that linear filtering would use, counter-clockwise from the one with the lower x and the
/// higher y.
pub(crate) fn gather<M: Memory>(
    object: &Object,
    request: &Request,
    component: u8,
    memory: &mut M,
) -> Result<Texel, M::Fault> {
    let sampler = object.sampler().copied().unwrap_or_default();
    let foot = Footprint::new(object, &sampler, request, 0, true);
    let mut texels = [0; 4];
    let mut missing = None;
    for (i, (x, y)) in [(0, 1), (1, 1), (1, 0), (0, 0)].into_iter().enumerate() {
        let at = [foot.axes[0].texels[x], foot.axes[1].texels[y], foot.axes[2].texels[0]];
        match foot.seam(at) {
            Seam::Corner => missing = Some(i),
            Seam::At(at) => texels[i] = foot.texel(object, &sampler, at, memory)?[usize::from(component & 3)],
        }
    }
    if let Some(missing) = missing {
        // There is no mean of integers: the one next to it in both cases.
        texels[missing] = texels[(missing + 1) % 4];
    }
    Ok(texels)
}

/// The texels around a place on a level.
struct Footprint {
    level: Level,
    axes: [Axis; 3],
    /// Axes that are filtered along.
    dimensions: usize,
    /// Its address, of the face or layer.
    slice: u64,
    /// Where faces are joined: the face, and the address of face 0.
    faces: Option<(u8, u64)>,
}

/// Where a texel is once a cube's edges are joined.
enum Seam {
    At([Option<u32>; 3]),
    /// Nowhere: at a corner.
    Corner,
}

impl Footprint {
    fn new(object: &Object, sampler: &Sampler, request: &Request, level: u8, linear: bool) -> Footprint {
        let image = object.image();
        let level = object.level(level);
        let sizes = [level.width, level.height, level.depth];
        if request.cube && image.shape.is_cube() {
            let at = request.at.map(|bits| f64::from(f32::from_bits(bits)));
            let (face, along) = cube::face(at, level.width);
            let last = (object.slices(&level) / 6).saturating_sub(1);
            let cube = u64::from(request.layer.min(last)) * 6;
            let first = level.offset + cube * level.slice;
            let joined = sampler.seamless && linear;
            let axis = |i: usize| {
                // Address modes are for faces that are not joined.
                let mode = if sampler.seamless { AddressMode::Clamp } else { sampler.address[i] };
                if !joined {
                    // The far edge of a face that repeats is its near one.
                    let repeats = mode == AddressMode::Wrap;
                    let at = if repeats { along[i] % f64::from(sizes[i]) } else { along[i] };
                    return axis(at, mode, sizes[i], 0, linear);
                }
                let Axis { weight, .. } = axis(along[i], mode, sizes[i], 0, linear);
                // Indices from -1 to the width, one more than they are.
                let first = ((along[i] - 0.5).floor() + 1.0).clamp(0.0, f64::from(level.width)) as u32;
                Axis { texels: [Some(first), Some(first + 1)], weight }
            };
            let none = Axis { texels: [Some(0); 2], weight: 0 };
            let slice = first + u64::from(face) * level.slice;
            let faces = joined.then_some((face, first));
            return Footprint { level, axes: [axis(0), axis(1), none], dimensions: 2, slice, faces };
        }
        let dimensions = match image.shape {
            Shape::Linear | Shape::D1 | Shape::D1Layered => 1,
            Shape::Pitched | Shape::D2 | Shape::D2Layered | Shape::Cube | Shape::CubeLayered => 2,
            Shape::D3 => 3,
        };
        let mut axes = [Axis { texels: [Some(0); 2], weight: 0 }; 3];
        for (i, slot) in axes.iter_mut().enumerate().take(dimensions) {
            let mode = if image.shape == Shape::Linear { AddressMode::Border } else { sampler.address[i] };
            let normalized = sampler.normalized && image.shape != Shape::Linear;
            *slot = if request.integer {
                let at = i64::from(request.at[i].cast_signed()).saturating_add(request.offset[i]);
                let texel = resolved(at, unrepeated(mode), sizes[i]);
                Axis { texels: [texel; 2], weight: 0 }
            } else {
                let x = f64::from(f32::from_bits(request.at[i]));
                let (at, mode) = scaled(x, mode, sizes[i], normalized);
                axis(at, mode, sizes[i], request.offset[i], linear)
            };
        }
        let layers = if image.shape.is_layered() { object.slices(&level) } else { 1 };
        let slice = level.offset + u64::from(request.layer.min(layers - 1)) * level.slice;
        Footprint { level, axes, dimensions, slice, faces: None }
    }

    /// Where the texel at these indices is, which are one more than they are where faces are joined.
    fn seam(&self, at: [Option<u32>; 3]) -> Seam {
        let (Some((face, _)), [Some(x), Some(y), _]) = (self.faces, at) else { return Seam::At(at) };
        match cube::joined(face, [x, y].map(|i| i64::from(i) - 1), self.level.width) {
            // The face is where the third index would be.
            Some((face, [x, y])) => Seam::At([Some(x), Some(y), Some(face.into())]),
            None => Seam::Corner,
        }
    }

    /// Reads a texel; the border's colour where it is none.
    fn texel<M: Memory>(
        &self,
        object: &Object,
        sampler: &Sampler,
        at: [Option<u32>; 3],
        memory: &mut M,
    ) -> Result<Texel, M::Fault> {
        let image = object.image();
        let [Some(x), Some(y), Some(z)] = at else {
            let border = if image.shape == Shape::Linear { [0; 4] } else { sampler.border };
            return Ok(completed(image, border));
        };
        let first = self.faces.map_or(self.slice, |(_, first)| first);
        let row = first + u64::from(z) * self.level.slice + u64::from(y) * self.level.pitch;
        let bytes = image.texel();
        let bits = memory.load(row + u64::from(x) * u64::from(bytes), bytes)?;
        Ok(unpacked(image, sampler.srgb, bits))
    }
}

/// The mode where the image does not repeat.
fn unrepeated(mode: AddressMode) -> AddressMode {
    match mode {
        AddressMode::Wrap | AddressMode::Mirror => AddressMode::Clamp,
        mode => mode,
    }
}

/// A coordinate in texels, in the first period where the image repeats, and the mode in force.
fn scaled(x: f64, mode: AddressMode, size: u32, normalized: bool) -> (f64, AddressMode) {
    let (x, n) = (if x.is_nan() { 0.0 } else { x }, f64::from(size));
    if !normalized {
        return (x, unrepeated(mode));
    }
    let repeats = |period: f64| if x.is_finite() { (x - period * (x / period).floor()) * n } else { 0.0 };
    match mode {
        AddressMode::Wrap => (repeats(1.0), mode),
        AddressMode::Mirror => (repeats(2.0), mode),
        AddressMode::Clamp | AddressMode::Border => (x * n, mode),
    }
}

/// The texels next to a coordinate in texels.
pub(crate) fn axis(at: f64, mode: AddressMode, size: u32, offset: i64, linear: bool) -> Axis {
    if !linear {
        // What was rounded up to the end of the last period is in it.
        let last = match mode {
            AddressMode::Wrap => i64::from(size) - 1,
            AddressMode::Mirror => 2 * i64::from(size) - 1,
            AddressMode::Clamp | AddressMode::Border => i64::MAX,
        };
        let texel = resolved((at.floor() as i64).min(last).saturating_add(offset), mode, size);
        return Axis { texels: [texel; 2], weight: 0 };
    }
    let before = (at - 0.5).floor();
    // Of infinity there is no fraction.
    let fraction = if before.is_finite() { at - 0.5 - before } else { 0.0 };
    let first = (before as i64).saturating_add(offset);
    let texels = [first, first.saturating_add(1)].map(|i| resolved(i, mode, size));
    Axis { texels, weight: (fraction * f64::from(ONE)).round_ties_even() as u32 }
}

/// The texel that an index means.
fn resolved(index: i64, mode: AddressMode, size: u32) -> Option<u32> {
    let n = i64::from(size);
    let inside = match mode {
        AddressMode::Wrap => index.rem_euclid(n),
        AddressMode::Mirror => {
            let at = index.rem_euclid(2 * n);
            at.min(2 * n - 1 - at)
        }
        AddressMode::Clamp => index.clamp(0, n - 1),
        AddressMode::Border => index,
    };
    u32::try_from(inside).ok().filter(|at| *at < size)
}

/// The sum of texels by their weights, which are so many parts of `whole`.
fn mixed(taps: &[(u32, Texel)], whole: u32) -> Texel {
    [0, 1, 2, 3].map(|channel| {
        let mut sum = 0.0;
        for (weight, texel) in taps {
            // A product of weights has 24 bits behind the point at most, and so is an f32; its parts of `whole` as well.
            let weight = *weight as f32 / whole as f32;
            sum += if weight == 0.0 { 0.0 } else { weight * f32::from_bits(texel[channel]) };
        }
        canonical(sum)
    })
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

/// Channels that the image does not have.
fn completed(image: &Image, mut texel: Texel) -> Texel {
    let one = if image.format.is_integer() { 1 } else { 1_f32.to_bits() };
    for (channel, value) in texel.iter_mut().enumerate().skip(image.channels.into()) {
        *value = if channel == 3 { one } else { 0 };
    }
    texel
}

/// A texel from its bytes.
fn unpacked(image: &Image, srgb: bool, bits: u128) -> Texel {
    let width = 8 * image.format.bytes();
    let mut texel = [0; 4];
    for (channel, value) in texel.iter_mut().enumerate().take(image.channels.into()) {
        let raw = (bits >> (width * channel as u32)) as u32;
        *value = value_of(image.format, srgb && channel < 3, raw);
    }
    completed(image, texel)
}

/// A channel's value from its bits, in the low bits of a word.
fn value_of(format: Format, srgb: bool, raw: u32) -> u32 {
    let signed = |bits: u32| (raw << (32 - bits)).cast_signed() >> (32 - bits);
    let float = |value: f32| value.to_bits();
    match format {
        Format::U8 => raw & 0xff,
        Format::U16 => raw & 0xffff,
        Format::S8 => signed(8).cast_unsigned(),
        Format::S16 => signed(16).cast_unsigned(),
        Format::U32 | Format::S32 | Format::F32 => raw,
        Format::F16 => canonical(f16::from_bits(raw as u16).to_f32()),
        Format::Unorm8 if srgb => float(linear(raw as u8)),
        Format::Unorm8 => float((raw & 0xff) as f32 / 255.0),
        Format::Unorm16 => float((raw & 0xffff) as f32 / 65535.0),
        Format::Snorm8 => float((signed(8) as f32 / 127.0).max(-1.0)),
        Format::Snorm16 => float((signed(16) as f32 / 32767.0).max(-1.0)),
    }
}

/// An sRGB channel as linear light.
fn linear(value: u8) -> f32 {
    let value = f64::from(value) / 255.0;
    let linear = if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
    linear as f32
}
