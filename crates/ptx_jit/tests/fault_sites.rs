//! A fault names its line, CTA and thread: the thread that is named is one whose access was at the address that is named, in either engine,
//! for accesses of all kinds, whichever way machine code makes them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "for other tests")]
mod support;

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Access, AccessError, Control, Exception, FaultSite, Launch, Step};
use ptx::{Origin, Program, Sources};
use ptx_jit::compiler::Watch;
use ptx_jit::{Batch, Code, EngineKind, Form, Grid, Image};

/// GPU address of the memory, and bytes of it; a MiB behind it belongs to the window.
const BASE: u64 = 0x7_0000_0000;
const BYTES: u64 = 64 << 10;
const WINDOW: u64 = BYTES + (1 << 20);

/// The kernel, and the line of its access. `address` leaves the access's address in `%rd1`, of the thread's index in the grid in `%r0`;
/// `%rd0` is what is given as parameter, and what the thread finds goes to `%rd7`, where there is room for it.
fn kernel(address: &str, access: &str) -> (Arc<Kernel>, u32) {
    // Memory that others could see would keep lanes from running one after another.
    let shared = if access.contains("shared") { ".shared .align 16 .b8 s[4096];" } else { "" };
    let local = if access.contains("local") { ".local .align 16 .b8 l[64];" } else { "" };
    let before = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b) {{\n\
         .reg .b64 %rd<8>; .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .f32 %f<8>; .reg .pred %p<4>;\n\
         {shared}{local}\nld.param.u64 %rd0, [a]; ld.param.u64 %rd7, [b];\nmov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y;\n\
         mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;\nmov.u32 %r6, %ntid.z; mov.u32 %r7, %ctaid.x;\n\
         mov.u32 %r8, %ctaid.y; mov.u32 %r10, %nctaid.x;\nmad.lo.u32 %r12, %r8, %r10, %r7; mad.lo.u32 %r12, %r12, %r6, %r3;\n\
         mad.lo.u32 %r12, %r12, %r5, %r2; mad.lo.u32 %r0, %r12, %r4, %r1;\n\
         mad.wide.u32 %rd7, %r0, 16, %rd7;\n{address}\n"
    );
    let line = before.lines().count() as u32 + 1;
    let text = format!("{before}{access}\nEND: ret;\n}}\n");
    let kernel = Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None));
    (Arc::new(kernel.unwrap_or_else(|e| panic!("{e}\n{text}"))), line)
}

/// How the grid ends, and where.
fn run(kernel: &Arc<Kernel>, launch: &Launch, engine: EngineKind, form: Form) -> (Exception, FaultSite) {
    let memory = vec![0; BYTES as usize];
    let (grid, _memory) = support::grid_over(form, kernel, launch, BASE, &memory, Control::RUN);
    let grid = match engine {
        EngineKind::Jit => grid,
        EngineKind::Interpreter => {
            let code = Code::compile(Arc::clone(kernel), launch.block, engine).unwrap();
            Arc::new(Grid { code, ..Arc::into_inner(grid).unwrap() })
        }
    };
    let clusters = launch.clusters().iter().map(|&side| u64::from(side)).product();
    let mut batch = Batch::new(grid, 0..clusters);
    let step = (0..1000).map(|_| batch.resume()).find(|step| *step != Step::Preempted).unwrap();
    let Step::Exception(exception) = step else { panic!("it ends: {step:?}") };
    (exception, batch.fault_site().unwrap().clone())
}

fn launch(block: [u32; 3], grid: [u32; 3], base: u64) -> Launch {
    Launch::new(grid, block, [base, BASE].map(u64::to_le_bytes).concat())
}

const SHAPES: [([u32; 3], [u32; 3]); 8] = [
    ([32, 1, 1], [8, 1, 1]),
    ([256, 1, 1], [3, 1, 1]),
    ([32, 8, 1], [5, 2, 1]),
    ([8, 8, 2], [4, 2, 1]),
    ([64, 2, 2], [3, 1, 1]),
    ([40, 3, 1], [3, 2, 1]),
    ([100, 1, 1], [4, 1, 1]),
    ([1, 1, 1], [9, 1, 1]),
];

