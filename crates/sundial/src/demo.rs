//! `sundial demo`: three tenants share one GPU, and three more misbehave.
//!
//! A daemon of its own, in a runtime folder of its own; three tenants compute for the whole time; one after the other come a
//! tenant that asks for more memory than it may have, one that reads out of bounds, and one that is killed in mid-kernel.
//! All of them are ordinary CUDA programs (`sundial-tenant`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

/// Arguments of `sundial demo`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// How long the tenants compute.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Print the result as JSON on standard output, progress as lines on standard error.
    #[arg(long)]
    json: bool,
}

/// A tenant that computes all the time.
struct Cast {
    name: &'static str,
    program: &'static str,
    memory: &'static str,
    share: u32,
}

/// Their shares leave 10 % for those who misbehave.
const CAST: [Cast; 3] = [
    Cast { name: "matrices", program: "matrices", memory: "512m", share: 45 },
    Cast { name: "polynomials", program: "polynomials", memory: "256m", share: 30 },
    Cast { name: "life", program: "life", memory: "128m", share: 15 },
];

/// A received share may be this much below the entitled one, in points.
const TOLERANCE: f64 = 3.0;

/// Runs the demonstration; true if everything held.
///
/// # Errors
/// What could not be started.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let stage = Stage::open()?;
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

/// The daemon and its folder.
struct Stage {
    own: PathBuf,
    tenant: PathBuf,
    folder: PathBuf,
    daemon: Child,
}

