//! Texture and surface references.

use std::sync::Arc;

use cuda_abi::{CUDA_ARRAY_DESCRIPTOR, CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format, CUfilter_mode};
use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Array, Function, MipmappedArray, Module, SurfRef, TexRef};
use crate::memory::array_shape::{SURFACE_LDST, element};
use crate::textures::describe::{address_mode, as_surface, as_texture, filter_mode};
use crate::textures::references::{Binding, Kind, Reference, ReferenceState};
use crate::values::Resource;

/// `CU_TRSA_OVERRIDE_FORMAT`.
const OVERRIDE_FORMAT: u32 = 1;
/// `CU_TRSF_*` that references may have: as integers, normalized, sRGB, no trilinear optimization.
const FLAGS: u32 = 0x33;
/// `CU_PARAM_TR_DEFAULT`.
const DEFAULT_UNIT: i32 = -1;
/// `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`.
const TEXTURE_ALIGNMENT: i32 = 14;

impl Driver {
    /// A texture reference of a module by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`; the context's error.
    pub fn module_get_tex_ref(&self, module: Module, name: &str) -> Result<TexRef> {
        self.module_reference(Kind::Texture, module, name).map(TexRef)
    }

    /// A surface reference of a module by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`; the context's error.
    pub fn module_get_surf_ref(&self, module: Module, name: &str) -> Result<SurfRef> {
        self.module_reference(Kind::Surface, module, name).map(SurfRef)
    }

    fn module_reference(&self, kind: Kind, module: Module, name: &str) -> Result<u64> {
        let state = self.module(module)?;
        let variable = state.reference(kind == Kind::Texture, name)?;
        let context = self.context(state.core.handle)?;
        Ok(self.references.of_module(kind, (module, name), &context, variable))
    }

    /// A reference of no module: it can be told everything, and nothing reads it.
    ///
    /// # Errors
    /// The context's error.
    pub fn tex_ref_create(&self) -> Result<TexRef> {
        let context = self.current()?;
        let made = self.references.make(Kind::Texture, &context, None);
        context.alive_or(|| drop(self.references.remove(made)))?;
        Ok(TexRef(made))
    }

    /// Destroys a reference that was created.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or a module's; the context's error.
    pub fn tex_ref_destroy(&self, reference: TexRef) -> Result<()> {
        self.current()?;
        let state = self.references.remove(reference.0)?;
        let _alone = state.change.lock();
        let place = state.binding.lock().descriptor.take();
        place.into_iter().for_each(|at| state.context.descriptors.give_back(at));
        Ok(())
    }

    /// What a reference is told, as it is now.
    fn binding(&self, of: Reference) -> Result<Binding> {
        self.current()?;
        let state = self.references.get(of.0, of.1)?;
        let binding = state.binding.lock().clone();
        Ok(binding)
    }

    /// Tells a reference something, and what is launched from now on sees it.
    fn tell(&self, of: Reference, change: impl FnOnce(&mut Binding) -> Result<()>) -> Result<()> {
        self.current()?;
        let state = self.references.get(of.0, of.1)?;
        let _alone = state.change.lock();
        let before = state.binding.lock().clone();
        let mut next = before.clone();
        change(&mut next)?;
        if next.resource.is_some() || before.resource.is_some() {
            self.bind(&state, &mut next)?;
        }
        *state.binding.lock() = next;
        Ok(())
    }

    /// Puts a reference's descriptor somewhere, and its handle into the module's variable, after all work that may read it.
    fn bind(&self, state: &Arc<ReferenceState>, binding: &mut Binding) -> Result<()> {
        let context = &state.context;
        context.queues.whole().synchronize()?;
        let descriptor = binding.resource.and_then(|resource| {
            let (image, mipmapped) = self.image(context, &resource).ok()?;
            match state.kind {
                Kind::Texture => as_texture(image, mipmapped, &binding.texture, None).ok(),
                Kind::Surface => as_surface(image).ok(),
            }
        });
        let put = |descriptor| context.descriptors.put(&context.core, &context.queues, descriptor);
        let at = descriptor.as_ref().map(put).transpose()?;
        if let Some((_, variable)) = state.variable {
            context.descriptors.write_handle(&context.core, variable, at)?;
        }
        let before = std::mem::replace(&mut binding.descriptor, at);
        before.into_iter().for_each(|before| context.descriptors.give_back(before));
        Ok(())
    }

