//! What NVIDIA's device runtime has for cooperative groups that compilers without C++ headers call: Numba's `this_grid().sync()`.
//!
//! The functions are PTX, put behind the text of a module that declares one of them and has none itself. A grid's handle is the
//! address of its workspace ([`crate::Launch::workspace`]), and its second word the barrier: CUDA's own headers meet there in the same
//! way, so that both may be used in one kernel. Each CTA adds one, the first what makes the sum of all flip the highest bit, and all
//! wait until it has.

use crate::program::Program;

/// See [`with_functions`].
const FUNCTIONS: &str = include_str!("cooperative.ptx");

/// Their names.
const NAMES: [&str; 3] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize", "cudaCGSynchronizeGrid"];

/// The text of a module with these functions, if it calls for any and does not have it.
pub(crate) fn with_functions(program: &Program) -> Option<String> {
    let missing = |f: &crate::program::Function| f.body.is_none() && NAMES.contains(&f.name.as_str());
    program.functions.iter().any(missing).then(|| format!("{}\n{FUNCTIONS}", program.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_functions() {
        let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
        let declared = ".extern .func (.param .b64 a) cudaCGGetIntrinsicHandle(.param .b32 b);\n";
        let has = |text: &str| {
            let program = Program::parse(text.as_bytes()).unwrap();
            NAMES.map(|name| program.functions.iter().any(|f| f.name == name && f.body.is_some()))
        };
        assert_eq!(has(&format!("{head}{declared}")), [true; 3]);
        assert_eq!(has(head), [false; 3]);
        // Read again, it is the same.
        let program = Program::parse(format!("{head}{declared}").as_bytes()).unwrap();
        assert_eq!(Program::parse(program.text().as_bytes()).unwrap().text(), program.text());
    }
}
