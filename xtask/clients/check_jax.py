import jax
import jax.numpy as jnp
import numpy
from checks import close, run

jax.config.update("jax_platforms", "cuda,cpu")

random = numpy.random.default_rng(1)
x = random.random(1000, dtype=numpy.float32)


def device():
    """the device is there"""
    assert jax.devices()[0].platform == "gpu", jax.devices()


def elementwise():
    """jit of elementwise arithmetic"""
    close(jax.jit(lambda x: jnp.sin(x) * 2 + 1)(x), numpy.sin(x) * 2 + 1)


def total():
    """sum"""
    close(jax.jit(jnp.sum)(x), x.sum())


def gradient():
    """grad"""
    close(jax.grad(lambda x: (x**3).sum())(x), 3 * x * x)


def sort():
    """sort"""
    assert (numpy.asarray(jnp.sort(x)) == numpy.sort(x)).all()


def scan():
    """scan"""
    close(jax.lax.scan(lambda c, x: (c + x, c + x), jnp.float32(0), x)[1], numpy.cumsum(x), 1e-4)


def product():
    """matrix product"""
    a, b = random.random((64, 48), dtype=numpy.float32), random.random((48, 32), dtype=numpy.float32)
    with jax.default_matmul_precision("float32"):
        close(jax.jit(jnp.matmul)(a, b), a @ b, 1e-4)


def training():
    """training of a small network, loss as on the CPU"""
    shapes = [(8, 16), (16, 1)]
    weights = [random.standard_normal(shape, dtype=numpy.float32) * 0.3 for shape in shapes]
    inputs = random.standard_normal((32, 8), dtype=numpy.float32)
    wanted = numpy.sin(inputs.sum(axis=1, keepdims=True))

    def loss(weights, inputs, wanted):
        return ((jnp.tanh(inputs @ weights[0]) @ weights[1] - wanted) ** 2).mean()

    def losses(platform):
        device = jax.devices(platform)[0]
        state = jax.device_put((weights, inputs, wanted), device)

        @jax.jit
        def step(weights, inputs, wanted):
            value, slope = jax.value_and_grad(loss)(weights, inputs, wanted)
            return [w - 0.05 * s for w, s in zip(weights, slope)], value

        now, seen = state[0], []
        for _ in range(20):
            now, value = step(now, *state[1:])
            seen.append(float(value))
        return seen

    with jax.default_matmul_precision("float32"):
        here = losses("cuda")
        close(here, losses("cpu"), 1e-3)
    assert here[-1] < here[0], here


run(device, elementwise, total, gradient, sort, scan, product, training)
