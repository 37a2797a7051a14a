#include "linked.h"

static __device__ float salt = 2.0f;

struct Square : Shape {
    float side;
    __device__ explicit Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};

struct Strip : Shape {
    float side;
    __device__ explicit Strip(float side) : side(side) {}
    __device__ float area() const override { return side * salt; }
};

__device__ Shape* make_shape(int kind, float side) {
    if (kind == 0) return new Square(side);
    return new Strip(side);
}

__device__ float total_of_two(const Shape* shape) { return shape->area() + shape->area(); }
