//! Commands: checked as far as can be seen, then encoded into a queue's rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{Command, DevAddr, GpuError, MAX_INLINE_BYTES, ModuleId, QueueId, SEMAPHORE_SLOTS, SLOT_BYTES, SlotId};
use gpu_spec::program::ConstantBank;
use ptx::launch::{MAX_SHARED_BYTES, MAX_THREADS_PER_CTA};

use crate::channel::{Launch, Ring};
use crate::client::{Client, Layout, Objects};
use crate::encode::{INLINE_PIECE, Transfer, pieces};
use crate::module::Module;
use crate::space::{invalid, unknown};

/// Most CTAs in x, and in y and z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Most threads in x, y, z.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

impl Client {
    /// Checks all commands, then appends all of them.
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
        let cooperative = commands.iter().any(|command| matches!(command, Command::Launch { cooperative: true, .. }));
        let workspace = if cooperative { self.workspace(&queue)? } else { 0 };
        self.sync()?;
        let [printf, heap, heap_bytes] = queue.channel.context.area;
        let bank = ConstantBank { printf, heap, heap_bytes, grid_workspace: workspace, ..ConstantBank::default() };
        let mut ring = queue.channel.ring.lock();
        if queue.channel.is_closed() {
            return Err(unknown("queue", id.0));
        }
        let mut modules = modules.iter();
        for command in commands {
            match *command {
                Command::Launch { kernel, grid, block, shared_bytes, cooperative, params, .. } => {
                    let Some(module) = modules.next() else { break };
                    self.refresh_programs(&mut ring)?;
                    let info = &module.kernels[kernel as usize].info;
                    ring.launch(&Launch {
                        program: module.entry(kernel),
                        grid,
                        block,
                        shared: info.shared_bytes.saturating_add(shared_bytes),
                        registers: info.registers,
                        local_bytes: info.local_bytes,
                        cooperative,
                        bank: ConstantBank { dynamic_shared: shared_bytes, param_bytes: params.len() as u32, ..bank },
                        params,
                    })?;
                }
                Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
                    for (x, y, width, height) in pieces(width, height, dst_pitch.max(src_pitch)) {
                        let to = Transfer { dst: dst.0 + y * dst_pitch + x, dst_pitch, width, height };
                        let from = src.0 + y * src_pitch + x;
                        ring.append(|encoder| encoder.copy(to, from, src_pitch))?;
                    }
                }
                Command::Fill { dst, value, element, width, height, pitch } => {
                    for (x, y, width, height) in pieces(width, height, pitch) {
                        let dst = dst.0 + y * pitch + x * u64::from(element);
                        let to = Transfer { dst, dst_pitch: pitch, width, height };
                        ring.append(|encoder| encoder.fill(to, value, element))?;
                    }
                }
                Command::Write { dst, data } => {
                    let mut at = dst.0;
                    for piece in data.chunks(INLINE_PIECE) {
                        ring.append(|encoder| encoder.write(at, piece))?;
                        at += piece.len() as u64;
                    }
                }
                Command::Signal { slot, value } => {
                    let at = slot_address(layout, slot);
                    ring.append(|encoder| encoder.signal(at, value, true))?;
                }
                Command::Wait { slot, value } => ring.wait(slot_address(layout, slot), value)?,
            }
        }
        ring.flush()
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

fn slot_address(layout: &Layout, slot: SlotId) -> u64 {
    layout.semaphores + u64::from(slot.0) * SLOT_BYTES as u64
}

/// Checks a command; a launch's module joins `modules`.
fn check(
    objects: &Objects,
    layout: &Layout,
    command: &Command<'_>,
    modules: &mut Vec<Arc<Module>>,
) -> Result<(), GpuError> {
    match *command {
        Command::Launch { module, kernel, grid, block, shared_bytes, params, .. } => {
            modules.push(check_launch(objects, module, kernel, grid, block, shared_bytes, params)?);
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
        Command::Signal { slot, .. } | Command::Wait { slot, .. } if slot.0 >= SEMAPHORE_SLOTS => {
            Err(unknown("semaphore slot", slot.0))
        }
        Command::Signal { .. } | Command::Wait { .. } => Ok(()),
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
    if entry.exact_ntid && info.max_ntid.is_some_and(|exact| exact != block) {
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
