import numpy
import warp
from checks import close, run

random = numpy.random.default_rng(1)


@warp.kernel
def saxpy(a: float, x: warp.array(dtype=float), y: warp.array(dtype=float)):
    i = warp.tid()
    y[i] = a * x[i] + y[i]


@warp.kernel
def square(x: warp.array(dtype=float), total: warp.array(dtype=float)):
    i = warp.tid()
    warp.atomic_add(total, 0, x[i] * x[i])


def launch():
    """kernel"""
    x, y = (random.random(5000, dtype=numpy.float32) for _ in range(2))
    out = warp.array(y, dtype=float, device="cuda")
    warp.launch(saxpy, dim=5000, inputs=[2.0, warp.array(x, dtype=float, device="cuda"), out], device="cuda")
    close(out.numpy(), 2 * x + y)


def gradient():
    """gradient"""
    x = random.random(100, dtype=numpy.float32)
    at = warp.array(x, dtype=float, device="cuda", requires_grad=True)
    total = warp.zeros(1, dtype=float, device="cuda", requires_grad=True)
    with warp.Tape() as tape:
        warp.launch(square, dim=100, inputs=[at, total], device="cuda")
    tape.backward(total)
    close(total.numpy()[0], (x * x).sum(), 1e-4)
    close(at.grad.numpy(), 2 * x)


def sort():
    """radix sort of pairs"""
    keys = random.integers(0, 1000, 500).astype(numpy.int32)
    both = warp.array(numpy.concatenate([keys, keys]), dtype=int, device="cuda")
    values = warp.array(numpy.arange(1000, dtype=numpy.int32), dtype=int, device="cuda")
    warp.utils.radix_sort_pairs(both, values, 500)
    assert (both.numpy()[:500] == numpy.sort(keys)).all()
    assert (values.numpy()[:500] == numpy.argsort(keys, kind="stable")).all()


run(launch, gradient, sort)
