//! What tenants have had of the GPU, and what became of its time: pure accounting.
//!
//! Whoever serves tenants reads counters that only grow, of each session and each virtual GPU, and hands the readings in;
//! [`Ledger`] makes of them what each tenant has had since it was last asked. Nothing is counted twice, nothing is negative, and
//! nothing is lost when a session or a tenant ends, as long as its last reading is handed in.
//!
//! # Time
//! Times are nanoseconds of a clock that never jumps. *GPU time* is time of the GPU's multiprocessors, divided by their
//! number: two tenants that keep one of two multiprocessors busy for a second have half a GPU second each. At each moment a
//! multiprocessor works for a tenant; or it does nothing though somebody waits for it, which is *overhead*: choosing, waking,
//! handing over; or there is nothing for it to do, and it is *idle*. So
//!
//! > the GPU time of all tenants + overhead + idle time = the time that went by ([`GpuTime::wall_ns`])
//!
//! but for what happens between the readings of the one and the other. Reading and compiling kernels takes time of the host's
//! processors, beside the GPU's: it is counted for itself ([`Meters::compile_ns`]), and no part of that sum. A guest that has the
//! whole GPU has all of its time.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::TenantId;

/// Ranges of waits that are told apart.
pub const WAIT_RANGES: usize = 32;

/// How long work has waited for the GPU: from when the device could have begun it (it was told, what comes before in its queue
/// was done, its code was there) until it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// How many have waited less than 1 µs, from 2^(n-1) µs to below 2^n µs for each further `n`, and, the last, longer.
    pub counts: [u64; WAIT_RANGES],
    /// All of them together, nanoseconds.
    pub sum_ns: u64,
}

impl Waits {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The end of a range, µs; `None` if it has none.
    #[must_use]
    pub fn end_us(range: usize) -> Option<u64> {
        (range + 1 < WAIT_RANGES).then(|| 1 << range)
    }

    /// The wait that a part of them (0 to 1) did not exceed, µs; inside a range they are taken to be evenly spread. 0 if there
    /// were none.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> f64 {
        let rank = part.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0;
        for (range, &count) in self.counts.iter().enumerate() {
            if count > 0 && (below + count) as f64 >= rank {
                let from = if range == 0 { 0.0 } else { (1_u64 << (range - 1)) as f64 };
                let to = (1_u64 << range) as f64;
                return from + (to - from) * ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
            }
            below += count;
        }
        0.0
    }
}

