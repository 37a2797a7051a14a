// The kernels of the demonstration's tenants. `cargo xtask gen-ptx` makes tenants.ptx of it.

constexpr int TILE = 16;

extern "C" __global__ void matrix_mul(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < n; t += TILE) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Horner's scheme with many terms: arithmetic without memory traffic.
extern "C" __global__ void polynomial(const float* x, float* y, int terms, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = 0.0f, at = x[i];
    for (int k = terms; k > 0; --k) value = value * at + 1.0f / k;
    y[i] = value;
}

// Game of life on a torus, one step.
extern "C" __global__ void life(const unsigned char* in, unsigned char* out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int alive = 0;
    for (int dy = -1; dy <= 1; ++dy) {
        for (int dx = -1; dx <= 1; ++dx) {
            int nx = (x + dx + width) % width, ny = (y + dy + height) % height;
            if (dx != 0 || dy != 0) alive += in[ny * width + nx];
        }
    }
    out[y * width + x] = alive == 3 || (alive == 2 && in[y * width + x]);
}

// Reads far behind an allocation.
extern "C" __global__ void stray(const float* data, float* out, long long far) {
    out[threadIdx.x] = data[far + threadIdx.x];
}

// Never ends.
extern "C" __global__ void endless(volatile unsigned* flag) {
    while (*flag == 0) {
    }
}
