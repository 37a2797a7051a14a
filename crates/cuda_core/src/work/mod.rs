//! Work, and its order.
//!
//! [`queue`] is a queue of the GPU; [`queues`] are those of a context, with the order between them; [`stream`] and [`event`]
//! are what programs name; [`event_words`] are what several processes know of an event, and [`event_watch`] sees to it that none waits for one
//! that has been killed; [`host_queue`] runs their functions in a stream's order; [`launch`], [`copy`], [`copy_lines`], [`fill`] and [`value_ops`]
//! make commands; [`between`] copies where no GPU sees both ends.

pub(crate) mod between;
pub(crate) mod copy;
pub(crate) mod copy_lines;
pub(crate) mod event;
pub(crate) mod event_watch;
pub(crate) mod event_words;
mod fill;
mod host_queue;
pub(crate) mod launch;
mod queue;
pub(crate) mod queues;
mod recorder;
pub(crate) mod stream;
pub(crate) mod value_ops;
