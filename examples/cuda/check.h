// Shared by the examples: command line, error checks, comparison with the CPU, where the time goes.
//
// Every example computes on the GPU, computes again on the CPU, compares, prints one line and exits with 0 only if the
// results agree. `--paper` takes the data size of vmCUDA's evaluation (HPC 2014, table 1), where the example has one;
// `--repeat N` runs the GPU part N times. With SUNDIAL_PHASES in the environment the line is JSON and tells how many
// milliseconds each phase of GPUvm's evaluation (USENIX ATC 2014) took, for the examples that say when they launch. If it is
// `steps`, they stop after each phase, print its name, and wait for a line: for somebody who looks at the GPU meanwhile.
// If it is `end`, they stop once, behind the last phase.
// Compiling is no phase of that evaluation, whose kernels came compiled: it is done before, and not told.
#pragma once

#include <algorithm>
#include <chrono>
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

// A part of what is checked; says what is not so.
inline bool expect(bool good, const char* what) {
    if (!good) std::fprintf(stderr, "not so: %s\n", what);
    return good;
}

// A function of the driver API, with which examples are not linked.
template <typename Function>
Function driver_entry(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) std::exit(2);
    return reinterpret_cast<Function>(found);
}

// What a program does: until it has a context; copying there; kernels, from the first call until they have ended; copying
// back; giving memory back, and ending the context. The rest is the CPU's, or compiling.
enum Phase { INIT, TO_GPU, LAUNCH, FROM_GPU, CLOSE, ON_CPU, COMPILE, PHASE_COUNT };
constexpr const char* PHASES[] = {"init", "to_gpu", "launch", "from_gpu", "close", "on_cpu", "compile"};

// A program is in one phase at a time, from its first instruction on in INIT.
class Phases {
    using Clock = std::chrono::steady_clock;
    Clock::time_point since = Clock::now();
    Phase now = INIT;
    double ms[PHASE_COUNT] = {};

    const char* asked = std::getenv("SUNDIAL_PHASES");

    void stop() {
        std::printf("%s\n", PHASES[now]);
        std::fflush(stdout);
        while (std::getchar() != '\n' && !std::feof(stdin)) {}
    }

  public:
    const bool wanted = asked != nullptr, in_steps = wanted && std::strcmp(asked, "steps") == 0;
    const bool at_end = wanted && std::strcmp(asked, "end") == 0;

    void enter(Phase next) {
        ms[now] += std::chrono::duration<double, std::milli>(Clock::now() - since).count();
        // The CPU alone does nothing that could be looked at.
        if (in_steps && next != now && now != ON_CPU) stop();
        if (at_end && next == ON_CPU && now == CLOSE) stop();
        now = next;
        since = Clock::now();
    }
    void print_json(const char* program, bool passed) const {
        std::printf("{\"program\":\"%s\",\"passed\":%s", program, passed ? "true" : "false");
        for (int phase = INIT; phase < ON_CPU; ++phase) std::printf(",\"%s\":%.4f", PHASES[phase], ms[phase]);
        std::printf("}\n");
    }
};
inline Phases phases;

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
    CHECK(cudaFree(nullptr));
    phases.enter(ON_CPU);
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
T* on_device(size_t count) {
    phases.enter(TO_GPU);
    T* device = nullptr;
    CHECK(cudaMalloc(&device, count * sizeof(T)));
    phases.enter(ON_CPU);
    return device;
}

template <typename T>
T* to_device(const std::vector<T>& host) {
    T* device = on_device<T>(host.size());
    phases.enter(TO_GPU);
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    phases.enter(ON_CPU);
    return device;
}

// Loads kernels, and launches them once, for those who want to know what the phases take: kernels are compiled when they are
// launched first. `launch` changes nothing that counts.
template <typename Launch, typename... Kernels>
void compile(Launch launch, Kernels*... kernels) {
    if (!phases.wanted) return;
    phases.enter(INIT);
    auto load = [](auto* kernel) {
        cudaFuncAttributes attributes;
        CHECK(cudaFuncGetAttributes(&attributes, kernel));
    };
    (load(kernels), ...);
    phases.enter(COMPILE);
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    phases.enter(ON_CPU);
}

// Waits for what was launched.
inline void finish_launches() {
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    phases.enter(ON_CPU);
}

template <typename T>
std::vector<T> to_host(const T* device, size_t count) {
    // Copying waits, too: only who wants both times apart waits before.
    if (phases.wanted) {
        phases.enter(LAUNCH);
        finish_launches();
    }
    phases.enter(ON_CPU);
    std::vector<T> host(count);
    phases.enter(FROM_GPU);
    CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    phases.enter(ON_CPU);
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

// Ends the context and tells; the exit code.
inline int verdict(const char* name, bool passed, const char* detail) {
    int runtime = 0;
    CHECK(cudaRuntimeGetVersion(&runtime));
    phases.enter(CLOSE);
    CHECK(cudaDeviceReset());
    phases.enter(ON_CPU);
    if (phases.wanted) {
        phases.print_json(name, passed);
    } else {
        std::printf("%s: %s (%s; CUDA runtime %d.%d)\n", name, passed ? "PASSED" : "FAILED", detail, runtime / 1000,
                    runtime % 1000 / 10);
    }
    return passed ? 0 : 1;
}
