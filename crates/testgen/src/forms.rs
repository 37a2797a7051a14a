//! Kernels of one computing instruction, for comparing engines with hardware: every thread has other operands, interesting ones among
//! them, and stores what the instruction left.
//!
//! The instruction names its registers by what they hold: results are of number 1 and 6 to 8, operands of number 2 to 5, 10 and 11.
//!
//! | registers | hold |
//! |---|---|
//! | `%p` | a predicate |
//! | `%rs` `%r` `%rd` | 16, 32, 64 bits: integers, halves, anything |
//! | `%f` `%fd` | f32, f64, the special ones often |
//! | `%h` `%b` | two f16, two bf16 between -4 and 4 |
//! | `%g` `%t` `%gd` | f32 (`%t`: as bits), f64 between -4 and 4 |
//! | `%rd9` `%r9` | address of the thread's own 16 bytes of global and of shared memory |
//!
//! In patterns `(a|b|)` stands for one of several texts.

use std::sync::Arc;

use ptx::Program;
use ptx::ir::Kernel;
use ptx::launch::Launch;
use ptx::math::NAN_F64;

/// Where the memory of a kernel lies.
pub const BASE: u64 = 0x40_0000_0000;
/// Threads of a CTA.
pub const BLOCK: u32 = 128;
const OPERANDS: [u32; 6] = [2, 3, 4, 5, 10, 11];
const RESULTS: [u32; 4] = [1, 6, 7, 8];
/// Bytes of a thread's cell in global and in shared memory.
const CELL: usize = 16;
/// Bytes of one operand of each kind.
const SLOT: usize = 64;

/// A kind of register: its prefix, its type, and where in a slot its operand is.
struct Kind {
    prefix: &'static str,
    ty: &'static str,
    at: usize,
}

const KINDS: [Kind; 10] = [
    Kind { prefix: "rd", ty: "b64", at: 0 },
    Kind { prefix: "fd", ty: "f64", at: 8 },
    Kind { prefix: "gd", ty: "f64", at: 16 },
    Kind { prefix: "r", ty: "b32", at: 24 },
    Kind { prefix: "f", ty: "f32", at: 28 },
    Kind { prefix: "h", ty: "b32", at: 32 },
    Kind { prefix: "b", ty: "b32", at: 36 },
    Kind { prefix: "g", ty: "f32", at: 40 },
    Kind { prefix: "t", ty: "b32", at: 40 },
    Kind { prefix: "rs", ty: "b16", at: 44 },
];
/// Where the word is whose lowest bit is a predicate.
const PREDICATE: usize = 48;

/// Instructions, and what an H200 gave for them.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Instructions, with alternatives in parentheses: see [`expand`].
    pub text: String,
    /// Results are not the same on all hardware.
    pub approximate: bool,
    /// Why some of its instructions give something else here.
    pub differs: Option<String>,
    /// For each instruction of the pattern the [`digest`] of the results of [`THREADS`] threads; none where the driver refused it.
    pub digests: Vec<Option<u32>>,
}

/// Threads of which `hardware.txt` has the results.
pub const THREADS: u32 = 2048;

/// The patterns of `hardware.txt`: `~` stands before the approximate ones, `= digest…` behind the others, in hexadecimal, `-` for a
/// form that the driver refused; `! reason` behind those that differ.
///
/// # Panics
/// If a digest is no number.
#[must_use]
pub fn patterns() -> Vec<Pattern> {
    let mut patterns: Vec<Pattern> = Vec::new();
    for line in include_str!("hardware.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let (Some(digests), Some(pattern)) = (line.strip_prefix("= "), patterns.last_mut()) {
            let number = |word: &str| (word != "-").then(|| u32::from_str_radix(word, 16).expect("a digest"));
            pattern.digests.extend(digests.split(' ').map(number));
        } else if let (Some(reason), Some(pattern)) = (line.strip_prefix("! "), patterns.last_mut()) {
            pattern.differs = Some(reason.to_owned());
        } else {
            let (text, approximate) = line.strip_prefix("~ ").map_or((line, false), |text| (text, true));
            patterns.push(Pattern { text: text.to_owned(), approximate, differs: None, digests: Vec::new() });
        }
    }
    patterns
}

/// The instructions of a pattern, in order.
///
/// # Panics
/// If a parenthesis is open.
#[must_use]
pub fn expand(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('(') else { return vec![pattern.to_owned()] };
    let close = open + pattern[open..].find(')').expect("parentheses are closed");
    let rest = expand(&pattern[close + 1..]);
    pattern[open + 1..close]
        .split('|')
        .flat_map(|choice| rest.iter().map(move |rest| format!("{}{choice}{rest}", &pattern[..open])))
        .collect()
}

