//! `.ptx` files that are tests: comments say how to run the kernels and what comes out.
//!
//! ```text
//! // run: add grid=2 block=64 shared=0        an entry and its shape (x,y,z); starts a case
//! // buffer a: u32 0..128                     a buffer in global memory: type, then values
//! // buffer sum: u32 0*128
//! // param: a sum 7:u32 0.5:f32               parameters in order: a buffer's address or a number
//! // expect sum: u32 7..135                   a prefix of a buffer afterwards, bit by bit
//! // expect sum: f32~1e-6 0.5 nan             or floats within a relative tolerance
//! // expect printf: "%d %s\n" 5 "five"        the next record of the printf FIFO
//! // expect: trap                             or assert, fault, illegal; otherwise the grid must end well
//! ```
//!
//! Values: numbers (decimal, `0x` raw bits; for floats also `inf`, `-inf`, `nan`), ranges `a..b`, repetitions `v*n`.
//! Types: `u8 u16 u32 u64 s8 s16 s32 s64 b8…b64 f16 bf16 f32 f64`. Module variables get memory with their initial values.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ptx::Program;
use ptx::ir::Kernel;
use ptx::launch::{Exception, Launch};

use crate::Engine;

/// Where the memory of a case lies.
pub const BASE: u64 = 0x20_0000_0000;
const FIFO_BYTES: usize = 16 << 10;
const HEAP_BYTES: usize = 256 << 10;
/// What the memory is rounded up to.
const GRANULE: usize = 64 << 10;

/// One run of one kernel.
#[derive(Debug)]
pub struct Case {
    /// Entry and line of the `run` comment.
    pub name: String,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// How it is launched.
    pub launch: Arc<Launch>,
    /// Global memory before; its first byte is at [`BASE`].
    pub memory: Vec<u8>,
    expectations: Vec<Expectation>,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Done,
    Trap,
    Assert,
    Fault,
    Illegal,
}

#[derive(Debug)]
enum Expectation {
    Buffer { name: String, at: usize, ty: Type, tolerance: Option<f64>, values: Vec<u64> },
    Record { format: String, slots: Vec<Slot> },
}

#[derive(PartialEq, Debug)]
enum Slot {
    Number(u64),
    Text(String),
}

/// How numbers are read and laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Type {
    Int(usize),
    F16,
    BF16,
    F32,
    F64,
}

impl Type {
    fn parse(name: &str) -> Result<Type, String> {
        Ok(match name {
            "f16" => Type::F16,
            "bf16" => Type::BF16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => {
                let bits: usize = name
                    .strip_prefix(['u', 's', 'b'])
                    .and_then(|n| n.parse().ok())
                    .ok_or_else(|| format!("unknown type {name}"))?;
                Type::Int(bits / 8)
            }
        })
    }
    fn bytes(self) -> usize {
        match self {
            Type::Int(bytes) => bytes,
            Type::F16 | Type::BF16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }
    fn float(self, bits: u64) -> f64 {
        match self {
            Type::Int(_) => bits as f64,
            Type::F16 => half::f16::from_bits(bits as u16).into(),
            Type::BF16 => half::bf16::from_bits(bits as u16).into(),
            Type::F32 => f32::from_bits(bits as u32).into(),
            Type::F64 => f64::from_bits(bits),
        }
    }
    /// Bits of a literal.
    fn bits(self, text: &str) -> Result<u64, String> {
        let bad = || format!("bad number {text}");
        if let Some(hex) = text.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map_err(|_| bad());
        }
        if let Type::Int(_) = self {
            return text.parse::<u64>().or_else(|_| text.parse::<i64>().map(i64::cast_unsigned)).map_err(|_| bad());
        }
        // The canonical NaN, so that results can be compared by bits.
        if text == "nan" {
            return Ok(match self {
                Type::F16 | Type::BF16 => ptx::math::NAN_F16.into(),
                Type::F32 => ptx::math::NAN_F32.into(),
                _ => ptx::math::NAN_F64,
            });
        }
        let value: f64 = text.parse().map_err(|_| bad())?;
        Ok(match self {
            Type::F16 => half::f16::from_f64(value).to_bits().into(),
            Type::BF16 => half::bf16::from_f64(value).to_bits().into(),
            Type::F32 => text.parse::<f32>().map_err(|_| bad())?.to_bits().into(),
            _ => value.to_bits(),
        })
    }
    fn values(self, words: &[&str]) -> Result<Vec<u64>, String> {
        let mut values = Vec::new();
        for word in words {
            if let Some((from, to)) = word.split_once("..") {
                let bad = |_| format!("bad range {word}");
                let (from, to): (i64, i64) = (from.parse().map_err(bad)?, to.parse().map_err(bad)?);
                for i in from..to {
                    values.push(self.bits(&i.to_string())?);
                }
            } else if let Some((value, times)) = word.split_once('*') {
                let times = times.parse().map_err(|_| format!("bad repetition {word}"))?;
                values.extend(std::iter::repeat_n(self.bits(value)?, times));
            } else {
                values.push(self.bits(word)?);
            }
        }
        Ok(values)
    }
    fn encode(self, values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()[..self.bytes()].to_vec()).collect()
    }
}

