// Sorting pairs with CUB's radix sort (vmCUDA's "RS").
#include "check.h"

#include <algorithm>
#include <numeric>

#include <cub/device/device_radix_sort.cuh>

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = options.paper ? 16 << 20 : 300'007;
    Random random;
    std::vector<uint32_t> keys(n), values(n);
    for (uint32_t& key : keys) key = random.bits();
    std::iota(values.begin(), values.end(), 0u);
    uint32_t *keys_in = to_device(keys), *values_in = to_device(values), *keys_out = nullptr, *values_out = nullptr;
    CHECK(cudaMalloc(&keys_out, n * sizeof(uint32_t)));
    CHECK(cudaMalloc(&values_out, n * sizeof(uint32_t)));
    phases.enter(LAUNCH);
    void* scratch = nullptr;
    size_t bytes = 0;
    CHECK(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys_in, keys_out, values_in, values_out, n));
    CHECK(cudaMalloc(&scratch, bytes));
    compile([&] {
        CHECK(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys_in, keys_out, values_in, values_out, n));
    });
    phases.enter(LAUNCH);
    for (int r = 0; r < options.repeat; ++r) {
        CHECK(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys_in, keys_out, values_in, values_out, n));
    }
    std::vector<uint32_t> sorted = to_host(keys_out, n), order = to_host(values_out, n);
    std::vector<uint32_t> want(values);
    std::stable_sort(want.begin(), want.end(), [&](uint32_t x, uint32_t y) { return keys[x] < keys[y]; });
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += order[i] != want[i] || sorted[i] != keys[want[i]];
    char detail[64];
    std::snprintf(detail, sizeof detail, "%d pairs, %d out of place", n, wrong);
    phases.enter(CLOSE);
    CHECK(cudaFree(scratch));
    for (uint32_t* p : {keys_in, values_in, keys_out, values_out}) CHECK(cudaFree(p));
    return verdict("radix_sort", wrong == 0, detail);
}
