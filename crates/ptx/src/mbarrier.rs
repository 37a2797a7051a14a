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
pub(crate) const COUNT: u64 = (1 << 20) - 1;
/// Lowest bit of the expected arrivals.
pub(crate) const EXPECTED: u64 = 20;
/// The bit that is turned over with each phase.
pub(crate) const PHASE: u64 = 40;
/// Lowest bit of the bytes.
pub(crate) const BYTES: u64 = 41;

/// The object when so many bytes have been transferred: the phase is over if nothing else is awaited.
pub(crate) fn transferred(object: u64, bytes: u64) -> u64 {
    let after = object.wrapping_sub(bytes << BYTES);
    if after & (COUNT | !0 << BYTES) != 0 {
        return after;
    }
    (after ^ 1 << PHASE) + (after >> EXPECTED & COUNT)
}
