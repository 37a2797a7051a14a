// A step of training a network with one hidden layer, forwards and backwards (as Rodinia's "backprop").
#include "check.h"

constexpr int HIDDEN = 16, ROWS = 16;
constexpr float RATE = 0.3f;

// Each block multiplies its ROWS inputs with their weights and adds the products up for each hidden unit.
__global__ void forward(const float* input, const float* weights, float* partial) {
    __shared__ float product[ROWS][HIDDEN];
    int j = threadIdx.x, i = threadIdx.y, row = blockIdx.x * ROWS + i;
    product[i][j] = input[row] * weights[row * HIDDEN + j];
    __syncthreads();
    for (int half = ROWS / 2; half > 0; half /= 2) {
        if (i < half) product[i][j] += product[i + half][j];
        __syncthreads();
    }
    if (i == 0) partial[blockIdx.x * HIDDEN + j] = product[0][j];
}

__global__ void adjust(const float* input, const float* delta, float* weights) {
    int j = threadIdx.x, row = blockIdx.x * ROWS + threadIdx.y;
    weights[row * HIDDEN + j] += RATE * delta[j] * input[row];
}

float squash(double x) { return float(1 / (1 + std::exp(-x))); }

// What the hidden units should have been more of, for the output to come nearer to the target.
std::vector<float> hidden_deltas(const std::vector<float>& hidden, const std::vector<float>& weights, float target) {
    double sum = 0;
    for (int j = 0; j < HIDDEN; ++j) sum += double(hidden[j]) * weights[j];
    float output = squash(sum), error = (target - output) * output * (1 - output);
    std::vector<float> deltas(HIDDEN);
    for (int j = 0; j < HIDDEN; ++j) deltas[j] = error * weights[j] * hidden[j] * (1 - hidden[j]);
    return deltas;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 4096, blocks = n / ROWS;
    const float target = 0.1f;
    Random random;
    std::vector<float> input(n), weights(n * HIDDEN), out_weights(HIDDEN);
    for (float& x : input) x = random.uniform(0, 1);
    for (float& x : weights) x = random.uniform(-0.05f, 0.05f);
    for (float& x : out_weights) x = random.uniform(-1, 1);
    std::vector<float> want(weights);
    float *d_input = to_device(input), *d_weights = to_device(weights), *d_partial = on_device<float>(blocks * HIDDEN);
    // What is adjusted here is computed anew.
    auto once = [&] {
        forward<<<1, dim3(HIDDEN, ROWS)>>>(d_input, d_weights, d_partial);
        adjust<<<1, dim3(HIDDEN, ROWS)>>>(d_input, d_weights, d_partial);
    };
    compile(once, forward, adjust);
    for (int r = 0; r < options.repeat; ++r) {
        phases.enter(LAUNCH);
        forward<<<blocks, dim3(HIDDEN, ROWS)>>>(d_input, d_weights, d_partial);
        std::vector<float> partial = to_host(d_partial, blocks * HIDDEN), hidden(HIDDEN);
        for (int j = 0; j < HIDDEN; ++j) {
            double sum = 0;
            for (int b = 0; b < blocks; ++b) sum += partial[b * HIDDEN + j];
            hidden[j] = squash(sum);
        }
        float* d_delta = to_device(hidden_deltas(hidden, out_weights, target));
        phases.enter(LAUNCH);
        adjust<<<blocks, dim3(HIDDEN, ROWS)>>>(d_input, d_delta, d_weights);
        finish_launches();
        CHECK(cudaFree(d_delta));
        // The same on the CPU.
        for (int j = 0; j < HIDDEN; ++j) {
            double sum = 0;
            for (int i = 0; i < n; ++i) sum += double(input[i]) * want[i * HIDDEN + j];
            hidden[j] = squash(sum);
        }
        std::vector<float> deltas = hidden_deltas(hidden, out_weights, target);
        for (int i = 0; i < n * HIDDEN; ++i) want[i] += RATE * deltas[i % HIDDEN] * input[i / HIDDEN];
    }
    double error = relative_error(to_host(d_weights, weights.size()), want);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d inputs, %d hidden, relative error %.1e", n, HIDDEN, error);
    phases.enter(CLOSE);
    for (float* p : {d_input, d_weights, d_partial}) CHECK(cudaFree(p));
    return verdict("backprop", error < 1e-5, detail);
}
