//! The victim: an ordinary program that would like to be left alone.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::cuda::{Cuda, Shape, default_stream};
use crate::kernels;

/// Elements that an iteration computes.
const ELEMENTS: usize = 16 * 1024;

/// What happened since the last report.
#[derive(Debug, Default)]
struct Since {
    iterations: u64,
    worst: Duration,
    sum: Duration,
    wrong: u64,
    error: Option<String>,
}

/// Iterates until standard input ends; each of its lines is answered by a report on the time since the last one:
/// `{"iterations":…,"mean_ms":…,"worst_ms":…,"wrong":…,"error":…}`.
///
/// # Errors
/// What stopped it before it could begin.
pub(crate) fn run() -> Result<()> {
    let cuda = Cuda::open()?;
    let module = cuda.load(kernels::HASH)?;
    let hash = cuda.function(module, "hash")?;
    let (asks, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (asked, end) = (Arc::clone(&asks), Arc::clone(&ended));
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            asked.store(true, Ordering::SeqCst);
        }
        end.store(true, Ordering::SeqCst);
    });
    let mut since = Since::default();
    let mut salt = 1;
    while !ended.load(Ordering::SeqCst) {
        let start = Instant::now();
        match iterate(&cuda, hash, salt) {
            Ok(true) => {}
            Ok(false) => since.wrong += 1,
            Err(error) => {
                since.error.get_or_insert_with(|| format!("{error:#}"));
                // A dead context stays dead: what matters is told.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let took = start.elapsed();
        since.iterations += 1;
        since.sum += took;
        since.worst = since.worst.max(took);
        salt += 1;
        if asks.swap(false, Ordering::SeqCst) {
            let Since { iterations, worst, sum, wrong, error } = std::mem::take(&mut since);
            crate::say(&json!({
                "iterations": iterations,
                "mean_ms": sum.as_secs_f64() * 1e3 / iterations as f64,
                "worst_ms": worst.as_secs_f64() * 1e3,
                "wrong": wrong,
                "error": error,
            }))?;
        }
    }
    Ok(())
}

/// Allocates, fills, launches, synchronizes, copies back, checks, frees: whether the values were right.
fn iterate(cuda: &Cuda, hash: cudarc::driver::sys::CUfunction, salt: u32) -> Result<bool> {
    let input: Vec<u32> = (0..ELEMENTS as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ salt).collect();
    let memory = cuda.alloc(ELEMENTS * 4)?;
    let mut output = vec![0; ELEMENTS];
    let mut work = || -> Result<()> {
        cuda.upload(memory, &input)?;
        cuda.launch(hash, Shape::new(ELEMENTS as u32 / 256, 256), default_stream(), &[memory, salt.into()])?;
        cuda.synchronize()?;
        cuda.download(&mut output, memory)?;
        Ok(())
    };
    let worked = work();
    let freed = cuda.free(memory);
    worked?;
    freed?;
    Ok(input.iter().zip(&output).all(|(&value, &got)| got == kernels::hash(value, salt)))
}
