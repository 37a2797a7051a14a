import numpy
from checks import close, run
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Linker, LinkerOptions, ObjectCode, Program, ProgramOptions, launch

device = Device()
device.set_current()
stream = device.create_stream()
arch = "sm_" + "".join(map(str, device.compute_capability))

KERNEL = """
#ifdef APART
extern "C" __device__ float twice(float);
#else
__device__ float twice(float x) { return 2 * x; }
#endif
extern "C" __global__ void k(float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = twice(i);
}"""
TWICE = 'extern "C" __device__ float twice(float x) { return 2 * x; }'


def compiled(source, kind, **options):
    return Program(source, code_type="c++", options=ProgramOptions(arch=arch, **options)).compile(kind)


def runs(code):
    kernel = code.get_kernel("k")
    buffer = device.allocate(4000, stream=stream)
    launch(stream, LaunchConfig(grid=4, block=256), kernel, buffer, numpy.int32(1000))
    stream.sync()
    host = numpy.zeros(1000, numpy.float32)
    (error,) = driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), 4000)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    close(host, numpy.arange(1000) * 2)


def cubin():
    """NVRTC to machine code"""
    runs(compiled(KERNEL, "cubin"))


def ptx():
    """NVRTC to PTX"""
    runs(compiled(KERNEL, "ptx"))


def cubin_again():
    """machine code loaded from bytes"""
    runs(ObjectCode.from_cubin(compiled(KERNEL, "cubin").code))


def linked(kind, **options):
    parts = [
        compiled(KERNEL, kind, relocatable_device_code=True, define_macro="APART", **options),
        compiled(TWICE, kind, relocatable_device_code=True, **options),
    ]
    return Linker(*parts, options=LinkerOptions(arch=arch, **options)).link("cubin")


def linked_ptx():
    """nvJitLink of PTX"""
    runs(linked("ptx"))


def linked_cubin():
    """nvJitLink of NVRTC's machine code"""
    runs(linked("cubin"))


def linked_lto():
    """nvJitLink of LTO-IR"""
    runs(linked("ltoir", link_time_optimization=True))


def undefined():
    """nvJitLink tells what is undefined"""
    part = compiled(KERNEL, "ptx", relocatable_device_code=True, define_macro="APART")
    linker = Linker(part, options=LinkerOptions(arch=arch))
    try:
        linker.link("cubin")
    except Exception as error:
        text = str(error) + linker.get_error_log()
        assert "twice" in text, text
    else:
        raise AssertionError("it was linked")


run(cubin, ptx, cubin_again, linked_ptx, linked_cubin, linked_lto, undefined)
