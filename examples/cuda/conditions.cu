// Graphs that decide on the GPU what runs: a loop until a solver has converged, captured; loops in loops; one of several branches;
// `if` with `else`. With `--endless` a loop that never ends: it says when it has begun.
#include "check.h"

#include <string>

// One step of Jacobi's method for -u'' = f on a line, both ends 0; the largest change, as bits, which order as floats do.
__global__ void jacobi(float* to, const float* from, const float* f, int n, unsigned* change) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float left = i > 0 ? from[i - 1] : 0.0f, right = i + 1 < n ? from[i + 1] : 0.0f;
    float value = 0.5f * (left + right + f[i]);
    to[i] = value;
    atomicMax(change, __float_as_uint(fabsf(value - from[i])));
}

__global__ void converged(cudaGraphConditionalHandle handle, const unsigned* change, float limit, unsigned* steps) {
    ++*steps;
    cudaGraphSetConditional(handle, __uint_as_float(*change) > limit);
}

// Sets a condition to whether a counter is below a limit.
__global__ void below(cudaGraphConditionalHandle handle, const unsigned* counter, unsigned limit) {
    cudaGraphSetConditional(handle, *counter < limit);
}

__global__ void add(unsigned* to, unsigned value) { *to += value; }

__global__ void add_from(unsigned* to, const unsigned* value) { *to += *value; }

__global__ void remainder_of(cudaGraphConditionalHandle handle, const unsigned* value, unsigned by) {
    cudaGraphSetConditional(handle, *value % by);
}

template <typename... Params>
static cudaGraphNode_t kernel(cudaGraph_t graph, cudaGraphNode_t before, void (*function)(Params...), Params... params) {
    void* list[] = {&params...};
    cudaGraphNodeParams node = {cudaGraphNodeTypeKernel};
    node.kernel.func = reinterpret_cast<void*>(function);
    node.kernel.gridDim = node.kernel.blockDim = dim3(1);
    node.kernel.kernelParams = list;
    cudaGraphNode_t added;
    CHECK(cudaGraphAddNode(&added, graph, before ? &before : nullptr, nullptr, before ? 1 : 0, &node));
    return added;
}

struct Conditional {
    cudaGraphConditionalHandle handle;
    cudaGraphNode_t node;
    cudaGraph_t* bodies;
};

// A conditional node with a handle that there is.
static void choose(Conditional& made, cudaGraph_t graph, cudaGraphNode_t before, cudaGraphConditionalNodeType type, unsigned size) {
    cudaGraphNodeParams node = {cudaGraphNodeTypeConditional};
    node.conditional.handle = made.handle;
    node.conditional.type = type;
    node.conditional.size = size;
    CHECK(cudaGraphAddNode(&made.node, graph, before ? &before : nullptr, nullptr, before ? 1 : 0, &node));
    made.bodies = node.conditional.phGraph_out;
}

