//! Kernels of one matrix instruction, with the manual's account of which lane holds which elements.
//!
//! The tables here are those of the PTX manual ("Matrix fragments for mma…"), element by element, and share nothing with
//! [`ptx::matrix`], which they test.

use std::fmt::Write;

use ptx::matrix::Element;

/// A product by `mma.sync`.
#[derive(Clone, Debug)]
pub struct Form {
    /// Rows of A, columns of B, and what is summed over.
    pub sides: [usize; 3],
    /// Elements of A, B, C and D.
    pub elements: [Element; 4],
    /// A in rows and B in rows; always so and not so but for `m8n8k4` in f16.
    pub layout: [bool; 2],
    /// Behind the types: `.xor.popc`, or before them: `.satfinite`.
    pub modifier: &'static str,
    /// The selector of a sparse product, of which A's columns here are those that are held.
    pub sparse: Option<u8>,
}

/// Bytes from one CTA's input to the next one's, and so for outputs: more than either has.
pub const STRIDE: usize = 8 << 10;

/// One of the matrices of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Role {
    A,
    B,
    C,
    D,
}

fn name(of: Element) -> &'static str {
    match of {
        Element::F16 => "f16",
        Element::BF16 => "bf16",
        Element::TF32 => "tf32",
        Element::F32 => "f32",
        Element::F64 => "f64",
        Element::E4M3 => "e4m3",
        Element::E5M2 => "e5m2",
        Element::S8 => "s8",
        Element::U8 => "u8",
        Element::S4 => "s4",
        Element::U4 => "u4",
        Element::B1 => "b1",
        Element::S32 => "s32",
    }
}

/// All products by `mma.sync` that the engines know.
#[must_use]
pub fn forms() -> Vec<Form> {
    use Element::{B1, BF16, E4M3, E5M2, F16, F32, F64, S4, S8, S32, TF32, U4, U8};
    let mut forms = Vec::new();
    let mut add = |sides, elements, modifier| {
        forms.push(Form { sides, elements, layout: [true, false], modifier, sparse: None });
    };
    for k in [8, 16] {
        add([16, 8, k], [F16, F16, F32, F32], "");
        add([16, 8, k], [F16, F16, F16, F16], "");
        add([16, 8, k], [BF16, BF16, F32, F32], "");
    }
    for k in [4, 8] {
        add([16, 8, k], [TF32, TF32, F32, F32], "");
    }
    for sides in [[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]] {
        add(sides, [F64; 4], "");
    }
    for (types, sides) in
        [([S8, U8], [[8, 8, 16], [16, 8, 16], [16, 8, 32]]), ([S4, U4], [[8, 8, 32], [16, 8, 32], [16, 8, 64]])]
    {
        for sides in sides {
            for (a, b) in types.into_iter().flat_map(|a| types.map(|b| (a, b))) {
                add(sides, [a, b, S32, S32], "");
                add(sides, [a, b, S32, S32], ".satfinite");
            }
        }
    }
    for sides in [[8, 8, 128], [16, 8, 128], [16, 8, 256]] {
        add(sides, [B1, B1, S32, S32], ".xor.popc");
        add(sides, [B1, B1, S32, S32], ".and.popc");
    }
    for k in [16, 32] {
        for (a, b) in [E4M3, E5M2].into_iter().flat_map(|a| [E4M3, E5M2].map(|b| (a, b))) {
            add([16, 8, k], [a, b, F32, F32], "");
            add([16, 8, k], [a, b, F16, F16], "");
        }
    }
    for layout in [[true, true], [true, false], [false, true], [false, false]] {
        for (c, d) in [(F16, F16), (F32, F32), (F16, F32), (F32, F16)] {
            forms.push(Form { sides: [8, 8, 4], elements: [F16, F16, c, d], layout, modifier: "", sparse: None });
        }
    }
    forms.append(&mut sparse_forms());
    forms
}

