//! Libraries and their kernels.

use cuda_abi::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel, CUlibrary,
    CUlibraryOption, CUmodule, HostAddr,
};
use cuda_core::{Device, Driver, Image};

use crate::calls::module::Bytes;
use crate::decode::{Core, In, InOut, Out, Text, set_run};
use crate::entry::Answer;
use crate::image::{HostImage, JitOptions, file};
use crate::names;

fn load(driver: &Driver, library: Out<CUlibrary>, image: &dyn Image, options: &JitOptions) -> Answer {
    library.required()?;
    library.set(options.log(|log| driver.library_load_data(image, log))?);
    Ok(())
}

/// Library options say only how long the caller keeps its image; the core keeps what it needs.
#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn library_load_data(
    driver: &Driver,
    library: Out<CUlibrary>,
    image: HostAddr,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
    count: u32,
    _library_options: In<CUlibraryOption>,
    _library_values: In<HostAddr>,
    _library_count: u32,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    load(driver, library, &unsafe { HostImage::at(image) }?, &JitOptions::read(count, options, values)?)
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn library_load_from_file(
    driver: &Driver,
    library: Out<CUlibrary>,
    path: Text,
    options: In<CUjit_option>,
    values: InOut<HostAddr>,
    count: u32,
    _library_options: In<CUlibraryOption>,
    _library_values: In<HostAddr>,
    _library_count: u32,
) -> Answer {
    load(driver, library, &Bytes(file(path.get()?)?), &JitOptions::read(count, options, values)?)
}

pub(crate) fn library_unload(driver: &Driver, library: CUlibrary) -> Answer {
    Ok(driver.library_unload(library.core())?)
}

pub(crate) fn library_get_kernel(driver: &Driver, kernel: Out<CUkernel>, library: CUlibrary, name: Text) -> Answer {
    kernel.required()?;
    kernel.set(driver.library_get_kernel(library.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn library_get_kernel_count(driver: &Driver, count: Out<u32>, library: CUlibrary) -> Answer {
    count.required()?;
    count.set(driver.library_get_kernel_count(library.core())?);
    Ok(())
}

pub(crate) fn library_enumerate_kernels(
    driver: &Driver,
    kernels: Out<CUkernel>,
    most: u32,
    library: CUlibrary,
) -> Answer {
    kernels.required()?;
    for (index, kernel) in driver.library_enumerate_kernels(library.core(), most as usize)?.into_iter().enumerate() {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { kernels.set_at(index, kernel) };
    }
    Ok(())
}

pub(crate) fn library_get_module(driver: &Driver, module: Out<CUmodule>, library: CUlibrary) -> Answer {
    module.required()?;
    module.set(driver.library_get_module(library.core())?);
    Ok(())
}

pub(crate) fn library_get_global(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> Answer {
    set_run(address, bytes, driver.library_get_global(library.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn library_get_managed(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> Answer {
    set_run(address, bytes, driver.library_get_managed(library.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn library_get_unified_function(
    driver: &Driver,
    function: Out<HostAddr>,
    library: CUlibrary,
    name: Text,
) -> Answer {
    function.required()?;
    function.set(driver.library_get_unified_function(library.core(), name.get()?)?);
    Ok(())
}

pub(crate) fn kernel_get_function(driver: &Driver, function: Out<CUfunction>, kernel: CUkernel) -> Answer {
    function.required()?;
    function.set(driver.kernel_get_function(kernel.core())?);
    Ok(())
}

pub(crate) fn kernel_get_library(driver: &Driver, library: Out<CUlibrary>, kernel: CUkernel) -> Answer {
    library.required()?;
    library.set(driver.kernel_get_library(kernel.core())?);
    Ok(())
}

pub(crate) fn kernel_get_name(driver: &Driver, name: Out<HostAddr>, kernel: CUkernel) -> Answer {
    name.required()?;
    name.set(names::keep(&driver.kernel_get_name(kernel.core())?));
    Ok(())
}

pub(crate) fn kernel_get_param_info(
    driver: &Driver,
    kernel: CUkernel,
    index: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Answer {
    offset.required()?;
    let info = driver.kernel_get_param_info(kernel.core(), index)?;
    offset.set(info.0);
    bytes.set(info.1);
    Ok(())
}

pub(crate) fn kernel_get_param_count(driver: &Driver, kernel: CUkernel, count: Out<usize>) -> Answer {
    count.required()?;
    count.set(driver.kernel_get_param_count(kernel.core())?);
    Ok(())
}

pub(crate) fn kernel_get_attribute(
    driver: &Driver,
    value: Out<i32>,
    attribute: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> Answer {
    value.required()?;
    value.set(driver.kernel_get_attribute(attribute.0 as i32, kernel.core(), Device(dev))?);
    Ok(())
}

pub(crate) fn kernel_set_attribute(
    driver: &Driver,
    attribute: CUfunction_attribute,
    value: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> Answer {
    Ok(driver.kernel_set_attribute(attribute.0 as i32, value, kernel.core(), Device(dev))?)
}

pub(crate) fn kernel_set_cache_config(
    driver: &Driver,
    kernel: CUkernel,
    config: CUfunc_cache,
    dev: CUdevice,
) -> Answer {
    Ok(driver.kernel_set_cache_config(kernel.core(), config.0, Device(dev))?)
}
