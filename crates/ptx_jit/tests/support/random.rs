//! Random kernels on machine code and on the interpreter.

use std::time::{Duration, Instant};

use ptx::launch::Control;
use ptx_jit::Form;
use testgen::generate::{BASE, generate};

/// Choices of a kernel. Every other one is rich in branches, loops, memory, atomics and warp operations.
fn choices(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 32
    };
    let rich = seed % 4 >= 2;
    let length = 16 + next() % 1500;
    (0..length)
        .map(|_| match next() {
            word if rich && word % 4 == 0 => (word >> 8) as u8 % 8 + 1,
            word => (word >> 8) as u8,
        })
        .collect()
}

/// How the engines disagree on a kernel.
fn difference(bytes: &[u8], control: u32) -> Option<String> {
    let g = generate(bytes);
    // Every third kernel in small pieces, as large kernels are compiled.
    let region = bytes.len().is_multiple_of(3).then_some(4 + bytes.len() % 40);
    // Of the others, every second one lane by lane, if it may be run so.
    let form = Form { region, alone: bytes.len() % 3 == 1 };
    let machine = &mut |k: &_, l: &_, base, memory: &mut Vec<u8>| match form {
        Form { region: None, alone: false } => crate::support::run(k, l, base, memory, control),
        form => crate::support::run_in(form, k, l, base, memory, control),
    };
    let outcome = testgen::compare(&g.kernel, &g.launch, BASE, &g.memory, machine, &mut testgen::interpret);
    outcome.err().map(|difference| difference.to_string())
}

/// Fewer choices on which they still disagree; looks at so many kernels at most, for a minute.
fn reduced(mut bytes: Vec<u8>, control: u32, mut looks: u32) -> Vec<u8> {
    let begin = Instant::now();
    let mut size = bytes.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < bytes.len() && looks > 0 && begin.elapsed() < Duration::from_secs(60) {
            looks -= 1;
            let mut fewer = bytes.clone();
            fewer.drain(at..(at + size).min(bytes.len()));
            if difference(&fewer, control).is_some() {
                bytes = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    bytes
}

/// Compares kernel `seed`, preempted or not; if it differs, says all that it takes to see it again, with the least choices
/// on which the engines still disagree.
pub(crate) fn compare(seed: u64) -> Result<(), String> {
    let control = if seed.is_multiple_of(2) { Control::RUN } else { Control::PREEMPT };
    let bytes = choices(seed);
    let Some(what) = difference(&bytes, control) else { return Ok(()) };
    let bytes = reduced(bytes, control, 500);
    let least = difference(&bytes, control).unwrap_or_default();
    let g = generate(&bytes);
    Err(format!(
        "seed {seed}, control {control}: {what}\nreduced: {least}\nchoices {bytes:?}\nblock {:?}, grid {:?}\n{}",
        g.launch.block, g.launch.grid, g.kernel
    ))
}
