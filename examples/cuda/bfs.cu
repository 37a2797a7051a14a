// Breadth-first search, a level at a time; the CPU asks after each whether there was another (as Rodinia's "bfs").
#include "check.h"

#include <queue>

constexpr int THREADS = 256;

// All nodes of this level give the next level to their neighbours that have none.
__global__ void expand(const int* first, const int* neighbour, int* level, int now, int* more, int n) {
    int node = blockIdx.x * THREADS + threadIdx.x;
    if (node >= n || level[node] != now) return;
    for (int e = first[node]; e < first[node + 1]; ++e) {
        if (level[neighbour[e]] < 0) {
            level[neighbour[e]] = now + 1;
            *more = 1;
        }
    }
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 16 << 10;
    Random random;
    std::vector<int> first{0}, neighbour;
    for (int node = 0; node < n; ++node) {
        // Some nodes have no way out.
        for (int degree = random.bits() % 8; degree > 0; --degree) neighbour.push_back(random.bits() % n);
        first.push_back(int(neighbour.size()));
    }
    neighbour.push_back(0);
    std::vector<int> start(n, -1);
    start[0] = 0;
    int *d_first = to_device(first), *d_neighbour = to_device(neighbour), *d_level = on_device<int>(n);
    int* d_more = on_device<int>(1);
    int levels = 0;
    // No node has such a level.
    compile([&] { expand<<<1, THREADS>>>(d_first, d_neighbour, d_level, -2, d_more, n); }, expand);
    for (int r = 0; r < options.repeat; ++r) {
        phases.enter(TO_GPU);
        CHECK(cudaMemcpy(d_level, start.data(), n * sizeof(int), cudaMemcpyHostToDevice));
        for (int more = 1, now = 0; more; ++now, levels = now) {
            phases.enter(LAUNCH);
            CHECK(cudaMemset(d_more, 0, sizeof(int)));
            expand<<<(n + THREADS - 1) / THREADS, THREADS>>>(d_first, d_neighbour, d_level, now, d_more, n);
            more = to_host(d_more, 1)[0];
        }
    }
    std::vector<int> got = to_host(d_level, n), want(start);
    std::queue<int> waiting({0});
    for (; !waiting.empty(); waiting.pop()) {
        int node = waiting.front();
        for (int e = first[node]; e < first[node + 1]; ++e) {
            if (want[neighbour[e]] >= 0) continue;
            want[neighbour[e]] = want[node] + 1;
            waiting.push(neighbour[e]);
        }
    }
    int wrong = 0, reached = 0;
    for (int node = 0; node < n; ++node) wrong += got[node] != want[node], reached += want[node] >= 0;
    char detail[96];
    std::snprintf(detail, sizeof detail, "%d of %d nodes reached in %d levels, %d wrong", reached, n, levels, wrong);
    phases.enter(CLOSE);
    for (int* p : {d_first, d_neighbour, d_level, d_more}) CHECK(cudaFree(p));
    return verdict("bfs", wrong == 0, detail);
}
