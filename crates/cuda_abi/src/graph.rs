//! Graphs: kinds, node parameters, results.

use crate::handles::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphConditionalHandle, CUgraphNode, CUkernel, CUstream,
    HostAddr,
};
use crate::memory::{CUDA_MEMCPY3D, CUmemPoolProps};

open_enum! {
    CUgraphConditionalNodeType: u32 {
        CU_GRAPH_COND_TYPE_IF = 0;
        CU_GRAPH_COND_TYPE_WHILE = 1;
        CU_GRAPH_COND_TYPE_SWITCH = 2;
    }
    CUgraphNodeType: u32 {
        CU_GRAPH_NODE_TYPE_KERNEL = 0;
        CU_GRAPH_NODE_TYPE_MEMCPY = 1;
        CU_GRAPH_NODE_TYPE_MEMSET = 2;
        CU_GRAPH_NODE_TYPE_HOST = 3;
        CU_GRAPH_NODE_TYPE_GRAPH = 4;
        CU_GRAPH_NODE_TYPE_EMPTY = 5;
        CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6;
        CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7;
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8;
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9;
        CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10;
        CU_GRAPH_NODE_TYPE_MEM_FREE = 11;
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12;
        CU_GRAPH_NODE_TYPE_CONDITIONAL = 13;
        CU_GRAPH_NODE_TYPE_MEMCPY_BATCH = 14;
        CU_GRAPH_NODE_TYPE_RESERVED_16 = 16;
        CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE = 17;
        CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH = 18;
    }
    CUgraphDependencyType: u32 {
        CU_GRAPH_DEPENDENCY_TYPE_DEFAULT = 0;
        CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC = 1;
    }
    CUgraphInstantiateResult: u32 {
        CUDA_GRAPH_INSTANTIATE_SUCCESS = 0;
        CUDA_GRAPH_INSTANTIATE_ERROR = 1;
        CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE = 2;
        CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED = 3;
        CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED = 4;
        CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED = 5;
    }
    CUgraphExecUpdateResult: u32 {
        CU_GRAPH_EXEC_UPDATE_SUCCESS = 0;
        CU_GRAPH_EXEC_UPDATE_ERROR = 1;
        CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2;
        CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3;
        CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED = 4;
        CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED = 5;
        CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED = 6;
        CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7;
        CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED = 8;
    }
    CUgraphRecaptureStatus: u32 {
        CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE = 0;
        CU_GRAPH_RECAPTURE_INELIGIBLE_FOR_UPDATE = 1;
        CU_GRAPH_RECAPTURE_ERROR = 2;
    }
    CUgraphMem_attribute: u32 {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0;
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1;
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2;
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3;
    }
    CUgraphChildGraphNodeOwnership: i32 {
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE = 0;
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE = 1;
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID = -1;
    }
    CUuserObject_flags: u32 {
        CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1;
    }
    CUuserObjectRetain_flags: u32 {
        CU_GRAPH_USER_OBJECT_MOVE = 1;
    }
    CUgraphInstantiate_flags: u32 {
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1;
        CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2;
        CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4;
        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8;
    }
}

