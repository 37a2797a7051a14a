//! Grids whose code is not there yet: their channel waits, and no worker does.
//!
//! ```text
//!        kernel not kept             kernel read                 code
//!   New ─────────────────► Loading ──────────────► Compiling ───────────► a grid
//!    │ ▲   (background)                 ▲    (compiler)
//!    │ │                                │
//!    │ └─ too much is under way for its TSG, or its budget has no room: when that ends
//!    └──── kernel kept ─────────────────┘        code kept: a grid at once
//! ```
//! Whoever drops the job gives up what is under way; nobody waits for it. What compiling takes of the processors is charged to
//! the TSG, as if a worker had done it.

use std::sync::Arc;
use std::time::Duration;

use ptx_jit::compiler::{Bounds, Outcome, Request};

use super::Front;
use crate::background::{Asker, Loaded, Trash};
use crate::budget::Need;
use crate::chip::Chip;
use crate::job::{Active, Compiling, GridJob, Job, Stage};
use crate::program::{Kernel, Load, LoadError, Prepared, compile_error};

/// Kernels of a TSG that are read or compiled at once.
const MOST: u32 = 2;
/// Processor time that compiling a kernel may take; then the interpreter runs it.
const TIME: Duration = Duration::from_secs(60);
/// Host memory that compiling a kernel may take, bytes: no more than the first, and half of what its budget has left, but
/// not less than the second.
const MEMORY: (u64, u64) = (2 << 30, 32 << 20);

/// Entries of the host's memory map that code takes: its text, and the gap behind it.
const CODE_MAPS: u32 = 2;

