//! `sundial demo`: three tenants share one GPU, and three more misbehave; with `--vms`, a tenant and guests.
//!
//! A daemon of its own, in a runtime folder of its own; three compute for the whole time; one after the other come a
//! tenant that asks for more memory than it may have, one that reads out of bounds, and one that is killed in mid-kernel.
//! All of them are ordinary CUDA programs (`sundial-tenant`).
//!
//! Guests are processes with a driver of their own on virtual GPUs, one fully virtualized and one para-virtualized; and, where
//! there is a QEMU, a virtual machine. Beside them a program runs natively, on a GPU of its own in its own process.

mod cast;
mod machine;
mod scenes;
mod view;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::admin::{SessionLine, VgpuLine};
use crate::stage::Stage;
use cast::{Actor, GUESTS, MACHINE, Role, Seat, TENANTS};
use machine::{Machine, Place};
use view::{View, summary};

/// Arguments of `sundial demo`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// How long the tenants compute.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// A session and two guests with virtual GPUs (full and para-virtualized) share the GPU, beside a native program.
    #[arg(long)]
    vms: bool,
    /// With --vms, a virtual machine with a GPU takes part as well: the folder that `cargo xtask qemu` has filled.
    #[arg(long, env = "SUNDIAL_QEMU", value_name = "DIR")]
    qemu: Option<PathBuf>,
    /// What programs in it are run with: the guest.tar that `cargo xtask guest` packs.
    #[arg(long, env = "SUNDIAL_GUEST", value_name = "FILE")]
    guest: Option<PathBuf>,
    /// Print the result as JSON on standard output, progress as lines on standard error.
    #[arg(long)]
    json: bool,
}

/// A received share may be this much below the entitled one, in points.
const TOLERANCE: f64 = 3.0;

/// Runs the demonstration; true if everything held.
///
/// # Errors
/// What could not be started.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let stage = Stage::open("demo", "soft:2g")?;
    let result = play(&stage, arguments)?;
    let ok = result["ok"] == true;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&result)?)?;
    } else {
        summary(&mut out, &result)?;
    }
    Ok(ok)
}

/// A row of the table: what the daemon says, and how the tenant reaches the GPU.
fn row(line: impl serde::Serialize, kind: &str) -> Result<Value> {
    let mut row = serde_json::to_value(line)?;
    row["kind"] = kind.into();
    Ok(row)
}

/// What the daemon says of its sessions, by tenant.
fn sessions(stage: &Stage) -> Result<BTreeMap<String, Value>> {
    let by_tenant = |line: SessionLine| Ok((line.tenant.clone(), row(line, Seat::Session.name())?));
    stage.listing()?.sessions.into_iter().map(by_tenant).collect()
}

/// What it says of virtual GPUs, by name.
fn guests(stage: &Stage) -> Result<BTreeMap<String, Value>> {
    let by_name = |line: VgpuLine| {
        let kind = line.scheme.to_string();
        Ok((line.name.clone(), row(line, &kind)?))
    };
    stage.vgpus()?.vgpus.into_iter().map(by_name).collect()
}

/// Everybody who is there.
fn present(stage: &Stage, actors: &mut [(&Role, Actor)]) -> Result<BTreeMap<String, Value>> {
    let mut rows = sessions(stage)?;
    rows.append(&mut guests(stage)?);
    for (role, actor) in actors {
        match actor {
            Actor::Program(program) if role.seat == Seat::Native => {
                // Nobody knows more of it until it has ended.
                let state = if program.is_running()? { "running" } else { "ended" };
                rows.insert(role.name.into(), json!({ "kind": role.seat.name(), "state": state }));
            }
            Actor::Program(_) => {}
            // To the daemon it is a guest like any other.
            Actor::Machine(_) => {
                rows.get_mut(role.name).into_iter().for_each(|row| row["kind"] = role.seat.name().into())
            }
        }
    }
    Ok(rows)
}

