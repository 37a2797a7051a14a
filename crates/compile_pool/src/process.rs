//! A compiler process, as the pool holds it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ptx_jit::Image;
use ptx_jit::compiler::Request;
use rustix::process::{Signal, pidfd_send_signal};
use transport::unix;

use crate::cache::Shelf;
use crate::modules::{ModuleFile, Modules};
use crate::protocol::{self, Answer, Engine, Failure, MAX_ENTRY, MAX_IMAGE, MAX_MEMORY, Order};

/// Longest that a process may take to start.
const START_BOUND: Duration = Duration::from_secs(20);
/// A compiler that gets no further for so long, though nobody keeps it from the processor, hangs.
const STUCK: Duration = Duration::from_secs(30);
/// How often a compilation is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Modules that a compiler keeps parsed.
const MODULES: usize = 16;
/// Most text of them, bytes; the last one is kept in any case.
const MODULES_BYTES: usize = 8 << 20;

/// A compiler process and the ways to it.
#[derive(Debug)]
pub struct Process {
    /// As the kernel counts processes here.
    pub pid: i32,
    /// To be ended by it.
    pub pidfd: Arc<OwnedFd>,
    /// Its standard input's other end.
    pub socket: OwnedFd,
    /// The way to the cache, if there is one.
    pub shelf: Option<Shelf>,
    /// Whoever started it ends it when this is closed.
    lifeline: Option<OwnedFd>,
    known: VecDeque<(u64, usize)>,
    /// Processor time at the last look: one that is gone has no clock any more.
    seen: Duration,
    buffer: Vec<u8>,
}

/// How an order ended.
pub(crate) enum End {
    /// What came, and its bytes.
    Image(Box<Image>, Vec<u8>),
    Failed(Failure),
    /// The process died at it, or was ended: why.
    Died(String),
    /// The process was gone before.
    Gone,
}

impl Process {
    /// One that was started a moment ago.
    #[must_use]
    pub fn new(pid: i32, pidfd: OwnedFd, socket: OwnedFd, shelf: Option<OwnedFd>) -> Process {
        let shelf = shelf.map(Shelf::new);
        let (known, buffer) = (VecDeque::new(), Vec::new());
        let (pidfd, lifeline) = (Arc::new(pidfd), None);
        Process { pid, pidfd, socket, shelf, lifeline, known, seen: Duration::ZERO, buffer }
    }

    /// It lives no longer than `lifeline` is open; a shelf is one, too.
    #[must_use]
    pub fn with_lifeline(mut self, lifeline: OwnedFd) -> Process {
        self.lifeline = Some(lifeline);
        self
    }

