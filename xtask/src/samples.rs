//! NVIDIA's cuda-samples on the product: which run, and why the others do not, told of in docs/compatibility.md.
//!
//! They are built by their own CMakeLists.txt, with cmake, nvcc and the libraries that PyPI has, and run as their own `run_tests.py` does: in the
//! folder where they were built, with the arguments of `test_args.json`, judged by the exit status, 2 if a sample waives itself. What has said that
//! it failed has failed, whatever its status. Of the architectures that a sample is compiled for only the highest is made, as PTX: what a driver
//! is left with whose GPU is newer than them all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::clients::{Environment, product, set_up, write};
use crate::own_tests::{How, checkout, site_packages};
use crate::run::{checked, say, target};
use crate::toolkit::development_links;

/// The heading in the page.
pub(crate) const HEADING: &str = "cuda-samples";

const TAG: &str = "v13.0";

/// The compiler, the libraries that samples use, and what builds them.
const TOOLKIT: Environment = Environment {
    name: "samples",
    steps: &[&[
        "--no-deps",
        "nvidia-cuda-nvcc==13.5.37",
        "nvidia-nvvm==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-cuda-profiler-api==13.5.25",
        "nvidia-nvjitlink==13.5.37",
        "nvidia-nvtx==13.5.25",
        "nvidia-cublas==13.10.0.20",
        "nvidia-cufft==12.5.0.14",
        "nvidia-curand==10.4.5.25",
        "nvidia-cusolver==12.4.1.2",
        "nvidia-cusparse==12.9.4.2",
        "nvidia-npp==13.2.0.93",
        "nvidia-nvjpeg==13.3.2.43",
        "cmake==4.4.5",
        "ninja",
    ]],
    megabytes: 2_300,
};

/// Folders of samples; those of libNVVM are parts of compilers, those of Tegra are for it alone.
const FOLDERS: [&str; 7] = [
    "0_Introduction",
    "1_Utilities",
    "2_Concepts_and_Techniques",
    "3_CUDA_Features",
    "4_CUDA_Libraries",
    "5_Domain_Specific",
    "6_Performance",
];

/// Samples that are not run, for another reason than their own build or their own tests have.
const LEFT_OUT: [(&str, &str); 3] = [
    ("EGLStream_CUDA_Interop", "wants EGL streams"),
    ("marchingCubes", "compares four times as much of its own memory as it has read"),
    ("simpleCUFFT_callback", "is linked with the static cuFFT, of which there is no package"),
];

/// What samples are told beside their own flags: headers that they use but do not include, as those of other versions of the compiler did it.
const FLAGS: [(&str, &str); 4] = [
    ("cdpQuadtree", "-include iostream -include thrust/tuple.h"),
    ("particles", "-include thrust/tuple.h"),
    ("segmentationTreeThrust", "-include thrust/tuple.h"),
    ("smokeParticles", "-include thrust/tuple.h"),
];

/// Seconds for building one.
const BUILD_WITHIN: u32 = 1200;

/// Seconds for one run: twice those of `run_tests.py`, which a GPU of hardware has.
const RUN_WITHIN: u32 = 600;

/// How a sample says that it does not apply to a GPU.
const WAIVED: i32 = 2;

/// What the product says of machine code.
const MACHINE_CODE: &str = "the image holds no PTX that this GPU can run";

/// In place of nvcc: of all architectures the highest, as PTX.
const COMPILER: &str = r#"#!/bin/bash
arguments=() highest=0
for argument in "$@"; do
    case $argument in
        *arch=compute_*,code=*)
            number=${argument#*arch=compute_} number=${number%%[!0-9]*}
            ((number > highest)) && highest=$number ;;
        *) arguments+=("$argument") ;;
    esac
done
((highest)) && arguments+=("-gencode=arch=compute_$highest,code=compute_$highest")
exec "$NVCC" "${arguments[@]}"
"#;

/// Words that say, anywhere in a line, that a sample has failed.
const FAILED_ANYWHERE: [&str; 4] = ["test failed", "result = fail", "failed!", ": failed"];

