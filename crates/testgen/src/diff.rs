//! One kernel on two engines.

use std::fmt;
use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Exception, Launch};

use crate::Engine;

/// How two engines disagreed.
#[derive(Clone, PartialEq, Debug)]
pub enum Difference {
    /// They ended differently.
    End {
        /// The first engine's end.
        a: Result<(), Exception>,
        /// The second's.
        b: Result<(), Exception>,
    },
    /// The memory they left differs.
    Memory {
        /// GPU virtual address of the first aligned word that differs.
        address: u64,
        /// The word that the first engine left.
        a: u32,
        /// The second's.
        b: u32,
        /// How many words differ.
        words: usize,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::End { a, b } => write!(f, "the engines end with {a:?} and {b:?}"),
            Difference::Memory { address, a, b, words } => {
                write!(f, "{words} words differ, the first at {address:#x}: {a:#010x} and {b:#010x}")
            }
        }
    }
}

/// Runs `kernel` over copies of `memory` on both engines and compares how they end and, if both end well, all of memory
/// bit by bit.
///
/// # Errors
/// The difference.
pub fn compare(
    kernel: &Arc<Kernel>,
    launch: &Arc<Launch>,
    base: u64,
    memory: &[u8],
    engine_a: &mut Engine<'_>,
    engine_b: &mut Engine<'_>,
) -> Result<(), Difference> {
    let (mut left, mut right) = (memory.to_vec(), memory.to_vec());
    let a = engine_a(kernel, launch, base, &mut left);
    let b = engine_b(kernel, launch, base, &mut right);
    let same_end = match (a, b) {
        // Which thread meets its error first is the engine's choice.
        (Err(a), Err(b)) => std::mem::discriminant(&a) == std::mem::discriminant(&b),
        (a, b) => a == b,
    };
    if !same_end {
        return Err(Difference::End { a, b });
    }
    if a.is_err() {
        return Ok(());
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |w, &b| w << 8 | u32::from(b));
    let mut differing = left.chunks(4).zip(right.chunks(4)).enumerate().filter(|(_, (a, b))| a != b);
    let Some((index, (a, b))) = differing.next() else { return Ok(()) };
    let (a, b) = (word(a), word(b));
    Err(Difference::Memory { address: base + 4 * index as u64, a, b, words: 1 + differing.count() })
}
