//! Streams: made, waited for, asked about; their attributes. Capture is refused here.

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Context, Device, Event, Stream};
use crate::work::stream::{GREATEST_PRIORITY, NON_BLOCKING, StreamState};

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
        context.queues.reap();
        let stream = StreamState::created(&context.queues, flags, priority.clamp(GREATEST_PRIORITY, 0));
        let handle = stream.handle;
        self.streams.insert(handle.0, stream);
        context.alive_or(|| drop(self.streams.remove(handle.0)))?;
        Ok(handle)
    }

    /// Destroys a stream; its work still completes.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none, or a default stream.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.ready()?;
        self.streams.remove(stream.0)?.retire();
        Ok(())
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

    /// Makes further work wait for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let event = self.event(event)?;
        let stream = self.stream(stream)?;
        event.point().map_or(Ok(()), |point| stream.wait_for(&point))
    }

    /// The flags it was created with: whether it is blocking.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_flags(&self, stream: Stream) -> Result<u32> {
        self.stream(stream).map(|stream| stream.flags)
    }

    /// Its priority, within the range that there is; 0 is the lowest.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_priority(&self, stream: Stream) -> Result<i32> {
        self.stream(stream).map(|stream| stream.priority)
    }

    /// A number never used again in this process.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_id(&self, stream: Stream) -> Result<u64> {
        self.stream(stream).map(|stream| u64::from(stream.id().0))
    }

    /// The context that it is a stream of.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_ctx(&self, stream: Stream) -> Result<Context> {
        self.stream(stream).map(|stream| stream.core.handle)
    }

    /// The device of its context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_get_device(&self, stream: Stream) -> Result<Device> {
        self.stream(stream).map(|stream| Device(stream.core.gpu.ordinal as i32))
    }

    /// Copies all attributes of `src` to `dst`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_copy_attributes(&self, dst: Stream, src: Stream) -> Result<()> {
        let (dst, src) = (self.stream(dst)?, self.stream(src)?);
        dst.copy_attributes(&src);
        Ok(())
    }

    /// A `CUstreamAttrValue` by `CUstreamAttrID`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that streams do not have.
    pub fn stream_get_attribute(&self, stream: Stream, attribute: u32) -> Result<[u8; 64]> {
        self.stream(stream)?.attribute(attribute)
    }

    /// Sets a `CUstreamAttrValue`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` for attributes that cannot be set.
    pub fn stream_set_attribute(&self, stream: Stream, attribute: u32, value: &[u8; 64]) -> Result<()> {
        self.stream(stream)?.set_attribute(attribute, value)
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

    /// `CUstreamCaptureStatus`: 0, none.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream_is_capturing(&self, stream: Stream) -> Result<u32> {
        self.stream(stream).map(|_| 0)
    }

    /// Capture is not supported.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, `INVALID_HANDLE`.
    pub fn stream_begin_capture(&self, stream: Stream, _mode: u32) -> Result<()> {
        self.stream(stream)?;
        Err(CudaError::NOT_SUPPORTED)
    }

    /// Capture is not supported: no stream is capturing.
    ///
    /// # Errors
    /// `ILLEGAL_STATE`, `INVALID_HANDLE`.
    pub fn stream_end_capture(&self, stream: Stream) -> Result<u64> {
        self.stream(stream)?;
        Err(CudaError::ILLEGAL_STATE)
    }

    /// Sets the thread's capture mode; returns the former.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn thread_exchange_stream_capture_mode(&self, mode: u32) -> Result<u32> {
        thread_local! {
            static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        self.ready()?;
        if mode > 2 { Err(CudaError::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
    }
}
