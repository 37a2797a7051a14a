//! Contexts as programs know them: whole, current in a thread, primary, green.

pub(crate) mod current;
pub(crate) mod green;
pub(crate) mod primary;
pub(crate) mod state;
