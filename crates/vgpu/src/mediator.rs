//! The mediator of one guest: what it keeps, and what it does when the guest or the device does something.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use device_io::{DeviceBacking, VramOffset};
use gmmu::{FaultBuffer, FoundEntries, PhysMem, Policy, Work};
use gpu_driver::{Budget, Driver, Lease, Metered, Usage, VramRange};
use gpu_spec::fault::Fault;
use gpu_spec::mmu::{HUGE_PAGE, PhysAddr, SMALL_PAGE};
use gpu_spec::notifier::{Code, Reason, Record};
use gpu_spec::ramfc::place;
use gpu_spec::regs::{self, accounting, vector};
use gpu_spec::runlist::RunlistEntry;
use parking_lot::Mutex;
use vfio_user::{Errno, StoreWatch, pci};
use zerocopy::{FromZeros, IntoBytes};

use crate::balloon::Balloon;
use crate::channel::{self, CHANNEL_BYTES, Channel, Claim, Stopped};
use crate::counts::{Counters, Counts};
use crate::lines::Lines;
use crate::memory::GuestMemory;
use crate::partition::Partition;
use crate::pci::ConfigSpace;
use crate::record::Recorder;
use crate::registers::Latches;
use crate::space::{Space, SpaceError, View, has_room};
use crate::tables::ShadowTables;
use crate::watch::{Stores, TableWatch, Trap, Watching};
use crate::{NoVgpu, Scheme};

/// Channels of a guest.
pub(crate) const MOST_CHANNELS: u32 = 128;
/// Time-slice groups of a guest.
const MOST_TSGS: usize = 128;
/// Channel numbers that a guest may use.
pub(crate) const GUEST_CHANNELS: u32 = regs::CHANNELS;
/// Most entries that are read of a runlist.
const MOST_ENTRIES: u32 = 2 * GUEST_CHANNELS;
/// Times that a channel's entries are copied, and the device told, for one doorbell.
const MOST_RINGS: u32 = channel::MOST_ENTRIES / channel::SOME_ENTRIES;
/// What a trap tells of that tells each store, bytes.
const WORD: u64 = 8;
/// Between two tries to go on with what did not fit.
pub(crate) const RETRY: Duration = Duration::from_micros(200);
/// The same, for what has not gone on for long.
pub(crate) const MOST_RETRY: Duration = Duration::from_millis(2);

/// What a shadow follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Follow {
    /// All of the guest's tables, entry by entry.
    All,
    /// What was announced, and what was told of by traps.
    Told,
    /// That, and what is looked for when work is submitted.
    Submitted,
}

/// What came of copying some of what a channel was given.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    /// The device's channel.
    host: u32,
    /// There is something new for it.
    told: bool,
    left: Left,
}

/// What is left to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Nothing,
    /// Something, and there is room for it.
    Some,
    /// More than there is room for.
    Much,
}

/// What came of going on with what did not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GoneOn {
    /// Nothing is left.
    Done,
    /// Something is left, and it has come further.
    Further,
    /// Nothing fits yet.
    NotYet,
}

/// What a virtual GPU is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// For logs.
    pub name: String,
    /// VRAM, bytes: whole 2 MiB.
    pub vram_bytes: u64,
    /// How it is virtualized.
    pub scheme: Scheme,
    /// How its guest's page tables are followed, for [`Scheme::Fv`].
    pub watching: Watching,
    /// What its work may cost the host.
    pub budget: Arc<Budget>,
}

/// A virtual GPU.
pub struct Vgpu {
    pub(crate) config: Config,
    pub(crate) lease: Arc<Lease>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) counters: Counters,
    /// Held by whatever the guest does; nobody else needs it.
    pub(crate) inner: Mutex<Inner>,
    /// The device's groups that are listed, for those who set slices.
    listed: Mutex<Listed>,
    /// How its guest's tables are to be followed from the next submission on. Locked for a look, after `inner`.
    policy: Mutex<Policy>,
    /// The device's time when the guest's began.
    pub(crate) epoch_ns: u64,
    pub(crate) balloon: Arc<Balloon>,
    /// Who wants to know what the guest does to its page tables.
    recorder: Mutex<Option<Recorder>>,
}

/// The groups that run.
#[derive(Debug, Default)]
struct Listed {
    tsgs: Vec<u32>,
    slice_ns: u64,
    /// They do not run, for now.
    held: bool,
}

/// A group of a guest's.
#[derive(Debug)]
pub(crate) struct Tsg {
    /// Its number on the device.
    pub(crate) host: u32,
    /// The guest's channels in it, as listed.
    channels: Vec<u32>,
    /// The device's counters when it was made: time, grids, copies.
    pub(crate) base: (u64, u32, u32),
}

