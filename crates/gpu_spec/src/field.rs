//! Bit fields.

/// The bits `HI:LO` (both included) of a 32-bit or 64-bit word, as the manuals write them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    hi: u32,
    lo: u32,
}

impl Field {
    /// Bits `hi:lo`; `lo <= hi < 64`.
    #[must_use]
    pub const fn new(hi: u32, lo: u32) -> Field {
        assert!(lo <= hi && hi < 64, "a field is hi:lo inside a word");
        Field { hi, lo }
    }

    /// A single bit.
    #[must_use]
    pub const fn bit(at: u32) -> Field {
        Field::new(at, at)
    }

    /// Largest value that fits.
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (63 - (self.hi - self.lo))
    }

    /// The field's bits, set.
    #[must_use]
    pub const fn mask(self) -> u64 {
        self.max() << self.lo
    }

    /// `value` in the field's place; bits that do not fit are cut off.
    #[must_use]
    pub const fn of(self, value: u32) -> u32 {
        ((value as u64 & self.max()) << self.lo) as u32
    }

    /// `value` in the field's place of a 64-bit word; bits that do not fit are cut off.
    #[must_use]
    pub const fn of64(self, value: u64) -> u64 {
        (value & self.max()) << self.lo
    }

    /// The field's value in `word`.
    #[must_use]
    pub const fn get(self, word: u32) -> u32 {
        ((word as u64 >> self.lo) & self.max()) as u32
    }

    /// The field's value in a 64-bit `word`.
    #[must_use]
    pub const fn get64(self, word: u64) -> u64 {
        (word >> self.lo) & self.max()
    }

    /// True if the field is not zero in `word`.
    #[must_use]
    pub const fn is_set(self, word: u32) -> bool {
        self.get(word) != 0
    }

    /// `word` with the field replaced by `value`.
    #[must_use]
    pub const fn with(self, word: u32, value: u32) -> u32 {
        (word & !(self.mask() as u32)) | self.of(value)
    }

    /// A 64-bit `word` with the field replaced by `value`.
    #[must_use]
    pub const fn with64(self, word: u64, value: u64) -> u64 {
        (word & !self.mask()) | self.of64(value)
    }
}

#[cfg(test)]
mod tests {
    use super::Field;

    #[test]
    fn places_and_extracts() {
        let field = Field::new(11, 4);
        assert_eq!(field.mask(), 0xff0);
        assert_eq!(field.of(0x1ab), 0xab0);
        assert_eq!(field.get(0xfff_ab5), 0xab);
        assert_eq!(field.with(0xffff_ffff, 0), 0xffff_f00f);
        assert_eq!(Field::new(63, 0).of64(u64::MAX), u64::MAX);
        assert_eq!(Field::new(63, 32).get64(0x1234_5678_9abc_def0), 0x1234_5678);
        assert!(Field::bit(31).is_set(0x8000_0000));
    }
}
