//! Conditional nodes: bodies that run, or not, or again, by a value that kernels set.
//!
//! ```text
//!   the stream   … steps before ─ signal ─ wait ═════════════════════════════════════ steps behind …
//!                                    │                                        ▲
//!   its thread                       └─► look at the value ─► body ─► look … ─┘
//!                                                               │
//!   the executable graph's own queue                            └─ its commands, ordinary work
//! ```
//! The value lies in memory that host and GPU see, and its address is the handle: `cudaGraphSetConditional` is a store (`ptx`). A thread
//! of the stream looks at it when the work before is over, and submits bodies to a queue of the executable graph's. So a
//! loop that does not end is work without end as any other: cut into slices, and over with its context.

use std::sync::Arc;

use gpu::{Command, DevAddr};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::graph::encode::{Step, with_params};
use crate::graph::exec::ExecNode;
use crate::graph::node::Work;
use crate::handle::Graph;
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::work::stream::{NON_BLOCKING, StreamState};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
pub(crate) const ASSIGN_DEFAULT: u32 = 1;

/// Bytes of a value.
const BYTES: u64 = 4;

/// A value that says what runs.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) core: Arc<ContextCore>,
    memory: Arc<Allocation>,
    /// What it is when a launch begins, if that is set then.
    default: Option<u32>,
}

impl Condition {
    /// A value of a context's.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; the context's error.
    pub(crate) fn new(core: &Arc<ContextCore>, default: Option<u32>) -> Result<Condition> {
        core.check()?;
        let memory = core.memory().alloc_host(Wanted::new(BYTES, Kind::InternalHost, core.id))?;
        let condition = Condition { core: Arc::clone(core), memory, default };
        core.memory().write_on_host(condition.handle(), &default.unwrap_or(0).to_le_bytes())?;
        Ok(condition)
    }

    /// What programs know it by: where it is, for host and GPU.
    pub(crate) fn handle(&self) -> u64 {
        self.memory.base
    }

    /// What a launch begins with.
    pub(crate) fn assign(&self) -> Option<Command<'static>> {
        let at = DevAddr(self.handle());
        self.default.map(|value| Command::WriteValue { at, value: value.into(), wide: false })
    }

    fn value(&self) -> Result<u32> {
        let mut bytes = [0; BYTES as usize];
        // Its context ended, and took the memory along.
        let seen = self.core.memory().read_on_host(self.handle(), &mut bytes);
        if seen { Ok(u32::from_le_bytes(bytes)) } else { Err(CudaError::CONTEXT_IS_DESTROYED) }
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.core.memory().release(&self.memory);
    }
}

/// `CUgraphConditionalNodeType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    If,
    While,
    Switch,
}

impl Choice {
    /// A kind that there is, with so many bodies.
    pub(crate) fn new(kind: u32, bodies: u32) -> Option<Choice> {
        match (kind, bodies) {
            (0, 1 | 2) => Some(Choice::If),
            (1, 1) => Some(Choice::While),
            (2, 1..) => Some(Choice::Switch),
            _ => None,
        }
    }

    /// `CUgraphConditionalNodeType`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Choice::If => 0,
            Choice::While => 1,
            Choice::Switch => 2,
        }
    }

    /// The body that a value names; there may be none of that number.
    fn body(self, value: u32) -> usize {
        match self {
            Choice::If | Choice::While => usize::from(value == 0),
            Choice::Switch => value as usize,
        }
    }
}

/// What a conditional node is.
#[derive(Debug)]
pub(crate) struct Conditional {
    pub(crate) condition: Arc<Condition>,
    pub(crate) choice: Choice,
    /// They belong to the node.
    pub(crate) bodies: Box<[Graph]>,
}

/// A part of a body, as it was when it was launched.
#[derive(Debug)]
enum Part {
    Steps(Vec<Step>),
    Choose(Chosen),
}

/// A conditional node of a launch.
#[derive(Debug)]
pub(crate) struct Chosen {
    condition: Arc<Condition>,
    choice: Choice,
    bodies: Vec<Vec<Part>>,
}

impl Chosen {
    /// What the node at a place says now, with its bodies; `None` if that is no conditional node.
    pub(crate) fn new(nodes: &[ExecNode], place: usize) -> Option<Chosen> {
        let Work::Conditional(conditional) = &nodes.get(place)?.work else { return None };
        let mut from = place + 1;
        let mut bodies = Vec::with_capacity(conditional.bodies.len());
        for &end in &nodes[place].bodies {
            bodies.push(parts(nodes, from, end));
            from = end;
        }
        Some(Chosen { condition: Arc::clone(&conditional.condition), choice: conditional.choice, bodies })
    }

    /// Runs what the value says, and returns when that is over. If it cannot, its context has failed.
    pub(crate) fn run_to_the_end(&self, side: &Side) {
        let core = &self.condition.core;
        if let Err(error) = self.run(side)
            && !core.dead()
        {
            let failed = "a body of a conditional node failed, and its context with it";
            core.stick(error, || tracing::error!(context = core.id.0, %error, "{failed}"));
        }
    }

    /// # Errors
    /// The context's; those of a submission.
    fn run(&self, side: &Side) -> Result<()> {
        loop {
            let core = &self.condition.core;
            core.check()?;
            let Some(body) = self.bodies.get(self.choice.body(self.condition.value()?)) else { return Ok(()) };
            side.run(body)?;
            if self.choice != Choice::While {
                return Ok(());
            }
            if body.is_empty() {
                // Somebody else's kernel may end it.
                std::thread::yield_now();
            }
        }
    }
}

/// Nodes from one place to another.
fn parts(nodes: &[ExecNode], from: usize, to: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut place = from;
    while place < to {
        let node = &nodes[place];
        if let Some(chosen) = Chosen::new(nodes, place) {
            parts.push(Part::Choose(chosen));
            place = node.end;
            continue;
        }
        if node.is_enabled() && !node.steps.is_empty() {
            match parts.last_mut() {
                Some(Part::Steps(steps)) => steps.extend(node.steps.iter().cloned()),
                _ => parts.push(Part::Steps(node.steps.clone())),
            }
        }
        place += 1;
    }
    parts
}

/// The queue in which the bodies of an executable graph run, while the stream waits.
#[derive(Debug)]
pub(crate) struct Side(Arc<StreamState>);

impl Side {
    /// One beside a stream, as urgent.
    pub(crate) fn new(stream: &StreamState) -> Side {
        Side(StreamState::created(&stream.queues, NON_BLOCKING, stream.priority))
    }

    pub(crate) fn priority(&self) -> i32 {
        self.0.priority
    }

    fn run(&self, parts: &[Part]) -> Result<()> {
        for part in parts {
            match part {
                Part::Choose(chosen) => chosen.run(self)?,
                Part::Steps(steps) => {
                    let command = |step| match step {
                        &Step::Run(command, None) => Some(command),
                        Step::Run(command, Some(kernel)) => Some(with_params(command, kernel)),
                        // Bodies have none (`exec`).
                        Step::Host(_) | Step::Record(_) | Step::Wait(_) => None,
                    };
                    self.0.submit(&steps.iter().filter_map(command).collect::<Vec<_>>())?;
                    self.0.tail()?.map_or(Ok(()), |mark| self.0.core.wait(&mark, None))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.0.retire();
    }
}
