//! Compares this crate with the vendor's `nvml.h`, by a C program that prints what the header says.
//!
//! Needs a C compiler and the header: `SUNDIAL_CUDA_HOME` names the toolkit (its `include/nvml.h`). Skipped aloud elsewhere.
#![expect(clippy::print_stdout, reason = "says what it skipped")]

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use nvidia_ml::abi::{
    ARCHITECTURES, LAYOUTS, RETURNS, nvmlMemory_v2_t, nvmlPciInfoExt_v1_t, nvmlProcessDetailList_v1_t, nvmlUUID_v1_t,
    version,
};
use nvidia_ml::{DEVICE_NAMES, PROCESS_NAMES, SYSTEM_NAMES, UNSUPPORTED_NAMES};

fn header() -> Option<PathBuf> {
    let home = std::env::var_os("SUNDIAL_CUDA_HOME").map(PathBuf::from);
    let folder = home.map(|home| home.join("include")).filter(|folder| folder.join("nvml.h").exists());
    if folder.is_none() {
        println!("skipped: SUNDIAL_CUDA_HOME names no folder with include/nvml.h");
    }
    folder
}

#[test]
fn the_header_agrees() {
    let Some(folder) = header() else { return };
    let mut source = "#include <nvml.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let mut expected: HashMap<String, u64> = HashMap::new();
    let mut fact = |what: String, expression: String, value: u64| {
        let _ = writeln!(source, "printf(\"{what} %llu\\n\", (unsigned long long)({expression}));");
        expected.insert(what, value);
    };
    for (name, code, _) in RETURNS {
        fact((*name).into(), (*name).into(), u64::from(*code));
    }
    for (name, number) in ARCHITECTURES {
        let name = format!("NVML_DEVICE_ARCH_{name}");
        fact(name.clone(), format!("(unsigned){name}"), u64::from(*number));
    }
    for (name, size, fields) in LAYOUTS {
        fact((*name).into(), format!("sizeof({name})"), *size as u64);
        for (field, offset) in *fields {
            fact(format!("{name}.{field}"), format!("offsetof({name}, {field})"), *offset as u64);
        }
    }
    for (name, word) in [
        ("nvmlMemory_v2", version::<nvmlMemory_v2_t>(2)),
        ("nvmlPciInfoExt_v1", version::<nvmlPciInfoExt_v1_t>(1)),
        ("nvmlProcessDetailList_v1", version::<nvmlProcessDetailList_v1_t>(1)),
        ("nvmlUUID_v1", version::<nvmlUUID_v1_t>(1)),
    ] {
        fact(name.into(), name.into(), u64::from(word));
    }
    source += "return 0; }\n";
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (place.join("nvml_header.c"), place.join("nvml_header"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg("-I").arg(folder).arg("-o").args([&program, &file]).output();
    let compiled = compiled.expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let mut seen = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (what, value) = line.split_once(' ').unwrap();
        assert_eq!(value.parse::<u64>().unwrap(), expected[what], "{what}");
        seen += 1;
    }
    assert_eq!(seen, expected.len());
    assert!(seen > 100, "{seen} facts compared");
}

fn ours() -> BTreeSet<&'static str> {
    let all = [DEVICE_NAMES, PROCESS_NAMES, SYSTEM_NAMES, UNSUPPORTED_NAMES, &["nvmlErrorString"]];
    all.into_iter().flatten().copied().collect()
}

#[test]
fn every_function_of_the_header_is_there() {
    let Some(folder) = header() else { return };
    let text = std::fs::read_to_string(folder.join("nvml.h")).unwrap();
    let ours = ours();
    let mut seen = 0;
    for declared in text.split("DECLDIR ").skip(1) {
        let name: String = declared.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.starts_with("nvml") {
            assert!(ours.contains(name.as_str()), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 400, "{seen} functions");
}

#[test]
fn no_name_is_there_twice() {
    let count =
        [DEVICE_NAMES, PROCESS_NAMES, SYSTEM_NAMES, UNSUPPORTED_NAMES].iter().map(|names| names.len()).sum::<usize>();
    assert_eq!(ours().len(), count + 1);
    assert!(UNSUPPORTED_NAMES.is_sorted());
}
