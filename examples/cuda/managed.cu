// Managed memory: a linked structure written by the CPU, changed by the GPU, read by the CPU, without a copy.
#include "check.h"

struct Node {
    int value;
    Node* next;
};

__global__ void double_all(Node* nodes, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) nodes[i].value *= 2;
}

__global__ void sum_list(const Node* head, long long* sum) {
    long long total = 0;
    for (const Node* node = head; node; node = node->next) total += node->value;
    *sum = total;
}

__managed__ long long sum;

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    const int n = 10'000;
    Node* nodes = nullptr;
    CHECK(cudaMallocManaged(&nodes, n * sizeof(Node)));
    bool passed = true;
    for (int r = 0; r < options.repeat; ++r) {
        long long want = 0;
        for (int i = 0; i < n; ++i) {
            nodes[i] = {i + r, i + 1 < n ? &nodes[i + 1] : nullptr};
            want += 2 * (i + r);
        }
        double_all<<<(n + 255) / 256, 256>>>(nodes, n);
        sum_list<<<1, 1>>>(nodes, &sum);
        CHECK(cudaDeviceSynchronize());
        passed = passed && sum == want;
        for (int i = 0; i < n; ++i) passed = passed && nodes[i].value == 2 * (i + r);
    }
    CHECK(cudaFree(nodes));
    return verdict("managed", passed, "10000 nodes of a linked list, __managed__ variable");
}
