//! What each name means to all modules together.

use std::collections::{HashMap, HashSet};

use super::{Difference, LinkError, Module};
use crate::decl::Linkage;
use crate::lexer::clip;
use crate::program::{Formal, VarSpace};

/// Something that a module declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// Index into `Program::variables`.
    Variable(usize),
    /// Index into `Program::functions`; kernels too.
    Function(usize),
    /// Index into `Program::aliases`.
    Alias(usize),
}

/// What declarations of one symbol agree in.
#[derive(Clone, Copy, Debug)]
enum Shape<'a> {
    Variable { space: VarSpace, bytes: u64, common: bool },
    Kernel { bytes: u32 },
    Function { results: &'a [Formal], params: &'a [Formal] },
}

/// A symbol that modules show each other.
#[derive(Debug)]
pub(super) struct Symbol<'a> {
    shape: Shape<'a>,
    /// Who declared it first.
    first: usize,
    /// Its definition: module, what, and how strong.
    pub(super) definition: Option<(usize, Piece, Linkage)>,
    /// Of a variable: the largest of all declarations.
    pub(super) align: u32,
    /// A variable that is only declared, in dynamic shared memory.
    pub(super) dynamic: bool,
    /// The largest `.common` declaration, and whose.
    common: Option<(u64, usize)>,
}

/// All symbols, and how modules' own are called.
#[derive(Debug)]
pub(super) struct Symbols<'a> {
    pub(super) shown: HashMap<&'a str, Symbol<'a>>,
    /// For each module: symbols of its own that cannot keep their names.
    pub(super) renamed: Vec<HashMap<&'a str, String>>,
}

/// A declaration as it is met.
struct Declaration<'a> {
    name: &'a str,
    piece: Piece,
    linkage: Linkage,
    shape: Shape<'a>,
    align: u32,
    defined: bool,
}