/// Those by `mma.sp.sync`.
fn sparse_forms() -> Vec<Form> {
    use Element::{BF16, E4M3, E5M2, F16, F32, S4, S8, S32, TF32, U4, U8};
    let mut forms = Vec::new();
    let mut add = |k, [a, b]: [Element; 2], sums, modifier, selectors| {
        for selector in 0..selectors {
            let (sides, elements, layout) = ([16, 8, k], [a, b, sums, sums], [true, false]);
            forms.push(Form { sides, elements, layout, modifier, sparse: Some(selector) });
        }
    };
    for (k, selectors) in [(16, 4), (32, 2)] {
        add(k, [F16; 2], F32, "", selectors);
        add(k, [F16; 2], F16, "", selectors);
        add(k, [BF16; 2], F32, "", selectors);
        add(k / 2, [TF32; 2], F32, "", selectors);
    }
    for (types, sides) in [([S8, U8], [32, 64]), ([S4, U4], [64, 128])] {
        for (a, b) in types.into_iter().flat_map(|a| types.map(|b| (a, b))) {
            for modifier in ["", ".satfinite"] {
                add(sides[0], [a, b], S32, modifier, 2);
                add(sides[1], [a, b], S32, modifier, 1);
            }
        }
    }
    for (a, b) in [E4M3, E5M2].into_iter().flat_map(|a| [E4M3, E5M2].map(|b| (a, b))) {
        add(64, [a, b], F32, "", 1);
    }
    forms
}

impl Form {
    /// The instruction's name.
    #[must_use]
    pub fn opcode(&self) -> String {
        let [m, n, k] = self.sides;
        let [a, b, c, d] = self.elements.map(name);
        let [left, right] = self.layout.map(|row| if row { "row" } else { "col" });
        let (before, behind) = if self.modifier == ".satfinite" { (self.modifier, "") } else { ("", self.modifier) };
        let sp = match self.sparse {
            None => "",
            // Both names of the same.
            Some(_) if self.element(Role::D) == Element::F32 => ".sp::ordered_metadata",
            Some(_) => ".sp",
        };
        format!("mma{sp}.sync.aligned.m{m}n{n}k{k}.{left}.{right}{before}.{d}.{a}.{b}.{c}{behind}")
    }

    /// Four products by eight lanes each?
    #[must_use]
    pub fn quads(&self) -> bool {
        self.sides == [8, 8, 4] && self.element(Role::A) == Element::F16
    }

    /// The type of a matrix's elements.
    #[must_use]
    pub fn element(&self, role: Role) -> Element {
        self.elements[role as usize]
    }

    /// Rows and columns of a matrix.
    #[must_use]
    pub fn size(&self, role: Role) -> [usize; 2] {
        let [m, n, k] = self.sides;
        match role {
            Role::A if self.sparse.is_some() => [m, k / 2],
            Role::A => [m, k],
            Role::B => [k, n],
            Role::C | Role::D => [m, n],
        }
    }

    /// Elements of a matrix that a lane holds.
    #[must_use]
    pub fn elements_per_lane(&self, role: Role) -> usize {
        let [rows, columns] = self.size(role);
        if self.quads() { rows * columns / 8 } else { rows * columns / 32 }
    }

    /// Registers of a matrix in a lane.
    #[must_use]
    pub fn registers(&self, role: Role) -> usize {
        let bits = self.elements_per_lane(role) * self.element(role).bits() as usize;
        bits / self.register_bytes(role) / 8
    }

    /// Bytes of a register of a matrix.
    #[must_use]
    pub fn register_bytes(&self, role: Role) -> usize {
        if self.element(role) == Element::F64 { 8 } else { 4 }
    }

