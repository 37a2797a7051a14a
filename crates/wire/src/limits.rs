//! Limits of the protocol, each with the attack that it stops.

/// Bytes of the ring from client to daemon: eight launches with every parameter used; small enough to stay in a cache.
pub const COMMAND_RING_BYTES: usize = 256 * 1024;

/// Bytes of the ring from daemon to client.
pub const ANSWER_RING_BYTES: usize = 64 * 1024;

/// Longest body of one fragment. Both rings carry it whole.
pub const FRAGMENT_BYTES: usize = 16 * 1024;

/// Longest request, PTX included. Without it a client could make the daemon assemble fragments until memory is gone.
pub const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Longest part of a request that is not PTX. Names of a few bytes become strings of many: without it a list of variables as
/// long as a request may be would take gigabytes once it is read.
pub const MAX_HEAD_BYTES: usize = 1 << 20;

/// Longest answer. Without it a broken daemon could do the same to a client.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Most commands in one frame. Without it one frame of tiny commands could hold a session's thread for long; the client
/// splits longer batches.
pub const MAX_COMMANDS: usize = 4096;

/// Bytes of the staging area for copies of pageable memory, unless larger blocks are wanted.
pub const STAGING_BYTES: usize = 4 << 20;

/// Largest staging area: two of the largest blocks. Without it one session could make the daemon map anything.
pub const MAX_STAGING_BYTES: usize = 256 << 20;

/// Bytes of one block of it: small enough that what one side has copied in is still in the cache when the other side
/// copies it out, large enough to hide the hand-over.
pub const STAGING_BLOCK: usize = 512 << 10;

/// Smallest block: what one costs besides copying is still small, and answers for a whole area of them find room in their ring.
pub const MIN_STAGING_BLOCK: usize = 64 << 10;

/// Bytes of a copy in one frame, where copies go in frames. Both sides keep a buffer of that length, however long the copy.
pub const PIECE_BYTES: usize = 64 << 10;

/// Most GPUs of a tenant: as many as there is room for in one range of addresses. Without it a broken daemon could make a client open
/// sessions for ever.
pub const MAX_GPUS: u32 = 16;

/// Longest hello. Without it a stranger could make the control process buffer anything.
pub const MAX_HELLO_BYTES: usize = 256;

/// Longest reply to a hello.
pub const MAX_REPLY_BYTES: usize = 16 * 1024;

/// Most processes of a GPU in a standing. Without it a tenant's many processes would make an answer that no socket carries.
pub const MAX_STANDING_PROCESSES: usize = 128;

/// Longest standing: as many GPUs as there may be, each with as many processes. Without it a broken daemon could make a client
/// keep anything.
pub const MAX_STANDING_BYTES: usize = 64 * 1024;

/// Longest text of a refusal; a daemon's message is shown to users, so it must not be a flood.
pub const MAX_REASON_BYTES: usize = 1024;

/// Where behind the statistics' offset the client counts, u64 each: calls that its library answered without a word to the daemon.
pub const CALLS_LOCAL_AT: usize = 0;
/// Frames sent.
pub const MESSAGES_AT: usize = 8;
/// Bytes that its library copied itself into GPU memory that is shown.
pub const COPIED_IN_AT: usize = 16;
/// The same, out of it.
pub const COPIED_OUT_AT: usize = 24;
/// Times that it waited for an answer.
pub const ROUND_TRIPS_AT: usize = 32;
/// Nanoseconds that it copied, with the feature `TIMED`.
pub const COPY_NS_AT: usize = 40;
/// Nanoseconds that it waited, for the daemon's answers or for the GPU's work, with the feature `TIMED`.
pub const WAIT_NS_AT: usize = 48;
/// Calls for which its library sent something.
pub const CALLS_SENT_AT: usize = 56;

/// Where the daemon's notices lie behind the client's statistics, bytes: in a cache line of their own.
pub const NOTICES_AT: usize = 64;
/// Where behind them the daemon stores a u32 other than 0 before it takes anything away from a session that ends.
pub const ENDED_AT: usize = NOTICES_AT + 8;

const _: () = assert!(MIN_STAGING_BLOCK * 2 <= STAGING_BYTES && STAGING_BLOCK * 2 <= STAGING_BYTES);
const _: () = assert!(MAX_GPUS as usize * (MAX_STANDING_PROCESSES * 20 + 512) < MAX_STANDING_BYTES);
const _: () = assert!(PIECE_BYTES + 64 < COMMAND_RING_BYTES / 2, "a frame carries a piece");
const _: () = assert!(CALLS_SENT_AT + 8 <= NOTICES_AT, "what the client writes ends before what the daemon writes");
