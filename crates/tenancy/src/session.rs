//! One client's handles.

use std::collections::BTreeMap;

use gpu::{
    AllocId, Command, ContextId, DevAddr, GpuError, LARGE_PAGE_BYTES, MAX_RANGE_BYTES, MIN_RANGE_BYTES, MemoryKind,
    ModuleId, ModuleInfo, PAGE_BYTES, QueueId, Request, Response, client_bytes,
};

use intervals::IntervalMap;

use crate::{AccountAccess, Used};

/// Most variables of one module that a client may place itself: how long one request can make the session look.
const MAX_PLACED: usize = 16_384;

/// Host memory that keeps account of one object, in these tables, the driver and the device, bytes: generous, because maps
/// grow by doubling.
mod object {
    pub(super) const ALLOCATION: u64 = 1 << 10;
    pub(super) const MAPPING: u64 = 1 << 10;
    pub(super) const CONTEXT: u64 = 8 << 10;
    pub(super) const QUEUE: u64 = 4 << 10;
    pub(super) const MODULE: u64 = 8 << 10;
    /// A kernel or variable of a module, its name aside.
    pub(super) const ENTRY: u64 = 512;
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    kind: MemoryKind,
    /// Runs in `Session::mapped` that name it.
    mappings: u64,
}

#[derive(Debug)]
struct Module {
    kernels: u32,
    charge: Used,
}

/// One client's handles, and what they cost its tenant.
#[derive(Debug)]
pub struct Session {
    range: Option<(u64, u64)>,
    allocations: BTreeMap<AllocId, Allocation>,
    /// Which allocation is mapped where.
    mapped: IntervalMap<AllocId>,
    contexts: BTreeMap<ContextId, ()>,
    queues: BTreeMap<QueueId, ContextId>,
    modules: BTreeMap<ModuleId, Module>,
    /// All that is charged to the tenant for this session.
    charged: Used,
    /// The part of it that is for buffers.
    buffers: u64,
}

/// A request that passed the checks and was paid for; to be settled when the GPU has answered.
#[derive(Debug)]
#[must_use = "a ticket that is not settled keeps its charge"]
pub struct Ticket {
    request: Kept,
    cost: Used,
}

/// What settling needs to know of a request.
#[derive(Debug)]
enum Kept {
    SetAddressRange { lo: u64, bytes: u64 },
    MemoryInfo,
    Alloc { id: AllocId, bytes: u64, kind: MemoryKind },
    Free { id: AllocId },
    Map { at: u64, id: AllocId, bytes: u64 },
    Unmap { at: u64, bytes: u64 },
    CreateContext { id: ContextId },
    DestroyContext { id: ContextId },
    CreateQueue { id: QueueId, context: ContextId },
    DestroyQueue { id: QueueId },
    LoadModule { id: ModuleId },
    UnloadModule { id: ModuleId },
    Nothing,
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Settled {
    /// With this answer.
    Answer(Result<Response, GpuError>),
    /// The GPU gave more than the tenant may have: this must be undone, then what is left of the charge given back
    /// ([`Session::undone`]); then the error is the answer.
    Undo(Request, GpuError, Used),
}

fn invalid<T>(what: impl Into<String>) -> Result<T, GpuError> {
    Err(GpuError::InvalidValue { what: what.into() })
}

fn unknown(what: &str, id: u32) -> GpuError {
    GpuError::InvalidId { what: what.into(), id: id.into() }
}

impl Session {
    /// A session, charged to its tenant's account. `own`: what the session itself takes, whatever it does.
    ///
    /// # Errors
    /// `TooMany` or `OutOfMemory`.
    pub fn open(account: &impl AccountAccess, own: Used) -> Result<Session, GpuError> {
        let charged = Used { sessions: 1, ..own };
        account.with(|account| account.charge(charged))?;
        Ok(Session {
            range: None,
            allocations: BTreeMap::new(),
            mapped: IntervalMap::new(),
            contexts: BTreeMap::new(),
            queues: BTreeMap::new(),
            modules: BTreeMap::new(),
            charged,
            buffers: 0,
        })
    }

