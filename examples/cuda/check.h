// Shared by the examples: command line, error checks, comparison with the CPU.
//
// Every example computes on the GPU, computes again on the CPU, compares, prints one line and exits with 0 only if the
// results agree. `--paper` takes the data size of vmCUDA's evaluation (HPC 2014, table 1), where the example has one;
// `--repeat N` runs the GPU part N times.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        cudaError_t error_ = (call);                                                                       \
        if (error_ != cudaSuccess) {                                                                       \
            std::fprintf(stderr, "%s:%d: %s: %s (%d)\n", __FILE__, __LINE__, #call,                        \
                         cudaGetErrorString(error_), static_cast<int>(error_));                            \
            std::exit(2);                                                                                  \
        }                                                                                                  \
    } while (0)

struct Options {
    bool paper = false;
    int repeat = 1;
};

inline Options parse_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--paper") == 0) {
            options.paper = true;
        } else if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
            options.repeat = std::atoi(argv[++i]);
        } else {
            std::fprintf(stderr, "usage: %s [--paper] [--repeat N]\n", argv[0]);
            std::exit(2);
        }
    }
    return options;
}

// The same pseudo-random numbers everywhere.
struct Random {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    uint32_t bits() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(state >> 32);
    }
    float uniform(float low, float high) { return low + (high - low) * (bits() >> 8) * (1.0f / 16777216.0f); }
};

template <typename T>
T* to_device(const std::vector<T>& host) {
    T* device = nullptr;
    CHECK(cudaMalloc(&device, host.size() * sizeof(T)));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

template <typename T>
std::vector<T> to_host(const T* device, size_t count) {
    std::vector<T> host(count);
    CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// Largest |got - want| relative to the largest |want|.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    double worst = 0.0, scale = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
        double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
        if (!(difference <= worst)) worst = difference;
        if (std::fabs(want[i]) > scale) scale = std::fabs(want[i]);
    }
    return scale > 0.0 ? worst / scale : worst;
}

inline int verdict(const char* name, bool passed, const char* detail) {
    int runtime = 0;
    CHECK(cudaRuntimeGetVersion(&runtime));
    std::printf("%s: %s (%s; CUDA runtime %d.%d)\n", name, passed ? "PASSED" : "FAILED", detail, runtime / 1000,
                runtime % 1000 / 10);
    return passed ? 0 : 1;
}
