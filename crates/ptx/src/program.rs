//! A module as its text declares it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::children;
use crate::decl::{Linkage, Opaque};
use crate::error::PtxError;
use crate::index;
use crate::ir::{Kernel, Param, RegTy};
use crate::lexer::Mark;
use crate::lower::{self, Facts};
use crate::sources::Sources;

/// A module: what it declares, and its text, from which kernels are compiled when they are wanted.
pub struct Program {
    pub(crate) text: Arc<str>,
    pub(crate) version: u32,
    pub(crate) target: u32,
    /// What follows `.target`.
    pub(crate) target_words: Vec<String>,
    pub(crate) aliases: Vec<Alias>,
    /// Texts of the pragmas at module scope, with their quotes.
    pub(crate) pragmas: Vec<Range<usize>>,
    /// Where lines of a linked text come from, in its order.
    pub(crate) origins: Vec<Origin>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) names: HashMap<String, Item>,
    /// Does any of them begin like registers, as they may?
    pub(crate) has_percent_names: bool,
    /// May products and sums be fused? Yes, unless the module's pragma says otherwise.
    pub(crate) contracts: bool,
    /// Registers per thread that the module's pragma allows.
    pub(crate) max_registers: Option<u32>,
    /// Functions that initial values hold, once somebody asks.
    pub(crate) pointed: OnceLock<Vec<usize>>,
    /// Where the lines come from, once a kernel is compiled.
    pub(crate) sources: OnceLock<Sources>,
}

/// What a module-scope name means: an index into the list of that kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    Entry(usize),
    Function(usize),
    Variable(usize),
}

/// Where lines of a linked text come from, up to the next origin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Line of the linked text, from which on
    pub from: u32,
    /// it is that of a module from this line on.
    pub line: u32,
    /// The module's name, as who linked it has given it.
    pub module: String,
}

impl Origin {
    /// Module and line that a line comes from, by the `origins` in the order of the text.
    #[must_use]
    pub fn of(origins: &[Origin], line: u32) -> Option<(&str, u32)> {
        let origin = &origins[origins.partition_point(|origin| origin.from <= line).checked_sub(1)?];
        Some((&origin.module, origin.line.saturating_add(line.saturating_sub(origin.from))))
    }
}

/// `.alias name, target;`
#[derive(Clone, Debug)]
pub(crate) struct Alias {
    pub(crate) name: String,
    pub(crate) target: String,
}

/// A kernel's declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name, mangled.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Size of the parameter block, bytes.
    pub param_bytes: u32,
    /// `.reqntid`, or else `.maxntid`; missing dimensions are 1.
    pub max_ntid: Option<[u32; 3]>,
    /// Is that bound exact (`.reqntid`)?
    pub exact_ntid: bool,
    /// `.reqnctapercluster`: CTAs of a cluster, which every launch has then.
    pub cluster: Option<[u32; 3]>,
    /// `.blocksareclusters`: a launch counts clusters where it would count CTAs.
    pub blocks_are_clusters: bool,
    /// `.minnctapersm`: CTAs per SM the author wants resident.
    pub min_ctas_per_sm: Option<u32>,
    /// `.maxnreg`: registers per thread the author allows.
    pub max_registers: Option<u32>,
    /// Who sees it.
    pub linkage: Linkage,
    /// Line of the declaration.
    pub line: u32,
    /// Index into `Program::functions`, where its body is found.
    pub(crate) function: usize,
}

/// Signature and body of an `.entry` or a `.func`.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) rets: Vec<Formal>,
    pub(crate) params: Vec<Formal>,
    pub(crate) linkage: Linkage,
    /// From behind `.func` or `.entry` to behind the closing brace or the semicolon.
    pub(crate) span: Range<usize>,
    /// Right after the opening brace; `None` for a declaration.
    pub(crate) body: Option<Mark>,
    pub(crate) line: u32,
    /// What a scan of the body found, once somebody asks.
    pub(crate) facts: OnceLock<Result<Arc<Facts>, PtxError>>,
}

