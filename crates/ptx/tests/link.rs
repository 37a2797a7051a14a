//! Linking: several texts become one that does what they do together, or an error says what is wrong.

use proptest::prelude::*;
use ptx::ir::Op;
use ptx::link::{Difference, LinkError, Module, link};
use ptx::{Linkage, Origin, Program};
use testgen::{interpret, ptx_case};

const HEAD: &str = ".version 8.5\n.target sm_75\n.address_size 64\n";
const KERNEL: &str = ".visible .entry k(.param .u64 p) { .reg .b64 %rd<4>; .reg .b32 %r<4>; ld.param.u64 %rd1, [p];";
const UNITS: &str = include_str!("link/units.ptx");

fn program(text: &str) -> Program {
    Program::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Links modules that are called a, b, c, …
fn linked(texts: &[&str]) -> Result<String, LinkError> {
    let programs: Vec<Program> = texts.iter().map(|text| program(&format!("{HEAD}{text}"))).collect();
    let names: Vec<String> = ('a'..='z').map(String::from).collect();
    let modules: Vec<Module<'_>> =
        programs.iter().zip(&names).map(|(program, name)| Module { name, program }).collect();
    link(&modules)
}

fn refused(texts: &[&str], wanted: &str) {
    let error = linked(texts).expect_err(wanted).to_string();
    assert_eq!(error, wanted, "{texts:?}");
}

fn fine(texts: &[&str]) -> Program {
    let text = linked(texts).unwrap_or_else(|e| panic!("{texts:?}: {e}"));
    program(&text)
}

fn kernel(rest: &str) -> String {
    format!("{KERNEL} {rest} ret; }}")
}

/// Modules of a file, by name, and its tail that says how to run them.
fn units() -> (Vec<(&'static str, &'static str)>, &'static str) {
    let (modules, runs) = UNITS.split_once("// run:").expect("a run");
    let modules = modules.split("//# ").skip(1).map(|module| module.split_once('\n').expect("a name and a text"));
    (modules.collect(), runs)
}

#[test]
fn linked_modules_run() {
    let (modules, runs) = units();
    let programs: Vec<Program> = modules.iter().map(|(_, text)| program(text)).collect();
    let forward: Vec<Module<'_>> =
        modules.iter().zip(&programs).map(|((name, _), program)| Module { name, program }).collect();
    // Which weak definition comes first is all that the order is to these: `main` before `other`.
    for order in [[0, 1, 2, 3], [3, 2, 0, 1], [2, 0, 3, 1], [0, 1, 3, 2]] {
        let modules = order.map(|at| forward[at]);
        let text = link(&modules).unwrap_or_else(|e| panic!("{e}"));
        let linked = program(&text);
        assert_eq!((linked.version(), linked.target()), (90, 80));
        let cases = ptx_case::parse(&format!("{text}\n// run:{runs}")).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(cases.len(), 3);
        for case in cases {
            case.check(&mut interpret).unwrap_or_else(|e| panic!("{order:?}: {e}\n{text}"));
        }
    }
}

#[test]
fn what_was_linked_can_be_linked_again() {
    let (modules, runs) = units();
    let programs: Vec<Program> = modules.iter().map(|(_, text)| program(text)).collect();
    let pair = |from: usize| {
        let module = |at: usize| Module { name: modules[at].0, program: &programs[at] };
        link(&[module(from), module(from + 2)])
    };
    // Each half alone wants what the other has.
    assert!(matches!(pair(0), Err(LinkError::Undefined { .. })));
    let alias = link(&[2, 3].map(|at| Module { name: modules[at].0, program: &programs[at] }));
    assert!(matches!(alias, Err(LinkError::Undefined { symbols, .. }) if symbols[0].0 == "counter"));
    // One that wants nothing, linked with the rest.
    let all: Vec<Module<'_>> =
        modules.iter().zip(&programs).map(|((name, _), program)| Module { name, program }).collect();
    let once = program(&link(&all).unwrap_or_else(|e| panic!("{e}")));
    let more = program(&format!(
        "{HEAD}.global .u32 private = 5; .func local() {{ ret; }} .visible .entry e() {{ call local; ret; }}"
    ));
    let twice = link(&[Module { name: "more", program: &more }, Module { name: "once", program: &once }]);
    let text = twice.unwrap_or_else(|e| panic!("{e}"));
    for case in ptx_case::parse(&format!("{text}\n// run:{runs}")).unwrap_or_else(|e| panic!("{e}")) {
        case.check(&mut interpret).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
    // Lines still lead to the first texts.
    let bad = program(&format!("{HEAD}\n.visible .entry e2()\n{{\n nonsense.u32 1;\n}}"));
    let first =
        program(&link(&[Module { name: "bad.ptx", program: &bad }, all[2], all[1], all[0]]).expect("they link"));
    let again =
        program(&link(&[Module { name: "x", program: &more }, Module { name: "y", program: &first }]).expect("so"));
    for program in [&first, &again] {
        let entry = program.find_entry("e2").expect("it is there");
        let error = program.lower(entry, &|_| None).expect_err("nonsense");
        assert_eq!(error.line, 7, "{error}");
        assert!(error.to_string().contains("bad.ptx"), "{error}");
    }
}

/// A kernel of one module calls a function of another: its instructions have lines of both.
#[test]
fn instructions_know_their_module_and_line() {
    let caller = ".extern .func f();\n.visible .entry k()\n{\n.reg .b64 %rd1;\nmov.u64 %rd1, 8;\ncall f;\nst.global.u32 [%rd1], 1;\nret;\n}\n";
    let callee = "\n\n.visible .func f()\n{\n.reg .b64 %rd1;\nmov.u64 %rd1, 16;\nst.global.u64 [%rd1], 2;\nret;\n}\n";
    for (texts, names) in [([caller, callee], ["a", "b"]), ([callee, caller], ["b", "a"])] {
        let program = fine(&texts);
        let kernel = program.lower(program.find_entry("k").expect("it is there"), &|_| None).expect("it is right");
        let stores = kernel.blocks.iter().flat_map(|block| &block.insts);
        let stores = stores.filter_map(|inst| match &inst.op {
            Op::St { ty, .. } => Some((ty.bytes(), Origin::of(&kernel.origins, inst.line)?)),
            _ => None,
        });
        let mut stores: Vec<_> = stores.collect();
        stores.sort_unstable();
        let line = HEAD.lines().count() as u32 + 7;
        assert_eq!(stores, [(4, (names[0], line)), (8, (names[1], line))]);
    }
    let alone = program(&format!("{HEAD}.visible .entry k() {{ ret; }}"));
    let kernel = alone.lower(0, &|_| None).expect("it is right");
    assert!(kernel.origins.is_empty());
}

#[test]
fn undefined_symbols_are_named_with_who_wants_them() {
    let call = kernel("call f;");
    refused(&[&format!(".extern .func f(); {call}"), ".global .u32 x;"], "undefined symbol 'f', wanted by a");
    // A function of another module's own is not shown to others.
    refused(&[".func f() { ret; }", &format!(".extern .func f(); {call}")], "undefined symbol 'f', wanted by b");
    refused(&[".global .u32 y;", ".extern .global .u32 x;"], "undefined symbol 'x', wanted by b");
    // Dynamic shared memory has no length.
    refused(&[".global .u32 y;", ".extern .shared .b8 x[4];"], "undefined symbol 'x', wanted by b");
    fine(&[".extern .shared .b8 x[];", ".extern .shared .b8 x[];"]);
    refused(
        &[".extern .func f(); .global .u64 t[1] = {f};", ".extern .global .u32 x;"],
        "undefined symbol 'x', wanted by b\nundefined symbol 'f', wanted by a",
    );
    refused(&[&format!(".extern .func f(); {call}")], "undefined symbol 'f', wanted by a");
    // Declared is not wanted, and the driver has some.
    fine(&[".extern .func f();", ".global .u32 y;"]);
    let builtin = ".extern .func (.param .b64 r) malloc(.param .b64 n); .extern .func free(.param .b64 p);";
    fine(&[&format!("{builtin} {}", kernel("mov.u64 %rd2, free;")), builtin]);
    fine(&[&format!(".extern .func __cudaCDP2DeviceSynchronize(); {}", kernel("call __cudaCDP2DeviceSynchronize;"))]);
    // Who wants it is not part of the result.
    fine(&[".visible .func f() { ret; }", ".extern .func g(); .weak .func f() { call g; ret; }"]);
    let many: String = (0..100).map(|i| format!(".extern .global .u32 v{i};")).collect();
    let error = linked(&[&many, ".global .u32 y;"]).expect_err("undefined").to_string();
    assert_eq!(error.lines().count(), 33);
    assert!(error.ends_with("and 68 more undefined symbols"), "{error}");
}

#[test]
fn two_definitions_are_one_too_many() {
    refused(&[".visible .global .u32 y;", ".visible .global .u32 y;"], "'y' is defined in a and in b");
    refused(&[&kernel(""), ".global .u32 y;", &kernel("")], "'k' is defined in a and in c");
    let f = ".visible .func f() { ret; }";
    refused(&[f, f], "'f' is defined in a and in b");
    refused(&[".func g() { ret; } .visible .func f(); .alias f, g;", f], "'f' is defined in a and in b");
}

#[test]
fn declarations_agree() {
    let mismatch = |texts: &[&str], wanted| match linked(texts) {
        Err(LinkError::Mismatch { what, modules, .. }) => {
            assert_eq!((what, modules), (wanted, ["a".to_owned(), "b".to_owned()]), "{texts:?}");
        }
        other => panic!("{texts:?}: {other:?}"),
    };
    mismatch(&[".extern .global .u32 x;", ".visible .global .u32 x[2];"], Difference::Size);
    mismatch(&[".weak .global .u32 x = 7;", ".weak .global .u32 x[4];"], Difference::Size);
    mismatch(&[".weak .global .u32 x = 7;", ".visible .global .u32 x[4];"], Difference::Size);
    mismatch(&[".extern .global .u32 x;", ".visible .const .u32 x;"], Difference::Space);
    mismatch(&[".extern .func f();", ".visible .global .u32 f;"], Difference::Kind);
    mismatch(&[".visible .global .u32 f;", ".extern .func f();"], Difference::Kind);
    mismatch(&[".extern .func k(.param .b64 p);", &kernel("")], Difference::Kind);
    mismatch(&[".extern .func f(.param .b32 a);", ".visible .func f(.param .b64 a) { ret; }"], Difference::Signature);
    mismatch(
        &[".extern .func f(.param .b32 a);", ".visible .func f(.param .b32 a, .param .b32 b) { ret; }"],
        Difference::Signature,
    );
    mismatch(&[".extern .func (.param .b32 r) f();", ".visible .func f() { ret; }"], Difference::Signature);
    mismatch(
        &[".weak .func f(.param .b32 a) { ret; }", ".weak .func f(.param .b64 a) { ret; }"],
        Difference::Signature,
    );
    mismatch(
        &[".weak .entry f(.param .b32 a) { ret; }", ".weak .entry f(.param .b64 a) { ret; }"],
        Difference::Signature,
    );
    mismatch(&[".common .global .u32 x[4];", ".visible .global .u32 x = 7;"], Difference::Common);
    mismatch(&[".common .global .u32 x[4];", ".weak .global .u32 x = 7;"], Difference::Common);
    // What the toolkit's linker takes.
    fine(&[".extern .global .u32 x[];", ".visible .global .u32 x[7];"]);
    // Declared with other elements, an index would mean another place.
    let index = |decl: &str| format!("{decl} {}", kernel("mov.u64 %rd2, x[2];"));
    let plain = |decl: &str| format!("{decl} {}", kernel("mov.u64 %rd2, x;"));
    let (words, bytes) = (".extern .global .align 4 .u32 x[4];", ".visible .global .align 4 .b8 x[16];");
    fine(&[&plain(words), bytes]);
    fine(&[words, &index(bytes)]);
    mismatch(&[&index(words), bytes], Difference::Element);
    mismatch(&[bytes, &index(words)], Difference::Element);
    let (words, bytes) = (".extern .shared .align 4 .u32 x[];", ".extern .shared .align 4 .b8 x[];");
    mismatch(&[words, &index(bytes)], Difference::Element);
    fine(&[&index(words), bytes]);
    fine(&[".extern .global .align 8 .u32 x;", ".visible .global .u32 x;"]);
    fine(&[".extern .func f;", ".visible .func f() { ret; }"]);
    fine(&[".entry k() { ret; }", ".entry k() { ret; }"]);
}

fn variable(program: &Program, name: &str) -> (u64, u32, Vec<u8>, Linkage) {
    let v = program.variables().iter().find(|v| v.name == name).unwrap_or_else(|| panic!("no {name}"));
    (v.size, v.align, v.init.clone(), v.linkage)
}

#[test]
fn the_strongest_definition_counts() {
    let weak = |n: u32| format!(".weak .global .u32 x = {n};");
    assert_eq!(variable(&fine(&[&weak(1), &weak(2)]), "x"), (4, 4, vec![1, 0, 0, 0], Linkage::Weak));
    let strong = ".visible .global .align 16 .u32 x = 9;";
    for order in [[weak(1), strong.to_owned()], [strong.to_owned(), weak(1)]] {
        assert_eq!(variable(&fine(&[&order[0], &order[1]]), "x"), (4, 16, vec![9, 0, 0, 0], Linkage::Visible));
    }
    let common = |n: u32| format!(".common .global .align {n} .b8 x[{n}];");
    for order in [[4, 16, 8], [16, 4, 8], [8, 4, 16]] {
        let texts = order.map(common);
        assert_eq!(variable(&fine(&[&texts[0], &texts[1], &texts[2]]), "x"), (16, 16, vec![], Linkage::Common));
    }
    for order in [[common(4), weak(3)], [weak(3), common(4)]] {
        assert_eq!(variable(&fine(&[&order[0], &order[1]]), "x"), (4, 4, vec![3, 0, 0, 0], Linkage::Weak));
    }
    // The alignment is the strictest, also where the definition asks for less.
    assert_eq!(variable(&fine(&[".extern .global .align 64 .u32 x;", ".visible .global .u32 x;"]), "x").1, 64);
}

#[test]
fn own_names_change_only_where_two_have_them() {
    let one = ".global .align 4 .u32 a = 1; .global .u32 b = 2;";
    let program = fine(&[
        one,
        ".global .u32 b = 3, c = 4; .visible .entry k() { ret; }",
        ".extern .global .u32 d; .global .u32 a = 5;",
        ".visible .global .u32 d = 6;",
    ]);
    let mut names: Vec<(&str, u8)> = program.variables().iter().map(|v| (v.name.as_str(), v.init[0])).collect();
    names.sort_unstable();
    assert_eq!(names, [("a", 1), ("a$linked0_2", 5), ("b", 2), ("b$linked0_1", 3), ("c", 4), ("d", 6)]);
    // One that others show keeps its name, whoever is first.
    let program = fine(&[".global .u32 d = 7;", ".visible .global .u32 d = 6;"]);
    assert_eq!(variable(&program, "d").2, [6, 0, 0, 0]);
    assert_eq!(variable(&program, "d$linked0_0").2, [7, 0, 0, 0]);
    // A new name is nowhere in the texts.
    let program = fine(&[".global .u32 d;", ".global .u32 d; .global .u32 d$linked0_1, e$linked6;"]);
    assert!(program.variables().iter().any(|v| v.name == "d$linked7_1"), "{:?}", program.variables());
}

#[test]
fn a_pointer_finds_the_symbol_of_its_module() {
    let program = fine(&[
        ".global .u32 own = 1; .visible .global .u64 pa[2] = {own, generic(own)+4};",
        ".global .u32 own = 2; .visible .global .u64 pb[2] = {own, generic(own)+4}; .visible .global .b8 q[1] = {0xff(own)};",
    ]);
    let symbols = |name: &str| {
        let v = program.variables().iter().find(|v| v.name == name).expect("it is there");
        v.relocations.iter().map(|r| (r.symbol.as_str(), r.addend)).collect::<Vec<_>>()
    };
    assert_eq!(symbols("pa"), [("own", 0), ("own", 4)]);
    assert_eq!(symbols("pb"), [("own$linked0_1", 0), ("own$linked0_1", 4)]);
    assert_eq!(symbols("q"), [("own$linked0_1", 0)]);
}

#[test]
fn attributes_and_options_stay() {
    let pragma = ptx::JitOptions { fma: false, max_registers: Some(40) }.pragma().expect("not the default");
    let managed = ".visible .global .attribute(.managed) .align 8 .v2 .f64 pairs[2] = {{1.0, 2.0}, {3.0, 4.0}}, more;";
    let performance = ".visible .entry k() .maxntid 64, 2 .minnctapersm 2 .pragma \"nounroll\"; { ret; }";
    let text = linked(&[managed, &format!("{performance} {pragma}"), &pragma]).expect("it links");
    assert_eq!(text.matches("maxrregcount=40").count(), 1, "{text}");
    let program = program(&text);
    assert!(program.variables().iter().all(|v| v.managed && v.align == 8), "{:?}", program.variables());
    assert_eq!(variable(&program, "pairs").0, 32);
    assert_eq!(program.entries()[0].max_ntid, Some([64, 2, 1]));
}

#[test]
fn one_text_stays_as_it_is() {
    let text = format!("{HEAD}// as written\n.visible .entry k() {{ ret; }}\n");
    let program = program(&text);
    assert_eq!(link(&[Module { name: "a", program: &program }]), Ok(text));
    assert_eq!(link(&[]), Err(LinkError::Nothing));
    refused(&[".visible .entry k() { é }", ""], "a: ptx input, line 4; error: syntax error: a character outside ASCII");
}

#[test]
fn names_of_modules_are_harmless() {
    let body = program(&format!("{HEAD}.visible .entry k() {{ nonsense; }}"));
    let empty = program(HEAD);
    for name in ["a\"; .global .u32 x;\n", "\\", &"é".repeat(5000), ""] {
        let text = link(&[Module { name, program: &body }, Module { name: "b", program: &empty }]).expect("it links");
        let linked = program(&text);
        assert!(linked.variables().is_empty());
        let error = linked.lower(0, &|_| None).expect_err("nonsense");
        assert_eq!(error.line, 4, "{name}: {error}");
    }
}

/// Swaps, cuts and repeats places of texts.
fn mutated(edits: &[(usize, usize, usize)]) -> Vec<String> {
    let mut texts: Vec<Vec<u8>> = units().0.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    for &(from, to, length) in edits {
        let [source, sink] = [from % 4, to % 4];
        let at = from / 4 % texts[source].len().max(1);
        let piece: Vec<u8> = texts[source].iter().skip(at).take(length).copied().collect();
        let text = &mut texts[sink];
        let at = to / 4 % (text.len() + 1);
        let end = (at + length / 2).min(text.len());
        text.splice(at..end, piece);
    }
    texts.into_iter().map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
}

proptest! {
    /// Whatever modules say, they link or there is an error; what is linked can be loaded as far as its parts could.
    #[test]
    fn mutated_modules_link_or_not(edits in prop::collection::vec((0usize..8000, 0usize..8000, 1usize..60), 0..6)) {
        let texts = mutated(&edits);
        let programs: Vec<Program> = texts.iter().filter_map(|text| Program::parse(text.as_bytes()).ok()).collect();
        let modules: Vec<Module<'_>> = programs.iter().map(|program| Module { name: "m", program }).collect();
        if let Ok(text) = link(&modules) {
            let linked = Program::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let kernels: usize = programs.iter().map(|program| program.entries().len()).sum();
            prop_assert!(linked.entries().len() <= kernels);
            for index in 0..linked.entries().len() {
                let _ = linked.lower(index, &|_| Some(0x10_0000_0000));
            }
        }
    }
}
