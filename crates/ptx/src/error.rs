//! The one error of the front end.

use std::fmt;

/// What sort of refusal a [`PtxError`] is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PtxErrorKind {
    /// The text is not PTX.
    Invalid,
    /// An instruction is in no form that is known here: it is wrong, or PTX has forms of it that nothing here is known of.
    UnknownForm,
    /// The text may well be PTX, but this implementation cannot run it.
    Unsupported,
}

/// Why a module or one of its kernels was refused.
///
/// Its `Display` is one line in the style of the vendor's assembler, fit for the JIT error log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PtxError {
    /// Line in the PTX text, from 1; 0 if no line is to blame.
    pub line: u32,
    /// The reason, and the text of the instruction where there is one.
    pub message: String,
    /// Whose fault it is.
    pub kind: PtxErrorKind,
}

impl PtxError {
    pub(crate) fn invalid(line: u32, message: impl Into<String>) -> PtxError {
        PtxError { line, message: message.into(), kind: PtxErrorKind::Invalid }
    }

    pub(crate) fn unsupported(line: u32, message: impl Into<String>) -> PtxError {
        PtxError { line, message: message.into(), kind: PtxErrorKind::Unsupported }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            PtxErrorKind::Invalid | PtxErrorKind::UnknownForm => "error",
            PtxErrorKind::Unsupported => "unsupported",
        };
        write!(f, "ptx input, line {}; {what}: {}", self.line, self.message)
    }
}

impl std::error::Error for PtxError {}
