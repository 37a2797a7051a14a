//! The launch descriptor, QMD version 2.3: 256 bytes, 256-byte aligned.
//!
//! Source: `classes/compute/clc5c0qmd.h`. Bit positions count over the whole descriptor, as there. What is not named here
//! must be zero.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Field;

/// A bit range of the descriptor, inside one 32-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QmdField {
    word: usize,
    field: Field,
}

impl QmdField {
    const fn new(hi: u32, lo: u32) -> QmdField {
        assert!(hi / 32 == lo / 32, "a field lies in one word");
        QmdField { word: (lo / 32) as usize, field: Field::new(hi % 32, lo % 32) }
    }

    /// Largest value that fits.
    #[must_use]
    pub const fn max(self) -> u32 {
        self.field.max() as u32
    }
}

/// A launch descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Qmd {
    words: [u32; 64],
}

impl Default for Qmd {
    fn default() -> Qmd {
        let mut qmd = Qmd { words: [0; 64] };
        qmd.set(Qmd::VERSION, 3);
        qmd.set(Qmd::MAJOR_VERSION, 2);
        qmd
    }
}

impl Qmd {
    /// Size, bytes.
    pub const BYTES: u64 = 256;
    /// A semaphore is released at the end.
    pub const RELEASE0_ENABLE: QmdField = QmdField::new(138, 138);
    /// At the end, and after releases, the descriptor at [`Qmd::DEPENDENT_QMD`] is scheduled.
    pub const DEPENDENT_QMD_SCHEDULE_ENABLE: QmdField = QmdField::new(141, 141);
    /// 1: that descriptor is a grid; 0: a queue.
    pub const DEPENDENT_QMD_TYPE_GRID: QmdField = QmdField::new(142, 142);
    /// 1: fields of this descriptor are copied to it.
    pub const DEPENDENT_QMD_FIELD_COPY: QmdField = QmdField::new(143, 143);
    /// CTAs in x.
    pub const CTA_RASTER_WIDTH: QmdField = QmdField::new(415, 384);
    /// CTAs in y.
    pub const CTA_RASTER_HEIGHT: QmdField = QmdField::new(431, 416);
    /// CTAs in z.
    pub const CTA_RASTER_DEPTH: QmdField = QmdField::new(463, 448);
    /// Address >> 8 of a descriptor that runs after this one.
    pub const DEPENDENT_QMD: QmdField = QmdField::new(511, 480);
    /// Shared memory of a CTA, static and dynamic, bytes.
    pub const SHARED_MEMORY_SIZE: QmdField = QmdField::new(561, 544);
    /// Minor version: 3.
    pub const VERSION: QmdField = QmdField::new(579, 576);
    /// Major version: 2.
    pub const MAJOR_VERSION: QmdField = QmdField::new(583, 580);
    /// Threads in x.
    pub const CTA_THREAD_DIMENSION0: QmdField = QmdField::new(607, 592);
    /// Threads in y.
    pub const CTA_THREAD_DIMENSION1: QmdField = QmdField::new(623, 608);
    /// Threads in z.
    pub const CTA_THREAD_DIMENSION2: QmdField = QmdField::new(639, 624);
    /// Registers of a thread.
    pub const REGISTER_COUNT: QmdField = QmdField::new(656, 648);
    /// Address of the first release, bits 31:0.
    pub const RELEASE0_ADDRESS_LOWER: QmdField = QmdField::new(767, 736);
    /// Address of the first release, bits 39:32; bits above as [`crate::host::same_tebibyte`] says.
    pub const RELEASE0_ADDRESS_UPPER: QmdField = QmdField::new(775, 768);
    /// 1: the release stores one word.
    pub const RELEASE0_STRUCTURE_ONE_WORD: QmdField = QmdField::new(799, 799);
    /// Payload of the first release.
    pub const RELEASE0_PAYLOAD: QmdField = QmdField::new(831, 800);
    /// Local memory of a thread, bytes.
    pub const SHADER_LOCAL_MEMORY_LOW_SIZE: QmdField = QmdField::new(951, 928);
    /// Barriers of a CTA.
    pub const BARRIER_COUNT: QmdField = QmdField::new(959, 955);
    /// Virtual address of the program, bits 31:0.
    pub const PROGRAM_ADDRESS_LOWER: QmdField = QmdField::new(1567, 1536);
    /// Virtual address of the program, bits 48:32.
    pub const PROGRAM_ADDRESS_UPPER: QmdField = QmdField::new(1584, 1568);
    /// Sundial's own: all CTAs must run at once (a grid whose CTAs wait for each other). A bit hardware keeps for software.
    pub const COOPERATIVE: QmdField = QmdField::new(2047, 2047);
    /// Sundial's own: CTAs of a cluster in x, less one.
    pub const CLUSTER_WIDTH: QmdField = QmdField::new(2035, 2032);
    /// In y.
    pub const CLUSTER_HEIGHT: QmdField = QmdField::new(2039, 2036);
    /// In z.
    pub const CLUSTER_DEPTH: QmdField = QmdField::new(2043, 2040);
    /// Constant banks.
    pub const CONSTANT_BUFFERS: u32 = 8;

