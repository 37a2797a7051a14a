// Escape times: every thread leaves its loop when it likes.
#include "check.h"

constexpr int LIMIT = 300;

__host__ __device__ inline int escape_time(float cx, float cy) {
    float x = 0, y = 0;
    int i = 0;
    while (i < LIMIT) {
#ifdef __CUDA_ARCH__
        // Without contraction, so that the CPU's result is the same to the bit.
        float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
        if (__fadd_rn(xx, yy) > 4.0f) break;
        y = __fadd_rn(__fmul_rn(2.0f, __fmul_rn(x, y)), cy);
        x = __fadd_rn(__fsub_rn(xx, yy), cx);
#else
        volatile float xx = x * x, yy = y * y, xy = x * y, sum = xx + yy, difference = xx - yy, twice = 2.0f * xy;
        if (sum > 4.0f) break;
        y = twice + cy;
        x = difference + cx;
#endif
        ++i;
    }
    return i;
}

__global__ void mandelbrot(int* out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    out[y * width + x] = escape_time(-2.0f + x * (1.0f / 128.0f), -1.25f + y * (1.0f / 128.0f));
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int width = 390, height = 310;
    int* d_out = nullptr;
    CHECK(cudaMalloc(&d_out, width * height * sizeof(int)));
    dim3 block(16, 16), grid((width + 15) / 16, (height + 15) / 16);
    for (int r = 0; r < options.repeat; ++r) mandelbrot<<<grid, block>>>(d_out, width, height);
    CHECK(cudaGetLastError());
    std::vector<int> out = to_host(d_out, width * height);
    int wrong = 0;
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            wrong += out[y * width + x] != escape_time(-2.0f + x * (1.0f / 128.0f), -1.25f + y * (1.0f / 128.0f));
        }
    }
    char detail[64];
    std::snprintf(detail, sizeof detail, "%dx%d, %d pixels differ", width, height, wrong);
    CHECK(cudaFree(d_out));
    return verdict("mandelbrot", wrong == 0, detail);
}
