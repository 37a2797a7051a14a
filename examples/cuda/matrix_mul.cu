// C = A x B with tiles in shared memory (vmCUDA's "MM").
#include "check.h"

constexpr int TILE = 32;

__global__ void matrix_mul(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < n; t += TILE) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + column];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = options.paper ? 4096 : 256;
    Random random;
    std::vector<float> a(size_t(n) * n), b(size_t(n) * n);
    for (float& x : a) x = random.uniform(-1, 1);
    for (float& x : b) x = random.uniform(-1, 1);
    float *da = to_device(a), *db = to_device(b), *dc = nullptr;
    CHECK(cudaMalloc(&dc, a.size() * sizeof(float)));
    compile([&] { matrix_mul<<<1, dim3(TILE, TILE)>>>(da, db, dc, n); }, matrix_mul);
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) matrix_mul<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(da, db, dc, n);
    CHECK(cudaGetLastError());
    std::vector<float> c = to_host(dc, a.size());
    // All elements of a small product, one in 99,991 of a large one.
    std::vector<float> got, want;
    size_t step = options.paper ? 99991 : 1;
    for (size_t at = 0; at < c.size(); at += step) {
        size_t row = at / n, column = at % n;
        double sum = 0;
        for (int k = 0; k < n; ++k) sum += double(a[row * n + k]) * b[size_t(k) * n + column];
        got.push_back(c[at]);
        want.push_back(float(sum));
    }
    double error = relative_error(got, want);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%dx%d, relative error %.1e", n, n, error);
    phases.enter(CLOSE);
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    return verdict("matrix_mul", error < 1e-5, detail);
}
