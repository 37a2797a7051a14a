//! Ranges of a 64-bit space: what is where, and what is free.
//!
//! Everything that manages addresses asks the same two questions, and gets the corner cases wrong in its own way each time:
//!
//! - [`IntervalMap`]: *what is at this address?* Disjoint half-open ranges, each with a value: mappings of an address space,
//!   what a window shows, allocations by address. A range can be cut out of it; what reaches beyond is split, and a value
//!   that says where in something the interval begins is moved along ([`IntervalMap::cut_with`]).
//! - [`FreeRanges`]: *where is room?* The free ranges of a space, joined where they touch; allocation at the best fit, at
//!   the lowest address, or at a given one, with alignment.
//!
//! The crate is pure: no I/O, no clock, no lock, no unsafe code. Costs are O(log n) for n ranges, and one step for each
//! range that is touched. What an owner of memory does wrong (giving back what is free) is a panic; what its clients ask for
//! (ranges that overlap, wrap around or are empty) is an answer.

mod free;
mod map;

pub use free::FreeRanges;
pub use map::{Cut, IntervalMap, Refused, bearing};
