//! Streams, events, launches, capture: kinds and layouts.

use crate::handles::{CUfunction, CUstream, HostAddr};

open_enum! {
    CUstream_flags: u32 {
        CU_STREAM_DEFAULT = 0;
        CU_STREAM_NON_BLOCKING = 1;
    }
    CUevent_flags: u32 {
        CU_EVENT_DEFAULT = 0;
        CU_EVENT_BLOCKING_SYNC = 1;
        CU_EVENT_DISABLE_TIMING = 2;
        CU_EVENT_INTERPROCESS = 4;
    }
    CUevent_record_flags: u32 {
        CU_EVENT_RECORD_DEFAULT = 0;
        CU_EVENT_RECORD_EXTERNAL = 1;
    }
    CUevent_wait_flags: u32 {
        CU_EVENT_WAIT_DEFAULT = 0;
        CU_EVENT_WAIT_EXTERNAL = 1;
    }
    CUstreamWaitValue_flags: u32 {
        CU_STREAM_WAIT_VALUE_GEQ = 0;
        CU_STREAM_WAIT_VALUE_EQ = 1;
        CU_STREAM_WAIT_VALUE_AND = 2;
        CU_STREAM_WAIT_VALUE_NOR = 3;
        CU_STREAM_WAIT_VALUE_FLUSH = 0x40000000;
    }
    CUstreamWriteValue_flags: u32 {
        CU_STREAM_WRITE_VALUE_DEFAULT = 0;
        CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1;
    }
    CUstreamBatchMemOpType: u32 {
        CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1;
        CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2;
        CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4;
        CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5;
        CU_STREAM_MEM_OP_BARRIER = 6;
        CU_STREAM_MEM_OP_ATOMIC_REDUCTION = 8;
        CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3;
    }
    CUstreamMemoryBarrier_flags: u32 {
        CU_STREAM_MEMORY_BARRIER_TYPE_SYS = 0;
        CU_STREAM_MEMORY_BARRIER_TYPE_GPU = 1;
    }
    CUstreamAtomicReductionOpType: u32 {
        CU_STREAM_ATOMIC_REDUCTION_OP_OR = 6;
        CU_STREAM_ATOMIC_REDUCTION_OP_AND = 5;
        CU_STREAM_ATOMIC_REDUCTION_OP_ADD = 0;
    }
    CUstreamAtomicReductionDataType: u32 {
        CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32 = 14;
        CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64 = 22;
    }
    CUstreamUpdateCaptureDependencies_flags: u32 {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0;
        CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1;
    }
    CUstreamCaptureStatus: u32 {
        CU_STREAM_CAPTURE_STATUS_NONE = 0;
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    }
    CUstreamCaptureMode: u32 {
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
        CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    }
    CUaccessProperty: u32 {
        CU_ACCESS_PROPERTY_NORMAL = 0;
        CU_ACCESS_PROPERTY_STREAMING = 1;
        CU_ACCESS_PROPERTY_PERSISTING = 2;
    }
    CUsynchronizationPolicy: u32 {
        CU_SYNC_POLICY_AUTO = 1;
        CU_SYNC_POLICY_SPIN = 2;
        CU_SYNC_POLICY_YIELD = 3;
        CU_SYNC_POLICY_BLOCKING_SYNC = 4;
    }
    CUclusterSchedulingPolicy: u32 {
        CU_CLUSTER_SCHEDULING_POLICY_DEFAULT = 0;
        CU_CLUSTER_SCHEDULING_POLICY_SPREAD = 1;
        CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING = 2;
        CU_CLUSTER_SCHEDULING_POLICY_RUBIN_DSMEM_LOCALITY = 3;
    }
    CUlaunchMemSyncDomain: u32 {
        CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT = 0;
        CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE = 1;
    }
    CUlaunchAttributePortableClusterMode: u32 {
        CU_LAUNCH_PORTABLE_CLUSTER_MODE_DEFAULT = 0;
        CU_LAUNCH_PORTABLE_CLUSTER_MODE_REQUIRE_PORTABLE = 1;
        CU_LAUNCH_PORTABLE_CLUSTER_MODE_ALLOW_NON_PORTABLE = 2;
    }
    CUsharedMemoryMode: u32 {
        CU_SHARED_MEMORY_MODE_DEFAULT = 0;
        CU_SHARED_MEMORY_MODE_REQUIRE_PORTABLE = 1;
        CU_SHARED_MEMORY_MODE_ALLOW_NON_PORTABLE = 2;
        CU_SHARED_MEMORY_MODE_ALLOW_OVERSIZED_SHARED_MEMORY = 3;
        CU_SHARED_MEMORY_MODE_PREFER_OVERSIZED_SHARED_MEMORY = 4;
    }
    CUlaunchAttributeID: u32 {
        CU_LAUNCH_ATTRIBUTE_IGNORE = 0;
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1;
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2;
        CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3;
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4;
        CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5;
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT = 7;
        CU_LAUNCH_ATTRIBUTE_PRIORITY = 8;
        CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9;
        CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10;
        CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11;
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12;
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13;
        CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14;
        CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING = 16;
        CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE = 17;
        CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE = 18;
    }
}

layout! {
    /// `CUaccessPolicyWindow`.
    CUaccessPolicyWindow: 32 {
        0: base_ptr: HostAddr,
        8: num_bytes: usize,
        16: hit_ratio: f32,
        20: hit_prop: CUaccessProperty,
        24: miss_prop: CUaccessProperty,
    }
    /// `CUlaunchMemSyncDomainMap`.
    CUlaunchMemSyncDomainMap: 2 {
        0: default: u8,
        1: remote: u8,
    }
    /// One attribute of a launch, stream or kernel node.
    CUlaunchAttribute: 72 {
        0: id: CUlaunchAttributeID,
        4: pad: [u8; 4],
        8: value: CUlaunchAttributeValue,
    }
    /// Value of an attribute: a union.
    CUlaunchAttributeValue: 64 {
        0: words: [u64; 8],
    }
    /// Grid, block, stream and attributes of a launch.
    CUlaunchConfig: 56 {
        0: grid_dim_x: u32,
        4: grid_dim_y: u32,
        8: grid_dim_z: u32,
        12: block_dim_x: u32,
        16: block_dim_y: u32,
        20: block_dim_z: u32,
        24: shared_mem_bytes: u32,
        32: h_stream: CUstream,
        40: attrs: HostAddr,
        48: num_attrs: u32,
    }
    /// One launch of a multi-device cooperative launch.
    CUDA_LAUNCH_PARAMS: 56 {
        0: function: CUfunction,
        8: grid_dim_x: u32,
        12: grid_dim_y: u32,
        16: grid_dim_z: u32,
        20: block_dim_x: u32,
        24: block_dim_y: u32,
        28: block_dim_z: u32,
        32: shared_mem_bytes: u32,
        40: h_stream: CUstream,
        48: kernel_params: HostAddr,
    }
    /// An event exported to another process; opaque.
    CUipcEventHandle: 64 {
        0: reserved: [u8; 64],
    }
    /// `CUstreamBatchMemOpParams`.
    CUstreamBatchMemOpParams: 48 {
        0: words: [u64; 6],
    }
}
