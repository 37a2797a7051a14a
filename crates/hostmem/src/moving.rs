//! Pages of a program that move into other memory, under the hands of its threads.
//!
//! ```text
//!   the one who moves                          a thread that writes
//!   ─────────────────                          ────────────────────
//!   pages read-only (mprotect)
//!   content copied to new pages                fault: the handler sees that its address is being moved,
//!   new pages in their place (mremap,          and waits (futex)
//!     at once, and writable)
//!   "it is over" (futex)                       the instruction runs again, on the new pages
//! ```
//!
//! So no write is lost, and reads never notice. The handler allocates nothing and takes no lock, since the thread may be
//! anywhere, in the allocator too; and whoever moves pages does neither between the first step and the last, since the
//! waiting thread may hold the lock it would want.
//!
//! What this does not reach:
//! - The kernel gets no handler: a system call that would write to the pages in that moment answers `EFAULT`.
//! - Threads that wait on a futex there stay there, if it is a private one. One shared between processes is told by its
//!   memory, which is another now: who waits on it is not woken.
//! - Memory on which the calling thread, or the first thread of the process, has its stack is moved without the protection,
//!   and so is all memory as long as some thread has SIGSEGV blocked: the kernel would end the process. There, what others
//!   write in that moment may be lost. Stacks of other threads must not be moved while they run.
//!
//! Forks through the C library wait until no pages move (the module `shown`). A child that is forked past it, in that moment,
//! finds the pages read-only, and nobody who will ever change that: the handler makes them writable for it.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::mm::{MprotectFlags, MremapFlags};
use rustix::thread::futex;

use crate::chain::{Chain, is_writable};

/// One at a time.
static MOVER: Mutex<()> = Mutex::new(());
/// Odd while pages move.
static TURN: AtomicU32 = AtomicU32::new(0);
/// First address of the pages that move, and the one behind them.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The process that moves them.
static PROCESS: AtomicU32 = AtomicU32::new(0);

static CHAIN: Chain = Chain::new(on_fault);

