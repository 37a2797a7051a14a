// What a driver answers in corners, as NVIDIA's own (580.159.04, on an H200) did when it was asked.
#include "check.h"

#include <cuda.h>

namespace {

// A kernel with a parameter, one that traps, and whose threads are bounded, and one without either.
const char* text = ".version 8.0\n.target sm_75\n.address_size 64\n"
                   ".visible .entry k(.param .u64 p) { ret; }\n"
                   ".visible .entry t() .maxntid 64, 1, 1 { trap; }\n"
                   ".visible .entry e() { ret; }\n";

int wrong = 0;

void answers(CUresult want, CUresult got, const char* function, int line) {
    if (got == want) return;
    ++wrong;
    std::fprintf(stderr, "line %d: %s answers %d, not %d\n", line, function, got, want);
}

// As `driver_entry`, of the interface that the header declares.
template <typename Function>
Function entry(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 13000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) std::exit(2);
    return reinterpret_cast<Function>(found);
}

constexpr CUresult SUCCESS = CUDA_SUCCESS;
constexpr CUresult CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED;
constexpr CUresult COOPERATIVE_LAUNCH_TOO_LARGE = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
constexpr CUresult FILE_NOT_FOUND = CUDA_ERROR_FILE_NOT_FOUND;
constexpr CUresult ILLEGAL_STATE = CUDA_ERROR_ILLEGAL_STATE;
constexpr CUresult INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE;
constexpr CUresult INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE;
constexpr CUresult INVALID_IMAGE = CUDA_ERROR_INVALID_IMAGE;
constexpr CUresult INVALID_VALUE = CUDA_ERROR_INVALID_VALUE;
constexpr CUresult LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED;
constexpr CUresult NOT_FOUND = CUDA_ERROR_NOT_FOUND;
constexpr CUresult OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY;
constexpr CUresult STREAM_CAPTURE_INVALIDATED = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
constexpr CUresult STREAM_CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

// Calls a function of the driver, which answers so.
#define ANSWERS(want, function, ...) answers(want, entry<decltype(&function)>(#function)(__VA_ARGS__), #function, __LINE__)

// Its later version is told a context.
void synchronization_answers(CUresult want, int line) {
    answers(want, driver_entry<CUresult (*)()>("cuCtxSynchronize")(), "cuCtxSynchronize", line);
}

CUdevice d;
CUcontext c;
CUmodule m;
CUfunction f, e, t;
CUstream s, s2;
CUdeviceptr p, q, base;
CUgraph g;
CUgraphNode n, n2;
CUgraphExec x;
CUevent ev, ev2;
void* args[] = {&p};
void* h;
unsigned w;
size_t pitch, size, count;
float milliseconds;
int v, nb, lo, hi;

void launches() {
    ANSWERS(SUCCESS, cuInit, 0);
    ANSWERS(SUCCESS, cuDeviceGet, &d, 0);
    ANSWERS(SUCCESS, cuDevicePrimaryCtxRetain, &c, d);
    ANSWERS(SUCCESS, cuCtxSetCurrent, c);
    ANSWERS(SUCCESS, cuModuleLoadData, &m, text);
    ANSWERS(SUCCESS, cuModuleGetFunction, &f, m, "k");
    ANSWERS(SUCCESS, cuModuleGetFunction, &e, m, "e");
    ANSWERS(SUCCESS, cuMemAlloc, &p, 1 << 20);
    ANSWERS(SUCCESS, cuStreamCreate, &s, 1);
    ANSWERS(SUCCESS, cuStreamCreate, &s2, 1);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 0, 1, 1, 1, 1, 1, 0, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 0, 1, 1, 0, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 1025, 1, 1, 0, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 32, 1, 65, 0, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 65536, 1, 32, 1, 1, 0, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 50000, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 300000, 0, args, 0);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0);
    ANSWERS(INVALID_HANDLE, cuLaunchKernel, 0, 1, 1, 1, 32, 1, 1, 0, 0, args, 0);
    ANSWERS(SUCCESS, cuModuleGetFunction, &t, m, "t");
    ANSWERS(INVALID_VALUE, cuLaunchKernel, t, 1, 1, 1, 65, 1, 1, 0, 0, 0, 0);
    ANSWERS(NOT_FOUND, cuModuleGetFunction, &t, m, "nothing");
}

