//! IEEE 754 arithmetic in integers: any binary format of up to 64 bits, all rounding directions.
//!
//! A finite number is `significand · 2^exponent`; every operation computes a significand long enough that what is cut off
//! can be stood for by its lowest bit ("sticky"), and [`Format::round`] rounds once.

use crate::ir::Round;

/// A binary interchange format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Width of the exponent field.
    pub exponent_bits: u32,
    /// Width of the fraction field.
    pub fraction_bits: u32,
    /// The NaN that operations give.
    pub nan: u64,
}

/// binary16.
pub const F16: Format = Format { exponent_bits: 5, fraction_bits: 10, nan: super::NAN_F16 as u64 };
/// bfloat16.
pub const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7, nan: super::NAN_F16 as u64 };
/// binary32.
pub const F32: Format = Format { exponent_bits: 8, fraction_bits: 23, nan: super::NAN_F32 as u64 };
/// binary64.
pub const F64: Format = Format { exponent_bits: 11, fraction_bits: 52, nan: super::NAN_F64 };

/// A number taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// Not a number.
    Nan,
    /// An infinity.
    Infinite {
        /// Below zero?
        negative: bool,
    },
    /// `significand · 2^exponent`, zero included.
    Finite {
        /// Sign bit.
        negative: bool,
        /// Power of two.
        exponent: i32,
        /// Magnitude.
        significand: u128,
    },
}

impl Number {
    /// The integer `value`.
    #[must_use]
    pub fn integer(value: i128) -> Number {
        Number::Finite { negative: value < 0, exponent: 0, significand: value.unsigned_abs() }
    }
    fn negative(self) -> bool {
        match self {
            Number::Nan => false,
            Number::Infinite { negative } | Number::Finite { negative, .. } => negative,
        }
    }
    fn is_zero(self) -> bool {
        matches!(self, Number::Finite { significand: 0, .. })
    }
}

/// `a >> n`, the lowest bit set if a one was shifted out.
fn shift_right_sticky(a: u128, n: u32) -> u128 {
    match n {
        0 => a,
        1..128 => (a >> n) | u128::from(a << (128 - n) != 0),
        _ => u128::from(a != 0),
    }
}

