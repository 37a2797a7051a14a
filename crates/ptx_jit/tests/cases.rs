//! The `.ptx` cases of the interpreter, on machine code: the same results, bit by bit, run through or preempted.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Control, Launch};
use ptx_jit::compiler::Watch;
use ptx_jit::{Form, Image};
use support::run;
use testgen::ptx_case;

#[test]
fn cases_on_machine_code() {
    let cases = ptx_case::check_all(&ptx_case::directory(), &mut |kernel, launch, base, bytes| {
        run(kernel, launch, base, bytes, Control::RUN)
    });
    assert!(cases.unwrap() > 20);
}

#[test]
fn cases_preempted_at_every_poll() {
    ptx_case::check_all(&ptx_case::directory(), &mut |kernel, launch, base, bytes| {
        run(kernel, launch, base, bytes, Control::PREEMPT)
    })
    .unwrap();
}

/// Lane by lane, wherever the lanes of a kernel may run one after another.
#[test]
fn cases_lane_by_lane() {
    let mut alone = 0;
    let form = Form { alone: true, ..Form::default() };
    for control in [Control::RUN, Control::PREEMPT] {
        ptx_case::check_all(&ptx_case::directory(), &mut |kernel, launch, base, bytes| {
            let image = Image::compile_in(Arc::clone(kernel), launch.block, form, &Watch::unbounded()).unwrap();
            alone += u32::from(image.lanes() == Some(1));
            support::run_in(form, kernel, launch, base, bytes, control)
        })
        .unwrap();
    }
    println!("{alone} kernels ran lane by lane");
    assert!(alone > 20, "{alone}");
}

/// Every computing instruction, over tables of interesting operands.
#[test]
fn agrees_with_the_interpreter() {
    for entry in std::fs::read_dir(ptx_case::directory()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for case in ptx_case::parse(&text).unwrap() {
            let machine = &mut |k: &Arc<Kernel>, l: &Arc<Launch>, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, 0);
            let outcome = testgen::compare(
                &case.kernel,
                &case.launch,
                ptx_case::BASE,
                &case.memory,
                machine,
                &mut testgen::interpret,
            );
            assert_eq!(outcome, Ok(()), "{}: {}", path.display(), case.name);
        }
    }
}
