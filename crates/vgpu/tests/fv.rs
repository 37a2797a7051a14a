//! The driver's test suite in a guest whose BAR1 is mapped, and whose tables are followed when they are used.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod guest;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        crate::guest::gpu(vgpu::Scheme::Fv, vram_bytes, lend)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
