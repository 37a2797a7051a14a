use gmmu::*;
use shadow_replay::*;
fn main() {
    let trace = Trace::of_the_paper(TraceFormat::Nvidia, 1);
    println!("alone {:?} {:?}", stores_alone(&trace), trace.counts());
    for trap in [2000u32, 5000, 15000] {
        let costs = Costs { trap, release: 0, protect: 500, compare: 500 };
        let all = [
            Rebuild::Full,
            Rebuild::Static(50),
            Rebuild::Static(100),
            Rebuild::Static(200),
            Rebuild::Static(300),
            Rebuild::Dynamic,
            Rebuild::Segmented,
        ];
        let mut ps = vec![Policy { shadowing: Shadowing::Strict, rebuild: Rebuild::Segmented }];
        for s in [Shadowing::Relaxed, Shadowing::Hybrid] {
            for r in all {
                ps.push(Policy { shadowing: s, rebuild: r });
            }
        }
        for p in ps {
            let o = replay(&trace, p, costs, false).unwrap();
            println!(
                "{trap} {p:?}: {:.0} ms engine {:?} traps {} pages {} entries {} vain {} prot {}",
                o.ms(costs),
                o.followed,
                o.traps(),
                o.pages_rebuilt(),
                o.counts.entries_rebuilt,
                o.counts.rebuilt_in_vain,
                o.counts.protected
            );
        }
    }
}
