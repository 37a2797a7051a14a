//! The page itself.

use std::fmt;

use anyhow::Result;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tenancy::metering::{WAIT_RANGES, Waits};

use crate::usage::{Present, Snapshot, TenantSnapshot, seconds};

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const MIB: f64 = (1 << 20) as f64;

/// The page for a moment.
pub(crate) fn render(snapshot: Snapshot) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(snapshot)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Page(Snapshot);

type Labels = Vec<(&'static str, String)>;

/// A figure of a tenant.
type OfTenant = fn(&TenantSnapshot) -> f64;
/// A figure of a GPU: name, what it is, how much by the GPU's number.
type OfGpu<'a> = (&'a str, &'a str, &'a dyn Fn(usize) -> f64);
/// A figure of a tenant that is there.
type OfPresent = fn(&Present) -> f64;

/// What tenants have had: name (Prometheus adds `_total`), what it is, how much.
const COUNTERS: [(&str, &str, OfTenant); 8] = [
    ("sundial_tenant_gpu_seconds", "GPU time", |t| seconds(t.meters.gpu_ns)),
    ("sundial_tenant_compile_seconds", "Processor time of reading and compiling kernels", |t| {
        seconds(t.meters.compile_ns)
    }),
    ("sundial_tenant_memory_byte_seconds", "GPU memory that it had, times how long", |t| {
        t.meters.memory_byte_ns as f64 / 1e9
    }),
    ("sundial_tenant_memory_reserved_byte_seconds", "GPU memory that it could have had, times how long", |t| {
        t.meters.reserved_byte_ns as f64 / 1e9
    }),
    ("sundial_tenant_copied_in_bytes", "Copied from the host's memory into the GPU's", |t| t.meters.bytes_in as f64),
    ("sundial_tenant_copied_out_bytes", "Copied from the GPU's memory into the host's", |t| t.meters.bytes_out as f64),
    ("sundial_tenant_kernels", "Kernels that have ended", |t| t.meters.kernels as f64),
    ("sundial_tenant_copies", "Copies and fills that have ended", |t| t.meters.copies as f64),
];

const GAUGES: [(&str, &str, OfPresent); 8] = [
    ("sundial_tenant_sessions", "Sessions, or guests", |p| f64::from(p.sessions)),
    ("sundial_tenant_memory_used_bytes", "GPU memory", |p| p.memory_used as f64),
    ("sundial_tenant_memory_limit_bytes", "GPU memory that it may have", |p| p.memory_limit as f64),
    ("sundial_tenant_host_memory_used_bytes", "Memory of the host", |p| p.host_used as f64),
    ("sundial_tenant_host_memory_limit_bytes", "Memory of the host that it may have", |p| p.host_limit as f64),
    ("sundial_tenant_share_entitled_ratio", "Share of GPU time while others want it, too", |p| {
        p.share_entitled / 100.0
    }),
    ("sundial_tenant_share_received_ratio", "Part of GPU time in the last seconds", |p| p.share_received / 100.0),
    ("sundial_tenant_running", "Whether it has work", |p| f64::from(u8::from(p.running))),
];

