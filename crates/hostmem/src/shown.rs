//! Pages of the program that show a memory file, and what a forked child gets in their place.
//!
//! They are mapped shared, so a child would write into its parent's memory: into the buffer, and into whatever else lies in
//! its first and last page. So every fork copies them, and the copies take their place in the child:
//!
//! ```text
//!   before the fork     copies are made, of the pages that are partly others' last of all
//!   in the child        each copy moves over its pages (mremap): nothing is allocated, no lock is taken
//!   in the parent       the copies are unmapped
//! ```
//! The copies are made before the fork, since afterwards the parent goes on writing while the child would copy. What other
//! threads write between copy and fork, the child does not see. Not reached: forks past the C library's handlers
//! (`_Fork`, `clone`), and pages in which the forking thread has its stack.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::{io, ptr};

use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::PAGE;
use crate::maps::shared_bytes;

/// Pages that show a memory file.
#[derive(Debug)]
struct Shown {
    first: usize,
    bytes: usize,
    /// Whether the program still has them there; it may have unmapped them.
    there: bool,
    /// Where their copy is while a fork is under way; null if it could not be made.
    copy: *mut c_void,
}

// SAFETY: the copy is used only by who holds the lock.
unsafe impl Send for Shown {}

static SHOWN: Mutex<Vec<Shown>> = Mutex::new(Vec::new());

/// Keeps the lock from before a fork until behind it, on both sides.
struct DuringFork(UnsafeCell<Option<MutexGuard<'static, Vec<Shown>>>>);

// SAFETY: only who holds the lock looks into it: the thread that forks, and what becomes of it in the child.
unsafe impl Sync for DuringFork {}

static DURING_FORK: DuringFork = DuringFork(UnsafeCell::new(None));

/// Whoever changes which pages show a file holds this, from before they change until they are listed or not listed: no fork
/// comes between.
pub(crate) struct List(MutexGuard<'static, Vec<Shown>>);

impl List {
    pub(crate) fn lock() -> List {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the handlers do, in the child, only what is safe there. Failing means no memory for a few words.
            let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        });
        List(SHOWN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes room, so that [`List::add`] need not.
    pub(crate) fn reserve(&mut self) {
        self.0.reserve(1);
    }

    pub(crate) fn add(&mut self, first: usize, bytes: usize) {
        self.0.push(Shown { first, bytes, there: false, copy: ptr::null_mut() });
    }

    pub(crate) fn remove(&mut self, first: usize) {
        self.0.retain(|shown| shown.first != first);
    }
}

impl Shown {
    fn pages(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.first)
    }

    /// Copies a part to the copy.
    fn copy_part(&self, at: usize, bytes: usize) {
        if self.there && !self.copy.is_null() {
            let from = self.pages().cast_const().cast::<u8>().wrapping_add(at);
            let to = self.copy.cast::<u8>().wrapping_add(at);
            // SAFETY: both are mapped, and have at least so many bytes behind `at`.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }
}

/// Fresh private memory; null if there is none.
fn fresh(bytes: usize) -> *mut c_void {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let made: io::Result<_> =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }.map_err(Into::into);
    made.unwrap_or(ptr::null_mut())
}

extern "C" fn before() {
    let mut list = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let page = PAGE as usize;
    for shown in &mut *list {
        let whole = shared_bytes(shown.first..shown.first + shown.bytes).map(|shared| shared == shown.bytes);
        shown.there = whole.unwrap_or(true);
        shown.copy = if shown.there { fresh(shown.bytes) } else { ptr::null_mut() };
        shown.copy_part(0, shown.bytes);
    }
    // The pages that are partly others', once more: theirs may be what an allocator keeps.
    for shown in &*list {
        shown.copy_part(0, page);
        shown.copy_part(shown.bytes - page, page);
    }
    // SAFETY: the lock is held.
    unsafe { *DURING_FORK.0.get() = Some(list) };
}

extern "C" fn in_parent() {
    // SAFETY: the lock is held, since `before`.
    let Some(mut list) = (unsafe { (*DURING_FORK.0.get()).take() }) else { return };
    for shown in &mut *list {
        if !shown.copy.is_null() {
            // SAFETY: made by `before`, and known to nobody else.
            let _ = unsafe { rustix::mm::munmap(shown.copy, shown.bytes) };
        }
        shown.copy = ptr::null_mut();
    }
}

extern "C" fn in_child() {
    // SAFETY: the lock is held, since `before`, by the thread that this one was.
    let Some(mut list) = (unsafe { (*DURING_FORK.0.get()).take() }) else { return };
    for shown in list.iter().filter(|shown| shown.there) {
        let moved = !shown.copy.is_null() && {
            // SAFETY: the copy is known to nobody else; the pages it replaces have its content.
            unsafe {
                rustix::mm::mremap_fixed(shown.copy, shown.bytes, shown.bytes, MremapFlags::MAYMOVE, shown.pages())
            }
            .is_ok()
        };
        if !moved {
            // Rather no memory than the parent's: mostly the child is about to become another program.
            // SAFETY: the pages are the parent's; a child that uses them nevertheless is ended by the kernel.
            let _ = unsafe { rustix::mm::mprotect(shown.pages(), shown.bytes, MprotectFlags::empty()) };
        }
    }
    // None shows a file here. The list's own memory stays: nothing is freed in a handler.
    list.clear();
}
