//! Textures against the programming guide's formulas with the rules that were measured on an H200, written down once more:
//! coordinates in exact fixed point (60 bits behind the point), sums in f64, up to what a format rounds. What is rounded how is
//! in `hardware.rs`, to the last bit.

mod common;

use common::{Picture, Random};
use texture::{Access, AddressMode, Filter, Format, Geometry, Mip, Object, Query, Sampler, Shape};

/// Bits behind the point.
const POINT: u32 = 60;
const HALF: i128 = 1 << (POINT - 1);

/// A coordinate as a fixed-point number. Beyond 2^40 all are even integers, and below 2^-36 none matters but its sign.
fn exact(x: f32) -> i128 {
    if x.is_nan() || x == 0.0 {
        return 0;
    }
    let sign = if x < 0.0 { -1 } else { 1 };
    let bits = x.abs().to_bits();
    let (exponent, mantissa) = ((bits >> 23) as i32 - 127 - 23, i128::from(bits & 0x7f_ffff | 0x80_0000));
    match exponent + POINT as i32 {
        shift if shift < 0 => sign,
        shift if shift > 40 + 60 - 24 => sign * (1 << (40 + POINT)),
        shift => sign * (mantissa << shift),
    }
}

/// The texel that an index means; none at the border.
fn folded(mode: AddressMode, i: i128, size: i128) -> Option<u32> {
    let at = match mode {
        AddressMode::Wrap => i - size * i.div_euclid(size),
        AddressMode::Clamp => i.max(0).min(size - 1),
        AddressMode::Mirror => {
            let at = i - 2 * size * i.div_euclid(2 * size);
            if at < size { at } else { 2 * size - 1 - at }
        }
        AddressMode::Border if (0..size).contains(&i) => i,
        AddressMode::Border => return None,
    };
    Some(at as u32)
}

/// What one axis of the formulas gives: texels i and i + 1, none at the border, and alpha in 256ths.
fn formula(x: f32, mode: AddressMode, n: u32, normalized: bool, offset: i64, kind: Kind) -> ([Option<u32>; 2], u32) {
    let size = i128::from(n);
    let mut mode = mode;
    // 21 bits behind the point are left.
    let mut x = exact(x) >> (POINT - 21) << (POINT - 21);
    if normalized {
        x *= size;
    } else if matches!(mode, AddressMode::Wrap | AddressMode::Mirror) {
        mode = AddressMode::Clamp;
    }
    let offset = i128::from(offset);
    if kind == Kind::Point {
        return ([folded(mode, (x >> POINT) + offset, size); 2], 0);
    }
    // Rounded to 8 bits, up where two are equally near.
    let mut steps = ((x - HALF + (1 << (POINT - 9))) >> (POINT - 8)) + 256 * offset;
    if mode == AddressMode::Clamp && kind == Kind::Linear {
        steps = steps.clamp(0, 256 * (size - 1));
    }
    let (index, alpha) = (steps.div_euclid(256), steps.rem_euclid(256));
    ([0, 1].map(|next| folded(mode, index + next, size)), alpha as u32)
}

/// How texels are chosen.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Point,
    Linear,
    Gather,
}

/// Weights in 256ths, x first: z takes its share before x, and x before y; each share is rounded, and the rest is the other's.
fn weights(alpha: u32, beta: u32, gamma: u32) -> [f64; 8] {
    let share = |of: f64, by: u32| (of * f64::from(by) / 256.0 + 0.5).floor();
    let mut all = [0.0; 8];
    let front = share(256.0, 256 - gamma);
    for (z, plane) in [front, 256.0 - front].into_iter().enumerate() {
        let right = share(plane, alpha);
        let upper_left = share(plane - right, 256 - beta);
        let lower_right = share(right, beta);
        let quad = [upper_left, right - lower_right, plane - right - upper_left, lower_right];
        all[4 * z..4 * z + 4].copy_from_slice(&quad);
    }
    all.map(|weight| weight / 256.0)
}