/// The integer nearest to `significand / 2^drop` in the given direction.
fn round_off(significand: u128, drop: u32, negative: bool, mode: Round) -> u128 {
    // Two bits below the unit suffice: the half, and whether anything is below it.
    let fine = if drop >= 2 { shift_right_sticky(significand, drop - 2) } else { significand << (2 - drop) };
    let (whole, rest) = (fine >> 2, fine & 3);
    let up = match mode {
        Round::Rn => rest > 2 || (rest == 2 && whole & 1 == 1),
        Round::Rna => rest >= 2,
        Round::Rz => false,
        Round::Rm => negative && rest != 0,
        Round::Rp => !negative && rest != 0,
    };
    whole + u128::from(up)
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }
    /// Exponent of the last place of subnormals.
    fn least(self) -> i32 {
        1 - self.bias() - self.fraction_bits.cast_signed()
    }
    /// Position of the sign bit.
    #[must_use]
    pub fn sign_shift(self) -> u32 {
        self.exponent_bits + self.fraction_bits
    }
    /// The sign bit of `negative`.
    #[must_use]
    pub fn sign(self, negative: bool) -> u64 {
        u64::from(negative) << self.sign_shift()
    }
    /// Infinity.
    #[must_use]
    pub fn infinity(self, negative: bool) -> u64 {
        self.sign(negative) | (((1 << self.exponent_bits) - 1) << self.fraction_bits)
    }
    /// The number of largest finite magnitude.
    #[must_use]
    pub fn max_finite(self, negative: bool) -> u64 {
        self.infinity(negative) - 1
    }
    /// One.
    #[must_use]
    pub fn one(self) -> u64 {
        u64::from(self.bias().cast_unsigned()) << self.fraction_bits
    }
    /// The bits below the sign.
    #[must_use]
    pub fn magnitude(self, bits: u64) -> u64 {
        bits & ((1 << self.sign_shift()) - 1)
    }
    /// Is it a NaN?
    #[must_use]
    pub fn is_nan(self, bits: u64) -> bool {
        self.magnitude(bits) > self.infinity(false)
    }
    /// Subnormals to zero of the same sign.
    #[must_use]
    pub fn flush(self, bits: u64) -> u64 {
        if self.magnitude(bits) >> self.fraction_bits == 0 { bits & self.sign(true) } else { bits }
    }
    /// NaNs to the canonical one.
    #[must_use]
    pub fn canonical(self, bits: u64) -> u64 {
        if self.is_nan(bits) { self.nan } else { bits }
    }
    /// To [0, 1], NaN to 0.
    #[must_use]
    pub fn saturate(self, bits: u64) -> u64 {
        if self.is_nan(bits) || bits >> self.sign_shift() != 0 { 0 } else { bits.min(self.one()) }
    }
    /// Negative numbers to zero.
    #[must_use]
    pub fn relu(self, bits: u64) -> u64 {
        if bits >> self.sign_shift() != 0 && !self.is_nan(bits) { 0 } else { bits }
    }

    /// Takes `bits` apart.
    #[must_use]
    pub fn unpack(self, bits: u64) -> Number {
        let negative = bits >> self.sign_shift() & 1 != 0;
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let field = self.magnitude(bits) >> self.fraction_bits;
        if field == (1 << self.exponent_bits) - 1 {
            return if fraction != 0 { Number::Nan } else { Number::Infinite { negative } };
        }
        let implicit = u64::from(field != 0) << self.fraction_bits;
        let exponent = field.max(1) as i32 - 1 + self.least();
        Number::Finite { negative, exponent, significand: u128::from(fraction | implicit) }
    }

    /// Rounds a number into the format. The significand's lowest bit may be sticky if it has at least two bits more than
    /// the format.
    #[must_use]
    pub fn round(self, number: Number, mode: Round) -> u64 {
        let (negative, exponent, significand) = match number {
            Number::Nan => return self.nan,
            Number::Infinite { negative } => return self.infinity(negative),
            Number::Finite { negative, significand: 0, .. } => return self.sign(negative),
            Number::Finite { negative, exponent, significand } => (negative, exponent, significand),
        };
        let length = (128 - significand.leading_zeros()).cast_signed();
        // Exponent of the last place: that of a full fraction, or of subnormals.
        let place = (exponent + length - 1 - self.fraction_bits.cast_signed()).max(self.least());
        let drop = place - exponent;
        let rounded = if drop > 0 {
            round_off(significand, drop.cast_unsigned(), negative, mode)
        } else {
            significand << drop.unsigned_abs()
        };
        // A carry out of the fraction moves into the exponent field by itself.
        let field = (place - self.least()).cast_unsigned();
        let bits = (u64::from(field) << self.fraction_bits) + rounded as u64;
        if field >= 1 << self.exponent_bits || bits >= self.infinity(false) {
            let to_infinity = match mode {
                Round::Rn | Round::Rna => true,
                Round::Rz => false,
                Round::Rm => negative,
                Round::Rp => !negative,
            };
            return if to_infinity { self.infinity(negative) } else { self.max_finite(negative) };
        }
        self.sign(negative) | bits
    }

    /// `a * b + c`, rounded once.
    #[must_use]
    pub fn fma(self, a: u64, b: u64, c: u64, mode: Round) -> u64 {
        let product = multiply(self.unpack(a), self.unpack(b));
        self.round(sum(product, self.unpack(c), mode), mode)
    }
    /// `a + b`.
    #[must_use]
    pub fn add(self, a: u64, b: u64, mode: Round) -> u64 {
        self.round(sum(self.unpack(a), self.unpack(b), mode), mode)
    }
    /// `a * b`.
    #[must_use]
    pub fn mul(self, a: u64, b: u64, mode: Round) -> u64 {
        self.round(multiply(self.unpack(a), self.unpack(b)), mode)
    }
    /// `a / b`.
    #[must_use]
    pub fn div(self, a: u64, b: u64, mode: Round) -> u64 {
        self.round(quotient(self.unpack(a), self.unpack(b)), mode)
    }
    /// Square root.
    #[must_use]
    pub fn sqrt(self, a: u64, mode: Round) -> u64 {
        self.round(root(self.unpack(a)), mode)
    }
    /// Rounds to an integral value of the format.
    #[must_use]
    pub fn integral(self, a: u64, mode: Round) -> u64 {
        match self.unpack(a) {
            Number::Finite { negative, exponent, significand } if exponent < 0 => {
                let significand = round_off(significand, exponent.unsigned_abs().min(200), negative, mode);
                self.round(Number::Finite { negative, exponent: 0, significand }, Round::Rz)
            }
            number => self.round(number, Round::Rz),
        }
    }
}

