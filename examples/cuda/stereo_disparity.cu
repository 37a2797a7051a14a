// Stereo matching by sums of absolute differences of packed bytes (vmCUDA's "SD").
#include "check.h"

constexpr int RADIUS = 4, MAX_DISPARITY = 16, BLOCK_X = 32, BLOCK_Y = 8;

// |a - b| of four packed bytes, summed, plus c.
__device__ inline uint32_t sad4(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result;
    asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

__device__ inline uint32_t pixel(const uint32_t* image, int x, int y, int width, int height) {
    x = min(max(x, 0), width - 1);
    y = min(max(y, 0), height - 1);
    return image[y * width + x];
}

__global__ void disparity(const uint32_t* left, const uint32_t* right, uint32_t* out, int width, int height) {
    __shared__ uint32_t difference[BLOCK_Y + 2 * RADIUS][BLOCK_X + 2 * RADIUS];
    const int x0 = blockIdx.x * BLOCK_X, y0 = blockIdx.y * BLOCK_Y;
    uint32_t best_cost = ~0u, best = 0;
    for (int d = 0; d <= MAX_DISPARITY; ++d) {
        for (int ty = threadIdx.y; ty < BLOCK_Y + 2 * RADIUS; ty += BLOCK_Y) {
            for (int tx = threadIdx.x; tx < BLOCK_X + 2 * RADIUS; tx += BLOCK_X) {
                int x = x0 + tx - RADIUS, y = y0 + ty - RADIUS;
                difference[ty][tx] = sad4(pixel(left, x, y, width, height), pixel(right, x - d, y, width, height), 0);
            }
        }
        __syncthreads();
        uint32_t cost = 0;
        for (int dy = 0; dy <= 2 * RADIUS; ++dy) {
            for (int dx = 0; dx <= 2 * RADIUS; ++dx) cost += difference[threadIdx.y + dy][threadIdx.x + dx];
        }
        if (cost < best_cost) {
            best_cost = cost;
            best = d;
        }
        __syncthreads();
    }
    int x = x0 + threadIdx.x, y = y0 + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = best;
}

uint32_t sad4_cpu(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (int i = 0; i < 32; i += 8) sum += std::abs(int(a >> i & 255) - int(b >> i & 255));
    return sum;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    // The paper gives 2496 MB in and 832 MB out: two images of 832 MB and, as in the SDK's program, the cleared output.
    const int width = options.paper ? 16384 : 320, height = options.paper ? 13312 : 200;
    Random random;
    std::vector<uint32_t> left(width * height), right(width * height), out(width * height);
    for (uint32_t& p : right) p = random.bits();
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) left[y * width + x] = right[y * width + std::max(0, x - 3 - 8 * (y / 64 % 2))];
    }
    uint32_t *d_left = to_device(left), *d_right = to_device(right), *d_out = to_device(out);
    dim3 block(BLOCK_X, BLOCK_Y), grid((width + BLOCK_X - 1) / BLOCK_X, (height + BLOCK_Y - 1) / BLOCK_Y);
    compile([&] { disparity<<<1, block>>>(d_left, d_right, d_out, width, height); }, disparity);
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) disparity<<<grid, block>>>(d_left, d_right, d_out, width, height);
    CHECK(cudaGetLastError());
    out = to_host(d_out, left.size());
    auto at = [&](const std::vector<uint32_t>& image, int x, int y) {
        return image[std::min(std::max(y, 0), height - 1) * width + std::min(std::max(x, 0), width - 1)];
    };
    int wrong = 0, checked = 0;
    for (int i = 0; i < width * height; i += options.paper ? 99991 : 7) {
        int px = i % width, py = i / width;
        uint32_t best_cost = ~0u, best = 0;
        for (int d = 0; d <= MAX_DISPARITY; ++d) {
            uint32_t cost = 0;
            for (int dy = -RADIUS; dy <= RADIUS; ++dy) {
                for (int dx = -RADIUS; dx <= RADIUS; ++dx) {
                    cost += sad4_cpu(at(left, px + dx, py + dy), at(right, px + dx - d, py + dy));
                }
            }
            if (cost < best_cost) best_cost = cost, best = d;
        }
        ++checked;
        wrong += out[i] != best;
    }
    char detail[80];
    std::snprintf(detail, sizeof detail, "%dx%d, %d of %d checked pixels wrong", width, height, wrong, checked);
    phases.enter(CLOSE);
    for (uint32_t* p : {d_left, d_right, d_out}) CHECK(cudaFree(p));
    return verdict("stereo_disparity", wrong == 0, detail);
}
