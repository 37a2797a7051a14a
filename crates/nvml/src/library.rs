//! What is known between `nvmlInit` and `nvmlShutdown`.
//!
//! ```text
//!            init, answered              init
//!   (none) ───────────────► there, 1 ◄───────► there, n
//!      ▲                       │      shutdown
//!      └────── shutdown ───────┘
//! ```
//! The source is asked when something is wanted that changes, and not again for [`FRESH`]. What never changes is answered from
//! what it said first.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpu::Properties;
use wire::{GpuStanding, ProcessStanding, Standing};

use crate::abi::{
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_UNINITIALIZED,
    nvmlReturn_t,
};
use crate::edge::{Answer, Device};
use crate::source::Source;

/// What is not older is fresh enough: the calls of one refresh of a monitor are about one moment.
const FRESH: Duration = Duration::from_millis(50);
/// After a failure nobody is asked for so long: a monitor's many calls wait for a silent daemon once.
const PAUSE: Duration = Duration::from_secs(2);
/// What a process has had is kept at such distances, and for so long.
const MARK: Duration = Duration::from_millis(250);
const KEPT: Duration = Duration::from_secs(3);
/// Shortest time over which use is measured: the daemon looks at what was used five times a second.
const LEAST_SPAN: Duration = Duration::from_millis(500);

/// Held for some instructions only, and over a `fork` by the thread that calls it.
static STATE: Mutex<State> = Mutex::new(State { count: 0, library: None });

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

struct State {
    count: u32,
    library: Option<Arc<Library>>,
}

/// An initialised library.
pub(crate) struct Library {
    source: Source,
    /// Of each GPU, as at the beginning.
    facts: Vec<Properties>,
    latest: Mutex<Latest>,
}

struct Latest {
    at: Instant,
    told: Result<Arc<Moment>, nvmlReturn_t>,
    marks: VecDeque<Mark>,
}

/// What was told, and when.
pub(crate) struct Moment {
    standing: Standing,
    /// Microseconds since 1970.
    micros: u64,
}

/// What processes had had at a moment, ns: by GPU and number.
struct Mark {
    at: Instant,
    had: HashMap<(usize, u32), u64>,
}

/// What a process had of a GPU's time lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) pid: u32,
    pub(crate) percent: u32,
    /// When that was, microseconds since 1970.
    pub(crate) micros: u64,
}

thread_local! {
    /// The state, while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let state = lock(&STATE);
    let _ = FORKING.try_with(|forking| forking.replace(Some(state)));
}

extern "C" fn after_fork_in_parent() {
    let _ = FORKING.try_with(RefCell::take);
}

extern "C" fn after_fork_in_child() {
    let Ok(Some(mut state)) = FORKING.try_with(RefCell::take) else { return };
    if let Some(library) = state.library.take() {
        state.library = Some(Arc::new(library.of_parent()));
    }
}

/// Has a `fork` wait for nobody but who is in the middle of some instructions, and its child begin anew.
extern "C" fn watch_forks() {
    // SAFETY: functions without preconditions; of a library that is closed the C library forgets them.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
    }
}

// Before anybody can fork while another thread is in here.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH_FORKS: extern "C" fn() = watch_forks;

/// One more has use for the library.
///
/// # Errors
/// `DRIVER_NOT_LOADED`, `UNKNOWN`: [`Source::ask`].
pub(crate) fn init() -> Answer {
    let mut opened = None;
    loop {
        let mut state = lock(&STATE);
        if state.library.is_none()
            && let Some(library) = opened.take()
        {
            *state = State { count: 0, library: Some(library) };
        }
        if state.library.is_some() {
            state.count = state.count.saturating_add(1);
            return Ok(());
        }
        // It takes its time, for which nobody who forks waits. Whoever has taken it away meanwhile was the last before us.
        drop(state);
        opened = Some(Arc::new(Library::open()?));
    }
}

