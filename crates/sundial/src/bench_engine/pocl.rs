//! The same kernels by `PoCL`, an `OpenCL` that compiles for the processor.

#![expect(unsafe_code, reason = "OpenCL cannot know what a kernel does with its arguments")]

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null_mut;

use anyhow::{Context, Result, anyhow, bail};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context as ClContext;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{
    Buffer, CL_FLOAT, CL_MEM_COPY_HOST_PTR, CL_MEM_OBJECT_IMAGE2D, CL_MEM_READ_ONLY, CL_MEM_READ_WRITE, CL_R, Image,
};
use opencl3::platform::get_platforms;
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, cl_image_desc, cl_image_format};

use super::cases::{Case, Param};

pub(super) const SOURCE: &str = include_str!("../../kernels/engine.cl");

/// `PoCL` reads these when it is loaded: how many threads run kernels, by the names of its versions.
const THREADS: [&str; 2] = ["POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"];

/// Runs kernels on one core.
pub(super) struct Pocl {
    context: ClContext,
    queue: CommandQueue,
    program: Program,
    /// As it calls its platform.
    pub(super) version: String,
}

/// A case with memory of its own, ready to run.
pub(super) struct Loaded<'a> {
    pocl: &'a Pocl,
    case: &'a Case,
    buffers: Vec<Buffer<u8>>,
    /// Of each call: its kernel, and the images among its parameters, in order.
    calls: Vec<(Kernel, Vec<Image>)>,
}

impl Pocl {
    /// Starts this program once more if it has not been told yet to keep to one core.
    ///
    /// # Errors
    /// There is no `PoCL`; it cannot compile the kernels.
    pub(super) fn start() -> Result<Pocl> {
        let one = |name: &&str| std::env::var_os(name).as_deref() == Some(OsStr::new("1"));
        if !THREADS.iter().all(one) {
            let mut again = Command::new(std::env::current_exe()?);
            again.args(std::env::args_os().skip(1)).envs(THREADS.map(|name| (name, "1")));
            return Err(again.exec()).context("cannot start again with one thread for PoCL");
        }
        let missing = "there is no PoCL: install it (Debian, Ubuntu: pocl-opencl-icd)";
        let platforms = get_platforms().map_err(|error| anyhow!("{missing}: {error}"))?;
        let is_pocl = |name: String| name.contains("Portable Computing Language");
        let platform = platforms.iter().find(|platform| platform.name().is_ok_and(is_pocl)).context(missing)?;
        let device = platform.get_devices(CL_DEVICE_TYPE_ALL)?.into_iter().next().context("PoCL has no device")?;
        let context = ClContext::from_device(&Device::new(device))?;
        let queue = CommandQueue::create_default(&context, 0)?;
        let built = Program::create_and_build_from_source(&context, SOURCE, "");
        let program = built.map_err(|log| anyhow!("PoCL does not compile the kernels: {log}"))?;
        Ok(Pocl { version: platform.version()?, context, queue, program })
    }

    /// Puts what `case` works on into memory.
    ///
    /// # Errors
    /// What `PoCL` says.
    pub(super) fn load<'a>(&'a self, case: &'a Case) -> Result<Loaded<'a>> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
        let buffer = |bytes: &Vec<u8>| {
            let from = bytes.as_ptr().cast_mut().cast();
            // SAFETY: it is copied from `bytes` before the call returns, which have that length.
            unsafe { Buffer::create(&self.context, flags, bytes.len(), from) }
        };
        let buffers = case.buffers.iter().map(buffer).collect::<Result<_, _>>()?;
        let calls = case.calls.iter().map(|call| {
            let images = call.params.iter().filter_map(|param| match *param {
                Param::Image(at, size) => Some(self.image(&case.buffers[at], size)),
                _ => None,
            });
            let kernel =
                Kernel::create(&self.program, call.kernel).with_context(|| format!("PoCL: {}", call.kernel))?;
            Ok((kernel, images.collect::<Result<_>>()?))
        });
        Ok(Loaded { pocl: self, case, buffers, calls: calls.collect::<Result<_>>()? })
    }

    fn image(&self, texels: &[u8], [width, height]: [u32; 2]) -> Result<Image> {
        let [width, height] = [width as usize, height as usize];
        if texels.len() != width * height * 4 {
            bail!("an image of {width} x {height} is not {} bytes", texels.len());
        }
        let format = cl_image_format { image_channel_order: CL_R, image_channel_data_type: CL_FLOAT };
        let what = cl_image_desc {
            image_type: CL_MEM_OBJECT_IMAGE2D,
            image_width: width,
            image_height: height,
            image_depth: 0,
            image_array_size: 0,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer: null_mut(),
        };
        let flags = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
        let from = texels.as_ptr().cast_mut().cast();
        // SAFETY: it is copied from `texels` before the call returns, which have that length (above).
        Ok(unsafe { Image::create(&self.context, flags, &raw const format, &raw const what, from) }?)
    }
}

impl Loaded<'_> {
    /// Runs all its calls, until the last one has ended.
    ///
    /// # Errors
    /// What `PoCL` says.
    pub(super) fn run(&self) -> Result<()> {
        for (call, (kernel, images)) in self.case.calls.iter().zip(&self.calls) {
            let mut images = images.iter();
            let mut launch = ExecuteKernel::new(kernel);
            for param in &call.params {
                match param {
                    Param::Buffer(at) => pass(&mut launch, &self.buffers[*at]),
                    Param::Image(..) => pass(&mut launch, images.next().context("an image for each")?),
                    Param::Float(value) => pass(&mut launch, value),
                    Param::Int(value) => pass(&mut launch, value),
                }
            }
            let local = call.block.map(|threads| threads as usize);
            let global: Vec<usize> =
                local.iter().zip(call.grid).map(|(threads, ctas)| threads * ctas as usize).collect();
            launch.set_global_work_sizes(&global).set_local_work_sizes(&local);
            // SAFETY: the kernels stay inside of these buffers, as those of engine.cu do, whose memory is checked.
            unsafe { launch.enqueue_nd_range(&self.pocl.queue) }?;
        }
        Ok(self.pocl.queue.finish()?)
    }

    /// What is in a buffer.
    ///
    /// # Errors
    /// What `PoCL` says.
    pub(super) fn read(&self, buffer: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.case.buffers[buffer].len()];
        // SAFETY: a blocking read into memory as long as the buffer.
        unsafe { self.pocl.queue.enqueue_read_buffer(&self.buffers[buffer], CL_BLOCKING, 0, &mut bytes, &[]) }?;
        Ok(bytes)
    }
}

/// The next argument, of the type that it has in engine.cl.
fn pass<T>(launch: &mut ExecuteKernel<'_>, argument: &T) {
    // SAFETY: `Case`s are written for engine.cl's parameters; OpenCL compares their lengths.
    unsafe { launch.set_arg(argument) };
}
