//! What a checker is told, if there is one.

use std::sync::Arc;

use super::memory::Place;
use super::races::{By, Races, Touch};
use super::{Cta, State};
use crate::check::{Checker, Site};
use crate::ir::Op;
use crate::launch::{Access, Exception, WARP, WORKSPACE_BYTES};

/// A checker, and what is kept for it.
#[derive(Debug)]
pub(super) struct Checking {
    checker: Arc<dyn Checker>,
    races: Option<Races>,
}

impl Checking {
    pub(super) fn new(checker: Arc<dyn Checker>, shared_bytes: usize, warps: usize) -> Checking {
        let races = checker.wants_hazards().then(|| Races::new(shared_bytes, warps));
        Checking { checker, races }
    }
}

impl Cta {
    fn site(&self, thread: usize) -> Site<'_> {
        Site {
            kernel: &self.kernel,
            line: self.line,
            grid_id: self.launch.grid_id,
            block: self.launch.block,
            ctaid: self.ctaid,
            thread: thread as u32,
            shared_bytes: self.shared.len() as u64,
        }
    }

    /// A thread is about to access memory, at a place and the address that a fault has.
    ///
    /// # Errors
    /// It must not.
    pub(super) fn observe(
        &mut self,
        thread: usize,
        (place, address): (Place, u64),
        bytes: usize,
        touch: Touch<'_>,
    ) -> Result<(), Exception> {
        let Some(checking) = &self.checking else { return Ok(()) };
        match place {
            // The driver's own, of which nobody else knows.
            Place::Global(at) if self.in_workspace(at, bytes) => Ok(()),
            Place::Global(at) => {
                let site = self.site(thread);
                let allowed = checking.checker.access(&site, touch.access, at, bytes as u32);
                allowed.map_err(|error| Exception::Access { address, access: touch.access, error })
            }
            Place::Shared(offset) => {
                self.observe_shared(thread, offset, bytes, touch);
                Ok(())
            }
            Place::Peer(..) | Place::Local(_) | Place::Param(_) => Ok(()),
        }
    }

    /// A thread launches what will write so much memory; more than one access can be is not looked at.
    pub(super) fn observe_transfer(&mut self, thread: usize, to: u64, bytes: u64) -> Result<(), Exception> {
        match u32::try_from(bytes) {
            Ok(bytes @ 1..) => {
                let touch = Touch::plain(Access::Write, None);
                self.observe(thread, (Place::Global(to), to), bytes as usize, touch)
            }
            _ => Ok(()),
        }
    }

    fn in_workspace(&self, at: u64, bytes: usize) -> bool {
        let offset = self.launch.workspace().and_then(|start| at.checked_sub(start));
        offset.is_some_and(|offset| offset < WORKSPACE_BYTES && bytes as u64 <= WORKSPACE_BYTES - offset)
    }

    /// A thread is about to access shared memory.
    pub(super) fn observe_shared(&mut self, thread: usize, offset: u64, bytes: usize, touch: Touch<'_>) {
        let step = self.executed;
        let Some(checking) = self.checking.as_deref_mut() else { return };
        let Some(races) = &mut checking.races else { return };
        // What is beyond fails.
        let start = usize::try_from(offset).ok();
        let Some(there) = start.and_then(|start| self.shared.get(start..start.checked_add(bytes)?)) else { return };
        let by = By { thread: thread as u16, line: self.line, step };
        let Some(hazard) = races.touch(by, offset as usize, there, touch) else { return };
        if let Some(checking) = &self.checking {
            checking.checker.hazard(&self.site(thread), &hazard);
        }
    }

    /// Threads of a warp arrive at a barrier.
    pub(super) fn observe_arrival(&mut self, warp: usize) {
        if let Some(races) = self.checking.as_deref_mut().and_then(|checking| checking.races.as_mut()) {
            races.arrive(warp);
        }
    }

    /// A barrier lets the threads go on that wait at it; `whole`: one that all threads of the CTA are at, or have ended.
    pub(super) fn observe_release(&mut self, barrier: State, whole: bool) {
        let Some(races) = self.checking.as_deref_mut().and_then(|checking| checking.races.as_mut()) else { return };
        let waits = |state: State| state == barrier;
        if self.threads.iter().all(|thread| whole && thread.state == State::Exited || waits(thread.state)) {
            races.all_meet();
        } else {
            for (warp, threads) in self.threads.chunks(WARP as usize).enumerate() {
                if threads.iter().any(|thread| waits(thread.state)) {
                    races.release(warp);
                }
            }
        }
    }

    /// A warp goes on at a barrier that is complete already.
    pub(super) fn observe_passing(&mut self, warp: usize) {
        if let Some(races) = self.checking.as_deref_mut().and_then(|checking| checking.races.as_mut()) {
            races.release(warp);
        }
    }

    /// A thread has failed. False if nobody wants to hear of others.
    pub(super) fn tell_failure(&self, thread: usize, op: &Op, exception: Exception) -> bool {
        let Some(checking) = &self.checking else { return false };
        checking.checker.failed(&self.site(thread), exception, bytes(op));
        true
    }
}

/// Bytes of an access.
fn bytes(op: &Op) -> u32 {
    match op {
        Op::Ld { ty, dsts, .. } => ty.bytes() * dsts.len() as u32,
        Op::St { ty, srcs, .. } => ty.bytes() * srcs.len() as u32,
        Op::Atom { ty, .. } => ty.bytes(),
        Op::CpAsync { bytes, .. } => u32::from(*bytes),
        Op::LdMatrix { .. } | Op::StMatrix { .. } => 16,
        _ => 0,
    }
}
