// c = a + b, the "hello, world" of CUDA.
#include "check.h"

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 1'000'003;
    Random random;
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; ++i) {
        a[i] = random.uniform(-1, 1);
        b[i] = random.uniform(-1, 1);
    }
    float *da = to_device(a), *db = to_device(b), *dc = nullptr;
    CHECK(cudaMalloc(&dc, n * sizeof(float)));
    for (int r = 0; r < options.repeat; ++r) vector_add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    CHECK(cudaGetLastError());
    std::vector<float> c = to_host(dc, n);
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += c[i] != a[i] + b[i];
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    return verdict("vector_add", wrong == 0, "1000003 elements, bit-equal");
}