/// The modules that take part: all, and the members that have kernels or are wanted.
pub(super) fn needed<'a>(modules: &[Module<'a>], members: &[Module<'a>]) -> Vec<Module<'a>> {
    let first = modules.len();
    let modules = [modules, members].concat();
    let has_kernels = |module: &Module<'_>| !module.program.entries.is_empty();
    let mut taken: Vec<bool> =
        modules.iter().enumerate().map(|(at, module)| at < first || has_kernels(module)).collect();
    if taken.iter().all(|taken| *taken) {
        return modules;
    }
    // Of each symbol: the first module that would define it, or none if one that takes part does.
    let mut definers: HashMap<&str, Option<usize>> = HashMap::new();
    let shown = |declaration: &Declaration<'_>| declaration.defined && declaration.linkage != Linkage::Internal;
    for (at, module) in modules.iter().enumerate() {
        for declaration in declarations(*module).filter(shown) {
            let definer = definers.entry(declaration.name).or_insert(Some(at));
            if taken[at] {
                *definer = None;
            }
        }
    }
    let mut work: Vec<usize> = (0..modules.len()).filter(|at| taken[*at]).collect();
    while let Some(at) = work.pop() {
        for wanted in declarations(modules[at]).filter(|declaration| !declaration.defined) {
            if let Some(Some(definer)) = definers.get(wanted.name).copied()
                && !std::mem::replace(&mut taken[definer], true)
            {
                work.push(definer);
            }
        }
    }
    modules.iter().zip(taken).filter(|(_, taken)| *taken).map(|(module, _)| *module).collect()
}

impl<'a> Symbols<'a> {
    /// # Errors
    /// Modules that disagree about a symbol.
    pub(super) fn of(modules: &[Module<'a>]) -> Result<Symbols<'a>, LinkError> {
        let mut symbols = Symbols { shown: HashMap::new(), renamed: Vec::new() };
        let mut own = Vec::new();
        for (module, _) in modules.iter().enumerate() {
            let mut names = Vec::new();
            for declaration in declarations(modules[module]) {
                if declaration.linkage == Linkage::Internal && declaration.defined {
                    names.push(declaration.name);
                } else {
                    symbols.declare(modules, module, declaration)?;
                }
            }
            own.push(names);
        }
        for (name, symbol) in &symbols.shown {
            if let (Some((bytes, module)), Some((at, _, Linkage::Visible | Linkage::Weak))) =
                (symbol.common, symbol.definition)
                && matches!(symbol.shape, Shape::Variable { bytes: defined, .. } if bytes > defined)
            {
                return Err(mismatch(modules, name, Difference::Common, [module, at]));
            }
        }
        let tag = unused_tag(modules);
        let mut taken = HashSet::new();
        for (module, names) in own.into_iter().enumerate() {
            let mut renamed = HashMap::new();
            for name in names {
                if symbols.shown.contains_key(name) || !taken.insert(name) {
                    renamed.insert(name, format!("{name}{TAG}{tag}_{module}"));
                }
            }
            symbols.renamed.push(renamed);
        }
        Ok(symbols)
    }

    /// Is this piece of a module part of the result? Those that a stronger or earlier definition replaces are not.
    pub(super) fn keeps(&self, module: usize, name: &str, piece: Piece, linkage: Linkage) -> bool {
        linkage == Linkage::Internal
            || self
                .shown
                .get(name)
                .is_some_and(|symbol| matches!(symbol.definition, Some((of, kept, _)) if (of, kept) == (module, piece)))
    }

    fn declare(&mut self, modules: &[Module<'_>], module: usize, new: Declaration<'a>) -> Result<(), LinkError> {
        let definition = new.defined.then_some((module, new.piece, new.linkage));
        let common = match new.shape {
            Shape::Variable { bytes, common: true, .. } => Some((bytes, module)),
            _ => None,
        };
        let dynamic = matches!(new.shape, Shape::Variable { space: VarSpace::Shared, bytes: 0, .. }) && !new.defined;
        let Some(old) = self.shown.get_mut(new.name) else {
            let symbol = Symbol { shape: new.shape, first: module, definition, align: new.align, dynamic, common };
            self.shown.insert(new.name, symbol);
            return Ok(());
        };
        old.agree(&new.shape).map_err(|what| mismatch(modules, new.name, what, [old.first, module]))?;
        old.align = old.align.max(new.align);
        old.dynamic &= dynamic;
        let larger = common.is_some_and(|(bytes, _)| old.common.is_none_or(|(most, _)| bytes > most));
        if larger {
            old.common = common;
        }
        let replaces = match (old.definition, definition) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some((other, _, Linkage::Visible)), Some((_, _, Linkage::Visible))) => {
                let modules = [other, module].map(|of| modules[of].name.to_owned());
                return Err(LinkError::Duplicate { symbol: clip(new.name).to_owned(), modules });
            }
            (Some((_, _, Linkage::Common)), Some((_, _, Linkage::Common))) => larger,
            (Some((_, _, old)), Some((_, _, new))) => strength(new) > strength(old),
        };
        if replaces {
            old.definition = definition;
        }
        Ok(())
    }
}

impl<'a> Symbol<'a> {
    /// The module whose declaration of a variable is part of the result.
    pub(super) fn kept(&self) -> usize {
        self.definition.map_or(self.first, |(module, ..)| module)
    }

    /// Compares, and learns the size from whoever knows it.
    fn agree(&mut self, new: &Shape<'a>) -> Result<(), Difference> {
        match (&mut self.shape, new) {
            (Shape::Variable { space, bytes, common }, new) => {
                let Shape::Variable { space: other, bytes: size, common: tentative } = *new else {
                    return Err(Difference::Kind);
                };
                if *space != other {
                    return Err(Difference::Space);
                }
                // Of common ones the largest counts, and a definition more than they.
                let known = *bytes != 0 && size != 0 && !*common && !tentative;
                if known && *bytes != size {
                    return Err(Difference::Size);
                }
                if *bytes == 0 || (*common && (!tentative || size > *bytes)) {
                    (*bytes, *common) = (size, tentative);
                }
                Ok(())
            }
            (Shape::Kernel { bytes }, Shape::Kernel { bytes: other }) => {
                if bytes == other {
                    Ok(())
                } else {
                    Err(Difference::Signature)
                }
            }
            (Shape::Function { results, params }, Shape::Function { results: r, params: p }) => {
                if same(results, r) && same(params, p) { Ok(()) } else { Err(Difference::Signature) }
            }
            _ => Err(Difference::Kind),
        }
    }
}

fn same(a: &[Formal], b: &[Formal]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a.size, a.reg) == (b.size, b.reg))
}

