//! CTAs that run one after another on one coroutine and one piece of memory, and the scheduling of a CTA's warps over the
//! kernel's regions.
//!
//! Lanes are always pending at the head of some region. The scheduler takes the next region in program order that has
//! pending lanes, inside a loop as long as there is one, and runs it for all of them; the region's code leaves them pending
//! at other heads, or ends them. So diverged lanes meet as soon as they can. Lanes at a barrier are set aside until it is
//! complete, lanes at a warp operation until those that its mask names have come (`meet`).

mod gather;
pub(crate) mod meet;

use std::cell::Cell;
use std::sync::Arc;

use corosensei::stack::Stack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use ptx::ir::BarKind;
use ptx::launch::{AccessError, Exception, GlobalMemory, Step, WARP, shared_bytes};

use super::arena::Arena;
use super::barrier::{self, BARRIERS, Barrier, Threads};
use super::cluster::Shared;
use super::stack::CtaStack;
use super::{site, trap};
use crate::abi::context::{self, Context, Suspend};
use crate::abi::joint::Site;
use crate::code::Compiled;
use crate::{Grid, Progress};

/// Picks of a region whose threads wait for others before some other region gets a turn.
const PATIENCE: u32 = 32;
/// Such picks from then on until the next one gets a turn.
const TURN: u32 = 8;
/// Such picks in one resume before other CTAs get a turn.
const WAITS_PER_RESUME: u32 = 256;

/// Bytes of a CTA's memory that are cleared before it is seen whether it is to stop.
const PART_BYTES: usize = 256 << 10;

/// All that running code refers to; does not move while the batch lives.
struct State {
    context: Context,
    code: Arc<Compiled>,
    arena: Option<Arena>,
    grid: Arc<Grid>,
    progress: Progress,
    /// CTAs that had ended when the batch was resumed.
    ended_before: u64,
    /// The CTA of `progress.rest`'s first index.
    next: [u32; 3],
    /// Can CTAs begin without anything being made ready but their index? Then their only region goes on to the next one along x by itself.
    in_rows: bool,
    /// To so many it might when the CTA under way began.
    row: u64,
    warps: usize,
    /// Regions with pending lanes, one bit each.
    ready: Vec<u64>,
    /// Those whose lanes wait for others at a warp operation: passed over until something has run.
    held: Vec<u64>,
    /// Are there any?
    holds: bool,
    /// Lanes whose barrier is complete, or who have met at different places; they run next.
    released: Vec<barrier::Waiting>,
    /// None if the kernel has none.
    barriers: Vec<Barrier>,
    /// Has a thread arrived at one of them for which others wait, or have to?
    arrived: bool,
    /// Of the cluster's barrier.
    gathering: gather::Gathering,
    live: Vec<u32>,
    /// Picks of a region whose threads wait.
    waits: u32,
    /// The region that had a turn last while others wait.
    turn: usize,
    waits_this_resume: u32,
    /// The region that has run last.
    last: usize,
    /// Behind the last byte of the stack.
    stack_base: usize,
    /// Line of the barrier that could not be arrived at.
    failed_line: u32,
}

/// What CTAs run on.
type Run = (Box<State>, Coroutine<(), (), Step, CtaStack>);

/// CTAs that run machine code.
pub(crate) struct JitBatch {
    grid: Arc<Grid>,
    code: Arc<Compiled>,
    run: Option<Run>,
    ended: Option<Step>,
    /// What the CTAs of its cluster share, if it is of one.
    cluster: *mut Shared,
}

// SAFETY: between resumes a batch is plain memory and a stack; machine code and helpers keep nothing in thread-locals over
// a suspension, and raw pointers in the context point to memory that the batch or its grid owns.
unsafe impl Send for JitBatch {}

