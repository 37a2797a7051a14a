//! The stand-in for ptxas, run as programs run it.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::process::{Command, Output};

const GOOD: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    st.global.u32 [%rd1], 7;
    ret;
}
";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("sundial-ptxas-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn assemble(&self, text: &str, options: &[&str]) -> (Output, Option<Vec<u8>>) {
        std::fs::write(self.0.join("in.ptx"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ptxas"));
        command.current_dir(&self.0).args(["-arch=sm_120", "in.ptx", "-o", "out"]).args(options);
        (command.output().unwrap(), std::fs::read(self.0.join("out")).ok())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ptx_is_handed_over() {
    let folder = Folder::new("good");
    let (output, made) = folder.assemble(GOOD, &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(made.unwrap(), [GOOD.as_bytes(), b"\0"].concat());
}

#[test]
fn options_that_matter_go_along() {
    let folder = Folder::new("options");
    let (_, made) = folder.assemble(GOOD, &["--fmad=false", "-maxrregcount", "40"]);
    let program = ptx::Program::parse(&made.unwrap()).unwrap();
    let without = ptx::Program::parse(GOOD.as_bytes()).unwrap();
    let with = program.resources(u64::MAX).unwrap();
    assert!(with[0].as_ref().unwrap().registers <= 40);
    let text = String::from_utf8_lossy(program.text().as_bytes()).into_owned();
    assert!(text.starts_with(without.text()) && text.contains("fma=0 maxrregcount=40"), "{text}");
}

#[test]
fn errors_are_those_of_an_assembler() {
    let folder = Folder::new("bad");
    let bad = GOOD.replace("st.global.u32", "st.nowhere.u32");
    let (output, made) = folder.assemble(&bad, &[]);
    assert_eq!((output.status.code(), made), (Some(255), None));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("ptxas in.ptx, line 9; error   : "), "{error}");
    assert!(error.ends_with("ptxas fatal   : Ptx assembly aborted due to errors\n"), "{error}");
    let (output, _) = folder.assemble("hello", &[]);
    assert_eq!(output.status.code(), Some(255));
    let missing = Command::new(env!("CARGO_BIN_EXE_ptxas")).arg("/nowhere.ptx").output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("Input file '/nowhere.ptx' could not be opened"));
}

#[test]
fn programs_find_the_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_ptxas")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Cuda compilation tools, release 13.5, V13.5."), "{text}");
}
