// What the files of the example show each other.
#pragma once

using Binary = int (*)(int, int);

// operations.cu
extern __device__ Binary operations[3];
extern __device__ int calls;
extern __constant__ int weights[4];
extern __managed__ int budget;
__device__ int mixed(int a, int b);
int count_calls();

// shapes.cu
struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
__device__ Shape* make_shape(int kind, float side);
__device__ float total_of_two(const Shape* shape);

// In every file that uses them; one of each is left.
inline __device__ int limit = 100;
template <typename T>
__device__ __noinline__ T twice(T x) {
    static __device__ int used;
    atomicAdd(&used, 1);
    return x + x;
}
template <typename F>
__device__ int applied(F function, int x) {
    return function(x) + twice(1) - 1;
}
