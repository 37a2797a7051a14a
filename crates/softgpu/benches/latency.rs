#![expect(clippy::print_stdout, reason = "a bench prints")]
//! How long simple things take, from the doorbell to what the CPU sees. Prints medians; asserts nothing.

use std::time::{Duration, Instant};

use softgpu::testing::mini::{Buffer, Channel, Mini, PATIENCE, Words};

const EMPTY: &str = ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";

/// Submits words that end in a release of `round`, and watches for it without sleeping.
fn round_trip(mini: &Mini, channel: &mut Channel, done: Buffer, round: u64, words: &mut Words) -> Duration {
    words.release(done.va, round);
    mini.rewind(channel);
    mini.push(channel, words);
    let semaphore = mini.gpu.vram().u64_at(done.offset as usize);
    let start = Instant::now();
    mini.ring(channel);
    while semaphore.load(std::sync::atomic::Ordering::Acquire) != round {
        std::hint::spin_loop();
        assert!(start.elapsed() < PATIENCE, "round {round}: {:?}", semaphore);
    }
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    let mut mini = Mini::new(std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0));
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let done = mini.buffer(&mut space, 4096);
    let program = mini.load(&mut space, EMPTY, "k");
    let one = mini.descriptor(&mut space, program, [1, 1, 1], [32, 1, 1], &[]);
    let many = mini.descriptor(&mut space, program, [10_000, 1, 1], [32, 1, 1], &[]);
    let (from, to) = (mini.buffer(&mut space, 64 << 20), mini.buffer(&mut space, 64 << 20));
    // The words that bind the classes must be read before the pushbuffer is written anew.
    let mut first = Words::new();
    first.release(done.va + 16, 1);
    mini.submit(&mut channel, &first);
    mini.wait_for(done, 16, 1);
    let mut round = 0;
    let mut measure = |what: &str, count: usize, pause: Duration, write: &dyn Fn(&mut Words)| {
        let mut times = Vec::new();
        for _ in 0..count {
            round += 1;
            let mut words = Words::new();
            write(&mut words);
            std::thread::sleep(pause);
            times.push(round_trip(&mini, &mut channel, done, round, &mut words));
        }
        println!("{what:36} {:?}", median(times));
    };
    let none = Duration::ZERO;
    measure("semaphore", 2000, none, &|_| {});
    measure("semaphore, workers asleep", 200, Duration::from_millis(1), &|_| {});
    measure("empty kernel", 2000, none, &|w| {
        w.launch(one);
    });
    measure("empty kernel, workers asleep", 200, Duration::from_millis(1), &|w| {
        w.launch(one);
    });
    measure("100 empty kernels", 100, none, &|w| {
        (0..100).for_each(|_| {
            w.launch(one);
        })
    });
    measure("10,000 empty CTAs", 20, none, &|w| {
        w.launch(many);
    });
    measure("copy of 4 KiB", 1000, none, &|w| {
        w.copy(to.va, from.va, 4096);
    });
    measure("copy of 64 MiB", 20, none, &|w| {
        w.copy(to.va, from.va, 64 << 20);
    });
    measure("fill of 64 MiB", 20, none, &|w| {
        w.fill(to.va, 7, 4, 16 << 20);
    });
}
