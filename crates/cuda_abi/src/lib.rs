//! The binary interface of the CUDA driver API: handles, result codes, kinds, attributes and layouts, as facts without
//! behaviour, and the table of its functions.
//!
//! - [`CUresult`] and its texts ([`result`](CUresult::description));
//! - handles and addresses as numbers ([`handles`]): nothing here can be dereferenced;
//! - enumerations as *open* ones: a transparent integer with named constants, because a C program can pass any number.
//!   The constants carry the vendor's names, so that a search for one finds every use;
//! - structures ([`device`], [`context`], [`memory`], [`module`], [`stream`], [`graph`], [`texture`], [`old`]) with every field at a
//!   stated offset, checked when this crate is compiled; a test of the C edge compares all of it with the vendor's header
//!   where one is installed. Pointers in them are [`HostAddr`]s; a union is an array of words, read by those who know its
//!   member;
//! - `functions.txt`, the one table of functions: names, variants with the version in which each appeared, parameters, and
//!   what implements each. [`FUNCTIONS`] is its text; `cargo xtask gen` makes the C edge and the coverage page from it.
//!
//! Left out are the parts of the interface that no function of ours uses: graphics interoperation, external memory,
//! checkpoints, fabric copies. Their functions are in the table, as refused.

#![expect(non_camel_case_types, non_upper_case_globals, reason = "types and constants carry the vendor's names")]

/// Open enumerations: transparent integers with named constants.
macro_rules! open_enum {
    ($($name:ident: $repr:ident { $($constant:ident = $value:expr;)* })*) => {
        /// Every constant of this module's enumerations, with its value.
        pub const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($constant), $value),)*)*];

        $(
        #[doc = concat!("`", stringify!($name), "`: an open enumeration; other numbers may occur.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($constant), "` = ", stringify!($value), ".")]
                pub const $constant: $name = $name($value);
            )*

            /// Every named constant with its name, in the header's order.
            pub const ALL: &'static [($name, &'static str)] = &[$(($name($value), stringify!($constant)),)*];

            /// The name of this value, the first if there are several.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                $name::ALL.iter().find(|(value, _)| *value == self).map(|(_, name)| *name)
            }
        }
    )*};
}

/// Structures with stated offsets and size, bytes, checked when compiled.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($offset:literal: $field:ident: $kind:ty,)* })*) => {
        /// Every structure of this module: its name, then name and offset of every field, and its size last.
        pub const LAYOUTS: &[(&str, &[(&str, usize)])] =
            &[$((stringify!($name), &[$((stringify!($field), $offset),)* ("", $size)]),)*];

        $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[repr(C)]
        pub struct $name {
            $(
                #[doc = concat!("At byte ", stringify!($offset), ".")]
                pub $field: $kind,
            )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };
    )*};
}

pub mod context;
pub mod device;
pub mod graph;
pub mod handles;
pub mod memory;
pub mod module;
pub mod old;
pub mod result;
pub mod stream;
pub mod texture;

pub use context::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUcomputemode, CUctx_flags, CUctxCreateParams, CUdevResource, CUdevResourceType,
    CUdevSmResource, CUdevSmResourceGroup_flags, CUdevSmResourceSplitByCount_flags, CUdevWorkqueueConfigResource,
    CUdevWorkqueueConfigScope, CUdevWorkqueueResource, CUdriverProcAddress_flags, CUdriverProcAddressQueryResult,
    CUevent_sched_flags, CUexecAffinityParam, CUexecAffinitySmCount, CUexecAffinityType, CUfunc_cache,
    CUgreenCtxCreate_flags, CUhostTaskSyncMode, CUlimit, CUmoduleLoadingMode, CUshared_carveout, CUsharedconfig,
};
pub use device::{
    CUGPUDirectRDMAWritesOrdering, CUatomicOperation, CUatomicOperationCapability, CUcoredumpSettings,
    CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceNumaConfig, CUdevprop, CUflushGPUDirectRDMAWritesOptions,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUlogLevel, CUprocessState, CUuuid,
};
pub use graph::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2, CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS,
    CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_EVENT_WAIT_NODE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS,
    CUDA_HOST_NODE_PARAMS_v2, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v3,
    CUDA_MEM_ALLOC_NODE_PARAMS_v2, CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS_v2, CUgraphChildGraphNodeOwnership, CUgraphConditionalNodeType, CUgraphDependencyType,
    CUgraphEdgeData, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphInstantiate_flags,
    CUgraphInstantiateResult, CUgraphMem_attribute, CUgraphNodeParams, CUgraphNodeType, CUgraphRecaptureStatus,
    CUuserObject_flags, CUuserObjectRetain_flags,
};
pub use handles::*;
pub use memory::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER, CUextent3D, CUipcMem_flags,
    CUipcMemHandle, CUmem_advise, CUmem_range_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationCompType,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemAttach_flags, CUmemHandleType, CUmemLocation, CUmemLocationType, CUmemOperationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemPoolPtrExportData, CUmemRangeFlags, CUmemRangeHandleType, CUmemcpy3DOperand,
    CUmemcpy3DOperandType, CUmemcpyAttributes, CUmemcpyFlags, CUmemcpySrcAccessOrder, CUmemorytype,
    CUmulticastObjectProp, CUoffset3D, CUpointer_attribute,
};
pub use module::{
    CUfunction_attribute, CUfunctionLoadingState, CUjit_cacheMode, CUjit_fallback, CUjit_option, CUjit_target,
    CUjitInputType, CUlibraryOption, CUoccupancy_flags,
};
pub use old::{CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR_v1, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D_v1};
pub use result::CUresult;
pub use stream::{
    CUDA_LAUNCH_PARAMS, CUaccessPolicyWindow, CUaccessProperty, CUclusterSchedulingPolicy, CUevent_flags,
    CUevent_record_flags, CUevent_wait_flags, CUipcEventHandle, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributePortableClusterMode, CUlaunchAttributeValue, CUlaunchConfig, CUlaunchMemSyncDomain,
    CUlaunchMemSyncDomainMap, CUsharedMemoryMode, CUstream_flags, CUstreamAtomicReductionDataType,
    CUstreamAtomicReductionOpType, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUstreamMemoryBarrier_flags, CUstreamUpdateCaptureDependencies_flags,
    CUstreamWaitValue_flags, CUstreamWriteValue_flags, CUsynchronizationPolicy,
};
pub use texture::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR,
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_cubemap_face,
    CUarray_format, CUfilter_mode, CUresourceViewFormat, CUresourcetype, CUtensorMap, CUtensorMapAllocClass,
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};

/// The table of functions, as text.
pub const FUNCTIONS: &str = include_str!("../functions.txt");

/// The version of the driver API that is offered, as 13050 for 13.5.
pub const DRIVER_VERSION: u32 = 13050;