/// A channel's value, as f64 and as the bits of what an instruction gives.
fn channel(format: Format, srgb: bool, bytes: &[u8]) -> (f64, u32) {
    let raw = bytes.iter().rev().fold(0_u64, |v, b| v << 8 | u64::from(*b));
    let signed = (raw as i64) << (64 - 8 * bytes.len()) >> (64 - 8 * bytes.len());
    let float = |v: f64| (v, (v as f32).to_bits());
    match format {
        Format::U8 | Format::U16 | Format::U32 => (0.0, raw as u32),
        Format::S8 | Format::S16 | Format::S32 => (0.0, signed as u32),
        Format::F32 => (f64::from(f32::from_bits(raw as u32)), raw as u32),
        Format::Unorm8 if srgb => {
            let c = raw as f64 / 255.0;
            let light = if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
            // Eight significant bits.
            let unit = light.log2().floor().exp2() / 128.0;
            float(if raw == 0 { 0.0 } else { (light / unit).round() * unit })
        }
        Format::Unorm8 => float(raw as f64 / 255.0),
        Format::Unorm16 => float(raw as f64 / 65535.0),
        // What is below -1 counts as it is in a sum.
        Format::Snorm8 => (signed as f64 / 127.0, float((signed as f64 / 127.0).max(-1.0)).1),
        Format::Snorm16 => (signed as f64 / 32767.0, float((signed as f64 / 32767.0).max(-1.0)).1),
        Format::F16 => {
            let (exponent, mantissa) = ((raw >> 10 & 31) as i32, (raw & 1023) as f64);
            let sign = if raw >> 15 != 0 { -1.0 } else { 1.0 };
            match exponent {
                0 => float(sign * mantissa * 2_f64.powi(-24)),
                31 if mantissa == 0.0 => float(sign * f64::INFINITY),
                31 => (f64::NAN, 0x7fff_ffff),
                _ => float(sign * (1.0 + mantissa / 1024.0) * 2_f64.powi(exponent - 15)),
            }
        }
    }
}

/// What lies at a texel, or the border's colour; as values and as bits.
fn texel(picture: &Picture, sampler: &Sampler, level: u8, at: [Option<u32>; 3]) -> [(f64, u32); 4] {
    let Picture { image, .. } = picture;
    let mut all = [(0.0, 0); 4];
    for (i, value) in all.iter_mut().enumerate().take(image.channels.into()) {
        *value = match at {
            [Some(x), Some(y), Some(z)] => {
                let bytes = picture.raw(level, [x, y, z]);
                let size = image.format.bytes() as usize;
                channel(image.format, sampler.srgb && i < 3, &bytes[i * size..][..size])
            }
            _ if image.shape == Shape::Linear => (0.0, 0),
            _ => border(image.format, sampler.border[i]),
        };
    }
    all
}

/// The border's colour as a format has it.
fn border(format: Format, bits: u32) -> (f64, u32) {
    let value = f64::from(f32::from_bits(bits));
    let integer = |least: i32, most: i32| (0.0, bits.cast_signed().clamp(least, most).cast_unsigned());
    let (least, most) = match format {
        Format::U8 => return (0.0, bits.min(255)),
        Format::U16 => return (0.0, bits.min(65535)),
        Format::S8 => return integer(-128, 127),
        Format::S16 => return integer(-32768, 32767),
        Format::Unorm8 => (0.0, 255.0),
        Format::Unorm16 => (0.0, 65535.0),
        Format::Snorm8 => (-1.0, 127.0),
        Format::Snorm16 => (-1.0, 32767.0),
        _ => return (value, bits),
    };
    let nearest = (value.clamp(least, 1.0) * most + 0.5).floor() / most;
    (nearest, (nearest as f32).to_bits())
}

/// Is this what a gather gives of a value? It has 16 bits at least.
fn is_gathered(got: u32, format: Format, (value, bits): (f64, u32)) -> bool {
    let wide = format == Format::Snorm8;
    if wide { same(got, (value.max(-1.0), 0.51 / 32767.0)) } else { got == bits }
}

