//! Captures: what streams are given becomes nodes of a graph.
//!
//! ```text
//!            begin                            end of the origin, all joined
//!   none ───────────► active ───────────────────────────────────────────────► a graph
//!     ▲                 │ what cannot be captured, a foreign dependency
//!     │                 ▼
//!     └─────────── invalidated: every call fails until the origin ends it
//!          end
//! ```
//! A stream that waits for an event recorded in a capture takes part in it from then on, until it ends. Each stream of a capture knows
//! the nodes behind which its next one comes.

mod recapture;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use crate::context::state::ContextState;
use crate::context_core::ContextCore;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::capture::recapture::Recapture;
use crate::graph::node::Work;
use crate::graph::store::{EdgeData, PLAIN, Taken};
use crate::graph::user_object::References;
use crate::graph::{Graphs, State};
use crate::handle::{Graph, GraphNode, Stream};
use crate::values::{Approve, CaptureInfo};
use crate::work::event::EventState;
use crate::work::queues::Queues;
use crate::work::stream::StreamState;

/// Numbers of `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

thread_local! {
    /// The calling thread's `CUstreamCaptureMode`.
    pub(crate) static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// A stream of a capture.
#[derive(Debug)]
struct Member {
    stream: Arc<StreamState>,
    /// What its next node comes behind; each node once.
    before: Vec<(GraphNode, EdgeData)>,
    /// The same, as it was when last asked for.
    shown: (Box<[GraphNode]>, Box<[EdgeData]>),
}

impl Member {
    fn new(stream: Arc<StreamState>, before: Vec<(GraphNode, EdgeData)>) -> Member {
        Member { stream, before, shown: Default::default() }
    }

    /// That of a stream.
    fn of<'a>(members: &'a mut [Member], stream: &Arc<StreamState>) -> Result<&'a mut Member> {
        members.iter_mut().find(|member| Arc::ptr_eq(&member.stream, stream)).ok_or(CudaError::ILLEGAL_STATE)
    }

    /// The stream has not been destroyed.
    fn takes_part(&self) -> bool {
        self.stream.capture() != 0
    }
}

#[derive(Debug)]
struct Capture {
    graph: Graph,
    /// The graph was there before.
    given: bool,
    /// Its nodes come once more.
    again: Option<Recapture>,
    mode: u32,
    thread: ThreadId,
    invalid: bool,
    /// The first is the origin.
    members: Vec<Member>,
}

/// Where what is captured goes.
pub(crate) enum Target<'a> {
    /// Into a graph of its own.
    New,
    /// Behind nodes of a graph.
    Behind(Graph, &'a [(GraphNode, EdgeData)]),
    /// It takes the places of a graph's nodes, which the program may have to agree to.
    Again(Graph, Option<Approve>),
}

/// All captures that go on.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    last: u64,
    all: HashMap<u64, Capture>,
}

impl Capture {
    fn is_origin(&self, stream: &Arc<StreamState>) -> bool {
        self.members.first().is_some_and(|member| Arc::ptr_eq(&member.stream, stream))
    }

    fn has(&self, which: impl Fn(&StreamState) -> bool) -> bool {
        self.members.iter().any(|member| member.takes_part() && which(&member.stream))
    }

    fn member(&mut self, stream: &Arc<StreamState>) -> Result<&mut Member> {
        Member::of(&mut self.members, stream)
    }

    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    fn valid(&mut self) -> Result<&mut Capture> {
        if self.invalid { Err(CudaError::STREAM_CAPTURE_INVALIDATED) } else { Ok(self) }
    }
}

impl Captures {
    /// One that is valid.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`; `ILLEGAL_STATE` if there is none.
    fn get(&mut self, id: u64) -> Result<&mut Capture> {
        self.all.get_mut(&id).ok_or(CudaError::ILLEGAL_STATE)?.valid()
    }

