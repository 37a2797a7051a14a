// Kernels that launch kernels: recursion, the order of streams, tail launches, copies and memory from kernels, errors.
#include "check.h"
#include "children/work.h"

constexpr int LEAVES = 256, BLOCKS = 6, CHAIN = 5, FLOOD = 70000, CROWD = 2400;

// Quicksort, whose halves are launches.
__global__ void sort(int* data, int left, int right) {
    while (right - left > 8) {
        int pivot = data[(left + right) / 2], i = left, j = right;
        while (i <= j) {
            while (data[i] < pivot) ++i;
            while (data[j] > pivot) --j;
            if (i <= j) {
                int swap = data[i];
                data[i++] = data[j];
                data[j--] = swap;
            }
        }
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        sort<<<1, 1, 0, stream>>>(data, left, j);
        cudaStreamDestroy(stream);
        left = i;
    }
    for (int i = left + 1; i <= right; ++i) {
        int value = data[i], j = i;
        for (; j > left && data[j - 1] > value; --j) data[j] = data[j - 1];
        data[j] = value;
    }
}

// A tree: its leaves count.
__global__ void tree(int* leaves, int size) {
    if (size == 1) {
        atomicAdd(leaves, 1);
    } else {
        tree<<<1, 2>>>(leaves, size / 4);
        if (threadIdx.x == 0) tree<<<dim3(1, 1, 1), dim3(1, 1, 2)>>>(leaves, size / 4);
    }
}

// What one has written the next sees, in the order of the launches of a block.
__global__ void digit(long long* number, int by, char times, double plus) {
    if (threadIdx.x == 0) *number = *number * times + by + static_cast<long long>(plus);
}

__global__ void chains(long long* numbers) {
    extern __shared__ int shared[];
    for (int step = 0; step < CHAIN; ++step) {
        // Launched by another thread each time; a barrier puts them in order.
        if (threadIdx.x == step * 32) digit<<<1, 32>>>(numbers + blockIdx.x, step + 1, 10, 0.5);
        __syncthreads();
    }
    shared[threadIdx.x] = 1;
}

// Launched last of all, though not by the last statement.
__global__ void look(const int* count, int* seen) { *seen = *count; }

__global__ void tail(int* count, int* seen) {
    look<<<1, 1, 0, cudaStreamTailLaunch>>>(count, seen);
    for (int i = 0; i < 3; ++i) add<<<2, 64, 0, cudaStreamFireAndForget>>>(count, 1);
    tree<<<1, 1>>>(count, 64);
}

// As often as a loop: each takes the place of the one before.
__global__ void again(int* count, int left) {
    *count += 1;
    if (left > 1) again<<<1, 1, 0, cudaStreamTailLaunch>>>(count, left - 1);
}

__global__ void copies(int* to, const int* from, int count) {
    cudaStream_t stream;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMemcpyAsync(to, from, count * sizeof(int), cudaMemcpyDeviceToDevice, stream);
    add<<<1, 10, 0, stream>>>(to, 7);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(0, event, 0);
    cudaMemsetAsync(to + 1, 1, sizeof(int), 0);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
}

struct Seen {
    int fine, shape, after, peeked, memory, flags, text;
};

__device__ bool same(const char* a, const char* b) {
    while (*a && *a == *b) ++a, ++b;
    return *a == *b;
}

__global__ void errors(int* at, Seen* seen) {
    add<<<1, 1>>>(at, 1);
    seen->fine = cudaGetLastError();
    add<<<1, 2048>>>(at, 1);
    seen->peeked = cudaPeekAtLastError();
    seen->shape = cudaGetLastError();
    seen->after = cudaGetLastError();
    cudaStream_t stream;
    seen->flags = cudaStreamCreateWithFlags(&stream, 0);
    int* memory = nullptr;
    cudaMalloc(&memory, 100);
    memory[24] = 5;
    int held = memory[24];
    seen->memory = held + cudaFree(memory);
    seen->text = same(cudaGetErrorString(cudaSuccess), "no error") &&
                 same(cudaGetErrorName(static_cast<cudaError_t>(9)), "cudaErrorInvalidConfiguration");
}

