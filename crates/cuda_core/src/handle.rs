//! Handles that programs hold, and the table in which they are looked up.
//!
//! A handle's value names its type and a number that is never used again in the process, so a stale or foreign value is
//! always told apart from a live one. Programs see an opaque pointer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::error::{CudaError, Result};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        pub struct $name(pub u64);

        impl From<$name> for u64 {
            fn from(handle: $name) -> u64 {
                handle.0
            }
        }

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(0);

            /// True for the null handle.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// `CUcontext`.
    Context,
    /// `CUstream`; 0 and 1 are the legacy default stream, 2 the calling thread's default stream.
    Stream,
    /// `CUevent`.
    Event,
    /// `CUmodule`.
    Module,
    /// `CUfunction`; where one is expected, a [`Kernel`]'s value is taken too, as CUDA does.
    Function,
    /// `CUlibrary`.
    Library,
    /// `CUkernel`.
    Kernel,
    /// `CUmemoryPool`.
    MemPool,
    /// `CUmemGenericAllocationHandle`.
    Physical,
    /// `CUlinkState`.
    Link,
    /// `CUgraph`.
    Graph,
    /// `CUgraphNode`.
    GraphNode,
    /// `CUgraphExec`.
    GraphExec,
    /// `CUuserObject`.
    UserObject,
    /// `CUarray`.
    Array,
    /// `CUmipmappedArray`.
    MipmappedArray,
    /// `CUtexref`.
    TexRef,
    /// `CUsurfref`.
    SurfRef,
    /// `CUgreenCtx`.
    GreenContext,
    /// `CUdevResourceDesc`.
    ResourceDesc,
}

impl Kernel {
    /// The kernel that was named where a function is expected, if it was one.
    #[must_use]
    pub fn named(function: Function) -> Option<Kernel> {
        is(Tag::Kernel, function.0).then_some(Kernel(function.0))
    }
}

impl Stream {
    /// `CU_STREAM_LEGACY`, also what null means.
    pub const LEGACY: Stream = Stream(1);
    /// `CU_STREAM_PER_THREAD`.
    pub const PER_THREAD: Stream = Stream(2);
}

/// An ordinal of a device, as programs pass it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Device(pub i32);

/// Type part of a handle's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    MemPool,
    Physical,
    Link,
    Graph,
    GraphNode,
    GraphExec,
    UserObject,
    Array,
    MipmappedArray,
    TexRef,
    SurfRef,
    GreenContext,
    ResourceDesc,
}

const TAG_SHIFT: u32 = 40;
const SHARDS: usize = 16;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A value never given before.
pub(crate) fn fresh(tag: Tag) -> u64 {
    // Invariant: 2^36 handles last longer than any process.
    ((tag as u64) << TAG_SHIFT) | (NEXT.fetch_add(1, Ordering::Relaxed) << 4)
}

/// True if the value was made for `tag`.
pub(crate) fn is(tag: Tag, value: u64) -> bool {
    value >> TAG_SHIFT == tag as u64
}

/// Live objects of one type, by handle. Looking up takes one shared lock of one shard.
#[derive(Debug)]
pub(crate) struct Table<T> {
    shards: [RwLock<HashMap<u64, Arc<T>>>; SHARDS],
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl<T> Table<T> {
    fn shard(&self, value: u64) -> &RwLock<HashMap<u64, Arc<T>>> {
        &self.shards[(value >> 4) as usize % SHARDS]
    }

    pub(crate) fn insert(&self, value: u64, object: Arc<T>) {
        self.shard(value).write().insert(value, object);
    }

    /// # Errors
    /// `INVALID_HANDLE` if it is none.
    pub(crate) fn get(&self, value: u64) -> Result<Arc<T>> {
        self.shard(value).read().get(&value).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    /// # Errors
    /// `INVALID_HANDLE` if it is none.
    pub(crate) fn remove(&self, value: u64) -> Result<Arc<T>> {
        self.shard(value).write().remove(&value).ok_or(CudaError::INVALID_HANDLE)
    }

    /// All that are alive now, in order of creation.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let mut all: Vec<(u64, Arc<T>)> = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().iter().map(|(value, object)| (*value, Arc::clone(object))));
        }
        all.sort_unstable_by_key(|entry| entry.0);
        all.into_iter().map(|entry| entry.1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handles_stay_invalid() {
        let table = Table::default();
        let first = fresh(Tag::Event);
        table.insert(first, Arc::new(7));
        assert_eq!(table.get(first).map(|v| *v), Ok(7));
        assert!(is(Tag::Event, first) && !is(Tag::Stream, first));
        table.remove(first).unwrap();
        let second = fresh(Tag::Event);
        table.insert(second, Arc::new(8));
        assert_ne!(first, second);
        assert_eq!(table.get(first), Err(CudaError::INVALID_HANDLE));
        assert_eq!(table.remove(first), Err(CudaError::INVALID_HANDLE));
        assert_eq!(table.all(), [Arc::new(8)]);
    }
}
