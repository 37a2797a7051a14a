//! What a program asks of the compiler when it loads a module (`CU_JIT_…`), as a line of PTX: the text alone says then
//! what its kernels mean, to whoever compiles them.

use crate::program::Program;

/// What the pragma begins with.
const WORD: &str = "sundial";

/// Options that change what is compiled or reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JitOptions {
    /// CU_JIT_FMA: products and sums written without a rounding may be fused. Default: yes.
    pub fma: bool,
    /// CU_JIT_MAX_REGISTERS: registers per thread.
    pub max_registers: Option<u32>,
}

impl Default for JitOptions {
    fn default() -> JitOptions {
        JitOptions { fma: true, max_registers: None }
    }
}

impl JitOptions {
    /// The line to append to a module's text; `None` if all is as by default.
    #[must_use]
    pub fn pragma(&self) -> Option<String> {
        if *self == JitOptions::default() {
            return None;
        }
        let registers = self.max_registers.map_or_else(String::new, |n| format!(" maxrregcount={n}"));
        Some(format!("\n.pragma \"{WORD} fma={}{registers}\";\n", u8::from(self.fma)))
    }

    /// Options of a pragma; the default for those it does not name, and for a pragma that is not ours.
    pub(crate) fn read(text: &str) -> JitOptions {
        let mut options = JitOptions::default();
        let mut words = text.split_ascii_whitespace();
        if words.next() != Some(WORD) {
            return options;
        }
        for word in words {
            match word.split_once('=') {
                Some(("fma", value)) => options.fma = value != "0",
                Some(("maxrregcount", value)) => options.max_registers = value.parse().ok(),
                _ => {}
            }
        }
        options
    }

    /// Narrows what the program allows.
    pub(crate) fn apply(self, program: &mut Program) {
        program.contracts &= self.fma;
        program.max_registers = self.max_registers.or(program.max_registers);
    }
}
