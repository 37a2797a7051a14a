//! What stands between a shim and the core, one function for each way a call is decoded.
//!
//! Null outputs are refused before anything is done, so that nothing is created that nobody can name.

pub(crate) mod array;
pub(crate) mod array_copy;
pub(crate) mod batch;
pub(crate) mod between_processes;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod coredump;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod graph_node;
pub(crate) mod green;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod logs;
pub(crate) mod memory;
pub(crate) mod misc;
pub(crate) mod module;
pub(crate) mod old;
pub(crate) mod old_launch;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod tensor_map;
pub(crate) mod texture;
pub(crate) mod texture_reference;
