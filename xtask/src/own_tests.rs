//! Packages' own test suites on the product: how many of their tests pass, and why the others do not, told of in docs/compatibility.md.
//!
//! A suite is the one of the wheel, or of the package's repository at the version's tag: cloned, or in a folder that was given. A plugin of pytest
//! (`xtask/clients/own`) writes how each test went while it runs; a process that ends is started again behind the test that ended it, which has
//! failed. A failure that is right here, as what the test wants is not to be had from a software GPU, is named with its reason in
//! `xtask/clients/own/SUITE.refused`, and counted apart; nothing else is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::clients::{Environment, LIBRARIES, LIGHT, NUMBA, TORCH, add_packages, product, set_up, write};
use crate::run::{checked, say, target};

/// Where a suite's tests come from.
enum Source {
    /// The wheel has them.
    Wheel,
    /// A repository at GitHub, at a tag; `name` is its folder's.
    Repository { owner: &'static str, name: &'static str, tag: &'static str },
}

/// A package's own tests.
struct Suite {
    name: &'static str,
    environment: &'static Environment,
    /// What the tests need beside it.
    packages: &'static [&'static str],
    source: Source,
    /// Where in the repository pytest runs.
    folder: &'static str,
    arguments: &'static [&'static str],
    /// Folders of the repository that tests import from the package, but wheels do not have: where they are, where they go in site-packages.
    helpers: &'static [(&'static str, &'static str)],
    /// What the tests' own settings are in the environment.
    settings: &'static [(&'static str, &'static str)],
    /// One in so many tests is run, by a checksum of its name.
    one_in: u32,
    /// Packages whose versions are told.
    versions: &'static [&'static str],
}

const SUITES: [Suite; 7] = [
    Suite {
        name: "numba",
        environment: &NUMBA,
        packages: &["cffi", "filecheck", "psutil", "pytest-benchmark", "ml_dtypes"],
        source: Source::Wheel,
        folder: "",
        arguments: &[
            "-p",
            "for_numba",
            "-o",
            "consider_namespace_packages=true",
            "--benchmark-disable",
            "--pyargs",
            "numba.cuda.tests",
        ],
        helpers: &[],
        settings: &[],
        one_in: 1,
        versions: &["numba-cuda", "numba", "cuda-core", "cuda-bindings"],
    },
    Suite {
        name: "cuda_bindings",
        environment: &NUMBA,
        packages: &["nvidia-nvfatbin==13.5.37", "pytest-benchmark", "pytest-repeat", "cython", "pyglet"],
        source: Source::Repository { owner: "NVIDIA", name: "cuda-python", tag: "v13.5.0" },
        folder: "cuda_bindings",
        arguments: &["tests", "--continue-on-collection-errors"],
        helpers: &[
            ("cuda_bindings/cuda/bindings/_test_helpers", "cuda/bindings/_test_helpers"),
            ("cuda_bindings/cuda/bindings/_example_helpers", "cuda/bindings/_example_helpers"),
        ],
        settings: &[],
        one_in: 1,
        versions: &["cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-nvfatbin"],
    },
    Suite {
        name: "cuda_core",
        environment: &NUMBA,
        packages: &[
            "nvidia-nvfatbin==13.5.37",
            "pytest-benchmark",
            "pytest-repeat",
            "pytest-rerunfailures",
            "cloudpickle",
            "psutil",
            "cffi",
            "cython",
            "ml_dtypes",
        ],
        source: Source::Repository { owner: "NVIDIA", name: "cuda-python", tag: "cuda-core-v1.2.2" },
        folder: "cuda_core",
        arguments: &["tests", "--continue-on-collection-errors"],
        helpers: &[("cuda_bindings/cuda/bindings/_test_helpers", "cuda/bindings/_test_helpers")],
        settings: &[],
        one_in: 1,
        versions: &["cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"],
    },
    Suite {
        name: "cupy",
        environment: &LIBRARIES,
        packages: &["ml_dtypes", "nvidia-cuda-nvcc==13.5.*", "nvidia-nvvm==13.5.*"],
        source: Source::Repository { owner: "cupy", name: "cupy", tag: "v14.2.0" },
        // Not the repository itself: its package has not been built, and would be found before the wheel's.
        folder: "tests",
        arguments: &[
            "--continue-on-collection-errors",
            "cupy_tests/core_tests",
            "cupy_tests/math_tests",
            "cupy_tests/sorting_tests",
            "cupy_tests/indexing_tests",
            "cupy_tests/statistics_tests",
            "cupy_tests/random_tests",
        ],
        helpers: &[],
        settings: &[],
        one_in: 40,
        versions: &["cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cublas", "nvidia-curand"],
    },
    Suite {
        name: "warp",
        environment: &LIGHT,
        packages: &["psutil"],
        source: Source::Wheel,
        folder: "",
        // Methods only, which the functions become; each is there for the CPU, too.
        arguments: &["-o", "python_functions=none", "-k", "cuda", "--pyargs", "warp.tests"],
        helpers: &[],
        settings: &[],
        one_in: 30,
        versions: &["warp-lang"],
    },
    Suite {
        name: "taichi",
        environment: &LIGHT,
        packages: &["pytest-rerunfailures", "autograd", "requests", "pillow"],
        source: Source::Repository { owner: "taichi-dev", name: "taichi", tag: "v1.7.4" },
        folder: "",
        arguments: &["--continue-on-collection-errors", "-c", "tests/pytest.ini", "tests/python"],
        helpers: &[],
        settings: &[("TI_WANTED_ARCHS", "cuda")],
        one_in: 5,
        versions: &["taichi"],
    },
    Suite {
        name: "tinygrad",
        environment: &TORCH,
        packages: &["tinygrad==0.13.0", "hypothesis", "gguf", "safetensors"],
        source: Source::Repository { owner: "tinygrad", name: "tinygrad", tag: "v0.13.0" },
        folder: "",
        arguments: &["--continue-on-collection-errors", "test/backend", "test/unit"],
        helpers: &[],
        settings: &[("DEV", "CUDA")],
        one_in: 5,
        versions: &["tinygrad", "torch"],
    },
];

