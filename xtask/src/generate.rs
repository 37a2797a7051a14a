//! `cargo xtask gen`: what is made from the table of driver functions, `crates/cuda_abi/functions.txt`.
//!
//! ```text
//! cuMemcpyHtoD                                                 a name, as programs ask for it
//!   2000 cuMemcpyHtoD(dst_device: CUdeviceptr_v1, …)           a variant: since, symbol, parameters
//!   3020 cuMemcpyHtoD_v2(dst_device: …) = copy::memcpy_htod    implemented by this function of libcuda's `calls`
//!   7000 cuMemcpyHtoD_v2_ptds as cuMemcpyHtoD_v2               the same for per-thread default streams
//! cuGLInit
//!   2000 cuGLInit ! OPERATING_SYSTEM graphics                  refused, with this code and for this reason
//! ! graphics: no graphics on this GPU                          a reason, before the first name
//! ```
//! Every variant is implemented or refused. A refused one answers as a real driver does where a GPU lacks what it is for.
//!
//! `= early …` marks functions that work before `cuInit`. A function that has a per-thread variant but no stream among its
//! parameters gets the default stream it works on as its first argument.
//!
//! Made are the shims and the address map of the crate `libcuda`, and `docs/coverage.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const TABLE: &str = "crates/cuda_abi/functions.txt";
const SHIMS: &str = "crates/libcuda/src/shims";
const COVERAGE: &str = "docs/coverage.md";
const MADE: &str = "Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.";

/// A name and its variants.
struct Name {
    name: String,
    variants: Vec<Variant>,
}

/// A function under a name.
struct Variant {
    since: u32,
    symbol: String,
    /// Name and type of each.
    parameters: Vec<(String, String)>,
    /// `None` only until [`inherit`] has filled in what a variant for per-thread default streams does.
    answer: Option<AnswerOf>,
    /// The symbol that this is the per-thread variant of.
    per_thread_of: Option<String>,
}

/// What a function does.
#[derive(Clone)]
enum AnswerOf {
    Done(Call),
    Refused {
        /// Without `CUDA_ERROR_`.
        code: String,
        reason: String,
    },
}

impl Variant {
    fn call(&self) -> Option<&Call> {
        match &self.answer {
            Some(AnswerOf::Done(call)) => Some(call),
            _ => None,
        }
    }

    fn refusal(&self) -> Option<(&str, &str)> {
        match &self.answer {
            Some(AnswerOf::Refused { code, reason }) => Some((code, reason)),
            _ => None,
        }
    }
}

/// What implements a function.
#[derive(Clone)]
struct Call {
    early: bool,
    family: String,
    function: String,
}

/// Makes all files, or with `check` compares them with what would be made.
///
/// # Errors
/// The table is malformed, a file cannot be written, or (with `check`) one differs.
pub(crate) fn generate(root: &Path, check: bool) -> Result<()> {
    let table = std::fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let names = parse(&table)?;
    of_names(NOTES, &names)?;
    let mut files = vec![(COVERAGE.to_owned(), coverage(&names))];
    let families = families(&names);
    for family in &families {
        files.push((format!("{SHIMS}/{family}.rs"), rustfmt(root, &shims(&names, family))?));
    }
    files.push((format!("{SHIMS}/refused.rs"), rustfmt(root, &refused(&names))?));
    files.push((format!("{SHIMS}/addresses.rs"), rustfmt(root, &addresses(&names))?));
    files.push((format!("{SHIMS}/mod.rs"), rustfmt(root, &modules(&families))?));
    for (path, text) in files {
        let file = root.join(&path);
        if check {
            let there = std::fs::read_to_string(&file).unwrap_or_default();
            ensure!(there == text, "{path} is not what the table says: run `cargo xtask gen`");
        } else {
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&file, text).with_context(|| path.clone())?;
        }
    }
    Ok(())
}

