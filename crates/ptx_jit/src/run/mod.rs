//! Running compiled CTAs.

pub(crate) mod arena;
pub(crate) mod barrier;
pub(crate) mod context;
pub(crate) mod cta;
pub(crate) mod helpers;
pub(crate) mod joint;
mod store;
pub(crate) mod trap;