    /// What is charged for it.
    #[must_use]
    pub fn charged(&self) -> Used {
        self.charged
    }

    /// Decides whether the GPU may see a request, and charges its cost, but for memory of the GPU.
    ///
    /// # Errors
    /// The answer to the client; nothing has changed then.
    pub fn check(&mut self, account: &impl AccountAccess, request: &Request) -> Result<Ticket, GpuError> {
        let (request, cost) = self.judge(request)?;
        account.with(|account| account.charge(cost))?;
        self.charged = self.charged.combine(&cost, |a, b| a + b);
        Ok(Ticket { request, cost })
    }

    fn judge(&self, request: &Request) -> Result<(Kept, Used), GpuError> {
        let none = Used::default();
        Ok(match *request {
            Request::SetAddressRange { lo, bytes } => {
                if self.range.is_some() {
                    return invalid("the address range is announced already");
                }
                let whole = lo % LARGE_PAGE_BYTES == 0 && bytes % LARGE_PAGE_BYTES == 0;
                let end = lo.checked_add(bytes).is_some_and(|end| end <= 1 << 47);
                if !whole || !end || lo == 0 || !(MIN_RANGE_BYTES..=MAX_RANGE_BYTES).contains(&bytes) {
                    return invalid(format!("address range of {bytes:#x} bytes at {lo:#x}"));
                }
                (Kept::SetAddressRange { lo, bytes }, none)
            }
            Request::MemoryInfo => (Kept::MemoryInfo, none),
            Request::Alloc { id, bytes, kind } => {
                if self.allocations.contains_key(&id) {
                    return Err(unknown("allocation", id.0));
                }
                if bytes == 0 || bytes % PAGE_BYTES != 0 {
                    return invalid(format!("allocation of {bytes} bytes: not whole pages"));
                }
                (Kept::Alloc { id, bytes, kind }, memory_cost(bytes, kind))
            }
            Request::Free { id } => {
                let allocation = self.allocations.get(&id).ok_or(unknown("allocation", id.0))?;
                if allocation.mappings > 0 {
                    return invalid(format!("allocation {} is still mapped", id.0));
                }
                (Kept::Free { id }, none)
            }
            Request::Map { at: DevAddr(at), id, offset, bytes, .. } => {
                let allocation = self.allocations.get(&id).ok_or(unknown("allocation", id.0))?;
                self.check_range(at, bytes)?;
                let inside = offset.checked_add(bytes).is_some_and(|end| end <= allocation.bytes);
                if offset % PAGE_BYTES != 0 || !inside {
                    return invalid(format!("part {offset:#x}+{bytes:#x} of an allocation of {:#x}", allocation.bytes));
                }
                if self.mapped.overlapping(at..at + bytes).next().is_some() {
                    return invalid(format!("{at:#x}+{bytes:#x} is mapped already"));
                }
                (Kept::Map { at, id, bytes }, mappings_cost(1))
            }
            Request::Unmap { at: DevAddr(at), bytes } => {
                self.check_range(at, bytes)?;
                // Cutting a hole into a run leaves one run more.
                let splits = self.mapped.splits(at..at + bytes);
                (Kept::Unmap { at, bytes }, mappings_cost(splits.into()))
            }
            Request::CreateContext { id, .. } => {
                if self.contexts.contains_key(&id) {
                    return Err(unknown("context", id.0));
                }
                (Kept::CreateContext { id }, contexts_cost(1))
            }
            Request::DestroyContext { id } => {
                self.known_context(id)?;
                (Kept::DestroyContext { id }, none)
            }
            Request::CreateQueue { id, context, .. } => {
                self.known_context(context)?;
                if self.queues.contains_key(&id) {
                    return Err(unknown("queue", id.0));
                }
                (Kept::CreateQueue { id, context }, queues_cost(1))
            }
            Request::DestroyQueue { id } => {
                self.context_of(id)?;
                (Kept::DestroyQueue { id }, none)
            }
            Request::LoadModule { id, ref code, ref placed } => {
                if self.modules.contains_key(&id) {
                    return Err(unknown("module", id.0));
                }
                if placed.len() > MAX_PLACED {
                    return Err(GpuError::TooMany { what: "placed variables".into(), limit: MAX_PLACED as u64 });
                }
                if let Some((_, at)) = placed.iter().find(|(_, at)| !self.is_client_address(*at)) {
                    return invalid(format!("a variable at {:#x}: not inside the address range", at.0));
                }
                let code = code.bytes.len() as u64;
                // The device reads it once more, to compile it.
                let host_bytes = object::MODULE + code + object::ENTRY * placed.len() as u64;
                (Kept::LoadModule { id }, Used { modules: 1, host_bytes, ..none })
            }
            Request::UnloadModule { id } => {
                self.modules.get(&id).ok_or(unknown("module", id.0))?;
                (Kept::UnloadModule { id }, none)
            }
            Request::PrepareKernel { module, kernel, .. } => {
                self.check_kernel(module, kernel)?;
                (Kept::Nothing, none)
            }
            Request::ContextError { id } => {
                self.known_context(id)?;
                (Kept::Nothing, none)
            }
        })
    }

