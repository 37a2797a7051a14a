//! What a module declares, as the driver sees it.

use ptx::{JitOptions, Linkage, Program, PtxErrorKind, Relocation, VarSpace};

const HEAD: &str = ".version 8.5\n.target sm_75\n.address_size 64\n";

fn parse(text: &str) -> Program {
    Program::parse(format!("{HEAD}{text}").as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refuse(text: &str, wanted: &str) {
    let error = Program::parse(format!("{HEAD}{text}").as_bytes()).expect_err(text);
    assert!(error.to_string().contains(wanted), "{text}: {error}");
}

#[test]
fn header_and_tail() {
    let program =
        Program::parse(b".version 9.0 .target sm_120a, debug .address_size 64 \0\0 garbage").expect("a header");
    assert_eq!((program.version(), program.target()), (90, 120));
    assert!(Program::parse(b"").is_err());
    let error = Program::parse(b".version 1.4 .target sm_13 .address_size 32").expect_err("32-bit");
    assert_eq!(error.kind, PtxErrorKind::Unsupported);
    let text = [b".version 8.0 .target sm_80 // caf\xe9 \xff\n".as_slice(), b".visible .entry k() { ret; }"].concat();
    assert_eq!(Program::parse(&text).expect("bytes in a comment").entries()[0].line, 2);
}

#[test]
fn parameters_are_laid_out() {
    let program = parse(
        ".visible .entry k(.param .u8 a, .param .u64 .ptr .global .align 16 b, .param .align 16 .b8 c[20], .param .v4 .f32 d)
         .reqntid 32, 4 .minnctapersm 3 .maxnreg 64 { ret; }",
    );
    let entry = &program.entries()[0];
    let layout: Vec<_> = entry.params.iter().map(|p| (p.offset, p.size, p.align)).collect();
    assert_eq!(layout, [(0, 1, 1), (8, 8, 8), (16, 20, 16), (48, 16, 16)]);
    assert_eq!(entry.param_bytes, 64);
    assert_eq!((entry.max_ntid, entry.exact_ntid), (Some([32, 4, 1]), true));
    assert_eq!((entry.min_ctas_per_sm, entry.max_registers), (Some(3), Some(64)));
    assert_eq!(entry.linkage, Linkage::Visible);
    assert_eq!((program.find_entry("k"), program.find_entry("b")), (Some(0), None));
}

#[test]
fn variables_have_images() {
    let program = parse(
        ".extern .global .u32 defined; .visible .global .u32 defined = 7;
         .const .align 16 .f64 two[2] = {1.0, 0d4000000000000000};
         .global .b8 grid[2][3] = {{1, 2}, {4, 5, 6}};
         .global .u16 open[] = {1, 2, 3};
         .global .v2 .f32 pair = {1.0, 0f40000000};
         .global .s32 negative = -2;
         .global .b8 huge[1099511627776];
         .extern .shared .align 16 .b8 dynamic[]; .shared .f32 tile[16];
         .global .attribute(.managed) .u64 managed;",
    );
    let find = |name: &str| program.variables().iter().find(|v| v.name == name).expect("declared");
    assert_eq!((find("defined").linkage, find("defined").init.as_slice()), (Linkage::Visible, [7, 0, 0, 0].as_slice()));
    let two = find("two");
    assert_eq!((two.space, two.size, two.align), (VarSpace::Const, 16, 16));
    assert_eq!(two.init, [1.0f64.to_le_bytes(), 2.0f64.to_le_bytes()].concat());
    assert_eq!(find("grid").init, [1, 2, 0, 4, 5, 6]);
    assert_eq!((find("open").size, find("open").init.len()), (6, 6));
    assert_eq!(find("pair").init, [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()].concat());
    assert_eq!(find("negative").init, (-2i32).to_le_bytes());
    assert_eq!((find("huge").size, find("huge").init.len()), (1 << 40, 0));
    assert_eq!((find("dynamic").space, find("dynamic").linkage), (VarSpace::Shared, Linkage::Extern));
    assert!(find("managed").managed);
    assert_eq!(program.const_bytes(), 16);
}

#[test]
fn initial_values_name_symbols() {
    let program = parse(
        ".func f() { ret; } .global .b8 text[4];
         .global .u64 p[3] = {generic(text)+2, 5, f};
         .global .u8 bytes[2] = {0xff(text), 0xff00(generic(text))};",
    );
    let relocation =
        |offset, bytes, symbol: &str, addend, mask| Relocation { offset, bytes, symbol: symbol.into(), addend, mask };
    assert_eq!(
        program.variables()[1].relocations,
        [relocation(0, 8, "text", 2, u64::MAX), relocation(16, 8, "f", 0, u64::MAX)]
    );
    assert_eq!(program.variables()[1].init[8], 5);
    assert_eq!(
        program.variables()[2].relocations,
        [relocation(0, 1, "text", 0, 0xff), relocation(1, 1, "text", 0, 0xff00)]
    );
    assert_eq!((program.function_handle("f"), program.function_handle("text")), (Some(16), None));
}

/// As ptxas 13.5 has it, which says that it ignores the qualifier; two such arrays in shared memory lie apart.
#[test]
fn extern_variables_of_known_length_are_defined_where_nobody_else_can() {
    let program = parse(
        ".extern .shared .align 8 .b8 one[260]; .extern .shared .align 8 .b8 two[100]; .extern .shared .b8 dynamic[];
         .extern .global .u32 g[5]; .extern .const .u32 c; .extern .global .u32 unknown[];
         .visible .entry both() { .reg .b32 %r<4>; mov.u32 %r1, two; mov.u32 %r2, one; mov.u32 %r3, dynamic; ret; }
         .visible .entry second() { .reg .b32 %r<4>; mov.u32 %r1, two; ret; }
         .extern .shared .b8 again[64]; .extern .shared .b8 again[]; .extern .shared .b8 late[]; .extern .shared .b8 late[32];
         .visible .entry twice() { .reg .b32 %r<4>; mov.u32 %r1, again; mov.u32 %r2, late; ret; }
         .visible .entry inside() { .extern .shared .b8 own[30]; .reg .b32 %r<4>; mov.u32 %r1, own; ret; }",
    );
    let defined: Vec<&str> = program.variables().iter().filter(|v| v.is_defined()).map(|v| v.name.as_str()).collect();
    assert_eq!(defined, ["one", "two", "g", "c", "again", "late"]);
    assert_eq!(program.const_bytes(), 4);
    let shared = [0, 1, 2, 3].map(|entry| program.lower(entry, &|_| None).expect("compiles").shared_bytes);
    assert_eq!(shared, [364, 100, 96, 30]);
    let kernel = program.lower(0, &|_| None).expect("compiles").to_string();
    for offset in [0, 104, 368] {
        assert!(kernel.contains(&format!("src: {offset:#x}")), "{offset}: {kernel}");
    }
}

#[test]
fn resources_are_known_before_compilation() {
    let program = parse(
        ".shared .align 8 .b8 used[24]; .shared .b8 unused[1000]; .extern .shared .align 32 .b8 dynamic[];
         .func f() { .shared .b8 inner[3]; .local .b8 scratch[8]; .reg .b32 %r<9>; mov.u32 %r1, inner; ret; }
         .visible .entry k() { .reg .b32 %r<600>; .reg .b64 %rd<9>; mov.u32 %r1, used; mov.u32 %r2, dynamic; call f; ret; }
         .visible .entry empty() { ret; }
         .visible .entry big() { .shared .b8 x[200000]; ret; }",
    );
    let all = program.resources(u64::MAX).expect("however many");
    let [Ok(resources), Ok(empty), Err(_)] = &all[..] else { panic!("{all:?}") };
    assert_eq!((resources.shared_bytes, resources.shared_align), (27, 32));
    let kernel = program.lower(0, &|_| None).expect("compiles");
    assert_eq!((kernel.shared_bytes, kernel.shared_align), (27, 32));
    assert!(kernel.to_string().contains("src: 0x20"), "dynamic memory begins at 32: {kernel}");
    assert!(resources.registers > empty.registers);
    assert!(program.lower(2, &|_| None).is_err());
    assert!(program.lower(3, &|_| None).is_err());
}

/// Behind braces of operands, labels, guards, lines of debug information and scopes; and what is named like an opcode is not.
#[test]
fn shared_variables_are_found_wherever_they_are_named() {
    let names = [
        "ld.shared.v2.u32 {%r1, %r2}, [used];",
        "st.shared.v2.u32 [used], {%r1, %r2};",
        "L1: mov.u32 %r1, used;",
        "@%p1 mov.u32 %r1, used;",
        "{ .reg .b32 %q; mov.u32 %q, used; }",
        ".loc 1 1 1\nmov.u32 %r1, used;",
        "{ } mov.u32 %r1, used;",
        "call f; mov.u32 %r1, 0;",
        "@%p1 call f; mov.u32 %r1, 0;",
        "@p call f; mov.u32 %r1, 0;",
        "L1: call f; mov.u32 %r1, 0;",
        "@p mov.u32 %r1, used;",
        "call %f2;",
        "mov.u32 %r1, call;",
        "mov.u32 %r1, %v;",
    ];
    for name in names {
        let program = parse(&format!(
            ".shared .b8 used[24]; .shared .b8 ret[1000]; .func f() {{ .reg .b32 %r; mov.u32 %r, used; ret; }}
             .shared .b8 call[24]; .shared .b8 %v[24]; .func %f2() {{ call f; ret; }}
             .visible .entry k() {{ .reg .b32 %r<4>; .reg .pred %p<2>, p; {name} add.u32 %r1, %r1, %r2; ret; }}"
        ));
        let all = program.resources(u64::MAX).expect("however many");
        assert_eq!(all[0].as_ref().expect("declared").shared_bytes, 24, "{name}");
        let kernel = program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(kernel.shared_bytes, 24, "{name}");
    }
}

#[test]
fn registers_leave_a_block_resident() {
    let kernel = |directives: &str| format!(".visible .entry k() {directives} {{ .reg .b32 %r<6000>; ret; }}");
    let registers = |text: &str| {
        let all = parse(text).resources(u64::MAX).expect("however many");
        all[0].as_ref().expect("declared").registers
    };
    for (directives, want) in [
        ("", 64),
        (".maxntid 512", 128),
        (".maxntid 8, 8, 8", 128),
        (".reqntid 640", 96),
        (".maxntid 96", 255),
        (".maxntid 256 .minnctapersm 4", 64),
        (".maxntid 128 .maxnreg 40", 40),
        (".maxntid 4294967295, 4294967295", 64),
        (".maxntid 1024 .minnctapersm 4294967295", 16),
    ] {
        assert_eq!(registers(&kernel(directives)), want, "{directives}");
    }
    let options = JitOptions { max_registers: Some(32), ..JitOptions::default() };
    assert_eq!(registers(&(kernel("") + &options.pragma().expect("not the default"))), 32);
}

#[test]
fn options_travel_in_the_text() {
    let text = ".visible .entry k() { .reg .f32 %f<9>; mul.f32 %f1, %f2, %f3; add.f32 %f4, %f1, %f5; ret; }";
    let fused = |text: &str| parse(text).lower(0, &|_| None).expect("compiles").to_string().contains("Fma");
    assert!(fused(text));
    assert_eq!(JitOptions::default().pragma(), None);
    let options = JitOptions { fma: false, ..JitOptions::default() };
    assert!(!fused(&(text.to_owned() + &options.pragma().expect("not the default"))));
    assert!(fused(&(text.to_owned() + "\n.pragma \"nounroll\", \"other fma=0\";")));
}

#[test]
fn what_is_wrong_is_named() {
    refuse(".global .u32 x; .global .u32 x;", "duplicate definition of 'x'");
    refuse(".visible .entry k() { ret; } .func k() { ret; }", "duplicate definition of 'k'");
    refuse(".visible .entry k() { ret; ", "'{' is never closed");
    refuse(".global .u32 x[2] = {1, 2, 3};", "too many initial values");
    refuse(".global .b32 x = {{1}};", "nested too deeply");
    refuse(".global .align 3 .b8 x;", "not a power of two");
    refuse(".global .b8 x[4294967296][4294967296];", "too large");
    refuse(".visible .entry k(.param .align 8 .b8 p[40000]) { ret; }", "exceed");
    refuse(".frob", "unknown directive '.frob'");
    refuse(".reg .b32 %r;", "no variable of this kind");
    refuse("frob", "'frob' where a directive was expected");
}

#[test]
fn errors_read_like_the_vendors() {
    let program = parse(".visible .entry k()\n{\n  .reg .b32 %r<3>;\n  add.s32 %r1, %r2, %r7;\n  ret;\n}\n");
    let error = program.lower(0, &|_| None).expect_err("%r7");
    assert_eq!(error.to_string(), "ptx input, line 7; error: unknown symbol '%r7' (in 'add.s32 %r1, %r2, %r7')");
}
