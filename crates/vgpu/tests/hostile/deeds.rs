//! Each kind of hostility alone, as all schemes have it at once.

use std::time::Duration;

use rogue::Deed;

use super::{MIB, SCHEMES, beside_victims, seed};
use crate::guest::Host;

/// How long each.
const TIME: Duration = Duration::from_millis(300);

fn harms_nobody(deed: Deed) {
    let seed = seed();
    beside_victims(512, |driver| {
        std::thread::scope(|scope| {
            for (number, scheme) in SCHEMES.into_iter().enumerate() {
                let mut host = Host::trapped(driver, (scheme.0, scheme.1), 32 * MIB);
                scope.spawn(move || {
                    let came = deed.run(&mut || Ok(host.connect()), seed + number as u64, TIME).unwrap();
                    println!("{scheme:?}: {came:?}");
                    assert!(came.done > 0 && came.leaked == 0, "{scheme:?}: {came:?}");
                });
            }
        });
    });
}

#[test]
fn memory_of_others_is_not_reached() {
    harms_nobody(Deed::Foreign);
}

#[test]
fn any_method_with_any_data() {
    harms_nobody(Deed::Methods);
}

#[test]
fn instance_blocks_that_change_while_in_use() {
    harms_nobody(Deed::Blocks);
}

#[test]
fn accesses_of_every_width() {
    harms_nobody(Deed::Widths);
}

#[test]
fn maps_that_vanish() {
    harms_nobody(Deed::Vanishing);
}

#[test]
fn bytes_that_are_no_messages() {
    harms_nobody(Deed::Garbage);
}

#[test]
fn nothing_but_invalidates() {
    harms_nobody(Deed::Invalidates);
}

#[test]
fn nothing_but_doorbells() {
    harms_nobody(Deed::Doorbells);
}

#[test]
fn nothing_but_runlists() {
    harms_nobody(Deed::Runlists);
}

#[test]
fn nothing_but_interrupts() {
    harms_nobody(Deed::Signals);
}

#[test]
fn tables_without_an_end() {
    harms_nobody(Deed::Endless);
}

#[test]
fn traps_that_are_none() {
    harms_nobody(Deed::Watches);
}
