//! Exported functions that are refused. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::CUresult;

use crate::entry::Entry;

/// Whatever its parameters are: in the C calling convention the caller cleans up.
macro_rules! refused {
    ($($symbol:ident: $code:ident, $reason:literal;)*) => {$(
#[unsafe(no_mangle)]
        pub(super) extern "C" fn $symbol() -> CUresult {
static ENTRY: Entry = Entry::new(stringify!($symbol));
            ENTRY.refuse(CUresult::$code, $reason)
        }
    )*};
}

refused! {
    cuCheckpointOperationComplete: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuCheckpointProcessCheckpoint: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuCheckpointProcessGetRestoreThreadId: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuCheckpointProcessLock: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuCheckpointProcessRestore: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuCheckpointProcessUnlock: CUDA_ERROR_NOT_SUPPORTED, "the process cannot be checkpointed";
    cuDestroyExternalMemory: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuDestroyExternalSemaphore: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuDeviceGetCliqueCount: CUDA_ERROR_NOT_SUPPORTED, "no fabric between GPUs";
    cuDeviceGetCliqueInfo: CUDA_ERROR_NOT_SUPPORTED, "no fabric between GPUs";
    cuDeviceGetFabricClusterUuid: CUDA_ERROR_NOT_SUPPORTED, "no fabric between GPUs";
    cuDeviceGetNvSciSyncAttributes: CUDA_ERROR_NOT_SUPPORTED, "no NvSci on this system";
    cuEGLStreamConsumerAcquireFrame: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEGLStreamConsumerConnect: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuEGLStreamConsumerConnectWithFlags: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuEGLStreamConsumerDisconnect: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEGLStreamConsumerReleaseFrame: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEGLStreamProducerConnect: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuEGLStreamProducerDisconnect: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEGLStreamProducerPresentFrame: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEGLStreamProducerReturnFrame: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuEventCreateFromEGLSync: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuExternalMemoryGetMappedBuffer: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuExternalMemoryGetMappedMipmappedArray: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuFabricCpyBatchAsync: CUDA_ERROR_NOT_SUPPORTED, "no fabric between GPUs";
    cuFabricCpyBatchAsync_ptsz: CUDA_ERROR_NOT_SUPPORTED, "no fabric between GPUs";
    cuGLCtxCreate: CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "no graphics on this GPU";
    cuGLCtxCreate_v2: CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "no graphics on this GPU";
    cuGLGetDevices: CUDA_ERROR_OPERATING_SYSTEM, "no graphics on this GPU";
    cuGLGetDevices_v2: CUDA_ERROR_OPERATING_SYSTEM, "no graphics on this GPU";
    cuGLInit: CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "no graphics on this GPU";
    cuGLMapBufferObject: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLMapBufferObjectAsync: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLMapBufferObjectAsync_v2: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLMapBufferObjectAsync_v2_ptsz: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLMapBufferObject_v2: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLMapBufferObject_v2_ptds: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLRegisterBufferObject: CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "no graphics on this GPU";
    cuGLSetBufferObjectMapFlags: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLUnmapBufferObject: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLUnmapBufferObjectAsync: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGLUnregisterBufferObject: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuGraphAddExternalSemaphoresSignalNode: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphAddExternalSemaphoresWaitNode: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExecExternalSemaphoresSignalNodeSetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExecExternalSemaphoresWaitNodeSetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExternalSemaphoresSignalNodeGetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExternalSemaphoresSignalNodeSetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExternalSemaphoresWaitNodeGetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphExternalSemaphoresWaitNodeSetParams: CUDA_ERROR_INVALID_VALUE, "no memory and no semaphores of a graphics driver to import";
    cuGraphicsEGLRegisterImage: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuGraphicsGLRegisterBuffer: CUDA_ERROR_OPERATING_SYSTEM, "no graphics on this GPU";
    cuGraphicsGLRegisterImage: CUDA_ERROR_OPERATING_SYSTEM, "no graphics on this GPU";
    cuGraphicsMapResources: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsMapResources_ptsz: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceGetMappedEglFrame: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceGetMappedMipmappedArray: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceGetMappedPointer: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceGetMappedPointer_v2: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceSetMapFlags: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsResourceSetMapFlags_v2: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsSubResourceGetMappedArray: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsUnmapResources: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsUnmapResources_ptsz: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsUnregisterResource: CUDA_ERROR_INVALID_HANDLE, "no graphics on this GPU";
    cuGraphicsVDPAURegisterOutputSurface: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuGraphicsVDPAURegisterVideoSurface: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuImportExternalMemory: CUDA_ERROR_NOT_SUPPORTED, "no memory and no semaphores of a graphics driver to import";
    cuImportExternalSemaphore: CUDA_ERROR_NOT_SUPPORTED, "no memory and no semaphores of a graphics driver to import";
    cuLogicalEndpointAddDevice: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointBindAddr: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointBindMem: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointCreate: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointDestroy: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointExport: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointGetLimits: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointIdRelease: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointIdReserve: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointImport: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointQuery: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuLogicalEndpointUnbind: CUDA_ERROR_NOT_SUPPORTED, "no logical endpoints without a fabric";
    cuMemBatchDecompressAsync: CUDA_ERROR_NOT_SUPPORTED, "no decompression engine (CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK is 0)";
    cuMemBatchDecompressAsync_ptsz: CUDA_ERROR_NOT_SUPPORTED, "no decompression engine (CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK is 0)";
    cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED, "no dma-buf on this system (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0)";
    cuMemMapArrayAsync: CUDA_ERROR_NOT_SUPPORTED, "no sparse arrays (CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED is 0)";
    cuMemMapArrayAsync_ptsz: CUDA_ERROR_NOT_SUPPORTED, "no sparse arrays (CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED is 0)";
    cuMulticastAddDevice: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuMulticastBindAddr: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuMulticastBindAddr_v2: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuMulticastBindMem: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuMulticastBindMem_v2: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuMulticastCreate: CUDA_ERROR_NOT_SUPPORTED, "no multicast between GPUs";
    cuMulticastGetGranularity: CUDA_ERROR_NOT_SUPPORTED, "no multicast between GPUs";
    cuMulticastUnbind: CUDA_ERROR_INVALID_VALUE, "no multicast between GPUs";
    cuSignalExternalSemaphoresAsync: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuSignalExternalSemaphoresAsync_ptsz: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuStreamBeginCaptureToCig: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuStreamBeginCaptureToCig_ptsz: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuStreamEndCaptureToCig: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuStreamEndCaptureToCig_ptsz: CUDA_ERROR_INVALID_VALUE, "no graphics on this GPU";
    cuSubgridCreate: CUDA_ERROR_NOT_SUPPORTED, "no subgrids on this GPU";
    cuSubgridWorkerGridCreate: CUDA_ERROR_NOT_SUPPORTED, "no subgrids on this GPU";
    cuSubgridWorksetCreate: CUDA_ERROR_NOT_SUPPORTED, "no subgrids on this GPU";
    cuTensorMapEncodeIm2colWide: CUDA_ERROR_NOT_SUPPORTED, "kernels reach such maps by instructions of architecture-specific targets only, which the GPU does not take";
    cuVDPAUCtxCreate: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuVDPAUCtxCreate_v2: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuVDPAUGetDevice: CUDA_ERROR_NOT_SUPPORTED, "no graphics on this GPU";
    cuWGLGetDevice: CUDA_ERROR_NOT_SUPPORTED, "of Windows";
    cuWaitExternalSemaphoresAsync: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
    cuWaitExternalSemaphoresAsync_ptsz: CUDA_ERROR_INVALID_HANDLE, "no memory and no semaphores of a graphics driver to import";
}