/// Memory being laid out.
#[derive(Clone, Default)]
struct Layout {
    bytes: Vec<u8>,
    places: HashMap<String, u64>,
}

impl Layout {
    fn put(&mut self, name: &str, align: usize, content: &[u8], length: usize) -> u64 {
        let at = self.bytes.len().next_multiple_of(align.max(1));
        self.bytes.resize(at + length.max(content.len()), 0);
        self.bytes[at..at + content.len()].copy_from_slice(content);
        let address = BASE + at as u64;
        self.places.insert(name.to_owned(), address);
        address
    }
}

/// Reads the cases of a file.
///
/// # Errors
/// A description of the first mistake, in PTX or comments.
pub fn parse(text: &str) -> Result<Vec<Case>, String> {
    let program = Program::parse(text.as_bytes()).map_err(|e| e.to_string())?;
    let globals = variables(&program)?;
    let mut cases = Vec::new();
    let mut lines =
        text.lines().enumerate().filter_map(|(n, l)| Some((n + 1, l.trim().strip_prefix("// ")?))).peekable();
    while let Some((number, line)) = lines.next() {
        let Some(run) = line.strip_prefix("run:") else { continue };
        let mut body = Vec::new();
        while let Some((n, line)) = lines.next_if(|(_, line)| !line.starts_with("run:")) {
            body.push((n, line));
        }
        let case = case(&program, &globals, number, run, &body).map_err(|(n, e)| format!("line {n}: {e}"))?;
        cases.push(case);
    }
    Ok(cases)
}

/// Lays out the module's variables.
fn variables(program: &Program) -> Result<Layout, String> {
    let mut layout = Layout::default();
    for v in program.variables() {
        layout.put(&v.name, v.align as usize, &v.init, v.size as usize);
    }
    for v in program.variables() {
        for r in &v.relocations {
            let target = layout.places.get(&r.symbol).copied();
            let target = target.or_else(|| program.function_handle(&r.symbol));
            let target = target.ok_or_else(|| format!("unknown symbol {}", r.symbol))?;
            let value = (target.wrapping_add_signed(r.addend) & r.mask) >> r.mask.trailing_zeros();
            let at = (layout.places[&v.name] - BASE + r.offset) as usize;
            layout.bytes[at..at + r.bytes as usize].copy_from_slice(&value.to_le_bytes()[..r.bytes as usize]);
        }
    }
    Ok(layout)
}

fn shape(text: &str) -> Result<[u32; 3], String> {
    let mut shape = [1; 3];
    for (n, part) in shape.iter_mut().zip(text.split(',')) {
        *n = part.parse().map_err(|_| format!("bad shape {text}"))?;
    }
    Ok(shape)
}

