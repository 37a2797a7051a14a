//! One client's handles.

use std::collections::BTreeMap;

use gpu::{
    AllocId, Command, ContextId, DevAddr, GpuError, LARGE_PAGE_BYTES, MAX_RANGE_BYTES, MIN_RANGE_BYTES, MemoryKind,
    ModuleId, PAGE_BYTES, QueueId, Request, Response, client_bytes,
};

use crate::{Ledger, TenantId, Used};

/// Most variables of one module that a client may place itself: how long one request can make the session look.
const MAX_PLACED: usize = 16_384;

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
    tenant: TenantId,
    range: Option<(u64, u64)>,
    allocations: BTreeMap<AllocId, Allocation>,
    /// Mapped runs by first address: length, allocation.
    mapped: BTreeMap<u64, (u64, AllocId)>,
    contexts: BTreeMap<ContextId, ()>,
    queues: BTreeMap<QueueId, ContextId>,
    modules: BTreeMap<ModuleId, Module>,
    /// All that is charged to the tenant for this session.
    charged: Used,
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
    /// The GPU gave more than the tenant may have: this must be undone, then the error is the answer.
    Undo(Request, GpuError),
}

fn invalid<T>(what: impl Into<String>) -> Result<T, GpuError> {
    Err(GpuError::InvalidValue { what: what.into() })
}

