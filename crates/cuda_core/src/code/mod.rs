//! Code: found in images, loaded when it is needed.
//!
//! [`fatbin`] finds PTX [`text`]s in an image, [`objects`] in object files and libraries; [`linker`] makes one of several.
//! [`entry_names`] finds what is in them without reading them whole. A [`library`] becomes a [`module`] in each context that
//! uses it; [`function`]s are its kernels. [`managed_variables`] lie in memory of this process before the text is loaded.
//! Of images without PTX [`foreign`] says what they hold, and [`pytorch`] has some of their kernels.

mod entry_names;
pub mod fatbin;
mod foreign;
pub(crate) mod function;
pub(crate) mod library;
pub(crate) mod linker;
mod managed_variables;
pub(crate) mod module;
pub mod objects;
pub(crate) mod occupancy;
mod pytorch;
pub(crate) mod text;
