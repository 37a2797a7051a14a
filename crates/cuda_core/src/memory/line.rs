//! Waiting for memory that others have.
//!
//! A request that has to wait is refused with `NOT_READY`, and stands in line by its name ([`gpu::Deferring`]). It is asked again
//! when there are news. No lock is held meanwhile: other threads of the program free memory, and go on.

use std::time::Duration;

use gpu::{AllocId, ModuleId, Request};

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;

/// Longest sleep between two looks whether the context that waits is still there.
const LONGEST: Duration = Duration::from_millis(50);

/// A place in line, given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    link: &'a GpuLink,
    request: Option<Standing>,
    /// News known when it was asked last.
    seen: u32,
}

/// What stands in line.
#[derive(Clone, Copy, Debug)]
enum Standing {
    Allocation(AllocId, u64),
    Module(ModuleId),
}

impl<'a> Place<'a> {
    /// Nothing stands in line yet.
    pub(crate) fn new(link: &'a GpuLink) -> Place<'a> {
        Place { link, request: None, seen: 0 }
    }

    /// The name under which so many bytes are to be asked for: that of what stands in line, if it is as many.
    pub(crate) fn allocation(&mut self, bytes: u64) -> AllocId {
        self.look();
        match self.request {
            Some(Standing::Allocation(id, same)) if same == bytes => id,
            _ => AllocId(self.link.fresh_id()),
        }
    }

    /// Whether something stands in line.
    pub(crate) fn is_standing(&self) -> bool {
        self.request.is_some()
    }

    /// Notes what became of a request for memory.
    pub(crate) fn asked<T>(&mut self, id: AllocId, bytes: u64, answer: &Result<T>) {
        match (answer, self.request) {
            (Err(CudaError::NOT_READY), _) => self.stand(Standing::Allocation(id, bytes)),
            (_, Some(Standing::Allocation(standing, _))) if standing == id => self.request = None,
            _ => {}
        }
    }

    /// Looks what is new before something is asked.
    pub(crate) fn look(&mut self) {
        self.seen = self.link.gpu().deferring().map_or(0, |deferring| deferring.news());
    }

    /// A module has to wait to be loaded.
    pub(crate) fn asked_to_load<T>(&mut self, id: ModuleId, answer: &Result<T>) {
        self.request = None;
        if matches!(answer, Err(CudaError::NOT_READY)) {
            self.stand(Standing::Module(id));
        }
    }

    fn stand(&mut self, request: Standing) {
        if !matches!((self.request, request), (Some(Standing::Allocation(a, _)), Standing::Allocation(b, _)) if a == b)
        {
            self.leave();
        }
        self.request = Some(request);
    }

    fn leave(&mut self) {
        match self.request.take() {
            Some(Standing::Allocation(id, _)) => self.link.give_back(Request::Free { id }),
            Some(Standing::Module(id)) => self.link.give_back(Request::UnloadModule { id }),
            None => {}
        }
    }

    /// Sleeps until it is worth asking again; `gone`: whether there is nothing to wait for any more.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` if there is not; what is wrong with the GPU.
    pub(crate) fn wait(&self, gone: &dyn Fn() -> bool) -> Result<()> {
        let deferring = self.link.gpu().deferring().ok_or(CudaError::OUT_OF_MEMORY)?;
        while deferring.news() == self.seen {
            self.link.usable()?;
            if gone() {
                return Err(CudaError::CONTEXT_IS_DESTROYED);
            }
            self.link.outcome(deferring.wait_for_news(self.seen, LONGEST))?;
        }
        Ok(())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
