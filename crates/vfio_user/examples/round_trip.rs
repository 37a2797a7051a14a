//! What a register access over vfio-user takes on this machine: `cargo run --release --example round_trip [SPIN_US …]`.
#![expect(clippy::print_stdout, reason = "it prints")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use vfio_user::{
    CallError, Client, ClientOptions, Description, Device, DmaMap, Errno, Interrupts, Region, Server, ServerOptions,
};

/// A register.
struct Register(AtomicU32);

impl Device for Register {
    fn describe(&self, _: Option<&Value>) -> Description {
        Description { regions: vec![Region::trapped(4096)], ..Description::default() }
    }

    fn attach(&self, _: Arc<Interrupts>) {}

    fn read(&self, _: u32, _: u64, out: &mut [u8]) -> Result<(), Errno> {
        let value = self.0.load(Ordering::Relaxed).to_le_bytes();
        out.iter_mut().zip(value).for_each(|(out, byte)| *out = byte);
        Ok(())
    }

    fn write(&self, _: u32, _: u64, data: &[u8]) -> Result<(), Errno> {
        let value = data.try_into().map_err(|_| Errno::INVAL)?;
        self.0.store(u32::from_le_bytes(value), Ordering::Relaxed);
        Ok(())
    }

    fn map(&self, _: DmaMap) -> Result<(), Errno> {
        Ok(())
    }

    fn unmap(&self, _: u64, _: u64) {}

    fn reset(&self) {}

    fn gone(&self) {}
}

/// Median, best and 99th percentile of `accesses` calls, µs.
fn times(accesses: usize, mut act: impl FnMut() -> Result<(), CallError>) -> Result<[f64; 3], CallError> {
    let mut times = Vec::with_capacity(accesses);
    for _ in 0..accesses {
        let start = Instant::now();
        act()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok([times[accesses / 2], times[0], times[accesses * 99 / 100]])
}

fn measure(spin: Duration) -> Result<(), CallError> {
    const ACCESSES: usize = 20_000;
    let (ours, theirs) = UnixStream::pair().map_err(|_| CallError::Refused(Errno::MFILE))?;
    let server = Server::new(ours, ServerOptions { spin, ..ServerOptions::default() });
    let thread = std::thread::spawn(move || server.serve(&Register(AtomicU32::new(7))));
    let client = Client::over(theirs, &ClientOptions { spin, ..ClientOptions::default() })?;
    let mut value = [0; 4];
    let read = times(ACCESSES, || client.read(0, 0, &mut value))?;
    let write = times(ACCESSES, || client.write(0, 0, &value))?;
    let start = Instant::now();
    for _ in 0..ACCESSES {
        client.write_posted(0, 0, &value)?;
    }
    client.read(0, 0, &mut value)?;
    let posted = start.elapsed().as_secs_f64() * 1e6 / ACCESSES as f64;
    drop(client);
    let [r, rb, r99] = read;
    let [w, wb, w99] = write;
    println!(
        "spin {:>3} µs: read {r:.1} µs (best {rb:.1}, 99 % {r99:.1}), write {w:.1} ({wb:.1}, {w99:.1}), posted {posted:.2}",
        spin.as_micros()
    );
    // The server ends because the client has left.
    let _ = thread.join();
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut spins: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    if spins.is_empty() {
        spins = vec![0, 5, 20, 50];
    }
    for spin in spins {
        measure(Duration::from_micros(spin))?;
    }
    Ok(())
}
