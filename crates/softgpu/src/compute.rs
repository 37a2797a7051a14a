//! The compute engine's methods: class C5C0, inline data, launch descriptors.

use gpu_spec::compute::{
    INVALIDATE_SHADER_CACHES, LAUNCH_DMA, LINE_COUNT, LINE_LENGTH_IN, LOAD_INLINE_DATA, OFFSET_OUT, OFFSET_OUT_UPPER,
    PITCH_OUT, SEND_PCAS_A, SEND_SIGNALING_PCAS_B, SET_I2M_SEMAPHORE_A, SET_I2M_SEMAPHORE_B, SET_I2M_SEMAPHORE_C,
    UPPER, WAIT_FOR_IDLE, invalidate, launch_dma, pcas_b,
};
use gpu_spec::host::same_tebibyte;
use gpu_spec::notifier::{Code, Reason};
use gpu_spec::program::{ConstantBank, PARAMS_OFFSET};
use gpu_spec::qmd::Qmd;
use ptx::launch::{DriverArea, Launch, MAX_CLUSTER_CTAS, MAX_PARAM_BYTES, MAX_SHARED_BYTES, MAX_THREADS_PER_CTA};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::channel::{Context, Flow};
use crate::error::{ChannelError, Unit};
use crate::host::Release;
use crate::job::{Job, LaunchRequest, Preparation};

/// Methods that set what this device has no use for: windows and sizes of local and shared memory, caches of textures.
const WITHOUT_EFFECT: [u32; 18] = [
    0x100, 0x2a0, 0x2a4, 0x2e4, 0x2e8, 0x2ec, 0x2f0, 0x2f4, 0x2f8, 0x310, 0x244, 0x790, 0x794, 0x7b0, 0x7b4, 0x1330,
    0x1334, 0x1338,
];
/// As [`INVALIDATE_SHADER_CACHES`], without waiting.
const INVALIDATE_SHADER_CACHES_NO_WFI: u32 = 0x1698;
/// Longest side of a CTA in z; the other two are bounded by the number of threads.
const MAX_THREADS_Z: u32 = 64;
/// Most CTAs of a cooperative grid: all of them hold memory at once.
const MAX_COOPERATIVE_CTAS: u64 = 4096;
/// Completion of an inline transfer by a semaphore.
const COMPLETION_SEMAPHORE: u32 = 2;

/// Method state.
#[derive(Debug, Default)]
pub(crate) struct Compute {
    descriptor: u32,
    inline: Inline,
    /// The inline transfer in progress.
    transfer: Option<InlineTransfer>,
}

/// [`Compute`] in words, for while the channel is not bound.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ComputeState {
    descriptor: u32,
    inline: Inline,
    /// Of the inline transfer: 0, or 1 and the rest.
    transferring: u32,
    destination: [u32; 2],
    column: u32,
    lines: u32,
    /// 0 without a release, 1 with one, 2 with one that stores the time.
    release: u32,
    semaphore: [u32; 2],
    payload: u32,
}

/// Method state of the inline-to-memory unit.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Inline {
    line_length: u32,
    lines: u32,
    pitch: u32,
    destination: [u32; 2],
    semaphore: [u32; 3],
}

/// An inline transfer that waits for data. Every line begins with a new word.
#[derive(Clone, Copy, Debug)]
struct InlineTransfer {
    destination: u64,
    /// Bytes of the current line that have come.
    column: u32,
    /// Lines left, the current one included.
    lines: u32,
    release: Option<Release>,
}

impl Compute {
    /// True if `method` takes rows of inline data ([`Compute::inline_data`]).
    pub(crate) fn takes(&self, method: u32) -> bool {
        method == LOAD_INLINE_DATA
    }

    pub(crate) fn method(
        &mut self,
        context: &mut Context<'_>,
        subchannel: u32,
        method: u32,
        data: u32,
    ) -> Result<Flow, ChannelError> {
        let refuse = |what| Err(ChannelError::method(Code::GR_CLASS_ERROR, subchannel, method, data, what));
        match method {
            // Grids before are done: the channel waits for each.
            WAIT_FOR_IDLE => {}
            LINE_LENGTH_IN => self.inline.line_length = data,
            LINE_COUNT => self.inline.lines = data,
            OFFSET_OUT_UPPER => self.inline.destination[1] = data,
            OFFSET_OUT => self.inline.destination[0] = data,
            PITCH_OUT => self.inline.pitch = data,
            SET_I2M_SEMAPHORE_A => self.inline.semaphore[0] = data,
            SET_I2M_SEMAPHORE_B => self.inline.semaphore[1] = data,
            SET_I2M_SEMAPHORE_C => self.inline.semaphore[2] = data,
            LAUNCH_DMA if !launch_dma::DST_LAYOUT_PITCH.is_set(data) => return refuse("only pitch layouts exist"),
            LAUNCH_DMA => {
                self.transfer = Some(self.inline.transfer(data));
                self.inline_data(context, &[])?;
            }
            LOAD_INLINE_DATA => self.inline_data(context, &[data])?,
            INVALIDATE_SHADER_CACHES | INVALIDATE_SHADER_CACHES_NO_WFI => {
                if invalidate::INSTRUCTION.is_set(data) {
                    context.effects.forgotten.push(context.space.programs.forget());
                }
            }
            SEND_PCAS_A => self.descriptor = data,
            SEND_SIGNALING_PCAS_B if pcas_b::SCHEDULE.is_set(data) => return self.launch(context),
            SEND_SIGNALING_PCAS_B => {}
            _ if WITHOUT_EFFECT.contains(&method) => {}
            _ => return refuse("unknown method of the compute class"),
        }
        Ok(Flow::Next)
    }