    /// Invalidates captures.
    ///
    /// # Errors
    /// `error`, or `STREAM_CAPTURE_INVALIDATED` if all of them were invalid before; none if there is no such capture.
    fn invalidate(&mut self, which: impl Fn(u64, &Capture) -> bool, error: CudaError) -> Result<()> {
        let mut found = None;
        for (_, capture) in self.all.iter_mut().filter(|(id, capture)| which(**id, capture)) {
            let before = std::mem::replace(&mut capture.invalid, true);
            found = Some(before && found.unwrap_or(true));
        }
        match found {
            None => Ok(()),
            Some(true) => Err(CudaError::STREAM_CAPTURE_INVALIDATED),
            Some(false) => Err(error),
        }
    }
}

impl Graphs {
    /// A stream goes with its thread: the capture that began in it is nobody's to end any more, one that it joined is invalid.
    pub(crate) fn forget_captured(&self, stream: &Arc<StreamState>) {
        self.lose_captured(stream, true);
    }

    /// A stream is destroyed: as `forget_captured`, but a capture that it joined goes on, and must have joined what the stream was given
    /// when it ends.
    pub(crate) fn destroy_captured(&self, stream: &Arc<StreamState>) {
        self.lose_captured(stream, false);
    }

    fn lose_captured(&self, stream: &Arc<StreamState>, invalidates: bool) {
        if stream.capture() != 0 {
            let mut state = self.state.lock();
            let taken = self.forget(&mut state, stream, invalidates);
            drop(state);
            drop(taken);
        }
    }

    /// Captures in which streams of a context take part are invalid.
    pub(crate) fn invalidate_captures_in(&self, queues: &Queues) {
        let in_it = |member: &StreamState| queues.covers(&member.queues);
        // Whoever goes on with one is told.
        let _ = self.state.lock().captures.invalidate(|_, capture| capture.has(in_it), CudaError::STREAM_DETACHED);
    }

    /// All streams of a context go, the default ones of threads too.
    pub(crate) fn forget_captured_in(&self, core: &Arc<ContextCore>) {
        let mut state = self.state.lock();
        let members = state.captures.all.values().flat_map(|capture| &capture.members);
        let in_it = members.filter(|member| Arc::ptr_eq(&member.stream.core, core));
        let streams: Vec<_> = in_it.map(|member| Arc::clone(&member.stream)).collect();
        let taken: Vec<Taken> = streams.iter().map(|stream| self.forget(&mut state, stream, true)).collect();
        drop(state);
        drop(taken);
    }

    fn forget(&self, state: &mut State, stream: &Arc<StreamState>, invalidates: bool) -> Taken {
        let id = stream.capture();
        let Some(capture) = state.captures.all.get_mut(&id) else { return Taken::default() };
        if capture.is_origin(stream) {
            return self.end(state, id).map(|capture| discard(state, &capture)).unwrap_or_default();
        }
        capture.invalid |= invalidates;
        // It stays a member, for what it was given.
        stream.set_capture(0);
        Taken::default()
    }

    /// Nothing takes part in a capture any more.
    fn end(&self, state: &mut State, id: u64) -> Option<Capture> {
        let capture = state.captures.all.remove(&id)?;
        self.capturing.fetch_sub(1, Ordering::AcqRel);
        capture.members.iter().for_each(|member| member.stream.set_capture(0));
        Some(capture)
    }
}

/// Nobody gets the graph of a capture, if it was the capture's.
fn discard(state: &mut State, capture: &Capture) -> Taken {
    if capture.given { Taken::default() } else { state.store.destroy(capture.graph).unwrap_or_default() }
}

/// Each node once. Where that is to be of two kinds, it is of the plain one: who waits for the whole of a node waits for all of it.
fn merge(into: &mut Vec<(GraphNode, EdgeData)>, nodes: impl IntoIterator<Item = (GraphNode, EdgeData)>) {
    for (node, data) in nodes {
        match into.iter_mut().find(|(known, _)| *known == node) {
            None => into.push((node, data)),
            Some((_, known)) if *known != data => *known = PLAIN,
            Some(_) => {}
        }
    }
}

/// A stream that is being captured.
pub(crate) struct Captured<'a> {
    driver: &'a Driver,
    pub(crate) stream: Arc<StreamState>,
}

