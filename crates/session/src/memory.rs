//! The memory that a session shares with its client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hostmem::{Mapping, Memfd};
use transport::{Consumer, Producer, ring};
use wire::limits::{
    ANSWER_RING_BYTES, CALLS_LOCAL_AT, CALLS_SENT_AT, COMMAND_RING_BYTES, COPIED_IN_AT, COPIED_OUT_AT, COPY_NS_AT,
    ENDED_AT, MAX_STAGING_BYTES, MESSAGES_AT, NOTICES_AT, ROUND_TRIPS_AT, WAIT_NS_AT,
};

use crate::broker::Notices;

const COMMANDS_AT: usize = 0;
const ANSWERS_AT: usize = (COMMANDS_AT + ring::bytes(COMMAND_RING_BYTES)).next_multiple_of(4096);
const STATISTICS_AT: usize = (ANSWERS_AT + ring::bytes(ANSWER_RING_BYTES)).next_multiple_of(4096);
const AREA_BYTES: usize = STATISTICS_AT + 4096;

const _: () = assert!(AREA_BYTES <= u32::MAX as usize, "the welcome tells places in it by 32 bits");
const _: () = assert!(ENDED_AT + 4 <= 4096, "statistics and notices have a page");
const _: () = assert!(MAX_STAGING_BYTES <= u32::MAX as usize, "transfers tell places in it by 32 bits");

/// Rings, statistics and staging area of one session.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    area: Arc<Mapping>,
    pub(crate) staging: Mapping,
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // The client may keep its descriptor; the pages that we have made are charged to it no longer.
        self.staging.discard();
    }
}

impl SharedMemory {
    /// With a staging area of so many bytes, and the files of area and staging: only the client needs them, and nobody when it has
    /// mapped them.
    pub(crate) fn create(staging_bytes: usize) -> io::Result<(SharedMemory, [Memfd; 2])> {
        let area_file = Memfd::create("sundial-rings", AREA_BYTES as u64)?;
        let staging_file = Memfd::create("sundial-staging", staging_bytes as u64)?;
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

    /// Bytes of the staging area.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.staging.len()
    }

    /// Offset and capacity of the ring to the daemon, of the ring to the client, and the offset of the statistics.
    pub(crate) fn layout() -> ((u32, u32), (u32, u32), u32) {
        // Asserted below.
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
    fn word(&self, at: usize) -> u64 {
        self.area.u64_at(STATISTICS_AT + at).load(Ordering::Relaxed)
    }

    /// Calls that the client's library answered itself, and messages that it sent.
    pub(crate) fn calls(&self) -> (u64, u64) {
        (self.word(CALLS_LOCAL_AT), self.word(MESSAGES_AT))
    }

    /// Bytes that the client's library copied itself into GPU memory that is shown to it, and out of it.
    pub(crate) fn copied(&self) -> (u64, u64) {
        (self.word(COPIED_IN_AT), self.word(COPIED_OUT_AT))
    }

    /// What it says of its ways.
    pub(crate) fn remoting(&self) -> Remoting {
        Remoting {
            calls_sent: self.word(CALLS_SENT_AT),
            round_trips: self.word(ROUND_TRIPS_AT),
            copy_ns: self.word(COPY_NS_AT),
            wait_ns: self.word(WAIT_NS_AT),
        }
    }
}

/// What a client's library says of how it came to the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remoting {
    /// Calls of the program for which it sent something.
    pub calls_sent: u64,
    /// Times that it waited for an answer.
    pub round_trips: u64,
    /// Nanoseconds that it copied; 0 unless times are counted (`TIMED`).
    pub copy_ns: u64,
    /// Nanoseconds that it waited, for the daemon or the GPU; the same.
    pub wait_ns: u64,
}
