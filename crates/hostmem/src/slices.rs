//! Threads that answer soon.
//!
//! A thread that is woken to say, or pass on, or begin with what has come, competes with threads that compute. Linux lets these
//! finish their slices first, which on a kernel that ticks 250 times a second is milliseconds: a guest with kernels of 0.3 ms, each
//! waited for, had 20 % of a GPU of which a third was its own. Since 6.12 a thread may ask for a slice of its own length. A short
//! one gives it no more time than others have, but what it has at once: who wakes with a shorter slice than that of the thread that
//! runs goes first, and who runs does not stay for long.

use std::cell::Cell;

/// The shortest that Linux grants, ns.
const SHORTEST_NS: u64 = 100_000;

/// `struct sched_attr` as it first was: all that is needed here.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of a thread without a real-time policy: the length of its slice, ns.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Asks for the shortest slices of processor time for the calling thread, for good; the first time that it is called on one. A
/// thread that somebody gave another policy than the usual one, or slices of another length, is left as it is. Where the system does
/// not know such slices, or refuses them, nothing happens.
pub fn prefer_short_slices() {
    if ASKED.replace(true) {
        return;
    }
    let Some(mut attributes) = attributes() else { return };
    if attributes.policy == libc::SCHED_OTHER as u32 {
        attributes.runtime = SHORTEST_NS;
        // SAFETY: the structure is as large as it says, and the kernel only reads it. Refused, everything stays as it is.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Those of the calling thread.
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most as many bytes as it is told.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    attributes.size = SIZE;
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn only_the_slice_changes_and_only_once() {
        let (before, after, again) = in_a_thread(|| {
            let before = attributes().unwrap();
            prefer_short_slices();
            let after = attributes().unwrap();
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const before, 0) };
            prefer_short_slices();
            (before, after, attributes().unwrap())
        });
        assert_eq!((before.policy, before.nice, before.flags), (after.policy, after.nice, after.flags));
        // Kernels before 6.12 show none.
        assert!(before.runtime == 0 && after.runtime == 0 || after.runtime == SHORTEST_NS, "{}", after.runtime);
        assert_eq!(again.runtime, before.runtime, "what was set after it stays");
    }

    #[test]
    fn another_policy_is_left_alone() {
        let (before, after) = in_a_thread(|| {
            let batch = Attributes { policy: libc::SCHED_BATCH as u32, ..attributes().unwrap() };
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const batch, 0) };
            let before = attributes().unwrap();
            prefer_short_slices();
            (before, attributes().unwrap())
        });
        assert_eq!((before.policy, before.runtime), (after.policy, after.runtime));
        assert_eq!(after.policy, libc::SCHED_BATCH as u32);
    }
}
