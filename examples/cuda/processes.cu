// GPU memory and events of several processes: a parent whose children work in its memory, in turns that events keep.
//
//   (nothing)        a parent and its children; says PASSED, or that processes do not share memory here
//   --killed         a parent that waits for what its child has recorded, and kills it; says PASSED
//   --export FILE    fills memory, writes its handle into a file, says so, and ends with its standard input
//   --import FILE    what it finds in that memory, adds to it, and looks again for each line of its standard input
#include "check.h"

#include <csignal>
#include <fstream>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

const size_t N = 3 << 20;
const int CHILDREN = 2, ROUNDS = 5;

__global__ void set(unsigned* data, unsigned value, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) data[i] = value + i;
}

// Not what adding in another order would give.
__global__ void mix(unsigned* data, unsigned value, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) data[i] = data[i] * 3 + value;
}

struct Handles {
    cudaIpcMemHandle_t large, small;
    cudaIpcEventHandle_t turn[CHILDREN + 1];
};

static void all(bool in, int file, void* data, size_t bytes) {
    for (char* at = static_cast<char*>(data); bytes > 0;) {
        ssize_t some = in ? read(file, at, bytes) : write(file, at, bytes);
        if (some <= 0) {
            std::fprintf(stderr, "the other process has gone\n");
            std::exit(3);
        }
        at += some;
        bytes -= some;
    }
}

__global__ void hang(volatile unsigned* data) {
    while (*data == 0) {}
}

// Records the parent's event and one of its own behind work that never ends.
static int doomed(int from, int to) {
    cudaIpcEventHandle_t theirs, handle;
    all(true, from, &theirs, sizeof theirs);
    unsigned* data;
    cudaEvent_t event[2];
    CHECK(cudaMalloc(&data, sizeof *data));
    CHECK(cudaMemset(data, 0, sizeof *data));
    CHECK(cudaIpcOpenEventHandle(&event[0], theirs));
    CHECK(cudaEventCreateWithFlags(&event[1], cudaEventDisableTiming | cudaEventInterprocess));
    CHECK(cudaIpcGetEventHandle(&handle, event[1]));
    hang<<<1, 1>>>(data);
    for (cudaEvent_t recorded : event) CHECK(cudaEventRecord(recorded));
    all(false, to, &handle, sizeof handle);
    pause();
    return 3;
}

// Starts this program again.
static pid_t start(const char* program, int number, int* to, int* from) {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) std::exit(3);
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        close(up[0]);
        std::string which = std::to_string(number), in = std::to_string(down[0]), out = std::to_string(up[1]);
        execl(program, program, "--child", which.c_str(), in.c_str(), out.c_str(), nullptr);
        _exit(3);
    }
    close(down[0]);
    close(up[1]);
    *to = down[1];
    *from = up[0];
    return child;
}

// A stream waits for the one event, and the host for the other, then the other way round.
static int killer(const char* program) {
    bool passed = true;
    for (int turn = 0; turn < 2; ++turn) {
        cudaEvent_t event[2];
        cudaIpcEventHandle_t handle;
        CHECK(cudaEventCreateWithFlags(&event[0], cudaEventDisableTiming | cudaEventInterprocess));
        CHECK(cudaIpcGetEventHandle(&handle, event[0]));
        int to, from;
        pid_t child = start(program, -1, &to, &from);
        all(false, to, &handle, sizeof handle);
        all(true, from, &handle, sizeof handle);
        CHECK(cudaIpcOpenEventHandle(&event[1], handle));
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaStreamWaitEvent(stream, event[turn], 0));
        usleep(100000);
        passed &= expect(cudaStreamQuery(stream) == cudaErrorNotReady, "the stream waits");
        for (cudaEvent_t recorded : event) passed &= expect(cudaEventQuery(recorded) == cudaErrorNotReady, "it is not reached");
        kill(child, SIGKILL);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventSynchronize(event[1 - turn]));
        // Others record it as before.
        CHECK(cudaEventRecord(event[0], stream));
        CHECK(cudaEventSynchronize(event[0]));
        waitpid(child, nullptr, 0);
        for (cudaEvent_t recorded : event) CHECK(cudaEventDestroy(recorded));
        CHECK(cudaStreamDestroy(stream));
        close(to);
        close(from);
    }
    return verdict("processes", passed, "nobody waits for a process that was killed");
}

// In each round a child works behind the one before it; the first behind the parent.
static int child(int number, int from, int to) {
    Handles handles;
    all(true, from, &handles, sizeof handles);
    unsigned *large, *again, *small;
    CHECK(cudaIpcOpenMemHandle((void**)&large, handles.large, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenMemHandle((void**)&again, handles.large, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenMemHandle((void**)&small, handles.small, cudaIpcMemLazyEnablePeerAccess));
    bool passed = expect(large == again, "opened twice it is at one address");
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, large));
    passed &= expect(attributes.type == cudaMemoryTypeDevice, "it is a GPU's memory");
    passed &= expect(cudaFree(large) != cudaSuccess, "and not this process's to free");
    cudaGetLastError();
    CHECK(cudaIpcCloseMemHandle(again));
    cudaEvent_t before, behind;
    CHECK(cudaIpcOpenEventHandle(&before, handles.turn[number]));
    CHECK(cudaIpcOpenEventHandle(&behind, handles.turn[number + 1]));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    char go;
    for (int round = 0; round < ROUNDS; ++round) {
        all(true, from, &go, 1);
        CHECK(cudaStreamWaitEvent(stream, before, 0));
        mix<<<16, 256, 0, stream>>>(large, number + 1, N);
        mix<<<1, 64, 0, stream>>>(small, number + 5, 64);
        CHECK(cudaEventRecord(behind, stream));
        // Recorded, but maybe not reached yet.
        all(false, to, &go, 1);
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaIpcCloseMemHandle(large));
    CHECK(cudaIpcCloseMemHandle(small));
    passed &= expect(cudaIpcCloseMemHandle(small) != cudaSuccess, "closed it is not closed again");
    cudaGetLastError();
    CHECK(cudaEventDestroy(before));
    CHECK(cudaEventDestroy(behind));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaDeviceReset());
    return passed ? 0 : 1;
}

