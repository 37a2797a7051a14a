// The functions of CUDA's driver that the runtime has no others for: contexts of one's own, and virtual memory. They are looked
// up when the program starts, so that it needs no library of the driver when it is linked.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda.h>
#include <dlfcn.h>

#define CHECK_DRIVER(call)                                                                                \
    do {                                                                                                  \
        CUresult result_ = (call);                                                                        \
        if (result_ != CUDA_SUCCESS) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, int(result_));  \
            std::exit(2);                                                                                 \
        }                                                                                                 \
    } while (0)

class Driver {
    void* library;

    template <typename Function>
    void find(Function*& function, const char* name) {
        function = library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
        if (function == nullptr) {
            std::fprintf(stderr, "gmedia: there is no %s in libcuda.so.1: CUDA 12.2 or later is needed\n", name);
            std::exit(2);
        }
    }

  public:
    CUresult (*cuInit)(unsigned);
    CUresult (*cuDeviceGetAttribute)(int*, CUdevice_attribute, CUdevice);
    CUresult (*cuCtxCreate)(CUcontext*, unsigned, CUdevice);
    CUresult (*cuCtxDestroy)(CUcontext);
    CUresult (*cuMemGetAllocationGranularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long);
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle);
    CUresult (*cuMemAddressReserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*cuMemAddressFree)(CUdeviceptr, size_t);
    CUresult (*cuMemMap)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*cuMemUnmap)(CUdeviceptr, size_t);
    CUresult (*cuMemSetAccess)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);

    Driver() : library(dlopen("libcuda.so.1", RTLD_NOW)) {
        find(cuInit, "cuInit");
        find(cuDeviceGetAttribute, "cuDeviceGetAttribute");
        find(cuCtxCreate, "cuCtxCreate_v2");
        find(cuCtxDestroy, "cuCtxDestroy_v2");
        find(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
        find(cuMemCreate, "cuMemCreate");
        find(cuMemRelease, "cuMemRelease");
        find(cuMemAddressReserve, "cuMemAddressReserve");
        find(cuMemAddressFree, "cuMemAddressFree");
        find(cuMemMap, "cuMemMap");
        find(cuMemUnmap, "cuMemUnmap");
        find(cuMemSetAccess, "cuMemSetAccess");
        CHECK_DRIVER(cuInit(0));
    }
};
