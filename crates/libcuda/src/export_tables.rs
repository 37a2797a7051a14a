//! Export tables: functions without names that NVIDIA's libraries ask for by UUID (`cuGetExportTable`).
//!
//! The runtime library does not start without most of them. A table is an array of addresses whose first word is its size
//! in bytes; the one of context-local storage has functions only. What each slot does was observed with a tracing stub
//! under unmodified programs and read in the ZLUDA project's `dark_api/src/lib.rs`; slots that nobody was seen to need
//! return `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! | table | asked for by | slots that do something |
//! |---|---|---|
//! | `CUDART_INTERFACE` | every runtime | 1, 6, 8 load a module from a fatbin, 2 names the primary context, 7, 12 nothing to do |
//! | `TOOLS_RUNTIME_CALLBACKS` | every runtime | 2, 6 tell two areas of flags, all zero: no tool listens |
//! | `TOOLS_TLS` | every runtime | 2 the thread's context (cuBLAS) |
//! | `TOOLS_CONTEXT` | runtimes since 13.4, cuBLAS | 4 a context's number, 39 a stream's, 51 which stream a handle means (cuBLAS) |
//! | `CONTEXT_STORAGE` | every runtime | 0 put, 1 delete, 2 get |
//! | `CONTEXT_CHECKS` | runtimes since 12.4 | 2 whether a context is a green one, 3 nothing is wrong |
//! | `HANDSHAKE` | every runtime | 1 the validity handshake |
//! | `COMPILER` | NVRTC | none |
//! | `MATH_LIBRARIES` | cuBLAS, cuFFT, cuSOLVER | 7 tells of each function of a module (cuFFT) |
//! | `PROFILER` | cuPTI, which calls itself without end where it is refused | none |
//! | `STANDING` | our `libnvidia-ml.so.1` ([`wire::place::STANDING_TABLE`]) | 1 how the program stands |

use std::ffi::{c_int, c_void};

use cuda_abi::{CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream, CUuuid, HostAddr};
use cuda_core::Device;
use cuda_core::Driver;
use gpu::Properties;
use wire::place::STANDING_TABLE;

use crate::calls::context::{ctx_get_current, ctx_get_id};
use crate::calls::module::module_load_data;
use crate::calls::stream::stream_get_id;
use crate::context_storage::{self, Destructor};
use crate::decode::{Core, Encode, Out};
use crate::entry::{Answer, Entry, Refusal, driver};
use crate::handshake::{Asked, DeviceIdentity, answer};

/// A word of a table: an address or a size.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Word(*const c_void);

// SAFETY: the addresses are of functions and never change.
unsafe impl Sync for Word {}

/// The table's size in bytes, as its first word.
const fn size(slots: usize) -> Word {
    Word(std::ptr::without_provenance(slots * size_of::<Word>()))
}

/// A slot with a function.
macro_rules! slot {
    ($function:path) => {
        Word($function as *const () as *const c_void)
    };
}

/// A slot nobody was seen to need.
const UNUSED: Word = slot!(unused);

/// A table whose first word is its size, and the given slots.
macro_rules! table {
    ($name:ident[$slots:literal] { $($index:literal: $function:path,)* }) => {
        static $name: [Word; $slots] = {
            let mut words = [UNUSED; $slots];
            words[0] = size($slots);
            $(words[$index] = slot!($function);)*
            words
        };
    };
}

table!(CUDART_INTERFACE[13] {
    1: load_module,
    2: primary_context,
    6: load_module_with_options,
    7: nothing,
    8: load_module_from_header,
    12: load_compilers,
});
table!(TOOLS_RUNTIME_CALLBACKS[7] {
    2: first_flags,
    6: second_flags,
});
table!(TOOLS_TLS[4] {
    2: thread_context,
});
table!(TOOLS_CONTEXT[95] {
    4: context_number,
    39: stream_number,
    51: stream_meant,
});
table!(CONTEXT_CHECKS[4] {
    2: check_context,
    3: check,
});
table!(HANDSHAKE[3] {
    1: handshake,
});
table!(STANDING[2] {
    1: standing,
});
table!(COMPILER[32] {});
table!(MATH_LIBRARIES[32] {
    7: each_function,
});
table!(PROFILER[64] {});

static CONTEXT_STORAGE: [Word; 4] =
    [slot!(storage_put), slot!(storage_delete), slot!(storage_get), Word(std::ptr::null())];

