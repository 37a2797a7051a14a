//! Generators and oracles for tests and fuzz targets of the kernel engines.
//!
//! An engine under test is a closure ([`Engine`]) that runs a whole grid over one flat piece of global memory, so that the
//! interpreter ([`interpret`]) and a machine-code engine are checked with the same bodies:
//!
//! - [`ptx_case`]: `.ptx` files that say in comments how to run them and what comes out;
//! - [`generate`]: random, valid, terminating kernels whose result does not depend on the order of threads;
//! - [`forms`]: kernels of one computing instruction, and what hardware gave for them;
//! - [`shapes`]: kernels of a shape and a size; [`matrix`], [`image`]: kernels of one instruction on matrices, or on
//!   textures and surfaces;
//! - [`compare`]: one kernel on two engines, final memory bit by bit.
//!
//! Nothing here is part of the product.

mod diff;
pub mod forms;
pub mod generate;
pub mod image;
pub mod matrix;
pub mod ptx_case;
mod region;
pub mod shapes;
pub mod tensor;

pub use diff::{Difference, compare};
pub use region::{Region, interpret, interpret_preempted};

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Exception, Launch};

/// Runs a grid to its end over global memory `bytes`, whose first byte is at GPU virtual address `base` (a multiple of
/// 64 KiB, as is the length); nothing else is mapped. On return `bytes` holds what the grid left.
pub type Engine<'a> = dyn FnMut(&Arc<Kernel>, &Arc<Launch>, u64, &mut Vec<u8>) -> Result<(), Exception> + 'a;
