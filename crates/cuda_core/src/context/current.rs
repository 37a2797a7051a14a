//! The calling thread's stack of contexts.
//!
//! The primary context's handle outlives its states: while nobody retains it, the table of contexts holds a dead state for
//! it, which a thread may make current already; a call then finds the live one once there is one.

use std::cell::RefCell;
use std::sync::Arc;

use crate::context::state::ContextState;
use crate::error::{CudaError, Result};

thread_local! {
    /// The calling thread's contexts, the current one last.
    static STACK: RefCell<Vec<Arc<ContextState>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the stack; while the thread ends there is none.
pub(crate) fn with_stack<R>(f: impl FnOnce(&mut Vec<Arc<ContextState>>) -> R) -> Result<R> {
    STACK.try_with(|stack| f(&mut stack.borrow_mut())).map_err(|_| CudaError::DEINITIALIZED)
}
