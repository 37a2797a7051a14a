//! Which memory there is, what was there, and what of it was written.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use intervals::{IntervalMap, bearing};
use ptx::launch::NULL_BYTES;

/// Freed allocations that are remembered.
const MOST_FREED: usize = 4096;

/// What memory is, in the words of its owner, as "cudaMalloc".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// What it is called.
    pub name: &'static str,
    /// Kernels may access it by its address.
    pub addressed: bool,
}

#[derive(Debug)]
struct Live {
    memory: Memory,
    /// A bit for each byte that was written; `None`: it is not asked.
    written: Option<Box<[AtomicU64]>>,
}

/// All memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    live: IntervalMap<Live>,
    /// The last ones to go, the last of all at the end.
    freed: VecDeque<(Range<u64>, Memory)>,
}

impl Ledger {
    pub(crate) fn allocated(&mut self, base: u64, bytes: u64, memory: Memory, follow: bool) {
        let Some(end) = base.checked_add(bytes).filter(|end| *end > base) else { return };
        let there: Vec<u64> = self.live.overlapping(base..end).map(|(range, _)| range.start).collect();
        for start in there {
            self.live.remove(start);
        }
        let words = bytes.div_ceil(64) as usize;
        let written = follow.then(|| std::iter::repeat_with(AtomicU64::default).take(words).collect());
        // There is room now.
        let _ = self.live.insert(base..end, Live { memory, written });
    }

    pub(crate) fn freed(&mut self, base: u64) {
        if self.live.get(base).is_none_or(|(range, _)| range.start != base) {
            return;
        }
        if let Some((range, live)) = self.live.remove(base) {
            if self.freed.len() == MOST_FREED {
                self.freed.pop_front();
            }
            self.freed.push_back((range, live.memory));
        }
    }

    /// Whether kernels may access bytes; mappings that touch are as one.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        match self.live.get(address) {
            Some((range, live)) if live.memory.addressed => {
                end <= range.end
                    || self.live.covers(address..end)
                        && self.live.overlapping(address..end).all(|(_, live)| live.memory.addressed)
            }
            _ => false,
        }
    }

    /// Bytes were written.
    pub(crate) fn write(&self, address: u64, bytes: u64) {
        self.each_word(address, bytes, |word, mask| {
            word.fetch_or(mask, Ordering::Relaxed);
            false
        });
    }

    /// Whether there is a byte among them that nobody has written, as far as that is followed.
    pub(crate) fn is_unwritten(&self, address: u64, bytes: u64) -> bool {
        self.each_word(address, bytes, |word, mask| word.load(Ordering::Relaxed) & mask != mask)
    }

    /// Calls `f` with words and the bits in them that stand for these bytes, until it says that it knows enough; whether it did.
    fn each_word(&self, address: u64, bytes: u64, mut f: impl FnMut(&AtomicU64, u64) -> bool) -> bool {
        let Some(end) = address.checked_add(bytes).filter(|end| *end > address) else { return false };
        for (range, live) in self.live.overlapping(address..end) {
            let Some(words) = &live.written else { continue };
            let (from, to) = (address.max(range.start) - range.start, end.min(range.end) - range.start);
            for at in from / 64..to.div_ceil(64) {
                let low = from.saturating_sub(at * 64).min(63);
                let high = (to - at * 64).min(64);
                let mask = (u64::MAX >> (64 - (high - low))) << low;
                if words.get(at as usize).is_some_and(|word| f(word, mask)) {
                    return true;
                }
            }
        }
        false
    }

    /// Why kernels must not access bytes, and what is known of the place.
    pub(crate) fn why(&self, address: u64, bytes: u64) -> (&'static str, Option<String>) {
        let live = self.live.get(address).filter(|(_, live)| live.memory.addressed);
        if live.is_none()
            && let Some((range, memory)) = self.freed.iter().rev().find(|(range, _)| range.contains(&address))
        {
            let detail = format!("{} bytes into {} that was freed", address - range.start, allocation(range, *memory));
            return ("of freed memory", Some(detail));
        }
        if address < NULL_BYTES {
            return ("through a null pointer", None);
        }
        match live {
            Some((range, live)) => {
                let beyond = address.saturating_add(bytes).saturating_sub(range.end);
                let detail = format!("the last {beyond} of them behind the end of {}", allocation(&range, live.memory));
                ("out of bounds", Some(detail))
            }
            None => ("out of bounds", self.near(address)),
        }
    }

    /// Where an address lies, told by the nearest allocation.
    pub(crate) fn near(&self, address: u64) -> Option<String> {
        let nearest = self.live.nearest(address);
        let told = |(range, live): (Range<u64>, &Live)| {
            format!("{} {}", bearing(address, &range), allocation(&range, live.memory))
        };
        Some(nearest.map_or_else(|| "nothing is allocated".to_owned(), told))
    }

    /// As [`Ledger::near`], if there is something at the address.
    pub(crate) fn near_if_any(&self, address: u64) -> Option<String> {
        self.live.get(address).and_then(|_| self.near(address))
    }
}

fn allocation(range: &Range<u64>, memory: Memory) -> String {
    format!("{} bytes at {:#x} ({})", range.end - range.start, range.start, memory.name)
}
