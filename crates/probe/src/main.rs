#![expect(unsafe_code, reason = "calls the CUDA driver API as a C program would")]
//! An ordinary CUDA driver-API program that times calls on request.
//!
//! It knows nothing of Sundial. Each line of standard input names a measurement; the answer is one line of JSON:
//! `{"seconds":…,"count":…}`, the time that `count` repetitions took. `sundial bench` runs one probe on the GPU itself and
//! one as a tenant, and asks them in turn.

use std::ffi::{CStr, c_void};
use std::io::{BufRead, Write};
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cudarc::driver::{result, sys};
use serde_json::json;

/// An empty kernel: what is timed is everything around it.
const EMPTY: &str = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

/// A kernel that counts down from its parameter, a number of 64 bits, in all lanes.
const BUSY: &str = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry busy(.param .u64 rounds)\n{\n\t.reg .pred \
    %p1;\n\t.reg .b64 %rd1;\n\tld.param.u64 %rd1, [rounds];\n$again:\n\tadd.s64 %rd1, %rd1, -1;\n\tsetp.gt.s64 %p1, %rd1, \
    0;\n\t@%p1 bra $again;\n\tret;\n}\n";

/// A kernel that stores where nothing is.
const FAULT: &str = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry fault()\n{\n\t.reg .b64 %rd1;\n\t\
    mov.u64 %rd1, 8;\n\tst.global.u32 [%rd1], 1;\n\tret;\n}\n";

/// A context with two kernels, and buffers of the largest size measured.
struct Probe {
    device: sys::CUdevice,
    empty: sys::CUfunction,
    busy: sys::CUfunction,
    multiprocessors: u32,
    device_memory: sys::CUdeviceptr,
    pageable: Vec<u8>,
    /// Null until somebody wants it.
    pinned: *mut c_void,
}

/// Largest copy, bytes.
const LARGEST: usize = 128 << 20;

impl Probe {
    fn open() -> Result<Probe> {
        result::init()?;
        let device = result::device::get(0)?;
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        // SAFETY: the context was just retained and is never released.
        unsafe { result::ctx::set_current(context) }?;
        let (empty, busy) = (function(EMPTY, c"empty")?, function(BUSY, c"busy")?);
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the device exists.
        let multiprocessors = u32::try_from(unsafe { result::device::get_attribute(device, attribute) }?)?;
        // SAFETY: a plain allocation.
        let device_memory = unsafe { result::malloc_sync(LARGEST) }?;
        let (pageable, pinned) = (vec![1; LARGEST], ptr::null_mut());
        Ok(Probe { device, empty, busy, multiprocessors, device_memory, pageable, pinned })
    }

    /// The pinned buffer.
    fn pinned(&mut self) -> Result<*mut c_void> {
        if self.pinned.is_null() {
            // SAFETY: a plain allocation.
            self.pinned = unsafe { result::malloc_host(LARGEST, 0) }?;
            // SAFETY: the allocation has LARGEST bytes; touched once, as the pageable buffer is.
            unsafe { ptr::write_bytes(self.pinned.cast::<u8>(), 1, LARGEST) };
        }
        Ok(self.pinned)
    }

    fn launch(&self) -> Result<()> {
        // SAFETY: the kernel takes no parameters.
        unsafe {
            sys::cuLaunchKernel(self.empty, 1, 1, 1, 32, 1, 1, 0, ptr::null_mut(), ptr::null_mut(), ptr::null_mut())
        }
        .result()?;
        Ok(())
    }

    /// Launches a kernel that keeps all multiprocessors busy for so many rounds of its loop.
    fn launch_busy(&self, mut rounds: u64) -> Result<()> {
        let grid = self.multiprocessors;
        let mut parameters = [ptr::from_mut(&mut rounds).cast::<c_void>()];
        // SAFETY: the kernel takes one number of 64 bits, which lives until the call returns.
        unsafe {
            let (parameters, none) = (parameters.as_mut_ptr(), ptr::null_mut());
            sys::cuLaunchKernel(self.busy, grid, 1, 1, 32, 1, 1, 0, ptr::null_mut(), parameters, none)
        }
        .result()?;
        Ok(())
    }

