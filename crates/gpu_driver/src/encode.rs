//! Commands as words of a pushbuffer.
//!
//! Two engines work for a channel, one after the other: compute (with its inline-to-memory unit) and copy. Commands of a
//! queue take effect in order, so before an engine begins, the host waits for the other; within an engine the class's own
//! means keep the order.

use gpu::Compare;
use gpu_spec::compute;
use gpu_spec::copy::{self, launch_dma, remap};
use gpu_spec::host::{self, Header, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY, sem_execute};

/// Most words of one encoded piece, inline data not counted.
pub(crate) const MAX_WORDS: usize = 32;
/// Most bytes written by one inline transfer: a piece that always fits the pushbuffer.
pub(crate) const INLINE_PIECE: usize = 16 << 10;
/// Most bytes in a line of a copy, and elements in a line of a fill: the class counts in 32 bits.
pub(crate) const MAX_LINE: u64 = 1 << 30;
/// Most lines of a transfer, and the largest pitch.
pub(crate) const MAX_LINES: u64 = 1 << 30;

/// Which engine may still be working for a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    None,
    Compute,
    Copy,
}

/// A transfer of at most [`MAX_LINE`] × [`MAX_LINES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub(crate) dst: u64,
    pub(crate) dst_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// Writes methods of one channel.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// Encoded, not yet in the pushbuffer.
    pub(crate) words: Vec<u32>,
    engine: Engine,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder { words: Vec::with_capacity(64), engine: Engine::None }
    }

    /// Binds the classes: the first words of a channel.
    pub(crate) fn bind(&mut self) {
        self.inc(SUBCHANNEL_COMPUTE, host::SET_OBJECT, &[compute::TURING_COMPUTE_A]);
        self.inc(SUBCHANNEL_COPY, host::SET_OBJECT, &[copy::TURING_DMA_COPY_A]);
    }

    /// Runs the launch descriptor at `qmd`.
    pub(crate) fn launch(&mut self, qmd: u64) {
        self.begin_compute();
        self.inc(SUBCHANNEL_COMPUTE, compute::SEND_PCAS_A, &[(qmd >> 8) as u32]);
        let schedule = compute::pcas_b::INVALIDATE.of(1) | compute::pcas_b::SCHEDULE.of(1);
        self.immediate(SUBCHANNEL_COMPUTE, compute::SEND_SIGNALING_PCAS_B, schedule);
    }

    /// Makes the device read programs again.
    pub(crate) fn invalidate_programs(&mut self) {
        self.begin_compute();
        let what = compute::invalidate::INSTRUCTION.of(1) | compute::invalidate::CONSTANT.of(1);
        self.immediate(SUBCHANNEL_COMPUTE, compute::INVALIDATE_SHADER_CACHES, what);
    }

    /// Copies lines.
    pub(crate) fn copy(&mut self, to: Transfer, src: u64, src_pitch: u64) {
        self.begin_copy();
        self.offsets(to, src, src_pitch);
        self.start_copy(to.height, 0);
    }

    /// Fills lines of `width` elements of `bytes` bytes.
    pub(crate) fn fill(&mut self, to: Transfer, value: u32, bytes: u32) {
        self.begin_copy();
        let components = remap::DST_X.of(remap::CONST_A)
            | remap::DST_Y.of(remap::NO_WRITE)
            | remap::DST_Z.of(remap::NO_WRITE)
            | remap::DST_W.of(remap::NO_WRITE)
            | remap::COMPONENT_SIZE.of(bytes - 1);
        self.inc(SUBCHANNEL_COPY, copy::SET_REMAP_CONST_A, &[value, 0, components]);
        self.offsets(to, to.dst, to.dst_pitch);
        self.start_copy(to.height, launch_dma::REMAP.of(1));
    }

    /// Writes at most [`INLINE_PIECE`] bytes.
    pub(crate) fn write(&mut self, dst: u64, data: &[u8]) {
        self.begin_compute();
        let [hi, lo] = split(dst);
        let bytes = data.len() as u32;
        self.inc(SUBCHANNEL_COMPUTE, compute::LINE_LENGTH_IN, &[bytes, 1, hi, lo]);
        let flags = compute::launch_dma::DST_LAYOUT_PITCH.of(1)
            | compute::launch_dma::COMPLETION_TYPE.of(compute::launch_dma::COMPLETION_FLUSH);
        self.inc(SUBCHANNEL_COMPUTE, compute::LAUNCH_DMA, &[flags]);
        let words = bytes.div_ceil(4);
        self.words.push(Header::new(Header::OP_NON_INC, SUBCHANNEL_COMPUTE, compute::LOAD_INLINE_DATA, words).0);
        self.words.extend(data.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        }));
    }

    /// After all before it: stores a payload, and the time if `timestamp`, and raises the interrupt.
    pub(crate) fn signal(&mut self, at: u64, value: u64, timestamp: bool) {
        let operation = sem_execute::OPERATION.of(sem_execute::RELEASE)
            | sem_execute::RELEASE_WFI.of(1)
            | sem_execute::PAYLOAD_64.of(1)
            | sem_execute::RELEASE_TIMESTAMP.of(timestamp.into());
        self.semaphore(at, value, operation);
        self.immediate(SUBCHANNEL_COMPUTE, host::NON_STALL_INTERRUPT, 0);
        self.engine = Engine::None;
    }

    /// Holds the channel until the value at `at` is at least `value`.
    pub(crate) fn wait(&mut self, at: u64, value: u64) {
        let operation = sem_execute::OPERATION.of(sem_execute::ACQ_STRICT_GEQ)
            | sem_execute::ACQUIRE_SWITCH_TSG.of(1)
            | sem_execute::PAYLOAD_64.of(1);
        self.semaphore(at, value, operation);
    }

    /// After all before it: stores a word, and nothing else.
    pub(crate) fn write_value(&mut self, at: u64, value: u64, wide: bool) {
        let operation = sem_execute::OPERATION.of(sem_execute::RELEASE)
            | sem_execute::RELEASE_WFI.of(1)
            | sem_execute::PAYLOAD_64.of(wide.into());
        self.semaphore(at, value, operation);
        self.engine = Engine::None;
    }

    /// Holds the channel until the word at `at` compares with `value`.
    pub(crate) fn wait_value(&mut self, at: u64, value: u64, wide: bool, compare: Compare) {
        let operation = match compare {
            Compare::CyclicGeq => sem_execute::ACQ_CIRC_GEQ,
            Compare::Equal => sem_execute::ACQUIRE,
            Compare::And => sem_execute::ACQ_AND,
            Compare::Nor => sem_execute::ACQ_NOR,
        };
        let value = if wide { value } else { value & u64::from(u32::MAX) };
        let operation = sem_execute::OPERATION.of(operation)
            | sem_execute::ACQUIRE_SWITCH_TSG.of(1)
            | sem_execute::PAYLOAD_64.of(wide.into());
        self.semaphore(at, value, operation);
    }

    fn semaphore(&mut self, at: u64, value: u64, operation: u32) {
        let [hi, lo] = split(at);
        let words = [lo, hi, value as u32, (value >> 32) as u32, operation];
        self.inc(SUBCHANNEL_COMPUTE, host::SEM_ADDR_LO, &words);
    }

    fn begin_compute(&mut self) {
        match self.engine {
            Engine::None => {}
            Engine::Compute => self.immediate(SUBCHANNEL_COMPUTE, compute::WAIT_FOR_IDLE, 0),
            Engine::Copy => self.immediate(SUBCHANNEL_COMPUTE, host::WFI, 0),
        }
        self.engine = Engine::Compute;
    }

    fn begin_copy(&mut self) {
        if self.engine == Engine::Compute {
            self.immediate(SUBCHANNEL_COMPUTE, host::WFI, 0);
        }
        self.engine = Engine::Copy;
    }

    fn offsets(&mut self, to: Transfer, src: u64, src_pitch: u64) {
        let ([src_hi, src_lo], [dst_hi, dst_lo]) = (split(src), split(to.dst));
        let words =
            [src_hi, src_lo, dst_hi, dst_lo, src_pitch as u32, to.dst_pitch as u32, to.width as u32, to.height as u32];
        self.inc(SUBCHANNEL_COPY, copy::OFFSET_IN_UPPER, &words);
    }

    fn start_copy(&mut self, lines: u64, more: u32) {
        let flags = launch_dma::DATA_TRANSFER_TYPE.of(launch_dma::TRANSFER_NON_PIPELINED)
            | launch_dma::FLUSH.of(1)
            | launch_dma::SRC_LAYOUT_PITCH.of(1)
            | launch_dma::DST_LAYOUT_PITCH.of(1)
            | launch_dma::MULTI_LINE.of((lines > 1).into())
            | more;
        self.inc(SUBCHANNEL_COPY, copy::LAUNCH_DMA, &[flags]);
    }

    fn inc(&mut self, subchannel: u32, method: u32, data: &[u32]) {
        self.words.push(Header::new(Header::OP_INC, subchannel, method, data.len() as u32).0);
        self.words.extend_from_slice(data);
    }

    fn immediate(&mut self, subchannel: u32, method: u32, value: u32) {
        self.words.push(Header::new(Header::OP_IMMEDIATE, subchannel, method, value).0);
    }
}

