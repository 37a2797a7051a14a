// Clusters of thread blocks: a histogram whose bins are spread over the shared memory of a cluster's blocks, with the cluster's size
// given at the launch; a stencil whose blocks read their neighbours' edges, with a size that the kernel says; what launches are
// refused, and what is said of how many clusters fit.
#include "check.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Bins are dealt out: block r of a cluster has those from r * share on. Each cluster counts a part of the values.
__global__ void histogram(unsigned* bins, int count, int share, const unsigned* values, int n) {
    extern __shared__ unsigned own[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < share; i += blockDim.x) own[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned bin = values[i] % count;
        atomicAdd(cluster.map_shared_rank(own, bin / share) + bin % share, 1);
    }
    cluster.sync();
    int first = cluster.block_rank() * share;
    for (int i = threadIdx.x; i < share && first + i < count; i += blockDim.x) atomicAdd(&bins[first + i], own[i]);
}

// Steps of a sum of three neighbours on a ring that a cluster holds in shared memory, a part in each block.
constexpr int PART = 96, STEPS = 7;

__global__ void __cluster_dims__(4, 1, 1) ring(unsigned* out, const unsigned* in) {
    __shared__ unsigned part[2][PART];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks(), t = threadIdx.x;
    unsigned at = blockIdx.x * PART + t;
    part[0][t] = in[at];
    cluster.sync();
    for (int step = 0; step < STEPS; ++step) {
        const unsigned* from = part[step % 2];
        unsigned left = t > 0 ? from[t - 1] : *cluster.map_shared_rank(&from[PART - 1], (rank + blocks - 1) % blocks);
        unsigned right = t + 1 < PART ? from[t + 1] : *cluster.map_shared_rank(&from[0], (rank + 1) % blocks);
        part[(step + 1) % 2][t] = left + from[t] * 3 + right;
        // Who has arrived need not wait at once.
        auto token = cluster.barrier_arrive();
        cluster.barrier_wait(std::move(token));
    }
    out[at] = part[STEPS % 2][t];
}

// Where a block is, by what the hardware says.
__global__ void places(uint4* out) {
    cg::cluster_group cluster = cg::this_cluster();
    dim3 inside = cluster.block_index(), size = cluster.dim_blocks();
    if (threadIdx.x) return;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block] = make_uint4(cluster.block_rank(), inside.x | inside.y << 8 | inside.z << 16, size.x | size.y << 8 | size.z << 16,
                            cluster.num_blocks() * 256);
}

static cudaLaunchConfig_t shape(dim3 grid, dim3 block, dim3 cluster, size_t shared, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = cluster.x;
    attribute->val.clusterDim.y = cluster.y;
    attribute->val.clusterDim.z = cluster.z;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = attribute;
    config.numAttrs = 1;
    return config;
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    bool fine = true;
    Random random;
    for (int r = 0; r < options.repeat; ++r) {
        const int n = 50000, count = 1000;
        std::vector<unsigned> values(n), want(count);
        for (unsigned& value : values) ++want[(value = random.bits()) % count];
        unsigned* dv = to_device(values);
        for (int blocks : {1, 2, 4, 8}) {
            unsigned* db = on_device<unsigned>(count);
            CHECK(cudaMemset(db, 0, count * sizeof(unsigned)));
            int share = (count + blocks - 1) / blocks;
            cudaLaunchAttribute attribute;
            cudaLaunchConfig_t config = shape(16, 128, blocks, share * sizeof(unsigned), &attribute);
            CHECK(cudaLaunchKernelEx(&config, histogram, db, count, share, (const unsigned*)dv, n));
            fine &= expect(to_host(db, count) == want, "a histogram over a cluster");
            int clusters = 0;
            CHECK(cudaOccupancyMaxActiveClusters(&clusters, histogram, &config));
            fine &= expect(clusters > 0, "a cluster fits");
            CHECK(cudaFree(db));
        }
        std::vector<unsigned> line(3 * 4 * PART), rings = line;
        for (unsigned& value : line) value = random.bits() >> 20;
        unsigned *di = to_device(line), *out = on_device<unsigned>(line.size());
        ring<<<12, PART>>>(out, di);
        CHECK(cudaGetLastError());
        rings = line;
        for (int step = 0; step < STEPS; ++step) {
            std::vector<unsigned> next = rings;
            for (int c = 0; c < 3; ++c)
                for (int i = 0; i < 4 * PART; ++i) {
                    const unsigned* at = &rings[c * 4 * PART];
                    next[c * 4 * PART + i] = at[(i + 4 * PART - 1) % (4 * PART)] + at[i] * 3 + at[(i + 1) % (4 * PART)];
                }
            rings = next;
        }
        fine &= expect(to_host(out, line.size()) == rings, "a ring over a cluster");
        uint4* dp = on_device<uint4>(4 * 4 * 2);
        cudaLaunchAttribute attribute;
        cudaLaunchConfig_t config = shape(dim3(4, 4, 2), 32, dim3(2, 1, 2), 0, &attribute);
        CHECK(cudaLaunchKernelEx(&config, places, dp));
        std::vector<uint4> at = to_host(dp, 32);
        for (unsigned z = 0; z < 2; ++z)
            for (unsigned y = 0; y < 4; ++y)
                for (unsigned x = 0; x < 4; ++x) {
                    uint4 got = at[(z * 4 + y) * 4 + x];
                    bool right = got.x == x % 2 + 2 * z && got.y == (x % 2 | z << 16) && got.z == (2 | 1 << 8 | 2 << 16);
                    fine &= expect(right && got.w >> 8 == 4, "places of blocks in clusters");
                }
        // Too large, no divisor of the grid, and another size than the kernel's own.
        config = shape(16, 32, 16, 0, &attribute);
        fine &= expect(cudaLaunchKernelEx(&config, places, dp) == cudaErrorInvalidClusterSize, "clusters of 16 blocks are refused");
        config = shape(9, 32, 2, 0, &attribute);
        fine &= expect(cudaLaunchKernelEx(&config, places, dp) != cudaSuccess, "grids that are no multiple are refused");
        int most = 0, able = 0;
        config = shape(16, 32, 1, 0, &attribute);
        CHECK(cudaOccupancyMaxPotentialClusterSize(&most, places, &config));
        CHECK(cudaDeviceGetAttribute(&able, cudaDevAttrClusterLaunch, 0));
        fine &= expect(most == 8 && able == 1, "clusters of 8 blocks are possible");
        cudaGetLastError();
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaFree(dv));
        CHECK(cudaFree(di));
        CHECK(cudaFree(out));
        CHECK(cudaFree(dp));
    }
    return verdict("clusters", fine, "histograms, rings and places of clusters of 1 to 8 blocks are right");
}
