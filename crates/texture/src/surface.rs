//! Where a surface access goes, and what it does there.

use half::f16;

use crate::access::{Boundary, Reduction, Refused};
use crate::descriptor::{Format, Image};
use crate::object::Object;

/// The address of `bytes` bytes at byte x of the row; none if the access is dropped.
pub(crate) fn bytes_at<F>(
    object: &Object,
    layer: u32,
    at: [u32; 3],
    bytes: u32,
    boundary: Boundary,
) -> Result<Option<u64>, Refused<F>> {
    let row = i64::from(object.level(0).width) * i64::from(object.image().texel());
    let Some((row_at, x)) = place(object, layer, at, row - i64::from(bytes), boundary)? else { return Ok(None) };
    let address = row_at + x;
    if address.is_multiple_of(bytes.into()) { Ok(Some(address)) } else { Err(Refused::Misaligned(address)) }
}

/// The address of texel x of the row; none if the access is dropped.
pub(crate) fn texel_at<F>(
    object: &Object,
    layer: u32,
    at: [u32; 3],
    boundary: Boundary,
) -> Result<Option<u64>, Refused<F>> {
    let last = i64::from(object.level(0).width) - 1;
    let found = place(object, layer, at, last, boundary)?;
    Ok(found.map(|(row, x)| row + x * u64::from(object.image().texel())))
}

/// The address of a row, and x, which may be at most `last`.
fn place<F>(
    object: &Object,
    layer: u32,
    [x, y, z]: [u32; 3],
    last: i64,
    boundary: Boundary,
) -> Result<Option<(u64, u64)>, Refused<F>> {
    let level = object.level(0);
    let layered = object.image().shape.is_layered();
    let slice = if layered { i64::from(layer) } else { i64::from(z.cast_signed()) };
    let slices = i64::from(object.slices(&level));
    let mut at = [i64::from(x.cast_signed()), i64::from(y.cast_signed()), slice];
    let most = [last, i64::from(level.height) - 1, slices - 1];
    let inside = at.iter().zip(most).all(|(at, most)| (0..=most).contains(at));
    match boundary {
        _ if inside => {}
        Boundary::Trap => return Err(Refused::Outside),
        // An access longer than a row has no place inside.
        Boundary::Clamp if last >= 0 => {
            for (at, most) in at.iter_mut().zip(most) {
                *at = (*at).clamp(0, most);
            }
        }
        Boundary::Clamp | Boundary::Zero => return Ok(None),
    }
    let [x, y, slice] = at.map(i64::cast_unsigned);
    Ok(Some((level.offset + slice * level.slice + y * level.pitch, x)))
}

/// A texel from a value of 32 bits for each channel, each as the format says: f32, u32 or s32. What does not fit becomes the
/// nearest that does.
pub(crate) fn packed(image: &Image, channels: [u32; 4]) -> u128 {
    let width = 8 * image.format.bytes();
    let channel = |bits: u32| {
        let (signed, float) = (i64::from(bits.cast_signed()), f32::from_bits(bits));
        let normalized = |least: f32, most: f32| (float.clamp(least, 1.0) * most).round_ties_even() as i64;
        let value = match image.format {
            Format::U8 | Format::U16 | Format::U32 => i64::from(bits).min((1 << width) - 1),
            Format::S8 | Format::S16 | Format::S32 => signed.clamp(-1 << (width - 1), (1 << (width - 1)) - 1),
            Format::F16 => f16::from_f32(float).to_bits().into(),
            Format::F32 => bits.into(),
            Format::Unorm8 => normalized(0.0, 255.0),
            Format::Unorm16 => normalized(0.0, 65535.0),
            Format::Snorm8 => normalized(-1.0, 127.0),
            Format::Snorm16 => normalized(-1.0, 32767.0),
        };
        u128::from(value.cast_unsigned()) & ((1 << width) - 1)
    };
    let used = channels.into_iter().take(image.channels.into());
    used.zip(0..).fold(0, |texel, (bits, i)| texel | channel(bits) << (width * i))
}

/// What a reduction leaves.
pub(crate) fn reduced(op: Reduction, bytes: u8, signed: bool, old: u64, value: u64) -> u64 {
    let unused = 64 - 8 * u32::from(bytes);
    let extended = |x: u64| (x << unused).cast_signed() >> unused;
    let masked = |x: u64| x << unused >> unused;
    let (a, b) = (extended(old), extended(value));
    let (c, d) = (masked(old), masked(value));
    masked(match (op, signed) {
        (Reduction::Add, _) => old.wrapping_add(value),
        (Reduction::Min, true) => a.min(b).cast_unsigned(),
        (Reduction::Max, true) => a.max(b).cast_unsigned(),
        (Reduction::Min, false) => c.min(d),
        (Reduction::Max, false) => c.max(d),
        (Reduction::And, _) => c & d,
        (Reduction::Or, _) => c | d,
    })
}