fn unknown(what: &str, id: u32) -> GpuError {
    GpuError::InvalidId { what: what.into(), id: id.into() }
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

impl Session {
    /// A session of `tenant`, charged to its account.
    ///
    /// # Errors
    /// `TooMany` sessions; `InvalidId` if there is no account.
    pub fn open(tenant: TenantId, ledger: &mut Ledger) -> Result<Session, GpuError> {
        let charged = Used { sessions: 1, ..Used::default() };
        ledger.charge(tenant, charged)?;
        Ok(Session {
            tenant,
            range: None,
            allocations: BTreeMap::new(),
            mapped: BTreeMap::new(),
            contexts: BTreeMap::new(),
            queues: BTreeMap::new(),
            modules: BTreeMap::new(),
            charged,
        })
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// What is charged for it.
    #[must_use]
    pub fn charged(&self) -> Used {
        self.charged
    }

    /// Decides whether the GPU may see a request, and charges its cost.
    ///
    /// # Errors
    /// The answer to the client; nothing has changed then.
    pub fn check(&mut self, ledger: &mut Ledger, request: &Request) -> Result<Ticket, GpuError> {
        let (request, cost) = self.judge(request)?;
        ledger.charge(self.tenant, cost)?;
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
                if self.overlapping(at, bytes).next().is_some() {
                    return invalid(format!("{at:#x}+{bytes:#x} is mapped already"));
                }
                (Kept::Map { at, id, bytes }, Used { mappings: 1, ..none })
            }
            Request::Unmap { at: DevAddr(at), bytes } => {
                self.check_range(at, bytes)?;
                // Cutting a hole into a run leaves one run more.
                let splits =
                    self.mapped.range(..at).next_back().is_some_and(|(&start, &(len, _))| start + len > at + bytes);
                (Kept::Unmap { at, bytes }, Used { mappings: splits.into(), ..none })
            }
            Request::CreateContext { id, .. } => {
                if self.contexts.contains_key(&id) {
                    return Err(unknown("context", id.0));
                }
                (Kept::CreateContext { id }, Used { contexts: 1, ..none })
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
                (Kept::CreateQueue { id, context }, Used { queues: 1, ..none })
            }
            Request::DestroyQueue { id } => {
                self.context_of(id)?;
                (Kept::DestroyQueue { id }, none)
            }
            Request::LoadModule { id, ref ptx, ref placed } => {
                if self.modules.contains_key(&id) {
                    return Err(unknown("module", id.0));
                }
                if placed.len() > MAX_PLACED {
                    return Err(GpuError::TooMany { what: "placed variables".into(), limit: MAX_PLACED as u64 });
                }
                if let Some((_, at)) = placed.iter().find(|(_, at)| !self.is_client_address(*at)) {
                    return invalid(format!("a variable at {:#x}: not inside the address range", at.0));
                }
                let text = pages(ptx.len() as u64);
                (Kept::LoadModule { id }, Used { modules: 1, vram_bytes: text, ..none })
            }
            Request::UnloadModule { id } => {
                self.modules.get(&id).ok_or(unknown("module", id.0))?;
                (Kept::UnloadModule { id }, none)
            }
            Request::PrepareKernel { module, kernel } => {
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
    pub fn settle(&mut self, ledger: &mut Ledger, ticket: Ticket, answer: Result<Response, GpuError>) -> Settled {
        let Ticket { request, cost } = ticket;
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                self.refund(ledger, cost);
                return Settled::Answer(Err(error));
            }
        };
        match request {
            Kept::SetAddressRange { lo, bytes } => self.range = Some((lo, bytes)),
            Kept::MemoryInfo => return Settled::Answer(Ok(self.memory_info(ledger, response))),
            Kept::Alloc { id, bytes, kind } => {
                self.allocations.insert(id, Allocation { bytes, kind, mappings: 0 });
            }
            Kept::Free { id } => {
                if let Some(allocation) = self.allocations.remove(&id) {
                    self.refund(ledger, memory_cost(allocation.bytes, allocation.kind));
                }
            }
            Kept::Map { at, id, bytes } => {
                self.mapped.insert(at, (bytes, id));
                self.count_mapping(id, 1);
            }
            Kept::Unmap { at, bytes } => {
                let before = self.mapped.len() as u64 + cost.mappings;
                self.cut(at, bytes);
                let gone = before - self.mapped.len() as u64;
                self.refund(ledger, Used { mappings: gone, ..Used::default() });
            }
            Kept::CreateContext { id } => {
                self.contexts.insert(id, ());
            }
            Kept::DestroyContext { id } => {
                self.contexts.remove(&id);
                let before = self.queues.len();
                self.queues.retain(|_, context| *context != id);
                let queues = (before - self.queues.len()) as u64;
                self.refund(ledger, Used { contexts: 1, queues, ..Used::default() });
            }
            Kept::CreateQueue { id, context } => {
                self.queues.insert(id, context);
            }
            Kept::DestroyQueue { id } => {
                self.queues.remove(&id);
                self.refund(ledger, Used { queues: 1, ..Used::default() });
            }
            Kept::LoadModule { id } => return self.settle_module(ledger, id, cost, response),
            Kept::UnloadModule { id } => {
                if let Some(module) = self.modules.remove(&id) {
                    self.refund(ledger, module.charge);
                }
            }
            Kept::Nothing => {}
        }
        Settled::Answer(Ok(response))
    }

    /// A module's variables are known only now; they count as well.
    fn settle_module(&mut self, ledger: &mut Ledger, id: ModuleId, cost: Used, response: Response) -> Settled {
        let Response::Module(info) = &response else {
            self.refund(ledger, cost);
            return Settled::Answer(Err(GpuError::Lost { reason: "unexpected answer to LoadModule".into() }));
        };
        // Those that the client has placed lie in memory that is counted already.
        let own = info.globals.iter().filter(|global| !self.is_client_address(global.address));
        let globals = own.fold(0u64, |sum, global| sum.saturating_add(global.bytes));
        let more = Used { vram_bytes: pages(globals), ..Used::default() };
        if let Err(error) = ledger.charge(self.tenant, more) {
            self.refund(ledger, cost);
            return Settled::Undo(Request::UnloadModule { id }, error);
        }
        self.charged = self.charged.combine(&more, |a, b| a + b);
        let kernels = u32::try_from(info.kernels.len()).unwrap_or(u32::MAX);
        self.modules.insert(id, Module { kernels, charge: cost.combine(&more, |a, b| a + b) });
        Settled::Answer(Ok(response))
    }

    /// Free memory is what both the GPU and the tenant's account still have.
    fn memory_info(&self, ledger: &Ledger, response: Response) -> Response {
        match (response, ledger.account(self.tenant)) {
            (Response::Memory { free, total }, Some((used, limits))) => Response::Memory {
                free: free.min(limits.vram_bytes.saturating_sub(used.vram_bytes)),
                total: total.min(limits.vram_bytes),
            },
            (other, _) => other,
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
    /// Why not.
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
    pub fn close(self, ledger: &mut Ledger) {
        ledger.refund(self.tenant, self.charged);
    }

    fn refund(&mut self, ledger: &mut Ledger, cost: Used) {
        ledger.refund(self.tenant, cost);
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

    /// Mapped runs that touch a range.
    fn overlapping(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u64, AllocId)> {
        self.mapped
            .range(..at + bytes)
            .rev()
            .take_while(move |&(&start, &(len, _))| start + len > at)
            .map(|(&start, &(len, id))| (start, len, id))
    }

    fn count_mapping(&mut self, id: AllocId, change: i64) {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.mappings = allocation.mappings.saturating_add_signed(change);
        }
    }

    fn cut(&mut self, at: u64, bytes: u64) {
        let touched: Vec<(u64, u64, AllocId)> = self.overlapping(at, bytes).collect();
        for (start, len, id) in touched {
            self.mapped.remove(&start);
            self.count_mapping(id, -1);
            if start < at {
                self.mapped.insert(start, (at - start, id));
                self.count_mapping(id, 1);
            }
            if start + len > at + bytes {
                self.mapped.insert(at + bytes, (start + len - at - bytes, id));
                self.count_mapping(id, 1);
            }
        }
    }
}

fn memory_cost(bytes: u64, kind: MemoryKind) -> Used {
    let one = Used { allocations: 1, ..Used::default() };
    match kind {
        MemoryKind::Vram => Used { vram_bytes: bytes, ..one },
        MemoryKind::Host => Used { host_bytes: bytes, ..one },
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
