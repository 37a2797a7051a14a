// Tensor maps: tiles of a matrix loaded, changed and stored by bulk tensor copies, edges and all; a transposition whose tiles are
// swizzled in shared memory; tiles sent to all blocks of a cluster at once; sums made by reducing copies; patches of images.
#include "check.h"

#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cooperative_groups.h>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

// A map of a matrix of `height` rows of `width` elements, and a box in it.
static CUtensorMap matrix(CUtensorMapDataType type, int bytes, void* at, uint64_t width, uint64_t height, unsigned box_width,
                          unsigned box_height, CUtensorMapSwizzle swizzle) {
    static auto encode = driver_entry<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    CUtensorMap map;
    uint64_t size[] = {width, height}, stride[] = {width * bytes};
    unsigned box[] = {box_width, box_height}, step[] = {1, 1};
    CUresult result = encode(&map, type, 2, at, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "cuTensorMapEncodeTiled: %d\n", result);
        std::exit(2);
    }
    return map;
}

__device__ void load(void* tile, const CUtensorMap& map, int x, int y, Barrier& barrier) {
    int32_t place[] = {x, y};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &map, place, cuda::device::barrier_native_handle(barrier));
}

__device__ void store(const CUtensorMap& map, int x, int y, const void* tile) {
    int32_t place[] = {x, y};
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, place, tile);
}

constexpr int ROWS = 16, COLUMNS = 32;

// Adds a number that says where it is to each element of a tile; what lies outside the matrix is neither read nor written.
__global__ void add_place(const __grid_constant__ CUtensorMap map, int columns) {
    __shared__ alignas(128) int tile[ROWS][COLUMNS];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    int x = blockIdx.x * COLUMNS, y = blockIdx.y * ROWS;
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        load(&tile, map, x, y, barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(tile));
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        int row = i / COLUMNS, column = i % COLUMNS;
        tile[row][column] = 3 * tile[row][column] + (y + row) * columns + x + column;
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        store(map, x, y, &tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
        (&barrier)->~Barrier();
    }
}

constexpr int SIDE = 8;

// Transposes tiles of 8 x 8 pieces of 16 bytes, which lie so in shared memory that no two of a row or a column share a bank.
__global__ void transpose(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
    __shared__ alignas(1024) int4 tile[SIDE][SIDE];
    __shared__ alignas(1024) int4 turned[SIDE][SIDE];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    int x = blockIdx.x * SIDE, y = blockIdx.y * SIDE;
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        // The map's elements are numbers, of which a piece has four.
        load(&tile, from, 4 * x, y, barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(tile));
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        int row = i / SIDE, column = i % SIDE;
        turned[column][row ^ column] = tile[row][column ^ row];
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        store(to, 4 * y, x, &turned);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
        (&barrier)->~Barrier();
    }
}

__device__ unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

__device__ void wait(unsigned object, unsigned parity) {
    asm volatile("{\n.reg .pred %%p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 %%p, [%0], %1;\n@!%%p bra AGAIN;\n}"
                 :: "r"(object), "r"(parity) : "memory");
}

// Each block of a cluster fetches one row of a tile for all of them, and adds up what has come; the sums are added to those of
// others in memory.
__global__ void __cluster_dims__(4, 1, 1) column_sums(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap sums) {
    __shared__ alignas(128) unsigned rows[4][COLUMNS];
    __shared__ alignas(128) unsigned sum[COLUMNS];
    __shared__ alignas(8) uint64_t object;
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), at = shared_address(&object);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"((unsigned)sizeof(rows)) : "memory");
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(shared_address(rows[rank])), "l"(&map), "r"(0), "r"(blockIdx.x), "r"(at), "h"((uint16_t)0xf)
                     : "memory");
    }
    wait(at, 0);
    // Every block adds a quarter of the columns.
    if (threadIdx.x < COLUMNS) {
        bool mine = threadIdx.x / (COLUMNS / 4) == rank;
        unsigned t = threadIdx.x;
        sum[t] = mine ? rows[0][t] + rows[1][t] + rows[2][t] + rows[3][t] : 0;
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&sums), "r"(0), "r"(0), "r"(shared_address(sum)) : "memory");
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
    cluster.sync();
}

constexpr int CHANNELS = 8, PIXELS = 24;

// What a filter's place (w, h) sees of so many pixels, from the first of an image on.
__global__ void patches(const __grid_constant__ CUtensorMap map, float* out, int w, int h) {
    __shared__ alignas(128) float pixels[PIXELS][CHANNELS];
    __shared__ alignas(8) uint64_t object;
    unsigned at = shared_address(&object);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
        ptx::fence_proxy_async(ptx::space_shared);
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
                     :: "r"(shared_address(pixels)), "l"(&map), "r"(0), "r"(-1), "r"(-1), "r"(0), "r"(at), "h"((uint16_t)w),
                        "h"((uint16_t)h)
                     : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"((unsigned)sizeof(pixels)) : "memory");
    }
    __syncthreads();
    wait(at, 0);
    for (int i = threadIdx.x; i < PIXELS * CHANNELS; i += blockDim.x) out[i] = pixels[i / CHANNELS][i % CHANNELS];
}

