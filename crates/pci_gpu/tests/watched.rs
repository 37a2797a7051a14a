//! The driver's test suite where every store into VRAM is noticed: nothing that the driver does there is what a trap cannot do.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod pass_through;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;
    use vfio_user::wire;

    use crate::pass_through::{Asks, serve_asking};

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        let asks = Asks { watches_all: true, ..Asks::to_watch(wire::WATCH_DECODE) };
        let (gpu, served) = serve_asking(vram_bytes, lend, true, asks);
        assert_eq!(served.watches_all(), cfg!(target_arch = "x86_64"));
        Arc::new(gpu)
    }
}

#[path = "../../gpu_driver/tests/software_gpu/suite.rs"]
mod suite;
