//! Memory: kinds, attributes, copies, pools, virtual memory.

use crate::handles::{CUarray, CUcontext, CUdeviceptr, HostAddr};

open_enum! {
    CUipcMem_flags: u32 {
        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
    }
    CUmemAttach_flags: u32 {
        CU_MEM_ATTACH_GLOBAL = 1;
        CU_MEM_ATTACH_HOST = 2;
        CU_MEM_ATTACH_SINGLE = 4;
    }
    CUpointer_attribute: u32 {
        CU_POINTER_ATTRIBUTE_CONTEXT = 1;
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
        CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
        CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5;
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6;
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
        CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
        CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
        CU_POINTER_ATTRIBUTE_MAPPED = 13;
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15;
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16;
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17;
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18;
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19;
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20;
        CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21;
        CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL = 22;
    }
    CUmemorytype: u32 {
        CU_MEMORYTYPE_HOST = 1;
        CU_MEMORYTYPE_DEVICE = 2;
        CU_MEMORYTYPE_ARRAY = 3;
        CU_MEMORYTYPE_UNIFIED = 4;
    }
    CUmem_advise: u32 {
        CU_MEM_ADVISE_SET_READ_MOSTLY = 1;
        CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2;
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3;
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4;
        CU_MEM_ADVISE_SET_ACCESSED_BY = 5;
        CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6;
    }
    CUmem_range_attribute: u32 {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1;
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2;
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3;
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4;
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5;
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6;
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7;
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8;
    }
    CUmemAllocationHandleType: u32 {
        CU_MEM_HANDLE_TYPE_NONE = 0;
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
        CU_MEM_HANDLE_TYPE_WIN32 = 2;
        CU_MEM_HANDLE_TYPE_WIN32_KMT = 4;
        CU_MEM_HANDLE_TYPE_FABRIC = 8;
    }
    CUmemAccess_flags: u32 {
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0;
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
    }
    CUmemLocationType: u32 {
        CU_MEM_LOCATION_TYPE_INVALID = 0;
        CU_MEM_LOCATION_TYPE_NONE = 0;
        CU_MEM_LOCATION_TYPE_DEVICE = 1;
        CU_MEM_LOCATION_TYPE_HOST = 2;
        CU_MEM_LOCATION_TYPE_HOST_NUMA = 3;
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4;
        CU_MEM_LOCATION_TYPE_INVISIBLE = 5;
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6;
    }
    CUmemAllocationType: u32 {
        CU_MEM_ALLOCATION_TYPE_INVALID = 0;
        CU_MEM_ALLOCATION_TYPE_PINNED = 1;
        CU_MEM_ALLOCATION_TYPE_MANAGED = 2;
    }
    CUmemAllocationGranularity_flags: u32 {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;
    }
    CUmemRangeHandleType: u32 {
        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
    }
    CUmemRangeFlags: u32 {
        CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1;
    }
    CUmemOperationType: u32 {
        CU_MEM_OPERATION_TYPE_MAP = 1;
        CU_MEM_OPERATION_TYPE_UNMAP = 2;
    }
    CUmemHandleType: u32 {
        CU_MEM_HANDLE_TYPE_GENERIC = 0;
    }
    CUmemAllocationCompType: u32 {
        CU_MEM_ALLOCATION_COMP_NONE = 0;
        CU_MEM_ALLOCATION_COMP_GENERIC = 1;
    }
    CUmemPool_attribute: u32 {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1;
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2;
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3;
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4;
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5;
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6;
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7;
        CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8;
        CU_MEMPOOL_ATTR_ALLOCATION_TYPE = 9;
        CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES = 10;
        CU_MEMPOOL_ATTR_LOCATION_ID = 11;
        CU_MEMPOOL_ATTR_LOCATION_TYPE = 12;
        CU_MEMPOOL_ATTR_MAX_POOL_SIZE = 13;
        CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED = 14;
        CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID = 15;
    }
    CUmemcpyFlags: u32 {
        CU_MEMCPY_FLAG_DEFAULT = 0;
        CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1;
    }
    CUmemcpySrcAccessOrder: u32 {
        CU_MEMCPY_SRC_ACCESS_ORDER_INVALID = 0;
        CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;
        CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2;
        CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3;
    }
    CUmemcpy3DOperandType: u32 {
        CU_MEMCPY_OPERAND_TYPE_POINTER = 1;
        CU_MEMCPY_OPERAND_TYPE_ARRAY = 2;
    }
}

