//! Surfaces against a picture that is written and read byte by byte.

mod common;

use common::{Picture, Random};
use texture::{Access, Boundary, Format, Geometry, Reduction, Refused, Sampler, Shape};

const SHAPES: [Shape; 7] =
    [Shape::D1, Shape::D2, Shape::D3, Shape::D1Layered, Shape::D2Layered, Shape::Cube, Shape::CubeLayered];

fn geometry(shape: Shape) -> Geometry {
    match shape {
        Shape::Linear | Shape::D1 => Geometry::D1,
        Shape::Pitched | Shape::D2 => Geometry::D2,
        Shape::D3 => Geometry::D3,
        Shape::D1Layered => Geometry::A1,
        Shape::D2Layered | Shape::Cube | Shape::CubeLayered => Geometry::A2,
    }
}

/// What becomes of an access to so many units in a row of `row`.
enum Fate {
    At([u32; 3]),
    Nowhere,
    Trap,
}

fn fate(at: [i64; 3], row: i64, units: i64, size: [u32; 3], boundary: Boundary) -> Fate {
    let last = [row - units, i64::from(size[1]) - 1, i64::from(size[2]) - 1];
    let outside = (0..3).any(|i| at[i] < 0 || at[i] > last[i]);
    match boundary {
        _ if !outside => Fate::At(at.map(|i| i as u32)),
        Boundary::Trap => Fate::Trap,
        Boundary::Clamp if row >= units => Fate::At([0, 1, 2].map(|i| at[i].max(0).min(last[i]) as u32)),
        Boundary::Clamp | Boundary::Zero => Fate::Nowhere,
    }
}

/// A place, mostly inside: x, y, and slice or layer; and the sources that say so.
fn place(random: &Random, geometry: Geometry, row: u32, size: [u32; 3]) -> ([i64; 3], Vec<u64>) {
    let index = |n: u32| match random.below(12) {
        0 => -1 - random.below(3) as i64,
        1 => i64::from(n) + random.below(3) as i64,
        2 => random.of(&[i64::from(i32::MIN), i64::from(i32::MAX)]),
        _ => random.below(n.into()) as i64,
    };
    let mut at = [index(row), index(size[1]), index(size[2])];
    let word = |i: i64| u64::from(i as u32);
    let mut sources = Vec::new();
    if geometry.layered() {
        // Layers have no sign.
        at[2] = i64::from(at[2] as u32);
        sources.push(word(at[2]));
    } else if geometry != Geometry::D3 {
        at[2] = 0;
    }
    if geometry.coordinates() == 1 {
        at[1] = 0;
    }
    sources.extend(at[..geometry.coordinates()].iter().map(|i| word(*i)));
    (at, sources)
}