/// Words that a line begins with which tells of an error that a sample has met; some go on to exit status 0. Errors that were measured are told of
/// otherwise: `Error: ` counts where no number follows.
const FAILED_FIRST: [&str; 15] = [
    "error in ",
    "error at ",
    "error while ",
    "error processing ",
    "error opening ",
    "error finding ",
    "error decoding ",
    "error unable ",
    "error! ",
    "could not ",
    "cannot open ",
    "failed to ",
    "unable to ",
    "runtime error",
    "cuda error",
];

/// How one sample went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// It waived itself.
    Waived(String),
    /// What it was given to run, by a library of NVIDIA's, was machine code alone.
    Refused(String),
    Failed(String),
}

/// Samples by name, in one mode.
type Outcomes = BTreeMap<String, Outcome>;

/// Builds and runs the samples of these names, or all.
///
/// # Errors
/// What pip, git or cmake say; a name that is none. Samples that fail are told of in the page.
pub(crate) fn all(root: &Path, names: &[String], how: &How) -> Result<()> {
    let python = set_up(root, &TOOLKIT, None)?;
    let home = site_packages(&python)?.join("nvidia/cu13");
    development_links(&home.join("lib"))?;
    let scratch = target(root).join("samples");
    fs::create_dir_all(&scratch)?;
    let sources = checkout(&scratch, ("NVIDIA", "cuda-samples", TAG), "Samples", how.sources())?;
    let mut left_out: BTreeMap<String, String> =
        LEFT_OUT.map(|(name, reason)| (name.to_owned(), reason.to_owned())).into();
    let there = folders(&sources)?;
    if let Some(name) = names.iter().find(|name| !there.contains_key(*name)) {
        bail!("there is no sample {name}");
    }
    left_out.extend(without_files(&sources)?);
    let runs = runs(&fs::read_to_string(sources.join("test_args.json"))?)?;
    for (name, run) in &runs {
        if let Err(reason) = run {
            left_out.insert(name.clone(), reason.clone());
        }
    }
    let build = Build { root, python: &python, home: &home, scratch: &scratch };
    left_out.extend(build.configure(&sources, &there, &left_out)?);
    left_out.retain(|name, _| there.contains_key(name));

    let chosen: Vec<&String> = there
        .keys()
        .filter(|name| !left_out.contains_key(*name) && (names.is_empty() || names.contains(name)))
        .collect();
    let modes: &[(&str, &[&str])] = &[("native", &["--native"]), ("tenant", &[])];
    let mut outcomes = Vec::new();
    for (mode, arguments) in modes.iter().take(how.modes()) {
        let file = scratch.join(format!("{mode}.tsv"));
        let mut done = if how.go_on() || !names.is_empty() { read(&file)? } else { Outcomes::new() };
        if !names.is_empty() && !how.go_on() {
            done.retain(|name, _| !names.contains(name));
        }
        keep(&file, &done)?;
        for name in &chosen {
            if done.contains_key(*name) {
                continue;
            }
            let folder = &there[*name];
            let outcome = match build.sample(folder)? {
                Ok(()) => {
                    let given = runs.get(*name).and_then(|run| run.clone().ok()).unwrap_or_else(|| vec![Vec::new()]);
                    build.run(folder, name, arguments, &given)?
                }
                Err(reason) => Outcome::Failed(reason),
            };
            say(&format!("{mode}, {name}: {outcome:?}"));
            done.insert((*name).clone(), outcome);
            keep(&file, &done)?;
        }
        outcomes.push(done);
    }
    let given = how.sources().is_some();
    let wanted: BTreeSet<&str> =
        there.keys().map(String::as_str).filter(|name| !left_out.contains_key(*name)).collect();
    write(
        &root.join("docs/compatibility.md"),
        vec![(HEADING.to_owned(), section(&outcomes, &wanted, &left_out, given)?)],
    )
}

/// Samples by name: their folders below `Samples`.
fn folders(sources: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(sources.join("Samples").join(folder))? {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            if let Some(name) = name.filter(|_| path.join("CMakeLists.txt").exists()) {
                found.insert(name.clone(), format!("{folder}/{name}"));
            }
        }
    }
    Ok(found)
}

