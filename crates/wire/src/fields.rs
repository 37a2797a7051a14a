//! Values of requests, answers and the welcome as bytes: one after the other, little endian, nothing between them.
//!
//! | | |
//! |---|---|
//! | numbers | 4 or 8 bytes |
//! | truth | u32, 0 or 1 |
//! | text | u32 length in bytes, UTF-8 |
//! | list | u32 count, then that many |
//! | perhaps | u32, 0 or 1, then it if 1 |

use crate::WireError;

/// Appends values to a message, one after the other, little-endian, without padding.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Counts and lengths: nothing that we send has 2^32 of anything.
    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// Reads values; any bytes may stand there.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// `what` it is, for errors.
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub(crate) fn malformed(&self) -> WireError {
        WireError::Malformed { what: self.what }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| self.malformed())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u32s<const N: usize>(&mut self) -> Result<[u32; N], WireError> {
        let mut all = [0; N];
        for value in &mut all {
            *value = self.u32()?;
        }
        Ok(all)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, WireError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, WireError> {
        let bytes = self.u32()? as usize;
        let text = std::str::from_utf8(self.take(bytes)?).map_err(|_| self.malformed())?;
        Ok(text.to_owned())
    }

    /// A list whose items take at least `least` bytes each: a count that cannot be true is not believed.
    pub(crate) fn list<T>(
        &mut self,
        least: usize,
        mut item: impl FnMut(&mut Reader<'a>) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / least {
            return Err(self.malformed());
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// # Errors
    /// `Length` if anything is left.
    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Length { what: self.what }) }
    }
}