/// Runs tests; the second kills what Python cannot interrupt.
const PYTEST: [&str; 2] = ["pytest", "pytest-timeout"];

/// Seconds for one test.
const TEST_WITHIN: u32 = 300;

/// Seconds for one process of pytest.
const PROCESS_WITHIN: u32 = 4 * 3600;

/// Most processes for one suite: each that ends costs a collection.
const MOST_PROCESSES: u32 = 100;

/// Failures that are shown of a suite.
const MOST_SHOWN: usize = 25;

/// How one test went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    Failed,
    Refused,
    Skipped,
}

/// Tests by name: how each went, and why.
#[derive(Debug, Default, PartialEq)]
struct Report {
    tests: BTreeMap<String, (Outcome, String)>,
    versions: BTreeMap<String, String>,
}

/// The headings of suites in the page.
pub(crate) fn headings() -> impl Iterator<Item = String> {
    SUITES.iter().map(|suite| heading(suite.name))
}

fn heading(name: &str) -> String {
    format!("own tests of {name}")
}

/// How suites and samples are run.
#[derive(clap::Args)]
pub(crate) struct How {
    /// For --own-tests and samples: a folder with their repositories (cuda-python, cupy, cuda-samples), at the tags [default: they are cloned].
    #[arg(long)]
    sources: Option<PathBuf>,
    /// For --own-tests and samples: only native, not as a tenant too.
    #[arg(long)]
    native: bool,
    /// For --own-tests and samples: goes on behind what an earlier run, which was stopped, has done.
    #[arg(long)]
    go_on: bool,
}

impl How {
    /// The folder with repositories, if one was given.
    pub(crate) fn sources(&self) -> Option<&Path> {
        self.sources.as_deref()
    }

    /// In how many modes: native, as a tenant.
    pub(crate) fn modes(&self) -> usize {
        if self.native { 1 } else { 2 }
    }

    /// Whether what an earlier run has done is not done again.
    pub(crate) fn go_on(&self) -> bool {
        self.go_on
    }

    /// An error if anything is said that checks of clients do not know.
    ///
    /// # Errors
    /// Which is said for nothing.
    pub(crate) fn unused(&self) -> Result<()> {
        if self.sources.is_some() || self.native || self.go_on {
            bail!("--sources, --native and --go-on are for --own-tests and for samples");
        }
        Ok(())
    }
}

