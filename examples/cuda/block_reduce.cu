// Block reduction with cooperative groups: tiles of 32 threads and of 8, and reduce().
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

__global__ void block_reduce(const float* in, float* sums, int* largest, int n) {
    __shared__ float partial[32];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? in[i] : 0.0f;
    float sum = cg::reduce(warp, value, cg::plus<float>());
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = sum;
    cg::sync(block);
    if (warp.meta_group_rank() == 0) {
        sum = warp.thread_rank() < warp.meta_group_size() ? partial[warp.thread_rank()] : 0.0f;
        sum = cg::reduce(warp, sum, cg::plus<float>());
        if (warp.thread_rank() == 0) sums[blockIdx.x] = sum;
    }
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(warp);
    int most = cg::reduce(eight, int(value), cg::greater<int>());
    if (eight.thread_rank() == 0) atomicMax(&largest[blockIdx.x], most);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 100'000, threads = 256, blocks = (n + threads - 1) / threads;
    Random random;
    std::vector<float> in(n);
    for (float& x : in) x = float(random.bits() % 512);
    float *d_in = to_device(in), *d_sums = nullptr;
    int* d_largest = nullptr;
    CHECK(cudaMalloc(&d_sums, blocks * sizeof(float)));
    CHECK(cudaMalloc(&d_largest, blocks * sizeof(int)));
    CHECK(cudaMemset(d_largest, 0, blocks * sizeof(int)));
    for (int r = 0; r < options.repeat; ++r) block_reduce<<<blocks, threads>>>(d_in, d_sums, d_largest, n);
    CHECK(cudaGetLastError());
    std::vector<float> sums = to_host(d_sums, blocks);
    std::vector<int> largest = to_host(d_largest, blocks);
    int wrong = 0;
    for (int b = 0; b < blocks; ++b) {
        float sum = 0, most = 0;
        for (int i = b * threads; i < std::min(n, (b + 1) * threads); ++i) sum += in[i], most = std::max(most, in[i]);
        wrong += sums[b] != sum || largest[b] != int(most);
    }
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d blocks, %d wrong", blocks, wrong);
    CHECK(cudaFree(d_in));
    CHECK(cudaFree(d_sums));
    CHECK(cudaFree(d_largest));
    return verdict("block_reduce", wrong == 0, detail);
}
