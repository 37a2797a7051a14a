//! Green contexts: a handle of their own for a part of a primary context.

use std::sync::Arc;

use crate::context::state::ContextState;

#[derive(Debug)]
pub(crate) struct GreenState {
    /// What a program gets for it where a context is asked for: the primary context, but for queues and handle.
    pub(crate) context: Arc<ContextState>,
}