/// All that a guest has said.
pub(crate) struct Inner {
    pub(crate) memory: GuestMemory,
    pub(crate) tables: ShadowTables,
    pub(crate) spaces: HashMap<PhysAddr, Space>,
    pub(crate) watch: TableWatch,
    pub(crate) channels: BTreeMap<u32, Channel>,
    pub(crate) tsgs: BTreeMap<u32, Tsg>,
    pub(crate) faults: FaultBuffer,
    pub(crate) latches: Latches,
    pub(crate) pci: ConfigSpace,
}

impl Vgpu {
    /// A virtual GPU on a device that others use as well, with all the VRAM that it may have.
    ///
    /// # Errors
    /// There is not enough of the device left.
    pub fn new(driver: &Arc<Driver>, config: Config) -> Result<Arc<Vgpu>, NoVgpu> {
        let bytes = config.vram_bytes;
        Vgpu::sized(driver, config, bytes)
    }

    /// As [`Vgpu::new`], with `bytes` of VRAM for now.
    ///
    /// # Errors
    /// As [`Vgpu::new`].
    pub fn sized(driver: &Arc<Driver>, config: Config, bytes: u64) -> Result<Arc<Vgpu>, NoVgpu> {
        let most = config.vram_bytes;
        if let Some(bad) = [most, bytes].into_iter().find(|bytes| *bytes == 0 || !bytes.is_multiple_of(HUGE_PAGE)) {
            return Err(NoVgpu::BadSize(bad));
        }
        let balloon = Arc::new(Balloon::new(bytes.min(most)));
        let lines = Arc::new(Lines::new(Arc::clone(&balloon)));
        let mediator: Arc<dyn gpu_driver::Mediator> = Arc::clone(&lines) as _;
        let lease = Arc::new(driver.lease(Arc::clone(&config.budget), MOST_CHANNELS, mediator));
        let mapped = config.scheme != Scheme::FvNaive;
        let vram = Partition::new(Arc::clone(&lease), most, bytes.min(most), mapped);
        let vram = vram.map_err(|error| NoVgpu::NoVram { wanted: bytes, why: error.to_string() })?;
        // As many as a guest's own tables can be, and some.
        let bound = (most / 64).max(8 << 20);
        let inner = Inner {
            memory: GuestMemory::new(Arc::clone(&lease), vram),
            tables: ShadowTables::new(Arc::clone(&lease), bound),
            spaces: HashMap::new(),
            watch: TableWatch::new(config.watching),
            channels: BTreeMap::new(),
            tsgs: BTreeMap::new(),
            faults: FaultBuffer::default(),
            latches: Latches::default(),
            pci: ConfigSpace::new(most.next_power_of_two()),
        };
        let counters = Counters::default();
        *counters.trap.lock() = (config.scheme == Scheme::Fv).then(|| inner.watch.in_effect());
        Ok(Arc::new(Vgpu {
            policy: Mutex::new(config.watching.policy),
            epoch_ns: time_ns(lease.backing().as_ref()),
            balloon,
            config,
            lease,
            lines,
            counters,
            inner: Mutex::new(inner),
            recorder: Mutex::new(None),
            listed: Mutex::new(Listed { tsgs: Vec::new(), slice_ns: 1_000_000, held: false }),
        }))
    }

    /// What it was made of.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where the device has a byte of the guest's VRAM. Waits for what the guest does just now.
    #[must_use]
    pub fn vram_at(&self, offset: u64) -> Option<VramOffset> {
        let (range, host) = self.inner.lock().memory.vram.get(offset)?;
        Some(VramOffset(host + (offset - range.start)))
    }

    /// VRAM that the guest has now, bytes.
    #[must_use]
    pub fn vram_used(&self) -> u64 {
        self.balloon.held()
    }

    /// VRAM that the device has for it besides: shadow page tables and channels, bytes.
    #[must_use]
    pub fn vram_overhead(&self) -> u64 {
        self.lease.vram_bytes().saturating_sub(self.balloon.held())
    }

