//! GPU virtual addresses: the reserved window, and which of its ranges are free.

use std::collections::BTreeMap;

use gpu::{Request, client_bytes};
use hostmem::Window;

use crate::error::{CudaError, Result};
use crate::shared::Shared;

/// Sizes of the reservation to try, largest first, bytes. Reserving costs nothing but a process limit may forbid it.
const WINDOW_BYTES: [u64; 4] = [256 << 30, 64 << 30, 16 << 30, 4 << 30];

/// Free ranges of addresses, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn new(start: u64, bytes: u64) -> Ranges {
        Ranges(BTreeMap::from([(start, bytes)]))
    }

    /// The lowest range of this size and alignment.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self.0.iter().find_map(|(&start, &len)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(bytes)? <= start + len).then_some(at)
        })?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Exactly this range, if all of it is free.
    pub(crate) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some((&start, &len)) = self.0.range(..=at).next_back() else { return false };
        let Some(end) = at.checked_add(bytes) else { return false };
        if end > start + len {
            return false;
        }
        self.0.remove(&start);
        if start < at {
            self.0.insert(start, at - start);
        }
        if end < start + len {
            self.0.insert(end, start + len - end);
        }
        true
    }

    /// Gives a range back, joining it with its neighbours.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &len)) = self.0.range(..at).next_back()
            && before + len == at
        {
            start = before;
        }
        if let Some(&len) = self.0.get(&end) {
            self.0.remove(&end);
            end += len;
        }
        self.0.insert(start, end - start);
    }

    /// True if the one range `bytes` long is all there is.
    pub(crate) fn is_whole(&self, bytes: u64) -> bool {
        self.0.len() == 1 && self.0.values().next() == Some(&bytes)
    }
}

/// The addresses of a process.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) window: Window,
    /// Addresses that this side hands out: `lo .. lo + bytes`.
    pub(crate) lo: u64,
    pub(crate) bytes: u64,
}

impl Arena {
    /// Reserves addresses and announces them.
    pub(crate) fn reserve(shared: &Shared) -> Result<Arena> {
        let window =
            WINDOW_BYTES.iter().find_map(|&bytes| Window::reserve(bytes).ok()).ok_or(CudaError::OUT_OF_MEMORY)?;
        let lo = window.address() as u64;
        let all = window.bytes();
        shared.request(Request::SetAddressRange { lo, bytes: all })?;
        Ok(Arena { window, lo, bytes: client_bytes(all) })
    }

    /// True for every GPU address, those of the GPU driver too.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.lo && address - self.lo < self.window.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_neither_overlap_nor_leak(steps in proptest::collection::vec((0u8..4, 1u64..40, 0u32..5), 1..200)) {
            let mut ranges = Ranges::new(1 << 12, 1 << 10);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (what, bytes, align) in steps {
                if what == 0 && !taken.is_empty() {
                    let (at, bytes) = taken.swap_remove(bytes as usize % taken.len());
                    ranges.give(at, bytes);
                } else if let Some(at) = ranges.take(bytes, 1 << align) {
                    prop_assert_eq!(at % (1 << align), 0);
                    prop_assert!(at >= 1 << 12 && at + bytes <= (1 << 12) + (1 << 10));
                    prop_assert!(taken.iter().all(|&(other, len)| at + bytes <= other || other + len <= at));
                    taken.push((at, bytes));
                }
            }
            for (at, bytes) in taken {
                ranges.give(at, bytes);
            }
            prop_assert!(ranges.is_whole(1 << 10));
        }
    }

    #[test]
    fn exact_ranges() {
        let mut ranges = Ranges::new(0, 100);
        assert!(ranges.take_at(10, 20));
        assert!(!ranges.take_at(29, 2));
        assert!(!ranges.take_at(90, u64::MAX));
        ranges.give(10, 20);
        assert!(ranges.is_whole(100));
    }
}
