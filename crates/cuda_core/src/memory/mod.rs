//! Addresses and memory: what is handed out, and what is known of an address.
//!
//! [`addresses`] reserves the range of all GPU addresses; [`heap`] gets a GPU's memory and gives it back, and where others have it,
//! stands in [`line`]; [`memories`] are those of all GPUs;
//! [`shared`] shows all of them host memory that one has made; [`table`] knows the [`allocation`] around any address. [`pool`]s keep freed blocks in stream order;
//! [`graph_memory`] is what nodes of graphs allocate;
//! [`virtual_memory`] has addresses, memory and mappings apart, as `cuMemMap` and its kin do; [`advice`] remembers what was
//! said about managed memory; [`between_processes`] is what other processes have made, [`handles`] what names it, [`descriptors`] files with handles in them. [`arrays`] are memory with a shape ([`array_shape`]): row-major, so that a copy with an array becomes
//! one with its memory before anybody else sees it.

pub(crate) mod addresses;
pub(crate) mod advice;
pub(crate) mod allocation;
pub(crate) mod array_shape;
pub(crate) mod arrays;
pub(crate) mod between_processes;
pub(crate) mod descriptors;
pub(crate) mod graph_memory;
pub(crate) mod handles;
pub(crate) mod heap;
pub(crate) mod line;
pub(crate) mod memories;
pub(crate) mod pool;
pub(crate) mod shared;
pub(crate) mod table;
pub(crate) mod virtual_memory;
