//! The text that the modules become.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::symbols::{Piece, Symbols};
use super::{Difference, LinkError, MOST_UNDEFINED, Module, origin_pragma};
use crate::builtins;
use crate::decl::Linkage;
use crate::error::PtxError;
use crate::index::MAX_TEXT;
use crate::lexer::{Lexer, Mark, Token, clip};
use crate::program::{Function, Item, VarSpace, Variable};

/// # Errors
/// Symbols that are used and that nobody defines; what is not PTX in a body.
pub(super) fn write(modules: &[Module<'_>], symbols: &Symbols<'_>) -> Result<String, LinkError> {
    let mut writer = Writer {
        modules,
        symbols,
        out: String::new(),
        undefined: Vec::new(),
        more: 0,
        named: HashSet::new(),
        wanted: HashSet::new(),
    };
    let uses = writer.uses();
    writer.header();
    for (module, uses) in uses.iter().enumerate() {
        writer.prototypes(module, uses)?;
    }
    // Those with addresses in them are last: the declarations of these are before them then.
    for addresses in [false, true] {
        for (module, uses) in uses.iter().enumerate() {
            writer.variables(module, uses, addresses)?;
        }
    }
    for (module, uses) in uses.iter().enumerate() {
        writer.functions(module, uses)?;
    }
    for (module, uses) in uses.iter().enumerate() {
        writer.aliases(module, uses);
    }
    if writer.undefined.is_empty() {
        return Ok(writer.out);
    }
    Err(LinkError::Undefined { symbols: writer.undefined, more: writer.more })
}

/// What a name of a module's scope is to the text of the module.
#[derive(Debug)]
enum Use<'a> {
    /// It has another name now.
    Renamed(&'a str),
    /// Nobody defines it.
    Missing,
    /// An array whose elements are others in the declaration that is kept, of this module: an index would mean something else.
    OtherElements(usize),
}

type Uses<'a> = HashMap<&'a str, Use<'a>>;

struct Writer<'a> {
    modules: &'a [Module<'a>],
    symbols: &'a Symbols<'a>,
    out: String,
    undefined: Vec<(String, String)>,
    more: usize,
    /// Symbols whose declaration is written.
    named: HashSet<&'a str>,
    /// Symbols found missing.
    wanted: HashSet<&'a str>,
}

