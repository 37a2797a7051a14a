#![expect(unsafe_code, reason = "the C edge: reads and writes through pointers of C programs and exports symbols")]
#![expect(non_camel_case_types, reason = "types carry the vendor's names")]
//! `libnvidia-ml.so.1`: NVIDIA's management library, as monitoring programs and frameworks find it.
//!
//! The GPUs that it shows are the program's own: those of its tenant, by the numbers, names, UUIDs and bus addresses that its
//! `libcuda.so.1` shows, each with the tenant's limit as its memory, and with the tenant's processes. `CUDA_VISIBLE_DEVICES`
//! does not change that, as with the vendor's: programs that know the variable apply it to what they find here.
//!
//! - [`abi`]: result codes and structures, as facts.
//! - `edge`: what C passes, as types whose use is safe; nothing unwinds into C.
//! - `source`: who is asked: the daemon (`remote_gpu::Address::standing`), or `libcuda.so.1` of this process where the GPU is in
//!   it. Asking costs no session, and has a bound.
//! - `library`: what is known between `nvmlInit` and `nvmlShutdown`.
//! - `system`, `device`, `process`: the functions that have an answer, by family, with the table of their names.
//! - `unsupported`: all other names that the vendor's library exports. Each returns `NVML_ERROR_NOT_SUPPORTED`.
//!
//! # Figures
//! - *Memory*: the total is the tenant's limit, used is what is charged to its sessions.
//! - *GPU utilisation*: the part of the GPU's time that the tenant had in the last three seconds, percent, as `sundial ps` shows it
//!   as received: who is promised 30 % and has all of it sees 30 beside a busy neighbour, and up to 100 alone. Of a process: its
//!   part since this library looked before, as long ago as three seconds. What the interface has a number for and nobody measures
//!   (use of the memory's time, encoders, decoders) is 0 beside these.
//! - What a software GPU has not (power, temperature, fans, clocks, ECC, links) is not supported: no number is made up.
//! - *Processes* are those of the tenant that have a number in the PID namespace of who asks; the memory of others is in the sum.
//!
//! # Limits
//! Figures are as of a moment ago: up to 50 ms here and as long in the daemon. With the GPU in the process (`sundial run --native`,
//! a guest) they are of this process only; a guest's GPU is shown after its program's `cuInit`.
//!
//! The promise on which all unsafe code here rests is the interface's own: a C program passes pointers that are null or valid for
//! what the function is documented to read and write.

pub mod abi;
mod device;
mod edge;
mod library;
mod process;
mod source;
mod system;
mod unsupported;

pub use device::{NAMES as DEVICE_NAMES, calls as device_calls};
pub use edge::{Device, In, Out};
pub use process::{NAMES as PROCESS_NAMES, calls as process_calls};
pub use system::{NAMES as SYSTEM_NAMES, calls as system_calls, nvmlErrorString};
pub use unsupported::NAMES as UNSUPPORTED_NAMES;
