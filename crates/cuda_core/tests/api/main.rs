//! The API as a program uses it, over a GPU that is made up.

#![cfg(test)]

mod arrays;
mod between_processes;
mod captures;
mod code;
mod conditionals;
mod contexts;
mod devices;
mod graph_execs;
mod graph_memory;
mod graphs;
mod green;
mod memory;
mod recaptures;
mod streams;
mod support;
mod tensor_maps;
mod textures;
mod waiting;
