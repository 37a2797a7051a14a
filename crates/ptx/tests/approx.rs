//! Errors of the approximations against f64, over all mantissas of the exponents that matter and a sweep of the rest.

use ptx::math::approx;
use ptx::math::lanes::Scalar;

/// Bit patterns that cover positive and negative f32: a prime stride over everything.
fn sweep() -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(8191).map(f32::from_bits)
}

/// Every f32 in `[lo, hi)`, both positive, thinned by `step`.
fn dense(lo: f32, hi: f32, step: usize) -> impl Iterator<Item = f32> {
    (lo.to_bits()..hi.to_bits()).step_by(step).map(f32::from_bits)
}

/// Largest `|got - want| / scale(want)` where both are finite; other results must agree in kind.
fn worst(
    inputs: impl Iterator<Item = f32>,
    mut got: impl FnMut(f32) -> f32,
    want: impl Fn(f64) -> f64,
    scale: impl Fn(f64) -> f64,
) -> f64 {
    let mut most = 0f64;
    for x in inputs {
        let (g, w) = (got(x), want(f64::from(x)));
        if w.is_nan() {
            assert!(g.is_nan(), "{x:e}: {g:e} for NaN");
        } else if !g.is_finite() || (w as f32).is_infinite() {
            // At the edge of overflow one rounding either way is allowed.
            assert!(w.abs() > f64::from(f32::MAX) * (1.0 - 1e-6) && (g.abs() >= f32::MAX), "{x:e}: {g:e} for {w:e}");
            assert_eq!(g.is_sign_negative(), w.is_sign_negative(), "{x:e}");
        } else {
            let e = (f64::from(g) - w).abs() / scale(w);
            if e > most {
                most = e;
            }
        }
    }
    most
}

/// For relative errors: the value, but not less than what rounding to a subnormal leaves (2^-150).
fn relative(w: f64) -> f64 {
    w.abs().max(2f64.powi(-126))
}

fn report(name: &str, error: f64, bound: f64) {
    eprintln!("{name}: 2^{:.2} (bound 2^{:.2})", error.log2(), bound.log2());
    assert!(error <= bound, "{name}: 2^{:.3}", error.log2());
}

#[test]
fn ex2() {
    let bound = 2f64.powf(-22.5);
    for ftz in [false, true] {
        let f = |x| approx::ex2(&mut Scalar, ftz, x);
        let want = |x: f64| {
            let y = x.exp2();
            if ftz && y < f64::from(f32::MIN_POSITIVE) { 0.0 } else { y }
        };
        report("ex2", worst(sweep(), f, want, relative), bound);
        report("ex2 near", worst(dense(0.01, 4.0, 5), f, want, relative), bound);
        report("ex2 near", worst(dense(0.01, 200.0, 11).map(|x| -x), f, want, relative), bound);
        assert_eq!(f(3.0), 8.0);
        assert_eq!(f(-0.0), 1.0);
        assert_eq!(f(f32::NEG_INFINITY), 0.0);
        assert_eq!(f(127.999_99), 2f64.powf(f64::from(127.999_99f32)) as f32);
        assert_eq!(f(-126.0), f32::MIN_POSITIVE);
    }
    assert_eq!(approx::ex2(&mut Scalar, false, -149.0), f32::from_bits(1));
}

#[test]
fn lg2() {
    for ftz in [false, true] {
        let f = |x| approx::lg2(&mut Scalar, ftz, x);
        let want = |x: f64| if ftz && x.abs() < f64::from(f32::MIN_POSITIVE) { f64::NEG_INFINITY } else { x.log2() };
        let poles = |x: f32| x != 0.0 && (!ftz || x.abs() >= f32::MIN_POSITIVE);
        let bound = 2f64.powi(-22);
        report("lg2 absolute", worst(dense(0.5, 2.0, 3), f, want, |_| 1.0), bound);
        let outside = |x: &f32| poles(*x) && !(0.5..2.0).contains(x) && x.is_finite();
        report("lg2 relative", worst(sweep().filter(outside), f, want, relative), bound);
        report("lg2 relative", worst(dense(2.0, 8.0, 3), f, want, relative), bound);
        report("lg2 relative", worst(dense(0.125, 0.5, 3), f, want, relative), bound);
        for x in [0.0, -0.0] {
            assert_eq!(f(x), f32::NEG_INFINITY);
        }
        assert_eq!(f(f32::INFINITY), f32::INFINITY);
        assert!(f(f32::NAN).is_nan() && f(f32::NEG_INFINITY).is_nan() && f(-f32::MIN_POSITIVE).is_nan());
        assert_eq!(f(1.0).to_bits(), 0);
        assert_eq!(f(8.0), 3.0);
        assert_eq!(f(f32::from_bits(1)), if ftz { f32::NEG_INFINITY } else { -149.0 });
        assert_eq!(f(-f32::from_bits(1)).is_nan(), !ftz);
    }
}

