//! Shared memory of a kernel, found by a scan of its body and of the functions it calls.
//!
//! A function is scanned once, whatever calls it: the driver asks for the resources of all kernels of a module at once,
//! and a thousand kernels that call one large function must not scan it a thousand times.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::calls::Plan;
use crate::decl::{DeclSpace, Declarator, Elem, Head, MAX_VARIABLE_BYTES};
use crate::error::PtxError;
use crate::launch::{MAX_SHARED_BYTES, MAX_THREADS_PER_CTA, WARP};
use crate::lexer::{Lexer, Token, clip};
use crate::program::{Entry, Function, Item, Program, Resources, VarSpace};

/// Bytes at each of `%reserved_smem_offset_0` and `_1`.
pub(super) const RESERVED_BYTES: u32 = 1024;

/// Registers of a multiprocessor, and how many warps of a block get theirs together (compute capability 12.0).
const REGISTERS_PER_SM: u32 = 1 << 16;
const WARP_GRANULARITY: u32 = 4;

/// Stands for the position of the reserved memory's declaration, which no text has.
const RESERVED: usize = usize::MAX;

/// Most functions that a kernel can reach: with the memory of scans above this bounds the work for a whole module.
const MAX_FUNCTIONS: usize = 4096;

/// Where shared variables lie, keyed by the position of their declaration in the text.
#[derive(Debug)]
pub(super) struct Layout {
    offsets: HashMap<usize, u32>,
    pub(super) resources: Resources,
    /// Does the kernel take a parameter's generic address?
    pub(super) copies_params: bool,
    /// Shared memory that the system reserves for cooperative groups, where the kernel asks for it.
    pub(super) reserved: Option<u32>,
    /// Functions whose address the kernel may have, if it calls any through a pointer.
    pub(super) pointees: Vec<usize>,
    /// Those of its functions that take memory from the thread's stack.
    pub(super) allocators: BTreeSet<usize>,
    /// All functions that it reaches, itself included.
    functions: Vec<(usize, Arc<Facts>)>,
}

/// A shared variable that a function declares or names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shared {
    position: usize,
    size: u64,
    align: u32,
    dynamic: bool,
    line: u32,
}

/// What a scan of one function's body finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    shared: Vec<Shared>,
    /// Functions named, in calls or otherwise.
    named: BTreeSet<usize>,
    /// How often each is called.
    pub(super) calls: BTreeMap<usize, u32>,
    pub(super) statements: u64,
    local: u64,
    /// Declared registers in units of 32 bits.
    words: u64,
    copies_params: bool,
    /// Does it take memory from the thread's stack?
    allocates: bool,
    /// Calls through pointers.
    pub(super) indirect: u32,
}

impl Layout {
    /// Scans the kernel. What is looked at is taken from `left`, function by function, with what each names and shares.
    pub(super) fn of(program: &Program, entry: &Entry, left: &mut u64) -> Result<Layout, PtxError> {
        let mut layout = Layout {
            offsets: HashMap::new(),
            resources: Resources { shared_align: 16, ..Resources::default() },
            copies_params: false,
            reserved: None,
            pointees: Vec::new(),
            allocators: BTreeSet::new(),
            functions: Vec::new(),
        };
        let mut reached = BTreeSet::from([entry.function]);
        let mut work = vec![entry.function];
        let (mut shared, mut local, mut words, mut indirect) = (0u64, 0u64, 0u64, false);
        while let Some(function) = work.pop() {
            let facts = facts(program, function)?;
            *left = left.saturating_sub(1 + facts.named.len() as u64 + facts.shared.len() as u64);
            let mut name = |at: usize| {
                if reached.insert(at) {
                    work.push(at);
                }
            };
            facts.named.iter().copied().for_each(&mut name);
            if facts.indirect > 0 && !std::mem::replace(&mut indirect, true) {
                let pointed = pointed(program);
                *left = left.saturating_sub(pointed.len().min(MAX_FUNCTIONS) as u64);
                pointed.iter().take(MAX_FUNCTIONS + 1).copied().for_each(&mut name);
            }
            if reached.len() > MAX_FUNCTIONS {
                let text = format!("'{}' reaches more than {MAX_FUNCTIONS} functions", clip(&entry.name));
                return Err(PtxError::unsupported(entry.line, text));
            }
            for variable in &facts.shared {
                layout.place(variable, &mut shared)?;
            }
            local = local.saturating_add(facts.local).next_multiple_of(16).min(MAX_VARIABLE_BYTES);
            words = words.saturating_add(facts.words);
            layout.copies_params |= facts.copies_params;
            if facts.allocates {
                layout.allocators.insert(function);
            }
            layout.functions.push((function, facts));
        }
        layout.reserved = layout.offsets.get(&RESERVED).copied();
        if indirect {
            reached.remove(&entry.function);
            layout.pointees = reached.into_iter().collect();
        }
        // Hardware allocates by liveness; declared virtual registers of nvcc's output exceed it some six-fold.
        let allowed = [entry.max_registers, program.max_registers].into_iter().flatten().min().unwrap_or(255);
        let limit = allowed.clamp(16, 255).min(resident(entry));
        layout.resources.registers = (16 + words / 6).next_multiple_of(8).min(u64::from(limit)) as u32;
        layout.resources.shared_bytes = shared as u32;
        layout.resources.local_bytes = u32::try_from(local).unwrap_or(u32::MAX);
        Ok(layout)
    }

