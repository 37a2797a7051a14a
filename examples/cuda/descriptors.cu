// GPU memory and pools of several processes by file descriptors, which a unix socket carries from one to the other.
//
//   (nothing)      gives to a child that takes, and looks at what that has done; says PASSED, or that memory is not shared here
//   --give SOCKET  memory and a pool for everybody who connects; says when it listens, and ends with its standard input
//   --take SOCKET  what it gets there: the errors in taking it, and what it finds; adds to it
#include "check.h"

#include <cuda.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

const size_t BYTES = 4 << 20, N = BYTES / sizeof(unsigned);

__global__ void set(unsigned* data, unsigned value, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) data[i] = value + i;
}

__global__ void add(unsigned* data, unsigned value, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) data[i] += value;
}

#define DRIVER(name) driver_entry<decltype(&name)>(#name)

// What goes with the descriptors of the memory and of the pool.
struct Names {
    cudaMemPoolPtrExportData pointer;
    cudaIpcMemHandle_t handle;
};

static int at_socket(const char* path, bool listens) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto to = reinterpret_cast<sockaddr*>(&address);
    bool good = listens ? bind(file, to, sizeof address) == 0 && chmod(path, 0777) == 0 && listen(file, 8) == 0
                        : connect(file, to, sizeof address) == 0;
    if (!good) {
        std::perror(path);
        std::exit(3);
    }
    return file;
}

static bool pass(int over, bool out, Names& names, int (&files)[2]) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof files)] = {};
    iovec data = {&names, sizeof names};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (out) {
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof files);
        std::memcpy(CMSG_DATA(head), files, sizeof files);
        return sendmsg(over, &message, MSG_NOSIGNAL) == sizeof names;
    }
    if (recvmsg(over, &message, MSG_CMSG_CLOEXEC) != sizeof names) return false;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    if (head == nullptr || head->cmsg_len != CMSG_LEN(sizeof files)) return false;
    std::memcpy(files, CMSG_DATA(head), sizeof files);
    return true;
}

// Physical memory where the GPU sees it.
static unsigned* mapped(CUmemGenericAllocationHandle memory) {
    CUdeviceptr at;
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    bool good = DRIVER(cuMemAddressReserve)(&at, BYTES, 0, 0, 0) == CUDA_SUCCESS && DRIVER(cuMemMap)(at, BYTES, 0, memory, 0) == CUDA_SUCCESS &&
                DRIVER(cuMemSetAccess)(at, BYTES, &access, 1) == CUDA_SUCCESS;
    if (!good) std::exit(4);
    return reinterpret_cast<unsigned*>(at);
}

struct Given {
    unsigned *memory, *pooled, *plain;
    Names names;
    int files[2];
    bool shared;
};

static Given make() {
    Given given = {};
    CHECK(cudaFree(nullptr));
    CUmemAllocationProp props = {};
    props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle memory;
    CUresult made = DRIVER(cuMemCreate)(&memory, BYTES, &props, 0);
    if (made != CUDA_SUCCESS) return given;
    given.memory = mapped(memory);
    given.shared = DRIVER(cuMemExportToShareableHandle)(&given.files[0], memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
    if (!given.shared) return given;
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    wanted.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    CHECK(cudaMemPoolCreate(&pool, &wanted));
    CHECK(cudaMallocFromPoolAsync((void**)&given.pooled, BYTES, pool, nullptr));
    CHECK(cudaMalloc(&given.plain, BYTES));
    for (unsigned* at : {given.memory, given.pooled, given.plain}) set<<<16, 256>>>(at, 7, N);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemPoolExportToShareableHandle(&given.files[1], pool, cudaMemHandleTypePosixFileDescriptor, 0));
    CHECK(cudaMemPoolExportPointer(&given.names.pointer, given.pooled));
    CHECK(cudaIpcGetMemHandle(&given.names.handle, given.plain));
    return given;
}

static int take(const char* path) {
    Names names;
    int files[2];
    if (!pass(at_socket(path, false), false, names, files)) return 3;
    CHECK(cudaFree(nullptr));
    auto as_file = [](int file) { return reinterpret_cast<void*>(static_cast<intptr_t>(file)); };
    CUmemGenericAllocationHandle memory;
    int of_memory = DRIVER(cuMemImportFromShareableHandle)(&memory, as_file(files[0]), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    cudaMemPool_t pool;
    int of_pool = cudaMemPoolImportFromShareableHandle(&pool, as_file(files[1]), cudaMemHandleTypePosixFileDescriptor, 0);
    unsigned *pooled = nullptr, *plain = nullptr;
    int of_pointer = of_pool == 0 ? cudaMemPoolImportPointer((void**)&pooled, pool, &names.pointer) : of_pool;
    int of_handle = cudaIpcOpenMemHandle((void**)&plain, names.handle, cudaIpcMemLazyEnablePeerAccess);
    cudaGetLastError();
    bool right = true;
    unsigned value = 1;
    for (unsigned* at : {of_memory == 0 ? mapped(memory) : nullptr, pooled, plain}) {
        if (at == nullptr) continue;
        std::vector<unsigned> got(N);
        CHECK(cudaMemcpy(got.data(), at, BYTES, cudaMemcpyDeviceToHost));
        // Others may have added to it, the same everywhere.
        for (size_t i = 0; i < N; ++i) right &= got[i] == got[0] + i;
        add<<<16, 256>>>(at, value++, N);
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("{\"memory\":%d,\"pool\":%d,\"pointer\":%d,\"handle\":%d,\"right\":%s}\n", of_memory, of_pool, of_pointer, of_handle,
                right ? "true" : "false");
    return right ? 0 : 1;
}

static int give(const char* path) {
    Given given = make();
    if (!given.shared) return 4;
    pollfd wait[2] = {{at_socket(path, true), POLLIN, 0}, {0, POLLIN, 0}};
    std::printf("{\"listens\":true}\n");
    std::fflush(stdout);
    while (wait[1].revents == 0 && poll(wait, 2, -1) >= 0) {
        if (wait[0].revents == 0) continue;
        int to = accept(wait[0].fd, nullptr, nullptr);
        pass(to, true, given.names, given.files);
        close(to);
    }
    return 0;
}

static int parent(const char* program) {
    Given given = make();
    if (!given.shared) {
        std::printf("descriptors: memory is not shared here\n");
        return 4;
    }
    std::string path = "/tmp/descriptors-" + std::to_string(getpid());
    int at = at_socket(path.c_str(), true);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "--take", path.c_str(), nullptr);
        _exit(3);
    }
    int to = accept(at, nullptr, nullptr), status;
    unlink(path.c_str());
    bool passed = expect(pass(to, true, given.names, given.files), "it is sent");
    waitpid(child, &status, 0);
    passed &= expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child is content");
    unsigned value = 1;
    for (unsigned* at : {given.memory, given.pooled, given.plain}) {
        unsigned got[2];
        CHECK(cudaMemcpy(&got[0], at, sizeof got[0], cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&got[1], at + N - 1, sizeof got[1], cudaMemcpyDeviceToHost));
        passed &= expect(got[0] == 7 + value && got[1] == 7 + value + N - 1, "the child has added to it");
        ++value;
    }
    return verdict("descriptors", passed, "memory, a pool and an allocation, in a child's hands and back");
}

int main(int argc, char** argv) {
    std::string what = argc > 1 ? argv[1] : "";
    if (what == "--give" && argc == 3) return give(argv[2]);
    if (what == "--take" && argc == 3) return take(argv[2]);
    return parent(argv[0]);
}
