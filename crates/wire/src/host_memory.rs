//! Where a client's host memory lies: one message on the socket after the answer to each `Alloc` of host memory.
//!
//! ```text
//!   0  u32 allocation     4  u32 number of the memory file     8  u64 offset in it
//! ```
//!
//! The file that shows allocations in VRAM (`Shown`) comes by such a message as well, after the first of these answers.
//!
//! Small allocations share files. A file's descriptor goes with the first message that names its number; both sides forget the
//! number with the last allocation in the file.

use gpu::AllocId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;

/// Where an allocation of host memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPlace {
    /// The allocation that was asked about.
    pub id: AllocId,
    /// The daemon's number for the memory file.
    pub file: u32,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Message {
    id: U32,
    file: U32,
    offset: U64,
}

impl HostPlace {
    /// Number of the file that shows allocations in VRAM; no host memory lies in it.
    pub const APERTURE: u32 = u32::MAX;

    /// Length of the message.
    pub const BYTES: usize = size_of::<Message>();

    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(Message { id: self.id.0.into(), file: self.file.into(), offset: self.offset.into() })
    }

    /// As it was received.
    ///
    /// # Errors
    /// If it has another length.
    pub fn decode(message: &[u8]) -> Result<HostPlace, WireError> {
        let message =
            Message::read_from_bytes(message).map_err(|_| WireError::Length { what: "host memory's place" })?;
        Ok(HostPlace { id: AllocId(message.id.get()), file: message.file.get(), offset: message.offset.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_fixed() {
        let place = HostPlace { id: AllocId(0x0403_0201), file: 5, offset: 0x1000 };
        let bytes = [1, 2, 3, 4, 5, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        assert_eq!(place.encode(), bytes);
        assert_eq!(HostPlace::decode(&bytes), Ok(place));
        assert!(HostPlace::decode(&bytes[1..]).is_err());
    }
}
