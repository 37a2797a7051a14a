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

/// Bytes of the staging area for copies of pageable memory.
pub const STAGING_BYTES: usize = 4 << 20;

/// Bytes of one block of it: small enough that what one side has copied in is still in the cache when the other side
/// copies it out, large enough to hide the hand-over.
pub const STAGING_BLOCK: usize = 512 << 10;

/// Longest hello. Without it a stranger could make the control process buffer anything.
pub const MAX_HELLO_BYTES: usize = 256;

/// Longest reply to a hello.
pub const MAX_REPLY_BYTES: usize = 16 * 1024;

/// Longest text of a refusal; a daemon's message is shown to users, so it must not be a flood.
pub const MAX_REASON_BYTES: usize = 1024;

/// Where the daemon's notices lie behind the client's statistics, bytes: in a cache line of their own.
pub const NOTICES_AT: usize = 64;
/// Where behind them the daemon stores a u32 other than 0 before it takes anything away from a session that ends.
pub const ENDED_AT: usize = NOTICES_AT + 8;
