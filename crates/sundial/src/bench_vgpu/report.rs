//! What is printed: a table of all runs, their means, and what was reached of the goals.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::guest::PHASES;
use super::{LEAST, Row, SUMS, Way};
use crate::stepped::Counts;

/// Program, guests, way: with its time in each phase, and its counts in all of them.
pub(super) fn table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    write!(out, "{:<17}{:>7} {:<15}", "program", "guests", "scheme")?;
    for phase in PHASES.iter().chain(&SUMS) {
        write!(out, "{phase:>10}")?;
    }
    writeln!(out, "{:>8}{:>8}{:>9}{:>9}{:>8}", "ratio", "traps", "updates", "scanned", "calls")?;
    for lines in rows.chunks(PHASES.len() + SUMS.len()) {
        let Some(total) = lines.iter().find(|row| row.phase == SUMS[0]) else { continue };
        write!(out, "{:<17}{:>7} {:<15}", total.program, total.guests, total.scheme)?;
        for row in lines {
            write!(out, "{:>10.2}", row.ms)?;
        }
        let Counts { traps, shadow_updates, entries_scanned, hypercalls, .. } = total.counts;
        write!(out, "{:>8.2}", total.ratio.unwrap_or(f64::NAN))?;
        writeln!(out, "{traps:>8}{shadow_updates:>9}{entries_scanned:>9}{hypercalls:>8}")?;
    }
    writeln!(out, "\nms; total: all phases, of a guest; finish: until all have ended; ratio: of total, to native")
}

/// Ratios to native over all programs.
pub(super) fn means(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let shown = ["init", "close", "total", "finish"];
    let mut ratios: BTreeMap<(u16, Way), [Vec<f64>; 4]> = BTreeMap::new();
    for row in rows {
        if let (Some(place), Some(ratio)) = (shown.iter().position(|phase| *phase == row.phase), row.ratio) {
            ratios.entry((row.guests, row.scheme)).or_default()[place].push(ratio);
        }
    }
    write!(out, "\n{:<7} {:<15}", "guests", "to native")?;
    shown.iter().try_for_each(|phase| write!(out, "{phase:>10}"))?;
    writeln!(out)?;
    for ((guests, way), ratios) in ratios {
        write!(out, "{guests:<7} {way:<15}")?;
        ratios.iter().try_for_each(|ratios| write!(out, "{:>10.2}", geometric_mean(ratios).unwrap_or(f64::NAN)))?;
        writeln!(out)?;
    }
    Ok(())
}

/// What is to be reached of a figure.
#[derive(Clone, Copy, Debug)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}
use Goal::{AtLeast, AtMost};

/// What is to be reached, and what was: of those figures for which there are runs.
pub(super) fn goals(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let [total, finish] = SUMS;
    let time = |of: Way, to: Way, guests, phase| times(rows, (of, guests, phase), (to, guests, phase));
    let updates = |counts: Counts| counts.shadow_updates;
    let figures = [
        ("whole programs, fv to native", time(Way::Fv, Way::Native, 1, total), AtMost(1.10)),
        ("whole programs, hybrid to fv", time(Way::Hybrid, Way::Fv, 1, total), AtMost(1.02)),
        ("whole programs, pv to native", time(Way::Pv, Way::Native, 1, total), AtMost(1.05)),
        ("init, fv-naive to fv", time(Way::FvNaive, Way::Fv, 1, "init"), AtLeast(10.0)),
        ("close, fv-naive to fv", time(Way::FvNaive, Way::Fv, 1, "close"), AtLeast(10.0)),
        ("shadow updates, fv-naive to fv", counted(rows, Way::FvNaive, Way::Fv, updates), AtLeast(10.0)),
        ("8 guests until all have ended, fv to sessions", time(Way::Fv, Way::Session, 8, finish), AtMost(1.10)),
        ("fv beside an idle guest, to fv", time(Way::FvBesideIdle, Way::Fv, 1, total), AtMost(1.01)),
    ];
    let reached: Vec<_> = figures.iter().filter_map(|(what, got, goal)| Some((what, (*got)?, goal))).collect();
    if reached.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{:<48}{:>9}   goal", "means over the programs", "ratio")?;
    for (what, got, goal) in reached {
        let (sign, bound, met) = match *goal {
            AtMost(bound) => ("<=", bound, got <= bound),
            AtLeast(bound) => (">=", bound, got >= bound),
        };
        writeln!(out, "{what:<48}{got:>9.3}   {sign} {bound:<6}{}", if met { "reached" } else { "missed" })?;
    }
    Ok(())
}

