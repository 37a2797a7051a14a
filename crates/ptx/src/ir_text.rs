//! The IR as text, for people and for tests: `r3`, `b1`, `0x10`, `!r4`.

use std::fmt;

use crate::ir::{BlockId, Kernel, Operand, PredRef, Reg};

impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Debug for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Reg(reg) => reg.fmt(f),
            Operand::Imm(bits) => write!(f, "{bits:#x}"),
        }
    }
}

impl fmt::Debug for PredRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", if self.negate { "!" } else { "" }, self.reg)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kernel {}: {} parameter bytes, {} shared, {} local",
            self.name, self.param_bytes, self.shared_bytes, self.local_bytes
        )?;
        for (index, block) in self.blocks.iter().enumerate() {
            writeln!(f, "b{index}:")?;
            for inst in &block.insts {
                match inst.guard {
                    Some(guard) => writeln!(f, "    @{guard:?} {:?}", inst.op)?,
                    None => writeln!(f, "    {:?}", inst.op)?,
                }
            }
            writeln!(f, "    {:?}", block.term)?;
        }
        Ok(())
    }
}
