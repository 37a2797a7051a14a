//! Texture and surface objects: what each was made of.

use std::sync::Arc;

use cuda_abi::{CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use gpu::{ContextId, DevAddr};

use crate::context::state::ContextState;
use crate::error::{CudaError, Result};
use crate::handle::Table;
use crate::values::Resource;

/// A texture or surface object.
#[derive(Debug)]
pub(crate) struct ObjectState {
    /// Where its descriptor is: its handle.
    pub(crate) at: u64,
    pub(crate) context: Arc<ContextState>,
    pub(crate) resource: Resource,
    /// How it is read, of a texture.
    pub(crate) texture: Option<CUDA_TEXTURE_DESC>,
    pub(crate) view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

/// Which objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Objects {
    Textures,
    Surfaces,
}

/// All texture and surface objects, by handle: no two have one.
#[derive(Debug, Default)]
pub(crate) struct ObjectTable(Table<ObjectState>);

impl ObjectTable {
    pub(crate) fn insert(&self, object: ObjectState) {
        self.0.insert(object.at, Arc::new(object));
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn get(&self, objects: Objects, handle: u64) -> Result<Arc<ObjectState>> {
        let found = self.0.get(handle).map_err(|_| CudaError::INVALID_VALUE)?;
        let texture = found.texture.is_some();
        if texture == (objects == Objects::Textures) { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn remove(&self, objects: Objects, handle: u64) -> Result<Arc<ObjectState>> {
        self.get(objects, handle)?;
        self.0.remove(handle).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// Forgets an object, and gives its place back.
    pub(crate) fn forget(&self, at: u64) {
        // Another thread may be destroying it.
        if let Ok(object) = self.0.remove(at) {
            object.context.descriptors.give_back(DevAddr(at));
        }
    }

    /// Forgets the objects of a context.
    pub(crate) fn forget_context(&self, context: ContextId) {
        let all = self.0.all();
        all.iter().filter(|object| object.context.core.id == context).for_each(|object| self.forget(object.at));
    }
}
