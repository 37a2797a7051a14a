//! What a decision costs, by the number of tenants: `cargo run --release -p tenancy --example grant_cost`.
#![expect(clippy::print_stdout, reason = "it is what this prints")]

use std::time::Instant;

use tenancy::TenantId;
use tenancy::grant::{Grants, Kind, Rules};

fn main() {
    println!("{:>8} {:>22} {:>14}", "tenants", "", "ns take + give");
    for count in [1, 10, 100, 1000, 10_000] {
        for (what, kind, most) in [
            ("nobody may wait", Kind::Fails, 1 << 40),
            ("limits fit together", Kind::Waits, (1 << 39) / count),
            ("overcommitted", Kind::Waits, 1 << 39),
        ] {
            let mut grants = Grants::new(1 << 40, 0, Rules::default());
            for tenant in 0..count {
                grants.set(TenantId(tenant), most, kind);
                let _ = grants.take(TenantId(tenant), (1 << 28) / count);
            }
            let rounds: u64 = 500_000;
            let begin = Instant::now();
            let mut granted = 0;
            for round in 0..rounds {
                let tenant = TenantId(round * 7919 % count);
                if grants.take(tenant, 4096).is_ok() {
                    granted += 1;
                    grants.give(tenant, 4096);
                }
            }
            let each = begin.elapsed().as_nanos() / u128::from(rounds);
            println!("{count:>8} {what:>22} {each:>14}   {granted} granted");
        }
    }
}
