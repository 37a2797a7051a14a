//! What the 64 bits of an mbarrier object say. To programs they are opaque.
//!
//! ```text
//!   63        41   40    39      20 19      0
//! +-------------+-------+----------+---------+
//! | bytes to be | phase | expected | pending |
//! | transferred |       | arrivals | arrivals|
//! +-------------+-------+----------+---------+
//! ```

/// Most arrivals of a phase.
pub const COUNT: u64 = (1 << 20) - 1;
/// Lowest bit of the expected arrivals.
pub const EXPECTED: u64 = 20;
/// The bit that is turned over with each phase.
pub const PHASE: u64 = 40;
/// Lowest bit of the bytes.
pub const BYTES: u64 = 41;

/// The object when `delta` has been added, by an arrival or otherwise: its phase is over if nothing is awaited any more, and the next
/// one awaits as many arrivals as are expected.
#[must_use]
pub fn added(object: u64, delta: u64) -> u64 {
    let after = object.wrapping_add(delta);
    if after & (COUNT | !0 << BYTES) != 0 {
        return after;
    }
    (after ^ 1 << PHASE) + (after >> EXPECTED & COUNT)
}

/// The object when so many bytes have been transferred.
pub(crate) fn transferred(object: u64, bytes: u64) -> u64 {
    added(object, (bytes << BYTES).wrapping_neg())
}
