//! Memory that graphs allocate: addresses from the making of a node on, memory behind them from the first launch on.
//!
//! ```text
//!               launch                free                  its work is over, and somebody trims
//!   addresses ─────────► mapped, live ─────► mapped, kept ──────────────────────────────────────► addresses
//!                             ▲                   │ launch
//!                             └───────────────────┘
//! ```
//! Addresses go when no node and no executable graph has them any more, the memory is free, and its work is over. Within a graph
//! they are used again by allocations that come behind the free of a former one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gpu::{AllocId, ContextId, DevAddr, GiveBack, LARGE_PAGE_BYTES, MemoryKind, PAGE_BYTES};
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::gpu_link::slots::{Mark, Slots};
use crate::handle::{Graph, GraphNode};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::heap::{ALIGN, Memory, SMALL, is_short};

/// Addresses of allocations of a graph; they stay as long as this does, and while the memory is not freed.
#[derive(Debug)]
pub(crate) struct GraphBlock {
    memory: Arc<Memory>,
    pub(crate) base: u64,
}

impl GraphBlock {
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Drop for GraphBlock {
    fn drop(&mut self) {
        let mut contents = self.memory.graphs.contents.lock();
        self.memory.settle(&mut contents, self.base);
    }
}

/// What a node does with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Alloc,
    Free,
}

/// Which nodes free what a block's last allocating node allocates.
#[derive(Debug)]
enum FreedBy {
    Nobody,
    /// One of the same graph.
    Own(GraphNode),
    /// Of other graphs, one in each.
    Others(Vec<Graph>),
}

#[derive(Debug)]
struct Block {
    known: Arc<Allocation>,
    /// Bytes of addresses.
    whole: u64,
    backing: Option<AllocId>,
    /// Allocated, as far as was submitted, and not freed.
    live: bool,
    /// Launches that are being submitted.
    pins: u32,
    /// Behind these no work uses it, unless it is live: one of each slot.
    until: Vec<Mark>,
    owner: Weak<GraphBlock>,
    /// The graph of the node that allocates it.
    graph: Graph,
    freed_by: FreedBy,
}

#[derive(Debug, Default)]
struct Contents {
    blocks: BTreeMap<u64, Block>,
    /// Bytes of memory behind blocks now; the most since the marks were reset: in use, reserved.
    mapped: u64,
    high: [u64; 2],
}

/// What graphs have on a GPU.
#[derive(Debug)]
pub(crate) struct GraphMemory {
    slots: Arc<Slots>,
    contents: Mutex<Contents>,
    /// Blocks without owners wait for their work: looked at by every synchronization.
    leaving: AtomicBool,
}

/// A launch that uses blocks: they keep their memory until it is submitted.
#[derive(Debug)]
#[must_use]
pub(crate) struct Launching {
    /// What is used, and whether it was live before.
    blocks: BTreeMap<u64, bool>,
    /// The blocks that need memory.
    allocated: Vec<u64>,
    /// What the launch has to come behind.
    pub(crate) behind: Vec<Mark>,
}

impl GraphMemory {
    pub(crate) fn new(slots: Arc<Slots>) -> GraphMemory {
        GraphMemory { slots, contents: Mutex::default(), leaving: AtomicBool::new(false) }
    }

    fn is_idle(&self, block: &Block) -> bool {
        !block.live && block.pins == 0 && block.until.iter().all(|mark| self.slots.reached(mark))
    }
}

impl Block {
    /// Work may use it up to this point.
    fn note_use(&mut self, mark: Mark) {
        match self.until.iter_mut().find(|known| known.slot == mark.slot) {
            // Payloads of a slot only grow.
            Some(known) if known.value >= mark.value => {}
            Some(known) => *known = mark,
            None => self.until.push(mark),
        }
    }
}

impl Contents {
    fn block(&mut self, base: u64) -> Result<&mut Block> {
        self.blocks.get_mut(&base).ok_or(CudaError::INVALID_VALUE)
    }
}

