//! What `tex` and `tld4` give.
//!
//! The formulas are those of the CUDA programming guide. What they leave open is as it was measured on an H200: see
//! [`crate::coordinate`] and [`crate::filter`]. Besides:
//!
//! - NaN is coordinate 0, and so is infinity where the image repeats;
//! - the level of detail has 8 bits behind the point, as have its bias and bounds, all rounded down;
//! - two levels share a sum as the slices of a volume do; it is one sum, with one rounding;
//! - channels that a texel does not have are 0, in the border's colour as well.

use crate::access::Memory;
use crate::coordinate::{Axis, Choice, ONE, between, fixed, place, quad, slices, unrepeated};
use crate::cube;
use crate::descriptor::{AddressMode, Filter, Sampler};
use crate::filter::{Quad, Reader, Summands, Texel};
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

/// The texture's value.
pub(crate) fn sample<M: Memory>(
    object: &Object,
    request: &Request,
    detail: Detail,
    memory: &mut M,
) -> Result<Texel, M::Fault> {
    let sampler = object.sampler().copied().unwrap_or_default();
    let (level, weight) = levels(object, &sampler, request, detail);
    let image = object.image();
    let filtered = image.shape != Shape::Linear && !image.format.is_integer();
    let linear = sampler.filter == Filter::Linear && !request.integer;
    let between = sampler.mip_filter == Filter::Linear && object.levels() > 1;
    let choice = if filtered && linear { Choice::Linear } else { Choice::Nearest };
    if !filtered || !(linear || between || is_anisotropic(&sampler)) {
        let foot = Footprint::new(object, &sampler, request, level, choice);
        let at = foot.axes.map(|axis| axis.texels[0]);
        return Ok(foot.reader.value(foot.bits(at, memory)?));
    }
    let mut quads = [Quad::default(); 4];
    let mut count = 0;
    for (level, weight) in [(level, ONE - weight), (level + 1, weight)] {
        if weight != 0 {
            let foot = Footprint::new(object, &sampler, request, level, choice);
            count += foot.quads(weight, &mut quads[count..], memory)?;
        }
    }
    Ok(Reader::new(image, &sampler).sum(&mut quads[..count]))
}

/// The first of two levels, and the weight of the second.
fn levels(object: &Object, sampler: &Sampler, request: &Request, detail: Detail) -> (u8, u32) {
    let last = i64::from(object.levels() - 1);
    let detail = match detail {
        _ if last == 0 => return (0, 0),
        Detail::Base => return (0, 0),
        Detail::Level(level) => level,
        Detail::Gradient(dx, dy) => log2(span(object, sampler, request, dx, dy)),
    };
    let steps = |level: f64| (level.clamp(-1024.0, 1024.0) * f64::from(ONE)).floor() as i64;
    let [least, greatest] = sampler.level_clamp.map(|level| steps(level.into()));
    let detail = (steps(detail) + steps(sampler.mip_bias.into())).max(least).min(greatest);
    let detail = detail.max(0).min(last * i64::from(ONE)) as u32;
    match sampler.mip_filter {
        Filter::Point => (((detail + ONE / 2) / ONE) as u8, 0),
        Filter::Linear if is_anisotropic(sampler) => {
            // Only around the middle between two levels are both read: twice as steeply.
            let weight = (2 * (detail % ONE)).saturating_sub(ONE / 2).min(ONE);
            ((detail / ONE) as u8, weight)
        }
        Filter::Linear => ((detail / ONE) as u8, detail % ONE),
    }
}

fn is_anisotropic(sampler: &Sampler) -> bool {
    sampler.max_anisotropy > 1
}

/// How many texels of the first level two steps span together: about the diagonal of what they span if both are long.
fn span(object: &Object, sampler: &Sampler, request: &Request, dx: [f32; 3], dy: [f32; 3]) -> f64 {
    let Level { width, height, depth, .. } = object.level(0);
    if request.cube {
        let at = request.at.map(|bits| f64::from(f32::from_bits(bits)));
        let length = |d: [f32; 3]| cube::step(at, d.map(f64::from), width).sqrt();
        return diagonal(length(dx), length(dy));
    }
    let sizes = if sampler.normalized { [width, height, depth].map(f64::from) } else { [1.0; 3] };
    let length = |d: [f32; 3]| {
        let part = |i: usize| (f64::from(d[i]) * sizes[i]) * (f64::from(d[i]) * sizes[i]);
        (part(0) + part(1) + part(2)).sqrt()
    };
    diagonal(length(dx), length(dy))
}

/// The hardware's diagonal, which differs from the longer side if the shorter one is nearly half as long or more.
fn diagonal(a: f64, b: f64) -> f64 {
    let longer = a.max(b);
    longer.max((a + b) * (11.0 / 16.0))
}

