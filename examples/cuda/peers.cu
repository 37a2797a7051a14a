// Two GPUs in one program: kernels, variables and managed memory on each, copies from one to the other, and streams of one that
// wait for events of the other. Without two GPUs it says so, and fails. With `--list` it lists what it sees.
#include "check.h"

__device__ int own = 1;
__managed__ int both = 1000;

__global__ void add(int* data, int n, int addend) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += addend;
    if (i == 0) {
        atomicAdd(&own, 1);
        atomicAdd_system(&both, 1);
    }
}

static bool good = true;

static void must_hold(bool condition, const char* what) {
    if (!condition) std::printf("wrong: %s\n", what);
    good &= condition;
}

static void list(int count) {
    for (int device = 0; device < count; ++device) {
        cudaDeviceProp is;
        char place[32];
        CHECK(cudaGetDeviceProperties(&is, device));
        CHECK(cudaDeviceGetPCIBusId(place, sizeof place, device));
        std::printf("%d: %s, %zu MiB, %s, GPU-", device, is.name, is.totalGlobalMem >> 20, place);
        for (char byte : is.uuid.bytes) std::printf("%02x", static_cast<unsigned char>(byte));
        std::printf("\n");
    }
}

int main(int argc, char** argv) {
    int count = 0, version = 0;
    cudaError_t found = cudaGetDeviceCount(&count);
    if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
        std::printf("%d devices (%s)\n", count, cudaGetErrorName(found));
        list(count);
        return 0;
    }
    CHECK(found);
    CHECK(cudaRuntimeGetVersion(&version));
    if (count < 2) {
        std::printf("peers: this needs two GPUs, and there is %d\n", count);
        return 3;
    }
    const int n = 1 << 20, bytes = n * 4, blocks = n / 256;
    int* data[2];
    cudaStream_t stream[2];
    std::vector<int> host(n), back(n);
    for (int i = 0; i < n; ++i) host[i] = i;
    for (int device = 0; device < 2; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaMalloc(&data[device], bytes));
        CHECK(cudaMemset(data[device], 0, bytes));
        CHECK(cudaStreamCreateWithFlags(&stream[device], cudaStreamNonBlocking));
        CHECK(cudaDeviceSynchronize());
    }
    for (int device = 0; device < 2; ++device) {
        cudaPointerAttributes is;
        CHECK(cudaPointerGetAttributes(&is, data[device]));
        must_hold(is.device == device && is.type == cudaMemoryTypeDevice, "an address names its device");
    }

    // No kernel reaches the other's memory, and is told so.
    int can = 7;
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1));
    must_hold(can == 0, "there is no access to peers");
    must_hold(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessUnsupported, "it cannot be enabled");
    must_hold(cudaGetLastError() == cudaErrorPeerAccessUnsupported, "that is no lasting error");

    // Round and round: each device adds what it is told, and hands on to the other, whose stream waits for it.
    const int rounds = 6;
    cudaEvent_t ready[2];
    for (int device = 0; device < 2; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaEventCreateWithFlags(&ready[device], cudaEventDisableTiming));
    }
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpyAsync(data[0], host.data(), bytes, cudaMemcpyHostToDevice, stream[0]));
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
        int here = round % 2, there = 1 - here;
        CHECK(cudaSetDevice(here));
        add<<<blocks, 256, 0, stream[here]>>>(data[here], n, round + 1);
        sum += round + 1;
        CHECK(cudaMemcpyPeerAsync(data[there], there, data[here], here, bytes, stream[here]));
        // What comes behind the copy is not copied.
        add<<<blocks, 256, 0, stream[here]>>>(data[here], n, 1 << 20);
        CHECK(cudaEventRecord(ready[here], stream[here]));
        CHECK(cudaSetDevice(there));
        CHECK(cudaStreamWaitEvent(stream[there], ready[here], 0));
    }
    CHECK(cudaStreamSynchronize(stream[rounds % 2]));
    CHECK(cudaMemcpy(back.data(), data[rounds % 2], bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; ++i) {
        if (back[i] != host[i] + sum) {
            must_hold(false, "what went round");
            break;
        }
    }

    // Copies without streams, by device and by address alone, and of lines.
    for (int device = 0; device < 2; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaMemcpy(data[0], host.data(), bytes, cudaMemcpyDefault));
    CHECK(cudaMemcpyPeer(data[1], 1, data[0], 0, bytes));
    CHECK(cudaMemcpy(back.data(), data[1], bytes, cudaMemcpyDefault));
    must_hold(back == host, "cudaMemcpyPeer");
    CHECK(cudaMemset(data[1], 0, bytes));
    CHECK(cudaMemcpy(data[1], data[0], bytes, cudaMemcpyDefault));
    CHECK(cudaMemcpy(back.data(), data[1], bytes, cudaMemcpyDeviceToHost));
    must_hold(back == host, "cudaMemcpyDefault");
    cudaMemcpy3DPeerParms lines = {};
    lines.srcDevice = 0;
    lines.dstDevice = 1;
    lines.srcPtr = make_cudaPitchedPtr(data[0], 4096, 4096, 256);
    lines.dstPtr = make_cudaPitchedPtr(data[1], 1024, 1024, 1024);
    lines.extent = make_cudaExtent(1000, 200, 2);
    CHECK(cudaMemset(data[1], 0, bytes));
    CHECK(cudaMemcpy3DPeer(&lines));
    CHECK(cudaMemcpy(back.data(), data[1], bytes, cudaMemcpyDeviceToHost));
    bool same = true;
    for (int slice = 0; slice < 2; ++slice)
        for (int line = 0; line < 200; ++line)
            same &= std::memcmp(&back[(slice * 1024 + line) * 256], &host[(slice * 256 + line) * 1024], 1000) == 0 &&
                    back[(slice * 1024 + line) * 256 + 250] == 0;
    must_hold(same, "cudaMemcpy3DPeer");

    // Pinned and managed memory is seen by both, and so is a managed variable; others are each device's own.
    int *pinned, *managed, before = both, owns[2];
    CHECK(cudaSetDevice(0));
    CHECK(cudaMallocHost(&pinned, bytes));
    CHECK(cudaMallocManaged(&managed, bytes));
    std::memset(pinned, 0, bytes);
    std::memset(managed, 0, bytes);
    for (int device = 0; device < 2; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaMemcpyFromSymbol(&owns[device], own, 4));
        add<<<blocks, 256>>>(pinned, n, 1 + device);
        add<<<blocks, 256>>>(managed, n, 10 + device);
        CHECK(cudaDeviceSynchronize());
        int now;
        CHECK(cudaMemcpyFromSymbol(&now, own, 4));
        must_hold(now == owns[device] + 2, "a variable of a device's own");
    }
    must_hold(owns[0] == 1 + rounds && owns[1] == 1 + rounds, "variables were counted on each device");
    must_hold(both == before + 4 && both == 1000 + 2 * rounds + 4, "a managed variable is one");
    must_hold(pinned[0] == 3 && pinned[n - 1] == 3, "pinned memory");
    must_hold(managed[0] == 21 && managed[n - 1] == 21, "managed memory");

    // Freed by whomever.
    CHECK(cudaFree(data[0]));
    CHECK(cudaFree(data[1]));
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(pinned));
    std::printf("peers: %d devices, CUDA runtime %d.%d, %s\n", count, version / 1000, version % 1000 / 10,
                good ? "PASSED" : "FAILED");
    return good ? 0 : 1;
}