// More than can wait at once: what is not taken is told, and what is taken runs.
__global__ void flood(int* count, int* refused, int launches) {
    for (int i = 0; i < launches; ++i) {
        add<<<1, 1>>>(count, 1);
        cudaError_t error = cudaGetLastError();
        if (error == cudaErrorLaunchPendingCountExceeded) ++*refused;
        else if (error != cudaSuccess) *refused = -launches;
    }
}

// Many blocks that launch: more in all than may wait at once.
__global__ void crowd(int* count, int* failed) {
    add<<<1, 1>>>(count, 1);
    if (cudaGetLastError() != cudaSuccess) atomicAdd(failed, 1);
}

// How many leaves a grid of `tree` has: of one thread, of two in x, of two in z.
int leaves(int size, int kind) {
    int threads = kind == 0 ? 1 : 2, zeros = kind == 1 ? 1 : threads;
    return size == 1 ? threads : threads * leaves(size / 4, 1) + zeros * leaves(size / 4, 2);
}

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    bool passed = true;
    auto check = [&](const char* what, bool right) {
        if (!right) std::printf("%s: wrong\n", what);
        passed &= right;
    };
    Random random;
    std::vector<int> data(3000);
    for (int& value : data) value = static_cast<int>(random.bits() % 10000);
    const int size = static_cast<int>(data.size());
    std::vector<int> in_order = data;
    std::sort(in_order.begin(), in_order.end());
    for (int run = 0; run < options.repeat; ++run) {
        int* sorted = to_device(data);
        int* counts = to_device(std::vector<int>(16));
        long long* numbers = to_device(std::vector<long long>(BLOCKS));
        Seen* seen = to_device(std::vector<Seen>(1));
        int* room = on_device<int>(data.size());
        phases.enter(LAUNCH);
        sort<<<1, 1>>>(sorted, 0, size - 1);
        tree<<<1, 1>>>(counts, LEAVES);
        // In stream order: it sees what grandchildren have done.
        look<<<1, 1>>>(counts, counts + 1);
        chains<<<BLOCKS, 160, 160 * sizeof(int)>>>(numbers);
        tail<<<1, 1>>>(counts + 2, counts + 3);
        again<<<1, 1>>>(counts + 4, 1000);
        copies<<<1, 1>>>(room, sorted, size);
        errors<<<1, 1>>>(counts + 5, seen);
        flood<<<1, 1>>>(counts + 6, counts + 7, FLOOD);
        crowd<<<CROWD, 32>>>(counts + 8, counts + 9);
        finish_launches();
        std::vector<int> copied = to_host(room, size), counted = to_host(counts, 16);
        std::vector<long long> digits = to_host(numbers, BLOCKS);
        Seen told = to_host(seen, 1)[0];
        check("sort", to_host(sorted, size) == in_order);
        check("tree", counted[0] == leaves(LEAVES, 0));
        check("grandchildren that are waited for", counted[1] == counted[0]);
        for (long long number : digits) check("order of a block's launches", number == 12345);
        check("tail launch", counted[2] == 3 * 128 + leaves(64, 0) && counted[3] == counted[2]);
        check("chain of tail launches", counted[4] == 1000);
        std::vector<int> expected = in_order;
        expected[0] += 70;
        expected[1] = 0x01010101;
        check("copies", copied == expected);
        check("errors", told.fine == cudaSuccess && told.peeked == cudaErrorInvalidConfiguration &&
                            told.shape == told.peeked && told.after == cudaSuccess &&
                            told.flags == cudaErrorInvalidValue && told.memory == 5 && told.text == 1);
        check("launch that failed", counted[5] == 1);
        check("flood", counted[7] > 0 && counted[6] + counted[7] == FLOOD);
        check("crowd", counted[8] == CROWD * 32 && counted[9] == 0);
        CHECK(cudaFree(sorted));
        CHECK(cudaFree(counts));
        CHECK(cudaFree(numbers));
        CHECK(cudaFree(seen));
        CHECK(cudaFree(room));
    }
    return verdict("children", passed, "kernels that launch kernels");
}