/// Runs the suites of these names, or all.
///
/// # Errors
/// A name that is none; what pip or git say; a suite of which nothing ran. Tests that fail are told of in the page.
pub(crate) fn all(root: &Path, names: &[String], how: &How) -> Result<()> {
    let mut chosen: Vec<&Suite> = Vec::new();
    for name in names {
        let suite = SUITES.iter().find(|suite| suite.name == name.replace('-', "_"));
        let known = || SUITES.map(|suite| suite.name).join(", ");
        chosen
            .push(suite.with_context(|| format!("there are no own tests of {name}; there are those of: {}", known()))?);
    }
    if names.is_empty() {
        chosen = SUITES.iter().collect();
    }
    for suite in chosen {
        let python = set_up(root, suite.environment, None)?;
        add_packages(&python, &[&PYTEST, suite.packages].concat())?;
        let repository = repository(root, suite, how.sources())?;
        bring_helpers(suite, &python, &repository)?;
        let mut reports = Vec::new();
        for mode in [&["--native"][..], &[]].into_iter().take(how.modes()) {
            say(&format!("own tests of {}, {}", suite.name, if mode.is_empty() { "as a tenant" } else { "native" }));
            reports.push(run(root, suite, &python, &repository.join(suite.folder), mode, how.go_on)?);
        }
        let given = how.sources.is_some() && !matches!(suite.source, Source::Wheel);
        write(&root.join("docs/compatibility.md"), vec![(heading(suite.name), section(suite, &reports, given)?)])?;
    }
    Ok(())
}

/// The folder with a suite's repository; one without tests for those that a wheel has.
fn repository(root: &Path, suite: &Suite, sources: Option<&Path>) -> Result<PathBuf> {
    let clones = target(root).join("own-tests");
    fs::create_dir_all(&clones)?;
    let Source::Repository { owner, name, tag } = suite.source else {
        let folder = clones.join("wheels");
        fs::create_dir_all(&folder)?;
        return Ok(folder);
    };
    checkout(&clones, (owner, name, tag), suite.folder, sources)
}

/// A repository at GitHub, by owner and name, at a tag: the one among those that were given, in which `part` must be, or a clone.
pub(crate) fn checkout(
    clones: &Path,
    (owner, name, tag): (&str, &str, &str),
    part: &str,
    sources: Option<&Path>,
) -> Result<PathBuf> {
    if let Some(sources) = sources {
        let folder = sources.join(name);
        if !folder.join(part).exists() {
            bail!("{} is not there: put {owner}/{name}, at {tag}, into {}", folder.display(), sources.display());
        }
        return Ok(fs::canonicalize(folder)?);
    }
    let folder = clones.join(format!("{name}-{tag}"));
    if !folder.join(".git").exists() {
        let url = format!("https://github.com/{owner}/{name}.git");
        say(&format!("cloning {url} at {tag}"));
        let mut git = Command::new("git");
        git.args(["clone", "--quiet", "--depth", "1", "--branch", tag, &url]).arg(&folder);
        checked(&mut git).context("it cannot be had: --sources names a folder that has it")?;
    }
    Ok(folder)
}

/// Puts into site-packages what tests import from a package, but its wheel does not have.
fn bring_helpers(suite: &Suite, python: &Path, repository: &Path) -> Result<()> {
    let packages = site_packages(python)?;
    for (from, to) in suite.helpers {
        let (from, to) = (repository.join(from), packages.join(to));
        if from.exists() && !to.exists() {
            checked(Command::new("cp").arg("-r").args([from, to]))?;
        }
    }
    Ok(())
}

