// The kernels of engine.cu in OpenCL C, for `sundial bench engine --pocl`. OpenCL 1.2 has no shuffles and no matrix instructions.

__kernel void saxpy(__global const float* x, __global float* y, float a, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i] + y[i];
}

#define TILE 32

__kernel void matmul(__global const float* a, __global const float* b, __global float* c, int n) {
    __local float tile_a[TILE][TILE];
    __local float tile_b[TILE][TILE];
    int x = get_local_id(0), y = get_local_id(1);
    int row = get_group_id(1) * TILE + y;
    int column = get_group_id(0) * TILE + x;
    float sum = 0.0f;
    for (int t = 0; t < n; t += TILE) {
        tile_a[y][x] = a[row * n + t + x];
        tile_b[y][x] = b[(t + y) * n + column];
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum += tile_a[y][k] * tile_b[k][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * n + column] = sum;
}

float cumulative_normal(float d) {
    const float a1 = 0.31938153f, a2 = -0.356563782f, a3 = 1.781477937f, a4 = -1.821255978f, a5 = 1.330274429f;
    float k = native_divide(1.0f, 1.0f + 0.2316419f * fabs(d));
    float tail = 0.3989422804f * native_exp(-0.5f * d * d) * (k * (a1 + k * (a2 + k * (a3 + k * (a4 + k * a5)))));
    return d > 0 ? 1.0f - tail : tail;
}

__kernel void black_scholes(__global float* call, __global float* put, __global const float* stock,
                            __global const float* strike, __global const float* years, float rate, float volatility, int n) {
    int i = get_global_id(0);
    if (i >= n) return;
    float s = stock[i], x = strike[i], t = years[i];
    float root = sqrt(t);
    float d1 = native_divide(native_log(native_divide(s, x)) + (rate + 0.5f * volatility * volatility) * t, volatility * root);
    float d2 = d1 - volatility * root;
    float n1 = cumulative_normal(d1), n2 = cumulative_normal(d2);
    float discounted = x * native_exp(-rate * t);
    call[i] = s * n1 - discounted * n2;
    put[i] = discounted * (1.0f - n2) - s * (1.0f - n1);
}

#define BODIES 128

__kernel void nbody(__global const float4* in, __global float4* out, int n) {
    __local float4 tile[BODIES];
    int t0 = get_local_id(0), i = get_group_id(0) * BODIES + t0;
    float4 me = in[i];
    float ax = 0, ay = 0, az = 0;
    for (int t = 0; t < n; t += BODIES) {
        tile[t0] = in[t + t0];
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int j = 0; j < BODIES; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float inverse = native_rsqrt(dx * dx + dy * dy + dz * dz + 0.01f);
            float s = tile[j].w * inverse * inverse * inverse;
            ax += dx * s;
            ay += dy * s;
            az += dz * s;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[i] = (float4)(ax, ay, az, 0);
}

void sum_up(__global const float* in, __global float* out, int n, __local float* partial) {
    int t = get_local_id(0);
    float sum = 0;
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) sum += in[i];
    partial[t] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = 128; half_way > 0; half_way /= 2) {
        if (t < half_way) partial[t] += partial[t + half_way];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) out[get_group_id(0)] = partial[0];
}

__kernel void reduction(__global const float* in, __global float* out, int n) {
    __local float partial[256];
    sum_up(in, out, n, partial);
}

// The same once more, for want of shuffles.
__kernel void reduction_shuffle(__global const float* in, __global float* out, int n) {
    __local float partial[256];
    sum_up(in, out, n, partial);
}

#define CTA 256