layout! {
    /// Memory exported to another process; opaque.
    CUipcMemHandle: 64 {
        0: reserved: [u8; 64],
    }
    /// A two-dimensional copy.
    CUDA_MEMCPY2D: 128 {
        0: src_x_in_bytes: usize,
        8: src_y: usize,
        16: src_memory_type: CUmemorytype,
        24: src_host: HostAddr,
        32: src_device: CUdeviceptr,
        40: src_array: CUarray,
        48: src_pitch: usize,
        56: dst_x_in_bytes: usize,
        64: dst_y: usize,
        72: dst_memory_type: CUmemorytype,
        80: dst_host: HostAddr,
        88: dst_device: CUdeviceptr,
        96: dst_array: CUarray,
        104: dst_pitch: usize,
        112: width_in_bytes: usize,
        120: height: usize,
    }
    /// A three-dimensional copy.
    CUDA_MEMCPY3D: 200 {
        0: src_x_in_bytes: usize,
        8: src_y: usize,
        16: src_z: usize,
        24: src_lod: usize,
        32: src_memory_type: CUmemorytype,
        40: src_host: HostAddr,
        48: src_device: CUdeviceptr,
        56: src_array: CUarray,
        64: reserved0: HostAddr,
        72: src_pitch: usize,
        80: src_height: usize,
        88: dst_x_in_bytes: usize,
        96: dst_y: usize,
        104: dst_z: usize,
        112: dst_lod: usize,
        120: dst_memory_type: CUmemorytype,
        128: dst_host: HostAddr,
        136: dst_device: CUdeviceptr,
        144: dst_array: CUarray,
        152: reserved1: HostAddr,
        160: dst_pitch: usize,
        168: dst_height: usize,
        176: width_in_bytes: usize,
        184: height: usize,
        192: depth: usize,
    }
    /// A three-dimensional copy between contexts.
    CUDA_MEMCPY3D_PEER: 200 {
        0: src_x_in_bytes: usize,
        8: src_y: usize,
        16: src_z: usize,
        24: src_lod: usize,
        32: src_memory_type: CUmemorytype,
        40: src_host: HostAddr,
        48: src_device: CUdeviceptr,
        56: src_array: CUarray,
        64: src_context: CUcontext,
        72: src_pitch: usize,
        80: src_height: usize,
        88: dst_x_in_bytes: usize,
        96: dst_y: usize,
        104: dst_z: usize,
        112: dst_lod: usize,
        120: dst_memory_type: CUmemorytype,
        128: dst_host: HostAddr,
        136: dst_device: CUdeviceptr,
        144: dst_array: CUarray,
        152: dst_context: CUcontext,
        160: dst_pitch: usize,
        168: dst_height: usize,
        176: width_in_bytes: usize,
        184: height: usize,
        192: depth: usize,
    }
    /// A place memory can live at.
    CUmemLocation: 8 {
        0: kind: CUmemLocationType,
        4: id: i32,
    }
    /// What to allocate with `cuMemCreate`.
    CUmemAllocationProp: 32 {
        0: kind: CUmemAllocationType,
        4: requested_handle_types: CUmemAllocationHandleType,
        8: location: CUmemLocation,
        16: win32_handle_meta_data: HostAddr,
        24: alloc_flags: [u8; 8],
    }
    /// `CUmulticastObjectProp`.
    CUmulticastObjectProp: 32 {
        0: num_devices: u32,
        8: size: usize,
        16: handle_types: u64,
        24: flags: u64,
    }
    /// Access rights of a location.
    CUmemAccessDesc: 12 {
        0: location: CUmemLocation,
        8: flags: CUmemAccess_flags,
    }
    /// What a memory pool allocates.
    CUmemPoolProps: 88 {
        0: alloc_type: CUmemAllocationType,
        4: handle_types: CUmemAllocationHandleType,
        8: location: CUmemLocation,
        16: win32_security_attributes: HostAddr,
        24: max_size: usize,
        32: usage: u16,
        34: gpu_direct_rdma_capable: u8,
        35: reserved: [u8; 53],
    }
    /// `CUmemPoolPtrExportData`.
    CUmemPoolPtrExportData: 64 {
        0: reserved: [u8; 64],
    }
    /// `CUmemcpyAttributes`.
    CUmemcpyAttributes: 24 {
        0: src_access_order: CUmemcpySrcAccessOrder,
        4: src_loc_hint: CUmemLocation,
        12: dst_loc_hint: CUmemLocation,
        20: flags: u32,
    }
    /// `CUoffset3D`.
    CUoffset3D: 24 {
        0: x: usize,
        8: y: usize,
        16: z: usize,
    }
    /// `CUextent3D`.
    CUextent3D: 24 {
        0: width: usize,
        8: height: usize,
        16: depth: usize,
    }
    /// `CUmemcpy3DOperand`.
    CUmemcpy3DOperand: 40 {
        0: kind: CUmemcpy3DOperandType,
        8: value: [u64; 4],
    }
    /// `CUDA_MEMCPY3D_BATCH_OP`.
    CUDA_MEMCPY3D_BATCH_OP: 112 {
        0: src: CUmemcpy3DOperand,
        40: dst: CUmemcpy3DOperand,
        80: extent: CUextent3D,
        104: src_access_order: CUmemcpySrcAccessOrder,
        108: flags: u32,
    }
}
