//! The driver's test suite in guests of whose tables nothing is announced: each store into them traps, or all are compared with
//! each submission.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

#[expect(dead_code, reason = "other suites make guests in other ways")]
mod guest;

mod device {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use device_io::DeviceBacking;
    use gmmu::{Policy, Shadowing};
    use vgpu::{Scheme, Shadowed, Trap};

    /// The one way and the other, in turn.
    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let strict = Policy { shadowing: Shadowing::Strict, ..Policy::default() };
        let ways = [
            Shadowed { policy: strict, trap: Trap::Bar },
            Shadowed { policy: Policy::default(), trap: Trap::Snapshot },
        ];
        let way = ways[MADE.fetch_add(1, Ordering::Relaxed) as usize % ways.len()];
        let host = crate::guest::Host::shadowed(
            &crate::guest::host(vram_bytes + (96 << 20), lend),
            (Scheme::Fv, way),
            vram_bytes,
        );
        Arc::new(crate::guest::guest_of(host))
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
