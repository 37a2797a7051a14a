// Surfaces come and go, as those of media drivers do: addresses and physical memory are had once, and for each surface pages
// are mapped that others had before. So what a picture costs besides its pixels is changes to the GPU's page tables.
//
// By default the pages are the host's, as all graphics memory of an integrated GPU is (`--memory device`: the GPU's own). In
// memory one surface lies behind the other; among addresses there is a guard page between them, so that a kernel that runs over
// one faults. So hardly any of them could be mapped by larger pages than the host's, and they are many.
#pragma once

#include "driver.h"

#include <map>
#include <vector>

struct Surface {
    CUdeviceptr at = 0;
    size_t bytes = 0, place = 0;

    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(at);
    }
};

// Free ranges, taken in a ring.
class Ring {
    std::map<size_t, size_t> free;
    size_t next = 0;

  public:
    void add(size_t at, size_t bytes) {
        auto after = free.lower_bound(at);
        if (after != free.begin()) {
            auto before = std::prev(after);
            if (before->first + before->second == at) at = before->first, bytes += before->second, free.erase(before);
        }
        if (after != free.end() && at + bytes == after->first) bytes += after->second, free.erase(after);
        free[at] = bytes;
    }
    // The first that fits from where the last one ended; false if none does.
    bool take(size_t bytes, size_t& at) {
        for (size_t from : {next, size_t(0)}) {
            for (auto [start, length] : free) {
                size_t begin = start < from ? from : start;
                if (begin >= start + length || start + length - begin < bytes) continue;
                free.erase(start);
                if (begin > start) free[start] = begin - start;
                if (begin + bytes < start + length) free[begin + bytes] = start + length - begin - bytes;
                at = begin, next = begin + bytes;
                return true;
            }
        }
        return false;
    }
};

class Surfaces {
    const Driver& driver;
    size_t granularity = 0, bytes = 0, range = 0;
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr first = 0;
    Ring places, addresses;
    int device;

  public:
    size_t mapped = 0;

    // Memory for surfaces of these sizes at once.
    Surfaces(const Driver& driver, int device, bool on_host, const std::vector<size_t>& sizes)
        : driver(driver), device(device) {
        CUmemAllocationProp wanted = {};
        wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location.type = on_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.location.id = device;
        if (on_host) {
            int node = 0;
            CHECK_DRIVER(driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device));
            wanted.location.id = node < 0 ? 0 : node;
        }
        CHECK_DRIVER(driver.cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        // Some remain free between others.
        for (size_t size : sizes) bytes += whole(size);
        bytes += bytes / 4 + granularity;
        bytes = whole(bytes);
        range = 2 * (bytes + sizes.size() * granularity);
        CHECK_DRIVER(driver.cuMemCreate(&memory, bytes, &wanted, 0));
        CHECK_DRIVER(driver.cuMemAddressReserve(&first, range, 0, 0, 0));
        places.add(0, bytes);
        addresses.add(0, range);
    }
    Surfaces(const Surfaces&) = delete;
    ~Surfaces() {
        CHECK_DRIVER(driver.cuMemAddressFree(first, range));
        CHECK_DRIVER(driver.cuMemRelease(memory));
    }

    size_t whole(size_t size) const { return (size + granularity - 1) / granularity * granularity; }

    // What is in it at first is what others left there.
    Surface map(size_t size) {
        Surface surface;
        surface.bytes = whole(size);
        size_t address = 0;
        if (!places.take(surface.bytes, surface.place) || !addresses.take(surface.bytes + granularity, address)) {
            std::fprintf(stderr, "gmedia: no room for a surface of %zu bytes\n", size);
            std::exit(2);
        }
        surface.at = first + address;
        CHECK_DRIVER(driver.cuMemMap(surface.at, surface.bytes, surface.place, memory, 0));
        CUmemAccessDesc access = {};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = device;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CHECK_DRIVER(driver.cuMemSetAccess(surface.at, surface.bytes, &access, 1));
        mapped += surface.bytes;
        return surface;
    }
    // Nothing uses it any more.
    void unmap(Surface& surface) {
        CHECK_DRIVER(driver.cuMemUnmap(surface.at, surface.bytes));
        places.add(surface.place, surface.bytes);
        addresses.add(surface.at - first, surface.bytes + granularity);
        surface = {};
    }
};
