// Arrays, textures and surfaces: every shape of array is filled, sampled and written by kernels, and read back.
#include "check.h"

#include <functional>

namespace {

int failures = 0;

void must_hold(bool holds, const char* what, int at = -1, double got = 0, double want = 0) {
    if (holds) return;
    if (++failures <= 10) std::printf("%s: at %d is %g, not %g\n", what, at, got, want);
}

// Compares with the CPU; filtering weighs with 8 bits behind the point.
void same(const char* what, const std::vector<float>& got, const std::vector<float>& want, float tolerance = 0) {
    for (size_t i = 0; i < want.size(); ++i) {
        must_hold(std::fabs(got[i] - want[i]) <= tolerance, what, static_cast<int>(i), got[i], want[i]);
    }
}

std::vector<float> numbers(size_t count, uint64_t seed = 0) {
    Random random;
    random.state += seed;
    std::vector<float> all(count);
    for (float& number : all) number = random.uniform(-1, 1);
    return all;
}

// Runs `f(i)` on the GPU for `count` numbers.
template <typename F>
__global__ void each(float* out, int count, F f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = f(i);
}

template <typename F>
std::vector<float> on_gpu(int count, F f) {
    float* out = on_device<float>(count);
    each<<<(count + 127) / 128, 128>>>(out, count, f);
    CHECK(cudaGetLastError());
    std::vector<float> host = to_host(out, count);
    CHECK(cudaFree(out));
    return host;
}

std::vector<float> on_cpu(int count, const std::function<float(int)>& f) {
    std::vector<float> all(count);
    for (int i = 0; i < count; ++i) all[i] = f(i);
    return all;
}

struct Reading {
    cudaTextureAddressMode address = cudaAddressModeClamp;
    cudaTextureFilterMode filter = cudaFilterModePoint;
    cudaTextureReadMode read = cudaReadModeElementType;
    bool normalized = false;
    float border = 0;
    float levels = 0;
};

cudaTextureObject_t texture(const cudaResourceDesc& resource, const Reading& how) {
    cudaTextureDesc desc = {};
    for (auto& mode : desc.addressMode) mode = how.address;
    desc.filterMode = how.filter;
    desc.mipmapFilterMode = how.filter;
    desc.readMode = how.read;
    desc.normalizedCoords = how.normalized;
    desc.borderColor[0] = how.border;
    desc.maxMipmapLevelClamp = how.levels;
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &desc, nullptr));
    return texture;
}

cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

cudaSurfaceObject_t surface(cudaArray_t array) {
    cudaSurfaceObject_t surface = 0;
    cudaResourceDesc resource = of(array);
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}

template <typename T>
cudaArray_t array_of(const std::vector<T>& texels, cudaExtent extent, unsigned flags = 0) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
    CHECK(cudaMalloc3DArray(&array, &format, extent, flags));
    size_t height = extent.height ? extent.height : 1;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<T*>(texels.data()), extent.width * sizeof(T), extent.width, height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(extent.width, height, extent.depth ? extent.depth : 1);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    return array;
}

void memory() {
    const int n = 1000;
    std::vector<float> host = numbers(n);
    float* device = to_device(host);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = device;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = n * sizeof(float);
    cudaTextureObject_t tex = texture(resource, {});
    same("tex1Dfetch", on_gpu(n, [=] __device__(int i) { return tex1Dfetch<float>(tex, i); }), host);
    CHECK(cudaDestroyTextureObject(tex));

    // Bytes as fractions.
    std::vector<uchar4> bytes(n);
    for (int i = 0; i < n; ++i) bytes[i] = make_uchar4(i & 255, i / 4, 255 - (i & 255), 17);
    uchar4* colors = to_device(bytes);
    resource.res.linear.devPtr = colors;
    resource.res.linear.desc = cudaCreateChannelDesc<uchar4>();
    Reading fractions;
    fractions.read = cudaReadModeNormalizedFloat;
    tex = texture(resource, fractions);
    same("normalized bytes", on_gpu(n, [=] __device__(int i) {
             float4 c = tex1Dfetch<float4>(tex, i);
             return c.x + 2 * c.y + 4 * c.z + 8 * c.w;
         }),
         on_cpu(n, [&](int i) { return (bytes[i].x + 2 * bytes[i].y + 4 * bytes[i].z + 8 * bytes[i].w) / 255.0f; }), 1e-4f);
    CHECK(cudaDestroyTextureObject(tex));

    // Lines with a pitch.
    const int width = 37, height = 21;
    char* lines = nullptr;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&lines, &pitch, width * sizeof(float), height));
    CHECK(cudaMemcpy2D(lines, pitch, host.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = lines;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    resource.res.pitch2D.width = width;
    resource.res.pitch2D.height = height;
    resource.res.pitch2D.pitchInBytes = pitch;
    tex = texture(resource, {});
    same("pitched", on_gpu(width * height, [=] __device__(int i) {
             return tex2D<float>(tex, i % width + 0.5f, i / width + 0.5f);
         }), std::vector<float>(host.begin(), host.begin() + width * height));
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFree(lines));
    CHECK(cudaFree(colors));
    CHECK(cudaFree(device));
}

