//! Products of matrices, whose elements are distributed over the lanes as the manual says, against plain sums on the host.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use ptx::launch::Launch;
use ptx::matrix::Element;
use testgen::matrix::{Form, Role, forms};

const BASE: u64 = 0x20_0000_0000;
const OUT: usize = 32 << 10;

/// Runs a kernel of a warp with two parameters on memory of 64 KiB: its input, and from [`OUT`] on its output.
fn run(text: &str, memory: &mut Vec<u8>) {
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let launch = Launch {
        grid_id: 1,
        ..Launch::new([1; 3], [32, 1, 1], [BASE, BASE + OUT as u64].iter().flat_map(|p| p.to_le_bytes()).collect())
    };
    testgen::interpret(&Arc::new(kernel), &Arc::new(launch), BASE, memory).unwrap();
}

/// The bits of a small number.
fn bits(of: Element, value: i64) -> u64 {
    match of {
        Element::F16 => half::f16::from_f64(value as f64).to_bits().into(),
        Element::BF16 => half::bf16::from_f64(value as f64).to_bits().into(),
        Element::TF32 | Element::F32 => (value as f32).to_bits().into(),
        Element::F64 => (value as f64).to_bits(),
        // 0 to 16 and their negatives.
        Element::E4M3 | Element::E5M2 => {
            let half = half::f16::from_f64(value as f64).to_bits();
            let (sign, rest) = (u64::from(half >> 8 & 0x80), u64::from(half & 0x7fff));
            if of == Element::E5M2 {
                sign | rest >> 8
            } else {
                sign | if rest == 0 { 0 } else { (rest >> 7) - (8 << 3) }
            }
        }
        _ => value.cast_unsigned() & (u64::MAX >> (64 - of.bits())),
    }
}

/// The number of bits.
fn number(of: Element, bits: u64) -> i64 {
    match of {
        Element::F16 => half::f16::from_bits(bits as u16).to_f64() as i64,
        Element::F32 => f32::from_bits(bits as u32) as i64,
        Element::F64 => f64::from_bits(bits) as i64,
        _ => (bits as u32).cast_signed().into(),
    }
}

/// A small number that tells its place from others, in a type that has it.
fn at([row, column]: [usize; 2], q: usize, of: Element, salt: usize) -> i64 {
    let mixed = ((row * 37 + column * 101 + q * 59 + salt * 13) * 2_654_435_761) >> 7;
    let any = (mixed % 7) as i64 - 3;
    match of {
        Element::U8 | Element::U4 => any + 3,
        Element::B1 => (mixed % 2) as i64,
        // Of two bits of fraction there are these.
        Element::E5M2 if any.abs() > 2 => any.signum() * 2,
        _ => any,
    }
}

/// The metadata of a chunk: any of the six pairs of places, or of tf32 either of the two.
fn metadata(form: &Form, row: usize, chunk: usize) -> u32 {
    let mixed = ((row * 29 + chunk * 17 + row * chunk * 5 + 3) * 2_654_435_761) >> 9;
    match form.chunk() {
        2 => [0b0100, 0b1110][mixed % 2],
        _ => [0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110][mixed % 6],
    }
}

/// Which of the elements of A's row that are held is in a column; none if that is zero.
fn held_at(form: &Form, row: usize, column: usize) -> Option<usize> {
    let (chunk, inside) = (column / form.chunk(), column % form.chunk());
    let metadata = metadata(form, row, chunk) as usize;
    let places = [metadata & 3, metadata >> 2];
    match form.chunk() {
        // Of tf32 both places are halves of the one element.
        2 => (places[0] / 2 == inside).then_some(chunk),
        4 => places.iter().position(|&place| place == inside).map(|at| chunk * 2 + at),
        _ => places.iter().position(|&place| place == inside / 2).map(|at| chunk * 4 + at * 2 + inside % 2),
    }
}