#[test]
fn bytes_are_read_and_written_at_their_place() {
    let random = Random::new(11);
    let boundaries = [Boundary::Trap, Boundary::Clamp, Boundary::Zero];
    let (mut traps, mut nowhere, mut misaligned) = (0, 0, 0);
    for _ in 0..30_000 {
        let mut picture = Picture::random(&random, &SHAPES, &Format::ALL);
        let before = picture.clone();
        let (object, size, texel) = (picture.object(None), picture.size(0), picture.image.texel());
        let geometry = geometry(picture.image.shape);
        let bytes: u8 = random.of(&[1, 2, 4, 8]);
        let count = random.of(if bytes == 8 { &[1, 2] } else { &[1, 2, 4] });
        let (all, row) = (u32::from(bytes * count), size[0] * texel);
        let boundary = random.of(&boundaries);
        let (mut at, mut sources) = place(&random, geometry, row, size);
        if !random.one_in(4) {
            // Mostly where it may be.
            at[0] -= at[0].rem_euclid(all.into());
            sources[usize::from(geometry.layered())] = u64::from(at[0] as u32);
        }
        let store = random.one_in(2);
        let values: Vec<u64> = (0..count).map(|_| random.next()).collect();
        let access = if store {
            sources.extend(&values);
            Access::Store { geometry, bytes, count, boundary }
        } else {
            Access::Load { geometry, bytes, count, boundary }
        };
        assert!(access.is_valid());
        let got = access.perform(&object, &sources, &mut picture);
        let context = format!("{:?} {access:?} {at:?}", before.image);
        let mut after = before.clone();
        match fate(at, row.into(), all.into(), size, boundary) {
            Fate::Trap => {
                traps += 1;
                assert_eq!(got, Err(Refused::Outside), "{context}");
            }
            Fate::Nowhere => {
                nowhere += 1;
                assert_eq!(got, Ok([0; 4]), "{context}");
            }
            Fate::At([x, y, z]) => {
                let from = before.place(0, [0, y, z]) + x as usize;
                if !x.is_multiple_of(all) {
                    misaligned += 1;
                    assert_eq!(got, Err(Refused::Misaligned(before.image.base + from as u64)), "{context}");
                } else if store {
                    assert_eq!(got, Ok([0; 4]), "{context}");
                    for (i, value) in values.iter().enumerate() {
                        let bytes = usize::from(bytes);
                        after.bytes[from + i * bytes..][..bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
                    }
                } else {
                    let mut want = [0; 4];
                    for (i, byte) in before.bytes[from..][..all as usize].iter().enumerate() {
                        want[i / usize::from(bytes)] |= u64::from(*byte) << (8 * (i % usize::from(bytes)));
                    }
                    assert_eq!(got, Ok(want), "{context}");
                }
            }
        }
        assert_eq!(picture, after, "{context}");
    }
    assert!(traps > 1000 && nowhere > 1000 && misaligned > 300);
}

#[test]
fn formatted_stores_convert_and_textures_read_it_back() {
    let random = Random::new(12);
    for _ in 0..10_000 {
        let mut picture = Picture::random(&random, &[Shape::D1, Shape::D2, Shape::D3], &Format::ALL);
        picture.image.level_range = [0, 0];
        let (image, size) = (picture.image, picture.size(0));
        let geometry = geometry(image.shape);
        let (at, sources) = place(&random, geometry, size[0], size);
        let inside = fate(at, size[0].into(), 1, size, Boundary::Zero);
        let Fate::At(at) = inside else { continue };
        let float = |least: f64, most: f64| random.below(4096) as f64 / 4096.0 * (most - least) + least;
        let values = [0; 4].map(|_: u32| match image.format {
            Format::F32 | Format::U32 | Format::S32 => random.next() as u32 & 0x7f7f_ffff,
            Format::F16 => (float(-60.0, 60.0) as f32).to_bits(),
            Format::Unorm8 | Format::Unorm16 | Format::Snorm8 | Format::Snorm16 => (float(-1.5, 1.5) as f32).to_bits(),
            Format::U8 | Format::U16 => random.below(70_000) as u32,
            Format::S8 | Format::S16 => (random.below(70_000) as i32 - 35_000).cast_unsigned(),
        });
        let count = random.of(&[1, 2, 4]);
        let store = Access::StoreFormatted { geometry, count, boundary: Boundary::Trap };
        let all: Vec<u64> =
            sources.iter().copied().chain(values[..usize::from(count)].iter().map(|v| u64::from(*v))).collect();
        store.perform(&picture.object(None), &all, &mut picture).expect("a place inside");
        let read = Access::Sample { geometry, integer: true, mip: texture::Mip::Base, offset: false };
        let object = picture.object(Some(Sampler::default()));
        let got = read.perform(&object, &sources, &mut picture).expect("a place inside");
        for channel in 0..usize::from(image.channels.min(count)) {
            let (got, value) = (got[channel] as u32, values[channel]);
            let (read, wrote) = (f32::from_bits(got), f32::from_bits(value));
            let near = |least: f32, steps: f32| (read - wrote.clamp(least, 1.0)).abs() <= 0.501 / steps;
            let signed = value.cast_signed();
            let holds = match image.format {
                Format::F32 | Format::U32 | Format::S32 => got == value,
                Format::F16 => (read - wrote).abs() <= wrote.abs() / 2048.0 + 1e-7,
                Format::Unorm8 => near(0.0, 255.0),
                Format::Unorm16 => near(0.0, 65535.0),
                Format::Snorm8 => near(-1.0, 127.0),
                Format::Snorm16 => near(-1.0, 32767.0),
                Format::U8 => got == value.min(255),
                Format::U16 => got == value.min(65535),
                Format::S8 => got.cast_signed() == signed.clamp(-128, 127),
                Format::S16 => got.cast_signed() == signed.clamp(-32768, 32767),
            };
            assert!(holds, "{image:?} at {at:?}: {value:#x} became {got:#x}");
        }
    }
}

#[test]
fn reductions_change_what_is_there() {
    let random = Random::new(13);
    let ops = [Reduction::Add, Reduction::Min, Reduction::Max, Reduction::And, Reduction::Or];
    for _ in 0..10_000 {
        let mut picture = Picture::random(&random, &[Shape::D1, Shape::D2, Shape::D3], &[Format::U32, Format::S32]);
        picture.image.channels = 1;
        picture.image.level_range = [0, 0];
        let before = picture.clone();
        let (geometry, size) = (geometry(picture.image.shape), picture.size(0));
        let (at, mut sources) = place(&random, geometry, size[0], size);
        let Fate::At(at) = fate(at, size[0].into(), 1, size, Boundary::Zero) else { continue };
        let (op, formatted, signed) = (random.of(&ops), random.one_in(2), random.one_in(2));
        if !formatted {
            sources[0] *= 4;
        }
        let value = random.next() as u32;
        sources.push(value.into());
        let access = Access::Reduce { op, geometry, bytes: 4, signed, formatted, boundary: Boundary::Trap };
        access.perform(&picture.object(None), &sources, &mut picture).expect("a place inside");
        let place = before.place(0, at);
        let word = |picture: &Picture| {
            let bytes = &picture.bytes[place..][..4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let (old, new) = (word(&before), word(&picture));
        let signed = if formatted { picture.image.format == Format::S32 } else { signed };
        let less = if signed { old.cast_signed() < value.cast_signed() } else { old < value };
        let want = match op {
            Reduction::Add => (u64::from(old) + u64::from(value)) as u32,
            Reduction::Min => {
                if less {
                    old
                } else {
                    value
                }
            }
            Reduction::Max => {
                if less {
                    value
                } else {
                    old
                }
            }
            Reduction::And => old & value,
            Reduction::Or => old | value,
        };
        assert_eq!(new, want, "{op:?} {old:#x} {value:#x}");
        picture.bytes[place..][..4].copy_from_slice(&old.to_le_bytes());
        assert_eq!(picture, before);
    }
}

#[test]
fn a_handle_of_the_other_sort_is_refused() {
    let mut picture = Picture::random(&Random::new(14), &[Shape::D2], &[Format::U32]);
    let sample = Access::Sample { geometry: Geometry::D2, integer: true, mip: texture::Mip::Base, offset: false };
    let load = Access::Load { geometry: Geometry::D2, bytes: 4, count: 1, boundary: Boundary::Zero };
    let (texture, surface) = (picture.object(Some(Sampler::default())), picture.object(None));
    assert_eq!(sample.perform(&surface, &[0, 0], &mut picture), Err(Refused::Role));
    assert_eq!(load.perform(&texture, &[0, 0], &mut picture), Err(Refused::Role));
    assert!(sample.perform(&texture, &[0, 0], &mut picture).is_ok());
    assert!(load.perform(&surface, &[0, 0], &mut picture).is_ok());
}