impl<'a> Writer<'a> {
    /// For each module, the names of its scope that are not what they were.
    fn uses(&mut self) -> Vec<Uses<'a>> {
        let symbols = self.symbols;
        let mut all = Vec::new();
        for (module, renamed) in self.modules.iter().zip(&symbols.renamed) {
            let mut uses: Uses<'a> = renamed.iter().map(|(old, new)| (*old, Use::Renamed(new.as_str()))).collect();
            // A variable is wanted as soon as it is declared, a function when it is named.
            for variable in &module.program.variables {
                let symbol = symbols.shown.get(variable.name.as_str());
                let Some(symbol) = symbol.filter(|_| variable.linkage != Linkage::Internal) else { continue };
                if symbol.definition.is_none() && !symbol.dynamic {
                    self.wanted(&variable.name, module.name);
                }
                let kept = symbol.kept();
                let of = self.modules[kept].program;
                if let Some(Item::Variable(at)) = of.names.get(&variable.name)
                    && of.variables[*at].element != variable.element
                {
                    uses.insert(&variable.name, Use::OtherElements(kept));
                }
            }
            for function in &module.program.functions {
                let symbol = symbols.shown.get(function.name.as_str());
                if symbol.is_some_and(|symbol| symbol.definition.is_none()) && !builtins::provided(&function.name) {
                    uses.entry(&function.name).or_insert(Use::Missing);
                }
            }
            all.push(uses);
        }
        all
    }

    fn wanted(&mut self, symbol: &'a str, module: &str) {
        if !self.wanted.insert(symbol) {
            return;
        }
        if self.undefined.len() < MOST_UNDEFINED {
            self.undefined.push((clip(symbol).to_owned(), module.to_owned()));
        } else {
            self.more += 1;
        }
    }

    fn header(&mut self) {
        let programs = || self.modules.iter().map(|module| module.program);
        let version = programs().map(|program| program.version).max().unwrap_or(0);
        let targets = || programs().flat_map(|program| &program.target_words);
        // `sm_120a` has more than `sm_120`.
        let highest = programs()
            .flat_map(|program| program.target_words.iter().map(move |word| (program.target, word.len(), word)))
            .filter(|(.., word)| word.starts_with("sm_"))
            .max()
            .map_or("sm_50", |(.., word)| word.as_str());
        let mut words = vec![highest];
        for word in targets().map(String::as_str).filter(|word| !word.starts_with("sm_") && *word != "debug") {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        let words = words.join(", ");
        self.line(format_args!(".version {}.{}\n.target {words}\n.address_size 64", version / 10, version % 10));
        let mut seen = HashSet::new();
        for module in self.modules {
            for pragma in &module.program.pragmas {
                let pragma = &module.program.text[pragma.clone()];
                if seen.insert(pragma) {
                    self.line(format_args!(".pragma {pragma};"));
                }
            }
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // A String takes everything.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    /// Declares every function, in its first module's words: who names it may come before who defines it.
    fn prototypes(&mut self, module: usize, uses: &Uses<'a>) -> Result<(), LinkError> {
        let program = self.modules[module].program;
        let mut kernel = vec![false; program.functions.len()];
        program.entries.iter().for_each(|entry| kernel[entry.function] = true);
        for (function, _) in program.functions.iter().zip(kernel).filter(|(_, kernel)| !kernel) {
            let shown = self.symbols.shown.get(function.name.as_str());
            let own = match uses.get(function.name.as_str()) {
                Some(Use::Renamed(_)) => true,
                _ => shown.is_none(),
            };
            let linkage = match shown.filter(|_| !own).map(|symbol| symbol.definition) {
                None => Linkage::Internal,
                Some(None) => Linkage::Extern,
                Some(Some((.., linkage))) => linkage,
            };
            if !own && !self.named.insert(&function.name) {
                continue;
            }
            let end = function.body.map_or(function.span.end, |body| body.pos).saturating_sub(1);
            self.out.push_str(word(linkage));
            self.out.push_str(".func");
            let from = Mark { pos: function.span.start, line: function.line };
            self.copy(module, uses, from, end, Text::Prototype)?;
            self.out.push_str(";\n");
        }
        Ok(())
    }

    fn variables(&mut self, module: usize, uses: &Uses<'a>, addresses: bool) -> Result<(), LinkError> {
        let program = self.modules[module].program;
        for (index, variable) in program.variables.iter().enumerate() {
            if variable.relocations.is_empty() == addresses {
                continue;
            }
            let (name, piece) = (variable.name.as_str(), Piece::Variable(index));
            let open = self.symbols.shown.get(name).is_some_and(|symbol| symbol.definition.is_none());
            let first = open && variable.linkage == Linkage::Extern && self.named.insert(name);
            if first || self.symbols.keeps(module, name, piece, variable.linkage) {
                self.variable(module, uses, variable)?;
            }
        }
        Ok(())
    }

    fn variable(&mut self, module: usize, uses: &Uses<'a>, variable: &Variable) -> Result<(), LinkError> {
        let program = self.modules[module].program;
        let shown = self.symbols.shown.get(variable.name.as_str()).filter(|_| variable.linkage != Linkage::Internal);
        let align = shown.map_or(variable.align, |symbol| symbol.align);
        let space = match variable.space {
            VarSpace::Global => ".global",
            VarSpace::Const => ".const",
            VarSpace::Shared => ".shared",
        };
        let (attributes, ty) =
            head(&program.text[..variable.mark.pos], variable.head).map_err(|error| self.unreadable(module, error))?;
        let _ = write!(self.out, "{}{space}{attributes} .align {align}{ty} ", word(variable.linkage));
        self.copy(module, uses, variable.mark, variable.end, Text::Variable)?;
        self.out.push_str(";\n");
        Ok(())
    }

    fn functions(&mut self, module: usize, uses: &Uses<'a>) -> Result<(), LinkError> {
        let program = self.modules[module].program;
        let mut kernel = vec![false; program.functions.len()];
        program.entries.iter().for_each(|entry| kernel[entry.function] = true);
        for (index, (function, kernel)) in program.functions.iter().zip(kernel).enumerate() {
            let piece = Piece::Function(index);
            let linkage = if function.linkage == Linkage::Extern { Linkage::Visible } else { function.linkage };
            if function.body.is_none() || !self.symbols.keeps(module, &function.name, piece, linkage) {
                continue;
            }
            self.function(module, uses, function, linkage, kernel)?;
            if self.out.len() > MAX_TEXT {
                return Err(LinkError::TooLong);
            }
        }
        Ok(())
    }

    fn function(
        &mut self,
        module: usize,
        uses: &Uses<'a>,
        function: &Function,
        linkage: Linkage,
        kernel: bool,
    ) -> Result<(), LinkError> {
        let Module { name, program } = self.modules[module];
        let (name, line) = program.origin(function.line).unwrap_or((name, function.line));
        self.out.push_str(&origin_pragma(name, line));
        self.out.push_str(word(linkage));
        self.out.push_str(if kernel { ".entry" } else { ".func" });
        let from = Mark { pos: function.span.start, line: function.line };
        self.copy(module, uses, from, function.span.end, Text::Function)?;
        self.out.push('\n');
        Ok(())
    }

    fn aliases(&mut self, module: usize, uses: &Uses<'a>) {
        let program = self.modules[module].program;
        for (index, alias) in program.aliases.iter().enumerate() {
            let renamed = |name: &'a str| match uses.get(name) {
                Some(Use::Renamed(new)) => new,
                _ => name,
            };
            let kept = match self.symbols.shown.get(alias.name.as_str()) {
                Some(symbol) if !matches!(uses.get(alias.name.as_str()), Some(Use::Renamed(_))) => {
                    matches!(symbol.definition, Some((of, piece, _)) if (of, piece) == (module, Piece::Alias(index)))
                }
                _ => true,
            };
            if kept {
                self.line(format_args!(".alias {}, {};", renamed(&alias.name), renamed(&alias.target)));
            }
        }
    }

    fn unreadable(&self, module: usize, error: PtxError) -> LinkError {
        LinkError::Module { module: self.modules[module].name.to_owned(), error }
    }

    /// Copies the text of a module up to `end`, with new names for what was renamed and without debug lines; line breaks
    /// stay where they are.
    fn copy(&mut self, module: usize, uses: &Uses<'a>, from: Mark, end: usize, kind: Text) -> Result<(), LinkError> {
        let text = &self.modules[module].program.text()[..end];
        let (lexer, ranges, missing) = (Lexer::at(text, from), HashSet::new(), Vec::new());
        let mut copier = Copier { lexer, uses, written: from.pos, ranges, missing, mismatch: None };
        copier.run(&mut self.out, kind == Text::Function).map_err(|error| self.unreadable(module, error))?;
        if kind != Text::Prototype {
            for name in copier.missing {
                self.wanted(name, self.modules[module].name);
            }
        }
        let Some((name, kept)) = copier.mismatch else { return Ok(()) };
        let modules = [module.min(kept), module.max(kept)].map(|of| self.modules[of].name.to_owned());
        Err(LinkError::Mismatch { symbol: clip(name).to_owned(), what: Difference::Element, modules })
    }
}

fn word(linkage: Linkage) -> &'static str {
    match linkage {
        Linkage::Internal => "",
        Linkage::Visible => ".visible ",
        Linkage::Extern => ".extern ",
        Linkage::Weak => ".weak ",
        Linkage::Common => ".common ",
    }
}

