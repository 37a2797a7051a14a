// Graphs: made of captured streams that fork and join, and node by node; launched often, changed, cloned, put into each other.
#include "check.h"

#include <chrono>
#include <vector>

__global__ void add(int* data, int value, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] += value;
}

__global__ void sum(int* out, const int* a, const int* b, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = a[i] + b[i];
}

void CUDART_CB count(void* user) { ++*static_cast<int*>(user); }

const int N = 100'003;
const size_t BYTES = N * sizeof(int);

struct Buffers {
    int *a, *b, *out;
    std::vector<int> host = std::vector<int>(N);

    Buffers() {
        CHECK(cudaMalloc(&a, BYTES));
        CHECK(cudaMalloc(&b, BYTES));
        CHECK(cudaMalloc(&out, BYTES));
    }

    ~Buffers() {
        cudaFree(a);
        cudaFree(b);
        cudaFree(out);
    }

    bool all(int expected) const {
        for (int i = 0; i < N; ++i) {
            if (host[i] != expected) {
                printf("element %d is %d, not %d\n", i, host[i], expected);
                return false;
            }
        }
        return true;
    }
};

// Two streams: one fills and adds, the other does so beside it; then both are summed and copied to pageable memory.
bool captured(int rounds) {
    Buffers buffers;
    int called = 0;
    cudaStream_t one, two;
    cudaEvent_t forked, joined;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(forked, one));
    CHECK(cudaStreamWaitEvent(two, forked, 0));
    CHECK(cudaMemsetAsync(buffers.a, 0, BYTES, one));
    add<<<40, 128, 0, one>>>(buffers.a, 30, N);
    CHECK(cudaMemsetAsync(buffers.b, 0, BYTES, two));
    add<<<40, 128, 0, two>>>(buffers.b, 12, N);
    CHECK(cudaEventRecord(joined, two));
    CHECK(cudaStreamWaitEvent(one, joined, 0));
    sum<<<40, 128, 0, one>>>(buffers.out, buffers.a, buffers.b, N);
    CHECK(cudaMemcpyAsync(buffers.host.data(), buffers.out, BYTES, cudaMemcpyDeviceToHost, one));
    CHECK(cudaLaunchHostFunc(one, count, &called));
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(two, &status));
    bool passed = status == cudaStreamCaptureStatusActive;
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(one, &graph));
    size_t nodes = 0, edges = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
#else
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, &edges));
#endif
    passed = passed && nodes == 7 && edges == 6 && called == 0;
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    for (int round = 1; round <= rounds; ++round) {
        std::fill(buffers.host.begin(), buffers.host.end(), 0);
        CHECK(cudaGraphLaunch(exec, one));
        CHECK(cudaStreamSynchronize(one));
        passed = passed && buffers.all(42) && called == round;
    }
    // A failed capture leaves no trace.
    int* never = nullptr;
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    passed = passed && cudaMalloc(&never, 16) == cudaErrorStreamCaptureUnsupported;
    passed = passed && cudaStreamEndCapture(one, &graph) == cudaErrorStreamCaptureInvalidated;
    (void)cudaGetLastError();
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaEventDestroy(forked));
    CHECK(cudaEventDestroy(joined));
    CHECK(cudaStreamDestroy(one));
    CHECK(cudaStreamDestroy(two));
    return passed;
}

#if CUDART_VERSION >= 13030
// What was asked about nodes that are captured again with other parameters.
struct Asked {
    int kernels = 0, fills = 0;
    bool right = true;
};

cudaError_t CUDART_CB agree(void* data, cudaGraphNode_t node, const cudaGraphNodeParams* before,
                            const cudaGraphNodeParams* now, cudaGraphRecaptureStatus status) {
    Asked* asked = static_cast<Asked*>(data);
    bool right = node != nullptr && before->type == now->type && status == cudaGraphRecaptureEligibleForUpdate;
    if (now->type == cudaGraphNodeTypeKernel) {
        ++asked->kernels;
        right = right && *static_cast<int*>(before->kernel.kernelParams[1]) == 30;
        right = right && *static_cast<int*>(now->kernel.kernelParams[1]) == 40;
    } else {
        ++asked->fills;
        right = right && now->type == cudaGraphNodeTypeMemset && before->memset.value == 0 && now->memset.value == 1;
    }
    asked->right = asked->right && right;
    return cudaSuccess;
}

// A graph that is captured once more, with another number to add to another beginning.
bool recaptured() {
    Buffers buffers;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    auto given = [&](int fill, int number) {
        CHECK(cudaMemsetAsync(buffers.a, fill, BYTES, stream));
        add<<<40, 128, 0, stream>>>(buffers.a, number, N);
        CHECK(cudaMemcpyAsync(buffers.host.data(), buffers.a, BYTES, cudaMemcpyDeviceToHost, stream));
    };
    cudaGraph_t graph, same;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    given(0, 30);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    Asked asked;
    cudaGraphRecaptureCallbackData told = {agree, &asked};
    CHECK(cudaStreamBeginRecaptureToGraph(stream, cudaStreamCaptureModeGlobal, graph, &told));
    given(1, 40);
    CHECK(cudaStreamEndCapture(stream, &same));
    bool passed = expect(same == graph && asked.right && asked.kernels == 1 && asked.fills == 1, "what was asked");
    cudaGraphExecUpdateResultInfo result;
    CHECK(cudaGraphExecUpdate(exec, graph, &result));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    passed = expect(buffers.all(0x01010101 + 40), "sums of what was captured again") && passed;
    // Another graph altogether.
    CHECK(cudaStreamBeginRecaptureToGraph(stream, cudaStreamCaptureModeGlobal, graph, nullptr));
    add<<<40, 128, 0, stream>>>(buffers.a, 1, N);
    passed = expect(cudaGetLastError() == cudaErrorGraphRecaptureFailure, "another shape fails") && passed;
    passed = expect(cudaStreamEndCapture(stream, &same) == cudaErrorStreamCaptureInvalidated, "and is over") && passed;
    (void)cudaGetLastError();
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return passed;
}
#else
bool recaptured() { return true; }
#endif

