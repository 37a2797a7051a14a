//! Statements of a function's body: scopes, declarations, labels, and the loop over instructions.

use std::collections::HashMap;

use super::calls::Plan;
use super::graph::{Graph, Target};
use super::layout::Layout;
use super::mods::Mods;
use super::opcodes;
use super::operand::Arg;
use super::slots::{Slot, Slots};
use super::units::Units;
use crate::decl::{DeclSpace, Declarator, Elem, Head};
use crate::error::{PtxError, PtxErrorKind};
use crate::ir::{Inst, Op, PredRef, Reg, RegTy, Term};
use crate::lexer::{Lexer, Token, clip};
use crate::program::{Entry, Program};

/// Most nested `{ }`: every name is looked up in each.
const MAX_SCOPES: usize = 64;

/// Most nested calls: inlining recurses on this machine's stack.
const MAX_CALL_DEPTH: usize = 48;

/// Most targets of an indexed branch: compilers stay far below.
const MOST_TARGETS: usize = 4096;

/// Most statements of a kernel with all its calls inlined: a function that calls the next one twice, thirty deep,
/// would otherwise be parsed a billion times.
const MAX_STATEMENTS: usize = 1 << 21;

/// What one kernel's lowering shares between the bodies it inlines.
pub(super) struct Instance<'a> {
    pub(super) program: &'a Program,
    pub(super) symbols: &'a dyn Fn(&str) -> Option<u64>,
    pub(super) layout: &'a Layout,
    pub(super) graph: Graph,
    pub(super) slots: Slots,
    pub(super) units: Units,
    pub(super) plan: Plan,
    /// Functions being inlined, outermost first.
    pub(super) calls: Vec<usize>,
    pub(super) statements: usize,
    /// Local offset of the copy of the parameter block, if the kernel takes a parameter's generic address.
    pub(super) param_copy: Option<u64>,
    pub(super) param_bytes: u32,
    /// Function of the kernel that is lowered.
    pub(super) kernel: usize,
    /// Some kernel of the module may have addresses of other CTAs' shared memory.
    pub(super) maps_clusters: bool,
}

impl<'a> Instance<'a> {
    pub(super) fn new(
        program: &'a Program,
        symbols: &'a dyn Fn(&str) -> Option<u64>,
        layout: &'a Layout,
        plan: Plan,
    ) -> Instance<'a> {
        Instance {
            program,
            symbols,
            layout,
            graph: Graph::new(),
            slots: Slots::default(),
            units: Units::default(),
            plan,
            calls: Vec::new(),
            statements: MAX_STATEMENTS,
            param_copy: None,
            param_bytes: 0,
            kernel: usize::MAX,
            maps_clusters: program.text().contains("mapa."),
        }
    }
}

/// What a name means in a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    /// A register.
    Reg(Reg),
    /// So many registers from there: the elements of a vector.
    Vector(Reg, u32),
    /// Shared memory at this offset.
    Shared(u32),
    /// Local memory at this offset of the unit's frame.
    Local(u64),
    /// The kernel's parameter at this offset.
    Param(u32),
    /// A `.param` variable of a call.
    Slot(Slot),
}

/// `%r<100>`: registers that get a number when they are first used.
#[derive(Debug)]
struct Range {
    count: u32,
    class: RegTy,
    used: HashMap<u32, Reg>,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    /// What names mean, and of arrays the bytes of an element.
    names: HashMap<&'a str, (Name, Option<u32>)>,
    ranges: HashMap<&'a str, Range>,
    labels: HashMap<&'a str, Target>,
    /// Branches to labels not seen yet: the label, its target, the line.
    pending: Vec<(&'a str, Target, u32)>,
    /// `.branchtargets` lists.
    tables: HashMap<&'a str, Vec<&'a str>>,
    /// End of the frame when the scope was entered.
    top: u64,
}

/// A function's body being lowered.
pub(super) struct Body<'a, 'i> {
    pub(super) inst: &'i mut Instance<'a>,
    pub(super) lexer: Lexer<'a>,
    scopes: Vec<Scope<'a>>,
    /// Where `ret` goes; `None` in the kernel itself, whose `ret` ends the thread.
    pub(super) ret: Option<Target>,
    /// The carry flag, CC.CF.
    pub(super) carry: Option<Reg>,
    /// Of the instruction at hand.
    pub(super) guard: Option<PredRef>,
    pub(super) line: u32,
    pub(super) args: Vec<Arg<'a>>,
    /// Elements of vector operands.
    pub(super) pool: Vec<Arg<'a>>,
}

impl<'a, 'i> Body<'a, 'i> {
    /// The body of a kernel.
    pub(super) fn kernel(inst: &'i mut Instance<'a>, entry: &Entry) -> Result<Body<'a, 'i>, PtxError> {
        inst.param_bytes = entry.param_bytes;
        inst.kernel = entry.function;
        let mut body = Body::function(inst, entry.function, None)?;
        let program = body.inst.program;
        for formal in &program.functions[entry.function].params {
            body.declare(&formal.name, Name::Param(formal.offset), formal.element)?;
        }
        if body.inst.layout.copies_params {
            body.copy_params()?;
        }
        Ok(body)
    }

