//! Conversions to and from the 8-bit formats e4m3 and e5m2.
//!
//! e5m2 is the upper half of binary16. e4m3 has no infinity: all but the largest code of its top exponent are numbers.
//! ISA manual, sections 5.2.3 and 9.7.9.21.

use super::float;
use super::soft;
use super::soft::Number;
use crate::ir::{Fp8, Round, Ty};

/// The NaN of both formats.
const NAN: u64 = 0x7f;

impl Fp8 {
    fn fraction_bits(self) -> i32 {
        match self {
            Fp8::E4M3 => 3,
            Fp8::E5M2 => 2,
        }
    }
    /// Exponent of the least normal number.
    fn least(self) -> i32 {
        match self {
            Fp8::E4M3 => -6,
            Fp8::E5M2 => -14,
        }
    }
    /// The number of largest magnitude.
    fn max_finite(self) -> u64 {
        match self {
            Fp8::E4M3 => 0x7e,
            Fp8::E5M2 => 0x7b,
        }
    }
}

/// Two numbers of `src`, rounded to nearest even and at most the largest number in magnitude: `a` to the upper byte, `b` to
/// the lower. Of a packed `src` both are in `a`. `None` if there is no such conversion.
#[must_use]
pub fn pack(to: Fp8, src: Ty, relu: bool, a: u64, b: u64) -> Option<u64> {
    let (high, low) = match src {
        Ty::F32 => (a, b),
        Ty::F16x2 | Ty::BF16x2 => (a >> 16 & 0xffff, a & 0xffff),
        _ => return None,
    };
    let from = float::format(src)?;
    let one = |bits: u64| narrow(to, relu, from.unpack(bits));
    Some(one(high) << 8 | one(low))
}

fn narrow(to: Fp8, relu: bool, number: Number) -> u64 {
    let (negative, magnitude) = match number {
        Number::Nan => return NAN,
        Number::Infinite { negative } => (negative, to.max_finite()),
        Number::Finite { negative, .. } => {
            // An f64 holds every operand and its quotient by a power of two exactly.
            let value = f64::from_bits(soft::F64.round(number, Round::Rn)).abs();
            let exponent = (value.to_bits() >> 52) as i32 - 1023;
            let exponent = exponent.max(to.least());
            let steps = (value * f64::from(to.fraction_bits() - exponent).exp2()).round_ties_even();
            // A carry out of the fraction moves into the exponent field by itself.
            let field = u64::from((exponent - to.least()).unsigned_abs()) << to.fraction_bits();
            (negative, (field + steps as u64).min(to.max_finite()))
        }
    };
    match (negative, relu) {
        (true, true) => 0,
        _ => u64::from(negative) << 7 | magnitude,
    }
}

/// Two 8-bit numbers as f16x2.
#[must_use]
pub fn unpack(from: Fp8, relu: bool, a: u64) -> u64 {
    let one = |byte: u64| {
        let half = match from {
            Fp8::E5M2 => soft::F16.canonical(byte << 8),
            Fp8::E4M3 if byte & NAN == NAN => soft::F16.nan,
            Fp8::E4M3 => {
                let (field, fraction) = (byte >> 3 & 15, byte & 7);
                let significand = u128::from(fraction | u64::from(field != 0) << 3);
                let exponent = field.max(1) as i32 - 1 + from.least() - from.fraction_bits();
                soft::F16.round(Number::Finite { negative: byte >> 7 != 0, exponent, significand }, Round::Rn)
            }
        };
        if relu { soft::F16.relu(half) } else { half }
    };
    one(a & 0xff) | one(a >> 8 & 0xff) << 16
}

#[cfg(test)]
mod tests {
    use super::{pack, unpack};
    use crate::ir::{Fp8, Ty};

    #[test]
    fn every_byte_survives_the_way_there_and_back() {
        for format in [Fp8::E4M3, Fp8::E5M2] {
            for byte in 0..=0xff_u64 {
                let halves = unpack(format, false, byte);
                let finite = byte & 0x7f <= format.max_finite();
                let there = pack(format, Ty::F16x2, false, halves, 0).expect("it exists");
                if finite {
                    assert_eq!(there, byte, "{format:?} {byte:#x}");
                } else if halves & 0x7fff == 0x7c00 {
                    assert_eq!(there & 0x7f, format.max_finite(), "{format:?} {byte:#x}");
                } else {
                    assert_eq!(there, 0x7f, "{format:?} {byte:#x}");
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_and_once() {
        let to = |format, x: f32| pack(format, Ty::F32, false, 0, x.to_bits().into()).expect("it exists");
        for (format, x, want) in [
            (Fp8::E4M3, 1.0, 0x38),
            (Fp8::E4M3, 448.0, 0x7e),
            (Fp8::E4M3, 1.0e9, 0x7e),
            (Fp8::E4M3, f32::NEG_INFINITY, 0xfe),
            (Fp8::E4M3, f32::NAN, 0x7f),
            // Halfway between 1 and 1.125: to even; a little above: up.
            (Fp8::E4M3, 1.0625, 0x38),
            (Fp8::E4M3, 1.062_500_1, 0x39),
            // Least subnormal 2^-9, and its half.
            (Fp8::E4M3, 0.001_953_125, 0x01),
            (Fp8::E4M3, 0.000_976_562_5, 0x00),
            (Fp8::E5M2, 57344.0, 0x7b),
            (Fp8::E5M2, 61440.0, 0x7b),
            (Fp8::E5M2, -1.5, 0xbe),
        ] {
            assert_eq!(to(format, x), want, "{format:?} {x}");
        }
        assert_eq!(pack(Fp8::E4M3, Ty::F32, true, (-1.0_f32).to_bits().into(), 0), Some(0));
        assert_eq!(pack(Fp8::E4M3, Ty::F64, false, 0, 0), None);
    }
}