/// Boots the virtual machine, if there is what it takes.
fn boot(stage: &Stage, arguments: &Arguments, view: &mut View) -> Result<Option<Machine>> {
    let Some(place) = Place::find(arguments.qemu.as_deref(), arguments.guest.as_deref())? else {
        view.say(
            "no virtual machine takes part: `cargo xtask qemu` fetches a QEMU (--qemu DIR), `cargo xtask guest` packs what \
             runs programs in one (--guest FILE)",
        )?;
        return Ok(None);
    };
    view.say("a virtual machine boots; when it is up, all begin")?;
    let start = Instant::now();
    let machine = place.boot(stage, &MACHINE, arguments.seconds)?;
    view.say(&format!("the virtual machine is up after {:.1} s", start.elapsed().as_secs_f64()))?;
    Ok(Some(machine))
}

/// What was seen of a tenant while it ran.
#[derive(Default)]
struct Seen {
    received: Vec<f64>,
    memory_limit: u64,
    memory_peak: u64,
}

fn play(stage: &Stage, arguments: &Arguments) -> Result<Value> {
    let mut view = View::new(arguments.json, arguments.vms);
    let machine = if arguments.vms { boot(stage, arguments, &mut view)? } else { None };
    let cast: &[Role] = if arguments.vms { &GUESTS } else { &TENANTS };
    let mut actors = Vec::new();
    for role in cast {
        actors.push((role, Actor::Program(role.start(stage, arguments.seconds)?)));
    }
    if let Some(mut machine) = machine {
        machine.begin();
        actors.push((&MACHINE, Actor::Machine(machine)));
    }
    let time = Duration::from_secs(arguments.seconds);
    let start = Instant::now();
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    let mut events = Vec::new();
    let mut scenes = if arguments.vms { scenes::OF_GUESTS.to_vec() } else { scenes::OF_TENANTS.to_vec() };
    let expected = scenes.len();
    while start.elapsed() < time {
        let rows = present(stage, &mut actors)?;
        for (role, _) in &actors {
            let Some(row) = rows.get(role.name) else { continue };
            let seen = seen.entry(role.name).or_default();
            seen.memory_limit = row["memory_limit"].as_u64().unwrap_or(0);
            seen.memory_peak = seen.memory_peak.max(row["memory_used"].as_u64().unwrap_or(0));
            // The beginning, when not all compute yet, does not count.
            if start.elapsed() > time / 5 {
                seen.received.extend(row["share_received"].as_f64());
            }
        }
        view.show(start.elapsed(), time, &rows)?;
        if scenes.last().is_some_and(|(at, _)| start.elapsed().as_secs_f64() > at * time.as_secs_f64())
            && let Some((_, scene)) = scenes.pop()
        {
            let event = scene(stage).unwrap_or_else(|error| json!({ "held": false, "what": format!("{error:#}") }));
            view.say(event["what"].as_str().unwrap_or_default())?;
            events.push(event);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let tenants: Vec<Value> = actors
        .into_iter()
        .map(|(role, actor)| report(role, actor, &seen.remove(role.name).unwrap_or_default()))
        .collect();
    let shares = tenants.iter().filter(|tenant| tenant["share_entitled"].is_number()).all(|t| {
        t["share_received"].as_f64().unwrap_or(0.0) >= t["share_entitled"].as_f64().unwrap_or(100.0) - TOLERANCE
    });
    let verified = tenants.iter().all(|t| t["verified"] == true);
    let held = events.len() == expected && events.iter().all(|event| event["held"] == true);
    Ok(json!({ "tenants": tenants, "events": events, "ok": shares && verified && held }))
}

/// What came of one of the cast, and what was seen of it.
fn report(role: &Role, actor: Actor, seen: &Seen) -> Value {
    let report = actor.finish().unwrap_or_else(|error| json!({ "verified": false, "error": format!("{error:#}") }));
    let mut tenant = json!({
        "name": role.name,
        "kind": role.seat.name(),
        "kernels": report["kernels"],
        "verified": report["verified"],
    });
    if report["error"].is_string() {
        tenant["error"] = report["error"].clone();
    }
    if role.seat != Seat::Native {
        let received = seen.received.iter().sum::<f64>() / seen.received.len().max(1) as f64;
        tenant["share_entitled"] = role.share.into();
        tenant["share_received"] = ((received * 10.0).round() / 10.0).into();
        tenant["memory_limit"] = seen.memory_limit.into();
        tenant["memory_peak"] = seen.memory_peak.into();
    }
    tenant
}