impl Stage {
    fn open() -> Result<Stage> {
        use std::os::unix::fs::DirBuilderExt;
        let own = std::env::current_exe()?;
        let tenant = own.with_file_name("sundial-tenant");
        if !tenant.exists() {
            bail!("{} is missing: build it with `cargo xtask build`", tenant.display());
        }
        let folder = std::env::temp_dir().join(format!("sundial-demo-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let daemon = Command::new(&own)
            .args(["serve", "--gpu", "soft:2g"])
            .env("SUNDIAL_RUNTIME_DIR", &folder)
            .env("SUNDIAL_LOG", std::env::var_os("SUNDIAL_LOG").unwrap_or_else(|| "warn".into()))
            .stdin(Stdio::null())
            .spawn()
            .context("starting the daemon")?;
        let stage = Stage { own, tenant, folder, daemon };
        let end = Instant::now() + Duration::from_secs(20);
        while stage.sessions().is_err() {
            if Instant::now() > end {
                bail!("the daemon does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(stage)
    }

    fn sundial(&self) -> Command {
        let mut command = Command::new(&self.own);
        command.env("SUNDIAL_RUNTIME_DIR", &self.folder);
        command
    }

    /// What the daemon says of its sessions, by tenant.
    fn sessions(&self) -> Result<BTreeMap<String, Value>> {
        let output = self.sundial().args(["ps", "--json"]).stderr(Stdio::null()).output()?;
        let value: Value = serde_json::from_slice(&output.stdout)?;
        let sessions = value["sessions"].as_array().context("no sessions")?;
        Ok(sessions.iter().map(|s| (s["tenant"].as_str().unwrap_or("?").to_owned(), s.clone())).collect())
    }

    fn start(&self, name: &str, memory: &str, share: u32, program: &[&str]) -> Result<Actor> {
        let mut child = self
            .sundial()
            .args(["run", "--name", name, "--mem", memory, "--share", &format!("{share}%"), "--"])
            .arg(&self.tenant)
            .args(program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Actor { child, output })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A tenant's process.
struct Actor {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Actor {
    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the tenant said nothing");
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn finish(mut self) -> Result<Value> {
        let said = self.line();
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the tenant ended with {status}");
        }
        said
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was seen of a tenant while it ran.
#[derive(Default)]
struct Seen {
    received: Vec<f64>,
    memory_limit: u64,
    memory_peak: u64,
}

fn play(stage: &Stage, arguments: &Arguments) -> Result<Value> {
    let seconds = arguments.seconds.to_string();
    let mut actors = Vec::new();
    for cast in &CAST {
        let program = [cast.program, "--seconds", &seconds];
        actors.push(stage.start(cast.name, cast.memory, cast.share, &program)?);
    }
    let time = Duration::from_secs(arguments.seconds);
    let start = Instant::now();
    let mut view = View::new(arguments.json);
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    let mut events = Vec::new();
    let mut scenes: Vec<(f64, Scene)> = vec![(0.6, endless), (0.4, stray), (0.25, greedy)];
    while start.elapsed() < time {
        let sessions = stage.sessions()?;
        for cast in &CAST {
            let Some(session) = sessions.get(cast.name) else { continue };
            let seen = seen.entry(cast.name).or_default();
            seen.memory_limit = session["memory_limit"].as_u64().unwrap_or(0);
            seen.memory_peak = seen.memory_peak.max(session["memory_used"].as_u64().unwrap_or(0));
            // The beginning, when not all compute yet, does not count.
            if start.elapsed() > time / 5 {
                seen.received.extend(session["share_received"].as_f64());
            }
        }
        view.show(start.elapsed(), time, &sessions)?;
        if scenes.last().is_some_and(|(at, _)| start.elapsed().as_secs_f64() > at * time.as_secs_f64())
            && let Some((_, scene)) = scenes.pop()
        {
            let event = scene(stage).unwrap_or_else(|error| json!({ "held": false, "what": format!("{error:#}") }));
            view.say(event["what"].as_str().unwrap_or_default())?;
            events.push(event);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut tenants = Vec::new();
    for (cast, actor) in CAST.iter().zip(actors) {
        let report = actor.finish().unwrap_or_else(|error| json!({ "verified": false, "error": format!("{error:#}") }));
        let seen = seen.remove(cast.name).unwrap_or_default();
        let received = seen.received.iter().sum::<f64>() / seen.received.len().max(1) as f64;
        tenants.push(json!({
            "name": cast.name,
            "share_entitled": cast.share,
            "share_received": (received * 10.0).round() / 10.0,
            "memory_limit": seen.memory_limit,
            "memory_peak": seen.memory_peak,
            "kernels": report["kernels"],
            "verified": report["verified"],
        }));
    }
    let shares = tenants.iter().all(|t| {
        t["share_received"].as_f64().unwrap_or(0.0) >= t["share_entitled"].as_f64().unwrap_or(100.0) - TOLERANCE
    });
    let verified = tenants.iter().all(|t| t["verified"] == true);
    let held = events.len() == 3 && events.iter().all(|event| event["held"] == true);
    Ok(json!({ "tenants": tenants, "events": events, "ok": shares && verified && held }))
}

/// Somebody misbehaves; what happened, as an event.
type Scene = fn(&Stage) -> Result<Value>;

fn greedy(stage: &Stage) -> Result<Value> {
    let report = stage.start("greedy", "192m", 10, &["greedy"])?.finish()?;
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
    let report = stage.start("stray", "64m", 10, &["stray"])?.finish()?;
    let what = format!("stray read out of bounds: error {} (illegal address), in its own context", report["error"]);
    Ok(json!({ "tenant": "stray", "held": report["error"] == 700, "what": what }))
}

fn endless(stage: &Stage) -> Result<Value> {
    let mut actor = stage.start("endless", "64m", 10, &["endless"])?;
    actor.line()?;
    std::thread::sleep(Duration::from_millis(500));
    let sessions = stage.sessions()?;
    let pid = sessions.get("endless").and_then(|s| s["pid"].as_u64()).context("endless has no session")?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("a process number")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let killed = Instant::now();
    while stage.sessions()?.contains_key("endless") {
        if killed.elapsed() > Duration::from_secs(5) {
            bail!("endless was killed in mid-kernel, but its session is still there after 5 s");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let taken = killed.elapsed();
    let what =
        format!("endless was killed in mid-kernel: its kernel and memory were gone after {} ms", taken.as_millis());
    Ok(json!({ "tenant": "endless", "held": taken < Duration::from_secs(1), "what": what }))
}

/// The live table, redrawn in place on a terminal; plain lines elsewhere.
struct View {
    terminal: bool,
    json: bool,
    lines: usize,
    kernels: BTreeMap<String, (f64, Instant)>,
}

impl View {
    fn new(json: bool) -> View {
        View { terminal: !json && std::io::stdout().is_terminal(), json, lines: 0, kernels: BTreeMap::new() }
    }

    /// Kernels per second since the last look.
    fn rate(&mut self, tenant: &str, session: &Value) -> f64 {
        let now = (session["kernels"].as_f64().unwrap_or(0.0), Instant::now());
        let before = self.kernels.insert(tenant.to_owned(), now).unwrap_or(now);
        let seconds = (now.1 - before.1).as_secs_f64();
        if seconds > 0.0 { (now.0 - before.0).max(0.0) / seconds } else { 0.0 }
    }

    fn show(&mut self, elapsed: Duration, time: Duration, sessions: &BTreeMap<String, Value>) -> Result<()> {
        let mut text = format!("{:<12} {:>16} {:>20} {:>10}  {}\n", "tenant", "share", "memory", "kernels/s", "state");
        for (name, session) in sessions {
            let number = |key: &str| session[key].as_f64().unwrap_or(0.0);
            text += &format!(
                "{:<12} {:>5.0} % -> {:>4.1} % {:>7.0} / {:>5.0} MiB {:>10.0}  {}\n",
                name,
                number("share_entitled"),
                number("share_received"),
                number("memory_used") / f64::from(1 << 20),
                number("memory_limit") / f64::from(1 << 20),
                self.rate(name, session),
                session["state"].as_str().unwrap_or("?")
            );
        }
        text += &format!("{:.0} of {} s\n", elapsed.as_secs_f64(), time.as_secs());
        if self.terminal {
            let mut out = std::io::stdout().lock();
            // Back to the table's first line; clear to the end of the screen.
            if self.lines > 0 {
                write!(out, "\x1b[{}A\x1b[J", self.lines)?;
            }
            write!(out, "{text}")?;
            out.flush()?;
            self.lines = text.lines().count();
        } else if (elapsed.as_millis() / 500).is_multiple_of(4) {
            self.plain(&text)?;
        }
        Ok(())
    }

    /// A line that stays.
    fn say(&mut self, line: &str) -> Result<()> {
        self.lines = 0;
        self.plain(&format!("  * {line}\n"))
    }

    fn plain(&self, text: &str) -> Result<()> {
        if self.json {
            write!(std::io::stderr(), "{text}")?;
        } else {
            write!(std::io::stdout(), "{text}")?;
        }
        Ok(())
    }
}

fn summary(out: &mut impl Write, result: &Value) -> Result<()> {
    writeln!(out)?;
    for tenant in result["tenants"].as_array().into_iter().flatten() {
        writeln!(
            out,
            "{:<12} {} kernels, results {}; share {} % entitled, {} % received; memory {} MiB at most, of {} MiB",
            tenant["name"].as_str().unwrap_or("?"),
            tenant["kernels"],
            if tenant["verified"] == true { "verified against the CPU" } else { "WRONG" },
            tenant["share_entitled"],
            tenant["share_received"],
            tenant["memory_peak"].as_u64().unwrap_or(0) >> 20,
            tenant["memory_limit"].as_u64().unwrap_or(0) >> 20,
        )?;
    }
    for event in result["events"].as_array().into_iter().flatten() {
        let held = if event["held"] == true { "held" } else { "NOT HELD" };
        writeln!(out, "{held}: {}", event["what"].as_str().unwrap_or("?"))?;
    }
    writeln!(out, "{}", if result["ok"] == true { "Everything held." } else { "NOT everything held." })?;
    Ok(())
}
