//! The demonstration with virtual GPUs, shortly. Without its virtual machine where no QEMU was fetched (`cargo xtask qemu`).

use std::process::Command;

use e2e::{bin_dir, guest_archive, text};
use serde_json::Value;

#[test]
fn guests_a_session_and_a_native_program_side_by_side() {
    let mut command = Command::new(bin_dir().join("sundial"));
    command.args(["demo", "--vms", "--seconds", "10", "--json"]);
    let machine = e2e::qemu().zip(guest_archive());
    match &machine {
        Some((qemu, archive)) => command.arg("--qemu").arg(qemu.home()).arg("--guest").arg(archive),
        None => {
            eprintln!("skipped: a virtual machine among the guests (cargo xtask qemu and guest make what it needs)");
            command.env_remove("SUNDIAL_QEMU").env_remove("SUNDIAL_GUEST")
        }
    };
    let output = command.output().expect("sundial demo");
    let said = text(&output);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let tenants = result["tenants"].as_array().expect("tenants");
    let kinds: Vec<&str> = tenants.iter().filter_map(|tenant| tenant["kind"].as_str()).collect();
    let vm = machine.is_some().then_some("vm");
    assert_eq!(kinds, ["session", "fv", "pv", "native"].into_iter().chain(vm).collect::<Vec<_>>(), "{said}");
    for tenant in tenants {
        assert!(tenant["verified"] == true && tenant["kernels"].as_u64() > Some(0), "{said}");
        assert_eq!(tenant["share_entitled"].is_number(), tenant["kind"] != "native", "{said}");
    }
    // Guests that misbehaved, and what a guest that was killed has left. Whether shares were right and how soon all was done is
    // for a machine that has nothing else to do.
    assert_eq!(result["events"].as_array().map(Vec::len), Some(2), "{said}");
    assert_eq!(result["ok"] == true, output.status.success(), "{said}");
    // All of them stood in the live tables, with what each is.
    let table = String::from_utf8_lossy(&output.stderr);
    let row = |name: &str, kind: &str| table.lines().any(|line| line.starts_with(&format!("{name:<12} {kind:<8} ")));
    let rows = [("session", "session"), ("full", "fv"), ("para", "pv"), ("native", "native")];
    assert!(rows.iter().all(|(name, kind)| row(name, kind)), "{said}");
    // The machine as well; and where there is none, that is said.
    assert_eq!(row("machine", "vm"), machine.is_some(), "{said}");
    assert_eq!(table.contains("no virtual machine takes part"), machine.is_none(), "{said}");
}