int wrapped(int at, int size) { return ((at % size) + size) % size; }

void line_and_plane() {
    const int n = 777;
    std::vector<float> host = numbers(n, 1);
    cudaArray_t line = array_of(host, make_cudaExtent(n, 0, 0));
    cudaTextureObject_t tex = texture(of(line), {});
    same("tex1D", on_gpu(n, [=] __device__(int i) { return tex1D<float>(tex, i + 0.5f); }), host);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(line));

    const int width = 53, height = 31;
    host = numbers(width * height, 2);
    cudaArray_t plane;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&plane, &format, width, height));
    CHECK(cudaMemcpy2DToArray(plane, 0, 0, host.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    std::vector<float> back(width * height);
    CHECK(cudaMemcpy2DFromArray(back.data(), width * 4, plane, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    same("there and back", back, host);

    // Between texels, beyond the edges: repeated, and with a border.
    Reading how;
    how.address = cudaAddressModeWrap;
    how.filter = cudaFilterModeLinear;
    how.normalized = true;
    cudaTextureObject_t repeated = texture(of(plane), how);
    how.address = cudaAddressModeBorder;
    how.normalized = false;
    how.border = 5;
    cudaTextureObject_t bordered = texture(of(plane), how);
    const int count = 4000;
    auto x_of = [=] __host__ __device__(int i) { return (i % 200) * 0.71f - 40; };
    auto y_of = [=] __host__ __device__(int i) { return (i / 200) * 3.3f - 15; };
    auto filtered = [&](int i, auto texel) {
        float x = x_of(i) - 0.5f, y = y_of(i) - 0.5f;
        int left = static_cast<int>(std::floor(x)), top = static_cast<int>(std::floor(y));
        float a = x - left, b = y - top;
        return (1 - a) * (1 - b) * texel(left, top) + a * (1 - b) * texel(left + 1, top) +
               (1 - a) * b * texel(left, top + 1) + a * b * texel(left + 1, top + 1);
    };
    same("tex2D, repeated", on_gpu(count, [=] __device__(int i) {
             return tex2D<float>(repeated, x_of(i) / width, y_of(i) / height);
         }),
         on_cpu(count, [&](int i) {
             return filtered(i, [&](int x, int y) { return host[wrapped(y, height) * width + wrapped(x, width)]; });
         }), 0.02f);
    same("tex2D, bordered", on_gpu(count, [=] __device__(int i) { return tex2D<float>(bordered, x_of(i), y_of(i)); }),
         on_cpu(count, [&](int i) {
             return filtered(i, [&](int x, int y) {
                 return x >= 0 && y >= 0 && x < width && y < height ? host[y * width + x] : 5;
             });
         }), 0.06f);
    CHECK(cudaDestroyTextureObject(repeated));
    CHECK(cudaDestroyTextureObject(bordered));

    // A part of an array into another, in a stream; and in a graph.
    cudaArray_t other;
    CHECK(cudaMallocArray(&other, &format, width, height, cudaArrayTextureGather));
    CHECK(cudaMemcpy2DArrayToArray(other, 0, 0, plane, 0, 0, width * 4, height, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DArrayToArray(other, 8 * 4, 3, plane, 16 * 4, 9, 20 * 4, 10, cudaMemcpyDeviceToDevice));
    std::vector<float> moved = host;
    for (int y = 0; y < 10; ++y) {
        for (int x = 0; x < 20; ++x) moved[(y + 3) * width + x + 8] = host[(y + 9) * width + x + 16];
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<float> captured(width * height);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpy2DFromArrayAsync(captured.data(), width * 4, other, 0, 0, width * 4, height, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    same("a copy in a graph", captured, moved);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));

    // The four texels around a corner.
    tex = texture(of(other), {});
    const int inner = (width - 1) * (height - 1);
    same("tex2Dgather", on_gpu(inner, [=] __device__(int i) {
             float4 four = tex2Dgather<float4>(tex, i % (width - 1) + 1.0f, i / (width - 1) + 1.0f, 0);
             return four.x + 10 * four.y + 100 * four.z + 1000 * four.w;
         }),
         on_cpu(inner, [&](int i) {
             const float* at = &moved[i / (width - 1) * width + i % (width - 1)];
             return at[width] + 10 * at[width + 1] + 100 * at[1] + 1000 * at[0];
         }), 1e-3f);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(other));
    CHECK(cudaFreeArray(plane));
}

void volume_layers_and_cubes() {
    const int width = 13, height = 9, depth = 6, n = width * height * depth;
    std::vector<float> host = numbers(n, 3);
    cudaExtent extent = make_cudaExtent(width, height, depth);
    cudaArray_t volume = array_of(host, extent);
    Reading how;
    how.filter = cudaFilterModeLinear;
    cudaTextureObject_t tex = texture(of(volume), how);
    same("tex3D", on_gpu(n, [=] __device__(int i) {
             return tex3D<float>(tex, i % width + 0.5f, i / width % height + 0.5f, i / (width * height) + 0.5f);
         }), host, 1e-6f);
    same("tex3D, between", on_gpu(n - width * height, [=] __device__(int i) {
             return tex3D<float>(tex, i % width + 0.5f, i / width % height + 0.5f, i / (width * height) + 1.0f);
         }), on_cpu(n - width * height, [&](int i) { return (host[i] + host[i + width * height]) / 2; }), 1e-6f);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(volume));

    cudaArray_t layers = array_of(host, extent, cudaArrayLayered | cudaArraySurfaceLoadStore);
    tex = texture(of(layers), {});
    same("tex2DLayered", on_gpu(n, [=] __device__(int i) {
             return tex2DLayered<float>(tex, i % width + 0.5f, i / width % height + 0.5f, i / (width * height));
         }), host);
    cudaSurfaceObject_t surf = surface(layers);
    same("surf2DLayeredread", on_gpu(n, [=] __device__(int i) {
             return surf2DLayeredread<float>(surf, i % width * 4, i / width % height, i / (width * height));
         }), host);
    CHECK(cudaDestroySurfaceObject(surf));
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(layers));

    cudaArray_t lines = array_of(host, make_cudaExtent(width * height, 0, depth), cudaArrayLayered);
    tex = texture(of(lines), {});
    same("tex1DLayered", on_gpu(n, [=] __device__(int i) {
             return tex1DLayered<float>(tex, i % (width * height) + 0.5f, i / (width * height));
         }), host);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(lines));

    // The middle of each texel of each face, as a direction: s and t of a face are -1 to 1.
    const int edge = 7, faces = 6 * edge * edge;
    std::vector<float> sides = numbers(faces, 4);
    cudaArray_t cube = array_of(sides, make_cudaExtent(edge, edge, 6), cudaArrayCubemap);
    how = {};
    how.normalized = true;
    tex = texture(of(cube), how);
    same("texCubemap", on_gpu(faces, [=] __device__(int i) {
             float s = (i % edge + 0.5f) / edge * 2 - 1, t = (i / edge % edge + 0.5f) / edge * 2 - 1;
             switch (i / (edge * edge)) {
                 case 0: return texCubemap<float>(tex, 1, -t, -s);
                 case 1: return texCubemap<float>(tex, -1, -t, s);
                 case 2: return texCubemap<float>(tex, s, 1, t);
                 case 3: return texCubemap<float>(tex, s, -1, -t);
                 case 4: return texCubemap<float>(tex, s, -t, 1);
                 default: return texCubemap<float>(tex, -s, -t, -1);
             }
         }), sides);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeArray(cube));
}