    /// Takes note of the GPU's answer: keeps the charge, or takes it back.
    pub fn settle(
        &mut self,
        account: &impl AccountAccess,
        ticket: Ticket,
        answer: Result<Response, GpuError>,
    ) -> Settled {
        let Ticket { request, cost } = ticket;
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                self.refund(account, cost);
                return Settled::Answer(Err(error));
            }
        };
        if let Kept::LoadModule { id } = request {
            return self.settle_module(account, id, cost, response);
        }
        match request {
            Kept::SetAddressRange { lo, bytes } => self.range = Some((lo, bytes)),
            Kept::MemoryInfo => return Settled::Answer(Ok(self.memory_info(account, response))),
            Kept::Alloc { id, bytes, kind } => {
                self.allocations.insert(id, Allocation { bytes, kind, mappings: 0 });
            }
            Kept::Free { id } => {
                if let Some(allocation) = self.allocations.remove(&id) {
                    self.refund(account, memory_cost(allocation.bytes, allocation.kind));
                }
            }
            Kept::Map { at, id, bytes } => {
                // It was free when it was checked, and a session has one thread.
                if self.mapped.insert(at..at + bytes, id).is_ok() {
                    self.count_mapping(id, 1);
                }
            }
            Kept::Unmap { at, bytes } => {
                let before = self.mapped.len() as u64 + cost.mappings;
                self.cut(at, bytes);
                let gone = before - self.mapped.len() as u64;
                self.refund(account, mappings_cost(gone));
            }
            Kept::CreateContext { id } => {
                self.contexts.insert(id, ());
            }
            Kept::DestroyContext { id } => {
                self.contexts.remove(&id);
                let before = self.queues.len();
                self.queues.retain(|_, context| *context != id);
                let queues = (before - self.queues.len()) as u64;
                self.refund(account, contexts_cost(1).combine(&queues_cost(queues), |a, b| a + b));
            }
            Kept::CreateQueue { id, context } => {
                self.queues.insert(id, context);
            }
            Kept::DestroyQueue { id } => {
                self.queues.remove(&id);
                self.refund(account, queues_cost(1));
            }
            Kept::UnloadModule { id } => {
                if let Some(module) = self.modules.remove(&id) {
                    self.refund(account, module.charge);
                }
            }
            Kept::LoadModule { .. } | Kept::Nothing => {}
        }
        Settled::Answer(Ok(response))
    }

    /// How much there is to describe is known only now; it counts as well.
    fn settle_module(&mut self, account: &impl AccountAccess, id: ModuleId, cost: Used, response: Response) -> Settled {
        let Response::Module(info) = &response else {
            self.refund(account, cost);
            return Settled::Answer(Err(GpuError::Lost { reason: "unexpected answer to LoadModule".into() }));
        };
        let more = Used { host_bytes: described(info), ..Used::default() };
        if let Err(error) = account.with(|account| account.charge(more)) {
            return Settled::Undo(Request::UnloadModule { id }, error, cost);
        }
        self.charged = self.charged.combine(&more, |a, b| a + b);
        let kernels = u32::try_from(info.kernels.len()).unwrap_or(u32::MAX);
        self.modules.insert(id, Module { kernels, charge: cost.combine(&more, |a, b| a + b) });
        Settled::Answer(Ok(response))
    }

    /// Gives back what was charged for a request that has been [undone](Settled::Undo).
    pub fn undone(&mut self, account: &impl AccountAccess, cost: Used) {
        self.refund(account, cost);
    }

    /// Free memory is what the tenant could have ([`GpuMemory::obtainable`](crate::GpuMemory::obtainable)), and its limit allows.
    fn memory_info(&self, account: &impl AccountAccess, response: Response) -> Response {
        match response {
            Response::Memory { free, total } => account.with(|account| Response::Memory {
                free: account.obtainable(free),
                total: total.min(account.limits().vram_bytes),
            }),
            other => other,
        }
    }

    /// The context of a queue.
    ///
    /// # Errors
    /// `InvalidId`.
    pub fn context_of(&self, queue: QueueId) -> Result<ContextId, GpuError> {
        self.queues.get(&queue).copied().ok_or(unknown("queue", queue.0))
    }

    /// Whether the GPU may see a command. Addresses are the GPU's to check: a wrong one is a fault of its context.
    ///
    /// # Errors
    /// It names something that the session has not, or breaks a limit.
    pub fn check_command(&self, command: &Command<'_>) -> Result<(), GpuError> {
        match *command {
            Command::Launch { module, kernel, .. } => self.check_kernel(module, kernel),
            Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
                check_extent(dst, width, height, dst_pitch)?;
                check_extent(src, width, height, src_pitch)
            }
            Command::Fill { dst, element, width, height, pitch, .. } => {
                if !matches!(element, 1 | 2 | 4) {
                    return invalid(format!("fill with elements of {element} bytes"));
                }
                check_extent(dst, width.saturating_mul(element.into()), height, pitch)
            }
            Command::Write { dst, data } => check_extent(dst, data.len() as u64, 1, 0),
            Command::WriteValue { at, wide, .. } | Command::WaitValue { at, wide, .. } => {
                let bytes = if wide { 8 } else { 4 };
                if !at.0.is_multiple_of(bytes) {
                    return invalid(format!("a word of {bytes} bytes at {:#x}: not aligned", at.0));
                }
                check_extent(at, bytes, 1, 0)
            }
            Command::Signal { .. } | Command::Wait { .. } => Ok(()),
        }
    }

    /// Whether a copy by the host may touch a range.
    ///
    /// # Errors
    /// `InvalidValue` if it lies outside the announced addresses.
    pub fn check_copy(&self, at: DevAddr, bytes: u64) -> Result<(), GpuError> {
        let inside = self
            .range
            .is_some_and(|(lo, len)| at.0 >= lo && at.0.checked_add(bytes).is_some_and(|end| end <= lo + len));
        if inside { Ok(()) } else { invalid(format!("{:#x}+{bytes:#x} is outside the address range", at.0)) }
    }

    /// Ends the session: everything was given back to the GPU and scrubbed, so the tenant may use it again.
    pub fn close(self, account: &impl AccountAccess) {
        account.with(|account| account.refund(self.charged));
    }

    /// Charges `after` bytes of GPU memory in place of `before`, for somebody who has them by being there.
    ///
    /// # Errors
    /// `OutOfMemory`; what was charged before stays.
    pub fn resize(&mut self, account: &impl AccountAccess, before: u64, after: u64) -> Result<(), GpuError> {
        let vram = |vram_bytes| Used { vram_bytes, ..Used::default() };
        if after > before {
            let more = vram(after - before);
            account.with(|account| account.charge(more))?;
            self.charged = self.charged.combine(&more, |a, b| a + b);
        } else {
            self.refund(account, vram(before - after));
        }
        Ok(())
    }

    /// What is charged for buffers, bytes.
    #[must_use]
    pub fn buffers(&self) -> u64 {
        self.buffers
    }

    /// Charges for `bytes` of buffers, those charged before included: for requests that are being put together, and what
    /// serving them takes for the moment.
    ///
    /// # Errors
    /// `OutOfMemory`; what was charged before stays.
    pub fn hold_buffers(&mut self, account: &impl AccountAccess, bytes: u64) -> Result<(), GpuError> {
        let host = |host_bytes| Used { host_bytes, ..Used::default() };
        if bytes > self.buffers {
            let more = host(bytes - self.buffers);
            account.with(|account| account.charge(more))?;
            self.charged = self.charged.combine(&more, |a, b| a + b);
        } else {
            self.refund(account, host(self.buffers - bytes));
        }
        self.buffers = bytes;
        Ok(())
    }

    fn refund(&mut self, account: &impl AccountAccess, cost: Used) {
        account.with(|account| account.refund(cost));
        self.charged = self.charged.combine(&cost, |a, b| a - b);
    }

    fn known_context(&self, id: ContextId) -> Result<(), GpuError> {
        self.contexts.get(&id).copied().ok_or(unknown("context", id.0))
    }

    fn check_kernel(&self, module: ModuleId, kernel: u32) -> Result<(), GpuError> {
        let known = self.modules.get(&module).ok_or(unknown("module", module.0))?;
        if kernel < known.kernels { Ok(()) } else { Err(unknown("kernel", kernel)) }
    }

    /// Lies in the client's part of the announced range.
    fn is_client_address(&self, at: DevAddr) -> bool {
        self.range.is_some_and(|(lo, len)| at.0 >= lo && at.0 - lo < client_bytes(len))
    }

    fn check_range(&self, at: u64, bytes: u64) -> Result<(), GpuError> {
        let inside = self.range.is_some_and(|(lo, len)| {
            at >= lo && at.checked_add(bytes).is_some_and(|end| end <= lo + client_bytes(len))
        });
        if bytes == 0 || !at.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) || !inside {
            return invalid(format!("{at:#x}+{bytes:#x}: not whole pages inside the address range"));
        }
        Ok(())
    }

    fn count_mapping(&mut self, id: AllocId, change: i64) {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.mappings = allocation.mappings.saturating_add_signed(change);
        }
    }

    fn cut(&mut self, at: u64, bytes: u64) {
        for cut in self.mapped.cut(at..at + bytes) {
            // At most two are left of one.
            self.count_mapping(cut.value, cut.remainders() as i64 - 1);
        }
    }
}

