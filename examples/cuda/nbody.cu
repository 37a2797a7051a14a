// All-pairs gravitation, tiles of bodies in shared memory, a few steps.
#include "check.h"

constexpr int THREADS = 128;
constexpr float SOFTENING = 0.01f, STEP = 0.001f;

__global__ void step(const float4* in, float4* out, float3* velocity, int n) {
    __shared__ float4 tile[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    float4 me = in[i];
    float3 a = {0, 0, 0};
    for (int t = 0; t < n; t += THREADS) {
        tile[threadIdx.x] = in[t + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < THREADS; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float d2 = dx * dx + dy * dy + dz * dz + SOFTENING;
            float inverse = rsqrtf(d2);
            float s = tile[j].w * inverse * inverse * inverse;
            a.x += dx * s;
            a.y += dy * s;
            a.z += dz * s;
        }
        __syncthreads();
    }
    float3 v = velocity[i];
    v.x += a.x * STEP;
    v.y += a.y * STEP;
    v.z += a.z * STEP;
    velocity[i] = v;
    out[i] = {me.x + v.x * STEP, me.y + v.y * STEP, me.z + v.z * STEP, me.w};
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 1024, steps = 4;
    Random random;
    std::vector<float4> bodies(n);
    for (float4& b : bodies) b = {random.uniform(-1, 1), random.uniform(-1, 1), random.uniform(-1, 1), random.uniform(0, 1)};
    std::vector<float3> velocity(n, float3{0, 0, 0});
    float4 *d_a = nullptr, *d_b = nullptr;
    float3* d_velocity = nullptr;
    CHECK(cudaMalloc(&d_a, n * sizeof(float4)));
    CHECK(cudaMalloc(&d_b, n * sizeof(float4)));
    CHECK(cudaMalloc(&d_velocity, n * sizeof(float3)));
    for (int r = 0; r < options.repeat; ++r) {
        CHECK(cudaMemcpy(d_a, bodies.data(), n * sizeof(float4), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(d_velocity, velocity.data(), n * sizeof(float3), cudaMemcpyHostToDevice));
        for (int s = 0; s < steps; ++s) {
            step<<<n / THREADS, THREADS>>>(d_a, d_b, d_velocity, n);
            std::swap(d_a, d_b);
        }
    }
    CHECK(cudaGetLastError());
    std::vector<float4> result = to_host(d_a, n);
    std::vector<double> p(3 * n), v(3 * n, 0.0);
    for (int i = 0; i < n; ++i) p[3 * i] = bodies[i].x, p[3 * i + 1] = bodies[i].y, p[3 * i + 2] = bodies[i].z;
    for (int s = 0; s < steps; ++s) {
        std::vector<double> next(p);
        for (int i = 0; i < n; ++i) {
            double a[3] = {0, 0, 0};
            for (int j = 0; j < n; ++j) {
                double d[3], d2 = SOFTENING;
                for (int k = 0; k < 3; ++k) d[k] = p[3 * j + k] - p[3 * i + k], d2 += d[k] * d[k];
                double f = bodies[j].w / (d2 * std::sqrt(d2));
                for (int k = 0; k < 3; ++k) a[k] += d[k] * f;
            }
            for (int k = 0; k < 3; ++k) v[3 * i + k] += a[k] * STEP, next[3 * i + k] += v[3 * i + k] * STEP;
        }
        p = next;
    }
    std::vector<float> got, want;
    for (int i = 0; i < n; ++i) {
        for (float x : {result[i].x, result[i].y, result[i].z}) got.push_back(x);
        for (int k = 0; k < 3; ++k) want.push_back(float(p[3 * i + k]));
    }
    double error = relative_error(got, want);
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d bodies, %d steps, relative error %.1e", n, steps, error);
    CHECK(cudaFree(d_a));
    CHECK(cudaFree(d_b));
    CHECK(cudaFree(d_velocity));
    return verdict("nbody", error < 1e-5, detail);
}
