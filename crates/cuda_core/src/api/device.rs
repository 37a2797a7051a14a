//! Devices: what programs ask about them.

use crate::device_attributes;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Device;
use crate::values::DeviceProperties;

/// Numbers of `CUatomicOperation`.
const ATOMIC_OPERATIONS: u32 = 13;

impl Driver {
    /// Driver version, as 13050.
    #[must_use]
    pub fn driver_get_version(&self) -> i32 {
        self.devices.all().first().map_or(0, |device| device.properties().driver_version as i32)
    }

    /// The device of an ordinal.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for ordinals of no device.
    pub fn device_get(&self, ordinal: i32) -> Result<Device> {
        self.device(Device(ordinal))?;
        Ok(Device(ordinal))
    }

    /// Number of devices.
    ///
    /// # Errors
    /// `NOT_INITIALIZED`.
    pub fn device_get_count(&self) -> Result<i32> {
        self.ready()?;
        Ok(self.memory.count() as i32)
    }

    /// Product name.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_name(&self, device: Device) -> Result<&str> {
        Ok(&self.device(device)?.properties().name)
    }

    /// Bytes of memory: the client's limit.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_total_mem(&self, device: Device) -> Result<u64> {
        Ok(self.device(device)?.properties().memory_bytes)
    }

    /// UUID.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_uuid(&self, device: Device) -> Result<[u8; 16]> {
        Ok(self.device(device)?.properties().uuid)
    }

    /// LUID and node mask: exist on Windows only.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, `INVALID_DEVICE`.
    pub fn device_get_luid(&self, device: Device) -> Result<([u8; 8], u32)> {
        self.device(device)?;
        Err(CudaError::NOT_SUPPORTED)
    }

    /// An attribute by `CUdevice_attribute` number.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown numbers, `INVALID_DEVICE`.
    pub fn device_get_attribute(&self, attribute: i32, device: Device) -> Result<i32> {
        let device = self.device(device)?;
        if device_attributes::DESCRIPTORS.contains(&attribute) {
            // What `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` is, too.
            return Ok(device.core.link.gpu().shows_memory().into());
        }
        device_attributes::value(attribute, device.properties()).ok_or(CudaError::INVALID_VALUE)
    }

    /// Major and minor compute capability.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_compute_capability(&self, device: Device) -> Result<(i32, i32)> {
        let [major, minor] = self.device(device)?.properties().compute_capability;
        Ok((major as i32, minor as i32))
    }

    /// The properties of `cuDeviceGetProperties`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_properties(&self, device: Device) -> Result<DeviceProperties> {
        let get = |attribute| self.device_get_attribute(attribute, device);
        Ok(DeviceProperties {
            max_threads_per_block: get(1)?,
            max_threads_dim: [get(2)?, get(3)?, get(4)?],
            max_grid_size: [get(5)?, get(6)?, get(7)?],
            shared_mem_per_block: get(8)?,
            total_constant_memory: get(9)?,
            simd_width: get(10)?,
            mem_pitch: get(11)?,
            regs_per_block: get(12)?,
            clock_rate: get(13)?,
            texture_align: get(14)?,
        })
    }

    /// `domain:bus:device.function`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_pci_bus_id(&self, device: Device) -> Result<String> {
        let [domain, bus, slot] = self.device(device)?.properties().pci;
        Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
    }

    /// The device at a PCI address: `domain:bus:device.function`, domain and function may be missing.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no address, `INVALID_DEVICE` if there is none of ours.
    pub fn device_get_by_pci_bus_id(&self, id: &str) -> Result<Device> {
        self.ready()?;
        let (address, function) = id.split_once('.').unwrap_or((id, "0"));
        let fields: Vec<&str> = address.split(':').collect();
        let number = |text: &str| u32::from_str_radix(text, 16).map_err(|_| CudaError::INVALID_VALUE);
        let (domain, bus, slot) = match fields[..] {
            [bus, slot] => (0, number(bus)?, number(slot)?),
            [domain, bus, slot] => (number(domain)?, number(bus)?, number(slot)?),
            _ => return Err(CudaError::INVALID_VALUE),
        };
        let function = number(function)?;
        let mut ordinals = (0..).zip(self.devices.all());
        let found = ordinals.find(|(_, device)| device.properties().pci == [domain, bus, slot] && function == 0);
        found.map(|(ordinal, _)| Device(ordinal)).ok_or(CudaError::INVALID_DEVICE)
    }

    /// Whether an execution affinity type is supported: none is.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for unknown types.
    pub fn device_get_exec_affinity_support(&self, kind: i32, device: Device) -> Result<bool> {
        self.device(device)?;
        if kind == 0 { Ok(false) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Elements of the widest linear texture, for elements of so many bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for elements of 0 bytes.
    pub fn device_get_texture_1d_linear_max_width(&self, element_bytes: u32, device: Device) -> Result<u64> {
        let properties = self.device(device)?.properties();
        let most = device_attributes::value(69, properties).unwrap_or(0) as u64;
        if element_bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(most.min(properties.memory_bytes / u64::from(element_bytes)))
    }

    /// Whether kernels of one device may access another's memory: they cannot. Copies between them go through the host.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        self.device(device)?;
        self.device(peer)?;
        Ok(false)
    }

    /// A `CUdevice_P2PAttribute` of the link between two devices: there is no such link, so all of them are 0.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, also if both are the same; `INVALID_VALUE` for unknown attributes.
    pub fn device_get_p2p_attribute(&self, attribute: i32, src: Device, dst: Device) -> Result<i32> {
        self.device(src)?;
        self.device(dst)?;
        if src == dst {
            return Err(CudaError::INVALID_DEVICE);
        }
        // Performance rank, access, native atomics, access to arrays, some native atomics.
        if (1..=5).contains(&attribute) { Ok(0) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Which atomic operations the link between a device and the host does natively, as bits of `CUatomicOperationCapability`: none.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_VALUE` for an unknown operation.
    pub fn device_get_host_atomic_capabilities(&self, operation: u32, device: Device) -> Result<u32> {
        self.device(device)?;
        if operation < ATOMIC_OPERATIONS { Ok(0) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// The same of the link between two devices: there is none.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, also if both are the same; `INVALID_VALUE` for an unknown operation.
    pub fn device_get_p2p_atomic_capabilities(&self, operation: u32, src: Device, dst: Device) -> Result<u32> {
        self.device(src)?;
        self.device(dst)?;
        if src == dst {
            return Err(CudaError::INVALID_DEVICE);
        }
        if operation < ATOMIC_OPERATIONS { Ok(0) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// A `CUgraphMem_attribute`: memory that graphs use, the most of it, memory reserved for them, the most of it, bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for unknown attributes.
    pub fn device_get_graph_mem_attribute(&self, device: Device, attribute: u32) -> Result<u64> {
        self.device(device)?.core.memory.graph_attribute(attribute)
    }

    /// Sets a `CUgraphMem_attribute`. The most can be set, to 0 only: that makes it what is used now.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE`.
    pub fn device_set_graph_mem_attribute(&self, device: Device, attribute: u32, value: u64) -> Result<()> {
        self.device(device)?.core.memory.graph_set_attribute(attribute, value)
    }

    /// Gives memory back that graphs have allocated, if it is free and no launch uses it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_graph_mem_trim(&self, device: Device) -> Result<()> {
        self.device(device)?.core.memory.graph_trim();
        Ok(())
    }
}