// memset -> kernel -> copy to the host -> function, all added by hand; then changed in the executable graph and in the whole.
bool by_hand() {
    Buffers buffers;
    int called = 0, value = 5, n = N;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemsetParams fill = {};
    fill.dst = buffers.a;
    fill.value = 0;
    fill.elementSize = 4;
    fill.width = N;
    fill.height = 1;
    cudaGraphNode_t memset, kernel, copy, host, none;
    CHECK(cudaGraphAddMemsetNode(&memset, graph, nullptr, 0, &fill));
    cudaKernelNodeParams params = {};
    void* arguments[] = {&buffers.a, &value, &n};
    params.func = reinterpret_cast<void*>(add);
    params.gridDim = dim3(40);
    params.blockDim = dim3(128);
    params.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &memset, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, buffers.host.data(), buffers.a, BYTES, cudaMemcpyDeviceToHost));
    cudaHostNodeParams function = {count, &called};
    CHECK(cudaGraphAddHostNode(&host, graph, &copy, 1, &function));
    CHECK(cudaGraphAddEmptyNode(&none, graph, &host, 1));
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(kernel, &type));
    cudaKernelNodeParams asked = {};
    CHECK(cudaGraphKernelNodeGetParams(kernel, &asked));
    bool passed = type == cudaGraphNodeTypeKernel && asked.blockDim.x == 128 && *static_cast<int*>(asked.kernelParams[1]) == 5;
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    auto run = [&](int expected, int calls) {
        CHECK(cudaGraphLaunch(exec, 0));
        CHECK(cudaDeviceSynchronize());
        return buffers.all(expected) && called == calls;
    };
    passed = passed && run(5, 1);
    value = 9;
    passed = passed && run(5, 2);
    CHECK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
    passed = passed && run(9, 3);
    fill.value = 100;
    CHECK(cudaGraphExecMemsetNodeSetParams(exec, memset, &fill));
    passed = passed && run(109, 4);
    CHECK(cudaGraphNodeSetEnabled(exec, kernel, 0));
    passed = passed && run(100, 5);
    CHECK(cudaGraphNodeSetEnabled(exec, kernel, 1));
    // A clone is changed, and what it says is taken over as a whole.
    cudaGraph_t clone;
    cudaGraphNode_t cloned;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&cloned, kernel, clone));
    value = 1;
    CHECK(cudaGraphKernelNodeSetParams(cloned, &params));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(exec, clone, &info));
    passed = passed && info.result == cudaGraphExecUpdateSuccess && run(1, 6);
    // A graph in a graph.
    cudaGraph_t outer;
    cudaGraphNode_t first, second;
    CHECK(cudaGraphCreate(&outer, 0));
    CHECK(cudaGraphAddChildGraphNode(&first, outer, nullptr, 0, graph));
    value = 70;
    CHECK(cudaGraphAddKernelNode(&second, outer, &first, 1, &params));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphInstantiate(&exec, outer, 0));
    passed = passed && run(5, 7);
    CHECK(cudaMemcpy(buffers.host.data(), buffers.a, BYTES, cudaMemcpyDeviceToHost));
    passed = passed && buffers.all(75);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(outer));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(graph));
    return passed;
}

// What a launch costs the program: graphs of one kernel and of many.
void measure() {
    const int most = 101, rounds = 200;
    int* data;
    CHECK(cudaMalloc(&data, sizeof(int)));
    CHECK(cudaMemset(data, 0, sizeof(int)));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    double took[2];
    const int sizes[2] = {1, most};
    for (int which = 0; which < 2; ++which) {
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < sizes[which]; ++i) add<<<1, 1, 0, stream>>>(data, 1, 1);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        took[which] = 1e9;
        for (int round = 0; round < rounds; ++round) {
            auto begin = std::chrono::steady_clock::now();
            CHECK(cudaGraphLaunch(exec, stream));
            std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
            took[which] = std::min(took[which], time.count());
            CHECK(cudaStreamSynchronize(stream));
        }
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    printf("a launch: %.2f us, and %.3f us for each further node (the best of %d)\n", took[0],
           (took[1] - took[0]) / (most - 1), rounds);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(data));
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    bool passed = captured(options.repeat + 2);
    passed = recaptured() && passed;
    passed = by_hand() && passed;
    measure();
    return verdict("graphs", passed, "capture with fork and join, and once more, nodes by hand, updates, clone, graph in a graph");
}