    /// Binds an array, whose format becomes the reference's.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other flags than `CU_TRSA_OVERRIDE_FORMAT`, arrays and references that there are not; the context's
    /// error.
    pub fn tex_ref_set_array(&self, reference: TexRef, array: Array, flags: u32) -> Result<()> {
        self.bind_array(reference, Resource::Array(array), flags)
    }

    /// As `tex_ref_set_array`, a mipmapped array.
    ///
    /// # Errors
    /// As `tex_ref_set_array`.
    pub fn tex_ref_set_mipmapped_array(&self, reference: TexRef, array: MipmappedArray, flags: u32) -> Result<()> {
        self.bind_array(reference, Resource::Mipmapped(array), flags)
    }

    fn bind_array(&self, reference: TexRef, resource: Resource, flags: u32) -> Result<()> {
        if flags != OVERRIDE_FORMAT {
            return Err(CudaError::INVALID_VALUE);
        }
        let context = self.current()?;
        self.image(&context, &resource)?;
        let descriptor = match resource {
            Resource::Array(array) => self.memory.arrays.get(array)?.shape.descriptor,
            Resource::Mipmapped(array) => self.memory.arrays.mipmapped(array)?.shape.descriptor,
            _ => return Err(CudaError::INVALID_VALUE),
        };
        self.tell(reference.into(), |binding| {
            (binding.format, binding.channels) = (descriptor.format, descriptor.num_channels);
            binding.resource = Some(resource);
            Ok(())
        })
    }

    /// Binds memory, of elements as `tex_ref_set_format` has said; returns how far behind the texture's begin it begins, bytes.
    /// Null binds nothing.
    ///
    /// # Errors
    /// `INVALID_VALUE` for memory that is not allocated, or more than textures may have; the context's error.
    pub fn tex_ref_set_address(&self, reference: TexRef, at: DevAddr, bytes: u64) -> Result<u64> {
        let context = self.current()?;
        let before = at.0 % self.limit_of(&context, TEXTURE_ALIGNMENT);
        self.tell(reference.into(), |binding| {
            if at.0 == 0 {
                binding.resource = None;
                return Ok(());
            }
            let bytes = bytes.checked_add(before).ok_or(CudaError::INVALID_VALUE)?;
            let (format, channels, at) = (binding.format, binding.channels, DevAddr(at.0 - before));
            let resource = Resource::Linear { at, format, channels, bytes };
            self.image(&context, &resource)?;
            binding.resource = Some(resource);
            Ok(())
        })?;
        Ok(before)
    }

