//! Compares many random kernels on machine code and on the interpreter:
//! `cargo run --release -p ptx_jit --example differential -- FIRST COUNT`.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a tool run by hand")]

#[path = "../tests/support/random.rs"]
mod random;
#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (first, count) = (args.first().copied().unwrap_or(0), args.get(1).copied().unwrap_or(1000));
    let mut differ = 0;
    for seed in first..first + count {
        if let Err(report) = random::compare(seed) {
            differ += 1;
            println!("{report}");
        }
    }
    println!("{differ} of {count} kernels differ");
}