/// One has no use for it any more.
///
/// # Errors
/// `UNINITIALIZED`.
pub(crate) fn shutdown() -> Answer {
    let mut state = lock(&STATE);
    if state.library.is_none() {
        return Err(NVML_ERROR_UNINITIALIZED);
    }
    state.count -= 1;
    if state.count == 0 {
        state.library = None;
    }
    Ok(())
}

/// The library, while it is initialised.
///
/// # Errors
/// `UNINITIALIZED`.
pub(crate) fn library() -> Answer<Arc<Library>> {
    lock(&STATE).library.clone().ok_or(NVML_ERROR_UNINITIALIZED)
}

/// The library, and which of its GPUs a handle is.
///
/// # Errors
/// `UNINITIALIZED`; `INVALID_ARGUMENT` if it is none.
pub(crate) fn on(device: Device) -> Answer<(Arc<Library>, usize)> {
    let library = library()?;
    let index = device.index().filter(|index| *index < library.facts.len()).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    Ok((library, index))
}

impl Library {
    fn open() -> Answer<Library> {
        let source = Source::of_environment()?;
        let standing = source.ask()?;
        let facts = standing.gpus.iter().map(|gpu| gpu.properties.clone()).collect();
        let mut latest = Latest { at: Instant::now(), told: Err(NVML_ERROR_GPU_IS_LOST), marks: VecDeque::new() };
        latest.note(Ok(standing), Instant::now());
        Ok(Library { source, facts, latest: Mutex::new(latest) })
    }

    /// The same in the child of a `fork`, where the threads are not that may be asking now.
    fn of_parent(&self) -> Library {
        let at = Instant::now();
        let (at, told) = (at.checked_sub(PAUSE).unwrap_or(at), Err(NVML_ERROR_GPU_IS_LOST));
        let latest = Mutex::new(Latest { at, told, marks: VecDeque::new() });
        Library { source: self.source.clone(), facts: self.facts.clone(), latest }
    }

    /// The GPUs, in order.
    pub(crate) fn facts(&self) -> &[Properties] {
        &self.facts
    }

    /// How things stand now.
    ///
    /// # Errors
    /// `GPU_IS_LOST` if the daemon has gone; `UNKNOWN` if it does not answer.
    pub(crate) fn now(&self) -> Answer<Arc<Moment>> {
        self.latest_now().0
    }

    fn latest_now(&self) -> (Answer<Arc<Moment>>, MutexGuard<'_, Latest>) {
        // Held while the source is asked, which has a bound: who comes meanwhile has the same answer.
        let mut latest = lock(&self.latest);
        let fresh = if latest.told.is_ok() { FRESH } else { PAUSE };
        if latest.at.elapsed() >= fresh {
            let told = self.source.ask();
            latest.note(told, Instant::now());
        }
        (latest.told.clone(), latest)
    }

    /// What processes had of a GPU's time lately, each as far as it was there before.
    ///
    /// # Errors
    /// As [`Library::now`] and [`Moment::gpu`].
    pub(crate) fn samples(&self, index: usize) -> Answer<Vec<Sample>> {
        let (moment, latest) = self.latest_now();
        let moment = moment?;
        let gpu = moment.gpu(index)?;
        let sample = |process: &ProcessStanding| {
            let before = |mark: &Mark| Some((mark.at, *mark.had.get(&(index, process.pid))?));
            let (since, had) = latest.marks.iter().find_map(before)?;
            let span = Some(latest.at.saturating_duration_since(since)).filter(|span| *span >= LEAST_SPAN)?;
            let percent = u128::from(process.gpu_time_ns.saturating_sub(had)) * 100 / span.as_nanos();
            Some(Sample { pid: process.pid, percent: percent.min(100) as u32, micros: moment.micros })
        };
        Ok(gpu.processes.iter().filter_map(sample).collect())
    }
}

