//! Warp operations that lanes of one mask reach at different places in the program, or with masks of their own.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/exchange.rs"]
mod exchange;
mod support;

use exchange::check;

/// Trips of a lane in the loop below.
fn trips(lane: u32) -> u32 {
    1 + lane % 5
}

/// The lanes that make trip `i`.
fn mask(i: u32) -> u32 {
    (0..32).filter(|&lane| trips(lane) > i).fold(0, |m, lane| m | 1 << lane)
}

/// A loop with a trip count per lane, `%r5`, and a mask per trip, `%r8`, unrolled twice as a compiler does it: lanes of one
/// mask make the same trip in the unrolled loop or in what is left of it. `body` finds the trip in `%r6` and adds to `%r7`.
fn unrolled(body: &str) -> String {
    let masks: String =
        (0..5).map(|i| format!("setp.eq.u32 %p2, %r6, {i}; @%p2 mov.u32 %r8, {};\n", mask(i))).collect();
    let trip = format!("{masks}{body}\nadd.u32 %r6, %r6, 1;\n");
    format!(
        "ld.global.u32 %r4, [%rd4]; rem.u32 %r5, %r1, 5; add.u32 %r5, %r5, 1; mov.u32 %r6, 0; mov.u32 %r7, 0;\n\
         setp.lt.u32 %p0, %r5, 2; @%p0 bra REST; sub.u32 %r9, %r5, 1;\n\
         MAIN: {trip}{trip} setp.lt.u32 %p0, %r6, %r9; @%p0 bra MAIN;\n\
         REST: setp.ge.u32 %p0, %r6, %r5; @%p0 bra END;\n\
         LAST: {trip} setp.lt.u32 %p0, %r6, %r5; @%p0 bra LAST;\n\
         END: st.global.u32 [%rd3], %r7;"
    )
}

/// What each lane gets if trip `i` gives what `trip` says.
fn summed(trip: impl Fn(u32, u32) -> u32) -> Vec<u32> {
    (0..32).map(|lane| (0..trips(lane)).fold(0_u32, |sum, i| sum.wrapping_add(trip(lane, i)))).collect()
}

fn members(i: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |&lane| mask(i) >> lane & 1 != 0)
}

#[test]
fn trips_of_an_unrolled_loop_meet() {
    check(&unrolled("redux.sync.add.u32 %r10, %r4, %r8; add.u32 %r7, %r7, %r10;"), |words| {
        summed(|_, i| members(i).fold(0, |sum, lane| sum + words[lane as usize]))
    });
    check(
        &unrolled("add.u32 %r10, %r4, %r6; shfl.sync.idx.b32 %r10, %r10, 9, 31, %r8; add.u32 %r7, %r7, %r10;"),
        |words| summed(|_, i| words[9] + i),
    );
    let ballot = "add.u32 %r10, %r4, %r6; and.b32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 0;\n\
                  vote.sync.ballot.b32 %r10, %p3, %r8; mad.lo.u32 %r7, %r7, 3, %r10;";
    check(&unrolled(ballot), |words| {
        let ballot = |i| members(i).filter(|&l| (words[l as usize] + i) % 2 == 0).fold(0_u32, |m, l| m | 1 << l);
        (0..32).map(|lane| (0..trips(lane)).fold(0_u32, |sum, i| sum.wrapping_mul(3).wrapping_add(ballot(i)))).collect()
    });
    let classes = "and.b32 %r10, %r4, 3; match.any.sync.b32 %r10, %r10, %r8; xor.b32 %r7, %r7, %r10;";
    check(&unrolled(classes), |words| {
        let class = |lane: u32| words[lane as usize] & 3;
        let alike = |lane, i| members(i).filter(|&l| class(l) == class(lane)).fold(0_u32, |m, l| m | 1 << l);
        (0..32).map(|lane| (0..trips(lane)).fold(0_u32, |all, i| all ^ alike(lane, i))).collect()
    });
}

#[test]
fn warp_barriers_of_an_unrolled_loop_hold_lanes() {
    // Each trip stores, waits, and reads what the next lane of the mask has stored in the same trip.
    let body = "shl.b32 %r11, %r6, 8; add.u32 %r11, %r11, %r4; st.shared.u32 [%r2], %r11; bar.warp.sync %r8;\n\
                shl.b32 %r12, -2, %r1; and.b32 %r12, %r12, %r8; setp.eq.u32 %p3, %r12, 0; @%p3 mov.u32 %r12, %r8;\n\
                brev.b32 %r12, %r12; clz.b32 %r12, %r12; sub.u32 %r12, %r12, %r1; shl.b32 %r12, %r12, 2;\n\
                add.u32 %r12, %r12, %r2; ld.shared.u32 %r13, [%r12]; bar.warp.sync %r8; add.u32 %r7, %r7, %r13;";
    check(&unrolled(body), |words| {
        let next = |lane: u32, i| members(i).find(|&l| l > lane).or(members(i).next()).unwrap();
        summed(|lane, i| (i << 8) + words[next(lane, i) as usize])
    });
}

