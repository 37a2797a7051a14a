import os
import tempfile
import warnings

import numpy
from checks import close, run
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

warnings.simplefilter("ignore", NumbaPerformanceWarning)
random = numpy.random.default_rng(1)


def add():
    """vector add"""

    @cuda.jit
    def kernel(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    a, b = random.random(5000), random.random(5000)
    c = cuda.device_array(5000)
    kernel[20, 256](cuda.to_device(a), cuda.to_device(b), c)
    close(c.copy_to_host(), a + b)


def reduce():
    """reduce"""
    x = random.random(5000)
    close(cuda.reduce(lambda a, b: a + b)(x), x.sum())


def matmul():
    """tiled matmul"""

    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((16, 16), numpy.float32)
        sb = cuda.shared.array((16, 16), numpy.float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = numpy.float32(0)
        for i in range(a.shape[1] // 16):
            sa[ty, tx] = a[y, i * 16 + tx]
            sb[ty, tx] = b[i * 16 + ty, x]
            cuda.syncthreads()
            for k in range(16):
                total += sa[ty, k] * sb[k, tx]
            cuda.syncthreads()
        c[y, x] = total

    a, b = (random.random((64, 64), dtype=numpy.float32) for _ in range(2))
    c = cuda.device_array((64, 64), numpy.float32)
    kernel[(4, 4), (16, 16)](cuda.to_device(a), cuda.to_device(b), c)
    close(c.copy_to_host(), a @ b)


def atomics():
    """atomics"""

    @cuda.jit
    def kernel(x, bins):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(bins, x[i], 1)

    x = random.integers(0, 10, 4000)
    bins = cuda.to_device(numpy.zeros(10, numpy.int64))
    kernel[16, 256](cuda.to_device(x), bins)
    assert (bins.copy_to_host() == numpy.bincount(x, minlength=10)).all()


def linked(**options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twice.cu")
        with open(path, "w") as file:
            file.write('extern "C" __device__ int twice(int* r, int x) { *r = 2 * x; return 0; }')
        twice = cuda.declare_device("twice", "int32(int32)", link=path)

        @cuda.jit(**options)
        def kernel(out):
            out[cuda.grid(1)] = twice(cuda.grid(1))

        out = cuda.device_array(64, numpy.int32)
        kernel[1, 64](out)
    assert (out.copy_to_host() == numpy.arange(64) * 2).all()


def linked_lto():
    """C++ linked, with LTO"""
    linked(lto=True)


def linked_ptx():
    """C++ linked, without LTO"""
    linked(lto=False)


run(add, reduce, matmul, atomics, linked_lto, linked_ptx)
