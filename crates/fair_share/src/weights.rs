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

impl Claim {
    /// What nobody takes from it, percent.
    fn kept(self) -> f64 {
        self.share_percent.unwrap_or(LEAST_PERCENT)
    }
}

/// What each of several weighs, percent, where some want no more than so much: what those of a priority do not want goes to the next.
/// Without such bounds it is [`Wanting::weight`], if they are of several classes. `rest` is for each tenant without a share.
pub(crate) fn divide(rest: f64, wanting: &[(Claim, f64)]) -> Vec<f64> {
    let mut weights: Vec<f64> = wanting.iter().map(|(claim, most)| claim.kept().min(*most)).collect();
    let mut left = (100.0 - weights.iter().sum::<f64>()).max(0.0);
    for priority in Priority::ALL.into_iter().rev() {
        let mut all: Vec<usize> = (0..wanting.len()).filter(|at| wanting[*at].0.priority == priority).collect();
        let mut class = all.iter().fold(Class::default(), |class, at| class.with(wanting[*at].0));
        let mut has = left + all.iter().map(|at| weights[*at]).sum::<f64>();
        // Who is content with less than his share leaves the rest to those without a share: they are found first. Then who is
        // content soonest, so that the others divide what he leaves.
        let content = |at: usize| wanting[at].1 / wanting[at].0.share_percent.unwrap_or(rest);
        let keeps = |at: usize| wanting[at].0.share_percent.is_some_and(|share| wanting[at].1 <= share);
        all.sort_by(|a, b| keeps(*b).cmp(&keeps(*a)).then(content(*a).total_cmp(&content(*b))));
        let mut others = Vec::new();
        for at in all {
            let (claim, most) = wanting[at];
            if class.part(has, rest, claim) >= most {
                weights[at] = most;
                has -= most;
                class = class.without(claim);
            } else {
                others.push(at);
            }
        }
        for at in &others {
            weights[*at] = class.part(has, rest, wanting[*at].0);
        }
        left = (has - others.iter().map(|at| weights[*at]).sum::<f64>()).max(0.0);
    }
    weights
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

impl Class {
    fn with(self, claim: Claim) -> Class {
        Class {
            tenants: self.tenants + 1,
            without_share: self.without_share + u32::from(claim.share_percent.is_none()),
            shares: self.shares + claim.share_percent.unwrap_or(0.0),
        }
    }

    fn without(self, claim: Claim) -> Class {
        Class {
            tenants: self.tenants - 1,
            without_share: self.without_share - u32::from(claim.share_percent.is_none()),
            shares: self.shares - claim.share_percent.unwrap_or(0.0),
        }
    }

    /// What nobody takes from them, percent.
    fn kept(&self) -> f64 {
        self.shares + LEAST_PERCENT * f64::from(self.without_share)
    }

    /// One's part of what they have together, percent: in proportion to what they usually weigh; but shares are kept.
    fn part(&self, has: f64, rest: f64, claim: Claim) -> f64 {
        let without_share = f64::from(self.without_share);
        let usual = self.shares + rest * without_share;
        match claim.share_percent {
            _ if has >= usual => claim.share_percent.unwrap_or(rest) * has / usual,
            Some(share) => share,
            None => (has - self.shares).max(0.0) / without_share.max(1.0),
        }
    }
}

impl Wanting {
    pub(crate) fn new(rest: f64, claims: impl Iterator<Item = Claim>) -> Wanting {
        claims.fold(Wanting { rest, classes: Default::default() }, Wanting::with)
    }

    /// And one more.
    pub(crate) fn with(mut self, claim: Claim) -> Wanting {
        let class = &mut self.classes[claim.priority as usize];
        *class = class.with(claim);
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

    /// What one of them weighs, percent. Everybody keeps his share, or [`LEAST_PERCENT`]; what that leaves goes to those of the
    /// highest priority. Of one class, all weigh what they usually do.
    pub(crate) fn weight(&self, claim: Claim) -> f64 {
        if self.are_of_one_class() {
            return self.usual(claim);
        }
        let of = |priority: Priority| self.classes[priority as usize];
        let top = Priority::ALL.into_iter().rev().find(|priority| of(*priority).tenants > 0);
        if top != Some(claim.priority) {
            return claim.kept();
        }
        let left = (100.0 - self.classes.iter().map(Class::kept).sum::<f64>()).max(0.0);
        let class = of(claim.priority);
        class.part(class.kept() + left, self.rest, claim)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> impl Strategy<Value = Vec<(Claim, f64)>> {
        let claim = (prop::option::of(0.01f64..20.0), 0..Priority::ALL.len(), prop::option::of(0.0f64..60.0));
        let claim = claim.prop_map(|(share_percent, class, most)| {
            (Claim { share_percent, priority: Priority::ALL[class] }, most.unwrap_or(f64::INFINITY))
        });
        prop::collection::vec(claim, 1..12)
    }

    proptest! {
        /// Sums give what a look at everybody gives.
        #[test]
        fn without_bounds_it_is_what_sums_say(claims in claims()) {
            let free: Vec<(Claim, f64)> = claims.iter().map(|(claim, _)| (*claim, f64::INFINITY)).collect();
            let rest = rest(free.iter().map(|(claim, _)| claim.share_percent));
            let wanting = Wanting::new(rest, free.iter().map(|(claim, _)| *claim));
            if !wanting.are_of_one_class() {
                for ((claim, _), weight) in free.iter().zip(divide(rest, &free)) {
                    prop_assert!((weight - wanting.weight(*claim)).abs() < 1e-6, "{claim:?}: {weight}");
                }
            }
        }

        /// Nobody has more than he wants, or less than is kept for him; and nobody has more than that while somebody goes before him
        /// who wants more than he has.
        #[test]
        fn what_one_does_not_want_goes_to_the_next(claims in claims()) {
            let rest = rest(claims.iter().map(|(claim, _)| claim.share_percent));
            let weights = divide(rest, &claims);
            let fits = claims.iter().map(|(claim, _)| claim.kept()).sum::<f64>() <= 100.0;
            prop_assert!(!fits || weights.iter().sum::<f64>() < 100.0 + 1e-6);
            for ((claim, most), weight) in claims.iter().zip(&weights) {
                prop_assert!(*weight <= most + 1e-9 && *weight >= claim.kept().min(*most) - 1e-9);
                let before = claims.iter().zip(&weights).any(|((other, most), weight)| {
                    other.priority > claim.priority && *weight < most - 1e-6
                });
                prop_assert!(!before || *weight <= claim.kept() + 1e-6, "{claim:?} has {weight}");
            }
        }
    }
}
