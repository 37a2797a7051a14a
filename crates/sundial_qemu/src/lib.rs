#![expect(
    unsafe_code,
    reason = "stands before two functions of the C library, whose arguments are what C programs pass"
)]
//! `libsundial_qemu.so`: what a virtual machine stores into its virtual GPU's VRAM is noticed by the kernel.
//!
//! `LD_PRELOAD=libsundial_qemu.so qemu-system-x86_64 ...`: QEMU maps the VRAM of a virtual GPU, and knows of no way to notice what
//! its machine stores there. This library stands before two functions that QEMU calls. It sees the VRAM's file arrive
//! ([`recvmsg`]), and QEMU map it ([`mmap`]). Before that returns, nothing can have been stored there, and the device is told how
//! to notice it ([`write_trap::TrackerParts`]), by the one message [`Command::WATCH_STORES`].
//!
//! # On QEMU's own socket
//! The message goes where QEMU's do, and wants no reply, so that QEMU never learns of it. It is in step: QEMU maps regions before
//! its machine runs, when it sends nothing else; each of its messages is one `sendmsg`, as this one is, which a unix socket takes
//! whole or not at all; and the device reads it before whatever the machine does later.
//!
//! # What can go wrong
//! A device that has not asked for it refuses, and nobody is told. What fails here is one line on the standard error stream;
//! QEMU goes on in either case, and the device compares all page tables, as without this library. Other servers, sockets and
//! mappings are left alone: the file is known by its name ([`WATCHED_MEMORY`]), the message that it comes with by its header.
//!
//! A server that gives its file this name is handed a `userfaultfd` of the process. So the library is for a QEMU whose vfio-user
//! servers are all trusted with its memory.

mod told;

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{msghdr, off_t, size_t, ssize_t};

#[cfg(doc)]
use vfio_user::{WATCHED_MEMORY, wire::Command};

/// The C library's `recvmsg`; notes the files of VRAM that come.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // Straight from the kernel: who looks for the C library's own function allocates, and may be called from there. So it is
    // no cancellation point, which QEMU does without.
    // SAFETY: the caller's own arguments. Failure is told as the C library does.
    let got = unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) } as ssize_t;
    if got > 0 {
        // SAFETY: the kernel has just accepted the message.
        let message = unsafe { &*message };
        if message.msg_controllen > 0 {
            // SAFETY: so much was received into it.
            let (start, control) = unsafe { seen(message, got.cast_unsigned()) };
            quietly(|| told::received(socket, start, control));
        }
    }
    got
}

/// The first bytes that were received, as far as they lie in the first buffer, and the control messages.
///
/// # Safety
/// `got` bytes, at least one, were received into this message.
unsafe fn seen(message: &msghdr, got: usize) -> (&[u8], &[u8]) {
    // SAFETY: something was received, so there is a buffer.
    let first = unsafe { &*message.msg_iov };
    let bytes = first.iov_len.min(got);
    // SAFETY: the kernel has written these bytes, or, where there are none, reads nothing.
    let start = if bytes == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(first.iov_base.cast(), bytes) } };
    // SAFETY: the kernel has written so many bytes of control messages there.
    let control = unsafe { std::slice::from_raw_parts(message.msg_control.cast(), message.msg_controllen) };
    (start, control)
}

/// The C library's `mmap`; tells the device if it is VRAM that is mapped.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's own arguments. Failure is told as the C library does.
    let at = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, file, offset) };
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if at != -1 && file >= 0 && offset == 0 && shared && protection & libc::PROT_WRITE != 0 {
        quietly(|| told::mapped(file, at.cast_unsigned(), bytes as u64));
    }
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// [`mmap`] by the name that programs call which are built for large files.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    unsafe { mmap(address, bytes, protection, flags, file, offset) }
}

/// Does something of ours in a function of the program's: whatever comes of it, the program goes on.
fn quietly(work: impl FnOnce()) {
    // What a panic leaves behind is a list of files, which is right after each step.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

#[cfg(test)]
mod tests;
