//! Handles, addresses and numbers that name things.
//!
//! In C, handles are pointers to incomplete types. Nothing here dereferences one, so they are numbers of the same size.

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(0);

            /// True for the null handle.
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// A context.
    CUcontext,
    /// A module.
    CUmodule,
    /// A function of a module; a kernel handle is accepted where a function is asked for.
    CUfunction,
    /// A library: code not bound to a context.
    CUlibrary,
    /// A kernel of a library.
    CUkernel,
    /// An array.
    CUarray,
    /// A mipmapped array.
    CUmipmappedArray,
    /// A texture reference.
    CUtexref,
    /// A surface reference.
    CUsurfref,
    /// An event.
    CUevent,
    /// A stream.
    CUstream,
    /// A graph.
    CUgraph,
    /// A node of a graph.
    CUgraphNode,
    /// An executable graph.
    CUgraphExec,
    /// A memory pool.
    CUmemoryPool,
    /// A user object.
    CUuserObject,
    /// A graph node that kernels may update.
    CUgraphDeviceNode,
    /// A registered notification.
    CUasyncCallbackHandle,
    /// A function that is told of errors.
    CUlogsCallbackHandle,
    /// A function that is told of core dumps.
    CUcoredumpCallbackHandle,
    /// A green context.
    CUgreenCtx,
    /// A running link.
    CUlinkState,
    /// A resource descriptor.
    CUdevResourceDesc,
    /// An address in the calling program, or a pointer to one of its functions; 0 is null.
    HostAddr,
}

impl CUstream {
    /// The default stream that waits for all blocking streams of the context.
    pub const LEGACY: CUstream = CUstream(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: CUstream = CUstream(2);
}

/// A device ordinal.
pub type CUdevice = i32;
/// A device address.
pub type CUdeviceptr = u64;
/// A device address of CUDA 1, which had 32 bits.
#[expect(non_camel_case_types, reason = "the vendor's name")]
pub type CUdeviceptr_v1 = u32;
/// A texture object.
pub type CUtexObject = u64;
/// A surface object.
pub type CUsurfObject = u64;
/// Physical memory made by `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// A condition of a conditional graph node.
pub type CUgraphConditionalHandle = u64;
