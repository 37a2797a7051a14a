//! Arrays and mipmapped arrays: made, looked at, destroyed.

use std::sync::Arc;

use cuda_abi::CUDA_ARRAY3D_DESCRIPTOR;
use gpu::{ContextId, DevAddr};
use texture::Layout;

use crate::context::state::ContextState;
use crate::device_attributes;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Array, MipmappedArray};
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::memory::array_shape::ArrayShape;

impl Driver {
    /// An attribute of a context's device that says how large something may be.
    pub(crate) fn limit_of(&self, context: &ContextState, attribute: i32) -> u64 {
        let properties = self.device_of(context).properties();
        u64::try_from(device_attributes::value(attribute, properties).unwrap_or(0)).unwrap_or(0)
    }

    /// Creates an array (`cuArrayCreate`: without depth and flags). Its memory is charged as any other.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what no array is, or is beyond the device's limits; `NOT_SUPPORTED` for formats and flags that arrays of
    /// this device cannot have: blocks and planes, sparse and deferred mappings; `OUT_OF_MEMORY`.
    pub fn array_3d_create(&self, descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<Array> {
        self.potentially_unsafe()?;
        let context = self.current()?;
        let shape = ArrayShape::of(descriptor, false, &|attribute| self.limit_of(&context, attribute))?;
        let layout = shape.layout(1)?;
        let memory = self.array_memory(&context, &layout)?;
        let array = self.memory.arrays.add(&memory, &shape, &layout);
        self.keep_in(&context, &memory).inspect_err(|_| drop(self.memory.arrays.remove(array)))?;
        Ok(array)
    }

    /// Creates an array of several levels, at most as many as there can be.
    ///
    /// # Errors
    /// As `array_3d_create`.
    pub fn mipmapped_array_create(&self, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<MipmappedArray> {
        self.potentially_unsafe()?;
        let context = self.current()?;
        let shape = ArrayShape::of(descriptor, true, &|attribute| self.limit_of(&context, attribute))?;
        let most = shape.most_levels();
        let layout = shape.layout(u8::try_from(levels.max(1)).map_or(most, |levels| levels.min(most)))?;
        let memory = self.array_memory(&context, &layout)?;
        let array = self.memory.arrays.add_mipmapped(&memory, &shape, &layout);
        self.keep_in(&context, &memory).inspect_err(|_| drop(self.memory.arrays.remove_mipmapped(array)))?;
        Ok(array)
    }

    fn array_memory(&self, context: &ContextState, layout: &Layout) -> Result<Arc<Allocation>> {
        self.alloc_device(context, Wanted::new(layout.bytes(), Kind::Array, context.core.id))
    }

    /// What an array was made of; a level of a mipmapped one: as if it had been made alone.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn array_3d_get_descriptor(&self, array: Array) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
        self.current()?;
        Ok(self.memory.arrays.get(array)?.shape.descriptor)
    }

    /// Bytes of an element of an array.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn array_element_bytes(&self, array: Array) -> Result<u64> {
        self.current()?;
        Ok(self.memory.arrays.get(array)?.shape.element_bytes())
    }

    /// A level of a mipmapped array, which is one as long as that is.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` if there is no such level; the context's error.
    pub fn mipmapped_array_get_level(&self, array: MipmappedArray, level: u32) -> Result<Array> {
        self.current()?;
        let array = self.memory.arrays.mipmapped(array)?;
        array.levels.get(level as usize).map(|level| level.handle).ok_or(CudaError::INVALID_VALUE)
    }

    /// Destroys an array, after the work that may use it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none, or a level of a mipmapped one; the context's error.
    pub fn array_destroy(&self, array: Array) -> Result<()> {
        self.potentially_unsafe()?;
        let current = self.current()?;
        let found = self.memory.arrays.get(array)?;
        if !found.of.is_null() {
            return Err(CudaError::INVALID_HANDLE);
        }
        self.quiesce(&current, found.context)?;
        let found = self.memory.arrays.remove(array)?;
        self.free_array(found.base, found.context);
        Ok(())
    }

    /// Destroys a mipmapped array and its levels, after the work that may use them.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn mipmapped_array_destroy(&self, array: MipmappedArray) -> Result<()> {
        self.potentially_unsafe()?;
        let current = self.current()?;
        let found = self.memory.arrays.mipmapped(array)?;
        self.quiesce(&current, found.context)?;
        let found = self.memory.arrays.remove_mipmapped(array)?;
        self.free_array(found.base, found.context);
        Ok(())
    }

    /// Gives the memory of an array back that was taken out, unless its context's end was first.
    fn free_array(&self, base: DevAddr, context: ContextId) {
        let its = |found: &Allocation| found.kind == Kind::Array && found.context == context;
        if let Some(found) = self.memory.forget(base.0, its) {
            self.recycle(&found);
        }
    }
}
