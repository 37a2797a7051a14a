//! Running compiled CTAs.

pub(crate) mod arena;
pub(crate) mod barrier;
pub(crate) mod cluster;
pub(crate) mod cta;
pub(crate) mod helpers;
pub(crate) mod image;
pub(crate) mod joint;
pub(crate) mod matrix;
pub(crate) mod site;
pub(crate) mod stack;
mod store;
mod transfer;
pub(crate) mod trap;
