//! Launches as before CUDA 4: shape and parameters are said of the function, one by one, and stay until they are said again.

use gpu::MAX_PARAM_BYTES;
use hostmem::HostRange;

use crate::code::function::Staged;
use crate::device_attributes::{BLOCK_DIM, SHARED_PER_BLOCK_OPTIN};
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Function, Stream};
use crate::values::{LaunchConfig, Params};

impl Driver {
    fn staged<R>(&self, function: Function, f: impl FnOnce(&mut Staged) -> Result<R>) -> Result<R> {
        let context = self.current()?;
        f(&mut self.function_in(&context.core, function)?.staged.lock())
    }

    /// Threads of a block in x, y, z.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what no block can be, `INVALID_HANDLE`; the context's error.
    pub fn func_set_block_shape(&self, function: Function, block: [i32; 3]) -> Result<()> {
        let block = block.map(|n| u32::try_from(n).unwrap_or(0));
        self.staged(function, |staged| {
            if block.iter().zip(BLOCK_DIM).any(|(n, most)| *n == 0 || *n > most) {
                return Err(CudaError::INVALID_VALUE);
            }
            staged.block = block;
            Ok(())
        })
    }

    /// Dynamic shared memory, bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for more than a block can have, `INVALID_HANDLE`; the context's error.
    pub fn func_set_shared_size(&self, function: Function, bytes: u32) -> Result<()> {
        self.staged(function, |staged| {
            if bytes > SHARED_PER_BLOCK_OPTIN {
                return Err(CudaError::INVALID_VALUE);
            }
            staged.shared_bytes = bytes;
            Ok(())
        })
    }

    /// How many bytes of parameters are passed.
    ///
    /// # Errors
    /// `INVALID_VALUE` for more than a kernel can have, `INVALID_HANDLE`; the context's error.
    pub fn param_set_size(&self, function: Function, bytes: u32) -> Result<()> {
        self.staged(function, |staged| {
            let size = bytes as usize;
            if size > MAX_PARAM_BYTES {
                return Err(CudaError::INVALID_VALUE);
            }
            staged.size = size;
            Ok(())
        })
    }

    /// Parameters, or a part of one, at an offset in bytes.
    ///
    /// # Errors
    /// As `param_set_size`.
    pub fn param_set(&self, function: Function, offset: i32, value: HostRange<'_>) -> Result<()> {
        self.staged(function, |staged| {
            let at = usize::try_from(offset).map_err(|_| CudaError::INVALID_VALUE)?;
            let end = at.checked_add(value.len()).filter(|end| *end <= MAX_PARAM_BYTES);
            let end = end.ok_or(CudaError::INVALID_VALUE)?;
            if staged.params.len() < end {
                staged.params.resize(end, 0);
            }
            value.read(&mut staged.params[at..end]);
            Ok(())
        })
    }

    /// Launches with what was said. Parameters that were sized and not set are 0.
    ///
    /// # Errors
    /// As `launch_kernel`; `INVALID_VALUE` also if no shape was set, or fewer parameters are passed than the kernel has.
    pub fn launch_grid(&self, function: Function, grid: [i32; 2], stream: Stream) -> Result<()> {
        let [width, height] = grid.map(|n| u32::try_from(n).unwrap_or(0));
        let context = self.current()?;
        let state = self.function_in(&context.core, function)?;
        let Staged { block, shared_bytes, size, mut params } = state.staged.lock().clone();
        params.resize(size, 0);
        let mut each = |index: usize, out: &mut [u8]| {
            let (offset, bytes) = state.info.params[index];
            let value = params.get(offset as usize..).and_then(|rest| rest.get(..bytes as usize));
            value.map(|value| out.copy_from_slice(value)).is_some()
        };
        let config = LaunchConfig::new([width, height, 1], block, shared_bytes, stream);
        self.launch_kernel(function, &config, Params::Each(&mut each))
    }
}