/// Where a python's packages are.
pub(crate) fn site_packages(python: &Path) -> Result<PathBuf> {
    let purelib = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = Command::new(python).args(["-c", purelib]).output()?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Runs a suite, in as many processes as it takes.
fn run(root: &Path, suite: &Suite, python: &Path, folder: &Path, mode: &[&str], go_on: bool) -> Result<Report> {
    let own = root.join("xtask/clients/own");
    let home = target(root).join("clients/home");
    let runtime = home.join("run");
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::create_dir_all(&runtime)?;
    let file = target(root).join("own-tests").join(format!("{}{}.tsv", suite.name, mode.concat()));
    if file.exists() && !go_on {
        fs::remove_file(&file)?;
    }
    let log = file.with_extension("log");
    let paths = match std::env::var("PYTHONPATH") {
        Ok(given) => format!("{}:{given}", own.display()),
        Err(_) => own.display().to_string(),
    };
    let nvcc = site_packages(python)?.join("nvidia/cu13/bin/nvcc");
    let mut before = 0;
    for _ in 0..MOST_PROCESSES {
        Command::new(product(root).join("sundial"))
            .arg("run")
            .args(mode)
            .args(["--", "timeout", &PROCESS_WITHIN.to_string()])
            .arg(python)
            .args(["-m", "pytest", "-p", "sundial_own_tests", "-p", "no:cacheprovider", "-q", "--tb=short"])
            .arg(format!("--timeout={TEST_WITHIN}"))
            .arg("--timeout-method=thread")
            .args(suite.arguments)
            .current_dir(folder)
            .env("HOME", &home)
            .env("SUNDIAL_RUNTIME_DIR", &runtime)
            .env("SUNDIAL_OWN_TESTS", &file)
            .env("SUNDIAL_OWN_TESTS_ONE_IN", suite.one_in.to_string())
            .env("SUNDIAL_OWN_TESTS_VERSIONS", suite.versions.join(" "))
            .env("PYTHONPATH", &paths)
            .envs(suite.settings.iter().copied())
            // CuPy's look for the compiler even where no test uses it.
            .env("NVCC", std::env::var_os("NVCC").unwrap_or_else(|| nvcc.clone().into()))
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_STATE_HOME")
            .stdout(fs::File::options().create(true).append(true).open(&log)?)
            .stderr(fs::File::options().create(true).append(true).open(&log)?)
            .status()
            .context("cannot start sundial")?;
        let said = fs::read_to_string(&file).unwrap_or_default();
        let now = said.lines().count();
        // Whatever it ends with: one that came to its end has finished the last test that it began.
        if now == before || !said.lines().last().is_some_and(|line| line.starts_with("started\t")) {
            break;
        }
        before = now;
    }
    let refused = fs::read_to_string(own.join(format!("{}.refused", suite.name))).unwrap_or_default();
    let report = read(&fs::read_to_string(&file).unwrap_or_default(), &refusals(&refused)?);
    if report.tests.is_empty() {
        bail!("nothing of it ran; {} says why", log.display());
    }
    Ok(report)
}

/// What is refused: `PART OF "TEST REASON" => WHY IT IS RIGHT`, a line each.
fn refusals(text: &str) -> Result<Vec<(&str, &str)>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(" => ").with_context(|| format!("no ` => ` in the line: {line}"))).collect()
}

/// What the plugin has written.
fn read(text: &str, refusals: &[(&str, &str)]) -> Report {
    let mut report = Report::default();
    for line in text.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(outcome), Some(test)) = (fields.next(), fields.next()) else { continue };
        let reason = fields.next().unwrap_or_default();
        let outcome = match outcome {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            "version" => {
                report.versions.insert(test.to_owned(), reason.to_owned());
                continue;
            }
            _ => Outcome::Failed,
        };
        let reason = if line.starts_with("started\t") { "the process ended" } else { reason };
        let whole = format!("{test} {reason}");
        let right = refusals.iter().find(|(part, _)| outcome == Outcome::Failed && whole.contains(part));
        let told = right.map_or((outcome, reason), |(_, why)| (Outcome::Refused, *why));
        report.tests.insert(test.to_owned(), (told.0, told.1.to_owned()));
    }
    report
}

impl Report {
    fn count(&self, of: Outcome) -> usize {
        self.tests.values().filter(|(outcome, _)| *outcome == of).count()
    }

    /// Of those that ran and are not refused.
    fn rate(&self) -> f64 {
        let (passed, failed) = (self.count(Outcome::Passed) as f64, self.count(Outcome::Failed) as f64);
        100.0 * passed / (passed + failed).max(1.0)
    }
}

