//! The driver's test suite in guests whose page tables are compared with each submission.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

#[expect(dead_code, reason = "other suites make guests in other ways")]
mod guest;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;
    use vgpu::{Scheme, Trap};

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        let driver = crate::guest::host(vram_bytes + (96 << 20), lend);
        let host = crate::guest::Host::trapped(&driver, (Scheme::Fv, Trap::Snapshot), vram_bytes);
        Arc::new(crate::guest::guest_of(host))
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
