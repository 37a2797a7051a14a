// Green contexts: the multiprocessors divided in two, a sum of each half's own in a stream of each, and what joins them.
#include "check.h"

__global__ void squares(unsigned* to, unsigned first, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = (first + i) * (first + i);
}

__global__ void add(unsigned* to, const unsigned* from, unsigned n) {
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) to[i] += from[i];
}

int main(int argc, char** argv) {
    (void)argc;
    (void)argv;
    constexpr unsigned N = 1 << 16;
    bool passed = true;
    CHECK(cudaSetDevice(0));
    cudaDevResource all;
    CHECK(cudaDeviceGetDevResource(0, &all, cudaDevResourceTypeSm));
    // Two groups of half of them each, where there are enough for two; else one that both are made of.
    cudaDevResource groups[2] = {all, all};
    unsigned count = 2;
    CHECK(cudaDevSmResourceSplitByCount(groups, &count, &all, nullptr, 0, all.sm.minSmPartitionSize));
    if (count == 1) groups[1] = groups[0];

    cudaExecutionContext_t contexts[2];
    cudaStream_t streams[2];
    unsigned* data[2];
    for (int half = 0; half < 2; half++) {
        cudaDevResourceDesc_t desc;
        CHECK(cudaDevResourceGenerateDesc(&desc, &groups[half], 1));
        CHECK(cudaGreenCtxCreate(&contexts[half], desc, 0, 0));
        CHECK(cudaExecutionCtxStreamCreate(&streams[half], contexts[half], cudaStreamNonBlocking, 0));
        cudaDevResource own;
        CHECK(cudaStreamGetDevResource(streams[half], &own, cudaDevResourceTypeSm));
        passed &= expect(own.sm.smCount == groups[half].sm.smCount, "a stream has what its context has");
        CHECK(cudaMalloc(&data[half], N * sizeof(unsigned)));
        squares<<<own.sm.smCount, 128, 0, streams[half]>>>(data[half], half * N, N);
        CHECK(cudaGetLastError());
    }
    // All of the second context's work comes before what is added in the first.
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaExecutionCtxRecordEvent(contexts[1], event));
    CHECK(cudaExecutionCtxWaitEvent(contexts[0], event));
    add<<<1, 256, 0, streams[0]>>>(data[0], data[1], N);
    CHECK(cudaGetLastError());
    CHECK(cudaExecutionCtxSynchronize(contexts[0]));
    std::vector<unsigned> sums(N);
    CHECK(cudaMemcpy(sums.data(), data[0], N * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < N; i++) {
        if (!expect(sums[i] == i * i + (N + i) * (N + i), "the sums")) {
            passed = false;
            break;
        }
    }
    CHECK(cudaExecutionCtxDestroy(contexts[0]));
    passed &= expect(cudaStreamSynchronize(streams[0]) == cudaErrorStreamDetached, "a stream is of no use without its context");
    passed &= expect(cudaStreamSynchronize(streams[1]) == cudaSuccess, "the other's is");
    CHECK(cudaStreamDestroy(streams[0]));
    CHECK(cudaStreamDestroy(streams[1]));
    CHECK(cudaExecutionCtxDestroy(contexts[1]));
    CHECK(cudaFree(data[0]));
    CHECK(cudaFree(data[1]));
    return verdict("green", passed, "multiprocessors divided between two contexts");
}