/// Registers that an instruction names: prefix and number.
fn named(instruction: &str) -> Vec<(&str, u32)> {
    let mut named = Vec::new();
    for word in instruction.split('%').skip(1) {
        let letters = word.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(word.len());
        let digits = word[letters..].find(|c: char| !c.is_ascii_digit()).map_or(word.len(), |n| letters + n);
        if let Ok(number) = word[letters..digits].parse() {
            named.push((&word[..letters], number));
        }
    }
    named.sort_unstable();
    named.dedup();
    named
}

/// A kernel of one instruction.
#[derive(Clone, Debug)]
pub struct Form {
    /// The instruction, or a few.
    pub instruction: String,
    /// The kernel's PTX; its entry is `k` and has the addresses of operands, results and cells as parameters, of 64 bits each.
    pub text: String,
    /// Names of the results, 8 bytes of each thread's each.
    pub results: Vec<String>,
}

impl Form {
    /// The kernel of an instruction.
    #[must_use]
    pub fn new(instruction: &str) -> Form {
        let named = named(instruction);
        let (mut before, mut after, mut results) = (String::new(), String::new(), Vec::new());
        let stored = |after: &mut String, results: &mut Vec<String>, name: String, text: String| {
            *after += &text.replace("AT", &format!("[to+{}]", 8 * results.len()));
            results.push(name);
        };
        for &(prefix, number) in &named {
            let slot = OPERANDS.iter().position(|&n| n == number).map(|n| n * SLOT);
            let result = RESULTS.contains(&number);
            if prefix == "p" {
                if let Some(slot) = slot {
                    before += &format!(
                        "ld.global.u32 t, [from+{}]; and.b32 t, t, 1; setp.ne.u32 %p{number}, t, 0;\n",
                        slot + PREDICATE
                    );
                } else if result {
                    let text = format!("selp.u32 t, 1, 0, %p{number}; st.global.u32 AT, t;\n");
                    stored(&mut after, &mut results, format!("%p{number}"), text);
                }
                continue;
            }
            let Some(kind) = KINDS.iter().find(|kind| kind.prefix == prefix) else { continue };
            let ty = kind.ty;
            if let Some(slot) = slot {
                before += &format!("ld.global.{ty} %{prefix}{number}, [from+{}];\n", slot + kind.at);
            } else if result {
                let zero = if ty.starts_with('f') { "0.0" } else { "0" };
                before += &format!("mov.{ty} %{prefix}{number}, {zero};\n");
                let text = format!("st.global.{ty} AT, %{prefix}{number};\n");
                stored(&mut after, &mut results, format!("%{prefix}{number}"), text);
            }
        }
        if named.contains(&("rd", 9)) {
            before += "mov.b64 %rd9, cell;\n";
            for at in [0, 8] {
                let text = format!("ld.global.u64 word, [cell+{at}]; st.global.u64 AT, word;\n");
                stored(&mut after, &mut results, format!("[%rd9+{at}]"), text);
            }
        }
        if named.contains(&("r", 9)) {
            before += "mov.u32 %r9, own; mov.u32 t, %tid.x; mad.lo.u32 %r9, t, 16, %r9;\n";
            for at in [0, 8] {
                before += &format!("ld.global.u64 word, [cell+{at}]; st.shared.u64 [%r9+{at}], word;\n");
                let text = format!("ld.shared.u64 word, [%r9+{at}]; st.global.u64 AT, word;\n");
                stored(&mut after, &mut results, format!("[%r9+{at}]"), text);
            }
        }
        let registers: String = KINDS.iter().map(|kind| format!(".reg .{} %{}<12>;\n", kind.ty, kind.prefix)).collect();
        let text = format!(
            ".version 9.0\n.target sm_90\n.address_size 64\n\
             .visible .entry k(.param .u64 operands, .param .u64 results, .param .u64 cells)\n{{\n\
             .reg .pred %p<12>;\n{registers}.reg .b64 from, to, cell, word;\n.reg .b32 i, t;\n\
             .shared .align 16 .b8 own[{}];\n\
             ld.param.u64 from, [operands]; ld.param.u64 to, [results]; ld.param.u64 cell, [cells];\n\
             mov.u32 i, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 i, i, {BLOCK}, t;\n\
             mad.wide.u32 from, i, {}, from; mad.wide.u32 to, i, {}, to; mad.wide.u32 cell, i, {CELL}, cell;\n\
             {before}{instruction}\n{after}ret;\n}}\n",
            BLOCK as usize * CELL,
            OPERANDS.len() * SLOT,
            8 * results.len(),
        );
        Form { instruction: instruction.to_owned(), text, results }
    }

    /// The kernel as the front end lowers it.
    ///
    /// # Errors
    /// What the front end says.
    pub fn kernel(&self) -> Result<Arc<Kernel>, String> {
        let program = Program::parse(self.text.as_bytes()).map_err(|e| e.to_string())?;
        program.lower(0, &|_| None).map(Arc::new).map_err(|e| e.to_string())
    }
}