fn case(
    program: &Program,
    globals: &Layout,
    number: usize,
    run: &str,
    body: &[(usize, &str)],
) -> Result<Case, (usize, String)> {
    let here = |e: String| (number, e);
    let mut words = run.split_whitespace();
    let entry = words.next().ok_or_else(|| here("which kernel?".into()))?;
    let index = program.find_entry(entry).ok_or_else(|| here(format!("no kernel {entry}")))?;
    let symbols = |name: &str| globals.places.get(name).copied();
    let kernel = program.lower(index, &symbols).map_err(|e| here(e.to_string()))?;
    let mut launch = Launch { grid_id: 1, ..Launch::new([1; 3], [1; 3], vec![0; kernel.param_bytes as usize]) };
    for word in words {
        match word.split_once('=') {
            Some(("grid", v)) => launch.grid = shape(v).map_err(here)?,
            Some(("block", v)) => launch.block = shape(v).map_err(here)?,
            Some(("shared", v)) => launch.dynamic_shared = v.parse().map_err(|_| here(format!("bad size {v}")))?,
            _ => return Err(here(format!("unknown setting {word}"))),
        }
    }
    let mut layout = globals.clone();
    let mut fifo = vec![0; FIFO_BYTES];
    fifo[..4].copy_from_slice(&((FIFO_BYTES - 16) as u32).to_le_bytes());
    launch.driver.printf = layout.put(".printf", 256, &fifo, 0);
    launch.driver.heap = layout.put(".heap", 256, &[], HEAP_BYTES);
    launch.driver.heap_bytes = HEAP_BYTES as u64;
    let (mut expectations, mut end) = (Vec::new(), End::Done);
    for &(n, line) in body {
        let result = (|| {
            let Some((key, rest)) = line.split_once(':') else { return Ok(()) };
            let words: Vec<&str> = rest.split_whitespace().collect();
            match key.split_whitespace().collect::<Vec<_>>()[..] {
                ["buffer", name] => {
                    let ty = Type::parse(words.first().ok_or("which type?")?)?;
                    let content = ty.encode(&ty.values(&words[1..])?);
                    layout.put(name, 256, &content, 0);
                }
                ["param"] => parameters(&kernel, &layout, &words, &mut launch.params)?,
                ["expect", "printf"] => expectations.push(record(rest.trim())?),
                ["expect"] => {
                    end = match words[..] {
                        ["trap"] => End::Trap,
                        ["assert"] => End::Assert,
                        ["fault"] => End::Fault,
                        ["illegal"] => End::Illegal,
                        _ => return Err(format!("unknown end {rest}")),
                    };
                }
                ["expect", name] => {
                    let at = *layout.places.get(name).ok_or_else(|| format!("no buffer {name}"))?;
                    let ty = words.first().ok_or("which type?")?;
                    let (ty, tolerance) = match ty.split_once('~') {
                        Some((ty, t)) => (ty, Some(t.parse().map_err(|_| format!("bad tolerance {t}"))?)),
                        None => (*ty, None),
                    };
                    let ty = Type::parse(ty)?;
                    let values = ty.values(&words[1..])?;
                    let at = (at - BASE) as usize;
                    expectations.push(Expectation::Buffer { name: name.to_owned(), at, ty, tolerance, values });
                }
                _ => {}
            }
            Ok(())
        })();
        result.map_err(|e: String| (n, e))?;
    }
    layout.bytes.resize(layout.bytes.len().next_multiple_of(GRANULE), 0);
    Ok(Case {
        name: format!("{entry}, line {number}"),
        kernel: Arc::new(kernel),
        launch: Arc::new(launch),
        memory: layout.bytes,
        expectations,
        end,
    })
}

fn parameters(kernel: &Kernel, layout: &Layout, words: &[&str], block: &mut [u8]) -> Result<(), String> {
    if words.len() != kernel.params.len() {
        return Err(format!("{} parameters for a kernel of {}", words.len(), kernel.params.len()));
    }
    for (word, param) in words.iter().zip(&kernel.params) {
        let bits = match (layout.places.get(*word), word.split_once(':')) {
            (Some(address), _) => *address,
            (None, Some((value, ty))) => Type::parse(ty)?.bits(value)?,
            (None, None) => return Err(format!("no buffer {word}")),
        };
        let size = (param.size as usize).min(8);
        let at = param.offset as usize;
        block[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    Ok(())
}

/// Splits `"format" slot "text" …`.
fn record(text: &str) -> Result<Expectation, String> {
    let mut slots = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (inside, after) = quoted.split_once('"').ok_or("a quote is open")?;
            slots.push(Slot::Text(inside.replace("\\n", "\n")));
            rest = after.trim_start();
        } else {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            let ty = if word.contains('.') { Type::F64 } else { Type::Int(8) };
            slots.push(Slot::Number(ty.bits(word)?));
            rest = after.trim_start();
        }
    }
    if slots.is_empty() {
        return Err("a record has a format".into());
    }
    let Slot::Text(format) = slots.remove(0) else { return Err("a record begins with its format".into()) };
    Ok(Expectation::Record { format, slots })
}

