//! Properties of the arithmetic: soft-float against the host, directed rounding against exact results, conversions against
//! the language's, bit operations against the manual's pseudocode.

use half::{bf16, f16};
use ptx::ir::{FloatOp, FloatUnOp, IntUnOp, MulPart, Precision, Round, Ty};
use ptx::math::convert::{Conversion, convert};
use ptx::math::soft::{self, BF16, F16, F32, F64, Format};
use ptx::math::{NAN_F32, float, int, video};

/// A generator of operands that visits the corners of a format often.
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn float(&mut self, f: Format) -> u64 {
        let all = u64::MAX >> (63 - f.sign_shift());
        let random = if f == F64 { self.bits() } else { self.bits() >> 8 & all };
        match self.bits() % 8 {
            0 => random & f.sign(true),
            1 => f.infinity(random & 1 != 0).wrapping_add(random >> 60),
            // Near one, so that sums cancel.
            2 | 3 => f.one().wrapping_add(random >> 3 & 0xff).wrapping_sub(0x7f) | (random & f.sign(true)),
            // Subnormal.
            4 => random & ((1 << f.fraction_bits) - 1),
            _ => random,
        }
    }
}

const MODES: [Round; 4] = [Round::Rn, Round::Rz, Round::Rm, Round::Rp];

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}

#[test]
fn soft_float_rounds_as_the_host() {
    let mut n = Numbers(1);
    for _ in 0..200_000 {
        let (a, b, c) = (n.float(F32), n.float(F32), n.float(F32));
        let same = |name: &str, got: u64, want: f32| {
            let want = F32.canonical(want.to_bits().into());
            assert_eq!(got, want, "{name} {:e} {:e} {:e}", f(a), f(b), f(c));
        };
        same("add", F32.add(a, b, Round::Rn), f(a) + f(b));
        same("mul", F32.mul(a, b, Round::Rn), f(a) * f(b));
        same("div", F32.div(a, b, Round::Rn), f(a) / f(b));
        same("sqrt", F32.sqrt(a, Round::Rn), f(a).sqrt());
        same("fma", F32.fma(a, b, c, Round::Rn), f(a).mul_add(f(b), f(c)));
        let (a, b, c) = (n.float(F64), n.float(F64), n.float(F64));
        let same = |name: &str, got: u64, want: f64| {
            let want = F64.canonical(want.to_bits());
            assert_eq!(got, want, "{name} {:e} {:e} {:e}", d(a), d(b), d(c));
        };
        same("add", F64.add(a, b, Round::Rn), d(a) + d(b));
        same("mul", F64.mul(a, b, Round::Rn), d(a) * d(b));
        same("div", F64.div(a, b, Round::Rn), d(a) / d(b));
        same("sqrt", F64.sqrt(a, Round::Rn), d(a).sqrt());
        same("fma", F64.fma(a, b, c, Round::Rn), d(a).mul_add(d(b), d(c)));
    }
}

/// Orders finite numbers and infinities by their bits.
fn rank(f: Format, x: u64) -> i64 {
    let m = f.magnitude(x).cast_signed();
    if x >> f.sign_shift() & 1 != 0 { -m } else { m }
}

