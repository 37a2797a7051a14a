#include "linked.h"

#include "../check.h"

static __device__ int salt = 30;
static __device__ int season(int x) { return x ^ salt; }

__device__ int add(int a, int b) { return a + b; }
// Not shown to the others but through the table.
static __device__ int scaled(int a, int b) { return a * 3 - b; }
__device__ int either(int a, int b) { return a ^ b; }

__device__ Binary operations[3] = {add, scaled, either};
__device__ int calls = 77;
__constant__ int weights[4] = {1, 2, 3, 4};
__managed__ int budget = 1;

__device__ int mixed(int a, int b) { return a * 7 + season(b); }

// A kernel and its launch in a file that is not the program's.
static __global__ void read_calls(int* out) { *out = calls + twice(limit) - 2 * limit; }

int count_calls() {
    int* device = on_device<int>(1);
    read_calls<<<1, 1>>>(device);
    int calls = to_host(device, 1)[0];
    CHECK(cudaFree(device));
    return calls;
}