/// The table of a UUID.
pub(crate) fn find(uuid: CUuuid) -> Option<HostAddr> {
    if uuid.bytes == STANDING_TABLE {
        return Some(address(&STANDING));
    }
    let table = match u128::from_be_bytes(uuid.bytes) {
        0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => CUDART_INTERFACE.as_slice(),
        0xa094798c_2e74_2e74_93f2_0800200c0a66 => &TOOLS_RUNTIME_CALLBACKS,
        0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => &TOOLS_TLS,
        0x21318c60_9714_3248_8ca6_41ff7324c8f2 => &TOOLS_CONTEXT,
        0xc693336e_1121_df11_a8c3_68f355d89593 => &CONTEXT_STORAGE,
        0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => &CONTEXT_CHECKS,
        0xd4082055_bde6_704b_8d34_ba123c66e1f2 => &HANDSHAKE,
        0xda9151d3_3ae6_cc41_a5c0_4f26d533e328 => &COMPILER,
        0x6e163fbe_b958_444d_835c_e182aff1991e => &MATH_LIBRARIES,
        0x7cb63f9b_9ca4_8e42_a484_beb66e6aed7f => &PROFILER,
        _ => return None,
    };
    Some(address(table))
}

fn address(table: &'static [Word]) -> HostAddr {
    HostAddr(table.as_ptr().expose_provenance() as u64)
}

extern "C" fn unused() -> CUresult {
    static ENTRY: Entry = Entry::new("export table, unused slot");
    ENTRY.refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED, "not known to do anything")
}

extern "C" fn nothing() {}

extern "C" fn primary_context(context: Out<CUcontext>, device: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("CUDART_INTERFACE[2]");
    ENTRY.call(|driver| {
        context.required()?;
        context.set(driver.device_primary_ctx_handle(Device(device))?);
        Ok(())
    })
}

extern "C" fn load_module(module: Out<CUmodule>, image: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("CUDART_INTERFACE[1]");
    ENTRY.call(|driver| module_load_data(driver, module, image))
}

extern "C" fn load_module_with_options(
    module: Out<CUmodule>,
    image: HostAddr,
    _: HostAddr,
    _: HostAddr,
    _: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("CUDART_INTERFACE[6]");
    ENTRY.call(|driver| module_load_data(driver, module, image))
}

extern "C" fn load_module_from_header(
    image: HostAddr,
    module: Out<CUmodule>,
    _: HostAddr,
    _: HostAddr,
    _: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("CUDART_INTERFACE[8]");
    ENTRY.call(|driver| module_load_data(driver, module, image))
}

/// The compiler is part of the library.
extern "C" fn load_compilers() -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// Calls `each` with `data` and each function of the module; 1 if that could be done.
extern "C" fn each_function(
    _: CUcontext,
    module: CUmodule,
    each: Option<unsafe extern "C" fn(HostAddr, CUfunction)>,
    data: HostAddr,
) -> u32 {
    static ENTRY: Entry = Entry::new("MATH_LIBRARIES[7]");
    let told = ENTRY.call(|driver| {
        let each = each.ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?;
        for function in driver.module_enumerate_functions(module.core(), usize::MAX)? {
            // SAFETY: the caller's own function and data.
            unsafe { each(data, function.encode()) };
        }
        Ok(())
    });
    u32::from(told.is_success())
}

/// Flags that tools would set for the runtime calls they want to hear of.
static FIRST_FLAGS: [u32; 1024] = [0; 1024];
static SECOND_FLAGS: [u32; 14] = [0; 14];

extern "C" fn first_flags(flags: Out<HostAddr>, count: Out<usize>) {
    flags.set(FIRST_FLAGS.as_ptr() as u64);
    count.set(FIRST_FLAGS.len());
}

extern "C" fn second_flags(flags: Out<HostAddr>, count: Out<usize>) {
    flags.set(SECOND_FLAGS.as_ptr() as u64);
    count.set(SECOND_FLAGS.len());
}

/// The thread's current context, null if there is none.
extern "C" fn thread_context(context: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("TOOLS_TLS[2]");
    ENTRY.call(|driver| ctx_get_current(driver, context))
}

/// As `cuCtxGetId`: cuBLASLt keeps its kernels by it.
extern "C" fn context_number(context: CUcontext, number: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("TOOLS_CONTEXT[4]");
    ENTRY.call(|driver| ctx_get_id(driver, context, number))
}

/// As `cuStreamGetId`: cuBLAS lends streams with the same number the same workspace, without waiting.
extern "C" fn stream_number(_: CUcontext, stream: CUstream, number: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("TOOLS_CONTEXT[39]");
    ENTRY.call(|driver| stream_get_id(driver, stream, number))
}