void graphs() {
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    ANSWERS(INVALID_VALUE, cuGraphCreate, &g, 1);
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    CUDA_KERNEL_NODE_PARAMS k = {};
    k.func = f;
    k.gridDimX = 0;
    k.gridDimY = k.gridDimZ = 1;
    k.blockDimX = 32;
    k.blockDimY = k.blockDimZ = 1;
    k.kernelParams = args;
    ANSWERS(INVALID_VALUE, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    ANSWERS(SUCCESS, cuGraphInstantiate, &x, g, 0);
    ANSWERS(SUCCESS, cuGraphLaunch, x, s);
    ANSWERS(SUCCESS, cuStreamSynchronize, s);
    k.gridDimX = 1;
    k.blockDimX = 0;
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    ANSWERS(INVALID_VALUE, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    ANSWERS(SUCCESS, cuGraphInstantiate, &x, g, 0);
    ANSWERS(SUCCESS, cuGraphLaunch, x, s);
    ANSWERS(SUCCESS, cuStreamSynchronize, s);
    k.blockDimX = 2048;
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    ANSWERS(INVALID_VALUE, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    ANSWERS(SUCCESS, cuGraphInstantiate, &x, g, 0);
    k.blockDimX = 32;
    k.sharedMemBytes = 300000;
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    ANSWERS(INVALID_VALUE, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    ANSWERS(SUCCESS, cuGraphInstantiate, &x, g, 0);
    k.sharedMemBytes = 0;
    k.kernelParams = 0;
    ANSWERS(SUCCESS, cuGraphCreate, &g, 0);
    ANSWERS(INVALID_VALUE, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    k.kernelParams = args;
    ANSWERS(SUCCESS, cuGraphAddKernelNode, &n, g, 0, 0, &k);
    ANSWERS(SUCCESS, cuGraphInstantiate, &x, g, 0);
    k.gridDimX = 0;
    ANSWERS(INVALID_VALUE, cuGraphKernelNodeSetParams, n, &k);
    ANSWERS(INVALID_VALUE, cuGraphExecKernelNodeSetParams, x, n, &k);
    ANSWERS(SUCCESS, cuGraphLaunch, x, s);
    ANSWERS(SUCCESS, cuStreamSynchronize, s);
    k.gridDimX = 4;
    ANSWERS(SUCCESS, cuGraphExecKernelNodeSetParams, x, n, &k);
    ANSWERS(SUCCESS, cuGraphLaunch, x, s);
    ANSWERS(SUCCESS, cuStreamSynchronize, s);
    k.func = e;
    ANSWERS(SUCCESS, cuGraphExecKernelNodeSetParams, x, n, &k);
    k.kernelParams = 0;
    ANSWERS(SUCCESS, cuGraphExecKernelNodeSetParams, x, n, &k);
    ANSWERS(SUCCESS, cuGraphLaunch, x, s);
    ANSWERS(SUCCESS, cuStreamSynchronize, s);
}

void copies() {
    CUDA_MEMSET_NODE_PARAMS ms = {};
    ms.dst = p;
    ms.elementSize = 4;
    ms.width = 0;
    ms.height = 1;
    ANSWERS(INVALID_VALUE, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, c);
    ms.width = 4;
    ms.height = 0;
    ANSWERS(INVALID_VALUE, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, c);
    ms.height = 1;
    ms.elementSize = 3;
    ANSWERS(INVALID_VALUE, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, c);
    ms.elementSize = 1;
    ms.value = 300;
    ANSWERS(SUCCESS, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, c);
    ms.value = 1;
    ANSWERS(SUCCESS, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, 0);
    ANSWERS(SUCCESS, cuGraphAddMemsetNode, &n, g, 0, 0, &ms, c);
    ANSWERS(INVALID_VALUE, cuGraphAddDependencies, g, &n, &n, 0, 1);
    n2 = n;
    ANSWERS(SUCCESS, cuGraphAddEmptyNode, &n, g, &n2, 1);
    ANSWERS(SUCCESS, cuGraphAddDependencies, g, &n, &n2, 0, 1);
    ANSWERS(INVALID_VALUE, cuGraphInstantiate, &x, g, 0);
    ANSWERS(INVALID_VALUE, cuGraphAddDependencies, g, &n2, &n, 0, 1);
    ANSWERS(SUCCESS, cuGraphDestroyNode, n);
    ANSWERS(SUCCESS, cuGraphExecDestroy, x);
    ANSWERS(SUCCESS, cuGraphDestroy, g);
    ANSWERS(SUCCESS, cuMemcpyDtoD, p, p + 16, 0);
    ANSWERS(SUCCESS, cuMemcpyDtoD, p, p + 4, 64);
    ANSWERS(INVALID_VALUE, cuMemcpyDtoD, p, 0, 64);
    ANSWERS(INVALID_VALUE, cuMemcpyHtoD, p, 0, 64);
    ANSWERS(INVALID_VALUE, cuMemcpyHtoD, p + (1 << 20) - 4, args, 8);
    ANSWERS(INVALID_VALUE, cuMemcpyDtoD, p, p + (4ull << 40), 64);
    ANSWERS(INVALID_VALUE, cuMemsetD32, p + 2, 1, 1);
    ANSWERS(INVALID_VALUE, cuMemsetD16, p + 1, 1, 1);
    ANSWERS(SUCCESS, cuMemsetD8, p, 1, 0);
    ANSWERS(INVALID_VALUE, cuMemsetD32, p, 1, 1 << 19);
    ANSWERS(INVALID_VALUE, cuMemsetD2D32, p, 6, 1, 1, 2);
    ANSWERS(INVALID_VALUE, cuMemAlloc, &q, 0);
    ANSWERS(SUCCESS, cuMemFree, 0);
    ANSWERS(INVALID_VALUE, cuMemFree, p + 256);
    ANSWERS(OUT_OF_MEMORY, cuMemAlloc, &q, 1ull << 50);
    ANSWERS(INVALID_VALUE, cuMemAllocPitch, &q, &pitch, 100, 10, 3);
    ANSWERS(SUCCESS, cuMemAllocPitch, &q, &pitch, 100, 10, 8);
    ANSWERS(SUCCESS, cuMemAllocHost, &h, 0);
    ANSWERS(SUCCESS, cuMemAllocHost, &h, 100);
    ANSWERS(SUCCESS, cuMemHostGetDevicePointer, &q, h, 0);
    ANSWERS(INVALID_VALUE, cuMemHostGetDevicePointer, &q, args, 0);
    ANSWERS(SUCCESS, cuMemHostRegister, args, 8, 0);
    ANSWERS(INVALID_VALUE, cuMemHostUnregister, h);
    ANSWERS(INVALID_VALUE, cuMemFreeHost, args);
    ANSWERS(SUCCESS, cuPointerGetAttribute, &w, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 8);
    ANSWERS(INVALID_VALUE, cuPointerGetAttribute, &w, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&w);
    ANSWERS(INVALID_VALUE, cuPointerGetAttribute, &w, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0);
    ANSWERS(SUCCESS, cuMemGetAddressRange, &base, &size, p + 77);
    ANSWERS(NOT_FOUND, cuMemGetAddressRange, &base, &size, 4096);
}

void captures() {
    ANSWERS(STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ANSWERS(SUCCESS, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ANSWERS(ILLEGAL_STATE, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ANSWERS(STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery, s);
    ANSWERS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, s, &g);
    ANSWERS(ILLEGAL_STATE, cuStreamEndCapture, s, &g);
    ANSWERS(SUCCESS, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ANSWERS(STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc, &q, 256);
    ANSWERS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, s, &g);
    ANSWERS(SUCCESS, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_RELAXED);
    ANSWERS(SUCCESS, cuMemAlloc, &q, 256);
    ANSWERS(INVALID_VALUE, cuLaunchKernel, f, 0, 1, 1, 32, 1, 1, 0, s, args, 0);
    ANSWERS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, s, &g);
    ANSWERS(SUCCESS, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_RELAXED);
    ANSWERS(SUCCESS, cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 0, s, args, 0);
    ANSWERS(SUCCESS, cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0);
    synchronization_answers(STREAM_CAPTURE_UNSUPPORTED, __LINE__);
    ANSWERS(SUCCESS, cuStreamDestroy, s2);
    ANSWERS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, s, &g);
    ANSWERS(INVALID_VALUE, cuGraphGetNodes, g, 0, &count);
    ANSWERS(SUCCESS, cuEventCreate, &ev, 0);
    ANSWERS(INVALID_HANDLE, cuEventElapsedTime, &milliseconds, ev, ev);
    ANSWERS(SUCCESS, cuEventQuery, ev);
    ANSWERS(SUCCESS, cuEventSynchronize, ev);
    ANSWERS(SUCCESS, cuEventRecord, ev, s);
    ANSWERS(SUCCESS, cuEventSynchronize, ev);
    ANSWERS(SUCCESS, cuEventElapsedTime, &milliseconds, ev, ev);
    ANSWERS(SUCCESS, cuEventCreate, &ev2, CU_EVENT_DISABLE_TIMING);
    ANSWERS(SUCCESS, cuEventRecord, ev2, s);
    ANSWERS(INVALID_HANDLE, cuEventElapsedTime, &milliseconds, ev, ev2);
    ANSWERS(INVALID_VALUE, cuEventCreate, &ev2, CU_EVENT_INTERPROCESS);
    ANSWERS(INVALID_VALUE, cuEventCreate, &ev2, 64);
}

void modules() {
    ANSWERS(INVALID_IMAGE, cuModuleLoadData, &m, "nonsense");
    ANSWERS(INVALID_IMAGE, cuModuleLoadData, &m, "");
    ANSWERS(FILE_NOT_FOUND, cuModuleLoad, &m, "/nonexistent");
    ANSWERS(SUCCESS, cuFuncGetAttribute, &v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
    ANSWERS(INVALID_VALUE, cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10);
    ANSWERS(INVALID_VALUE, cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_NUM_REGS, 3);
    ANSWERS(INVALID_VALUE, cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1);
    ANSWERS(INVALID_VALUE, cuDeviceGetAttribute, &v, (CUdevice_attribute)9999, d);
    CHECK(cudaGetDeviceCount(&v));
    ANSWERS(INVALID_DEVICE, cuDeviceGet, &d, v);
    ANSWERS(INVALID_VALUE, cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 1 << 20);
    ANSWERS(INVALID_VALUE, cuCtxSetLimit, (CUlimit)77, 1);
    ANSWERS(SUCCESS, cuStreamCreateWithPriority, &s2, 0, -100);
    ANSWERS(INVALID_VALUE, cuStreamCreate, &s2, 7);
    ANSWERS(SUCCESS, cuStreamSynchronize, (CUstream)0);
    ANSWERS(INVALID_VALUE, cuStreamWaitValue32, s, p + 1, 1, 0);
    ANSWERS(INVALID_VALUE, cuStreamWriteValue32, s, p + 2, 1, 0);
    ANSWERS(INVALID_VALUE, cuStreamWaitValue32, s, p, 1, 77);
    ANSWERS(SUCCESS, cuCtxGetStreamPriorityRange, &lo, &hi);
    ANSWERS(COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, f, 1 << 20, 1, 1, 32, 1, 1, 0, s, args);
    ANSWERS(SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor, &nb, f, 2048, 0);
    ANSWERS(SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor, &nb, f, 1024, 0);
    ANSWERS(INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor, &nb, f, 0, 0);
}

void fault() {
    ANSWERS(SUCCESS, cuModuleLoadData, &m, text);
    ANSWERS(SUCCESS, cuModuleGetFunction, &t, m, "t");
    ANSWERS(SUCCESS, cuLaunchKernel, t, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    synchronization_answers(LAUNCH_FAILED, __LINE__);
    ANSWERS(LAUNCH_FAILED, cuMemAlloc, &q, 16);
    ANSWERS(LAUNCH_FAILED, cuMemFree, p);
    ANSWERS(LAUNCH_FAILED, cuStreamQuery, s);
    ANSWERS(LAUNCH_FAILED, cuEventQuery, ev);
    ANSWERS(SUCCESS, cuDeviceGetAttribute, &v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0);
    ANSWERS(LAUNCH_FAILED, cuModuleLoadData, &m, text);
    ANSWERS(SUCCESS, cuDevicePrimaryCtxReset, 0);
    ANSWERS(CONTEXT_IS_DESTROYED, cuMemAlloc, &q, 16);
}

}  // namespace

int main(int argc, char** argv) {
    parse_options(argc, argv);
    launches();
    graphs();
    copies();
    captures();
    modules();
    fault();
    return verdict("answers", wrong == 0, "errors of launches, graphs, copies, captures, modules and behind a fault");
}
