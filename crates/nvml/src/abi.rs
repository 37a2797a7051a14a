//! Result codes and structures of the interface, as facts: NVIDIA's `nvml.h`, with which a test compares them.

use std::ffi::c_char;

macro_rules! returns {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// `nvmlReturn_t`: an open enumeration.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        pub struct nvmlReturn_t(pub u32);

        $(#[doc = $text] pub const $name: nvmlReturn_t = nvmlReturn_t($code);)*

        /// Every code with its name, its number and its text.
        pub const RETURNS: &[(&str, u32, &std::ffi::CStr)] = &[$((
            stringify!($name),
            $code,
            // The texts have no zero inside.
            match std::ffi::CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!(),
            },
        ),)*];
    };
}

returns! {
    NVML_SUCCESS = 0, "Success";
    NVML_ERROR_UNINITIALIZED = 1, "Uninitialized";
    NVML_ERROR_INVALID_ARGUMENT = 2, "Invalid Argument";
    NVML_ERROR_NOT_SUPPORTED = 3, "Not Supported";
    NVML_ERROR_NO_PERMISSION = 4, "Insufficient Permissions";
    NVML_ERROR_ALREADY_INITIALIZED = 5, "Already Initialized";
    NVML_ERROR_NOT_FOUND = 6, "Not Found";
    NVML_ERROR_INSUFFICIENT_SIZE = 7, "Insufficient Size";
    NVML_ERROR_INSUFFICIENT_POWER = 8, "Insufficient External Power";
    NVML_ERROR_DRIVER_NOT_LOADED = 9, "Driver Not Loaded";
    NVML_ERROR_TIMEOUT = 10, "Timeout";
    NVML_ERROR_IRQ_ISSUE = 11, "Interrupt Request Issue";
    NVML_ERROR_LIBRARY_NOT_FOUND = 12, "NVML Shared Library Not Found";
    NVML_ERROR_FUNCTION_NOT_FOUND = 13, "Function Not Found";
    NVML_ERROR_CORRUPTED_INFOROM = 14, "Corrupted infoROM";
    NVML_ERROR_GPU_IS_LOST = 15, "GPU is lost";
    NVML_ERROR_RESET_REQUIRED = 16, "GPU requires reset";
    NVML_ERROR_OPERATING_SYSTEM = 17, "GPU access blocked by the operating system";
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, "Driver/library version mismatch";
    NVML_ERROR_IN_USE = 19, "In use by another client";
    NVML_ERROR_MEMORY = 20, "Insufficient Memory";
    NVML_ERROR_NO_DATA = 21, "No data";
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22, "The requested vGPU operation is not available because ECC is enabled";
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23, "Insufficient resources";
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24, "Frequency not supported";
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, "Argument version mismatch";
    NVML_ERROR_DEPRECATED = 26, "The requested functionality has been deprecated";
    NVML_ERROR_NOT_READY = 27, "System is not ready";
    NVML_ERROR_GPU_NOT_FOUND = 28, "No GPUs were found";
    NVML_ERROR_INVALID_STATE = 29, "Resource is not in the required state";
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30, "This kind of reset is not supported";
    NVML_ERROR_UNKNOWN = 999, "Unknown Error";
}

/// Structures, in the C layout, with what a test compares: name, size, and the offset of each field.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident { $($field:ident as $c:ident: $kind:ty,)* })*) => {
        $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            $(#[doc = concat!("`", stringify!($c), "`")] pub $field: $kind,)*
        }
        )*

        /// Every structure: its name, its size, and name and offset of every field in C.
        pub const LAYOUTS: &[(&str, usize, &[(&str, usize)])] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($c), std::mem::offset_of!($name, $field)),)*],
        ),)*];
    };
}

layout! {
    /// Where a GPU is on the PCI bus.
    nvmlPciInfo_t {
        bus_id_legacy as busIdLegacy: [c_char; 16],
        domain as domain: u32,
        bus as bus: u32,
        device as device: u32,
        pci_device_id as pciDeviceId: u32,
        pci_subsystem_id as pciSubSystemId: u32,
        bus_id as busId: [c_char; 32],
    }
    /// The same, with a version.
    nvmlPciInfoExt_v1_t {
        version as version: u32,
        domain as domain: u32,
        bus as bus: u32,
        device as device: u32,
        pci_device_id as pciDeviceId: u32,
        pci_subsystem_id as pciSubSystemId: u32,
        base_class as baseClass: u32,
        sub_class as subClass: u32,
        bus_id as busId: [c_char; 32],
    }
    /// Percent of the last sampling period.
    nvmlUtilization_t {
        gpu as gpu: u32,
        memory as memory: u32,
    }
    /// Bytes.
    nvmlMemory_t {
        total as total: u64,
        free as free: u64,
        used as used: u64,
    }
    /// Bytes, with a version.
    nvmlMemory_v2_t {
        version as version: u32,
        total as total: u64,
        reserved as reserved: u64,
        free as free: u64,
        used as used: u64,
    }
    /// A process, as the first version of the lists tells of it.
    nvmlProcessInfo_v1_t {
        pid as pid: u32,
        used_gpu_memory as usedGpuMemory: u64,
    }
    /// A process, as the second and third do.
    nvmlProcessInfo_v2_t {
        pid as pid: u32,
        used_gpu_memory as usedGpuMemory: u64,
        gpu_instance_id as gpuInstanceId: u32,
        compute_instance_id as computeInstanceId: u32,
    }
    /// A process in a [`nvmlProcessDetailList_v1_t`].
    nvmlProcessDetail_v1_t {
        pid as pid: u32,
        used_gpu_memory as usedGpuMemory: u64,
        gpu_instance_id as gpuInstanceId: u32,
        compute_instance_id as computeInstanceId: u32,
        used_gpu_cc_protected_memory as usedGpuCcProtectedMemory: u64,
    }
    /// Processes of a mode, and room for them.
    nvmlProcessDetailList_v1_t {
        version as version: u32,
        mode as mode: u32,
        num_proc_array_entries as numProcArrayEntries: u32,
        proc_array as procArray: crate::Out<nvmlProcessDetail_v1_t>,
    }
    /// What a process had of a GPU's time, percent.
    nvmlProcessUtilizationSample_t {
        pid as pid: u32,
        time_stamp as timeStamp: u64,
        sm_util as smUtil: u32,
        mem_util as memUtil: u32,
        enc_util as encUtil: u32,
        dec_util as decUtil: u32,
    }
    /// A value that is asked for by its number.
    nvmlFieldValue_t {
        field_id as fieldId: u32,
        scope_id as scopeId: u32,
        timestamp as timestamp: i64,
        latency_usec as latencyUsec: i64,
        value_type as valueType: u32,
        nvml_return as nvmlReturn: nvmlReturn_t,
        value as value: u64,
    }
    /// A UUID, as text or as bytes.
    nvmlUUID_v1_t {
        version as version: u32,
        kind as type: u32,
        value as value: [u8; 41],
    }
}

/// The version word of a structure: its size, and its number above.
#[must_use]
pub const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// No instance of a multi-instance GPU.
pub const NO_INSTANCE: u32 = u32::MAX;

/// Names of architectures by their numbers: `NVML_DEVICE_ARCH_*`.
pub const ARCHITECTURES: &[(&str, u32)] = &[
    ("MAXWELL", 3),
    ("PASCAL", 4),
    ("VOLTA", 5),
    ("TURING", 6),
    ("AMPERE", 7),
    ("ADA", 8),
    ("HOPPER", 9),
    ("BLACKWELL", 10),
    ("UNKNOWN", u32::MAX),
];
