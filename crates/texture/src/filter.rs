//! What a weighted sum of texels is, by their format, as it was measured on an H200.
//!
//! - Sums of 16-bit fractions, and of 8-bit unsigned ones as 16-bit ones, are exact, and rounded to 16-bit ones; those of 8-bit
//!   signed ones are exact, too, and widened to 16 bits afterwards. Halves of the last place are rounded up.
//! - Sums of floating-point numbers are rounded to the format of the texels, away from zero where two numbers are equally near.
//!   Before that, halves of one quad (four neighbours of one slice) lose what is smaller than 2^-14 of the power of two below
//!   the largest of them.
//! - sRGB comes before filtering: linear light is a half of 8 significant bits. (On the H200 it is that in most cases, and else
//!   as near as 1 in 128; why is not known.)
//! - A texel of weight 0 does not count, whatever it is.

use half::f16;

use crate::descriptor::{Format, Image, Sampler};
use crate::layout::Shape;

/// A texel's four channels as 32 bits each: f32, or integers.
pub(crate) type Texel = [u32; 4];

/// A texel's channels as they are summed up.
pub(crate) type Summands = [f64; 4];

/// Four neighbours and their weights in 256ths.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Quad {
    pub(crate) weights: [u32; 4],
    pub(crate) texels: [Summands; 4],
}

/// The canonical NaN.
const NAN: u32 = 0x7fff_ffff;

/// How channels of an image are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    format: Format,
    channels: u32,
    srgb: bool,
    /// Bits of a texel of the border.
    border: u128,
}

impl Reader {
    pub(crate) fn new(image: &Image, sampler: &Sampler) -> Reader {
        let (format, channels) = (image.format, image.channels.into());
        // Behind linear memory there are zeros.
        let border = if image.shape == Shape::Linear { 0 } else { border(format, channels, sampler.border) };
        Reader { format, channels, srgb: sampler.srgb, border }
    }

    /// Bits of the channels of a texel; the others are zero, also the fourth.
    fn raw(&self, bits: u128) -> [u32; 4] {
        let width = 8 * self.format.bytes();
        let mask = u32::MAX >> (32 - width);
        [0, 1, 2, 3].map(|i| if i < self.channels { (bits >> (width * i)) as u32 & mask } else { 0 })
    }

    fn is_srgb(&self, channel: usize) -> bool {
        self.srgb && channel < 3
    }

    /// The value of a texel, or of the border.
    pub(crate) fn value(&self, bits: Option<u128>) -> Texel {
        let raw = self.raw(bits.unwrap_or(self.border));
        // The border's colour is linear as it is.
        let srgb = |i| self.is_srgb(i) && bits.is_some();
        [0, 1, 2, 3].map(|i| if srgb(i) { light(raw[i]).to_bits() } else { value_of(self.format, raw[i]) })
    }

    /// What a texel, or the border, adds to a sum.
    pub(crate) fn summands(&self, bits: Option<u128>) -> Summands {
        if self.srgb {
            let value = self.value(bits).map(|value| f64::from(f32::from_bits(value)));
            let [.., alpha] = self.raw(bits.unwrap_or(self.border));
            return [value[0], value[1], value[2], summand_of(self.format, alpha)];
        }
        self.raw(bits.unwrap_or(self.border)).map(|raw| summand_of(self.format, raw))
    }

    /// The value of a texel that goes through the filter alone.
    pub(crate) fn single(&self, bits: Option<u128>) -> Texel {
        // The filter's fractions have 16 bits; only of these can that be seen.
        if self.format != Format::Snorm8 {
            return self.value(bits);
        }
        self.summands(bits).map(|summand| rounded(self.format, 256.0 * summand))
    }

    /// The sum of texels by their weights.
    pub(crate) fn sum(&self, quads: &mut [Quad]) -> Texel {
        let mut texel = [0; 4];
        for (channel, value) in texel.iter_mut().enumerate().take(self.channels as usize) {
            let float = self.format == Format::F16 || self.is_srgb(channel);
            let mut sum = 0.0;
            for quad in &mut *quads {
                if float {
                    quad.align(channel);
                }
                for (weight, texel) in quad.weights.iter().zip(&quad.texels) {
                    sum += if *weight == 0 { 0.0 } else { f64::from(*weight) * texel[channel] };
                }
            }
            *value = if float { half_of(sum / 256.0) } else { rounded(self.format, sum) };
        }
        texel
    }
}

/// The bits of a texel that has a border's colour: the nearest that the format has.
fn border(format: Format, channels: u32, color: Texel) -> u128 {
    let width = 8 * format.bytes();
    let mask = u128::MAX >> (128 - width);
    color.into_iter().zip(0..channels).fold(0, |bits, (color, i)| {
        let channel = u128::from(bits_of(format, color)) & mask;
        bits | channel << (width * i)
    })
}

impl Quad {
    /// Cuts off what is much smaller than the largest number.
    fn align(&mut self, channel: usize) {
        let mut largest = 0.0_f64;
        for (weight, texel) in self.weights.iter().zip(&self.texels) {
            if *weight != 0 {
                largest = largest.max(texel[channel].abs());
            }
        }
        if largest == 0.0 || !largest.is_finite() {
            return;
        }
        let unit = power_below(largest) / f64::from(1 << 14);
        for texel in &mut self.texels {
            texel[channel] = (texel[channel] / unit).trunc() * unit;
        }
    }
}

