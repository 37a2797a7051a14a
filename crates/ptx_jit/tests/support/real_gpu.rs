//! A GPU of NVIDIA's, through its driver, where there is one.
#![expect(unsafe_code, reason = "a driver's functions are C's")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

/// Calls a function of the driver; its error as text.
macro_rules! call {
    ($gpu:expr, $name:literal, fn($($ty:ty),*), $($argument:expr),*) => {{
        // SAFETY: the function is declared as NVIDIA's header says, and pointers are to live values.
        let code = unsafe {
            let f = libc::dlsym($gpu.driver, CString::new($name).unwrap().as_ptr());
            assert!(!f.is_null(), "the driver has no {}", $name);
            let f: unsafe extern "C" fn($($ty),*) -> c_int = transmute_copy(&f);
            f($($argument),*)
        };
        if code == 0 { Ok(()) } else { Err(format!("{}: error {code}", $name)) }
    }};
}

/// A device's context; the driver stays loaded.
pub(crate) struct RealGpu {
    driver: *mut c_void,
    context: *mut c_void,
    pub(crate) name: String,
}

// SAFETY: the driver's functions may be called from any thread, and the handles are the process's.
unsafe impl Sync for RealGpu {}

/// A memory that is freed at its end.
struct Memory<'g> {
    gpu: &'g RealGpu,
    address: u64,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = call!(self.gpu, "cuMemFree_v2", fn(u64), self.address);
    }
}

impl RealGpu {
    /// The first one, or why there is none.
    pub(crate) fn open() -> Result<RealGpu, String> {
        // SAFETY: loading a library runs its initialisers, which is what a driver is loaded for.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if driver.is_null() {
            return Err("there is no libcuda.so.1".to_owned());
        }
        let mut gpu = RealGpu { driver, context: null_mut(), name: String::new() };
        let (mut device, mut name) = (0, [0 as c_char; 128]);
        call!(gpu, "cuInit", fn(c_uint), 0)?;
        call!(gpu, "cuDeviceGet", fn(*mut c_int, c_int), &raw mut device, 0)?;
        call!(gpu, "cuDeviceGetName", fn(*mut c_char, c_int, c_int), name.as_mut_ptr(), 127, device)?;
        // SAFETY: the driver ends it with a zero, and there is one behind it.
        gpu.name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut context = null_mut();
        call!(gpu, "cuDevicePrimaryCtxRetain", fn(*mut *mut c_void, c_int), &raw mut context, device)?;
        gpu.context = context;
        if gpu.name.starts_with("NVIDIA") {
            Ok(gpu)
        } else {
            Err(format!("the GPU is '{}', none of NVIDIA's", gpu.name))
        }
    }

    /// Runs the entry `k` of a module. `memory` is what it finds at `params[0] - base`…, and what it left there: every parameter is an
    /// address of 64 bits from `base` on.
    pub(crate) fn run(
        &self,
        text: &str,
        grid: u32,
        block: u32,
        base: u64,
        params: &[u8],
        memory: &mut [u8],
    ) -> Result<(), String> {
        call!(self, "cuCtxSetCurrent", fn(*mut c_void), self.context)?;
        let text = CString::new(text).unwrap();
        let mut log = vec![0_u8; 4096];
        let (mut options, mut values) = ([5_u32, 6], [log.as_mut_ptr().cast::<c_void>(), 4095 as *mut c_void]);
        let mut module = null_mut();
        call!(
            self,
            "cuModuleLoadDataEx",
            fn(*mut *mut c_void, *const c_char, c_uint, *mut u32, *mut *mut c_void),
            &raw mut module,
            text.as_ptr(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr()
        )
        .map_err(|error| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(0);
            format!("{error}: {}", String::from_utf8_lossy(&log[..end]))
        })?;
        // Errors of what was taken are nobody's refusal.
        self.launch(module, grid, block, base, params, memory).unwrap_or_else(|error| panic!("{error}\n{text:?}"));
        call!(self, "cuModuleUnload", fn(*mut c_void), module)
    }

    fn launch(
        &self,
        module: *mut c_void,
        grid: u32,
        block: u32,
        base: u64,
        params: &[u8],
        memory: &mut [u8],
    ) -> Result<(), String> {
        let (mut function, mut address) = (null_mut(), 0_u64);
        call!(
            self,
            "cuModuleGetFunction",
            fn(*mut *mut c_void, *mut c_void, *const c_char),
            &raw mut function,
            module,
            c"k".as_ptr()
        )?;
        call!(self, "cuMemAlloc_v2", fn(*mut u64, usize), &raw mut address, memory.len())?;
        let at = Memory { gpu: self, address };
        call!(self, "cuMemcpyHtoD_v2", fn(u64, *const u8, usize), at.address, memory.as_ptr(), memory.len())?;
        let mut words: Vec<u64> = params
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()) - base + at.address)
            .collect();
        let mut arguments: Vec<*mut u64> = words.iter_mut().map(std::ptr::from_mut).collect();
        call!(
            self,
            "cuLaunchKernel",
            fn(*mut c_void, u32, u32, u32, u32, u32, u32, u32, *mut c_void, *mut *mut u64, *mut *mut u64),
            function,
            grid,
            1,
            1,
            block,
            1,
            1,
            0,
            null_mut(),
            arguments.as_mut_ptr(),
            null_mut()
        )?;
        call!(self, "cuMemcpyDtoH_v2", fn(*mut u8, u64, usize), memory.as_mut_ptr(), at.address, memory.len())
    }
}
