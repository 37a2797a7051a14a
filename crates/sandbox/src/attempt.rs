//! What must not work any more, tried.
//!
//! For `sundial doctor` and tests: a process that is in its role tries one of these, and ends. Whoever started it sees
//! what the kernel made of it: refused, the process killed, or done.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::Role;

/// Something to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Read a file that everybody may read.
    OpenFile,
    /// Make a file in a directory where everybody may.
    CreateFile,
    /// Become another program.
    Execute,
    /// Start a process.
    Fork,
    /// Look into another process as a debugger.
    Trace,
    /// Signal the process that started this one.
    Signal,
    /// Make a socket for the network.
    Network,
    /// Make a socket of this machine.
    LocalSocket,
    /// Map memory that can be executed.
    MapExecutable,
}

impl Attempt {
    /// All of them.
    pub const ALL: [Attempt; 9] = [
        Attempt::OpenFile,
        Attempt::CreateFile,
        Attempt::Execute,
        Attempt::Fork,
        Attempt::Trace,
        Attempt::Signal,
        Attempt::Network,
        Attempt::LocalSocket,
        Attempt::MapExecutable,
    ];

    /// As commands and listings name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attempt::OpenFile => "open-file",
            Attempt::CreateFile => "create-file",
            Attempt::Execute => "execute",
            Attempt::Fork => "fork",
            Attempt::Trace => "trace",
            Attempt::Signal => "signal",
            Attempt::Network => "network",
            Attempt::LocalSocket => "local-socket",
            Attempt::MapExecutable => "map-executable",
        }
    }

    /// Is a process in this role to be kept from it?
    #[must_use]
    pub fn is_forbidden(self, role: Role) -> bool {
        match role {
            Role::Control => matches!(self, Attempt::CreateFile | Attempt::Trace | Attempt::Signal | Attempt::Network),
            Role::Device => self != Attempt::MapExecutable,
            Role::Compiler => true,
        }
    }

    /// Tries it.
    ///
    /// # Errors
    /// What the kernel says if it refuses.
    pub fn perform(self) -> io::Result<()> {
        match self {
            Attempt::OpenFile => std::fs::File::open("/etc/passwd").map(drop),
            Attempt::CreateFile => {
                let path = format!("/tmp/sundial-attempt-{}", std::process::id());
                std::fs::File::create(&path)?;
                std::fs::remove_file(path)
            }
            // `true` does nothing and ends well: as if the attempt had returned.
            Attempt::Execute => Err(Command::new("/bin/true").exec()),
            Attempt::Fork => Command::new("/bin/true").status().map(drop),
            Attempt::Trace => trace(),
            Attempt::Signal => {
                let parent = rustix::process::getppid().unwrap_or(Pid::INIT);
                Ok(rustix::process::kill_process(parent, Signal::CONT)?)
            }
            Attempt::Network => socket(libc::AF_INET),
            Attempt::LocalSocket => socket(libc::AF_UNIX),
            Attempt::MapExecutable => map_executable(),
        }
    }
}

/// Offers itself to be traced by its parent, which every process may unless it is kept from tracing as such.
fn trace() -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_TRACEME takes no arguments and touches no memory.
    let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn socket(family: libc::c_int) -> io::Result<()> {
    // SAFETY: makes a descriptor and touches no memory; it stays open until this process ends, which is soon.
    let result = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn map_executable() -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping where the kernel likes replaces nothing.
    let result = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if result == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}
