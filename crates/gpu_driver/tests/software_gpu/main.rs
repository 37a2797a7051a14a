//! The driver on the software GPU.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod aperture;
mod books;
mod device;
mod host_costs;
mod metering;
mod readiness;
#[path = "suite.rs"]
mod suite;
