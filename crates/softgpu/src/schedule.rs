//! Who gets the GPU: weighted rounds over the TSGs, by the time they really used.
//!
//! A TSG's time is counted in rounds: in one round it uses one of its time slices (of all workers together). Whoever is
//! behind goes first and keeps the GPU until it is half a round ahead of the one that is furthest behind; so two that want
//! it all the time alternate in whole slices, and what one overruns (a CTA that does not stop at once) it misses later.
//! Long-run shares are the ratios of the slices, whatever the lengths of CTAs.
//!
//! Who was away comes back at most one round behind the others: it has priority for one slice, but no hoard.
//!
//! Pure: time comes in as numbers.

/// One round, in units of [`Share::used`].
const ROUND: u128 = 1 << 40;
/// How long nobody but one channel has to have been served until it has the GPU alone, nanoseconds: longer than the pauses of a program that
/// shows a picture now and then.
const ALONE_AFTER_NS: u64 = 100_000_000;

/// A TSG's part.
#[derive(Clone, Debug, Default)]
struct Share {
    /// Worker time of one time slice, nanoseconds.
    slice: u64,
    /// Rounds used, times [`ROUND`].
    used: u128,
    active: bool,
}

/// The shares of all TSGs, and who wants the GPU now.
#[derive(Debug)]
pub(crate) struct Shares {
    shares: Vec<Share>,
    active: Vec<usize>,
    current: Option<usize>,
    /// The least `used` of active TSGs; never goes back.
    floor: u128,
}

impl Shares {
    pub(crate) fn new(tsgs: usize) -> Shares {
        let share = Share { slice: 1, ..Share::default() };
        Shares { shares: vec![share; tsgs], active: Vec::new(), current: None, floor: 0 }
    }

    /// Sets the time slice: nanoseconds of worker time, not 0.
    pub(crate) fn set_slice(&mut self, tsg: usize, slice: u64) {
        self.shares[tsg].slice = slice.max(1);
    }

    /// The TSG has something to run.
    pub(crate) fn activate(&mut self, tsg: usize) {
        let share = &mut self.shares[tsg];
        if !share.active {
            share.active = true;
            share.used = share.used.max(self.floor.saturating_sub(ROUND));
            self.active.push(tsg);
        }
    }

    /// The TSG has nothing more to run, besides what runs already.
    pub(crate) fn deactivate(&mut self, tsg: usize) {
        if std::mem::take(&mut self.shares[tsg].active) {
            self.active.retain(|other| *other != tsg);
        }
    }

    /// Worker time was used, nanoseconds.
    pub(crate) fn charge(&mut self, tsg: usize, ns: u64) {
        let share = &mut self.shares[tsg];
        share.used += u128::from(ns) * ROUND / u128::from(share.slice);
    }

    /// The active TSGs in the order in which they should be asked for work, into `out`.
    pub(crate) fn order(&mut self, out: &mut Vec<usize>) {
        out.clear();
        out.extend_from_slice(&self.active);
        if out.len() > 1 {
            out.sort_by_key(|tsg| self.shares[*tsg].used);
        }
        let Some(&first) = out.first() else { return };
        let least = self.shares[first].used;
        self.floor = self.floor.max(least);
        if let Some(current) = self.current
            && let Some(at) = out.iter().position(|tsg| *tsg == current)
            && self.shares[current].used < least + ROUND / 2
        {
            out[..=at].rotate_right(1);
        } else {
            self.current = Some(first);
        }
    }

    /// True if what a TSG runs should make room for another.
    pub(crate) fn should_yield(&self, tsg: usize) -> bool {
        let limit = self.shares[tsg].used;
        self.active.iter().any(|other| *other != tsg && self.shares[*other].used + ROUND / 2 <= limit)
    }

    /// True if any other TSG wants the GPU.
    pub(crate) fn others(&self, tsg: usize) -> bool {
        self.active.iter().any(|other| *other != tsg)
    }