/// A sum of weighted values and what it may be off by.
fn weighted(taps: &[(f64, f64)], format: Format) -> (f64, f64) {
    let there = taps.iter().filter(|(weight, _)| *weight != 0.0);
    let largest = there.clone().fold(0.0, |most: f64, (_, value)| most.max(value.abs()));
    let (sum, off) = there
        .fold((0.0, 1e-38), |(sum, off), (weight, value)| (sum + weight * value, off + (weight * value).abs() * 1e-6));
    let rounds = match format {
        Format::Unorm8 | Format::Unorm16 => 0.51 / 65535.0,
        Format::Snorm16 => 0.51 / 32767.0,
        Format::Snorm8 => 0.7 / 32767.0,
        // Half of the last place, and what is cut off before.
        Format::F16 => sum.abs() / 2048.0 + largest / 16384.0 + 1e-7,
        _ => 0.0,
    };
    let sum = if matches!(format, Format::Snorm8 | Format::Snorm16) { sum.max(-1.0) } else { sum };
    // sRGB becomes a half.
    (sum, off + if format == Format::Unorm8 { rounds + sum.abs() / 2048.0 + largest / 16384.0 } else { rounds })
}

fn same(got: u32, (want, off): (f64, f64)) -> bool {
    let value = f64::from(f32::from_bits(got));
    if want.is_nan() { got == 0x7fff_ffff } else { value == want || (value - want).abs() <= off }
}

fn sampler(random: &Random, format: Format) -> Sampler {
    let modes = &AddressMode::ALL;
    Sampler {
        address: [random.of(modes), random.of(modes), random.of(modes)],
        filter: if format.is_integer() { Filter::Point } else { random.of(&[Filter::Point, Filter::Linear]) },
        normalized: random.one_in(2),
        srgb: format == Format::Unorm8 && random.one_in(3),
        max_anisotropy: random.of(&[0, 1, 8]),
        border: [0; 4].map(|_: u32| match format.is_integer() {
            true => random.next() as u32,
            false => random.of(&[2.5_f32, -1.75, 0.25, -0.5, 0.125]).to_bits(),
        }),
        level_clamp: [0.0, 100.0],
        ..Sampler::default()
    }
}

fn coordinate(random: &Random, size: u32, normalized: bool) -> f32 {
    let whole = if normalized { 1.0 } else { f64::from(size) };
    let around = (random.below(4001) as f64 / 1000.0 - 1.5) * whole;
    (match random.below(12) {
        // Texels' centres and edges, and where weights are rounded.
        0 | 1 => (random.below(12) as f64 - 3.0) / 2.0 * whole / f64::from(size),
        2 | 3 => (random.below(2000) as f64 - 500.0) / 512.0 * whole / f64::from(size),
        4 => random.of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e30, -1e30, 1e9, -1e-30, 1e-30, -1e-9]),
        5 => f64::from(f32::from_bits(random.next() as u32)),
        _ => around,
    }) as f32
}

fn geometry(shape: Shape) -> Geometry {
    match shape {
        Shape::Linear | Shape::D1 => Geometry::D1,
        Shape::Pitched | Shape::D2 => Geometry::D2,
        Shape::D3 => Geometry::D3,
        Shape::D1Layered => Geometry::A1,
        Shape::D2Layered => Geometry::A2,
        Shape::Cube => Geometry::Cube,
        Shape::CubeLayered => Geometry::ACube,
    }
}

fn perform(access: &Access, object: &Object, sources: &[u64], picture: &Picture) -> [u32; 4] {
    assert!(access.is_valid());
    let (words, values, _) = access.sources();
    assert_eq!(words + values, sources.len());
    let mut memory = picture.clone();
    access.perform(object, sources, &mut memory).expect("an access inside the image").map(|word| word as u32)
}