/// Code as it is good, of lanes one after another, and in many regions.
fn ways() -> Vec<(EngineKind, Form)> {
    let forms = [Form::default(), Form { alone: true, region: None }, Form { alone: false, region: Some(8) }];
    let machine = forms.map(|form| (EngineKind::Jit, form));
    machine.into_iter().chain([(EngineKind::Interpreter, Form::default())]).collect()
}

/// What accesses do: the text, which lanes take part by their index in the grid, and the kind.
struct What {
    size: u64,
    text: &'static str,
    access: Access,
}

const fn what(size: u64, text: &'static str, access: Access) -> What {
    What { size, text, access }
}

const ACCESSES: [What; 17] = [
    what(1, "ld.global.u8 %r13, [%rd1]; st.global.u32 [%rd7], %r13;", Access::Read),
    what(2, "ld.global.s16 %r13, [%rd1]; st.global.u32 [%rd7], %r13;", Access::Read),
    what(4, "ld.global.u32 %r13, [%rd1]; st.global.u32 [%rd7], %r13;", Access::Read),
    what(4, "ld.global.f32 %f0, [%rd1]; add.f32 %f0, %f0, 0f3f800000; st.global.f32 [%rd7], %f0;", Access::Read),
    what(8, "ld.global.u64 %rd3, [%rd1]; st.global.u64 [%rd7], %rd3;", Access::Read),
    what(
        8,
        "ld.global.v2.u32 {%r13, %r14}, [%rd1]; add.u32 %r13, %r13, %r14; st.global.u32 [%rd7], %r13;",
        Access::Read,
    ),
    what(
        16,
        "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1]; add.f32 %f0, %f0, %f3; st.global.f32 [%rd7], %f0;",
        Access::Read,
    ),
    what(
        16,
        "ld.global.v2.u64 {%rd3, %rd4}, [%rd1]; add.u64 %rd3, %rd3, %rd4; st.global.u64 [%rd7], %rd3;",
        Access::Read,
    ),
    what(1, "st.global.u8 [%rd1], %r0;", Access::Write),
    what(2, "st.global.u16 [%rd1], %r0;", Access::Write),
    what(4, "st.global.u32 [%rd1], %r0;", Access::Write),
    what(8, "st.global.v2.u32 [%rd1], {%r0, %r1};", Access::Write),
    what(16, "st.global.v4.u32 [%rd1], {%r0, %r1, %r2, %r3};", Access::Write),
    what(4, "st.u32 [%rd1], %r0;", Access::Write),
    what(4, "atom.global.add.u32 %r13, [%rd1], 1; st.global.u32 [%rd7], %r13;", Access::Atomic),
    what(8, "red.global.max.u64 [%rd1], %rd0;", Access::Atomic),
    what(4, "cp.async.ca.shared.global [s], [%rd1], 4;", Access::Read),
];

/// An element that a thread accesses, by its index in the grid: the text that leaves it in `%r15`, and the same here.
struct Where {
    text: &'static str,
    element: fn(u32, &Launch) -> u64,
}

const ELEMENTS: [Where; 5] = [
    // One behind another.
    Where { text: "mov.u32 %r15, %r0;", element: |i, _| i.into() },
    // At another distance, up and down.
    Where { text: "mul.lo.u32 %r15, %r0, 3;", element: |i, _| u64::from(i) * 3 },
    Where { text: "sub.u32 %r15, 3000, %r0;", element: |i, _| 3000 - u64::from(i) },
    // Anywhere.
    Where {
        text: "mul.lo.u32 %r15, %r0, 1237; and.b32 %r15, %r15, 2047;",
        element: |i, _| u64::from(i.wrapping_mul(1237) & 2047),
    },
    // The same for a CTA.
    Where {
        text: "mad.lo.u32 %r15, %r8, %r10, %r7; mul.lo.u32 %r15, %r15, 300;",
        element: |i, launch| u64::from(i / launch.block.iter().product::<u32>()) * 300,
    },
];

/// Who takes part: the text around the access, and the same here.
type Who = (&'static [&'static str], fn(u32) -> bool);

const WHO: [Who; 3] = [
    (&["", ""], |_| true),
    (&["and.b32 %r16, %r0, 3; setp.eq.u32 %p0, %r16, 3; @!%p0 bra END;", ""], |i| i % 4 == 3),
    (&["and.b32 %r16, %r0, 7; setp.lt.u32 %p0, %r16, 5;", "@%p0 "], |i| i % 8 < 5),
];

