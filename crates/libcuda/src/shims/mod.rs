//! The exported functions and their address map. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

pub(crate) mod addresses;
mod array;
mod array_copy;
mod batch;
mod between_processes;
mod context;
mod copy;
mod coredump;
mod device;
mod event;
mod graph;
mod graph_node;
mod green;
mod launch;
mod library;
mod logs;
mod memory;
mod misc;
mod module;
mod old;
mod old_launch;
mod pool;
mod refused;
mod stream;
mod tensor_map;
mod texture;
mod texture_reference;
