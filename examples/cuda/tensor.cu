// Matrices multiplied by the tensor cores' instructions: nvcuda::wmma in all shapes, types and layouts, mma.sync with
// ldmatrix, and mma.sp.sync, as libraries use them. Rows, columns and depth differ, and so do all elements near one another, so that nothing can
// be swapped unnoticed. Integers are small enough for every sum to be exact.
#include "check.h"

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// C = A x B + C, of the shape of one wmma instruction times `DEPTH` along k, lines `PAD` elements longer than need be.
constexpr int DEPTH = 3, PAD = 16;

// How an element is held in memory, and what the instruction calls it.
template <typename T>
struct Held {
    using Memory = T;
    static T from(int value) { return T(value); }
};
template <>
struct Held<wmma::precision::tf32> {
    using Memory = float;
    static float from(int value) { return float(value); }
};
template <>
struct Held<half> {
    using Memory = half;
    static half from(int value) { return __float2half(float(value)); }
};
template <>
struct Held<__nv_bfloat16> {
    using Memory = __nv_bfloat16;
    static __nv_bfloat16 from(int value) { return __float2bfloat16(float(value)); }
};

template <typename Layout, int ROWS, int COLUMNS>
constexpr int pitch = (std::is_same<Layout, wmma::row_major>::value ? COLUMNS : ROWS) + PAD;

template <int M, int N, int K, typename T, typename S, typename LA, typename LB>
__global__ void multiply(const typename Held<T>::Memory* a, const typename Held<T>::Memory* b, S* c, bool row) {
    using Memory = typename Held<T>::Memory;
    constexpr int PA = pitch<LA, M, K * DEPTH>, PB = pitch<LB, K * DEPTH, N>;
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> right;
    wmma::fragment<wmma::accumulator, M, N, K, S> sum;
    wmma::layout_t layout = row ? wmma::mem_row_major : wmma::mem_col_major;
    int pitch_c = (row ? N : M) + PAD;
    // The last step's factors by way of shared memory.
    __shared__ __align__(32) Memory tile[(M > K ? M : K) * PA];
    wmma::load_matrix_sync(sum, c, pitch_c, layout);
    for (int k = 0; k < DEPTH; ++k) {
        const Memory* at = a + k * K * (std::is_same<LA, wmma::row_major>::value ? 1 : PA);
        if (k + 1 == DEPTH) {
            int lines = std::is_same<LA, wmma::row_major>::value ? M : K;
            int length = std::is_same<LA, wmma::row_major>::value ? K : M;
            for (int i = threadIdx.x; i < lines * length; i += 32) tile[i / length * PA + i % length] = at[i / length * PA + i % length];
            __syncwarp();
            at = tile;
        }
        wmma::load_matrix_sync(left, at, PA);
        wmma::load_matrix_sync(right, b + k * K * (std::is_same<LB, wmma::row_major>::value ? PB : 1), PB);
        wmma::mma_sync(sum, left, right, sum);
    }
    // Elements are changed where they are held.
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = S(sum.x[i] + sum.x[i]);
    wmma::store_matrix_sync(c, sum, pitch_c, layout);
}

static int failures = 0, checks = 0;

// A small number that tells its place from others.
static int value(int row, int column, int salt, bool natural) {
    int mixed = int((uint32_t(row * 37 + column * 101 + salt * 13) * 2654435761u) >> 9) % 7;
    return natural ? mixed : mixed - 3;
}