    /// Takes words for the inline transfer in progress.
    pub(crate) fn inline_data(&mut self, context: &mut Context<'_>, data: &[u32]) -> Result<(), ChannelError> {
        let Some(mut transfer) = self.transfer.take() else {
            let what = "inline data without a transfer";
            return Err(ChannelError::new(Code::GR_CLASS_ERROR, Reason::ILLEGAL_COMMAND, what.to_owned()));
        };
        let fault = |refused| ChannelError::refused(refused, Unit::Compute);
        let length = self.inline.line_length;
        let mut bytes = data.as_bytes();
        while transfer.lines > 0 && (length == 0 || !bytes.is_empty()) {
            // The length may have been changed since.
            let count = bytes.len().min(length.saturating_sub(transfer.column) as usize);
            let at = transfer.destination.wrapping_add(transfer.column.into());
            context.space.write(&context.chip.memory, at, &bytes[..count]).map_err(fault)?;
            transfer.column += count as u32;
            bytes = &bytes[count.next_multiple_of(4).min(bytes.len())..];
            if transfer.column < length {
                continue;
            }
            transfer.column = 0;
            transfer.lines = if length == 0 { 0 } else { transfer.lines - 1 };
            transfer.destination = transfer.destination.wrapping_add(self.inline.pitch.into());
        }
        if transfer.lines > 0 {
            self.transfer = Some(transfer);
            return Ok(());
        }
        if let Some(release) = transfer.release {
            release.run(context.chip, context.space, Unit::Compute)?;
            context.effects.released.push(release.va);
        }
        context.effects.copies += 1;
        Ok(())
    }

    /// Sets the descriptor that is scheduled next, as [`SEND_PCAS_A`] does.
    pub(crate) fn set_descriptor(&mut self, descriptor: u32) {
        self.descriptor = descriptor;
    }

    pub(crate) fn save(&self) -> ComputeState {
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let mut state = ComputeState { descriptor: self.descriptor, inline: self.inline, ..ComputeState::new_zeroed() };
        if let Some(transfer) = self.transfer {
            state.transferring = 1;
            state.destination = halves(transfer.destination);
            state.column = transfer.column;
            state.lines = transfer.lines;
            if let Some(release) = transfer.release {
                state.release = if release.timestamp { 2 } else { 1 };
                state.semaphore = halves(release.va);
                state.payload = release.payload as u32;
            }
        }
        state
    }

    pub(crate) fn restore(&mut self, state: &ComputeState) {
        let whole = |[lo, hi]: [u32; 2]| u64::from(lo) | u64::from(hi) << 32;
        self.descriptor = state.descriptor;
        self.inline = state.inline;
        self.transfer = (state.transferring == 1).then(|| InlineTransfer {
            destination: whole(state.destination),
            column: state.column,
            lines: state.lines,
            release: (state.release != 0).then(|| Release {
                va: whole(state.semaphore),
                payload: state.payload.into(),
                wide: false,
                timestamp: state.release == 2,
            }),
        });
    }

