//! `ptxas` on the software GPU: what it "assembles" is the PTX that it was given.
//!
//! For programs that call ptxas when they run (Triton, XLA). Options are those of the real one, of any version: where the output
//! goes, what was asked for that changes what the code means or needs (`--fmad`, `--maxrregcount`), and the rest is accepted.
//! The PTX is checked by compiling all of its kernels as far as the driver's front end does, so that what cannot run is refused here, with lines
//! and a status as the real one has them.

mod arguments;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use arguments::{Asked, Task};
use ptx::{Program, PtxErrorKind};

/// What the real one exits with.
const FAILURE: u8 = 255;

/// As the real one says it. The version is that of the driver: programs choose the PTX that they write by it.
const VERSION: &str = "\
ptxas: NVIDIA (R) Ptx optimizing assembler
This is Sundial's stand-in, which hands over PTX for the software GPU.
Cuda compilation tools, release 13.5, V13.5.0
Build sundial";

fn main() -> ExitCode {
    let result = match arguments::read(std::env::args_os().skip(1)) {
        Ok(Asked::Version) => write_out(&format!("{VERSION}\n")),
        Ok(Asked::Help) => {
            write_out("Usage  : ptxas [options] <ptx file>\nOptions are those of NVIDIA's ptxas; see --version.\n")
        }
        Ok(Asked::Assembly(task)) => assemble(&task),
        Err(error) => Err(format!("ptxas fatal   : {error}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(&text);
            ExitCode::from(FAILURE)
        }
    }
}

fn assemble(task: &Task) -> Result<(), String> {
    let input = task.input.display();
    let mut text =
        std::fs::read(&task.input).map_err(|_| format!("ptxas fatal   : Input file '{input}' could not be opened"))?;
    while text.last() == Some(&0) {
        text.pop();
    }
    let errors = check(&text, &task.input, task.relocatable);
    if !errors.is_empty() {
        return Err(format!("{errors}ptxas fatal   : Ptx assembly aborted due to errors"));
    }
    if task.verbose {
        say("ptxas info    : handed over as PTX, which the driver compiles");
    }
    text.extend(task.options.pragma().unwrap_or_default().bytes());
    // Drivers that are given an address read up to it.
    text.push(0);
    std::fs::write(&task.output, &text)
        .map_err(|error| format!("ptxas fatal   : Could not write '{}': {error}", task.output.display()))
}

/// What is wrong with a module, a line for each kernel.
fn check(text: &[u8], input: &Path, relocatable: bool) -> String {
    let line = |error: &ptx::PtxError| {
        let what = match error.kind {
            PtxErrorKind::Invalid | PtxErrorKind::UnknownForm => "error   ",
            PtxErrorKind::Unsupported => "error   : Not supported by the software GPU",
        };
        format!("ptxas {}, line {}; {what}: {}\n", input.display(), error.line, error.message)
    };
    let program = match Program::parse(text) {
        Ok(program) => program,
        Err(error) => return line(&error),
    };
    if relocatable {
        // What other modules define is known when they are linked.
        return String::new();
    }
    let errors = (0..program.entries().len()).filter_map(|entry| program.lower(entry, &|_| Some(1 << 32)).err());
    let mut lines: Vec<String> = errors.map(|error| line(&error)).collect();
    lines.dedup();
    lines.concat()
}

fn say(text: &str) {
    // Nobody to tell if this fails.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn write_out(text: &str) -> Result<(), String> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("ptxas fatal   : {error}"))
}