/// Upper and lower word.
fn split(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

/// The largest pieces of a transfer of `width` × `height` that the class can do at once: column, line, width, height of
/// each. `pitch` is the larger of the two.
pub(crate) fn pieces(width: u64, height: u64, pitch: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let lines = if pitch >= MAX_LINES { 1 } else { MAX_LINES };
    (0..height.div_ceil(lines)).flat_map(move |row| {
        (0..width.div_ceil(MAX_LINE)).map(move |column| {
            let (x, y) = (column * MAX_LINE, row * lines);
            (x, y, (width - x).min(MAX_LINE), (height - y).min(lines))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_wait_for_each_other() {
        let wfi = Header::new(Header::OP_IMMEDIATE, SUBCHANNEL_COMPUTE, host::WFI, 0).0;
        let idle = Header::new(Header::OP_IMMEDIATE, SUBCHANNEL_COMPUTE, compute::WAIT_FOR_IDLE, 0).0;
        let mut encoder = Encoder::new();
        let line = Transfer { dst: 0x1_0000_0000, dst_pitch: 64, width: 64, height: 1 };
        encoder.launch(0x7f00_0000_0100);
        assert!(!encoder.words.contains(&wfi) && !encoder.words.contains(&idle));
        encoder.words.clear();
        encoder.launch(0x7f00_0000_0200);
        assert_eq!(encoder.words[0], idle);
        encoder.words.clear();
        encoder.copy(line, 0x2000, 64);
        assert_eq!(encoder.words[0], wfi);
        assert!(encoder.words.len() <= MAX_WORDS);
        encoder.words.clear();
        encoder.fill(line, 1, 4);
        assert!(!encoder.words.contains(&wfi));
        assert!(encoder.words.len() <= MAX_WORDS);
        encoder.words.clear();
        encoder.write(0x3000, &[1, 2, 3, 4, 5]);
        assert_eq!(encoder.words[0], wfi);
        assert_eq!(encoder.words[encoder.words.len() - 2..], [0x0403_0201, 5]);
        encoder.signal(0x4000, 1, true);
        encoder.words.clear();
        encoder.launch(0x7f00_0000_0100);
        assert!(!encoder.words.contains(&wfi) && !encoder.words.contains(&idle), "a signal has waited for all");
    }

    #[test]
    fn large_transfers_are_cut() {
        assert_eq!(pieces(10, 20, 10).collect::<Vec<_>>(), [(0, 0, 10, 20)]);
        let whole: Vec<_> = pieces(MAX_LINE * 2 + 1, 1, MAX_LINE * 2 + 1).collect();
        assert_eq!(whole, [(0, 0, MAX_LINE, 1), (MAX_LINE, 0, MAX_LINE, 1), (MAX_LINE * 2, 0, 1, 1)]);
        assert_eq!(pieces(4, 3, MAX_LINES).count(), 3, "a pitch that does not fit makes every line its own");
        assert_eq!(pieces(0, 3, 4).count(), 0);
    }
}
