//! What NVIDIA's device runtime has for cooperative groups that compilers without C++ headers call: Numba's `this_grid().sync()`.
//!
//! The functions are PTX, put behind the text of a module that declares one of them and has none itself. A grid's handle is the
//! address of its workspace ([`crate::Launch::workspace`]), and its second word the barrier: CUDA's own headers meet there in the same
//! way, so that both may be used in one kernel. Each CTA adds one, the first what makes the sum of all flip the highest bit, and all
//! wait until it has.

use crate::program::Program;

/// See [`with_functions`]; in the order of their names.
const FUNCTIONS: &str = include_str!("cooperative.ptx");

/// Their names.
const NAMES: [&str; 3] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize", "cudaCGSynchronizeGrid"];

/// The text of a module with those of these functions that it has not, if it calls for any of them.
pub(crate) fn with_functions(program: &Program) -> Option<String> {
    let missing = |f: &crate::program::Function| f.body.is_none() && NAMES.contains(&f.name.as_str());
    program.functions.iter().any(missing).then(|| {
        let has = |name: &str| program.functions.iter().any(|f| f.body.is_some() && f.name == name);
        let bodies = FUNCTIONS.split_inclusive("\n}\n").zip(NAMES).filter(|(_, name)| !has(name));
        format!("{}\n{}", program.text, bodies.map(|(body, _)| body).collect::<String>())
    })
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

    #[test]
    fn what_a_module_has_itself_counts() {
        let own =
            ".func (.param .b32 e) cudaCGSynchronize(.param .b64 h, .param .b32 f) { st.param.b32 [e], 7; ret; }\n";
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n{own}\
             .extern .func (.param .b64 a) cudaCGGetIntrinsicHandle(.param .b32 b);\n\
             .visible .entry k() {{ .reg .b64 %h; .param .b32 s; .param .b64 a; st.param.b32 [s], 1;\n\
             call.uni (a), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %h, [a]; ret; }}"
        );
        let program = Program::parse(text.as_bytes()).unwrap();
        program.lower(0, &|_| None).unwrap();
        let of = |name: &str| program.functions.iter().filter(|f| f.name == name && f.body.is_some()).count();
        assert_eq!(NAMES.map(of), [1; 3]);
    }
}