#[test]
fn directed_rounding_brackets() {
    let mut n = Numbers(2);
    type Operation = (&'static str, fn(Format, [u64; 3], Round) -> u64);
    let operations: [Operation; 5] = [
        ("add", |f, [a, b, _], r| f.add(a, b, r)),
        ("mul", |f, [a, b, _], r| f.mul(a, b, r)),
        ("div", |f, [a, b, _], r| f.div(a, b, r)),
        ("sqrt", |f, [a, ..], r| f.sqrt(a, r)),
        ("fma", |f, [a, b, c], r| f.fma(a, b, c, r)),
    ];
    for _ in 0..60_000 {
        for format in [F16, BF16, F32, F64] {
            let v = [n.float(format), n.float(format), n.float(format)];
            for (name, op) in operations {
                let [rn, rz, rm, rp] = MODES.map(|m| op(format, v, m));
                if format.is_nan(rn) {
                    assert!([rz, rm, rp].iter().all(|&x| x == format.nan), "{name} {v:x?}");
                    continue;
                }
                let (lo, near, zero, hi) = (rank(format, rm), rank(format, rn), rank(format, rz), rank(format, rp));
                assert!(lo <= near && near <= hi && hi - lo <= 1, "{name} {v:x?}: {rm:x} {rn:x} {rp:x}");
                assert_eq!(zero.abs(), lo.abs().min(hi.abs()), "{name} {v:x?}");
            }
        }
    }
}

#[test]
fn directed_rounding_of_f32_against_exact_f64() {
    let mut n = Numbers(3);
    for _ in 0..200_000 {
        let (a, b) = (n.float(F32), n.float(F32));
        let exact = f64::from(f(a)) * f64::from(f(b));
        if !exact.is_finite() {
            continue;
        }
        let (down, up) = (f(F32.mul(a, b, Round::Rm)), f(F32.mul(a, b, Round::Rp)));
        assert!(f64::from(down) <= exact && exact <= f64::from(up), "{:e} * {:e}", f(a), f(b));
        assert_eq!(down == up, f64::from(down) == exact);
        // Conversion from f64 rounds the same number.
        for mode in MODES {
            assert_eq!(F32.round(F64.unpack(exact.to_bits()), mode), F32.mul(a, b, mode));
        }
    }
    let add = |a: f32, b: f32, m| f32::from_bits(F32.add(a.to_bits().into(), b.to_bits().into(), m) as u32);
    assert_eq!(add(1.0, 1e-30, Round::Rp), 1.0 + f32::EPSILON);
    assert_eq!(add(1.0, 1e-30, Round::Rm), 1.0);
    assert_eq!(add(1.0, -1e-30, Round::Rz), 1.0 - f32::EPSILON / 2.0);
    assert_eq!(add(1.0, -1.0, Round::Rm).to_bits(), 0x8000_0000);
    assert_eq!(add(1.0, -1.0, Round::Rp).to_bits(), 0);
    assert_eq!(add(f32::MAX, f32::MAX, Round::Rz), f32::MAX);
    assert_eq!(add(f32::MAX, f32::MAX, Round::Rp), f32::INFINITY);
}

#[test]
fn half_formats() {
    let mut n = Numbers(4);
    let sum = |ty, a: u64, b: u64| float::binary(FloatOp::Add, ty, Round::Rn, false, false, a, b).unwrap();
    for _ in 0..100_000 {
        let (a, b) = (n.float(F16), n.float(F16));
        // Sums and products of binary16 are exact in f64.
        let (x, y) = (f16::from_bits(a as u16).to_f64(), f16::from_bits(b as u16).to_f64());
        let want = |v: f64| F16.canonical(f16::from_f64(v).to_bits().into());
        assert_eq!(sum(Ty::F16, a, b), want(x + y));
        assert_eq!(F16.mul(a, b, Round::Rn), want(x * y));
        assert_eq!(sum(Ty::F16x2, a << 16 | b, b << 16 | b), sum(Ty::F16, a, b) << 16 | sum(Ty::F16, b, b));
        let (a, b) = (n.float(BF16), n.float(BF16));
        let product = f64::from(bf16::from_bits(a as u16)) * f64::from(bf16::from_bits(b as u16));
        assert_eq!(BF16.mul(a, b, Round::Rn), BF16.round(F64.unpack(product.to_bits()), Round::Rn));
        let c = n.float(F32);
        let cvt = |dst| {
            let c = Conversion { dst, ..plain(dst, Ty::F32) };
            move |x| convert(c, x).unwrap()
        };
        assert_eq!(cvt(Ty::F16)(c), F16.canonical(f16::from_f32(f(c)).to_bits().into()));
        assert_eq!(cvt(Ty::BF16)(c), BF16.canonical(bf16::from_f32(f(c)).to_bits().into()));
    }
}

fn plain(dst: Ty, src: Ty) -> Conversion {
    Conversion { dst, src, round: None, to_integral: false, ftz: false, sat: false, relu: false }
}

#[test]
fn conversions() {
    let mut n = Numbers(5);
    for _ in 0..100_000 {
        let (a, b) = (n.float(F32), n.float(F64));
        assert_eq!(convert(plain(Ty::S32, Ty::F32), a), Some(i64::from(f(a) as i32) as u64));
        assert_eq!(convert(plain(Ty::U16, Ty::F32), a), Some(u64::from(f(a) as u16)));
        let nan = d(b).is_nan();
        let min = u64::from(nan) << 63;
        assert_eq!(convert(plain(Ty::S64, Ty::F64), b), Some((d(b) as i64) as u64 | min));
        assert_eq!(convert(plain(Ty::U64, Ty::F64), b), Some(d(b) as u64 | min));
        assert_eq!(convert(plain(Ty::F32, Ty::F64), b), Some(F32.canonical((d(b) as f32).to_bits().into())));
        assert_eq!(convert(plain(Ty::F64, Ty::F32), a), Some(F64.canonical(f64::from(f(a)).to_bits())));
        let i = n.bits() >> (n.bits() & 63);
        assert_eq!(convert(plain(Ty::F32, Ty::U64), i), Some((i as f32).to_bits().into()));
        assert_eq!(convert(plain(Ty::F32, Ty::S64), i), Some((i.cast_signed() as f32).to_bits().into()));
        assert_eq!(convert(plain(Ty::F64, Ty::S32), i), Some(f64::from(i as i32).to_bits()));
        for (mode, want) in [
            (Round::Rn, d(b).round_ties_even()),
            (Round::Rz, d(b).trunc()),
            (Round::Rm, d(b).floor()),
            (Round::Rp, d(b).ceil()),
            (Round::Rna, d(b).round()),
        ] {
            let c = Conversion { round: Some(mode), to_integral: true, ..plain(Ty::F64, Ty::F64) };
            assert_eq!(convert(c, b), Some(F64.canonical(want.to_bits())), "{mode:?} {:e}", d(b));
            let c = Conversion { round: Some(mode), ..plain(Ty::S64, Ty::F64) };
            assert_eq!(convert(c, b), Some((want as i64) as u64 | min), "{mode:?} {:e}", d(b));
        }
        assert_eq!(convert(plain(Ty::S64, Ty::S8), i), Some(i64::from(i as i8) as u64));
        assert_eq!(
            convert(Conversion { sat: true, ..plain(Ty::U8, Ty::S64) }, i),
            Some(i.cast_signed().clamp(0, 255) as u64)
        );
    }
    let sat = Conversion { sat: true, ..plain(Ty::F32, Ty::F32) };
    for (x, want) in [(f32::NAN, 0.0f32), (-3.0, 0.0), (0.25, 0.25), (7.0, 1.0), (f32::NEG_INFINITY, 0.0)] {
        assert_eq!(convert(sat, x.to_bits().into()), Some(want.to_bits().into()));
    }
    assert_eq!(convert(Conversion { ftz: true, ..plain(Ty::F32, Ty::F64) }, 1e-40f64.to_bits()), Some(0));
    let halves = |sat| {
        ptx::math::convert::pack(
            Ty::F16x2,
            Ty::F32,
            Round::Rn,
            sat,
            false,
            1f32.to_bits().into(),
            1e9f32.to_bits().into(),
        )
    };
    assert_eq!(halves(false), Some(0x3c00_7c00));
    assert_eq!(halves(true), Some(0x3c00_7bff));
}

#[test]
fn float_families() {
    let one = |op, x: f32, ftz| float::unary(op, Ty::F32, ftz, x.to_bits().into()).unwrap() as u32;
    let two = |op, a: f32, b: f32| {
        float::binary(op, Ty::F32, Round::Rn, false, false, a.to_bits().into(), b.to_bits().into()).unwrap() as u32
    };
    assert_eq!(two(FloatOp::Add, f32::INFINITY, f32::NEG_INFINITY), NAN_F32);
    assert_eq!(two(FloatOp::Min, f32::NAN, 2.0), 2f32.to_bits());
    assert_eq!(two(FloatOp::MinNan, f32::NAN, 2.0), NAN_F32);
    assert_eq!(two(FloatOp::Max, -0.0, 0.0), 0);
    assert_eq!(two(FloatOp::Min, 0.0, -0.0), 0x8000_0000);
    assert_eq!(two(FloatOp::Max, f32::NAN, f32::NAN), NAN_F32);
    assert_eq!(two(FloatOp::Copysign, -1.0, 2.0), (-2f32).to_bits());
    assert_eq!(one(FloatUnOp::Rcp(Precision::Ieee(Round::Rp)), 3.0, false), 0x3eaa_aaab);
    assert_eq!(one(FloatUnOp::Rcp(Precision::Ieee(Round::Rm)), 3.0, false), 0x3eaa_aaaa);
    assert_eq!(one(FloatUnOp::Sqrt(Precision::Ieee(Round::Rn)), 1e-40, true), 0);
    assert_eq!(one(FloatUnOp::Sqrt(Precision::Approx), -1.0, true), NAN_F32);
    assert_eq!(one(FloatUnOp::Ex2, f32::NAN, true), NAN_F32);
    assert_eq!(float::unary(FloatUnOp::Tanh, Ty::F16x2, false, 0x0000_3c00), Some(0x0000_3a18));
    assert_eq!(float::unary(FloatUnOp::Sin, Ty::F64, false, 0), None);
    assert_eq!(float::testp(5, Ty::F64, 1), Some(true));
    let relu =
        |a: f32| float::fma(Ty::F32, Round::Rn, false, false, true, a.to_bits().into(), 1f32.to_bits().into(), 0);
    assert_eq!(relu(-2.0), Some(0));
    assert_eq!(relu(f32::NAN), Some(NAN_F32.into()));
    assert_eq!(soft::to_integer(F32.unpack(1e20f32.to_bits().into()), Round::Rz), Some(1e20f32 as i128));
}

/// The manual's definition, bit by bit.
fn bfe_by_bits(ty: Ty, a: u64, pos: u64, len: u64) -> u64 {
    let msb = u64::from(ty.bits() - 1);
    let bit = |n: u64| a >> n & 1;
    let sign = if !ty.is_signed() || len == 0 { 0 } else { bit((pos + len - 1).min(msb)) };
    (0..=msb).fold(0, |d, i| d | (if i < len && pos + i <= msb { bit(pos + i) } else { sign }) << i)
}

fn bfi_by_bits(ty: Ty, a: u64, b: u64, pos: u64, len: u64) -> u64 {
    let msb = u64::from(ty.bits() - 1);
    (0..=msb).filter(|i| *i < len && pos + i <= msb).fold(b, |d, i| {
        let at = 1 << (pos + i);
        if a >> i & 1 != 0 { d | at } else { d & !at }
    })
}

#[test]
fn bit_fields() {
    let mut n = Numbers(6);
    for _ in 0..50_000 {
        let (a, b, pos, len) = (n.bits(), n.bits(), n.bits() >> 20 & 0x4f, n.bits() >> 20 & 0x4f);
        for ty in [Ty::U32, Ty::S32, Ty::U64, Ty::S64] {
            let (a, b) = (a & int::mask(ty), b & int::mask(ty));
            assert_eq!(int::bfe(ty, a, pos, len), bfe_by_bits(ty, a, pos, len), "{ty:?} {a:x} {pos} {len}");
            assert_eq!(int::bfi(ty, a, b, pos, len), bfi_by_bits(ty, a, b, pos, len), "{ty:?} {pos} {len}");
        }
        let (x, y, z) = (a as u32, b as u32, n.bits() as u32);
        assert_eq!(int::lop3(0xe8, x, y, z), (x & y) | (x & z) | (y & z));
        assert_eq!(int::lop3(0x96, x, y, z), x ^ y ^ z);
        assert_eq!(int::prmt(None, x, y, 0x0123), x.swap_bytes());
        assert_eq!(int::prmt(None, x, y, 0x7654), y);
        assert_eq!(int::shf(true, true, x, y, 8), y << 8 | x >> 24);
        assert_eq!(int::shf(false, false, x, y, 99), y);
        let wide = u128::from(a) * u128::from(b);
        assert_eq!(int::mul(MulPart::Hi, Ty::U64, a, b), (wide >> 64) as u64);
        let wide = i128::from(a.cast_signed()) * i128::from(b.cast_signed());
        assert_eq!(int::mul(MulPart::Hi, Ty::S64, a, b), (wide >> 64) as u64);
        assert_eq!(int::add_carry(false, Ty::U64, a, b, true), {
            let (s, c) = a.carrying_add_reference(b);
            (s, c)
        });
        let shifted = int::unary(IntUnOp::BfindShiftAmt, Ty::U32, x.into());
        assert_eq!(shifted, if x == 0 { u32::MAX.into() } else { x.leading_zeros().into() });
    }
}

trait CarryingAdd {
    fn carrying_add_reference(self, b: Self) -> (u64, bool);
}
impl CarryingAdd for u64 {
    fn carrying_add_reference(self, b: u64) -> (u64, bool) {
        let sum = u128::from(self) + u128::from(b) + 1;
        (sum as u64, sum >> 64 != 0)
    }
}

#[test]
fn odd_integer_operations() {
    assert_eq!(int::bmsk(true, 4, 8), 0xff0);
    assert_eq!(int::bmsk(true, 28, 8), 0xf000_0000);
    assert_eq!(int::bmsk(true, 32, 8), 0);
    assert_eq!(int::bmsk(true, 0, 32), u32::MAX);
    assert_eq!(int::bmsk(false, 33, 2), 0b110);
    assert_eq!(int::szext(true, true, 0x80, 8), 0xffff_ff80);
    assert_eq!(int::szext(true, false, 0xf80, 8), 0x80);
    assert_eq!(int::szext(true, true, 7, 40), 7);
    assert_eq!(int::fns(0b1011_0000, 0, 2), 5);
    assert_eq!(int::fns(0b1011_0000, 6, -1), 5);
    assert_eq!(int::fns(0b1011_0000, 6, 0), u32::MAX);
    assert_eq!(int::dot(true, false, true, true, 0x0102_03ff, 0x0101_0101, 10), 15);
    assert_eq!(int::dot(false, true, false, false, 0x0002_0003, 0x0504_0000, 1), 23);
    assert_eq!(int::mad24(MulPart::Hi, Ty::U32, false, 0xff_ffff, 0xff_ffff, 0), 0xffff_fe00);
    assert_eq!(int::mad(MulPart::Hi, Ty::S32, true, 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff), 0x7fff_ffff);
    assert_eq!(int::binary(ptx::ir::IntOp::Div, Ty::S32, false, 7, 0), u64::from(u32::MAX));
    assert_eq!(int::binary(ptx::ir::IntOp::Div, Ty::S32, false, 0x8000_0000, 0xffff_ffff), 0x8000_0000);
    assert_eq!(int::binary(ptx::ir::IntOp::Shr, Ty::S32, false, 0x8000_0000, 99), u64::from(u32::MAX));
    let difference = video::Video {
        op: ptx::ir::VideoOp::AbsDiff,
        lanes: 4,
        a_signed: false,
        b_signed: false,
        d_signed: false,
        sat: false,
        accumulate: true,
        mask: 0xf,
    };
    assert_eq!(video::video(difference, 0x0a00_0510, 0x0500_0a00, 100), 126);
    let add = video::Video { op: ptx::ir::VideoOp::Add, sat: true, accumulate: false, mask: 0b0111, ..difference };
    assert_eq!(video::video(add, 0xffff_01ff, 0x0101_0101, 0x7700_0000), 0x77ff_02ff);
}