/// The base-2 logarithm, rounded down to 17 bits behind the point; far below 0 for 0 and NaN.
fn log2(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32;
    if exponent == 0 || exponent == 0x7ff {
        return if x == f64::INFINITY { 1024.0 } else { -1024.0 };
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
    log
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
    let foot = Footprint::new(object, &sampler, request, 0, Choice::Gather);
    let component = usize::from(component & 3);
    let mut texels = [0; 4];
    let mut missing = None;
    for (i, (x, y)) in [(0, 1), (1, 1), (1, 0), (0, 0)].into_iter().enumerate() {
        let at = [foot.axes[0].texels[x], foot.axes[1].texels[y], foot.axes[2].texels[0]];
        match foot.seam(at) {
            Seam::Corner => missing = Some(i),
            Seam::At(at) => texels[i] = foot.reader.single(foot.bits(at, memory)?)[component],
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
    reader: Reader,
    /// Bytes of a texel.
    texel: u32,
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
    fn new(object: &Object, sampler: &Sampler, request: &Request, level: u8, choice: Choice) -> Footprint {
        let image = object.image();
        let level = object.level(level);
        let sizes = [level.width, level.height, level.depth];
        let reader = Reader::new(image, sampler);
        let texel = image.texel();
        if request.cube && image.shape.is_cube() {
            let at = request.at.map(|bits| f64::from(f32::from_bits(bits)));
            let (face, along) = cube::face(at);
            let last = (object.slices(&level) / 6).saturating_sub(1);
            let cube = u64::from(request.layer.min(last)) * 6;
            let first = level.offset + cube * level.slice;
            let joined = sampler.seamless && choice != Choice::Nearest;
            let axis = |i: usize| {
                // Address modes are for faces that are not joined.
                let mode = if sampler.seamless { AddressMode::Clamp } else { sampler.address[i] };
                let place = fixed(along[i], 1) * i64::from(sizes[i]);
                if !joined {
                    // The far edge of a face that repeats is its near one.
                    let whole = fixed(1.0, 1) * i64::from(sizes[i]);
                    let place = if mode == AddressMode::Wrap { place.rem_euclid(whole) } else { place };
                    return Axis::new(place, mode, sizes[i], 0, choice);
                }
                // Indices from -1 to the width, one more than they are.
                let (first, weight) = between(place, 1, None);
                let first = first.clamp(0, level.width.into()) as u32;
                Axis { texels: [Some(first), Some(first + 1)], weight }
            };
            let slice = first + u64::from(face) * level.slice;
            let faces = joined.then_some((face, first));
            let axes = [axis(0), axis(1), Axis::SINGLE];
            return Footprint { level, reader, texel, axes, dimensions: 2, slice, faces };
        }
        let dimensions = match image.shape {
            Shape::Linear | Shape::D1 | Shape::D1Layered => 1,
            Shape::Pitched | Shape::D2 | Shape::D2Layered | Shape::Cube | Shape::CubeLayered => 2,
            Shape::D3 => 3,
        };
        let mut axes = [Axis::SINGLE; 3];
        for (i, slot) in axes.iter_mut().enumerate().take(dimensions) {
            let mode = if image.shape == Shape::Linear { AddressMode::Border } else { sampler.address[i] };
            let normalized = sampler.normalized && image.shape != Shape::Linear;
            *slot = if request.integer {
                let at = i64::from(request.at[i].cast_signed()).saturating_add(request.offset[i]);
                Axis::at(at, unrepeated(mode), sizes[i])
            } else {
                let (at, mode) = place(f32::from_bits(request.at[i]), mode, sizes[i], normalized);
                Axis::new(at, mode, sizes[i], request.offset[i], choice)
            };
        }
        if image.shape == Shape::D1 && choice == Choice::Linear && !request.integer {
            // A line is the only row of a plane, read at its upper edge: half of it is what lies above.
            let (at, mode) = place(0.0, sampler.address[1], 1, sampler.normalized);
            axes[1] = Axis::new(at, mode, 1, 0, choice);
        }
        let layers = if image.shape.is_layered() { object.slices(&level) } else { 1 };
        let slice = level.offset + u64::from(request.layer.min(layers - 1)) * level.slice;
        Footprint { level, reader, texel, axes, dimensions, slice, faces: None }
    }

    /// The texels of one level with their weights, which are a part of `weight`; gives the number of quads.
    fn quads<M: Memory>(&self, weight: u32, quads: &mut [Quad], memory: &mut M) -> Result<usize, M::Fault> {
        let [x, y, z] = self.axes;
        let count = if self.dimensions == 3 { 2 } else { 1 };
        for (slice, (weight, quad_of)) in slices(weight, z.weight).into_iter().zip(quads).enumerate().take(count) {
            quad_of.weights = quad(weight, x.weight, y.weight);
            let mut missing = None;
            for (tap, (i, j)) in [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().enumerate() {
                match self.seam([x.texels[i], y.texels[j], z.texels[slice]]) {
                    Seam::Corner => missing = Some(tap),
                    Seam::At(at) => quad_of.texels[tap] = self.reader.summands(self.bits(at, memory)?),
                }
            }
            if let Some(missing) = missing {
                quad_of.texels[missing] = mean([1, 2, 3].map(|i| quad_of.texels[(missing + i) % 4]));
            }
        }
        Ok(count)
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

    /// Reads a texel's bits; there are none where the border is.
    fn bits<M: Memory>(&self, at: [Option<u32>; 3], memory: &mut M) -> Result<Option<u128>, M::Fault> {
        let [Some(x), Some(y), Some(z)] = at else { return Ok(None) };
        let first = self.faces.map_or(self.slice, |(_, first)| first);
        let row = first + u64::from(z) * self.level.slice + u64::from(y) * self.level.pitch;
        memory.load(row + u64::from(x) * u64::from(self.texel), self.texel).map(Some)
    }
}

/// What is missing where three faces meet: the mean of the other three.
fn mean([a, b, c]: [Summands; 3]) -> Summands {
    [0, 1, 2, 3].map(|i| (a[i] + b[i] + c[i]) / 3.0)
}
