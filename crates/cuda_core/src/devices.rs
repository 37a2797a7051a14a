//! The GPUs of a process: the one place that knows how many there are, and which is which.
//!
//! Below it everything is of one GPU ([`GpuCore`]), or of the process ([`Memories`]).

use std::sync::Arc;

use gpu::{Gpu, Properties};

use crate::context::primary::Primary;
use crate::context_core::GpuCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::{Common, GpuLink};
use crate::handle::Device;
use crate::memory::addresses::Space;
use crate::memory::descriptors::LentMemory;
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
pub(crate) struct Devices {
    all: Vec<DeviceState>,
    common: Arc<Common>,
}

impl Devices {
    /// Devices over GPUs, in this order, and the memory of all of them.
    pub(crate) fn new(gpus: Vec<Arc<dyn Gpu>>, host: HostServices) -> (Devices, Arc<Memories>) {
        let space = Arc::new(Space::new(gpus.len()));
        let lent = Arc::<LentMemory>::default();
        let common = Common::new(u32::try_from(gpus.len()).unwrap_or(u32::MAX));
        let device = |(ordinal, gpu)| {
            let link = Arc::new(GpuLink::new(gpu, &common));
            let core = Arc::new(GpuCore::new(&link, ordinal, &space, host));
            DeviceState {
                pools: Pools::new(&link, &core.memory, &core.slots, &lent),
                staging: Staging::default(),
                primary: Primary::new(),
                core,
            }
        };
        let all: Vec<DeviceState> = (0..).zip(gpus).map(device).collect();
        let memories = all.iter().map(|device| Arc::clone(&device.core.memory)).collect();
        (Devices { all, common }, Arc::new(Memories::new(&space, memories, lent)))
    }

    pub(crate) fn all(&self) -> &[DeviceState] {
        &self.all
    }

    /// Refuses once there is no device to ask: one load, as long as there is.
    ///
    /// # Errors
    /// `NO_DEVICE` if there never was one; `DEINITIALIZED` after the end; `DEVICE_UNAVAILABLE` if all are lost.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.common.any_is_usable() {
            return Ok(());
        }
        self.all.first().map_or(Err(CudaError::NO_DEVICE), |first| first.core.link.usable())
    }

    /// # Errors
    /// `INVALID_DEVICE` if there is none with this ordinal; `DEVICE_UNAVAILABLE` if it is lost.
    pub(crate) fn get(&self, device: Device) -> Result<&DeviceState> {
        let at = usize::try_from(device.0).map_err(|_| CudaError::INVALID_DEVICE)?;
        let found = self.all.get(at).ok_or(CudaError::INVALID_DEVICE)?;
        found.core.link.usable()?;
        Ok(found)
    }

    /// The device of a GPU.
    pub(crate) fn of(&self, gpu: &GpuCore) -> &DeviceState {
        &self.all[gpu.ordinal as usize]
    }

    /// The compute capability that all of them have.
    pub(crate) fn least_capability(&self) -> [u32; 2] {
        self.all.iter().map(|device| device.properties().compute_capability).min().unwrap_or([0, 0])
    }
}