/// Everything that has no cube in it.
#[test]
fn values_are_those_of_the_formulas() {
    let random = Random::new(1);
    let flat = &Shape::ALL[..7];
    let mut filtered = 0;
    for _ in 0..60_000 {
        let picture = Picture::random(&random, flat, &Format::ALL);
        let (image, sampler) = (picture.image, sampler(&random, picture.image.format));
        let geometry = geometry(image.shape);
        let axes = geometry.coordinates();
        let integer = random.one_in(4);
        let gathers = axes == 2 && random.one_in(4);
        let mip = if gathers || random.one_in(2) { Mip::Base } else { Mip::Level };
        let level = random.below(image.levels.into()) as u8 % (image.level_range[1] - image.level_range[0] + 1);
        let level = if mip == Mip::Base { 0 } else { level };
        let size = picture.size(level);
        let offset = random.one_in(3);
        let layers = if image.shape.is_layered() { size[2] } else { 1 };
        let layer = random.of(&[0, random.below(layers.into()) as u32, layers, u32::MAX]);
        let normalized = sampler.normalized && image.shape != Shape::Linear;
        let at: [f32; 3] = [0, 1, 2].map(|i| coordinate(&random, size[i], normalized));
        let index =
            [0, 1, 2].map(|i| random.of(&[random.below(u64::from(size[i]) + 4) as i32 - 2, i32::MIN, i32::MAX]));
        let offsets: [i64; 3] = [0; 3].map(|_: i32| if offset { random.below(16) as i64 - 8 } else { 0 });

        let mut sources = Vec::new();
        if geometry.layered() {
            sources.push(u64::from(layer));
        }
        let integer = integer && !gathers;
        let bits = |i: usize| if integer { index[i].cast_unsigned() } else { at[i].to_bits() };
        sources.extend((0..axes).map(|i| u64::from(bits(i))));
        if mip == Mip::Level {
            let float = f32::from(level).to_bits();
            sources.push(if integer { level.into() } else { float.into() });
        }
        if offset {
            sources.extend(offsets[..axes].iter().map(|o| u64::from(*o as u32)));
        }
        let access = if gathers {
            Access::Gather { geometry, component: random.below(4) as u8, offset }
        } else {
            Access::Sample { geometry, integer, mip, offset }
        };
        let got = perform(&access, &picture.object(Some(sampler)), &sources, &picture);

        let linear = image.shape != Shape::Linear && (gathers || sampler.filter == Filter::Linear && !integer);
        filtered += u32::from(linear && !gathers);
        let mut all = [([Some(0); 2], 0); 3];
        let kind = match linear {
            _ if gathers => Kind::Gather,
            true => Kind::Linear,
            false => Kind::Point,
        };
        if image.shape == Shape::D1 && kind == Kind::Linear {
            // A line is half above its middle.
            all[1] = formula(0.0, sampler.address[1], 1, normalized, 0, kind);
        }
        for i in 0..axes {
            let mode = if image.shape == Shape::Linear { AddressMode::Border } else { sampler.address[i] };
            all[i] = if integer {
                let at = i64::from(index[i]) + offsets[i];
                let n = i64::from(size[i]);
                let texel = if mode == AddressMode::Border {
                    u32::try_from(at).ok().filter(|x| *x < size[i])
                } else {
                    Some(at.clamp(0, n - 1) as u32)
                };
                ([texel; 2], 0)
            } else {
                formula(at[i], mode, size[i], normalized, offsets[i], kind)
            };
        }
        let [(xs, alpha), (ys, beta), (zs, gamma)] = all;
        let slice = |z: Option<u32>| if image.shape.is_layered() { Some(layer.min(layers - 1)) } else { z };
        let look = |x: usize, y: usize, z: usize| texel(&picture, &sampler, level, [xs[x], ys[y], slice(zs[z])]);
        let context =
            format!("{image:?} {sampler:?} {access:?} {at:?} {index:?} {offsets:?} level {level} layer {layer}");
        if let Access::Gather { component, .. } = access {
            for (got, (x, y)) in got.into_iter().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
                assert!(is_gathered(got, image.format, look(x, y, 0)[usize::from(component)]), "{context}: {got:x}");
            }
        } else if linear {
            let weights = weights(alpha, beta, gamma);
            for channel in 0..4 {
                let taps: Vec<(f64, f64)> =
                    (0..8).map(|i| (weights[i], look(i & 1, i >> 1 & 1, i >> 2)[channel].0)).collect();
                assert!(
                    same(got[channel], weighted(&taps, image.format)),
                    "{context}: channel {channel} of {got:x?}, {taps:?}"
                );
            }
        } else if sampler.max_anisotropy > 1 && image.shape != Shape::Linear && !image.format.is_integer() {
            // One texel, but filtered.
            for (got, (value, _)) in got.into_iter().zip(look(0, 0, 0)) {
                assert!(same(got, weighted(&[(1.0, value)], image.format)), "{context}: {got:x}, not {value}");
            }
        } else {
            assert_eq!(got, look(0, 0, 0).map(|(_, bits)| bits), "{context}");
        }
    }
    assert!(filtered > 5_000);
}

