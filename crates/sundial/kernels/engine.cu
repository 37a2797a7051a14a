// The kernels of `sundial bench engine`. `cargo xtask gen-ptx` makes engine.ptx of it.

extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

constexpr int TILE = 32;

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < n; t += TILE) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + column];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

__device__ inline float cumulative_normal(float d) {
    const float a1 = 0.31938153f, a2 = -0.356563782f, a3 = 1.781477937f, a4 = -1.821255978f, a5 = 1.330274429f;
    float k = __fdividef(1.0f, 1.0f + 0.2316419f * fabsf(d));
    float tail = 0.3989422804f * __expf(-0.5f * d * d) * (k * (a1 + k * (a2 + k * (a3 + k * (a4 + k * a5)))));
    return d > 0 ? 1.0f - tail : tail;
}

extern "C" __global__ void black_scholes(float* call, float* put, const float* stock, const float* strike,
                                         const float* years, float rate, float volatility, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = stock[i], x = strike[i], t = years[i];
    float root = __fsqrt_rn(t);
    float d1 = __fdividef(__logf(__fdividef(s, x)) + (rate + 0.5f * volatility * volatility) * t, volatility * root);
    float d2 = d1 - volatility * root;
    float n1 = cumulative_normal(d1), n2 = cumulative_normal(d2);
    float discounted = x * __expf(-rate * t);
    call[i] = s * n1 - discounted * n2;
    put[i] = discounted * (1.0f - n2) - s * (1.0f - n1);
}

constexpr int BODIES = 128;

extern "C" __global__ void nbody(const float4* in, float4* out, int n) {
    __shared__ float4 tile[BODIES];
    int i = blockIdx.x * BODIES + threadIdx.x;
    float4 me = in[i];
    float ax = 0, ay = 0, az = 0;
    for (int t = 0; t < n; t += BODIES) {
        tile[threadIdx.x] = in[t + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < BODIES; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float s = tile[j].w * inverse * inverse * inverse;
            ax += dx * s;
            ay += dy * s;
            az += dz * s;
        }
        __syncthreads();
    }
    out[i] = {ax, ay, az, 0};
}

extern "C" __global__ void reduction(const float* in, float* out, int n) {
    __shared__ float partial[256];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
