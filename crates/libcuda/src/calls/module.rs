//! Modules, their functions, and the linker.

use std::sync::Arc;

use cuda_abi::{
    CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUjit_option, CUjitInputType,
    CUlinkState, CUmodule, CUmoduleLoadingMode, CUresult, CUsharedconfig, HostAddr,
};
use cuda_core::{Driver, Image, JitOptions as CompileOptions};

use crate::decode::{Core, In, InOut, Out, Text, set_run};
use crate::entry::{Answer, refuse};
use crate::image::{HostImage, JitOptions, file};
use crate::names;

fn load(driver: &Driver, module: Out<CUmodule>, image: &dyn Image, options: &JitOptions) -> Answer {
    module.required()?;
    module.set(options.log(|log| driver.module_load_data(image, log))?);
    Ok(())
}

pub(crate) fn module_load(driver: &Driver, module: Out<CUmodule>, path: Text) -> Answer {
    load(driver, module, &Bytes(file(path.get()?)?), &JitOptions::none())
}

pub(crate) fn module_load_data(driver: &Driver, module: Out<CUmodule>, image: HostAddr) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    load(driver, module, &unsafe { HostImage::at(image) }?, &JitOptions::none())
}

pub(crate) fn module_load_data_ex(
    driver: &Driver,
    module: Out<CUmodule>,
    image: HostAddr,
    count: u32,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    load(driver, module, &unsafe { HostImage::at(image) }?, &JitOptions::read(count, options, values)?)
}

pub(crate) fn module_load_fat_binary(driver: &Driver, module: Out<CUmodule>, image: HostAddr) -> Answer {
    module_load_data(driver, module, image)
}

/// A file, and a NUL behind it.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Image for Bytes {
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.0.as_slice().read(offset, out)
    }

    fn follow(&self, _pointer: u64) -> Option<Box<dyn Image + '_>> {
        None
    }

    fn text(&self, most: u64) -> Vec<u8> {
        self.0.as_slice().text(most)
    }

    fn whole(&self, most: u64) -> Option<Vec<u8>> {
        let (_, bytes) = self.0.split_last()?;
        bytes.whole(most)
    }
}

pub(crate) fn module_unload(driver: &Driver, module: CUmodule) -> Answer {
    Ok(driver.module_unload(module.core())?)
}

pub(crate) fn module_get_loading_mode(driver: &Driver, mode: Out<CUmoduleLoadingMode>) -> Answer {
    mode.required()?;
    mode.set(driver.module_get_loading_mode()?);
    Ok(())
}