/// What the threads of a run have.
#[derive(Clone, Debug)]
pub struct Run {
    /// How many threads run, a multiple of [`BLOCK`].
    pub threads: u32,
    /// Their operands, and behind them their cells.
    pub memory: Vec<u8>,
    cells: usize,
}

impl Run {
    /// Operands of so many threads, a multiple of [`BLOCK`]. Those of the first threads don't depend on how many there are.
    #[must_use]
    pub fn new(threads: u32) -> Run {
        let mut draw = Draw(0x2545_f491_4f6c_dd1d);
        let mut memory = vec![0; threads as usize * (OPERANDS.len() * SLOT + CELL)];
        let cells = threads as usize * OPERANDS.len() * SLOT;
        for thread in 0..threads as usize {
            for slot in 0..OPERANDS.len() {
                let at = (thread * OPERANDS.len() + slot) * SLOT;
                draw.slot(&mut memory[at..at + SLOT]);
            }
            let cell = [draw.word64(), draw.word64()].map(u64::to_le_bytes).concat();
            memory[cells + thread * CELL..][..CELL].copy_from_slice(&cell);
        }
        Run { threads, memory, cells }
    }

    /// How a form is launched, and the memory from [`BASE`] on: operands, cells, results.
    #[must_use]
    pub fn launch(&self, form: &Form) -> (Arc<Launch>, Vec<u8>) {
        let results = self.memory.len().next_multiple_of(256);
        let mut memory = self.memory.clone();
        memory.resize((results + 8 * form.results.len() * self.threads as usize).next_multiple_of(64 << 10), 0);
        let params = [0, results as u64, self.cells as u64].map(|at| (BASE + at).to_le_bytes()).concat();
        let launch = Launch { grid_id: 1, ..Launch::new([self.threads / BLOCK, 1, 1], [BLOCK, 1, 1], params) };
        (Arc::new(launch), memory)
    }

    /// The results in a form's memory, 8 bytes each, those of a thread together.
    #[must_use]
    pub fn results<'m>(&self, form: &Form, memory: &'m [u8]) -> &'m [u8] {
        let at = self.memory.len().next_multiple_of(256);
        &memory[at..at + 8 * form.results.len() * self.threads as usize]
    }

    /// The operands that an instruction names, as a thread has them: for reports.
    #[must_use]
    pub fn operands(&self, form: &Form, thread: usize) -> String {
        let mut text = String::new();
        for (prefix, number) in named(&form.instruction) {
            let Some(slot) = OPERANDS.iter().position(|&n| n == number) else { continue };
            let slot = &self.memory[(thread * OPERANDS.len() + slot) * SLOT..][..SLOT];
            let (at, bits) = match KINDS.iter().find(|kind| kind.prefix == prefix) {
                Some(kind) => (kind.at, kind.ty[1..].parse().unwrap_or(32)),
                None => (PREDICATE, 1),
            };
            let word = slot[at..at + 8].iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
            text += &format!("%{prefix}{number}={:#x} ", word & (u64::MAX >> (64 - bits)));
        }
        if form.results.iter().any(|name| name.starts_with('[')) {
            let cell = &self.memory[self.cells + thread * CELL..][..CELL];
            text += &format!("cell={cell:02x?}");
        }
        text
    }
}

