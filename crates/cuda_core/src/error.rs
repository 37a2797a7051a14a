//! The one error type of the crate: a CUDA result code.

use std::fmt;

use cuda_abi::CUresult;
use gpu::{ContextError, GpuError};

/// Result of a CUDA operation.
pub type Result<T> = std::result::Result<T, CudaError>;

/// A `CUresult` other than success.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaError(u32);

macro_rules! codes {
    ($($name:ident = $code:literal;)*) => {
        #[expect(missing_docs, reason = "named as in CUDA, whose texts `description` gives")]
        impl CudaError {
            $(pub const $name: CudaError = CudaError($code);)*
        }

        #[cfg(test)]
        const NAMES: &[(CudaError, &str)] = &[$((CudaError($code), concat!("CUDA_ERROR_", stringify!($name))),)*];
    };
}

codes! {
    INVALID_VALUE = 1;
    OUT_OF_MEMORY = 2;
    NOT_INITIALIZED = 3;
    DEINITIALIZED = 4;
    PROFILER_DISABLED = 5;
    DEVICE_UNAVAILABLE = 46;
    NO_DEVICE = 100;
    INVALID_DEVICE = 101;
    INVALID_IMAGE = 200;
    INVALID_CONTEXT = 201;
    MAP_FAILED = 205;
    UNMAP_FAILED = 206;
    ALREADY_MAPPED = 208;
    NO_BINARY_FOR_GPU = 209;
    NOT_MAPPED = 211;
    UNSUPPORTED_LIMIT = 215;
    CONTEXT_ALREADY_IN_USE = 216;
    PEER_ACCESS_UNSUPPORTED = 217;
    INVALID_PTX = 218;
    UNSUPPORTED_PTX_VERSION = 222;
    INVALID_SOURCE = 300;
    FILE_NOT_FOUND = 301;
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302;
    OPERATING_SYSTEM = 304;
    INVALID_HANDLE = 400;
    ILLEGAL_STATE = 401;
    LOSSY_QUERY = 402;
    NOT_FOUND = 500;
    NOT_READY = 600;
    ILLEGAL_ADDRESS = 700;
    LAUNCH_OUT_OF_RESOURCES = 701;
    LAUNCH_TIMEOUT = 702;
    PEER_ACCESS_ALREADY_ENABLED = 704;
    PEER_ACCESS_NOT_ENABLED = 705;
    PRIMARY_CONTEXT_ACTIVE = 708;
    CONTEXT_IS_DESTROYED = 709;
    ASSERT = 710;
    HOST_MEMORY_ALREADY_REGISTERED = 712;
    HOST_MEMORY_NOT_REGISTERED = 713;
    ILLEGAL_INSTRUCTION = 715;
    MISALIGNED_ADDRESS = 716;
    LAUNCH_FAILED = 719;
    COOPERATIVE_LAUNCH_TOO_LARGE = 720;
    NOT_PERMITTED = 800;
    NOT_SUPPORTED = 801;
    STREAM_CAPTURE_UNSUPPORTED = 900;
    STREAM_CAPTURE_INVALIDATED = 901;
    STREAM_CAPTURE_MERGE = 902;
    STREAM_CAPTURE_UNMATCHED = 903;
    STREAM_CAPTURE_UNJOINED = 904;
    STREAM_CAPTURE_ISOLATION = 905;
    STREAM_CAPTURE_IMPLICIT = 906;
    CAPTURED_EVENT = 907;
    STREAM_CAPTURE_WRONG_THREAD = 908;
    GRAPH_EXEC_UPDATE_FAILURE = 910;
    INVALID_CLUSTER_SIZE = 912;
    INVALID_RESOURCE_TYPE = 914;
    INVALID_RESOURCE_CONFIGURATION = 915;
    STREAM_DETACHED = 917;
    GRAPH_RECAPTURE_FAILURE = 918;
    UNKNOWN = 999;
}

impl CudaError {
    /// The `CUresult` value; never 0.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0
    }

    /// The error of a code; `None` for success.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<CudaError> {
        if code == 0 { None } else { Some(CudaError(code)) }
    }

    /// `CUDA_ERROR_…`.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        CUresult(self.0).name()
    }

    /// One line of description.
    #[must_use]
    pub fn description(self) -> Option<&'static str> {
        CUresult(self.0).description()?.to_str().ok()
    }
}

impl From<CudaError> for CUresult {
    fn from(error: CudaError) -> CUresult {
        CUresult(error.0)
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name().unwrap_or("CUDA_ERROR"), self.0)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description().unwrap_or("unrecognized error code"))
    }
}

impl std::error::Error for CudaError {}

impl From<&ContextError> for CudaError {
    fn from(error: &ContextError) -> CudaError {
        match error {
            ContextError::IllegalAddress { .. } => CudaError::ILLEGAL_ADDRESS,
            ContextError::Misaligned { .. } => CudaError::MISALIGNED_ADDRESS,
            ContextError::LaunchFailed { .. } => CudaError::LAUNCH_FAILED,
            ContextError::Assert { .. } => CudaError::ASSERT,
            ContextError::InvalidKernel { unsupported: true, .. } => CudaError::NOT_SUPPORTED,
            ContextError::InvalidKernel { unsupported: false, .. } => CudaError::INVALID_PTX,
            ContextError::IllegalCommand { .. } => CudaError::UNKNOWN,
            ContextError::OutOfResources { .. } => CudaError::LAUNCH_OUT_OF_RESOURCES,
        }
    }
}

impl From<GpuError> for CudaError {
    fn from(error: GpuError) -> CudaError {
        match &error {
            GpuError::OutOfMemory { .. } | GpuError::TooMany { .. } => CudaError::OUT_OF_MEMORY,
            GpuError::InvalidId { .. } | GpuError::InvalidValue { .. } => CudaError::INVALID_VALUE,
            GpuError::InvalidPtx { unsupported: true, .. } => CudaError::NOT_SUPPORTED,
            GpuError::InvalidPtx { unsupported: false, .. } => CudaError::INVALID_PTX,
            GpuError::Unsupported { .. } => CudaError::NOT_SUPPORTED,
            GpuError::Context(reason) => reason.into(),
            GpuError::Lost { .. } => CudaError::DEVICE_UNAVAILABLE,
            GpuError::TimedOut => CudaError::LAUNCH_TIMEOUT,
            GpuError::Deferred => CudaError::NOT_READY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_cuda() {
        for (error, name) in NAMES {
            assert_eq!(error.name(), Some(*name));
        }
        assert_eq!(CudaError::from_code(0), None);
        assert_eq!(CudaError::from_code(999), Some(CudaError::UNKNOWN));
        assert_eq!(format!("{:?}", CudaError::NOT_FOUND), "CUDA_ERROR_NOT_FOUND(500)");
    }
}
