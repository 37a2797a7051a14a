//! The modifiers of an instruction, taken one by one; what is left over at the end is an error.

use crate::ir::{Order, Round, Space, Ty};
use crate::lexer::clip;

/// Most modifiers of one opcode: real ones have a dozen; a longer word is an attack on the linear searches here.
const MOST: usize = 20;

/// The modifiers not yet taken.
#[derive(Debug)]
pub(super) struct Mods<'a> {
    words: [&'a str; MOST],
    len: usize,
    /// The whole opcode word, for messages.
    full: &'a str,
    /// A state space that was taken is `.shared::cluster`.
    cluster: bool,
}

impl<'a> Mods<'a> {
    /// Splits an opcode word into its base name and its modifiers.
    pub(super) fn split(full: &'a str) -> Result<(&'a str, Mods<'a>), String> {
        let mut pieces = full.split('.');
        let base = pieces.next().unwrap_or_default();
        let mut mods = Mods { words: [""; MOST], len: 0, full, cluster: false };
        for piece in pieces {
            if mods.len == MOST {
                return Err(format!("too many modifiers in '{}'", clip(full)));
            }
            mods.words[mods.len] = piece;
            mods.len += 1;
        }
        Ok((base, mods))
    }

    fn remove(&mut self, at: usize) -> &'a str {
        let word = self.words[at];
        self.words.copy_within(at + 1..self.len, at);
        self.len -= 1;
        word
    }

    fn words(&self) -> &[&'a str] {
        &self.words[..self.len]
    }

    /// Takes `word`, wherever it stands.
    pub(super) fn take(&mut self, word: &str) -> bool {
        match self.words().iter().position(|w| *w == word) {
            Some(at) => {
                self.remove(at);
                true
            }
            None => false,
        }
    }

    /// Takes the first modifier that `meaning` knows.
    pub(super) fn find<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = self.words().iter().enumerate().find_map(|(at, w)| meaning(w).map(|t| (at, t)));
        found.map(|(at, t)| {
            self.remove(at);
            t
        })
    }

    /// Takes all modifiers that `known` accepts.
    pub(super) fn drop_all(&mut self, known: impl Fn(&str) -> bool) {
        while let Some(at) = self.words().iter().position(|w| known(w)) {
            self.remove(at);
        }
    }

    /// Takes the first type.
    pub(super) fn ty(&mut self) -> Result<Ty, String> {
        self.find(ty).ok_or_else(|| format!("'{}' lacks a type", clip(self.full)))
    }

    /// Takes a rounding of floating-point results.
    pub(super) fn round(&mut self) -> Option<Round> {
        self.find(|w| match w {
            "rn" => Some(Round::Rn),
            "rz" => Some(Round::Rz),
            "rm" => Some(Round::Rm),
            "rp" => Some(Round::Rp),
            "rna" => Some(Round::Rna),
            _ => None,
        })
    }

    /// Takes a rounding to an integral value.
    pub(super) fn round_integral(&mut self) -> Option<Round> {
        self.find(|w| match w {
            "rni" => Some(Round::Rn),
            "rzi" => Some(Round::Rz),
            "rmi" => Some(Round::Rm),
            "rpi" => Some(Round::Rp),
            _ => None,
        })
    }

    /// Takes a state space; `None` is the generic one.
    pub(super) fn space(&mut self) -> Option<Space> {
        if self.take("shared::cluster") {
            self.cluster = true;
            return Some(Space::Shared);
        }
        self.find(|w| match w {
            "global" => Some(Space::Global),
            "const" => Some(Space::Const),
            "shared" | "shared::cta" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" | "param::entry" | "param::func" => Some(Space::Param),
            _ => None,
        })
    }

    /// Was `.shared::cluster` among the state spaces taken?
    pub(super) fn names_cluster(&self) -> bool {
        self.cluster
    }

    /// Takes `.vN`; 1 without.
    pub(super) fn vector(&mut self) -> usize {
        let lanes = self.find(|w| match w {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        lanes.unwrap_or(1)
    }

    /// Takes a memory order and its scope.
    pub(super) fn order(&mut self) -> Option<Order> {
        let mmio = self.take("mmio");
        let order = self.find(|w| match w {
            "weak" => Some(Order::Weak),
            "volatile" => Some(Order::Volatile),
            "relaxed" => Some(Order::Relaxed),
            "acquire" => Some(Order::Acquire),
            "release" => Some(Order::Release),
            "acq_rel" => Some(Order::AcqRel),
            "sc" => Some(Order::SeqCst),
            _ => None,
        });
        self.scope();
        order.or(mmio.then_some(Order::Relaxed))
    }

    /// Takes a scope. All scopes are the device here.
    pub(super) fn scope(&mut self) -> bool {
        self.find(|w| matches!(w, "cta" | "cluster" | "gpu" | "sys").then_some(())).is_some()
    }

    /// Takes cache operators, eviction and prefetch hints, none of which change a result. True if a cache policy
    /// operand follows.
    pub(super) fn cache(&mut self) -> bool {
        let policy = self.take("L2::cache_hint");
        self.drop_all(|w| {
            matches!(w, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" | "unified")
                || w.starts_with("L1::")
                || w.starts_with("L2::")
        });
        policy
    }

    /// Everything must have been taken.
    pub(super) fn finish(&self) -> Result<(), String> {
        match self.words() {
            [] => Ok(()),
            [word, ..] => Err(format!("modifier '.{}' is not allowed", clip(word))),
        }
    }
}

/// A type's name.
pub(super) fn ty(word: &str) -> Option<Ty> {
    Some(match word {
        "pred" => Ty::Pred,
        "b8" => Ty::B8,
        "b16" => Ty::B16,
        "b32" => Ty::B32,
        "b64" => Ty::B64,
        "b128" => Ty::B128,
        "u8" => Ty::U8,
        "u16" => Ty::U16,
        "u32" => Ty::U32,
        "u64" => Ty::U64,
        "s8" => Ty::S8,
        "s16" => Ty::S16,
        "s32" => Ty::S32,
        "s64" => Ty::S64,
        "f16" => Ty::F16,
        "f16x2" => Ty::F16x2,
        "bf16" => Ty::BF16,
        "bf16x2" => Ty::BF16x2,
        "f32" => Ty::F32,
        "f32x2" => Ty::F32x2,
        "f64" => Ty::F64,
        _ => return None,
    })
}