    /// A function's body; its formal parameters are not declared yet.
    pub(super) fn function(
        inst: &'i mut Instance<'a>,
        function: usize,
        ret: Option<Target>,
    ) -> Result<Body<'a, 'i>, PtxError> {
        let program = inst.program;
        let callee = &program.functions[function];
        let Some(mark) = callee.body else {
            return Err(PtxError::unsupported(callee.line, format!("'{}' has no body", clip(&callee.name))));
        };
        if inst.calls.contains(&function) {
            let text = format!("internal compiler error: '{}' inlined into itself", clip(&callee.name));
            return Err(PtxError::unsupported(callee.line, text));
        }
        if inst.calls.len() >= MAX_CALL_DEPTH {
            let text = format!("calls nested more than {MAX_CALL_DEPTH} deep");
            return Err(PtxError::unsupported(callee.line, text));
        }
        inst.calls.push(function);
        let scope = Scope { top: inst.slots.top, ..Scope::default() };
        Ok(Body {
            lexer: Lexer::at(&program.text, mark),
            inst,
            scopes: vec![scope],
            ret,
            carry: None,
            guard: None,
            line: mark.line,
            args: Vec::new(),
            pool: Vec::new(),
        })
    }

    /// Lowers all statements up to the closing brace.
    pub(super) fn run(&mut self) -> Result<(), PtxError> {
        while self.statement()? {}
        // Falling off the end is a return.
        if self.inst.graph.is_open() {
            let end = self.return_term();
            self.inst.graph.terminate(end);
        }
        self.inst.calls.pop();
        Ok(())
    }

    pub(super) fn return_term(&self) -> Term {
        match self.ret {
            Some(target) => Term::Bra(target.id()),
            None => Term::Exit,
        }
    }

    fn statement(&mut self) -> Result<bool, PtxError> {
        self.charge(1)?;
        let token = self.lexer.next()?;
        self.line = self.lexer.line();
        match token {
            Token::Punct(b';') => {}
            Token::Punct(b'{') => self.enter()?,
            Token::Punct(b'}') => return self.leave(),
            Token::Punct(b'@') => {
                let negate = self.lexer.eat(b'!')?;
                let name = self.lexer.word("a predicate")?;
                let reg = self.reg_of(name, RegTy::Pred)?;
                let opcode = self.lexer.word("an instruction")?;
                self.guard = Some(PredRef { reg, negate });
                self.instruction(opcode)?;
                self.guard = None;
            }
            Token::Word(word) if word.starts_with('.') => self.directive(word)?,
            Token::Word(word) => {
                if self.lexer.eat(b':')? {
                    self.label(word)?;
                } else {
                    self.instruction(word)?;
                }
            }
            other => return Err(self.lexer.unexpected(&other, "an instruction")),
        }
        Ok(true)
    }

    /// Counts work against the limit of statements.
    pub(super) fn charge(&mut self, work: usize) -> Result<(), PtxError> {
        match self.inst.statements.checked_sub(work) {
            Some(left) => {
                self.inst.statements = left;
                Ok(())
            }
            None => {
                let text = format!("more than {MAX_STATEMENTS} statements in a kernel, called functions included");
                Err(PtxError::unsupported(self.lexer.line(), text))
            }
        }
    }

    fn instruction(&mut self, opcode: &'a str) -> Result<(), PtxError> {
        let start = self.lexer.start();
        let result = self.decode(opcode);
        result.map_err(|e| self.explain(e, start.pos))
    }

    /// Adds the instruction's text to an error about it.
    fn explain(&self, error: PtxError, from: usize) -> PtxError {
        if error.line != self.line || error.message.contains(" (in '") {
            return error;
        }
        let rest = self.lexer.text().get(from..).unwrap_or_default();
        let text = rest.split([';', '\n', '}']).next().unwrap_or_default();
        let mut message = error.message;
        message.push_str(&format!(" (in '{}')", clip(text.trim())));
        PtxError { message, ..error }
    }

