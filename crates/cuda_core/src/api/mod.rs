//! The functions of the driver API, family by family: each looks up what its handles name, checks, and asks the parts below.
//!
//! Nothing in the crate asks for anything here.

mod array;
mod between_processes;
mod capture;
mod context;
mod copy;
mod device;
mod event;
mod fill;
mod function;
mod graph;
mod graph_exec;
mod green;
mod launch;
mod library;
mod linker;
mod managed;
mod memory;
mod module;
mod occupancy;
mod old_launch;
mod pinned;
mod pointer;
mod pool;
mod primary;
mod stream;
mod tensor_map;
mod texture;
mod texture_reference;
mod value_ops;
mod virtual_memory;

pub use tensor_map::{TensorMapDesc, TensorRegion};