/// A formal parameter or return value.
#[derive(Clone, Debug)]
pub(crate) struct Formal {
    pub(crate) name: String,
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// Offset in the parameter block (of an entry), bytes.
    pub(crate) offset: u32,
    /// Class of a `.reg` parameter; `None` for `.param` memory.
    pub(crate) reg: Option<RegTy>,
    /// Bytes of an element, if it is an array.
    pub(crate) element: Option<u32>,
}

/// State space of a module-scope variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VarSpace {
    /// `.global`: one instance, mutable.
    Global,
    /// `.const`: one instance, read only for kernels.
    Const,
    /// `.shared`: an instance per CTA, laid out by [`Program::lower`]; extern ones are dynamic shared memory.
    Shared,
}

/// A module-scope variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Where it lives.
    pub space: VarSpace,
    /// Who sees it; with [`Linkage::Extern`] this is no definition where modules are linked.
    pub linkage: Linkage,
    /// Size in bytes; 0 if extern and of unknown length.
    pub size: u64,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// First bytes of its initial value; the rest is zero.
    pub init: Vec<u8>,
    /// Addresses to put into `init`.
    pub relocations: Vec<Relocation>,
    /// `.attribute(.managed)`: host code reads and writes it, too.
    pub managed: bool,
    /// A texture, sampler or surface reference: 8 bytes for a handle, which the driver writes; kernels only load it.
    pub opaque: Option<Opaque>,
    /// Bytes of an element, if it is an array.
    pub(crate) element: Option<u32>,
    /// Where its name stands.
    pub(crate) mark: Mark,
    /// Where its declaration begins; the head is shared by all names of one declaration.
    pub(crate) head: Mark,
    /// Behind its initial value, or its name.
    pub(crate) end: usize,
}

impl Variable {
    /// Whether a program that is loaded as it is has memory for it. For arrays of unknown length it has none: they are dynamic shared
    /// memory, or somebody else was to define them.
    #[must_use]
    pub fn is_defined(&self) -> bool {
        self.linkage.defines(self.size)
    }
}

/// A place in an initial value that holds a symbol's address.
///
/// The value is `((address + addend) & mask) >> mask.trailing_zeros()`, little endian, `bytes` long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// Where in the variable, bytes; `offset + bytes` is within `init`.
    pub offset: u64,
    /// How many bytes are written: 1, 2, 4 or 8.
    pub bytes: u32,
    /// Whose address. A function's is [`Program::function_handle`].
    pub symbol: String,
    /// Added to the address, wrapping.
    pub addend: i64,
    /// Which bits of it; not zero.
    pub mask: u64,
}

/// What a kernel occupies, found without compiling it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// Static shared memory, bytes; exactly that of the compiled kernel.
    pub shared_bytes: u32,
    /// Alignment of the dynamic part, bytes.
    pub shared_align: u32,
    /// Local memory declared by the kernel and the functions it can call, bytes; the compiled kernel may need less,
    /// because not all of them are active at once, or a little more, for arguments in memory.
    pub local_bytes: u32,
    /// Registers per thread, as a compiler for hardware would report: an estimate, 16 to 255.
    pub registers: u32,
}

impl Relocation {
    /// Puts the address of the symbol into the variable's initial value.
    pub fn apply(&self, init: &mut [u8], address: u64) {
        let value = address.wrapping_add_signed(self.addend) & self.mask;
        let value = value.checked_shr(self.mask.trailing_zeros()).unwrap_or(0);
        let bytes = (self.bytes as usize).min(8);
        let at = self.offset as usize;
        if let Some(place) = init.get_mut(at..at + bytes) {
            place.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }
}

impl Program {
    /// Reads the declarations of a module and finds its functions' bodies, which it does not parse. The text ends at a
    /// NUL or at the end of `text`; bytes that are not UTF-8 are tolerated in comments.
    ///
    /// # Errors
    /// What is not PTX at module scope, or a 32-bit module.
    pub fn parse(text: &[u8]) -> Result<Program, PtxError> {
        let text = before_nul(text);
        // Of tens of megabytes: what is UTF-8 is seen faster where nothing has to be replaced.
        let text: Arc<str> = match str::from_utf8(text) {
            Ok(text) => text.into(),
            Err(_) => String::from_utf8_lossy(text).into(),
        };
        index::index(text)
    }