    fn decode(&mut self, opcode: &'a str) -> Result<(), PtxError> {
        let (base, mods) = Mods::split(opcode).map_err(|e| self.invalid(e))?;
        let Some(form) = opcodes::form(base) else {
            return Err(match opcodes::unsupported(base) {
                Some(what) => self.unsupported(format!("{base}: {what} are not supported")),
                None => self.wrong(format!("unknown instruction '{}'", clip(base))),
            });
        };
        self.form(form, mods)
    }

    /// What no PTX may hold.
    pub(super) fn wrong(&self, message: impl Into<String>) -> PtxError {
        PtxError::invalid(self.line, message)
    }

    pub(super) fn invalid(&self, message: impl Into<String>) -> PtxError {
        PtxError { line: self.line, message: message.into(), kind: PtxErrorKind::UnknownForm }
    }

    pub(super) fn unsupported(&self, message: impl Into<String>) -> PtxError {
        PtxError { line: self.line, message: message.into(), kind: PtxErrorKind::Unsupported }
    }

    /// Appends an operation under the guard; returns where it stands.
    pub(super) fn emit(&mut self, op: Op) -> Result<(usize, usize), PtxError> {
        self.inst.graph.push(Inst { guard: self.guard, op, line: self.line })
    }

    /// A new register.
    pub(super) fn new_reg(&mut self, class: RegTy) -> Result<Reg, PtxError> {
        self.inst.graph.reg(class, self.line)
    }

    fn enter(&mut self) -> Result<(), PtxError> {
        if self.scopes.len() >= MAX_SCOPES {
            return Err(PtxError::unsupported(self.line, format!("more than {MAX_SCOPES} nested scopes")));
        }
        self.scopes.push(Scope { top: self.inst.slots.top, ..Scope::default() });
        Ok(())
    }

    fn leave(&mut self) -> Result<bool, PtxError> {
        let Some(scope) = self.scopes.pop() else { return Ok(false) };
        self.inst.slots.top = scope.top;
        for (label, target, line) in scope.pending {
            match (scope.labels.get(label), self.scopes.last_mut()) {
                (Some(bound), _) => self.inst.graph.alias(target, *bound),
                (None, Some(outer)) => outer.pending.push((label, target, line)),
                (None, None) => {
                    return Err(PtxError::invalid(line, format!("unknown label '{}'", clip(label))));
                }
            }
        }
        Ok(!self.scopes.is_empty())
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn label(&mut self, name: &'a str) -> Result<(), PtxError> {
        // `name: .branchtargets a, b;` and `name: .callprototype …;` are tables, not places.
        match self.lexer.peek()? {
            Token::Word(".branchtargets") => {
                self.lexer.next()?;
                let mut labels = Vec::new();
                loop {
                    if labels.len() == MOST_TARGETS {
                        return Err(self.unsupported(format!("more than {MOST_TARGETS} branch targets")));
                    }
                    labels.push(self.lexer.word("a label")?);
                    if !self.lexer.eat(b',')? {
                        break;
                    }
                }
                self.lexer.expect(b';')?;
                self.scope().tables.insert(name, labels);
                return Ok(());
            }
            Token::Word(".callprototype" | ".calltargets") => return self.skip_statement(),
            _ => {}
        }
        let target = self.inst.graph.target();
        self.inst.graph.bind(target);
        if self.scope().labels.insert(name, target).is_some() {
            return Err(self.wrong(format!("duplicate label '{}'", clip(name))));
        }
        Ok(())
    }

    /// A target that `name` will have when its scope is left.
    pub(super) fn target_of(&mut self, name: &'a str) -> Target {
        let target = self.inst.graph.target();
        let line = self.line;
        self.scope().pending.push((name, target, line));
        target
    }

    /// The labels of a `.branchtargets` list.
    pub(super) fn table(&mut self, name: &str) -> Result<Vec<&'a str>, PtxError> {
        let Some(labels) = self.scopes.iter().rev().find_map(|s| s.tables.get(name)) else {
            return Err(self.wrong(format!("unknown label list '{}'", clip(name))));
        };
        // Long lists and many branches by each: their product is what counts.
        let labels = labels.clone();
        self.charge(labels.len())?;
        Ok(labels)
    }

    pub(super) fn skip_statement(&mut self) -> Result<(), PtxError> {
        loop {
            match self.lexer.next()? {
                Token::Punct(b';') => return Ok(()),
                Token::End => return Err(PtxError::invalid(self.line, "syntax error: end of text in a statement")),
                _ => {}
            }
        }
    }

