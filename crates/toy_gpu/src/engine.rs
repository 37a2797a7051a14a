//! The toy's queues.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use gpu::{Command, Compare, ContextError, ContextId, DevAddr, GpuError, QueueId, SemaphoreArea, SlotId, VramLedger};

use crate::ToyMachine;
use crate::memory::Memory;

/// A command that owns what it carries.
#[derive(Debug)]
enum Work {
    Nothing,
    Endless,
    Copy { dst: DevAddr, src: DevAddr, width: u64, height: u64, dst_pitch: u64, src_pitch: u64 },
    Store { dst: DevAddr, data: Vec<u8>, height: u64, pitch: u64 },
    Signal { slot: SlotId, value: u64 },
    Wait { slot: SlotId, value: u64 },
    WaitValue { at: DevAddr, value: u64, wide: bool, compare: Compare },
}

#[derive(Debug)]
struct Queue {
    context: ContextId,
    work: VecDeque<Work>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) memory: Memory,
    pub(crate) aborted: bool,
    pub(crate) ended: bool,
    contexts: HashMap<ContextId, Option<ContextError>>,
    queues: HashMap<QueueId, Queue>,
    time: u64,
}

impl Engine {
    pub(crate) fn new(machine: Arc<ToyMachine>, ledger: Option<Arc<dyn VramLedger>>) -> Engine {
        Engine {
            memory: Memory::new(machine, ledger),
            aborted: false,
            ended: false,
            contexts: HashMap::new(),
            queues: HashMap::new(),
            time: 0,
        }
    }

    pub(crate) fn create_context(&mut self, id: ContextId) -> Result<(), GpuError> {
        self.memory.add_context(id)?;
        self.contexts.insert(id, None);
        Ok(())
    }

    pub(crate) fn destroy_context(&mut self, id: ContextId) {
        self.contexts.remove(&id);
        self.memory.remove_context(id);
        self.queues.retain(|_, queue| queue.context != id);
    }

    pub(crate) fn create_queue(&mut self, id: QueueId, context: ContextId) {
        self.queues.insert(id, Queue { context, work: VecDeque::new() });
    }

    pub(crate) fn destroy_queue(&mut self, id: QueueId) {
        self.queues.remove(&id);
    }

    pub(crate) fn busy(&self, id: QueueId) -> bool {
        self.queues.get(&id).is_some_and(|queue| !queue.work.is_empty() && self.error(queue.context).is_none())
    }

    pub(crate) fn error(&self, id: ContextId) -> Option<ContextError> {
        self.contexts.get(&id).cloned().flatten()
    }

    pub(crate) fn submit(&mut self, id: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError> {
        let queue = self.queues.get_mut(&id).ok_or(GpuError::InvalidId { what: "queue".into(), id: id.0.into() })?;
        for command in commands {
            queue.work.push_back(match *command {
                Command::Launch { kernel: 1, .. } => Work::Endless,
                Command::Launch { .. } => Work::Nothing,
                Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
                    Work::Copy { dst, src, width, height, dst_pitch, src_pitch }
                }
                Command::Fill { dst, value, element, width, height, pitch } => {
                    let element = &value.to_le_bytes()[..element as usize];
                    Work::Store { dst, data: element.repeat(width as usize), height, pitch }
                }
                Command::Write { dst, data } => Work::Store { dst, data: data.to_vec(), height: 1, pitch: 0 },
                Command::Signal { slot, value } => Work::Signal { slot, value },
                Command::Wait { slot, value } => Work::Wait { slot, value },
                Command::WriteValue { at, value, wide } => {
                    let data = value.to_le_bytes()[..if wide { 8 } else { 4 }].to_vec();
                    Work::Store { dst: at, data, height: 1, pitch: 0 }
                }
                Command::WaitValue { at, value, wide, compare } => Work::WaitValue { at, value, wide, compare },
            });
        }
        Ok(())
    }

    /// Whether a queue waits for a word in memory: nobody tells when that changes.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.queues.values().any(|queue| matches!(queue.work.front(), Some(Work::WaitValue { .. })))
    }

    /// Does at most one command of each queue; whether it did any.
    pub(crate) fn step(&mut self, semaphores: &SemaphoreArea) -> bool {
        let mut progress = false;
        let mut faults = Vec::new();
        for queue in self.queues.values_mut() {
            if self.aborted || self.contexts.get(&queue.context).is_none_or(Option::is_some) {
                progress |= !queue.work.is_empty();
                queue.work.clear();
                continue;
            }
            let Some(work) = queue.work.front() else { continue };
            match perform(work, &self.memory, semaphores, self.time) {
                Ok(false) => {}
                Ok(true) => {
                    self.time += 1;
                    queue.work.pop_front();
                    progress = true;
                }
                Err(address) => {
                    faults.push((queue.context, address));
                    progress = true;
                }
            }
        }
        for (context, DevAddr(address)) in faults {
            let error = ContextError::IllegalAddress { address, write: true, site: String::new() };
            self.contexts.entry(context).and_modify(|found| *found = found.take().or(Some(error)));
            semaphores.count_error();
        }
        progress
    }
}

/// Does one command: whether it is done, or the address at which it faulted.
fn perform(work: &Work, memory: &Memory, semaphores: &SemaphoreArea, time: u64) -> Result<bool, DevAddr> {
    match work {
        Work::Nothing => Ok(true),
        Work::Endless => Ok(false),
        Work::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
            let space = memory.window().map_err(|_| *dst)?;
            for line in 0..*height {
                let (to, from) = (DevAddr(dst.0 + line * dst_pitch), DevAddr(src.0 + line * src_pitch));
                space.copy(to, from, *width).map_err(|_| to)?;
            }
            Ok(true)
        }
        Work::Store { dst, data, height, pitch } => {
            let space = memory.window().map_err(|_| *dst)?;
            for line in 0..*height {
                let to = DevAddr(dst.0 + line * pitch);
                space.store(to, data).map_err(|_| to)?;
            }
            Ok(true)
        }
        Work::Signal { slot, value } => {
            semaphores.signal(*slot, *value, time);
            Ok(true)
        }
        Work::Wait { slot, value } => Ok(semaphores.payload(*slot) >= *value),
        Work::WaitValue { at, value, wide, compare } => {
            let space = memory.window().map_err(|_| *at)?;
            let word = space.load(*at, if *wide { 8 } else { 4 }).map_err(|_| *at)?;
            Ok(compare.holds(word, *value, *wide))
        }
    }
}
