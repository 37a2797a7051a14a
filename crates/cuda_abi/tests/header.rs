//! Compares this crate with the vendor's `cuda.h`, by a C program that prints what the header says.
//!
//! Needs a C compiler and the header: `SUNDIAL_CUDA_HOME` names the toolkit (its `include/cuda.h`). Skipped aloud
//! elsewhere.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use cuda_abi::{context, device, graph, memory, module, old, result, stream, texture};

const CONSTANTS: &[&[(&str, i64)]] = &[
    context::CONSTANTS,
    device::CONSTANTS,
    graph::CONSTANTS,
    memory::CONSTANTS,
    module::CONSTANTS,
    stream::CONSTANTS,
    texture::CONSTANTS,
];

/// A structure's name, then name and offset of every field, and its size last.
type Layout = (&'static str, &'static [(&'static str, usize)]);

const LAYOUTS: &[&[Layout]] = &[
    context::LAYOUTS,
    device::LAYOUTS,
    graph::LAYOUTS,
    memory::LAYOUTS,
    old::LAYOUTS,
    stream::LAYOUTS,
    texture::LAYOUTS,
];

/// Fields that have no name of their own in C: unions, what lies between fields.
fn unnamed(structure: &str, field: &str) -> bool {
    field == "words"
        || field.starts_with("gap_")
        || field == "value"
            && !matches!(structure, "CUDA_MEMSET_NODE_PARAMS" | "CUDA_MEMSET_NODE_PARAMS_v2" | "CUlaunchAttribute")
}

/// A field's name in C: words joined in camel case, but for what the header writes otherwise.
fn c_name(structure: &str, field: &str) -> String {
    let structure = structure.trim_end_matches("_v1");
    let capital = structure.starts_with("CUDA_ARRAY") && structure.ends_with("DESCRIPTOR")
        || structure.starts_with("CUDA_MEMCPY3D") && matches!(field, "width_in_bytes" | "height" | "depth")
        || structure == "CUDA_MEMCPY2D" && matches!(field, "width_in_bytes" | "height");
    let plain = match (structure, field) {
        (_, "kind") => "type",
        (_, "function") if structure.contains("HOST_NODE") => "fn",
        (_, "src_lod") => "srcLOD",
        (_, "dst_lod") => "dstLOD",
        (_, "simd_width") => "SIMDWidth",
        (_, "gpu_direct_rdma_capable") => "gpuDirectRDMACapable",
        (_, "ph_graph_out") => "phGraph_out",
        (_, "h_err_node_out") => "hErrNode_out",
        (_, "internal_padding") => "_internal_padding",
        (_, "default") => "default_",
        (_, "result_out")
        | ("CUgraphEdgeData" | "CUaccessPolicyWindow", "from_port" | "to_port" | "base_ptr" | "num_bytes") => field,
        _ => "",
    };
    if !plain.is_empty() {
        return plain.to_owned();
    }
    let mut name = String::new();
    for (index, word) in field.split('_').enumerate() {
        let (first, rest) = word.split_at(1);
        name += &if index > 0 || capital { first.to_uppercase() } else { first.to_owned() };
        name += rest;
    }
    name
}

#[test]
fn the_header_agrees() {
    let Some(home) = std::env::var_os("SUNDIAL_CUDA_HOME").map(PathBuf::from) else {
        println!("skipped: SUNDIAL_CUDA_HOME is not set");
        return;
    };
    let mut source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let mut expected: HashMap<String, i64> = HashMap::new();
    for (name, value) in CONSTANTS.iter().copied().flatten() {
        let _ = writeln!(source, "printf(\"{name} %lld\\n\", (long long){name});");
        expected.insert((*name).to_owned(), *value);
    }
    for (name, value) in result::CONSTANTS {
        let _ = writeln!(source, "printf(\"{name} %lld\\n\", (long long){name});");
        expected.insert((*name).to_owned(), *value);
    }
    for (structure, fields) in LAYOUTS.iter().copied().flatten() {
        for (field, offset) in *fields {
            if field.is_empty() {
                let _ = writeln!(source, "printf(\"{structure} %zu\\n\", sizeof({structure}));");
                expected.insert((*structure).to_owned(), *offset as i64);
            } else if !unnamed(structure, field) {
                let name = c_name(structure, field);
                let _ = writeln!(source, "printf(\"{structure}.{name} %zu\\n\", offsetof({structure}, {name}));");
                expected.insert(format!("{structure}.{name}"), *offset as i64);
            }
        }
    }
    source += "return 0; }\n";
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join("header.c"), folder.join("header"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg("-I").arg(home.join("include")).arg("-o").args([&program, &file]).output();
    let compiled = compiled.expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let mut seen = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (what, value) = line.split_once(' ').unwrap();
        assert_eq!(value.parse::<i64>().unwrap(), expected[what], "{what}");
        seen += 1;
    }
    assert!(seen > 900, "{seen} facts compared");
}
