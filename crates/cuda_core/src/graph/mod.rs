//! Graphs: work described once, and launched as often as a program wants.
//!
//! ```text
//!   add nodes, capture ──► Store: graphs, nodes, edges ──instantiate──► Exec: steps in order ──launch──► a stream's queue
//! ```
//! - [`node`] is what a node does; [`store`] keeps graphs, their nodes and edges, and what belongs to them;
//! - [`encode`] makes of a node the steps that a launch takes: commands for the GPU, encoded ready, functions of the program, events;
//! - [`exec`] is an executable graph: instantiated, changed, launched. All commands of a graph without functions of the program
//!   are one submission. Branches follow one another, in the order of their making: a launch uses one queue;
//! - [`conditional`] is what runs, or not, or again, by a value that kernels set;
//! - [`capture`] records what streams are given instead of submitting it, or has a graph's nodes do it from then on;
//! - [`user_object`] is what of the program's lives as long as a graph; [`dot`] shows a graph as text.
//!
//! Locks: that of the graphs (topology and captures), then an executable graph's, then those of [`queues`](crate::work::queues).
//! No function of the program is called under the first.

pub(crate) mod capture;
pub(crate) mod conditional;
pub(crate) mod dot;
pub(crate) mod encode;
pub(crate) mod exec;
pub(crate) mod node;
pub(crate) mod store;
pub(crate) mod user_object;

use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use crate::graph::capture::Captures;
use crate::graph::exec::ExecState;
use crate::graph::store::Store;
use crate::graph::user_object::UserObjects;
use crate::handle::Table;

/// All graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub(crate) state: Mutex<State>,
    pub(crate) execs: Table<ExecState>,
    pub(crate) user_objects: Mutex<UserObjects>,
    /// Captures that go on: while there is none, nobody asks further.
    pub(crate) capturing: AtomicU32,
}

/// What changes together.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) captures: Captures,
}