/// A number that a few bits of the results tell apart (FNV-1a).
#[must_use]
pub fn digest(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Pseudo-random operands, the same on every machine.
struct Draw(u64);

const F32: [u32; 40] = [
    0x0000_0000,
    0x0000_0001,
    0x0000_0002,
    0x0000_7fff,
    0x0040_0000,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x00ff_ffff,
    0x0100_0000,
    0x0b80_0000,
    0x1f80_0000,
    0x2000_0000,
    0x3300_0000,
    0x3380_0000,
    0x3380_0001,
    0x33ff_ffff,
    0x3e80_0000,
    0x3f00_0000,
    0x3f7f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x3fc0_0000,
    0x4000_0000,
    0x4020_0000,
    0x4049_0fdb,
    0x437f_0000,
    0x4b00_0000,
    0x4b7f_ffff,
    0x4b80_0000,
    0x4eff_ffff,
    0x4f00_0000,
    0x4f7f_ffff,
    0x5f00_0000,
    0x7e80_0000,
    0x7f00_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7fc0_1234,
];
const F64: [u64; 32] = [
    0x0000_0000_0000_0000,
    0x0000_0000_0000_0001,
    0x0008_0000_0000_0000,
    0x000f_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x0010_0000_0000_0001,
    0x1ff0_0000_0000_0000,
    0x36a0_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x380f_ffff_e000_0000,
    0x3810_0000_0000_0000,
    0x3ca0_0000_0000_0000,
    0x3ca0_0000_0000_0001,
    0x3fe0_0000_0000_0000,
    0x3fef_ffff_ffff_ffff,
    0x3ff0_0000_0000_0000,
    0x3ff0_0000_0000_0001,
    0x3ff8_0000_0000_0000,
    0x4000_0000_0000_0000,
    0x4004_0000_0000_0000,
    0x4009_21fb_5444_2d18,
    0x41df_ffff_ffc0_0000,
    0x41e0_0000_0000_0000,
    0x4330_0000_0000_0000,
    0x43e0_0000_0000_0000,
    0x47ef_ffff_e000_0000,
    0x47ef_ffff_f000_0000,
    0x7fd0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0x3810_0000_0fff_ffff,
    0xfff8_0000_0000_0000,
];
const HALF: [u16; 32] = [
    0x0000, 0x0001, 0x0200, 0x03ff, 0x0400, 0x0401, 0x07ff, 0x1000, 0x3555, 0x3800, 0x3bff, 0x3c00, 0x3c01, 0x3e00,
    0x4000, 0x4100, 0x4248, 0x5bff, 0x6400, 0x7000, 0x77ff, 0x7bff, 0x7c00, 0x7c01, 0x7e12, 0x3f80, 0x3f81, 0x0080,
    0x007f, 0x7f7f, 0x7f80, 0x7fff,
];
const WORD: [u32; 32] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    24,
    30,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0xff_ffff,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0x5555_5555,
];

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.0 >> 29
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
    fn half(&mut self) -> u16 {
        let sign = (self.next() as u16) & 0x8000;
        match self.below(4) {
            0 | 1 => HALF[self.below(HALF.len())] ^ sign,
            _ => self.next() as u16,
        }
    }
    fn f32(&mut self) -> u32 {
        let sign = (self.next() as u32) & 0x8000_0000;
        match self.below(8) {
            0..=2 => F32[self.below(F32.len())] ^ sign,
            3 => self.next() as u32 & 0x7f_ffff | sign,
            4 | 5 => (118 + self.below(20) as u32) << 23 | self.next() as u32 & 0x7f_ffff | sign,
            // Numbers of few bits, whose sums and products tie.
            6 => (120 + self.below(14) as u32) << 23 | self.next() as u32 & 0x70_0000 | sign,
            _ => self.next() as u32,
        }
    }
    /// No NaN but the one that operations make: what becomes of others' bits is not looked at.
    fn f64(&mut self) -> u64 {
        let sign = self.next() & 1 << 63;
        let bits = match self.below(8) {
            0..=2 => F64[self.below(F64.len())] ^ sign,
            3 => self.next() >> 12 | sign,
            4 | 5 => (1010 + self.below(30) as u64) << 52 | self.next() >> 12 | sign,
            6 => f64::from(f32::from_bits(self.f32())).to_bits(),
            _ => self.next(),
        };
        if f64::from_bits(bits).is_nan() { NAN_F64 } else { bits }
    }
    fn word(&mut self) -> u32 {
        match self.below(8) {
            0..=2 => WORD[self.below(WORD.len())],
            3 => WORD[self.below(WORD.len())].wrapping_neg(),
            4 | 5 => u32::from(self.half()) << 16 | u32::from(self.half()),
            6 => self.f32(),
            _ => self.next() as u32,
        }
    }
    fn word64(&mut self) -> u64 {
        match self.below(4) {
            0 => self.f64(),
            1 => u64::from(self.word()),
            2 => u64::from(self.word()) << 32 | u64::from(self.word()),
            _ => self.next() >> self.below(64),
        }
    }
    /// A number between -4 and 4 of so many bits, `mantissa` of them behind the point, whose exponents' bias is `bias`.
    fn moderate(&mut self, bits: u32, mantissa: u32, bias: u64) -> u64 {
        let exponent = bias + 1 - self.below(8) as u64;
        (self.next() & 1) << (bits - 1) | exponent << mantissa | self.next() & ((1 << mantissa) - 1)
    }
    fn slot(&mut self, slot: &mut [u8]) {
        let half = self.moderate(16, 10, 15) << 16 | self.moderate(16, 10, 15);
        let brain = self.moderate(16, 7, 127) << 16 | self.moderate(16, 7, 127);
        let fields = [self.word64(), self.f64(), self.moderate(64, 52, 1023)];
        for (at, field) in fields.into_iter().enumerate() {
            slot[8 * at..8 * at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let words = [self.word(), self.f32(), half as u32, brain as u32, self.moderate(32, 23, 127) as u32];
        for (at, word) in words.into_iter().enumerate() {
            slot[24 + 4 * at..28 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        slot[44..46].copy_from_slice(&self.half().to_le_bytes());
        slot[48..52].copy_from_slice(&(self.next() as u32).to_le_bytes());
    }
}
