//! Copies and calls: a probe for each mode, asked in turn.

use anyhow::Result;

use super::client::Counts;
use super::{Found, Mode, Row, Seen, rows};
use crate::bench::{Probe, median};
use crate::stage::Stage;

/// Smallest copy; each next one is sixteen times as large, up to the largest.
const SMALLEST: u64 = 4 << 10;
/// What is copied until a time can be read off, bytes.
const ENOUGH: u64 = 16 << 20;
/// Blocks of staged copies.
const BLOCKS: [u64; 11] =
    [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20];
/// Single calls, with repetitions.
const CALLS: [(&str, u32); 3] = [("launch", 256), ("launch-synchronize", 100), ("alloc-free-1048576", 50)];

/// A probe, and the name of its tenant if it is one.
struct Asked {
    mode: Mode,
    tenant: Option<String>,
    probe: Probe,
}

impl Asked {
    fn start(stage: &Stage, mode: Mode, number: u16, more: &[&str]) -> Result<Asked> {
        let name = format!("{}-{number}", mode.name());
        let tenant = (mode != Mode::Native).then_some(name);
        let mut options = mode.options().to_vec();
        options.extend(more);
        if let Some(name) = &tenant {
            options.extend(["--name", name.as_str(), "--mem", "256m", "--timed"]);
        }
        let probe = Probe::start(stage, &options)?;
        Ok(Asked { mode, tenant, probe })
    }

    /// One question: ms of a repetition.
    fn time(&mut self, name: &str, count: u32) -> Result<f64> {
        Ok(self.probe.measure(name, count)? * 1e3)
    }
}

/// What was counted of each until now.
fn counts(stage: &Stage, probes: &[Asked]) -> Result<Vec<Counts>> {
    Counts::of(stage, probes.iter().map(|asked| (asked.tenant.as_deref(), asked.probe.pid())))
}

/// What was counted of each since then, of each of so many repetitions.
fn counts_since(stage: &Stage, probes: &[Asked], before: Vec<Counts>, repetitions: u32) -> Result<Vec<Counts>> {
    let now = counts(stage, probes)?;
    Ok(now.into_iter().zip(before).map(|(now, before)| (now - before).each(repetitions)).collect())
}

/// One of each mode.
fn probes(stage: &Stage) -> Result<Vec<Asked>> {
    Mode::ALL.into_iter().map(|mode| Asked::start(stage, mode, 0, &[])).collect()
}

/// All of them in turn, in each round; the first one warms up.
fn compare(stage: &Stage, probes: &mut [Asked], rounds: usize, name: &str, count: u32) -> Result<Vec<(Mode, Seen)>> {
    let mut seen: Vec<(Mode, Seen)> = probes.iter().map(|asked| (asked.mode, Seen::default())).collect();
    for asked in probes.iter_mut() {
        asked.probe.measure(name, count.min(2))?;
    }
    // Each does nothing while another one does: it is enough to count before the rounds and behind them.
    let before = counts(stage, probes)?;
    for round in 0..rounds {
        let order: Vec<usize> =
            if round % 2 == 0 { (0..probes.len()).collect() } else { (0..probes.len()).rev().collect() };
        for at in order {
            seen[at].1.ms.push(probes[at].time(name, count)?);
        }
    }
    let repetitions = count.saturating_mul(u32::try_from(rounds)?);
    for ((_, seen), counts) in seen.iter_mut().zip(counts_since(stage, probes, before, repetitions)?) {
        seen.counts.push(counts);
    }
    let told: String =
        seen.iter().map(|(mode, seen)| format!("  {} {:.4}", mode.name(), median(&mut seen.ms.clone()))).collect();
    eprintln!("  {name}, ms:{told}");
    Ok(seen)
}

