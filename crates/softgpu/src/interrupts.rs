//! The interrupt tree: vectors in leaves, subtrees of two leaves, one line.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu_spec::regs::vf::INTR_LEAVES;
use parking_lot::{Condvar, Mutex};

const LEAVES: usize = INTR_LEAVES as usize;

/// Pending and enabled vectors. The line is raised while an enabled vector of an enabled subtree is pending.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    pending: [AtomicU32; LEAVES],
    enabled: [AtomicU32; LEAVES],
    subtrees: AtomicU32,
    /// Guards nothing but the sleep of the waiter.
    lock: Mutex<()>,
    raised: Condvar,
}

impl Interrupts {
    /// Makes a vector pending.
    pub(crate) fn raise(&self, vector: u32) {
        let Some(leaf) = self.pending.get(vector as usize / 32) else { return };
        let bit = 1 << (vector % 32);
        if leaf.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.notify();
        }
    }

    fn notify(&self) {
        if self.line() {
            let _held = self.lock.lock();
            self.raised.notify_all();
        }
    }

    /// The subtrees that have enabled vectors pending.
    pub(crate) fn top(&self) -> u32 {
        let pending = self.pending.iter().zip(&self.enabled);
        pending.enumerate().fold(0, |top, (leaf, (pending, enabled))| {
            let any = pending.load(Ordering::SeqCst) & enabled.load(Ordering::SeqCst) != 0;
            top | u32::from(any) << (leaf / 2)
        })
    }

    fn line(&self) -> bool {
        self.top() & self.subtrees.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn leaf(&self, leaf: u32) -> u32 {
        self.pending.get(leaf as usize).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    pub(crate) fn clear(&self, leaf: u32, bits: u32) {
        if let Some(word) = self.pending.get(leaf as usize) {
            word.fetch_and(!bits, Ordering::SeqCst);
        }
    }

    pub(crate) fn enabled(&self, leaf: u32) -> u32 {
        self.enabled.get(leaf as usize).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    pub(crate) fn enable(&self, leaf: u32, bits: u32) {
        if let Some(word) = self.enabled.get(leaf as usize) {
            word.fetch_or(bits, Ordering::SeqCst);
            self.notify();
        }
    }

    pub(crate) fn disable(&self, leaf: u32, bits: u32) {
        if let Some(word) = self.enabled.get(leaf as usize) {
            word.fetch_and(!bits, Ordering::SeqCst);
        }
    }

    pub(crate) fn enabled_subtrees(&self) -> u32 {
        self.subtrees.load(Ordering::SeqCst)
    }

    pub(crate) fn enable_subtrees(&self, bits: u32) {
        self.subtrees.fetch_or(bits, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn disable_subtrees(&self, bits: u32) {
        self.subtrees.fetch_and(!bits, Ordering::SeqCst);
    }

    /// Waits for the line, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        if self.line() {
            return true;
        }
        let deadline = Instant::now().checked_add(timeout);
        let mut held = self.lock.lock();
        while !self.line() {
            match deadline {
                Some(deadline) if self.raised.wait_until(&mut held, deadline).timed_out() => return self.line(),
                Some(_) => {}
                None => self.raised.wait(&mut held),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_follows_enabled_vectors_of_enabled_subtrees() {
        let tree = Interrupts::default();
        let raised = || tree.wait(Duration::ZERO);
        tree.raise(67);
        assert!(!raised());
        tree.enable(2, 1 << 3);
        assert_eq!(tree.top(), 1 << 1);
        assert!(!raised());
        tree.enable_subtrees(1 << 1);
        assert!(raised());
        tree.disable(2, 1 << 3);
        assert!(!raised());
        tree.enable(2, 1 << 3);
        tree.clear(2, 1 << 3);
        assert!(!raised());
        tree.raise(4096);
        assert_eq!(tree.top(), 0);
    }
}
