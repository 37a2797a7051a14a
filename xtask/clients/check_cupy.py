import cupy
import numpy
from checks import close, run

random = numpy.random.default_rng(1)


def elementwise():
    """elementwise arithmetic"""
    x = random.random(1 << 16, dtype=numpy.float32)
    close((cupy.asarray(x) * 2 + cupy.sin(cupy.asarray(x))).get(), x * 2 + numpy.sin(x))


def raw_kernel():
    """RawKernel"""
    source = """
    extern "C" __global__ void triple(float* a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) a[i] *= 3;
    }"""
    a = cupy.arange(1000, dtype=cupy.float32)
    cupy.RawKernel(source, "triple")((8,), (128,), (a, 1000))
    close(a.get(), numpy.arange(1000) * 3)


def raw_module():
    """RawModule with a template"""
    source = "template<typename T> __global__ void fill(T* a, T v) { a[threadIdx.x] = v + threadIdx.x; }"
    module = cupy.RawModule(code=source, options=("-std=c++17",), name_expressions=["fill<double>"])
    a = cupy.zeros(64)
    module.get_function("fill<double>")((1,), (64,), (a, 0.5))
    close(a.get(), numpy.arange(64) + 0.5)


def reduction():
    """sum of 10^7"""
    assert int(cupy.ones(10**7, dtype=cupy.int32).sum()) == 10**7
    x = random.random((300, 200))
    close(cupy.asarray(x).sum(axis=0).get(), x.sum(axis=0))
    close(cupy.asarray(x).max(axis=1).get(), x.max(axis=1))


def reduction_kernel():
    """ReductionKernel"""
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    x = random.random(5000)
    close(norm(cupy.asarray(x)).get(), numpy.linalg.norm(x))


def scan():
    """cumsum"""
    x = random.integers(0, 9, 100_000)
    assert (cupy.cumsum(cupy.asarray(x)).get() == numpy.cumsum(x)).all()


def sort():
    """sort, argsort, unique"""
    x = random.integers(0, 1000, 100_000)
    assert (cupy.sort(cupy.asarray(x)).get() == numpy.sort(x)).all()
    assert (x[cupy.argsort(cupy.asarray(x)).get()] == numpy.sort(x)).all()
    assert (cupy.unique(cupy.asarray(x)).get() == numpy.unique(x)).all()


def fusion():
    """fuse"""

    @cupy.fuse
    def fused(x):
        return cupy.sqrt(x) * 2 + 1

    x = random.random(1000)
    close(fused(cupy.asarray(x)).get(), numpy.sqrt(x) * 2 + 1)


run(elementwise, raw_kernel, raw_module, reduction, reduction_kernel, scan, sort, fusion)
