//! How a window's memory is written for the first time, and what is prepared for who does.

use crate::huge::{HUGE, is_begun, prepare};

/// Blocks of 2 MiB that are looked at for somebody new.
const LOOKS: usize = 32;
/// Blocks that are prepared for somebody new; and most of them at once, which take a millisecond or two.
const FIRST: usize = 2;
const MOST: usize = 4;

/// Those who write memory for the first time, from lower to higher addresses.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    writers: [Writer; 4],
    /// Which of them is replaced next.
    oldest: usize,
    /// Where others are looked for.
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// The block that it was seen in.
    block: usize,
    /// Address where what is prepared behind it ends.
    end: usize,
    /// How many blocks were prepared when it came to the end before.
    ahead: usize,
}

impl Growth {
    /// Looks for who has come to memory that is not prepared, and prepares what follows; `blocks` gives those that may be written, from an
    /// address on, as many as are asked for. It looks at a few places only, at others the next time. What it knows of blocks may be wrong
    /// by the time it asks for something there: it asks only.
    pub(crate) fn follow(&mut self, blocks: impl Fn(usize, usize) -> Vec<usize>) {
        let come_to = |end: usize| end != 0 && is_begun(end) && blocks(end, 1) == [end];
        let known = self.writers.iter().position(|writer| come_to(writer.end)).map(|i| (i, self.writers[i].end));
        let Some((i, block)) = known.or_else(|| self.look(&blocks)) else { return };
        let writer = &mut self.writers[i];
        writer.ahead = (2 * writer.ahead).clamp(FIRST, MOST);
        (writer.block, writer.end) = (block, block + HUGE);
        for block in blocks(writer.end, writer.ahead) {
            // Others' memory may lie between.
            if block != writer.end || !prepare(block) {
                break;
            }
            writer.end += HUGE;
        }
    }

    /// Looks for somebody new.
    fn look(&mut self, blocks: &impl Fn(usize, usize) -> Vec<usize>) -> Option<(usize, usize)> {
        let found = blocks(self.next, LOOKS);
        let block = found.iter().copied().find(|&block| {
            self.next = block + HUGE;
            is_begun(block) && self.writers.iter().all(|writer| writer.block != block)
        });
        let Some(block) = block else {
            if found.len() < LOOKS {
                self.next = 0;
            }
            return None;
        };
        let i = self.oldest;
        self.oldest = (i + 1) % self.writers.len();
        self.writers[i] = Writer::default();
        Some((i, block))
    }
}