/// Attributes and type of a variable, from the words before its name, or before the first of several names.
fn head(text: &str, from: Mark) -> Result<(String, String), PtxError> {
    let (mut attributes, mut ty) = (String::new(), String::new());
    let mut lexer = Lexer::at(text, from);
    while let Token::Word(word) = lexer.next()? {
        if !word.starts_with('.') {
            break;
        }
        for piece in word.split('.').skip(1) {
            match piece {
                "visible" | "extern" | "weak" | "common" | "global" | "const" | "shared" => {}
                "align" => drop(lexer.next()?),
                "attribute" => {
                    attributes.push_str(" .attribute");
                    loop {
                        let from = lexer.mark().pos;
                        let token = lexer.next()?;
                        attributes.push_str(&text[from..lexer.mark().pos]);
                        if matches!(token, Token::Punct(b')') | Token::End) {
                            break;
                        }
                    }
                }
                _ => {
                    ty.push_str(" .");
                    ty.push_str(piece);
                }
            }
        }
    }
    Ok((attributes, ty))
}

/// What a piece of text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Text {
    /// Names in it are its own and its parameters': nobody misses them.
    Prototype,
    /// A variable's name, dimensions and initial value.
    Variable,
    /// Signature and body.
    Function,
}

/// Where a token stands in its statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// An opcode, a directive or a label comes next.
    Start,
    /// A guard's predicate comes next, then an opcode.
    Guard,
    Inside,
}