fn parse(table: &str) -> Result<Vec<Name>> {
    let mut names: Vec<Name> = Vec::new();
    let (mut reasons, mut used) = (BTreeMap::new(), BTreeSet::new());
    for (number, line) in table.lines().enumerate() {
        let row = || format!("{TABLE}:{}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(reason) = line.strip_prefix("! ") {
            let (word, reason) = reason.split_once(": ").with_context(row)?;
            reasons.insert(word, reason);
            continue;
        }
        let Some(variant) = line.strip_prefix("  ") else {
            ensure!(names.last().is_none_or(|last| *last.name < *line), "{}: names are sorted", row());
            names.push(Name { name: line.to_owned(), variants: Vec::new() });
            continue;
        };
        let name = names.last_mut().with_context(row)?;
        name.variants.push(parse_variant(variant, &reasons, &mut used).with_context(row)?);
    }
    let unused: Vec<&str> = reasons.into_keys().filter(|word| !used.contains(word)).collect();
    ensure!(unused.is_empty(), "{TABLE}: nothing is refused because of {unused:?}");
    inherit(&mut names)?;
    Ok(names)
}

/// A variant; notes the word of its reason, if it is refused.
fn parse_variant<'a>(text: &'a str, reasons: &BTreeMap<&str, &str>, used: &mut BTreeSet<&'a str>) -> Result<Variant> {
    let (since, rest) = text.split_once(' ').context("since and symbol")?;
    let since = since.parse()?;
    if let Some((symbol, of)) = rest.split_once(" as ") {
        let per_thread_of = Some(of.to_owned());
        return Ok(Variant { since, symbol: symbol.to_owned(), parameters: Vec::new(), answer: None, per_thread_of });
    }
    let (declaration, answer) = if let Some((declaration, call)) = rest.split_once(" = ") {
        (declaration, AnswerOf::Done(parse_call(call)?))
    } else {
        let (declaration, refusal) = rest.split_once(" ! ").context("neither implemented nor refused")?;
        let (code, word) = refusal.split_once(' ').context("code and reason")?;
        let reason = *reasons.get(word).with_context(|| format!("no reason {word}"))?;
        used.insert(word);
        (declaration, AnswerOf::Refused { code: code.to_owned(), reason: reason.to_owned() })
    };
    let (symbol, parameters) = match declaration.split_once('(') {
        Some((symbol, list)) => (symbol, parse_parameters(list.strip_suffix(')').context("parameters end in )")?)?),
        None => (declaration, Vec::new()),
    };
    Ok(Variant { since, symbol: symbol.to_owned(), parameters, answer: Some(answer), per_thread_of: None })
}

fn parse_call(text: &str) -> Result<Call> {
    let (early, path) = text.strip_prefix("early ").map_or((false, text), |path| (true, path));
    let (family, function) = path.split_once("::").context("family::function")?;
    Ok(Call { early, family: family.to_owned(), function: function.to_owned() })
}

fn parse_parameters(list: &str) -> Result<Vec<(String, String)>> {
    let parameters = list.split(", ").filter(|parameter| !parameter.is_empty()).map(|parameter| {
        let (name, kind) = parameter.split_once(": ").context("name: type")?;
        Ok((name.to_owned(), kind.to_owned()))
    });
    parameters.collect()
}

/// Per-thread variants take parameters and implementation from what they are variants of.
fn inherit(names: &mut [Name]) -> Result<()> {
    for name in names {
        for index in 0..name.variants.len() {
            let Some(of) = name.variants[index].per_thread_of.clone() else { continue };
            let base = name.variants.iter().find(|variant| variant.symbol == of).context(of)?;
            let (parameters, answer) = (base.parameters.clone(), base.answer.clone());
            (name.variants[index].parameters, name.variants[index].answer) = (parameters, answer);
        }
    }
    Ok(())
}

fn families(names: &[Name]) -> BTreeSet<String> {
    let variants = names.iter().flat_map(|name| &name.variants);
    variants.filter_map(|variant| Some(variant.call()?.family.clone())).collect()
}