impl Memory {
    /// Reserves addresses for an allocation of a graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub(crate) fn graph_reserve(self: &Arc<Self>, graph: Graph, bytes: u64) -> Result<Arc<GraphBlock>> {
        if bytes == 0 || bytes > 1 << 46 {
            return Err(if bytes == 0 { CudaError::INVALID_VALUE } else { CudaError::OUT_OF_MEMORY });
        }
        self.arena()?;
        let bytes = bytes.next_multiple_of(ALIGN);
        let unit = if bytes > SMALL { LARGE_PAGE_BYTES } else { PAGE_BYTES };
        let whole = bytes.next_multiple_of(unit);
        let known = self.reserve(bytes, whole, unit, Kind::Graph)?;
        let base = known.base;
        let owner = Arc::new(GraphBlock { memory: Arc::clone(self), base });
        let block = Block {
            known,
            whole,
            backing: None,
            live: false,
            pins: 0,
            until: Vec::new(),
            owner: Arc::downgrade(&owner),
            graph,
            freed_by: FreedBy::Nobody,
        };
        self.graphs.contents.lock().blocks.insert(base, block);
        Ok(owner)
    }

    /// A block of a graph that fits `bytes` and whose allocation is freed by a node that the new one comes `behind`. It stays free
    /// until [`Memory::graph_allocated`].
    pub(crate) fn graph_reuse(
        &self,
        graph: Graph,
        bytes: u64,
        behind: impl Fn(GraphNode) -> bool,
    ) -> Option<Arc<GraphBlock>> {
        // As it would be reserved; what is too large for that is too large for any block.
        let bytes = bytes.checked_next_multiple_of(ALIGN)?;
        let contents = self.graphs.contents.lock();
        let fits = |block: &&Block| {
            // Looking for what is behind takes time.
            let fits = block.graph == graph && block.known.bytes >= bytes && block.known.bytes / 2 <= bytes;
            fits && matches!(block.freed_by, FreedBy::Own(node) if behind(node))
        };
        contents.blocks.values().filter(fits).min_by_key(|block| block.known.bytes)?.owner.upgrade()
    }

    /// A node allocates a block: nobody frees it yet.
    pub(crate) fn graph_allocated(&self, base: u64) {
        if let Ok(block) = self.graphs.contents.lock().block(base) {
            block.freed_by = FreedBy::Nobody;
        }
    }

    /// The block that begins at an address, to be freed by a node of a graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none, or the graph may not free it.
    pub(crate) fn graph_to_free(self: &Arc<Self>, base: u64, graph: Graph) -> Result<Arc<GraphBlock>> {
        let mut contents = self.graphs.contents.lock();
        let block = contents.block(base)?;
        let may = match &block.freed_by {
            FreedBy::Nobody => true,
            FreedBy::Own(_) => false,
            FreedBy::Others(graphs) => block.graph != graph && !graphs.contains(&graph),
        };
        if !may {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(block.owner.upgrade().unwrap_or_else(|| {
            // Its graph is gone, its memory is not.
            let owner = Arc::new(GraphBlock { memory: Arc::clone(self), base });
            block.owner = Arc::downgrade(&owner);
            owner
        }))
    }

    /// A node of a graph frees a block.
    pub(crate) fn graph_freed_by(&self, base: u64, graph: Graph, node: GraphNode) {
        if let Ok(block) = self.graphs.contents.lock().block(base) {
            match &mut block.freed_by {
                _ if block.graph == graph => block.freed_by = FreedBy::Own(node),
                FreedBy::Others(graphs) => graphs.push(graph),
                by => *by = FreedBy::Others(vec![graph]),
            }
        }
    }

    /// A launch begins that does this with blocks, in this order; with `again`, what an earlier one has left allocated is freed before.
    ///
    /// # Errors
    /// `INVALID_VALUE` if something is allocated that is, or freed that is not.
    pub(crate) fn graph_begin(&self, uses: &[(u64, Use)], again: bool) -> Result<Launching> {
        let mut contents = self.graphs.contents.lock();
        // Whether each is live, and whether this launch has made it so.
        let mut state: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        let mut allocated = Vec::new();
        for &(base, what) in uses {
            let before = contents.block(base)?.live;
            let (live, ours) = state.entry(base).or_insert((before, false));
            match what {
                Use::Alloc if *live && (*ours || !again) => return Err(CudaError::INVALID_VALUE),
                Use::Alloc => {
                    (*live, *ours) = (true, true);
                    allocated.push(base);
                }
                Use::Free if !*live => return Err(CudaError::INVALID_VALUE),
                Use::Free => *live = false,
            }
        }
        let mut launching = Launching { blocks: BTreeMap::new(), allocated, behind: Vec::new() };
        for (base, (live, _)) in state {
            let block = contents.block(base)?;
            launching.blocks.insert(base, std::mem::replace(&mut block.live, live));
            block.pins += 1;
            block.until.retain(|mark| !self.graphs.slots.reached(mark));
            launching.behind.extend_from_slice(&block.until);
        }
        Ok(launching)
    }

    /// Puts memory behind the blocks of a launch; where it is short, what `squeeze` can gives some back. Where others have it, waits for
    /// them, until the context is `gone`.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; those of what is gone.
    pub(crate) fn graph_map(
        &self,
        launching: &Launching,
        squeeze: &dyn Fn() -> bool,
        gone: &dyn Fn() -> bool,
    ) -> Result<()> {
        for base in &launching.allocated {
            let whole = match self.graphs.contents.lock().block(*base)? {
                Block { backing: None, whole, .. } => *whole,
                _ => continue,
            };
            let mut place = self.place();
            let id = loop {
                let mut back = || self.back(*base, whole, MemoryKind::Vram, &mut place);
                match back().or_else(|error| if is_short(error) && squeeze() { back() } else { Err(error) }) {
                    Err(CudaError::NOT_READY) => place.wait(gone)?,
                    other => break other?,
                }
            };
            let mut contents = self.graphs.contents.lock();
            // The launch has pinned it: nobody else has given it memory, or taken it away.
            contents.block(*base)?.backing = Some(id);
            contents.mapped += whole;
            let mapped = contents.mapped;
            contents.high.iter_mut().for_each(|high| *high = mapped.max(*high));
        }
        Ok(())
    }

    /// A launch is submitted, up to `end`, or failed: then what is allocated is as it was.
    pub(crate) fn graph_end(&self, launching: &Launching, end: Option<Mark>, succeeded: bool) {
        let mut contents = self.graphs.contents.lock();
        for (base, before) in &launching.blocks {
            let Ok(block) = contents.block(*base) else { continue };
            block.pins -= 1;
            // One that failed need not be behind what used the block before.
            end.into_iter().for_each(|end| block.note_use(end));
            if !succeeded {
                block.live = *before;
            }
            self.settle(&mut contents, *base);
        }
    }

    /// Frees what graphs have allocated: at a point of a stream, or by somebody who has waited for what uses it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is allocated there.
    pub(crate) fn graph_free(&self, base: u64, freed: Option<Mark>) -> Result<()> {
        let mut contents = self.graphs.contents.lock();
        let block = contents.block(base)?;
        if !std::mem::replace(&mut block.live, false) {
            return Err(CudaError::INVALID_VALUE);
        }
        freed.into_iter().for_each(|freed| block.note_use(freed));
        self.settle(&mut contents, base);
        Ok(())
    }

    /// Gives memory back that no work uses. True if there was some.
    pub(crate) fn graph_trim(&self) -> bool {
        let mut contents = self.graphs.contents.lock();
        let idle =
            |(base, block): (&u64, &Block)| (block.backing.is_some() && self.graphs.is_idle(block)).then_some(*base);
        let idle: Vec<u64> = contents.blocks.iter().filter_map(idle).collect();
        for base in &idle {
            self.unmap(&mut contents, *base);
            self.settle(&mut contents, *base);
        }
        !idle.is_empty()
    }

    /// Gives back what nobody has any more, and no work uses.
    pub(crate) fn graph_sweep(&self) {
        if self.graphs.leaving.swap(false, Ordering::AcqRel) {
            let mut contents = self.graphs.contents.lock();
            let all: Vec<u64> = contents.blocks.keys().copied().collect();
            all.into_iter().for_each(|base| self.settle(&mut contents, base));
        }
    }

    /// Work of a context that ends uses nothing any more.
    pub(crate) fn graph_forget_context(&self, context: ContextId) {
        for block in self.graphs.contents.lock().blocks.values_mut() {
            block.until.retain(|mark| mark.context != context);
        }
    }

    /// A `CUgraphMem_attribute`: memory that graphs use, the most of it, reserved, the most of it, bytes. What is reserved is behind blocks.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn graph_attribute(&self, attribute: u32) -> Result<u64> {
        let contents = self.graphs.contents.lock();
        match attribute {
            0 | 2 => Ok(contents.mapped),
            1 => Ok(contents.high[0]),
            3 => Ok(contents.high[1]),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Has the most start from now; only 0 can be set.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the attribute cannot be set so.
    pub(crate) fn graph_set_attribute(&self, attribute: u32, value: u64) -> Result<()> {
        let mut contents = self.graphs.contents.lock();
        let mapped = contents.mapped;
        match (attribute, value) {
            (1, 0) => contents.high[0] = mapped,
            (3, 0) => contents.high[1] = mapped,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// Lets a block go that nobody has any more.
    fn settle(&self, contents: &mut Contents, base: u64) {
        let Some(block) = contents.blocks.get(&base) else { return };
        if block.owner.strong_count() != 0 || block.live {
            return;
        }
        if !self.graphs.is_idle(block) {
            self.graphs.leaving.store(true, Ordering::Release);
            return;
        }
        self.unmap(contents, base);
        if let Some(block) = contents.blocks.remove(&base) {
            self.unreserve(&block.known, block.whole);
        }
    }

    /// Takes the memory behind a block away.
    fn unmap(&self, contents: &mut Contents, base: u64) {
        let Some(block) = contents.blocks.get_mut(&base) else { return };
        let bytes = block.whole;
        if let Some(id) = block.backing.take() {
            contents.mapped -= bytes;
            self.link().post(GiveBack::Unmap { at: DevAddr(base), bytes });
            self.link().post(GiveBack::Free { id });
        }
    }
}