/// Samples of which a checkout lacks data; what only explains them is not missed.
fn without_files(sources: &Path) -> Result<Vec<(String, String)>> {
    let output = Command::new("git").arg("-C").arg(sources).args(["ls-files", "--deleted", "Samples"]).output()?;
    let mut found = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).lines() {
        if let [_, _, name, "data", .., file] = *path.split('/').collect::<Vec<_>>() {
            found.push((name.to_owned(), format!("the checkout lacks {file}")));
        }
    }
    Ok(found)
}

/// The arguments of each run of a sample, or why there is none.
type Runs = std::result::Result<Vec<Vec<String>>, String>;

/// What `test_args.json` says of samples.
fn runs(text: &str) -> Result<BTreeMap<String, Runs>> {
    let config: BTreeMap<String, Value> = serde_json::from_str(text).context("test_args.json")?;
    let arguments = |of: &Value| -> Vec<String> {
        let listed = of["args"].as_array().into_iter().flatten();
        listed.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let one = |of: &Value| {
        if of["skip"] == true {
            return Err("is left out by their own run_tests.py: wants a window".to_owned());
        }
        match of["min_gpus"].as_u64() {
            Some(gpus) if gpus > 1 => Err(format!("wants {gpus} GPUs")),
            _ => Ok(of["runs"]
                .as_array()
                .map_or_else(|| vec![arguments(of)], |runs| runs.iter().map(arguments).collect())),
        }
    };
    Ok(config.into_iter().map(|(name, of)| (name, one(&of))).collect())
}

/// Samples that cmake says it will not build, and why.
fn not_built(said: &str) -> Vec<(String, String)> {
    let quoted = |text: &str| text.split('\'').nth(1).map(str::to_owned);
    let mut found = Vec::new();
    for line in said.lines().filter_map(|line| line.strip_prefix("-- ")) {
        if let Some((reason, sample)) = line.split_once(" - will not build sample ") {
            found.extend(quoted(sample).map(|name| (name, reason.to_owned())));
        } else if line.ends_with(" is Windows-only - skipping") {
            found.extend(quoted(line).map(|name| (name, "is for Windows".to_owned())));
        }
    }
    found
}

/// What builds and runs samples.
struct Build<'a> {
    root: &'a Path,
    python: &'a Path,
    /// The toolkit.
    home: &'a Path,
    /// Samples are built below it as they would be in their repository, whose files they look for on relative paths.
    scratch: &'a Path,
}

