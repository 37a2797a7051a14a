//! Text from strangers: mutated modules are refused or compiled, in bounded time, and nothing panics. Every kernel that is
//! compiled has passed the verifier.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use ptx::Program;

/// Seeds: everything the front end reads, in few lines.
const SEED: &str = include_str!("data/seed.ptx");
/// Functions that are inlined, out of line and recursive, and allocate on the stack.
const STACKS: &str = include_str!("interp/stack.ptx");

fn read(text: &[u8]) {
    if let Ok(program) = Program::parse(text) {
        let _ = program.resources(u64::MAX);
        for index in 0..program.entries().len() {
            if let Err(e) = program.lower(index, &|_| Some(0x10_0000_0000)) {
                assert!(!e.message.contains("internal compiler error"), "{e}");
            }
        }
    }
}

/// A mutation of bytes: a place, and what happens there.
#[derive(Clone, Debug)]
enum Edit {
    Delete(usize, usize),
    Insert(usize, String),
    Copy(usize, usize, usize),
    SwapWords(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = 0usize..20_000;
    let snippet = prop_oneof![
        Just(";"),
        Just("{"),
        Just("}"),
        Just(","),
        Just("@%p1 "),
        Just("@!"),
        Just("["),
        Just("]"),
        Just("("),
        Just("|"),
        Just("0xffffffffffffffff"),
        Just("0f3F800000"),
        Just("-1"),
        Just("99999999999"),
        Just(" _ "),
        Just("%r1"),
        Just("%rd1"),
        Just("%rs1"),
        Just("%p1"),
        Just("%f1"),
        Just(".v4"),
        Just(".b128"),
        Just(".pred"),
        Just(".cc"),
        Just("\n.reg .b128 %x<3>;"),
        Just("\"\\"),
        Just("/*"),
        Just("\u{e9}"),
        Just("\0"),
        Just("call "),
        Just(".align 65536 "),
        Just("[1099511627776]"),
        Just("tile[%r1]"),
        Just("dynamic[-9223372036854775808]"),
        Just("a:"),
        Just(".extern .shared .b8 z[];"),
        Just("+"),
        Just("%tid.x"),
        Just("::"),
    ]
    .prop_map(str::to_owned);
    prop_oneof![
        (place.clone(), 1usize..40).prop_map(|(at, n)| Edit::Delete(at, n)),
        (place.clone(), snippet).prop_map(|(at, text)| Edit::Insert(at, text)),
        (place.clone(), place.clone(), 1usize..200).prop_map(|(from, to, n)| Edit::Copy(from, to, n)),
        (place.clone(), place).prop_map(|(a, b)| Edit::SwapWords(a, b)),
    ]
}

fn word(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let inside = |b: &u8| b.is_ascii_alphanumeric() || b"_%$.".contains(b);
    let start = bytes[..at].iter().rposition(|b| !inside(b)).map_or(0, |p| p + 1);
    let end = bytes[at..].iter().position(|b| !inside(b)).map_or(bytes.len(), |p| at + p);
    start..end
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let len = bytes.len();
    if len == 0 {
        return;
    }
    match edit {
        Edit::Delete(at, n) => {
            let at = at % len;
            bytes.drain(at..(at + n).min(len));
        }
        Edit::Insert(at, text) => {
            let at = at % len;
            bytes.splice(at..at, text.bytes());
        }
        Edit::Copy(from, to, n) => {
            let (from, to) = (from % len, to % len);
            let piece = bytes[from..(from + n).min(len)].to_vec();
            bytes.splice(to..to, piece);
        }
        Edit::SwapWords(a, b) => {
            let (a, b) = (word(bytes, a % len), word(bytes, b % len));
            if a.end <= b.start {
                let (first, second) = (bytes[a.clone()].to_vec(), bytes[b.clone()].to_vec());
                bytes.splice(b, first);
                bytes.splice(a, second);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_text_is_handled(edits in prop::collection::vec(edit(), 1..6)) {
        for seed in [SEED, STACKS] {
            let mut bytes = seed.as_bytes().to_vec();
            for edit in &edits {
                apply(&mut bytes, edit);
            }
            read(&bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read(&bytes);
        let mut text = b".version 8.0 .target sm_75 .visible .entry k(.param .u64 a) { .reg .b32 %r<9>; ".to_vec();
        text.extend(&bytes);
        text.push(b'}');
        read(&text);
    }
}

#[test]
fn the_seed_compiles() {
    let program = Program::parse(SEED.as_bytes()).expect("the seed is PTX");
    assert!(!program.entries().is_empty());
    let resources = program.resources(u64::MAX).expect("however many");
    for (index, (entry, resources)) in program.entries().iter().zip(resources).enumerate() {
        let kernel = program.lower(index, &|_| Some(0x10_0000_0000));
        let kernel = kernel.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        let resources = resources.expect("a kernel that compiles has resources");
        assert_eq!(resources.shared_bytes, kernel.shared_bytes);
    }
}

/// Texts that would take exponential time or gigabytes if a limit were missing.
#[test]
fn attacks_are_refused_quickly() {
    let head = ".version 8.0\n.target sm_75\n.address_size 64\n";
    let kernel = |body: &str| format!("{head}.visible .entry k(.param .u64 a) {{ .reg .pred %p; {body} }}");
    let mut doubling = head.to_owned();
    doubling.push_str(".func f0() { .reg .b32 %r<2>; mov.u32 %r1, 1; ret; }\n");
    for i in 1..40 {
        doubling.push_str(&format!(".func f{i}() {{ call f{}; call f{}; ret; }}\n", i - 1, i - 1));
    }
    doubling.push_str(".visible .entry k() { call f39; ret; }");
    let attacks = [
        ("doubling calls", doubling),
        ("recursion", format!("{head}.func f() {{ call f; ret; }} .visible .entry k() {{ call f; ret; }}")),
        ("nested scopes", kernel(&"{".repeat(100_000))),
        ("huge shared array", kernel(".shared .b8 x[1000000000000];")),
        ("huge local array", kernel(".local .b8 x[1000000000];")),
        ("overflowing array", kernel(".local .b64 x[4294967296][4294967296];")),
        ("many registers", kernel(".reg .b32 %r<4294967295>; mov.u32 %r4294967294, 1;")),
        ("long vector", kernel(&format!(".reg .b32 %r<2>; mov.b64 %r1, {{{}%r1}};", "%r1,".repeat(100_000)))),
        ("many operands", kernel(&format!("mov.u32 {};", "1,".repeat(100_000)))),
        ("long opcode", kernel(&format!("add{} %p, %p, %p;", ".s32".repeat(100_000)))),
        ("long name", kernel(&format!("mov.u32 {}, 1;", "%".repeat(1_000_000)))),
        ("deep initialiser", format!("{head}.global .b8 x[4] = {}1;", "{".repeat(100_000))),
        ("wide initialiser", format!("{head}.global .b8 x[1000][1000000] = {{{}}};", "{1},".repeat(999))),
        ("many dimensions", format!("{head}.global .b8 x{};", "[2]".repeat(100_000))),
        ("jump chain", {
            let labels: String = (0..50_000).map(|i| format!("L{i}: bra L{};\n", (i + 1) % 50_000)).collect();
            kernel(&labels)
        }),
        ("descending chain", {
            let blocks: String =
                (0..100_000).rev().map(|i| format!("L{}: mov.pred %p, 1; bra L{i};\n", i + 1)).collect();
            // From the last block of the text to the first, each after the one it goes to.
            let reversed: String = blocks.lines().rev().collect::<Vec<_>>().join("\n");
            kernel(&format!("bra L100000; {reversed} L0: exit;"))
        }),
        ("branches by table", {
            let labels = "L,".repeat(4000);
            kernel(&format!(".reg .b32 %r; L: T: .branchtargets {labels} L; {}", "brx.idx %r, T;".repeat(100_000)))
        }),
        ("kernels of one large function", {
            let large = "mov.u32 %r1, 1;".repeat(100_000);
            let mut text = format!("{head}.func f() {{ .reg .b32 %r<2>; {large} .reg .b32 %x[; }}\n");
            for i in 0..2000 {
                text.push_str(&format!(".visible .entry k{i}() {{ call f; ret; }}\n"));
            }
            text
        }),
        ("large recursive function", {
            let (n, calls) = (20_000, 500);
            let sums: String = (1..n).map(|i| format!("add.u32 %r{}, %r{i}, {i}; ", i + 1)).collect();
            let call =
                "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r5; call (r), f, (a); ld.param.b32 %r6, [r]; }";
            let mut text =
                format!("{head}.func (.param .b32 o) f(.param .b32 x) {{ .reg .pred %p; .reg .b32 %r<{}>;", n + 2);
            text.push_str("ld.param.u32 %r1, [x]; setp.eq.u32 %p, %r1, 0; @%p bra END;");
            text.push_str(&sums);
            text.push_str(&call.repeat(calls));
            text.push_str("END: st.param.b32 [o], %r1; ret; }\n");
            text + ".visible .entry k() { .param .b32 a; .param .b32 r; call (r), f, (a); ret; }"
        }),
        ("many functions through pointers", {
            let functions: String = (0..2000)
                .map(|i| format!(".func f{i}() {{ .reg .b64 %rd; P: .callprototype _ (); call %rd, P; ret; }}\n"))
                .collect();
            let names: Vec<String> = (0..2000).map(|i| format!("f{i}")).collect();
            let table = format!(".global .u64 t[2000] = {{{}}};\n", names.join(","));
            head.to_owned()
                + &functions
                + &table
                + ".visible .entry k() { .reg .b64 %rd; P: .callprototype _ (); call %rd, P; ret; }"
        }),
        ("copies of large parameters", {
            let padding = "mov.u32 %r1, 1;".repeat(300);
            let calls = "{ .param .b8 a[40000]; .reg .b64 %rd; mov.u64 %rd, a; call f, (a); }".repeat(5000);
            let f = format!(".func f(.param .b8 x[40000]) {{ .reg .b32 %r<2>; {padding} ret; }}\n");
            format!("{head}{f}.visible .entry k() {{ {calls} ret; }}")
        }),
        ("products and sums", {
            kernel(&format!(".reg .f32 %f<9>; {}", "mul.f32 %f1, %f2, %f3; sub.f32 %f4, %f5, %f1;".repeat(50_000)))
        }),
        ("nested constants", kernel(&format!(".reg .b32 %r; mov.u32 %r, {};", "(".repeat(100_000)))),
        ("long constants", kernel(&format!(".reg .b32 %r; mov.u32 %r, 1{};", "+1*2-3".repeat(100_000)))),
        ("unclosed comment", kernel("/*")),
        ("unclosed string", kernel("\"")),
        ("branch table", {
            let labels = "L,".repeat(100_000);
            kernel(&format!(".reg .b32 %r; L: T: .branchtargets {labels} L; brx.idx %r, T;"))
        }),
    ];
    for (name, text) in &attacks {
        let start = Instant::now();
        read(text.as_bytes());
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{name} took {took:?}");
        println!("{name}: {took:?}");
    }
}

/// What is kept of a few bytes of text is long, so that there must not be too many of them.
#[test]
fn what_is_kept_of_a_module_is_bounded() {
    let head = ".version 8.0\n.target sm_75\n.address_size 64\n";
    let many = |text: &str, count: usize| text.repeat(count);
    let texts = |count: usize| {
        [
            format!("{head}.global .u32 x; .global .u64 y[] = {{{}x}};", many("x,", count)),
            format!("{head}.func f({}.reg .b8 x);", many(".reg .b8 x,", count)),
            format!("{head}.func f();{}", many(".alias a,f;", count)),
            format!("{head}{}", (0..count).map(|i| format!(".global .u8 v{i};")).collect::<String>()),
            format!("{head}.global .u8 {}w;", (0..count).map(|i| format!("v{i},")).collect::<String>()),
            format!("{head}{}", (0..count).map(|i| format!(".func f{i}();")).collect::<String>()),
        ]
    };
    for (few, too_many) in texts(100_000).iter().zip(texts(600_000)) {
        assert!(Program::parse(few.as_bytes()).is_ok(), "{}", &few[..200]);
        let refused = Program::parse(too_many.as_bytes()).expect_err("it is too much").to_string();
        assert!(refused.contains("more than 524288"), "{refused}");
    }
}
