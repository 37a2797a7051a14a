//! The project's own commands: `cargo xtask help`.
//!
//! One entry for everything that is done with the sources: building the product, the demonstration, all tests, the checks
//! of structure and generated files. CI runs the same words.

mod apt;
mod clients;
mod examples;
mod generate;
mod guest;
mod layers;
mod own_tests;
mod qemu;
mod run;
mod samples;
mod tests;
mod toolkit;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the product: target/release/sundial, with its libraries beside it.
    Build,
    /// Builds everything and shows three tenants that share one GPU, or a tenant and guests.
    Demo {
        /// Arguments of `sundial demo`: --seconds N, --vms (with a virtual machine, if `qemu` was run before), --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs all tests, those included that compile CUDA programs with nvcc.
    Test {
        /// Leave out what needs nvcc (which is fetched from PyPI at the first time, about 190 MB).
        #[arg(long)]
        no_nvcc: bool,
        /// Leave out packages from PyPI and Debian as clients (see `clients --short`).
        #[arg(long)]
        no_clients: bool,
        /// Seconds for each fuzz target.
        #[arg(long, default_value_t = 5)]
        fuzz_seconds: u64,
    },
    /// Runs the fuzz targets for a while (all, or those named).
    Fuzz {
        /// Seconds for each.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Targets.
        targets: Vec<String>,
    },
    /// Attacks the built product: hostile tenants beside a victim, then kills at random moments.
    Attack {
        /// Arguments of `sundial-attack all`: --minutes N, --kills N, --only NAME, --seed N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Sets up packages from PyPI, crates.io and Debian under target/clients, runs them on the product (which it builds, unless
    /// $SUNDIAL_BIN_DIR has one), writes docs/compatibility.md.
    Clients {
        /// Which: cuda_core, numba, cupy, warp, taichi, tinygrad, nvtop; triton, torch_compile, jax, which need 6.5 GB; libraries, which needs
        /// 2.9 GB; rust, which is built for many minutes [default: the first seven]. Or: samples, and which of NVIDIA's cuda-samples
        /// [default: all].
        names: Vec<String>,
        /// Makes the short checks of the tests instead, of all but rust: as many packages as come within seven minutes (12 GB unpacked,
        /// which are kept) and leave 10 GB of the disk. Writes nothing.
        #[arg(long, conflicts_with_all = ["names", "own_tests"])]
        short: bool,
        /// Runs the packages' own tests instead, or samples of them: of numba, cuda_bindings, cuda_core, cupy, warp, taichi, tinygrad [default: all].
        #[arg(long)]
        own_tests: bool,
        #[command(flatten)]
        how: own_tests::How,
    },
    /// Makes the C edge of libcuda and the coverage page from the table of driver functions.
    Gen {
        /// Only check.
        #[arg(long)]
        check: bool,
    },
    /// Checks the crates' dependencies against layers.toml.
    Layers,
    /// Checks or applies the formatting.
    Fmt {
        /// Only check.
        #[arg(long)]
        check: bool,
    },
    /// Runs clippy with warnings as errors.
    Lint,
    /// Remakes the committed PTX from the .cu files beside it, with nvcc.
    GenPtx,
    /// Compiles examples/cuda with nvcc into target/cuda-examples.
    Examples,
    /// Fetches a QEMU with vfio-user, and a kernel for its guests, from Debian's archive into target/qemu.
    Qemu,
    /// Builds everything and packs target/guest.tar: what runs programs in a virtual machine with a virtual GPU.
    Guest,
    /// The checks of form: fmt, gen, layers, lint.
    Check,
    /// What CI runs: check, then test.
    Ci,
}

fn main() -> Result<()> {
    let root = root()?;
    match Arguments::parse().command {
        Command::Build => run::build(&root),
        Command::Demo { arguments } => run::demo(&root, &arguments),
        Command::Test { no_nvcc, no_clients, fuzz_seconds } => tests::all(&root, !no_nvcc, !no_clients, fuzz_seconds),
        Command::Fuzz { seconds, targets } => tests::fuzz(&root, seconds, &targets, None),
        Command::Attack { arguments } => run::attack(&root, &arguments),
        Command::Clients { names, short, own_tests, how } => {
            // Building takes libraries away from who runs on them.
            let _alone = clients::alone(&root)?;
            if clients::given_product().is_none() {
                run::build(&root)?;
            }
            if own_tests {
                return own_tests::all(&root, &names, &how);
            }
            if let [first, chosen @ ..] = names.as_slice()
                && first == "samples"
            {
                return samples::all(&root, chosen, &how);
            }
            how.unused()?;
            if short {
                return clients::quick(&root, &clients::prepare(&root));
            }
            clients::all(&root, &names)
        }
        Command::Gen { check } => generate::generate(&root, check),
        Command::Layers => layers::check(&root),
        Command::Fmt { check } => run::fmt(&root, check),
        Command::Lint => run::lint(&root),
        Command::GenPtx => examples::gen_ptx(&root),
        Command::Examples => examples::build(&root).map(drop),
        Command::Qemu => {
            let home = qemu::fetch(&root, Duration::from_secs(1800))?;
            run::say(&format!("{}", home.join("qemu-system-x86_64").display()));
            Ok(())
        }
        Command::Guest => {
            run::build(&root)?;
            guest::pack(&root).map(drop)
        }
        Command::Check => check(&root),
        Command::Ci => {
            check(&root)?;
            tests::all(&root, true, true, 5)
        }
    }
}

fn check(root: &Path) -> Result<()> {
    run::fmt(root, true)?;
    generate::generate(root, true)?;
    layers::check(root)?;
    run::lint(root)
}

/// The repository's root: the parent of this crate.
fn root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask lies in the repository's root")?.to_path_buf())
}
