//! From coordinates to texels and weights, in the fixed point that an H200 was measured to have.
//!
//! - A coordinate is rounded down to 21 bits behind the point, a normalized one before it is multiplied by the size.
//! - Between texels there are 256 steps, to the nearest of which a place is rounded, up where two are equally near; texels are
//!   chosen after that. A place that is clamped is no more than the outermost texels' centres.
//! - Weights of several axes are shared out, axis after axis, each share rounded so: they always sum up to one.

use crate::descriptor::AddressMode;

/// One, as a weight.
pub(crate) const ONE: u32 = 1 << WEIGHT_BITS;

const WEIGHT_BITS: u32 = 8;
/// Bits of a place behind the point.
const POINT: u32 = 21;
const WHOLE: i64 = 1 << POINT;

/// Which texels are chosen along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// The one that a place lies in.
    Nearest,
    /// Those whose centres a place lies between.
    Linear,
    /// The same, also beyond the outermost centres where places are clamped.
    Gather,
}

/// Along one axis: the two texels next to a coordinate, none where the border is, and the weight of the second one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Axis {
    pub(crate) texels: [Option<u32>; 2],
    pub(crate) weight: u32,
}

impl Axis {
    /// Where there is one texel only.
    pub(crate) const SINGLE: Axis = Axis { texels: [Some(0); 2], weight: 0 };

    /// One texel and no other, or none.
    pub(crate) fn at(index: i64, mode: AddressMode, size: u32) -> Axis {
        Axis { texels: [resolved(index, mode, size); 2], weight: 0 }
    }

    /// The texels at a place.
    pub(crate) fn new(place: i64, mode: AddressMode, size: u32, offset: i64, choice: Choice) -> Axis {
        if choice == Choice::Nearest {
            return Axis::at((place >> POINT).saturating_add(offset), mode, size);
        }
        let clamped = choice == Choice::Linear && mode == AddressMode::Clamp;
        let (first, weight) = between(place, offset, clamped.then_some(size));
        Axis { texels: [first, first + 1].map(|i| resolved(i, mode, size)), weight }
    }
}

/// The texel whose centre lies before a place, and how far behind that it is; both not beyond the outermost centres if the
/// place is clamped to a size.
pub(crate) fn between(place: i64, offset: i64, clamped: Option<u32>) -> (i64, u32) {
    let half_step = 1 << (POINT - WEIGHT_BITS - 1);
    let steps = (place - WHOLE / 2 + half_step) >> (POINT - WEIGHT_BITS);
    let steps = steps + offset * i64::from(ONE);
    let steps = clamped.map_or(steps, |size| steps.clamp(0, i64::from(size - 1) * i64::from(ONE)));
    (steps >> WEIGHT_BITS, (steps & i64::from(ONE - 1)) as u32)
}

/// The mode where the image does not repeat.
pub(crate) fn unrepeated(mode: AddressMode) -> AddressMode {
    match mode {
        AddressMode::Wrap | AddressMode::Mirror => AddressMode::Clamp,
        mode => mode,
    }
}

/// A coordinate as a place, in the first period where the image repeats, and the mode in force.
pub(crate) fn place(x: f32, mode: AddressMode, size: u32, normalized: bool) -> (i64, AddressMode) {
    if !normalized {
        return (fixed(x.into(), 1 << 40), unrepeated(mode));
    }
    // In a period: 21 bits. Elsewhere far enough from all images.
    let x = match mode {
        AddressMode::Wrap => repeated(x, WHOLE),
        AddressMode::Mirror => repeated(x, 2 * WHOLE),
        AddressMode::Clamp | AddressMode::Border => fixed(x.into(), 1 << 20),
    };
    (x * i64::from(size), mode)
}

/// In fixed point, at most so far from zero; NaN is zero.
pub(crate) fn fixed(x: f64, limit: i64) -> i64 {
    let limit = limit * WHOLE;
    ((x * WHOLE as f64).floor() as i64).clamp(-limit, limit)
}

/// In fixed point, in the first period. Of infinity and what is no number that is zero.
fn repeated(x: f32, period: i64) -> i64 {
    let x = (f64::from(x) * WHOLE as f64).floor();
    // Large ones are multiples of all periods.
    if x.abs() < (1_i64 << 62) as f64 { x as i64 & (period - 1) } else { 0 }
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

/// A weight shared out to two slices, by the weight of the second one: the first one's share is rounded.
pub(crate) fn slices(weight: u32, z: u32) -> [u32; 2] {
    let first = part(weight, ONE - z);
    [first, weight - first]
}

/// A weight shared out to four texels, x first, by the weights of the second ones along x and y.
pub(crate) fn quad(weight: u32, x: u32, y: u32) -> [u32; 4] {
    let right = part(weight, x);
    let left = weight - right;
    // In the left column it is the first texel's share that is rounded, in the right one the second's.
    let (first, last) = (part(left, ONE - y), part(right, y));
    [first, right - last, left - first, last]
}

fn part(weight: u32, share: u32) -> u32 {
    (weight * share + ONE / 2) >> WEIGHT_BITS
}
