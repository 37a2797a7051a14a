//! The attacks one after another, each beside the victim, and what came of it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::Daemon;
use rogue::Deed;
use serde_json::{Value, json};

use crate::guests::{self, DEEDS, Vgpu};
use crate::traces::{self, Peak, Traces};

/// How the attacks are run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long to kill tenants at random moments, after the attacks of the table.
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Stop killing after so many.
    #[arg(long, default_value_t = 10_000)]
    kills: u32,
    /// Only attacks whose name contains this (`kills` is the last of programs; names of guests' begin with `guests`).
    #[arg(long)]
    only: Option<String>,
    /// Chooses the random moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest iteration of the victim that counts as undisturbed: a time slice (20 ms) + 50 ms.
    #[arg(long, default_value_t = 70.0)]
    bound_ms: f64,
    /// Less of everything, and no judgement of times: for tests on busy machines.
    #[arg(long)]
    brief: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// One row of the table.
struct Attack {
    name: &'static str,
    /// Tenants that do it at once.
    tenants: usize,
    /// Arguments of the program; `%` is replaced by a random number.
    arguments: &'static str,
    /// The same in brief.
    brief: &'static str,
    /// When those that have not ended are killed.
    time: Duration,
    /// How often all of that.
    rounds: u32,
    /// The program must come through: it only looks like an attack.
    must_work: bool,
}

const fn attack(name: &'static str, tenants: usize, arguments: &'static str, brief: &'static str) -> Attack {
    Attack { name, tenants, arguments, brief, time: Duration::from_secs(10), rounds: 1, must_work: false }
}

impl Attack {
    const fn seconds(self, seconds: u64) -> Attack {
        Attack { time: Duration::from_secs(seconds), ..self }
    }

    const fn killed_after_ms(self, ms: u64, rounds: u32) -> Attack {
        Attack { time: Duration::from_millis(ms), rounds, ..self }
    }

    const fn works(self) -> Attack {
        Attack { must_work: true, time: Duration::from_secs(60), ..self }
    }
}

const ATTACKS: [Attack; 29] = [
    attack("straight", 1, "compile --shape straight --size 60000", "compile --shape straight --size 20000").seconds(30),
    attack("chain", 1, "compile --shape chain --size 20000", "compile --shape chain --size 20000").seconds(30),
    attack("live", 1, "compile --shape live --size 32000", "compile --shape live --size 32000").seconds(30),
    attack("ifs", 1, "compile --shape ifs --size 30000", "compile --shape ifs --size 6000").seconds(30),
    attack("table", 1, "compile --shape table --size 4000", "compile --shape table --size 1000").seconds(30),
    attack("nest", 1, "compile --shape nest --size 4000", "compile --shape nest --size 1000").seconds(30),
    attack("calls", 1, "compile --shape calls --size 8000", "compile --shape calls --size 200").seconds(30),
    attack(
        "compile killed",
        2,
        "compile --shape straight --size 40000 --salt %",
        "compile --shape straight --size 40000 --salt %",
    )
    .killed_after_ms(400, 12),
    attack("two compile", 2, "compile --shape live --size 30000 --salt %", "compile --shape live --size 8000 --salt %")
        .seconds(20),
    attack("maps", 5, "maps --count 8150", "maps --count 8150").seconds(30),
    attack("maps killed", 5, "maps --count 8150", "maps --count 8150").killed_after_ms(500, 5),
    attack("pinned", 1, "pinned --count 20000", "pinned --count 20000").seconds(30),
    attack("pinned by many", 4, "pinned --count 30000", "pinned --count 8000").seconds(30),
    attack("pinned files", 2, "pinned --count 20000 --bytes 1052672", "pinned --count 20000 --bytes 1052672")
        .seconds(30),
    attack("registered", 2, "registered --count 40000", "registered --count 8000").seconds(30),
    attack("residency", 1, "residency", "residency").seconds(10),
    attack("residency by many", 3, "residency", "residency").seconds(6),
    attack("block shapes", 1, "block-shapes --count 1000", "block-shapes --count 100").seconds(60),
    attack("modules", 2, "modules --count 60 --mib 32", "modules --count 8 --mib 32").seconds(20),
    attack("waiters", 1, "waiters --count 440", "waiters --count 440").seconds(8),
    attack("waiters by many", 4, "waiters --count 440", "waiters --count 440").seconds(8),
    attack("streams", 1, "streams --count 1024", "streams --count 1024").works(),
    attack("contexts", 1, "contexts --count 1000", "contexts --count 300").seconds(20),
    attack("endless", 3, "endless", "endless").seconds(5),
    attack("stray", 4, "stray", "stray").killed_after_ms(1000, 5),
    attack("flood", 2, "flood", "flood").seconds(4),
    attack("teardown", 2, "teardown --count 8000", "teardown --count 1000").seconds(30),
    attack("teardown killed", 2, "teardown --count 8000", "teardown --count 8000").killed_after_ms(2000, 3),
    attack("churn", 4, "churn --salt %", "churn --salt %").seconds(10),
];