    /// A constant bank is there.
    #[must_use]
    pub const fn constant_buffer_valid(bank: u32) -> QmdField {
        QmdField::new(640 + bank, 640 + bank)
    }

    /// Virtual address of a constant bank, bits 31:0.
    #[must_use]
    pub const fn constant_buffer_addr_lower(bank: u32) -> QmdField {
        QmdField::new(1055 + 64 * bank, 1024 + 64 * bank)
    }

    /// Virtual address of a constant bank, bits 48:32.
    #[must_use]
    pub const fn constant_buffer_addr_upper(bank: u32) -> QmdField {
        QmdField::new(1072 + 64 * bank, 1056 + 64 * bank)
    }

    /// Size of a constant bank in units of 16 bytes.
    #[must_use]
    pub const fn constant_buffer_size_shifted4(bank: u32) -> QmdField {
        QmdField::new(1087 + 64 * bank, 1075 + 64 * bank)
    }

    /// The value of a field.
    #[must_use]
    pub const fn get(&self, field: QmdField) -> u32 {
        field.field.get(self.words[field.word])
    }

    /// Sets a field; bits that do not fit are cut off.
    pub const fn set(&mut self, field: QmdField, value: u32) {
        self.words[field.word] = field.field.with(self.words[field.word], value);
    }

    /// Address of the program.
    #[must_use]
    pub const fn program_address(&self) -> u64 {
        self.get(Self::PROGRAM_ADDRESS_LOWER) as u64 | (self.get(Self::PROGRAM_ADDRESS_UPPER) as u64) << 32
    }

    /// Sets the address of the program.
    pub const fn set_program_address(&mut self, address: u64) {
        self.set(Self::PROGRAM_ADDRESS_LOWER, address as u32);
        self.set(Self::PROGRAM_ADDRESS_UPPER, (address >> 32) as u32);
    }

    /// Address and size in bytes of a constant bank, if it is there; `bank` below [`Qmd::CONSTANT_BUFFERS`].
    #[must_use]
    pub const fn constant_buffer(&self, bank: u32) -> Option<(u64, u32)> {
        if self.get(Self::constant_buffer_valid(bank)) == 0 {
            return None;
        }
        let address = self.get(Self::constant_buffer_addr_lower(bank)) as u64
            | (self.get(Self::constant_buffer_addr_upper(bank)) as u64) << 32;
        Some((address, self.get(Self::constant_buffer_size_shifted4(bank)) << 4))
    }

    /// Puts a constant bank of `bytes` (rounded up to 16) at `address`.
    pub const fn set_constant_buffer(&mut self, bank: u32, address: u64, bytes: u32) {
        self.set(Self::constant_buffer_valid(bank), 1);
        self.set(Self::constant_buffer_addr_lower(bank), address as u32);
        self.set(Self::constant_buffer_addr_upper(bank), (address >> 32) as u32);
        self.set(Self::constant_buffer_size_shifted4(bank), bytes.div_ceil(16));
    }

    /// CTAs in x, y, z.
    #[must_use]
    pub const fn grid(&self) -> [u32; 3] {
        [self.get(Self::CTA_RASTER_WIDTH), self.get(Self::CTA_RASTER_HEIGHT), self.get(Self::CTA_RASTER_DEPTH)]
    }

    /// Threads in x, y, z.
    #[must_use]
    pub const fn block(&self) -> [u32; 3] {
        [
            self.get(Self::CTA_THREAD_DIMENSION0),
            self.get(Self::CTA_THREAD_DIMENSION1),
            self.get(Self::CTA_THREAD_DIMENSION2),
        ]
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::Qmd;

    #[test]
    fn fields_lie_where_the_header_says() {
        let mut qmd = Qmd::default();
        qmd.set_program_address(0x1_2345_6789_abcd);
        qmd.set_constant_buffer(0, 0x7f_0000_1200, 0x1a4);
        qmd.set(Qmd::CTA_THREAD_DIMENSION1, 7);
        let bytes = qmd.as_bytes();
        assert_eq!(bytes.len() as u64, Qmd::BYTES);
        assert_eq!(bytes[72], 0x23, "version 2.3 at bit 576");
        assert_eq!(bytes[76], 7, "thread dimension 1 at bit 608");
        assert_eq!(bytes[192..196], [0xcd, 0xab, 0x89, 0x67], "program address at bit 1536");
        assert_eq!(qmd.program_address(), 0x1_2345_6789_abcd);
        assert_eq!(qmd.constant_buffer(0), Some((0x7f_0000_1200, 0x1b0)));
        assert_eq!(qmd.constant_buffer(7), None);
    }
}