    /// Which of the functions are inlined into the kernel whose body is `kernel`.
    pub(super) fn plan(&self, kernel: usize) -> Plan {
        let facts = self.functions.iter().map(|(function, facts)| (*function, &**facts)).collect();
        Plan::of(kernel, &facts, &self.pointees)
    }

    /// All functions that the kernel reaches.
    pub(super) fn functions<'p>(&self, program: &'p Program) -> impl Iterator<Item = &'p Function> {
        self.functions.iter().filter_map(|(function, _)| program.functions.get(*function))
    }

    /// Offset of the shared variable declared at this position.
    pub(super) fn offset(&self, position: usize, is_dynamic: bool) -> Option<u32> {
        if is_dynamic {
            return Some(self.resources.shared_bytes.next_multiple_of(self.resources.shared_align));
        }
        self.offsets.get(&position).copied()
    }

    fn place(&mut self, variable: &Shared, end: &mut u64) -> Result<(), PtxError> {
        self.resources.shared_align = self.resources.shared_align.max(variable.align);
        if variable.dynamic || self.offsets.contains_key(&variable.position) {
            return Ok(());
        }
        let offset = end.next_multiple_of(u64::from(variable.align));
        *end = offset + variable.size;
        if *end > u64::from(MAX_SHARED_BYTES) {
            let text = format!("the kernel uses more than {MAX_SHARED_BYTES} bytes of shared memory");
            return Err(PtxError::invalid(variable.line, text));
        }
        self.offsets.insert(variable.position, offset as u32);
        Ok(())
    }
}

/// Most registers per thread with which as many of the largest blocks as the author wants, at least one, are resident.
fn resident(entry: &Entry) -> u32 {
    let threads = entry.max_ntid.map_or(MAX_THREADS_PER_CTA, |n| n.into_iter().fold(1, u32::saturating_mul));
    let warps = threads.clamp(1, MAX_THREADS_PER_CTA).div_ceil(WARP).next_multiple_of(WARP_GRANULARITY);
    let all = warps.saturating_mul(entry.min_ctas_per_sm.unwrap_or(1).max(1)).saturating_mul(WARP);
    (REGISTERS_PER_SM / all / 8 * 8).clamp(16, 255)
}

/// The functions that initial values of variables hold.
fn pointed(program: &Program) -> &[usize] {
    program.pointed.get_or_init(|| {
        let symbols = program.variables.iter().flat_map(|v| &v.relocations).map(|r| program.names.get(&r.symbol));
        let functions: BTreeSet<usize> = symbols
            .filter_map(|item| match item {
                Some(Item::Function(at)) => Some(*at),
                _ => None,
            })
            .collect();
        functions.into_iter().collect()
    })
}

fn facts(program: &Program, function: usize) -> Result<Arc<Facts>, PtxError> {
    program.functions[function].facts.get_or_init(|| scan(program, function).map(Arc::new)).clone()
}