    /// Waits until it takes orders.
    pub(crate) fn wait_ready(&mut self) -> Result<(), String> {
        unix::set_timeout(&self.socket, Some(START_BOUND)).map_err(|error| error.to_string())?;
        match protocol::receive(&self.socket, &mut self.buffer) {
            Ok(Some((Answer::Ready, _))) => Ok(()),
            Ok(Some(_)) => Err("it spoke out of turn".into()),
            Ok(None) => Err("it ended at once".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Processor time that it has used.
    pub(crate) fn cpu(&mut self) -> Duration {
        self.seen = self.seen.max(sandbox::cpu_time(self.pid).unwrap_or_default());
        self.seen
    }

    /// Ends it, whatever it does.
    pub(crate) fn kill(pidfd: &OwnedFd) {
        // Fails only when it is gone.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }

    /// Has a kernel compiled. Ends the process if that takes more than `request.bounds` allow.
    pub(crate) fn carry_out(&mut self, request: &Request, fallback: Option<&String>, modules: &Modules) -> End {
        let begin = self.cpu();
        // Held until the answer is there: then it has read it.
        let _module = match self.order(request, fallback, modules) {
            Ok(module) => module,
            Err(end) => return end,
        };
        // What is inside has its own look at the time and ends in better order; this is for when it does not.
        let most = request.bounds.time.saturating_add(request.bounds.time / 4).saturating_add(LOOK);
        let mut moved = (Instant::now(), begin);
        loop {
            match unix::readable(&self.socket, LOOK) {
                Ok(true) => return self.answer(request.bounds.memory_bytes),
                Ok(false) => {}
                Err(error) => return End::Died(error.to_string()),
            }
            let now = self.cpu();
            if now.saturating_sub(begin) > most {
                Process::kill(&self.pidfd);
                return End::Died("it took too long".into());
            }
            if now > moved.1 {
                moved = (Instant::now(), now);
            } else if moved.0.elapsed() > STUCK {
                Process::kill(&self.pidfd);
                return End::Died("it hung".into());
            }
        }
    }

    fn order(
        &mut self,
        request: &Request,
        fallback: Option<&String>,
        modules: &Modules,
    ) -> Result<Option<Arc<ModuleFile>>, End> {
        let failed = |what: String| End::Failed(Failure::Other(what));
        if request.entry.len() > MAX_ENTRY {
            return Err(failed("a kernel with too long a name".into()));
        }
        let source = &request.source;
        let known = self.known.iter().position(|&(id, _)| id == source.id);
        let file = known.is_none().then(|| modules.file(source)).transpose();
        let file = file.map_err(|error| failed(format!("the module cannot be handed to a compiler: {error}")))?;
        // What was used last goes last.
        let module = known.and_then(|at| self.known.remove(at)).unwrap_or((source.id, source.text.len()));
        self.known.push_back(module);
        let engine = match (request.engine, fallback) {
            (ptx_jit::EngineKind::Jit, None) => Engine::Machine,
            (_, why) => Engine::Interpreter(why.cloned()),
        };
        let order = Order {
            module: source.id,
            forget: self.superfluous(),
            entry: request.entry.clone(),
            block: request.block,
            stack_bytes: request.stack_bytes,
            engine,
            memory_bytes: request.bounds.memory_bytes.min(MAX_MEMORY),
            time: request.bounds.time,
            threads: request.bounds.threads,
        };
        let fd = file.as_ref().and_then(|file| file.fd());
        protocol::send(&self.socket, &order, fd).map_err(|_| End::Gone)?;
        Ok(file)
    }

    /// Modules that are to go, because they are too many or too much.
    fn superfluous(&mut self) -> Vec<u64> {
        let mut gone = Vec::new();
        loop {
            let bytes: usize = self.known.iter().map(|(_, bytes)| bytes).sum();
            if self.known.len() <= MODULES && (self.known.len() <= 1 || bytes <= MODULES_BYTES) {
                return gone;
            }
            gone.extend(self.known.pop_front().map(|(id, _)| id));
        }
    }

    /// Takes the answer; an image of more than `most` bytes is not even read: nobody is charged for so much.
    fn answer(&mut self, most: u64) -> End {
        let (answer, file) = match protocol::receive(&self.socket, &mut self.buffer) {
            Ok(Some(received)) => received,
            Ok(None) => return End::Died("it ended".into()),
            Err(error) => return End::Died(error.to_string()),
        };
        match (answer, file) {
            (Answer::Failed(failure), _) => End::Failed(failure),
            (Answer::Image(length), _) if length > most.min(MAX_IMAGE) => {
                End::Died(format!("its image has {length} bytes, more than it may use"))
            }
            (Answer::Image(length), Some(file)) => {
                match protocol::read_file(file, length)
                    .map(|bytes| Image::from_bytes(&bytes).map(|image| (image, bytes)))
                {
                    Ok(Ok((image, bytes))) => End::Image(Box::new(image), bytes),
                    Ok(Err(error)) => End::Failed(Failure::of(&error)),
                    Err(error) => End::Died(format!("its image cannot be read: {error}")),
                }
            }
            _ => End::Died("it says what nobody understands".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ptx_jit::EngineKind;
    use ptx_jit::compiler::{Bounds, Source};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn an_image_beyond_the_bound_is_refused_by_its_length() {
        let (ours, theirs) = unix::pair().unwrap();
        // Not ended here: that happens when it takes too long only.
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let mut process = Process::new(getpid().as_raw_nonzero().get(), pidfd, ours, None);
        let request = Request {
            tenant: 1,
            owner: 1,
            source: Arc::new(Source { id: 1, text: "".into(), symbols: HashMap::new() }),
            entry: "k".into(),
            block: [1; 3],
            stack_bytes: 0,
            engine: EngineKind::Jit,
            bounds: Bounds { memory_bytes: 1000, time: Duration::from_secs(600), threads: 1 },
        };
        // The file is empty: who looked into it would say that it cannot be read.
        for (length, reason) in [(1001, "more than it may use"), (u64::MAX, "more than it may use"), (1000, "read")] {
            let file = protocol::memory_file("image", &[]).unwrap();
            protocol::send(&theirs, &Answer::Image(length), Some(&file)).unwrap();
            match process.carry_out(&request, None, &Modules::default()) {
                End::Died(told) => assert!(told.contains(reason), "{length}: {told}"),
                _ => panic!("{length} bytes were taken"),
            }
        }
    }
}
