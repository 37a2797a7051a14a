//! What a launch does for a node: made once, by what makes the commands of streams.

use std::sync::Arc;

use gpu::Command;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::graph::node::{KernelWork, Work};
use crate::memory::memories::Memories;
use crate::values::Copy3D;
use crate::work::copy::End;
use crate::work::event::EventState;
use crate::work::{copy_lines, launch, value_ops};

/// A function that runs at each launch; it is told if the context failed before.
pub(crate) type Repeated = Arc<dyn Fn(Result<()>) + Send + Sync>;

/// A step of a launch.
#[derive(Clone)]
pub(crate) enum Step {
    /// A command; a launch gets its parameters from the kernel.
    Run(Command<'static>, Option<Arc<KernelWork>>),
    Host(Repeated),
    Record(Arc<EventState>),
    Wait(Arc<EventState>),
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Run(command, _) => command.fmt(f),
            Step::Host(_) => f.write_str("Host"),
            Step::Record(_) => f.write_str("Record"),
            Step::Wait(_) => f.write_str("Wait"),
        }
    }
}

impl Step {
    fn run(command: Command<'static>) -> Step {
        Step::Run(command, None)
    }
}

/// A launch with its parameters.
pub(crate) fn with_params<'a>(command: &Command<'static>, kernel: &'a KernelWork) -> Command<'a> {
    match *command {
        Command::Launch { module, kernel: index, grid, block, shared_bytes, cooperative, cluster, .. } => {
            Command::Launch {
                module,
                kernel: index,
                grid,
                block,
                shared_bytes,
                cooperative,
                cluster,
                params: &kernel.params.block,
            }
        }
        other => other,
    }
}

/// The steps of a node. Graphs in it have nodes of their own.
///
/// # Errors
/// Those of the work, if a stream were given it.
pub(crate) fn encode(memory: &Arc<Memories>, work: &Work) -> Result<Vec<Step>> {
    Ok(match work {
        Work::Kernel(kernel) => {
            kernel.function.core.check()?;
            // Its shape was checked when it was given, without the attributes that it has by now.
            let all = launch::all_multiprocessors(&kernel.function);
            launch::check_together(&kernel.function, &kernel.config, all)?;
            let command = match launch::command(&kernel.function, &kernel.config, &[])? {
                Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, .. } => {
                    Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params: &[] }
                }
                _ => return Err(CudaError::UNKNOWN),
            };
            vec![Step::Run(command, Some(Arc::clone(kernel)))]
        }
        Work::Copy { copy, core } => copy_steps(memory, copy, core)?,
        Work::Fill { fill, core } => {
            let command = fill.command(memory, core.gpu.ordinal)?;
            command.into_iter().map(|(command, _)| Step::run(command)).collect()
        }
        Work::Host(function) => {
            let call = Arc::clone(&function.call);
            vec![Step::Host(Arc::new(move |ready: Result<()>| {
                if ready.is_ok() {
                    call();
                }
            }))]
        }
        // What is done about memory is done for the whole of a launch.
        Work::Graph(_) | Work::Empty | Work::Alloc(_) | Work::Free(_) => Vec::new(),
        // What runs is known in a launch only.
        Work::Conditional(_) => Vec::new(),
        Work::WaitEvent(_, event) => vec![Step::Wait(Arc::clone(event))],
        Work::RecordEvent(_, event) => vec![Step::Record(Arc::clone(event))],
        Work::MemOps { operations, core, .. } => {
            let commands = operations.iter().map(|operation| value_ops::command(memory, core.gpu.ordinal, *operation));
            commands.filter_map(Result::transpose).map(|command| command.map(Step::run)).collect::<Result<_>>()?
        }
    })
}

fn copy_steps(memory: &Arc<Memories>, copy: &Copy3D<'static>, core: &Arc<ContextCore>) -> Result<Vec<Step>> {
    if copy.width == 0 || copy.height == 0 || copy.depth == 0 {
        return Ok(Vec::new());
    }
    let copy = &memory.arrays.flat(copy)?;
    if let (End::Gpu { at: from, .. }, End::Gpu { at: to, .. }) =
        copy_lines::ends_seen_by(core.gpu.ordinal, memory, copy)?
    {
        return Ok(copy_lines::commands(copy, to, from)?.into_iter().map(Step::run).collect());
    }
    // What the GPU does not see is copied by a thread of the stream, as it is then.
    let (memory, core, copy) = (Arc::clone(memory), Arc::clone(core), *copy);
    Ok(vec![Step::Host(Arc::new(move |ready: Result<()>| {
        if ready.is_err() {
            return;
        }
        let ends = copy_lines::ends_seen_by(core.gpu.ordinal, &memory, &copy);
        let copied = ends.and_then(|(src, dst)| copy_lines::copy_now(&core, &copy, dst, src));
        if let Err(error) = copied {
            core.stick(
                error,
                || tracing::error!(context = core.id.0, %error, "a copy of a graph failed, and its context with it"),
            );
        }
    }))])
}
