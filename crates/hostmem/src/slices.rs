//! Threads that answer soon.
//!
//! A thread that is woken to say, or pass on, or begin with what has come, competes with threads that compute. Linux lets these
//! finish their slices first, which on a kernel that ticks 250 times a second is milliseconds: a guest with kernels of 0.3 ms, each
//! waited for, had 20 % of a GPU of which a third was its own. Since 6.12 a thread may ask for a slice of its own length. A short
//! one gives it no more time than others have, but what it has at once: who wakes with a shorter slice than that of the thread that
//! runs goes first, and who runs does not stay for long.
//!
//! Threads of our own ask once ([`prefer_short_slices`]), and those that they start are as any other. A program's thread has short
//! slices while it sleeps for us, and then its own again; what others give it meanwhile it keeps. (A child that it forks in a signal
//! handler meanwhile keeps the short ones.) Nothing is asked for where that is not safe ([`crate::allow_hints`]).

use std::cell::Cell;

use crate::hints;

/// The shortest that Linux grants, ns.
const SHORTEST_NS: u64 = 100_000;
/// What a thread starts does not inherit it: `SCHED_FLAG_RESET_ON_FORK`.
const NOT_INHERITED: u64 = 1;

/// `struct sched_attr` as it first was: all that is needed here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
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

/// What is known of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// It has short slices for good.
    Short,
    /// It cannot have any, or shall not.
    No,
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

/// Asks for the shortest slices of processor time for the calling thread, for good: for threads of our own. One that has another policy
/// than the usual is left as it is. Where the system does not know such slices, or refuses them, nothing happens.
pub fn prefer_short_slices() {
    if let Some(own) = Attributes::usual()
        && own.nice >= 0
    {
        Attributes { runtime: SHORTEST_NS, flags: own.flags | NOT_INHERITED, ..own }.set();
        KNOWN.set(Known::Short);
    }
}

/// Calls `sleep`, which waits for another process; if it sleeps, the thread is woken with a short slice.
pub(crate) fn in_short_slices<R>(sleep: impl FnOnce() -> R) -> R {
    let own = match KNOWN.get() {
        Known::Nothing => Attributes::usual(),
        Known::Short | Known::No => None,
    };
    let Some(own) = own else { return sleep() };
    if !(Attributes { runtime: SHORTEST_NS, ..own }).set() {
        KNOWN.set(Known::No);
        return sleep();
    }
    let result = sleep();
    // Others may have changed what is left.
    if let Some(now) = Attributes::get()
        && now.runtime == SHORTEST_NS
    {
        Attributes { runtime: own.runtime, ..now }.set();
    }
    result
}

impl Attributes {
    /// Those of the calling thread, if it has the usual policy, on a system that knows slices.
    fn usual() -> Option<Attributes> {
        let own = hints::are_safe().then(Attributes::get)??;
        (own.policy == libc::SCHED_OTHER as u32 && own.runtime != 0).then_some(own)
    }

    fn get() -> Option<Attributes> {
        let mut own = Attributes::default();
        // SAFETY: the kernel writes at most as many bytes as it is told.
        let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut own, SIZE, 0) };
        own.size = SIZE;
        (got == 0).then_some(own)
    }

    /// Gives them to the calling thread; false if that is refused, and everything is as it was.
    fn set(&self) -> bool {
        // SAFETY: the structure is as large as it says, and the kernel only reads it.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *self, 0) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
        std::thread::spawn(work).join().unwrap()
    }

    fn slice() -> u64 {
        Attributes::get().unwrap().runtime
    }

    /// Whether the system knows slices, and may be asked; says aloud that a test proves nothing here.
    fn knows_slices() -> bool {
        let knows = slice() != 0 && hints::are_safe();
        if !knows {
            println!(
                "SKIPPED: this kernel has no slices of a length of one's own, or a filter of system calls is there"
            );
        }
        knows
    }

    #[test]
    fn a_thread_of_ours_has_short_slices_and_what_it_starts_has_not() {
        if !knows_slices() {
            return;
        }
        let usual = slice();
        let (before, after, slept, started) = in_a_thread(|| {
            let before = Attributes::get().unwrap();
            prefer_short_slices();
            let slept = in_short_slices(slice);
            (before, Attributes::get().unwrap(), slept, in_a_thread(slice))
        });
        assert_eq!((before.policy, before.nice), (after.policy, after.nice));
        assert_eq!((after.runtime, slept, started), (SHORTEST_NS, SHORTEST_NS, usual));
    }

    #[test]
    fn a_thread_of_a_programs_has_them_while_it_sleeps() {
        if !knows_slices() {
            return;
        }
        let usual = slice();
        assert_eq!((in_short_slices(slice), slice()), (SHORTEST_NS, usual));
        // Its own are its own again.
        in_a_thread(|| {
            assert!(Attributes { runtime: 5_000_000, ..Attributes::get().unwrap() }.set());
            assert_eq!((in_short_slices(slice), slice()), (SHORTEST_NS, 5_000_000));
        });
    }

    #[test]
    fn what_others_change_meanwhile_stays() {
        if !knows_slices() {
            return;
        }
        let usual = slice();
        in_a_thread(move || {
            in_short_slices(|| assert!(Attributes { nice: 3, ..Attributes::get().unwrap() }.set()));
            let after = Attributes::get().unwrap();
            assert_eq!((after.nice, after.runtime), (3, usual));
            in_short_slices(|| assert!(Attributes { runtime: 5_000_000, ..Attributes::get().unwrap() }.set()));
            assert_eq!(slice(), 5_000_000);
        });
    }

    #[test]
    fn another_policy_is_left_alone() {
        in_a_thread(|| {
            let batch = Attributes { policy: libc::SCHED_BATCH as u32, ..Attributes::get().unwrap() };
            assert!(batch.set());
            let before = slice();
            prefer_short_slices();
            let (slept, after) = (in_short_slices(slice), Attributes::get().unwrap());
            assert_eq!((slept, after.runtime, after.policy), (before, before, libc::SCHED_BATCH as u32));
        });
    }
}