/// The face, and s, t and the largest coordinate, as the guide's table has them.
fn face([x, y, z]: [i64; 3]) -> (u32, i64, i64, i64) {
    let largest = x.abs().max(y.abs()).max(z.abs());
    if z.abs() == largest {
        if z >= 0 { (4, x, -y, z) } else { (5, -x, -y, -z) }
    } else if y.abs() == largest {
        if y >= 0 { (2, x, z, y) } else { (3, x, -z, -y) }
    } else if x >= 0 {
        (0, -z, -y, x)
    } else {
        (1, z, -y, -x)
    }
}

/// Where a texel of a face is in space, if the cube reaches from -n to n.
fn position(face: u32, i: i64, j: i64, n: i64) -> [i64; 3] {
    let (s, t) = (2 * i + 1 - n, 2 * j + 1 - n);
    match face {
        0 => [n, -t, -s],
        1 => [-n, -t, s],
        2 => [s, n, t],
        3 => [s, -n, -t],
        4 => [s, -t, n],
        _ => [-s, -t, -n],
    }
}

/// The texel next to that place in space.
fn nearest(place: [i64; 3], n: i64) -> [u32; 3] {
    let all = (0..6).flat_map(|f| (0..n).flat_map(move |j| (0..n).map(move |i| (f, i, j))));
    let away = |(f, i, j): &(u32, i64, i64)| -> i64 {
        position(*f, *i, *j, n).iter().zip(place).map(|(a, b)| (a - b) * (a - b)).sum()
    };
    let (face, i, j) = all.min_by_key(away).expect("a cube has texels");
    [i as u32, j as u32, face]
}

#[test]
fn cubes_are_sampled_by_direction() {
    let random = Random::new(2);
    let (mut around, mut corners) = (0, 0);
    for _ in 0..20_000 {
        let picture =
            Picture::random(&random, &[Shape::Cube, Shape::CubeLayered], &[Format::F32, Format::U8, Format::Snorm16]);
        let image = picture.image;
        let mut sampler = sampler(&random, image.format);
        sampler.seamless = random.one_in(2);
        sampler.max_anisotropy = 0;
        let direction = [0; 3].map(|_: i64| random.below(49) as i64 - 24);
        if direction == [0; 3] {
            continue;
        }
        let [width, _, slices] = picture.size(0);
        let (cubes, n) = (slices / 6, i64::from(width));
        let layer = random.below(u64::from(cubes) + 2) as u32;
        let cube = if image.shape == Shape::CubeLayered { layer.min(cubes - 1) * 6 } else { 0 };
        let mut sources: Vec<u64> = direction.iter().map(|c| u64::from((*c as f32 / 8.0).to_bits())).collect();
        if image.shape == Shape::CubeLayered {
            sources.insert(0, layer.into());
        }
        let access = Access::Sample { geometry: geometry(image.shape), integer: false, mip: Mip::Base, offset: false };
        let got = perform(&access, &picture.object(Some(sampler)), &sources, &picture);

        let (face, s, t, m) = face(direction);
        let context = format!("{image:?} {sampler:?} {direction:?}: face {face}, {got:x?}");
        // x = n (s / m + 1) / 2, in parts of 2^21, to which what is multiplied by n is rounded down.
        let whole = 1 << 21;
        let [x, y] = [s, t].map(|s| ((s + m) * whole).div_euclid(2 * m) * n);
        let look_at = |x, y, face: u32| texel(&picture, &sampler, 0, [x, y, Some(face + cube)]);
        if sampler.filter == Filter::Point {
            let on = |axis: usize, v: i64| match (v.div_euclid(whole), sampler.seamless) {
                (at, true) => Some(at.min(n - 1) as u32),
                (at, false) => folded(sampler.address[axis], at.into(), n.into()),
            };
            assert_eq!(got, look_at(on(0, x), on(1, y), face).map(|(_, bits)| bits), "{context}");
            continue;
        }
        let split = |v: i64, axis: usize| {
            let mut steps = (512 * v - 255 * whole).div_euclid(2 * whole);
            if !sampler.seamless && sampler.address[axis] == AddressMode::Clamp {
                steps = steps.clamp(0, 256 * (n - 1));
            }
            (steps.div_euclid(256), steps.rem_euclid(256) as u32)
        };
        let ((i, alpha), (j, beta)) = (split(x, 0), split(y, 1));
        let weights = weights(alpha, beta, 0);
        let taps: Vec<(f64, Option<[Option<u32>; 3]>)> = [(0, 0), (1, 0), (0, 1), (1, 1)]
            .into_iter()
            .zip(weights)
            .map(|((dx, dy), weight)| {
                let (i, j) = (i + dx, j + dy);
                let beyond = |v: i64| v < 0 || v >= n;
                if !sampler.seamless {
                    let on = |axis: usize, i: i64| folded(sampler.address[axis], i.into(), n.into());
                    return (weight, Some([on(0, i), on(1, j), Some(face)]));
                }
                around += u32::from(beyond(i) || beyond(j));
                let corner = beyond(i) && beyond(j);
                (weight, if corner { None } else { Some(nearest(position(face, i, j, n), n).map(Some)) })
            })
            .collect();
        let seen = |[x, y, face]: [Option<u32>; 3]| look_at(x, y, face.unwrap_or_default());
        for (channel, &bits) in got.iter().enumerate() {
            let there: Vec<(f64, f64)> =
                taps.iter().filter_map(|(w, at)| Some((*w, seen((*at)?)[channel].0))).collect();
            let mean = there.iter().map(|(_, value)| value).sum::<f64>() / 3.0;
            let missing = taps.iter().filter(|(_, at)| at.is_none()).map(|(weight, _)| (*weight, mean));
            let all: Vec<(f64, f64)> = there.iter().copied().chain(missing).collect();
            corners += all.len() as u32 - there.len() as u32;
            assert!(same(bits, weighted(&all, image.format)), "{context}: channel {channel}, {taps:?}");
        }
    }
    assert!(around > 1_000 && corners > 100);
}