#[test]
fn sin_cos() {
    let tau = std::f32::consts::TAU;
    for (name, far, bound) in [("2 pi", tau, 2f64.powf(-20.5)), ("100 pi", 50.0 * tau, 2f64.powf(-14.7))] {
        for sign in [1.0, -1.0] {
            let sin = worst(
                dense(1e-3, far, 29),
                |x| approx::sin(&mut Scalar, false, sign * x),
                |x| (f64::from(sign) * x).sin(),
                |_| 1.0,
            );
            report(&format!("sin {name}"), sin, bound);
            let cos = worst(
                dense(1e-3, far, 29),
                |x| approx::cos(&mut Scalar, true, sign * x),
                |x| (f64::from(sign) * x).cos(),
                |_| 1.0,
            );
            report(&format!("cos {name}"), cos, bound);
        }
    }
    assert_eq!(approx::sin(&mut Scalar, false, -0.0).to_bits(), 0x8000_0000);
    assert_eq!(approx::sin(&mut Scalar, false, f32::from_bits(5)).to_bits(), 5);
    assert_eq!(approx::sin(&mut Scalar, true, f32::from_bits(0x8000_0005)).to_bits(), 0x8000_0000);
    assert!(approx::sin(&mut Scalar, false, f32::INFINITY).is_nan());
    assert!(approx::cos(&mut Scalar, false, f32::NAN).is_nan());
    for x in sweep().filter(|x| x.is_finite()) {
        let (s, c) = (approx::sin(&mut Scalar, false, x), approx::cos(&mut Scalar, false, x));
        assert!((f64::from(s).hypot(f64::from(c)) - 1.0).abs() < 1e-4, "{x:e}: {s} {c}");
    }
}

#[test]
fn tanh() {
    let f = |x| approx::tanh(&mut Scalar, x);
    report("tanh", worst(sweep(), f, f64::tanh, relative), 2f64.powi(-11));
    report("tanh", worst(dense(0.1, 6.0, 7), f, f64::tanh, relative), 2f64.powi(-11));
    assert_eq!(f(f32::INFINITY), 1.0);
    assert_eq!(f(f32::NEG_INFINITY), -1.0);
    assert_eq!(f(-0.0).to_bits(), 0x8000_0000);
    assert!(f(f32::NAN).is_nan());
}

#[test]
fn roots_and_quotients() {
    let rsqrt = |x| approx::rsqrt(&mut Scalar, false, x);
    let want = |x: f64| 1.0 / x.sqrt();
    report("rsqrt", worst(sweep(), rsqrt, want, relative), 2f64.powf(-22.9));
    report("rsqrt", worst(dense(1.0, 4.0, 1), rsqrt, want, relative), 2f64.powf(-22.9));
    report("rcp", worst(sweep(), |x| approx::rcp(&mut Scalar, false, x), |x| 1.0 / x, relative), 2f64.powi(-24));
    assert_eq!(rsqrt(-0.0), f32::NEG_INFINITY);
    assert_eq!(approx::rcp(&mut Scalar, true, 2e38).to_bits(), 0);
    assert_eq!(approx::rcp(&mut Scalar, true, -1e-40), f32::NEG_INFINITY);
    let div = |a, b| approx::div_approx(&mut Scalar, false, a, b);
    assert_eq!(div(1.0, 3.0), 1.0 / 3.0);
    assert_eq!(div(3e38, 2e38), 0.0);
    assert!(div(f32::INFINITY, 2e38).is_nan());
    assert_eq!(approx::div_full(&mut Scalar, false, 3e38, 2e38), 1.5);
}

#[test]
fn f64_upper_words() {
    for x in [1.0f64, 3.0, 1e-300, -7.25, 1e300, f64::from_bits(0x3ff0_0000_ffff_ffff)] {
        let upper = f64::from_bits(x.to_bits() & !0xffff_ffff);
        let r = approx::rcp_f64(&mut Scalar, x);
        assert_eq!(r.to_bits() as u32, 0);
        assert!((r * upper - 1.0).abs() < 2f64.powi(-19), "{x:e}");
        let r = approx::rsqrt_f64(&mut Scalar, true, x.abs());
        assert!((r * r * upper.abs() - 1.0).abs() < 2f64.powi(-18), "{x:e}");
    }
    assert_eq!(approx::rcp_f64(&mut Scalar, 5e-324), f64::INFINITY);
    assert_eq!(approx::rsqrt_f64(&mut Scalar, true, -5e-324), f64::NEG_INFINITY);
    assert!(approx::rsqrt_f64(&mut Scalar, false, -5e-324).is_nan());
}
