//! `sundial usage`: who has had how much.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use super::store::{HOUR, Rows, Store};
use super::{Report, TenantUsage, seconds, table};
use crate::admin::{self, AdminRequest};
use crate::config::Config;
use crate::runtime_directory::RuntimeDirectory;

/// What `sundial usage` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// From when on, in whole hours: 2h, 7d (before now), or 2026-11-22, 2026-11-22T13:00:00Z. Without it: all that is known.
    #[arg(long, value_parser = when)]
    since: Option<SystemTime>,
    /// For programs.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// For spreadsheets: a line for each tenant.
    #[arg(long)]
    csv: bool,
    /// Where the daemon's policy file is: without a daemon, it says where usage is kept.
    #[arg(long)]
    config: Option<std::path::PathBuf>,
}

/// A time as people write it.
fn when(text: &str) -> Result<SystemTime, String> {
    let bad = || format!("`{text}` is no time; write it as 2h, 7d, 2026-11-22 or 2026-11-22T13:00:00Z");
    if let Ok(before) = humantime::parse_duration(text) {
        return SystemTime::now().checked_sub(before).ok_or_else(bad);
    }
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    humantime::parse_rfc3339_weak(&whole).map_err(|_| bad())
}

impl Report {
    /// From rows.
    pub(crate) fn of(rows: &Rows, since: Option<u64>, kept: Result<(), Option<String>>, rows_merged: u64) -> Report {
        let (tenants, time) = rows.sums();
        let (kept, reason) = match kept {
            Ok(()) => (true, None),
            Err(reason) => (false, reason),
        };
        Report {
            tenants: tenants.iter().map(|((tenant, user), meters)| TenantUsage::new(tenant, *user, meters)).collect(),
            idle_seconds: seconds(time.idle_ns),
            overhead_seconds: seconds(time.overhead_ns),
            wall_seconds: seconds(time.wall_ns),
            since_unix_seconds: since.map(|since| since / HOUR * HOUR),
            kept,
            reason,
            unwritten_seconds: None,
            rows_merged,
        }
    }
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let since = args.since.map(|when| when.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs());
    let report = report(args, since)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else if args.csv {
        let mut lines = csv::Writer::from_writer(out);
        report.tenants.iter().try_for_each(|tenant| lines.serialize(tenant))?;
        lines.flush()?;
    } else {
        out.write_all(table::table(&report).as_bytes())?;
    }
    Ok(())
}

/// From the daemon, which alone knows the last seconds and has the database; without one from the database.
fn report(args: &Args, since: Option<u64>) -> Result<Report> {
    let directory = RuntimeDirectory::find()?;
    if let Ok(socket) = admin::connect(&directory) {
        return admin::fetch(&socket, &AdminRequest::Usage { since });
    }
    let config = Config::load(args.config.as_deref())?;
    let Some(folder) = config.usage.folder() else { bail!("no daemon is running, and usage is not kept here") };
    let store = Store::existing(&folder).with_context(|| format!("in {}", folder.display()))?;
    let Some(store) = store else {
        bail!(
            "no daemon is running in {}, and none has kept anything in {}",
            directory.path().display(),
            folder.display()
        );
    };
    let rows = store.read(since.unwrap_or(0) / HOUR)?;
    Ok(Report::of(&rows, since, Ok(()), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let date = UNIX_EPOCH + Duration::from_secs(1_795_305_600);
        assert_eq!(when("2026-11-22"), Ok(date));
        assert_eq!(when("2026-11-22T01:00:00Z"), Ok(date + Duration::from_secs(HOUR)));
        let before = SystemTime::now();
        let two = Duration::from_secs(2 * HOUR);
        assert!(when("2h").is_ok_and(|when| when >= before - two && when <= SystemTime::now() - two));
        assert!(when("7d").is_ok());
        for bad in ["", "yesterday", "2026-13-01", "-2h", "2"] {
            assert!(when(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_report_has_lines_for_spreadsheets() {
        let mut rows = Rows::default();
        rows.add((1, 7, "a,\"b".into()), &tenancy::metering::Meters { kernels: 3, ..Default::default() });
        let report = Report::of(&rows, Some(2 * HOUR + 5), Err(None), 0);
        assert_eq!(report.since_unix_seconds, Some(2 * HOUR));
        let mut lines = csv::Writer::from_writer(Vec::new());
        lines.serialize(&report.tenants[0]).unwrap();
        let text = String::from_utf8(lines.into_inner().unwrap()).unwrap();
        let found: Vec<&str> = text.lines().collect();
        assert!(
            found[0].starts_with("tenant,user,gpu_seconds,memory_byte_seconds,")
                && found[1].starts_with("\"a,\"\"b\",7,"),
            "{text}"
        );
    }
}