    fn directive(&mut self, word: &'a str) -> Result<(), PtxError> {
        match word {
            ".loc" | ".file" => {
                self.lexer.skip_line();
                return Ok(());
            }
            ".pragma" | ".noreturn" => return self.skip_statement(),
            _ => {}
        }
        let head = Head::parse(&mut self.lexer, word)?;
        loop {
            let d = Declarator::parse(&mut self.lexer)?;
            self.variable(&head, &d)?;
            if !self.lexer.eat(b',')? {
                break;
            }
        }
        self.lexer.expect(b';')
    }

    fn variable(&mut self, head: &Head, d: &Declarator<'a>) -> Result<(), PtxError> {
        let line = self.line;
        let size = head.size(d, line)?;
        let name = match head.space {
            Some(DeclSpace::Reg) => return self.register(head, d),
            Some(DeclSpace::Local) => Name::Local(self.inst.slots.local(size, head.align(), line)?),
            Some(DeclSpace::Param) => Name::Slot(self.inst.slots.slot(size, head.align(), line)?),
            Some(DeclSpace::Shared) => {
                let offset = self.inst.layout.offset(d.mark.pos, !head.linkage.defines(size));
                Name::Shared(offset.ok_or_else(|| self.invalid("a shared variable that was not laid out"))?)
            }
            Some(DeclSpace::Global | DeclSpace::Const) => {
                return Err(self.unsupported("global variables inside functions are not supported"));
            }
            None => return Err(self.wrong("syntax error: a declaration without a state space")),
        };
        self.declare(d.name, name, head.array_element(d))
    }

    fn register(&mut self, head: &Head, d: &Declarator<'a>) -> Result<(), PtxError> {
        let Some(class) = head.elem.and_then(Elem::reg) else {
            return Err(self.wrong("syntax error: a register without a type"));
        };
        if d.dims > 0 || (head.vector > 1 && d.range.is_some()) {
            return Err(self.unsupported("arrays of registers, and ranges of vectors, are not supported"));
        }
        if head.vector > 1 {
            let first = self.new_reg(class)?;
            for _ in 1..head.vector {
                self.new_reg(class)?;
            }
            return self.declare(d.name, Name::Vector(first, head.vector), None);
        }
        match d.range {
            Some(count) => {
                let range = Range { count, class, used: HashMap::new() };
                if self.scope().ranges.insert(d.name, range).is_some() {
                    return Err(duplicate(self.line, d.name));
                }
                Ok(())
            }
            None => {
                let reg = self.new_reg(class)?;
                self.declare(d.name, Name::Reg(reg), None)
            }
        }
    }

    pub(super) fn declare(&mut self, text: &'a str, name: Name, element: Option<u32>) -> Result<(), PtxError> {
        let line = self.line;
        match self.scope().names.insert(text, (name, element)) {
            None => Ok(()),
            Some(_) => Err(duplicate(line, text)),
        }
    }

    /// What a name means here, if this body declares it.
    pub(super) fn lookup(&mut self, text: &'a str) -> Result<Option<Name>, PtxError> {
        Ok(self.declared(text)?.map(|(name, _)| name))
    }

    /// What a name means here, if this body declares it, and the bytes of an element if that is an array.
    pub(super) fn declared(&mut self, text: &'a str) -> Result<Option<(Name, Option<u32>)>, PtxError> {
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &text[stem.len()..];
        let number = if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
            None
        } else {
            digits.parse::<u32>().ok()
        };
        for scope in self.scopes.iter_mut().rev() {
            if !scope.names.is_empty()
                && let Some(name) = scope.names.get(text)
            {
                return Ok(Some(*name));
            }
            if let Some(number) = number
                && let Some(range) = scope.ranges.get_mut(stem)
                && number < range.count
            {
                if let Some(reg) = range.used.get(&number) {
                    return Ok(Some((Name::Reg(*reg), None)));
                }
                let reg = self.inst.graph.reg(range.class, self.line)?;
                range.used.insert(number, reg);
                return Ok(Some((Name::Reg(reg), None)));
            }
        }
        Ok(self.element(text).map(|name| (name, None)))
    }

    /// `v.x`: an element of a vector register.
    fn element(&self, text: &str) -> Option<Name> {
        let (stem, element) = text.rsplit_once('.')?;
        let at = match element {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => return None,
        };
        match self.scopes.iter().rev().find_map(|scope| scope.names.get(stem))? {
            (Name::Vector(first, lanes), _) if at < *lanes => Some(Name::Reg(Reg(first.0 + at))),
            _ => None,
        }
    }
}

fn duplicate(line: u32, name: &str) -> PtxError {
    PtxError::invalid(line, format!("duplicate definition of '{}'", clip(name)))
}
