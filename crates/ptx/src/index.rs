//! The first pass over a module: declarations are read, bodies are skipped.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, OnceLock};

use crate::constant::{self, Constant};
use crate::cooperative;
use crate::decl::{DeclSpace, Declarator, Elem, Head, Linkage, MAX_VARIABLE_BYTES};
use crate::error::PtxError;
use crate::ir::Param;
use crate::launch::MAX_PARAM_BYTES;
use crate::lexer::{Lexer, Mark, Token, clip};
use crate::link;
use crate::options::JitOptions;
use crate::program::{Alias, Entry, Formal, Function, Item, Program, Relocation, VarSpace, Variable};

/// Most text of one module: positions fit 32 bits, and a tenant cannot make the device hold gigabytes of it.
pub(crate) const MAX_TEXT: usize = 1 << 30;

/// Initial values may be this many times as long as the text. `{{1},{1},…}` with a long inner dimension would
/// otherwise turn kilobytes of text into gigabytes of image.
const MAX_IMAGE_RATIO: usize = 32;

/// Most names of a module, and most addresses in initial values and parameters of functions. What is kept of each is tens of times as
/// long as the few bytes of text that it may have, in the process that serves all tenants. Large modules have some ten thousand of both.
const MAX_NAMES: usize = 1 << 19;
const MAX_DETAILS: usize = 1 << 19;

pub(crate) fn index(text: Arc<str>) -> Result<Program, PtxError> {
    let program = index_alone(text)?;
    match cooperative::with_functions(&program) {
        Some(text) => index_alone(text.into()),
        None => Ok(program),
    }
}

fn index_alone(text: Arc<str>) -> Result<Program, PtxError> {
    if text.len() > MAX_TEXT {
        return Err(PtxError::invalid(0, format!("the module is longer than {MAX_TEXT} bytes")));
    }
    let mut program = Program {
        text: Arc::clone(&text),
        version: 0,
        target: 0,
        target_words: Vec::new(),
        aliases: Vec::new(),
        pragmas: Vec::new(),
        origins: Vec::new(),
        entries: Vec::new(),
        functions: Vec::new(),
        variables: Vec::new(),
        names: HashMap::new(),
        has_percent_names: false,
        contracts: true,
        max_registers: None,
        pointed: OnceLock::new(),
        sources: OnceLock::new(),
    };
    let image_left = text.len().saturating_mul(MAX_IMAGE_RATIO).saturating_add(1 << 16);
    let details_left = MAX_DETAILS;
    let mut indexer = Indexer { lexer: Lexer::new(&text), program: &mut program, image_left, details_left };
    while indexer.item()? {}
    if program.version == 0 {
        return Err(PtxError::invalid(1, "missing .version directive at start of file"));
    }
    program.has_percent_names = program.names.keys().any(|name| name.starts_with('%'));
    Ok(program)
}

struct Indexer<'a, 'p> {
    lexer: Lexer<'a>,
    program: &'p mut Program,
    image_left: usize,
    details_left: usize,
}

