//! Streams: made, waited for, asked about; their attributes.

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::node::Work;
use crate::handle::{Context, Device, Event, Stream};
use crate::work::stream::NON_BLOCKING;

impl Driver {
    /// Creates a stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `INVALID_CONTEXT`.
    pub fn stream_create(&self, flags: u32) -> Result<Stream> {
        self.stream_create_with_priority(flags, 0)
    }

    /// Creates a stream with a priority, clamped to what there is. Its queue is made when it is first used.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `INVALID_CONTEXT`.
    pub fn stream_create_with_priority(&self, flags: u32, priority: i32) -> Result<Stream> {
        let context = self.current()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.stream_of(&context, flags, priority)
    }

    /// Destroys a stream; its work still completes. A capture goes with the stream that it began in; one that the stream joined goes on.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none, or a default stream; the context's error, and the stream is destroyed.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.ready()?;
        let state = self.streams.remove(stream.0)?;
        self.graphs.destroy_captured(&state);
        state.retire();
        state.core.check_last()
    }

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let stream = self.stream(stream)?;
        let result = stream.synchronize();
        self.devices.of(&stream.core.gpu).pools.trim_all();
        result
    }

    /// Whether all work of a stream has completed.
    ///
    /// # Errors
    /// `NOT_READY` while work is pending; the context's error.
    pub fn stream_query(&self, stream: Stream) -> Result<()> {
        self.stream(stream)?.query()
    }

    /// Makes further work wait for an event. A stream that waits for an event of a capture takes part in it. `flags` may be
    /// `CU_EVENT_WAIT_EXTERNAL`: a captured stream gets a node that waits.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_ISOLATION` if a captured stream is to wait for what is not, `STREAM_CAPTURE_MERGE` for what
    /// another capture has; `STREAM_CAPTURE_IMPLICIT`, `STREAM_CAPTURE_INVALIDATED`, `CAPTURED_EVENT`.
    pub fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let (handle, event) = (event, self.event(event)?);
        if flags == 1
            && let Some(capture) = self.captured(stream)?
        {
            return capture.add(Work::WaitEvent(handle, event));
        }
        let stream = self.any_stream(stream)?;
        if self.capture_wait(&stream, &event)? {
            return Ok(());
        }
        self.not_captured(&stream)?;
        event.wait_in(&stream)
    }

    /// The flags it was created with: whether it is blocking.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_flags(&self, stream: Stream) -> Result<u32> {
        self.any_stream(stream).map(|stream| stream.flags)
    }

    /// Its priority, within the range that there is; 0 is the lowest.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_priority(&self, stream: Stream) -> Result<i32> {
        self.any_stream(stream).map(|stream| stream.priority)
    }

    /// A number never used again in this process.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_id(&self, stream: Stream) -> Result<u64> {
        self.any_stream(stream).map(|stream| u64::from(stream.id().0))
    }

    /// The context that it is a stream of; of a green context, what stands for that.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_ctx(&self, stream: Stream) -> Result<Context> {
        self.any_stream(stream).map(|stream| stream.queues.context())
    }

    /// The device of its context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_device(&self, stream: Stream) -> Result<Device> {
        self.any_stream(stream).map(|stream| Device(stream.core.gpu.ordinal as i32))
    }

    /// Copies all attributes of `src` to `dst`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_copy_attributes(&self, dst: Stream, src: Stream) -> Result<()> {
        let (dst, src) = (self.any_stream(dst)?, self.any_stream(src)?);
        dst.copy_attributes(&src);
        Ok(())
    }

    /// A `CUstreamAttrValue` by `CUstreamAttrID`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that streams do not have.
    pub fn stream_get_attribute(&self, stream: Stream, attribute: u32) -> Result<[u8; 64]> {
        self.any_stream(stream)?.attribute(attribute)
    }

    /// Sets a `CUstreamAttrValue`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that cannot be set.
    pub fn stream_set_attribute(&self, stream: Stream, attribute: u32, value: &[u8; 64]) -> Result<()> {
        self.any_stream(stream)?.set_attribute(attribute, value)
    }

    /// Attaches managed memory to a stream: every stream and the host may use it at any time, so nothing changes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` if the address is not managed or the flags are unknown.
    pub fn stream_attach_mem_async(&self, stream: Stream, address: DevAddr, _bytes: u64, flags: u32) -> Result<()> {
        self.stream(stream)?;
        if !matches!(flags, 1 | 2 | 4) || !self.memory.is_managed(address.0) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(())
    }
}
