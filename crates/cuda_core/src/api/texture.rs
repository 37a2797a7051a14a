//! Texture and surface objects.

use std::sync::Arc;

use cuda_abi::{CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use gpu::DevAddr;
use texture::{Descriptor, Image};

use crate::context::state::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::memory::array_shape::element;
use crate::textures::describe::{as_surface, as_texture};
use crate::textures::objects::{ObjectState, Objects};
use crate::values::Resource;
use crate::work::copy::on_gpu;

/// `CU_DEVICE_ATTRIBUTE_*`.
const TEXTURE_ALIGNMENT: i32 = 14;
const TEXTURE_PITCH_ALIGNMENT: i32 = 51;
const MAXIMUM_TEXTURE1D_LINEAR_WIDTH: i32 = 69;
const MAXIMUM_TEXTURE2D_LINEAR_WIDTH: i32 = 70;
const MAXIMUM_TEXTURE2D_LINEAR_HEIGHT: i32 = 71;
const MAXIMUM_TEXTURE2D_LINEAR_PITCH: i32 = 72;

impl Driver {
    /// The texels of a resource, of which a context makes textures or surfaces; whether they are a mipmapped array's.
    ///
    /// Memory may be said to go on behind its allocation, as in CUDA. What a kernel reads there it reads as by that address: texels are no
    /// way past its page tables.
    ///
    /// # Errors
    /// `INVALID_VALUE` for arrays that there are not, or of other contexts; memory whose begin is not allocated or not aligned, or that is
    /// larger than textures may be; `NOT_SUPPORTED` for formats of blocks and planes.
    pub(crate) fn image(&self, context: &ContextState, resource: &Resource) -> Result<(Image, bool)> {
        let invalid = CudaError::INVALID_VALUE;
        let limit = |attribute| self.limit_of(context, attribute);
        let memory = |at: DevAddr| {
            if !at.0.is_multiple_of(limit(TEXTURE_ALIGNMENT)) {
                return Err(invalid);
            }
            // Addresses of other GPUs' memory, and of the program's own, are none.
            on_gpu(&self.memory, context.core.gpu.ordinal, at, 1).map(|(at, _)| at.0)
        };
        match *resource {
            Resource::Array(array) => {
                let array = self.memory.arrays.get(array).map_err(|_| invalid)?;
                let shape = &array.shape;
                let image = Image::array(shape.shape, shape.format, shape.channels, array.base.0, shape.extent, 1);
                if array.context == context.core.id { Ok((image, false)) } else { Err(invalid) }
            }
            Resource::Mipmapped(array) => {
                let array = self.memory.arrays.mipmapped(array).map_err(|_| invalid)?;
                let (shape, levels) = (&array.shape, array.levels.len() as u8);
                let (base, extent) = (array.base.0, shape.extent);
                let image = Image::array(shape.shape, shape.format, shape.channels, base, extent, levels);
                if array.context == context.core.id { Ok((image, true)) } else { Err(invalid) }
            }
            Resource::Linear { at, format, channels, bytes } => {
                let (format, channels) = element(format, channels)?;
                let texels = bytes / u64::from(format.bytes() * u32::from(channels));
                if texels == 0 || texels > limit(MAXIMUM_TEXTURE1D_LINEAR_WIDTH) {
                    return Err(invalid);
                }
                Ok((Image::linear(format, channels, memory(at)?, texels as u32), false))
            }
            Resource::Pitched { at, format, channels, width, height, pitch } => {
                let (format, channels) = element(format, channels)?;
                let most = [
                    (width, MAXIMUM_TEXTURE2D_LINEAR_WIDTH),
                    (height, MAXIMUM_TEXTURE2D_LINEAR_HEIGHT),
                    (pitch, MAXIMUM_TEXTURE2D_LINEAR_PITCH),
                ];
                let within = most.into_iter().all(|(value, attribute)| (1..=limit(attribute)).contains(&value));
                if !within || !pitch.is_multiple_of(limit(TEXTURE_PITCH_ALIGNMENT)) {
                    return Err(invalid);
                }
                Ok((Image::pitched(format, channels, memory(at)?, [width as u32, height as u32], pitch as u32), false))
            }
        }
    }

    /// Puts a descriptor into a context's memory.
    fn make_object(
        &self,
        context: &Arc<ContextState>,
        descriptor: &Descriptor,
        resource: &Resource,
        texture: Option<CUDA_TEXTURE_DESC>,
        view: Option<CUDA_RESOURCE_VIEW_DESC>,
    ) -> Result<u64> {
        let at = context.descriptors.put(&context.core, &context.queues, descriptor)?.0;
        self.objects.insert(ObjectState { at, context: Arc::clone(context), resource: *resource, texture, view });
        context.alive_or(|| self.objects.forget(at))?;
        Ok(at)
    }

    /// Makes a texture object: what it reads, how, and as what.
    ///
    /// # Errors
    /// `INVALID_VALUE` for resources that there are not or that textures cannot be made of, and for descriptions that contradict
    /// the resource or themselves; `NOT_SUPPORTED` for formats of blocks and planes; `OUT_OF_MEMORY`; the context's error.
    pub fn tex_object_create(
        &self,
        resource: &Resource,
        texture: &CUDA_TEXTURE_DESC,
        view: Option<&CUDA_RESOURCE_VIEW_DESC>,
    ) -> Result<u64> {
        let context = self.current()?;
        let (image, mipmapped) = self.image(&context, resource)?;
        let descriptor = as_texture(image, mipmapped, texture, view)?;
        self.make_object(&context, &descriptor, resource, Some(*texture), view.copied())
    }

    /// Makes a surface object of an array, or of a level of a mipmapped one.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other resources, and arrays of which there are no surfaces; `OUT_OF_MEMORY`; the context's error.
    /// `CUDA_ARRAY3D_SURFACE_LDST` is wanted of an array by references only.
    pub fn surf_object_create(&self, resource: &Resource) -> Result<u64> {
        let context = self.current()?;
        let Resource::Array(_) = *resource else { return Err(CudaError::INVALID_VALUE) };
        let (image, _) = self.image(&context, resource)?;
        self.make_object(&context, &as_surface(image)?, resource, None, None)
    }

    fn destroy_object(&self, objects: Objects, handle: u64) -> Result<()> {
        self.current()?;
        let object = self.objects.remove(objects, handle)?;
        object.context.descriptors.give_back(DevAddr(handle));
        Ok(())
    }

    /// Destroys a texture object. Kernels that were launched before may go on using it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn tex_object_destroy(&self, texture: u64) -> Result<()> {
        self.destroy_object(Objects::Textures, texture)
    }

    /// As `tex_object_destroy`, of a surface object; that of none, 0, is no error.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn surf_object_destroy(&self, surface: u64) -> Result<()> {
        if surface == 0 {
            return self.current().map(drop);
        }
        self.destroy_object(Objects::Surfaces, surface)
    }

    /// What a texture object reads.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn tex_object_get_resource(&self, texture: u64) -> Result<Resource> {
        self.current()?;
        Ok(self.objects.get(Objects::Textures, texture)?.resource)
    }

    /// How a texture object reads.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn tex_object_get_texture(&self, texture: u64) -> Result<CUDA_TEXTURE_DESC> {
        self.current()?;
        self.objects.get(Objects::Textures, texture)?.texture.ok_or(CudaError::INVALID_VALUE)
    }

    /// As what a texture object reads.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or was made without a view; the context's error.
    pub fn tex_object_get_view(&self, texture: u64) -> Result<CUDA_RESOURCE_VIEW_DESC> {
        self.current()?;
        self.objects.get(Objects::Textures, texture)?.view.ok_or(CudaError::INVALID_VALUE)
    }

    /// The array of a surface object.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn surf_object_get_resource(&self, surface: u64) -> Result<Resource> {
        self.current()?;
        Ok(self.objects.get(Objects::Surfaces, surface)?.resource)
    }
}