static bool images(Random& random) {
    constexpr int W = 6, H = 5, N = 2;
    std::vector<float> image(N * H * W * CHANNELS);
    for (float& value : image) value = random.uniform(-1, 1);
    float *di = to_device(image), *out = on_device<float>(PIXELS * CHANNELS);
    auto encode = driver_entry<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
    CUtensorMap map;
    uint64_t size[] = {CHANNELS, W, H, N};
    uint64_t stride[] = {CHANNELS * sizeof(float), W * CHANNELS * sizeof(float), H * W * CHANNELS * sizeof(float)};
    // A filter of 3 x 3 with a border of one pixel.
    int lower[] = {-1, -1}, upper[] = {-1, -1};
    unsigned step[] = {1, 1, 1, 1};
    CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, di, size, stride, lower, upper, CHANNELS, PIXELS, step,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    bool fine = expect(result == CUDA_SUCCESS, "a map of images");
    for (int h = 0; h < 3; ++h)
        for (int w = 0; w < 3; ++w) {
            patches<<<1, 64>>>(map, out, w, h);
            CHECK(cudaGetLastError());
            std::vector<float> got = to_host(out, PIXELS * CHANNELS), want(PIXELS * CHANNELS);
            for (int pixel = 0; pixel < PIXELS; ++pixel)
                for (int c = 0; c < CHANNELS; ++c) {
                    int x = pixel % W - 1 + w, y = pixel / W % H - 1 + h, n = pixel / (W * H);
                    bool inside = x >= 0 && x < W && y >= 0 && y < H;
                    want[pixel * CHANNELS + c] = inside ? image[((n * H + y) * W + x) * CHANNELS + c] : 0;
                }
            fine &= expect(got == want, "patches of images");
        }
    CHECK(cudaFree(di));
    CHECK(cudaFree(out));
    return fine;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    bool fine = true;
    Random random;
    for (int r = 0; r < options.repeat; ++r) {
        // Neither side is a multiple of a tile's.
        const int width = 100, height = 70;
        std::vector<int> values(width * height), want(width * height);
        for (int i = 0; i < width * height; ++i) want[i] = 3 * (values[i] = (int)(random.bits() >> 8)) + i;
        int* dv = to_device(values);
        CUtensorMap map = matrix(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, dv, width, height, COLUMNS, ROWS, CU_TENSOR_MAP_SWIZZLE_NONE);
        add_place<<<dim3((width + COLUMNS - 1) / COLUMNS, (height + ROWS - 1) / ROWS), 128>>>(map, width);
        CHECK(cudaGetLastError());
        fine &= expect(to_host(dv, values.size()) == want, "tiles loaded, changed and stored");
        CHECK(cudaFree(dv));

        const int columns = 40, rows = 24;
        std::vector<int> matrix_in(4 * columns * rows), turned(4 * columns * rows);
        for (int i = 0; i < columns * rows; ++i)
            for (int k = 0; k < 4; ++k)
                turned[4 * (i % columns * rows + i / columns) + k] = matrix_in[4 * i + k] = (int)random.bits();
        int *di = to_device(matrix_in), *dt = on_device<int>(turned.size());
        CUtensorMap from = matrix(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, di, 4 * columns, rows, 4 * SIDE, SIDE, CU_TENSOR_MAP_SWIZZLE_128B);
        CUtensorMap to = matrix(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, dt, 4 * rows, columns, 4 * SIDE, SIDE, CU_TENSOR_MAP_SWIZZLE_128B);
        transpose<<<dim3(columns / SIDE, rows / SIDE), 64>>>(from, to);
        CHECK(cudaGetLastError());
        fine &= expect(to_host(dt, turned.size()) == turned, "swizzled tiles transposed");
        CHECK(cudaFree(di));
        CHECK(cudaFree(dt));

        const int lines = 32;
        std::vector<unsigned> numbers(lines * COLUMNS), sums(COLUMNS);
        for (int i = 0; i < lines * COLUMNS; ++i) sums[i % COLUMNS] += numbers[i] = random.bits();
        unsigned *dn = to_device(numbers), *ds = on_device<unsigned>(COLUMNS);
        CHECK(cudaMemset(ds, 0, COLUMNS * sizeof(unsigned)));
        CUtensorMap line = matrix(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, dn, COLUMNS, lines, COLUMNS, 1, CU_TENSOR_MAP_SWIZZLE_NONE);
        CUtensorMap total = matrix(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, ds, COLUMNS, 1, COLUMNS, 1, CU_TENSOR_MAP_SWIZZLE_NONE);
        column_sums<<<lines, 64>>>(line, total);
        CHECK(cudaGetLastError());
        fine &= expect(to_host(ds, COLUMNS) == sums, "sums over clusters");
        CHECK(cudaFree(dn));
        CHECK(cudaFree(ds));
        fine &= images(random);
    }
    return verdict("tensor_map", fine, "tiles, transposed ones, sums and patches moved by tensor copies are right");
}
