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
//! From the bottom up; nothing below asks for anything above.
//!
//! | folder | what it is about |
//! |---|---|
//! | `error`, `handle`, `values` | result codes, handles, values that cross the API |
//! | `gpu_link` | the way to the GPU, whether it is there, and the semaphore slots that tell how far its work is |
//! | `memory` | addresses and memory: what is handed out, what is known of an address, pools, mappings |
//! | `context_core` | what a context is to the objects in it: name, health, limits, printf; how errors become known |
//! | `code` | images, texts, modules, libraries, functions: found, and loaded when needed; what fits a multiprocessor |
//! | `resources` | which of a device's multiprocessors a green context has: numbers, divided |
//! | `work` | queues and the order between them (the legacy stream's rule); streams, events, launches, copies |
//! | `graph` | work described once: graphs, what streams record instead of submitting it, executable graphs |
//! | `textures` | textures and surfaces: descriptors of arrays and memory, objects and references |
//! | `context` | whole contexts, the thread's stack of them, primary ones |
//! | `devices` | which GPUs there are; all else is of one GPU, or of the process |
//! | `driver` | all of a process: the tables of handles |
//! | `api` | the functions, family by family |
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
//! One range of addresses is reserved in the process and announced to every GPU; every GPU address lies in it, and names one GPU. Device memory is
//! mapped on the GPU only: the program that touches it gets a fault. Host-visible memory is mapped on both sides at the same
//! address. The end of the range belongs to the GPU's driver, which puts module variables there; managed ones alone are
//! placed by this crate, in managed memory.
//!
//! # Arrays, textures, surfaces
//!
//! An array is device memory with a shape, row-major; a copy with one becomes a copy with its memory. A texture or surface object
//! is a descriptor (crate `texture`) in the context's memory, and its handle the address of that; nothing of it goes through the waist
//! but memory. A place that a descriptor has left is used again when no work can look at it.
//!
//! # Several GPUs
//!
//! A context is of one GPU, and so is all in it. Host memory that one GPU has made all see that can (`memory::shared`). No GPU
//! reaches the memory of another: kernels cannot, and copies between two go through the process, block by block, in the order of the
//! stream they are in (`work::between`). A stream waits for another
//! GPU's event on a thread of this process.
//!
//! # Green contexts
//!
//! A green context is a part of its device's primary context: queues of its own, with a default stream among them, and a handle; memory,
//! modules and health are the primary context's. How many multiprocessors it has is kept, told, and heeded where work is sized
//! (occupancy, cooperative launches); its kernels run on any of the GPU's.
//!
//! # Errors
//!
//! [`CudaError`] is a CUDA result code; each method's documentation names those it adds to the common ones: `NOT_INITIALIZED`,
//! `DEINITIALIZED`, `DEVICE_UNAVAILABLE` (the GPU is lost), `INVALID_CONTEXT`, and the current context's sticking error.
//!
//! # Not supported
//!
//! Graphs of several contexts, sparse arrays and those of blocks and planes. Functions say `NOT_SUPPORTED`, or are not here.
//!
//! Programs are not trusted to pass sensible values, and images of code may be anything: what they pass never panics.

mod api;
mod code;
mod context;
mod context_core;
mod device_attributes;
mod devices;
mod driver;
mod error;
mod gpu_link;
mod graph;
mod handle;
mod memory;
mod resources;
mod textures;
mod values;
mod work;

pub use api::{TensorMapDesc, TensorRegion};
pub use code::{fatbin, objects};
pub use driver::Driver;
pub use error::{CudaError, Result};
pub use handle::{
    Array, Context, Device, Event, Function, Graph, GraphExec, GraphNode, GreenContext, Kernel, Library, Link, MemPool,
    MipmappedArray, Module, Physical, ResourceDesc, Stream, SurfRef, TexRef, UserObject,
};
/// What is asked of the compiler at a load.
pub use ptx::JitOptions;
pub use resources::{DevResource, SmGroup, SmResource, Split, Workqueue, WorkqueueConfig};
pub use values::{
    AccessFlags, Approve, AttributeValue, CaptureInfo, Copy3D, CopyEnd, CopyMemory, DeviceProperties, Fill, GraphEdge,
    GraphOutcome, HostCall, HostServices, Image, JitLog, LaunchConfig, Location, MemOp, MemoryProps, MemoryWatcher,
    NodeInfo, NodeParams, Params, PoolAttribute, PrimaryState, Recaptured, Resource, WatchedMemory,
};