template <int M, int N, int K, typename T, typename S, typename LA, typename LB>
void check(const char* name, bool row) {
    using Memory = typename Held<T>::Memory;
    bool natural = std::is_same<T, unsigned char>::value;
    bool row_a = std::is_same<LA, wmma::row_major>::value, row_b = std::is_same<LB, wmma::row_major>::value;
    int depth = K * DEPTH, pa = pitch<LA, M, K * DEPTH>, pb = pitch<LB, K * DEPTH, N>, pc = (row ? N : M) + PAD;
    std::vector<Memory> a((row_a ? M : depth) * pa, Held<T>::from(0)), b((row_b ? depth : N) * pb, Held<T>::from(0));
    std::vector<S> c((row ? M : N) * pc, Held<S>::from(0));
    for (int i = 0; i < M; ++i)
        for (int k = 0; k < depth; ++k) a[row_a ? i * pa + k : k * pa + i] = Held<T>::from(value(i, k, 1, natural));
    for (int k = 0; k < depth; ++k)
        for (int j = 0; j < N; ++j) b[row_b ? k * pb + j : j * pb + k] = Held<T>::from(value(k, j, 2, natural));
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) c[row ? i * pc + j : j * pc + i] = Held<S>::from(value(i, j, 3, false));
    Memory *da = to_device(a), *db = to_device(b);
    S* dc = to_device(c);
    multiply<M, N, K, T, S, LA, LB><<<1, 32>>>(da, db, dc, row);
    CHECK(cudaGetLastError());
    std::vector<S> got = to_host(dc, c.size());
    ++checks;
    bool fine = true;
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) {
            int want = value(i, j, 3, false);
            for (int k = 0; k < depth; ++k) want += value(i, k, 1, natural) * value(k, j, 2, natural);
            float is = float(got[row ? i * pc + j : j * pc + i]);
            if (fine && is != float(2 * want)) {
                std::fprintf(stderr, "wmma %s %dx%dx%d, a %s, b %s, c %s: [%d][%d] is %g, not %d\n", name, M, N, K,
                             row_a ? "row" : "col", row_b ? "row" : "col", row ? "row" : "col", i, j, is, 2 * want);
                fine = false;
            }
        }
    }
    failures += !fine;
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
}

template <int M, int N, int K, typename T, typename S>
void layouts(const char* name) {
    using Row = wmma::row_major;
    using Column = wmma::col_major;
    for (bool row : {true, false}) {
        check<M, N, K, T, S, Row, Row>(name, row);
        check<M, N, K, T, S, Row, Column>(name, row);
        check<M, N, K, T, S, Column, Row>(name, row);
        check<M, N, K, T, S, Column, Column>(name, row);
    }
}

template <typename T, typename S>
void shapes(const char* name) {
    layouts<16, 16, 16, T, S>(name);
    layouts<32, 8, 16, T, S>(name);
    layouts<8, 32, 16, T, S>(name);
}

// C = A x B in f16 with sums in f32: four warps, tiles of 64 x 64, A and B in rows, of which B's are transposed by ldmatrix.
constexpr int SIDE = 64, STEP = 32, PITCH_A = STEP + 8, PITCH_B = SIDE + 8;

__global__ void tiled(const half* a, const half* b, float* c, int n, int depth) {
    __shared__ __align__(16) half tile_a[SIDE * PITCH_A], tile_b[STEP * PITCH_B];
    int t = threadIdx.x, lane = t % 32, row = t / 64 * 32, column = t / 32 % 2 * 32;
    float sums[2][4][4] = {};
    for (int k = 0; k < depth; k += STEP) {
        for (int i = t; i < SIDE * STEP / 8; i += 128) {
            const half* from = &a[(blockIdx.y * SIDE + i / 4) * depth + k + i % 4 * 8];
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                             unsigned(__cvta_generic_to_shared(&tile_a[i / 4 * PITCH_A + i % 4 * 8]))), "l"(from));
            from = &b[(k + i / 8) * n + blockIdx.x * SIDE + i % 8 * 8];
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                             unsigned(__cvta_generic_to_shared(&tile_b[i / 8 * PITCH_B + i % 8 * 8]))), "l"(from));
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;");
        __syncthreads();
        for (int step = 0; step < STEP; step += 16) {
            unsigned left[2][4], right[2][4];
            for (int i = 0; i < 2; ++i) {
                const half* at = &tile_a[(row + i * 16 + lane % 16) * PITCH_A + step + lane / 16 * 8];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                             : "r"(unsigned(__cvta_generic_to_shared(at))));
                at = &tile_b[(step + lane % 16) * PITCH_B + column + i * 16 + lane / 16 * 8];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(right[i][0]), "=r"(right[i][1]), "=r"(right[i][2]), "=r"(right[i][3])
                             : "r"(unsigned(__cvta_generic_to_shared(at))));
            }
            for (int i = 0; i < 2; ++i) {
                for (int j = 0; j < 4; ++j) {
                    float* s = sums[i][j];
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                        : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]), "r"(right[j / 2][j % 2 * 2]),
                          "r"(right[j / 2][j % 2 * 2 + 1]));
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
            float* to = &c[(blockIdx.y * SIDE + row + i * 16 + lane / 4) * n + blockIdx.x * SIDE + column + j * 8 + lane % 4 * 2];
            to[0] = sums[i][j][0];
            to[1] = sums[i][j][1];
            to[8 * n] = sums[i][j][2];
            to[8 * n + 1] = sums[i][j][3];
        }
    }
}