impl Build<'_> {
    /// A program that pip has installed.
    fn tool(&self, name: &str) -> PathBuf {
        self.python.with_file_name(name)
    }

    fn folder(&self, sample: &str) -> PathBuf {
        self.scratch.join("build/Samples").join(sample)
    }

    /// Has cmake look at all of them; those that it will not build.
    fn configure(
        &self,
        sources: &Path,
        there: &BTreeMap<String, String>,
        left_out: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, String)>> {
        for name in ["Samples", "Common"] {
            let link = self.scratch.join(name);
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link)?;
            }
            std::os::unix::fs::symlink(sources.join(name), link)?;
        }
        // What is linked with the driver's library is linked with ours.
        let stubs = self.home.join("lib/stubs");
        fs::create_dir_all(&stubs)?;
        let (library, stub) = (product(self.root).join("sundial-lib/libcuda.so"), stubs.join("libcuda.so"));
        if stub.symlink_metadata().is_ok() {
            fs::remove_file(&stub)?;
        }
        fs::copy(library, stub)?;
        let compiler = self.scratch.join("nvcc");
        fs::write(&compiler, COMPILER)?;
        checked(Command::new("chmod").arg("+x").arg(&compiler))?;
        let mut list = "cmake_minimum_required(VERSION 3.20)\nproject(samples LANGUAGES C CXX CUDA)\n".to_owned();
        for (name, folder) in there.iter().filter(|(name, _)| !left_out.contains_key(*name)) {
            let flags = FLAGS.iter().find(|(of, _)| of == name).map_or("", |(_, flags)| flags);
            writeln!(list, "set(CMAKE_CUDA_FLAGS \"{flags}\")")?;
            writeln!(
                list,
                "add_subdirectory(\"{}\" Samples/{folder})",
                sources.join("Samples").join(folder).display()
            )?;
        }
        let top = self.scratch.join("top");
        fs::create_dir_all(&top)?;
        fs::write(top.join("CMakeLists.txt"), list)?;
        say(&format!("configuring cuda-samples in {}", self.scratch.display()));
        let output = self
            .command(&self.tool("cmake"))
            .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_ARCHITECTURES=75"])
            .arg("-S")
            .arg(&top)
            .arg("-B")
            .arg(self.scratch.join("build"))
            .arg(format!("-DCMAKE_MAKE_PROGRAM={}", self.tool("ninja").display()))
            .arg(format!("-DCMAKE_CUDA_COMPILER={}", compiler.display()))
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("cmake: {}{said}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(not_built(&said))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("NVCC", self.home.join("bin/nvcc"));
        command
    }

    /// Builds one; why it cannot be built.
    fn sample(&self, folder: &str) -> Result<std::result::Result<(), String>> {
        let log = self.folder(folder).join("build.log");
        let status = self
            .command(Path::new("timeout"))
            .arg(BUILD_WITHIN.to_string())
            .arg(self.tool("ninja"))
            .arg("-C")
            .arg(self.scratch.join("build"))
            .arg(format!("Samples/{folder}/all"))
            .stdout(fs::File::create(&log)?)
            .status()?;
        if status.success() {
            return Ok(Ok(()));
        }
        let said = fs::read_to_string(&log)?;
        let first = said.lines().find(|line| line.contains("error:") || line.contains("undefined reference"));
        Ok(Err(format!("is not built: {}", first.map_or_else(|| telling(&said), str::to_owned))))
    }

    /// Runs one, with each of these arguments until it fails.
    fn run(&self, folder: &str, name: &str, mode: &[&str], runs: &[Vec<String>]) -> Result<Outcome> {
        let home = target(self.root).join("clients/home");
        let runtime = home.join("run");
        fs::create_dir_all(&runtime)?;
        let folder = self.folder(folder);
        let log = folder.join("run.log");
        let mut outcome = Outcome::Passed;
        for arguments in runs {
            let written = fs::File::create(&log)?;
            let status = Command::new(product(self.root).join("sundial"))
                .arg("run")
                .args(mode)
                .args(["--", "timeout", "-k", "5", &RUN_WITHIN.to_string()])
                .arg(folder.join(name))
                .args(arguments)
                .current_dir(&folder)
                .env("HOME", &home)
                .env("SUNDIAL_RUNTIME_DIR", &runtime)
                .env("SUNDIAL_LOG", "warn")
                .env("LD_LIBRARY_PATH", self.home.join("lib"))
                .env("CUDA_PATH", self.home)
                .env_remove("XDG_CACHE_HOME")
                .env_remove("XDG_STATE_HOME")
                .stdin(Stdio::null())
                .stdout(written.try_clone()?)
                .stderr(written)
                .status()
                .context("cannot start sundial")?;
            outcome = judged(status.code(), &String::from_utf8_lossy(&fs::read(&log)?));
            if outcome != Outcome::Passed {
                break;
            }
        }
        Ok(outcome)
    }
}

/// How a sample went that has ended so and said that.
fn judged(status: Option<i32>, said: &str) -> Outcome {
    match status {
        Some(0) if !said.lines().any(tells_of_failure) => Outcome::Passed,
        _ if said.contains(MACHINE_CODE) => {
            Outcome::Refused("kernels of a library that it has as machine code alone, or hands over so".to_owned())
        }
        Some(WAIVED) => Outcome::Waived(telling(said)),
        Some(0) => {
            let line = said.lines().find(|line| tells_of_failure(line)).unwrap_or_default();
            Outcome::Failed(format!("{}; exit status 0", line.trim()))
        }
        Some(124 | 137) => Outcome::Failed(format!("not done within {RUN_WITHIN} seconds")),
        Some(status) => Outcome::Failed(format!("{}; exit status {status}", telling(said))),
        None => Outcome::Failed("ended by a signal".to_owned()),
    }
}

