//! What is shown: a live table, and what came of it all.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

/// The live table, redrawn in place on a terminal; plain lines elsewhere.
pub(super) struct View {
    terminal: bool,
    json: bool,
    /// There are guests among the tenants: a column says who is what, another what mediation takes.
    guests: bool,
    lines: usize,
    counted: BTreeMap<(String, &'static str), (f64, Instant)>,
}

impl View {
    pub(super) fn new(json: bool, guests: bool) -> View {
        let terminal = !json && std::io::stdout().is_terminal();
        View { terminal, json, guests, lines: 0, counted: BTreeMap::new() }
    }

    /// How many of something there were per second since the last look; a dash where nobody counts them.
    fn rate(&mut self, tenant: &str, row: &Value, what: &'static str) -> String {
        let Some(count) = row[what].as_f64() else { return "-".into() };
        let now = (count, Instant::now());
        let before = self.counted.insert((tenant.to_owned(), what), now).unwrap_or(now);
        let seconds = (now.1 - before.1).as_secs_f64();
        let rate = if seconds > 0.0 { (now.0 - before.0).max(0.0) / seconds } else { 0.0 };
        format!("{rate:.0}")
    }

    fn row(&mut self, name: &str, row: &Value) -> String {
        let number = |key: &str| row[key].as_f64();
        let mib =
            |key: &str| number(key).map_or_else(|| "-".into(), |bytes| format!("{:.0}", bytes / f64::from(1 << 20)));
        let share = match (number("share_entitled"), number("share_received")) {
            (Some(entitled), Some(received)) => format!("{entitled:.0} % -> {received:>4.1} %"),
            _ => "-".into(),
        };
        let memory = format!("{:>7} / {:>5} MiB", mib("memory_used"), mib("memory_limit"));
        let kernels = self.rate(name, row, "kernels");
        let mut text = format!("{name:<12} ");
        if self.guests {
            text += &format!("{:<8} ", row["kind"].as_str().unwrap_or("?"));
        }
        text += &format!("{share:>16} {memory:>20} {kernels:>10}  ");
        if self.guests {
            let (traps, hypercalls) = (self.rate(name, row, "traps"), self.rate(name, row, "hypercalls"));
            text += &format!("{traps:>8} {hypercalls:>12}  ");
        }
        text + row["state"].as_str().unwrap_or("?") + "\n"
    }

    pub(super) fn show(&mut self, elapsed: Duration, time: Duration, rows: &BTreeMap<String, Value>) -> Result<()> {
        let mut text = format!("{:<12} ", "tenant");
        if self.guests {
            text += &format!("{:<8} ", "as");
        }
        text += &format!("{:>16} {:>20} {:>10}  ", "share", "memory", "kernels/s");
        if self.guests {
            text += &format!("{:>8} {:>12}  ", "traps/s", "hypercalls/s");
        }
        text += "state\n";
        for (name, row) in rows {
            text += &self.row(name, row);
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
    pub(super) fn say(&mut self, line: &str) -> Result<()> {
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

/// What came of it.
pub(super) fn summary(out: &mut impl Write, result: &Value) -> Result<()> {
    writeln!(out)?;
    for tenant in result["tenants"].as_array().into_iter().flatten() {
        write!(
            out,
            "{:<12} {:<8} {} kernels, results {}",
            tenant["name"].as_str().unwrap_or("?"),
            tenant["kind"].as_str().unwrap_or("?"),
            tenant["kernels"],
            if tenant["verified"] == true { "verified against the CPU" } else { "WRONG" },
        )?;
        if tenant["share_entitled"].is_number() {
            write!(
                out,
                "; share {} % entitled, {} % received; memory {} MiB at most, of {} MiB",
                tenant["share_entitled"],
                tenant["share_received"],
                tenant["memory_peak"].as_u64().unwrap_or(0) >> 20,
                tenant["memory_limit"].as_u64().unwrap_or(0) >> 20,
            )?;
        }
        writeln!(out)?;
        if let Some(error) = tenant["error"].as_str() {
            writeln!(out, "    {error}")?;
        }
    }
    for event in result["events"].as_array().into_iter().flatten() {
        let held = if event["held"] == true { "held" } else { "NOT HELD" };
        writeln!(out, "{held}: {}", event["what"].as_str().unwrap_or("?"))?;
    }
    writeln!(out, "{}", if result["ok"] == true { "Everything held." } else { "NOT everything held." })?;
    Ok(())
}