/// What the page says of a suite.
fn section(suite: &Suite, reports: &[Report], given: bool) -> Result<String> {
    let [native, others @ ..] = reports else { bail!("no report") };
    let versions: Vec<String> = suite
        .versions
        .iter()
        .map(|name| format!("{name} {}", native.versions.get(*name).map_or("(not installed)", String::as_str)))
        .collect();
    let from = match suite.source {
        Source::Wheel => "the tests of the wheel".to_owned(),
        Source::Repository { .. } if given => "tests of a checkout that was given".to_owned(),
        Source::Repository { owner, name, tag } => format!("the tests of {owner}/{name} at {tag}"),
    };
    let sample = if suite.one_in == 1 { String::new() } else { format!(", one in {} of them", suite.one_in) };
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let mut text = format!("{}; {from}{sample}; run on {date}.\n", versions.join(", "));
    text += "\n| | passed | failed | refused | skipped | passed of those not refused |\n|---|---|---|---|---|---|\n";
    for (mode, report) in ["native", "tenant"].iter().zip(reports) {
        let counts = [Outcome::Passed, Outcome::Failed, Outcome::Refused, Outcome::Skipped]
            .map(|of| report.count(of).to_string());
        text += &format!("| {mode} | {} | {:.1} % |\n", counts.join(" | "), report.rate());
    }
    let listed = |of: Outcome, most: usize| {
        let mut lines: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (test, (_, reason)) in reports.iter().flat_map(|report| &report.tests).filter(|(_, told)| told.0 == of) {
            let file = test.split("::").next().unwrap_or(test).rsplit('/').next().unwrap_or(test);
            let shown = if of == Outcome::Refused { reason.clone() } else { format!("{file}: {}", short(reason)) };
            lines.entry(shown).or_default().insert(test);
        }
        let mut lines: Vec<_> = lines.into_iter().map(|(line, tests)| (tests.len(), line)).collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.0));
        let left = lines.len().saturating_sub(most);
        let mut text: String =
            lines.into_iter().take(most).map(|(count, line)| format!("- {count}: {line}\n")).collect();
        if left > 0 {
            text += &format!("- and {left} more kinds\n");
        }
        text
    };
    let (refused, failed) = (listed(Outcome::Refused, usize::MAX), listed(Outcome::Failed, MOST_SHOWN));
    if !refused.is_empty() {
        text += &format!("\nRefused, and right to be:\n{refused}");
    }
    if !failed.is_empty() {
        let whose = if others.is_empty() { "" } else { ", native or as a tenant" };
        text += &format!("\nFailed{whose}:\n{failed}");
    }
    Ok(text)
}

/// The part of a reason that failures of one cause share.
fn short(reason: &str) -> String {
    let shown: String =
        reason.chars().take(110).map(|c| if matches!(c, '|' | '`' | '<' | '*' | '_') { ' ' } else { c }).collect();
    shown.split_whitespace().map(|word| if word.starts_with("0x") { "0x…" } else { word }).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "version\tx\t1.2\nstarted\ta.py::one\npassed\ta.py::one\t\nstarted\ta.py::two\nfailed\ta.py::two\tneeds SASS (x:1)\n\
                        started\ta.py::three\nskipped\ta.py::three\twhy\nstarted\tb.py::four\nstarted\tb.py::five\nfailed\tb.py::five\tother\n";

    #[test]
    fn what_the_plugin_says_is_read() {
        let report = read(SAID, &refusals("# x\n\ntwo needs SASS => machine code is not executed\n").unwrap());
        let counts = [Outcome::Passed, Outcome::Failed, Outcome::Refused, Outcome::Skipped].map(|of| report.count(of));
        assert_eq!(counts, [1, 2, 1, 1]);
        assert_eq!(report.tests["b.py::four"], (Outcome::Failed, "the process ended".to_owned()));
        assert_eq!(report.tests["a.py::two"].1, "machine code is not executed");
        assert!((report.rate() - 100.0 / 3.0).abs() < 1e-9);
        assert!(refusals("no arrow\n").is_err());
    }

    #[test]
    fn a_section_tells_counts_and_causes() {
        let report = || read(SAID, &[("two", "right")]);
        let text = section(&SUITES[0], &[report(), report()], false).unwrap();
        for part in [
            "| native | 1 | 2 | 1 | 1 | 33.3 % |",
            "| tenant | 1 |",
            "\n- 1: right\n",
            "- 1: b.py: the process ended\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn refusals_are_of_suites_and_have_reasons() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/own");
        for entry in fs::read_dir(&own).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "refused") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(SUITES.iter().any(|suite| suite.name == name), "{name}");
                refusals(&fs::read_to_string(&path).unwrap()).unwrap();
            }
        }
    }
}