/// Which rows: way, guests, phase.
type Which = (Way, u16, &'static str);

fn find<'a>(rows: &'a [Row], (way, guests, phase): Which, program: &str) -> Option<&'a Row> {
    let asked = |row: &&Row| (row.scheme, row.guests, row.phase, row.program) == (way, guests, phase, program);
    rows.iter().find(asked)
}

/// The ratio of two times, the mean over all programs that have both.
fn times(rows: &[Row], of: Which, to: Which) -> Option<f64> {
    let ratio = |row: &Row| {
        let base = find(rows, to, row.program)?.ms;
        (base >= LEAST && row.ms >= LEAST).then_some(row.ms / base)
    };
    let mine = rows.iter().filter(|row| (row.scheme, row.guests, row.phase) == of);
    geometric_mean(&mine.filter_map(ratio).collect::<Vec<f64>>())
}

/// The ratio of two counts, summed up over all programs that have both.
fn counted(rows: &[Row], of: Way, to: Way, count: impl Fn(Counts) -> u64) -> Option<f64> {
    let pair = |row: &Row| Some((count(row.counts), count(find(rows, (to, 1, SUMS[0]), row.program)?.counts)));
    let mine = rows.iter().filter(|row| (row.scheme, row.guests, row.phase) == (of, 1, SUMS[0]));
    let (of, to) = mine.filter_map(pair).fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    (to > 0).then(|| of as f64 / to as f64)
}

/// None of nothing.
fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logarithms / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheme: Way, program: &'static str, phase: &'static str, ms: f64, shadow_updates: u64) -> Row {
        let counts = Counts { shadow_updates, ..Counts::default() };
        Row { scheme, guests: 1, program, phase, ms, ratio: None, counts }
    }

    #[test]
    fn goals_are_judged_by_means_over_programs() {
        let rows = [
            row(Way::Native, "nop", "total", 100.0, 0),
            row(Way::Native, "bfs", "total", 10.0, 0),
            row(Way::Fv, "nop", "total", 200.0, 30),
            row(Way::Fv, "bfs", "total", 5.0, 10),
            row(Way::FvNaive, "nop", "total", 900.0, 100),
            row(Way::FvNaive, "bfs", "total", 900.0, 100),
            row(Way::Fv, "nop", "init", 1.0, 0),
            row(Way::FvNaive, "nop", "init", 20.0, 0),
            row(Way::Fv, "nop", "close", 0.0, 0),
            row(Way::FvNaive, "nop", "close", 5.0, 0),
        ];
        let mut out = Vec::new();
        goals(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = |what: &str| text.lines().find(|line| line.starts_with(what)).map(str::to_owned);
        let words = |what: &str| line(what).unwrap().split_whitespace().skip(4).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words("whole programs, fv")[1..], ["1.000", "<=", "1.1", "reached"]);
        assert_eq!(words("init, fv-naive"), ["20.000", ">=", "10", "reached"]);
        assert_eq!(words("shadow updates")[1..], ["5.000", ">=", "10", "missed"]);
        for absent in ["whole programs, pv", "close", "8 guests", "fv beside"] {
            assert_eq!(line(absent), None, "{text}");
        }
    }
}
