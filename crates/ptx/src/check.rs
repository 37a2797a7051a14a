//! What somebody who checks kernels is told while the interpreter runs them, and what he may refuse.
//!
//! The interpreter knows threads, lines and addresses; which memory is allocated or was written, and what becomes of a report, is the
//! checker's affair.

use crate::ir::Kernel;
use crate::launch::{Access, AccessError, Exception};

/// Who does something, and where in the text.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Line of the instruction in the module's text; 0 if unknown.
    pub line: u32,
    /// Unique number of the grid.
    pub grid_id: u64,
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// The CTA.
    pub ctaid: [u32; 3],
    /// The thread in it, x fastest.
    pub thread: u32,
    /// Shared memory of the CTA, bytes.
    pub shared_bytes: u64,
}

impl Site<'_> {
    /// Position of a thread of the CTA.
    #[must_use]
    pub fn tid(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.block.map(|side| side.max(1));
        [thread % x, thread / x % y, thread / x / y]
    }
}

/// Which of two accesses to the same shared memory came later, and what it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HazardKind {
    /// Both write, and not the same.
    WriteAfterWrite,
    /// What is read was written by the other.
    ReadAfterWrite,
    /// What is written was read by the other.
    WriteAfterRead,
}

/// Two accesses of threads of a CTA to the same byte of shared memory, with nothing that orders them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hazard {
    /// Of which kind.
    pub kind: HazardKind,
    /// Offset of the byte in the CTA's shared memory.
    pub offset: u64,
    /// Line of the earlier access.
    pub line: u32,
    /// The thread that made it.
    pub thread: u32,
}

/// Somebody who checks kernels. Called by all threads that run some, for each access.
pub trait Checker: std::fmt::Debug + Send + Sync {
    /// Whether hazards in shared memory are looked for.
    fn wants_hazards(&self) -> bool;

    /// An access to global memory is about to be made, aligned.
    ///
    /// # Errors
    /// Why it must not be: the thread fails with that, of which [`Checker::failed`] is told.
    fn access(&self, site: &Site<'_>, access: Access, address: u64, bytes: u32) -> Result<(), AccessError>;

    /// A thread has failed; `bytes` is the size of the access, if it is one. All lanes that execute the instruction do so before
    /// the launch ends.
    fn failed(&self, site: &Site<'_>, exception: Exception, bytes: u32);

    /// A hazard, at the later access.
    fn hazard(&self, site: &Site<'_>, hazard: &Hazard);
}