__global__ void halve(cudaTextureObject_t from, cudaSurfaceObject_t to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = tex2D<float>(from, 2 * x + 0.5f, 2 * y + 0.5f) + tex2D<float>(from, 2 * x + 1.5f, 2 * y + 0.5f) +
                tex2D<float>(from, 2 * x + 0.5f, 2 * y + 1.5f) + tex2D<float>(from, 2 * x + 1.5f, 2 * y + 1.5f);
    surf2Dwrite(sum / 4, to, x * 4, y);
}

void levels() {
    const int edge = 32, count = 6;
    cudaMipmappedArray_t all;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocMipmappedArray(&all, &format, make_cudaExtent(edge, edge, 0), count, cudaArraySurfaceLoadStore));
    std::vector<std::vector<float>> want = {numbers(edge * edge, 5)};
    cudaArray_t from, to;
    CHECK(cudaGetMipmappedArrayLevel(&from, all, 0));
    CHECK(cudaMemcpy2DToArray(from, 0, 0, want[0].data(), edge * 4, edge * 4, edge, cudaMemcpyHostToDevice));
    for (int level = 1, size = edge / 2; level < count; ++level, size /= 2) {
        CHECK(cudaGetMipmappedArrayLevel(&to, all, level));
        cudaExtent extent;
        CHECK(cudaArrayGetInfo(nullptr, &extent, nullptr, to));
        must_hold(extent.width == static_cast<size_t>(size), "width of a level", level, extent.width, size);
        cudaTextureObject_t read = texture(of(from), {});
        cudaSurfaceObject_t write = surface(to);
        halve<<<dim3((size + 7) / 8, (size + 7) / 8), dim3(8, 8)>>>(read, write, size, size);
        CHECK(cudaGetLastError());
        // Behind the launch, as programs do.
        CHECK(cudaDestroyTextureObject(read));
        CHECK(cudaDestroySurfaceObject(write));
        std::vector<float> next(size * size);
        for (int i = 0; i < size * size; ++i) {
            const float* at = &want.back()[i / size * 2 * size * 2 + i % size * 2];
            next[i] = (at[0] + at[1] + at[2 * size] + at[2 * size + 1]) / 4;
        }
        want.push_back(next);
        from = to;
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = all;
    Reading how;
    how.normalized = true;
    how.levels = count - 1;
    cudaTextureObject_t tex = texture(resource, how);
    for (int level = 0, size = edge; level < count; ++level, size /= 2) {
        same("tex2DLod", on_gpu(size * size, [=] __device__(int i) {
                 return tex2DLod<float>(tex, (i % size + 0.5f) / size, (i / size + 0.5f) / size, level);
             }), want[level], 1e-6f);
    }
    CHECK(cudaDestroyTextureObject(tex));
    how.filter = cudaFilterModeLinear;
    tex = texture(resource, how);
    // In the middle of two levels, where the coarser has one texel for four.
    same("tex2DLod, between levels", on_gpu(1, [=] __device__(int) { return tex2DLod<float>(tex, 0.5f, 0.5f, 4.5f); }),
         {(want[5][0] + (want[4][0] + want[4][1] + want[4][2] + want[4][3]) / 4) / 2}, 1e-2f);
    CHECK(cudaDestroyTextureObject(tex));
    CHECK(cudaFreeMipmappedArray(all));
}

