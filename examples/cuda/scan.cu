// Inclusive prefix sum in three passes: scan of blocks, scan of their sums, addition.
#include "check.h"

constexpr int THREADS = 512;

__global__ void scan_blocks(const unsigned* in, unsigned* out, unsigned* sums, int n) {
    extern __shared__ unsigned buffer[];
    int i = blockIdx.x * THREADS + threadIdx.x;
    buffer[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int offset = 1; offset < THREADS; offset *= 2) {
        unsigned add = threadIdx.x >= offset ? buffer[threadIdx.x - offset] : 0;
        __syncthreads();
        buffer[threadIdx.x] += add;
        __syncthreads();
    }
    if (i < n) out[i] = buffer[threadIdx.x];
    if (sums && threadIdx.x == THREADS - 1) sums[blockIdx.x] = buffer[threadIdx.x];
}

__global__ void add_sums(unsigned* out, const unsigned* sums, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (blockIdx.x > 0 && i < n) out[i] += sums[blockIdx.x - 1];
}

void scan(const unsigned* in, unsigned* out, int n) {
    int blocks = (n + THREADS - 1) / THREADS;
    unsigned* sums = nullptr;
    if (blocks > 1) CHECK(cudaMalloc(&sums, blocks * sizeof(unsigned)));
    scan_blocks<<<blocks, THREADS, THREADS * sizeof(unsigned)>>>(in, out, sums, n);
    CHECK(cudaGetLastError());
    if (blocks > 1) {
        scan(sums, sums, blocks);
        add_sums<<<blocks, THREADS>>>(out, sums, n);
        CHECK(cudaGetLastError());
        CHECK(cudaFree(sums));
    }
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 700'001;
    Random random;
    std::vector<unsigned> in(n), want(n);
    unsigned sum = 0;
    for (int i = 0; i < n; ++i) {
        in[i] = random.bits();
        want[i] = sum += in[i];
    }
    unsigned *d_in = to_device(in), *d_out = nullptr;
    CHECK(cudaMalloc(&d_out, n * sizeof(unsigned)));
    for (int r = 0; r < options.repeat; ++r) scan(d_in, d_out, n);
    bool passed = to_host(d_out, n) == want;
    CHECK(cudaFree(d_in));
    CHECK(cudaFree(d_out));
    return verdict("scan", passed, "700001 elements, exact");
}