uint scan_cta(uint value, __local uint* sums) {
    __local uint* at = sums + CTA + get_local_id(0);
    sums[get_local_id(0)] = 0;
    *at = value;
    for (int apart = 1; apart < CTA; apart *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        uint before = *(at - apart);
        barrier(CLK_LOCAL_MEM_FENCE);
        *at += before;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return *at;
}

__kernel void scan_parts(__global const uint* in, __global uint* out, __global uint* totals) {
    __local uint sums[2 * CTA];
    int i = get_global_id(0);
    uint sum = scan_cta(in[i], sums);
    out[i] = sum;
    if (get_local_id(0) == CTA - 1) totals[get_group_id(0)] = sum;
}

__kernel void scan_totals(__global uint* totals, int n) {
    __local uint sums[2 * CTA];
    uint before = 0;
    for (int i = get_local_id(0); i < n; i += CTA) {
        uint value = totals[i];
        totals[i] = before + scan_cta(value, sums) - value;
        before += sums[2 * CTA - 1];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

__kernel void scan_add(__global uint* out, __global const uint* totals) {
    out[get_global_id(0)] += totals[get_group_id(0)];
}

__kernel void histogram(__global const uint* in, __global uint* bins, int n) {
    __local uint counts[256];
    int t = get_local_id(0);
    counts[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) {
        uint four = in[i];
        atomic_inc(&counts[four & 255]);
        atomic_inc(&counts[four >> 8 & 255]);
        atomic_inc(&counts[four >> 16 & 255]);
        atomic_inc(&counts[four >> 24]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&bins[t], counts[t]);
}

#define DIGITS 16

__kernel void radix_count(__global const uint* keys, __global uint* counts, int shift) {
    __local uint mine[DIGITS];
    int t = get_local_id(0);
    if (t < DIGITS) mine[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_inc(&mine[keys[get_global_id(0)] >> shift & (DIGITS - 1)]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < DIGITS) counts[t * get_num_groups(0) + get_group_id(0)] = mine[t];
}

__kernel void radix_scatter(__global const uint* in, __global uint* out, __global const uint* starts, int shift) {
    __local uint sums[2 * CTA];
    __local uint keys[CTA];
    __local uint first[DIGITS];
    int t = get_local_id(0);
    uint key = in[get_global_id(0)];
    for (int bit = shift; bit < shift + 4; ++bit) {
        uint zero = ~key >> bit & 1;
        uint zeros = scan_cta(zero, sums);
        uint all_zeros = sums[2 * CTA - 1];
        keys[zero ? zeros - 1 : all_zeros + t - zeros] = key;
        barrier(CLK_LOCAL_MEM_FENCE);
        key = keys[t];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    uint digit = key >> shift & (DIGITS - 1);
    if (t == 0 || (keys[t - 1] >> shift & (DIGITS - 1)) != digit) first[digit] = t;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[starts[digit * get_num_groups(0) + get_group_id(0)] + t - first[digit]] = key;
}

__kernel void stencil(__global const float* in, __global float* out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
    int i = y * width + x;
    out[i] = 0.5f * in[i] + 0.125f * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width]);
}

__kernel void divergent(__global uint* steps, int n) {
    int i = get_global_id(0);
    if (i >= n) return;
    uint value = i + 1, count = 0;
    while (value != 1 && count < 1000) {
        if (value % 2 == 0) value /= 2;
        else value = 3 * value + 1;
        ++count;
    }
    steps[i] = count;
}

__kernel void spmv(__global const uint* rows, __global const uint* columns, __global const float* a,
                   __global const float* x, __global float* y, int n) {
    int row = get_global_id(0);
    if (row >= n) return;
    float sum = 0;
    for (uint i = rows[row]; i < rows[row + 1]; ++i) sum += a[i] * x[columns[i]];
    y[row] = sum;
}

__constant sampler_t LINEAR = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_LINEAR;

__kernel void texture(__read_only image2d_t image, __global float* out, int side, float cosine, float sine) {
    int x = get_global_id(0), y = get_global_id(1);
    float u = x - side / 2, v = y - side / 2;
    float2 at = (float2)(u * cosine - v * sine + side / 2, u * sine + v * cosine + side / 2);
    out[y * side + x] = read_imagef(image, LINEAR, at).x;
}
