//! What shares and priorities weigh.

use crate::Priority;

/// Least weight of a tenant without a share, percent.
pub const LEAST_PERCENT: f64 = 1.0;

/// Percent for each tenant without a share: what the others leave, in equal parts.
pub(crate) fn rest(shares: impl Iterator<Item = Option<f64>>) -> f64 {
    let (mut given, mut without) = (0.0, 0_u32);
    for share in shares {
        match share {
            Some(percent) => given += percent,
            None => without += 1,
        }
    }
    ((100.0 - given) / f64::from(without.max(1))).max(LEAST_PERCENT)
}

/// What a tenant brings with it when it wants time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) share_percent: Option<f64>,
    pub(crate) priority: Priority,
}

/// Tenants that want time at once, as sums: what one weighs among them, or would, is found without a look at the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanting {
    /// For each tenant without a share, if there were no priorities, percent.
    rest: f64,
    /// By priority.
    classes: [Class; Priority::ALL.len()],
}

/// Those of one priority.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    tenants: u32,
    without_share: u32,
    shares: f64,
}

impl Wanting {
    pub(crate) fn new(rest: f64, claims: impl Iterator<Item = Claim>) -> Wanting {
        claims.fold(Wanting { rest, classes: Default::default() }, Wanting::with)
    }

    /// And one more.
    pub(crate) fn with(mut self, claim: Claim) -> Wanting {
        let class = &mut self.classes[claim.priority as usize];
        class.tenants += 1;
        class.without_share += u32::from(claim.share_percent.is_none());
        class.shares += claim.share_percent.unwrap_or(0.0);
        self
    }

    /// Nobody goes before anybody.
    pub(crate) fn are_of_one_class(&self) -> bool {
        self.classes.iter().filter(|class| class.tenants > 0).count() <= 1
    }

    /// What it would weigh if there were no priorities, percent.
    fn usual(&self, claim: Claim) -> f64 {
        claim.share_percent.unwrap_or(self.rest)
    }

    /// Who goes first, and what they get for each percent of their usual weight: their part of what is promised to nobody.
    fn top(&self) -> (Option<Priority>, f64) {
        let mut classes = Priority::ALL.into_iter().rev().map(|priority| (priority, self.classes[priority as usize]));
        let Some((priority, top)) = classes.find(|(_, class)| class.tenants > 0) else { return (None, 0.0) };
        let below: f64 = classes.map(|(_, class)| class.shares + LEAST_PERCENT * f64::from(class.without_share)).sum();
        let usual = top.shares + self.rest * f64::from(top.without_share);
        (Some(priority), (100.0 - below - top.shares).max(0.0) / usual)
    }

    /// What one of them weighs, percent. Shares are kept; what they leave goes to those of the highest priority, by their usual
    /// weights, but for [`LEAST_PERCENT`] for each of the others without a share. Of one class, all weigh what they usually do.
    pub(crate) fn weight(&self, claim: Claim) -> f64 {
        if self.are_of_one_class() {
            return self.usual(claim);
        }
        let (top, each) = self.top();
        let more = if top == Some(claim.priority) { each * self.usual(claim) } else { 0.0 };
        match claim.share_percent {
            Some(share) => share + more,
            None => more.max(LEAST_PERCENT),
        }
    }

    /// What all of them weigh together, percent.
    pub(crate) fn whole(&self) -> f64 {
        let of_class = |priority: Priority| {
            let Class { tenants, without_share, shares } = self.classes[priority as usize];
            let with_share = tenants - without_share;
            // Weights are in proportion to shares: all of them weigh as much as so many of the mean.
            let mean = Some(shares / f64::from(with_share.max(1)));
            f64::from(without_share) * self.weight(Claim { share_percent: None, priority })
                + f64::from(with_share) * self.weight(Claim { share_percent: mean, priority })
        };
        Priority::ALL.into_iter().map(of_class).sum()
    }
}
