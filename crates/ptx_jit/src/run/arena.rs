//! Memory and stacks of CTAs, kept for the next one.

use std::alloc::Layout;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::stack::{CtaStack, STACK_BYTES};

/// A cache line, bytes.
const LINE: usize = 64;

/// Bytes for a CTA, aligned to cache lines.
#[derive(Debug)]
pub(crate) struct Arena {
    /// A line more than can be used: the first may be aligned to less.
    memory: Vec<u128>,
}

/// Arenas kept by a kernel's code, and as many stacks.
const KEPT: usize = 16;
/// Bytes of arenas and stacks kept by all code together.
const KEPT_BYTES: usize = 64 << 20;

/// Bytes that are kept.
static KEPT_NOW: AtomicUsize = AtomicUsize::new(0);
/// Counts uses.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// What keeps something, with few that have nothing just now. Locked before any [`Shelf::kept`].
static SHELVES: Mutex<Vec<Arc<Shelf>>> = Mutex::new(Vec::new());

/// Memory and stacks that the CTAs of one kernel have used, for its next ones. What they hold is their tenant's, so nobody
/// else's code gets it; it is given back with the code, or when others are to keep something and there is no room: what has
/// not been used for longest goes first. So kernels that ran once, whoever's they are, keep nothing from the rest for long.
#[derive(Default)]
pub(crate) struct Spare(Arc<Shelf>);

#[derive(Default)]
struct Shelf {
    kept: Mutex<Kept>,
    /// [`CLOCK`] when something was taken or put there last.
    used: AtomicU64,
    /// It is in [`SHELVES`], or about to be.
    listed: AtomicBool,
}

#[derive(Default)]
struct Kept {
    arenas: Vec<Arena>,
    stacks: Vec<CtaStack>,
}

impl Spare {
    /// At least `bytes` of memory with unspecified content (zero, or of an earlier CTA); fails if the host has no more.
    pub(crate) fn arena(&self, bytes: usize) -> io::Result<Arena> {
        {
            let mut kept = self.0.kept.lock();
            if let Some(at) = kept.arenas.iter().rposition(|arena| arena.bytes() >= bytes) {
                let arena = kept.arenas.swap_remove(at);
                KEPT_NOW.fetch_sub(arena.bytes(), Ordering::Relaxed);
                return Ok(arena);
            }
        }
        Arena::new(bytes)
    }

    /// A stack for a CTA.
    pub(crate) fn stack(&self) -> io::Result<CtaStack> {
        self.0.touch();
        let Some(stack) = self.0.kept.lock().stacks.pop() else { return CtaStack::new() };
        KEPT_NOW.fetch_sub(STACK_BYTES, Ordering::Relaxed);
        Ok(stack)
    }

    /// Keeps an arena for another CTA, if there is room.
    pub(crate) fn keep_arena(&self, arena: Arena) {
        self.keep(arena, Arena::bytes, |kept| &mut kept.arenas);
    }

    /// The same for a stack.
    pub(crate) fn keep_stack(&self, stack: CtaStack) {
        self.keep(stack, |_| STACK_BYTES, |kept| &mut kept.stacks);
    }

    fn keep<T>(&self, thing: T, bytes: impl Fn(&T) -> usize, list: impl Fn(&mut Kept) -> &mut Vec<T>) {
        let bytes = bytes(&thing);
        if list(&mut self.0.kept.lock()).len() >= KEPT || !self.make_room(bytes) {
            return;
        }
        self.0.touch();
        list(&mut self.0.kept.lock()).push(thing);
        // Whoever empties it marks it first: what is put there later is found again.
        if !self.0.listed.swap(true, Ordering::AcqRel) {
            SHELVES.lock().push(Arc::clone(&self.0));
        }
    }

    /// Counts so many bytes as kept, once others have given back what is too much; false if it is too much alone.
    fn make_room(&self, bytes: usize) -> bool {
        loop {
            if KEPT_NOW.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BYTES {
                return true;
            }
            KEPT_NOW.fetch_sub(bytes, Ordering::Relaxed);
            if bytes > KEPT_BYTES || !self.empty_another() {
                return false;
            }
        }
    }

    /// Gives back what other code keeps and has not used for longest; false if there is none.
    fn empty_another(&self) -> bool {
        let mut shelves = SHELVES.lock();
        let others = shelves.iter().enumerate().filter(|(_, shelf)| !Arc::ptr_eq(shelf, &self.0));
        let Some((at, _)) = others.min_by_key(|(_, shelf)| shelf.used.load(Ordering::Relaxed)) else { return false };
        let shelf = shelves.swap_remove(at);
        shelf.listed.store(false, Ordering::Release);
        drop(shelves);
        shelf.empty();
        true
    }
}

impl Shelf {
    fn touch(&self) {
        self.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn empty(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        let arenas: usize = kept.arenas.iter().map(Arena::bytes).sum();
        KEPT_NOW.fetch_sub(arenas + kept.stacks.len() * STACK_BYTES, Ordering::Relaxed);
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        SHELVES.lock().retain(|shelf| !Arc::ptr_eq(shelf, &self.0));
        self.0.empty();
    }
}

impl Arena {
    /// At least `bytes` of memory, zero; fails if the host has no more.
    fn new(bytes: usize) -> io::Result<Arena> {
        let count = (bytes + LINE).div_ceil(size_of::<u128>());
        let layout = Layout::array::<u128>(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Of much memory, the operating system's pages are zero already, and come when they are touched.
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: allocated with the layout that a vector of `count` has, and all of it is initialized.
        let memory = unsafe { Vec::from_raw_parts(memory.cast::<u128>(), count, count) };
        Ok(Arena { memory })
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.memory) - LINE
    }

    /// Its first byte.
    pub(crate) fn base(&mut self) -> *mut u8 {
        let first: *mut u8 = self.memory.as_mut_ptr().cast();
        let skip = first.align_offset(LINE);
        // SAFETY: less than a line, of which there is one more.
        unsafe { first.add(skip) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test of this process that keeps this much: others keep some megabytes.
    #[test]
    fn what_has_not_been_used_for_longest_makes_room() {
        let large = KEPT_BYTES / 8;
        let holds = |spare: &Spare| spare.0.kept.lock().arenas.len();
        let codes: Vec<Spare> = (0..4).map(|_| Spare::default()).collect();
        for code in &codes[..2] {
            for _ in 0..3 {
                code.keep_arena(Arena::new(large).unwrap());
            }
        }
        // The first is used again, so the second is the older.
        let again = codes[0].arena(large).unwrap();
        codes[0].keep_arena(again);
        for _ in 0..4 {
            codes[2].keep_arena(Arena::new(large).unwrap());
        }
        assert_eq!(codes.iter().map(holds).collect::<Vec<_>>(), [3, 0, 4, 0]);
        // What is too much alone is not kept, and nobody goes for it.
        codes[3].keep_arena(Arena::new(KEPT_BYTES + 1).unwrap());
        assert_eq!(codes.iter().map(holds).collect::<Vec<_>>(), [3, 0, 4, 0]);
        // One code does not take its own away.
        drop(codes);
        let (one, other) = (Spare::default(), Spare::default());
        other.keep_stack(CtaStack::new().unwrap());
        for _ in 0..10 {
            one.keep_arena(Arena::new(large).unwrap());
        }
        assert!((6..=8).contains(&holds(&one)), "{}", holds(&one));
        assert!(SHELVES.lock().iter().all(|shelf| !Arc::ptr_eq(shelf, &other.0)));
    }
}
