//! What shares weigh.

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