/// Levels that hold their number show which of them are mixed, and how.
fn stack(shape: Shape, extent: [u32; 3], levels: u8) -> Picture {
    let mut picture = Picture::random(&Random::new(3), &[Shape::D2], &[Format::F32]);
    picture.image = texture::Image::array(shape, Format::F32, 1, 0x1000, extent, levels);
    let layout = texture::Layout::new(shape, 4, extent, levels).expect("a layout");
    picture.bytes = vec![0; layout.bytes() as usize];
    for (level, number) in layout.levels().iter().zip(0_u8..) {
        for texel in picture.bytes[level.offset as usize..].chunks_exact_mut(4) {
            texel.copy_from_slice(&f32::from(number).to_le_bytes());
        }
    }
    picture
}

#[test]
fn a_level_of_detail_mixes_two_levels() {
    let random = Random::new(4);
    let picture = stack(Shape::D2, [64, 32, 1], 7);
    for _ in 0..5_000 {
        let quarters = |random: &Random| random.below(80) as f32 / 8.0 - 2.0;
        let clamp = [quarters(&random), quarters(&random)];
        let sampler = Sampler {
            mip_filter: random.of(&[Filter::Point, Filter::Linear]),
            filter: random.of(&[Filter::Point, Filter::Linear]),
            mip_bias: quarters(&random),
            level_clamp: if random.one_in(2) { clamp } else { [0.0, 20.0] },
            normalized: true,
            ..Sampler::default()
        };
        let first = random.below(7) as u8;
        let last = first + random.below(u64::from(7 - first)) as u8;
        let mut picture = picture.clone();
        picture.image.level_range = [first, last];
        let detail = random.of(&[
            random.below(12_000) as f32 / 1024.0 - 2.0,
            random.below(8) as f32,
            f32::INFINITY,
            f32::NEG_INFINITY,
        ]);
        let access = Access::Sample { geometry: Geometry::D2, integer: false, mip: Mip::Level, offset: false };
        let sources = [0.3_f32, 0.7, detail].map(|c| u64::from(c.to_bits()));
        let got = perform(&access, &picture.object(Some(sampler)), &sources, &picture)[0];
        let [least, most] = sampler.level_clamp.map(f64::from);
        // All but the level itself are eighths.
        let wanted = (f64::from(detail) * 256.0).floor() / 256.0;
        let wanted = (wanted + f64::from(sampler.mip_bias)).max(least).min(most);
        let wanted = wanted.clamp(0.0, f64::from(last - first));
        let wanted = if sampler.mip_filter == Filter::Point { (wanted + 0.5).floor() } else { wanted };
        assert_eq!(f32::from_bits(got), wanted as f32 + f32::from(first), "{sampler:?} {detail} of {first}..={last}");
    }
    // Gradients: the level where the longer step is a texel, or eleven sixteenths of both are if that is more.
    let cases = [
        (Shape::D2, [64, 32, 1], vec![1.0 / 64.0, 0.0, 0.0, 0.0], 0.0),
        (Shape::D2, [64, 32, 1], vec![0.0, 0.0, 0.0, 4.0 / 32.0], 2.0),
        (Shape::D2, [64, 32, 1], vec![3.0 / 64.0, 4.0 / 32.0, 0.0, 0.0], 5_f64.log2()),
        (Shape::D2, [64, 32, 1], vec![0.0, 0.0, 0.0, 0.0], 0.0),
        (Shape::D2, [64, 32, 1], vec![1e30, 0.0, 0.0, f32::NAN], 6.0),
        (Shape::D1, [64, 1, 1], vec![0.3, 0.7], (0.7_f64 * 64.0).log2()),
        (Shape::D3, [64, 32, 16], vec![0.0, 0.0, 5.0 / 16.0, 0.1, 0.0, 0.0], ((5.0 + 6.4) * 11.0 / 16.0_f64).log2()),
        // From the middle of face +x (x = 2), a step along -z of twice what a texel is.
        (Shape::Cube, [16, 16, 6], vec![0.0, 0.0, 0.0, 0.0, 0.0, -0.5], 1.0),
    ];
    for (shape, extent, gradient, wanted) in cases {
        let picture = stack(shape, extent, shape.most_levels(extent));
        let sampler =
            Sampler { mip_filter: Filter::Linear, level_clamp: [0.0, 20.0], normalized: true, ..Sampler::default() };
        let geometry = geometry(shape);
        let access = Access::Sample { geometry, integer: false, mip: Mip::Gradient, offset: false };
        let at = [2.0, 0.0, 0.0];
        let sources: Vec<u64> =
            at[..geometry.coordinates()].iter().chain(&gradient).map(|c: &f32| u64::from(c.to_bits())).collect();
        let got = f64::from(f32::from_bits(perform(&access, &picture.object(Some(sampler)), &sources, &picture)[0]));
        assert!((got - wanted).abs() <= 1.0 / 256.0, "{shape:?} {gradient:?}: {got}, not {wanted}");
    }
}

