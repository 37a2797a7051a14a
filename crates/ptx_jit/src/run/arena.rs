//! Memory and stacks of CTAs, kept for the next one.

use corosensei::stack::DefaultStack;
use parking_lot::Mutex;

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Line(#[expect(dead_code, reason = "accessed through raw pointers only")] [u8; 64]);

/// Bytes for a CTA, aligned to cache lines.
#[derive(Debug)]
pub(crate) struct Arena {
    lines: Vec<Line>,
}

/// Stack of a CTA, bytes.
const STACK_BYTES: usize = 256 << 10;
/// Arenas and stacks kept.
const KEPT: usize = 64;
/// Larger arenas are not kept.
const KEPT_BYTES: usize = 8 << 20;

static ARENAS: Mutex<Vec<Arena>> = Mutex::new(Vec::new());
static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

impl Arena {
    /// At least `bytes` of memory with unspecified content (zero, or of an earlier CTA); fails if the host has no more.
    pub(crate) fn take(bytes: usize) -> std::io::Result<Arena> {
        let lines = bytes.div_ceil(64);
        {
            let mut kept = ARENAS.lock();
            if let Some(at) = kept.iter().rposition(|a| a.lines.len() >= lines) {
                return Ok(kept.swap_remove(at));
            }
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(lines)?;
        memory.resize(lines, Line([0; 64]));
        Ok(Arena { lines: memory })
    }

    /// Its first byte.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Keeps it for another CTA.
    pub(crate) fn give_back(self) {
        if self.lines.len() * 64 > KEPT_BYTES {
            return;
        }
        let mut kept = ARENAS.lock();
        if kept.len() >= KEPT {
            kept.swap_remove(0);
        }
        kept.push(self);
    }
}

/// A stack for a CTA.
pub(crate) fn take_stack() -> std::io::Result<DefaultStack> {
    let kept = STACKS.lock().pop();
    kept.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)
}

/// Keeps a stack for another CTA.
pub(crate) fn give_back_stack(stack: DefaultStack) {
    let mut kept = STACKS.lock();
    if kept.len() < KEPT {
        kept.push(stack);
    }
}
