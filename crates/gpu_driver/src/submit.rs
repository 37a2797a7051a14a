//! Commands: checked as far as can be seen, then encoded into a queue's rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{Command, DevAddr, GpuError, MAX_INLINE_BYTES, ModuleId, QueueId, SemaphoreArea, SlotId};
use gpu_spec::program::ConstantBank;
use ptx::launch::{MAX_CLUSTER_CTAS, MAX_SHARED_BYTES, MAX_THREADS_PER_CTA};

use crate::channel::{Channel, Launch, Ring};
use crate::channels::Purpose;
use crate::client::{Client, Layout, Objects};
use crate::encode::{INLINE_PIECE, Transfer, pieces};
use crate::module::{Kernel, Module};
use crate::parking::Outlook;
use crate::queues::{Queue, QueueState};
use crate::space::{invalid, unknown};

/// Most CTAs in x, and in y and z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Most threads in x, y, z.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// Where a command goes.
enum Route {
    /// Nowhere: it has nothing to wait for.
    Skip,
    /// To the queue's channel, whichever it is.
    Shared,
    /// To a waiter.
    Waiter,
    /// It is kept, and what follows it.
    Park,
}

impl Client {
    /// Checks all commands, then submits all of them.
    pub(crate) fn submit_commands(&self, id: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        let layout = self.layout()?;
        let mut modules = Vec::new();
        let queue = {
            let objects = self.objects.read();
            for command in commands {
                check(&objects, layout, command, &mut modules)?;
            }
            self.queue(&objects, id)?
        };
        self.enqueue(&queue, commands, &modules)
    }