layout! {
    /// `CUDA_BATCH_MEM_OP_NODE_PARAMS_v2`.
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2: 32 {
        0: ctx: CUcontext,
        8: count: u32,
        16: param_array: HostAddr,
        24: flags: u32,
    }
    /// `CUDA_KERNEL_NODE_PARAMS_v1`.
    CUDA_KERNEL_NODE_PARAMS_v1: 56 {
        0: func: CUfunction,
        8: grid_dim_x: u32,
        12: grid_dim_y: u32,
        16: grid_dim_z: u32,
        20: block_dim_x: u32,
        24: block_dim_y: u32,
        28: block_dim_z: u32,
        32: shared_mem_bytes: u32,
        40: kernel_params: HostAddr,
        48: extra: HostAddr,
    }
    /// `CUDA_KERNEL_NODE_PARAMS`.
    CUDA_KERNEL_NODE_PARAMS: 72 {
        0: func: CUfunction,
        8: grid_dim_x: u32,
        12: grid_dim_y: u32,
        16: grid_dim_z: u32,
        20: block_dim_x: u32,
        24: block_dim_y: u32,
        28: block_dim_z: u32,
        32: shared_mem_bytes: u32,
        40: kernel_params: HostAddr,
        48: extra: HostAddr,
        56: kern: CUkernel,
        64: ctx: CUcontext,
    }
    /// `CUDA_KERNEL_NODE_PARAMS_v3`.
    CUDA_KERNEL_NODE_PARAMS_v3: 72 {
        0: func: CUfunction,
        8: grid_dim_x: u32,
        12: grid_dim_y: u32,
        16: grid_dim_z: u32,
        20: block_dim_x: u32,
        24: block_dim_y: u32,
        28: block_dim_z: u32,
        32: shared_mem_bytes: u32,
        40: kernel_params: HostAddr,
        48: extra: HostAddr,
        56: kern: CUkernel,
        64: ctx: CUcontext,
    }
    /// `CUDA_MEMSET_NODE_PARAMS`.
    CUDA_MEMSET_NODE_PARAMS: 40 {
        0: dst: CUdeviceptr,
        8: pitch: usize,
        16: value: u32,
        20: element_size: u32,
        24: width: usize,
        32: height: usize,
    }
    /// `CUDA_MEMSET_NODE_PARAMS_v2`.
    CUDA_MEMSET_NODE_PARAMS_v2: 48 {
        0: dst: CUdeviceptr,
        8: pitch: usize,
        16: value: u32,
        20: element_size: u32,
        24: width: usize,
        32: height: usize,
        40: ctx: CUcontext,
    }
    /// `CUDA_HOST_NODE_PARAMS`.
    CUDA_HOST_NODE_PARAMS: 16 {
        0: function: HostAddr,
        8: user_data: HostAddr,
    }
    /// `CUDA_HOST_NODE_PARAMS_v2`.
    CUDA_HOST_NODE_PARAMS_v2: 32 {
        0: function: HostAddr,
        8: user_data: HostAddr,
        16: sync_mode: u32,
        24: value: [u64; 1],
    }
    /// `CUDA_CONDITIONAL_NODE_PARAMS`.
    CUDA_CONDITIONAL_NODE_PARAMS: 32 {
        0: handle: CUgraphConditionalHandle,
        8: kind: CUgraphConditionalNodeType,
        12: size: u32,
        16: ph_graph_out: HostAddr,
        24: ctx: CUcontext,
    }
    /// `CUgraphEdgeData`.
    CUgraphEdgeData: 8 {
        0: from_port: u8,
        1: to_port: u8,
        2: kind: u8,
        3: reserved: [u8; 5],
    }
    /// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
    CUDA_GRAPH_INSTANTIATE_PARAMS: 32 {
        0: flags: u64,
        8: h_upload_stream: CUstream,
        16: h_err_node_out: CUgraphNode,
        24: result_out: CUgraphInstantiateResult,
    }
    /// `CUDA_MEMCPY_NODE_PARAMS`.
    CUDA_MEMCPY_NODE_PARAMS: 216 {
        0: flags: i32,
        4: reserved: i32,
        8: copy_ctx: CUcontext,
        16: copy_params: CUDA_MEMCPY3D,
    }
    /// `CUgraphExecUpdateResultInfo`.
    CUgraphExecUpdateResultInfo: 24 {
        0: result: CUgraphExecUpdateResult,
        8: error_node: CUgraphNode,
        16: error_from_node: CUgraphNode,
    }
    /// `CUDA_MEM_ALLOC_NODE_PARAMS_v2`.
    CUDA_MEM_ALLOC_NODE_PARAMS_v2: 120 {
        0: pool_props: CUmemPoolProps,
        88: access_descs: HostAddr,
        96: access_desc_count: usize,
        104: bytesize: usize,
        112: dptr: CUdeviceptr,
    }
    /// `CUDA_MEM_FREE_NODE_PARAMS`.
    CUDA_MEM_FREE_NODE_PARAMS: 8 {
        0: dptr: CUdeviceptr,
    }
    /// `CUDA_CHILD_GRAPH_NODE_PARAMS`.
    CUDA_CHILD_GRAPH_NODE_PARAMS: 16 {
        0: graph: CUgraph,
        8: ownership: CUgraphChildGraphNodeOwnership,
    }
    /// `CUDA_EVENT_RECORD_NODE_PARAMS`.
    CUDA_EVENT_RECORD_NODE_PARAMS: 16 {
        0: event: CUevent,
        8: value: [u64; 1],
    }
    /// `CUDA_EVENT_WAIT_NODE_PARAMS`.
    CUDA_EVENT_WAIT_NODE_PARAMS: 8 {
        0: event: CUevent,
    }
    /// `CUgraphNodeParams`.
    CUgraphNodeParams: 256 {
        0: kind: CUgraphNodeType,
        4: reserved0: [i32; 3],
        16: value: [u64; 29],
        248: reserved2: i64,
    }
}
