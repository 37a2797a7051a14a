//! The memory that a session shares with its client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hostmem::{Mapping, Memfd};
use transport::{Consumer, Producer, ring};
use wire::limits::{ANSWER_RING_BYTES, COMMAND_RING_BYTES, ENDED_AT, NOTICES_AT, STAGING_BYTES};

use crate::broker::Notices;

const COMMANDS_AT: usize = 0;
const ANSWERS_AT: usize = (COMMANDS_AT + ring::bytes(COMMAND_RING_BYTES)).next_multiple_of(4096);
const STATISTICS_AT: usize = (ANSWERS_AT + ring::bytes(ANSWER_RING_BYTES)).next_multiple_of(4096);
const AREA_BYTES: usize = STATISTICS_AT + 4096;

/// Rings, statistics and staging area of one session.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    area: Arc<Mapping>,
    pub(crate) staging: Mapping,
}

impl SharedMemory {
    /// With the files of area and staging: only the client needs them, and nobody when it has mapped them.
    pub(crate) fn create() -> io::Result<(SharedMemory, [Memfd; 2])> {
        let area_file = Memfd::create("sundial-rings", AREA_BYTES as u64)?;
        let staging_file = Memfd::create("sundial-staging", STAGING_BYTES as u64)?;
        let area = Arc::new(area_file.map()?);
        let staging = staging_file.map()?;
        Ok((SharedMemory { area, staging }, [area_file, staging_file]))
    }

    pub(crate) fn commands(&self) -> Consumer {
        Consumer::new(Arc::clone(&self.area), COMMANDS_AT, COMMAND_RING_BYTES)
    }

    pub(crate) fn answers(&self) -> Producer {
        Producer::new(Arc::clone(&self.area), ANSWERS_AT, ANSWER_RING_BYTES)
    }

    /// Offset and capacity of the ring to the daemon, of the ring to the client, and the offset of the statistics.
    pub(crate) fn layout() -> ((u32, u32), (u32, u32), u32) {
        // All far below 2^32.
        let small = |value: usize| value as u32;
        (
            (small(COMMANDS_AT), small(COMMAND_RING_BYTES)),
            (small(ANSWERS_AT), small(ANSWER_RING_BYTES)),
            small(STATISTICS_AT),
        )
    }

    /// Where the client reads what is new.
    pub(crate) fn notices(&self) -> Arc<Notices> {
        Notices::new(Arc::clone(&self.area), STATISTICS_AT + NOTICES_AT)
    }

    /// Tells the client that nothing of what it sees is its own any more.
    pub(crate) fn say_ended(&self) {
        self.area.u32_at(STATISTICS_AT + ENDED_AT).store(1, Ordering::SeqCst);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics { area: Arc::clone(&self.area) }
    }
}

/// What a client says of itself; shown to people, believed by nothing.
#[derive(Debug, Clone)]
pub(crate) struct Statistics {
    area: Arc<Mapping>,
}

impl Statistics {
    /// Calls that the client's library answered itself, and messages that it sent.
    pub(crate) fn calls(&self) -> (u64, u64) {
        let word = |at| self.area.u64_at(at).load(Ordering::Relaxed);
        (word(STATISTICS_AT), word(STATISTICS_AT + 8))
    }

    /// Bytes that the client's library copied itself into GPU memory that is shown to it, and out of it.
    pub(crate) fn copied(&self) -> (u64, u64) {
        let word = |at| self.area.u64_at(at).load(Ordering::Relaxed);
        (word(STATISTICS_AT + 16), word(STATISTICS_AT + 24))
    }
}
