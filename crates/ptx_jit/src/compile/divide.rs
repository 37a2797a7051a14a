//! Pieces of work, divided among threads where processors have nothing else to do.
//!
//! What comes of it does not depend on the threads: results are in the order of the pieces, and of several failures the first
//! piece's is told. Pieces are begun in order, so that those before one that fails were begun, too, and are brought to their end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::compiler::{HELPER_STACK_BYTES, Pace, Watch};

/// What has become of a piece; a panic is kept as one.
type Outcome<T, E> = thread::Result<Result<T, E>>;

struct Division<'a, W> {
    count: usize,
    work: W,
    watch: &'a Watch,
    /// The next piece; from `count` on there is none.
    next: AtomicUsize,
    /// Something else wants the processors: the first thread is to go on alone.
    crowded: AtomicBool,
}

/// Does `count` pieces of work on the calling thread and as many beside it as there can be, `threads` together.
///
/// All of them have ended when this returns, and what they used is on `watch`. A panic in one is a panic here.
pub(super) fn divide<S: Default, T: Send, E: Send>(
    count: usize,
    threads: usize,
    watch: &Watch,
    work: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let (next, crowded) = (AtomicUsize::new(0), AtomicBool::new(false));
    let division = Division { count, work, watch, next, crowded };
    let mut outcomes = thread::scope(|scope| {
        let helper = |_| {
            let thread = thread::Builder::new().name("region".to_owned()).stack_size(HELPER_STACK_BYTES);
            // Without it, it takes longer.
            thread.spawn_scoped(scope, || division.help()).ok()
        };
        let helpers: Vec<_> = (1..threads.min(count)).filter_map(helper).collect();
        let mut outcomes = division.pieces(|| false);
        for helper in helpers {
            outcomes.append(&mut helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        outcomes
    });
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome.unwrap_or_else(|panic| resume_unwind(panic))).collect()
}

impl<W> Division<'_, W> {
    /// What a thread beside the first does.
    fn help<S: Default, T, E>(&self) -> Vec<(usize, Outcome<T, E>)>
    where
        W: Fn(&mut S, usize) -> Result<T, E>,
    {
        let _working = self.watch.begin();
        self.pieces(|| self.crowded.load(Ordering::Relaxed))
    }

    /// Does piece after piece, as long as there are some and the thread may stay.
    fn pieces<S: Default, T, E>(&self, is_to_leave: impl Fn() -> bool) -> Vec<(usize, Outcome<T, E>)>
    where
        W: Fn(&mut S, usize) -> Result<T, E>,
    {
        let mut outcomes = Vec::new();
        let mut scratch = S::default();
        let mut pace = Pace::begin();
        while !is_to_leave() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                break;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)(&mut scratch, index)));
            if !matches!(outcome, Ok(Ok(_))) {
                self.next.store(self.count, Ordering::Relaxed);
            }
            outcomes.push((index, outcome));
            if pace.is_crowded() {
                self.crowded.store(true, Ordering::Relaxed);
            }
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::compiler::{Bounds, Stop};

    const COUNT: usize = 100;
    const THREADS: usize = 4;

    fn spin(watch: &Watch, time: Duration) {
        let until = watch.cpu() + time;
        while watch.cpu() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn results_are_in_order_and_come_from_several_threads() {
        let all_there = Barrier::new(THREADS);
        let result = divide(COUNT, THREADS, &Watch::unbounded(), |seen: &mut usize, index| {
            *seen += 1;
            // Each thread has one of the first; none goes on before.
            if *seen == 1 {
                all_there.wait();
            }
            Ok::<_, ()>((index, thread::current().id()))
        });
        let (order, mut threads): (Vec<usize>, Vec<_>) = result.unwrap().into_iter().unzip();
        assert!(order.into_iter().eq(0..COUNT));
        threads.truncate(THREADS);
        let first = threads.pop().unwrap();
        assert!(!threads.contains(&first));
    }

    #[test]
    fn the_first_piece_that_fails_is_told() {
        for threads in [1, THREADS] {
            for round in 0..200 {
                let result = divide(COUNT, threads, &Watch::unbounded(), |(): &mut (), index| match index {
                    // A later one may fail earlier.
                    10 if round % 2 == 0 => {
                        thread::yield_now();
                        Err(10)
                    }
                    10.. => Err(index),
                    _ => Ok(()),
                });
                assert_eq!(result, Err(10), "{threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_in_any_thread_comes_out_when_all_have_ended() {
        struct Leaves<'a>(&'a AtomicUsize);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let (inside, begun) = (AtomicUsize::new(0), Barrier::new(THREADS));
        let caller = thread::current().id();
        let watch = Watch::unbounded();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            divide(COUNT, THREADS, &watch, |seen: &mut usize, _| {
                inside.fetch_add(1, Ordering::SeqCst);
                let _inside = Leaves(&inside);
                *seen += 1;
                if *seen == 1 {
                    begun.wait();
                }
                if thread::current().id() != caller {
                    std::panic::panic_any("a helper's");
                }
                Ok::<_, ()>(())
            })
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"a helper's"));
        assert_eq!(inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn time_of_all_threads_is_bounded_and_counts() {
        const PIECE: Duration = Duration::from_millis(1);
        // Far more than there is time for, and few enough to come to an end without a bound.
        const PIECES: usize = 10_000;
        let time = Duration::from_millis(40);
        let watch = Watch::new(Bounds { memory_bytes: u64::MAX, time, threads: THREADS });
        let begun = Barrier::new(THREADS);
        let working = watch.begin();
        let result = divide(PIECES, THREADS, &watch, |seen: &mut usize, _| {
            *seen += 1;
            if *seen == 1 {
                begun.wait();
            }
            watch.check()?;
            spin(&watch, PIECE);
            Ok::<_, Stop>(())
        });
        drop(working);
        assert_eq!(result, Err(Stop::Time));
        let used = watch.cpu();
        assert!(used > time, "{used:?}");
        assert_eq!(watch.cpu(), used, "nobody is at work any more");
    }
}