impl std::fmt::Debug for JitBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JitBatch").field("code", &self.code).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl JitBatch {
    pub(crate) fn new(grid: Arc<Grid>, code: Arc<Compiled>) -> JitBatch {
        JitBatch::of_cluster(grid, code, std::ptr::null_mut())
    }

    /// For a CTA of a cluster; what its CTAs share outlives it.
    pub(crate) fn of_cluster(grid: Arc<Grid>, code: Arc<Compiled>, cluster: *mut Shared) -> JitBatch {
        JitBatch { grid, code, run: None, ended: None, cluster }
    }

    /// Has memory and stack ready for CTAs from linear index `first` on, before the first resume; where the shared memory begins,
    /// and its bytes.
    pub(crate) fn prepare(&mut self, first: u64) -> std::io::Result<(u64, u64)> {
        let run = self.start(first)?;
        let shared = (run.0.context.shared, run.0.context.shared_bytes);
        // Not when the CTA begins: others may have written there by then.
        clear(shared.0, shared.1 as usize);
        self.run = Some(run);
        Ok(shared)
    }

    pub(crate) fn resume(&mut self, progress: &mut Progress) -> Step {
        if let Some(step) = self.ended {
            return step;
        }
        if self.run.is_none() {
            match self.start(progress.rest.start) {
                Ok(run) => self.run = Some(run),
                // The kernel is not to blame, and nothing was begun.
                Err(error) => {
                    log_limit::warn!(%error, "no memory for a CTA now");
                    return Step::Preempted;
                }
            }
        }
        let Some((state, coroutine)) = &mut self.run else { return Step::Exception(Exception::Illegal) };
        state.waits_this_resume = 0;
        state.progress = progress.clone();
        state.ended_before = progress.ended;
        let current = trap::Current {
            handler: coroutine.trap_handler(),
            window: Arc::as_ptr(&self.grid.window),
            window_lo: self.grid.window_lo,
            atomic: &raw const state.context.atomic,
            stack_base: state.stack_base,
            fault: Cell::new(None),
        };
        let result = trap::guarded(&current, || coroutine.resume(()));
        state.progress.fault_site = match (current.fault.take(), &result) {
            (Some(fault), _) => Some(site::of_fault(&state.context, &self.code, &fault)),
            (None, CoroutineResult::Return(Step::Exception(_))) => {
                Some(site::of_cta(&state.context, &self.code, state.failed_line))
            }
            (None, _) => state.context.exception.map(|_| site::of_helper(&state.context, &self.code, None)),
        };
        state.count_row();
        *progress = state.progress.clone();
        match result {
            CoroutineResult::Yield(()) => match state.context.exception {
                None => Step::Preempted,
                Some(exception) => self.end(Step::Exception(exception)),
            },
            CoroutineResult::Return(step) => {
                let step = match step {
                    Step::Exception(exception) => Step::Exception(self.refined(exception)),
                    step => step,
                };
                self.end(step)
            }
        }
    }

    /// Was a page missing, or only read-only?
    fn refined(&self, exception: Exception) -> Exception {
        let Exception::Access { address, access, error: AccessError::Unmapped } = exception else { return exception };
        let offset = address.wrapping_sub(self.grid.window_lo);
        let error = match self.grid.window.probe(offset, 1, false) {
            Ok(()) => AccessError::ReadOnly,
            Err(_) => AccessError::Unmapped,
        };
        Exception::Access { address, access, error }
    }

    fn end(&mut self, step: Step) -> Step {
        self.ended = Some(step);
        self.release();
        step
    }

    /// Gives memory and stack back.
    fn release(&mut self) {
        let Some((mut state, mut coroutine)) = self.run.take() else { return };
        if coroutine.started() && !coroutine.done() {
            // SAFETY: nothing on the coroutine's stack needs dropping: machine code, helpers (see there), and the scheduler,
            // which keeps all it owns in `State`.
            unsafe { coroutine.force_reset() };
        }
        if coroutine.done() {
            self.code.spare.keep_stack(coroutine.into_stack());
        }
        if let Some(arena) = state.arena.take() {
            self.code.spare.keep_arena(arena);
        }
    }

    /// Memory and stack for CTAs from linear index `first` on.
    fn start(&self, first: u64) -> std::io::Result<Run> {
        let (grid, code) = (&self.grid, &self.code);
        let kernel = &code.facts;
        let launch = &grid.launch;
        let threads = code.threads as usize;
        let warps = threads.div_ceil(WARP as usize);
        let shared_bytes = shared_bytes(kernel.shared_bytes, kernel.shared_align, launch.dynamic_shared) as usize;
        let frame_bytes = code.frame_bytes as usize;
        let regions = code.regions.len();

        // Layout: pending, active, shared, parameters, local, frames.
        let lines = |bytes: usize| bytes.next_multiple_of(64);
        let pending_at = 0;
        let active_at = pending_at + lines(regions * warps * 4);
        let shared_at = active_at + lines(warps * 4);
        let params_at = shared_at + lines(shared_bytes) + 64;
        let local_at = params_at + lines(kernel.param_bytes as usize);
        let frames_at = local_at + lines(threads * kernel.local_bytes as usize);
        let total = frames_at + warps * frame_bytes + 64;
        let mut arena = code.spare.arena(total)?;
        let base = arena.base();
        // SAFETY: the arena has `total` bytes.
        unsafe { base.write_bytes(0, shared_at) };
        let params = launch.params.len().min(kernel.param_bytes as usize);
        // SAFETY: inside the arena.
        let params_to = unsafe { base.add(params_at) };
        // SAFETY: inside the arena.
        unsafe { params_to.write_bytes(0, local_at - params_at) };
        // SAFETY: inside the arena, which overlaps nothing.
        unsafe { params_to.copy_from_nonoverlapping(launch.params.as_ptr(), params) };
        let mut fixed_registers = [0; context::FIXED];
        fixed_registers[context::NCTAID..][..3].copy_from_slice(&launch.grid);
        fixed_registers[context::GRID_LO] = launch.grid_id as u32;
        fixed_registers[context::GRID_HI] = (launch.grid_id >> 32) as u32;
        fixed_registers[context::DYNAMIC_SHARED] = launch.dynamic_shared;
        fixed_registers[context::TOTAL_SHARED] = shared_bytes as u32;
        fixed_registers[context::ENV..][..32].copy_from_slice(&launch.envregs);
        fixed_registers[context::NCLUSTER_ID..][..3].copy_from_slice(&launch.clusters());
        fixed_registers[context::CLUSTER_NCTAID..][..3].copy_from_slice(&launch.cluster);
        fixed_registers[context::CLUSTER_RANKS] = launch.cluster_ctas();
        fixed_registers[context::EXPLICIT_CLUSTER] = u32::from(launch.cluster_ctas() > 1);
        let host = base.expose_provenance() as u64;
        let context = Context {
            elements: [0; 2 * WARP as usize],
            resolved: 0,
            delta: (grid.window.address() as u64).wrapping_sub(grid.window_lo),
            window_lo: grid.window_lo,
            window_bytes: grid.window.bytes(),
            shared: host + shared_at as u64,
            shared_bytes: shared_bytes as u64,
            params: host + params_at as u64,
            local: host + local_at as u64,
            frames: host + frames_at as u64,
            active: host + active_at as u64,
            pending: host + pending_at as u64,
            control: grid.control.as_ptr().expose_provenance() as u64,
            tids: code.tids.as_ptr().expose_provenance() as u64,
            row: 0,
            begun: 0,
            fixed: fixed_registers,
            atomic: 0,
            first_thread: 0,
            line: 0,
            thread: context::SEVERAL,
            run: 0,
            run_bytes: 0,
            met: 0,
            warps: warps as u32,
            suspend: Suspend(std::ptr::null()),
            exception: None,
            launch: &raw const grid.launch,
            launcher: &raw const grid.launcher,
            param_bytes: kernel.param_bytes.into(),
            attached: &raw const code.attached,
            window: Arc::as_ptr(&grid.window),
            local_bytes: kernel.local_bytes.into(),
            cluster: self.cluster,
            known: super::image::Known::default(),
        };
        let has_barriers = code.regions.iter().any(|region| region.barrier.is_some());
        let mut state = Box::new(State {
            context,
            code: Arc::clone(code),
            arena: Some(arena),
            grid: Arc::clone(grid),
            progress: Progress::default(),
            ended_before: 0,
            next: launch.ctaid(first),
            in_rows: shared_bytes == 0 && self.cluster.is_null() && code.is_one_region(),
            row: 0,
            warps,
            ready: vec![0; regions.div_ceil(64)],
            held: vec![0; regions.div_ceil(64)],
            holds: false,
            released: Vec::new(),
            barriers: if has_barriers { (0..BARRIERS).map(|_| Barrier::default()).collect() } else { Vec::new() },
            arrived: false,
            gathering: gather::Gathering::new(warps),
            live: vec![0; warps],
            waits: 0,
            turn: 0,
            waits_this_resume: 0,
            last: 0,
            stack_base: 0,
            failed_line: 0,
        });
        let pointer = std::ptr::from_mut::<State>(&mut state);
        let stack = code.spare.stack()?;
        state.stack_base = stack.base().get();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: the state is boxed, lives as long as the coroutine, and nothing else uses it while this runs.
            let state = unsafe { &mut *pointer };
            state.context.suspend = Suspend(std::ptr::from_ref(yielder));
            state.run_all()
        });
        Ok((state, coroutine))
    }
}

