// European options by the Black-Scholes formula (vmCUDA's "BS").
#include "check.h"

__host__ __device__ inline float cumulative_normal(float d) {
    const float a1 = 0.31938153f, a2 = -0.356563782f, a3 = 1.781477937f, a4 = -1.821255978f, a5 = 1.330274429f;
    float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    float tail = 0.3989422804f * expf(-0.5f * d * d) * (k * (a1 + k * (a2 + k * (a3 + k * (a4 + k * a5)))));
    return d > 0 ? 1.0f - tail : tail;
}

__host__ __device__ inline void price(float& call, float& put, float stock, float strike, float years, float rate,
                                      float volatility) {
    float root = sqrtf(years);
    float d1 = (logf(stock / strike) + (rate + 0.5f * volatility * volatility) * years) / (volatility * root);
    float d2 = d1 - volatility * root;
    float n1 = cumulative_normal(d1), n2 = cumulative_normal(d2);
    float discounted = strike * expf(-rate * years);
    call = stock * n1 - discounted * n2;
    put = discounted * (1.0f - n2) - stock * (1.0f - n1);
}

__global__ void black_scholes(float* call, float* put, const float* stock, const float* strike, const float* years,
                              float rate, float volatility, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) price(call[i], put[i], stock[i], strike[i], years[i], rate, volatility);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = options.paper ? 100'000'000 : 1'000'000;
    const float rate = 0.02f, volatility = 0.30f;
    Random random;
    std::vector<float> stock(n), strike(n), years(n);
    for (int i = 0; i < n; ++i) {
        stock[i] = random.uniform(5, 30);
        strike[i] = random.uniform(1, 100);
        years[i] = random.uniform(0.25f, 10);
    }
    float *d_stock = to_device(stock), *d_strike = to_device(strike), *d_years = to_device(years);
    float *d_call = nullptr, *d_put = nullptr;
    CHECK(cudaMalloc(&d_call, n * sizeof(float)));
    CHECK(cudaMalloc(&d_put, n * sizeof(float)));
    auto once = [&] { black_scholes<<<1, 128>>>(d_call, d_put, d_stock, d_strike, d_years, rate, volatility, n); };
    compile(once, black_scholes);
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) {
        black_scholes<<<(n + 127) / 128, 128>>>(d_call, d_put, d_stock, d_strike, d_years, rate, volatility, n);
    }
    CHECK(cudaGetLastError());
    std::vector<float> call = to_host(d_call, n), put = to_host(d_put, n);
    std::vector<float> got, want;
    int step = options.paper ? 101 : 1;
    for (int i = 0; i < n; i += step) {
        float c, p;
        price(c, p, stock[i], strike[i], years[i], rate, volatility);
        got.push_back(call[i]);
        got.push_back(put[i]);
        want.push_back(c);
        want.push_back(p);
    }
    double error = relative_error(got, want);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d options, relative error %.1e", n, error);
    phases.enter(CLOSE);
    for (float* p : {d_stock, d_strike, d_years, d_call, d_put}) CHECK(cudaFree(p));
    return verdict("black_scholes", error < 1e-5, detail);
}