fn check(form: &Form) {
    let mut memory = vec![0; 64 << 10];
    let value = |role: Role, place, q| at(place, q, form.element(role), role as usize);
    for role in [Role::A, Role::B, Role::C] {
        form.put(role, &mut memory, &mut |place, q| bits(form.element(role), value(role, place, q)));
    }
    form.put_metadata(&mut memory, 0x1b1b_e4e4, &mut |[row, column]| metadata(form, row, column / form.chunk()));
    run(&form.text(), &mut memory);
    let results = form.results(&memory[OUT..]);
    let [m, n, k] = form.sides;
    assert_eq!(results.len(), m * n * if form.quads() { 4 } else { 1 });
    for ([i, j], q, got) in results {
        let products = (0..k).map(|l| {
            let a = match form.sparse {
                None => value(Role::A, [i, l], q),
                Some(_) => held_at(form, i, l).map_or(0, |held| value(Role::A, [i, held], q)),
            };
            let b = value(Role::B, [l, j], q);
            if form.modifier == ".xor.popc" { a ^ b } else { a * b }
        });
        let want = value(Role::C, [i, j], q) + products.sum::<i64>();
        assert_eq!(number(form.element(Role::D), got), want, "{}: d[{i}][{j}] of product {q}", form.opcode());
    }
}

#[test]
fn products_are_of_the_elements_that_the_manual_says() {
    let forms = forms();
    assert!(forms.len() > 90);
    forms.iter().for_each(check);
}

/// Numbers whose sums tell in which order and how they were rounded.
#[test]
fn sums_are_rounded_as_documented() {
    let form = |sides, elements| Form { sides, elements, layout: [true, false], modifier: "", sparse: None };
    use Element::{BF16, F16, F32, TF32};
    // 1 + 2^-24 + 2^-24 + …: each rounded to even, so they are lost; the other way round they are not.
    let small = f64::from(f32::EPSILON) / 2.0;
    for (form, to) in [
        (form([16, 8, 16], [F16, F16, F32, F32]), 12),
        (form([16, 8, 16], [BF16, BF16, F32, F32]), 12),
        (form([16, 8, 8], [TF32, TF32, F32, F32]), 12),
    ] {
        let sum = |c: f64, last: f64| {
            let mut memory = vec![0; 64 << 10];
            let narrow = |value: f64| match form.element(Role::A) {
                F16 => half::f16::from_f64(value).to_bits().into(),
                BF16 => half::bf16::from_f64(value).to_bits().into(),
                _ => u64::from((value as f32).to_bits()),
            };
            let k = form.sides[2];
            form.put(Role::A, &mut memory, &mut |[_, l], _| {
                narrow(if l + 1 == k { last } else { (-f64::from(to)).exp2() })
            });
            form.put(Role::B, &mut memory, &mut |[l, _], _| {
                narrow(if l + 1 == k { 1.0 } else { (-f64::from(to)).exp2() })
            });
            form.put(Role::C, &mut memory, &mut |_, _| u64::from((c as f32).to_bits()));
            run(&form.text(), &mut memory);
            f64::from(f32::from_bits(form.results(&memory[OUT..])[0].2 as u32))
        };
        let k = form.sides[2] as f64;
        assert_eq!(sum(1.0, 0.0), 1.0, "{}", form.opcode());
        assert_eq!(
            sum(0.0, 1.0),
            1.0 + ((k - 1.0) * small / f64::from(f32::EPSILON)).round_ties_even() * f64::from(f32::EPSILON)
        );
    }
    // Sums of f16 keep the bits of f32 until the end: 2048 + 1 + 1 - 2048.
    let form = form([16, 8, 8], [F16, F16, F16, F16]);
    let mut memory = vec![0; 64 << 10];
    let half = |value: f64| u64::from(half::f16::from_f64(value).to_bits());
    form.put(Role::A, &mut memory, &mut |[_, l], _| half([1.0, 1.0, -2048.0, 0.0, 0.0, 0.0, 0.0, 0.0][l]));
    form.put(Role::B, &mut memory, &mut |_, _| half(1.0));
    form.put(Role::C, &mut memory, &mut |_, _| half(2048.0));
    run(&form.text(), &mut memory);
    assert_eq!(form.results(&memory[OUT..])[5].2, half(2.0));
}