#[test]
fn the_thread_is_one_whose_access_was_at_the_address() {
    let mut exact = 0;
    for (n, What { size, text, access }) in ACCESSES.iter().enumerate() {
        for (e, Where { text: of_element, element }) in ELEMENTS.iter().enumerate() {
            for (w, &(around, takes_part)) in WHO.iter().enumerate() {
                let shapes = SHAPES.iter().enumerate().filter(|(s, _)| (n + e + w + s) % 4 == 0);
                for (&(block, grid), shift) in shapes.map(|(s, shape)| (shape, [0, 1, 3, 7][(s + n) % 4])) {
                    let threads = block.iter().chain(&grid).product::<u32>();
                    let address = format!(
                        "{of_element} mul.wide.u32 %rd2, %r15, {size}; add.s64 %rd1, %rd0, %rd2;\n{}",
                        around[0]
                    );
                    let (kernel, line) = kernel(&address, &format!("{}{text}", around[1]));
                    if !text.contains("shared") && *access != Access::Atomic {
                        let form = Form { alone: true, region: None };
                        let image = Image::compile_in(Arc::clone(&kernel), block, form, &Watch::unbounded()).unwrap();
                        assert_eq!(image.lanes(), Some(1), "{address} {text}");
                    }
                    let highest = (0..threads).map(|i| element(i, &launch(block, grid, 0))).max().unwrap();
                    // In the middle they come to the end of what is there; all beyond the window; none aligned.
                    let middle = BASE + BYTES - (highest / 2 / 16 * 16 + shift) * size;
                    let beyond = BASE + WINDOW + (1 << 16);
                    let mut bases = vec![(middle, AccessError::Unmapped), (beyond, AccessError::OutOfWindow)];
                    if *size > 1 {
                        bases.push((BASE + 1, AccessError::Misaligned));
                    }
                    for ((base, error), (engine, form)) in
                        bases.iter().flat_map(|&b| ways().into_iter().map(move |w| (b, w)))
                    {
                        let launch = launch(block, grid, base);
                        let (exception, site) = run(&kernel, &launch, engine, form);
                        let told = format!(
                            "{exception:x?} {site:?}: {block:?} {grid:?} {engine:?} {form:?}: {address} {}{text}",
                            around[1]
                        );
                        let Exception::Access { address, access: was, error: why } = exception else {
                            panic!("{told}")
                        };
                        assert_eq!((why, site.line), (error, line), "{told}");
                        // What loads, changes and stores may be told as a store.
                        assert!(was == *access || *access == Access::Atomic, "{told}");
                        let first = launch.linear(site.ctaid) as u32 * block.iter().product::<u32>();
                        let at = |thread: u32| base + element(first + thread, &launch) * size;
                        assert!(site.threads.clone().any(|t| takes_part(first + t) && at(t) == address), "{told}");
                        // Only where some lanes access one place it is not known which ones.
                        let known = site.threads.len() == 1;
                        assert!(known || e == 4 && w > 0, "{told}");
                        exact += u32::from(known);
                    }
                }
            }
        }
    }
    assert!(exact > 4000, "{exact}");
}

