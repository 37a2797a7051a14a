//! The interpreter behind the engine's interface.

use std::sync::Arc;

use hostmem::Window;
use ptx::interp;
use ptx::ir::{Block, Kernel, RegTy};
use ptx::launch::{AccessError, GlobalMemory, Launch, Step};

use crate::run::helpers::refusal;
use crate::{Grid, Progress};

/// CTAs that the interpreter runs one after another.
#[derive(Debug)]
pub(crate) struct InterpretedBatch {
    grid: Arc<Grid>,
    kernel: Arc<Kernel>,
    launch: Arc<Launch>,
    /// The CTA, or the cluster, that has begun.
    under_way: Option<interp::Cluster>,
}

impl InterpretedBatch {
    pub(crate) fn new(grid: Arc<Grid>, kernel: Arc<Kernel>) -> InterpretedBatch {
        InterpretedBatch { launch: Arc::new(grid.launch.clone()), grid, kernel, under_way: None }
    }

    pub(crate) fn resume(&mut self, progress: &mut Progress) -> Step {
        let memory = WindowMemory { window: &self.grid.window, lo: self.grid.window_lo };
        let ended_before = progress.ended;
        loop {
            if self.under_way.is_none() {
                if progress.ended > ended_before && self.grid.stops() {
                    return Step::Preempted;
                }
                let Some(index) = progress.rest.next() else { return Step::Done };
                progress.begun += 1;
                let mut cluster = interp::Cluster::new(&self.kernel, &self.launch, index);
                if let Some(checker) = &self.grid.checker {
                    cluster.check(checker);
                }
                if let Some(launcher) = &self.grid.launcher {
                    cluster.launcher(launcher);
                }
                self.under_way = Some(cluster);
            }
            match self.under_way.as_mut().map_or(Step::Done, |cluster| cluster.resume(&memory, &self.grid.control)) {
                Step::Done => {
                    self.under_way = None;
                    progress.ended += 1;
                }
                step => {
                    progress.fault_site = self.under_way.as_ref().and_then(interp::Cluster::fault_site);
                    return step;
                }
            }
        }
    }
}

/// Bytes of a thread's registers.
pub(crate) fn register_bytes(kernel: &Kernel) -> u64 {
    kernel.regs.iter().map(|ty| if *ty == RegTy::B128 { 16 } else { 8 }).sum()
}

/// Bytes of host memory that a kernel takes.
pub(crate) fn kernel_bytes(kernel: &Kernel) -> u64 {
    let insts = kernel.blocks.iter().map(|block| size_of::<Block>() + size_of_val(&*block.insts)).sum::<usize>();
    (insts + size_of_val(&*kernel.regs)) as u64 + kernel.sources.host_bytes()
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