/// Does this line say that the sample has failed, whatever its exit status?
fn tells_of_failure(line: &str) -> bool {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || "!*>".contains(c)).to_lowercase();
    let message = |text: &str| text.trim_start().starts_with(|c: char| c.is_alphabetic());
    FAILED_ANYWHERE.iter().any(|words| line.contains(words))
        || FAILED_FIRST.iter().any(|words| line.starts_with(words))
        || line.strip_prefix("error:").is_some_and(message)
}

/// The last line that tells of something that went wrong, or just the last.
fn telling(said: &str) -> String {
    let lines = || said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let wrong = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "fail", "waiv", "not support", "cannot", "could not"].iter().any(|word| line.contains(word))
    };
    lines().find(wrong).or_else(|| lines().next()).unwrap_or("it said nothing").to_owned()
}

/// Outcomes of an earlier run.
fn read(path: &Path) -> Result<Outcomes> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(Outcomes::new()) };
    let one = |line: &str| {
        let mut fields = line.splitn(3, '\t');
        let (name, outcome, reason) = (fields.next()?, fields.next()?, fields.next()?.to_owned());
        let outcome = match outcome {
            "passed" => Outcome::Passed,
            "waived" => Outcome::Waived(reason),
            "refused" => Outcome::Refused(reason),
            _ => Outcome::Failed(reason),
        };
        Some((name.to_owned(), outcome))
    };
    text.lines().map(|line| one(line).with_context(|| format!("{}: {line}", path.display()))).collect()
}

fn keep(path: &Path, outcomes: &Outcomes) -> Result<()> {
    let mut file = fs::File::create(path)?;
    for (name, outcome) in outcomes {
        let (outcome, reason) = match outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Waived(reason) => ("waived", reason.as_str()),
            Outcome::Refused(reason) => ("refused", reason.as_str()),
            Outcome::Failed(reason) => ("failed", reason.as_str()),
        };
        writeln!(file, "{name}\t{outcome}\t{}", reason.replace('\t', " "))?;
    }
    Ok(())
}