impl Captured<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut State, u64) -> Result<R>) -> Result<R> {
        f(&mut self.driver.graphs.state.lock(), self.stream.capture())
    }

    /// Adds a node behind what the stream was given before.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub(crate) fn add(&self, work: Work) -> Result<()> {
        self.add_node(|_, _, _| Ok(work))
    }

    /// What fails makes the capture invalid.
    pub(crate) fn or_invalid(&self, captured: impl FnOnce() -> Result<()>) -> Result<()> {
        let id = self.stream.capture();
        captured().inspect_err(|&error| {
            // It may have been so before.
            let _ = self.driver.invalidate(|of, _| of == id, error);
        })
    }

    /// As `add`, of what `work` makes for a graph, behind those nodes of it. Where the graph is captured once more, the work is the next
    /// node's.
    pub(crate) fn add_node(
        &self,
        work: impl FnOnce(&mut State, Graph, &[(GraphNode, EdgeData)]) -> Result<Work>,
    ) -> Result<()> {
        let change = self.with(|state, id| {
            let capture = state.captures.get(id)?;
            let (graph, again) = (capture.graph, capture.again.is_some());
            let before = capture.member(&self.stream)?.before.clone();
            let work = work(state, graph, &before)?;
            if again {
                return self.compare(state, id, work);
            }
            let child = if let Work::Graph(child) = work { Some(child) } else { None };
            let node = state.store.add(graph, &before, work).inspect_err(|_| {
                // It refers to what the caller does too: nothing of the program's is called.
                child.into_iter().for_each(|child| state.store.destroy(child).map(drop).unwrap_or_default());
            })?;
            let capture = state.captures.all.get_mut(&id).ok_or(CudaError::ILLEGAL_STATE)?;
            capture.member(&self.stream)?.before = vec![(node, PLAIN)];
            Ok(None)
        })?;
        change.map_or(Ok(()), |change| self.change(change))
    }

    /// Records an event behind what the stream was given before.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub(crate) fn record(&self, event: &EventState) -> Result<()> {
        self.with(|state, id| {
            let capture = state.captures.get(id)?;
            let before = capture.member(&self.stream)?.before.iter().map(|edge| edge.0).collect();
            event.record_captured(id, before);
            Ok(())
        })
    }
}