impl Drop for JitBatch {
    fn drop(&mut self) {
        self.release();
    }
}

/// Clears `bytes` of the arena at host address `address`.
fn clear(address: u64, bytes: usize) {
    if bytes > 0 {
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: callers name parts of the arena, which nothing else uses before the CTA runs.
        unsafe { at.write_bytes(0, bytes) };
    }
}

impl State {
    /// Runs CTA after CTA, and stops between two of them when asked to.
    fn run_all(&mut self) -> Step {
        while !self.progress.rest.is_empty() {
            if self.progress.ended > self.ended_before && self.grid.stops() {
                self.context.suspend.suspend();
                continue;
            }
            self.begin();
            let step = self.schedule();
            self.count_row();
            match step {
                Step::Done => self.progress.ended += 1 + std::mem::take(&mut self.context.begun),
                step => return step,
            }
        }
        Step::Done
    }

    /// Makes everything as the next CTA finds it at its start: shared and local memory zero, and the registers that are
    /// read before they are written; all threads at the entry. Nothing is pending yet, or any more.
    fn begin(&mut self) {
        // It has begun: asked to stop from here on, it goes on later.
        self.progress.rest.start += 1;
        self.progress.begun += 1;
        let threads = self.code.threads as usize;
        self.clear_in_parts(self.context.local, threads * self.context.local_bytes as usize);
        let State { code, context, .. } = self;
        context.fixed[context::CTAID..][..3].copy_from_slice(&self.next);
        let cluster = self.grid.launch.cluster;
        if cluster == [1; 3] {
            // Without divisions, which take a good part of a short CTA's time. The rank in it is zero from the beginning.
            context.fixed[context::CLUSTER_ID..][..3].copy_from_slice(&self.next);
        } else {
            for (axis, (at, side)) in self.next.iter().zip(cluster).enumerate() {
                context.fixed[context::CLUSTER_ID + axis] = at / side;
                context.fixed[context::CLUSTER_CTAID + axis] = at % side;
            }
            context.fixed[context::CLUSTER_RANK] = self.grid.launch.rank(self.next);
        }
        self.gathering.clear();
        if context.cluster.is_null() {
            clear(context.shared, context.shared_bytes as usize);
        }
        for &(offset, bytes) in &code.zeroed {
            for warp in 0..self.warps as u64 {
                let frame = context.frames + warp * u64::from(code.frame_bytes);
                clear(frame + u64::from(offset), bytes as usize);
            }
        }
        if std::mem::take(&mut self.arrived) {
            self.barriers.fill_with(Barrier::default);
        }
        self.waits = 0;
        self.last = 0;
        // Everything begins at the entry's region, the first one.
        let entry = self.pending(0);
        entry.fill(u32::MAX);
        if let (Some(last), odd @ 1..) = (entry.last_mut(), threads % WARP as usize) {
            *last = u32::MAX >> (WARP as usize - odd);
        }
        self.ready[0] |= 1;
        self.advance(1);
        if self.in_rows && self.next[0] > 0 {
            let row = u64::from(self.grid.launch.grid[0] - self.next[0]);
            self.row = row.min(self.progress.rest.end - self.progress.rest.start);
            self.context.row = self.row;
        }
    }

