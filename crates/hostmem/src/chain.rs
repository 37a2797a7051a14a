//! Handlers of SIGSEGV, one behind the other.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::thread::futex;

/// What a handler is called with: signal, what happened, the processor's state.
pub type FaultHandler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Faults that can be passed on at once to handlers that may pass them back.
const SLOTS: usize = 16;

/// Handlers of chains that are in front of all others', the first to be asked at the end. Each passes on to the one before it.
/// Held while one is put there: two at once would both replace the same one, and one of them would be lost.
static IN_FRONT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The place of a handler among those of the process: it is asked first, and passes on to whoever was there before what is
/// not its own. A process has few; each is a static.
#[derive(Debug)]
pub struct Chain {
    handler: FaultHandler,
    /// Whom it replaced the first time.
    first: AtomicPtr<libc::sigaction>,
    /// Whom it replaced the last time: others may have come since, and may pass on to this one.
    last: AtomicPtr<libc::sigaction>,
    /// Faults that `last` is asked about.
    asked: [AtomicUsize; SLOTS],
}

impl Chain {
    /// The place of `handler`, which must be async-signal-safe and pass on what is not its own.
    #[must_use]
    pub const fn new(handler: FaultHandler) -> Chain {
        Chain {
            handler,
            first: AtomicPtr::new(ptr::null_mut()),
            last: AtomicPtr::new(ptr::null_mut()),
            asked: [const { AtomicUsize::new(0) }; SLOTS],
        }
    }

    /// Makes sure that the handler is asked: makes it the first, unless only others of this kind are in front of it, who pass on
    /// what is not theirs.
    pub fn install(&self) {
        let mut in_front = IN_FRONT.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: an all-zero sigaction is a valid one.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks only.
        unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) };
        if in_front.last() != Some(&before.sa_sigaction) {
            in_front.clear();
        }
        if in_front.contains(&(self.handler as usize)) {
            return;
        }
        // Never freed: a fault may be on its way through it. There is one for every time that somebody else came first.
        let before = Box::into_raw(Box::new(before));
        // Before the first fault comes.
        self.last.store(before, Ordering::Release);
        let _ = self.first.compare_exchange(ptr::null_mut(), before, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: an all-zero sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = self.handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the structure is valid, and the handler async-signal-safe.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
        in_front.push(action.sa_sigaction);
    }

    /// Passes a fault on, from inside the handler.
    ///
    /// # Safety
    /// The arguments are those that the kernel called the handler with.
    pub unsafe fn pass_on(&self, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let (first, last) = (self.first.load(Ordering::Acquire), self.last.load(Ordering::Acquire));
        if first == last {
            return call(last, signal, info, context);
        }
        // SAFETY: the kernel passes a valid siginfo.
        let fault = unsafe { &*info };
        // SAFETY: of a fault; else the value means nothing, and is only compared.
        let address = unsafe { fault.si_addr() }.addr();
        let fault = context.addr().rotate_left(32) ^ address | 1;
        if self.asked.iter().any(|slot| slot.load(Ordering::Relaxed) == fault) {
            // It has come back.
            return call(first, signal, info, context);
        }
        let free = |slot: &&AtomicUsize| slot.compare_exchange(0, fault, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let slot = self.asked.iter().find(free);
        call(last, signal, info, context);
        if let Some(slot) = slot {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

/// Does what an action says.
fn call(action: *const libc::sigaction, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: null, or an action that is never freed.
    let action = unsafe { action.as_ref() };
    let handler = action.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the kernel passes a valid siginfo.
        let sent = unsafe { (*info).si_code } <= 0;
        if sent && handler == libc::SIG_IGN {
            return;
        }
        // Back to the default: the faulting instruction runs again and ends the process as it would have.
        // SAFETY: the default action is valid for every signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        if sent {
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    if action.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: with SA_SIGINFO the field holds such a function.
        let handler = unsafe { std::mem::transmute::<usize, FaultHandler>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the field holds such a function.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
        handler(signal);
    }
}

/// Asks the kernel whether a byte can be written, by adding nothing to the word around it: a handler asks when the page may
/// have become writable since the fault. Async-signal-safe.
#[must_use]
pub fn is_writable(address: usize) -> bool {
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    let word: *mut u32 = ptr::with_exposed_provenance_mut(address & !3);
    // SAFETY: never accessed here; the kernel answers an error where there is no memory.
    let word = unsafe { AtomicU32::from_ptr(word) };
    let (op, compare) = (futex::WakeOp::Add, futex::WakeOpCmp::Eq);
    // The comparison, which decides whether sleepers at the word are woken, mostly fails; a wake too many does no harm.
    futex::wake_op(&NOBODY, futex::Flags::PRIVATE, 0, 0, word, op, compare, 0, 0x555).is_ok()
}