    /// Writes commands into the channels of a queue until one has to park it, and lets the device see them; gives how many
    /// that were. Slots that queues may be parked for join `signalled`.
    pub(crate) fn emit(
        &self,
        queue: &Arc<Queue>,
        state: &mut QueueState,
        commands: &[Command<'_>],
        modules: &[Arc<Module>],
        signalled: &mut Vec<SlotId>,
    ) -> Result<usize, GpuError> {
        let emitted = self.write_out(queue, state, commands, modules, signalled);
        // What is short is done by now.
        self.common.listeners.listen(&self.signals);
        emitted
    }

    fn write_out(
        &self,
        queue: &Arc<Queue>,
        state: &mut QueueState,
        commands: &[Command<'_>],
        modules: &[Arc<Module>],
        signalled: &mut Vec<SlotId>,
    ) -> Result<usize, GpuError> {
        self.sync()?;
        let mut modules = modules.iter();
        let mut next = 0;
        while next < commands.len() {
            let memory = match self.route(queue, &commands[next]) {
                Route::Skip => {
                    next += 1;
                    continue;
                }
                Route::Park => return Ok(next),
                Route::Shared => false,
                Route::Waiter => true,
            };
            let channel = self.channel_for(queue, state, memory)?;
            let mut ring = channel.ring.lock();
            if channel.is_closed() {
                return Err(invalid("the context was destroyed".into()));
            }
            while next < commands.len() {
                match self.route(queue, &commands[next]) {
                    Route::Skip => {}
                    Route::Park => {
                        ring.flush()?;
                        return Ok(next);
                    }
                    Route::Waiter if channel.purpose != Purpose::Waiter => break,
                    _ if channel.purpose == Purpose::Waiter
                        && !ring.has_room_for(&commands[next])
                        && self.watch(queue) =>
                    {
                        ring.flush()?;
                        return Ok(next);
                    }
                    Route::Shared | Route::Waiter => {
                        let module =
                            if matches!(commands[next], Command::Launch { .. }) { modules.next() } else { None };
                        self.encode(&channel, &mut ring, &commands[next], module.map(Arc::as_ref))?;
                        // What lies in a waiter may never be reached: nobody in a shared channel may rely on it.
                        let by = (channel.purpose == Purpose::Shared).then_some(queue.entry.number);
                        if let Command::Signal { slot, value } = commands[next]
                            && self.parking.promise(slot, value, by)
                        {
                            signalled.push(slot);
                        }
                    }
                }
                next += 1;
            }
            ring.flush()?;
        }
        Ok(next)
    }

    /// Where a command goes. A wait that has to park its queue has done so.
    fn route(&self, queue: &Arc<Queue>, command: &Command<'_>) -> Route {
        match *command {
            Command::Wait { slot, value } => {
                let outlook = match self.outlook(queue, slot, value) {
                    Outlook::Open => self.parking.park(slot, queue, || self.outlook(queue, slot, value)),
                    outlook => outlook,
                };
                match outlook {
                    Outlook::Met => Route::Skip,
                    Outlook::Promised => Route::Shared,
                    Outlook::PromisedElsewhere => Route::Waiter,
                    Outlook::Open => Route::Park,
                }
            }
            Command::WaitValue { .. } => Route::Waiter,
            _ => Route::Shared,
        }
    }

    fn encode(
        &self,
        channel: &Channel,
        ring: &mut Ring,
        command: &Command<'_>,
        module: Option<&Module>,
    ) -> Result<(), GpuError> {
        let layout = self.layout()?;
        match *command {
            Command::Launch { kernel, grid, block, shared_bytes, cooperative, cluster, params, .. } => {
                let module = module.ok_or_else(|| invalid("a launch without its module".into()))?;
                let grid_workspace = if cooperative { self.workspace(channel)? } else { 0 };
                self.refresh_programs(ring)?;
                let kernel_of = &module.kernels[kernel as usize];
                let (grid, cluster) = clusters(kernel_of, grid, cluster)?;
                let Kernel { info, stack_bytes, .. } = kernel_of;
                let [printf, heap, heap_bytes] = channel.context.area;
                let bank = ConstantBank {
                    printf,
                    heap,
                    heap_bytes,
                    grid_workspace,
                    dynamic_shared: shared_bytes,
                    param_bytes: params.len() as u32,
                };
                ring.launch(&Launch {
                    program: module.entry(kernel),
                    grid,
                    block,
                    shared: info.shared_bytes.saturating_add(shared_bytes),
                    registers: info.registers,
                    stack_bytes: stack_bytes.load(Ordering::Relaxed),
                    cooperative,
                    cluster,
                    bank,
                    params,
                })
            }
            Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
                for (x, y, width, height) in pieces(width, height, dst_pitch.max(src_pitch)) {
                    let to = Transfer { dst: dst.0 + y * dst_pitch + x, dst_pitch, width, height };
                    let from = src.0 + y * src_pitch + x;
                    ring.append(|encoder| encoder.copy(to, from, src_pitch))?;
                }
                Ok(())
            }
            Command::Fill { dst, value, element, width, height, pitch } => {
                for (x, y, width, height) in pieces(width, height, pitch) {
                    let dst = dst.0 + y * pitch + x * u64::from(element);
                    let to = Transfer { dst, dst_pitch: pitch, width, height };
                    ring.append(|encoder| encoder.fill(to, value, element))?;
                }
                Ok(())
            }
            Command::Write { dst, data } => {
                let mut at = dst.0;
                for piece in data.chunks(INLINE_PIECE) {
                    ring.append(|encoder| encoder.write(at, piece))?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
            Command::Signal { slot, value } => {
                let at = slot_address(layout, slot)?;
                ring.append(|encoder| encoder.signal(at, value, true))?;
                self.signals.submitted(channel.number, slot, value);
                Ok(())
            }
            Command::Wait { slot, value } => ring.wait(slot_address(layout, slot)?, value),
            Command::WriteValue { at, value, wide } => ring.append(|encoder| encoder.write_value(at.0, value, wide)),
            Command::WaitValue { at, value, wide, compare } => ring.wait_value(at.0, value, wide, compare),
        }
    }

    /// Before the first launch after a module was unloaded: another program may lie at an address the device knows.
    fn refresh_programs(&self, ring: &mut Ring) -> Result<(), GpuError> {
        let programs = self.programs.load(Ordering::Acquire);
        if ring.programs != programs {
            ring.append(crate::encode::Encoder::invalidate_programs)?;
            ring.programs = programs;
        }
        Ok(())
    }
}

fn slot_address(layout: &Layout, slot: SlotId) -> Result<u64, GpuError> {
    Ok(layout.semaphores + SemaphoreArea::offset(slot)?)
}

/// Checks a command; a launch's module joins `modules`.
fn check(
    objects: &Objects,
    layout: &Layout,
    command: &Command<'_>,
    modules: &mut Vec<Arc<Module>>,
) -> Result<(), GpuError> {
    match *command {
        Command::Launch { module, kernel, grid, block, shared_bytes, cluster, params, .. } => {
            let module = check_launch(objects, module, kernel, grid, block, shared_bytes, params)?;
            clusters(&module.kernels[kernel as usize], grid, cluster)?;
            modules.push(module);
            Ok(())
        }
        Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
            visible(layout, dst, width, height, dst_pitch)?;
            visible(layout, src, width, height, src_pitch)
        }
        Command::Fill { dst, element, width, height, pitch, .. } => {
            let aligned = matches!(element, 1 | 2 | 4)
                && dst.0.is_multiple_of(element.into())
                && (height <= 1 || pitch.is_multiple_of(element.into()));
            let bytes = width.checked_mul(element.into()).filter(|_| aligned);
            let bytes =
                bytes.ok_or_else(|| invalid(format!("fill with elements of {element} bytes at {:#x}", dst.0)))?;
            visible(layout, dst, bytes, height, pitch)
        }
        Command::Write { dst, data } => {
            if data.len() > MAX_INLINE_BYTES {
                return Err(invalid(format!("inline write of {} bytes", data.len())));
            }
            visible(layout, dst, data.len() as u64, 1, 0)
        }
        Command::WriteValue { at, wide, .. } | Command::WaitValue { at, wide, .. } => {
            let bytes = if wide { 8 } else { 4 };
            if !at.0.is_multiple_of(bytes) {
                return Err(invalid(format!("a word of {bytes} bytes at {:#x}: not aligned", at.0)));
            }
            visible(layout, at, bytes, 1, 0)
        }
        Command::Signal { slot, .. } | Command::Wait { slot, .. } => SemaphoreArea::offset(slot).map(drop),
    }
}

/// Checks that lines lie in what commands may name: a copy engine reaches the driver's own pages, too.
fn visible(layout: &Layout, at: DevAddr, width: u64, height: u64, pitch: u64) -> Result<(), GpuError> {
    if width == 0 || height == 0 {
        return Ok(());
    }
    if height > 1 && pitch < width {
        return Err(invalid(format!("pitch {pitch} below line length {width}")));
    }
    let span = (height - 1).checked_mul(pitch).and_then(|lines| lines.checked_add(width));
    let inside = span.is_some_and(|span| {
        at.0 >= layout.lo && at.0 - layout.lo <= layout.visible && span <= layout.visible - (at.0 - layout.lo)
    });
    if inside {
        Ok(())
    } else {
        Err(invalid(format!("{height} lines of {width} bytes at {:#x} leave the address range", at.0)))
    }
}

/// CTAs of the grid and of a cluster of such a launch.
fn clusters(kernel: &Kernel, grid: [u32; 3], asked: [u32; 3]) -> Result<([u32; 3], [u32; 3]), GpuError> {
    let refused = |what: String| Err(invalid(format!("launch of {}: {what}", kernel.info.name)));
    let cluster = match kernel.cluster {
        Some(own) if asked != [1; 3] && asked != own => {
            return refused(format!("clusters of {asked:?} CTAs, but the kernel requires {own:?}"));
        }
        Some(own) => own,
        None => asked,
    };
    let ctas = cluster.iter().try_fold(1, |all: u32, n| all.checked_mul(*n));
    if !ctas.is_some_and(|ctas| (1..=MAX_CLUSTER_CTAS).contains(&ctas)) {
        return refused(format!("clusters of {cluster:?} CTAs"));
    }
    let mut grid = grid;
    if kernel.counts_clusters {
        for ((side, of), most) in grid.iter_mut().zip(cluster).zip(MAX_GRID) {
            let ctas = side.checked_mul(of).filter(|ctas| *ctas <= most);
            *side = ctas.ok_or_else(|| invalid(format!("launch of {}: too many clusters", kernel.info.name)))?;
        }
    }
    if grid.iter().zip(cluster).any(|(all, of)| !all.is_multiple_of(of)) {
        return refused(format!("grid {grid:?} is no multiple of clusters of {cluster:?} CTAs"));
    }
    Ok((grid, cluster))
}

fn check_launch(
    objects: &Objects,
    module: ModuleId,
    kernel: u32,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: &[u8],
) -> Result<Arc<Module>, GpuError> {
    let module = objects.modules.get(&module).ok_or_else(|| unknown("module", module.0))?;
    let entry = module.kernels.get(kernel as usize).ok_or_else(|| unknown("kernel", kernel))?;
    let info = &entry.info;
    let refused = |what: String| Err(invalid(format!("launch of {}: {what}", info.name)));
    let inside = |n: [u32; 3], most: [u32; 3]| n.iter().zip(most).all(|(n, most)| (1..=most).contains(n));
    if !inside(grid, MAX_GRID) {
        return refused(format!("grid {grid:?}"));
    }
    let threads = if inside(block, MAX_BLOCK) { block.iter().product() } else { u32::MAX };
    if threads > MAX_THREADS_PER_CTA || threads > info.max_threads {
        return refused(format!("block {block:?}"));
    }
    if info.exact_ntid && info.max_ntid.is_some_and(|exact| exact != block) {
        return refused(format!("block {block:?}, but the kernel requires {:?}", info.max_ntid));
    }
    if shared_bytes > MAX_SHARED_BYTES || info.shared_bytes.saturating_add(shared_bytes) > MAX_SHARED_BYTES {
        return refused(format!("{shared_bytes} bytes of dynamic shared memory beside {}", info.shared_bytes));
    }
    if params.len() != info.param_bytes as usize {
        return refused(format!("{} bytes of parameters, {} expected", params.len(), info.param_bytes));
    }
    Ok(Arc::clone(module))
}