    /// The next CTA is one so much further along x, which is in the row or begins another.
    fn advance(&mut self, by: u32) {
        let [x, y, z] = &mut self.next;
        let [columns, rows, _] = self.grid.launch.grid;
        *x += by;
        if *x == columns {
            (*x, *y) = (0, *y + 1);
            if *y == rows {
                (*y, *z) = (0, *z + 1);
            }
        }
    }

    /// Counts the CTAs that have begun since the one under way did, because the region has gone on from each to the next; it does no
    /// more so. All have ended but those that began together with the one under way.
    fn count_row(&mut self) {
        let more = std::mem::take(&mut self.row) - std::mem::take(&mut self.context.row);
        self.progress.rest.start += more;
        self.progress.begun += more;
        // None more where some are still under way since an earlier suspension.
        self.progress.ended += more.saturating_sub(self.context.begun);
        self.advance(more as u32);
    }

    /// As [`clear`], of so much that it takes long: 64 MiB of local memory take tens of milliseconds.
    fn clear_in_parts(&mut self, address: u64, bytes: usize) {
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(PART_BYTES);
            clear(address + done as u64, part);
            done += part;
            if done < bytes && self.grid.stops() {
                self.context.suspend.suspend();
            }
        }
    }

    fn row(&mut self, address: u64, index: usize) -> &mut [u32] {
        let base: *mut u32 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: rows of one word per warp lie in the arena.
        let at = unsafe { base.add(index * self.warps) };
        // SAFETY: as above; machine code writes them only while the scheduler is not looking.
        unsafe { std::slice::from_raw_parts_mut(at, self.warps) }
    }

    fn pending(&mut self, region: usize) -> &mut [u32] {
        self.row(self.context.pending, region)
    }

    fn active(&mut self) -> &mut [u32] {
        self.row(self.context.active, 0)
    }

    /// The first region from `from` on whose bit is set in the words that `words` gives.
    fn next_of(&self, from: usize, words: impl Fn(&State, usize) -> u64) -> Option<usize> {
        let (mut word, bit) = (from / 64, from % 64);
        let count = self.ready.len();
        if word >= count {
            return None;
        }
        let mut bits = words(self, word) & (u64::MAX << bit);
        while bits == 0 {
            word += 1;
            if word == count {
                return None;
            }
            bits = words(self, word);
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    fn first_ready(&self, from: usize) -> Option<usize> {
        self.next_of(from, |s, word| s.ready[word] & !s.held[word])
    }

    /// The next region in the order of the program: inside a loop the next one behind the last, up to the loop's end, then
    /// the loop's first one, and what is behind the loop only when nothing is left in it. So lanes that have parted meet,
    /// and none begins a loop's next trip while others are at this one.
    fn next(&self) -> Option<usize> {
        let code = &self.code;
        let mut around = code.regions[self.last].around;
        while let Some(l) = around.and_then(|l| code.loops.get(l as usize)) {
            let inside = |region: &usize| *region <= l.last as usize;
            let next = self.first_ready(self.last + 1).filter(inside);
            if let Some(region) = next.or_else(|| self.first_ready(l.first as usize).filter(inside)) {
                return Some(region);
            }
            around = l.outer;
        }
        self.first_ready(0)
    }

    /// The next region to run, with its lanes moved to the active row.
    fn pick(&mut self) -> Option<usize> {
        let mut region = self.next()?;
        if self.code.regions[region].waits {
            self.waits += 1;
            self.waits_this_resume += 1;
            if self.waits > PATIENCE {
                self.waits -= TURN;
                // All in turn: more than one may wait, and for the last.
                self.turn = self.first_ready(self.turn + 1).or_else(|| self.first_ready(0)).unwrap_or(region);
                region = self.turn;
            }
        }
        self.take(region);
        Some(region)
    }

    /// Moves the lanes of a region to the active row.
    fn take(&mut self, region: usize) {
        self.ready[region / 64] &= !(1 << (region % 64));
        let from: *mut u32 = self.pending(region).as_mut_ptr();
        for (warp, to) in self.active().iter_mut().enumerate() {
            // SAFETY: both rows have a word per warp, and do not overlap.
            let from = unsafe { from.add(warp) };
            // SAFETY: as above.
            *to = unsafe { from.read() };
            // SAFETY: as above.
            unsafe { from.write(0) };
        }
    }

    fn schedule(&mut self) -> Step {
        loop {
            if self.grid.stops() || self.waits_this_resume > WAITS_PER_RESUME {
                self.waits_this_resume = 0;
                self.tell_cluster();
                self.context.suspend.suspend();
                self.cluster_turned();
            }
            if let Some(waiting) = self.released.pop() {
                // Past the barrier, or what they have met at. Nothing may be left on the stack while lanes run.
                let region = waiting.region;
                self.active().copy_from_slice(&waiting.lanes);
                drop(waiting);
                self.context.met = 1;
                self.run(region);
                self.context.met = 0;
                continue;
            }
            let Some(region) = self.pick() else {
                // Whoever is left waits.
                if self.arrived && self.release_barriers() {
                    continue;
                }
                self.tell_cluster();
                if self.cluster_turned() {
                    continue;
                }
                if self.gathering.waits() {
                    // For other CTAs.
                    self.context.suspend.suspend();
                    self.cluster_turned();
                    continue;
                }
                // At warp operations, for lanes that cannot come: the first go on without them.
                if let Some(region) = self.next_of(0, |s, word| s.ready[word]) {
                    self.take(region);
                    self.run(region);
                    continue;
                }
                if self.gathering.is_empty() && (!self.arrived || self.barriers.iter().all(|b| b.waiting.is_empty())) {
                    return Step::Done;
                }
                return Step::Exception(Exception::Illegal);
            };
            if let Some(site) = self.code.regions[region].barrier.as_deref().map(std::ptr::from_ref) {
                match self.arrive(region, site) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(exception) => {
                        self.failed_line = self.code.regions[region].line;
                        return Step::Exception(exception);
                    }
                }
            }
            if self.code.regions[region].meeting.is_some() && !self.meet(region) {
                continue;
            }
            self.run(region);
        }
    }

    /// Runs a region for the active lanes, and those behind it that are next for all of them.
    fn run(&mut self, mut region: usize) {
        let active = self.active();
        let first = active.iter().position(|&b| b != 0).unwrap_or(0);
        let end = active.iter().rposition(|&b| b != 0).map_or(0, |p| p + 1);
        loop {
            self.last = region;
            let function = self.code.regions[region].function;
            let exits = function(&raw mut self.context, first as u64, end as u64);
            if std::mem::take(&mut self.holds) {
                self.held.fill(0);
            }
            let (sole, straight) = (self.code.regions[region].sole, self.code.regions[region].straight);
            let Some(target) = sole else {
                self.distribute(region, exits);
                return;
            };
            if straight && self.nobody_else() {
                region = target;
                continue;
            }
            let from: *const u32 = self.active().as_ptr();
            for (warp, to) in self.pending(target).iter_mut().enumerate() {
                // SAFETY: both rows have a word per warp, and do not overlap.
                let from = unsafe { from.add(warp) };
                // SAFETY: as above.
                *to |= unsafe { from.read() };
            }
            self.ready[target / 64] |= 1 << (target % 64);
            return;
        }
    }

    /// Are the active lanes all that have not ended, and may they go on? Then a barrier for all is complete, and a warp operation has all
    /// that can come.
    fn nobody_else(&self) -> bool {
        let alone = self.ready.iter().all(|&w| w == 0) && self.released.is_empty();
        alone && !self.arrived && self.gathering.is_empty() && self.context.met == 0 && !self.grid.stops()
    }

    /// Marks the regions as ready to which lanes have gone through the `exits` of one.
    fn distribute(&mut self, region: usize, exits: u64) {
        for slot in 0..self.code.regions[region].exits.len() {
            let target = self.code.regions[region].exits[slot] as usize;
            if exits >> slot.min(63) & 1 != 0 && self.pending(target).iter().any(|&b| b != 0) {
                self.ready[target / 64] |= 1 << (target % 64);
            }
        }
    }

    /// The active lanes arrive at the barrier at the head of `region`; true if they go on at once.
    fn arrive(&mut self, region: usize, site: *const Site) -> Result<bool, Exception> {
        // SAFETY: sites live as long as the code.
        let site = unsafe { &*site };
        if let ptx::ir::Op::Bar { kind: kind @ (BarKind::ClusterArrive | BarKind::ClusterWait), .. } = site.op {
            return Ok(self.gather(region, kind == BarKind::ClusterWait));
        }
        // All threads at once at a barrier for all, which is the rule: nothing to keep.
        if barrier::is_for_all(&site.op)
            && self.ready.iter().all(|&w| w == 0)
            && !self.arrived
            && self.gathering.is_empty()
        {
            return Ok(true);
        }
        self.arrived = true;
        self.count_live(true);
        let threads = Threads {
            frames: std::ptr::with_exposed_provenance_mut(self.context.frames as usize),
            frame_bytes: self.code.frame_bytes as usize,
        };
        let lanes: *const u32 = std::ptr::with_exposed_provenance(self.context.active as usize);
        // SAFETY: one word per warp; nothing writes them meanwhile.
        let lanes = unsafe { std::slice::from_raw_parts(lanes, self.warps) };
        let goes_on = barrier::arrive(&mut self.barriers, site, region, lanes, &threads)?;
        self.release_complete();
        Ok(goes_on)
    }

    /// Finds the threads that have not ended: pending, waiting, or (if asked for) active.
    fn count_live(&mut self, with_active: bool) {
        let mut live = std::mem::take(&mut self.live);
        live.fill(0);
        let mut add = |lanes: &[u32]| live.iter_mut().zip(lanes).for_each(|(live, lanes)| *live |= lanes);
        if with_active {
            add(self.active());
        }
        let mut from = 0;
        while let Some(region) = self.next_of(from, |s, word| s.ready[word]) {
            add(self.pending(region));
            from = region + 1;
        }
        for waiting in self.barriers.iter().flat_map(|barrier| &barrier.waiting).chain(&self.gathering.waiting) {
            add(&waiting.lanes);
        }
        self.live = live;
    }

    /// Releases complete barriers; `live` must be right.
    fn release_complete(&mut self) -> bool {
        let mut released = false;
        for id in 0..self.barriers.len() {
            if !self.barriers[id].is_used() || !self.barriers[id].is_complete(&self.live) {
                continue;
            }
            let threads = Threads {
                frames: std::ptr::with_exposed_provenance_mut(self.context.frames as usize),
                frame_bytes: self.code.frame_bytes as usize,
            };
            let regions = &self.code.regions;
            let site_of = |region: usize| regions[region].barrier.as_deref().map(std::ptr::from_ref);
            self.released.append(&mut self.barriers[id].release(site_of, &threads));
            released = true;
        }
        if released {
            self.arrived = self.barriers.iter().any(Barrier::is_used);
        }
        released
    }

    fn release_barriers(&mut self) -> bool {
        self.count_live(false);
        self.release_complete()
    }
}

/// Records a failed assertion; gives the exception that ends the grid.
pub(crate) fn assert_failed(
    memory: &dyn GlobalMemory,
    context: &Context,
    thread: u32,
    arg: &dyn Fn(usize) -> u64,
) -> Exception {
    // SAFETY: the launch outlives its CTAs.
    let launch = unsafe { &*context.launch };
    let [x, y, _] = launch.block;
    let thread = [thread % x, thread / x % y, thread / x / y];
    let block = [0, 1, 2].map(|i| context.fixed[context::CTAID + i]);
    match ptx::builtins::assertfail(memory, launch.driver, [arg(0), arg(1), arg(2), arg(3)], block, thread) {
        Ok(()) => Exception::Assert,
        Err((address, error)) => Exception::Access { address, access: ptx::launch::Access::Read, error },
    }
}