#[test]
fn whatever_fails_names_its_thread() {
    let shared = |offset| Exception::Access { address: offset, access: Access::Write, error: AccessError::Shared };
    let local = Exception::Access { address: 64, access: Access::Write, error: AccessError::Local };
    let matrix = Exception::Access { address: 4096, access: Access::Read, error: AccessError::Shared };
    let address = BASE + 2;
    let together = Exception::Access { address, access: Access::Write, error: AccessError::Misaligned };
    for (before, at, block, threads, exception) in [
        ("setp.ne.u32 %p0, %r0, 37; @%p0 bra END;", "trap;", [64, 1, 1], 37..38, Exception::Trap),
        ("setp.ne.u32 %p0, %r0, 37;", "@!%p0 trap;", [8, 8, 1], 37..38, Exception::Trap),
        ("mul.lo.u32 %r13, %r0, 96;", "st.shared.u32 [%r13], %r0;", [64, 1, 1], 43..44, shared(43 * 96)),
        ("mul.lo.u32 %r13, %r0, 4;", "st.shared.u32 [%r13+3980], %r0;", [64, 1, 1], 29..30, shared(4096)),
        (
            "shl.b32 %r13, %r0, 2; mov.u32 %r14, l; add.u32 %r13, %r13, %r14;",
            "st.local.u32 [%r13], %r0;",
            [40, 1, 1],
            16..17,
            local,
        ),
        (
            "and.b32 %r13, %r0, 7; mul.lo.u32 %r13, %r13, 1024;",
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r14}, [%r13];",
            [32, 2, 1],
            4..5,
            matrix,
        ),
        ("", "st.global.u32 [%rd0+2], %r4;", [64, 1, 1], 0..1, together),
        ("setp.lt.u32 %p0, %r0, 40; @%p0 bra END;", "st.global.u32 [%rd0+2], %r4;", [64, 1, 1], 32..64, together),
        ("mov.u32 %r13, 16;", "barrier.sync %r13;", [64, 1, 1], 0..64, Exception::Illegal),
        // All wait, and nobody comes: that is at no line.
        ("setp.lt.u32 %p0, %r0, 32;", "@%p0 bar.sync 1, 64;", [64, 1, 1], 0..64, Exception::Illegal),
    ] {
        let (kernel, line) = kernel(before, at);
        let line = if at.contains("bar.sync 1") { 0 } else { line };
        for (engine, form) in ways() {
            let (was, site) = run(&kernel, &launch(block, [3, 1, 1], BASE), engine, form);
            let told = format!("{before} {at} {engine:?} {form:?}: {site:?}");
            assert_eq!(was, exception, "{told}");
            assert_eq!((site.line, site.ctaid), (line, [0; 3]), "{told}");
            let inside = threads.start <= site.threads.start && site.threads.end <= threads.end;
            // Where lanes run one by one, and in the interpreter, more is known.
            assert!(site.threads == threads || inside && threads.len() > 1, "{told}");
        }
    }
}

/// Loads of two lines are operands of one instruction: the processor's may take the one or the other from memory itself. Four of them, of
/// two bases, are asked about together, and in one block then.
#[test]
fn of_two_loads_the_right_one_is_named() {
    let floats = ["mul.f32 %f0, A, B;", "sub.f32 %f0, A, B;", "fma.rn.f32 %f0, A, B, A;", "fma.rn.f32 %f0, %f0, A, B;"];
    let words = ["add.u32 %r10, A, B;", "sub.u32 %r10, A, B;", "mad.lo.u32 %r10, A, B, A;", "xor.b32 %r10, A, B;"];
    let wide = ["add.u64 %rd0, A, B;", "sub.u64 %rd0, A, B;", "mul.lo.u64 %rd0, A, B;", "and.b64 %rd0, A, B;"];
    let orders = [[0, 1], [1, 0]];
    for (ty, size, reg, to, uses) in
        [("f32", 4, "%f", "%f0", floats), ("u32", 4, "%r1", "%r10", words), ("u64", 8, "%rd", "%rd0", wide)]
    {
        let address = format!(
            "mul.wide.u32 %rd2, %r0, {size}; add.s64 %rd1, %rd0, %rd2; add.s64 %rd2, %rd1, {BYTES}; add.s64 %rd1, %rd1, 4096;"
        );
        for (used, order, operands) in
            uses.iter().flat_map(|used| orders.iter().flat_map(move |order| orders.map(|of| (used, order, of))))
        {
            // From the second base on there is nothing, but there is before it.
            let load = |n: usize, r: usize, offset| format!("ld.global.{ty} {reg}{}, [%rd{}+{offset}];", n + r, n + 1);
            let loads = [(3, 0), (5, -1024)].map(|(r, offset)| order.map(|n| load(n, r, offset)).join("\n")).join("\n");
            let used = [0, 2].map(|by| {
                let [a, b] = operands.map(|n| format!("{reg}{}", n + 3 + by));
                let used = used.replace('A', &a).replace('B', &b);
                format!("{used}\nst.global.{ty} [%rd1+{}], {to};", 2048 * (by + 1))
            });
            let (kernel, first) = kernel(&address, &format!("{loads}\n{}", used.join("\n")));
            for (engine, form) in ways() {
                let (was, site) = run(&kernel, &launch([64, 1, 1], [2, 1, 1], BASE), engine, form);
                let told = format!("{loads} {used:?} {engine:?} {form:?}: {was:x?} {site:?}");
                let Exception::Access { address, .. } = was else { panic!("{told}") };
                let thread = ((address - BASE - BYTES) / size) as u32;
                let line = first + u32::from(order == &[0, 1]);
                assert_eq!((site.line, site.threads), (line, thread..thread + 1), "{told}");
            }
        }
    }
}