/// Copies by size and mode.
pub(super) fn copies(stage: &Stage, largest: u64, rounds: usize, all: &mut Vec<Row>) -> Result<()> {
    let mut probes = probes(stage)?;
    let mut bytes = SMALLEST;
    loop {
        bytes = bytes.min(largest);
        let count = u32::try_from(ENOUGH / bytes)?.clamp(1, 64);
        for direction in ["h2d", "d2h"] {
            let mut seen = compare(stage, &mut probes, rounds, &format!("{direction}-pageable-{bytes}"), count)?;
            all.extend(rows(direction, bytes, 1, &mut seen));
        }
        if bytes == largest {
            return Ok(());
        }
        bytes *= 16;
    }
}

/// Single calls by mode.
pub(super) fn calls(stage: &Stage, rounds: usize, all: &mut Vec<Row>) -> Result<()> {
    let mut probes = probes(stage)?;
    for (name, count) in CALLS {
        let mut seen = compare(stage, &mut probes, rounds, name, count)?;
        all.extend(rows(name, 0, 1, &mut seen));
    }
    Ok(())
}

/// Staged copies by the size of their blocks.
pub(super) fn blocks(stage: &Stage, largest: u64, rounds: usize, all: &mut Vec<Row>) -> Result<()> {
    let mut native = Asked::start(stage, Mode::Native, 0, &[])?;
    // Of a block that has room for the copy twice, nothing more can be said.
    for block in BLOCKS.into_iter().filter(|block| *block <= largest.saturating_mul(2).max(BLOCKS[0])) {
        let size = block.to_string();
        let asked = Asked::start(stage, Mode::Delayed, 0, &["--block-size", &size])?;
        // Both are compared, one after the other.
        let mut pair = [native, asked];
        for direction in ["h2d", "d2h"] {
            let name = format!("{direction}-pageable-{largest}");
            let mut seen = compare(stage, &mut pair, rounds, &name, 1)?;
            let rows = rows(&format!("block-{direction}"), block, 1, &mut seen);
            all.extend(rows.into_iter().filter(|row| row.mode != Mode::Native));
        }
        let [first, _] = pair;
        native = first;
    }
    Ok(())
}

/// Several tenants that copy at once: how long each takes, and whether their blocks take turns.
pub(super) fn at_once(stage: &Stage, largest: u64, tenants: &[u16], rounds: usize, found: &mut Found) -> Result<()> {
    const COPIES: u32 = 2;
    let name = format!("h2d-pageable-{largest}");
    for &tenants in tenants {
        let mut seen = Vec::new();
        for mode in [Mode::Native, Mode::Delayed] {
            let mut probes =
                (0..tenants).map(|number| Asked::start(stage, mode, number, &[])).collect::<Result<Vec<_>>>()?;
            for asked in &mut probes {
                asked.probe.measure(&name, 1)?;
            }
            let (mut all, mut spread) = (Seen::default(), Vec::new());
            for _ in 0..rounds {
                let before = counts(stage, &probes)?;
                let times = std::thread::scope(|scope| {
                    let measured: Vec<_> =
                        probes.iter_mut().map(|asked| scope.spawn(|| asked.time(&name, COPIES))).collect();
                    measured.into_iter().map(|one| one.join().expect("no panic")).collect::<Result<Vec<f64>>>()
                })?;
                let counts = counts_since(stage, &probes, before, COPIES)?;
                let told: Vec<(f64, Counts)> = times.into_iter().zip(counts).collect();
                let times = || told.iter().map(|(ms, _)| *ms);
                spread.push(times().fold(0.0, f64::max) / times().fold(f64::INFINITY, f64::min));
                let (ms, counts) = Counts::mean(&told);
                all.add(ms, counts);
            }
            if mode == Mode::Delayed && tenants > 1 {
                let spread = median(&mut spread);
                found.notes.push(format!(
                    "of {tenants} tenants that copy {} MiB at once, block by block, the last took {spread:.2} of the first's time",
                    largest >> 20
                ));
            }
            seen.push((mode, all));
        }
        eprintln!("  {tenants} at once");
        found.rows.extend(rows("h2d-at-once", largest, tenants, &mut seen));
    }
    Ok(())
}