/// True if the function works on a default stream that its parameters do not name.
fn implicit_stream(name: &Name, variant: &Variant) -> bool {
    let of = variant.per_thread_of.as_ref().unwrap_or(&variant.symbol);
    let has_variant = name.variants.iter().any(|other| other.per_thread_of.as_ref() == Some(of));
    has_variant && !variant.parameters.iter().any(|(_, kind)| kind == "CUstream")
}

fn shims(names: &[Name], family: &str) -> String {
    let mut body = String::new();
    let mut streams = BTreeSet::new();
    for name in names {
        for variant in &name.variants {
            let Some(call) = variant.call().filter(|call| call.family == family) else { continue };
            let per_thread = variant.per_thread_of.is_some();
            let mut arguments = Vec::new();
            if !call.early {
                arguments.push("driver".to_owned());
            }
            if implicit_stream(name, variant) {
                streams.insert(if per_thread { "CUstream" } else { "DEFAULT_STREAM" });
                arguments.push(if per_thread { "CUstream::PER_THREAD" } else { "DEFAULT_STREAM" }.to_owned());
            }
            for (parameter, kind) in &variant.parameters {
                if per_thread && kind == "CUstream" {
                    streams.insert("per_thread");
                    arguments.push(format!("per_thread({parameter})"));
                } else {
                    arguments.push(parameter.clone());
                }
            }
            let parameters: Vec<String> =
                variant.parameters.iter().map(|(parameter, kind)| format!("{parameter}: {kind}")).collect();
            let (enter, closure) = if call.early { ("call_early", "|| ") } else { ("call", "|driver| ") };
            let body_of = match &arguments[..] {
                [only] if only == "driver" => format!("{family}::{}", call.function),
                _ => format!("{closure}{family}::{}({})", call.function, arguments.join(", ")),
            };
            let _ = write!(
                body,
                "\n#[unsafe(no_mangle)]\npub(super) extern \"C\" fn {symbol}({parameters}) -> CUresult {{\n\
                 static ENTRY: Entry = Entry::new(\"{symbol}\");\n\
                 ENTRY.{enter}({body_of})\n}}\n",
                symbol = variant.symbol,
                parameters = parameters.join(", "),
            );
        }
    }
    let mut abi = words(&body, |word| {
        (word.starts_with("CU") && word.chars().nth(2).is_some_and(char::is_alphanumeric) || word == "HostAddr")
            || word.starts_with("CUDA_")
            || word.starts_with("CU_DEV_")
    });
    abi.insert("CUresult".to_owned());
    let decode = words(&body, |word| matches!(word, "Out" | "In" | "InOut" | "Text"));
    let mut head = format!("//! Exported functions implemented by `calls::{family}`. {MADE}\n\n");
    let _ = writeln!(head, "use cuda_abi::{{{}}};\n", join(&abi));
    let _ = writeln!(head, "use crate::calls::{family};");
    if !decode.is_empty() {
        let _ = writeln!(head, "use crate::decode::{{{}}};", join(&decode));
    }
    let _ = writeln!(head, "use crate::entry::Entry;");
    streams.remove("CUstream");
    if !streams.is_empty() {
        let _ = writeln!(head, "use crate::start::{{{}}};", streams.into_iter().collect::<Vec<_>>().join(", "));
    }
    head + &body
}

/// Identifiers in a text that are wanted.
fn words(text: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| wanted(word)).map(str::to_owned).collect()
}