/// The integer nearest to a finite number in the given direction; `None` for NaN. Numbers beyond ±2^100 saturate.
#[must_use]
pub fn to_integer(number: Number, mode: Round) -> Option<i128> {
    let limit = 1i128 << 100;
    let (negative, magnitude) = match number {
        Number::Nan => return None,
        Number::Infinite { negative } => (negative, limit),
        Number::Finite { negative, exponent, significand } => {
            let magnitude = if exponent < 0 {
                round_off(significand, exponent.unsigned_abs().min(200), negative, mode).cast_signed()
            } else if exponent > 70 && significand != 0 {
                limit
            } else {
                (significand << exponent.min(70)).cast_signed()
            };
            (negative, magnitude.min(limit))
        }
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// Exact product. Significands of at most 53 bits.
fn multiply(a: Number, b: Number) -> Number {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (
            Number::Finite { exponent: ea, significand: sa, .. },
            Number::Finite { exponent: eb, significand: sb, .. },
        ) => Number::Finite { negative, exponent: ea + eb, significand: sa * sb },
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        _ if a.is_zero() || b.is_zero() => Number::Nan,
        _ => Number::Infinite { negative },
    }
}

/// Sum with a sticky lowest bit. Significands of at most 106 bits.
fn sum(a: Number, b: Number, mode: Round) -> Number {
    let ((na, ea, sa), (nb, eb, sb)) = match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => return Number::Nan,
        (Number::Infinite { negative: x }, Number::Infinite { negative: y }) if x != y => return Number::Nan,
        (Number::Infinite { negative }, _) | (_, Number::Infinite { negative }) => {
            return Number::Infinite { negative };
        }
        (
            Number::Finite { negative: na, exponent: ea, significand: sa },
            Number::Finite { negative: nb, exponent: eb, significand: sb },
        ) => ((na, ea, sa), (nb, eb, sb)),
    };
    // A sum that is exactly zero is positive, but negative when rounding down; zeros of one sign keep it.
    let zero = Number::Finite { negative: if na == nb { na } else { mode == Round::Rm }, exponent: 0, significand: 0 };
    match (sa, sb) {
        (0, 0) => return zero,
        (0, _) => return b,
        (_, 0) => return a,
        _ => {}
    }
    // Both to 125 bits: a shift that loses bits then leaves the difference far longer than any format.
    let (za, zb) = (sa.leading_zeros() - 3, sb.leading_zeros() - 3);
    let (sa, ea, sb, eb) = (sa << za, ea - za.cast_signed(), sb << zb, eb - zb.cast_signed());
    let exponent = ea.max(eb);
    let sa = shift_right_sticky(sa, (exponent - ea).cast_unsigned()).cast_signed();
    let sb = shift_right_sticky(sb, (exponent - eb).cast_unsigned()).cast_signed();
    let total = if na { -sa } else { sa } + if nb { -sb } else { sb };
    if total == 0 {
        return zero;
    }
    Number::Finite { negative: total < 0, exponent, significand: total.unsigned_abs() }
}

/// Quotient with a sticky lowest bit. Significands of at most 64 bits.
fn quotient(a: Number, b: Number) -> Number {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Infinite { .. }, Number::Infinite { .. }) => Number::Nan,
        (Number::Infinite { .. }, _) => Number::Infinite { negative },
        (_, Number::Infinite { .. }) => Number::Finite { negative, exponent: 0, significand: 0 },
        _ if a.is_zero() && b.is_zero() => Number::Nan,
        _ if b.is_zero() => Number::Infinite { negative },
        (
            Number::Finite { exponent: ea, significand: sa, .. },
            Number::Finite { exponent: eb, significand: sb, .. },
        ) => {
            if sa == 0 {
                return Number::Finite { negative, exponent: 0, significand: 0 };
            }
            let shift = sa.leading_zeros() - 1;
            let dividend = sa << shift;
            let (q, r) = (dividend / sb, dividend % sb);
            Number::Finite {
                negative,
                exponent: ea - eb - shift.cast_signed() - 1,
                significand: q << 1 | u128::from(r != 0),
            }
        }
    }
}

/// Square root with a sticky lowest bit.
fn root(a: Number) -> Number {
    match a {
        Number::Finite { significand: 0, .. } => a,
        Number::Finite { negative: false, exponent, significand } => {
            let mut shift = significand.leading_zeros();
            if (exponent - shift.cast_signed()) % 2 != 0 {
                shift -= 1;
            }
            let radicand = significand << shift;
            let whole = radicand.isqrt();
            Number::Finite {
                negative: false,
                exponent: (exponent - shift.cast_signed()) / 2 - 1,
                significand: whole << 1 | u128::from(whole * whole != radicand),
            }
        }
        Number::Infinite { negative: false } => a,
        _ => Number::Nan,
    }
}
