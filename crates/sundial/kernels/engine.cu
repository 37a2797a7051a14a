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

// c = a * b, of n x n, in f16 with sums in f32: four warps multiply tiles of 64 x 64 by the tensor cores' instructions.
extern "C" __global__ void mma(const unsigned short* a, const unsigned short* b, float* c, int n) {
    constexpr int SIDE = 64, DEPTH = 32, PITCH_A = DEPTH + 8, PITCH_B = SIDE + 8;
    __shared__ __align__(16) unsigned short tile_a[SIDE * PITCH_A];
    __shared__ __align__(16) unsigned short tile_b[DEPTH * PITCH_B];
    int t = threadIdx.x, lane = t % 32, row = t / 64 * 32, column = t / 32 % 2 * 32;
    const unsigned short* from_a = a + blockIdx.y * SIDE * n;
    const unsigned short* from_b = b + blockIdx.x * SIDE;
    float sums[2][4][4] = {};
    for (int k = 0; k < n; k += DEPTH) {
        for (int i = t; i < SIDE * DEPTH / 8; i += 128) {
            *reinterpret_cast<uint4*>(&tile_a[i / 4 * PITCH_A + i % 4 * 8]) =
                *reinterpret_cast<const uint4*>(&from_a[i / 4 * n + k + i % 4 * 8]);
            *reinterpret_cast<uint4*>(&tile_b[i / 8 * PITCH_B + i % 8 * 8]) =
                *reinterpret_cast<const uint4*>(&from_b[(k + i / 8) * n + i % 8 * 8]);
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < DEPTH; step += 16) {
            unsigned left[2][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const void* at = &tile_a[(row + i * 16 + lane % 16) * PITCH_A + step + lane / 16 * 8];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                             : "r"((unsigned)__cvta_generic_to_shared(at)));
                at = &tile_b[(step + lane % 16) * PITCH_B + column + i * 16 + lane / 16 * 8];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(right[i][0]), "=r"(right[i][1]), "=r"(right[i][2]), "=r"(right[i][3])
                             : "r"((unsigned)__cvta_generic_to_shared(at)));
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float* sum = sums[i][j];
                    const unsigned* factor = &right[j / 2][j % 2 * 2];
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                                 : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]), "r"(factor[0]), "r"(factor[1]));
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
            float* to = &c[(blockIdx.y * SIDE + row + i * 16 + lane / 4) * n + blockIdx.x * SIDE + column + j * 8 + lane % 4 * 2];
            *reinterpret_cast<float2*>(to) = make_float2(sums[i][j][0], sums[i][j][1]);
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
    }
}
