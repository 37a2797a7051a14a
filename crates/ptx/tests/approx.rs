//! The approximations against f64 and against the manual: PTX ISA 9.1, sections 9.7.3.8 (div), 9.7.3.13 to 22 (rcp to tanh),
//! 9.7.4.9 and 10 (tanh and ex2 in the half formats): bounds of the errors, and the tables of special values.
//!
//! Usually a sweep of f32 is looked at; all of it, some minutes in a release build, with `SUNDIAL_EVERY_F32=1`.

use half::{bf16, f16};
use ptx::ir::{FloatOp, FloatUnOp, Precision, Round, Ty};
use ptx::math::{approx, float, lanes::Scalar};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
/// A subnormal.
const TINY: f32 = f32::from_bits(5);
/// Beyond this in magnitude `div.approx` no longer divides.
const TWO_126: f32 = f32::from_bits(0x7e80_0000);

/// Everything that f32 can be, thinned by a prime stride.
fn sweep() -> impl Iterator<Item = f32> {
    let stride = if std::env::var_os("SUNDIAL_EVERY_F32").is_some() { 1 } else { 4099 };
    (0..=u32::MAX).step_by(stride).map(f32::from_bits)
}

/// Every f32 in `[lo, hi)`, both positive, thinned by `step`.
fn dense(lo: f32, hi: f32, step: usize) -> impl Iterator<Item = f32> {
    (lo.to_bits()..hi.to_bits()).step_by(step).map(f32::from_bits)
}

/// Subnormals to zero of the same sign.
fn flush(ftz: bool, x: f32) -> f32 {
    if ftz && x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// How many numbers lie between two, NaNs all being one.
fn ulps(a: f32, b: f32) -> u32 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() && b.is_nan() { 0 } else { u32::MAX };
    }
    let key = |x: f32| i64::from(x.to_bits() & !(1 << 31)) * if x.is_sign_negative() { -1 } else { 1 };
    u32::try_from(key(a).abs_diff(key(b))).unwrap_or(u32::MAX)
}

/// No result is farther than `bound` ulps from what is correctly rounded, and flushed if `ftz`.
fn within_ulps(
    name: &str,
    bound: u32,
    ftz: bool,
    inputs: impl Iterator<Item = f32>,
    got: impl Fn(f32) -> f32,
    want: impl Fn(f64) -> f64,
) {
    let mut most = (0, 0.0);
    for x in inputs {
        let exact = want(f64::from(flush(ftz, x)));
        // What rounds up to the least normal number may be flushed before or after.
        let edge = ftz && exact.abs() <= f64::from(f32::MIN_POSITIVE) && exact as f32 != 0.0;
        let distance = if edge && got(x) == 0.0 { 0 } else { ulps(got(x), flush(ftz, exact as f32)) };
        if distance > most.0 {
            most = (distance, x);
        }
    }
    eprintln!("{name}: {} ulp at {:e}", most.0, most.1);
    assert!(most.0 <= bound, "{name}: {} ulp at {:e}", most.0, most.1);
}

/// `|got - want| / scale(want)` is at most 2 to the power of `bound`, for inputs whose results are finite.
fn within(
    name: &str,
    bound: f64,
    inputs: impl Iterator<Item = f32>,
    got: impl Fn(f32) -> f32,
    want: impl Fn(f64) -> f64,
    scale: impl Fn(f64) -> f64,
) {
    let mut most = (0.0, 0.0);
    for x in inputs {
        let (g, w) = (f64::from(got(x)), want(f64::from(x)));
        let error = if g == w { 0.0 } else { (g - w).abs() / scale(w) };
        assert!(!error.is_nan(), "{name} {x:e}: {g:e} for {w:e}");
        if error > most.0 {
            most = (error, x);
        }
    }
    eprintln!("{name}: 2^{:.3} at {:e} (bound 2^{bound})", most.0.log2(), most.1);
    assert!(most.0 <= bound.exp2(), "{name}: 2^{:.3} at {:e}", most.0.log2(), most.1);
}