    /// Why the guest has no device any more, and none will have, until this is destroyed; if that is so.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.lines.why_lost()
    }

    /// Writes what the guest does to its page tables to whoever reads at the other end of `to`, until that one closes it or
    /// somebody else wants to know: a [`gmmu::Trace`] as text. Whoever reads slowly misses some. Does not wait for the guest.
    ///
    /// # Errors
    /// Para-virtualized guests have no page tables.
    pub fn record(&self, to: UnixStream) -> std::io::Result<()> {
        if self.config.scheme == Scheme::Pv {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        let mut recorder = Recorder::new(to);
        // The first lines at once: whoever reads knows from when on it sees everything.
        *self.recorder.lock() = recorder.flush().then_some(recorder);
        Ok(())
    }

    /// What mediation has taken.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.now()
    }

    /// Channels that are bound. Does not wait for the guest, whatever it does just now.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.lease.channels()
    }

    /// Whether the guest has work on the GPU that waits for nothing but its turn, or does it now. Does not wait for it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.lease.is_ready()
    }

    /// What the guest has had of the GPU.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.lease.usage()
    }

    /// What the guest has had of the GPU, in full.
    #[must_use]
    pub fn metered(&self) -> Metered {
        self.lease.metered()
    }

    /// Sets the time of the guest's turn, ns: its groups divide it.
    pub fn set_time_slice(&self, ns: u64) {
        let mut listed = self.listed.lock();
        listed.slice_ns = ns;
        self.apply_slices(&listed);
    }

    /// Lets the guest's work run, or holds it: what runs is preempted, and goes on when it may.
    pub fn set_runnable(&self, run: bool) {
        let mut listed = self.listed.lock();
        if std::mem::replace(&mut listed.held, !run) == run {
            self.apply_slices(&listed);
        }
    }

    /// Follows its guest's tables in another way, from the next submission on. Waits for nobody.
    pub fn set_policy(&self, policy: Policy) {
        *self.policy.lock() = policy;
    }

    fn apply_slices(&self, listed: &Listed) {
        if listed.tsgs.is_empty() {
            return;
        }
        let each = listed.slice_ns / listed.tsgs.len() as u64;
        if let Err(error) = self.lease.schedule(&listed.tsgs, each.max(1000), !listed.held) {
            log_limit::error!(%error, "time slices of a virtual GPU");
        }
    }

    pub(crate) fn backing(&self) -> &dyn DeviceBacking {
        self.lease.backing().as_ref()
    }

    /// The guest's time, ns.
    pub(crate) fn time_ns(&self) -> u64 {
        time_ns(self.backing()).saturating_sub(self.epoch_ns)
    }

    /// The guest has bound a channel to an instance block, or to none.
    pub(crate) fn bind(&self, number: u32, value: u32) {
        let mut inner = self.inner.lock();
        inner.latches.instances.insert(number, value);
        self.unbind(&mut inner, number);
        if !regs::INST_BIND.is_set(value) {
            return;
        }
        let at = u64::from(regs::INST_PTR.get(value)) << 12;
        let instance = place(regs::INST_TARGET.get(value), at as u32, (at >> 32) as u32);
        let instance = instance.ok_or_else(|| "the instance block is in no memory".to_owned());
        match instance.and_then(|instance| self.shadow(&mut inner, instance)) {
            Ok(channel) => {
                inner.channels.insert(number, channel);
            }
            Err(reason) => {
                log_limit::warn!(guest = self.config.name, channel = number, reason, "a guest's channel is not bound");
                inner.latches.refused.insert(number);
                drop(inner);
                self.lines.raise(vector::CHANNEL_ERROR);
            }
        }
    }

    /// A shadow of the channel that an instance block of the guest's describes, bound on the device.
    fn shadow(&self, inner: &mut Inner, instance: PhysAddr) -> Result<Channel, String> {
        let claim = Claim::read(&inner.memory, instance)?;
        let Inner { tables, spaces, memory, watch, .. } = inner;
        let text = |error: SpaceError| error.to_string();
        if !spaces.contains_key(&claim.root) && !has_room(spaces, claim.window) {
            return Err("the address spaces are too large, all together".into());
        }
        let space = match spaces.entry(claim.root) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let space = place.insert(Space::new(tables, claim.root, claim.window, false).map_err(text)?);
                space.track(watch);
                space
            }
        };
        let made = self.shadow_in(space, tables, memory, watch, claim);
        if space.channels == 0
            && !space.entered
            && let Some(space) = spaces.remove(&claim.root)
        {
            space.end(claim.root, tables, &self.lease, watch);
        }
        made
    }

    fn shadow_in(
        &self,
        space: &mut Space,
        tables: &mut ShadowTables,
        memory: &GuestMemory,
        watch: &mut TableWatch,
        claim: Claim,
    ) -> Result<Channel, String> {
        if space.window() != claim.window {
            return Err("channels of one address space have one window".into());
        }
        let what = if self.config.scheme == Scheme::FvNaive { Follow::All } else { Follow::Submitted };
        self.follow((claim.root, space), tables, memory, watch, what).map_err(|error| error.to_string())?;
        let host = self.lease.take_channel().map_err(|error| error.to_string())?;
        let give = |reason: String| {
            self.lease.put_channel(host);
            Err(reason)
        };
        let Some(vram) = self.lease.take_vram(CHANNEL_BYTES, SMALL_PAGE) else {
            return give("no VRAM for a shadow channel".into());
        };
        match space.map_channel(tables, &self.lease, vram.offset, claim.gpfifo.0) {
            Ok(Some(place)) => {
                let channel = Channel::new(claim, host, vram, place, space.shadow.root());
                let (root, window) = (space.shadow.root(), space.shadow_window());
                channel.write_instance(self.backing(), root, window, self.lease.budget_number());
                self.lease.bind(host, PhysAddr::vram(vram.offset));
                space.channels += 1;
                Ok(channel)
            }
            Err(error) if error.is_left() => {
                self.lease.quarantine_vram(vram);
                give(error.to_string())
            }
            other => {
                self.lease.put_vram(vram);
                give(other.map_or_else(|error| error.to_string(), |_| "too many channels in an address space".into()))
            }
        }
    }

    /// Stops a channel, and gives what it had back.
    pub(crate) fn unbind(&self, inner: &mut Inner, number: u32) {
        inner.latches.refused.remove(&number);
        let Some(channel) = inner.channels.remove(&number) else { return };
        let stopped = match channel.tsg {
            Some(tsg) => {
                for tsg in inner.tsgs.values_mut() {
                    tsg.channels.retain(|other| *other != number);
                }
                self.lease.stop(tsg, &[channel.host])
            }
            // It was never listed: nothing of it has ever run.
            None => {
                self.backing().write32(regs::pccsr_inst(channel.host), 0);
                Ok(())
            }
        };
        let Inner { tables, spaces, watch, .. } = inner;
        let Some(space) = spaces.get_mut(&channel.claim.root) else { return };
        let unmapped = match stopped {
            Ok(()) => space.unmap_channel(tables, &self.lease, channel.slot).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match unmapped {
            Ok(()) => {
                self.lease.put_vram(channel.vram);
                self.lease.put_channel(channel.host);
                space.channels -= 1;
            }
            // The number stays taken, and the space, for the device may use both.
            Err(reason) => {
                log_limit::error!(guest = self.config.name, reason, "a guest's channel does not stop");
                self.lease.quarantine_vram(channel.vram);
            }
        }
        if space.channels == 0
            && !space.entered
            && let Some(space) = spaces.remove(&channel.claim.root)
        {
            space.end(channel.claim.root, tables, &self.lease, watch);
            *self.counters.tracked.lock() = watch.counts;
        }
    }

    /// Lets the shadow of a space follow the guest's tables.
    fn follow(
        &self,
        (root, space): (PhysAddr, &mut Space),
        tables: &mut ShadowTables,
        memory: &GuestMemory,
        watch: &mut TableWatch,
        what: Follow,
    ) -> Result<(), SpaceError> {
        // Whoever comes or goes as a reader does not wait meanwhile.
        space.changes.found = self.recorder.lock().as_ref().map(|_| FoundEntries::default());
        let followed = self.follow_unrecorded((root, space), tables, memory, watch, what);
        if let Some(found) = space.changes.found.take() {
            let mut recorder = self.recorder.lock();
            if recorder.as_mut().is_some_and(|reader| !reader.followed(root, &found, what == Follow::Submitted)) {
                *recorder = None;
            }
        }
        followed
    }

    fn follow_unrecorded(
        &self,
        (root, space): (PhysAddr, &mut Space),
        tables: &mut ShadowTables,
        memory: &GuestMemory,
        watch: &mut TableWatch,
        what: Follow,
    ) -> Result<(), SpaceError> {
        let work = if space.is_tracked() && (what == Follow::Submitted || space.shadow.is_stale()) {
            space.follow_stores((root, what == Follow::Submitted), tables, &self.lease, memory, watch)?
        } else if what == Follow::All || space.shadow.is_stale() {
            space.reflect(tables, &self.lease, memory, what == Follow::All)?
        } else {
            return Ok(());
        };
        self.count_work(work, watch);
        Ok(())
    }

    fn count_work(&self, work: Work, watch: &TableWatch) {
        if watch.watching.trap != Trap::Announced {
            *self.counters.tracked.lock() = watch.counts;
        }
        Counters::add(&self.counters.entries_scanned, work.entries_scanned);
        Counters::add(&self.counters.shadow_updates, u64::from(work.tables_read > 0));
    }

    /// The guest writes memory in a way that comes here: where it has none, it vanishes.
    pub(crate) fn store(&self, at: PhysAddr, data: &[u8]) {
        let mut inner = self.inner.lock();
        // A part of it may be there.
        let _ = inner.memory.write(at, data);
        let Inner { tables, spaces, memory, watch, .. } = &mut *inner;
        let mut to_follow = BTreeSet::new();
        for (at, bytes, root) in watch.strict_in(at, data.len() as u64) {
            if spaces.get_mut(&root).is_some_and(|space| space.stored(root, (at, bytes), watch)) {
                to_follow.insert(root);
            }
        }
        for root in to_follow {
            let Some(space) = spaces.get_mut(&root) else { continue };
            if let Err(error) = self.follow((root, space), tables, memory, watch, Follow::Told) {
                log_limit::warn!(guest = self.config.name, %error, "a guest's page tables");
            }
        }
    }

    /// The guest has invalidated translations: of one page directory, or of all.
    pub(crate) fn invalidate(&self, root: Option<PhysAddr>, range: &std::ops::Range<u64>) {
        let mut inner = self.inner.lock();
        let Inner { tables, spaces, memory, channels, watch, .. } = &mut *inner;
        let naive = self.config.scheme == Scheme::FvNaive;
        let what = if naive { Follow::All } else { Follow::Told };
        for (at, space) in spaces.iter_mut().filter(|(at, _)| root.is_none_or(|root| root == **at)) {
            space.shadow.invalidate(range.clone());
            // What runs or waits to run on the device sees the change now; what does not, with its next submission.
            let in_use = || channels.values().any(|c| c.claim.root == *at && c.has_work(self.backing()));
            if (naive || in_use())
                && let Err(error) = self.follow((*at, space), tables, memory, watch, what)
            {
                log_limit::warn!(guest = self.config.name, %error, "a guest's page tables");
            }
        }
    }

    /// The guest has rung for a channel.
    pub(crate) fn ring(&self, number: u32) {
        if let (_, true) = self.copy(number, Follow::Submitted) {
            self.lines.tell(|news| news.rung = true);
        }
    }

    /// Copies what a channel was given, and tells the device, some at a time: it may do that at once, on this thread, and if it does
    /// not, it has something to do while more is copied. Gives whether there was something, and whether some is left for later.
    fn copy(&self, number: u32, mut what: Follow) -> (bool, bool) {
        let mut further = false;
        for _ in 0..MOST_RINGS {
            let submitted = self.submit(&mut self.inner.lock(), number, what);
            let Some(Submitted { host, told, left }) = submitted else { return (further, false) };
            further |= told;
            // A channel that was rung for may wait for what the guest has written itself: the device looks again. One that has got
            // nothing new does not keep the device busy.
            self.ring_host((told || what == Follow::Submitted).then_some(host));
            match left {
                Left::Nothing => return (further, false),
                Left::Some => what = Follow::Told,
                Left::Much => break,
            }
        }
        (further, true)
    }

    fn ring_host(&self, host: Option<u32>) {
        // Not under the lock: the device may do the work at once, on this thread.
        if let Some(host) = host {
            let doorbell = regs::DOORBELL_CHANNEL.of(host);
            self.backing().write32(regs::USERMODE + regs::USERMODE_DOORBELL, doorbell);
        }
    }

    /// Copies some of what a channel was given.
    fn submit(&self, inner: &mut Inner, number: u32, what: Follow) -> Option<Submitted> {
        if what == Follow::Submitted {
            let Inner { channels, memory, .. } = &mut *inner;
            let channel = channels.get_mut(&number).filter(|channel| !channel.failed)?;
            if !channel.rung(memory) {
                self.refuse(inner, number, "USERD is in no memory");
                return None;
            }
            self.take_stores(inner);
        }
        let Inner { tables, spaces, memory, channels, watch, .. } = inner;
        let channel = channels.get_mut(&number).filter(|channel| !channel.failed)?;
        let root = channel.claim.root;
        let space = spaces.get_mut(&root)?;
        let followed = self.follow((root, space), tables, memory, watch, what);
        let (told, stopped) = match followed {
            Ok(()) => {
                let mut view = View::new(space, tables, memory);
                channel.copy(self.backing(), memory, &mut |va, out| view.read(va, out))
            }
            Err(error) => (false, Stopped::Error(error.to_string())),
        };
        let host = channel.host;
        if std::mem::take(&mut channel.audit.invalidated) {
            let (lo, bytes) = space.window();
            space.shadow.invalidate(lo..lo + bytes);
            // What was copied is not told to the device before its invalidate can show what it should.
            if let Err(error) = self.follow((root, space), tables, memory, watch, Follow::Told) {
                log_limit::warn!(guest = self.config.name, %error, "a guest's page tables");
            }
        }
        let left = match stopped {
            Stopped::Empty => Left::Nothing,
            Stopped::Some => Left::Some,
            Stopped::Full => Left::Much,
            Stopped::Error(reason) => {
                self.refuse(inner, number, &reason);
                return told.then_some(Submitted { host, told, left: Left::Nothing });
            }
        };
        Some(Submitted { host, told, left })
    }

    /// Work is submitted: what the guest has stored into its tables is told to all spaces that want to know it, and after that a
    /// policy is taken over that is new, or a trap that is gone.
    fn take_stores(&self, inner: &mut Inner) {
        let Inner { spaces, watch, .. } = inner;
        let Stores { pages, words } = watch.take();
        for (root, page) in pages {
            if let Some(space) = spaces.get_mut(&root) {
                space.written(page);
            }
        }
        for (root, at) in words {
            if let Some(space) = spaces.get_mut(&root) {
                // It follows with this submission, or with its own next one.
                let _ = space.stored(root, (at, WORD), watch);
            }
        }
        if watch.takes_over(*self.policy.lock()) {
            self.change_tracking(spaces, watch);
        }
    }

    fn change_tracking(&self, spaces: &mut HashMap<PhysAddr, Space>, watch: &mut TableWatch) {
        watch.is_told();
        spaces.iter_mut().for_each(|(root, space)| space.change_tracking(*root, watch));
        *self.counters.trap.lock() = Some(watch.in_effect());
    }

    /// The guest tells how to notice what it stores into its VRAM; what it said before does not count any more.
    pub(crate) fn watch_stores(&self, watch: StoreWatch) -> Result<(), Errno> {
        let Trap::Watched(kind) = self.config.watching.trap else { return Err(Errno::NOTSUP) };
        if watch.region != pci::BAR1 || watch.bytes > self.config.vram_bytes || self.config.scheme != Scheme::Fv {
            return Err(Errno::INVAL);
        }
        let pages = watch.bytes / SMALL_PAGE;
        // Not under the lock, though nobody but this guest waits for it.
        let sent = crate::watch::sent(kind, watch)?;
        let mut inner = self.inner.lock();
        self.end_sent(&mut inner);
        let Inner { spaces, watch, .. } = &mut *inner;
        watch.set_sent(Some((sent, pages)));
        self.change_tracking(spaces, watch);
        // It may have failed as soon as it was used.
        if watch.in_effect() == Trap::Snapshot { Err(Errno::IO) } else { Ok(()) }
    }

    /// The guest's trap is not used any more.
    fn end_sent(&self, inner: &mut Inner) {
        let Inner { spaces, watch, .. } = inner;
        if matches!(watch.watching.trap, Trap::Watched(_)) {
            watch.set_sent(None);
            self.change_tracking(spaces, watch);
        }
    }

    /// Goes on with all channels of which something was left.
    pub(crate) fn go_on(&self) -> GoneOn {
        let ahead: Vec<u32> = {
            let inner = self.inner.lock();
            inner.channels.iter().filter(|(_, c)| c.is_ahead()).map(|(number, _)| *number).collect()
        };
        let (mut further, mut left) = (false, false);
        for number in ahead {
            let (told, more) = self.copy(number, Follow::Told);
            further |= told;
            left |= more;
        }
        match (left, further) {
            (false, _) => GoneOn::Done,
            (true, true) => GoneOn::Further,
            (true, false) => GoneOn::NotYet,
        }
    }

    /// Ends a channel for a mistake of the guest's.
    fn refuse(&self, inner: &mut Inner, number: u32, reason: &str) {
        log_limit::warn!(guest = self.config.name, channel = number, reason, "a guest's command is refused");
        let Some(channel) = inner.channels.get_mut(&number) else { return };
        channel.failed = true;
        self.backing().write32(regs::pccsr_channel(channel.host), regs::CHANNEL_ENABLE_CLR.of(1));
        let record = Record {
            timestamp: self.time_ns(),
            code: Code::PBDMA_ERROR,
            reason: Reason::ILLEGAL_COMMAND,
            channel: number,
            ..Record::new_zeroed()
        };
        channel.notify(&inner.memory, &record, reason.as_bytes());
        self.lines.raise(vector::CHANNEL_ERROR);
    }

    /// The guest has given a runlist to the device.
    pub(crate) fn submit_runlist(&self, base: PhysAddr, length: u32) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut current = None;
        for index in 0..length.min(MOST_ENTRIES) {
            let mut entry = RunlistEntry::default();
            let at = base.offset(u64::from(index) * RunlistEntry::BYTES);
            if inner.memory.read(at, entry.as_mut_bytes()).is_err() {
                break;
            }
            if RunlistEntry::TYPE.is_set(entry.words[0]) {
                current = Some(RunlistEntry::TSG_ID.get(entry.words[2]));
                continue;
            }
            let number = RunlistEntry::CHANNEL_ID.get(entry.words[2]);
            let seen = wanted.values().any(|channels| channels.contains(&number));
            if let Some(tsg) = current.filter(|_| !seen && inner.channels.contains_key(&number)) {
                wanted.entry(tsg).or_default().push(number);
            }
        }
        for (number, channels) in &wanted {
            if let Err(reason) = self.enlist(inner, *number, channels) {
                log_limit::warn!(guest = self.config.name, reason, "a guest's runlist");
            }
        }
        // What is no longer listed does not run.
        let Inner { tsgs, channels, .. } = inner;
        for (_, tsg) in tsgs.iter_mut().filter(|(number, tsg)| !wanted.contains_key(number) && !tsg.channels.is_empty())
        {
            if let Err(error) = self.lease.list(tsg.host, &[]) {
                log_limit::error!(guest = self.config.name, %error, "a guest's runlist");
            }
            for number in tsg.channels.drain(..) {
                if let Some(channel) = channels.get_mut(&number) {
                    // It may still hold the engines: it is stopped there, not here.
                    channel.tsg = Some(tsg.host);
                }
            }
        }
        let mut listed = self.listed.lock();
        listed.tsgs = wanted.keys().filter_map(|number| Some(tsgs.get(number)?.host)).collect();
        self.apply_slices(&listed);
    }

    /// Lists these channels of the guest's for a group of its own.
    fn enlist(&self, inner: &mut Inner, number: u32, wanted: &[u32]) -> Result<(), String> {
        let Inner { tsgs, channels, .. } = inner;
        if !tsgs.contains_key(&number) {
            if tsgs.len() >= MOST_TSGS {
                return Err("too many time-slice groups".into());
            }
            // A guest that is held does not run for a moment with each new group.
            let host = self.lease.take_tsg(1_000_000, false).map_err(|error| error.to_string())?;
            let base = counters(self.backing(), host);
            tsgs.insert(number, Tsg { host, channels: Vec::new(), base });
        } else if let Some(tsg) = tsgs.get(&number).filter(|tsg| tsg.channels.is_empty()) {
            // Nor with one that was not listed for a while; those that may run do so once all of the runlist is known.
            self.lease.schedule(&[tsg.host], 1_000_000, false).map_err(|error| error.to_string())?;
        }
        let Some(host) = tsgs.get(&number).filter(|tsg| tsg.channels != wanted).map(|tsg| tsg.host) else {
            return Ok(());
        };
        for member in wanted {
            let left = channels.get(member).and_then(|channel| channel.tsg).filter(|left| *left != host);
            left.map_or(Ok(()), |left| self.leave_group(tsgs, channels, *member, left))?;
        }
        let Some(tsg) = tsgs.get_mut(&number) else { return Ok(()) };
        let mut listed = Vec::new();
        for number in wanted {
            if let Some(channel) = channels.get_mut(number) {
                channel.tsg = Some(tsg.host);
                listed.push(channel.listed());
            }
        }
        wanted.clone_into(&mut tsg.channels);
        self.lease.list(tsg.host, &listed).map_err(|error| error.to_string())
    }

    /// Takes a channel out of the device's group `left`. It may hold the engines in that one's name: who stops it later stops
    /// the group that it is in then.
    fn leave_group(
        &self,
        tsgs: &mut BTreeMap<u32, Tsg>,
        channels: &BTreeMap<u32, Channel>,
        number: u32,
        left: u32,
    ) -> Result<(), String> {
        let Some(tsg) = tsgs.values_mut().find(|tsg| tsg.host == left) else { return Ok(()) };
        tsg.channels.retain(|other| *other != number);
        let rest: Vec<_> = tsg.channels.iter().filter_map(|other| channels.get(other)).map(Channel::listed).collect();
        self.lease.list(left, &rest).and_then(|()| self.lease.preempt(left)).map_err(|error| error.to_string())
    }

    /// Stops a group of the guest's, or the group of a channel, for now. False if it does not stop.
    pub(crate) fn preempt(&self, id: u32, is_tsg: bool) -> bool {
        let host = {
            let inner = self.inner.lock();
            match is_tsg {
                true => inner.tsgs.get(&id).map(|tsg| tsg.host),
                false => inner.channels.get(&id).and_then(|channel| channel.tsg),
            }
        };
        host.is_none_or(|host| self.lease.preempt(host).is_ok())
    }

    /// What the device has said, told to the guest.
    pub(crate) fn tell_guest(&self, faults: impl IntoIterator<Item = Fault>, errors: bool) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut raised = false;
        for fault in faults {
            let of = |channel: &&Channel| {
                let VramRange { offset, bytes } = channel.vram;
                (offset..offset + bytes).contains(&fault.instance.address)
            };
            let Some(channel) = inner.channels.values().find(of) else { continue };
            let timestamp = fault.timestamp.saturating_sub(self.epoch_ns);
            let told = Fault { instance: channel.claim.instance, timestamp, ..fault };
            raised |= inner.faults.push(&inner.memory, &told);
        }
        let mut stopped = false;
        if errors {
            for (number, channel) in inner.channels.iter_mut().filter(|(_, channel)| !channel.failed) {
                let Some((record, log)) = channel.read_notifier(self.lease.backing().as_ref()) else { continue };
                channel.failed = true;
                let timestamp = record.timestamp.saturating_sub(self.epoch_ns);
                channel.notify(&inner.memory, &Record { timestamp, channel: *number, ..record }, &log);
                stopped = true;
            }
        }
        if raised {
            self.lines.raise(vector::FAULT);
        }
        if stopped {
            self.lines.raise(vector::CHANNEL_ERROR);
        }
    }

    /// The guest maps memory for the device.
    pub(crate) fn map(&self, map: vfio_user::DmaMap) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        inner.memory.map(map)?;
        inner.spaces.values_mut().for_each(|space| space.shadow.granted());
        Ok(())
    }

    /// The guest takes memory from the device: when this returns, the device reaches none of it.
    pub(crate) fn unmap(&self, range: std::ops::Range<u64>) {
        let mut inner = self.inner.lock();
        let lost = inner.memory.system_pieces(range.clone());
        // What it does not let go of has ended.
        let bytes = range.end - range.start;
        let _ = self.revoke(&mut inner, (PhysAddr::system(range.start), bytes), &lost);
        inner.memory.unmap(range);
    }

    /// Nothing of the guest's leads to `lost` any more, which the guest has at `at`, or (then false) the virtual GPU has ended.
    pub(crate) fn revoke(&self, inner: &mut Inner, at: (PhysAddr, u64), lost: &[(PhysAddr, u64)]) -> bool {
        let Inner { tables, spaces, .. } = inner;
        // Tables may have been there.
        spaces.values_mut().for_each(|space| space.shadow.stored(at.0, at.1));
        let gone = spaces.values_mut().try_for_each(|space| space.revoke(tables, &self.lease, lost));
        if let Err(error) = &gone {
            self.stop(inner);
            self.end_for_good(error);
        }
        gone.is_ok()
    }

    /// The guest has no device any more, nor will another: something may go on using what it had. All of it stays where it is
    /// until the virtual GPU is destroyed.
    pub(crate) fn end_for_good(&self, why: &dyn std::fmt::Display) {
        if self.lines.lose(why) {
            tracing::error!(guest = self.config.name, %why, "a virtual GPU ends: not all that it had can be taken from its guest");
        }
        // The guest's driver looks, and finds nothing there.
        self.lines.raise(vector::CHANNEL_ERROR);
    }

    /// Ends everything that the guest has begun. If some of it does not end, the virtual GPU does.
    fn stop(&self, inner: &mut Inner) {
        let numbers: Vec<u32> = inner.channels.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.unbind(inner, number));
        let Inner { tables, spaces, memory, watch, .. } = inner;
        let mut ended = true;
        // Those that are left have been made by hypercalls, or have channels that did not stop. These lead nowhere any more, if that
        // can be; their tables stay, for the device may walk them.
        for (root, mut space) in spaces.drain() {
            if space.channels == 0 {
                space.end(root, tables, &self.lease, watch);
                continue;
            }
            space.end_tracking(root, watch);
            ended = false;
            let mut all = memory.system_pieces(0..u64::MAX);
            all.extend(memory.vram.runs().map(|run| (PhysAddr::vram(run.offset), run.bytes)));
            if let Err(error) = space.revoke(tables, &self.lease, &all) {
                tracing::error!(%error, guest = self.config.name, "a channel that does not stop keeps its memory");
            }
        }
        *self.counters.tracked.lock() = watch.counts;
        for tsg in std::mem::take(&mut inner.tsgs).into_values() {
            let gone = self.lease.list(tsg.host, &[]).and_then(|()| self.lease.preempt(tsg.host));
            self.lease.put_tsg(tsg.host, gone.is_ok());
        }
        self.listed.lock().tsgs.clear();
        if !ended || self.lease.is_stuck() {
            self.end_for_good(&"something does not stop, or is not forgotten");
        }
    }

    /// To the state after power-on: VRAM is zero; DMA maps stay.
    pub(crate) fn reset(&self) {
        self.power_on(&mut self.inner.lock(), false);
    }

    fn power_on(&self, inner: &mut Inner, leave: bool) {
        self.stop(inner);
        inner.faults = FaultBuffer::default();
        inner.latches = Latches::default();
        self.lines.change(|tree| *tree = crate::interrupts::Tree::default());
        self.lease.listen(false);
        self.renew(inner, leave);
    }

    /// The guest has gone: nothing of what it mapped is used any more.
    pub(crate) fn leave(&self) {
        self.lines.attach(None);
        let mut inner = self.inner.lock();
        // Its mapping is gone, or on its way.
        self.end_sent(&mut inner);
        self.power_on(&mut inner, true);
        self.lines.set_wire_off(false);
        inner.pci = ConfigSpace::new(self.config.vram_bytes.next_power_of_two());
        inner.memory.unmap_all();
    }
}

impl Drop for Vgpu {
    fn drop(&mut self) {
        let mut inner = self.inner.lock();
        self.stop(&mut inner);
    }
}

impl std::fmt::Debug for Vgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vgpu").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The device's time, ns.
pub(crate) fn time_ns(backing: &dyn DeviceBacking) -> u64 {
    read_long(backing, regs::PTIMER_TIME_0, regs::PTIMER_TIME_1)
}

/// Two registers that count as one of 64 bits.
fn read_long(backing: &dyn DeviceBacking, lo: u32, hi: u32) -> u64 {
    loop {
        let high = backing.read32(hi);
        let low = backing.read32(lo);
        if backing.read32(hi) == high {
            return u64::from(high) << 32 | u64::from(low);
        }
    }
}

/// The device's counters of a group: time in ns, grids, copies.
pub(crate) fn counters(backing: &dyn DeviceBacking, tsg: u32) -> (u64, u32, u32) {
    let at = |word| accounting::word(tsg, word);
    let time = read_long(backing, at(accounting::TIME_LO), at(accounting::TIME_HI));
    (time, backing.read32(at(accounting::GRIDS)), backing.read32(at(accounting::COPIES)))
}
