// Memory that graphs allocate: captured, by nodes, kept behind a launch, freed outside, by another graph and by the next launch.
#include "check.h"

#include <vector>

__global__ void fill(int* data, int value, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = value + i;
}

__global__ void sum(int* out, const int* a, const int* b, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = a[i] + b[i];
}

const int N = 1'000'003;
const size_t BYTES = N * sizeof(int);

bool is(const std::vector<int>& host, int value) {
    for (int i = 0; i < N; ++i) {
        if (host[i] != value + 2 * i) {
            printf("element %d is %d, not %d\n", i, host[i], value + 2 * i);
            return false;
        }
    }
    return true;
}

unsigned long long reserved() {
    unsigned long long bytes = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
    return bytes;
}

// Temporary memory of a captured stream.
bool captured(cudaStream_t stream) {
    std::vector<int> host(N);
    int *a, *b, *out;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&a, BYTES, stream));
    CHECK(cudaMallocAsync(&b, BYTES, stream));
    CHECK(cudaMallocAsync(&out, BYTES, stream));
    fill<<<40, 128, 0, stream>>>(a, 30, N);
    fill<<<40, 128, 0, stream>>>(b, 12, N);
    sum<<<40, 128, 0, stream>>>(out, a, b, N);
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaMemcpyAsync(host.data(), out, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaFreeAsync(out, stream));
    cudaGraph_t graph, clone;
    CHECK(cudaStreamEndCapture(stream, &graph));
    bool passed = expect(cudaGraphClone(&clone, graph) != cudaSuccess, "a graph with memory is not cloned");
    cudaGraphExec_t exec, second;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    passed &= expect(cudaGraphInstantiate(&second, graph, 0) != cudaSuccess, "nor instantiated twice");
    passed &= expect(reserved() == 0, "no memory before the launch");
    for (int round = 0; round < 3 && passed; ++round) {
        host.assign(N, 0);
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        passed &= is(host, 42) && expect(reserved() >= 3 * BYTES, "memory behind a launch");
    }
    CHECK(cudaDeviceGraphMemTrim(0));
    passed &= expect(reserved() == 0, "none after a trim");
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    (void)cudaGetLastError();
    return passed && is(host, 42) && expect(reserved() == 0, "none without graphs");
}

// A graph keeps what it allocates: who frees it?
bool kept(cudaStream_t stream) {
    cudaGraph_t graph, freer;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphCreate(&freer, 0));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    cudaMemAccessDesc access = {};
    access.location = params.poolProps.location;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    params.accessDescs = &access;
    params.accessDescCount = 1;
    params.bytesize = BYTES;
    cudaGraphNode_t alloc, kernel, free;
    CHECK(cudaGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params));
    int* data = static_cast<int*>(params.dptr);
    cudaMemAllocNodeParams shown = {};
    CHECK(cudaGraphMemAllocNodeGetParams(alloc, &shown));
    bool passed = expect(shown.dptr == data && shown.bytesize == BYTES && shown.accessDescCount == 1 &&
                             shown.accessDescs[0].flags == cudaMemAccessFlagsProtReadWrite,
                         "a node says what it allocates");
    int value = 5, n = N;
    void* arguments[] = {&data, &value, &n};
    cudaKernelNodeParams launch = {};
    launch.func = reinterpret_cast<void*>(fill);
    launch.gridDim = dim3(40);
    launch.blockDim = dim3(128);
    launch.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &alloc, 1, &launch));
    CHECK(cudaGraphAddMemFreeNode(&free, freer, nullptr, 0, data));
    void* freed = nullptr;
    CHECK(cudaGraphMemFreeNodeGetParams(free, &freed));
    passed &= expect(freed == data, "a node says what it frees");
    cudaGraphExec_t exec, other;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphInstantiate(&other, freer, 0));
    std::vector<int> host(N);
    for (int way = 0; way < 3; ++way) {
        CHECK(cudaGraphLaunch(exec, stream));
        passed &= expect(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue, "what is not freed is not allocated again");
        sum<<<40, 128, 0, stream>>>(data, data, data, N);
        CHECK(cudaMemcpyAsync(host.data(), data, BYTES, cudaMemcpyDeviceToHost, stream));
        if (way == 0) CHECK(cudaFreeAsync(data, stream));
        if (way == 1) CHECK(cudaGraphLaunch(other, stream));
        CHECK(cudaStreamSynchronize(stream));
        passed &= is(host, 10);
        if (way == 2) CHECK(cudaFree(data));
    }
    (void)cudaGetLastError();
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int round = 0; round < 3; ++round) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    // It outlives its graph.
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaMemcpy(host.data(), data, BYTES, cudaMemcpyDeviceToHost));
    passed &= expect(host[7] == 12, "memory outlives its graph");
    CHECK(cudaGraphLaunch(other, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(other));
    CHECK(cudaGraphDestroy(freer));
    return passed && expect(reserved() == 0, "none without graphs");
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bool passed = true;
    for (int round = 0; round < options.repeat; ++round) passed = captured(stream) && kept(stream) && passed;
    CHECK(cudaStreamDestroy(stream));
    return verdict("graph_memory", passed, "allocations captured and by nodes, freed in five ways, trimmed");
}