/// What the page says, of those that are wanted alone: files of earlier runs may have others.
fn section(
    modes: &[Outcomes],
    wanted: &BTreeSet<&str>,
    left_out: &BTreeMap<String, String>,
    given: bool,
) -> Result<String> {
    let from = if given { "a checkout that was given" } else { TAG };
    let version = |package: &str| {
        let wanted = TOOLKIT.steps.concat().into_iter().find_map(|step| step.strip_prefix(package));
        wanted.unwrap_or_default().trim_start_matches('=').to_owned()
    };
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    let mut text = format!(
        "NVIDIA's cuda-samples ({from}), nvcc {}; run on {}.\n\n| | passed | failed | refused | waived | passed of those neither refused nor waived |\n|---|---|---|---|---|---|\n",
        version("nvidia-cuda-nvcc"),
        String::from_utf8_lossy(&date.stdout).trim()
    );
    let names = ["native", "tenant"];
    let mut modes = modes.to_vec();
    modes.iter_mut().for_each(|outcomes| outcomes.retain(|name, _| wanted.contains(name.as_str())));
    for (mode, outcomes) in names.iter().zip(&modes) {
        let count = |of: fn(&Outcome) -> bool| outcomes.values().filter(|outcome| of(outcome)).count();
        let passed = count(|outcome| *outcome == Outcome::Passed);
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let waived = count(|outcome| matches!(outcome, Outcome::Waived(_)));
        let refused = count(|outcome| matches!(outcome, Outcome::Refused(_)));
        let rate = 100.0 * passed as f64 / (passed + failed).max(1) as f64;
        writeln!(text, "| {mode} | {passed} | {failed} | {refused} | {waived} | {rate:.1} % |")?;
    }
    let mut failed: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut waived: BTreeMap<&str, &str> = BTreeMap::new();
    let mut refused: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (mode, outcomes) in names.iter().zip(&modes) {
        for (name, outcome) in outcomes {
            match outcome {
                Outcome::Failed(reason) => failed.entry((name, reason)).or_default().push(mode),
                Outcome::Waived(reason) => drop(waived.insert(name, reason)),
                Outcome::Refused(reason) => drop(refused.entry(reason).or_default().insert(name)),
                Outcome::Passed => {}
            }
        }
    }
    if !failed.is_empty() {
        text += "\nFailed:\n";
        for ((name, reason), modes) in failed {
            writeln!(text, "- {name} ({}): {}", modes.join(", "), shown(reason))?;
        }
    }
    for (mode, outcomes) in names.iter().zip(&modes) {
        let missing: Vec<&str> = wanted.iter().copied().filter(|name| !outcomes.contains_key(*name)).collect();
        if !missing.is_empty() {
            writeln!(text, "\nNot run yet ({mode}), and not counted: {}", missing.join(", "))?;
        }
    }
    if !refused.is_empty() {
        text += "\nRefused, and right to be:\n";
        for (reason, names) in refused {
            writeln!(text, "- {}: {reason}", names.into_iter().collect::<Vec<_>>().join(", "))?;
        }
    }
    if !waived.is_empty() {
        text += "\nWaive themselves:\n";
        for (name, reason) in waived {
            writeln!(text, "- {name}: {}", shown(reason))?;
        }
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in left_out {
        reasons.entry(reason).or_default().push(name);
    }
    text += "\nLeft out, beside those of libNVVM and of Tegra:\n";
    for (reason, names) in reasons {
        writeln!(text, "- {}: {reason}", names.join(", "))?;
    }
    Ok(text)
}

/// A reason as it stands in the page: one line, no folders of this machine.
fn shown(reason: &str) -> String {
    let word = |word: &str| match word.rsplit_once('/') {
        Some((folder, file)) if folder.contains('/') => file.to_owned(),
        _ => word.to_owned(),
    };
    let plain: String =
        reason.chars().map(|c| if matches!(c, '|' | '`' | '<' | '*' | '_') { ' ' } else { c }).collect();
    plain.split_whitespace().map(word).collect::<Vec<_>>().join(" ").chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_own_arguments_are_read() {
        let text = r#"{"a": {"args": ["-x=1"]}, "b": {"runs": [{"args": ["-m=0"]}, {"args": ["-m=1", "-f"]}]},
                       "c": {"skip": true}, "d": {"min_gpus": 2}}"#;
        let runs = runs(text).unwrap();
        assert_eq!(runs["a"], Ok(vec![vec!["-x=1".to_owned()]]));
        assert_eq!(runs["b"], Ok(vec![vec!["-m=0".to_owned()], vec!["-m=1".to_owned(), "-f".to_owned()]]));
        assert!(runs["c"].is_err());
        assert_eq!(runs["d"], Err("wants 2 GPUs".to_owned()));
    }

    #[test]
    fn what_cmake_leaves_out_is_read() {
        let said = "-- Found x\n-- MPI not found - will not build sample 'simpleMPI'\n-- Sample 'simpleD3D11' is Windows-only - skipping\n";
        let expected = [("simpleMPI", "MPI not found"), ("simpleD3D11", "is for Windows")];
        assert_eq!(not_built(said), expected.map(|(name, reason)| (name.to_owned(), reason.to_owned())));
    }

    #[test]
    fn outcomes_are_judged_and_kept() {
        let failed = |reason: &str| Outcome::Failed(reason.to_owned());
        let refused = || judged(Some(1), MACHINE_CODE);
        assert!(matches!(refused(), Outcome::Refused(_)));
        assert_eq!(judged(Some(0), MACHINE_CODE), Outcome::Passed, "it went another way");
        let cases = [
            (Some(0), "fine\nTest passed\n", Outcome::Passed),
            (Some(0), "x\n  Test failed!\ny\n", failed("Test failed!; exit status 0")),
            (Some(2), "Waiving it\nbye\n", Outcome::Waived("Waiving it".to_owned())),
            (Some(1), "CUDA error at x.cu:3\nbye\n", failed("CUDA error at x.cu:3; exit status 1")),
            (Some(124), "", failed("not done within 600 seconds")),
            (Some(1), "sundial: warn: the image holds no PTX that this GPU can run, and\n", refused()),
            (None, "x", failed("ended by a signal")),
        ];
        let mut outcomes = Outcomes::new();
        for (index, (status, said, expected)) in cases.into_iter().enumerate() {
            assert_eq!(judged(status, said), expected, "{said}");
            outcomes.insert(format!("sample{index}"), expected);
        }
        let path = std::env::temp_dir().join(format!("sundial-samples-{}.tsv", std::process::id()));
        keep(&path, &outcomes).unwrap();
        let again = read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(again.unwrap(), outcomes);
        outcomes.insert("fog".to_owned(), failed("is left out, but was run once"));
        let mut wanted: BTreeSet<&str> = outcomes.keys().map(String::as_str).filter(|name| *name != "fog").collect();
        wanted.insert("later");
        let text =
            section(&[outcomes.clone(), outcomes.clone()], &wanted, &[("a".to_owned(), "why".to_owned())].into(), true)
                .unwrap();
        for part in [
            "| native | 1 | 4 | 1 | 1 | 20.0 % |",
            "- sample1 (native, tenant): Test failed!; exit status 0\n",
            "- sample2: Waiving it\n",
            "\nNot run yet (tenant), and not counted: later\n",
            "- a: why\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("fog"), "{text}");
    }

    /// Whole outputs, and lines of others, of samples with exit status 0.
    #[test]
    fn samples_that_fail_with_exit_status_0_are_not_believed() {
        let decodes_nothing = "\
GPU Device 0: \"Blackwell\" with compute capability 12.0

Using GPU 0 (Sundial Software GPU, 2 SMs, 1536 th/SM max, CC 12.0, ECC off)
Processing file: ./images/img4.jpg
Image is 3 channels.
Channel #0 size: 640 x 426
Channel #1 size: 320 x 213
Channel #2 size: 320 x 213
YUV 4:2:0 chroma subsampling
sundial: warn: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)
Error in nvjpegDecode.
Error processing file: ./images/img4.jpg
Total images processed: 0
Total time spent on encoding: 0
Avg time/image: -nan
";
        let no_generator = "\
sundial: warn: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)
Random Fog
==========

GPU Device 0: \"Blackwell\" with compute capability 12.0

runtime error (Could not create quasi-random number generator: f)
";
        for (said, reason) in [
            (decodes_nothing, "Error in nvjpegDecode."),
            (no_generator, "runtime error (Could not create quasi-random number generator: f)"),
            ("Cannot open image: ./images/img4.jpg\n", "Cannot open image: ./images/img4.jpg"),
            ("Error: render_kernel() execution FAILED\n", "Error: render_kernel() execution FAILED"),
            ("!!!! can not open file: 'x'\n!!!! Unable to open x\n", "!!!! Unable to open x"),
        ] {
            let expected = Outcome::Failed(format!("{reason}; exit status 0"));
            assert_eq!(judged(Some(0), said), expected, "{said}");
        }
        let encodes = "\
Processing file: ./images/img5.jpg
Image is 3 channels.
YUV 4:2:0 chroma subsampling
Writing JPEG file: encode_output/img5.jpg
Total images processed: 8
";
        for said in [
            encodes,
            "sundial: warn: cuKernelGetAttribute: CUDA_ERROR_INVALID_VALUE (invalid argument)\n",
            "Max absolute error: 1.049042E-05\n",
            "Absolute error: 5.272627e-03\n",
            "L1 error : 0.044195\n",
            "L1-Error: 0\n",
            "Error: 0.000000\n",
            "L2norm Error OK\n",
            "[alignedTypes] -> Test Results: 0 Failures\n",
            "0 error(s)\n",
            "CANNOT access pageable memory\nsystemWideAtomics completed, returned OK\n",
            "Test Summary:  Error amount = 0.000000, result = SUCCESS\n",
            "Device assert failed as expected, CUDA error message is: device-side assert triggered\n",
        ] {
            assert_eq!(judged(Some(0), said), Outcome::Passed, "{said}");
        }
    }

    #[test]
    fn folders_of_this_machine_are_not_told() {
        assert_eq!(shown("at /tmp/a/b.cu:3 | in km/h"), "at b.cu:3 in km/h");
    }
}