    /// Reads the launch descriptor and checks it.
    fn launch(&self, context: &Context<'_>) -> Result<Flow, ChannelError> {
        let fault = |refused| ChannelError::refused(refused, Unit::Compute);
        let memory = &context.chip.memory;
        let at = same_tebibyte(context.gp_base, u64::from(self.descriptor) << 8);
        let mut qmd = Qmd::new_zeroed();
        context.space.read(memory, at, qmd.as_mut_bytes()).map_err(fault)?;
        check(&qmd).map_err(invalid)?;
        let (address, bytes) = qmd.constant_buffer(0).ok_or_else(|| invalid("constant bank 0 is missing"))?;
        let mut bank = ConstantBank::default();
        if u64::from(bytes) < PARAMS_OFFSET {
            return Err(invalid("constant bank 0 is too small"));
        }
        context.space.read(memory, address, bank.as_mut_bytes()).map_err(fault)?;
        if bank.param_bytes > MAX_PARAM_BYTES || u64::from(bank.param_bytes) > u64::from(bytes) - PARAMS_OFFSET {
            return Err(invalid("parameters do not fit into constant bank 0"));
        }
        let mut params = vec![0; bank.param_bytes as usize];
        context.space.read(memory, address + PARAMS_OFFSET, &mut params).map_err(fault)?;
        let mut envregs = [0; 32];
        envregs[1] = (bank.grid_workspace >> 32) as u32;
        envregs[2] = bank.grid_workspace as u32;
        let release = (qmd.get(Qmd::RELEASE0_ENABLE) != 0).then(|| {
            let low = u64::from(qmd.get(Qmd::RELEASE0_ADDRESS_LOWER));
            let low = low | u64::from(qmd.get(Qmd::RELEASE0_ADDRESS_UPPER)) << 32;
            Release {
                va: same_tebibyte(context.gp_base, low),
                payload: qmd.get(Qmd::RELEASE0_PAYLOAD).into(),
                wide: false,
                timestamp: qmd.get(Qmd::RELEASE0_STRUCTURE_ONE_WORD) == 0,
            }
        });
        let launch = Launch {
            grid: qmd.grid(),
            block: qmd.block(),
            dynamic_shared: bank.dynamic_shared,
            params,
            driver: DriverArea { printf: bank.printf, heap: bank.heap, heap_bytes: bank.heap_bytes },
            grid_id: context.chip.next_grid(),
            envregs,
            cluster: cluster(&qmd),
        };
        let cooperative = qmd.get(Qmd::COOPERATIVE) != 0;
        let request = LaunchRequest {
            program: qmd.program_address(),
            launch,
            stack_bytes: qmd.get(Qmd::SHADER_LOCAL_MEMORY_LOW_SIZE),
            cooperative,
            release,
            dependent: (qmd.get(Qmd::DEPENDENT_QMD_SCHEDULE_ENABLE) != 0).then(|| qmd.get(Qmd::DEPENDENT_QMD)),
            child: false,
        };
        Ok(Flow::Start(Job::Prepare(Box::new(Preparation::new(request)))))
    }
}

impl Inline {
    fn transfer(&self, launch: u32) -> InlineTransfer {
        let address = |lo: u32, hi: u32| u64::from(lo) | u64::from(UPPER.get(hi)) << 32;
        let [hi, lo, payload] = self.semaphore;
        let release =
            Release { va: address(lo, hi), payload: payload.into(), wide: false, timestamp: launch >> 12 & 1 == 0 };
        InlineTransfer {
            destination: address(self.destination[0], self.destination[1]),
            column: 0,
            lines: self.lines,
            release: (launch_dma::COMPLETION_TYPE.get(launch) == COMPLETION_SEMAPHORE).then_some(release),
        }
    }
}

/// CTAs of a cluster.
fn cluster(qmd: &Qmd) -> [u32; 3] {
    [Qmd::CLUSTER_WIDTH, Qmd::CLUSTER_HEIGHT, Qmd::CLUSTER_DEPTH].map(|field| qmd.get(field) + 1)
}

fn check(qmd: &Qmd) -> Result<(), &'static str> {
    if (qmd.get(Qmd::MAJOR_VERSION), qmd.get(Qmd::VERSION)) != (2, 3) {
        return Err("launch descriptor is not of version 2.3");
    }
    let grid = qmd.grid().map(u64::from);
    let block = qmd.block();
    let ctas = grid[0].checked_mul(grid[1] * grid[2]).filter(|ctas| *ctas > 0).ok_or("empty or endless grid")?;
    let threads = block.iter().try_fold(1, |all: u32, side| all.checked_mul(*side));
    if threads.is_none_or(|threads| threads == 0 || threads > MAX_THREADS_PER_CTA) || block[2] > MAX_THREADS_Z {
        return Err("CTA without threads, or too many");
    }
    if qmd.get(Qmd::SHARED_MEMORY_SIZE) > MAX_SHARED_BYTES {
        return Err("too much shared memory");
    }
    if qmd.get(Qmd::COOPERATIVE) != 0 && ctas > MAX_COOPERATIVE_CTAS {
        return Err("cooperative grid of too many CTAs");
    }
    let cluster = cluster(qmd);
    if cluster.iter().product::<u32>() > MAX_CLUSTER_CTAS {
        return Err("clusters of too many CTAs");
    }
    if qmd.grid().iter().zip(cluster).any(|(all, of)| !all.is_multiple_of(of)) {
        return Err("grid that is no multiple of its clusters");
    }
    let grid_alone = qmd.get(Qmd::DEPENDENT_QMD_TYPE_GRID) != 0 && qmd.get(Qmd::DEPENDENT_QMD_FIELD_COPY) == 0;
    if qmd.get(Qmd::DEPENDENT_QMD_SCHEDULE_ENABLE) != 0 && !grid_alone {
        return Err("a dependent launch descriptor can only be a grid's, as it is");
    }
    Ok(())
}

fn invalid(what: &str) -> ChannelError {
    ChannelError::new(Code::GR_EXCEPTION, Reason::ILLEGAL_COMMAND, what.to_owned())
}
