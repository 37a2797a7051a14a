//! What tenants use, as it goes from the device process, which reads it ([`crate::device`]), to the control process, which keeps
//! it ([`crate::control`]), and on to `sundial usage`, `sundial top` and `/metrics`.
//!
//! What each figure means stands in [`tenancy::metering`].

pub(crate) mod command;
pub(crate) mod store;
mod table;

use serde::{Deserialize, Serialize};
use tenancy::metering::{GpuTime, Meters, Waits};

use crate::quota::Spender;

/// What a tenant is doing at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Present {
    /// Sessions, or guests.
    pub(crate) sessions: u32,
    /// It is a virtual GPU.
    pub(crate) vgpu: bool,
    /// GPU memory charged to it, and how much may be, bytes.
    pub(crate) memory_used: u64,
    pub(crate) memory_limit: u64,
    /// Memory of the host, likewise.
    pub(crate) host_used: u64,
    pub(crate) host_limit: u64,
    /// Share of GPU time while others want it, percent.
    pub(crate) share_entitled: f64,
    /// Part of GPU time in the last seconds, percent.
    pub(crate) share_received: f64,
    /// It has work.
    pub(crate) running: bool,
}

/// What the device process says of a tenant when it is asked: what it has had since it was asked last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeteredRow {
    pub(crate) tenant: String,
    /// Whose it is, with its profile.
    pub(crate) spender: Spender,
    pub(crate) meters: Meters,
    /// `None` if it is gone.
    pub(crate) present: Option<Present>,
}

/// The answer of `sundial usage`, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) tenants: Vec<TenantUsage>,
    /// The GPU had nothing to do; of several, all of them together, as in what follows.
    pub(crate) idle_seconds: f64,
    /// The GPU had something to do, and did nothing for anybody.
    pub(crate) overhead_seconds: f64,
    /// All time that it was there.
    pub(crate) wall_seconds: f64,
    /// Since when, seconds since 1970: the beginning of the hour of what was asked for; `None`: of all that is known.
    pub(crate) since_unix_seconds: Option<u64>,
    /// Whether it is kept over restarts.
    pub(crate) kept: bool,
    /// Why not, if it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// What was used in so many seconds before this is not written yet, and lost if the daemon is killed now.
    #[serde(default)]
    pub(crate) unwritten_seconds: Option<f64>,
    /// How often somebody's use was added to `(others)`, because an hour had too many tenants, since the daemon started.
    #[serde(default)]
    pub(crate) rows_merged: u64,
}

/// A tenant in a [`Report`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TenantUsage {
    pub(crate) tenant: String,
    pub(crate) user: u32,
    pub(crate) gpu_seconds: f64,
    /// Of GPU memory that it had.
    pub(crate) memory_byte_seconds: f64,
    /// Of what it could have had.
    pub(crate) memory_reserved_byte_seconds: f64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) kernels: u64,
    pub(crate) copies: u64,
    pub(crate) compile_seconds: f64,
    pub(crate) wait_seconds: f64,
    pub(crate) wait_p50_us: f64,
    pub(crate) wait_p99_us: f64,
}

/// Nanoseconds in seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl TenantUsage {
    pub(crate) fn new(tenant: &str, user: u32, meters: &Meters) -> TenantUsage {
        let Meters { gpu_ns, compile_ns, memory_byte_ns, reserved_byte_ns, waits, .. } = *meters;
        let Waits { sum_ns, .. } = waits;
        TenantUsage {
            tenant: tenant.to_owned(),
            user,
            gpu_seconds: seconds(gpu_ns),
            memory_byte_seconds: memory_byte_ns as f64 / 1e9,
            memory_reserved_byte_seconds: reserved_byte_ns as f64 / 1e9,
            bytes_in: meters.bytes_in,
            bytes_out: meters.bytes_out,
            kernels: meters.kernels,
            copies: meters.copies,
            compile_seconds: seconds(compile_ns),
            wait_seconds: seconds(sum_ns),
            wait_p50_us: waits.quantile_us(0.5),
            wait_p99_us: waits.quantile_us(0.99),
        }
    }
}

/// All that is known at a moment, for `top` and `/metrics`: what has been used since the daemon started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// By number.
    pub(crate) gpus: Vec<GpuSnapshot>,
    /// When that is, seconds since the daemon started.
    pub(crate) at_seconds: f64,
    /// Of one that is on several GPUs, one for each.
    pub(crate) tenants: Vec<TenantSnapshot>,
    pub(crate) scheduler: String,
    pub(crate) rows_merged: u64,
    pub(crate) kept: bool,
}

/// A GPU in a [`Snapshot`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GpuSnapshot {
    /// Product name; empty while it is not known, since its process is being started anew.
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) time: GpuTime,
    pub(crate) device_deaths: u64,
}

/// A tenant in a [`Snapshot`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TenantSnapshot {
    pub(crate) tenant: String,
    pub(crate) user: u32,
    /// Number of the GPU on which that was used.
    pub(crate) gpu: usize,
    pub(crate) meters: Meters,
    /// `None` of one that has left a short time ago.
    pub(crate) present: Option<Present>,
}

impl Snapshot {
    /// What those are doing who are on a GPU.
    pub(crate) fn present_on(&self, gpu: usize) -> impl Iterator<Item = &Present> {
        self.tenants.iter().filter(move |tenant| tenant.gpu == gpu).filter_map(|tenant| tenant.present.as_ref())
    }

    /// Memory of a GPU charged to tenants, bytes.
    pub(crate) fn memory_used(&self, gpu: usize) -> u64 {
        self.present_on(gpu).map(|present| present.memory_used).sum()
    }
}
