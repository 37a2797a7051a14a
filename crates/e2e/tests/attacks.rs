//! Attacks of hostile tenants, briefly: nobody else may notice more than that there are others.
//!
//! `cargo xtask attack` does the same for longer, and judges the victim's times as well.

use std::process::Command;

use e2e::{bin_dir, text};

/// Runs the attacks whose names contain `only`.
fn held(only: &str, arguments: &[&str]) {
    let program = bin_dir().join("sundial-attack");
    let output = Command::new(program)
        .args(["all", "--brief", "--json", "--only", only])
        .args(arguments)
        .env("SUNDIAL_BIN_DIR", bin_dir())
        .output()
        .expect("sundial-attack (build it with: cargo xtask build)");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
    let rows = report["attacks"].as_array().expect("attacks");
    let fell: Vec<_> = rows.iter().filter(|row| row["held"] != true).collect();
    assert!(fell.is_empty() && output.status.success(), "{fell:#?}");
}

macro_rules! attacks {
    ($($name:ident: $only:literal,)*) => {$(
        #[test]
        fn $name() {
            held($only, &[]);
        }
    )*};
}

attacks! {
    straight_line_kernels_of_any_size: "straight",
    chains_of_any_length: "chain",
    any_number_of_live_values: "live",
    any_number_of_branches: "ifs",
    any_size_of_branch_tables: "table",
    any_depth_of_loops: "nest",
    any_number_of_calls: "calls",
    compiling_and_dying: "compile",
    mapping_one_block_thousands_of_times: "maps",
    pinning_thousands_of_pages: "pinned",
    registering_thousands_of_pages: "registered",
    ctas_that_take_much_memory_and_wait: "residency",
    code_for_many_block_shapes: "block shapes",
    large_modules: "modules",
    hundreds_of_streams_that_wait: "waiters",
    a_thousand_streams_that_work: "streams",
    hundreds_of_contexts: "contexts",
    kernels_that_never_end: "endless",
    kernels_that_fault: "stray",
    launches_without_end: "flood",
    leaving_much_behind: "teardown",
    a_little_of_everything: "churn",
}

#[test]
fn deaths_at_random_moments() {
    held("kills", &["--kills", "60", "--minutes", "1"]);
}

/// Guests of all schemes at once: one kind of hostility after the other, then deaths at random moments.
#[test]
fn guests_that_mean_no_good() {
    held("guests", &["--kills", "30", "--minutes", "1"]);
}