/// A program of three kinds of `wmma` instructions, on matrices with gaps between their lines.
struct Wmma {
    sides: [usize; 3],
    factors: Element,
    sums: [Element; 2],
    rows: [bool; 4],
    space: &'static str,
}

impl Wmma {
    fn size(&self, role: Role) -> [usize; 2] {
        let [m, n, k] = self.sides;
        [[m, k], [k, n], [m, n], [m, n]][role as usize]
    }

    fn element(&self, role: Role) -> Element {
        [self.factors, self.factors, self.sums[0], self.sums[1]][role as usize]
    }

    /// Elements from line to line.
    fn pitch(&self, role: Role) -> usize {
        let [rows, columns] = self.size(role);
        (if self.rows[role as usize] { columns } else { rows }) + 128 / self.element(role).bits() as usize
    }

    /// Bit offset of an element.
    fn offset(&self, role: Role, [row, column]: [usize; 2]) -> usize {
        let area = [0, 8 << 10, 16 << 10, OUT][role as usize] * 8;
        let pitch = self.pitch(role);
        let index = if self.rows[role as usize] { row * pitch + column } else { column * pitch + row };
        area + index * self.element(role).bits() as usize
    }

    fn text(&self) -> String {
        let name = |of: Element| format!("{of:?}").to_lowercase();
        let [m, n, k] = self.sides;
        let shape = format!("m{m}n{n}k{k}");
        let layout = |role: Role| if self.rows[role as usize] { "row" } else { "col" };
        let registers = |role: Role| {
            let [rows, columns] = self.size(role);
            let of = self.element(role);
            let count = rows * columns * of.bits() as usize / 32 / if of == Element::F64 { 64 } else { 32 };
            if of == Element::F16 && matches!(role, Role::A | Role::B) { 8 } else { count }
        };
        let list = |letter: &str, role| {
            let names: Vec<String> = (0..registers(role)).map(|i| format!("%{letter}{i}")).collect();
            format!("{{{}}}", names.join(","))
        };
        let class = |role| match self.element(role) {
            Element::F64 => "f64",
            Element::F32 => "f32",
            _ => "b32",
        };
        let mut text = ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n\
            .reg .b64 %in, %out, %p, %q, %g; .reg .b32 %r, %s, %n, %m; .reg .pred %e; .shared .align 32 .b8 tile[32768];\n\
            ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n"
            .to_owned();
        for (letter, role) in [("a", Role::A), ("b", Role::B), ("c", Role::C), ("d", Role::D)] {
            text += &format!(".reg .{} %{letter}<{}>;\n", class(role), registers(role));
        }
        // All input to shared memory.
        text += "mov.u32 %r, %tid.x; shl.b32 %r, %r, 2; mov.u32 %s, tile;\n\
            LOOP: cvt.u64.u32 %p, %r; add.u64 %q, %in, %p; add.u32 %n, %s, %r; ld.global.b32 %m, [%q]; st.shared.b32 [%n], %m;\n\
            add.u32 %r, %r, 128; setp.lt.u32 %e, %r, 32768; @%e bra LOOP; bar.sync 0;\n";
        let (space, base) = match self.space {
            "global" => (".global", "%in"),
            "shared" => (".shared", "%s"),
            _ => ("", "%g"),
        };
        text += "cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g;\n";
        for (letter, role) in [("a", Role::A), ("b", Role::B), ("c", Role::C)] {
            let (of, pitch) = (name(self.element(role)), self.pitch(role));
            let at = self.offset(role, [0, 0]) / 8;
            // In a register of its own, or the first of those that the load writes.
            let stride = if class(role) == "b32" { format!("%{letter}0") } else { "%n".to_owned() };
            text += &format!(
                "mov.u32 {stride}, {pitch}; wmma.load.{letter}.sync.aligned.{}.{shape}{space}.{of} {}, [{base}+{at}], {stride};\n",
                layout(role),
                list(letter, role)
            );
        }
        let [a, c, d] = [Role::A, Role::C, Role::D].map(|role| name(self.element(role)));
        let types = match self.factors {
            Element::F16 => format!("{d}.{c}"),
            _ => format!("{d}.{a}.{a}.{c}"),
        };
        let bits = if self.factors == Element::B1 { ".xor.popc" } else { "" };
        text += &format!(
            "wmma.mma{bits}.sync.aligned.{}.{}.{shape}.{types} {}, {}, {}, {};\n",
            layout(Role::A),
            layout(Role::B),
            list("d", Role::D),
            list("a", Role::A),
            list("b", Role::B),
            list("c", Role::C)
        );
        let pitch = self.pitch(Role::D);
        text += &format!(
            "wmma.store.d.sync.aligned.{}.{shape}.global.{d} [%out], {}, {pitch};\nret;\n}}\n",
            layout(Role::D),
            list("d", Role::D)
        );
        text
    }

