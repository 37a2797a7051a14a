#![expect(
    unsafe_code,
    reason = "closes descriptors that nobody owns yet, ties children before they become programs, and tries system calls that have no safe name"
)]
//! What a process of ours gives up, by its role.
//!
//! The control process starts others and opens files; the device process parses what tenants say and runs what they
//! compile; compiler processes read what tenants wrote. What each may still ask of the kernel after it has started is its
//! role's list, and nothing else:
//!
//! - [`begin`] comes first in `main`, before threads and files: inherited descriptors are closed, no core is ever written,
//!   nobody of the same user can look into the process (not dumpable), no program can give new privileges, and landlock
//!   takes the file system away ([`files`]). What the caller still has to read of the kernel's tables stays readable.
//! - [`seal`] comes when everything stands, with threads: a seccomp filter ([`calls`]) for all threads, now and later.
//!   After it the device process and the compilers open no file by any name, make no socket, start no program and no
//!   process, and signal nobody (but whom they hold a descriptor of).
//!
//! A list names what is allowed. What is not named fails with EPERM, which libraries take as "not here" and fall back;
//! what no innocent program of ours would ever ask for (running a program, tracing, loading modules, `bpf`, `io_uring`,
//! new namespaces, …) kills the process, so that nobody tries twice.
//!
//! **A kernel that lacks one of these is no error, but is never passed over in silence**: each step says in
//! [`Protection`] what came of it; the daemon logs what does not hold, and `sundial doctor` shows it. [`attempt`] holds the
//! other half of the proof: it tries what must not work.
//!
//! # What it does not do
//!
//! No namespaces, no cgroups, no change of user: these need privileges or set-up that a daemon of an ordinary user does not
//! have. Who has them (a service manager) adds them from outside. Filters are inherited by children and can only be made
//! narrower, so the control process's list is what everything below it starts from.

pub mod attempt;
mod calls;
mod clock;
mod files;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

pub use clock::cpu_time;

/// Which of our processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Admits tenants, starts the others, keeps the cache of compiled code.
    Control,
    /// Owns the GPU and serves the sessions.
    Device,
    /// Turns tenants' modules into code.
    Compiler,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Control, Role::Device, Role::Compiler];

    /// As `sundial doctor` says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Control => "control",
            Role::Device => "device",
            Role::Compiler => "compiler",
        }
    }
}

/// How far a protection holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holds {
    /// As intended.
    Yes,
    /// The kernel has an older form of it: what is missing.
    Partly(String),
    /// The kernel lacks it, or refused: why.
    No(String),
}

/// One thing that was given up, or not.
#[derive(Clone, Debug)]
pub struct Protection {
    /// What.
    pub name: &'static str,
    /// How far.
    pub holds: Holds,
}

impl Protection {
    fn of(name: &'static str, done: Result<(), impl std::fmt::Display>) -> Protection {
        let holds = match done {
            Ok(()) => Holds::Yes,
            Err(error) => Holds::No(error.to_string()),
        };
        Protection { name, holds }
    }
}

/// The first descriptor that is not one of the standard three.
const FIRST: i32 = 3;

/// Takes descriptors that were handed over by whoever started this process: so many from the third on. Only the first call has any. To
/// be called after [`begin_keeping`] with as many, and before the process has opened any of its own.
#[must_use]
pub fn take_inherited(count: usize) -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let there = (FIRST..).take(count).filter_map(|number| {
        // SAFETY: the number of a descriptor, and a request that reads no memory: it fails if there is none.
        let found = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        // SAFETY: it is open, and by this function's contract nothing in this process owns it yet; nobody is given it twice.
        (found == 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
    });
    there.collect()
}

/// Closes all inherited descriptors but the standard three, and so many that follow them. To be called before the process has opened any
/// of its own.
///
/// # Errors
/// The kernel lacks `close_range` (Linux 5.9).
fn close_inherited(handed: usize) -> io::Result<()> {
    let first = FIRST.unsigned_abs() + u32::try_from(handed).unwrap_or(0);
    // SAFETY: close_range reads no memory; by this function's contract nothing in this process owns a descriptor from there on.
    // A caller that breaks it finds its own files closed, which is an error at their next use.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the process that this command starts killed when ours ends, even by a signal that nobody hears. For the kernel, a parent is
/// the thread that starts it: that must stay for as long as the child shall. What the child starts in turn is not meant.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before.
        let there = rustix::process::getppid() == Some(parent);
        if there { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec there are two system calls; nothing is allocated, and nothing is locked.
    unsafe { command.pre_exec(tie) }
}

/// What stays writable, for roles that have files at all, and where somebody can be waited for.
#[derive(Clone, Copy, Debug)]
pub enum Writable<'a> {
    /// Whatever is below: files, sockets, links.
    Everything(&'a Path),
    /// Plain files below, to be made, written and removed, and directories, to be made.
    Files(&'a Path),
    /// Sockets in a folder, to be made and removed.
    Sockets(&'a Path),
    /// A TCP port, to be listened on; what makes such a socket comes before [`seal`].
    Port(u16),
}

/// The first step, to be taken by the first thread before there are others.
#[must_use]
pub fn begin(role: Role, writable: &[Writable<'_>]) -> Vec<Protection> {
    begin_keeping(role, 0, writable)
}

/// The same, keeping so many descriptors that were handed over, from the third on: for [`take_inherited`].
#[must_use]
pub fn begin_keeping(role: Role, handed: usize, writable: &[Writable<'_>]) -> Vec<Protection> {
    vec![
        Protection::of("descriptors", close_inherited(handed)),
        Protection::of("no core", no_core()),
        Protection::of("not dumpable", rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)),
        Protection::of("no new privileges", rustix::thread::set_no_new_privs(true)),
        Protection { name: "landlock", holds: files::restrict(role, writable) },
    ]
}

/// The second step: the filter of system calls, for all threads.
#[must_use]
pub fn seal(role: Role) -> Protection {
    Protection::of("seccomp", calls::install(role))
}

fn no_core() -> io::Result<()> {
    // The hard limit too: nobody raises it again.
    Ok(rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}
