// Two sequences aligned in the best way (Needleman and Wunsch): a table filled along its diagonals, tile by tile, a launch for
// each (as Rodinia's "nw").
#include "check.h"

constexpr int TILE = 16, PENALTY = 10;

__host__ __device__ int best(int a, int b, int c) { return a > b ? (a > c ? a : c) : (b > c ? b : c); }

// The tiles of one diagonal, a block each. The table has a first row and column of its own; `width` counts them.
__global__ void fill(const int* scores, int* table, int width, int diagonal, int first) {
    __shared__ int tile[TILE + 1][TILE + 1];
    int i = threadIdx.x, tile_row = first + blockIdx.x;
    int top = tile_row * TILE, left = (diagonal - tile_row) * TILE;
    tile[i + 1][0] = table[(top + i + 1) * width + left];
    tile[0][i + 1] = table[top * width + left + i + 1];
    if (i == 0) tile[0][0] = table[top * width + left];
    __syncthreads();
    for (int d = 0; d < 2 * TILE - 1; ++d) {
        int row = i + 1, column = d - i + 1;
        if (column >= 1 && column <= TILE) {
            int score = scores[(top + row) * width + left + column];
            tile[row][column] = best(tile[row - 1][column - 1] + score, tile[row][column - 1] - PENALTY,
                                     tile[row - 1][column] - PENALTY);
        }
        __syncthreads();
    }
    for (int row = 1; row <= TILE; ++row) table[(top + row) * width + left + i + 1] = tile[row][i + 1];
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 512, width = n + 1, tiles = n / TILE;
    Random random;
    std::vector<int> a(n), b(n), scores(width * width), start(width * width, 0);
    for (int& x : a) x = random.bits() % 4;
    for (int& x : b) x = random.bits() % 4;
    for (int i = 1; i <= n; ++i) {
        for (int j = 1; j <= n; ++j) scores[i * width + j] = a[i - 1] == b[j - 1] ? 5 : -3;
        start[i * width] = start[i] = -PENALTY * i;
    }
    int *d_scores = to_device(scores), *d_table = to_device(start);
    compile([&] { fill<<<1, TILE>>>(d_scores, d_table, width, 0, 0); }, fill);
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) {
        for (int d = 0; d < 2 * tiles - 1; ++d) {
            int first = std::max(0, d - tiles + 1), last = std::min(d, tiles - 1);
            fill<<<last - first + 1, TILE>>>(d_scores, d_table, width, d, first);
        }
    }
    std::vector<int> got = to_host(d_table, start.size()), want(start);
    for (int i = 1; i <= n; ++i) {
        for (int j = 1; j <= n; ++j) {
            int at = i * width + j;
            want[at] = best(want[at - width - 1] + scores[at], want[at - 1] - PENALTY, want[at - width] - PENALTY);
        }
    }
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d by %d, score %d", n, n, got.back());
    phases.enter(CLOSE);
    CHECK(cudaFree(d_scores));
    CHECK(cudaFree(d_table));
    return verdict("nw", got == want, detail);
}