/// Results bit for bit, but any NaN for a NaN.
fn table(name: &str, f: impl Fn(f32) -> f32, rows: &[(f32, f32)]) {
    for &(x, want) in rows {
        let got = f(x);
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{name} {x:e}: {got:e} for {want:e}");
    }
}

fn positive(x: &f32) -> bool {
    *x > 0.0 && *x < INF
}

#[test]
fn ex2() {
    for ftz in [false, true] {
        let f = |x| approx::ex2(&mut Scalar, ftz, x);
        within_ulps("ex2", 2, ftz, sweep(), f, f64::exp2);
        within_ulps("ex2", 2, ftz, dense(0.01, 4.0, 5).chain(dense(127.0, 130.0, 1)), f, f64::exp2);
        within_ulps("ex2", 2, ftz, dense(0.01, 200.0, 11).chain(dense(125.0, 151.0, 1)).map(|x| -x), f, f64::exp2);
        table("ex2", f, &[(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (NAN, NAN), (TINY, 1.0), (-TINY, 1.0)]);
        table("ex2", f, &[(3.0, 8.0), (-126.0, f32::MIN_POSITIVE), (128.0, INF), (-200.0, 0.0)]);
        table("ex2", f, &[(-149.0, if ftz { 0.0 } else { f32::from_bits(1) })]);
    }
}

#[test]
fn lg2() {
    for ftz in [false, true] {
        let f = |x| approx::lg2(&mut Scalar, ftz, x);
        within("lg2 near one", -22.0, dense(0.5, 2.0, 3), f, f64::log2, |_| 1.0);
        let outside = |x: &f32| positive(x) && !(0.5..2.0).contains(x) && !(ftz && x.is_subnormal());
        within("lg2 elsewhere", -22.0, sweep().filter(outside), f, f64::log2, f64::abs);
        within("lg2 elsewhere", -22.0, dense(2.0, 8.0, 3).chain(dense(0.125, 0.5, 3)), f, f64::log2, f64::abs);
        let least = f32::MIN_POSITIVE;
        table("lg2", f, &[(-INF, NAN), (-1.0, NAN), (-least, NAN), (-0.0, -INF), (0.0, -INF), (INF, INF), (NAN, NAN)]);
        let (up, down) = if ftz { (-INF, -INF) } else { (-149.0, NAN) };
        table("lg2", f, &[(f32::from_bits(1), up), (-TINY, down), (1.0, 0.0), (8.0, 3.0), (least, -126.0)]);
    }
}

#[test]
fn sin_cos() {
    let tau = std::f32::consts::TAU;
    let signs = |x: f32| [x, -x];
    for ftz in [false, true] {
        let sin = |x| approx::sin(&mut Scalar, ftz, x);
        let cos = |x| approx::cos(&mut Scalar, ftz, x);
        for (far, bound) in [(tau, -20.5), (50.0 * tau, -14.7)] {
            within("sin", bound, dense(1e-3, far, 29).flat_map(signs), sin, f64::sin, |_| 1.0);
            within("cos", bound, dense(1e-3, far, 29).flat_map(signs), cos, f64::cos, |_| 1.0);
            let near = |x: &f32| x.abs() <= far;
            within("sin", bound, sweep().filter(near), sin, f64::sin, |_| 1.0);
            within("cos", bound, sweep().filter(near), cos, f64::cos, |_| 1.0);
        }
        let tiny = flush(ftz, TINY);
        table(
            "sin",
            sin,
            &[(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN), (TINY, tiny), (-TINY, -tiny)],
        );
        table("cos", cos, &[(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN), (NAN, NAN), (TINY, 1.0), (-TINY, 1.0)]);
        // Where nothing is promised, a point of the circle still.
        for x in sweep().filter(|x| x.is_finite()) {
            assert!((f64::from(sin(x)).hypot(f64::from(cos(x))) - 1.0).abs() < 1e-4, "{x:e}: {} {}", sin(x), cos(x));
        }
    }
}

#[test]
fn tanh() {
    let f = |x| approx::tanh(&mut Scalar, x);
    let numbers = |x: &f32| x.is_finite() && !x.is_subnormal();
    within("tanh", -11.0, sweep().filter(numbers), f, f64::tanh, f64::abs);
    within("tanh", -11.0, dense(0.1, 6.0, 7), f, f64::tanh, f64::abs);
    table("tanh", f, &[(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (NAN, NAN)]);
    for bits in (1..0x0080_0000).step_by(101) {
        let x = f32::from_bits(bits);
        table("tanh", f, &[(x, x), (-x, -x)]);
    }
}

#[test]
fn reciprocals_and_roots() {
    for ftz in [false, true] {
        let rcp = |x| approx::rcp(&mut Scalar, ftz, x);
        let sqrt = |x| approx::sqrt(&mut Scalar, ftz, x);
        let rsqrt = |x| approx::rsqrt(&mut Scalar, ftz, x);
        within_ulps("rcp", 1, ftz, sweep().chain(dense(1.0, 2.0, 7)), rcp, |x| 1.0 / x);
        let numbers = |x: &f32| positive(x) && !(ftz && x.is_subnormal());
        within("sqrt", -23.0, sweep().filter(numbers).chain(dense(1.0, 4.0, 7)), sqrt, f64::sqrt, f64::abs);
        within("rsqrt", -22.9, sweep().filter(numbers).chain(dense(1.0, 4.0, 1)), rsqrt, |x| 1.0 / x.sqrt(), f64::abs);
        let pole = |x: f32, otherwise| if ftz { INF.copysign(x) } else { otherwise };
        table(
            "rcp",
            rcp,
            &[(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (TINY, INF), (-TINY, -INF)],
        );
        table("rcp", rcp, &[(2e38, if ftz { 0.0 } else { 1.0 / 2e38 }), (-2e38, if ftz { -0.0 } else { -1.0 / 2e38 })]);
        table("sqrt", sqrt, &[(-INF, NAN), (-1.0, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN), (4.0, 2.0)]);
        table("sqrt", sqrt, &[(-TINY, if ftz { -0.0 } else { NAN }), (TINY, if ftz { 0.0 } else { TINY.sqrt() })]);
        table(
            "rsqrt",
            rsqrt,
            &[(-INF, NAN), (-1.0, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (4.0, 0.5)],
        );
        table("rsqrt", rsqrt, &[(-TINY, pole(-TINY, NAN)), (TINY, pole(TINY, 1.0 / TINY.sqrt()))]);
    }
}

#[test]
fn quotients() {
    for ftz in [false, true] {
        let approximate = |a, b| approx::div_approx(&mut Scalar, ftz, a, b);
        let full = |a, b| approx::div_full(&mut Scalar, ftz, a, b);
        for a in [1.0, -3.0, 1e-38, 7.5e37, 1e-42, 0.0, INF, NAN] {
            let quotient = |b: f64| f64::from(flush(ftz, a)) / b;
            within_ulps("div.full", 2, ftz, sweep(), |b| full(a, b), quotient);
            let middle = |b: &f32| (f32::MIN_POSITIVE..=TWO_126).contains(&b.abs());
            within_ulps("div.approx", 2, ftz, sweep().filter(middle), |b| approximate(a, b), quotient);
        }
        let large = f32::from_bits(0x7e80_0001);
        for b in [large, 3e38] {
            table(
                "div.approx a/",
                |a| approximate(a, b),
                &[(1.0, 0.0), (-f32::MAX, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
            );
            table("div.approx a/-", |a| approximate(a, -b), &[(1.0, -0.0), (-f32::MAX, 0.0), (INF, NAN), (-INF, NAN)]);
        }
        assert_eq!(full(3e38, 2e38), 1.5);
    }
}

/// Section 9.7.4: every number of both half formats.
#[test]
fn half_formats() {
    for bits in 0..=u16::MAX {
        let of = |op, ty, ftz| float::unary(op, ty, ftz, bits.into()).expect("the operation exists") as u16;
        let check = |x: f64, got: f64, want: f64, error: f64, what: &str| {
            assert!(got == want || got.is_nan() && want.is_nan() || error <= 1.0, "{what} {x:e}: {got:e} for {want:e}");
        };
        let x = f16::from_bits(bits).to_f64();
        let (got, want) = (f16::from_bits(of(FloatUnOp::Tanh, Ty::F16, false)).to_f64(), x.tanh());
        check(x, got, want, (got - want).abs() / 2f64.powf(-10.987), "tanh.f16");
        let (got, want) =
            (f16::from_bits(of(FloatUnOp::Ex2, Ty::F16, false)).to_f64(), f16::from_f64(x.exp2()).to_f64());
        check(x, got, want, (got - want).abs() / want / 2f64.powf(-9.9), "ex2.f16");
        let x = bf16::from_bits(bits).to_f64();
        let (got, want) = (bf16::from_bits(of(FloatUnOp::Tanh, Ty::BF16, false)).to_f64(), x.tanh());
        check(x, got, want, (got - want).abs() / 2f64.powi(-8), "tanh.bf16");
        let want = bf16::from_f64(x.exp2()).to_f64();
        let want = if want < f64::from(f32::MIN_POSITIVE) { 0.0 } else { want };
        let got = bf16::from_bits(of(FloatUnOp::Ex2, Ty::BF16, true)).to_f64();
        check(x, got, want, (got - want).abs() / want / 2f64.powi(-7), "ex2.bf16");
    }
    assert_eq!(float::unary(FloatUnOp::Tanh, Ty::F16, false, 0x8000), Some(0x8000));
    assert_eq!(float::unary(FloatUnOp::Tanh, Ty::BF16, false, 0x8001), Some(0x8001));
}

/// Sections 9.7.3.14 and 17: only upper words, and a NaN of their own.
#[test]
fn f64_upper_words() {
    let rcp = |x: f64| float::unary(FloatUnOp::Rcp(Precision::Approx), Ty::F64, true, x.to_bits());
    let rsqrt = |x: f64| float::unary(FloatUnOp::Rsqrt(Precision::Approx), Ty::F64, true, x.to_bits());
    let (inf, tiny, nan) = (f64::INFINITY, 5e-324, Some(0x7fff_ffff_0000_0000));
    for (x, want) in [(-inf, -0.0), (-tiny, -inf), (-0.0, -inf), (0.0, inf), (tiny, inf), (inf, 0.0), (1e308, 0.0)] {
        assert_eq!(rcp(x), Some(want.to_bits()), "rcp {x:e}");
    }
    for (x, want) in [(-tiny, -inf), (-0.0, -inf), (0.0, inf), (tiny, inf), (inf, 0.0), (4.0, 0.5)] {
        assert_eq!(rsqrt(x), Some(want.to_bits()), "rsqrt {x:e}");
    }
    assert_eq!((rcp(f64::NAN), rsqrt(-f64::NAN), rsqrt(-inf), rsqrt(-1.0)), (nan, nan, nan, nan));
    for x in [1.0f64, 3.0, 1e-300, -7.25, 1e300, f64::from_bits(0x3ff0_0000_ffff_ffff)] {
        let upper = f64::from_bits(x.to_bits() & !0xffff_ffff);
        let r = approx::rcp_f64(&mut Scalar, x);
        assert_eq!(r.to_bits() as u32, 0);
        assert!((r * upper - 1.0).abs() < 2f64.powi(-19), "{x:e}");
        let r = approx::rsqrt_f64(&mut Scalar, true, x.abs());
        assert!((r * r * upper.abs() - 1.0).abs() < 2f64.powi(-18), "{x:e}");
    }
    assert!(approx::rsqrt_f64(&mut Scalar, false, -tiny).is_nan());
    // Others give the usual one.
    assert_eq!(
        float::binary(FloatOp::Div(Precision::Ieee(Round::Rn)), Ty::F64, Round::Rn, false, false, 0, 0),
        Some(ptx::math::NAN_F64)
    );
}
