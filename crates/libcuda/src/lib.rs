#![expect(unsafe_code, reason = "the C edge: reads and writes through pointers of C programs and exports symbols")]
//! `libcuda.so.1`: the CUDA driver API, as C programs and NVIDIA's libraries find it.
//!
//! Only the edge: a call enters ([`entry`]), its arguments become values that are safe to use ([`decode`]), the core
//! answers ([`calls`] says with which of its functions), and the answer becomes a result code. What CUDA *means* stands in
//! `cuda_core`.
//!
//! - `shims`: one exported function for each symbol of the table `cuda_abi/functions.txt`, and the address map of
//!   `cuGetProcAddress` ([`addresses`]); made by `cargo xtask gen`. Functions that are refused, because of what the GPU or the
//!   system lacks, are exported too: they return a real driver's code, are counted, and logged with the reason.
//! - [`calls`]: the decoding of each implemented function, by family.
//! - [`start`]: `cuInit` with the log ([`log`]) and the choice of the GPU ([`backend`]), forks, the end of the process.
//! - [`export_tables`], [`context_storage`], [`handshake`]: the unnamed functions that NVIDIA's runtime library asks for
//!   before it starts, without which no unmodified program built with `nvcc` runs.
//! - [`kernel_library`]: what libraries that choose their kernels themselves see of the GPU.
//! - [`standing`]: how the program stands on a GPU in its own process, for `libnvidia-ml.so.1`.
//! - [`error_log`]: what went wrong, for the program to read.
//! - [`image`], [`links`], [`names`], [`callback`]: code, logs, texts and functions that cross the edge.
//!
//! The promise on which all unsafe code here rests is the API's own: a C program passes pointers that are null or valid
//! for what the function is documented to read and write. Beyond that nothing is believed: handles are looked up, sizes
//! are bounded, panics end at the edge.

mod addresses;
mod backend;
mod callback;
mod calls;
mod check;
mod context_storage;
mod decode;
mod entry;
mod error_log;
mod export_tables;
mod handshake;
mod image;
mod kernel_library;
mod links;
mod log;
mod names;
mod shims;
mod standing;
mod start;
mod visible;
