//! Matrix instructions on machine code and on the interpreter: the same results, bit by bit, whatever the bits are.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use ptx::launch::{AccessError, Control, Exception, Launch};
use ptx::matrix::Element;
use support::run;
use testgen::matrix::{Role, STRIDE, forms};

const BASE: u64 = 0x20_0000_0000;
const OUT: u64 = BASE + (32 << 10);
/// Inputs that a product is tried with, a CTA each.
const TRIES: usize = 12;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Bits of an element: any, near one, or a number that is special.
    fn element(&mut self, of: Element) -> u64 {
        let (word, choice) = (self.next(), self.next() >> 40);
        let (exponent, fraction): (u32, u32) = match of {
            Element::F16 => (5, 10),
            Element::BF16 => (8, 7),
            Element::F32 | Element::TF32 => (8, 23),
            Element::F64 => (11, 52),
            Element::E4M3 => (4, 3),
            Element::E5M2 => (5, 2),
            _ if choice % 4 == 0 => {
                return [0, 1, u64::MAX, 1 << (of.bits() - 1), (1 << (of.bits() - 1)) - 1][choice as usize / 4 % 5];
            }
            _ => return word,
        };
        let ones = |bits: u32| (1_u64 << bits) - 1;
        match choice % 64 {
            // An infinity or NaN in few places: they spread.
            0 if choice / 64 % 32 == 0 => {
                ones(exponent) << fraction | [0, 1, ones(fraction)][choice as usize / 2048 % 3]
            }
            1 => word & ones(fraction),
            2 => 0,
            3 => 1 << (exponent + fraction),
            4..16 => word & !(1 << (exponent + fraction - 1)),
            // About as large as one another.
            _ => {
                let middle = (ones(exponent) >> 1) + word % 3 - 1;
                (word >> 8 & 1) << (exponent + fraction) | middle << fraction | word >> 9 & ones(fraction)
            }
        }
    }
}

fn launch(threads: u32, ctas: usize) -> Arc<Launch> {
    Arc::new(Launch {
        grid_id: 1,
        ..Launch::new(
            [ctas as u32, 1, 1],
            [threads, 1, 1],
            [BASE, OUT + (ctas as u64 - 1) * STRIDE as u64].iter().flat_map(|p| p.to_le_bytes()).collect(),
        )
    })
}

/// The memory that both engines leave.
fn agreed(text: &str, threads: u32, ctas: usize, memory: &[u8]) -> Vec<u8> {
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}")));
    let launch = launch(threads, ctas);
    for control in [Control::RUN, Control::PREEMPT] {
        let machine = &mut |k: &_, l: &_, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, control);
        let outcome = testgen::compare(&kernel, &launch, BASE, memory, machine, &mut testgen::interpret);
        assert_eq!(outcome, Ok(()), "{threads} threads\n{text}");
    }
    let mut memory = memory.to_vec();
    testgen::interpret(&kernel, &launch, BASE, &mut memory).unwrap();
    memory
}

#[test]
fn products_agree_for_any_bits_and_any_lanes() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut numbers = 0;
    for form in forms() {
        let text = form.text();
        let mut memory = vec![0; (64 << 10) + 2 * (TRIES - 1) * STRIDE];
        memory.resize(memory.len().next_multiple_of(64 << 10), 0);
        for (i, role) in (0..TRIES).flat_map(|i| [Role::A, Role::B, Role::C].map(|role| (i, role))) {
            form.put(role, &mut memory[i * STRIDE..], &mut |_, _| random.element(form.element(role)));
        }
        for i in 0..TRIES {
            // Of sparse products, of any bits whatever.
            form.put_metadata(&mut memory[i * STRIDE..], 0x1b1b_e4e4, &mut |_| random.next() as u32 >> 7);
        }
        let after = agreed(&text, 32, TRIES, &memory);
        let is_nan = |bits: u64| form.element(Role::D) == Element::F32 && f32::from_bits(bits as u32).is_nan();
        for i in 0..TRIES {
            let results = form.results(&after[(32 << 10) + (TRIES - 1 + i) * STRIDE..]);
            numbers += results.into_iter().filter(|r| !is_nan(r.2) && r.2 != 0).count();
        }
        // Lanes that are not there have zeros.
        agreed(&text, 21, TRIES, &memory);
    }
    // The inputs are not such that hardly anything is told apart.
    assert!(numbers > 50_000, "{numbers}");
}