impl Case {
    /// Runs the case on an engine and checks what comes out.
    ///
    /// # Errors
    /// What is not as expected.
    pub fn check(&self, engine: &mut Engine<'_>) -> Result<(), String> {
        let mut memory = self.memory.clone();
        let result = engine(&self.kernel, &self.launch, BASE, &mut memory);
        let end = match result {
            Ok(()) => End::Done,
            Err(Exception::Trap) => End::Trap,
            Err(Exception::Assert) => End::Assert,
            Err(Exception::Access { .. }) => End::Fault,
            Err(Exception::Illegal) => End::Illegal,
        };
        if end != self.end {
            return Err(format!("{}: ends with {result:?}", self.name));
        }
        let mut fifo = self.launch.driver.printf - BASE + 16;
        for expectation in &self.expectations {
            match expectation {
                Expectation::Buffer { name, at, ty, tolerance, values } => {
                    for (i, want) in values.iter().enumerate() {
                        let bytes = &memory[at + i * ty.bytes()..][..ty.bytes()];
                        let got = bytes.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
                        let want = want & (u64::MAX >> (64 - 8 * ty.bytes()));
                        if !matches(*ty, *tolerance, got, want) {
                            return Err(format!(
                                "{}: {name}[{i}] is {got:#x} ({}), not {want:#x} ({})",
                                self.name,
                                ty.float(got),
                                ty.float(want)
                            ));
                        }
                    }
                }
                Expectation::Record { format, slots } => {
                    let record = &memory[fifo as usize..];
                    let length = word(record, 0);
                    let got = decode(&record[..length as usize], slots);
                    if got.as_ref() != Some(&(format.clone(), slots_of(slots))) {
                        return Err(format!("{}: printed {got:?}, not {format:?} {slots:?}", self.name));
                    }
                    fifo += length;
                }
            }
        }
        Ok(())
    }
}

fn matches(ty: Type, tolerance: Option<f64>, got: u64, want: u64) -> bool {
    let Some(tolerance) = tolerance else { return got == want };
    let (got, want) = (ty.float(got), ty.float(want));
    if want.is_nan() || want.is_infinite() {
        return (got.is_nan() && want.is_nan()) || got == want;
    }
    (got - want).abs() <= tolerance * want.abs().max(f64::MIN_POSITIVE)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.iter().skip(at).take(4).rev().fold(0, |w, &b| w << 8 | u64::from(b))
}

fn slots_of(slots: &[Slot]) -> Vec<String> {
    slots.iter().map(|s| format!("{s:?}")).collect()
}

/// Format and slots of a record, in the kinds of the expected ones.
fn decode(record: &[u8], like: &[Slot]) -> Option<(String, Vec<String>)> {
    let length = word(record, 4) as usize;
    let format = String::from_utf8_lossy(record.get(8..8 + length)?).into_owned();
    let first = (8 + length).next_multiple_of(8);
    let mut slots = Vec::new();
    for (i, like) in like.iter().enumerate() {
        let at = first + 8 * i;
        let value = u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?);
        slots.push(match like {
            Slot::Number(_) => Slot::Number(value),
            Slot::Text(_) => {
                let text = record.get(usize::try_from(value).ok()?..)?;
                let end = text.iter().position(|&b| b == 0)?;
                Slot::Text(String::from_utf8_lossy(&text[..end]).into_owned())
            }
        });
    }
    Some((format, slots_of(&slots)))
}

/// The directory of the cases that every engine must pass.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx/tests/interp")
}

/// Checks all cases of all `.ptx` files of a directory; gives their number.
///
/// # Errors
/// Every case that failed, a line each.
pub fn check_all(directory: &Path, engine: &mut Engine<'_>) -> Result<usize, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "ptx"));
    paths.sort();
    let (mut count, mut failures) = (0, String::new());
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        match parse(&text) {
            Err(e) => failures += &format!("{name}: {e}\n"),
            Ok(cases) => {
                count += cases.len();
                for case in cases {
                    if let Err(e) = case.check(engine) {
                        failures += &format!("{name}: {e}\n");
                    }
                }
            }
        }
    }
    if failures.is_empty() { Ok(count) } else { Err(failures) }
}
