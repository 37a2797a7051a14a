//! The driver's test suite where every store into VRAM is noticed: nothing that the driver does there is what a trap cannot do.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;
mod traps;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;
    use vfio_user::wire;

    use crate::pass_through::serve_asking;
    use crate::traps::asks;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        let (asks, told) = asks(wire::WATCH_DECODE, |trap, pages| {
            trap.protect(&(0..pages).collect::<Vec<_>>()).unwrap();
        });
        let (gpu, _served) = serve_asking(vram_bytes, lend, true, asks);
        assert_eq!(told.lock().unwrap().is_some(), cfg!(target_arch = "x86_64"));
        Arc::new(gpu)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
