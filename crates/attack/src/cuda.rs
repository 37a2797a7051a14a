//! The driver API, as thin as it goes: what attacks need, with errors as numbers.

use std::ffi::{CString, c_void};
use std::ptr;

use anyhow::Result;
use cudarc::driver::{DriverError, result, sys};

/// A retained primary context of device 0, current on the thread that made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuda {
    pub(crate) device: sys::CUdevice,
    pub(crate) context: sys::CUcontext,
}

// SAFETY: a context is a handle; CUDA allows its use from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// A launch's shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: u32,
    pub(crate) block: [u32; 3],
}

impl Shape {
    pub(crate) fn new(grid: u32, block: u32) -> Shape {
        Shape { grid, block: [block, 1, 1] }
    }
}

impl Cuda {
    pub(crate) fn open() -> Result<Cuda> {
        result::init()?;
        let device = result::device::get(0)?;
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let cuda = Cuda { device, context };
        cuda.enter()?;
        Ok(cuda)
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<()> {
        // SAFETY: the context was retained and is never released.
        unsafe { result::ctx::set_current(self.context) }?;
        Ok(())
    }

    pub(crate) fn load(&self, ptx: &str) -> Result<sys::CUmodule, DriverError> {
        let text = CString::new(ptx).unwrap_or_default();
        // SAFETY: the image is NUL-terminated PTX.
        unsafe { result::module::load_data(text.as_ptr().cast()) }
    }

    pub(crate) fn function(&self, module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, DriverError> {
        // SAFETY: the module is loaded, and never unloaded while its functions are used.
        unsafe { result::module::get_function(module, CString::new(name).unwrap_or_default()) }
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        // SAFETY: a plain allocation.
        unsafe { result::malloc_sync(bytes) }
    }

    pub(crate) fn free(&self, at: u64) -> Result<(), DriverError> {
        // SAFETY: a wrong address is an error of the driver's.
        unsafe { result::free_sync(at) }
    }

    pub(crate) fn stream(&self) -> Result<sys::CUstream, DriverError> {
        result::stream::create(result::stream::StreamKind::NonBlocking)
    }

    /// Launches with 64-bit parameters.
    pub(crate) fn launch(
        &self,
        function: sys::CUfunction,
        shape: Shape,
        stream: sys::CUstream,
        params: &[u64],
    ) -> Result<(), DriverError> {
        let mut values = params.to_vec();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let [x, y, z] = shape.block;
        // SAFETY: the kernels of this crate take 64-bit parameters, as many as are given.
        unsafe {
            sys::cuLaunchKernel(function, shape.grid, 1, 1, x, y, z, 0, stream, pointers.as_mut_ptr(), ptr::null_mut())
        }
        .result()
    }

    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        result::ctx::synchronize()
    }

    pub(crate) fn upload(&self, to: u64, data: &[u32]) -> Result<(), DriverError> {
        // SAFETY: the destination has the slice's size, or the driver says no.
        unsafe { result::memcpy_htod_sync(to, data) }
    }

    pub(crate) fn download(&self, data: &mut [u32], from: u64) -> Result<(), DriverError> {
        // SAFETY: the source has the slice's size, or the driver says no.
        unsafe { result::memcpy_dtoh_sync(data, from) }
    }
}

/// The default stream.
pub(crate) fn default_stream() -> sys::CUstream {
    ptr::null_mut()
}
