//! Faces of cubes.
//!
//! ```text
//! face  largest  s   t        s runs along x of the face's image, t along y; both are divided by the largest coordinate,
//!  0      +x    -z  -y        and lie between -1 and 1 then
//!  1      -x    +z  -y
//!  2      +y    +x  +z
//!  3      -y    +x  -z
//!  4      +z    +x  -y
//!  5      -z    -x  -y
//! ```
//!
//! Of equals z is the largest, then y.

/// An axis of space, and whether it is negated.
type Signed = (usize, bool);

/// By face: the axes of the largest coordinate, s and t.
const FACES: [[Signed; 3]; 6] = [
    [(0, false), (2, true), (1, true)],
    [(0, true), (2, false), (1, true)],
    [(1, false), (0, false), (2, false)],
    [(1, true), (0, false), (2, true)],
    [(2, false), (0, false), (1, true)],
    [(2, true), (0, true), (1, true)],
];

fn of<T: Copy + std::ops::Neg<Output = T>>(at: [T; 3], (axis, negated): Signed) -> T {
    if negated { -at[axis] } else { at[axis] }
}

/// The face that a direction meets.
fn number(at: [f64; 3]) -> u8 {
    let [x, y, z] = at.map(f64::abs);
    let (axis, first) = if z >= x && z >= y {
        (2, 4)
    } else if y >= x {
        (1, 2)
    } else {
        (0, 0)
    };
    first + u8::from(at[axis] < 0.0)
}

/// The face that a direction meets, and where, both from 0 to 1.
pub(crate) fn face(at: [f64; 3]) -> (u8, [f64; 2]) {
    let at = at.map(|x| if x.is_nan() { 0.0 } else { x });
    let face = number(at);
    let [largest, s, t] = FACES[usize::from(face)].map(|axis| of(at, axis));
    let along = |s: f64| {
        let at = (s + largest) / (2.0 * largest);
        // No direction at all meets the middle; so may infinities.
        if at.is_nan() { 0.5 } else { at }
    };
    (face, [along(s), along(t)])
}

/// The square of the way in texels of a face, for a small step from a direction; 0 where that is none.
pub(crate) fn step(at: [f64; 3], by: [f64; 3], width: u32) -> f64 {
    let axes = FACES[usize::from(number(at))];
    let [largest, s, t] = axes.map(|axis| of(at, axis));
    let [d_largest, ds, dt] = axes.map(|axis| of(by, axis));
    let part = |s: f64, ds: f64| {
        let slope = (ds * largest - s * d_largest) / (largest * largest) * (0.5 * f64::from(width));
        slope * slope
    };
    part(s, ds) + part(t, dt)
}

/// The face and the indices of what is at these of a face, each from -1 to its width, where edges are joined; nothing beyond
/// a corner.
pub(crate) fn joined(face: u8, at: [i64; 2], width: u32) -> Option<(u8, [u32; 2])> {
    let n = i64::from(width);
    let outside = at.map(|i| i < 0 || i >= n);
    let [largest, s, t] = FACES[usize::from(face)];
    // Centres of texels are odd numbers from 1 - n to n - 1, and faces n away from the middle.
    let mut space = [0; 3];
    let mut set = |(axis, negated): Signed, value: i64| space[axis] = if negated { -value } else { value };
    set(largest, n);
    for (axis, i) in [s, t].into_iter().zip(at) {
        set(axis, 2 * i + 1 - n);
    }
    let over = match outside {
        [false, false] => return Some((face, at.map(|i| i as u32))),
        [true, true] => return None,
        [true, false] => s,
        [false, true] => t,
    };
    // Around the edge: what was beyond becomes the face, and the old face is one step in.
    let side = space[over.0];
    space[over.0] = if side < 0 { -n } else { n };
    space[largest.0] = if largest.1 { 1 - n } else { n - 1 };
    let next = 2 * over.0 as u8 + u8::from(side < 0);
    let [_, s, t] = FACES[usize::from(next)].map(|axis| of(space, axis));
    Some((next, [s, t].map(|centre| ((centre + n - 1) / 2).clamp(0, n - 1) as u32)))
}
