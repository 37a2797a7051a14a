import numpy
import taichi
from checks import close, run

taichi.init(arch=taichi.cuda, log_level=taichi.WARN, device_memory_GB=0.25)
random = numpy.random.default_rng(1)


@taichi.kernel
def axpy(a: taichi.f32, x: taichi.types.ndarray(), y: taichi.types.ndarray()):
    for i in x:
        y[i] = a * x[i] + y[i]


@taichi.kernel
def dot(x: taichi.types.ndarray()) -> taichi.f32:
    total = 0.0
    for i in x:
        total += x[i] * x[i]
    return total


def device():
    """the device is there"""
    assert taichi.cfg.arch == taichi.cuda, taichi.cfg.arch


def kernel():
    """kernel"""
    x, y = (random.random(5000, dtype=numpy.float32) for _ in range(2))
    expected = 2 * x + y
    axpy(2.0, x, y)
    close(y, expected)


def reduction():
    """reduction"""
    x = random.random(5000, dtype=numpy.float32)
    close(dot(x), (x * x).sum(), 1e-4)


run(device, kernel, reduction)