static int parent(const char* program) {
    unsigned *large, *small, *opened;
    Handles handles;
    CHECK(cudaMalloc(&large, N * sizeof(unsigned)));
    CHECK(cudaMalloc(&small, 64 * sizeof(unsigned)));
    cudaError_t shared = cudaIpcGetMemHandle(&handles.large, large);
    if (shared == cudaErrorNotSupported) {
        std::printf("processes: memory is not shared here\n");
        return 4;
    }
    CHECK(shared);
    CHECK(cudaIpcGetMemHandle(&handles.small, small));
    bool passed = expect(cudaIpcOpenMemHandle((void**)&opened, handles.large, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
                         "its own memory is not opened");
    cudaIpcMemHandle_t nonsense = handles.large;
    std::memset(&nonsense, 0x55, sizeof nonsense / 2);
    passed &= expect(cudaIpcOpenMemHandle((void**)&opened, nonsense, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess, "nor nonsense");
    passed &= expect(cudaIpcGetMemHandle(&nonsense, large + 1) == cudaSuccess, "an address inside tells of the allocation");
    cudaGetLastError();
    cudaEvent_t turn[CHILDREN + 1];
    for (int i = 0; i <= CHILDREN; ++i) {
        CHECK(cudaEventCreateWithFlags(&turn[i], cudaEventDisableTiming | cudaEventInterprocess));
        CHECK(cudaIpcGetEventHandle(&handles.turn[i], turn[i]));
    }
    int to[CHILDREN], from[CHILDREN];
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; ++i) {
        children[i] = start(program, i, &to[i], &from[i]);
        all(false, to[i], &handles, sizeof handles);
    }
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<unsigned> wanted(N), some(64);
    for (size_t i = 0; i < N; ++i) wanted[i] = 7 + i;
    for (size_t i = 0; i < 64; ++i) some[i] = 9 + i;
    set<<<16, 256, 0, stream>>>(large, 7, N);
    set<<<1, 64, 0, stream>>>(small, 9, 64);
    std::vector<unsigned> got(N), few(64);
    for (int round = 0; round < ROUNDS; ++round) {
        CHECK(cudaEventRecord(turn[0], stream));
        char go = 0;
        for (int i = 0; i < CHILDREN; ++i) {
            all(false, to[i], &go, 1);
            all(true, from[i], &go, 1);
            for (unsigned& value : wanted) value = value * 3 + i + 1;
            for (unsigned& value : some) value = value * 3 + i + 5;
        }
        CHECK(cudaStreamWaitEvent(stream, turn[CHILDREN], 0));
        CHECK(cudaMemcpyAsync(got.data(), large, N * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpyAsync(few.data(), small, 64 * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        if (round == ROUNDS - 1) {
            CHECK(cudaEventSynchronize(turn[CHILDREN]));
            CHECK(cudaEventQuery(turn[CHILDREN]));
        }
        CHECK(cudaStreamSynchronize(stream));
        passed &= expect(got == wanted && few == some, "the children's work, in turn");
    }
    for (int i = 0; i < CHILDREN; ++i) {
        int status;
        waitpid(children[i], &status, 0);
        passed &= expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the children are content");
    }
    for (cudaEvent_t event : turn) CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(large));
    CHECK(cudaFree(small));
    return verdict("processes", passed, "two children work in their parent's memory");
}

static int exporter(const char* file) {
    unsigned* data;
    cudaIpcMemHandle_t handle;
    CHECK(cudaMalloc(&data, N * sizeof(unsigned)));
    set<<<16, 256>>>(data, 7, N);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcGetMemHandle(&handle, data));
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(&handle), sizeof handle);
    std::printf("{\"exported\":true}\n");
    std::fflush(stdout);
    std::string line;
    while (std::getline(std::cin, line)) {}
    return 0;
}

static int importer(const char* file) {
    cudaIpcMemHandle_t handle;
    std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&handle), sizeof handle);
    unsigned* data;
    cudaError_t error = cudaIpcOpenMemHandle((void**)&data, handle, cudaIpcMemLazyEnablePeerAccess);
    std::printf("{\"opened\":%d}\n", static_cast<int>(error));
    std::fflush(stdout);
    if (error != cudaSuccess) return 0;
    std::string line;
    std::vector<unsigned> got(N);
    while (std::getline(std::cin, line)) {
        mix<<<16, 256>>>(data, 1, N);
        CHECK(cudaMemcpy(got.data(), data, N * sizeof(unsigned), cudaMemcpyDeviceToHost));
        std::printf("{\"first\":%u,\"last\":%u}\n", got[0], got[N - 1]);
        std::fflush(stdout);
    }
    return 0;
}

int main(int argc, char** argv) {
    std::string what = argc > 1 ? argv[1] : "";
    if (what == "--child" && argc == 5) {
        int number = std::atoi(argv[2]), from = std::atoi(argv[3]), to = std::atoi(argv[4]);
        return number < 0 ? doomed(from, to) : child(number, from, to);
    }
    if (what == "--killed") return killer(argv[0]);
    if (what == "--export" && argc == 3) return exporter(argv[2]);
    if (what == "--import" && argc == 3) return importer(argv[2]);
    return parent(argv[0]);
}
