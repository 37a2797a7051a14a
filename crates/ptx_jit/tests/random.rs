//! Random kernels on both engines: the same memory afterwards, bit by bit. The example `differential` runs more of them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/random.rs"]
mod random;
mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Kernels of a run: at least so many, and as many as there is time for.
const KERNELS: u64 = 16;
const TIME: Duration = Duration::from_secs(4);

/// Other kernels in every run; a failure says which.
#[test]
fn random_kernels_agree() {
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 % 1_000_000_000;
    let begin = Instant::now();
    for seed in (first..).take(1000) {
        if seed >= first + KERNELS && begin.elapsed() > TIME {
            break;
        }
        random::compare(seed).unwrap_or_else(|report| panic!("{report}"));
    }
}
