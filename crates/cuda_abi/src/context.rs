//! Contexts, limits, execution resources: kinds and layouts.

use crate::handles::{CUdevice, HostAddr};

open_enum! {
    CUctx_flags: u32 {
        CU_CTX_SCHED_AUTO = 0;
        CU_CTX_SCHED_SPIN = 1;
        CU_CTX_SCHED_YIELD = 2;
        CU_CTX_SCHED_BLOCKING_SYNC = 4;
        CU_CTX_BLOCKING_SYNC = 4;
        CU_CTX_SCHED_MASK = 7;
        CU_CTX_MAP_HOST = 8;
        CU_CTX_LMEM_RESIZE_TO_MAX = 16;
        CU_CTX_COREDUMP_ENABLE = 32;
        CU_CTX_USER_COREDUMP_ENABLE = 64;
        CU_CTX_SYNC_MEMOPS = 128;
        CU_CTX_FLAGS_MASK = 255;
    }
    CUlimit: u32 {
        CU_LIMIT_STACK_SIZE = 0;
        CU_LIMIT_PRINTF_FIFO_SIZE = 1;
        CU_LIMIT_MALLOC_HEAP_SIZE = 2;
        CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3;
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4;
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5;
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6;
        CU_LIMIT_SHMEM_SIZE = 7;
        CU_LIMIT_CIG_ENABLED = 8;
        CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED = 9;
        CU_LIMIT_PER_BLOCK_MEMORY_SIZE = 10;
        CU_LIMIT_MAX = 11;
    }
    CUexecAffinityType: u32 {
        CU_EXEC_AFFINITY_TYPE_SM_COUNT = 0;
        CU_EXEC_AFFINITY_TYPE_MAX = 1;
    }
    CUfunc_cache: u32 {
        CU_FUNC_CACHE_PREFER_NONE = 0;
        CU_FUNC_CACHE_PREFER_SHARED = 1;
        CU_FUNC_CACHE_PREFER_L1 = 2;
        CU_FUNC_CACHE_PREFER_EQUAL = 3;
    }
    CUsharedconfig: u32 {
        CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE = 0;
        CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE = 1;
        CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE = 2;
    }
    CUshared_carveout: i32 {
        CU_SHAREDMEM_CARVEOUT_DEFAULT = -1;
        CU_SHAREDMEM_CARVEOUT_MAX_SHARED = 100;
        CU_SHAREDMEM_CARVEOUT_MAX_L1 = 0;
    }
    CUcomputemode: u32 {
        CU_COMPUTEMODE_DEFAULT = 0;
        CU_COMPUTEMODE_PROHIBITED = 2;
        CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3;
    }
    CUevent_sched_flags: u32 {
        CU_EVENT_SCHED_AUTO = 0;
        CU_EVENT_SCHED_SPIN = 1;
        CU_EVENT_SCHED_YIELD = 2;
        CU_EVENT_SCHED_BLOCKING_SYNC = 4;
    }
    CUhostTaskSyncMode: u32 {
        CU_HOST_TASK_BLOCKING = 0;
        CU_HOST_TASK_SPINWAIT = 1;
    }
    CUgreenCtxCreate_flags: u32 {
        CU_GREEN_CTX_NONE = 0;
        CU_GREEN_CTX_DEFAULT_STREAM = 1;
    }
    CUdevSmResourceGroup_flags: u32 {
        CU_DEV_SM_RESOURCE_GROUP_DEFAULT = 0;
        CU_DEV_SM_RESOURCE_GROUP_BACKFILL = 1;
        CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID = 2;
        CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS = 4;
    }
    CUdevSmResourceSplitByCount_flags: u32 {
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING = 1;
        CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE = 2;
    }
    CUdevResourceType: u32 {
        CU_DEV_RESOURCE_TYPE_INVALID = 0;
        CU_DEV_RESOURCE_TYPE_SM = 1;
        CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG = 1000;
        CU_DEV_RESOURCE_TYPE_WORKQUEUE = 10000;
    }
    CUdevWorkqueueConfigScope: u32 {
        CU_WORKQUEUE_SCOPE_DEVICE_CTX = 0;
        CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED = 1;
    }
    CUmoduleLoadingMode: u32 {
        CU_MODULE_EAGER_LOADING = 1;
        CU_MODULE_LAZY_LOADING = 2;
    }
    CUdriverProcAddress_flags: u32 {
        CU_GET_PROC_ADDRESS_DEFAULT = 0;
        CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;
    }
    CUdriverProcAddressQueryResult: u32 {
        CU_GET_PROC_ADDRESS_SUCCESS = 0;
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1;
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2;
    }
}

layout! {
    /// Parameters of `cuCtxCreate_v4`.
    CUctxCreateParams: 24 {
        0: exec_affinity_params: HostAddr,
        8: num_exec_affinity_params: i32,
        16: cig_params: HostAddr,
    }
    /// `CUexecAffinityParam`.
    CUexecAffinityParam: 8 {
        0: kind: CUexecAffinityType,
        4: value: [u32; 1],
    }
    /// `CUexecAffinitySmCount`.
    CUexecAffinitySmCount: 4 {
        0: value: u32,
    }
    /// `CUdevSmResource`.
    CUdevSmResource: 20 {
        0: sm_count: u32,
        4: min_sm_partition_size: u32,
        8: sm_coscheduled_alignment: u32,
        12: flags: u32,
        16: locality_domain_id: u32,
    }
    /// `CUdevWorkqueueConfigResource`.
    CUdevWorkqueueConfigResource: 12 {
        0: device: CUdevice,
        4: wq_concurrency_limit: u32,
        8: sharing_scope: CUdevWorkqueueConfigScope,
    }
    /// `CUdevWorkqueueResource`.
    CUdevWorkqueueResource: 40 {
        0: reserved: [u8; 40],
    }
    /// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`.
    CU_DEV_SM_RESOURCE_GROUP_PARAMS: 64 {
        0: sm_count: u32,
        4: coscheduled_sm_count: u32,
        8: preferred_coscheduled_sm_count: u32,
        12: flags: u32,
        16: locality_domain_id: u32,
        20: reserved: [u32; 11],
    }
    /// `CUdevResource`.
    CUdevResource: 144 {
        0: kind: CUdevResourceType,
        4: internal_padding: [u8; 92],
        96: value: [u32; 10],
        136: next_resource: HostAddr,
    }
}
