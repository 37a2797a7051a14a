// Takes and gives GPU memory as it is told on its standard input, and says in JSON what came of it: a tenant whose every step
// a test decides.
//
//   alloc N    allocates N MiB, fills them in a kernel, and looks at the last of them
//   later N    the same on another thread; what came of it is said when it is known, as `later`
//   free       frees what was allocated last
//   pool N     allocates and frees N MiB in stream order, in a pool that keeps what is freed
//   info       what cudaMemGetInfo says, in MiB
//   reset      ends the context, with all that is in it
#include "check.h"

#include <iostream>
#include <mutex>
#include <string>
#include <thread>

__global__ void fill(unsigned* words, size_t count) {
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) words[i] = unsigned(i) ^ 0x5eedu;
}

static std::mutex lock;
static std::vector<void*> held;

static void say(const char* did, cudaError_t error, const std::string& more = "") {
    std::lock_guard<std::mutex> guard(lock);
    std::printf("{\"did\":\"%s\",\"error\":%d%s}\n", did, static_cast<int>(error), more.c_str());
    std::fflush(stdout);
}

static cudaError_t take(size_t mib) {
    size_t bytes = mib << 20, count = bytes / sizeof(unsigned);
    unsigned* words = nullptr;
    cudaError_t error = cudaMalloc(&words, bytes);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return error;
    }
    fill<<<16, 128>>>(words, count);
    unsigned last = 0;
    error = cudaMemcpy(&last, words + count - 1, sizeof last, cudaMemcpyDeviceToHost);
    if (error == cudaSuccess && last != (unsigned(count - 1) ^ 0x5eedu)) error = cudaErrorUnknown;
    std::lock_guard<std::mutex> guard(lock);
    held.push_back(words);
    return error;
}

static cudaError_t keep_in_pool(size_t mib) {
    cudaMemPool_t pool;
    cudaError_t error = cudaDeviceGetDefaultMemPool(&pool, 0);
    if (error != cudaSuccess) return error;
    uint64_t all = UINT64_MAX;
    error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
    if (error != cudaSuccess) return error;
    void* memory = nullptr;
    error = cudaMallocAsync(&memory, mib << 20, nullptr);
    if (error != cudaSuccess) return error;
    error = cudaFreeAsync(memory, nullptr);
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}

int main() {
    std::vector<std::thread> threads;
    std::string what;
    while (std::cin >> what) {
        size_t mib = 0;
        if (what == "alloc" || what == "later" || what == "pool") std::cin >> mib;
        if (what == "alloc") {
            say("alloc", take(mib));
        } else if (what == "later") {
            threads.emplace_back([mib] { say("later", take(mib)); });
        } else if (what == "free") {
            void* last = nullptr;
            {
                std::lock_guard<std::mutex> guard(lock);
                if (!held.empty()) {
                    last = held.back();
                    held.pop_back();
                }
            }
            say("free", cudaFree(last));
        } else if (what == "pool") {
            say("pool", keep_in_pool(mib));
        } else if (what == "info") {
            size_t free = 0, total = 0;
            cudaError_t error = cudaMemGetInfo(&free, &total);
            say("info", error, ",\"free\":" + std::to_string(free >> 20) + ",\"total\":" + std::to_string(total >> 20));
        } else if (what == "reset") {
            say("reset", cudaDeviceReset());
        }
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
}
