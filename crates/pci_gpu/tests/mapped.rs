//! The driver's test suite over a vfio-user socket, where the guest maps VRAM and traps on registers alone.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        Arc::new(crate::pass_through::serve(vram_bytes, lend, true).0)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
