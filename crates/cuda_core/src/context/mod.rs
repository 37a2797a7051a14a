//! Contexts as programs know them: whole, current in a thread, primary.

pub(crate) mod current;
pub(crate) mod primary;
pub(crate) mod state;
