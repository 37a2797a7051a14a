//! `sundial bench shadow`: gHyvi's experiment with any cost of a trap. A trace of what a guest stored into its page tables is
//! replayed against each way of shadowing them: with the shadow page tables of virtual GPUs, and a trap of which only the
//! cost is made up.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::Args;
use gmmu::{Costs, Policy, Rebuild, Shadowing, Trace, TraceFormat};
use serde::{Serialize, Serializer};
use shadow_replay::{Outcome, replay, stores_alone};

use crate::bench::median;

mod picture;

/// What `sundial bench shadow` takes.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A trace, or `paper`: the case of the paper, 15 threads that transcode 720p, made up after its description in both
    /// formats.
    #[arg(long, default_value = "paper", value_name = "FILE|paper")]
    trace: String,
    /// What a trapped store costs, as 2us or 900ns; `measured`: what it costs on this machine, by a protected page and a store
    /// that is decoded. Several are replayed one after the other.
    #[arg(long, value_delimiter = ',', default_value = "measured,5us,15us")]
    trap_cost: Vec<TrapCost>,
    /// Another trace of the paper's case: all that is chance in it begins with this number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the trace itself there, too, in the text form that `--trace` reads.
    #[arg(long, value_name = "FILE", requires = "format")]
    save: Option<PathBuf>,
    /// Replay the paper's case in this format only.
    #[arg(long)]
    format: Option<Format>,
    /// Draw into this folder: the policies' times, the stores by table, and over time.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// A format, as people name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Format {
    /// Intel's local page tables, as the paper's guests had them.
    Intel,
    /// NVIDIA's, as the guests of virtual GPUs have them.
    Nvidia,
}

impl From<Format> for TraceFormat {
    fn from(format: Format) -> TraceFormat {
        match format {
            Format::Intel => TraceFormat::Intel,
            Format::Nvidia => TraceFormat::Nvidia,
        }
    }
}

/// The cost of a trap, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrapCost(u32);

impl FromStr for TrapCost {
    type Err = String;

    fn from_str(text: &str) -> Result<TrapCost, String> {
        if text == "measured" {
            let cost = write_trap::measure(write_trap::Kind::Decode).map_err(|why| why.to_string())?;
            return Ok(TrapCost(u32::try_from(cost.trap_ns).unwrap_or(u32::MAX)));
        }
        let (number, unit) = match text.strip_suffix("us") {
            Some(number) => (number, 1000.0),
            None => (text.strip_suffix("ns").ok_or("a cost is as 2us, 900ns or `measured`")?, 1.0),
        };
        let ns = number.trim().parse::<f64>().map_err(|error| error.to_string())? * unit;
        if (1.0..=1e9).contains(&ns) { Ok(TrapCost(ns as u32)) } else { Err("between 1ns and one second".into()) }
    }
}

impl fmt::Display for TrapCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", f64::from(self.0) / 1000.0)
    }
}

/// What dropping and setting the protection of a page takes beside a trap, ns: `UFFDIO_WRITEPROTECT` of one page.
const PROTECT: u32 = 500;

/// The ways that are compared, in the order of the paper.
const POLICIES: [Policy; 12] = [
    policy(Shadowing::Strict, Rebuild::Segmented),
    policy(Shadowing::Relaxed, Rebuild::Full),
    policy(Shadowing::Relaxed, Rebuild::Static(50)),
    policy(Shadowing::Relaxed, Rebuild::Static(100)),
    policy(Shadowing::Relaxed, Rebuild::Static(200)),
    policy(Shadowing::Relaxed, Rebuild::Static(300)),
    policy(Shadowing::Relaxed, Rebuild::Dynamic),
    policy(Shadowing::Relaxed, Rebuild::Segmented),
    policy(Shadowing::Hybrid, Rebuild::Full),
    policy(Shadowing::Hybrid, Rebuild::Static(200)),
    policy(Shadowing::Hybrid, Rebuild::Dynamic),
    policy(Shadowing::Hybrid, Rebuild::Segmented),
];

const fn policy(shadowing: Shadowing, rebuild: Rebuild) -> Policy {
    Policy { shadowing, rebuild }
}

fn scheme_name<S: Serializer>(shadowing: &Shadowing, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name(*shadowing))
}

fn name(shadowing: Shadowing) -> &'static str {
    match shadowing {
        Shadowing::Strict => "strict",
        Shadowing::Relaxed => "relaxed",
        Shadowing::Hybrid => "hybrid",
    }
}

fn rebuild_name(policy: Policy) -> String {
    match (policy.shadowing, policy.rebuild) {
        (Shadowing::Strict, _) => "-".into(),
        (_, Rebuild::Full) => "full".into(),
        (_, Rebuild::Static(pages)) => format!("static:{pages}"),
        (_, Rebuild::Dynamic) => "dynamic".into(),
        (_, Rebuild::Segmented) => "segmented".into(),
    }
}

/// A line of the result.
#[derive(Serialize, Clone, Debug)]
struct Row {
    format: &'static str,
    #[serde(serialize_with = "scheme_name")]
    scheme: Shadowing,
    /// `-` where no page is ever relaxed.
    rebuild: String,
    trap_cost_us: f64,
    /// Stores into page tables.
    updates: u64,
    submissions: u64,
    traps: u64,
    pages_rebuilt: u64,
    entries_rebuilt: u64,
    /// Following, traps and protections, all together.
    ms: f64,
    /// How much of it was measured: following, without traps and protections.
    followed_ms: f64,
    /// The time of strict, by this one.
    speedup: f64,
}

