//! A report for people.

use super::Report;

/// Seconds, in the largest unit that fits.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 60.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 || s == 0.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

/// A number with a unit of powers of 1024.
pub(crate) fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

pub(super) fn table(report: &Report) -> String {
    let mut text = format!(
        "{:<24} {:>6} {:>9} {:>13} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}\n",
        "TENANT", "USER", "GPU", "MEMORY GiB h", "IN", "OUT", "KERNELS", "COMPILING", "WAIT P50", "P99"
    );
    for tenant in &report.tenants {
        text.push_str(&format!(
            "{:<24} {:>6} {:>9} {:>13.3} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}\n",
            tenant.tenant,
            tenant.user,
            duration(tenant.gpu_seconds),
            tenant.memory_byte_seconds / f64::from(1 << 30) / 3600.0,
            bytes(tenant.bytes_in as f64),
            bytes(tenant.bytes_out as f64),
            tenant.kernels,
            duration(tenant.compile_seconds),
            duration(tenant.wait_p50_us / 1e6),
            duration(tenant.wait_p99_us / 1e6),
        ));
    }
    let Report { idle_seconds, overhead_seconds, wall_seconds, .. } = report;
    // Not `sum`, which of nothing is -0.
    let used = report.tenants.iter().fold(0.0, |used, tenant| used + tenant.gpu_seconds);
    text.push_str(&format!(
        "GPU: {} used, {} idle, {} overhead, of {}\n",
        duration(used),
        duration(*idle_seconds),
        duration(*overhead_seconds),
        duration(*wall_seconds)
    ));
    if !report.kept {
        let reason = report.reason.as_deref().unwrap_or("it is not to be");
        text.push_str(&format!("Since the daemon started; not kept over restarts: {reason}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use tenancy::metering::Meters;

    use super::*;
    use crate::usage::TenantUsage;

    #[test]
    fn columns_line_up_and_units_fit() {
        let meters = Meters { gpu_ns: 90_000_000_000, bytes_in: 3 << 30, kernels: 7, ..Meters::default() };
        let report = Report {
            tenants: vec![TenantUsage::new("vectorAdd-4711", 1000, &meters)],
            idle_seconds: 7200.0,
            overhead_seconds: 0.0005,
            wall_seconds: 7290.0,
            since_unix_seconds: None,
            kept: false,
            reason: Some("no room".into()),
            unwritten_seconds: None,
            rows_merged: 0,
        };
        let text = table(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].len(), lines[1].len(), "{text}");
        assert!(lines[1].contains("1.5 min") && lines[1].contains("3.0 GiB"), "{text}");
        assert_eq!(lines[2], "GPU: 1.5 min used, 2.0 h idle, 500.0 us overhead, of 2.0 h");
        assert!(lines[3].ends_with("no room"));
        assert_eq!((bytes(0.0), bytes(1e18)), ("0 B".into(), "888.2 PiB".into()));
    }
}
