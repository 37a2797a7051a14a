//! What is printed: a table, notes, and what was reached of the goals.

use std::io::{self, Write};

use anyhow::Result;

use super::{Found, Mode, Row};

/// Rows to standard output; notes and goals where people read them.
pub(super) fn print(found: &Found, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found.rows)?)?;
        return Ok(below(&mut io::stderr(), found)?);
    }
    table(&mut out, &found.rows)?;
    Ok(below(&mut out, found)?)
}

/// At most 100 columns.
fn table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    writeln!(
        out,
        "{:<20}{:>7}{:>3} {:<8}{:>10}{:>7}{:>8}{:>8}{:>7}{:>7}{:>7}{:>7}",
        "what", "size", "n", "mode", "ms", "ratio", "calls", "trips", "cpu", "gpu", "copy", "wait"
    )?;
    for row in rows {
        let size = if row.bytes == 0 { String::new() } else { size(row.bytes) };
        let counts = &row.counts;
        let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        write!(out, "{:<20}{size:>7}{:>3} {:<8}{:>10.4}{ratio:>7}", row.what, row.tenants, row.mode.name(), row.ms)?;
        write!(out, "{:>8}{:>8}", number(counts.calls), number(counts.round_trips))?;
        for ms in [counts.cpu_ms, counts.gpu_ms, counts.copy_ms, counts.wait_ms] {
            write!(out, "{:>7}", number(ms))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "\ntimes in ms; ratio: to native; trips: answers waited for; n: tenants at once")
}

/// Three digits that count.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 100.0 || value == 0.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) if value >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// Whole units of 2^10.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
        bytes => format!("{}k", bytes >> 10),
    }
}

fn below(out: &mut impl Write, found: &Found) -> io::Result<()> {
    found.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
    let goals = goals(&found.rows);
    if !goals.is_empty() {
        writeln!(out)?;
    }
    goals.iter().try_for_each(|(what, got, unit, goal)| {
        let met = if got >= goal { "reached" } else { "missed" };
        writeln!(out, "{what:<66}{got:>8.2}{unit:<2} >= {goal}{unit} {met}")
    })
}

/// What, how much, its unit, and what it shall be at least: of what there are rows.
fn goals(rows: &[Row]) -> Vec<(String, f64, &'static str, f64)> {
    let ms = |what: &str, bytes: u64, mode: Mode| {
        rows.iter().find(|row| (row.what.as_str(), row.bytes, row.mode) == (what, bytes, mode)).map(|row| row.ms)
    };
    let mut goals = Vec::new();
    for direction in ["h2d", "d2h"] {
        let copies = rows.iter().filter(|row| row.what == direction);
        let Some(largest) = copies.map(|row| row.bytes).max() else { continue };
        if let Some((baseline, mapped)) =
            ms(direction, largest, Mode::Baseline).zip(ms(direction, largest, Mode::Mapped))
        {
            let what = format!("{direction} of {}: baseline takes as long as so many of mapped", size(largest));
            goals.push((what, baseline / mapped, "", 6.5));
        }
    }
    for what in ["launch", "launch-synchronize", "alloc-free-1048576"] {
        let of = |mode| ms(what, 0, mode);
        let (Some(native), Some(baseline), Some(delayed)) = (of(Mode::Native), of(Mode::Baseline), of(Mode::Delayed))
        else {
            continue;
        };
        // Where nothing is added, nothing can be removed.
        if baseline > native {
            let removed = 100.0 * (baseline - delayed) / (baseline - native);
            let text = format!("{what}: delayed removes of what baseline adds to native");
            // What waits for an answer anyway is no goal.
            goals.push((text, removed, " %", if what == "launch" { 90.0 } else { 0.0 }));
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::tests::some_rows;
    use super::*;

    #[test]
    fn goals_are_told_of_the_largest_copies_and_of_launches() {
        let found = Found { rows: some_rows(), notes: vec!["a note".into()] };
        let mut out = Vec::new();
        below(&mut out, &found).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("a note\n"), "{text}");
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert!(line("h2d of 64m").contains("8.00") && line("h2d of 64m").ends_with("reached"), "{text}");
        assert!(line("launch:").contains("100.00 %") && line("launch:").ends_with("reached"), "{text}");
        assert!(!text.contains("d2h"));
    }

    #[test]
    fn a_table_fits_into_a_terminal() {
        let mut out = Vec::new();
        table(&mut out, &some_rows()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1 + some_rows().len() + 2);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let line: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(line, ["h2d", "4k", "1", "baseline", "10.0000", "10.00", "-", "1.00", "-", "-", "-", "-"]);
    }
}
