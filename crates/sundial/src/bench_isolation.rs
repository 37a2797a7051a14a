//! `sundial bench isolation`: GPUvm's experiment. Three tenants run kernels of lengths 1 : 10 : 100, one after the other and
//! each waited for; they are entitled to a third of the GPU each. How much each gets is what the scheduler makes of it. They are
//! sessions, or guests with virtual GPUs, or some of both.
//!
//! All of it in one run: the same processes go on while `set --scheduler` changes how they share.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use fair_share::Policy;
use serde::Serialize;

use crate::bench::median;
use crate::size::Scheduler;
use crate::stage::Stage;

mod picture;
mod tenants;

use tenants::{Kind, Program};

/// What `sundial bench isolation` takes.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Draw the tenants' utilisation over time, too.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// What the tenants are.
    #[arg(long, value_delimiter = ',', default_values_t = Kind::ALL)]
    kind: Vec<Kind>,
    /// How long to look at each scheduler, seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Length of the shortest kernels, microseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    shortest: u64,
}

/// Tenants, and how much longer their kernels are than the shortest.
const TENANTS: [(&str, u64); 3] = [("short", 1), ("middle", 10), ("long", 100)];
/// After a change of the scheduler, this is not looked at.
const SETTLING: Duration = Duration::from_secs(1);
/// Between two looks.
const SAMPLE: Duration = Duration::from_millis(50);
/// An error is that of a window of this length.
const WINDOW: Duration = Duration::from_secs(1);
/// Longest that the tenants may take to begin, or to end.
const BOUND: Duration = Duration::from_secs(20);

/// A line of the result.
#[derive(Serialize, Debug)]
struct Row {
    scheduler: Scheduler,
    kind: Kind,
    tenant: &'static str,
    /// Percent of the GPU time that is used.
    share_entitled: f64,
    /// As much of it as it got.
    share_received: f64,
    /// The difference between the two, in a second as good as half of all seconds.
    error_points: f64,
    /// The same in the worst second.
    worst_points: f64,
}

/// What was seen at one time: GPU time ever used by each tenant, ns.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    used: [u64; TENANTS.len()],
}

/// What was seen of tenants of a kind with one scheduler.
#[derive(Debug)]
struct Course {
    scheduler: Scheduler,
    kind: Kind,
    entitled: [f64; TENANTS.len()],
    samples: Vec<Sample>,
}

pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<()> {
    let stage = Stage::open("isolation", "soft:1g")?;
    let mut courses = Vec::new();
    for kind in &arguments.kind {
        courses.extend(compare(&stage, *kind, arguments).with_context(|| format!("tenants that are {kind}"))?);
    }
    if let Some(path) = &arguments.svg {
        picture::draw(path, &courses).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    print(&courses.iter().flat_map(Course::rows).collect::<Vec<Row>>(), json)
}

/// Tenants of a kind, with each scheduler.
fn compare(stage: &Stage, kind: Kind, arguments: &Arguments) -> Result<Vec<Course>> {
    stage.schedule(Scheduler(Policy::Default))?;
    // Those of the kind before have the same names.
    wait("the tenants before do not end", || Ok(stage.listing()?.sessions.is_empty()))?;
    let mut programs = kind.start(stage)?;
    let rounds = calibrate(&mut programs[0], Duration::from_micros(arguments.shortest))?;
    for (program, (_, times)) in programs.iter_mut().zip(TENANTS) {
        // Until it is killed.
        program.ask(rounds * times, u32::MAX)?;
    }
    all_run(stage)?;
    let mut courses = Vec::new();
    for policy in Policy::ALL {
        let scheduler = Scheduler(policy);
        eprintln!("{kind}, {policy}");
        stage.schedule(scheduler)?;
        std::thread::sleep(SETTLING);
        courses.push(watch(stage, kind, scheduler, Duration::from_secs(arguments.seconds))?);
    }
    Ok(courses)
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    writeln!(out, "{:<46} {:>28}", "", "error of a second, points")?;
    let [a, b, c, d, e, f, g] = ["scheduler", "kind", "tenant", "entitled", "received", "median", "worst"];
    writeln!(out, "{a:<10} {b:<10} {c:<8} {d:>9} {e:>9} {f:>12} {g:>12}")?;
    for Row { scheduler, kind, tenant, share_entitled, share_received, error_points, worst_points } in rows {
        write!(out, "{scheduler:<10} {kind:<10} {tenant:<8} {share_entitled:>8.1}% {share_received:>8.1}%")?;
        writeln!(out, " {error_points:>12.1} {worst_points:>12.1}")?;
    }
    Ok(())
}

/// Rounds of the busy kernel's loop that take so long when nobody else runs.
fn calibrate(program: &mut Program<'_>, length: Duration) -> Result<u64> {
    /// Long enough that starting and waiting do not count.
    const LONG: f64 = 0.02;
    let mut rounds = 100_000;
    loop {
        // The first is compiled.
        program.ask(rounds, 1)?;
        program.answer()?;
        program.ask(rounds, 5)?;
        let seconds = program.answer()? / 5.0;
        if seconds >= LONG {
            return Ok(((rounds as f64 * length.as_secs_f64() / seconds) as u64).max(1));
        }
        rounds *= 4;
    }
}

/// Waits until all tenants have had GPU time since now.
fn all_run(stage: &Stage) -> Result<()> {
    let before = look(stage, Duration::ZERO)?.0;
    wait("not all tenants run", || {
        let now = look(stage, Duration::ZERO)?.0;
        Ok(now.used.iter().zip(before.used).all(|(now, before)| *now > before))
    })
}

fn wait(otherwise: &'static str, done: impl Fn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + BOUND;
    while !done()? {
        if Instant::now() > end {
            bail!(otherwise);
        }
        std::thread::sleep(SAMPLE);
    }
    Ok(())
}

/// What the daemon says now: used, and entitled.
fn look(stage: &Stage, at: Duration) -> Result<(Sample, [f64; TENANTS.len()])> {
    let (sessions, vgpus) = (stage.listing()?.sessions, stage.vgpus()?.vgpus);
    let sessions = sessions.iter().map(|line| (line.tenant.as_str(), (line.gpu_time_ns, line.share_entitled)));
    let vgpus = vgpus.iter().map(|line| (line.name.as_str(), (line.gpu_time_ns, line.share_entitled)));
    let lines: BTreeMap<&str, (u64, f64)> = sessions.chain(vgpus).collect();
    let (mut used, mut entitled) = ([0; TENANTS.len()], [0.0; TENANTS.len()]);
    for (index, (name, _)) in TENANTS.iter().enumerate() {
        let line = lines.get(name).with_context(|| format!("the tenant {name} is gone"))?;
        (used[index], entitled[index]) = *line;
    }
    Ok((Sample { at, used }, entitled))
}

fn watch(stage: &Stage, kind: Kind, scheduler: Scheduler, length: Duration) -> Result<Course> {
    let start = Instant::now();
    let (first, entitled) = look(stage, Duration::ZERO)?;
    let mut samples = vec![first];
    while start.elapsed() < length {
        std::thread::sleep(SAMPLE);
        samples.push(look(stage, start.elapsed())?.0);
    }
    Ok(Course { scheduler, kind, entitled, samples })
}

/// Parts of the time used between two samples, percent.
fn parts(from: &Sample, to: &Sample) -> [f64; TENANTS.len()] {
    let spent: Vec<f64> = to.used.iter().zip(from.used).map(|(to, from)| to.saturating_sub(from) as f64).collect();
    let all = spent.iter().sum::<f64>().max(1.0);
    std::array::from_fn(|index| 100.0 * spent[index] / all)
}

impl Course {
    fn rows(&self) -> Vec<Row> {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else { return Vec::new() };
        let received = parts(first, last);
        let row = |(index, (tenant, _)): (usize, &(&'static str, u64))| {
            let mut errors = self.errors(index);
            Row {
                scheduler: self.scheduler,
                kind: self.kind,
                tenant,
                share_entitled: self.entitled[index],
                share_received: received[index],
                error_points: median(&mut errors),
                worst_points: errors.last().copied().unwrap_or(f64::NAN),
            }
        };
        TENANTS.iter().enumerate().map(row).collect()
    }

    /// A tenant's errors in all windows, the smallest first.
    fn errors(&self, tenant: usize) -> Vec<f64> {
        let window = |(index, from): (usize, &Sample)| {
            let to = self.samples[index..].iter().find(|to| to.at - from.at >= WINDOW)?;
            Some((parts(from, to)[tenant] - self.entitled[tenant]).abs())
        };
        let mut errors: Vec<f64> = self.samples.iter().enumerate().filter_map(window).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A course in which tenants get these parts of every second, and for the last second others.
    fn course(parts: [f64; 3], last: [f64; 3]) -> Course {
        let mut used = [0.0; 3];
        let samples = (0..=80).map(|step| {
            let sample = Sample { at: SAMPLE * step, used: used.map(|ns| ns as u64) };
            let parts = if step < 60 { parts } else { last };
            used.iter_mut().zip(parts).for_each(|(used, part)| *used += part * 1e6);
            sample
        });
        let scheduler = Scheduler(Policy::Band);
        Course { scheduler, kind: Kind::Sessions, entitled: [100.0 / 3.0; 3], samples: samples.collect() }
    }

    #[test]
    fn errors_are_those_of_seconds() {
        let rows = course([30.0, 30.0, 40.0], [10.0, 50.0, 40.0]).rows();
        let shown = rows.iter().map(|row| [row.share_received, row.error_points, row.worst_points]);
        let expected = [[25.0, 3.3, 23.3], [35.0, 3.3, 16.7], [40.0, 6.7, 6.7]];
        for (shown, expected) in shown.zip(expected) {
            let close = shown.iter().zip(expected).all(|(shown, expected)| (shown - expected).abs() < 0.1);
            assert!(close, "{shown:?}, not {expected:?}");
        }
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(
            (&json["scheduler"], &json["kind"], &json["tenant"]),
            (&"band".into(), &"sessions".into(), &"short".into())
        );
    }

    #[test]
    fn a_picture_has_a_panel_for_each_scheduler() {
        let path = std::env::temp_dir().join(format!("isolation-{}.svg", std::process::id()));
        let mut courses = vec![course([30.0, 30.0, 40.0], [30.0, 30.0, 40.0])];
        let fifo = || course([1.0, 9.0, 90.0], [1.0, 9.0, 90.0]);
        courses.push(Course { scheduler: Scheduler(Policy::Fifo), ..fifo() });
        courses.push(Course { scheduler: Scheduler(Policy::Fifo), kind: Kind::Mixed, ..fifo() });
        picture::draw(&path, &courses).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["BAND, sessions", "FIFO, sessions", "FIFO, mixed", "short", "middle", "long"] {
            assert!(svg.contains(word), "{word}");
        }
    }
}
