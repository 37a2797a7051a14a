//! The copy class C5B5 (TURING_DMA_COPY_A).
//!
//! Source: `classes/dma-copy/clc5b5.h`. Semaphores of the class and block-linear layouts exist on hardware; the driver
//! uses the host's semaphores and pitch layouts.

use crate::Field;

/// Class id.
pub const TURING_DMA_COPY_A: u32 = 0xc5b5;

/// Nothing.
pub const NOP: u32 = 0x100;
/// Semaphore address, upper 17 bits.
pub const SET_SEMAPHORE_A: u32 = 0x240;
/// Semaphore address, lower word.
pub const SET_SEMAPHORE_B: u32 = 0x244;
/// Semaphore payload.
pub const SET_SEMAPHORE_PAYLOAD: u32 = 0x248;
/// Aperture of a physical source.
pub const SET_SRC_PHYS_MODE: u32 = 0x260;
/// Aperture of a physical destination.
pub const SET_DST_PHYS_MODE: u32 = 0x264;
/// Starts a transfer; fields in [`launch_dma`].
pub const LAUNCH_DMA: u32 = 0x300;
/// Source address, upper 17 bits.
pub const OFFSET_IN_UPPER: u32 = 0x400;
/// Source address, lower word.
pub const OFFSET_IN_LOWER: u32 = 0x404;
/// Destination address, upper 17 bits.
pub const OFFSET_OUT_UPPER: u32 = 0x408;
/// Destination address, lower word.
pub const OFFSET_OUT_LOWER: u32 = 0x40c;
/// Bytes from line to line in the source.
pub const PITCH_IN: u32 = 0x410;
/// Bytes from line to line in the destination.
pub const PITCH_OUT: u32 = 0x414;
/// Bytes in a line; elements when remapping is on.
pub const LINE_LENGTH_IN: u32 = 0x418;
/// Lines; used when `MULTI_LINE` is set.
pub const LINE_COUNT: u32 = 0x41c;
/// Constant A of the remapper.
pub const SET_REMAP_CONST_A: u32 = 0x700;
/// Constant B of the remapper.
pub const SET_REMAP_CONST_B: u32 = 0x704;
/// What the remapper writes; fields in [`remap`].
pub const SET_REMAP_COMPONENTS: u32 = 0x708;

/// Upper bits of an address, in the `UPPER` methods.
pub const UPPER: Field = Field::new(16, 0);

/// Fields of [`LAUNCH_DMA`].
pub mod launch_dma {
    use crate::Field;

    /// Transfer.
    pub const DATA_TRANSFER_TYPE: Field = Field::new(1, 0);
    /// No transfer (semaphore only).
    pub const TRANSFER_NONE: u32 = 0;
    /// May overlap with earlier transfers.
    pub const TRANSFER_PIPELINED: u32 = 1;
    /// Begins when earlier transfers are done.
    pub const TRANSFER_NON_PIPELINED: u32 = 2;
    /// Makes the writes visible before completion.
    pub const FLUSH: Field = Field::bit(2);
    /// Semaphore after the transfer.
    pub const SEMAPHORE_TYPE: Field = Field::new(4, 3);
    /// None.
    pub const SEMAPHORE_NONE: u32 = 0;
    /// Stores the payload.
    pub const SEMAPHORE_ONE_WORD: u32 = 1;
    /// Stores the payload, zero, and the time.
    pub const SEMAPHORE_FOUR_WORD: u32 = 2;
    /// Interrupt after the transfer: 0 none, 1 blocking, 2 non-blocking.
    pub const INTERRUPT_TYPE: Field = Field::new(6, 5);
    /// 1: the source is pitch-linear.
    pub const SRC_LAYOUT_PITCH: Field = Field::bit(7);
    /// 1: the destination is pitch-linear.
    pub const DST_LAYOUT_PITCH: Field = Field::bit(8);
    /// 1: `LINE_COUNT` lines; 0: one line.
    pub const MULTI_LINE: Field = Field::bit(9);
    /// 1: through the remapper.
    pub const REMAP: Field = Field::bit(10);
    /// 1: the source address is physical.
    pub const SRC_PHYSICAL: Field = Field::bit(12);
    /// 1: the destination address is physical.
    pub const DST_PHYSICAL: Field = Field::bit(13);
}

/// Fields of [`SET_REMAP_COMPONENTS`].
pub mod remap {
    use crate::Field;

    /// Source of the destination's first component.
    pub const DST_X: Field = Field::new(2, 0);
    /// Source of the second component.
    pub const DST_Y: Field = Field::new(6, 4);
    /// Source of the third component.
    pub const DST_Z: Field = Field::new(10, 8);
    /// Source of the fourth component.
    pub const DST_W: Field = Field::new(14, 12);
    /// The source's component 0 (1 to 3 follow).
    pub const SRC_X: u32 = 0;
    /// Constant A.
    pub const CONST_A: u32 = 4;
    /// Constant B.
    pub const CONST_B: u32 = 5;
    /// The component is not written.
    pub const NO_WRITE: u32 = 6;
    /// Bytes of a component, minus one.
    pub const COMPONENT_SIZE: Field = Field::new(17, 16);
    /// Components of a source element, minus one.
    pub const NUM_SRC_COMPONENTS: Field = Field::new(21, 20);
    /// Components of a destination element, minus one.
    pub const NUM_DST_COMPONENTS: Field = Field::new(25, 24);
}