pub(crate) fn module_get_function(driver: &Driver, function: Out<CUfunction>, module: CUmodule, name: Text) -> Answer {
    function.required()?;
    function.set(driver.module_get_function(module.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn module_get_function_count(driver: &Driver, count: Out<u32>, module: CUmodule) -> Answer {
    count.required()?;
    count.set(driver.module_get_function_count(module.core())?);
    Ok(())
}

pub(crate) fn module_enumerate_functions(
    driver: &Driver,
    functions: Out<CUfunction>,
    most: u32,
    module: CUmodule,
) -> Answer {
    functions.required()?;
    for (index, function) in driver.module_enumerate_functions(module.core(), most as usize)?.into_iter().enumerate() {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { functions.set_at(index, function) };
    }
    Ok(())
}

pub(crate) fn module_get_global(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
    module: CUmodule,
    name: Text,
) -> Answer {
    set_run(address, bytes, driver.module_get_global(module.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn link_create(
    driver: &Driver,
    count: u32,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
    state: Out<CUlinkState>,
) -> Answer {
    state.required()?;
    let options = JitOptions::read(count, options, values)?;
    let link = driver.link_create(options.compile())?;
    crate::links::begin(link, options);
    state.set(link);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn link_add_data(
    driver: &Driver,
    state: CUlinkState,
    kind: CUjitInputType,
    data: HostAddr,
    bytes: usize,
    name: Text,
    count: u32,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
) -> Answer {
    linkable(kind)?;
    let options = JitOptions::read(count, options, values)?;
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let image = unsafe { HostImage::sized(data, bytes) }?;
    // It may be missing, or no text.
    let name = name.get().unwrap_or_default();
    crate::links::log(state.core(), options.compile(), |log| driver.link_add_data(state.core(), &image, name, log))
}

pub(crate) fn link_add_file(
    driver: &Driver,
    state: CUlinkState,
    kind: CUjitInputType,
    path: Text,
    count: u32,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
) -> Answer {
    linkable(kind)?;
    let options = JitOptions::read(count, options, values)?;
    let path = path.get()?;
    let image = Bytes(file(path)?);
    crate::links::log(state.core(), options.compile(), |log| driver.link_add_data(state.core(), &image, path, log))
}

/// Inputs that can hold PTX. What is called a cubin may be what this linker made.
fn linkable(kind: CUjitInputType) -> Answer {
    match kind {
        CUjitInputType::CU_JIT_INPUT_PTX
        | CUjitInputType::CU_JIT_INPUT_FATBINARY
        | CUjitInputType::CU_JIT_INPUT_CUBIN
        | CUjitInputType::CU_JIT_INPUT_OBJECT
        | CUjitInputType::CU_JIT_INPUT_LIBRARY => Ok(()),
        _ => refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn link_complete(driver: &Driver, state: CUlinkState, image: Out<HostAddr>, bytes: Out<usize>) -> Answer {
    image.required()?;
    let mut made: Option<Arc<[u8]>> = None;
    crate::links::log(state.core(), CompileOptions::default(), |log| {
        made = Some(driver.link_complete(state.core(), log)?);
        Ok(())
    })?;
    if let Some(made) = made {
        // The core keeps the image until the link is destroyed.
        image.set(made.as_ptr() as u64);
        bytes.set(made.len());
    }
    Ok(())
}

pub(crate) fn link_destroy(driver: &Driver, state: CUlinkState) -> Answer {
    driver.link_destroy(state.core())?;
    crate::links::end(state.core());
    Ok(())
}

pub(crate) fn func_get_attribute(
    driver: &Driver,
    value: Out<i32>,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> Answer {
    value.required()?;
    value.set(driver.func_get_attribute(attribute.0 as i32, function.core())?);
    Ok(())
}

pub(crate) fn func_set_attribute(
    driver: &Driver,
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: i32,
) -> Answer {
    Ok(driver.func_set_attribute(function.core(), attribute.0 as i32, value)?)
}

pub(crate) fn func_set_cache_config(driver: &Driver, function: CUfunction, config: CUfunc_cache) -> Answer {
    Ok(driver.func_set_cache_config(function.core(), config.0)?)
}

pub(crate) fn func_set_shared_mem_config(driver: &Driver, function: CUfunction, config: CUsharedconfig) -> Answer {
    Ok(driver.func_set_shared_mem_config(function.core(), config.0)?)
}

pub(crate) fn func_get_module(driver: &Driver, module: Out<CUmodule>, function: CUfunction) -> Answer {
    module.required()?;
    module.set(driver.func_get_module(function.core())?);
    Ok(())
}

pub(crate) fn func_get_name(driver: &Driver, name: Out<HostAddr>, function: CUfunction) -> Answer {
    name.required()?;
    name.set(names::keep(&driver.func_get_name(function.core())?));
    Ok(())
}

pub(crate) fn func_get_param_info(
    driver: &Driver,
    function: CUfunction,
    index: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Answer {
    offset.required()?;
    let info = driver.func_get_param_info(function.core(), index)?;
    offset.set(info.0);
    bytes.set(info.1);
    Ok(())
}

pub(crate) fn func_get_param_count(driver: &Driver, function: CUfunction, count: Out<usize>) -> Answer {
    count.required()?;
    count.set(driver.func_get_param_count(function.core())?);
    Ok(())
}

pub(crate) fn func_is_loaded(driver: &Driver, state: Out<CUfunctionLoadingState>, function: CUfunction) -> Answer {
    state.required()?;
    state.set(driver.func_is_loaded(function.core())?);
    Ok(())
}

pub(crate) fn func_load(driver: &Driver, function: CUfunction) -> Answer {
    Ok(driver.func_load(function.core())?)
}