/// The power of two at or below a positive number.
fn power_below(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0x7ff << 52)
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

fn signed(raw: u32, bits: u32) -> i32 {
    (raw << (32 - bits)).cast_signed() >> (32 - bits)
}

/// A channel's value from its bits, in the low bits of a word.
fn value_of(format: Format, raw: u32) -> u32 {
    let float = |value: f32| value.to_bits();
    match format {
        Format::U8 | Format::U16 | Format::U32 | Format::S32 | Format::F32 => raw,
        Format::S8 => signed(raw, 8).cast_unsigned(),
        Format::S16 => signed(raw, 16).cast_unsigned(),
        Format::F16 => canonical(f16::from_bits(raw as u16).to_f32()),
        Format::Unorm8 => float(raw as f32 / 255.0),
        Format::Unorm16 => float(raw as f32 / 65535.0),
        Format::Snorm8 => float((signed(raw, 8) as f32 / 127.0).max(-1.0)),
        Format::Snorm16 => float((signed(raw, 16) as f32 / 32767.0).max(-1.0)),
    }
}

/// What a channel adds to a sum, from its bits: integers of fractions.
fn summand_of(format: Format, raw: u32) -> f64 {
    match format {
        Format::Unorm8 => (raw * 257).into(),
        Format::Snorm8 => signed(raw, 8).into(),
        Format::Snorm16 => signed(raw, 16).into(),
        Format::F16 => f16::from_bits(raw as u16).into(),
        Format::F32 => f32::from_bits(raw).into(),
        // Apart from the first, integers, which are not filtered.
        Format::Unorm16 | Format::U8 | Format::U16 | Format::U32 | Format::S8 | Format::S16 | Format::S32 => raw.into(),
    }
}

/// A channel's value from 256 times a sum.
fn rounded(format: Format, sum: f64) -> u32 {
    match format {
        Format::Unorm8 | Format::Unorm16 => unsigned_of(sum as i32),
        Format::Snorm8 => signed_of(widened(sum as i32)),
        Format::Snorm16 => signed_of((sum as i32 + 128) >> 8),
        _ => float_of(sum / 256.0),
    }
}

/// A 16-bit fraction from 256 times its integer.
fn unsigned_of(sum: i32) -> u32 {
    (((sum + 128) >> 8) as f32 / 65535.0).to_bits()
}

/// A 16-bit signed fraction from its integer.
fn signed_of(integer: i32) -> u32 {
    (integer.clamp(-32767, 32767) as f32 / 32767.0).to_bits()
}

/// 256 times an 8-bit signed fraction's integer as that of a 16-bit one: times 32767 / (127 · 256), nearly.
fn widened(sum: i32) -> i32 {
    sum + (((sum >> 4) + (sum >> 12) + 4) >> 3)
}

/// The nearest f32, away from zero where two are.
fn float_of(value: f64) -> u32 {
    if value.is_nan() {
        return NAN;
    }
    // Half of the last place is added, and what is behind it cut off.
    let bits = (value.to_bits() + (1 << 28)) & (u64::MAX << 29);
    (f64::from_bits(bits) as f32).to_bits()
}

/// The nearest half, away from zero where two are, as an f32.
fn half_of(value: f64) -> u32 {
    if !value.is_finite() {
        return canonical(value as f32);
    }
    // Subnormals are multiples of 2^-24.
    let unit = (power_below(value.abs()) / 1024.0).max(f64::from(f16::from_bits(1)));
    let half = (value / unit).round() * unit;
    f16::from_f64(half).to_f32().to_bits()
}

/// Bits of a channel that has a colour: a border's, which fractions have rounded to the nearest, upwards where two are.
fn bits_of(format: Format, color: u32) -> u32 {
    let fraction = |least: f32, most: i32| {
        let nearest = (f64::from(f32::from_bits(color).clamp(least, 1.0)) * f64::from(most) + 0.5).floor();
        (nearest as i32).cast_unsigned()
    };
    match format {
        Format::Unorm8 => fraction(0.0, 255),
        Format::Unorm16 => fraction(0.0, 65535),
        Format::Snorm8 => fraction(-1.0, 127),
        Format::Snorm16 => fraction(-1.0, 32767),
        Format::F16 => f16::from_f32(f32::from_bits(color)).to_bits().into(),
        Format::U8 => color.min(u8::MAX.into()),
        Format::U16 => color.min(u16::MAX.into()),
        Format::S8 => color.cast_signed().clamp(i8::MIN.into(), i8::MAX.into()).cast_unsigned(),
        Format::S16 => color.cast_signed().clamp(i16::MIN.into(), i16::MAX.into()).cast_unsigned(),
        Format::U32 | Format::S32 | Format::F32 => color,
    }
}

/// An sRGB channel as linear light.
fn light(value: u32) -> f32 {
    let value = f64::from(value) / 255.0;
    let linear = if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
    let unit = power_below(linear) / 128.0;
    if unit == 0.0 { 0.0 } else { ((linear / unit).round() * unit) as f32 }
}