    fn check(&self) {
        let mut memory = vec![0; 64 << 10];
        let value = |role: Role, place| at(place, 0, self.element(role), role as usize);
        for role in [Role::A, Role::B, Role::C] {
            let [rows, columns] = self.size(role);
            let of = self.element(role);
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let bit = self.offset(role, [row, column]);
                let word = bits(of, value(role, [row, column])) << (bit % 8);
                for (byte, part) in
                    memory[bit / 8..].iter_mut().zip(word.to_le_bytes()).take(of.bits().div_ceil(8) as usize)
                {
                    *byte |= part;
                }
            }
        }
        run(&self.text(), &mut memory);
        let [m, n, k] = self.sides;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let products = (0..k).map(|l| {
                let (a, b) = (value(Role::A, [i, l]), value(Role::B, [l, j]));
                if self.factors == Element::B1 { a ^ b } else { a * b }
            });
            let want = value(Role::C, [i, j]) + products.sum::<i64>();
            let (at, of) = (self.offset(Role::D, [i, j]) / 8, self.element(Role::D));
            let bytes = &memory[at..][..of.bits() as usize / 8];
            let got = number(of, bytes.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)));
            assert_eq!(got, want, "d[{i}][{j}]\n{}", self.text());
        }
    }
}

#[test]
fn wmma_loads_multiplies_and_stores_in_all_layouts() {
    use Element::{B1, BF16, F16, F32, F64, S4, S8, S32, TF32, U4, U8};
    let tall = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];
    let mut kinds: Vec<([usize; 3], Element, [Element; 2])> = Vec::new();
    for sides in tall {
        for sums in [[F16, F16], [F32, F32], [F16, F32], [F32, F16]] {
            kinds.push((sides, F16, sums));
        }
        kinds.extend([(sides, BF16, [F32; 2]), (sides, S8, [S32; 2]), (sides, U8, [S32; 2])]);
    }
    kinds.extend([([16, 16, 8], TF32, [F32; 2]), ([8, 8, 4], F64, [F64; 2])]);
    kinds.extend([([8, 8, 32], S4, [S32; 2]), ([8, 8, 32], U4, [S32; 2]), ([8, 8, 128], B1, [S32; 2])]);
    for (sides, factors, sums) in kinds {
        for layout in 0..16 {
            let rows = [0, 1, 2, 3].map(|i| layout >> i & 1 != 0);
            if factors.bits() < 8 && (!rows[0] || rows[1]) {
                continue;
            }
            let space = ["global", "shared", "generic"][layout % 3];
            Wmma { sides, factors, sums, rows, space }.check();
        }
    }
}