/// A small generator, for moments that can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A victim and its reports.
struct Victim {
    child: Child,
    lines: Receiver<String>,
}

/// Longest wait for a report: a victim that says nothing for so long hangs.
const HANGS: Duration = Duration::from_secs(30);

impl Victim {
    fn start(daemon: &Daemon, run: &[&str]) -> Result<Victim> {
        let mut child = daemon
            .sundial()
            .arg("run")
            .args(run)
            .arg("--")
            .arg(own_program()?)
            .arg("victim")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the victim")?;
        let lines = lines_of(child.stdout.take().context("its output")?);
        Ok(Victim { child, lines })
    }

    /// What happened to it since the last report.
    fn report(&mut self) -> Result<Value> {
        let stdin = self.child.stdin.as_mut().context("its input")?;
        stdin.write_all(b"\n").context("the victim is gone")?;
        match self.lines.recv_timeout(HANGS) {
            Ok(line) => serde_json::from_str(&line).context("a report"),
            Err(RecvTimeoutError::Timeout) => {
                let ms = HANGS.as_secs_f64() * 1e3;
                Ok(json!({ "iterations": 0, "mean_ms": ms, "worst_ms": ms, "wrong": 0, "error": "hangs" }))
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the victim is gone"),
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How the victim that is a session is run.
const SESSION: [&str; 6] = ["--name", "victim", "--mem", "64m", "--share", "30%"];

pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// Everything an attack happens in.
struct Scene<'a> {
    daemon: &'a Daemon,
    victim: Victim,
    /// The victim that is a guest, while guests attack.
    other: Option<(Vgpu<'a>, Victim)>,
    device: u32,
    random: Random,
    bound_ms: Option<f64>,
    tenants: u64,
}

/// An attacker, killed if it is still there at the end.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Scene<'_> {
    fn start(&mut self, arguments: &str, share: &str) -> Result<Attacker> {
        self.tenants += 1;
        let name = format!("attacker{}", self.tenants);
        let salt = self.random.below(1 << 30).to_string();
        let child = self
            .daemon
            .sundial()
            .args(["run", "--name", &name, "--mem", "512m", "--share", share, "--"])
            .arg(own_program()?)
            .arg("program")
            .args(arguments.split(' ').map(|word| if word == "%" { salt.as_str() } else { word }))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Attacker(child))
    }

    /// Runs an attack and judges it.
    fn run(&mut self, attack: &Attack, brief: bool) -> Result<Value> {
        let arguments = if brief { attack.brief } else { attack.arguments };
        let (rounds, time) = match (brief, attack.must_work) {
            (true, false) => (attack.rounds.min(3), attack.time.min(Duration::from_secs(5))),
            _ => (attack.rounds, attack.time),
        };
        let share = format!("{}%", 50 / attack.tenants);
        let (before, peak) = self.watch()?;
        let mut said = Vec::new();
        let mut let_in = true;
        for round in 1..=rounds {
            let mut attackers = Vec::new();
            for _ in 0..attack.tenants {
                attackers.push(self.start(arguments, &share)?);
            }
            let end = Instant::now() + time;
            said.extend(attackers.iter_mut().filter_map(|attacker| first_line(attacker, end)));
            if round == rounds {
                // While they hold what they got.
                let_in = self.lets_in()?;
            }
            drop(attackers);
        }
        let worked = !attack.must_work || said.iter().all(|line| line["error"] == 0) && !said.is_empty();
        self.judge(attack.name, (before, &peak), &said, (worked, let_in))
    }

    /// Whether a newcomer can work.
    fn lets_in(&mut self) -> Result<bool> {
        let mut newcomer = self.start("streams --count 4", "5%")?;
        let line = first_line(&mut newcomer, Instant::now() + NEWCOMER);
        Ok(line.is_some_and(|line| line["error"] == 0))
    }

    /// After an attack that succeeded: the device process as it is now, and a fresh victim.
    fn begin_anew(&mut self) -> Result<()> {
        let end = Instant::now() + NEWCOMER;
        loop {
            std::thread::sleep(Duration::from_millis(500));
            self.victim = Victim::start(self.daemon, &SESSION)?;
            let mut works = self.victim.report().is_ok_and(|report| report["error"].is_null());
            if let Some((vgpu, victim)) = &mut self.other {
                *victim = Victim::start(self.daemon, &vgpu.run())?;
                works &= victim.report().is_ok_and(|report| report["error"].is_null());
            }
            if let (true, Some(device)) = (works, traces::device_of(self.daemon.pid())) {
                self.device = device;
                return Ok(());
            }
            if Instant::now() > end {
                bail!("the daemon does not recover");
            }
        }
    }

    /// What is to be said of the time since `before`.
    fn judge(
        &mut self,
        name: &str,
        (before, peak): (Traces, &Peak),
        said: &[Value],
        (worked, let_in): (bool, bool),
    ) -> Result<Value> {
        let peak_kib = peak.growth_kib();
        let alone = |scene: &Scene<'_>| {
            let sessions = scene.daemon.try_ps();
            sessions.is_some_and(|sessions| sessions.iter().all(|session| session["tenant"] == "victim"))
        };
        let end = Instant::now() + Duration::from_secs(5);
        while !alone(self) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let sessions_left = !alone(self);
        let gone = |error: anyhow::Error| json!({ "iterations": 0, "wrong": 0, "error": format!("{error:#}") });
        let victim = self.victim.report().unwrap_or_else(gone);
        let other = self.other.as_mut().map(|(_, victim)| victim.report().unwrap_or_else(gone));
        let device = traces::device_of(self.daemon.pid());
        let same = device == Some(self.device);
        // What was given up may take a moment to go; compilers wait some seconds for more of their owner.
        let mut left = Traces::of(self.device).map(|now| now.since(before)).ok();
        let end = Instant::now() + GOES;
        while left.is_some_and(|left| !left.is_little()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
            left = Traces::of(self.device).map(|now| now.since(before)).ok();
        }
        let bound_ms = self.bound_ms;
        let unharmed = |victim: &Value| {
            let in_time = bound_ms.is_none_or(|bound| victim["worst_ms"].as_f64().is_some_and(|worst| worst <= bound));
            victim["wrong"] == 0 && victim["error"].is_null() && victim["iterations"].as_u64() > Some(0) && in_time
        };
        let held = unharmed(&victim)
            && other.as_ref().is_none_or(unharmed)
            && same
            && !sessions_left
            && worked
            && let_in
            && left.is_some_and(Traces::is_little);
        Ok(json!({
            "attack": name,
            "held": held,
            "victim": victim,
            "guest": other,
            "same_device": same,
            "sessions_left": sessions_left,
            "newcomer": let_in,
            "peak_kib": peak_kib,
            "left": left.map(Traces::json),
            "said": said,
        }))
    }

    /// Kills tenants at random moments until the time is over.
    fn kills(&mut self, most: u32, time: Duration) -> Result<Value> {
        const AT_ONCE: usize = 3;
        let (before, peak) = self.watch()?;
        let end = Instant::now() + time;
        let mut killed = 0;
        let mut running: Vec<(Attacker, Instant)> = Vec::new();
        while killed < most && Instant::now() < end {
            while running.len() < AT_ONCE {
                let until = Instant::now() + Duration::from_millis(self.random.below(400));
                running.push((self.start("churn --salt %", "15%")?, until));
            }
            running.sort_by_key(|(_, until)| *until);
            let (attacker, until) = running.remove(0);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            drop(attacker);
            killed += 1;
        }
        running.clear();
        let let_in = self.lets_in()?;
        self.judge("kills", (before, &peak), &[json!({ "done": killed, "error": 0 })], (true, let_in))
    }

    /// All attacks of guests that are wanted, beside one more victim.
    fn attack_by_guests(
        &mut self,
        arguments: &Arguments,
        wanted: impl Fn(&str) -> bool,
        judged: &mut dyn FnMut(Value),
    ) -> Result<()> {
        let deeds: Vec<(&str, Deed)> =
            DEEDS.into_iter().filter(|(name, _)| wanted(&format!("guests {name}"))).collect();
        let kills = wanted("guests killed");
        if deeds.is_empty() && !kills {
            return Ok(());
        }
        let vgpu = Vgpu::create(self.daemon, "victim-guest", "fv", "64m", "15%")?;
        let mut victim = Victim::start(self.daemon, &vgpu.run())?;
        victim.report().context("the victim that is a guest")?;
        self.other = Some((vgpu, victim));
        let time = if arguments.brief { Duration::from_millis(600) } else { Duration::from_secs(8) };
        for deed in deeds {
            let row = self.guests(deed, time).context(deed.0)?;
            let harmed = [&row["victim"], &row["guest"]].iter().any(|victim| !victim["error"].is_null());
            let another = row["same_device"] == false;
            judged(row);
            if harmed || another {
                self.begin_anew()?;
            }
        }
        if kills {
            let time = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
            judged(self.guest_kills(arguments.kills, time)?);
        }
        if let Some((vgpu, victim)) = self.other.take() {
            drop(victim);
            vgpu.destroy();
        }
        Ok(())
    }

    /// Begins to look at all that there is: forgets what the victims have said.
    fn watch(&mut self) -> Result<(Traces, Peak)> {
        let before = Traces::of(self.device)?;
        let peak = Peak::watch(self.daemon.pid());
        self.victim.report()?;
        if let Some((_, other)) = &mut self.other {
            other.report()?;
        }
        Ok((before, peak))
    }

    /// One virtual GPU of each scheme, all with guests that do the same.
    fn guests(&mut self, (name, deed): (&str, Deed), time: Duration) -> Result<Value> {
        let (before, peak) = self.watch()?;
        let vgpus = Vgpu::of_each_scheme(self.daemon)?;
        let mut attackers = Vec::new();
        for vgpu in &vgpus {
            attackers.push(Attacker(vgpu.attacker(name, self.random.below(1 << 30), time)?));
        }
        let end = Instant::now() + time + GUEST_ENDS;
        let said: Vec<Value> = attackers.iter_mut().filter_map(|attacker| first_line(attacker, end)).collect();
        let listed = guests::list(self.daemon).is_some_and(|all| guests::none_failed(&all));
        let let_in = self.lets_in()?;
        drop(attackers);
        let worked = said.len() == vgpus.len()
            && said.iter().all(|line| line["leaked"] == 0 && line["done"].as_u64() > Some(0))
            && (!deed.computes() || said.iter().all(|line| line["ended"].as_u64() > Some(0)));
        // All are destroyed, whatever some say.
        let destroyed = vgpus.into_iter().map(Vgpu::destroy).fold(true, |all, one| all & one);
        self.judge(&format!("guests {name}"), (before, &peak), &said, (worked && listed && destroyed, let_in))
    }

    /// Kills guests in mid-storm; the next comes at once, while the one before is still being cleaned up after.
    fn guest_kills(&mut self, most: u32, time: Duration) -> Result<Value> {
        let (before, peak) = self.watch()?;
        let vgpus = Vgpu::of_each_scheme(self.daemon)?;
        let end = Instant::now() + time;
        let mut killed = 0;
        let mut running: Vec<(Attacker, Instant, usize)> = Vec::new();
        while killed < most && Instant::now() < end {
            for (which, vgpu) in vgpus.iter().enumerate() {
                if running.iter().all(|(_, _, of)| *of != which) {
                    let until = Instant::now() + Duration::from_millis(self.random.below(300));
                    let child = vgpu.attacker("storm", self.random.below(1 << 30), time)?;
                    running.push((Attacker(child), until, which));
                }
            }
            running.sort_by_key(|(_, until, _)| *until);
            let (attacker, until, _) = running.remove(0);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            drop(attacker);
            killed += 1;
        }
        running.clear();
        // They were there: each does hundreds of accesses.
        let listed = guests::list(self.daemon).filter(|all| guests::none_failed(all));
        let traps = listed.map(|all| vgpus.iter().map(|vgpu| vgpu.traps(&all)).collect::<Vec<_>>());
        let worked = traps.as_ref().is_some_and(|traps| traps.iter().all(|traps| *traps > 0));
        let let_in = self.lets_in()?;
        let destroyed = vgpus.into_iter().map(Vgpu::destroy).fold(true, |all, one| all & one);
        let said = [json!({ "done": killed, "error": 0, "traps": traps })];
        self.judge("guests killed", (before, &peak), &said, (worked && destroyed, let_in))
    }
}

/// The lines of a process, as they come.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Longest time until what is no longer used has gone.
const GOES: Duration = Duration::from_secs(15);

/// Longest time until a guest whose time is over says what came of it.
const GUEST_ENDS: Duration = Duration::from_secs(40);

/// Longest time until a newcomer has done something.
const NEWCOMER: Duration = Duration::from_secs(30);

/// The line that a program says, if it says it in time.
fn first_line(attacker: &mut Attacker, end: Instant) -> Option<Value> {
    let lines = lines_of(attacker.0.stdout.take()?);
    let line = lines.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
    serde_json::from_str(&line).ok()
}

/// Runs all attacks that `arguments` names; true if all were held.
///
/// # Errors
/// What kept them from being run.
pub(crate) fn all(arguments: &Arguments) -> Result<bool> {
    let daemon = Daemon::start(&["--gpu", "soft:3g"]);
    let device = traces::device_of(daemon.pid()).context("the daemon has no device process")?;
    let victim = Victim::start(&daemon, &SESSION)?;
    let bound_ms = (!arguments.brief).then_some(arguments.bound_ms);
    let random = Random(arguments.seed);
    let mut scene = Scene { daemon: &daemon, victim, other: None, device, random, bound_ms, tenants: 0 };
    // What the daemon makes when the first tenants come stays: it is no trace.
    if !scene.lets_in()? {
        bail!("no tenant gets in beside the victim");
    }
    Traces::settle(device)?;
    scene.victim.report()?;
    std::thread::sleep(Duration::from_secs(if arguments.brief { 1 } else { 5 }));
    let alone = scene.victim.report()?;
    let line = |row: &Value| {
        if arguments.json {
            return;
        }
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let (victim, guest) = (&row["victim"], &row["guest"]);
        let beside = if guest.is_null() { String::new() } else { format!("   guest: {guest}") };
        let verdict = if row["held"] == false { "FELL" } else { "held" };
        let left = &row["left"];
        eprintln!(
            "{:<18} {verdict}  victim: mean {:7.2} ms, worst {:8.2} ms, {} wrong, {}{beside}   left: {} fd, {} maps, {} threads, {} KiB, peak {} MiB{}   {}",
            row["attack"].as_str().unwrap_or_default(),
            number(&victim["mean_ms"]),
            number(&victim["worst_ms"]),
            victim["wrong"],
            victim["error"].as_str().unwrap_or("no error"),
            left["descriptors"],
            left["maps"],
            left["threads"],
            left["memory_kib"],
            row["peak_kib"].as_i64().unwrap_or(0) >> 10,
            match () {
                () if row["same_device"] == false => ", ANOTHER DEVICE PROCESS",
                () if row["newcomer"] == false => ", NO NEWCOMER GETS IN",
                () if row["sessions_left"] == true => ", SESSIONS",
                () => "",
            },
            row["said"],
        );
    };
    line(&json!({ "attack": "(alone)", "victim": alone, "left": Traces::of(device)?.json(), "said": "" }));
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut rows = Vec::new();
    for attack in ATTACKS.iter().filter(|attack| wanted(attack.name)) {
        let row = scene.run(attack, arguments.brief).with_context(|| attack.name)?;
        line(&row);
        rows.push(row);
        if rows.last().is_some_and(|row| !row["victim"]["error"].is_null() || row["same_device"] == false) {
            scene.begin_anew()?;
        }
    }
    if wanted("kills") {
        let time = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
        let row = scene.kills(arguments.kills, time)?;
        line(&row);
        rows.push(row);
    }
    scene.attack_by_guests(arguments, wanted, &mut |row| {
        line(&row);
        rows.push(row);
    })?;
    if rows.is_empty() {
        bail!("no attack has that name");
    }
    let held = rows.iter().all(|row| row["held"] == true);
    if arguments.json {
        crate::say(&json!({ "held": held, "seed": arguments.seed, "alone": alone, "attacks": rows }))?;
    } else {
        let fell: Vec<&str> =
            rows.iter().filter(|row| row["held"] != true).filter_map(|row| row["attack"].as_str()).collect();
        eprintln!("{} attacks, {} fell {fell:?}; seed {}", rows.len(), fell.len(), arguments.seed);
    }
    Ok(held)
}