fn mappings_cost(mappings: u64) -> Used {
    Used { mappings, host_bytes: mappings * object::MAPPING, ..Used::default() }
}

fn contexts_cost(contexts: u64) -> Used {
    Used { contexts, host_bytes: contexts * object::CONTEXT, ..Used::default() }
}

fn queues_cost(queues: u64) -> Used {
    Used { queues, host_bytes: queues * object::QUEUE, ..Used::default() }
}

/// Host memory that the descriptions of a module's kernels and variables take, bytes.
fn described(info: &ModuleInfo) -> u64 {
    let kernels =
        info.kernels.iter().map(|kernel| object::ENTRY + kernel.name.len() as u64 + 8 * kernel.params.len() as u64);
    let globals = info.globals.iter().map(|global| object::ENTRY + global.name.len() as u64);
    kernels.chain(globals).sum()
}

fn memory_cost(bytes: u64, kind: MemoryKind) -> Used {
    let one = Used { allocations: 1, host_bytes: object::ALLOCATION, ..Used::default() };
    match kind {
        MemoryKind::Vram => one,
        MemoryKind::Host => Used { host_bytes: bytes.saturating_add(object::ALLOCATION), ..one },
    }
}

/// Refuses lines whose addresses do not exist: the sum of the parts passes 2^64.
fn check_extent(at: DevAddr, width: u64, height: u64, pitch: u64) -> Result<(), GpuError> {
    let last = height.saturating_sub(1).checked_mul(pitch).and_then(|lines| lines.checked_add(width));
    match last.and_then(|bytes| at.0.checked_add(bytes)) {
        Some(_) => Ok(()),
        None => invalid(format!("{height} lines of {width} bytes, {pitch} apart, at {:#x}", at.0)),
    }
}
