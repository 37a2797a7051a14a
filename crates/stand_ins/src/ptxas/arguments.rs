//! The command line of ptxas.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use ptx::JitOptions;

/// What was asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    Version,
    Help,
    Assembly(Task),
}

/// A module to assemble.
#[derive(Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    /// What it refers to may be defined in other modules.
    pub(crate) relocatable: bool,
    pub(crate) verbose: bool,
    pub(crate) options: JitOptions,
}

/// Options that are followed by a value, in one word or the next.
const WITH_VALUE: [&str; 44] = [
    "--Ofast-compile",
    "-Ofc",
    "--allow-expensive-optimizations",
    "-allow-expensive-optimizations",
    "--apply-controls",
    "-apply-controls",
    "--def-load-cache",
    "-dlcm",
    "--def-store-cache",
    "-dscm",
    "--device-function-maxrregcount",
    "-func-maxrregcount",
    "--device-stack-protector",
    "-device-stack-protector",
    "--enable-func-clone-sc",
    "-enable-func-clone-sc",
    "--entry",
    "-e",
    "--fmad",
    "-fmad",
    "--force-load-cache",
    "-flcm",
    "--force-store-cache",
    "-fscm",
    "--gpu-name",
    "-arch",
    "--machine",
    "-m",
    "--maxntid",
    "-maxntid",
    "--maxrregcount",
    "-maxrregcount",
    "--minnctapersm",
    "-minnctapersm",
    "--opt-level",
    "-O",
    "--output-file",
    "-o",
    "--position-independent-code",
    "-pic",
    "--register-usage-level",
    "-regUsageLevel",
    "--split-compile",
    "-split-compile",
];

/// Reads the words after the program's name.
pub(crate) fn read(words: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let mut words = words;
    let (mut input, mut output) = (None, None);
    let (mut relocatable, mut verbose) = (false, false);
    let mut options = JitOptions::default();
    let mut any = false;
    while let Some(word) = words.next() {
        any = true;
        if !word.as_encoded_bytes().starts_with(b"-") {
            if input.replace(PathBuf::from(&word)).is_some() {
                return Err("More than one input file; this stand-in takes one at a time".into());
            }
            continue;
        }
        let (name, attached) = split(&word);
        let mut value = || {
            attached
                .clone()
                .or_else(|| words.next())
                .ok_or_else(|| format!("Option '{name}' is not followed by a value"))
        };
        match &*name {
            "--version" | "-V" => return Ok(Asked::Version),
            "--help" | "-h" => return Ok(Asked::Help),
            "--compile-only" | "-c" => relocatable = true,
            "--verbose" | "-v" | "--verbose2" | "-v2" => verbose = true,
            "--output-file" | "-o" => output = Some(PathBuf::from(value()?)),
            "--fmad" | "-fmad" => options.fma = value()? != "false",
            // Or a word for as many, or as few, as the architecture allows.
            "--maxrregcount" | "-maxrregcount" => {
                options.max_registers = value()?.to_str().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
            }
            "--options-file" | "-optf" | "--input-as-string" | "-ias" => {
                return Err(format!("Option '{name}' is not supported by this stand-in: name a file"));
            }
            name if WITH_VALUE.contains(&name) => drop(value()?),
            // What to warn of, and how to optimise.
            _ => {}
        }
    }
    match input {
        Some(input) => {
            let output = output.unwrap_or_else(|| "elf.o".into());
            Ok(Asked::Assembly(Task { input, output, relocatable, verbose, options }))
        }
        None if any => Err("No input file specified; use option --help for more information".into()),
        None => Ok(Asked::Help),
    }
}

/// An option's name, and its value where that is in the same word.
fn split(word: &OsStr) -> (String, Option<OsString>) {
    let text = word.to_string_lossy();
    match text.split_once('=') {
        // What is not text here is a path, and those are text but for rare ones.
        Some((name, value)) => (name.to_owned(), Some(value.into())),
        None => match text.strip_prefix("-O").filter(|level| level.len() == 1 && *level >= "0" && *level <= "9") {
            Some(level) => ("-O".into(), Some(level.into())),
            None => (text.into_owned(), None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Asked, String> {
        read(line.split_whitespace().map(OsString::from))
    }

    fn task(line: &str) -> Task {
        match words(line) {
            Ok(Asked::Assembly(task)) => task,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn values_are_no_input_files() {
        let triton = task("-lineinfo -v --fmad=false --gpu-name=sm_120a /t/x.ptx -o /t/x.ptx.o");
        assert_eq!((triton.input, triton.output), ("/t/x.ptx".into(), "/t/x.ptx.o".into()));
        assert!(triton.verbose && !triton.options.fma);
        let xla = task("-v -arch sm_120 -O 3 -maxrregcount 32 a.ptx --output-file=b --warn-on-spills --new-option");
        assert_eq!((xla.input, xla.output), ("a.ptx".into(), "b".into()));
        assert_eq!(xla.options, JitOptions { fma: true, max_registers: Some(32) });
        let least = task("-O3 -maxrregcount=archmax -c a.ptx");
        assert_eq!((least.output, least.relocatable), ("elf.o".into(), true));
        assert_eq!(least.options, JitOptions::default());
    }

    #[test]
    fn what_is_no_task() {
        assert_eq!(words("-arch sm_120 --version"), Ok(Asked::Version));
        assert_eq!(words(""), Ok(Asked::Help));
        for wrong in ["-arch=sm_120", "a.ptx -o", "a.ptx b.ptx", "-ias x", "-optf=x"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }
}