    /// How many want the GPU.
    pub(crate) fn count(&self) -> usize {
        self.active.len()
    }

    /// Whether a TSG wants the GPU.
    pub(crate) fn is_active(&self, tsg: usize) -> bool {
        self.shares[tsg].active
    }

    /// True if none wants the GPU.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }
}

/// The channel that was served last, and since when no other was.
#[derive(Debug, Default)]
pub(crate) struct Served(Option<(u32, u64)>);

impl Served {
    /// A channel is read, or gets a unit of work, at a time in nanoseconds.
    pub(crate) fn note(&mut self, channel: u32, now: u64) {
        if self.0.is_none_or(|(last, _)| last != channel) {
            self.0 = Some((channel, now));
        }
    }

    /// True if it was this channel alone for a while.
    pub(crate) fn is_alone(&self, channel: u32, now: u64) -> bool {
        self.0.is_some_and(|(last, since)| last == channel && now.saturating_sub(since) >= ALONE_AFTER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs TSGs, each of `(slice, CTA length, pause after each slice's worth)`, on one worker for `total`; gives the time each got.
    fn simulate(tsgs: &[(u64, u64, u64)], total: u64) -> Vec<u64> {
        let mut shares = Shares::new(tsgs.len());
        let mut got = vec![0; tsgs.len()];
        let mut away_until = vec![0; tsgs.len()];
        let mut since_pause = vec![0; tsgs.len()];
        let (mut now, mut order) = (0, Vec::new());
        for (tsg, spec) in tsgs.iter().enumerate() {
            shares.set_slice(tsg, spec.0);
        }
        while now < total {
            for (tsg, until) in away_until.iter().enumerate() {
                if *until <= now { shares.activate(tsg) } else { shares.deactivate(tsg) }
            }
            shares.order(&mut order);
            let Some(&tsg) = order.first() else {
                now += 1000;
                continue;
            };
            let (slice, length, pause) = tsgs[tsg];
            shares.charge(tsg, length);
            got[tsg] += length;
            since_pause[tsg] += length;
            now += length;
            if pause > 0 && since_pause[tsg] >= slice {
                since_pause[tsg] = 0;
                away_until[tsg] = now + pause;
            }
        }
        got
    }

    fn check(tsgs: &[(u64, u64, u64)], expect: &[f64]) {
        let got = simulate(tsgs, 2_000_000_000);
        let all: u64 = got.iter().sum();
        for (got, expect) in got.iter().zip(expect) {
            let share = *got as f64 / all as f64;
            assert!((share - expect).abs() < 0.01, "{tsgs:?}: shares of {all}: {share} instead of {expect}");
        }
    }

    #[test]
    fn shares_follow_slices_whatever_the_length_of_ctas() {
        check(&[(2_000_000, 10_000, 0), (2_000_000, 100_000, 0), (2_000_000, 1_000_000, 0)], &[1.0 / 3.0; 3]);
        check(&[(3_000_000, 50_000, 0), (1_000_000, 7_000_000, 0)], &[0.75, 0.25]);
        check(&[(1_000_000, 10_000, 0), (1_000_000, 30_000_000, 0)], &[0.5, 0.5]);
    }

    /// Kernels of such a length, each begun some time after the last has ended, beside one without end: what part of a worker
    /// they get. The endless one is looked at in each `tick`, and when another kernel comes, if its doorbell is heard at once:
    /// so many of a hundred are.
    fn beside_endless(length: u64, pause: u64, tick: u64, heard: u64) -> f64 {
        const STEP: u64 = 10_000;
        let mut shares = Shares::new(2);
        shares.set_slice(0, 2_000_000);
        shares.set_slice(1, 2_000_000);
        shares.activate(1);
        let (mut comes, mut left, mut got, mut running, mut order) = (0, 0, 0, 1, Vec::new());
        let mut kernels = 0;
        let total = 1_000_000_000;
        for now in (0..total).step_by(STEP as usize) {
            let mut look = now % tick == 0;
            if left == 0 && now >= comes {
                left = length;
                shares.activate(0);
                // Spread evenly.
                look |= kernels * 61 % 100 < heard;
                kernels += 1;
            }
            if look && shares.should_yield(running) || running == 0 && left == 0 {
                shares.order(&mut order);
                running = order[0];
            }
            shares.charge(running, STEP);
            if running == 0 {
                got += STEP;
                left -= STEP;
                if left == 0 {
                    shares.deactivate(0);
                    comes = now + STEP + pause;
                }
            }
        }
        got as f64 / total as f64
    }

    #[test]
    fn kernels_shorter_than_a_tick_get_their_share() {
        for length in [50_000, 100_000, 1_000_000] {
            let part = beside_endless(length, length / 4, 500_000, 100);
            assert!((part - 0.5).abs() < 0.01, "kernels of {length} ns get {part}");
        }
        // Looked at in ticks only, they would run once in each.
        assert!(beside_endless(100_000, 25_000, 500_000, 0) < 0.25);
        // Who takes so long to prepare the next that it hardly gets its part misses each doorbell that is not heard.
        let [all, most] = [100, 64].map(|heard| beside_endless(300_000, 500_000, 500_000, heard));
        assert!(all > 0.37 && most < 0.35, "{all}, {most}");
    }

    #[test]
    fn short_pauses_cost_nothing_and_long_absence_earns_nothing() {
        check(&[(1_000_000, 20_000, 300_000), (1_000_000, 500_000, 0)], &[0.5, 0.5]);
        let mut shares = Shares::new(2);
        shares.set_slice(0, 1_000_000);
        shares.set_slice(1, 1_000_000);
        let mut order = Vec::new();
        shares.activate(0);
        for _ in 0..1000 {
            shares.charge(0, 1_000_000);
            shares.order(&mut order);
        }
        shares.activate(1);
        let mut first = 0;
        for _ in 0..100 {
            shares.order(&mut order);
            if order[0] == 0 {
                break;
            }
            first += 100_000;
            shares.charge(1, 100_000);
        }
        assert!((1_000_000..=1_600_000).contains(&first), "the returner ran for {first} ns");
    }

    #[test]
    fn who_shares_the_gpu_now_and_then_does_not_have_it_alone() {
        let mut served = Served::default();
        assert!(!served.is_alone(0, u64::MAX));
        served.note(0, 5);
        served.note(0, 6);
        assert!(!served.is_alone(0, 4 + ALONE_AFTER_NS));
        assert!(served.is_alone(0, 5 + ALONE_AFTER_NS) && !served.is_alone(1, 5 + ALONE_AFTER_NS));
        served.note(1, 6 + ALONE_AFTER_NS);
        served.note(0, 8 + ALONE_AFTER_NS);
        assert!(!served.is_alone(0, 9 + ALONE_AFTER_NS) && served.is_alone(0, 8 + 2 * ALONE_AFTER_NS));
    }

    #[test]
    fn two_alternate_in_whole_slices() {
        let mut shares = Shares::new(2);
        let (mut order, mut runs) = (Vec::new(), vec![(0, 0u64)]);
        for tsg in 0..2 {
            shares.set_slice(tsg, 1_000_000);
            shares.activate(tsg);
        }
        for _ in 0..1000 {
            shares.order(&mut order);
            shares.charge(order[0], 10_000);
            match runs.last_mut() {
                Some((tsg, ns)) if *tsg == order[0] => *ns += 10_000,
                _ => runs.push((order[0], 10_000)),
            }
        }
        let middle = &runs[2..runs.len() - 1];
        assert!(middle.iter().all(|(_, ns)| (980_000..=1_020_000).contains(ns)), "{runs:?}");
    }
}
