//! What a queue does.

use crate::{DevAddr, ModuleId, SlotId};

/// Asynchronous work of a queue. Borrowed: what it carries is copied at submission.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Command<'a> {
    /// Runs a kernel.
    Launch {
        /// A module that the client has loaded.
        module: ModuleId,
        /// Kernel, an index in [`crate::ModuleInfo::kernels`].
        kernel: u32,
        /// CTAs in x, y, z.
        grid: [u32; 3],
        /// Threads in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory, bytes.
        shared_bytes: u32,
        /// All CTAs must be able to wait for each other.
        cooperative: bool,
        /// CTAs of a cluster in x, y, z; of `[1; 3]` as many as the kernel says, which is one by itself if it says none.
        cluster: [u32; 3],
        /// The parameter block.
        params: &'a [u8],
    },
    /// Copies `height` lines of `width` bytes between mapped addresses.
    Copy {
        /// First byte of the first line that is written.
        dst: DevAddr,
        /// First byte of the first line that is read.
        src: DevAddr,
        /// Bytes in a line.
        width: u64,
        /// How many lines; those of source and destination may lie at different distances.
        height: u64,
        /// Bytes from line to line at the destination.
        dst_pitch: u64,
        /// Bytes from line to line at the source.
        src_pitch: u64,
    },
    /// Fills `height` lines with `width` elements.
    Fill {
        /// First element of the first line.
        dst: DevAddr,
        /// The element, in the low bytes.
        value: u32,
        /// Bytes of an element: 1, 2 or 4.
        element: u32,
        /// Elements in a line.
        width: u64,
        /// How many lines.
        height: u64,
        /// Bytes from line to line.
        pitch: u64,
    },
    /// Writes bytes, at most [`crate::MAX_INLINE_BYTES`].
    Write {
        /// First byte that is written.
        dst: DevAddr,
        /// The bytes, copied at submission.
        data: &'a [u8],
    },
    /// After all before it: stores `value` and the GPU's time into a slot and interrupts.
    Signal {
        /// A slot of [`crate::SemaphoreArea`].
        slot: SlotId,
        /// More than the slot has ever held: payloads only grow.
        value: u64,
    },
    /// Holds the queue until a slot's payload is at least `value`.
    Wait {
        /// A slot of [`crate::SemaphoreArea`]; whoever signals it, queue or host.
        slot: SlotId,
        /// The least payload that lets the queue go on.
        value: u64,
    },
    /// After all before it: stores a word in mapped memory at once, so that nobody sees half of it.
    WriteValue {
        /// Where; a multiple of the word's size.
        at: DevAddr,
        /// The word, in the low bytes.
        value: u64,
        /// 8 bytes rather than 4.
        wide: bool,
    },
    /// Holds the queue until a word in mapped memory compares with `value`; whoever may store it: this or another GPU's work,
    /// or the host.
    WaitValue {
        /// Where; a multiple of the word's size.
        at: DevAddr,
        /// What it is compared with, in the low bytes.
        value: u64,
        /// 8 bytes rather than 4.
        wide: bool,
        /// When the queue goes on.
        compare: Compare,
    },
}

/// How [`Command::WaitValue`] compares: as `cuStreamWaitValue` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The word is at least the value, by the sign of their difference.
    CyclicGeq,
    /// They are equal.
    Equal,
    /// They have a bit in common.
    And,
    /// A bit is in neither.
    Nor,
}

impl Compare {
    /// Whether the wait is over when `word` is in memory.
    #[must_use]
    pub fn holds(self, word: u64, value: u64, wide: bool) -> bool {
        let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
        match self {
            Compare::CyclicGeq if wide => word.wrapping_sub(value).cast_signed() >= 0,
            // Cut to 32 bits.
            Compare::CyclicGeq => (word as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Compare::Equal => word & mask == value & mask,
            Compare::And => word & value & mask != 0,
            Compare::Nor => !(word | value) & mask != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_compare_as_documented() {
        let narrow = 0xffff_fff0;
        for (compare, word, value, wide, expected) in [
            (Compare::CyclicGeq, 5, 5, true, true),
            (Compare::CyclicGeq, 4, 5, true, false),
            (Compare::CyclicGeq, 3, narrow, false, true),
            (Compare::CyclicGeq, 3, narrow, true, false),
            (Compare::CyclicGeq, 3, u64::MAX - 3, true, true),
            (Compare::Equal, 7, 7 | 1 << 40, false, true),
            (Compare::Equal, 7, 7 | 1 << 40, true, false),
            (Compare::And, 6, 2, true, true),
            (Compare::And, 1 << 40, 1 << 40, false, false),
            (Compare::Nor, 0xffff_ff00, 0x7f, false, true),
            (Compare::Nor, 0xffff_ff00, 0xff, false, false),
            (Compare::Nor, 0xffff_ff00, 0xff, true, true),
        ] {
            assert_eq!(compare.holds(word, value, wide), expected, "{compare:?} {word:#x} {value:#x} {wide}");
        }
    }
}
