//! Flat global memory, and the interpreter as an engine over it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ptx::interp::Cluster;
use ptx::ir::Kernel;
use ptx::launch::{AccessError, Control, Exception, GlobalMemory, Launch, Step};

/// Resumptions after which a CTA counts as endless: of some thousand instructions of a warp each, and, preempted, of a few
/// hundred.
const MAX_RESUMES: [u32; 2] = [3_000, 50_000];

/// One mapped range of GPU virtual addresses, for one thread of the host.
#[derive(Debug)]
pub struct Region {
    base: u64,
    bytes: RefCell<Vec<u8>>,
}

impl Region {
    /// Maps `bytes` at `base`.
    #[must_use]
    pub fn new(base: u64, bytes: Vec<u8>) -> Region {
        Region { base, bytes: RefCell::new(bytes) }
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_inner()
    }

    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, AccessError> {
        let start =
            address.checked_sub(self.base).and_then(|o| usize::try_from(o).ok()).ok_or(AccessError::Unmapped)?;
        let end = start.checked_add(length).ok_or(AccessError::Unmapped)?;
        if end > self.bytes.borrow().len() { Err(AccessError::Unmapped) } else { Ok(start..end) }
    }
}

impl GlobalMemory for Region {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let range = self.range(address, out.len())?;
        out.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range(address, data.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }
    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        let range = self.range(address, bytes as usize)?;
        let slot = &mut self.bytes.borrow_mut()[range];
        let mut value = [0; 8];
        value[..slot.len()].copy_from_slice(slot);
        let old = u64::from_le_bytes(value);
        slot.copy_from_slice(&f(old).to_le_bytes()[..slot.len()]);
        Ok(old)
    }
}

/// The interpreter as an [`crate::Engine`]: CTAs one after the other.
///
/// # Errors
/// The exception of the first CTA that has one; `Illegal` for a grid that does not end.
pub fn interpret(kernel: &Arc<Kernel>, launch: &Arc<Launch>, base: u64, bytes: &mut Vec<u8>) -> Result<(), Exception> {
    run(kernel, launch, base, bytes, Control::RUN)
}

/// As [`interpret`], but preempted as often as possible.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_preempted(
    kernel: &Arc<Kernel>,
    launch: &Arc<Launch>,
    base: u64,
    bytes: &mut Vec<u8>,
) -> Result<(), Exception> {
    run(kernel, launch, base, bytes, Control::PREEMPT)
}

fn run(
    kernel: &Arc<Kernel>,
    launch: &Arc<Launch>,
    base: u64,
    bytes: &mut Vec<u8>,
    control: u32,
) -> Result<(), Exception> {
    let region = Region::new(base, std::mem::take(bytes));
    let control = AtomicU32::new(control);
    let result = (|| {
        for index in 0..launch.clusters().iter().map(|&side| u64::from(side)).product() {
            let mut cluster = Cluster::new(kernel, launch, index);
            let most = MAX_RESUMES[usize::from(control.load(Ordering::Relaxed) != Control::RUN)];
            let ended = (0..most).map(|_| cluster.resume(&region, &control)).find(|step| *step != Step::Preempted);
            match ended {
                Some(Step::Exception(exception)) => return Err(exception),
                Some(_) => {}
                None => return Err(Exception::Illegal),
            }
        }
        Ok(())
    })();
    *bytes = region.into_bytes();
    result
}
