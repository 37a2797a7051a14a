// Kernels with one deliberate fault each, for `sundial run --check`: `faulty FAULT`. Without a fault: `faulty none`, which does what
// they do, as it should be. Says what CUDA makes of it, and exits with 0 if that is nothing.
#include <cooperative_groups.h>

#include "check.h"

constexpr int COUNT = 1000, BLOCK = 64, TILE = 256;

__global__ void add_one(int* data, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += 1;
}

__global__ void store_unaligned(char* data, int offset) {
    if (threadIdx.x == 0) *reinterpret_cast<int*>(data + offset) = 1;
}

__global__ void fill_shared(int* out, int count) {
    extern __shared__ int tile[];
    int i = threadIdx.x;
    if (i < count) tile[i] = i;
    __syncthreads();
    out[i] = tile[BLOCK - 1 - i];
}

// Each thread reads what another warp writes: right only with a barrier between.
template <bool BARRIER>
__global__ void reverse(int* out, const int* in) {
    __shared__ int tile[TILE];
    int i = threadIdx.x;
    tile[i] = in[i];
    if (BARRIER) __syncthreads();
    out[i] = tile[TILE - 1 - i];
}

// All threads leave the same flag: that is no race. The counter is atomic.
__global__ void agree(int* out, const int* in) {
    __shared__ int any, counter;
    if (threadIdx.x == 0) any = counter = 0;
    __syncthreads();
    if (in[threadIdx.x] >= 0) any = 1;
    atomicAdd(&counter, 1);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = any * counter;
}

// The next trip writes what the former one reads: right only with a second barrier.
template <bool BARRIER>
__global__ void in_trips(int* out) {
    __shared__ int tile[TILE];
    int i = threadIdx.x, sum = 0;
    for (int trip = 0; trip < 4; ++trip) {
        tile[i] = i + trip;
        __syncthreads();
        sum += tile[(i + 32) % TILE];
        if (BARRIER) __syncthreads();
    }
    out[i] = sum;
}

// Blocks that wait for each other do so in memory of the driver's.
__global__ void meet(int* data) {
    data[blockIdx.x] = 1;
    cooperative_groups::this_grid().sync();
    if (data[(blockIdx.x + 1) % gridDim.x] != 1) __trap();
}

__global__ void sum(const int* in, int* out, int count) {
    int total = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) total += in[i];
    atomicAdd(out, total);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s none|beyond|pool|freed|null|misaligned|shared|uninitialised|race|trips\n", argv[0]);
        return 2;
    }
    auto is = [&](const char* fault) { return std::strcmp(argv[1], fault) == 0; };
    int *data, *out, *pool;
    CHECK(cudaMalloc(&data, COUNT * sizeof(int)));
    CHECK(cudaMalloc(&out, TILE * sizeof(int)));
    CHECK(cudaMallocAsync(&pool, COUNT * sizeof(int), 0));
    if (!is("uninitialised")) CHECK(cudaMemset(data, 0, COUNT * sizeof(int)));
    CHECK(cudaMemset(out, 0, TILE * sizeof(int)));
    CHECK(cudaMemsetAsync(pool, 0, COUNT * sizeof(int), 0));
    int blocks = (COUNT + 1 + BLOCK - 1) / BLOCK;
    if (is("uninitialised")) {
        // All but the last one are written.
        CHECK(cudaMemset(data, 0, (COUNT - 1) * sizeof(int)));
        sum<<<1, BLOCK>>>(data, out, COUNT);
    } else if (is("race")) {
        reverse<false><<<1, TILE>>>(out, data);
    } else if (is("trips")) {
        in_trips<false><<<1, TILE>>>(out);
    } else if (is("misaligned")) {
        store_unaligned<<<1, BLOCK>>>(reinterpret_cast<char*>(data), 6);
    } else if (is("shared")) {
        // Shared memory comes in units of 128 bytes.
        fill_shared<<<1, BLOCK, BLOCK / 2 * sizeof(int)>>>(out, BLOCK);
    } else if (is("freed")) {
        CHECK(cudaFree(data));
        add_one<<<blocks, BLOCK>>>(data, COUNT);
    } else if (is("null")) {
        add_one<<<1, BLOCK>>>(nullptr, COUNT);
    } else if (is("beyond")) {
        add_one<<<blocks, BLOCK>>>(data, COUNT + 1);
    } else if (is("pool")) {
        add_one<<<blocks, BLOCK>>>(pool, COUNT + 1);
    } else {
        add_one<<<blocks, BLOCK>>>(data, COUNT);
        add_one<<<blocks, BLOCK>>>(pool, COUNT);
        store_unaligned<<<1, BLOCK>>>(reinterpret_cast<char*>(data), 8);
        fill_shared<<<1, BLOCK, BLOCK * sizeof(int)>>>(out, BLOCK);
        reverse<true><<<1, TILE>>>(out, data);
        agree<<<1, TILE>>>(out, data);
        in_trips<true><<<1, TILE>>>(out);
        sum<<<1, BLOCK>>>(data, out, COUNT);
        void* arguments[] = {&data};
        CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(meet), dim3(4), dim3(BLOCK), arguments));
        CHECK(cudaFreeAsync(pool, 0));
    }
    cudaError_t launched = cudaGetLastError(), ran = cudaDeviceSynchronize();
    cudaError_t error = launched != cudaSuccess ? launched : ran;
    std::printf("faulty %s: %s\n", argv[1], cudaGetErrorName(error));
    return error == cudaSuccess ? 0 : 1;
}