/// Odd lanes execute one `operation`, with their values in `%r5`, even ones another; both give `%r6`.
fn sides(operation: &str) -> String {
    let other = operation.replace("%r5", "%r7").replace("%r6", "%r8").replace("%p2", "%p4");
    format!(
        "ld.global.u32 %r4, [%rd4]; and.b32 %r9, %r1, 1; setp.eq.u32 %p0, %r9, 0; @%p0 bra EVEN;\n\
         add.u32 %r5, %r4, 1; setp.gt.u32 %p2, %r5, 0x8000; {operation} add.u32 %r6, %r6, 5; bra END;\n\
         EVEN: add.u32 %r7, %r4, 2; setp.gt.u32 %p4, %r7, 0x8000; {other} add.u32 %r6, %r8, 5;\n\
         END: st.global.u32 [%rd3], %r6;"
    )
}

/// The lanes' values there.
fn values(words: &[u32]) -> Vec<u32> {
    words.iter().enumerate().map(|(lane, w)| w + if lane % 2 == 1 { 1 } else { 2 }).collect()
}

#[test]
fn sides_of_a_branch_meet() {
    let all = "0xffffffff";
    check(&sides(&format!("shfl.sync.bfly.b32 %r6, %r5, 1, 31, {all};")), |words| {
        (0..32).map(|lane| values(words)[lane ^ 1] + 5).collect()
    });
    check(&sides(&format!("redux.sync.max.u32 %r6, %r5, {all};")), |words| {
        vec![values(words).into_iter().max().unwrap() + 5; 32]
    });
    check(&sides(&format!("vote.sync.ballot.b32 %r6, %p2, {all};")), |words| {
        let ballot = values(words).iter().enumerate().fold(0_u32, |m, (lane, v)| m | u32::from(*v > 0x8000) << lane);
        vec![ballot.wrapping_add(5); 32]
    });
    // Lanes of two masks, each on both sides.
    let quarter =
        "shr.u32 %r10, %r1, 3; shl.b32 %r10, %r10, 3; shl.b32 %r10, 255, %r10; redux.sync.add.u32 %r6, %r5, %r10;";
    check(&sides(quarter), |words| {
        let values = values(words);
        (0..32).map(|lane| values[lane / 8 * 8..][..8].iter().sum::<u32>() + 5).collect()
    });
    // One that leads, whatever the side.
    let leads = format!("elect.sync %r6|%p2, {all}; selp.u32 %r5, 100, 0, %p2; add.u32 %r6, %r6, %r5;");
    check(&sides(&leads), |_| (0..32).map(|lane| if lane == 0 { 105 } else { 5 }).collect());
}

#[test]
fn operations_of_different_kinds_do_not_meet() {
    // Each side has lanes of its own mask.
    let body = "ld.global.u32 %r4, [%rd4]; and.b32 %r9, %r1, 1; setp.eq.u32 %p0, %r9, 0; @%p0 bra EVEN;\n\
                redux.sync.min.u32 %r6, %r4, 0xaaaaaaaa; bra END;\n\
                EVEN: redux.sync.max.u32 %r6, %r4, 0x55555555;\n\
                END: st.global.u32 [%rd3], %r6;";
    check(body, |words| {
        let side = |odd: usize| words.iter().skip(odd).step_by(2).copied();
        (0..32).map(|lane| if lane % 2 == 1 { side(1).min().unwrap() } else { side(0).max().unwrap() }).collect()
    });
}

#[test]
fn every_lane_may_have_a_mask_of_its_own() {
    // The lanes up to this one.
    let body = "ld.global.u32 %r4, [%rd4]; setp.gt.u32 %p0, %r4, 0x8000; shl.b32 %r5, -2, %r1; not.b32 %r5, %r5;\n\
                vote.sync.ballot.b32 %r6, %p0, %r5; st.global.u32 [%rd3], %r6;";
    check(body, |words| {
        let yes = words.iter().enumerate().fold(0_u32, |m, (lane, w)| m | u32::from(*w > 0x8000) << lane);
        (0..32).map(|lane| yes & (2_u64 << lane).wrapping_sub(1) as u32).collect()
    });
    // The lanes with a like value, found at run time.
    let body = "ld.global.u32 %r4, [%rd4]; and.b32 %r5, %r4, 3; match.any.sync.b32 %r5, %r5, 0xffffffff;\n\
                redux.sync.add.u32 %r6, %r4, %r5; st.global.u32 [%rd3], %r6;";
    check(body, |words| {
        let like = |w: u32| words.iter().filter(move |v| (*v ^ w) & 3 == 0);
        words.iter().map(|w| like(*w).sum()).collect()
    });
}