impl Latest {
    /// Something was told, or not.
    fn note(&mut self, told: Answer<Standing>, at: Instant) {
        self.at = at;
        // The figures before say what was had until then.
        if let Ok(standing) = &told {
            while self.marks.front().is_some_and(|mark| at.saturating_duration_since(mark.at) > KEPT) {
                self.marks.pop_front();
            }
            if self.marks.back().is_none_or(|mark| at.saturating_duration_since(mark.at) >= MARK) {
                let of = |(index, gpu): (usize, &GpuStanding)| {
                    let had = gpu.processes.iter().map(move |process| ((index, process.pid), process.gpu_time_ns));
                    had.collect::<Vec<_>>()
                };
                let had = standing.gpus.iter().enumerate().flat_map(of).collect();
                self.marks.push_back(Mark { at, had });
            }
        }
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        let lost = |code| if code == NVML_ERROR_DRIVER_NOT_LOADED { NVML_ERROR_GPU_IS_LOST } else { code };
        self.told = told.map(|standing| Arc::new(Moment { standing, micros })).map_err(lost);
    }
}

impl Moment {
    /// How one of the GPUs stands.
    ///
    /// # Errors
    /// `GPU_IS_LOST` if it does not answer, or is not the program's any more.
    pub(crate) fn gpu(&self, index: usize) -> Answer<&GpuStanding> {
        self.standing.gpus.get(index).filter(|gpu| gpu.answers).ok_or(NVML_ERROR_GPU_IS_LOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::NVML_ERROR_UNKNOWN;

    fn standing(processes: &[(u32, u64)]) -> Standing {
        let process = |&(pid, gpu_time_ns): &(u32, u64)| ProcessStanding { pid, memory_used: 1, gpu_time_ns };
        let properties = Properties {
            name: "GPU".into(),
            uuid: [1; 16],
            pci: [0, 1, 0],
            compute_capability: [7, 5],
            driver_version: 13050,
            multiprocessors: 1,
            memory_bytes: 1 << 20,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            l2_bytes: 0,
        };
        let processes = processes.iter().map(process).collect();
        let gpu = GpuStanding { properties, answers: true, memory_used: 7, received: 5000, processes };
        Standing { gpus: vec![gpu] }
    }

    #[test]
    fn a_process_is_measured_against_what_it_had_before() {
        let start = Instant::now();
        let address = remote_gpu::Address { path: "/nowhere".into(), credential: wire::Credential::default() };
        let library = Library {
            source: Source::Daemon(address),
            facts: vec![],
            latest: Mutex::new(Latest { at: start, told: Err(NVML_ERROR_UNKNOWN), marks: VecDeque::new() }),
        };
        // Looks in the future are fresh.
        let far = start + Duration::from_secs(3600);
        let look = |ms: u64, processes: &[(u32, u64)]| {
            lock(&library.latest).note(Ok(standing(processes)), far + Duration::from_millis(ms));
            library.samples(0).unwrap().iter().map(|sample| (sample.pid, sample.percent)).collect::<Vec<_>>()
        };
        const MS: u64 = 1_000_000;
        assert_eq!(look(0, &[(1, 500 * MS)]), [], "nothing is known of what was before");
        assert_eq!(look(400, &[(1, 550 * MS)]), [], "that is too short a time");
        assert_eq!(look(500, &[(1, 550 * MS), (2, 0)]), [(1, 10)]);
        assert_eq!(look(1000, &[(1, 750 * MS), (2, 9)]), [(1, 25)], "who has just come has no past");
        assert_eq!(look(2000, &[(1, 9000 * MS), (2, 500 * MS)]), [(1, 100), (2, 49)]);
        // What is longer ago than three seconds is forgotten.
        assert_eq!(look(10_000, &[(1, 9000 * MS)]), []);
        assert_eq!(look(11_000, &[(1, 9100 * MS)]), [(1, 10)]);
        assert_eq!(library.samples(1).unwrap_err(), NVML_ERROR_GPU_IS_LOST);
        // Of one that failed nothing is told, and it is not asked again at once.
        lock(&library.latest).note(Err(NVML_ERROR_DRIVER_NOT_LOADED), far);
        assert_eq!(library.now().err(), Some(NVML_ERROR_GPU_IS_LOST));
    }
}
