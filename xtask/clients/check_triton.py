import numpy
import torch
import triton
import triton.language as tl
from checks import close, run

random = numpy.random.default_rng(1)


def on_gpu(array):
    return torch.from_numpy(array).cuda()


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + at, e / tl.sum(e, 0), mask=at < n)


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr, K: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + n[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + n[:, None] * N + n[None, :], tl.dot(x, y, input_precision="ieee"))


def add():
    """vector add"""
    n = 5000
    x, y = (random.random(n, dtype=numpy.float32) for _ in range(2))
    out = torch.empty(n, device="cuda")
    add_kernel[(triton.cdiv(n, 256),)](on_gpu(x), on_gpu(y), out, n, 256)
    close(out.cpu(), x + y)


def softmax():
    """softmax"""
    x = random.random((50, 100), dtype=numpy.float32)
    out = torch.empty((50, 100), device="cuda")
    softmax_kernel[(50,)](on_gpu(x), out, 100, 128)
    e = numpy.exp(x)
    close(out.cpu(), e / e.sum(1, keepdims=True))


def dot(kind, tolerance):
    a, b = random.random((32, 64)).astype(kind), random.random((64, 32)).astype(kind)
    c = torch.empty((32, 32), device="cuda")
    dot_kernel[(1,)](on_gpu(a), on_gpu(b), c, 32, 64)
    close(c.cpu(), a.astype("f8") @ b.astype("f8"), tolerance)


def dot_f32():
    """dot of f32"""
    dot(numpy.float32, 1e-5)


def dot_f16():
    """dot of f16"""
    dot(numpy.float16, 1e-3)


run(add, softmax, dot_f32, dot_f16)