/// Lines that other lanes name, plain and transposed, loaded, stored and turned in registers.
#[test]
fn lines_of_shared_memory_become_tiles_and_back() {
    for (count, trans, generic) in
        [(1, false, false), (2, false, true), (4, false, false), (1, true, true), (2, true, false), (4, true, false)]
    {
        let list = (0..count).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
        let t = if trans { ".trans" } else { "" };
        let (space, p) = if generic { ("", "%g") } else { (".shared", "%s") };
        let stores: String = (0..count).map(|i| format!("st.global.b32 [%o+{}], %r{i};\n", 128 * i)).collect();
        // Line i of the input lies at line 5 i mod 32 of the tile, in lines of 48 bytes; what is stored goes to line 3 i mod 32.
        let text = format!(
            ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n\
             .reg .b64 %in, %o, %g, %w; .reg .b32 %r<4>, %l, %s, %x, %q<4>, %m, %y, %u; .shared .align 16 .b8 tile[3072];\n\
             ld.param.u64 %in, [in]; ld.param.u64 %o, [out]; mov.u32 %l, %tid.x; mov.u32 %m, tile;\n\
             mul.lo.u32 %x, %l, 5; and.b32 %x, %x, 31; mad.lo.u32 %s, %x, 48, %m;\n\
             mul.wide.u32 %w, %l, 16; add.s64 %w, %in, %w; ld.global.v4.b32 {{%q0,%q1,%q2,%q3}}, [%w];\n\
             st.shared.v4.b32 [%s], {{%q0,%q1,%q2,%q3}}; cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g; bar.warp.sync -1;\n\
             ldmatrix.sync.aligned.m8n8.x{count}{t}{space}.b16 {{{list}}}, [{p}];\n\
             mul.wide.u32 %w, %l, 4; add.s64 %o, %o, %w;\n{stores}\
             movmatrix.sync.aligned.m8n8.trans.b16 %u, %r0; st.global.b32 [%o+512], %u;\n\
             mul.lo.u32 %x, %l, 3; and.b32 %x, %x, 31; mad.lo.u32 %y, %x, 16, %m; add.u32 %y, %y, 1536;\n\
             stmatrix.sync.aligned.m8n8.x{count}{t}.shared.b16 [%y], {{{list}}};\n\
             bar.warp.sync -1; shl.b32 %y, %l, 4; add.u32 %y, %y, %m; ld.shared.v4.b32 {{%q0,%q1,%q2,%q3}}, [%y+1536];\n\
             mul.wide.u32 %w, %l, 12; add.s64 %o, %o, %w; st.global.v4.b32 [%o+1024], {{%q0,%q1,%q2,%q3}};\nret;\n}}\n"
        );
        let mut memory = vec![0; 64 << 10];
        let element = |line: usize, column: usize| (line * 8 + column) as u16 * 17 + 3;
        for (at, bytes) in memory[..512].chunks_mut(2).enumerate() {
            bytes.copy_from_slice(&element(at / 8, at % 8).to_le_bytes());
        }
        run(&text, &mut memory);
        let half = |at: usize| u16::from_le_bytes([memory[OUT + at], memory[OUT + at + 1]]);
        for (i, lane) in (0..count).flat_map(|i| (0..32).map(move |lane| (i, lane))) {
            for part in 0..2 {
                let (line, column) = (lane / 4, lane % 4 * 2 + part);
                let (line, column) = if trans { (column, line) } else { (line, column) };
                let want = element(8 * i + line, column);
                assert_eq!(half(128 * i + 4 * lane + 2 * part), want, "x{count}{t}: register {i} of lane {lane}");
                if i == 0 {
                    let (line, column) =
                        if trans { (lane / 4, lane % 4 * 2 + part) } else { (lane % 4 * 2 + part, lane / 4) };
                    assert_eq!(half(512 + 4 * lane + 2 * part), element(line, column), "movmatrix");
                }
            }
        }
        // What was stored the same way is as it was, in the lines named.
        for lane in 0..8 * count {
            for column in 0..8 {
                let line = lane * 3 % 32;
                assert_eq!(half(1024 + 16 * line + 2 * column), element(lane, column), "stmatrix x{count}{t}");
            }
        }
    }
}