__global__ void mirror(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    uchar4 color;
    // Beyond the edge is zero, and nothing is written.
    surf2Dread(&color, from, x * 4, y, cudaBoundaryModeZero);
    surf2Dwrite(color, to, (width - 1 - x) * 4, y, cudaBoundaryModeZero);
}

void surfaces() {
    const int width = 45, height = 27;
    std::vector<uchar4> host(width * height), back(width * height);
    for (int i = 0; i < width * height; ++i) host[i] = make_uchar4(i, i >> 3, 7 * i, 255 - i);
    cudaArray_t from = array_of(host, make_cudaExtent(width, height, 0), cudaArraySurfaceLoadStore);
    cudaArray_t to = array_of(back, make_cudaExtent(width, height, 0), cudaArraySurfaceLoadStore);
    cudaSurfaceObject_t read = surface(from), write = surface(to);
    mirror<<<dim3(4, 4), dim3(16, 8)>>>(read, write, width, height);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy2DFromArray(back.data(), width * 4, to, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    for (int i = 0; i < width * height; ++i) {
        uchar4 got = back[i], want = host[i / width * width + width - 1 - i % width];
        bool equal = got.x == want.x && got.y == want.y && got.z == want.z && got.w == want.w;
        must_hold(equal, "surf2Dread and surf2Dwrite", i, got.x, want.x);
    }
    CHECK(cudaDestroySurfaceObject(read));
    CHECK(cudaDestroySurfaceObject(write));

    // What cannot be is refused, and what there is can be asked for.
    cudaTextureDesc desc = {};
    desc.filterMode = cudaFilterModeLinear;
    cudaTextureObject_t tex = 0;
    cudaResourceDesc resource = of(from), asked;
    must_hold(cudaCreateTextureObject(&tex, &resource, &desc, nullptr) != cudaSuccess, "integers are not filtered");
    (void)cudaGetLastError();
    tex = texture(resource, {});
    CHECK(cudaGetTextureObjectResourceDesc(&asked, tex));
    must_hold(asked.resType == cudaResourceTypeArray && asked.res.array.array == from, "the array of a texture");
    CHECK(cudaDestroyTextureObject(tex));
    cudaChannelFormatDesc format;
    cudaExtent extent;
    unsigned flags = 0;
    CHECK(cudaArrayGetInfo(&format, &extent, &flags, from));
    must_hold(format.x == 8 && format.w == 8 && format.f == cudaChannelFormatKindUnsigned, "the format of an array");
    must_hold(extent.width == width && extent.height == height && flags == cudaArraySurfaceLoadStore, "what an array is");
    CHECK(cudaFreeArray(from));
    CHECK(cudaFreeArray(to));
}

}  // namespace

int main(int argc, char** argv) {
    Options options = parse_options(argc, argv);
    for (int i = 0; i < options.repeat; ++i) {
        memory();
        line_and_plane();
        volume_layers_and_cubes();
        levels();
        surfaces();
    }
    return verdict("textures", failures == 0, "arrays of every shape, textures, surfaces");
}
