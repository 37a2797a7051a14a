//! The interpreter behind the engine's interface.

use std::sync::Arc;

use hostmem::Window;
use ptx::interp;
use ptx::ir::{Kernel, RegTy};
use ptx::launch::{AccessError, GlobalMemory, Step};

use crate::Grid;
use crate::run::helpers::refusal;

/// A CTA that the interpreter runs.
#[derive(Debug)]
pub(crate) struct InterpretedCta {
    grid: Arc<Grid>,
    cta: interp::Cta,
}

impl InterpretedCta {
    pub(crate) fn new(grid: Arc<Grid>, ctaid: [u32; 3]) -> InterpretedCta {
        let cta = interp::Cta::new(Arc::clone(&grid.code.kernel), Arc::new(grid.launch.clone()), ctaid);
        InterpretedCta { grid, cta }
    }

    pub(crate) fn restart(&mut self, ctaid: [u32; 3]) {
        *self = InterpretedCta::new(Arc::clone(&self.grid), ctaid);
    }

    pub(crate) fn resume(&mut self) -> Step {
        let memory = WindowMemory { window: &self.grid.window, lo: self.grid.window_lo };
        self.cta.resume(&memory, &self.grid.control)
    }
}

/// Bytes of a thread's registers.
pub(crate) fn register_bytes(kernel: &Kernel) -> u64 {
    kernel.regs.iter().map(|ty| if *ty == RegTy::B128 { 16 } else { 8 }).sum()
}

/// A window as the interpreter's memory: every access is checked against the mappings.
struct WindowMemory<'a> {
    window: &'a Window,
    lo: u64,
}

impl WindowMemory<'_> {
    fn offset(&self, address: u64, bytes: u64) -> Result<u64, AccessError> {
        let offset = address.wrapping_sub(self.lo);
        let whole = self.window.bytes();
        if bytes <= whole && offset <= whole - bytes { Ok(offset) } else { Err(AccessError::OutOfWindow) }
    }
}

impl GlobalMemory for WindowMemory<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.window.read(self.offset(address, out.len() as u64)?, out).map_err(refusal)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        self.window.write(self.offset(address, data.len() as u64)?, data).map_err(refusal)
    }

    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        self.window.update(self.offset(address, bytes.into())?, bytes, f).map_err(refusal)
    }
}