fn scan(program: &Program, function: usize) -> Result<Facts, PtxError> {
    let mut facts = Facts::default();
    let Some(body) = program.functions[function].body else { return Ok(facts) };
    let mut lexer = Lexer::at(&program.text, body);
    let mut seen = BTreeSet::new();
    let mut depth = 0u32;
    // Before a statement's first word, which names no function and no variable; before a guard's predicate.
    let (mut begins, mut guard) = (true, false);
    // Within a call, from its opcode to its end: parentheses that are open, and words outside of them.
    let mut call: Option<(u32, u32)> = None;
    loop {
        match lexer.next()? {
            Token::Punct(b';') => {
                facts.statements += 1;
                (begins, call) = (true, None);
            }
            // Behind a label.
            Token::Punct(b':') => begins = true,
            Token::Punct(b'@') => guard = true,
            Token::Punct(b'(') => call.iter_mut().for_each(|(open, _)| *open += 1),
            Token::Punct(b')') => call.iter_mut().for_each(|(open, _)| *open = open.saturating_sub(1)),
            Token::Punct(b'{') => depth += 1,
            Token::Punct(b'}') if depth == 0 => return Ok(facts),
            Token::Punct(b'}') => depth -= 1,
            Token::End => return Ok(facts),
            Token::Word(".loc" | ".file") => lexer.skip_line(),
            Token::Word(word) if word.starts_with("%reserved_smem_offset_") => {
                let size = u64::from(2 * RESERVED_BYTES);
                if seen.insert(RESERVED) {
                    let line = lexer.line();
                    facts.shared.push(Shared { position: RESERVED, size, align: 16, dynamic: false, line });
                }
            }
            Token::Word(word) if word.starts_with('.') => {
                begins = false;
                if matches!(word[1..].split('.').next(), Some("shared" | "local" | "reg" | "extern")) {
                    facts.declaration(&mut lexer, word)?;
                }
            }
            Token::Word(_) if std::mem::take(&mut guard) => {}
            // To look for each opcode among the names would be a fifth of a scan's time, and for each register another.
            Token::Word(word) if std::mem::take(&mut begins) => match word {
                "call" | "call.uni" => call = Some((0, 0)),
                _ if word.starts_with("cvta.param") => facts.copies_params = true,
                _ => facts.allocates |= is_allocation(word),
            },
            Token::Word(word) => {
                if let Some((0, words)) = &mut call {
                    *words += 1;
                    // The prototype or the targets of a call through a pointer.
                    if *words == 2 {
                        facts.indirect = facts.indirect.saturating_add(1);
                    }
                }
                if word.starts_with('%') && !program.has_percent_names {
                    continue;
                }
                match program.names.get(word) {
                    Some(Item::Function(callee)) => {
                        facts.named.insert(*callee);
                        if call.is_some() {
                            let times = facts.calls.entry(*callee).or_default();
                            *times = times.saturating_add(1);
                        }
                    }
                    Some(Item::Variable(at)) => {
                        let v = &program.variables[*at];
                        if v.space == VarSpace::Shared && seen.insert(v.mark.pos) {
                            let dynamic = !v.is_defined();
                            let (position, size, align, line) = (v.mark.pos, v.size, v.align, lexer.line());
                            facts.shared.push(Shared { position, size, align, dynamic, line });
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// Does the opcode ask for the thread's stack?
fn is_allocation(opcode: &str) -> bool {
    ["alloca.", "stacksave.", "stackrestore."].iter().any(|base| opcode.starts_with(base))
}

impl Facts {
    fn declaration<'a>(&mut self, lexer: &mut Lexer<'a>, first: &'a str) -> Result<(), PtxError> {
        let head = Head::parse(lexer, first)?;
        let align = head.align();
        loop {
            let d = Declarator::parse(lexer)?;
            let line = lexer.line();
            let size = head.size(&d, line)?;
            match head.space {
                Some(DeclSpace::Shared) => {
                    let dynamic = !head.linkage.defines(size);
                    self.shared.push(Shared { position: d.mark.pos, size, align, dynamic, line });
                }
                Some(DeclSpace::Local) => {
                    self.local = (self.local.next_multiple_of(u64::from(align)) + size).min(MAX_VARIABLE_BYTES);
                }
                Some(DeclSpace::Reg) if head.elem != Some(Elem::Pred) => {
                    let words = head.elem.map_or(1, |e| u64::from(e.bytes().div_ceil(4)));
                    self.words = self.words.saturating_add(words * u64::from(d.range.unwrap_or(1)));
                }
                _ => {}
            }
            if !lexer.eat(b',')? {
                return Ok(());
            }
        }
    }
}
