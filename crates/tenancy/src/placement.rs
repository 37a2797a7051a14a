//! On which GPUs a tenant goes: loads and a wish in, numbers of GPUs out.

use std::cmp::Ordering;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Who goes where, if it does not matter to him.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// To whichever GPU has least: fewest tenants, then least of its memory promised.
    #[default]
    Spread,
    /// To whichever GPU has most, as long as its limit of memory has room there beside the others'; so that whole GPUs stay empty.
    Pack,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        match text {
            "spread" => Ok(Placement::Spread),
            "pack" => Ok(Placement::Pack),
            _ => Err(format!("`{text}` is no placement; write spread or pack")),
        }
    }
}

/// What a GPU has to do already, and what the tenant in question wants of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Tenants on it.
    pub tenants: usize,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Limits of those tenants together, bytes: may be more than there is.
    pub promised_bytes: u64,
    /// The limit that the tenant would have there, bytes; `None`: all of it.
    pub wanted_bytes: Option<u64>,
    /// It works.
    pub is_up: bool,
    /// Why the tenant in question cannot go there, if it cannot.
    pub refusal: Option<String>,
}

/// How many GPUs a tenant wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// So many, whichever.
    Any(usize),
    /// These, in this order.
    These(Vec<usize>),
}

/// Why a tenant goes nowhere.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PlacementError {
    /// There are not so many GPUs.
    #[error("the daemon has {there} {}, not {wanted}", if *there == 1 { "GPU" } else { "GPUs" })]
    TooFew {
        /// Asked for.
        wanted: usize,
        /// That there are.
        there: usize,
    },
    /// None was asked for.
    #[error("a tenant has at least one GPU")]
    None,
    /// One was asked for that is not there.
    #[error("there is no GPU {number}: the daemon has {there}, counted from 0")]
    NoSuch {
        /// Which.
        number: usize,
        /// That there are.
        there: usize,
    },
    /// One was asked for twice.
    #[error("GPU {number} is named twice")]
    Twice {
        /// Which.
        number: usize,
    },
    /// It can go to fewer than it wants.
    #[error("{}{reason}", if *there == 1 { String::new() } else { format!("GPU {number}: ") })]
    Refused {
        /// The first of those that refuse it.
        number: usize,
        /// How many GPUs there are.
        there: usize,
        /// Why.
        reason: String,
    },
}

impl Load {
    /// Whether there is room for the tenant's limit beside those that are promised.
    fn has_room(&self) -> bool {
        self.promised_bytes.saturating_add(self.wanted_bytes.unwrap_or(self.memory_bytes)) <= self.memory_bytes
    }

    /// Less of a load comes first: in tenants, then in the part of the memory that is promised.
    fn cmp(&self, other: &Load) -> Ordering {
        let part = |one: &Load, of: &Load| u128::from(one.promised_bytes) * u128::from(of.memory_bytes);
        self.tenants.cmp(&other.tenants).then_with(|| part(self, other).cmp(&part(other, self)))
    }
}

impl Placement {
    /// The GPUs of a tenant, by number.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn place(self, wish: &Wish, gpus: &[Load]) -> Result<Vec<usize>, PlacementError> {
        let wanted = match wish {
            Wish::Any(count) => *count,
            Wish::These(numbers) => numbers.len(),
        };
        let there = gpus.len();
        match wanted {
            0 => return Err(PlacementError::None),
            _ if wanted > there => return Err(PlacementError::TooFew { wanted, there }),
            _ => {}
        }
        let mut order: Vec<usize> = match wish {
            Wish::These(numbers) => {
                for (at, number) in numbers.iter().enumerate() {
                    if *number >= there {
                        return Err(PlacementError::NoSuch { number: *number, there });
                    }
                    if numbers[..at].contains(number) {
                        return Err(PlacementError::Twice { number: *number });
                    }
                }
                numbers.clone()
            }
            Wish::Any(_) => {
                let mut all: Vec<usize> = (0..gpus.len()).collect();
                all.sort_by(|&one, &other| self.compare(&gpus[one], &gpus[other]).then(one.cmp(&other)));
                all
            }
        };
        let refusal = order.iter().find_map(|&number| Some((number, gpus[number].refusal.clone()?)));
        order.retain(|&number| gpus[number].refusal.is_none());
        match refusal {
            Some((number, reason)) if order.len() < wanted => {
                Err(PlacementError::Refused { number, there: gpus.len(), reason })
            }
            _ => {
                order.truncate(wanted);
                if matches!(wish, Wish::Any(_)) {
                    // A program counts its GPUs in one order, whoever was there before.
                    order.sort_unstable();
                }
                Ok(order)
            }
        }
    }

    /// Which of two GPUs is the better place.
    fn compare(self, one: &Load, other: &Load) -> Ordering {
        // Where there is room, first.
        let room = other.has_room().cmp(&one.has_room());
        let both_have_it = one.has_room() && other.has_room();
        let better = match self {
            Placement::Spread => one.cmp(other),
            Placement::Pack if both_have_it => other.cmp(one),
            // Where nobody has room, somebody has to share: the least loaded does.
            Placement::Pack => room.then_with(|| one.cmp(other)),
        };
        // Nobody is sent where nothing works now, unless he asks for it.
        other.is_up.cmp(&one.is_up).then(better)
    }
}