macro_rules! meters {
    ($($(#[$doc:meta])* $field:ident: $kind:ty),* $(,)?) => {
        /// What somebody has had.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct Meters {
            $($(#[$doc])* pub $field: $kind,)*
            /// What its kernels and copies have waited.
            pub waits: Waits,
        }

        impl Meters {
            fn combine(&self, other: &Meters, long: impl Fn(u128, u128) -> u128) -> Meters {
                let short = |a: u64, b: u64| u64::try_from(long(a.into(), b.into())).unwrap_or(u64::MAX);
                let mut counts = [0; WAIT_RANGES];
                for (count, (a, b)) in counts.iter_mut().zip(self.waits.counts.iter().zip(&other.waits.counts)) {
                    *count = short(*a, *b);
                }
                Meters {
                    $($field: <$kind>::try_from(long(self.$field.into(), other.$field.into())).unwrap_or(<$kind>::MAX),)*
                    waits: Waits { counts, sum_ns: short(self.waits.sum_ns, other.waits.sum_ns) },
                }
            }
        }
    };
}

meters! {
    /// GPU time, nanoseconds.
    gpu_ns: u64,
    /// Time of the host's processors for reading and compiling kernels, nanoseconds.
    compile_ns: u64,
    /// GPU memory that it had, times how long: byte-nanoseconds.
    memory_byte_ns: u128,
    /// GPU memory that it could have had, likewise.
    reserved_byte_ns: u128,
    /// Bytes copied from the host's memory into the GPU's.
    bytes_in: u64,
    /// Bytes copied the other way.
    bytes_out: u64,
    /// Kernels that have ended.
    kernels: u64,
    /// Copies and fills that have ended.
    copies: u64,
}

impl Meters {
    /// What two of them have had together; no count wraps.
    #[must_use]
    pub fn plus(&self, other: &Meters) -> Meters {
        self.combine(other, u128::saturating_add)
    }

    /// What came since `earlier`; what has become less has not changed.
    #[must_use]
    pub fn since(&self, earlier: &Meters) -> Meters {
        self.combine(earlier, u128::saturating_sub)
    }

    fn at_least(&self, other: &Meters) -> Meters {
        self.combine(other, u128::max)
    }
}

/// What became of the GPU's time, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuTime {
    /// There was nothing to do.
    pub idle_ns: u64,
    /// There was something to do, and the GPU did not do it.
    pub overhead_ns: u64,
    /// All that went by.
    pub wall_ns: u64,
}

impl GpuTime {
    /// The time of two spans together; nothing wraps.
    #[must_use]
    pub fn plus(&self, other: &GpuTime) -> GpuTime {
        GpuTime {
            idle_ns: self.idle_ns.saturating_add(other.idle_ns),
            overhead_ns: self.overhead_ns.saturating_add(other.overhead_ns),
            wall_ns: self.wall_ns.saturating_add(other.wall_ns),
        }
    }
}

/// How much there was of something, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Level {
    value: u64,
    since_ns: u64,
    area: u128,
}

impl Level {
    /// There is so much from now on.
    pub fn set(&mut self, now_ns: u64, value: u64) {
        self.area = self.area(now_ns);
        self.since_ns = self.since_ns.max(now_ns);
        self.value = value;
    }

    /// Value times nanoseconds, until now.
    #[must_use]
    pub fn area(&self, now_ns: u64) -> u128 {
        self.area + u128::from(self.value) * u128::from(now_ns.saturating_sub(self.since_ns))
    }
}

/// A tenant's part of what [`Ledger::take`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub tenant: TenantId,
    /// What it has had since the last time.
    pub meters: Meters,
    /// It is gone: nothing more comes of it.
    pub left: bool,
}

#[derive(Debug, Default)]
struct Entry {
    reserved: Level,
    /// Of `reserved`, and of what was read of its memory.
    taken: Meters,
    pending: Meters,
    left: bool,
}

/// The books of one GPU.
#[derive(Debug, Default)]
pub struct Ledger {
    now_ns: u64,
    tenants: BTreeMap<TenantId, Entry>,
    /// The last readings.
    sources: HashMap<u64, (TenantId, Meters)>,
    unused: GpuTime,
    pending: GpuTime,
    whole: Option<TenantId>,
}

impl Ledger {
    /// Books that begin now.
    #[must_use]
    pub fn new(now_ns: u64) -> Ledger {
        Ledger { now_ns, ..Ledger::default() }
    }

    /// Time goes by. A clock that goes back is taken to stand still.
    pub fn advance(&mut self, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = self.now_ns.max(now_ns);
        self.pending.wall_ns += ns;
        if let Some(entry) = self.whole.and_then(|whole| self.tenants.get_mut(&whole)) {
            entry.pending.gpu_ns += ns;
        }
    }

    /// A tenant is there, or may have another amount of memory from now on.
    pub fn admit(&mut self, tenant: TenantId, reserved_bytes: u64) {
        let now_ns = self.now_ns;
        let entry = self.tenants.entry(tenant).or_default();
        entry.reserved.set(now_ns, reserved_bytes);
        entry.left = false;
    }

