//! Every `.ptx` file of the directory that `SUNDIAL_PTX_CORPUS` names must be read, and each of its kernels compiled or
//! refused as unsupported. Prints what was refused, and the speed. Without the variable there is nothing to do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ptx::{Program, PtxErrorKind};

fn files(directory: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("the corpus is a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "ptx") {
            out.push(path);
        }
    }
}

/// The reason without the parts that differ from kernel to kernel.
fn reason(message: &str) -> String {
    let text = message.split(" (in '").next().unwrap_or(message);
    text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

#[test]
fn corpus_is_compiled_or_refused_with_a_reason() {
    let Some(directory) = std::env::var_os("SUNDIAL_PTX_CORPUS") else {
        println!("SUNDIAL_PTX_CORPUS is not set; nothing to do");
        return;
    };
    let mut paths = Vec::new();
    files(Path::new(&directory), &mut paths);
    paths.sort();
    let mut refused: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let (mut kernels, mut compiled, mut whole, mut bytes) = (0usize, 0usize, 0usize, 0usize);
    let (mut indexing, mut lowering) = (Duration::ZERO, Duration::ZERO);
    let mut invalid = Vec::new();
    for path in &paths {
        let text = std::fs::read(path).expect("a readable file");
        bytes += text.len();
        let start = Instant::now();
        let program = match Program::parse(&text) {
            Ok(program) => program,
            Err(e) => {
                invalid.push(format!("{}: {e}", path.display()));
                continue;
            }
        };
        indexing += start.elapsed();
        let mut all = true;
        let start = Instant::now();
        for (index, entry) in program.entries().iter().enumerate() {
            kernels += 1;
            match program.lower(index, &|_| Some(0x7_0000_0000)) {
                Ok(_) => compiled += 1,
                Err(e) => {
                    all = false;
                    if e.kind != PtxErrorKind::Unsupported {
                        invalid.push(format!("{}: {}: {e}", path.display(), entry.name));
                    }
                    let slot = refused.entry(reason(&e.message)).or_insert((0, String::new()));
                    slot.0 += 1;
                    slot.1 = format!("{} {e}", path.file_name().unwrap_or_default().to_string_lossy());
                }
            }
        }
        lowering += start.elapsed();
        whole += usize::from(all);
    }
    let speed = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    println!("{} files, {whole} whole; {kernels} kernels, {compiled} compiled", paths.len());
    println!("{bytes} bytes; index {:.0} MB/s, lower {:.1} MB/s", speed(indexing), speed(lowering));
    for (reason, (count, example)) in &refused {
        println!("{count:6} {reason}\n       e.g. {example}");
    }
    assert!(invalid.is_empty(), "{} taken for invalid, the first: {}", invalid.len(), invalid[0]);
}
