//! Compiling .cu files with nvcc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::run::{checked, say, target};
use crate::toolkit;

/// Another way of compiling some of the examples.
struct Variant {
    /// Folder of its programs, in that of all.
    folder: &'static str,
    names: &'static [&'static str],
    /// What nvcc is told beside source and program.
    flags: Vec<String>,
}

/// Compiles `examples/cuda/*.cu`, with nvcc's default flags (static runtime), and some of them for other runtimes, where the
/// program is older than its source. Returns the folder of the programs.
///
/// # Errors
/// What nvcc says.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let home = toolkit::cuda_home(root)?;
    let nvcc = home.join("bin/nvcc");
    let sources = root.join("examples/cuda");
    let programs = target(root).join("cuda-examples");
    fs::create_dir_all(&programs)?;
    let header = modified(&sources.join("check.h"))?;
    // Those with files of their own have them in a folder of their name: headers, and sources that are linked with theirs.
    let own = |source: &Path, extension: &str| {
        let own = source.with_extension("");
        if own.is_dir() { files(&own, extension) } else { Ok(Vec::new()) }
    };
    let newest = |own: &[PathBuf]| -> Result<SystemTime> {
        own.iter().try_fold(header, |newest, path| Ok(newest.max(modified(path)?)))
    };
    let mut stale = Vec::new();
    let mut wanted = |source: PathBuf, folder: &Path, flags: &[String]| -> Result<()> {
        let program = folder.join(source.file_stem().context("a file name")?);
        let mut sources = own(&source, "cu")?;
        let newest = modified(&source)?.max(newest(&own(&source, "h")?)?).max(newest(&sources)?);
        let mut flags = flags.to_vec();
        if !sources.is_empty() {
            flags.push("-rdc=true".to_owned());
        }
        sources.push(source);
        if modified(&program).map_or(true, |made| made < newest) {
            stale.push((sources, program, flags));
        }
        Ok(())
    };
    for source in files(&sources, "cu")? {
        // Instructions that the compiler's default architecture does not have; lambdas as kernels' parameters.
        let needs = match source.file_stem().and_then(|name| name.to_str()) {
            Some("tensor") => &["-arch=sm_80".to_owned()][..],
            Some("clusters" | "tensor_map") => &["-arch=sm_90".to_owned()],
            Some("textures") => &["--extended-lambda".to_owned()],
            // What checks of kernels tell is told with lines of the source.
            Some("faulty") => &["-lineinfo".to_owned()],
            _ => &[],
        };
        wanted(source, &programs, needs)?;
    }
    for variant in variants(&home, &toolkit::runtime_12(root)?) {
        let folder = programs.join(variant.folder);
        fs::create_dir_all(&folder)?;
        for name in variant.names {
            wanted(sources.join(name).with_extension("cu"), &folder, &variant.flags)?;
        }
    }
    if stale.is_empty() {
        return Ok(programs);
    }
    say(&format!("compiling {} programs of examples/cuda with nvcc", stale.len()));
    let queue = Mutex::new(stale);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.pop());
                    let Some((sources, program, flags)) = next else { break };
                    if let Err(error) = checked(Command::new(&nvcc).args(flags).arg("-o").arg(&program).args(&sources))
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(format!("{error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(programs)
}

/// The compiler's own runtime as a shared library, and the runtime 12 both ways.
fn variants(home: &Path, runtime_12: &Path) -> [Variant; 3] {
    let shared = |home: &Path| vec!["-cudart=shared".into(), format!("-Xlinker=-rpath={}", home.join("lib").display())];
    let for_12 = ["include", "lib"].map(|folder| runtime_12.join(folder).display().to_string());
    let for_12 = vec![format!("-I{}", for_12[0]), format!("-L{}", for_12[1])];
    let few = &["vector_add", "streams"];
    [
        Variant { folder: "shared", names: few, flags: shared(home) },
        Variant { folder: "shared-12", names: few, flags: [for_12.clone(), shared(runtime_12)].concat() },
        Variant {
            folder: "static-12",
            names: &[
                "vector_add",
                "streams",
                "graphs",
                "graph_memory",
                "managed",
                "device_printf",
                "reduction",
                "linked",
            ],
            flags: for_12,
        },
    ]
}

/// Remakes every committed `.ptx` that has a `.cu` of its name beside it.
///
/// # Errors
/// What nvcc says.
pub(crate) fn gen_ptx(root: &Path) -> Result<()> {
    let nvcc = toolkit::cuda_home(root)?.join("bin/nvcc");
    for (folder, arch) in [("examples/tenants/kernels", "compute_75"), ("crates/sundial/kernels", "compute_80")] {
        let folder = root.join(folder);
        if !folder.exists() {
            continue;
        }
        for source in files(&folder, "cu")? {
            let out = source.with_extension("ptx");
            say(&format!("{}", out.display()));
            checked(Command::new(&nvcc).args(["-ptx", "-arch", arch, "-o"]).arg(&out).arg(&source))?;
        }
    }
    Ok(())
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn modified(path: &Path) -> Result<SystemTime> {
    Ok(fs::metadata(path)?.modified()?)
}
