//! Exported functions implemented by `calls::module`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUjit_option, CUjitInputType,
    CUlinkState, CUmodule, CUmoduleLoadingMode, CUresult, CUsharedconfig, HostAddr,
};

use crate::calls::module;
use crate::decode::{In, InOut, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetAttribute(pi: Out<i32>, attrib: CUfunction_attribute, hfunc: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncGetAttribute");
    ENTRY.call(|driver| module::func_get_attribute(driver, pi, attrib, hfunc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetModule(hmod: Out<CUmodule>, hfunc: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncGetModule");
    ENTRY.call(|driver| module::func_get_module(driver, hmod, hfunc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetName(name: Out<HostAddr>, hfunc: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncGetName");
    ENTRY.call(|driver| module::func_get_name(driver, name, hfunc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetParamCount(func: CUfunction, param_count: Out<usize>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncGetParamCount");
    ENTRY.call(|driver| module::func_get_param_count(driver, func, param_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetParamInfo(
    func: CUfunction,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncGetParamInfo");
    ENTRY.call(|driver| module::func_get_param_info(driver, func, param_index, param_offset, param_size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, function: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncIsLoaded");
    ENTRY.call(|driver| module::func_is_loaded(driver, state, function))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncLoad(function: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncLoad");
    ENTRY.call(|driver| module::func_load(driver, function))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetAttribute(hfunc: CUfunction, attrib: CUfunction_attribute, value: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncSetAttribute");
    ENTRY.call(|driver| module::func_set_attribute(driver, hfunc, attrib, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncSetCacheConfig");
    ENTRY.call(|driver| module::func_set_cache_config(driver, hfunc, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncSetSharedMemConfig");
    ENTRY.call(|driver| module::func_set_shared_mem_config(driver, hfunc, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkAddData(
    state: CUlinkState,
    kind: CUjitInputType,
    data: HostAddr,
    size: usize,
    name: Text,
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkAddData");
    ENTRY.call(|driver| {
        module::link_add_data(driver, state, kind, data, size, name, num_options, options, option_values)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    data: HostAddr,
    size: usize,
    name: Text,
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkAddData_v2");
    ENTRY.call(|driver| {
        module::link_add_data(driver, state, kind, data, size, name, num_options, options, option_values)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkAddFile(
    state: CUlinkState,
    kind: CUjitInputType,
    path: Text,
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkAddFile");
    ENTRY.call(|driver| module::link_add_file(driver, state, kind, path, num_options, options, option_values))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: Text,
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkAddFile_v2");
    ENTRY.call(|driver| module::link_add_file(driver, state, kind, path, num_options, options, option_values))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkComplete(
    state: CUlinkState,
    cubin_out: Out<HostAddr>,
    size_out: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkComplete");
    ENTRY.call(|driver| module::link_complete(driver, state, cubin_out, size_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkCreate(
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
    state_out: Out<CUlinkState>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkCreate");
    ENTRY.call(|driver| module::link_create(driver, num_options, options, option_values, state_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkCreate_v2(
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
    state_out: Out<CUlinkState>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkCreate_v2");
    ENTRY.call(|driver| module::link_create(driver, num_options, options, option_values, state_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLinkDestroy(state: CUlinkState) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLinkDestroy");
    ENTRY.call(|driver| module::link_destroy(driver, state))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleEnumerateFunctions(
    functions: Out<CUfunction>,
    num_functions: u32,
    module: CUmodule,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleEnumerateFunctions");
    ENTRY.call(|driver| module::module_enumerate_functions(driver, functions, num_functions, module))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetFunction(hfunc: Out<CUfunction>, hmod: CUmodule, name: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetFunction");
    ENTRY.call(|driver| module::module_get_function(driver, hfunc, hmod, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetFunctionCount");
    ENTRY.call(|driver| module::module_get_function_count(driver, count, module))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetGlobal_v2(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    hmod: CUmodule,
    name: Text,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetGlobal_v2");
    ENTRY.call(|driver| module::module_get_global(driver, dptr, bytes, hmod, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetLoadingMode");
    ENTRY.call(|driver| module::module_get_loading_mode(driver, mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoad(module: Out<CUmodule>, fname: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleLoad");
    ENTRY.call(|driver| module::module_load(driver, module, fname))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoadData(module: Out<CUmodule>, image: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleLoadData");
    ENTRY.call(|driver| module::module_load_data(driver, module, image))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoadDataEx(
    module: Out<CUmodule>,
    image: HostAddr,
    num_options: u32,
    options: In<CUjit_option>,
    option_values: InOut<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleLoadDataEx");
    ENTRY.call(|driver| module::module_load_data_ex(driver, module, image, num_options, options, option_values))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoadFatBinary(module: Out<CUmodule>, fat_cubin: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleLoadFatBinary");
    ENTRY.call(|driver| module::module_load_fat_binary(driver, module, fat_cubin))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleUnload(hmod: CUmodule) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleUnload");
    ENTRY.call(|driver| module::module_unload(driver, hmod))
}
