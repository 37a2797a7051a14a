// The temperature of a chip that is warmed here and there: a stencil of five points, many steps (as Rodinia's "hotspot").
#include "check.h"

constexpr int BLOCK = 16;
constexpr float SIDEWAYS = 0.1f, OUTWARDS = 0.01f, AMBIENT = 80.0f;

__host__ __device__ float next(float here, float north, float south, float west, float east, float power) {
    return here + power + SIDEWAYS * (north + south + west + east - 4 * here) + OUTWARDS * (AMBIENT - here);
}

// A block computes its tile from a tile that is wider by one on each side; beyond the chip's edge it is as at the edge.
__global__ void step(const float* in, const float* power, float* out, int n) {
    __shared__ float tile[BLOCK + 2][BLOCK + 2];
    int top = blockIdx.y * BLOCK, left = blockIdx.x * BLOCK;
    for (int i = threadIdx.y * BLOCK + threadIdx.x; i < (BLOCK + 2) * (BLOCK + 2); i += BLOCK * BLOCK) {
        int row = i / (BLOCK + 2), column = i % (BLOCK + 2);
        int y = min(max(top + row - 1, 0), n - 1), x = min(max(left + column - 1, 0), n - 1);
        tile[row][column] = in[y * n + x];
    }
    __syncthreads();
    int row = threadIdx.y + 1, column = threadIdx.x + 1, at = (top + row - 1) * n + left + column - 1;
    out[at] = next(tile[row][column], tile[row - 1][column], tile[row + 1][column], tile[row][column - 1],
                   tile[row][column + 1], power[at]);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 256, steps = 20;
    Random random;
    std::vector<float> heat(n * n), power(n * n);
    for (float& x : heat) x = random.uniform(70, 90);
    for (float& x : power) x = random.uniform(0, 1);
    float *d_in = to_device(heat), *d_power = to_device(power), *d_out = on_device<float>(n * n);
    compile([&] { step<<<1, dim3(BLOCK, BLOCK)>>>(d_in, d_power, d_out, n); }, step);
    phases.enter(LAUNCH);
    for (int s = 0; s < steps * options.repeat; ++s) {
        step<<<dim3(n / BLOCK, n / BLOCK), dim3(BLOCK, BLOCK)>>>(d_in, d_power, d_out, n);
        std::swap(d_in, d_out);
    }
    std::vector<float> got = to_host(d_in, n * n), then(n * n);
    for (int s = 0; s < steps * options.repeat; ++s) {
        for (int y = 0; y < n; ++y) {
            for (int x = 0; x < n; ++x) {
                auto inside = [&](int i) { return std::min(std::max(i, 0), n - 1); };
                auto at = [&](int y, int x) { return heat[inside(y) * n + inside(x)]; };
                then[y * n + x] = next(at(y, x), at(y - 1, x), at(y + 1, x), at(y, x - 1), at(y, x + 1), power[y * n + x]);
            }
        }
        heat.swap(then);
    }
    double error = relative_error(got, heat);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%dx%d, %d steps, relative error %.1e", n, n, steps, error);
    phases.enter(CLOSE);
    for (float* p : {d_in, d_power, d_out}) CHECK(cudaFree(p));
    return verdict("hotspot", error < 1e-5, detail);
}
