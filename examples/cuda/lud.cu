// A matrix as the product of a lower and an upper triangle, in place, tile by tile: three small launches for each step along the
// diagonal (as Rodinia's "lud").
#include "check.h"

constexpr int TILE = 16;

// The tile on the diagonal itself.
__global__ void diagonal(float* m, int n, int from) {
    __shared__ float tile[TILE][TILE];
    int i = threadIdx.x;
    float* corner = m + from * n + from;
    for (int row = 0; row < TILE; ++row) tile[row][i] = corner[row * n + i];
    __syncthreads();
    for (int k = 0; k < TILE - 1; ++k) {
        if (i > k) {
            tile[i][k] /= tile[k][k];
            for (int j = k + 1; j < TILE; ++j) tile[i][j] -= tile[i][k] * tile[k][j];
        }
        __syncthreads();
    }
    for (int row = 0; row < TILE; ++row) corner[row * n + i] = tile[row][i];
}

// The tiles to the right of it (half of the threads, a column each) and below it (the others, a row each).
__global__ void perimeter(float* m, int n, int from) {
    __shared__ float tile[TILE][TILE];
    int i = threadIdx.x % TILE, away = from + (blockIdx.x + 1) * TILE;
    bool right = threadIdx.x < TILE;
    for (int row = 0; right && row < TILE; ++row) tile[row][i] = m[(from + row) * n + from + i];
    __syncthreads();
    float mine[TILE];
    for (int k = 0; k < TILE; ++k) mine[k] = right ? m[(from + k) * n + away + i] : m[(away + i) * n + from + k];
    for (int k = 0; k < TILE; ++k) {
        for (int j = 0; j < k; ++j) mine[k] -= mine[j] * (right ? tile[k][j] : tile[j][k]);
        if (!right) mine[k] /= tile[k][k];
    }
    for (int k = 0; k < TILE; ++k) (right ? m[(from + k) * n + away + i] : m[(away + i) * n + from + k]) = mine[k];
}

// All tiles to the right of it and below it.
__global__ void inside(float* m, int n, int from) {
    __shared__ float above[TILE][TILE], before[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = from + (blockIdx.y + 1) * TILE + y, column = from + (blockIdx.x + 1) * TILE + x;
    above[y][x] = m[(from + y) * n + column];
    before[y][x] = m[row * n + from + x];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < TILE; ++k) sum += before[y][k] * above[k][x];
    m[row * n + column] -= sum;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 192;
    Random random;
    std::vector<float> matrix(n * n);
    for (int i = 0; i < n * n; ++i) matrix[i] = random.uniform(-1, 1) + (i % (n + 1) == 0 ? n : 0);
    float *d_matrix = to_device(matrix), *d_result = on_device<float>(n * n);
    auto once = [&] {
        diagonal<<<1, TILE>>>(d_result, n, 0);
        perimeter<<<1, 2 * TILE>>>(d_result, n, 0);
        inside<<<1, dim3(TILE, TILE)>>>(d_result, n, 0);
    };
    compile(once, diagonal, perimeter, inside);
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) {
        CHECK(cudaMemcpy(d_result, d_matrix, n * n * sizeof(float), cudaMemcpyDeviceToDevice));
        for (int from = 0; from < n; from += TILE) {
            diagonal<<<1, TILE>>>(d_result, n, from);
            int left = (n - from) / TILE - 1;
            if (left == 0) continue;
            perimeter<<<left, 2 * TILE>>>(d_result, n, from);
            inside<<<dim3(left, left), dim3(TILE, TILE)>>>(d_result, n, from);
        }
    }
    std::vector<float> both = to_host(d_result, n * n), got(n * n);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            double sum = i <= j ? both[i * n + j] : 0;
            for (int k = 0; k < std::min(i, j + 1); ++k) sum += double(both[i * n + k]) * both[k * n + j];
            got[i * n + j] = float(sum);
        }
    }
    double error = relative_error(got, matrix);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%dx%d, relative error of the product %.1e", n, n, error);
    phases.enter(CLOSE);
    CHECK(cudaFree(d_matrix));
    CHECK(cudaFree(d_result));
    return verdict("lud", error < 1e-5, detail);
}
