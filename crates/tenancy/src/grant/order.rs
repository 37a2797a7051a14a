//! What tenants may choose, by name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Who goes next among those who wait. The names are ConVGPU's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Who came first. Nobody starves.
    #[default]
    FirstCome,
    /// Whose request leaves least free.
    BestFit,
    /// Whose tenant was last granted memory, or gave some back.
    RecentUse,
    /// Anybody.
    Random,
}

/// A name that no order has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no order of who waits for memory; there are first-come, best-fit, recent-use and random")]
pub struct UnknownOrder(String);

impl Order {
    /// All of them.
    pub const ALL: [Order; 4] = [Order::FirstCome, Order::BestFit, Order::RecentUse, Order::Random];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::FirstCome => "first-come",
            Order::BestFit => "best-fit",
            Order::RecentUse => "recent-use",
            Order::Random => "random",
        })
    }
}

impl FromStr for Order {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Order, UnknownOrder> {
        let found = Order::ALL.into_iter().find(|order| order.to_string() == text);
        found.ok_or_else(|| UnknownOrder(text.into()))
    }
}

/// What becomes of a request that does not fit now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum OnFull {
    /// It fails.
    #[default]
    Fail,
    /// It waits, so long at most if something is said.
    Wait(Option<Duration>),
}