impl<'a> Indexer<'a, '_> {
    /// One item of module scope; false at the end.
    fn item(&mut self) -> Result<bool, PtxError> {
        self.check_names()?;
        let token = self.lexer.next()?;
        let word = match token {
            Token::End => return Ok(false),
            Token::Word(w) => w,
            Token::Punct(b';') => return Ok(true),
            Token::Punct(b'@') => {
                // `@@DWARF` lines of old compilers.
                self.lexer.skip_line();
                return Ok(true);
            }
            other => return Err(self.lexer.unexpected(&other, "a directive")),
        };
        match word {
            ".version" => self.version()?,
            ".target" => self.target()?,
            ".address_size" => {
                if self.lexer.int("32 or 64")? != 64 {
                    return Err(PtxError::unsupported(self.lexer.line(), "32-bit modules are not supported"));
                }
            }
            ".file" | ".loc" => self.lexer.skip_line(),
            ".section" => {
                while !self.lexer.eat(b'{')? {
                    if self.lexer.next()? == Token::End {
                        return Err(PtxError::invalid(self.lexer.line(), "syntax error: end of text in .section"));
                    }
                }
                self.lexer.skip_braces()?;
            }
            ".pragma" => self.pragma()?,
            ".alias" => self.alias()?,
            _ if word.starts_with('.') => self.declaration(word)?,
            _ => return Err(self.lexer.unexpected(&token, "a directive")),
        }
        Ok(true)
    }

    /// One more of what [`MAX_DETAILS`] counts.
    fn detail(&mut self) -> Result<(), PtxError> {
        self.details_left = self.details_left.checked_sub(1).ok_or_else(|| {
            let text = format!("more than {MAX_DETAILS} addresses in initial values and parameters in a module");
            PtxError::unsupported(self.lexer.line(), text)
        })?;
        Ok(())
    }

    /// No more than [`MAX_NAMES`]; an alias that is declared again counts again.
    fn check_names(&self) -> Result<(), PtxError> {
        if self.program.names.len().max(self.program.aliases.len()) > MAX_NAMES {
            return Err(PtxError::unsupported(self.lexer.line(), format!("more than {MAX_NAMES} names in a module")));
        }
        Ok(())
    }

    /// `.pragma "…", …;`: those of [`crate::JitOptions`] are ours, others hints for another assembler.
    fn pragma(&mut self) -> Result<(), PtxError> {
        loop {
            match self.lexer.next()? {
                Token::Punct(b';') | Token::End => return Ok(()),
                Token::Str(text) => {
                    let from = self.lexer.start();
                    if let Some(origin) = link::read_origin(text, from.line) {
                        self.program.origins.push(origin);
                    } else {
                        JitOptions::read(text).apply(self.program);
                        self.program.pragmas.push(from.pos..from.pos + text.len() + 2);
                    }
                }
                _ => {}
            }
        }
    }

    fn version(&mut self) -> Result<(), PtxError> {
        let token = self.lexer.next()?;
        let Token::Double(bits) = token else {
            return Err(self.lexer.unexpected(&token, "a version such as 8.5"));
        };
        // One decimal digit follows the point; adding a half before truncating undoes the binary fraction.
        let tenths = f64::from_bits(bits) * 10.0 + 0.5;
        if !(10.0..1000.0).contains(&tenths) {
            return Err(PtxError::invalid(self.lexer.line(), "unsupported .version"));
        }
        self.program.version = tenths as u32;
        Ok(())
    }

    fn target(&mut self) -> Result<(), PtxError> {
        loop {
            let word = self.lexer.word("a target")?;
            if let Some(sm) = word.strip_prefix("sm_") {
                let digits = sm.trim_end_matches(|c: char| !c.is_ascii_digit());
                let number = digits.parse::<u32>().ok().filter(|n| (10..1000).contains(n));
                let bad = || PtxError::invalid(self.lexer.line(), format!("unknown target '{}'", clip(word)));
                self.program.target = number.ok_or_else(bad)?;
            } else if !matches!(word, "texmode_unified" | "texmode_independent" | "debug" | "map_f64_to_f32") {
                return Err(PtxError::invalid(self.lexer.line(), format!("unknown target '{}'", clip(word))));
            }
            self.program.target_words.push(word.to_owned());
            if !self.lexer.eat(b',')? {
                return Ok(());
            }
        }
    }

    /// `.alias a, b;`: `a` is another name of the function `b`.
    fn alias(&mut self) -> Result<(), PtxError> {
        let name = self.lexer.word("a name")?;
        self.lexer.expect(b',')?;
        let target = self.lexer.word("a name")?;
        self.lexer.expect(b';')?;
        match self.program.names.get(target) {
            Some(item @ Item::Function(_)) => {
                let item = *item;
                self.program.names.insert(name.to_owned(), item);
                self.program.aliases.push(Alias { name: name.to_owned(), target: target.to_owned() });
                Ok(())
            }
            _ => Err(PtxError::invalid(self.lexer.line(), format!("'{}' is not a function", clip(target)))),
        }
    }

    fn declaration(&mut self, first: &'a str) -> Result<(), PtxError> {
        let (line, start) = (self.lexer.line(), self.lexer.start());
        // `.visible .entry`: linkage comes first, then what it is.
        let mut linkage = Linkage::Internal;
        let mut word = first;
        loop {
            match word {
                ".visible" => linkage = Linkage::Visible,
                ".extern" => linkage = Linkage::Extern,
                ".weak" => linkage = Linkage::Weak,
                ".common" => linkage = Linkage::Common,
                ".entry" => return self.function(linkage, true, line),
                ".func" => return self.function(linkage, false, line),
                _ => break,
            }
            word = self.lexer.word("a directive")?;
            if !word.starts_with('.') {
                return Err(self.lexer.unexpected(&Token::Word(word), "a directive"));
            }
        }
        let mut head = Head::parse(&mut self.lexer, word)?;
        if head.linkage == Linkage::Internal {
            head.linkage = linkage;
        }
        let space = match head.space {
            Some(DeclSpace::Global) => VarSpace::Global,
            Some(DeclSpace::Const) => VarSpace::Const,
            Some(DeclSpace::Shared) => VarSpace::Shared,
            _ => return Err(PtxError::invalid(line, "syntax error: no variable of this kind at module scope")),
        };
        let Some(elem) = head.elem.filter(|e| *e != Elem::Pred) else {
            return Err(PtxError::invalid(line, "syntax error: a variable without a type"));
        };
        loop {
            self.variable(&head, start, space, elem)?;
            if !self.lexer.eat(b',')? {
                break;
            }
        }
        self.lexer.expect(b';')
    }

    fn variable(&mut self, head: &Head, start: Mark, space: VarSpace, elem: Elem) -> Result<(), PtxError> {
        let d = Declarator::parse(&mut self.lexer)?;
        let line = self.lexer.line();
        if d.range.is_some() {
            return Err(PtxError::invalid(line, "syntax error: only registers are declared in ranges"));
        }
        let mut variable = Variable {
            name: d.name.to_owned(),
            space,
            linkage: head.linkage,
            size: head.size(&d, line)?,
            align: head.align(),
            init: Vec::new(),
            relocations: Vec::new(),
            managed: head.managed,
            opaque: if let Elem::Opaque(sort) = elem { Some(sort) } else { None },
            element: head.array_element(&d),
            mark: d.mark,
            head: start,
            end: 0,
        };
        if self.lexer.eat(b'=')? {
            self.initializer(&mut variable, head, &d, elem)?;
            if d.count == 0 {
                variable.size = variable.init.len() as u64;
            }
            if variable.init.len() as u64 > variable.size {
                return Err(PtxError::invalid(line, format!("too many initial values for '{}'", clip(d.name))));
            }
        }
        variable.end = self.lexer.mark().pos;
        self.check_names()?;
        let index = self.program.variables.len();
        match self.program.names.entry(d.name.to_owned()) {
            Slot::Vacant(slot) => {
                slot.insert(Item::Variable(index));
                self.program.variables.push(variable);
            }
            Slot::Occupied(slot) => match *slot.get() {
                Item::Variable(old) if self.program.variables[old].linkage == Linkage::Extern => {
                    // Declared again without its length, as ptxas has it, it keeps the one that is known.
                    if variable.is_defined() || !self.program.variables[old].is_defined() {
                        self.program.variables[old] = variable;
                    }
                }
                Item::Variable(_) if variable.linkage == Linkage::Extern => {}
                _ => return Err(duplicate(line, d.name)),
            },
        }
        Ok(())
    }

    fn initializer(&mut self, v: &mut Variable, head: &Head, d: &Declarator<'_>, elem: Elem) -> Result<(), PtxError> {
        if matches!(elem, Elem::Opaque(_)) {
            // Properties of a sampler apart from its texture, which no instruction can use.
            self.lexer.expect(b'{')?;
            return self.lexer.skip_braces();
        }
        if !self.lexer.eat(b'{')? {
            return self.value(v, elem, 0);
        }
        // Strides of the dimensions in scalars, a vector type being one more dimension.
        let lanes = u64::from(head.vector);
        let mut strides: Vec<u64> = d.inner[..d.dims].iter().map(|n| n * lanes).collect();
        if head.vector > 1 || strides.is_empty() {
            strides.push(1);
        }
        self.values(v, elem, &strides, 0)
    }

    /// The inside of braces and the closing one. Nesting is bounded by the number of strides.
    fn values(&mut self, v: &mut Variable, elem: Elem, strides: &[u64], first: u64) -> Result<(), PtxError> {
        let mut at = first;
        while !self.lexer.eat(b'}')? {
            if self.lexer.eat(b'{')? {
                let (stride, rest) = match strides {
                    [stride, rest @ ..] if !rest.is_empty() => (*stride, rest),
                    _ => return Err(PtxError::invalid(self.lexer.line(), "initial values are nested too deeply")),
                };
                self.values(v, elem, rest, at)?;
                at = at.saturating_add(stride);
            } else {
                self.value(v, elem, at)?;
                at = at.saturating_add(1);
            }
            if !self.lexer.eat(b',')? {
                self.lexer.expect(b'}')?;
                break;
            }
        }
        Ok(())
    }

    /// One scalar at element `at`.
    fn value(&mut self, v: &mut Variable, elem: Elem, at: u64) -> Result<(), PtxError> {
        let line = self.lexer.line();
        let bytes = elem.bytes();
        let offset = at.checked_mul(u64::from(bytes)).filter(|o| *o < MAX_VARIABLE_BYTES);
        let too_many = || PtxError::invalid(line, "the initial values are too large");
        let offset = offset.ok_or_else(too_many)?;
        let end = usize::try_from(offset).map_err(|_| too_many())? + bytes as usize;
        if end > v.init.len() {
            self.image_left = self.image_left.checked_sub(end - v.init.len()).ok_or_else(too_many)?;
            v.init.resize(end, 0);
        }
        let mut mask = None;
        let bits = match self.lexer.next()? {
            Token::Int(value) if self.lexer.eat(b'(')? => {
                mask = Some(value);
                None
            }
            Token::Word(word) if word != "WARP_SZ" => {
                self.relocation(v, word, offset, bytes, u64::MAX)?;
                None
            }
            first => Some(match constant::parse(&mut self.lexer, first)? {
                Constant::Int { bits, .. } => u128::from(bits),
                Constant::Single(bits) => float_bits(f32::from_bits(bits).into(), Some(bits), bytes).into(),
                Constant::Double(bits) => float_bits(f64::from_bits(bits), None, bytes).into(),
            }),
        };
        if let Some(mask) = mask {
            if mask == 0 {
                return Err(PtxError::invalid(line, "a mask of zero in an initial value"));
            }
            let word = self.lexer.word("a symbol")?;
            self.relocation(v, word, offset, bytes, mask)?;
            self.lexer.expect(b')')?;
        }
        if let Some(bits) = bits {
            v.init[end - bytes as usize..end].copy_from_slice(&bits.to_le_bytes()[..bytes as usize]);
        }
        Ok(())
    }

    /// `symbol`, `generic(symbol)`, either with an offset.
    fn relocation(&mut self, v: &mut Variable, word: &str, offset: u64, bytes: u32, mask: u64) -> Result<(), PtxError> {
        let symbol = if word == "generic" && self.lexer.eat(b'(')? {
            let inner = self.lexer.word("a symbol")?.to_owned();
            self.offset()?
                .map_or(Ok(()), |_| Err(PtxError::invalid(self.lexer.line(), "an offset inside generic()")))?;
            self.lexer.expect(b')')?;
            inner
        } else {
            word.to_owned()
        };
        let addend = self.offset()?.unwrap_or(0);
        if bytes > 8 {
            return Err(PtxError::invalid(self.lexer.line(), "an address in a 128-bit variable"));
        }
        self.detail()?;
        v.relocations.push(Relocation { offset, bytes, symbol, addend, mask });
        Ok(())
    }

    fn offset(&mut self) -> Result<Option<i64>, PtxError> {
        let negative = match self.lexer.peek()? {
            Token::Punct(b'+') => false,
            Token::Punct(b'-') => true,
            _ => return Ok(None),
        };
        self.lexer.next()?;
        let value = constant::term(&mut self.lexer)?;
        Ok(Some(if negative { value.wrapping_neg() } else { value }))
    }

    fn function(&mut self, linkage: Linkage, is_entry: bool, line: u32) -> Result<(), PtxError> {
        let from = self.lexer.mark().pos;
        while self.attribute()? {}
        let rets = if !is_entry && self.lexer.peek()? == Token::Punct(b'(') { self.formals()? } else { Vec::new() };
        let name = self.lexer.word("a function name")?;
        let params = if self.lexer.peek()? == Token::Punct(b'(') { self.formals()? } else { Vec::new() };
        let mut entry = Entry {
            name: name.to_owned(),
            params: params.iter().map(|f| Param { offset: f.offset, size: f.size, align: f.align }).collect(),
            param_bytes: params.last().map_or(0, |f| f.offset + f.size),
            max_ntid: None,
            exact_ntid: false,
            cluster: None,
            blocks_are_clusters: false,
            min_ctas_per_sm: None,
            max_registers: None,
            linkage,
            line,
            function: self.program.functions.len(),
        };
        let body = loop {
            let token = self.lexer.next()?;
            match token {
                Token::Punct(b'{') => {
                    let body = self.lexer.mark();
                    self.lexer.skip_braces()?;
                    break Some(body);
                }
                Token::Punct(b';') => break None,
                Token::Word(directive) => self.performance(directive, &mut entry)?,
                other => return Err(self.lexer.unexpected(&other, "'{' or ';'")),
            }
        };
        if is_entry && params.iter().any(|p| p.reg.is_some()) {
            return Err(PtxError::invalid(line, "a kernel's parameters are .param variables"));
        }
        if is_entry && entry.param_bytes > MAX_PARAM_BYTES {
            return Err(PtxError::invalid(
                line,
                format!("parameters of '{}' exceed {MAX_PARAM_BYTES} bytes", clip(name)),
            ));
        }
        let facts = OnceLock::new();
        let span = from..self.lexer.mark().pos;
        let function = Function { name: name.to_owned(), rets, params, linkage, span, body, line, facts };
        self.add_function(function, is_entry.then_some(entry))
    }

    fn add_function(&mut self, function: Function, entry: Option<Entry>) -> Result<(), PtxError> {
        let program = &mut *self.program;
        if entry.is_some() && function.body.is_none() {
            return Ok(());
        }
        let name = function.name.clone();
        if let Some(old) = program.names.get(&name).copied() {
            return match old {
                Item::Function(at) if entry.is_none() => {
                    if program.functions[at].body.is_none() {
                        program.functions[at] = function;
                        Ok(())
                    } else if function.body.is_none() {
                        Ok(())
                    } else {
                        Err(duplicate(function.line, &name))
                    }
                }
                _ => Err(duplicate(function.line, &name)),
            };
        }
        let item = match entry {
            Some(entry) => {
                program.entries.push(entry);
                Item::Entry(program.entries.len() - 1)
            }
            None => Item::Function(program.functions.len()),
        };
        program.functions.push(function);
        program.names.insert(name, item);
        Ok(())
    }

    /// `.attribute(…)` or `.noreturn` between `.func` and the name.
    fn attribute(&mut self) -> Result<bool, PtxError> {
        match self.lexer.peek()? {
            Token::Word(".noreturn") => {
                self.lexer.next()?;
            }
            Token::Word(".attribute") => {
                self.lexer.next()?;
                self.lexer.expect(b'(')?;
                let mut depth = 1;
                while depth > 0 {
                    match self.lexer.next()? {
                        Token::Punct(b'(') => depth += 1,
                        Token::Punct(b')') => depth -= 1,
                        Token::End => return Err(PtxError::invalid(self.lexer.line(), "syntax error: end of text")),
                        _ => {}
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A parenthesised list of formal parameters, laid out as a parameter block.
    fn formals(&mut self) -> Result<Vec<Formal>, PtxError> {
        self.lexer.expect(b'(')?;
        let mut formals = Vec::new();
        let mut end = 0u64;
        while !self.lexer.eat(b')')? {
            let first = self.lexer.word("a parameter")?;
            let line = self.lexer.line();
            let head = Head::parse(&mut self.lexer, first)?;
            let d = Declarator::parse(&mut self.lexer)?;
            let reg = match (head.space, head.elem) {
                (Some(DeclSpace::Param), Some(Elem::Scalar { .. } | Elem::Opaque(_))) => None,
                (Some(DeclSpace::Reg), Some(elem)) => elem.reg(),
                _ => return Err(PtxError::invalid(line, "syntax error: not a parameter")),
            };
            let align = head.align();
            let offset = end.next_multiple_of(u64::from(align));
            end = offset + head.size(&d, line)?;
            let too_large = |_| PtxError::invalid(line, "the parameters are too large");
            let offset = u32::try_from(offset).map_err(too_large)?;
            u32::try_from(end).map_err(too_large)?;
            let size = u32::try_from(head.size(&d, line)?).map_err(too_large)?;
            let element = head.array_element(&d);
            self.detail()?;
            formals.push(Formal { name: d.name.to_owned(), size, align, offset, reg, element });
            if !self.lexer.eat(b',')? {
                self.lexer.expect(b')')?;
                break;
            }
        }
        Ok(formals)
    }

    /// A directive between signature and body.
    fn performance(&mut self, directive: &str, entry: &mut Entry) -> Result<(), PtxError> {
        let line = self.lexer.line();
        match directive {
            ".noreturn" | ".explicitcluster" => {}
            ".blocksareclusters" => entry.blocks_are_clusters = true,
            ".reqnctapercluster" => entry.cluster = Some(self.numbers()?),
            ".pragma" => {
                self.lexer.next()?;
                self.lexer.eat(b';')?;
            }
            ".maxntid" | ".reqntid" => {
                let exact = directive == ".reqntid";
                let dims = self.numbers()?;
                if exact || !entry.exact_ntid {
                    entry.max_ntid = Some(dims);
                    entry.exact_ntid = exact;
                }
            }
            ".minnctapersm" => entry.min_ctas_per_sm = Some(self.numbers()?[0]),
            ".maxnreg" => entry.max_registers = Some(self.numbers()?[0]),
            ".maxnctapersm" | ".maxclusterrank" | ".abi_preserve" | ".abi_preserve_control" => {
                self.numbers()?;
            }
            _ => {
                return Err(PtxError::invalid(line, format!("syntax error: unknown directive '{}'", clip(directive))));
            }
        }
        Ok(())
    }

    /// One to three numbers, separated by commas.
    fn numbers(&mut self) -> Result<[u32; 3], PtxError> {
        let mut out = [1; 3];
        for slot in &mut out {
            let n = self.lexer.int("a number")?;
            *slot = u32::try_from(n).map_err(|_| PtxError::invalid(self.lexer.line(), "the number is too large"))?;
            if !self.lexer.eat(b',')? {
                break;
            }
        }
        Ok(out)
    }
}

fn duplicate(line: u32, name: &str) -> PtxError {
    PtxError::invalid(line, format!("duplicate definition of '{}'", clip(name)))
}

/// The bits of a floating-point value in a type of `bytes` bytes; `single` if it was written as one.
fn float_bits(value: f64, single: Option<u32>, bytes: u32) -> u64 {
    match bytes {
        2 => u64::from(half::f16::from_f64(value).to_bits()),
        4 => u64::from(single.unwrap_or((value as f32).to_bits())),
        _ => value.to_bits(),
    }
}