impl Collector for Page {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        self.devices(&mut to)?;
        for (name, help, value) in COUNTERS {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for tenant in &self.0.tenants {
                count(metric.encode_family(&labels(tenant))?, value(tenant))?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for tenant in &self.0.tenants {
                if let Some(present) = &tenant.present {
                    metric.encode_family(&labels(tenant))?.encode_gauge(&value(present))?;
                }
            }
        }
        let help = "What kernels and copies have waited for the GPU when nothing else held them";
        let mut metric =
            to.encode_descriptor("sundial_tenant_queue_wait_seconds", help, None, MetricType::Histogram)?;
        for tenant in &self.0.tenants {
            let waits = &tenant.meters.waits;
            let end = |range| Waits::end_us(range).map_or(f64::MAX, |us| us as f64 / 1e6);
            let buckets: [(f64, u64); WAIT_RANGES] = std::array::from_fn(|range| (end(range), waits.counts[range]));
            metric.encode_family(&labels(tenant))?.encode_histogram::<NoLabelSet>(
                seconds(waits.sum_ns),
                waits.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

impl Page {
    /// The figures of GPUs, and of the daemon.
    fn devices(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot { gpus, rows_merged, kept, scheduler, .. } = &self.0;
        let labels =
            |number: usize| -> Labels { vec![("gpu", number.to_string()), ("modelName", escaped(&gpus[number].name))] };
        let used = |number| self.0.memory_used(number) as f64 / MIB;
        let all = |number: usize| gpus[number].memory_bytes as f64 / MIB;
        let busy = |number| self.0.present_on(number).map(|p| p.share_received).sum::<f64>().clamp(0.0, 100.0);
        let gauges: [OfGpu<'_>; 6] = [
            ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used, MiB: what is charged to tenants", &used),
            ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free, MiB", &|gpu| (all(gpu) - used(gpu)).max(0.0)),
            ("DCGM_FI_DEV_FB_TOTAL", "Framebuffer memory, MiB", &all),
            ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization in the last seconds, percent", &busy),
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "The same as a ratio", &|gpu| busy(gpu) / 100.0),
            ("sundial_gpu_memory_bytes", "GPU memory", &|gpu| gpus[gpu].memory_bytes as f64),
        ];
        for (name, help, value) in gauges {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for gpu in 0..gpus.len() {
                metric.encode_family(&labels(gpu))?.encode_gauge(&value(gpu))?;
            }
        }
        let counters: [OfGpu<'_>; 4] = [
            ("sundial_gpu_idle_seconds", "The GPU had nothing to do", &|gpu| seconds(gpus[gpu].time.idle_ns)),
            ("sundial_gpu_overhead_seconds", "It had, and did nothing for anybody", &|gpu| {
                seconds(gpus[gpu].time.overhead_ns)
            }),
            ("sundial_gpu_wall_seconds", "All time that it was there", &|gpu| seconds(gpus[gpu].time.wall_ns)),
            ("sundial_device_process_deaths", "Ends of the process that owns the GPU", &|gpu| {
                gpus[gpu].device_deaths as f64
            }),
        ];
        for (name, help, value) in counters {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for gpu in 0..gpus.len() {
                count(metric.encode_family(&labels(gpu))?, value(gpu))?;
            }
        }
        let help = "Whether what tenants use is kept over restarts";
        let kept = f64::from(u8::from(*kept));
        to.encode_descriptor("sundial_usage_kept", help, None, MetricType::Gauge)?.encode_gauge(&kept)?;
        let help = "Tenants whose use was added to (others)";
        let metric = to.encode_descriptor("sundial_usage_rows_merged", help, None, MetricType::Counter)?;
        count(metric, *rows_merged as f64)?;
        let info: Labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("scheduler", escaped(scheduler))];
        let mut metric = to.encode_descriptor("sundial_build", "What serves here", None, MetricType::Info)?;
        metric.encode_info(&info)
    }
}

fn count(mut metric: MetricEncoder<'_>, value: f64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)
}

fn labels(tenant: &TenantSnapshot) -> Labels {
    vec![("tenant", escaped(&tenant.tenant)), ("user", tenant.user.to_string()), ("gpu", tenant.gpu.to_string())]
}

/// A label's value as it stands between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tenancy::metering::{GpuTime, Meters};

    use super::*;
    use crate::usage::GpuSnapshot;

    fn page() -> String {
        let mut waits = Waits { sum_ns: 3_500_000, ..Waits::default() };
        (waits.counts[0], waits.counts[2], waits.counts[31]) = (1, 2, 1);
        let meters = Meters { gpu_ns: 1_500_000_000, kernels: 3, bytes_in: 1 << 40, waits, ..Meters::default() };
        let present =
            Present { memory_used: 1 << 30, memory_limit: 2 << 30, share_received: 50.0, ..Present::default() };
        let tenant =
            |tenant: &str, gpu, present| TenantSnapshot { tenant: tenant.into(), user: 1000, gpu, meters, present };
        let time = GpuTime { idle_ns: 10, overhead_ns: 5, wall_ns: 1_000_000_000 };
        let gpu = |name: &str, memory_bytes| GpuSnapshot { name: name.into(), memory_bytes, time, device_deaths: 0 };
        let tenants = vec![
            tenant("one", 0, Some(present.clone())),
            tenant("one", 1, Some(Present { memory_used: 1 << 20, ..present })),
            tenant("a\"} 1\nb{\\", 0, None),
        ];
        render(Snapshot {
            gpus: vec![gpu("a \"GPU\"\n\\", 4 << 30), gpu("other", 1 << 30)],
            tenants,
            ..Snapshot::default()
        })
        .unwrap()
    }

    #[test]
    fn figures_have_their_names_and_units() {
        let text = page();
        for line in [
            "sundial_tenant_gpu_seconds_total{tenant=\"one\",user=\"1000\",gpu=\"0\"} 1.5",
            "sundial_tenant_kernels_total{tenant=\"one\",user=\"1000\",gpu=\"0\"} 3.0",
            "sundial_tenant_memory_used_bytes{tenant=\"one\",user=\"1000\",gpu=\"0\"} 1073741824.0",
            "sundial_tenant_queue_wait_seconds_bucket{le=\"0.000001\",tenant=\"one\",user=\"1000\",gpu=\"0\"} 1",
            "sundial_tenant_queue_wait_seconds_bucket{le=\"0.000004\",tenant=\"one\",user=\"1000\",gpu=\"0\"} 3",
            "sundial_tenant_queue_wait_seconds_bucket{le=\"+Inf\",tenant=\"one\",user=\"1000\",gpu=\"0\"} 4",
            "sundial_tenant_queue_wait_seconds_sum{tenant=\"one\",user=\"1000\",gpu=\"0\"} 0.0035",
            "DCGM_FI_DEV_FB_USED{gpu=\"0\",modelName=\"a \\\"GPU\\\"\\n\\\\\"} 1024.0",
            "DCGM_FI_DEV_FB_FREE{gpu=\"0\",modelName=\"a \\\"GPU\\\"\\n\\\\\"} 3072.0",
            "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",modelName=\"a \\\"GPU\\\"\\n\\\\\"} 50.0",
            "sundial_gpu_wall_seconds_total{gpu=\"0\",modelName=\"a \\\"GPU\\\"\\n\\\\\"} 1.0",
            "DCGM_FI_DEV_FB_USED{gpu=\"1\",modelName=\"other\"} 1.0",
            "sundial_tenant_memory_used_bytes{tenant=\"one\",user=\"1000\",gpu=\"1\"} 1048576.0",
            "sundial_usage_kept 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("sundial_tenant_memory_used_bytes{tenant=\"a"), "it has left");
    }

    /// As a strict reader sees it: one type for each name, before its lines; label values escaped; the end said.
    #[test]
    fn every_line_is_understood() {
        let text = page();
        assert!(text.ends_with("# EOF\n"));
        let (mut types, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else if !line.starts_with('#') {
                assert!(seen.insert(line.to_owned()), "twice: {line}");
                // What is of no GPU and no tenant has no labels.
                let plain = line.split_once(' ').filter(|(name, _)| !name.contains('{'));
                let (name, rest) = line.split_once('{').or(plain).unwrap();
                let base =
                    ["_total", "_bucket", "_sum", "_count", "_info"].iter().find_map(|end| name.strip_suffix(end));
                assert!(types.contains_key(name) || base.is_some_and(|base| types.contains_key(base)), "{line}");
                // Outside of quotes there is one closing brace, and a number behind it.
                let (mut quoted, mut escape, mut end) = (false, false, None);
                for (at, c) in rest.char_indices() {
                    match c {
                        _ if escape => escape = false,
                        '\\' if quoted => escape = true,
                        '"' => quoted = !quoted,
                        '}' if !quoted => end = end.or(Some(at)),
                        _ => {}
                    }
                }
                let value = if plain.is_some() { rest } else { &rest[end.unwrap() + 1..] };
                assert!(value.trim().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert_eq!(types["sundial_tenant_queue_wait_seconds"], "histogram");
    }
}
