//! Captures of streams.

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::capture::{MODE, Target};
use crate::handle::{Graph, GraphNode, Stream};
use crate::values::{Approve, CaptureInfo};

impl Driver {
    /// Begins to record what a stream is given, and what waits for it, instead of submitting it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_UNSUPPORTED` for the legacy stream; `ILLEGAL_STATE` if it is being captured;
    /// `INVALID_VALUE` for unknown modes.
    pub fn stream_begin_capture(&self, stream: Stream, mode: u32) -> Result<()> {
        self.begin_capture(stream, mode, Target::New)
    }

    /// As `stream_begin_capture`, into a graph that there is, behind nodes of it.
    ///
    /// # Errors
    /// As `stream_begin_capture`; `INVALID_VALUE` for other graphs' nodes.
    pub fn stream_begin_capture_to_graph(
        &self,
        stream: Stream,
        graph: Graph,
        before: &[(GraphNode, [u8; 8])],
        mode: u32,
    ) -> Result<()> {
        self.begin_capture(stream, mode, Target::Behind(graph, before))
    }

    /// As `stream_begin_capture`, of a graph once more: what streams are given must be its nodes again, in the order of their making, and
    /// behind the same ones; they take over its parameters. Where these are others, `approve` is asked first, if there is any. The user
    /// objects of the graph are released.
    ///
    /// Calls that make another graph of it fail with `GRAPH_RECAPTURE_FAILURE`, as do those of which `approve` will have nothing, others
    /// than before that allocate or free, and the end of the capture while nodes are missing. The graph is partly the old one then.
    ///
    /// # Errors
    /// As `stream_begin_capture`; `INVALID_VALUE` for no graph.
    pub fn stream_begin_recapture_to_graph(
        &self,
        stream: Stream,
        graph: Graph,
        mode: u32,
        approve: Option<Approve>,
    ) -> Result<()> {
        self.begin_capture(stream, mode, Target::Again(graph, approve))
    }

    /// Ends a capture; gives the graph. However it ends, unless in the wrong stream or thread, nothing is captured any more.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if nothing is being captured; `STREAM_CAPTURE_UNMATCHED` if it began in another stream,
    /// `STREAM_CAPTURE_WRONG_THREAD`, `STREAM_CAPTURE_INVALIDATED`, `STREAM_CAPTURE_UNJOINED`.
    pub fn stream_end_capture(&self, stream: Stream) -> Result<Graph> {
        self.end_capture(stream, true)
    }

    /// As `stream_end_capture`, of a capture into a graph that there was before.
    ///
    /// # Errors
    /// As `stream_end_capture`; `INVALID_VALUE` if the graph is the capture's: nobody would have it.
    pub fn stream_end_capture_to_graph(&self, stream: Stream) -> Result<()> {
        self.end_capture(stream, false).map(drop)
    }

    /// What is known of a stream's capture.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_IMPLICIT` for the legacy stream, while streams are captured that wait for it.
    pub fn stream_get_capture_info(&self, stream: Stream) -> Result<CaptureInfo> {
        self.capture_info(stream)
    }

    /// Adds nodes to those behind which a captured stream's next one comes, or replaces them.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if it is not being captured; `STREAM_CAPTURE_INVALIDATED`; `INVALID_VALUE` for other graphs' nodes.
    pub fn stream_update_capture_dependencies(
        &self,
        stream: Stream,
        nodes: &[(GraphNode, [u8; 8])],
        replace: bool,
    ) -> Result<()> {
        self.change_capture(stream, nodes, replace)
    }

    /// Sets the thread's capture mode; returns the former.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn thread_exchange_stream_capture_mode(&self, mode: u32) -> Result<u32> {
        self.ready()?;
        if mode > 2 { Err(CudaError::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
    }
}
