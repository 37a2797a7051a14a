//! Random kernels on both engines: the same memory afterwards, bit by bit. The example `differential` runs more of them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/random.rs"]
mod random;
mod support;

use std::time::{Duration, Instant};

/// Kernels of a run: at least so many, and as many as there is time for.
const KERNELS: u64 = 24;
const TIME: Duration = Duration::from_secs(4);

/// The same kernels in every run; others from the one whose number `SUNDIAL_SEED` holds. A failure says which.
#[test]
fn random_kernels_agree() {
    let first = std::env::var("SUNDIAL_SEED").map_or(1, |seed| seed.parse().unwrap());
    let begin = Instant::now();
    let mut seed = first;
    while seed < first + KERNELS || seed < first + 1000 && begin.elapsed() < TIME {
        random::compare(seed).unwrap_or_else(|report| panic!("{report}"));
        seed += 1;
    }
    println!("kernels {first} to {} agree; SUNDIAL_SEED chooses others", seed - 1);
}