impl Driver {
    /// The stream, if it is being captured. While no stream is, that costs one load.
    pub(crate) fn captured(&self, stream: Stream) -> Result<Option<Captured<'_>>> {
        if self.graphs.capturing.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let stream = self.any_stream(stream)?;
        Ok((stream.capture() != 0).then_some(Captured { driver: self, stream }))
    }

    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` if a stream is being captured, `STREAM_CAPTURE_IMPLICIT` if it is the legacy one and would have to
    /// wait for one that is. The captures are invalid then.
    pub(crate) fn not_captured(&self, stream: &Arc<StreamState>) -> Result<()> {
        if self.graphs.capturing.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let id = stream.capture();
        if id != 0 {
            return self.invalidate(|of, _| of == id, CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.depends_on_captures() {
            let of_it = |member: &StreamState| Arc::ptr_eq(&member.queues, &stream.queues) && member.is_blocking();
            return self.invalidate(|_, capture| capture.has(of_it), CudaError::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(())
    }

    fn invalidate(&self, which: impl Fn(u64, &Capture) -> bool, error: CudaError) -> Result<()> {
        self.graphs.state.lock().captures.invalidate(which, error)
    }

    /// A call that a capture may not see, as it may depend on what the captured work has not done.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` where the modes of the thread and of captures forbid it.
    pub(crate) fn potentially_unsafe(&self) -> Result<()> {
        if self.graphs.capturing.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let (mode, thread) = (MODE.get(), std::thread::current().id());
        if mode == RELAXED {
            return Ok(());
        }
        let forbids = |capture: &Capture| {
            capture.thread == thread && capture.mode != RELAXED || mode == GLOBAL && capture.mode == GLOBAL
        };
        self.invalidate(|_, capture| forbids(capture), CudaError::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` if streams of a context are being captured. The captures are invalid then.
    pub(crate) fn none_captured_in(&self, context: &ContextState) -> Result<()> {
        if !context.queues.any_captured() {
            return Ok(());
        }
        let in_it = |member: &StreamState| context.queues.covers(&member.queues);
        self.invalidate(|_, capture| capture.has(in_it), CudaError::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` if an event was recorded last in a capture that goes on, which is invalid then; `CAPTURED_EVENT`
    /// if in one that is over.
    pub(crate) fn not_of_a_capture(&self, event: &EventState) -> Result<()> {
        if let Some((id, _)) = event.captured() {
            self.invalidate(|of, _| of == id, CudaError::STREAM_CAPTURE_UNSUPPORTED)?;
        }
        event.tells_of_work()
    }

    /// Begins to capture a stream.
    pub(crate) fn begin_capture(&self, stream: Stream, mode: u32, target: Target<'_>) -> Result<()> {
        let stream = self.any_stream(stream)?;
        if mode > RELAXED {
            return Err(CudaError::INVALID_VALUE);
        }
        if stream.handle == Stream::LEGACY {
            return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut guard = self.graphs.state.lock();
        let state = &mut *guard;
        // What a context's end did not find, it was too late for.
        stream.core.check()?;
        if stream.capture() != 0 {
            return Err(CudaError::ILLEGAL_STATE);
        }
        let given = !matches!(target, Target::New);
        let (mut before, mut references, mut again) = (Vec::new(), References::new(), None);
        let graph = match target {
            Target::New => state.store.create(),
            Target::Again(graph, approve) => {
                let found = state.store.graph_mut(graph)?;
                references = std::mem::take(&mut found.references);
                again = Some(Recapture::new(found.nodes.clone(), approve));
                graph
            }
            Target::Behind(graph, nodes) => {
                state.store.graph(graph)?;
                for (node, _) in nodes {
                    if state.store.node(*node)?.graph != graph {
                        return Err(CudaError::INVALID_VALUE);
                    }
                }
                merge(&mut before, nodes.iter().copied());
                graph
            }
        };
        state.captures.last += 1;
        let id = state.captures.last;
        stream.set_capture(id);
        let members = vec![Member::new(stream, before)];
        let thread = std::thread::current().id();
        state.captures.all.insert(id, Capture { graph, given, again, mode, thread, invalid: false, members });
        self.graphs.capturing.fetch_add(1, Ordering::AcqRel);
        drop(guard);
        drop(references);
        Ok(())
    }

    /// Ends the capture that began in a stream; gives the graph. Where nobody wants to have that, it must be one that was given.
    pub(crate) fn end_capture(&self, stream: Stream, wanted: bool) -> Result<Graph> {
        let stream = self.any_stream(stream)?;
        let mut guard = self.graphs.state.lock();
        let state = &mut *guard;
        let id = stream.capture();
        let capture = state.captures.all.get_mut(&id).ok_or(CudaError::ILLEGAL_STATE)?;
        if !capture.is_origin(&stream) {
            capture.invalid = true;
            return Err(CudaError::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(CudaError::STREAM_CAPTURE_WRONG_THREAD);
        }
        if !wanted && !capture.given {
            return Err(CudaError::INVALID_VALUE);
        }
        let capture = self.graphs.end(state, id).ok_or(CudaError::ILLEGAL_STATE)?;
        let nodes = |member: &Member| member.before.iter().map(|edge| edge.0).collect::<Vec<_>>();
        let last = capture.members.first().map(nodes).unwrap_or_default();
        let all: Vec<GraphNode> = capture.members.iter().flat_map(nodes).collect();
        let joined = state.store.are_before(&all, &last);
        let complete = capture.again.as_ref().is_none_or(Recapture::is_complete);
        let error = match (capture.invalid, joined, complete) {
            (false, true, true) => return Ok(capture.graph),
            (true, ..) => CudaError::STREAM_CAPTURE_INVALIDATED,
            (_, false, _) => CudaError::STREAM_CAPTURE_UNJOINED,
            _ => CudaError::GRAPH_RECAPTURE_FAILURE,
        };
        let taken = discard(state, &capture);
        drop(guard);
        drop(taken);
        Err(error)
    }

    /// Has a stream wait for an event, one of the two being captured. False if neither is.
    pub(crate) fn capture_wait(&self, stream: &Arc<StreamState>, event: &EventState) -> Result<bool> {
        if stream.capture() == 0 && event.captured().is_none() {
            return Ok(false);
        }
        let mut state = self.graphs.state.lock();
        let captures = &mut state.captures;
        // Only now: another thread may have had the stream join.
        let id = stream.capture();
        let Some((of, nodes)) = event.captured() else {
            if id == 0 {
                return Ok(false);
            }
            if event.point().is_none() && event.words().is_none() {
                return Ok(true);
            }
            return captures.invalidate(|capture, _| capture == id, CudaError::STREAM_CAPTURE_ISOLATION).map(|()| true);
        };
        if id != 0 && id != of {
            let both = |capture, _: &Capture| capture == id || capture == of;
            return captures.invalidate(both, CudaError::STREAM_CAPTURE_MERGE).map(|()| true);
        }
        if stream.handle == Stream::LEGACY {
            captures.invalidate(|capture, _| capture == of, CudaError::STREAM_CAPTURE_IMPLICIT)?;
        }
        // The capture is over: what the event tells of is a graph's.
        let capture = captures.all.get_mut(&of).ok_or(CudaError::CAPTURED_EVENT)?.valid()?;
        let edges = nodes.into_iter().map(|node| (node, PLAIN));
        if id == 0 {
            // As where captures begin.
            stream.core.check()?;
            capture.members.push(Member::new(Arc::clone(stream), edges.collect()));
            stream.set_capture(of);
        } else {
            merge(&mut capture.member(stream)?.before, edges);
        }
        Ok(true)
    }

    /// What is known of a stream's capture.
    pub(crate) fn capture_info(&self, stream: Stream) -> Result<CaptureInfo> {
        let stream = self.any_stream(stream)?;
        let none = CaptureInfo { status: 0, id: 0, graph: Graph::NULL, before: (0, 0), edges: 0, plain: true };
        let id = stream.capture();
        if id == 0 {
            return if stream.depends_on_captures() { Err(CudaError::STREAM_CAPTURE_IMPLICIT) } else { Ok(none) };
        }
        let mut state = self.graphs.state.lock();
        let Some(capture) = state.captures.all.get_mut(&id) else { return Ok(none) };
        if capture.invalid {
            return Ok(CaptureInfo { status: 2, id, ..none });
        }
        let graph = capture.graph;
        let member = capture.member(&stream)?;
        let (nodes, data): (Vec<_>, Vec<_>) = member.before.iter().copied().unzip();
        let plain = data.iter().all(|data| *data == PLAIN);
        member.shown = (nodes.into(), data.into());
        let (nodes, data) = &member.shown;
        let before = (nodes.as_ptr().expose_provenance() as u64, nodes.len() as u64);
        Ok(CaptureInfo { status: 1, id, graph, before, edges: data.as_ptr().expose_provenance() as u64, plain })
    }

    /// Changes what a captured stream's next node comes behind.
    pub(crate) fn change_capture(&self, stream: Stream, nodes: &[(GraphNode, EdgeData)], replace: bool) -> Result<()> {
        let stream = self.any_stream(stream)?;
        let mut guard = self.graphs.state.lock();
        let state = &mut *guard;
        let capture = state.captures.all.get_mut(&stream.capture()).ok_or(CudaError::ILLEGAL_STATE)?.valid()?;
        for (node, _) in nodes {
            if state.store.node(*node)?.graph != capture.graph {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        let member = capture.member(&stream)?;
        if replace {
            member.before.clear();
        }
        merge(&mut member.before, nodes.iter().copied());
        Ok(())
    }
}