    /// The text that was parsed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `.version` as major * 10 + minor.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// `.target` as a number: 75 for `sm_75`, 120 for `sm_120a`.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// The kernels with a body, in the order of the text.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The module-scope variables in the order of the text. An extern declaration of a variable that the module also
    /// defines is not listed.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Index of the kernel of that name.
    #[must_use]
    pub fn find_entry(&self, name: &str) -> Option<usize> {
        match self.names.get(name) {
            Some(Item::Entry(index)) => Some(*index),
            _ => None,
        }
    }

    /// Bytes of constant memory the module declares.
    #[must_use]
    pub fn const_bytes(&self) -> u64 {
        let consts = self.variables.iter().filter(|v| v.space == VarSpace::Const);
        consts.fold(0, |sum, v| sum.saturating_add(v.size))
    }

    /// The value that stands for a function's address in memory (virtual tables, function pointers): not an address,
    /// but the same wherever this module's text is used.
    #[must_use]
    pub fn function_handle(&self, name: &str) -> Option<u64> {
        match self.names.get(name)? {
            Item::Function(index) => Some(handle(*index)),
            Item::Entry(index) => Some(children::handle(*index)),
            Item::Variable(_) => None,
        }
    }

    /// What each kernel occupies, by a scan of its body and of the functions it calls, or what is wrong with its declarations. `None`
    /// if that means to look at more than `most` functions, calls and shared variables, each counted for every kernel that reaches
    /// it: of a few thousand functions and as many kernels that takes long beyond what the text says.
    #[must_use]
    pub fn resources(&self, most: u64) -> Option<Vec<Result<Resources, PtxError>>> {
        let mut left = most;
        let each = self.entries.iter().map(|entry| {
            let found = lower::resources(self, entry, &mut left).map_err(|error| self.located(error));
            (left > 0).then_some(found)
        });
        each.collect()
    }

    /// Compiles kernel `entry` to verified IR. `symbols` gives the GPU virtual addresses of global and constant
    /// variables.
    ///
    /// # Errors
    /// What is wrong with the kernel's text or not supported; an index out of range.
    pub fn lower(&self, entry: usize, symbols: &dyn Fn(&str) -> Option<u64>) -> Result<Kernel, PtxError> {
        let kernel = lower::lower(self, entry, symbols).map_err(|error| self.located(error))?;
        let sources = self.sources.get_or_init(|| Sources::of_text(&self.text)).of_lines(lines(&kernel));
        Ok(Kernel { origins: self.origins(&kernel), sources, ..kernel })
    }

    /// Module and line that a line of a linked text comes from.
    pub(crate) fn origin(&self, line: u32) -> Option<(&str, u32)> {
        Origin::of(&self.origins, line)
    }

    /// Where the lines come from that a kernel is made of, if the text was linked.
    fn origins(&self, kernel: &Kernel) -> Vec<Origin> {
        let position = |line: u32| self.origins.partition_point(|origin| origin.from <= line).checked_sub(1);
        let used: BTreeSet<usize> = lines(kernel).filter_map(position).collect();
        used.into_iter().map(|at| self.origins[at].clone()).collect()
    }

    /// The error with the line that its author knows.
    fn located(&self, error: PtxError) -> PtxError {
        match self.origin(error.line) {
            Some((module, line)) => PtxError { line, message: format!("{} (in {module})", error.message), ..error },
            None => error,
        }
    }
}

/// What lies before the first NUL, where a text ends; all, if there is none.
#[must_use]
pub fn before_nul(text: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(text).map_or(text, CStr::to_bytes)
}

/// Lines of a kernel's instructions.
fn lines(kernel: &Kernel) -> impl Iterator<Item = u32> {
    kernel.blocks.iter().flat_map(|block| &block.insts).map(|inst| inst.line)
}

/// [`Program::function_handle`] of a function. Never 0; 16-byte steps, as code addresses have.
pub(crate) fn handle(function: usize) -> u64 {
    (function as u64 + 1) * 16
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("bytes", &self.text.len())
            .field("version", &self.version)
            .field("target", &self.target)
            .field("entries", &self.entries.len())
            .field("functions", &self.functions.len())
            .field("variables", &self.variables.len())
            .finish_non_exhaustive()
    }
}
