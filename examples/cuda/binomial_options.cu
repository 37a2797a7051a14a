// European calls by a binomial tree, one option per block (vmCUDA's "BO").
#include "check.h"

#include <algorithm>

constexpr int STEPS = 2048;
constexpr int THREADS = 128;
constexpr int PER_THREAD = STEPS / THREADS;

// What the host prepares for an option, as the SDK's program does: prices, the logarithm of a step up, and what an upper and a
// lower node count for a step earlier.
struct Option {
    float stock, strike, per_step, up, down;
};

Option prepare(double stock, double strike, double years, double rate, double volatility) {
    double dt = years / STEPS, v = volatility * sqrt(dt);
    double p = (exp(rate * dt) - exp(-v)) / (exp(v) - exp(-v)), discount = exp(-rate * dt);
    return {float(stock), float(strike), float(v), float(p * discount), float((1 - p) * discount)};
}

__device__ inline float at_expiry(const Option& o, int i) {
    float value = o.stock * expf(o.per_step * (2.0f * i - STEPS)) - o.strike;
    return value > 0.0f ? value : 0.0f;
}

__global__ void binomial(const Option* options, float* values) {
    __shared__ float exchange[THREADS + 1];
    const Option o = options[blockIdx.x];
    const int t = threadIdx.x;
    float value[PER_THREAD + 1];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) value[i] = at_expiry(o, t * PER_THREAD + i);
    if (t == 0) exchange[THREADS] = at_expiry(o, STEPS);
    int last = max(0, t * PER_THREAD - 1);
    for (int i = STEPS; i > 0; --i) {
        exchange[t] = value[0];
        __syncthreads();
        value[PER_THREAD] = exchange[t + 1];
        __syncthreads();
        if (i > last) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) value[j] = o.up * value[j + 1] + o.down * value[j];
        }
    }
    if (t == 0) values[blockIdx.x] = value[0];
}

float on_cpu(const Option& o) {
    std::vector<double> value(STEPS + 1);
    for (int i = 0; i <= STEPS; ++i) {
        value[i] = std::max(0.0, o.stock * exp(double(o.per_step) * (2 * i - STEPS)) - o.strike);
    }
    for (int i = STEPS; i > 0; --i) {
        for (int j = 0; j < i; ++j) value[j] = o.up * value[j + 1] + o.down * value[j];
    }
    return float(value[0]);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = options.paper ? 4096 : 64;
    Random random;
    std::vector<Option> list(n);
    for (Option& o : list) {
        float stock = random.uniform(5, 30), strike = random.uniform(1, 100), years = random.uniform(0.25f, 10);
        o = prepare(stock, strike, years, 0.06, 0.10);
    }
    Option* d_list = to_device(list);
    float* d_values = nullptr;
    CHECK(cudaMalloc(&d_values, n * sizeof(float)));
    compile([&] { binomial<<<1, THREADS>>>(d_list, d_values); }, binomial);
    phases.enter(LAUNCH);
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
    phases.enter(CLOSE);
    CHECK(cudaFree(d_list));
    CHECK(cudaFree(d_values));
    return verdict("binomial_options", error < 1e-5, detail);
}
