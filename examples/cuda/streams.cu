// Two streams, events between them and around them, asynchronous copies of pinned memory, a host function.
#include "check.h"

__global__ void scale(float* data, float factor, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] *= factor;
}

__global__ void add(float* data, const float* other, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] += other[i];
}

void CUDART_CB count(void* user) { ++*static_cast<int*>(user); }

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 400'009;
    float *a = nullptr, *b = nullptr, *d_a = nullptr, *d_b = nullptr;
    CHECK(cudaMallocHost(&a, n * sizeof(float)));
    CHECK(cudaMallocHost(&b, n * sizeof(float)));
    CHECK(cudaMalloc(&d_a, n * sizeof(float)));
    CHECK(cudaMalloc(&d_b, n * sizeof(float)));
    cudaStream_t first, second;
    CHECK(cudaStreamCreate(&first));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    cudaEvent_t begin, end, ready;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    bool passed = true;
    int called = 0;
    float milliseconds = -1;
    for (int r = 0; r < options.repeat; ++r) {
        for (int i = 0; i < n; ++i) a[i] = float(i % 1000), b[i] = float(r + 1);
        CHECK(cudaEventRecord(begin, first));
        CHECK(cudaMemcpyAsync(d_a, a, n * sizeof(float), cudaMemcpyHostToDevice, first));
        CHECK(cudaMemcpyAsync(d_b, b, n * sizeof(float), cudaMemcpyHostToDevice, second));
        scale<<<40, 128, 0, second>>>(d_b, 3.0f, n);
        CHECK(cudaEventRecord(ready, second));
        scale<<<40, 128, 0, first>>>(d_a, 2.0f, n);
        CHECK(cudaStreamWaitEvent(first, ready, 0));
        add<<<40, 128, 0, first>>>(d_a, d_b, n);
        CHECK(cudaMemcpyAsync(a, d_a, n * sizeof(float), cudaMemcpyDeviceToHost, first));
        CHECK(cudaLaunchHostFunc(first, count, &called));
        CHECK(cudaEventRecord(end, first));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        passed = passed && milliseconds > 0 && called == r + 1 && cudaStreamQuery(first) == cudaSuccess;
        for (int i = 0; i < n; ++i) passed = passed && a[i] == 2.0f * float(i % 1000) + 3.0f * float(r + 1);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaEventDestroy(ready));
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaFreeHost(a));
    CHECK(cudaFreeHost(b));
    CHECK(cudaFree(d_a));
    CHECK(cudaFree(d_b));
    return verdict("streams", passed, "2 streams, 3 events, pinned copies, host function");
}
