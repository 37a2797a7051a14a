import os

os.environ["DEV"] = "CUDA"

import numpy
from checks import close, run
from tinygrad import Device, Tensor

random = numpy.random.default_rng(1)


def device():
    """the device is there"""
    assert Device.DEFAULT.startswith("CUDA"), Device.DEFAULT


def elementwise():
    """elementwise arithmetic"""
    x = random.random(5000, dtype=numpy.float32)
    close((Tensor(x).sin() * 2 + 1).numpy(), numpy.sin(x) * 2 + 1)


def matmul():
    """matmul"""
    a, b = (random.random((64, 64), dtype=numpy.float32) for _ in range(2))
    close((Tensor(a) @ Tensor(b)).numpy(), a @ b, 1e-4)


def gradient():
    """gradient"""
    x = Tensor(random.random(100, dtype=numpy.float32))
    (gradient,) = (x**3).sum().gradient(x)
    close(gradient.numpy(), 3 * x.numpy() ** 2)


run(device, elementwise, matmul, gradient)
