// Sum with warp shuffles, then shared memory, then one atomic per block.
#include "check.h"

__inline__ __device__ int warp_sum(int value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

__global__ void reduce(const int* in, int* out, int n) {
    __shared__ int partial[32];
    int sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    sum = warp_sum(sum);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = lane < blockDim.x / 32 ? partial[lane] : 0;
        sum = warp_sum(sum);
        if (lane == 0) atomicAdd(out, sum);
    }
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 3'000'017;
    Random random;
    std::vector<int> in(n);
    long long want = 0;
    for (int& x : in) {
        x = int(random.bits() % 2001) - 1000;
        want += x;
    }
    int *d_in = to_device(in), *d_out = nullptr;
    CHECK(cudaMalloc(&d_out, sizeof(int)));
    for (int r = 0; r < options.repeat; ++r) {
        CHECK(cudaMemset(d_out, 0, sizeof(int)));
        reduce<<<64, 256>>>(d_in, d_out, n);
    }
    CHECK(cudaGetLastError());
    int got = to_host(d_out, 1)[0];
    char detail[64];
    std::snprintf(detail, sizeof detail, "sum of %d is %d, CPU %lld", n, got, want);
    CHECK(cudaFree(d_in));
    CHECK(cudaFree(d_out));
    return verdict("reduction", got == want, detail);
}