// Solves as often as it is launched, each time from 0 on.
static bool solver(cudaStream_t stream) {
    const int n = 48, block = 16;
    const float limit = 1e-6f;
    std::vector<float> f(n);
    Random random;
    for (float& value : f) value = random.uniform(0.0f, 0.001f);
    float *on_gpu = to_device(f), *u = on_device<float>(n), *next = on_device<float>(n);
    unsigned *change = on_device<unsigned>(1), *steps = on_device<unsigned>(1);

    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemsetAsync(u, 0, n * sizeof(float), stream));
    CHECK(cudaMemsetAsync(steps, 0, sizeof(unsigned), stream));
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* last;
    size_t count;
    CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &count));
    Conditional loop;
    CHECK(cudaGraphConditionalHandleCreate(&loop.handle, graph, 1, cudaGraphCondAssignDefault));
    choose(loop, graph, last[0], cudaGraphCondTypeWhile, 1);
    CHECK(cudaStreamUpdateCaptureDependencies(stream, &loop.node, nullptr, 1, cudaStreamSetCaptureDependencies));
    std::vector<float> result(n);
    std::vector<unsigned> rounds(1);
    CHECK(cudaMemcpyAsync(result.data(), u, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(rounds.data(), steps, sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));

    CHECK(cudaStreamBeginCaptureToGraph(stream, loop.bodies[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemsetAsync(change, 0, sizeof(unsigned), stream));
    jacobi<<<(n + block - 1) / block, block, 0, stream>>>(next, u, on_gpu, n, change);
    CHECK(cudaMemcpyAsync(u, next, n * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    converged<<<1, 1, 0, stream>>>(loop.handle, change, limit, steps);
    CHECK(cudaStreamEndCapture(stream, nullptr));

    // The CPU does the same, in the same order of operations.
    std::vector<float> want(n), step(n);
    unsigned wanted = 0;
    for (float largest = 1.0f; largest > limit; ++wanted) {
        largest = 0.0f;
        for (int i = 0; i < n; ++i) {
            float left = i > 0 ? want[i - 1] : 0.0f, right = i + 1 < n ? want[i + 1] : 0.0f;
            step[i] = 0.5f * (left + right + f[i]);
            largest = std::max(largest, std::fabs(step[i] - want[i]));
        }
        want = step;
    }
    cudaGraphExec_t exec, second;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool passed = expect(cudaGraphInstantiate(&second, graph, 0) != cudaSuccess, "it is not instantiated twice");
    cudaGraph_t clone;
    passed &= expect(cudaGraphClone(&clone, graph) != cudaSuccess, "nor cloned");
    cudaGetLastError();
    for (int launch = 0; launch < 2; ++launch) {
        std::fill(result.begin(), result.end(), -1.0f);
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        passed &= expect(rounds[0] == wanted, "as many steps as on the CPU");
        passed &= expect(std::memcmp(result.data(), want.data(), n * sizeof(float)) == 0, "the same solution");
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    for (void* memory : {(void*)on_gpu, (void*)u, (void*)next, (void*)change, (void*)steps}) CHECK(cudaFree(memory));
    return passed;
}

// for (i = 0; i < 5; ++i) for (j = 0; j < i + 1; ++j) ++sum, and in the middle a branch by i % 4.
static bool loops() {
    unsigned* counters;
    CHECK(cudaMallocManaged(&counters, 8 * sizeof(unsigned)));
    unsigned *i = counters, *j = counters + 1, *sum = counters + 2, *limit = counters + 3, *branch = counters + 4;
    std::fill(counters, counters + 8, 0);
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Conditional outer, inner, kind;
    CHECK(cudaGraphConditionalHandleCreate(&outer.handle, graph, 1, cudaGraphCondAssignDefault));
    choose(outer, graph, nullptr, cudaGraphCondTypeWhile, 1);
    cudaGraph_t body = outer.bodies[0];
    CHECK(cudaGraphConditionalHandleCreate(&inner.handle, body, 0, 0));
    CHECK(cudaGraphConditionalHandleCreate(&kind.handle, body, 0, 0));
    auto node = kernel(body, nullptr, remainder_of, kind.handle, (const unsigned*)i, 4u);
    choose(kind, body, node, cudaGraphCondTypeSwitch, 3);
    for (unsigned number = 0; number < 3; ++number) kernel(kind.bodies[number], nullptr, add, branch + number, 1u);
    node = kernel(body, kind.node, add, i, 1u);
    // j = 0, limit = i.
    cudaGraphNodeParams zero = {cudaGraphNodeTypeMemset};
    zero.memset = {j, 0, 0, 4, 1, 1};
    CHECK(cudaGraphAddNode(&node, body, &node, nullptr, 1, &zero));
    zero.memset.dst = limit;
    CHECK(cudaGraphAddNode(&node, body, &node, nullptr, 1, &zero));
    node = kernel(body, node, add_from, limit, (const unsigned*)i);
    node = kernel(body, node, below, inner.handle, (const unsigned*)j, 1u);
    choose(inner, body, node, cudaGraphCondTypeWhile, 1);
    node = kernel(inner.bodies[0], nullptr, add, sum, 1u);
    node = kernel(inner.bodies[0], node, add, j, 1u);
    // It goes on while the limit, which goes down, is not 0.
    node = kernel(inner.bodies[0], node, add, limit, ~0u);
    kernel(inner.bodies[0], node, remainder_of, inner.handle, (const unsigned*)limit, ~0u);
    kernel(body, inner.node, below, outer.handle, (const unsigned*)i, 5u);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, 0));
    CHECK(cudaDeviceSynchronize());
    bool passed = expect(*i == 5 && *sum == 15, "a loop in a loop");
    passed &= expect(branch[0] == 2 && branch[1] == 1 && branch[2] == 1, "one of three, or none");
    // The same nodes again from where the counters are: the outer loop runs once, as its default says.
    *sum = 0;
    CHECK(cudaGraphLaunch(exec, 0));
    CHECK(cudaDeviceSynchronize());
    passed &= expect(*i == 6 && *sum == 6, "the default counts at each launch");
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(counters));
    return passed;
}

// Adds 1 to one counter where a value is odd, to the other where it is even.
static bool branches() {
    unsigned* values;
    CHECK(cudaMallocManaged(&values, 3 * sizeof(unsigned)));
    std::fill(values, values + 3, 0);
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Conditional odd;
    CHECK(cudaGraphConditionalHandleCreate(&odd.handle, graph, 0, 0));
    auto node = kernel(graph, nullptr, remainder_of, odd.handle, (const unsigned*)values, 2u);
    choose(odd, graph, node, cudaGraphCondTypeIf, 2);
    kernel(odd.bodies[0], nullptr, add, values + 1, 1u);
    kernel(odd.bodies[1], nullptr, add, values + 2, 1u);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool passed = true;
    for (unsigned value = 0; value < 7; ++value) {
        *values = value;
        CHECK(cudaGraphLaunch(exec, 0));
        CHECK(cudaDeviceSynchronize());
    }
    passed &= expect(values[1] == 3 && values[2] == 4, "if and else");
    CHECK(cudaGraphExecDestroy(exec));
    // A handle that no node looks at.
    cudaGraphConditionalHandle unused;
    CHECK(cudaGraphConditionalHandleCreate(&unused, graph, 0, 0));
    cudaGraphInstantiateParams params = {};
    passed &= expect(cudaGraphInstantiateWithParams(&exec, graph, &params) != cudaSuccess, "no unused handles");
    passed &= expect(params.result_out == cudaGraphInstantiateConditionalHandleUnused, "which is said");
    cudaGetLastError();
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(values));
    return passed;
}

static int endless() {
    unsigned* rounds;
    CHECK(cudaHostAlloc(&rounds, sizeof(unsigned), cudaHostAllocMapped));
    *rounds = 0;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    Conditional loop;
    CHECK(cudaGraphConditionalHandleCreate(&loop.handle, graph, 1, cudaGraphCondAssignDefault));
    choose(loop, graph, nullptr, cudaGraphCondTypeWhile, 1);
    kernel(loop.bodies[0], nullptr, add, rounds, 1u);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, 0));
    while (*static_cast<volatile unsigned*>(rounds) < 100) {}
    std::printf("{\"started\":true}\n");
    std::fflush(stdout);
    CHECK(cudaDeviceSynchronize());
    return 1;
}

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "--endless") return endless();
    Options options = parse_options(argc, argv);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bool passed = true;
    for (int round = 0; round < options.repeat; ++round) passed = solver(stream) && loops() && branches() && passed;
    CHECK(cudaStreamDestroy(stream));
    return verdict("conditions", passed, "loops, nested and captured, branches, a choice of three");
}
