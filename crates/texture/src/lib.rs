//! Textures and surfaces: what a handle stands for, how arrays lie in memory, and what an access gives.
//!
//! - [`Descriptor`]: an [`Image`], and for a texture a [`Sampler`]. It lies in GPU memory, [`Descriptor::BYTES`] long, aligned to
//!   [`Descriptor::ALIGN`]; a texture or surface handle **is** the GPU virtual address of its descriptor.
//! - [`Access`]: what an instruction does with it; [`Object`]: a descriptor that has been read, ready for that.
//! - [`TensorMap`]: a tensor in GPU memory, and which part of it a tensor copy moves, as 128 bytes.
//! - [`Layout`]: where the levels of an array are in its one allocation, and how long that is.
//!
//! Programs can write anything where a descriptor should be: [`Descriptor::decode`] lets pass only what cannot make an access
//! compute an address outside the image that it describes, and the memory behind those addresses is for the caller to check,
//! as that of any load.
//!
//! Where the guide's formulas leave something open, textures give what an H200 was measured to give: how coordinates and weights
//! are rounded (in `coordinate`), what sums of each format are (in `filter`), levels of detail and lines (in `sample`). Of the
//! samples in `tests/hardware` all agree to the last bit but those of sRGB, of gradients, and 2 on the faces of cubes. Not
//! measured: images of more than 16 texels a side, texels that are no numbers, borders of integers, seamless cubes, offsets.
//!
//! The crate is pure: no I/O, no state, no unsafe code. Source: CUDA programming guide ("Texture and Surface Memory", "Texture
//! Fetching"), CUDA driver API (texture and surface objects, arrays), PTX ISA ("Texture Instructions", "Surface Instructions").

mod access;
mod coordinate;
mod cube;
mod descriptor;
mod filter;
mod layout;
mod object;
mod sample;
mod surface;
mod tensor;

pub use access::{Access, Boundary, Geometry, MAX_RESULTS, MAX_SOURCES, Memory, Mip, Query, Reduction, Refused};
pub use descriptor::{AddressMode, Descriptor, Filter, Format, Image, Malformed, Sampler};
pub use layout::{Layout, Level, MAX_LEVELS, Shape};
pub use object::Object;
pub use tensor::{MAX_RANK, NoTensorMap, Region, Swizzle, TensorElement, TensorMap};
