//! CUDA's driver API, implemented once, in safe Rust, on the waist [`gpu::Gpu`].
//!
//! One [`Driver`] per process; one method per function of the API, named as there without `cu` and version suffix. Inputs are
//! values: numbers, names, [`HostRange`](hostmem::HostRange)s of the program's memory, handles. The C edge (`libcuda`) decodes
//! pointers into them and writes what is returned; nothing here dereferences anything.
//!
//! Nearly everything is answered here: contexts, streams, events, attributes, occupancy, pointer queries, suballocation and
//! pools are bookkeeping of this process. The GPU is asked for memory, modules and queues; work goes to it as commands.
//!
//! # Parts
//!
//! | module | what it decides |
//! |---|---|
//! | `driver`, `handle`, `shared` | tables of handles; semaphore slots; how errors become known |
//! | `context`, `primary`, `limits` | contexts, the thread's stack, the primary context, errors that stick |
//! | `stream`, `event`, `host_fn`, `value_ops` | order of work: the legacy stream's rule, events, functions of the host |
//! | `arena`, `heap`, `memory`, `pinned`, `managed`, `pool`, `vmm` | addresses and memory |
//! | `copy`, `copy_3d`, `set`, `pointer` | what moves how; what is known of an address |
//! | `fatbin`, `names`, `module`, `library`, `link`, `function` | code, found and loaded when it is needed |
//! | `launch`, `occupancy` | launches and the limits of compute capability 12.0 |
//! | `print_fifo`, `printf` | what kernels print |
//! | `device`, `device_attributes` | what the GPU is |
//!
//! # Order and waiting
//!
//! A stream is a queue of the GPU and one semaphore slot. Commands are submitted as they come; a signal is appended only when
//! somebody wants to know how far a stream is. Marks (slot, payload) name points in streams: payloads of a slot grow over all
//! its uses, so that a mark never lies, even when its stream is gone. A launch takes two look-ups and one submission, and
//! allocates nothing.
//!
//! # Memory
//!
//! One range of addresses is reserved in the process and announced to the GPU; every GPU address lies in it. Device memory is
//! mapped on the GPU only: the program that touches it gets a fault. Host-visible memory is mapped on both sides at the same
//! address. The end of the range belongs to the GPU's driver, which puts module variables there; managed ones alone are
//! placed by this crate, in managed memory.
//!
//! # Errors
//!
//! [`CudaError`] is a CUDA result code; each method's documentation names those it adds to the common ones: `NOT_INITIALIZED`,
//! `DEINITIALIZED`, `DEVICE_UNAVAILABLE` (the GPU is lost), `INVALID_CONTEXT`, and the current context's sticking error.
//!
//! # Not supported
//!
//! Stream capture and graphs, arrays and textures, sharing between processes, clusters of more than one block, linking of
//! several PTX texts that refer to each other. Functions say `NOT_SUPPORTED`, or are not here.
//!
//! Programs are not trusted to pass sensible values, and images of code may be anything: what they pass never panics.

mod arena;
mod context;
mod copy;
mod copy_3d;
mod device;
mod device_attributes;
mod driver;
mod error;
mod event;
pub mod fatbin;
mod function;
mod handle;
mod heap;
mod host_fn;
mod launch;
mod library;
mod limits;
mod link;
mod managed;
mod memory;
mod module;
mod names;
mod occupancy;
mod pinned;
mod pointer;
mod pool;
mod primary;
mod print_fifo;
mod printf;
mod set;
mod shared;
mod stream;
mod types;
mod value_ops;
mod vmm;

pub use driver::Driver;
pub use error::{CudaError, Result};
pub use handle::{Context, Device, Event, Function, Kernel, Library, Link, MemPool, Module, Physical, Stream};
pub use types::{
    AccessFlags, AttributeValue, Copy3D, CopyEnd, CopyMemory, DeviceProperties, HostServices, Image, JitLog,
    LaunchConfig, Location, MemOp, MemoryProps, Params, PoolAttribute, PrimaryState,
};
