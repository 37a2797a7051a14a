//! Textures and surfaces: what programs ask for, as the descriptors that kernels use.
//!
//! - [`describe`] checks what a program says of an image and of how it is read, and makes a [`texture::Descriptor`] of it;
//! - [`slab`] has places for descriptors in a context's memory: a handle is the address of one;
//! - [`objects`] remembers what each texture and surface object was made of;
//! - [`references`] are variables of modules that hold handles, bound by their names.

pub(crate) mod describe;
pub(crate) mod objects;
pub(crate) mod references;
pub(crate) mod slab;