/// Puts the pages of the private mapping `fresh` in the place of those at `first`, with their content. Both have `bytes`,
/// whole pages; on success `fresh` is no mapping any more.
///
/// # Errors
/// What the operating system says; the pages at `first` are writable then, and otherwise as they were.
///
/// # Safety
/// `fresh` is a mapping that nobody else uses, readable and writable. The pages at `first` are the program's, which expects
/// them to become writable; nobody holds a Rust reference to them.
pub(crate) unsafe fn replace(first: *mut u8, fresh: *mut u8, bytes: usize) -> io::Result<()> {
    let guard = MOVER.lock().unwrap_or_else(PoisonError::into_inner);
    let range = first.addr()..first.addr() + bytes;
    let protected = may_wait(&range);
    if protected {
        CHAIN.install();
        START.store(range.start, Ordering::Relaxed);
        END.store(range.end, Ordering::Relaxed);
        PROCESS.store(process(), Ordering::Relaxed);
        TURN.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: as the caller promises.
    let moved = unsafe { step_by_step(first, fresh, bytes, protected) };
    if protected {
        TURN.fetch_add(1, Ordering::SeqCst);
        // Failing means that nobody waits.
        let _ = futex::wake(&TURN, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
    drop(guard);
    Ok(moved?)
}

/// The steps, between which nothing is allocated and no lock is taken.
///
/// # Safety
/// As [`replace`].
unsafe fn step_by_step(first: *mut u8, fresh: *mut u8, bytes: usize, protected: bool) -> rustix::io::Result<()> {
    let protect = |flags| {
        // SAFETY: the program's pages; who writes to them meanwhile waits.
        unsafe { rustix::mm::mprotect(first.cast(), bytes, flags) }
    };
    let writable = MprotectFlags::READ | MprotectFlags::WRITE;
    let done = if protected { protect(MprotectFlags::READ) } else { Ok(()) };
    let done = done.and_then(|()| {
        // SAFETY: both are mapped and readable, and `fresh` is another mapping.
        unsafe { ptr::copy_nonoverlapping(first.cast_const(), fresh, bytes) };
        // SAFETY: the pages moved in have the content of those they replace, and allow more; nobody else knows `fresh`.
        unsafe { rustix::mm::mremap_fixed(fresh.cast(), bytes, bytes, MremapFlags::MAYMOVE, first.cast()) }.map(drop)
    });
    if done.is_err() && protected {
        // Some of it may be no memory; the rest is writable again.
        let _ = protect(writable);
    }
    done
}

fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// `SEGV_ACCERR`: there is a page, which does not allow the access.
    const NOT_ALLOWED: libc::c_int = 2;
    /// Bit of the page fault's error code: it was a write.
    const WRITE: i64 = 2;
    // SAFETY: the kernel passes a valid siginfo.
    let fault = unsafe { &*info };
    // SAFETY: of a fault; else the code is another one.
    let address = unsafe { fault.si_addr() }.addr();
    let state: *const libc::ucontext_t = context.cast_const().cast();
    // SAFETY: the kernel passes a valid context.
    let error = unsafe { &*state }.uc_mcontext.gregs[libc::REG_ERR as usize];
    if fault.si_code == NOT_ALLOWED && error & WRITE != 0 && wait_until_writable(address) {
        return;
    }
    // SAFETY: what the kernel passed.
    unsafe { CHAIN.pass_on(signal, info, context) };
}

/// Waits while the page of `address` moves; true if it can be written now.
fn wait_until_writable(address: usize) -> bool {
    loop {
        let turn = TURN.load(Ordering::SeqCst);
        let range = START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
        if turn % 2 == 1 && range.contains(&address) {
            if PROCESS.load(Ordering::Relaxed) == process() {
                let _ = futex::wait(&TURN, futex::Flags::PRIVATE, turn, None);
                continue;
            }
            // A child, forked meanwhile: its pages are its own, with all their content.
            let first: *mut c_void = ptr::with_exposed_provenance_mut(range.start);
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: nobody moves these pages; they were writable, or were to be.
            return unsafe { rustix::mm::mprotect(first, range.end - range.start, flags) }.is_ok();
        }
        // The fault may be older than the end of the turn, or two.
        if is_writable(address) {
            return true;
        }
        if TURN.load(Ordering::SeqCst) == turn {
            return false;
        }
    }
}

/// Can threads that write to the range be made to wait, this one not being among them?
fn may_wait(range: &Range<usize>) -> bool {
    /// Frames of what is called while the pages move, below; and of what waits for that, above.
    const FRAMES: (usize, usize) = (64 << 10, 4 << 10);
    /// What the kernel writes to when it likes (`rseq`) lies before a thread's descriptor, or in it.
    const DESCRIPTOR: (usize, usize) = (4 << 10, 2464);
    let reaches = |at: usize, (below, above)| range.start < at + above && at - below < range.end;
    let here = 0_u8;
    let descriptor: usize;
    // SAFETY: on x86-64 Linux the first word of a thread's descriptor is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) descriptor, options(nostack, readonly, preserves_flags));
    }
    !reaches((&raw const here).addr(), FRAMES)
        && !reaches(descriptor, DESCRIPTOR)
        && first_stack().is_some_and(|stack| range.end <= stack.start || stack.end <= range.start)
        && nobody_blocks_faults().unwrap_or(false)
}

/// Addresses of the stack that the process began with, grown as far as it is.
fn first_stack() -> Option<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// Signals that threads have blocked; bit 0 is signal 1.
#[derive(Clone, Copy)]
struct Blocked(u64);

impl Blocked {
    fn has(self, signal: libc::c_int) -> bool {
        self.0 >> (signal - 1) & 1 != 0
    }

    /// The C library blocks its own signals, too, in threads that begin, end or fork: for a moment. Programs cannot.
    fn for_a_moment(self) -> bool {
        const ITS_OWN: libc::c_int = 32;
        self.has(ITS_OWN)
    }
}

/// True if every thread of the process would get its faults; waits for those that will in a moment.
fn nobody_blocks_faults() -> io::Result<bool> {
    /// New threads wait for a processor, and there may be many.
    const LONG: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_micros(200);
    let start = Instant::now();
    while let Some(blocked) = find_blocked_faults()? {
        if !blocked.for_a_moment() || start.elapsed() > LONG {
            return Ok(false);
        }
        std::thread::sleep(MOMENT);
    }
    Ok(true)
}

/// What a thread has blocked that has SIGSEGV blocked, if there is one.
fn find_blocked_faults() -> io::Result<Option<Blocked>> {
    let mut found = None;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) else {
            // It has just ended.
            continue;
        };
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let blocked = Blocked(blocked.ok_or(io::ErrorKind::InvalidData)?);
        if blocked.has(libc::SIGSEGV) {
            found = Some(blocked);
            if !blocked.for_a_moment() {
                break;
            }
        }
    }
    Ok(found)
}
