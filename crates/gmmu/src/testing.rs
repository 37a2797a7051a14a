//! Test support, not part of the product: memories of a guest and a host, and arbitrary bytes as a guest.
//!
//! [`guest`] and [`para_virtualized`] are bodies of a property test and of a fuzz target, each with its slow twin.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod attack;
mod driver;
pub mod memory;

pub use attack::{Attack, Input, guest, para_virtualized, tracked};
pub use driver::{Driver, LocalTables};
