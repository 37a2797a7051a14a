// 256-bin histogram: atomics in shared memory, then in global memory.
#include "check.h"

__global__ void histogram(const uint8_t* data, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 2'000'003;
    Random random;
    std::vector<uint8_t> data(n);
    std::vector<unsigned> want(256);
    for (uint8_t& x : data) {
        x = uint8_t((random.bits() & random.bits()) >> 24);
        ++want[x];
    }
    uint8_t* d_data = to_device(data);
    unsigned* d_bins = nullptr;
    CHECK(cudaMalloc(&d_bins, 256 * sizeof(unsigned)));
    for (int r = 0; r < options.repeat; ++r) {
        CHECK(cudaMemset(d_bins, 0, 256 * sizeof(unsigned)));
        histogram<<<48, 192>>>(d_data, d_bins, n);
    }
    CHECK(cudaGetLastError());
    bool passed = to_host(d_bins, 256) == want;
    CHECK(cudaFree(d_data));
    CHECK(cudaFree(d_bins));
    return verdict("histogram", passed, "2000003 bytes, 256 bins, exact");
}
