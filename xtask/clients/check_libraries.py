import cupy
import cupyx.scipy.sparse
import numpy
import scipy.sparse
from checks import close, not_in_tests, run
from cupy import cublas
from cupy_backends.cuda.libs import curand

random = numpy.random.default_rng(1)
REALS = (numpy.float32, 1e-3), (numpy.float64, 1e-9)


def product(n, kind, tolerance):
    a, b = (random.standard_normal((n, n)).astype(kind) for _ in range(2))
    wide = numpy.result_type(kind, numpy.float32)
    close((cupy.asarray(a) @ cupy.asarray(b)).get().astype(wide), a.astype(wide) @ b.astype(wide), tolerance)


def gemm():
    """cuBLAS: gemm in f32, f64, complex"""
    for n in 16, 64, 300, 1024:
        for kind, tolerance in (*REALS, (numpy.complex64, 1e-2)):
            product(n, kind, tolerance)


def small_half_gemm():
    """cuBLAS: gemm in f16, 16 x 16"""
    product(16, numpy.float16, 0.1)


@not_in_tests
def half_gemm():
    """cuBLAS: gemm in f16, 64 x 64 and more"""
    for n in 64, 300:
        product(n, numpy.float16, 0.2)


def batched_gemm():
    """cuBLAS: batches of gemm"""
    a, b = random.standard_normal((7, 33, 20)), random.standard_normal((7, 20, 31))
    for kind, tolerance in REALS:
        x, y = a.astype(kind), b.astype(kind)
        close((cupy.asarray(x) @ cupy.asarray(y)).get(), x @ y, tolerance)


def streams():
    """cuBLAS: gemm in ten streams at once, with one handle"""
    for kind, tolerance in REALS:
        pairs = [[random.standard_normal((128, 128)).astype(kind) for _ in range(2)] for _ in range(10)]
        on_gpu = [[cupy.asarray(it) for it in pair] for pair in pairs]
        lanes = [cupy.cuda.Stream(non_blocking=True) for _ in pairs]
        cupy.cuda.Device().synchronize()
        for _ in range(3):
            products = []
            for lane, (x, y) in zip(lanes, on_gpu):
                with lane:
                    products.append(x @ y)
            cupy.cuda.Device().synchronize()
            for result, (x, y) in zip(products, pairs):
                close(result.get(), x @ y, tolerance)


def vectors():
    """cuBLAS: gemv, dot, axpy, nrm2"""
    for kind, tolerance in REALS:
        x, y = (random.standard_normal(5000).astype(kind) for _ in range(2))
        a = random.standard_normal((300, 200)).astype(kind)
        on_gpu = [cupy.asarray(it) for it in (x, y)]
        close(cublas.dot(*on_gpu).get(), x @ y, tolerance)
        close(cublas.nrm2(on_gpu[0]).get(), numpy.linalg.norm(x), tolerance)
        sums = on_gpu[1].copy()
        cublas.axpy(2.5, on_gpu[0], sums)
        close(sums.get(), 2.5 * x + y, tolerance)
        for trans, matrix, of in ("N", a, x[:200]), ("T", a.T, x[:300]):
            product = cupy.zeros(len(matrix), kind)
            cublas.gemv(trans, 1.0, cupy.asfortranarray(cupy.asarray(a)), cupy.asarray(of), 0.0, product)
            close(product.get(), matrix @ of, tolerance)


def distributions():
    """cuRAND: uniform, normal"""
    cupy.random.seed(3)
    uniform = cupy.random.random_sample(100_000).get()
    assert abs(uniform.mean() - 0.5) < 0.01 and 0 <= uniform.min() and uniform.max() < 1
    cupy.random.seed(3)
    assert (cupy.random.random_sample(100_000).get() == uniform).all()
    normal = cupy.random.standard_normal(100_000).get()
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02


