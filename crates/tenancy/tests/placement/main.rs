//! Who goes on which GPU: a script, and what holds of any loads.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use proptest::prelude::*;
use tenancy::placement::{Load, Placement, PlacementError, Wish};

/// Plays a script: `gpus 4 2` (memory of each), `policy spread`, and tenants: `NAME MEMORY|all [COUNT | on 1,0] -> NUMBERS`, or
/// `-> error: TEXT`; `leave NAME`.
fn play(script: &str) {
    let mut gpus: Vec<Load> = Vec::new();
    let mut policy = Placement::default();
    let mut there: Vec<(String, u64, Vec<usize>)> = Vec::new();
    for (number, line) in script.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        let at = number + 1;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["gpus", ..] => {
                let load = |memory: &&str| Load {
                    tenants: 0,
                    memory_bytes: memory.parse().unwrap(),
                    promised_bytes: 0,
                    wanted_bytes: None,
                    is_up: true,
                    refusal: None,
                };
                gpus = words[1..].iter().map(load).collect();
                there.clear();
            }
            [what @ ("down" | "up"), number] => gpus[number.parse::<usize>().unwrap()].is_up = what == "up",
            ["policy", name] => policy = name.parse().unwrap(),
            ["leave", name] => {
                let (_, bytes, on) = there.remove(there.iter().position(|(there, ..)| there == name).unwrap());
                for number in on {
                    gpus[number].tenants -= 1;
                    gpus[number].promised_bytes -= bytes.min(gpus[number].memory_bytes);
                }
            }
            [name, memory, ..] => {
                let (wish, expected) = line.split_once("->").unwrap();
                let wish: Vec<&str> = wish.split_whitespace().skip(2).collect();
                let numbers = |text: &str| text.split(',').map(|number| number.parse().unwrap()).collect();
                let wish = match wish[..] {
                    [] => Wish::Any(1),
                    ["on", list] => Wish::These(numbers(list)),
                    [count] => Wish::Any(count.parse().unwrap()),
                    _ => panic!("line {at}: {line}"),
                };
                let bytes: Option<u64> = memory.parse().ok();
                for gpu in &mut gpus {
                    let limit = gpu.memory_bytes;
                    gpu.wanted_bytes = bytes;
                    gpu.refusal =
                        bytes.filter(|bytes| *bytes > limit).map(|wanted| format!("{wanted} is more than {limit}"));
                }
                let placed = policy.place(&wish, &gpus);
                let said = match &placed {
                    Ok(on) => on.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
                    Err(error) => format!("error: {error}"),
                };
                assert_eq!(said, expected.trim(), "line {at}: {line}");
                for number in placed.into_iter().flatten() {
                    gpus[number].tenants += 1;
                    let bytes = bytes.unwrap_or(gpus[number].memory_bytes);
                    gpus[number].promised_bytes += bytes;
                    match there.iter_mut().find(|(there, ..)| there == name) {
                        Some((_, _, on)) => on.push(number),
                        None => there.push((name.to_string(), bytes, vec![number])),
                    }
                }
            }
            _ => panic!("line {at}: {line}"),
        }
    }
}

#[test]
fn script() {
    play(include_str!("script.txt"));
}

fn load() -> impl Strategy<Value = Load> {
    let promised = 0..8u64;
    let yes_or_no = (prop::bool::weighted(0.8), prop::bool::weighted(0.2));
    (0..4usize, 1..5u64, promised, yes_or_no).prop_map(|(tenants, memory_bytes, promised_bytes, (is_up, refuses))| {
        let refusal = refuses.then(|| "full".to_owned());
        Load { tenants, memory_bytes, promised_bytes, wanted_bytes: None, is_up, refusal }
    })
}

proptest! {
    #[test]
    fn whatever_numbers_are_asked_for_nothing_breaks(
        gpus in prop::collection::vec(load(), 0..6),
        numbers in prop::collection::vec(prop_oneof![0..8usize, Just(usize::MAX), any::<usize>()], 0..6),
    ) {
        let placed = Placement::Spread.place(&Wish::These(numbers.clone()), &gpus);
        if numbers.len() <= gpus.len() && numbers.iter().any(|number| *number >= gpus.len()) {
            prop_assert!(placed.is_err());
        }
    }

    #[test]
    fn whoever_can_be_placed_is_and_no_better_place_is_left(
        mut gpus in prop::collection::vec(load(), 0..6),
        count in 0..6usize,
        memory in prop::option::of(1..5u64),
        pack in any::<bool>(),
    ) {
        let policy = if pack { Placement::Pack } else { Placement::Spread };
        gpus.iter_mut().for_each(|gpu| gpu.wanted_bytes = memory);
        let placed = policy.place(&Wish::Any(count), &gpus);
        let willing: Vec<usize> = (0..gpus.len()).filter(|&at| gpus[at].refusal.is_none()).collect();
        match placed {
            Err(PlacementError::None) => prop_assert_eq!(count, 0),
            Err(PlacementError::TooFew { wanted, there }) => {
                prop_assert_eq!((wanted, there), (count, gpus.len()));
                prop_assert!(count > gpus.len());
            }
            Err(PlacementError::Refused { number, .. }) => {
                prop_assert!(willing.len() < count && gpus[number].refusal.is_some());
            }
            Err(other) => prop_assert!(false, "{other}"),
            Ok(on) => {
                prop_assert_eq!(on.len(), count);
                prop_assert!(on.is_sorted() && on.iter().all(|at| willing.contains(at)));
                prop_assert!(on.windows(2).all(|pair| pair[0] != pair[1]));
                // Nobody who was left out had fewer tenants (spread); nobody with room was left out for one without (pack).
                let room = |at: usize| gpus[at].promised_bytes + memory.unwrap_or(gpus[at].memory_bytes) <= gpus[at].memory_bytes;
                for &left in willing.iter().filter(|at| !on.contains(at)) {
                    for &taken in &on {
                        prop_assert!(gpus[taken].is_up || !gpus[left].is_up);
                        if gpus[taken].is_up != gpus[left].is_up {
                            continue;
                        }
                        if pack {
                            prop_assert!(room(taken) || !room(left));
                        } else {
                            prop_assert!(gpus[taken].tenants <= gpus[left].tenants);
                        }
                    }
                }
                // The same wish, said by number, is the same place.
                prop_assert_eq!(policy.place(&Wish::These(on.clone()), &gpus), Ok(on));
            }
        }
    }
}