struct Copier<'a, 'u> {
    lexer: Lexer<'a>,
    uses: &'u Uses<'u>,
    /// Text before it is in the result.
    written: usize,
    /// Stems of `%r<10>`: `%r3` is a register, whatever the module calls so.
    ranges: HashSet<&'a str>,
    /// Names that nobody defines.
    missing: Vec<&'a str>,
    /// The first array whose index would mean something else: the module whose declaration is kept.
    mismatch: Option<(&'a str, usize)>,
}

impl<'a> Copier<'a, '_> {
    fn run(&mut self, out: &mut String, function: bool) -> Result<(), PtxError> {
        let mut at = At::Inside;
        // Braces of vectors inside a statement; and is this the body yet?
        let (mut vectors, mut body) = (0u32, false);
        loop {
            match self.lexer.next()? {
                Token::End => break,
                Token::Word(".loc" | ".file") if at == At::Start => {
                    let from = self.lexer.start().pos;
                    let mut after = self.lexer.clone();
                    after.skip_line();
                    let end = after.mark().pos;
                    // What finds the ends of bodies does not know these lines: it sees a brace in one.
                    if !self.lexer.text()[from..end].contains(['{', '}', '"', '/']) {
                        self.flush(out, from);
                        self.written = end;
                        self.lexer = after;
                    }
                }
                Token::Word(word) if at == At::Start => {
                    if !self.uses.is_empty() && self.lexer.peek()? == Token::Punct(b':') {
                        self.name(out, word)?;
                    }
                    at = At::Inside;
                }
                Token::Word(word) => {
                    self.name(out, word)?;
                    if at == At::Guard {
                        at = At::Start;
                    }
                }
                Token::Punct(b'{') if function && vectors == 0 && (at == At::Start || !body) => {
                    body = true;
                    at = At::Start;
                }
                Token::Punct(b'{') => vectors += 1,
                Token::Punct(b'}') if vectors > 0 => vectors -= 1,
                Token::Punct(b'}') => at = At::Start,
                Token::Punct(b';') if body => {
                    vectors = 0;
                    at = At::Start;
                }
                Token::Punct(b':') if vectors == 0 && body => at = At::Start,
                Token::Punct(b'@') if at == At::Start => at = At::Guard,
                _ => {}
            }
        }
        let end = self.lexer.text().len();
        self.flush(out, end);
        Ok(())
    }

    /// A word that may name something.
    fn name(&mut self, out: &mut String, word: &'a str) -> Result<(), PtxError> {
        if self.uses.is_empty() || word.starts_with('.') {
            return Ok(());
        }
        if self.lexer.peek()? == Token::Punct(b'<') {
            self.ranges.insert(word);
            return Ok(());
        }
        // Elements of vectors, `v.x`, are their vector's.
        let element = || word.rsplit_once('.').and_then(|(vector, _)| Some((vector, self.uses.get(vector)?)));
        let Some((name, used)) = self.uses.get(word).map(|used| (word, used)).or_else(element) else { return Ok(()) };
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        if stem.len() < name.len() && self.ranges.contains(stem) {
            return Ok(());
        }
        match used {
            Use::Renamed(new) => {
                let at = self.lexer.start().pos;
                self.flush(out, at);
                out.push_str(new);
                self.written = at + name.len();
            }
            Use::Missing => self.missing.push(name),
            Use::OtherElements(kept) => {
                if self.lexer.peek()? == Token::Punct(b'[') {
                    self.mismatch.get_or_insert((name, *kept));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut String, to: usize) {
        out.push_str(&self.lexer.text()[self.written..to]);
        self.written = to;
    }
}