@not_in_tests
def generators():
    """cuRAND: XORWOW, MRG32k3a, MTGP32, MT19937, Philox, Sobol'"""
    for kind in 101, 121, 141, 142, 161, 200:
        generator = curand.createGenerator(kind)
        if kind < 200:
            curand.setPseudoRandomGeneratorSeed(generator, 7)
        numbers = cupy.empty(65536, numpy.float32)
        curand.generateUniform(generator, numbers.data.ptr, numbers.size)
        numbers = numbers.get()
        assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.std() - 12**-0.5) < 0.01, kind
        assert len(numpy.unique(numbers)) > 60_000, kind


def transforms():
    """cuFFT: powers of two, other factors, primes; there and back"""
    for n in 8, 64, 1000, 1009, 4096, 65536, 1 << 20:
        x = random.standard_normal(n) + 1j * random.standard_normal(n)
        close(cupy.fft.fft(cupy.asarray(x)).get(), numpy.fft.fft(x), 1e-8)
        close(cupy.fft.ifft(cupy.fft.fft(cupy.asarray(x))).get(), x)
        x = x.astype(numpy.complex64)
        close(cupy.fft.fft(cupy.asarray(x)).get() / n**0.5, numpy.fft.fft(x) / n**0.5, 1e-3)


def other_transforms():
    """cuFFT: real numbers, batches, two and three dimensions"""
    x = random.standard_normal((10, 480))
    close(cupy.fft.rfft(cupy.asarray(x)).get(), numpy.fft.rfft(x))
    close(cupy.fft.irfft(cupy.fft.rfft(cupy.asarray(x))).get(), x)
    x = random.standard_normal((16, 24, 32))
    close(cupy.fft.fft2(cupy.asarray(x)).get(), numpy.fft.fft2(x))
    close(cupy.fft.fftn(cupy.asarray(x)).get(), numpy.fft.fftn(x))


def sparse():
    """cuSPARSE: CSR by vector, by matrix, by CSR; COO to CSR"""
    for kind, tolerance in REALS:
        m = scipy.sparse.random(500, 400, 0.05, random_state=1, format="csr", dtype=kind)
        v, b = random.standard_normal(400).astype(kind), random.standard_normal((400, 17)).astype(kind)
        on_gpu = cupyx.scipy.sparse.csr_matrix(m)
        close((on_gpu @ cupy.asarray(v)).get(), m @ v, tolerance)
        close((on_gpu @ cupy.asarray(b)).get(), m @ b, tolerance)
        close((on_gpu @ cupyx.scipy.sparse.csr_matrix(m.T.tocsr())).toarray().get(), (m @ m.T).toarray(), tolerance)
        close(cupyx.scipy.sparse.coo_matrix(m.tocoo()).tocsr().toarray().get(), m.toarray())
        close((on_gpu + on_gpu).toarray().get(), 2 * m.toarray())


def solver():
    """cuSOLVER: LU, Cholesky, QR, singular values, eigenvalues"""
    for kind, tolerance in (numpy.float32, 1e-2), (numpy.float64, 1e-8):
        for n in 50, 200:
            a = random.standard_normal((n, n)).astype(kind)
            s = (a @ a.T + n * numpy.eye(n)).astype(kind)
            b = random.standard_normal(n).astype(kind)
            on_gpu, symmetric = cupy.asarray(a), cupy.asarray(s)
            close(cupy.linalg.solve(symmetric, cupy.asarray(b)).get(), numpy.linalg.solve(s, b), tolerance)
            close(cupy.linalg.cholesky(symmetric).get(), numpy.linalg.cholesky(s), tolerance)
            q, r = cupy.linalg.qr(on_gpu)
            close((q @ r).get(), a, tolerance)
            close(cupy.linalg.svd(on_gpu, compute_uv=False).get(), numpy.linalg.svd(a, compute_uv=False), 10 * tolerance)
            close(cupy.linalg.eigvalsh(symmetric).get() / n, numpy.linalg.eigvalsh(s) / n, tolerance)


run(
    gemm,
    small_half_gemm,
    half_gemm,
    batched_gemm,
    streams,
    vectors,
    distributions,
    generators,
    transforms,
    other_transforms,
    sparse,
    solver,
)