impl Front {
    /// Goes on with a channel's launch; true if it is a grid now.
    pub(super) fn prepare(&mut self, chip: &Chip, id: u32) -> bool {
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return false };
        let Some(Active { id: job, job: Job::Prepare(preparation), .. }) = channel.job.as_mut() else { return false };
        if !matches!(preparation.stage, Stage::New) {
            return false;
        }
        let request = &preparation.request;
        let (program, shape, job) = (request.program, request.shape(), *job);
        let space = Arc::clone(&channel.space);
        if let Some(prepared) = space.programs.code(program, shape) {
            return self.launch(chip, id, prepared);
        }
        if self.tsgs[tsg].preparing >= MOST {
            self.tsgs[tsg].postponed.insert(id);
            return false;
        }
        match space.programs.kernel(program) {
            Some(kernel) => self.compile(chip, id, kernel),
            None => {
                let asker = Asker { channel: id, job, tsg, attempt: preparation.attempt() };
                let load = Load::new(chip, space, channel.budget, program);
                preparation.stage = Stage::Loading(tsg, chip.background.load(asker, load));
                self.tsgs[tsg].preparing += 1;
            }
        }
        false
    }

    /// Hands a channel's kernel to the compiler.
    fn compile(&mut self, chip: &Chip, id: u32, kernel: Kernel) {
        let threads = self.idle();
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return };
        let Some(Active { id: job, job: Job::Prepare(preparation), .. }) = channel.job.as_mut() else { return };
        let budget = channel.budget;
        let memory_bytes = (chip.budgets.room(budget) / 2).clamp(MEMORY.1, MEMORY.0);
        let need = Need { bytes: memory_bytes, maps: CODE_MAPS };
        let Some(charge) = chip.budgets.charge_mapped(budget, need) else {
            self.wait_for_room(chip, id, need, "compiling a kernel", Some(&kernel.module));
            return;
        };
        let Kernel { module, name } = kernel;
        let owner = channel.space.number;
        // What has no budget shares its turns with nobody else.
        let tenant = if budget == 0 { owner | 1 << 63 } else { budget.into() };
        let request = Request {
            tenant,
            owner,
            source: Arc::clone(&module.source),
            entry: name,
            block: preparation.request.launch.block,
            stack_bytes: preparation.request.stack_bytes,
            engine: chip.engine,
            bounds: Bounds { memory_bytes, time: TIME, threads },
        };
        let asker = Asker { channel: id, job: *job, tsg, attempt: preparation.attempt() };
        let device = chip.device.clone();
        let done = move |outcome| {
            if let Some(device) = device.upgrade() {
                device.change(|front, chip| front.compiled(chip, asker, outcome));
            }
        };
        // Counted before anybody can see that it has begun.
        let counted = chip.budgets.compilation(budget);
        preparation.stage = Stage::Compiling(Compiling {
            job: chip.compiler.start(request, Box::new(done)),
            tsg,
            charged: Duration::ZERO,
            generation: channel.space.programs.generation(),
            charge,
            counted,
        });
        self.tsgs[tsg].preparing += 1;
        self.compiling.insert(id);
    }

    /// What a channel's launch waits for, if it is still the same.
    fn asked(&mut self, asker: Asker) -> Option<&mut Stage> {
        let active = self.ports[asker.channel as usize].channel.as_mut()?.job.as_mut()?;
        match &mut active.job {
            Job::Prepare(preparation) if active.id == asker.job && preparation.attempts == asker.attempt => {
                Some(&mut preparation.stage)
            }
            _ => None,
        }
    }

    /// A kernel was read.
    pub(crate) fn loaded(&mut self, chip: &Chip, loaded: Loaded) {
        let Loaded { asker, result, elapsed } = loaded;
        self.charge_preparing(chip, asker.tsg, elapsed);
        match self.asked(asker) {
            Some(stage @ Stage::Loading(..)) => *stage = Stage::New,
            _ => return,
        }
        self.preparation_ended(asker.tsg);
        match result {
            // It is kept now, unless all was forgotten meanwhile: then it is as good as one read a moment earlier.
            Ok(kernel) => self.compile(chip, asker.channel, kernel),
            Err(LoadError::Full(bytes)) => {
                self.wait_for_room(chip, asker.channel, Need { bytes, maps: 0 }, "a program", None);
            }
            Err(LoadError::Channel(error)) => self.fail(chip, asker.channel, &error),
        }
    }

    /// A compilation ended.
    fn compiled(&mut self, chip: &Chip, asker: Asker, outcome: Outcome) {
        let compiling = match self.asked(asker).map(|stage| std::mem::replace(stage, Stage::New)) {
            Some(Stage::Compiling(compiling)) => compiling,
            // It was given up in the last moment, and started again or not.
            Some(other) => {
                if let Some(stage) = self.asked(asker) {
                    *stage = other;
                }
                return;
            }
            None => return,
        };
        let Compiling { job, charged, generation, charge, .. } = compiling;
        self.charge_preparing(chip, asker.tsg, outcome.cpu.saturating_sub(charged).as_nanos() as u64);
        drop(job);
        self.compiling.remove(&asker.channel);
        self.preparation_ended(asker.tsg);
        let id = asker.channel;
        match outcome.code {
            Ok(code) => {
                let prepared = Arc::new(Prepared::new(code, charge));
                let port = &self.ports[id as usize];
                if let Some(channel) = &port.channel
                    && let Some(Job::Prepare(preparation)) = channel.job.as_ref().map(|active| &active.job)
                {
                    let (program, shape) = (preparation.request.program, preparation.request.shape());
                    let forgotten = channel.space.programs.keep_code(generation, program, shape, &prepared);
                    if !forgotten.is_empty() {
                        self.trash.push(Trash::Programs(forgotten));
                    }
                }
                if self.launch(chip, id, prepared) {
                    self.enqueue(id);
                }
            }
            Err(error) => self.fail(chip, id, &compile_error(&error)),
        }
    }

    /// The code of a launch is there: the grid begins, if it may.
    fn launch(&mut self, chip: &Chip, id: u32, prepared: Arc<Prepared>) -> bool {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return false };
        let Some(Active { id: job, job: Job::Prepare(preparation), .. }) =
            channel.job.take_if(|active| matches!(active.job, Job::Prepare(_)))
        else {
            return false;
        };
        match GridJob::new(chip, channel.budget, prepared, preparation.request, &channel.space, &channel.family) {
            Ok(grid) => {
                channel.job = Some(Active::new(Job::Grid(Box::new(grid)), job));
                true
            }
            Err(error) => {
                self.fail(chip, id, &error);
                false
            }
        }
    }

    /// Less is under way for a TSG: who waits for that goes on.
    fn preparation_ended(&mut self, tsg: usize) {
        self.tsgs[tsg].preparing -= 1;
        for channel in std::mem::take(&mut self.tsgs[tsg].postponed) {
            self.enqueue_if_work(channel);
        }
    }

    /// Gives up what is under way for a channel's launch; it can be begun again.
    pub(super) fn give_up_preparation(&mut self, chip: &Chip, id: u32) {
        let Some(active) = self.ports[id as usize].channel.as_mut().and_then(|channel| channel.job.as_mut()) else {
            return;
        };
        let Job::Prepare(preparation) = &mut active.job else { return };
        let Some(tsg) = preparation.tsg() else { return };
        if let Stage::Compiling(compiling) = std::mem::replace(&mut preparation.stage, Stage::New) {
            let cpu = compiling.job.cpu().saturating_sub(compiling.charged);
            self.charge_preparing(chip, tsg, cpu.as_nanos() as u64);
        }
        self.compiling.remove(&id);
        self.preparation_ended(tsg);
    }

    /// Drops a channel's job, whatever it is, and what waits for it.
    pub(super) fn drop_job(&mut self, chip: &Chip, id: u32) {
        self.give_up_preparation(chip, id);
        self.residency.remove(&chip.budgets, id);
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return };
        if let Some(active) = channel.job.take() {
            active.preempt();
            self.trash.push(Trash::Job(active));
        }
        self.trash.extend(channel.family.take().map(Trash::Family));
    }

    /// Charges what compilations used since the last time.
    pub(super) fn charge_compilations(&mut self, chip: &Chip) {
        let mut used = Vec::new();
        for id in &self.compiling {
            let channel = self.ports[*id as usize].channel.as_mut();
            if let Some(Active { job: Job::Prepare(preparation), .. }) =
                channel.and_then(|channel| channel.job.as_mut())
                && let Stage::Compiling(compiling) = &mut preparation.stage
            {
                let cpu = compiling.job.cpu();
                used.push((compiling.tsg, cpu.saturating_sub(compiling.charged)));
                compiling.charged = cpu;
            }
        }
        for (tsg, cpu) in used {
            self.charge_preparing(chip, tsg, cpu.as_nanos() as u64);
        }
    }
}
