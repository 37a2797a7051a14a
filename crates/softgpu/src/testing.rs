//! Test support, not part of the product: a small driver, and the body of a fuzz target.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![expect(missing_docs, reason = "named for what they do to the device")]

pub mod fuzz;
pub mod mini;
