//! The GPUs of a process: the one place that knows how many there are, and which is which.
//!
//! Below it everything is of one GPU ([`GpuCore`]), or of the process ([`Memories`]).

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use gpu::{Gpu, Properties};

use crate::context::primary::Primary;
use crate::context_core::GpuCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;
use crate::handle::Device;
use crate::memory::addresses::Space;
use crate::memory::memories::Memories;
use crate::memory::pool::Pools;
use crate::values::HostServices;
use crate::work::copy_lines::Staging;

/// A GPU as programs see it: a device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) core: Arc<GpuCore>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) staging: Staging,
    pub(crate) primary: Primary,
}

impl DeviceState {
    pub(crate) fn properties(&self) -> &Properties {
        self.core.link.properties()
    }
}

/// All devices, by ordinal.
#[derive(Debug)]
pub(crate) struct Devices(Vec<DeviceState>);

impl Devices {
    /// Devices over GPUs, in this order, and the memory of all of them.
    pub(crate) fn new(gpus: Vec<Arc<dyn Gpu>>, host: HostServices) -> (Devices, Arc<Memories>) {
        let space = Arc::new(Space::new(gpus.len()));
        let ids = Arc::new(AtomicU32::new(1));
        let device = |(ordinal, gpu)| {
            let link = Arc::new(GpuLink::new(gpu, &ids));
            let core = Arc::new(GpuCore::new(&link, ordinal, &space, host));
            DeviceState {
                pools: Pools::new(&link, &core.memory, &core.slots),
                staging: Staging::default(),
                primary: Primary::new(),
                core,
            }
        };
        let all: Vec<DeviceState> = (0..).zip(gpus).map(device).collect();
        let memories = all.iter().map(|device| Arc::clone(&device.core.memory)).collect();
        (Devices(all), Arc::new(Memories::new(&space, memories)))
    }

    pub(crate) fn all(&self) -> &[DeviceState] {
        &self.0
    }

    /// Refuses once there is no device to ask.
    ///
    /// # Errors
    /// `NO_DEVICE` if there never was one; `DEINITIALIZED` after the end; `DEVICE_UNAVAILABLE` if all are lost.
    pub(crate) fn usable(&self) -> Result<()> {
        let (first, others) = self.0.split_first().ok_or(CudaError::NO_DEVICE)?;
        let usable = |device: &DeviceState| device.core.link.usable();
        usable(first)
            .or_else(|error| if others.iter().any(|other| usable(other).is_ok()) { Ok(()) } else { Err(error) })
    }

    /// # Errors
    /// `INVALID_DEVICE` if there is none with this ordinal; `DEVICE_UNAVAILABLE` if it is lost.
    pub(crate) fn get(&self, device: Device) -> Result<&DeviceState> {
        let at = usize::try_from(device.0).map_err(|_| CudaError::INVALID_DEVICE)?;
        let found = self.0.get(at).ok_or(CudaError::INVALID_DEVICE)?;
        found.core.link.usable()?;
        Ok(found)
    }

    /// The device of a GPU.
    pub(crate) fn of(&self, gpu: &GpuCore) -> &DeviceState {
        &self.0[gpu.ordinal as usize]
    }

    /// The compute capability that all of them have.
    pub(crate) fn least_capability(&self) -> [u32; 2] {
        self.0.iter().map(|device| device.properties().compute_capability).min().unwrap_or([0, 0])
    }
}
