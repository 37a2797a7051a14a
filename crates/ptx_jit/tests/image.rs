//! Images: code as bytes, and what becomes of bytes that are none.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use ptx_jit::compiler::{Bounds, Stop, Watch};
use ptx_jit::{Code, CompileError, EngineKind, Image};
use testgen::shapes::Shape;

/// Barriers, shuffles, atomics, accesses of all kinds, a loop, rare operations.
const TEXT: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 a) {
    .reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .pred %p<4>; .reg .f64 %d<4>;
    .shared .align 4 .b8 s[1024];
    ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r8, s;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1;
loop:
    ld.global.u32 %r1, [%rd2]; shl.b32 %r9, %r0, 2; add.u32 %r9, %r8, %r9; st.shared.u32 [%r9], %r1;
    bar.sync 0;
    shfl.sync.bfly.b32 %r2|%p0, %r1, 1, 31, -1;
    atom.global.add.u32 %r3, [%rd0+64], %r2;
    fns.b32 %r4, %r1, %r0, 2;
    cvt.rm.f64.u32 %d0, %r4; bar.warp.sync -1;
    st.global.u32 [%rd2], %r4; setp.lt.u32 %p1, %r1, 10; @%p1 bra loop;
    ret;
}";

fn image(engine: EngineKind) -> Image {
    Image::from_ptx(TEXT.as_bytes(), &|_| None, "k", [64, 1, 1], engine, &Watch::unbounded()).unwrap()
}

#[test]
fn an_image_survives_its_bytes() {
    for engine in [EngineKind::Jit, EngineKind::Interpreter] {
        let bytes = image(engine).to_bytes();
        let image = Image::from_bytes(&bytes).unwrap();
        assert_eq!(image.is_machine_code(), engine == EngineKind::Jit);
        assert_eq!(image.to_bytes(), bytes);
        assert_eq!(image.facts().name, "k");
        let host_bytes = image.host_bytes();
        let code = Code::install(image).unwrap();
        assert_eq!(code.bytes(), host_bytes);
        assert!(host_bytes > bytes.len() as u64 / 2, "{host_bytes} in memory, {} as bytes", bytes.len());
    }
}

#[test]
fn the_same_kernel_gives_the_same_bytes() {
    assert_eq!(image(EngineKind::Jit).to_bytes(), image(EngineKind::Jit).to_bytes());
}

/// Cut, lengthened, and with every byte changed in several ways: an error, or an image that can be installed.
#[test]
fn damaged_images_are_refused_or_fit() {
    let mut refused = 0;
    for engine in [EngineKind::Jit, EngineKind::Interpreter] {
        let whole = image(engine).to_bytes();
        for end in (0..whole.len()).step_by(1 + whole.len() / 500) {
            assert!(Image::from_bytes(&whole[..end]).is_err(), "cut to {end}");
        }
        assert!(Image::from_bytes(&[&*whole, &[0]].concat()).is_err());
        for at in 0..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                match Image::from_bytes(&bytes) {
                    Ok(image) => drop(Code::install(image).unwrap()),
                    Err(CompileError::Damaged(_) | CompileError::Unsupported { .. }) => refused += 1,
                    Err(error) => panic!("byte {at}: {error}"),
                }
            }
        }
    }
    assert!(refused > 100, "only {refused} refused");
}

#[test]
fn an_image_of_another_version_is_refused() {
    let mut bytes = image(EngineKind::Jit).to_bytes();
    let version = ptx_jit::ENGINE_VERSION.as_bytes();
    let at = bytes.windows(version.len()).position(|window| window == version).unwrap();
    bytes[at + version.len() - 1] ^= 1;
    assert!(matches!(Image::from_bytes(&bytes), Err(CompileError::Damaged(_))));
}

#[test]
fn a_compilation_can_be_given_up_and_has_bounds() {
    let kernel = Arc::new(ptx::Program::parse(TEXT.as_bytes()).unwrap().lower(0, &|_| None).unwrap());
    let compile = |watch: &Watch| Image::compile(Arc::clone(&kernel), [64, 1, 1], EngineKind::Jit, watch);
    let stopped = |watch: &Watch| match compile(watch) {
        Err(CompileError::Stopped(stop)) => Some(stop),
        _ => None,
    };
    let given_up = Watch::unbounded();
    given_up.give_up();
    assert_eq!(stopped(&given_up), Some(Stop::GivenUp));
    let (memory_bytes, time) = (u64::MAX, Duration::MAX);
    assert_eq!(stopped(&Watch::new(Bounds { memory_bytes: 1000, time, threads: 1 })), Some(Stop::Memory));
    let hasty = Watch::new(Bounds { memory_bytes, time: Duration::from_nanos(1), threads: 1 });
    let _working = hasty.begin();
    assert_eq!(stopped(&hasty), Some(Stop::Time));
    let free = Watch::unbounded();
    let working = free.begin();
    assert!(compile(&free).unwrap().is_machine_code());
    drop(working);
    assert!(free.cpu() > Duration::ZERO);
}

/// Compiles a kernel of a shape and a size within bounds.
fn shape(shape: Shape, instructions: usize, watch: &Watch) -> Result<Image, CompileError> {
    let text = shape.text(instructions);
    let _working = watch.begin();
    Image::from_ptx(text.as_bytes(), &|_| None, "k", [64, 1, 1], EngineKind::Jit, watch)
}

#[test]
fn threads_change_nothing_of_the_code() {
    let compile = |of: Shape, instructions, threads| {
        let watch = Watch::new(Bounds { memory_bytes: u64::MAX, time: Duration::MAX, threads });
        shape(of, instructions, &watch).unwrap().to_bytes()
    };
    for of in Shape::ALL {
        for instructions in [300, 2500] {
            let alone = compile(of, instructions, 1);
            for threads in [2, 3, 8, usize::MAX] {
                assert!(compile(of, instructions, threads) == alone, "{} on {threads} threads", of.name());
            }
        }
    }
}

#[test]
fn bounds_hold_for_all_threads_together() {
    let stopped = |memory_bytes, time, threads| {
        let watch = Watch::new(Bounds { memory_bytes, time, threads });
        (shape(Shape::Accesses, 4000, &watch), watch.cpu(), watch.threads_begun())
    };
    let (whole, alone, begun) = stopped(u64::MAX, Duration::MAX, 1);
    assert!(whole.unwrap().is_machine_code());
    assert_eq!(begun, 1);
    let (whole, _, begun) = stopped(u64::MAX, Duration::MAX, 4);
    assert!(whole.unwrap().is_machine_code());
    assert!(begun > 1, "it was done by one thread");
    // Far less than it takes, whoever takes it.
    let (result, cpu, _) = stopped(u64::MAX, alone / 8, 4);
    assert!(matches!(result, Err(CompileError::Stopped(Stop::Time))) && cpu > alone / 8);
    let (result, ..) = stopped(4000 << 10, Duration::MAX, 4);
    assert!(matches!(result, Err(CompileError::Stopped(Stop::Memory))));
}
