//! Linking: several modules, each a PTX text of its own, made one text that means what they mean together.
//!
//! - Symbols that modules show each other: `.extern` ones are resolved by `.visible`, `.weak` and `.common` ones. Of several
//!   definitions the strongest counts (`.visible`, then `.weak`, then `.common`), of several weak ones the first, of several
//!   common ones the largest; two strong ones are an error. Declarations must agree in size and state space, or signature.
//! - Symbols without linkage stay their module's own. Where two modules have one of the same name, the later one's is
//!   renamed; kernels and symbols that others see keep their names.
//! - `.extern .shared` arrays of unknown length that nobody defines are the dynamic shared memory of all kernels.
//! - Members of libraries take part where they are needed.
//! - What the driver provides (`vprintf`, `malloc`, the device runtime, …) needs no definition.
//! - The result has the highest `.version` and `.target` of all. Debug information goes; a pragma before each function says
//!   where it comes from, so that errors name module and line as they were ([`Program`] reads them).
//!
//! ```text
//! Programs ──► symbols: one meaning for each name ──► text: prototypes, variables, functions, aliases
//! ```
//! Time and memory are linear in the texts.
//!
//! Source: PTX ISA 9.x, linking directives; which disagreements are errors: `nvlink` of the toolkit 13.5, by trial.

use std::fmt;

use crate::error::PtxError;
use crate::index::MAX_TEXT;
use crate::lexer::clip;
use crate::program::{Origin, Program};

mod symbols;
mod text;

/// Most undefined symbols that an error lists.
const MOST_UNDEFINED: usize = 32;

/// Longest name of a module that the text carries, bytes.
const MOST_NAME: usize = 200;

/// One module to link.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// How errors name it.
    pub name: &'a str,
    /// What it declares, and its text.
    pub program: &'a Program,
}

/// Why modules cannot be linked. Its `Display` is a line for each thing that is wrong, fit for the JIT error log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkError {
    /// No module at all.
    Nothing,
    /// The body of a function is not PTX.
    Module {
        /// Whose.
        module: String,
        /// What is wrong there.
        error: PtxError,
    },
    /// Symbols that nobody defines, and a module that wants each; so many more are not listed.
    Undefined {
        /// Symbol and module.
        symbols: Vec<(String, String)>,
        /// How many more there are.
        more: usize,
    },
    /// A symbol that two modules define.
    Duplicate {
        /// The symbol.
        symbol: String,
        /// The modules.
        modules: [String; 2],
    },
    /// A symbol that two modules declare in different ways.
    Mismatch {
        /// The symbol.
        symbol: String,
        /// What differs.
        what: Difference,
        /// The modules.
        modules: [String; 2],
    },
    /// The linked text would be longer than any module may be.
    TooLong,
}

/// In what two declarations of a symbol differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Difference {
    /// Variable, function or kernel.
    Kind,
    /// State space of a variable.
    Space,
    /// Bytes of a variable.
    Size,
    /// Parameters or results of a function or kernel.
    Signature,
    /// A `.common` variable is larger than what defines it.
    Common,
    /// Elements of an array that is indexed.
    Element,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Nothing => f.write_str("nothing to link"),
            LinkError::Module { module, error } => write!(f, "{module}: {error}"),
            LinkError::Undefined { symbols, more } => {
                for (index, (symbol, module)) in symbols.iter().enumerate() {
                    let end = if index == 0 { "" } else { "\n" };
                    write!(f, "{end}undefined symbol '{symbol}', wanted by {module}")?;
                }
                if *more > 0 { write!(f, "\nand {more} more undefined symbols") } else { Ok(()) }
            }
            LinkError::Duplicate { symbol, modules: [a, b] } if a == b => {
                write!(f, "'{symbol}' is defined in {a} twice")
            }
            LinkError::Duplicate { symbol, modules: [a, b] } => write!(f, "'{symbol}' is defined in {a} and in {b}"),
            LinkError::Mismatch { symbol, what, modules: [a, b] } => {
                let what = match what {
                    Difference::Kind => "is not the same kind of thing in",
                    Difference::Space => "is not in the same state space in",
                    Difference::Size => "has not the same size in",
                    Difference::Signature => "has not the same parameters and results in",
                    Difference::Element => "is indexed, but has not the same elements in",
                    Difference::Common => "is common and larger than its initialised definition, in",
                };
                write!(f, "'{symbol}' {what} {a} and {b}")
            }
            LinkError::TooLong => write!(f, "the linked text is longer than {MAX_TEXT} bytes"),
        }
    }
}

impl std::error::Error for LinkError {}

/// The modules as one text, for [`Program::parse`]. The text of a single module stays as it is.
///
/// # Errors
/// What keeps them from being one: symbols that nobody defines, or several, or in different ways.
pub fn link(modules: &[Module<'_>]) -> Result<String, LinkError> {
    link_with(modules, &[])
}

/// As [`link`], with those members of libraries that have kernels, or define a symbol that is wanted.
///
/// # Errors
/// As [`link`].
pub fn link_with(modules: &[Module<'_>], members: &[Module<'_>]) -> Result<String, LinkError> {
    let modules = &symbols::needed(modules, members)[..];
    let symbols = symbols::Symbols::of(modules)?;
    let linked = text::write(modules, &symbols)?;
    Ok(match modules {
        [] => return Err(LinkError::Nothing),
        [one] => one.program.text().to_owned(),
        _ => linked,
    })
}

/// The word that begins the pragma of an origin.
const ORIGIN: &str = "sundial from ";

/// The pragma that says where the next lines come from.
fn origin_pragma(module: &str, line: u32) -> String {
    let end = module.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MOST_NAME).last();
    let harmless = |c: char| if c.is_control() || matches!(c, '"' | '\\') { '?' } else { c };
    let name: String = module[..end.unwrap_or(0)].chars().map(harmless).collect();
    format!("\n.pragma \"{ORIGIN}{line} {name}\";\n")
}

/// The origin in a pragma on line `at`: of the lines after it.
pub(crate) fn read_origin(text: &str, at: u32) -> Option<Origin> {
    let (line, module) = text.strip_prefix(ORIGIN)?.split_once(' ')?;
    let line = line.parse().ok()?;
    Some(Origin { from: at.saturating_add(1), line, module: clip(module).to_owned() })
}
