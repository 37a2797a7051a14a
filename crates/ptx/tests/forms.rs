//! Each line of `data/forms.txt` is an instruction, compiled in a kernel that declares everything it may name.

use ptx::Program;

const BEFORE: &str = "
.version 9.0
.target sm_120
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.global .align 4 .b8 global[64];
.const .align 4 .b8 constant[64];
.visible .entry k(.param .align 8 .b8 a0[64])
{
    .shared .align 4 .b8 pad[16];
    .shared .align 4 .b8 tile[64];
    .local .align 16 .b8 depot[64];
    .reg .pred %p<10>;
    .reg .b16 %rs<10>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<10>;
    .reg .f32 %f<10>;
    .reg .f64 %fd<10>;
    .param .align 16 .b8 q0[64];
    bra BEGIN;
LOOP:
    exit;
BEGIN:
";
const AFTER: &str = "
    mov.u32 %r0, pad;
    mov.u32 %r0, tile;
    mov.u32 %r0, dynamic;
    @%p0 bra LOOP;
    ret;
}
";

fn lower(instruction: &str) -> Result<String, String> {
    let text = format!("{BEFORE}{instruction}{AFTER}");
    let program = Program::parse(text.as_bytes()).map_err(|e| e.to_string())?;
    let symbols = |name: &str| match name {
        "global" => Some(0x7_0000_0000),
        "constant" => Some(0x7_1000_0000),
        _ => None,
    };
    program.lower(0, &symbols).map(|k| k.to_string()).map_err(|e| e.to_string())
}

#[test]
fn every_form_is_compiled_or_refused() {
    let mut failures = Vec::new();
    for (number, line) in include_str!("data/forms.txt").lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (instruction, wanted, refused) = match (line.split_once("->"), line.split_once("!>")) {
            (Some((instruction, text)), _) => (instruction, text.trim(), false),
            (None, Some((instruction, text))) => (instruction, text.trim(), true),
            (None, None) => (line, "", false),
        };
        match (lower(instruction), refused) {
            (Ok(text), false) | (Err(text), true) if text.contains(wanted) => {}
            (Ok(text) | Err(text), _) => failures.push(format!("line {}: {line}\n{text}\n", number + 1)),
        }
    }
    assert!(failures.is_empty(), "{} lines fail\n{}", failures.len(), failures.join("\n"));
}
