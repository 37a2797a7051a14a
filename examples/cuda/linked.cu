// Relocatable device code: this file and those of the folder `linked` are compiled apart (-rdc=true) and linked. They share
// functions, called by name and through pointers, variables, constants, virtual functions and templates; and each has things
// of its own by the same names. What the GPU finds is compared with what the host computes.

#include "check.h"
#include "linked/linked.h"

// The other files have one of this name, too.
static __device__ int salt = 3;
static __device__ int season(int x) { return x + salt; }

__global__ void combine(const int* in, int* out, int count, Binary last) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    // A function of another file, a table of pointers there, a pointer from the host, a template that every file has.
    int x = mixed(in[i], season(i));
    x = operations[i % 3](x, in[(i + 1) % count]);
    x = last(x, twice(i) + limit);
    // A lambda through a function of the other file.
    int seasoned = season(1);
    x += applied([=](int y) { return y * seasoned; }, i);
    out[i] = x + weights[i % 4];
    atomicAdd(&calls, 1);
    if (i == 0) budget -= count;
}

__global__ void areas(float* out, int count) {
    int i = threadIdx.x;
    if (i >= count) return;
    // Its class is known to the other file alone.
    Shape* shape = make_shape(i % 2, 1.0f + i);
    out[i] = shape->area() + total_of_two(shape);
    delete shape;
}

// The same on the host.
static int host_operation(int which, int a, int b) { return which == 0 ? a + b : which == 1 ? a * 3 - b : (a ^ b); }
static int host_mixed(int a, int b) { return a * 7 + (b ^ 30); }

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int count = 1 << 12, shapes = 16;
    std::vector<int> in(count), want(count);
    Random random;
    for (int& x : in) x = static_cast<int>(random.bits() % 1000);
    const int host_weights[4] = {5, 6, 7, 8};
    CHECK(cudaMemcpyToSymbol(weights, host_weights, sizeof host_weights));
    budget = 2 * count;
    int zero = 0, three = 4;
    CHECK(cudaMemcpyToSymbol(calls, &zero, sizeof zero));
    CHECK(cudaMemcpyToSymbol(salt, &three, sizeof three));
    Binary last = nullptr;
    CHECK(cudaMemcpyFromSymbol(&last, operations, sizeof last, sizeof last));

    int* device_in = to_device(in);
    int* device_out = on_device<int>(count);
    for (int i = 0; i < options.repeat; ++i) combine<<<count / 128, 128>>>(device_in, device_out, count, last);
    finish_launches();
    int ran = 0, other = count_calls();
    CHECK(cudaMemcpyFromSymbol(&ran, calls, sizeof ran));
    std::vector<int> got = to_host(device_out, count);
    for (int i = 0; i < count; ++i) {
        int x = host_mixed(in[i], i + 4);
        x = host_operation(i % 3, x, in[(i + 1) % count]);
        x = host_operation(1, x, 2 * i + 100);
        want[i] = x + i * 5 + 1 + host_weights[i % 4];
    }
    float* device_areas = on_device<float>(shapes);
    areas<<<1, 32>>>(device_areas, shapes);
    std::vector<float> area = to_host(device_areas, shapes);
    bool passed = got == want && ran == options.repeat * count && other == ran && budget == (2 - options.repeat) * count;
    for (int i = 0; i < shapes; ++i) {
        float side = 1.0f + i, one = i % 2 == 0 ? side * side : 2.0f * side;
        passed &= area[i] == 3.0f * one;
    }
    CHECK(cudaFree(device_in));
    CHECK(cudaFree(device_out));
    CHECK(cudaFree(device_areas));
    return verdict("linked", passed, "3 files' device code, linked");
}