/// D in registers of A, B or C, which are read before any is written; and with a register of it that nobody reads.
#[test]
fn results_may_take_the_place_of_what_they_are_made_of() {
    let mut random = Random(0x51);
    // All in doubles, one in three of the others.
    for (index, form) in
        forms().iter().enumerate().filter(|(i, form)| i % 3 == 0 || form.element(Role::D) == Element::F64)
    {
        let text = form.text();
        let mut memory = vec![0; 64 << 10];
        for role in [Role::A, Role::B, Role::C] {
            form.put(role, &mut memory, &mut |_, _| random.element(form.element(role)));
        }
        form.put_metadata(&mut memory, 0x1b1b_e4e4, &mut |_| random.next() as u32 >> 7);
        let expected = agreed(&text, 32, 1, &memory);
        let class = |role| (form.element(role) == Element::F32, form.register_bytes(role));
        for (letter, role) in [('a', Role::A), ('b', Role::B), ('c', Role::C)] {
            let shared = form.registers(role).min(form.registers(Role::D));
            if class(role) != class(Role::D) {
                continue;
            }
            for (of, instead) in [(0..shared, 0), (0..shared - 1, 1)] {
                let renamed = of.rev().fold(text.clone(), |text, i| {
                    text.replace(&format!("%d{i}"), &format!("%{letter}{}", i + instead))
                });
                assert_eq!(agreed(&renamed, 32, 1, &memory), expected, "{renamed}");
            }
        }
        let unread = format!("%d{};", index % form.registers(Role::D));
        let without = text.lines().filter(|line| !(line.starts_with("st.") && line.ends_with(&unread)));
        agreed(&without.map(|line| format!("{line}\n")).collect::<String>(), 32, 1, &memory);
    }
}

/// Sums carried round a loop, in code before which lanes have parted, by several warps, of lines from shared memory.
#[test]
fn loops_of_loads_and_products_agree() {
    let text = ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n\
        .reg .b64 %in, %out, %w; .reg .b32 %t, %l, %a<4>, %b<2>, %i, %s, %x, %v<4>; .reg .f32 %c<4>, %d<4>; .reg .pred %p;\n\
        .shared .align 16 .b8 tile[8192];\n\
        ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mov.u32 %l, %laneid;\n\
        mul.wide.u32 %w, %t, 16; add.s64 %in, %in, %w; ld.global.v4.b32 {%v0,%v1,%v2,%v3}, [%in];\n\
        shl.b32 %s, %t, 4; mov.u32 %x, tile; add.u32 %s, %s, %x; st.shared.v4.b32 [%s], {%v0,%v1,%v2,%v3};\n\
        mov.f32 %c0, 0f00000000; mov.f32 %c1, 0f3F800000; mov.f32 %c2, 0f00000000; cvt.rn.f32.u32 %c3, %l; mov.u32 %i, 0;\n\
        setp.lt.u32 %p, %l, 7; @%p bra ON; mov.f32 %c2, 0f40000000;\n\
        ON: bar.sync 0;\n\
        LOOP: ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0,%a1,%a2,%a3}, [%s];\n\
        xor.b32 %x, %s, 256; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%b0,%b1}, [%x];\n\
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%c0,%c1,%c2,%c3};\n\
        mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%c0,%c1,%c2,%c3}, {%a2,%a1}, {%b1}, {%d0,%d1,%d2,%d3};\n\
        mul.f32 %c1, %c1, 0f3F000000; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 5; @%p bra LOOP;\n\
        add.s64 %out, %out, %w; st.global.v4.f32 [%out], {%c0,%c1,%c2,%c3};\nret;\n}\n";
    let mut random = Random(7);
    let mut memory = vec![0; 64 << 10];
    for bytes in memory.chunks_mut(2) {
        bytes.copy_from_slice(&(random.element(Element::F16) as u16).to_le_bytes());
    }
    for threads in [32, 64, 128, 256] {
        let after = agreed(text, threads, 1, &memory);
        let out = &after[32 << 10..][..16 * threads as usize];
        assert!(out.chunks(4).filter(|word| word.iter().any(|&b| b != 0)).count() > threads as usize, "{threads}");
    }
    // Warps whose last lanes are not there.
    for threads in [1, 9, 33, 63] {
        agreed(text, threads, 1, &memory);
    }
}

/// Lines outside shared memory, and such that are not aligned: the exception and the address are those of the interpreter.
#[test]
fn faults_are_those_of_loads_and_stores() {
    for (instruction, address) in [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, [%s+8];", 8),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%s+65536];", 65536),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%s+4], {%r0,%r1};", 4),
        ("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%s+65536], {%r0,%r1};", 65536),
        ("ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%in];", BASE),
        ("stmatrix.sync.aligned.m8n8.x1.b16 [%in+16], {%r0};", BASE + 16),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%in+2];", BASE + 2),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%in+-4096];", BASE - 4096),
        (
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%in+-65536], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};",
            BASE - 65536,
        ),
    ] {
        let text = format!(
            ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n\
             .reg .b64 %in; .reg .b32 %r<8>, %s; .reg .f32 %f<8>; .shared .align 16 .b8 tile[1024];\n\
             ld.param.u64 %in, [in]; mov.u32 %s, tile;\n{instruction}\nret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}")));
        let mut memory = vec![0; 64 << 10];
        let launch = launch(32, 1);
        let interpreted = testgen::interpret(&kernel, &launch, BASE, &mut memory.clone()).unwrap_err();
        let compiled = run(&kernel, &launch, BASE, &mut memory, Control::RUN).unwrap_err();
        let known = |exception| match exception {
            Exception::Access { address, access, error } => (address, access, error),
            _ => panic!("{exception:?}\n{text}"),
        };
        let ((at, access, error), (there, same, alike)) = (known(interpreted), known(compiled));
        assert_eq!((at, there, access), (address, address, same), "{text}");
        // Of memory beside its own the test's interpreter knows less.
        assert!(error == alike || alike == AccessError::OutOfWindow, "{error:?}, {alike:?}\n{text}");
    }
}
