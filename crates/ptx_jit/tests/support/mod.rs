//! Machine code as an engine for `testgen`.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use hostmem::{Mapping, Memfd, Protection, Window};
use ptx::ir::Kernel;
use ptx::launch::{Exception, Launch, Step};
use ptx_jit::compiler::Watch;
use ptx_jit::{Batch, Code, Form, Grid, Image};

/// Resumptions after which a grid counts as endless.
const MAX_RESUMES: u32 = 100_000;

/// Runs a grid on machine code over a copy of `bytes` in a window.
pub(crate) fn run(
    kernel: &Arc<Kernel>,
    launch: &Arc<Launch>,
    base: u64,
    bytes: &mut [u8],
    control: u32,
) -> Result<(), Exception> {
    run_in(Form::default(), kernel, launch, base, bytes, control)
}

/// The same, on machine code of a form.
pub(crate) fn run_in(
    form: Form,
    kernel: &Arc<Kernel>,
    launch: &Arc<Launch>,
    base: u64,
    bytes: &mut [u8],
    control: u32,
) -> Result<(), Exception> {
    let (grid, memory) = grid_over(form, kernel, launch, base, bytes, control);
    let mut all = 0..launch.clusters().iter().map(|&side| u64::from(side)).product();
    let mut result = Ok(());
    // CTAs one by one, several on the memory of one another, and half a batch taken back.
    for size in [1, 3, 2, 5, 4].into_iter().cycle() {
        let mut batch = Batch::new(Arc::clone(&grid), all.start..all.end.min(all.start + size));
        all.start = all.end.min(all.start + size);
        let mut resume = |first: bool| {
            let step = batch.resume();
            if first && size == 5 && step == Step::Preempted {
                let rest = batch.take_rest();
                all.start = if rest.is_empty() { all.start } else { rest.start };
            }
            step
        };
        match (0..MAX_RESUMES).map(|n| resume(n == 0)).find(|step| *step != Step::Preempted) {
            Some(Step::Exception(exception)) => result = Err(exception),
            Some(_) => {}
            None => result = Err(Exception::Illegal),
        }
        if result.is_err() || all.is_empty() {
            break;
        }
    }
    memory.read(0, bytes);
    result
}

/// A grid of machine code over a copy of `bytes` in a window, and the copy.
pub(crate) fn grid_over(
    form: Form,
    kernel: &Arc<Kernel>,
    launch: &Launch,
    base: u64,
    bytes: &[u8],
    control: u32,
) -> (Arc<Grid>, Mapping) {
    let file = Memfd::create("case", bytes.len() as u64).unwrap();
    let memory = file.map().unwrap();
    memory.write(0, bytes);
    let window = Window::reserve(bytes.len() as u64 + (1 << 20)).unwrap();
    window.map(0, &file, 0, bytes.len() as u64, Protection::ReadWrite).unwrap();
    // As code comes from another process or a file.
    let image = Image::compile_in(Arc::clone(kernel), launch.block, form, &Watch::unbounded()).unwrap();
    assert_eq!(image.unknown_accesses(), 0, "{} accesses memory, and nobody knows at which line", kernel.name);
    let code = Code::install(Image::from_bytes(&image.to_bytes()).unwrap()).unwrap();
    assert!(code.is_machine_code() || expected_to_be_interpreted(kernel), "{} is interpreted", kernel.name);
    let grid = Grid {
        code,
        launch: launch.clone(),
        window: Arc::new(window),
        window_lo: base,
        control: Arc::new(AtomicU32::new(control)),
        checker: None,
        launcher: None,
    };
    (Arc::new(grid), memory)
}

/// Kernels that machine code does not cover.
fn expected_to_be_interpreted(kernel: &Kernel) -> bool {
    kernel.regs.contains(&ptx::ir::RegTy::B128)
}
