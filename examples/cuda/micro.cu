// Gdev's micro-benchmarks (USENIX ATC 2012), which GPUvm was measured with: a kernel that does nothing, a loop, matrices added
// and multiplied in integer and float, and copies there and back. `micro NAME` runs one of them, `micro` all in turn.
#include "check.h"

#include <string>

constexpr int BLOCK = 16;

__global__ void nop() {}

__global__ void loop(uint32_t* state, int steps) {
    uint32_t x = *state;
    for (int i = 0; i < steps; ++i) x = x * 1664525u + 1013904223u;
    *state = x;
}

template <typename T>
__global__ void add(const T* a, const T* b, T* c, int n) {
    int row = blockIdx.y * BLOCK + threadIdx.y, column = blockIdx.x * BLOCK + threadIdx.x;
    if (row < n && column < n) c[row * n + column] = a[row * n + column] + b[row * n + column];
}

template <typename T>
__global__ void multiply(const T* a, const T* b, T* c, int n) {
    int row = blockIdx.y * BLOCK + threadIdx.y, column = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= n || column >= n) return;
    T sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

bool run_nop(int repeat) {
    compile([] { nop<<<1, 1>>>(); }, nop);
    phases.enter(LAUNCH);
    for (int r = 0; r < repeat; ++r) nop<<<1, 1>>>();
    finish_launches();
    return true;
}

bool run_loop(int repeat) {
    const int steps = 100'000;
    uint32_t* state = to_device(std::vector<uint32_t>{1});
    compile([&] { loop<<<1, 1>>>(state, 0); }, loop);
    phases.enter(LAUNCH);
    for (int r = 0; r < repeat; ++r) loop<<<1, 1>>>(state, steps);
    uint32_t got = to_host(state, 1)[0], want = 1;
    for (int64_t i = 0; i < int64_t(repeat) * steps; ++i) want = want * 1664525u + 1013904223u;
    phases.enter(CLOSE);
    CHECK(cudaFree(state));
    return got == want;
}

uint32_t small(Random& random, uint32_t) { return random.bits() >> 8; }
float small(Random& random, float) { return random.uniform(-1, 1); }
bool close(uint32_t got, uint32_t want) { return got == want; }
bool close(float got, float want) { return std::fabs(got - want) <= 1e-4f; }

template <typename T>
bool run_matrices(void (*kernel)(const T*, const T*, T*, int), bool product, int n, int repeat) {
    Random random;
    std::vector<T> a(size_t(n) * n), b(size_t(n) * n);
    for (T& x : a) x = small(random, T());
    for (T& x : b) x = small(random, T());
    T *da = to_device(a), *db = to_device(b), *dc = on_device<T>(a.size());
    dim3 grid((n + BLOCK - 1) / BLOCK, (n + BLOCK - 1) / BLOCK), block(BLOCK, BLOCK);
    compile([&] { kernel<<<1, block>>>(da, db, dc, n); }, kernel);
    phases.enter(LAUNCH);
    for (int r = 0; r < repeat; ++r) kernel<<<grid, block>>>(da, db, dc, n);
    std::vector<T> c = to_host(dc, a.size());
    bool right = true;
    for (int row = 0; row < n; ++row) {
        for (int column = 0; column < n; ++column) {
            T want = 0;
            if (!product) want = a[row * n + column] + b[row * n + column];
            for (int k = 0; product && k < n; ++k) want += a[row * n + k] * b[k * n + column];
            right = right && close(c[row * n + column], want);
        }
    }
    phases.enter(CLOSE);
    for (T* p : {da, db, dc}) CHECK(cudaFree(p));
    return right;
}

bool run_copy(bool pinned, int repeat) {
    const size_t bytes = 4 << 20;
    std::vector<uint8_t> pageable[2];
    uint8_t *device = on_device<uint8_t>(bytes), *host[2];
    for (int i = 0; i < 2; ++i) {
        phases.enter(TO_GPU);
        if (pinned) CHECK(cudaMallocHost(&host[i], bytes));
        phases.enter(ON_CPU);
        if (!pinned) {
            pageable[i].resize(bytes);
            host[i] = pageable[i].data();
        }
    }
    Random random;
    for (size_t i = 0; i < bytes; ++i) host[0][i] = random.bits() >> 24, host[1][i] = 0;
    for (int r = 0; r < repeat; ++r) {
        phases.enter(TO_GPU);
        CHECK(cudaMemcpy(device, host[0], bytes, cudaMemcpyHostToDevice));
        phases.enter(FROM_GPU);
        CHECK(cudaMemcpy(host[1], device, bytes, cudaMemcpyDeviceToHost));
        phases.enter(ON_CPU);
    }
    bool right = std::memcmp(host[0], host[1], bytes) == 0;
    phases.enter(CLOSE);
    for (uint8_t* p : host) {
        if (pinned) CHECK(cudaFreeHost(p));
    }
    CHECK(cudaFree(device));
    return right;
}

constexpr const char* NAMES[] = {"nop", "loop", "madd", "mmul", "fmadd", "fmmul", "cpy", "cpy_pinned"};

bool run(const std::string& name, int repeat) {
    if (name == "nop") return run_nop(repeat);
    if (name == "loop") return run_loop(repeat);
    if (name == "madd") return run_matrices<uint32_t>(add<uint32_t>, false, 512, repeat);
    if (name == "mmul") return run_matrices<uint32_t>(multiply<uint32_t>, true, 128, repeat);
    if (name == "fmadd") return run_matrices<float>(add<float>, false, 512, repeat);
    if (name == "fmmul") return run_matrices<float>(multiply<float>, true, 128, repeat);
    if (name == "cpy" || name == "cpy_pinned") return run_copy(name == "cpy_pinned", repeat);
    std::fprintf(stderr, "no such benchmark: %s\n", name.c_str());
    std::exit(2);
}

int main(int argc, char** argv) {
    bool one = argc > 1 && argv[1][0] != '-';
    std::vector<std::string> names(std::begin(NAMES), std::end(NAMES));
    if (one) names = {argv[1]};
    Options options = parse_options(argc - one, argv + one);
    std::string wrong, detail;
    for (const std::string& name : names) {
        detail += (detail.empty() ? "" : ", ") + name;
        if (!run(name, options.repeat)) wrong += " " + name;
    }
    if (!wrong.empty()) detail += "; wrong:" + wrong;
    return verdict("micro", wrong.empty(), detail.c_str());
}