fn join(words: &BTreeSet<String>) -> String {
    words.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn refused(names: &[Name]) -> String {
    let variants = names.iter().flat_map(|name| &name.variants);
    let rows: BTreeMap<&str, (&str, &str)> =
        variants.filter_map(|variant| Some((variant.symbol.as_str(), variant.refusal()?))).collect();
    let mut text = format!(
        "//! Exported functions that are refused. {MADE}\n\n\
         use cuda_abi::CUresult;\n\nuse crate::entry::Entry;\n\n\
         /// Whatever its parameters are: in the C calling convention the caller cleans up.\n\
         macro_rules! refused {{\n    ($($symbol:ident: $code:ident, $reason:literal;)*) => {{$(\n\
         #[unsafe(no_mangle)]\n        pub(super) extern \"C\" fn $symbol() -> CUresult {{\n\
         static ENTRY: Entry = Entry::new(stringify!($symbol));\n            \
         ENTRY.refuse(CUresult::$code, $reason)\n        }}\n    )*}};\n}}\n\n\
         refused! {{\n"
    );
    for (symbol, (code, reason)) in rows {
        let _ = writeln!(text, "    {symbol}: CUDA_ERROR_{code}, {reason:?};");
    }
    text + "}\n"
}

/// Of the address map; not formatted by rustfmt, so written as it shall be.
const MACROS: &str = r"/// A row: name, variants, and after `/` those for per-thread default streams; each with the version it came in.
macro_rules! names {
    ($($name:ident: $($since:literal $symbol:ident)* $(/ $($pt_since:literal $pt_symbol:ident)*)?;)*) => {
        /// Every name, sorted.
        pub(crate) static NAMES: &[Name] = &[$(Name {
            name: stringify!($name),
            variants: &[$(variant!($since $symbol)),*],
            per_thread: &[$($(variant!($pt_since $pt_symbol)),*)?],
        }),*];
    };
}

macro_rules! variant {
    ($since:literal $symbol:ident) => {
        Variant { since: $since, symbol: stringify!($symbol), address: Address($symbol as *const ()) }
    };
}

names! {
";

fn addresses(names: &[Name]) -> String {
    let mut text = format!("//! The address map. {MADE}\n\nuse crate::addresses::{{Address, Name, Variant}};\n");
    for family in families(names) {
        let _ = writeln!(text, "use crate::shims::{family}::*;");
    }
    text += "use crate::shims::refused::*;\n\n";
    text += MACROS;
    for name in names {
        let list = |per_thread: bool| {
            let of = name.variants.iter().filter(|variant| variant.per_thread_of.is_some() == per_thread);
            of.map(|variant| format!(" {} {}", variant.since, variant.symbol)).collect::<String>()
        };
        let per_thread = list(true);
        let slash = if per_thread.is_empty() { "" } else { " /" };
        let _ = writeln!(text, "    {}:{}{slash}{per_thread};", name.name, list(false));
    }
    text + "}\n"
}

fn modules(families: &BTreeSet<String>) -> String {
    let mut text = format!(
        "//! The exported functions and their address map. {MADE}\n\npub(crate) mod addresses;\nmod refused;\n"
    );
    for family in families {
        let _ = writeln!(text, "mod {family};");
    }
    text
}

/// What does less than its name says, and how.
const NOTES: &[(&str, &str)] = &[
    (
        "cuGreenCtxCreate",
        "how many multiprocessors it has is told, and heeded by occupancy and cooperative launches; its kernels run on any of the GPU's, \
         beside those of others, and the configuration of its work queues is a hint without effect",
    ),
    (
        "cuDevSmResourceSplit",
        "multiprocessors are alike: co-scheduling is possible everywhere, and there are no locality domains",
    ),
];

/// Whether each note is of a name that there is.
fn of_names(notes: &[(&str, &str)], names: &[Name]) -> Result<()> {
    for (of, _) in notes {
        ensure!(names.iter().any(|name| name.name == *of), "a note on {of}, which is not in {TABLE}");
    }
    Ok(())
}

fn coverage(names: &[Name]) -> String {
    let variants: Vec<&Variant> = names.iter().flat_map(|name| &name.variants).collect();
    let named = names.iter().filter(|name| newest(name).is_some_and(|variant| variant.call().is_some())).count();
    let done = variants.iter().filter(|variant| variant.call().is_some()).count();
    let mut text = format!(
        "# Coverage of the driver API\n\n{MADE}\n\n\
         Of {} names, {named} are implemented in their newest variant and {} refused, because of what the GPU or the system\n\
         lacks: they return the code that a driver returns there. Of {} exported symbols, {done} are implemented and {}\n\
         refused. Nothing is missing.\n\n\
         | name | variants (CUDA version) | status |\n|---|---|---|\n",
        names.len(),
        names.len() - named,
        variants.len(),
        variants.len() - done,
    );
    for name in names {
        let mut by_status: BTreeMap<Option<(&str, &str)>, Vec<String>> = BTreeMap::new();
        for variant in &name.variants {
            let row = format!("{} ({}.{})", variant.symbol, variant.since / 1000, variant.since % 1000 / 10);
            by_status.entry(variant.refusal()).or_default().push(row);
        }
        let alike = by_status.len() == 1;
        let statuses = by_status.iter().map(|(refusal, which)| {
            let of = if alike { String::new() } else { format!("{}: ", which.join(", ")) };
            match refusal {
                None => format!("{of}implemented"),
                Some((code, reason)) => format!("{of}refused ({code}): {reason}"),
            }
        });
        let status = statuses.collect::<Vec<_>>().join("; ");
        let note = NOTES.iter().find(|(of, _)| *of == name.name).map_or(String::new(), |(_, note)| format!(": {note}"));
        let all: Vec<String> = by_status.into_values().flatten().collect();
        let _ = writeln!(text, "| {} | {} | {status}{note} |", name.name, all.join(", "));
    }
    text
}

/// The variant that programs built today get.
fn newest(name: &Name) -> Option<&Variant> {
    name.variants.iter().filter(|variant| variant.per_thread_of.is_none()).max_by_key(|variant| variant.since)
}

fn rustfmt(root: &Path, text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("rustfmt")?;
    child.stdin.take().context("rustfmt's input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("rustfmt refuses what was made:\n{text}");
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "! graphics: no graphics\n\
        cuA\n  2000 cuA(x: u32) ! OPERATING_SYSTEM graphics\n  3020 cuA_v2(x: u64) = copy::a\n  7000 cuA_v2_ptds as cuA_v2\n";

    #[test]
    fn variants_inherit() {
        let names = parse(SAMPLE).unwrap();
        let pt = &names[0].variants[2];
        assert_eq!(pt.parameters.len(), 1);
        assert!(implicit_stream(&names[0], pt));
        assert!(shims(&names, "copy").contains("copy::a(driver, CUstream::PER_THREAD, x)"));
    }

    #[test]
    fn refusals_say_why() {
        let names = parse(SAMPLE).unwrap();
        assert!(refused(&names).contains("    cuA: CUDA_ERROR_OPERATING_SYSTEM, \"no graphics\";\n"));
        let coverage = coverage(&names);
        assert!(coverage.contains("cuA (2.0): refused (OPERATING_SYSTEM): no graphics"), "{coverage}");
        assert!(coverage.contains("Of 1 names, 1 are implemented in their newest variant and 0 refused"), "{coverage}");
    }

    #[test]
    fn malformed_tables_are_refused() {
        assert!(parse("cuB\ncuA\n").is_err());
        assert!(parse("  2000 cuA() = copy::a\n").is_err());
        assert!(parse("cuA\n  x cuA() = copy::a\n").is_err());
        assert!(parse("cuA\n  2000 cuA_ptsz as cuB\n").is_err());
        assert!(parse("cuA\n  2000 cuA() ! NOT_SUPPORTED nothing\n").is_err());
        let unused = format!("! fabric: no fabric\n{SAMPLE}");
        assert!(parse(&unused).map(drop).unwrap_err().to_string().contains("fabric"));
    }

    #[test]
    fn notes_are_of_names() {
        let names = parse(SAMPLE).unwrap();
        assert!(of_names(&[("cuA", "less")], &names).is_ok());
        assert!(of_names(&[("cuA_v2", "less")], &names).is_err(), "a symbol");
    }

    #[test]
    fn nothing_is_missing() {
        assert!(parse("cuA\n  2000 cuA() = copy::a\n").is_ok());
        let missing = parse("cuA\n  2000 cuA()\n").map(drop).unwrap_err();
        assert!(format!("{missing:#}").contains("neither implemented nor refused"), "{missing:#}");
    }
}
