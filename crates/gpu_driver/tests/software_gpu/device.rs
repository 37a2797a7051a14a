//! The software GPU.

use std::sync::Arc;

use device_io::DeviceBacking;
use softgpu::{Config, SoftGpu};

/// One with `vram_bytes` of VRAM; with `lend`, those who ring its doorbells do the work.
pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
    SoftGpu::new(&Config { vram_bytes, workers: 2, lend, ..Config::default() }).unwrap()
}
