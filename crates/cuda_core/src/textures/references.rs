//! Texture and surface references: variables of modules that hold a handle, which the program binds to something by the
//! reference's name.
//!
//! A reference that is bound to nothing, or to something that it cannot read as it is told to, holds no handle: a kernel that
//! uses it fails. So the order in which a program says what it wants does not matter.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::{CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format, CUfilter_mode};
use gpu::{ContextId, DevAddr};
use parking_lot::Mutex;

use crate::context::state::ContextState;
use crate::error::{CudaError, Result};
use crate::handle::{self, Module, SurfRef, Table, Tag, TexRef};
use crate::values::Resource;

/// Which references.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    Texture,
    Surface,
}

/// A reference.
#[derive(Debug)]
pub(crate) struct ReferenceState {
    pub(crate) handle: u64,
    pub(crate) kind: Kind,
    pub(crate) context: Arc<ContextState>,
    /// The module's variable; `None`: it is of no module.
    pub(crate) variable: Option<(Module, DevAddr)>,
    pub(crate) binding: Mutex<Binding>,
    /// Held by who changes it, which may wait for work; who looks at it does not wait.
    pub(crate) change: Mutex<()>,
}

/// What a reference reads, and how.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// Of memory; of arrays, their own.
    pub(crate) format: CUarray_format,
    pub(crate) channels: u32,
    pub(crate) texture: CUDA_TEXTURE_DESC,
    pub(crate) resource: Option<Resource>,
    /// Where its descriptor is, if there is one.
    pub(crate) descriptor: Option<DevAddr>,
}

impl Default for Binding {
    /// Floats, clamped, unfiltered, by coordinates as they are.
    fn default() -> Binding {
        let (clamp, point) = (CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP, CUfilter_mode::CU_TR_FILTER_MODE_POINT);
        Binding {
            format: CUarray_format::CU_AD_FORMAT_FLOAT,
            channels: 1,
            texture: CUDA_TEXTURE_DESC {
                address_mode: [clamp; 3],
                filter_mode: point,
                flags: 0,
                max_anisotropy: 1,
                mipmap_filter_mode: point,
                mipmap_level_bias: 0.0,
                min_mipmap_level_clamp: 0.0,
                max_mipmap_level_clamp: 0.0,
                border_color: [0.0; 4],
                reserved: [0; 12],
            },
            resource: None,
            descriptor: None,
        }
    }
}

/// All references of a process.
#[derive(Debug, Default)]
pub(crate) struct References {
    all: Table<ReferenceState>,
    /// Those of modules: one for each name.
    named: Mutex<HashMap<(Module, Kind, String), u64>>,
}

impl References {
    /// # Errors
    /// `INVALID_VALUE` if it is none of the kind.
    pub(crate) fn get(&self, kind: Kind, handle: u64) -> Result<Arc<ReferenceState>> {
        let found = self.all.get(handle).map_err(|_| CudaError::INVALID_VALUE)?;
        if found.kind == kind { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// The reference of a module by name, whose variable is at `variable`.
    pub(crate) fn of_module(
        &self,
        kind: Kind,
        (module, name): (Module, &str),
        context: &Arc<ContextState>,
        variable: DevAddr,
    ) -> u64 {
        let mut named = self.named.lock();
        let make = || self.make(kind, context, Some((module, variable)));
        *named.entry((module, kind, name.to_owned())).or_insert_with(make)
    }

    /// A reference of no module, or for `variable`.
    pub(crate) fn make(&self, kind: Kind, context: &Arc<ContextState>, variable: Option<(Module, DevAddr)>) -> u64 {
        let handle = handle::fresh(if kind == Kind::Texture { Tag::TexRef } else { Tag::SurfRef });
        let context = Arc::clone(context);
        let state =
            ReferenceState { handle, kind, context, variable, binding: Mutex::default(), change: Mutex::default() };
        self.all.insert(handle, Arc::new(state));
        handle
    }

    /// Forgets a reference of no module.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or a module's.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<ReferenceState>> {
        if self.get(Kind::Texture, handle)?.variable.is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        self.all.remove(handle).map_err(|_| CudaError::INVALID_VALUE)
    }

    fn forget(&self, which: impl Fn(&ReferenceState) -> bool) {
        self.named.lock().retain(|_, handle| !self.all.get(*handle).is_ok_and(|state| which(&state)));
        for state in self.all.all().iter().filter(|state| which(state)) {
            // Another thread may have been faster.
            let _ = self.all.remove(state.handle);
            state.binding.lock().descriptor.take().into_iter().for_each(|at| state.context.descriptors.give_back(at));
        }
    }

    /// Forgets the references of a module that goes.
    pub(crate) fn forget_module(&self, module: Module) {
        self.forget(|state| state.variable.is_some_and(|(of, _)| of == module));
    }

    /// Forgets the references of a context that ends.
    pub(crate) fn forget_context(&self, context: ContextId) {
        self.forget(|state| state.context.core.id == context);
    }
}

impl From<TexRef> for Reference {
    fn from(of: TexRef) -> Reference {
        Reference(Kind::Texture, of.0)
    }
}

impl From<SurfRef> for Reference {
    fn from(of: SurfRef) -> Reference {
        Reference(Kind::Surface, of.0)
    }
}

/// A reference by handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference(pub(crate) Kind, pub(crate) u64);
