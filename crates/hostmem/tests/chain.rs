//! Handlers of faults, of ours and of others, in one process.
#![expect(unsafe_code, reason = "tests of signals")]

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use hostmem::{Chain, FaultHandler, PAGE, is_writable};

static FIRST: Chain = Chain::new(first);
static SECOND: Chain = Chain::new(second);
/// Digits of who was asked, in order.
static ASKED: AtomicU32 = AtomicU32::new(0);

fn asked(who: u32) {
    let _ = ASKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(before * 10 + who));
}

extern "C" fn first(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    asked(1);
    // SAFETY: what the kernel passed.
    unsafe { FIRST.pass_on(signal, info, context) };
}

extern "C" fn second(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    asked(2);
    // SAFETY: what the kernel passed.
    unsafe { SECOND.pass_on(signal, info, context) };
}

/// Somebody else's, which passes nothing on.
extern "C" fn foreign(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    asked(9);
    // SAFETY: the kernel passes a valid siginfo.
    let info = unsafe { &*info };
    // SAFETY: it is that of a fault, which has an address.
    let address = unsafe { info.si_addr() };
    // SAFETY: the page of the test.
    unsafe { libc::mprotect(address, PAGE as usize, libc::PROT_READ | libc::PROT_WRITE) };
}

fn install_foreign() {
    // SAFETY: an all-zero sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: FaultHandler = foreign;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) }, 0);
}

/// Who is asked about a write to a page that cannot be written.
fn who_is_asked() -> u32 {
    let bytes = PAGE as usize;
    // SAFETY: fresh memory, which nobody else knows.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    assert!(!is_writable(page.addr()));
    ASKED.store(0, Ordering::Relaxed);
    // SAFETY: that page; the write goes through when the handlers have been asked.
    unsafe { page.cast::<u8>().write_volatile(1) };
    assert!(is_writable(page.addr()));
    // SAFETY: that page, which nobody uses any more.
    unsafe { libc::munmap(page, bytes) };
    assert!(!is_writable(page.addr()));
    ASKED.load(Ordering::Relaxed)
}

#[test]
fn each_is_asked_in_its_turn() {
    install_foreign();
    FIRST.install();
    assert_eq!(who_is_asked(), 19);
    SECOND.install();
    assert_eq!(who_is_asked(), 219);
    // Both are asked already; nobody moves.
    for _ in 0..3 {
        FIRST.install();
        SECOND.install();
        assert_eq!(who_is_asked(), 219);
    }
    // Somebody comes in front.
    install_foreign();
    assert_eq!(who_is_asked(), 9);
    FIRST.install();
    assert_eq!(who_is_asked(), 19);
    // The other is behind, out of reach; it does not rely on that it was there once.
    SECOND.install();
    assert_eq!(who_is_asked(), 219);
}