// The same in 8-bit integers, of a warp: A in rows and B in columns, by ldmatrix of both, since a line is 16 bytes.
__global__ void bytes(const signed char* a, const signed char* b, int* c, int n, int depth) {
    __shared__ __align__(16) signed char tile_a[16 * 32], tile_b[8 * 32];
    int lane = threadIdx.x, sums[4] = {};
    for (int k = 0; k < depth; k += 32) {
        *(uint4*)&tile_a[lane * 16] = *(const uint4*)&a[(blockIdx.y * 16 + lane / 2) * depth + k + lane % 2 * 16];
        if (lane < 16) *(uint4*)&tile_b[lane * 16] = *(const uint4*)&b[(blockIdx.x * 8 + lane / 2) * depth + k + lane % 2 * 16];
        __syncwarp();
        unsigned left[4], right[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3])
                     : "r"(unsigned(__cvta_generic_to_shared(&tile_a[lane % 16 * 32 + lane / 16 * 16]))));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(right[0]), "=r"(right[1])
                     : "r"(unsigned(__cvta_generic_to_shared(&tile_b[lane % 8 * 32 + lane / 8 % 2 * 16]))));
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
        __syncwarp();
    }
    int* to = &c[(blockIdx.y * 16 + lane / 4) * n + blockIdx.x * 8 + lane % 4 * 2];
    to[0] = sums[0];
    to[1] = sums[1];
    to[8 * n] = sums[2];
    to[8 * n + 1] = sums[3];
}

static double products() {
    const int m = 128, n = 192, depth = 160;
    Random random;
    std::vector<half> a(m * depth), b(depth * n);
    for (half& x : a) x = __float2half(random.uniform(-1, 1));
    for (half& x : b) x = __float2half(random.uniform(-1, 1));
    half *da = to_device(a), *db = to_device(b);
    float* dc = on_device<float>(m * n);
    tiled<<<dim3(n / SIDE, m / SIDE), 128>>>(da, db, dc, n, depth);
    CHECK(cudaGetLastError());
    std::vector<float> got = to_host(dc, m * n), want(m * n);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int k = 0; k < depth; ++k) sum += double(__half2float(a[i * depth + k])) * __half2float(b[k * n + j]);
            want[i * n + j] = float(sum);
        }
    std::vector<signed char> p(48 * 96), q(24 * 96);
    for (signed char& x : p) x = (signed char)(random.bits() >> 24);
    for (signed char& x : q) x = (signed char)(random.bits() >> 24);
    signed char *dp = to_device(p), *dq = to_device(q);
    int* dr = on_device<int>(48 * 24);
    bytes<<<dim3(3, 3), 32>>>(dp, dq, dr, 24, 96);
    CHECK(cudaGetLastError());
    std::vector<int> r = to_host(dr, 48 * 24);
    for (int i = 0; i < 48; ++i)
        for (int j = 0; j < 24; ++j) {
            int sum = 0;
            for (int k = 0; k < 96; ++k) sum += p[i * 96 + k] * q[j * 96 + k];
            if (sum != r[i * 24 + j]) return 1;
        }
    return relative_error(got, want);
}

// C = A x B where of each four elements of A's rows two are zero: those that are not, one behind another, and where they are, two
// bits each, 16 columns (of f16) or 32 (of 8-bit integers) to a word. B is in columns.
__global__ void sparse(const half* a, const unsigned short* where, const half* b, float* c, int depth) {
    int lane = threadIdx.x, group = lane / 4, t = lane % 4;
    float sums[4] = {};
    for (int k = 0; k < depth; k += 32) {
        auto held = [&](int row, int at) { return *(const unsigned*)&a[row * depth / 2 + k / 2 + at + t * 2]; };
        auto right = [&](int i) { return *(const unsigned*)&b[group * depth + k + i * 8 + t * 2]; };
        // Lanes 2 and 3 of each four have the metadata, of two rows each.
        unsigned e = 0xdeadbeef;
        if (t >= 2) e = where[group * depth / 16 + k / 16 + t - 2] | where[(group + 8) * depth / 16 + k / 16 + t - 2] << 16;
        asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, 0x1;"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(held(group, 0)), "r"(held(group + 8, 0)), "r"(held(group, 8)), "r"(held(group + 8, 8)),
                       "r"(right(0)), "r"(right(1)), "r"(right(2)), "r"(right(3)), "r"(e));
    }
    for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + t * 2 + i % 2] = sums[i];
}

