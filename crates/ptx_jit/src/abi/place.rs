//! Which line of PTX machine code accesses a tenant's memory for, and which lanes: asked for once there was a fault, so code does nothing
//! for it.

use serde::{Deserialize, Serialize};

/// Lanes of a chunk that an instruction accesses memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lanes {
    /// One, or some: it is not known which.
    Any,
    /// This one.
    One(u32),
    /// One lane's bytes behind the other's, from this lane's on, which begin where the instruction's operand does.
    Run {
        first: u32,
        /// Bytes of a lane, a power of two up to 16.
        bytes: u32,
    },
    /// One lane's bytes, so many, behind the other's; those of the first lane begin at [`super::context::Context::run`].
    OfRun { bytes: u32 },
}

/// Line and lanes, in a number: the form in which code generation carries them along. The line has 24 bits, so the compiler's number for
/// "nowhere" is none of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Place(pub(crate) u32);

/// Lines from there on have no number.
const MAX_LINE: u32 = (1 << 24) - 1;

impl Place {
    /// Of an instruction of which nobody knows what it is for: there should be none.
    pub(crate) const UNKNOWN: Place = Place(0);

    pub(crate) fn new(line: u32, lanes: Lanes) -> Place {
        let line = if line < MAX_LINE { line } else { 0 };
        let (lane, kind) = match lanes {
            Lanes::Any => (0, 0),
            Lanes::One(lane) => (lane, 1),
            Lanes::Run { first, bytes } => (first, 2 + bytes.trailing_zeros()),
            Lanes::OfRun { bytes } => (bytes.trailing_zeros(), 7),
        };
        Place(line << 8 | (lane & 31) << 3 | kind)
    }

    /// Line of PTX; 0 if unknown.
    pub(crate) fn line(self) -> u32 {
        self.0 >> 8
    }

    pub(crate) fn lanes(self) -> Lanes {
        let (lane, kind) = (self.0 >> 3 & 31, self.0 & 7);
        match kind {
            0 => Lanes::Any,
            1 => Lanes::One(lane),
            2..=6 => Lanes::Run { first: lane, bytes: 1 << (kind - 2) },
            _ => Lanes::OfRun { bytes: 1 << (lane & 7) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_and_lanes_come_back() {
        let runs = [1, 2, 4, 8, 16].map(|bytes| [Lanes::Run { first: 28, bytes }, Lanes::OfRun { bytes }]).concat();
        for lanes in [Lanes::Any, Lanes::One(0), Lanes::One(31)].into_iter().chain(runs) {
            for (line, told) in [(0, 0), (1, 1), (MAX_LINE - 1, MAX_LINE - 1), (MAX_LINE, 0), (u32::MAX, 0)] {
                let place = Place::new(line, lanes);
                assert_eq!((place.line(), place.lanes()), (told, lanes));
                assert_ne!(place.0, u32::MAX);
            }
        }
    }
}