#[test]
fn queries_tell_what_there_is() {
    let ask = |picture: &Picture, sampler, what, level| {
        let access = Access::Query { what, level };
        let sources: &[u64] = if level { &[1] } else { &[] };
        perform(&access, &picture.object(sampler), sources, picture)[0]
    };
    let cubes = stack(Shape::CubeLayered, [16, 16, 12], 3);
    let sampler = Sampler {
        address: [AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border],
        normalized: true,
        ..Sampler::default()
    };
    for (what, level, wanted) in [
        (Query::Width, false, 16),
        (Query::Width, true, 8),
        (Query::Height, true, 8),
        (Query::Depth, false, 0),
        (Query::ArraySize, false, 2),
        (Query::NumMipmapLevels, false, 3),
        (Query::NumSamples, false, 0),
        (Query::ChannelDataType, false, 0x10de),
        (Query::ChannelOrder, false, 0x10b0),
        (Query::NormalizedCoords, false, 1),
        (Query::FilterMode, false, 0),
        (Query::AddrMode(0), false, 3),
        (Query::AddrMode(1), false, 1),
        (Query::AddrMode(2), false, 4),
        (Query::MemoryLayout, false, 0),
    ] {
        assert_eq!(ask(&cubes, Some(sampler), what, level), wanted, "{what:?}");
    }
    let deep = stack(Shape::D3, [16, 8, 4], 1);
    assert_eq!(ask(&deep, None, Query::Depth, false), 4);
    assert_eq!(ask(&deep, None, Query::ArraySize, false), 0);
    assert_eq!(ask(&deep, None, Query::NumMipmapLevels, false), 0);
}
