//! Exported functions implemented by `calls::library`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel, CUlibrary,
    CUlibraryOption, CUmodule, CUresult, HostAddr,
};

use crate::calls::library;
use crate::decode::{In, InOut, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetAttribute(
    pi: Out<i32>,
    attrib: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetAttribute");
    ENTRY.call(|driver| library::kernel_get_attribute(driver, pi, attrib, kernel, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetFunction(p_func: Out<CUfunction>, kernel: CUkernel) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetFunction");
    ENTRY.call(|driver| library::kernel_get_function(driver, p_func, kernel))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetLibrary(p_lib: Out<CUlibrary>, kernel: CUkernel) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetLibrary");
    ENTRY.call(|driver| library::kernel_get_library(driver, p_lib, kernel))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetName(name: Out<HostAddr>, hfunc: CUkernel) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetName");
    ENTRY.call(|driver| library::kernel_get_name(driver, name, hfunc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetParamCount(kernel: CUkernel, param_count: Out<usize>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetParamCount");
    ENTRY.call(|driver| library::kernel_get_param_count(driver, kernel, param_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelGetParamInfo(
    kernel: CUkernel,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelGetParamInfo");
    ENTRY.call(|driver| library::kernel_get_param_info(driver, kernel, param_index, param_offset, param_size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelSetAttribute");
    ENTRY.call(|driver| library::kernel_set_attribute(driver, attrib, val, kernel, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuKernelSetCacheConfig(kernel: CUkernel, config: CUfunc_cache, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuKernelSetCacheConfig");
    ENTRY.call(|driver| library::kernel_set_cache_config(driver, kernel, config, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryEnumerateKernels(
    kernels: Out<CUkernel>,
    num_kernels: u32,
    lib: CUlibrary,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryEnumerateKernels");
    ENTRY.call(|driver| library::library_enumerate_kernels(driver, kernels, num_kernels, lib))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetGlobal(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetGlobal");
    ENTRY.call(|driver| library::library_get_global(driver, dptr, bytes, library, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetKernel(p_kernel: Out<CUkernel>, library: CUlibrary, name: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetKernel");
    ENTRY.call(|driver| library::library_get_kernel(driver, p_kernel, library, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetKernelCount(count: Out<u32>, lib: CUlibrary) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetKernelCount");
    ENTRY.call(|driver| library::library_get_kernel_count(driver, count, lib))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetManaged(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetManaged");
    ENTRY.call(|driver| library::library_get_managed(driver, dptr, bytes, library, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetModule(p_mod: Out<CUmodule>, library: CUlibrary) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetModule");
    ENTRY.call(|driver| library::library_get_module(driver, p_mod, library))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryGetUnifiedFunction(
    fptr: Out<HostAddr>,
    library: CUlibrary,
    symbol: Text,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryGetUnifiedFunction");
    ENTRY.call(|driver| library::library_get_unified_function(driver, fptr, library, symbol))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryLoadData(
    library: Out<CUlibrary>,
    code: HostAddr,
    jit_options: In<CUjit_option>,
    jit_options_values: InOut<HostAddr>,
    num_jit_options: u32,
    library_options: In<CUlibraryOption>,
    library_option_values: In<HostAddr>,
    num_library_options: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryLoadData");
    ENTRY.call(|driver| {
        library::library_load_data(
            driver,
            library,
            code,
            jit_options,
            jit_options_values,
            num_jit_options,
            library_options,
            library_option_values,
            num_library_options,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryLoadFromFile(
    library: Out<CUlibrary>,
    file_name: Text,
    jit_options: In<CUjit_option>,
    jit_options_values: InOut<HostAddr>,
    num_jit_options: u32,
    library_options: In<CUlibraryOption>,
    library_option_values: In<HostAddr>,
    num_library_options: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryLoadFromFile");
    ENTRY.call(|driver| {
        library::library_load_from_file(
            driver,
            library,
            file_name,
            jit_options,
            jit_options_values,
            num_jit_options,
            library_options,
            library_option_values,
            num_library_options,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLibraryUnload");
    ENTRY.call(|driver| library::library_unload(driver, library))
}