    /// A tenant is gone, and all of its sources were read for the last time.
    pub fn leave(&mut self, tenant: TenantId) {
        let now_ns = self.now_ns;
        self.sources.retain(|_, (of, _)| *of != tenant);
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            entry.reserved.set(now_ns, 0);
            entry.left = true;
        }
        if self.whole == Some(tenant) {
            self.whole = None;
        }
    }

    /// A tenant has one more source, that has had nothing yet.
    pub fn begin(&mut self, source: u64, tenant: TenantId) {
        self.sources.insert(source, (tenant, Meters::default()));
    }

    /// What a source has had in all. Readings that come late, even behind its end, change nothing.
    pub fn read(&mut self, source: u64, had: &Meters) {
        let Some((tenant, before)) = self.sources.get_mut(&source) else { return };
        let more = had.since(before);
        *before = before.at_least(had);
        if let Some(entry) = self.tenants.get_mut(tenant) {
            entry.pending = entry.pending.plus(&more);
        }
    }

    /// As [`Ledger::read`], for the last time.
    pub fn end(&mut self, source: u64, had: &Meters) {
        self.read(source, had);
        self.sources.remove(&source);
    }

    /// The memory that a tenant has had in all, byte-nanoseconds.
    pub fn memory(&mut self, tenant: TenantId, byte_ns: u128) {
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            entry.pending.memory_byte_ns += byte_ns.saturating_sub(entry.taken.memory_byte_ns);
            entry.taken.memory_byte_ns = entry.taken.memory_byte_ns.max(byte_ns);
        }
    }

    /// The GPU's time that nobody has had, since the GPU began.
    pub fn unused(&mut self, idle_ns: u64, overhead_ns: u64) {
        self.pending.idle_ns += idle_ns.saturating_sub(self.unused.idle_ns);
        self.pending.overhead_ns += overhead_ns.saturating_sub(self.unused.overhead_ns);
        self.unused.idle_ns = self.unused.idle_ns.max(idle_ns);
        self.unused.overhead_ns = self.unused.overhead_ns.max(overhead_ns);
    }

    /// A tenant has the whole GPU from now on, or nobody has: then it begins anew, and so do its counters.
    pub fn give_whole(&mut self, tenant: Option<TenantId>) {
        self.whole = tenant;
        self.unused = GpuTime::default();
    }

    /// What came since the last time. Tenants that are gone are forgotten.
    pub fn take(&mut self) -> (Vec<Row>, GpuTime) {
        let now_ns = self.now_ns;
        let rows = self.tenants.iter_mut().map(|(&tenant, entry)| {
            let reserved = entry.reserved.area(now_ns);
            entry.pending.reserved_byte_ns = reserved - entry.taken.reserved_byte_ns;
            entry.taken.reserved_byte_ns = reserved;
            Row { tenant, meters: std::mem::take(&mut entry.pending), left: entry.left }
        });
        let rows = rows.collect();
        self.tenants.retain(|_, entry| !entry.left);
        (rows, std::mem::take(&mut self.pending))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// A source of a tenant works so long, and ends kernels.
        Work {
            tenant: u8,
            source: u8,
            ns: u32,
            kernels: u8,
        },
        Idle {
            ns: u32,
        },
        Overhead {
            ns: u32,
        },
        Memory {
            tenant: u8,
            bytes: u16,
        },
        /// The device is asked before the tenants are, or a tenant alone.
        Read,
        EndSource {
            tenant: u8,
            source: u8,
        },
        Leave {
            tenant: u8,
        },
        /// One has the GPU for itself, for so long.
        Whole {
            tenant: u8,
            ns: u32,
        },
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let tenant = || 0u8..4;
        prop_oneof![
            8 => (tenant(), 0u8..3, any::<u32>(), any::<u8>())
                .prop_map(|(tenant, source, ns, kernels)| Step::Work { tenant, source, ns, kernels }),
            3 => any::<u32>().prop_map(|ns| Step::Idle { ns }),
            3 => any::<u32>().prop_map(|ns| Step::Overhead { ns }),
            2 => (tenant(), any::<u16>()).prop_map(|(tenant, bytes)| Step::Memory { tenant, bytes }),
            3 => Just(Step::Read),
            2 => (tenant(), 0u8..3).prop_map(|(tenant, source)| Step::EndSource { tenant, source }),
            1 => tenant().prop_map(|tenant| Step::Leave { tenant }),
            1 => (tenant(), any::<u32>()).prop_map(|(tenant, ns)| Step::Whole { tenant, ns }),
            3 => Just(Step::Take),
        ]
    }

    /// What happened, kept in the simplest way.
    #[derive(Default)]
    struct World {
        now: u64,
        idle: u64,
        overhead: u64,
        /// Of the present GPU.
        unused: (u64, u64),
        sources: BTreeMap<(u8, u8), Meters>,
        /// How often each has ended: another is another.
        lives: BTreeMap<(u8, u8), u64>,
        had: BTreeMap<u8, Meters>,
        memory: BTreeMap<u8, (u64, u128)>,
        present: BTreeMap<u8, TenantId>,
        /// Tenants so far: none has another's number.
        tenants: u64,
    }

    const RESERVED: u64 = 1 << 20;

    impl World {
        fn pass(&mut self, ledger: &mut Ledger, ns: u32) {
            self.now += u64::from(ns);
            for (tenant, (bytes, area)) in &mut self.memory {
                *area += u128::from(*bytes) * u128::from(ns);
                self.had.entry(*tenant).or_default().memory_byte_ns += u128::from(*bytes) * u128::from(ns);
            }
            for tenant in self.present.keys() {
                self.had.entry(*tenant).or_default().reserved_byte_ns += u128::from(RESERVED) * u128::from(ns);
            }
            ledger.advance(self.now);
        }

        fn enter(&mut self, ledger: &mut Ledger, tenant: u8) -> TenantId {
            if let Some(id) = self.present.get(&tenant) {
                return *id;
            }
            let id = TenantId(self.tenants << 8 | u64::from(tenant));
            self.tenants += 1;
            ledger.admit(id, RESERVED);
            self.present.insert(tenant, id);
            self.memory.insert(tenant, (0, 0));
            id
        }

        fn number(&self, key: (u8, u8)) -> u64 {
            u64::from(key.0) << 8 | u64::from(key.1) | self.lives.get(&key).copied().unwrap_or(0) << 16
        }

        fn read(&self, ledger: &mut Ledger) {
            ledger.unused(self.unused.0, self.unused.1);
            for (key, had) in &self.sources {
                ledger.read(self.number(*key), had);
            }
            for (tenant, (_, area)) in &self.memory {
                ledger.memory(self.present[tenant], *area);
            }
        }

        fn end(&mut self, ledger: &mut Ledger, key: (u8, u8)) {
            let number = self.number(key);
            if let Some(had) = self.sources.remove(&key) {
                ledger.end(number, &had);
                ledger.read(number, &had);
                *self.lives.entry(key).or_default() += 1;
            }
        }

        fn leave(&mut self, ledger: &mut Ledger, tenant: u8) {
            for source in 0..3 {
                self.end(ledger, (tenant, source));
            }
            if let (Some((_, area)), Some(id)) = (self.memory.remove(&tenant), self.present.remove(&tenant)) {
                ledger.memory(id, area);
                ledger.leave(id);
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(steps in proptest::collection::vec(step(), 0..120)) {
            let (mut world, mut ledger) = (World::default(), Ledger::new(0));
            let (mut taken, mut time) = (BTreeMap::<u64, Meters>::new(), GpuTime::default());
            let mut take = |ledger: &mut Ledger, taken: &mut BTreeMap<u64, Meters>| {
                let (rows, more) = ledger.take();
                for row in rows {
                    let sum = taken.entry(row.tenant.0 & 0xff).or_default();
                    *sum = sum.plus(&row.meters);
                }
                time = time.plus(&more);
            };
            for step in steps {
                match step {
                    Step::Work { tenant, source, ns, kernels } => {
                        world.enter(&mut ledger, tenant);
                        world.pass(&mut ledger, ns);
                        let key = (tenant, source);
                        if !world.sources.contains_key(&key) {
                            ledger.begin(world.number(key), world.present[&tenant]);
                        }
                        let had = world.sources.entry(key).or_default();
                        let all = world.had.entry(tenant).or_default();
                        for meters in [had, all] {
                            meters.gpu_ns += u64::from(ns);
                            meters.kernels += u64::from(kernels);
                            meters.waits.counts[usize::from(kernels) % WAIT_RANGES] += 1;
                        }
                    }
                    Step::Idle { ns } => {
                        world.pass(&mut ledger, ns);
                        world.idle += u64::from(ns);
                        world.unused.0 += u64::from(ns);
                    }
                    Step::Overhead { ns } => {
                        world.pass(&mut ledger, ns);
                        world.overhead += u64::from(ns);
                        world.unused.1 += u64::from(ns);
                    }
                    Step::Memory { tenant, bytes } => {
                        world.enter(&mut ledger, tenant);
                        if let Some(memory) = world.memory.get_mut(&tenant) {
                            memory.0 = bytes.into();
                        }
                    }
                    Step::Read => {
                        world.read(&mut ledger);
                        // A device that is gone says that nothing was ever had.
                        ledger.unused(0, 0);
                        if let Some(key) = world.sources.keys().next() {
                            ledger.read(world.number(*key), &Meters::default());
                        }
                    }
                    Step::EndSource { tenant, source } => world.end(&mut ledger, (tenant, source)),
                    Step::Leave { tenant } => world.leave(&mut ledger, tenant),
                    Step::Whole { tenant, ns } => {
                        for other in 0..4 {
                            world.leave(&mut ledger, other);
                        }
                        let id = world.enter(&mut ledger, tenant);
                        world.read(&mut ledger);
                        ledger.give_whole(Some(id));
                        world.pass(&mut ledger, ns);
                        world.had.entry(tenant).or_default().gpu_ns += u64::from(ns);
                        ledger.give_whole(None);
                        world.unused = (0, 0);
                    }
                    Step::Take => take(&mut ledger, &mut taken),
                }
            }
            world.read(&mut ledger);
            take(&mut ledger, &mut taken);
            for (tenant, had) in &world.had {
                let found = taken.get(&u64::from(*tenant)).copied().unwrap_or_default();
                prop_assert_eq!(&found, had, "tenant {}", tenant);
            }
            prop_assert_eq!((time.idle_ns, time.overhead_ns, time.wall_ns), (world.idle, world.overhead, world.now));
            let tenants: u64 = taken.values().map(|meters| meters.gpu_ns).sum();
            prop_assert_eq!(tenants + time.idle_ns + time.overhead_ns, time.wall_ns);
        }

        #[test]
        fn quantiles_lie_where_the_waits_do(waits in proptest::collection::vec(1u64..40_000_000, 1..200), part in 0.0f64..=1.0) {
            let mut found = Waits::default();
            let mut sorted = waits.clone();
            sorted.sort_unstable();
            for us in &waits {
                found.counts[(64 - us.leading_zeros()) as usize] += 1;
            }
            let rank = ((part * waits.len() as f64).ceil() as usize).clamp(1, waits.len());
            let exact = sorted[rank - 1] as f64;
            let told = found.quantile_us(part);
            prop_assert!(told >= exact / 2.0 && told <= exact * 2.0, "{} for {}", told, exact);
        }
    }

    #[test]
    fn no_waits_have_no_quantile() {
        assert_eq!(Waits::default().quantile_us(0.99), 0.0);
        assert_eq!((Waits::end_us(0), Waits::end_us(10), Waits::end_us(31)), (Some(1), Some(1024), None));
    }

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let mut level = Level::default();
        level.set(100, 7);
        level.set(50, 9);
        assert_eq!((level.area(50), level.area(101)), (0, 9));
        let mut ledger = Ledger::new(100);
        ledger.advance(200);
        ledger.advance(150);
        ledger.advance(210);
        assert_eq!(ledger.take().1.wall_ns, 110);
    }
}