/// What is made of a load may be one instruction with it: a comparison, a branch, a choice.
#[test]
fn loads_that_become_part_of_something_are_named() {
    let address = format!("add.s64 %rd1, %rd0, {BYTES}; add.s64 %rd1, %rd1, -512;");
    // All lanes load the same; four loads are asked about together, of which the fourth is beyond the end.
    let loads = "ld.global.u32 %r17, [%rd1];\nld.global.u32 %r18, [%rd1+256];\nld.global.u32 %r14, [%rd1];\nld.global.u32 %r13, [%rd1+512];";
    for used in [
        "setp.lt.u32 %p0, %r14, %r13; @%p0 bra END;",
        "setp.lt.u32 %p0, %r13, %r14; @%p0 bra END;",
        "setp.lt.u32 %p0, %r14, %r13; selp.b32 %r14, %r4, %r5, %p0; add.u32 %r17, %r17, %r18; st.global.u32 [%rd7], %r14;",
        "and.b32 %r13, %r4, %r13; setp.ne.u32 %p0, %r13, 0; selp.b32 %r16, %r4, %r5, %p0; st.global.u32 [%rd7], %r16;",
        "and.b32 %r13, %r4, %r13; setp.eq.u32 %p0, %r13, 0; @%p0 bra END;",
        "not.b32 %r13, %r13; and.b32 %r13, %r4, %r13; st.global.u32 [%rd7], %r13;",
        "cvt.u64.u32 %rd3, %r13; add.u64 %rd3, %rd3, %rd0; st.global.u64 [%rd7], %rd3;",
        "mad.lo.u32 %r13, %r14, %r13, %r18; st.global.u32 [%rd7], %r13;",
        "min.u32 %r13, %r14, %r13; max.u32 %r13, %r17, %r13; st.global.u32 [%rd7], %r13;",
    ] {
        let (kernel, line) = kernel(&address, &format!("{loads}\n{used}\nst.global.u32 [%rd7+4], %r17;"));
        for (engine, form) in ways() {
            let (was, site) = run(&kernel, &launch([64, 1, 1], [2, 1, 1], BASE), engine, form);
            assert_eq!((site.line, site.threads), (line + 3, 0..1), "{used} {engine:?} {form:?}: {was:x?}");
        }
    }
}

#[test]
fn a_site_is_told_in_words() {
    let site = FaultSite { line: 12, ctaid: [3, 1, 0], threads: 168..169 };
    assert_eq!(
        site.told("k", [32, 8, 1], &[], &Sources::default()),
        "by thread (8,5,0) of block (3,1,0), at line 12 of PTX, in kernel k"
    );
    let some = FaultSite { threads: 32..64, ..site.clone() };
    assert_eq!(
        some.told("k", [16, 8, 1], &[], &Sources::default()),
        "by one of threads (0,2,0) to (15,3,0) of block (3,1,0), at line 12 of PTX, in kernel k"
    );
    let origin = |from, line, module: &str| Origin { from, line, module: module.to_owned() };
    let origins = [origin(3, 1, "a.ptx"), origin(10, 40, "b.ptx"), origin(13, 1, "c.ptx")];
    let linked = "by thread (8,5,0) of block (3,1,0), at line 42 of PTX of b.ptx, in kernel k";
    assert_eq!(site.told("k", [32, 8, 1], &origins, &Sources::default()), linked);
    let text = ".version 8.5\n.target sm_75\n.address_size 64\n.file 1 \"a.cu\"\n.entry k()\n{\n.reg .b32 %r;\n.reg .b64 %d;\n\
                .loc 1 5 3\nmov.u64 %d, 0;\n.loc 1 6 3\nld.global.u32 %r, [%d];\nst.global.u32 [%d], %r;\nret;\n}\n";
    let kernel = Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None)).unwrap();
    let source = "by thread (8,5,0) of block (3,1,0), at a.cu:6 (line 12 of PTX), in kernel k";
    assert_eq!(site.told("k", [32, 8, 1], &[], &kernel.sources), source);
    let all = FaultSite { line: 0, threads: 0..128, ..site };
    assert_eq!(all.told("k", [16, 8, 1], &[], &Sources::default()), "by block (3,1,0), in kernel k");
}