    /// Row and column of element `i` of a lane, and which of the products it belongs to.
    #[must_use]
    pub fn place(&self, role: Role, lane: usize, i: usize) -> ([usize; 2], usize) {
        if self.quads() {
            return (self.quad_place(role, lane, i), lane % 16 / 4);
        }
        let (group, t) = (lane >> 2, lane % 4);
        let lower = |first: bool| if first { group } else { group + 8 };
        let bits = self.element(role).bits();
        let mut sides = self.sides;
        if self.sparse.is_some() && role == Role::A {
            // As held, A is that of a product of half the length.
            sides[2] /= 2;
        }
        let at = match (role, sides, bits) {
            (Role::A, [8, 8, 4], 64) => [group, t],
            (Role::A, [8, 8, 16], 8) => [group, t * 4 + i],
            (Role::A, [8, 8, 32], 4) => [group, t * 8 + i],
            (Role::A, [8, 8, 128], 1) => [group, t * 32 + i],
            (Role::A, [16, 8, 4], 32 | 64) => [lower(i == 0), t],
            (Role::A, [16, 8, 8], 16) => [lower(i < 2), t * 2 + (i & 1)],
            (Role::A, [16, 8, 8], 32 | 64) => [lower(i == 0 || i == 2), if i < 2 { t } else { t + 4 }],
            (Role::A, [16, 8, 16], 16) => {
                [lower(i < 2 || (4..6).contains(&i)), t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 }]
            }
            (Role::A, [16, 8, 16], 64) => [lower(i & 1 == 0), if i & 1 == 0 { i * 2 + t } else { i * 2 - 2 + t }],
            (Role::A, [16, 8, 16], 8) => [lower(i < 4), t * 4 + (i & 3)],
            (Role::A, [16, 8, 32], 8) => {
                [lower(i < 4 || (8..12).contains(&i)), t * 4 + (i & 3) + if i >= 8 { 16 } else { 0 }]
            }
            (Role::A, [16, 8, 32], 4) => [lower(i < 8), t * 8 + (i & 7)],
            (Role::A, [16, 8, 64], 4) => {
                [lower(i < 8 || (16..24).contains(&i)), t * 8 + (i & 7) + if i >= 16 { 32 } else { 0 }]
            }
            (Role::A, [16, 8, 128], 1) => [lower(i < 32), t * 32 + (i & 31)],
            (Role::A, [16, 8, 256], 1) => {
                [lower(i < 32 || (64..96).contains(&i)), t * 32 + (i & 31) + if i >= 64 { 128 } else { 0 }]
            }
            (Role::B, [_, _, 4], 32 | 64) => [t, group],
            (Role::B, [8, 8, 16], 8) | (Role::B, [16, 8, 16], 8) => [t * 4 + i, group],
            (Role::B, [8, 8, 32], 4) | (Role::B, [16, 8, 32], 4) => [t * 8 + i, group],
            (Role::B, [8, 8, 128], 1) | (Role::B, [16, 8, 128], 1) => [t * 32 + i, group],
            (Role::B, [16, 8, 8], 16) => [t * 2 + i, group],
            (Role::B, [16, 8, 8], 32 | 64) => [if i == 0 { t } else { t + 4 }, group],
            (Role::B, [16, 8, 16], 16) => [t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, group],
            (Role::B, [16, 8, 16], 64) => [t + 4 * i, group],
            (Role::B, [16, 8, 32], 8) => [t * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, group],
            (Role::B, [16, 8, 64], 4) => [t * 8 + (i & 7) + if i >= 8 { 32 } else { 0 }, group],
            (Role::B, [16, 8, 256], 1) => [t * 32 + (i & 31) + if i >= 32 { 128 } else { 0 }, group],
            // Of sparse products only.
            (Role::B, [16, 8, 32], 16) => [t * 2 + (i & 1) + 8 * (i / 2), group],
            (Role::B, [16, 8, 16], 32) => [t + 4 * i, group],
            (Role::B, [16, 8, 64], 8) => [t * 4 + (i & 3) + 16 * (i / 4), group],
            (Role::B, [16, 8, 128], 4) => [t * 8 + (i & 7) + 32 * (i / 8), group],
            (Role::C | Role::D, [8, 8, _], _) => [group, t * 2 + i],
            (Role::C | Role::D, [16, 8, _], _) => [lower(i < 2), t * 2 + (i & 1)],
            _ => panic!("no such matrix: {self:?}, {role:?}"),
        };
        (at, 0)
    }

    fn quad_place(&self, role: Role, lane: usize, i: usize) -> [usize; 2] {
        let upper = if lane < 16 { 0 } else { 4 };
        match (role, self.layout) {
            (Role::A, [true, _]) => [lane % 4 + upper, i],
            (Role::A, [false, _]) => [i % 4 + upper, lane % 4],
            (Role::B, [_, true]) => [lane % 4, i + upper],
            (Role::B, [_, false]) => [i, lane % 4 + upper],
            _ if self.element(role) == Element::F16 => [lane % 4 + upper, i],
            _ => [(lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)],
        }
    }

    /// Byte offset of a register in the kernel's input (or of D's in its output).
    fn offset(&self, role: Role, register: usize, lane: usize) -> usize {
        let before = match role {
            Role::A | Role::D => 0,
            Role::B => 256 * self.registers(Role::A),
            Role::C => 256 * (self.registers(Role::A) + self.registers(Role::B)),
        };
        before + 256 * register + 8 * lane
    }

    /// Elements of a chunk of A, of which half are held.
    #[must_use]
    pub fn chunk(&self) -> usize {
        match self.element(Role::A).bits() {
            32 => 2,
            4 => 8,
            _ => 4,
        }
    }

    /// What each of the lanes that have metadata has from its lowest bits on: of rows 0 and 8 those of the chunks from a column on
    /// (in the manual's pictures "metadata layout"). Row r and 8 + r are in the lanes 4 r further.
    fn metadata_words(&self) -> &'static [&'static [(usize, usize)]] {
        match (self.sides[2], self.element(Role::A).bits()) {
            (16, 16) | (8, 32) => &[&[(0, 0), (8, 0)]],
            (32, 16) => &[&[(0, 0), (8, 0)], &[(0, 16), (8, 16)]],
            (16, 32) => &[&[(0, 0), (8, 0)], &[(0, 8), (8, 8)]],
            (32, 8) | (64, 4) => &[&[(0, 0)], &[(8, 0)]],
            (64, 8) => &[&[(0, 0)], &[(8, 0)], &[(0, 32)], &[(8, 32)]],
            (128, 4) => &[&[(0, 0)], &[(8, 0)], &[(0, 64)], &[(8, 64)]],
            _ => panic!("no such product: {self:?}"),
        }
    }

    /// Puts the metadata of a sparse product into the kernel's input, and other bits where there are none; `value` gives the four of
    /// the chunk of a row that begins at a column.
    pub fn put_metadata(&self, input: &mut [u8], other: u32, value: &mut dyn FnMut([usize; 2]) -> u32) {
        let Some(selector) = self.sparse else { return };
        let words = self.metadata_words();
        for lane in 0..32 {
            let mut bits = other;
            let contributes = (lane % 4_usize).checked_sub(usize::from(selector) * words.len());
            if let Some(word) = contributes.and_then(|w| words.get(w)) {
                bits = 0;
                let per_row = 8 / word.len();
                for (i, &(row, column)) in word.iter().enumerate() {
                    for chunk in 0..per_row {
                        let at = [row + lane / 4, column + chunk * self.chunk()];
                        bits |= (value(at) & 15) << (4 * (i * per_row + chunk));
                    }
                }
            }
            input[self.bytes()[0] - 256 + 8 * lane..][..4].copy_from_slice(&bits.to_le_bytes());
        }
    }

    /// Bytes of the kernel's input, and of its output.
    #[must_use]
    pub fn bytes(&self) -> [usize; 2] {
        let count = [Role::A, Role::B, Role::C].map(|role| self.registers(role)).iter().sum::<usize>();
        let count = count + usize::from(self.sparse.is_some());
        [256 * count, 256 * self.registers(Role::D)]
    }

    /// A kernel `k(in, out)` of CTAs of a warp that compute D each, from inputs and to outputs [`STRIDE`] apart.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text =
            ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n\
             .reg .b32 %tid; .reg .b64 %in, %out, %lane, %cta;\n"
                .to_owned();
        let all = [('a', Role::A), ('b', Role::B), ('c', Role::C), ('d', Role::D)];
        let class = |role| match self.element(role) {
            Element::F64 => "f64",
            Element::F32 => "f32",
            _ => "b32",
        };
        for (letter, role) in all {
            writeln!(text, ".reg .{} %{letter}<{}>;", class(role), self.registers(role)).unwrap_or_default();
        }
        text += "ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %tid, %tid.x; mul.wide.u32 %lane, %tid, 8;\n\
                 add.s64 %in, %in, %lane; add.s64 %out, %out, %lane; mov.u32 %tid, %ctaid.x;\n";
        writeln!(text, "mul.wide.u32 %cta, %tid, {STRIDE}; add.s64 %in, %in, %cta; add.s64 %out, %out, %cta;")
            .unwrap_or_default();
        let list = |letter, role| {
            let names: Vec<String> = (0..self.registers(role)).map(|i| format!("%{letter}{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        for (letter, role) in &all[..3] {
            for i in 0..self.registers(*role) {
                let (class, at) = (class(*role), self.offset(*role, i, 0));
                writeln!(text, "ld.global.{class} %{letter}{i}, [%in+{at}];").unwrap_or_default();
            }
        }
        let [a, b, c, d] = all.map(|(letter, role)| list(letter, role));
        let mut behind = String::new();
        if let Some(selector) = self.sparse {
            let at = self.bytes()[0] - 256;
            writeln!(text, ".reg .b32 %e; ld.global.b32 %e, [%in+{at}];").unwrap_or_default();
            behind = format!(", %e, {selector}");
        }
        writeln!(text, "{} {d}, {a}, {b}, {c}{behind};", self.opcode()).unwrap_or_default();
        for i in 0..self.registers(Role::D) {
            let (class, at) = (class(Role::D), self.offset(Role::D, i, 0));
            writeln!(text, "st.global.{class} [%out+{at}], %d{i};").unwrap_or_default();
        }
        text + "ret;\n}\n"
    }

    /// Puts a matrix into the kernel's input; `value` gives the bits of an element at a row and a column, of product `q`.
    pub fn put(&self, role: Role, input: &mut [u8], value: &mut dyn FnMut([usize; 2], usize) -> u64) {
        let bits = self.element(role).bits() as usize;
        let per = self.register_bytes(role) * 8 / bits;
        for lane in 0..32 {
            for i in 0..self.elements_per_lane(role) {
                let (at, q) = self.place(role, lane, i);
                let bytes = &mut input[self.offset(role, i / per, lane)..][..8];
                let mut word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                let mask = u64::MAX >> (64 - bits) << (i % per * bits);
                word = word & !mask | value(at, q) << (i % per * bits) & mask;
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// The bits of D's elements in the kernel's output, with their places.
    #[must_use]
    pub fn results(&self, output: &[u8]) -> Vec<([usize; 2], usize, u64)> {
        let bits = self.element(Role::D).bits() as usize;
        let per = self.register_bytes(Role::D) * 8 / bits;
        let places = (0..32).flat_map(|lane| (0..self.elements_per_lane(Role::D)).map(move |i| (lane, i)));
        let results = places.map(|(lane, i)| {
            let (at, q) = self.place(Role::D, lane, i);
            let bytes = &output[self.offset(Role::D, i / per, lane)..][..8];
            let word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            (at, q, word >> (i % per * bits) & (u64::MAX >> (64 - bits)))
        });
        results.collect()
    }
}