/// Replays and prints.
///
/// # Errors
/// A trace that cannot be read, a picture that cannot be drawn.
pub(crate) fn run(arguments: &Arguments, json: bool, rounds: usize) -> Result<()> {
    let mut rows = Vec::new();
    let traces = traces(arguments)?;
    for trace in &traces {
        if let Some(path) = &arguments.save {
            fs::write(path, trace.to_text()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        rows.extend(compare(trace, &arguments.trap_cost, rounds)?);
    }
    print(&rows, json)?;
    // Last: what was measured is told even if it cannot be drawn.
    if let Some(folder) = &arguments.svg {
        for trace in &traces {
            picture::draw_trace(folder, trace)?;
        }
        picture::draw_policies(folder, &rows)?;
    }
    Ok(())
}

fn traces(arguments: &Arguments) -> Result<Vec<Trace>> {
    if arguments.trace != "paper" {
        ensure!(arguments.format.is_none(), "a trace says its format itself");
        let path = Path::new(&arguments.trace);
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
        return Ok(vec![Trace::from_text(&text)?]);
    }
    let all = [TraceFormat::Intel, TraceFormat::Nvidia];
    let wanted = arguments.format.map_or(all.to_vec(), |format| vec![format.into()]);
    Ok(wanted.into_iter().map(|format| Trace::of_the_paper(format, arguments.seed)).collect())
}

fn compare(trace: &Trace, costs: &[TrapCost], rounds: usize) -> Result<Vec<Row>> {
    let (updates, submissions) = trace.counts();
    eprintln!("{}: {updates} stores, {submissions} submissions", trace.format.name());
    let alone = stores_alone(trace).as_secs_f64() * 1e3;
    let compare = shadow_replay::cost_of_comparing(trace.format)?;
    let mut rows = Vec::new();
    for TrapCost(trap) in costs.iter().copied() {
        let costs = Costs { trap, release: 0, protect: PROTECT, compare };
        // One after the other in each round, so that the machine's mood hits all.
        let mut seen: Vec<Vec<(f64, Outcome)>> = vec![Vec::new(); POLICIES.len()];
        for round in 0..rounds.max(1) {
            eprintln!("  {}: round {} of {rounds}", TrapCost(trap), round + 1);
            for (policy, seen) in POLICIES.iter().zip(&mut seen) {
                let outcome = replay(trace, *policy, costs, false)?;
                seen.push(((outcome.followed.as_secs_f64() * 1e3 - alone).max(0.0), outcome));
            }
        }
        let mut strict = None;
        for (policy, mut seen) in POLICIES.iter().zip(seen) {
            let followed_ms = median(&mut seen.iter().map(|(ms, _)| *ms).collect::<Vec<f64>>());
            let Some((_, outcome)) = seen.pop() else { continue };
            let ms = followed_ms + outcome.modelled_ms(costs);
            let strict = *strict.get_or_insert(ms);
            rows.push(Row {
                format: trace.format.name(),
                scheme: policy.shadowing,
                rebuild: rebuild_name(*policy),
                trap_cost_us: f64::from(trap) / 1e3,
                updates: outcome.updates,
                submissions: outcome.submissions,
                traps: outcome.traps(),
                pages_rebuilt: outcome.pages_rebuilt(),
                entries_rebuilt: outcome.counts.entries_rebuilt,
                ms,
                followed_ms,
                speedup: strict / ms,
            });
        }
    }
    Ok(rows)
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    let [a, b, c, d, e, f, g, h, i] =
        ["format", "scheme", "rebuild", "trap, us", "traps", "pages", "entries", "ms", "strict / this"];
    writeln!(out, "{a:<8} {b:<8} {c:<11} {d:>9} {e:>9} {f:>9} {g:>9} {h:>10} {i:>14}")?;
    for row in rows {
        write!(out, "{:<8} {:<8} {:<11}", row.format, name(row.scheme), row.rebuild)?;
        write!(out, " {:>9.1} {:>9} {:>9} {:>9}", row.trap_cost_us, row.traps, row.pages_rebuilt, row.entries_rebuilt)?;
        writeln!(out, " {:>10.1} {:>14.1}", row.ms, row.speedup)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_as_people_write_them() {
        assert_eq!("2us".parse(), Ok(TrapCost(2000)));
        assert_eq!("0.75us".parse(), Ok(TrapCost(750)));
        assert_eq!("900ns".parse(), Ok(TrapCost(900)));
        for bad in ["2", "us", "0us", "-1us", "NaNus", "2s"] {
            assert!(bad.parse::<TrapCost>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_policy_has_a_row_at_each_cost() {
        let mut trace = Trace::of_the_paper(TraceFormat::Intel, 3);
        trace.events.truncate(3000);
        let rows = compare(&trace, &[TrapCost(2000), TrapCost(15_000)], 1).unwrap();
        assert_eq!(rows.len(), 2 * POLICIES.len());
        // However long following takes, traps cost what was said.
        for row in &rows {
            assert!(row.ms >= row.traps as f64 * row.trap_cost_us / 1e3, "{row:?}");
            assert_eq!((row.updates, row.submissions), trace.counts());
        }
        assert!(rows.iter().filter(|row| row.scheme == Shadowing::Strict).all(|row| row.traps == row.updates));
    }
}
