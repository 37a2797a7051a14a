//! The driver's test suite over a vfio-user socket, where every access is a message.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        Arc::new(crate::pass_through::serve(vram_bytes, lend, false).0)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
