import jax
import jax.numpy as jnp
import numpy
from checks import close, run

jax.config.update("jax_platforms", "cuda")

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


run(device, elementwise, total, gradient, sort, scan)