    fn synchronize() -> Result<()> {
        Ok(result::ctx::synchronize()?)
    }

    /// Time that `count` repetitions of a measurement take.
    fn measure(&mut self, name: &str, count: u32) -> Result<Duration> {
        let words: Vec<&str> = name.split('-').collect();
        if words.contains(&"pinned") {
            self.pinned()?;
        }
        let start = Instant::now();
        match words.as_slice() {
            ["launch"] => {
                for _ in 0..count {
                    self.launch()?;
                }
                let taken = start.elapsed();
                Self::synchronize()?;
                return Ok(taken);
            }
            ["launch", "synchronize"] => {
                for _ in 0..count {
                    self.launch()?;
                    Self::synchronize()?;
                }
            }
            ["busy", rounds] => {
                let rounds = rounds.parse().context("rounds")?;
                for _ in 0..count {
                    self.launch_busy(rounds)?;
                    Self::synchronize()?;
                }
            }
            // No measurement: says by its error where a fault shows.
            ["fault"] => {
                let kernel = function(FAULT, c"fault")?;
                let (none, extra) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: the kernel takes no parameters; what it stores faults.
                unsafe { sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, ptr::null_mut(), none, extra) }
                    .result()
                    .context("the fault shows at the launch")?;
                Self::synchronize().context("the fault shows at the synchronization")?;
                bail!("the fault does not show");
            }
            ["alloc", "free", bytes] => {
                let bytes = bytes.parse().context("bytes")?;
                for _ in 0..count {
                    // SAFETY: a plain allocation, freed at once.
                    let memory = unsafe { result::malloc_sync(bytes) }?;
                    // SAFETY: allocated above.
                    unsafe { result::free_sync(memory) }?;
                }
            }
            ["local", "attribute"] => {
                for _ in 0..count {
                    // SAFETY: the device exists.
                    unsafe {
                        result::device::get_attribute(
                            self.device,
                            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                        )
                    }?;
                }
            }
            ["local", "current"] => {
                for _ in 0..count {
                    result::ctx::get_current()?;
                }
            }
            [direction @ ("h2d" | "d2h"), memory @ ("pageable" | "pinned"), bytes] => {
                let bytes: usize = bytes.parse().context("bytes")?;
                if bytes > LARGEST {
                    bail!("at most {LARGEST} bytes");
                }
                let host = if *memory == "pinned" { self.pinned } else { self.pageable.as_mut_ptr().cast() };
                for _ in 0..count {
                    if *direction == "h2d" {
                        // SAFETY: both buffers have LARGEST bytes.
                        unsafe { sys::cuMemcpyHtoD_v2(self.device_memory, host, bytes) }.result()?;
                    } else {
                        // SAFETY: both buffers have LARGEST bytes.
                        unsafe { sys::cuMemcpyDtoH_v2(host, self.device_memory, bytes) }.result()?;
                    }
                }
                Self::synchronize()?;
            }
            _ => bail!("unknown measurement {name}"),
        }
        Ok(start.elapsed())
    }
}

/// A kernel from PTX.
fn function(ptx: &str, name: &CStr) -> Result<sys::CUfunction> {
    let text = std::ffi::CString::new(ptx)?;
    // SAFETY: the image is NUL-terminated PTX.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module is loaded and never unloaded.
    Ok(unsafe { result::module::get_function(module, name.to_owned()) }?)
}

fn main() -> Result<()> {
    let mut probe = Probe::open()?;
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (name, count) = line.split_once(' ').context("a measurement and a count")?;
        let count: u32 = count.parse().context("count")?;
        let taken = probe.measure(name, count)?;
        writeln!(out, "{}", json!({ "seconds": taken.as_secs_f64(), "count": count }))?;
        out.flush()?;
    }
    Ok(())
}