/// Which stream a handle means: the default one's is the thread's own with `is_per_thread`, else the legacy one's.
extern "C" fn stream_meant(_: CUcontext, stream: CUstream, meant: Out<CUstream>, is_per_thread: c_int) -> CUresult {
    static ENTRY: Entry = Entry::new("TOOLS_CONTEXT[51]");
    ENTRY.call(|_| {
        meant.required()?;
        let meaning = match stream {
            CUstream::NULL if is_per_thread != 0 => CUstream::PER_THREAD,
            CUstream::NULL => CUstream::LEGACY,
            named => named,
        };
        meant.set(meaning.core());
        Ok(())
    })
}

/// What a context is: 1 for one that stands for a green context, else 0.
extern "C" fn check_context(context: CUcontext, state: Out<u32>, detail: Out<HostAddr>) -> CUresult {
    let green = driver().is_ok_and(|driver| driver.is_green(context.core()));
    state.set(u32::from(green));
    detail.set(HostAddr::NULL);
    CUresult::CUDA_SUCCESS
}

extern "C" fn check() -> u32 {
    0
}

/// The context that a null one means: the current one, if any.
fn current(driver: &Driver, context: CUcontext) -> Result<CUcontext, Refusal> {
    if context.is_null() { Ok(driver.ctx_get_current()?.encode()) } else { Ok(context) }
}

extern "C" fn storage_put(
    context: CUcontext,
    key: HostAddr,
    value: HostAddr,
    destructor: Option<Destructor>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("CONTEXT_STORAGE[0]");
    ENTRY.call(|driver| {
        let context = current(driver, context)?;
        if context.is_null() {
            return Err(Refusal(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        }
        context_storage::put(context, key, value, destructor);
        Ok(())
    })
}

extern "C" fn storage_delete(context: CUcontext, key: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("CONTEXT_STORAGE[1]");
    ENTRY.call(|driver| context_storage::delete(current(driver, context)?, key))
}

/// Called in almost every call of the runtime; a miss is an answer, not an error, and stays out of the log.
extern "C" fn storage_get(value: Out<HostAddr>, context: CUcontext, key: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("CONTEXT_STORAGE[2]");
    let mut found = Err(Refusal(CUresult::CUDA_ERROR_INVALID_HANDLE));
    let entered = ENTRY.call(|driver| {
        value.required()?;
        found = context_storage::get(current(driver, context)?, key);
        Ok(())
    });
    match found {
        Ok(found) => {
            value.set(found);
            CUresult::CUDA_SUCCESS
        }
        Err(miss) if entered.is_success() => miss.0,
        Err(_) => entered,
    }
}

extern "C" fn standing(buffer: Out<u8>, bytes: usize, length: Out<usize>) -> CUresult {
    static ENTRY: Entry = Entry::new("STANDING[1]");
    ENTRY.call_early(|| {
        buffer.required()?;
        length.required()?;
        let message = crate::standing::message()?;
        if message.len() > bytes {
            return Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        for (index, byte) in message.iter().enumerate() {
            // SAFETY: the caller has said how many bytes there are, and these are no more.
            unsafe { buffer.set_at(index, *byte) };
        }
        length.set(message.len());
        Ok(())
    })
}

extern "C" fn handshake(version: u32, unix_seconds: u64, result: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("HANDSHAKE[1]");
    ENTRY.call_early(|| establish(version, unix_seconds, result))
}

fn establish(version: u32, unix_seconds: u64, result: Out<u64>) -> Answer {
    result.required()?;
    // SAFETY: no precondition.
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let thread = unsafe { libc::pthread_self() };
    let asked = Asked {
        driver_version: cuda_abi::DRIVER_VERSION,
        version,
        process: std::process::id(),
        thread: thread as u32,
        runtime_table: address(&CUDART_INTERFACE).0,
        handshake_table: address(&HANDSHAKE).0,
        function: HANDSHAKE[1].0.expose_provenance() as u64,
        unix_seconds,
    };
    let identity = |properties: &Properties| {
        let [pci_domain, pci_bus, pci_device] = properties.pci;
        DeviceIdentity { uuid: properties.uuid, pci_domain, pci_bus, pci_device }
    };
    let devices: Vec<DeviceIdentity> = driver()?.properties().map(identity).collect();
    for (index, word) in answer(&asked, &devices).into_iter().enumerate() {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { result.set_at(index, word) };
    }
    Ok(())
}
