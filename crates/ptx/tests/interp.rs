//! The cases of `tests/interp` on the interpreter, run through and preempted as often as possible.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ptx::builtins;
use ptx::interp::Cta;
use ptx::launch::{Control, DriverArea, GlobalMemory, Launch, Step};
use testgen::{Region, interpret, interpret_preempted, ptx_case};

#[test]
fn cases_run_through() {
    let count = ptx_case::check_all(&ptx_case::directory(), &mut interpret).unwrap_or_else(|e| panic!("{e}"));
    assert!(count > 20, "only {count} cases");
}

#[test]
fn cases_survive_preemption() {
    ptx_case::check_all(&ptx_case::directory(), &mut interpret_preempted).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn endless_kernels_give_the_worker_back() {
    let text = include_bytes!("interp/fault.ptx");
    let program = ptx::Program::parse(text).expect("the module is valid");
    let entry = program.find_entry("endless").expect("it is there");
    let kernel = Arc::new(program.lower(entry, &|_| None).expect("it compiles"));
    let launch = Arc::new(Launch { grid_id: 1, ..Launch::new([1; 3], [64, 1, 1], Vec::new()) });
    let mut cta = Cta::new(kernel, launch, [0; 3]);
    let memory = Region::new(0, Vec::new());
    for control in [Control::RUN, Control::PREEMPT] {
        assert_eq!(cta.resume(&memory, &AtomicU32::new(control)), Step::Preempted);
    }
}

/// Records of one `vprintf` over a format, its arguments all ones.
fn print(format: &str) -> (i32, Vec<u64>) {
    let mut bytes = vec![0; 4096];
    bytes[..4].copy_from_slice(&2048u32.to_le_bytes());
    bytes[3000..3000 + format.len()].copy_from_slice(format.as_bytes());
    bytes[3500..4000].fill(1);
    let memory = Region::new(0x1000, bytes);
    let area = DriverArea { printf: 0x1000, ..DriverArea::default() };
    let count = builtins::vprintf(&memory, area, 0x1000 + 3000, 0x1000 + 3504).expect("all is mapped");
    let bytes = memory.into_bytes();
    let first = 24 + format.len().next_multiple_of(8);
    let slot = |i: usize| u64::from_le_bytes(bytes[first + 8 * i..][..8].try_into().expect("eight bytes"));
    (count, (0..count as usize).map(slot).collect())
}

#[test]
fn printf_takes_arguments_by_their_conversions() {
    let (word, long) = (0x0101_0101, 0x0101_0101_0101_0101);
    for (format, want) in [
        ("plain %% text", vec![]),
        ("%d %5u %-8x %c", vec![word; 4]),
        ("%lld %zu %p %f %10.3e", vec![long; 5]),
        ("%*d %hhd", vec![word; 3]),
        ("%d %lu %d", vec![word, long, word]),
        ("open %", vec![]),
    ] {
        assert_eq!(print(format), (want.len() as i32, want), "{format}");
    }
}

#[test]
fn heap_survives_misuse() {
    let area = DriverArea { printf: 0, heap: 0x1000, heap_bytes: 0x4000 };
    let memory = Region::new(0x1000, vec![0; 0x4000]);
    let a = builtins::malloc(&memory, area, 1000);
    let b = builtins::malloc(&memory, area, 1000);
    assert!(a != 0 && b != 0 && a.abs_diff(b) >= 1000 && a.is_multiple_of(16));
    assert_eq!(builtins::malloc(&memory, area, 1 << 40), 0);
    assert_eq!(builtins::malloc(&memory, area, u64::MAX), 0);
    // Freed twice, freed in the middle, freed elsewhere: once counts.
    for pointer in [a, a, a + 16, 0, 1, u64::MAX, 0x900_0000] {
        builtins::free(&memory, area, pointer);
    }
    assert_eq!(builtins::malloc(&memory, area, 900), a);
    assert_ne!(builtins::malloc(&memory, area, 900), a);
    // A kernel may write over the heap: no answer is right, but there is one.
    for fill in [0xa5, 0xff, 0x10] {
        memory.write(0x1000, &[fill; 0x4000]).expect("mapped");
        builtins::free(&memory, area, a);
        let _ = builtins::malloc(&memory, area, 100);
    }
    let format = 0x1000;
    memory.write(format, b"%lld %s\0").expect("mapped");
    assert!(builtins::vprintf(&memory, area, format, u64::MAX).is_err());
    assert!(builtins::vprintf(&memory, area, u64::MAX, 0).is_err());
    assert_eq!(builtins::vprintf(&memory, area, 0, 0), Ok(-1));
}
