//! The arrays of a process.

use std::sync::Arc;

use gpu::{ContextId, DevAddr};
use texture::{Layout, Level};

use crate::error::{CudaError, Result};
use crate::handle::{self, Array, MipmappedArray, Table, Tag};
use crate::memory::allocation::Allocation;
use crate::memory::array_shape::ArrayShape;
use crate::values::{Copy3D, CopyEnd, CopyMemory};

/// An array, or a level of a mipmapped one.
#[derive(Debug)]
pub(crate) struct ArrayState {
    pub(crate) handle: Array,
    pub(crate) shape: ArrayShape,
    /// The first element.
    pub(crate) base: DevAddr,
    /// From line to line, bytes.
    pub(crate) pitch: u64,
    pub(crate) context: ContextId,
    /// Whose level it is; null: nobody's.
    pub(crate) of: MipmappedArray,
}

/// Several levels, each an array.
#[derive(Debug)]
pub(crate) struct MipmappedState {
    pub(crate) handle: MipmappedArray,
    /// The shape of the first.
    pub(crate) shape: ArrayShape,
    pub(crate) levels: Vec<Arc<ArrayState>>,
    pub(crate) base: DevAddr,
    pub(crate) context: ContextId,
}

impl ArrayState {
    fn new(memory: &Allocation, whole: &ArrayShape, level: &Level, of: MipmappedArray) -> Arc<ArrayState> {
        Arc::new(ArrayState {
            handle: Array(handle::fresh(Tag::Array)),
            shape: whole.level(level),
            base: DevAddr(memory.base + level.offset),
            pitch: level.pitch,
            context: memory.context,
            of,
        })
    }

    /// An end of a copy that is this array, as its memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the copy is not inside the array, or cuts elements.
    fn end<'a>(&self, end: &CopyEnd<'_>, extent: [u64; 3]) -> Result<CopyEnd<'a>> {
        let element = self.shape.element_bytes();
        let [width, lines, slices] = self.shape.extent.map(u64::from);
        let there = [width * element, lines, slices];
        let inside = [end.x, end.y, end.z].into_iter().zip(extent).zip(there);
        let mut inside = inside.map(|((at, extent), there)| at.checked_add(extent).is_some_and(|end| end <= there));
        if !inside.all(|inside| inside) || !end.x.is_multiple_of(element) || !extent[0].is_multiple_of(element) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(CopyEnd {
            memory: CopyMemory::Device(self.base),
            x: end.x,
            y: end.y,
            z: end.z,
            pitch: self.pitch,
            height: lines,
        })
    }
}

/// All arrays, by handle.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    arrays: Table<ArrayState>,
    mipmapped: Table<MipmappedState>,
}

impl Arrays {
    /// An array in memory of its own.
    pub(crate) fn add(&self, memory: &Allocation, shape: &ArrayShape, layout: &Layout) -> Array {
        let array = ArrayState::new(memory, shape, &layout.levels()[0], MipmappedArray::NULL);
        self.arrays.insert(array.handle.0, Arc::clone(&array));
        array.handle
    }

    /// A mipmapped array in memory of its own.
    pub(crate) fn add_mipmapped(&self, memory: &Allocation, shape: &ArrayShape, layout: &Layout) -> MipmappedArray {
        let handle = MipmappedArray(handle::fresh(Tag::MipmappedArray));
        let levels = layout.levels().iter().map(|level| ArrayState::new(memory, shape, level, handle));
        let levels: Vec<_> = levels.inspect(|level| self.arrays.insert(level.handle.0, Arc::clone(level))).collect();
        let (shape, base, context) = (*shape, DevAddr(memory.base), memory.context);
        self.mipmapped.insert(handle.0, Arc::new(MipmappedState { handle, shape, levels, base, context }));
        handle
    }

    /// # Errors
    /// `INVALID_HANDLE` if it is none.
    pub(crate) fn get(&self, array: Array) -> Result<Arc<ArrayState>> {
        self.arrays.get(array.0)
    }

    /// # Errors
    /// `INVALID_HANDLE` if it is none.
    pub(crate) fn mipmapped(&self, array: MipmappedArray) -> Result<Arc<MipmappedState>> {
        self.mipmapped.get(array.0)
    }

    /// Forgets an array; its memory is the caller's to give back.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none, or a level.
    pub(crate) fn remove(&self, array: Array) -> Result<Arc<ArrayState>> {
        if !self.get(array)?.of.is_null() {
            return Err(CudaError::INVALID_HANDLE);
        }
        self.arrays.remove(array.0)
    }

    /// As `remove`, with all levels.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none.
    pub(crate) fn remove_mipmapped(&self, array: MipmappedArray) -> Result<Arc<MipmappedState>> {
        let state = self.mipmapped.remove(array.0)?;
        for level in &state.levels {
            // Whoever has taken the mipmapped array out takes its levels.
            let _ = self.arrays.remove(level.handle.0);
        }
        Ok(state)
    }

    /// Forgets the arrays of a context.
    pub(crate) fn forget_context(&self, context: ContextId) {
        for array in self.arrays.all().iter().filter(|array| array.context == context) {
            // Another thread may be destroying it.
            let _ = self.arrays.remove(array.handle.0);
        }
        for array in self.mipmapped.all().iter().filter(|array| array.context == context) {
            let _ = self.mipmapped.remove(array.handle.0);
        }
    }

    /// The same copy with memory instead of arrays.
    ///
    /// # Errors
    /// `INVALID_VALUE` for arrays that there are not, copies that are not inside them, or cut elements.
    pub(crate) fn flat<'a>(&self, copy: &Copy3D<'a>) -> Result<Copy3D<'a>> {
        let extent = [copy.width, copy.height, copy.depth];
        let flat = |end: CopyEnd<'a>| match end.memory {
            CopyMemory::Array(array) => self.get(array).map_err(|_| CudaError::INVALID_VALUE)?.end(&end, extent),
            _ => Ok(end),
        };
        Ok(Copy3D { src: flat(copy.src)?, dst: flat(copy.dst)?, ..*copy })
    }
}
