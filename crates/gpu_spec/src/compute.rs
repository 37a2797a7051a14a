//! The compute class C5C0 (TURING_COMPUTE_A), with its inline-to-memory unit.
//!
//! Source: `classes/compute/clc5c0.h`. Launch descriptors are in [`crate::qmd`].

use crate::Field;

/// Class id.
pub const TURING_COMPUTE_A: u32 = 0xc5c0;

/// Waits until all grids before are done.
pub const WAIT_FOR_IDLE: u32 = 0x110;
/// Inline to memory: bytes in a line.
pub const LINE_LENGTH_IN: u32 = 0x180;
/// Inline to memory: lines.
pub const LINE_COUNT: u32 = 0x184;
/// Inline to memory: destination address, upper 17 bits.
pub const OFFSET_OUT_UPPER: u32 = 0x188;
/// Inline to memory: destination address, lower word.
pub const OFFSET_OUT: u32 = 0x18c;
/// Inline to memory: bytes from line to line.
pub const PITCH_OUT: u32 = 0x190;
/// Inline to memory: begins; as many data words follow as the lines need. Fields in [`launch_dma`].
pub const LAUNCH_DMA: u32 = 0x1b0;
/// Inline to memory: a word of data.
pub const LOAD_INLINE_DATA: u32 = 0x1b4;
/// Inline to memory: semaphore address, upper.
pub const SET_I2M_SEMAPHORE_A: u32 = 0x1dc;
/// Inline to memory: semaphore address, lower.
pub const SET_I2M_SEMAPHORE_B: u32 = 0x1e0;
/// Inline to memory: semaphore payload.
pub const SET_I2M_SEMAPHORE_C: u32 = 0x1e4;
/// Forgets cached instructions and data; fields in [`invalidate`].
pub const INVALIDATE_SHADER_CACHES: u32 = 0x21c;
/// Address bits 39:8 of the launch descriptor; bits above as [`crate::host::same_tebibyte`] says.
pub const SEND_PCAS_A: u32 = 0x2b4;
/// Schedules the launch descriptor; fields in [`pcas_b`].
pub const SEND_SIGNALING_PCAS_B: u32 = 0x2bc;

/// Upper bits of an address, in the `UPPER` methods.
pub const UPPER: Field = Field::new(16, 0);
/// A QMD's address is a multiple of this.
pub const QMD_ALIGN: u64 = 256;

/// Fields of [`LAUNCH_DMA`].
pub mod launch_dma {
    use crate::Field;

    /// 1: the destination is pitch-linear.
    pub const DST_LAYOUT_PITCH: Field = Field::bit(0);
    /// What happens at the end: 0 nothing, 1 flush, 2 semaphore.
    pub const COMPLETION_TYPE: Field = Field::new(5, 4);
    /// Completion: the writes become visible.
    pub const COMPLETION_FLUSH: u32 = 1;
}

/// Fields of [`INVALIDATE_SHADER_CACHES`].
pub mod invalidate {
    use crate::Field;

    /// Instructions: programs are read again at their next launch.
    pub const INSTRUCTION: Field = Field::bit(0);
    /// Data.
    pub const DATA: Field = Field::bit(4);
    /// Constants.
    pub const CONSTANT: Field = Field::bit(12);
}

/// Fields of [`SEND_SIGNALING_PCAS_B`].
pub mod pcas_b {
    use crate::Field;

    /// The descriptor may have changed since it was last seen.
    pub const INVALIDATE: Field = Field::bit(0);
    /// Runs it.
    pub const SCHEDULE: Field = Field::bit(1);
}
