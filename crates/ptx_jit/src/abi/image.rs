//! Operands and results of an access to textures or surfaces, and operands of a bulk copy, as machine code hands them over: a row for each, of the lanes of a
//! chunk, one behind another.

use ptx::tensor::{MAX_ADDRESSES, MAX_WORDS, Transfer};
use serde::{Deserialize, Serialize};
use texture::Access;

/// Most bytes of a lane in all rows: the handle, coordinates of a gradient with offsets or values, and results.
pub(crate) const LANE_BYTES: u32 = 8 + 4 * (texture::MAX_SOURCES as u32) + 8 * (texture::MAX_RESULTS as u32);

const _: () = assert!(8 + 4 * MAX_WORDS + 8 * MAX_ADDRESSES <= LANE_BYTES as usize);

/// An access to textures or surfaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) access: Access,
    pub(crate) rows: Rows,
}

/// Where the rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Rows {
    /// Rows of 32 bits behind the handles, which take 64.
    pub(crate) words: usize,
    /// Values to store, and bytes of each: 4 or 8.
    pub(crate) values: usize,
    pub(crate) value: usize,
    /// Results, and bytes of each: 4 or 8.
    pub(crate) results: usize,
    pub(crate) result: usize,
    pub(crate) lanes: usize,
}

impl Rows {
    /// Of a bulk copy: the address it begins with is where a handle is, words and addresses behind it.
    pub(crate) fn of_transfer(transfer: &Transfer, lanes: usize) -> Rows {
        let (words, values) = transfer.sources();
        Rows { words, values, value: 8, results: 0, result: 4, lanes }
    }

    pub(crate) fn new(access: &Access, lanes: usize) -> Rows {
        let (words, values, value) = access.sources();
        let (results, result) = access.results();
        let wide = |bytes: u8| usize::from(bytes).max(4);
        Rows { words, values, value: wide(value), results, result: wide(result), lanes }
    }

    /// Bytes from the begin to row `i` of the words.
    pub(crate) fn word(&self, i: usize) -> usize {
        self.lanes * (8 + 4 * i)
    }

    /// To row `i` of the values.
    pub(crate) fn value(&self, i: usize) -> usize {
        self.word(self.words) + self.lanes * self.value * i
    }

    /// To row `i` of the results.
    pub(crate) fn result(&self, i: usize) -> usize {
        self.value(self.values) + self.lanes * self.result * i
    }
}
