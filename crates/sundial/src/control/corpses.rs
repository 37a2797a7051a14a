//! Device processes that were killed, and do not go.
//!
//! A thread that waits in the kernel for somebody who does not answer, as for a file system in user space, is beyond any signal: its
//! process stays, with all that it has open, until that one has answered or ended. Nobody waits for it here but a thread of its
//! own; the next device process does not.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Longest that one which was killed is waited for: giving back all of a GPU's memory takes its time.
const REAP_BOUND: Duration = Duration::from_secs(2);

/// Waits for a process that was killed. `None`: it does not go, and is left to a thread.
///
/// # Errors
/// What the operating system says.
pub(super) fn reap(mut child: Child) -> Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(child.id().cast_signed()).context("a process without a number")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")?;
    let until = Instant::now() + REAP_BOUND;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left_spec = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left_spec)) {
            Ok(0) | Err(rustix::io::Errno::INTR) if left.is_zero() => break,
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(Some(child.wait()?)),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    let bury = move || match child.wait() {
        Ok(status) => tracing::info!(pid = child.id(), %status, "a device process that was left behind is gone"),
        Err(error) => tracing::error!(pid = child.id(), %error, "nobody knows whether a device process is gone"),
    };
    std::thread::Builder::new().name("corpse".into()).spawn(bury).context("no thread to wait for a corpse")?;
    Ok(None)
}

/// Whether a process has lost its first thread. While others of it are stuck, its descriptors stay open, and nobody is told of
/// its end.
pub(super) fn is_dying(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // Behind the name, which may have anything in it.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_living_and_the_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        assert!(!is_dying(pid));
        let (input, start) = (child.stdin.take(), Instant::now());
        drop(input);
        while !is_dying(pid) {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        assert!(reap(child).unwrap().unwrap().success());
        assert!(!is_dying(pid), "nobody is there");
    }

    #[test]
    fn one_that_does_not_go_is_left_behind() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // Who is not killed is as good as one who cannot be.
        let input = child.stdin.take();
        assert_eq!(reap(child).unwrap(), None);
        drop(input);
    }
}