fn strength(linkage: Linkage) -> u32 {
    match linkage {
        Linkage::Visible => 3,
        Linkage::Weak => 2,
        Linkage::Common => 1,
        Linkage::Extern | Linkage::Internal => 0,
    }
}

fn mismatch(modules: &[Module<'_>], symbol: &str, what: Difference, at: [usize; 2]) -> LinkError {
    let modules = at.map(|module| modules[module].name.to_owned());
    LinkError::Mismatch { symbol: clip(symbol).to_owned(), what, modules }
}

/// Everything that a module declares at its scope.
fn declarations<'a>(module: Module<'a>) -> impl Iterator<Item = Declaration<'a>> {
    let program = module.program;
    let variables = program.variables.iter().enumerate().map(|(index, v)| Declaration {
        name: &v.name,
        piece: Piece::Variable(index),
        linkage: v.linkage,
        shape: Shape::Variable { space: v.space, bytes: v.size, common: v.linkage == Linkage::Common },
        align: v.align,
        defined: v.linkage != Linkage::Extern,
    });
    let mut kernels = vec![None; program.functions.len()];
    for entry in &program.entries {
        kernels[entry.function] = Some(entry);
    }
    let aliased: HashMap<&str, usize> =
        program.aliases.iter().enumerate().map(|(index, alias)| (alias.name.as_str(), index)).collect();
    let mut declared = HashSet::new();
    let functions = program.functions.iter().zip(kernels).enumerate().map(|(index, (f, kernel))| {
        declared.insert(f.name.as_str());
        let alias = aliased.get(f.name.as_str()).filter(|_| f.body.is_none());
        let defined = f.body.is_some() || alias.is_some();
        Declaration {
            name: &f.name,
            piece: alias.map_or(Piece::Function(index), |alias| Piece::Alias(*alias)),
            linkage: if defined && f.linkage == Linkage::Extern { Linkage::Visible } else { f.linkage },
            shape: match kernel {
                Some(kernel) => Shape::Kernel { bytes: kernel.param_bytes },
                None => Shape::Function { results: &f.rets, params: &f.params },
            },
            align: 1,
            defined,
        }
    });
    let functions: Vec<Declaration<'a>> = functions.collect();
    // An alias without a declaration of its name is its module's own.
    let bare = program.aliases.iter().enumerate().filter(|(_, alias)| declared.insert(&alias.name));
    let bare: Vec<Declaration<'a>> = bare
        .map(|(index, alias)| Declaration {
            name: &alias.name,
            piece: Piece::Alias(index),
            linkage: Linkage::Internal,
            shape: Shape::Function { results: &[], params: &[] },
            align: 1,
            defined: true,
        })
        .collect();
    variables.chain(functions).chain(bare)
}

/// What a new name has behind the old one, before a number that no text has there.
pub(super) const TAG: &str = "$linked";

/// A number that follows [`TAG`] in none of the texts: texts that were linked already have some.
fn unused_tag(modules: &[Module<'_>]) -> u64 {
    let mut next = 0;
    for module in modules {
        let mut rest = module.program.text();
        while let Some(at) = rest.find(TAG) {
            rest = &rest[at + TAG.len()..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            // Nobody counts to 18 digits; a longer number is not followed by the rest of a new name.
            if let Some(number) = rest.get(..digits.min(18)).and_then(|digits| digits.parse::<u64>().ok()) {
                next = next.max(number + 1);
            }
        }
    }
    next
}
