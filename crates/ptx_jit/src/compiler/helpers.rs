//! On how many threads a kernel is compiled.

/// Threads that compilations have beside the first of each: for processors that no other compilation has or waits for. They keep
/// no other from beginning; those that are too many then leave by themselves.
#[derive(Debug, PartialEq, Eq)]
pub struct Helpers {
    processors: usize,
    /// At most.
    at_work: usize,
}

impl Helpers {
    /// Nobody compiles on so many processors.
    #[must_use]
    pub fn new(processors: usize) -> Helpers {
        Helpers { processors, at_work: 0 }
    }

    /// A compilation begins that may have `most` threads, and is one of so many that are under way or wait: how many it has.
    pub fn begin(&mut self, most: usize, compilations: usize) -> usize {
        let free = self.processors.saturating_sub(compilations + self.at_work);
        let threads = most.clamp(1, 1 + free);
        self.at_work += threads - 1;
        threads
    }

    /// One has ended that had so many threads.
    pub fn end(&mut self, threads: usize) {
        self.at_work -= threads - 1;
    }
}