    /// Binds lines of memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for memory that is not allocated or not aligned, and more than textures may have; the context's error.
    pub fn tex_ref_set_address_2d(
        &self,
        reference: TexRef,
        descriptor: &CUDA_ARRAY_DESCRIPTOR,
        at: DevAddr,
        pitch: u64,
    ) -> Result<()> {
        let context = self.current()?;
        let &CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels: channels } = descriptor;
        let (width, height) = (width as u64, height as u64);
        let resource = Resource::Pitched { at, format, channels, width, height, pitch };
        self.image(&context, &resource)?;
        self.tell(reference.into(), |binding| {
            (binding.format, binding.channels) = (format, channels);
            binding.resource = Some(resource);
            Ok(())
        })
    }

    /// Says what elements of memory are: of what is bound from now on, and of what is bound by its address alone.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what no element is; `NOT_SUPPORTED` for formats of blocks and planes; the context's error.
    pub fn tex_ref_set_format(&self, reference: TexRef, format: CUarray_format, channels: u32) -> Result<()> {
        element(format, channels)?;
        self.tell(reference.into(), |binding| {
            (binding.format, binding.channels) = (format, channels);
            if let Some(Resource::Linear { format: of, channels: count, .. }) = &mut binding.resource {
                (*of, *count) = (format, channels);
            }
            Ok(())
        })
    }

    /// Changes how a reference reads.
    ///
    /// # Errors
    /// `INVALID_VALUE` for references that there are not, modes and flags that mean nothing; the context's error.
    pub fn tex_ref_set(&self, reference: TexRef, change: impl FnOnce(&mut CUDA_TEXTURE_DESC)) -> Result<()> {
        self.tell(reference.into(), |binding| {
            change(&mut binding.texture);
            let given = &binding.texture;
            given.address_mode.iter().try_for_each(|mode| address_mode(*mode).map(drop))?;
            filter_mode(given.filter_mode)?;
            filter_mode(given.mipmap_filter_mode)?;
            let numbers = [given.mipmap_level_bias, given.min_mipmap_level_clamp, given.max_mipmap_level_clamp];
            if given.flags & !FLAGS != 0 || numbers.iter().any(|number| number.is_nan()) {
                return Err(CudaError::INVALID_VALUE);
            }
            Ok(())
        })
    }

    /// How a reference reads.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn tex_ref_get(&self, reference: TexRef) -> Result<CUDA_TEXTURE_DESC> {
        Ok(self.binding(reference.into())?.texture)
    }

    /// What a reference's elements are.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none; the context's error.
    pub fn tex_ref_get_format(&self, reference: TexRef) -> Result<(CUarray_format, u32)> {
        let binding = self.binding(reference.into())?;
        Ok((binding.format, binding.channels))
    }

    /// What a reference is bound to.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or bound to nothing; the context's error.
    pub fn tex_ref_get_resource(&self, reference: TexRef) -> Result<Resource> {
        self.binding(reference.into())?.resource.ok_or(CudaError::INVALID_VALUE)
    }

    /// Makes what a reference is bound to known to a kernel, which it is already.
    ///
    /// # Errors
    /// `INVALID_VALUE` for another unit than `CU_PARAM_TR_DEFAULT`, and references of no module; `INVALID_HANDLE`; the context's
    /// error.
    pub fn param_set_tex_ref(&self, function: Function, unit: i32, reference: TexRef) -> Result<()> {
        self.function(function)?;
        self.current()?;
        let of_module = self.references.get(Kind::Texture, reference.0)?.variable.is_some();
        if unit == DEFAULT_UNIT && of_module { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Binds an array that was made for surfaces.
    ///
    /// # Errors
    /// `INVALID_VALUE` for flags, other arrays, references that there are not; the context's error.
    pub fn surf_ref_set_array(&self, reference: SurfRef, array: Array, flags: u32) -> Result<()> {
        let context = self.current()?;
        self.image(&context, &Resource::Array(array))?;
        let made_for_it = self.memory.arrays.get(array).is_ok_and(|array| array.shape.has(SURFACE_LDST));
        if flags != 0 || !made_for_it {
            return Err(CudaError::INVALID_VALUE);
        }
        self.tell(reference.into(), |binding| {
            binding.resource = Some(Resource::Array(array));
            Ok(())
        })
    }

    /// The array that a surface reference is bound to.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or bound to nothing; the context's error.
    pub fn surf_ref_get_array(&self, reference: SurfRef) -> Result<Array> {
        match self.binding(reference.into())?.resource {
            Some(Resource::Array(array)) => Ok(array),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// An address mode of one of a reference's three dimensions.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other dimensions and modes, and if it is none; the context's error.
    pub fn tex_ref_set_address_mode(&self, reference: TexRef, dimension: i32, mode: CUaddress_mode) -> Result<()> {
        let at = usize::try_from(dimension).ok().filter(|at| *at < 3).ok_or(CudaError::INVALID_VALUE)?;
        self.tex_ref_set(reference, |texture| texture.address_mode[at] = mode)
    }

    /// How a reference filters.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other modes, and if it is none; the context's error.
    pub fn tex_ref_set_filter_mode(&self, reference: TexRef, mode: CUfilter_mode) -> Result<()> {
        self.tex_ref_set(reference, |texture| texture.filter_mode = mode)
    }
}
