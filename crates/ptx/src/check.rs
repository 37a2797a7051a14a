//! What somebody who checks kernels is told while the interpreter runs them, and what he may refuse.
//!
//! The interpreter knows threads, lines and addresses; which memory is allocated or was written, and what becomes of a report, is the
//! checker's affair.

use std::sync::Arc;

use crate::ir::Kernel;
use crate::launch::{Access, AccessError, Exception};

/// Who does something, and where in the text.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The module's text, if it is known.
    pub text: Option<&'a str>,
    /// Line of the instruction in it; 0 if unknown.
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

/// A checker of a launch.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Who checks.
    pub checker: Arc<dyn Checker>,
    /// The module's text, if it is known.
    pub text: Option<Arc<str>>,
}

/// Place in a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine<'a> {
    /// As the compiler was given it.
    pub file: &'a str,
    /// From 1.
    pub line: u32,
}

/// Where in the source the instruction at a line of PTX comes from, if the text says so: by the `.loc` before it, in the same function.
/// Of what was inlined, the innermost place.
#[must_use]
pub fn source_line(text: &str, line: u32) -> Option<SourceLine<'_>> {
    let before = usize::try_from(line).ok()?.checked_sub(1)?;
    let mut found = None;
    for at in text.lines().take(before) {
        let at = at.trim_start();
        if let Some(place) = at.strip_prefix(".loc") {
            found = numbers(place);
        } else if ends_function(at) {
            found = None;
        }
    }
    let (file, line) = found?;
    let named = |at: &&str| {
        let mut words = at.trim_start().strip_prefix(".file").map(str::split_whitespace).into_iter().flatten();
        words.next().and_then(|number| number.parse().ok()) == Some(file)
    };
    let file = text.lines().find(named)?.split('"').nth(1)?;
    (line > 0).then_some(SourceLine { file, line })
}

/// Whether a function, or what is between two, begins at a line.
fn ends_function(line: &str) -> bool {
    let words = [".entry", ".func", ".visible", ".weak", ".extern", ".common"];
    line.starts_with('}') || words.iter().any(|word| line.split_whitespace().next() == Some(word))
}

/// File and line of a `.loc`.
fn numbers(place: &str) -> Option<(u32, u32)> {
    let mut words = place.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.trim_end_matches(',').parse().ok()?))
}