__global__ void sparse(const signed char* a, const unsigned* where, const signed char* b, int* c, int depth) {
    int lane = threadIdx.x, group = lane / 4, t = lane % 4, sums[4] = {};
    for (int k = 0; k < depth; k += 64) {
        auto held = [&](int row, int at) { return *(const unsigned*)&a[row * depth / 2 + k / 2 + at + t * 4]; };
        auto right = [&](int i) { return *(const unsigned*)&b[group * depth + k + i * 16 + t * 4]; };
        unsigned e = where[(group + t % 2 * 8) * depth / 32 + k / 32 + t / 2];
        asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, 0x0;"
                     : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                     : "r"(held(group, 0)), "r"(held(group + 8, 0)), "r"(held(group, 16)), "r"(held(group + 8, 16)),
                       "r"(right(0)), "r"(right(1)), "r"(right(2)), "r"(right(3)), "r"(e));
    }
    for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + t * 2 + i % 2] = sums[i];
}

template <typename T, typename S, typename Word>
static bool sparse_products(Random& random, int depth) {
    std::vector<int> a(16 * depth), b(8 * depth);
    std::vector<T> held, right;
    std::vector<Word> where(16 * depth / 2 / (sizeof(Word) * 4));
    for (int& x : b) right.push_back(T(float(x = int(random.bits() >> 16) % 9 - 4)));
    for (int chunk = 0; chunk < 16 * depth / 4; ++chunk) {
        int first = random.bits() >> 16 & 3, second = first, at[2];
        while (second == first) second = random.bits() >> 16 & 3;
        at[0] = first < second ? first : second, at[1] = first + second - at[0];
        for (int i = 0; i < 2; ++i) {
            int value = int(random.bits() >> 16) % 9 - 4, bits = chunk * 4 + i * 2;
            a[chunk * 4 + at[i]] = value;
            held.push_back(T(float(value)));
            where[bits / (sizeof(Word) * 8)] |= Word(at[i]) << bits % (sizeof(Word) * 8);
        }
    }
    T *da = to_device(held), *db = to_device(right);
    Word* de = to_device(where);
    S* dc = on_device<S>(16 * 8);
    sparse<<<1, 32>>>(da, de, db, dc, depth);
    CHECK(cudaGetLastError());
    std::vector<S> got = to_host(dc, 16 * 8);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) {
            int sum = 0;
            for (int k = 0; k < depth; ++k) sum += a[i * depth + k] * b[j * depth + k];
            if (got[i * 8 + j] != S(sum)) {
                std::fprintf(stderr, "sparse product of %zu bytes: [%d][%d] is %g, not %d\n", sizeof(T), i, j,
                             double(got[i * 8 + j]), sum);
                return false;
            }
        }
    return true;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    double error = 0;
    bool sparse_fine = true;
    Random random;
    for (int r = 0; r < options.repeat; ++r) {
        shapes<half, float>("f16, sums in f32");
        shapes<half, half>("f16");
        shapes<__nv_bfloat16, float>("bf16");
        shapes<signed char, int>("s8");
        shapes<unsigned char, int>("u8");
        layouts<16, 16, 8, wmma::precision::tf32, float>("tf32");
        layouts<8, 8, 4, double, double>("f64");
        error = products();
        sparse_fine &= sparse_products<half, float, unsigned short>(random, 128);
        sparse_fine &= sparse_products<signed char, int, unsigned>(random, 192);
    }
    char detail[120];
    std::snprintf(detail, sizeof detail, "%d of %d products by wmma are exact, %s, relative error by mma %.1e", checks - failures,
                  checks, sparse_fine ? "so are sparse ones" : "sparse ones are not", error);
    return verdict("tensor", failures == 0 && sparse_fine && error < 1e-5, detail);
}
