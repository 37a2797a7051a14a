// The kernels of `sundial bench engine`. `cargo xtask gen-ptx` makes engine.ptx of it. engine.cl has the same ones in OpenCL C.

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

extern "C" __global__ void reduction_shuffle(const float* in, float* out, int n) {
    __shared__ float partial[8];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_down_sync(~0u, sum, apart);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < 8 ? partial[threadIdx.x] : 0;
    for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_down_sync(~0u, sum, apart);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

constexpr int CTA = 256;

// The sum of `value` over this thread and those before it. `sums` has room for CTA zeros in front.
__device__ inline unsigned scan_cta(unsigned value, volatile unsigned* sums) {
    unsigned* at = (unsigned*)sums + CTA + threadIdx.x;
    sums[threadIdx.x] = 0;
    *at = value;
    for (int apart = 1; apart < CTA; apart *= 2) {
        __syncthreads();
        unsigned before = *(at - apart);
        __syncthreads();
        *at += before;
    }
    __syncthreads();
    return *at;
}

extern "C" __global__ void scan_parts(const unsigned* in, unsigned* out, unsigned* totals) {
    __shared__ unsigned sums[2 * CTA];
    int i = blockIdx.x * CTA + threadIdx.x;
    unsigned sum = scan_cta(in[i], sums);
    out[i] = sum;
    if (threadIdx.x == CTA - 1) totals[blockIdx.x] = sum;
}

// By one CTA: each of the n totals becomes the sum of those before it.
extern "C" __global__ void scan_totals(unsigned* totals, int n) {
    __shared__ unsigned sums[2 * CTA];
    unsigned before = 0;
    for (int i = threadIdx.x; i < n; i += CTA) {
        unsigned value = totals[i];
        totals[i] = before + scan_cta(value, sums) - value;
        before += sums[2 * CTA - 1];
        __syncthreads();
    }
}

extern "C" __global__ void scan_add(unsigned* out, const unsigned* totals) {
    out[blockIdx.x * CTA + threadIdx.x] += totals[blockIdx.x];
}

extern "C" __global__ void histogram(const unsigned* in, unsigned* bins, int n) {
    __shared__ unsigned counts[256];
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned four = in[i];
        atomicAdd(&counts[four & 255], 1);
        atomicAdd(&counts[four >> 8 & 255], 1);
        atomicAdd(&counts[four >> 16 & 255], 1);
        atomicAdd(&counts[four >> 24], 1);
    }
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], counts[threadIdx.x]);
}

constexpr int DIGITS = 16;

// How many keys of this CTA's have each digit, for scan_totals: digit by digit, of each the CTAs in order.
extern "C" __global__ void radix_count(const unsigned* keys, unsigned* counts, int shift) {
    __shared__ unsigned mine[DIGITS];
    if (threadIdx.x < DIGITS) mine[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&mine[keys[blockIdx.x * CTA + threadIdx.x] >> shift & DIGITS - 1], 1);
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[threadIdx.x * gridDim.x + blockIdx.x] = mine[threadIdx.x];
}

// Sorts this CTA's keys by the digit, a bit at a time, and puts them where the counts say.
extern "C" __global__ void radix_scatter(const unsigned* in, unsigned* out, const unsigned* starts, int shift) {
    __shared__ unsigned sums[2 * CTA];
    __shared__ unsigned keys[CTA];
    __shared__ unsigned first[DIGITS];
    unsigned key = in[blockIdx.x * CTA + threadIdx.x];
    for (int bit = shift; bit < shift + 4; ++bit) {
        unsigned zero = ~key >> bit & 1;
        unsigned zeros = scan_cta(zero, sums);
        unsigned all = sums[2 * CTA - 1];
        keys[zero ? zeros - 1 : all + threadIdx.x - zeros] = key;
        __syncthreads();
        key = keys[threadIdx.x];
        __syncthreads();
    }
    unsigned digit = key >> shift & DIGITS - 1;
    if (threadIdx.x == 0 || (keys[threadIdx.x - 1] >> shift & DIGITS - 1) != digit) first[digit] = threadIdx.x;
    __syncthreads();
    out[starts[digit * gridDim.x + blockIdx.x] + threadIdx.x - first[digit]] = key;
}

extern "C" __global__ void stencil(const float* in, float* out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
    int i = y * width + x;
    out[i] = 0.5f * in[i] + 0.125f * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width]);
}

// Steps of the Collatz sequence of i + 1, modulo 2^32, until it is 1: each thread has its own number of them, at most 1000.
extern "C" __global__ void divergent(unsigned* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned value = i + 1, count = 0;
    while (value != 1 && count < 1000) {
        if (value % 2 == 0) value /= 2;
        else value = 3 * value + 1;
        ++count;
    }
    steps[i] = count;
}

// y = a * x, a in compressed rows.
extern "C" __global__ void spmv(const unsigned* rows, const unsigned* columns, const float* a, const float* x, float* y, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float sum = 0;
    for (unsigned i = rows[row]; i < rows[row + 1]; ++i) sum += a[i] * x[columns[i]];
    y[row] = sum;
}

// An image, turned about its middle.
extern "C" __global__ void texture(cudaTextureObject_t image, float* out, int side, float cosine, float sine) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float u = x - side / 2, v = y - side / 2;
    out[y * side + x] = tex2D<float>(image, u * cosine - v * sine + side / 2, u * sine + v * cosine + side / 2);
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
