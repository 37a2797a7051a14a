//! Those who misbehave.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::cast::{self, Seat, output};
use super::{guests, sessions};
use crate::stage::Stage;

/// Somebody misbehaves; what happened, as an event.
pub(super) type Scene = fn(&Stage) -> Result<Value>;

/// When each comes, as a part of the time; the last is the first.
pub(super) const OF_TENANTS: [(f64, Scene); 3] = [(0.6, endless), (0.4, stray), (0.25, greedy)];
/// Beside guests.
pub(super) const OF_GUESTS: [(f64, Scene); 2] = [(0.6, endless_guest), (0.3, stray_guest)];

fn greedy(stage: &Stage) -> Result<Value> {
    let report = cast::start(stage, ("greedy", Seat::Session), "192m", 10, &["greedy"])?.finish()?;
    let (total, allocated) = (report["total"].as_u64().unwrap_or(0), report["allocated"].as_u64().unwrap_or(u64::MAX));
    let held = total == 192 << 20 && allocated <= total && report["error"] == 2;
    let what = format!(
        "greedy asked for more memory than its {} MiB: got {} MiB, then error {} (out of memory)",
        total >> 20,
        allocated >> 20,
        report["error"]
    );
    Ok(json!({ "tenant": "greedy", "held": held, "what": what }))
}

fn stray(stage: &Stage) -> Result<Value> {
    let report = cast::start(stage, ("stray", Seat::Session), "64m", 10, &["stray"])?.finish()?;
    let what = format!("stray read out of bounds: error {} (illegal address), in its own context", report["error"]);
    Ok(json!({ "tenant": "stray", "held": report["error"] == 700, "what": what }))
}

fn stray_guest(stage: &Stage) -> Result<Value> {
    let report = cast::start(stage, ("stray", Seat::Guest("fv")), "64m", 10, &["stray"])?.finish()?;
    output(stage.sundial().args(["vgpu", "destroy", "stray"]))?;
    let what = format!("stray, a guest, read out of bounds: its own driver told it, error {}", report["error"]);
    Ok(json!({ "tenant": "stray", "held": report["error"] == 700, "what": what }))
}

fn endless(stage: &Stage) -> Result<Value> {
    let mut actor = cast::start(stage, ("endless", Seat::Session), "64m", 10, &["endless"])?;
    actor.line()?;
    std::thread::sleep(Duration::from_millis(500));
    let present = sessions(stage)?;
    let pid = present.get("endless").and_then(|s| s["pid"].as_u64()).context("endless has no session")?;
    let taken = kill(pid, || Ok(!sessions(stage)?.contains_key("endless")))?;
    let what =
        format!("endless was killed in mid-kernel: its kernel and memory were gone after {} ms", taken.as_millis());
    Ok(json!({ "tenant": "endless", "held": taken < Duration::from_secs(1), "what": what }))
}

fn endless_guest(stage: &Stage) -> Result<Value> {
    let mut actor = cast::start(stage, ("endless", Seat::Guest("pv")), "64m", 10, &["endless"])?;
    actor.line()?;
    std::thread::sleep(Duration::from_millis(500));
    let guest = || -> Result<Option<u64>> {
        let all = guests(stage)?;
        Ok(all.get("endless").context("endless has no virtual GPU")?["guest"].as_u64())
    };
    let pid = guest()?.context("endless is no guest")?;
    let taken = kill(pid, || Ok(guest()?.is_none()))?;
    output(stage.sundial().args(["vgpu", "destroy", "endless"]))?;
    let what = format!(
        "endless, a guest, was killed in mid-kernel: its GPU was as new after {} ms, and then destroyed",
        taken.as_millis()
    );
    Ok(json!({ "tenant": "endless", "held": taken < Duration::from_secs(1), "what": what }))
}

/// Kills a process, and waits until that is seen; how long it took.
fn kill(pid: u64, mut is_gone: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("a process number")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let killed = Instant::now();
    while !is_gone()? {
        if killed.elapsed() > Duration::from_secs(5) {
            bail!("endless was killed in mid-kernel, but it is still there after 5 s");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(killed.elapsed())
}
