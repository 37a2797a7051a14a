//! The primary context: one handle, and the state behind it while somebody retains it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::context::state::ContextState;
use crate::handle::{self, Context, Tag};

#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) handle: Context,
    pub(crate) retention: Mutex<Retention>,
}

/// Who needs it, and what they have.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// Times it was retained and not released.
    pub(crate) count: u32,
    pub(crate) flags: u32,
    pub(crate) live: Option<Arc<ContextState>>,
}

impl Primary {
    pub(crate) fn new() -> Primary {
        Primary { handle: Context(handle::fresh(Tag::Context)), retention: Mutex::default() }
    }
}
