// printf in a kernel: the lines come out, in any order, before synchronization returns.
#include "check.h"

#include <string>
#include <unistd.h>

__global__ void report(const char* word) {
    if (threadIdx.x % 16 == 0) {
        printf("block %d thread %2u: %5.2f %s %lld %c%%\n", blockIdx.x, threadIdx.x, threadIdx.x * 0.25, word,
               1ll << (32 + blockIdx.x), 'a' + blockIdx.x);
    }
}

__global__ void words(char* out) {
    const char* text = "sundial";
    for (int i = 0; i < 8; ++i) out[i] = text[i];
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    char* word = nullptr;
    CHECK(cudaMalloc(&word, 8));
    words<<<1, 1>>>(word);
    CHECK(cudaDeviceSynchronize());
    // Catch what the kernel prints: standard output goes to a file for a while.
    std::fflush(stdout);
    char path[] = "/tmp/sundial-printf-XXXXXX";
    int file = mkstemp(path), saved = dup(1);
    dup2(file, 1);
    for (int r = 0; r < options.repeat; ++r) report<<<3, 32>>>(word);
    cudaError_t error = cudaDeviceSynchronize();
    std::fflush(stdout);
    dup2(saved, 1);
    CHECK(error);
    std::string got(1 << 20, '\0');
    got.resize(pread(file, got.data(), got.size(), 0));
    unlink(path);
    bool passed = true;
    for (int block = 0; block < 3; ++block) {
        for (int thread = 0; thread < 32; thread += 16) {
            char want[128];
            std::snprintf(want, sizeof want, "block %d thread %2u: %5.2f %s %lld %c%%\n", block, thread, thread * 0.25,
                          "sundial", 1ll << (32 + block), 'a' + block);
            passed = passed && got.find(want) != std::string::npos;
        }
    }
    std::fputs(got.c_str(), stdout);
    CHECK(cudaFree(word));
    return verdict("device_printf", passed, "6 lines");
}
