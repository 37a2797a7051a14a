//! Guests that mean no good.
//!
//! A guest of a virtual GPU has its registers, its memory and a socket. [`Rogue`] is a driver over these that writes by hand
//! what a driver would: page tables, instance blocks, runlists, commands, hypercalls; right ones, so that work of it reaches
//! the engines, and wrong ones. On it stand
//!
//! - [`Storm`]: whatever comes to its mind, beside a thread that spoils tables meanwhile. Much of what it submits is right, or
//!   was before a few words were changed; what of it ran the device's counters tell ([`Had`]).
//! - [`Deed`]: one kind of hostility at a time, on and on.
//!
//! Tests of the mediator drive these inside one process, `cargo xtask attack` from processes of their own. Nothing here
//! judges: who watches the victims does.

mod deeds;
mod dice;
mod driver;
mod port;
mod storm;
pub mod work;

pub use deeds::{Came, Deed};
pub use dice::Dice;
pub use driver::{Channel, FREE_VA, Had, LO, Lent, Rogue, VRAM_VA, WINDOW};
pub use port::Port;
pub use storm::Storm;
