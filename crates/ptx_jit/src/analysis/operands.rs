//! What an instruction reads and writes.

pub(crate) use ptx::operands::{inst_reads, reads, writes};
