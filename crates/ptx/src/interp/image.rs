//! Textures and surfaces.

use texture::{Access, MAX_SOURCES, Memory};

use super::Cta;
use crate::image;
use crate::ir::{Operand, Reg};
use crate::launch::{self, AccessError, Exception, GlobalMemory};

impl Cta {
    /// Performs an access for one thread.
    pub(super) fn image(
        &mut self,
        memory: &dyn GlobalMemory,
        thread: usize,
        access: &Access,
        dsts: &[Reg],
        srcs: &[Operand],
    ) -> Result<(), Exception> {
        let (Some((&handle, srcs)), true) = (srcs.split_first(), srcs.len() <= 1 + MAX_SOURCES) else {
            return Err(Exception::Illegal);
        };
        let handle = self.operand(thread, handle);
        let mut sources = [0; MAX_SOURCES];
        for (source, src) in sources.iter_mut().zip(srcs) {
            *source = self.operand(thread, *src);
        }
        let object = image::object(handle, |bytes| {
            memory.read(handle, bytes).map_err(|error| fault(handle, launch::Access::Read, error))
        })?;
        let results = access.perform(&object, &sources[..srcs.len()], &mut Plain(memory));
        let results = results.map_err(|refused| image::exception(access, handle, refused))?;
        for (dst, result) in dsts.iter().zip(results) {
            self.set(thread, *dst, result);
        }
        Ok(())
    }
}

fn fault(address: u64, access: launch::Access, error: AccessError) -> Exception {
    Exception::Access { address, access, error }
}

/// Global memory.
struct Plain<'a>(&'a dyn GlobalMemory);

impl Memory for Plain<'_> {
    type Fault = Exception;

    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, Exception> {
        let mut value = [0; 16];
        let out = value.get_mut(..bytes as usize).ok_or(Exception::Illegal)?;
        self.0.read(address, out).map_err(|error| fault(address, launch::Access::Read, error))?;
        Ok(u128::from_le_bytes(value))
    }

    fn store(&mut self, address: u64, bytes: u32, value: u128) -> Result<(), Exception> {
        let value = value.to_le_bytes();
        let data = value.get(..bytes as usize).ok_or(Exception::Illegal)?;
        self.0.write(address, data).map_err(|error| fault(address, launch::Access::Write, error))
    }

    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Exception> {
        let old = self.0.update(address, bytes, f);
        old.map(|_| ()).map_err(|error| fault(address, launch::Access::Atomic, error))
    }
}
