// European calls by a binomial tree, one option per block (vmCUDA's "BO").
#include "check.h"

constexpr int STEPS = 2048;
constexpr int THREADS = 128;
constexpr int PER_THREAD = STEPS / THREADS;

struct Option {
    float stock, strike, years, rate, volatility;
};

struct Tree {
    float per_step, up, down;
};

__host__ __device__ inline Tree tree_of(const Option& o) {
    float dt = o.years / STEPS;
    float v = o.volatility * sqrtf(dt);
    float growth = expf(o.rate * dt), discount = expf(-o.rate * dt);
    float u = expf(v), d = expf(-v);
    float p = (growth - d) / (u - d);
    return {v, p * discount, (1.0f - p) * discount};
}

__host__ __device__ inline float at_expiry(const Option& o, float per_step, int i) {
    float value = o.stock * expf(per_step * (2.0f * i - STEPS)) - o.strike;
    return value > 0.0f ? value : 0.0f;
}

__global__ void binomial(const Option* options, float* values) {
    __shared__ float exchange[THREADS + 1];
    const Option o = options[blockIdx.x];
    const Tree tree = tree_of(o);
    const int t = threadIdx.x;
    float value[PER_THREAD + 1];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) value[i] = at_expiry(o, tree.per_step, t * PER_THREAD + i);
    if (t == 0) exchange[THREADS] = at_expiry(o, tree.per_step, STEPS);
    int last = max(0, t * PER_THREAD - 1);
    for (int i = STEPS; i > 0; --i) {
        exchange[t] = value[0];
        __syncthreads();
        value[PER_THREAD] = exchange[t + 1];
        __syncthreads();
        if (i > last) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) value[j] = tree.up * value[j + 1] + tree.down * value[j];
        }
    }
    if (t == 0) values[blockIdx.x] = value[0];
}

float on_cpu(const Option& o) {
    Tree tree = tree_of(o);
    std::vector<float> value(STEPS + 1);
    for (int i = 0; i <= STEPS; ++i) value[i] = at_expiry(o, tree.per_step, i);
    for (int i = STEPS; i > 0; --i) {
        for (int j = 0; j < i; ++j) value[j] = tree.up * value[j + 1] + tree.down * value[j];
    }
    return value[0];
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = options.paper ? 4096 : 64;
    Random random;
    std::vector<Option> list(n);
    for (Option& o : list) {
        o = {random.uniform(5, 30), random.uniform(1, 100), random.uniform(0.25f, 10), 0.06f, 0.10f};
    }
    Option* d_list = to_device(list);
    float* d_values = nullptr;
    CHECK(cudaMalloc(&d_values, n * sizeof(float)));
    for (int r = 0; r < options.repeat; ++r) binomial<<<n, THREADS>>>(d_list, d_values);
    CHECK(cudaGetLastError());
    std::vector<float> values = to_host(d_values, n), got, want;
    for (int i = 0; i < n; i += options.paper ? 127 : 1) {
        got.push_back(values[i]);
        want.push_back(on_cpu(list[i]));
    }
    double error = relative_error(got, want);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d options, %d steps, relative error %.1e", n, STEPS, error);
    CHECK(cudaFree(d_list));
    CHECK(cudaFree(d_values));
    return verdict("binomial_options", error < 1e-4, detail);
}
