//! Machine code as an engine for `testgen`.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use hostmem::{Memfd, Protection, Window};
use ptx::ir::Kernel;
use ptx::launch::{Exception, Launch, Step};
use ptx_jit::{Code, Cta, EngineKind, Grid};

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
    let file = Memfd::create("case", bytes.len() as u64).unwrap();
    let memory = file.map().unwrap();
    memory.write(0, bytes);
    let window = Window::reserve(bytes.len() as u64 + (1 << 20)).unwrap();
    window.map(0, &file, 0, bytes.len() as u64, Protection::ReadWrite).unwrap();
    let code = Code::compile(Arc::clone(kernel), launch.block, EngineKind::Jit).unwrap();
    assert!(code.is_machine_code() || expected_to_be_interpreted(kernel), "{} is interpreted", kernel.name);
    let grid = Arc::new(Grid {
        code,
        launch: (**launch).clone(),
        window: Arc::new(window),
        window_lo: base,
        control: Arc::new(AtomicU32::new(control)),
    });
    let [x, y, z] = launch.grid;
    let mut result = Ok(());
    let mut cta = Cta::new(Arc::clone(&grid), [0; 3]);
    for index in 0..x * y * z {
        let ctaid = [index % x, index / x % y, index / x / y];
        // On fresh memory, and on that of the CTA before.
        if index % 3 == 2 {
            cta = Cta::new(Arc::clone(&grid), ctaid);
        } else {
            cta.restart(ctaid);
        }
        match (0..MAX_RESUMES).map(|_| cta.resume()).find(|step| *step != Step::Preempted) {
            Some(Step::Exception(exception)) => result = Err(exception),
            Some(_) => {}
            None => result = Err(Exception::Illegal),
        }
        if result.is_err() {
            break;
        }
    }
    memory.read(0, bytes);
    result
}

/// Kernels that machine code does not cover.
fn expected_to_be_interpreted(kernel: &Kernel) -> bool {
    kernel.regs.contains(&ptx::ir::RegTy::B128)
}
