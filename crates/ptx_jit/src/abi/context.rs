//! What machine code and its helpers know of the CTA they run: one structure, laid out for both.

use std::mem::offset_of;
use std::sync::Arc;

use corosensei::Yielder;
use ptx::children::Launcher;
use ptx::launch::{Exception, Launch, WARP};

use super::Attached;

/// How machine code and helpers stop for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspend(pub(crate) *const Yielder<(), ()>);

impl Suspend {
    pub(crate) fn suspend(self) {
        // SAFETY: set when the coroutine started, whose yielder lives on its stack until it ends; only code on that stack
        // calls this.
        unsafe { &*self.0 }.suspend(());
    }
}

/// The state of a running CTA as machine code sees it. Its address is the first argument of all generated functions.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    /// Elements of the lanes of a chunk, one behind another, while memory holds them otherwise. First, so that its address
    /// is the context's.
    pub(crate) elements: [u64; 2 * WARP as usize],
    /// What the helper [`super::Helper::Resolve`] found.
    pub(crate) resolved: u64,
    /// Host address of the window's offset 0, minus the GPU virtual address of that.
    pub(crate) delta: u64,
    /// GPU virtual address of the window's offset 0.
    pub(crate) window_lo: u64,
    /// Size of the window, bytes.
    pub(crate) window_bytes: u64,
    /// Shared memory of the CTA.
    pub(crate) shared: u64,
    /// Its size, bytes.
    pub(crate) shared_bytes: u64,
    /// The parameter block.
    pub(crate) params: u64,
    /// Local memory: thread after thread.
    pub(crate) local: u64,
    /// Frames of the warps.
    pub(crate) frames: u64,
    /// Active lanes by warp, for the region being run.
    pub(crate) active: u64,
    /// Pending lanes, by region and warp.
    pub(crate) pending: u64,
    /// [`ptx::launch::Control`] word.
    pub(crate) control: u64,
    /// Thread index tables of the code: x, y, z, each one u32 per thread.
    pub(crate) tids: u64,
    /// CTAs behind this one, along x, to which the only region of a kernel may go on by itself.
    pub(crate) row: u64,
    /// Of these, CTAs that began with the one under way, since their warps run by turns: they end together.
    pub(crate) begun: u64,
    /// Special registers that are the same for all threads, by [`Fixed`].
    pub(crate) fixed: [u32; FIXED],
    /// Set while an atomic is under way, for fault reports.
    pub(crate) atomic: u32,
    /// For fault reports, the first thread of the chunk that runs, or of the warp whose lanes operate together.
    pub(crate) first_thread: u32,
    /// The line that a helper was called for last, and the thread that it is at; [`SEVERAL`] if there is no such one.
    pub(crate) line: u32,
    pub(crate) thread: u32,
    /// Where the first lane's bytes would begin of what lanes access one behind another, and bytes of a lane: what a helper accesses so,
    /// if they are not 0, else what machine code does.
    pub(crate) run: u64,
    pub(crate) run_bytes: u64,
    /// Set while a region runs whose lanes have performed the operation at its head before.
    pub(crate) met: u32,
    /// Threads not yet at their end, an upper bound.
    pub(crate) warps: u32,
    /// Where to suspend to.
    pub(crate) suspend: Suspend,
    /// Where to leave the exception.
    pub(crate) exception: Option<Exception>,
    /// The launch.
    pub(crate) launch: *const Launch,
    /// Who takes what threads launch.
    pub(crate) launcher: *const Option<Arc<dyn Launcher>>,
    /// Bytes of the parameter block.
    pub(crate) param_bytes: u64,
    /// What the code's regions hand to helpers, by region.
    pub(crate) attached: *const Vec<Attached>,
    /// The window, for builtins.
    pub(crate) window: *const hostmem::Window,
    /// Local memory of one thread, bytes.
    pub(crate) local_bytes: u64,
    /// What the CTAs of the cluster share; none if the CTA is one by itself.
    pub(crate) cluster: *mut crate::run::cluster::Shared,
    /// Textures and surfaces that have been accessed.
    pub(crate) known: crate::run::image::Known,
}

/// In [`Context::thread`]: the helper works for lanes at once, or has not begun with one.
pub(crate) const SEVERAL: u32 = u32::MAX;

/// Index of a special register in [`Context::fixed`].
pub(crate) const CTAID: usize = 0;
pub(crate) const NCTAID: usize = 3;
pub(crate) const GRID_LO: usize = 6;
pub(crate) const GRID_HI: usize = 7;
pub(crate) const DYNAMIC_SHARED: usize = 8;
pub(crate) const TOTAL_SHARED: usize = 9;
pub(crate) const ENV: usize = 16;
pub(crate) const CLUSTER_ID: usize = 48;
pub(crate) const NCLUSTER_ID: usize = 51;
pub(crate) const CLUSTER_CTAID: usize = 54;
pub(crate) const CLUSTER_NCTAID: usize = 57;
pub(crate) const CLUSTER_RANK: usize = 60;
pub(crate) const CLUSTER_RANKS: usize = 61;
pub(crate) const EXPLICIT_CLUSTER: usize = 62;
pub(crate) const FIXED: usize = 64;

pub(crate) mod at {
    //! Byte offsets of fields.
    use super::{Context, offset_of};
    pub(crate) const RESOLVED: i32 = offset_of!(Context, resolved) as i32;
    pub(crate) const DELTA: i32 = offset_of!(Context, delta) as i32;
    pub(crate) const WINDOW_LO: i32 = offset_of!(Context, window_lo) as i32;
    pub(crate) const WINDOW_BYTES: i32 = offset_of!(Context, window_bytes) as i32;
    pub(crate) const SHARED: i32 = offset_of!(Context, shared) as i32;
    pub(crate) const SHARED_BYTES: i32 = offset_of!(Context, shared_bytes) as i32;
    pub(crate) const PARAMS: i32 = offset_of!(Context, params) as i32;
    pub(crate) const LOCAL: i32 = offset_of!(Context, local) as i32;
    pub(crate) const FRAMES: i32 = offset_of!(Context, frames) as i32;
    pub(crate) const ACTIVE: i32 = offset_of!(Context, active) as i32;
    pub(crate) const PENDING: i32 = offset_of!(Context, pending) as i32;
    pub(crate) const CONTROL: i32 = offset_of!(Context, control) as i32;
    pub(crate) const TIDS: i32 = offset_of!(Context, tids) as i32;
    pub(crate) const ROW: i32 = offset_of!(Context, row) as i32;
    pub(crate) const BEGUN: i32 = offset_of!(Context, begun) as i32;
    pub(crate) const ATOMIC: i32 = offset_of!(Context, atomic) as i32;
    pub(crate) const FIRST_THREAD: i32 = offset_of!(Context, first_thread) as i32;
    pub(crate) const RUN: i32 = offset_of!(Context, run) as i32;
    pub(crate) const FIXED: i32 = offset_of!(Context, fixed) as i32;
}
