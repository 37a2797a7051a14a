//! The driver's test suite in guests whose stores into page tables are told one by one, and followed so.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

#[expect(dead_code, reason = "other suites make guests in other ways")]
mod guest;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;
    use gmmu::{Policy, Rebuild, Shadowing};
    use vgpu::{Scheme, Trap, Watching};
    use write_trap::Kind;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        let driver = crate::guest::host(vram_bytes + (96 << 20), lend);
        let trap = Trap::Watched(Kind::Decode);
        let policy = Policy { shadowing: Shadowing::Strict, rebuild: Rebuild::Segmented };
        let watching = Watching { policy, ..trap.into() };
        let host = crate::guest::Host::trapped(&driver, (Scheme::Fv, watching), vram_bytes);
        Arc::new(crate::guest::guest_of(host))
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
