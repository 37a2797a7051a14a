//! How a session comes to the daemon: how its copies go, when its calls return, what carries its frames. The daemon's policy
//! says it for all (`serve`, `config.toml`), `run` for one tenant; a client learns it from the daemon's welcome.
//!
//! Everything but the usual is slower. It is there to find faults, to see what goes by, and to measure what the usual is worth
//! (`sundial bench remoting`).

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use session::Manner;
use wire::handshake::features;
use wire::limits::{MAX_STAGING_BYTES, MIN_STAGING_BLOCK, STAGING_BLOCK};

use crate::size::Size;

/// How memory of a program's own, which the GPU does not see, is copied to and from VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Copies {
    /// The program's library stores into the tenant's VRAM, which it sees: one copy, and nobody is asked.
    #[default]
    Mapped,
    /// By way of the daemon: through memory shared with it, or over the socket, with --transport socket.
    Staged,
}

/// When a call returns that gives the GPU something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Submission {
    /// When it is on its way: what is wrong with it shows later.
    #[default]
    Delayed,
    /// When the daemon has checked it, handed it to the GPU, and said so.
    Answered,
    /// When the GPU has done it: errors show at the call that caused them, as with CUDA_LAUNCH_BLOCKING=1.
    Immediate,
}

/// What carries frames between a program and the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Rings in shared memory: no system call while the other side is awake.
    #[default]
    Rings,
    /// A unix socket: a message for each frame, and copies that are staged travel in such.
    Socket,
}

/// Bytes of a block of a copy that is staged in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct BlockSize(pub(crate) u32);

impl Default for BlockSize {
    fn default() -> Self {
        BlockSize(STAGING_BLOCK as u32)
    }
}

impl FromStr for BlockSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockSize, String> {
        let (least, most) = (MIN_STAGING_BLOCK as u64, MAX_STAGING_BYTES as u64 / 2);
        let bytes = text.parse::<Size>()?.0;
        match u32::try_from(bytes) {
            Ok(bytes) if (least..=most).contains(&bytes.into()) && bytes % 4096 == 0 => Ok(BlockSize(bytes)),
            _ => Err(format!("a block has {}k to {}m, in whole pages", least >> 10, most >> 20)),
        }
    }
}

impl TryFrom<String> for BlockSize {
    type Error = String;

    fn try_from(text: String) -> Result<BlockSize, String> {
        text.parse()
    }
}

impl From<BlockSize> for String {
    fn from(size: BlockSize) -> String {
        size.to_string()
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whole pages.
        f.pad(&format!("{}k", self.0 >> 10))
    }
}

/// What somebody wants of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::Args)]
pub(crate) struct Wish {
    /// How memory of a program's own is copied to and from the GPU's [default: mapped].
    #[arg(long)]
    pub(crate) copies: Option<Copies>,
    /// When a call returns that gives the GPU something to do [default: delayed].
    #[arg(long)]
    pub(crate) submission: Option<Submission>,
    /// What carries calls to the daemon [default: rings].
    #[arg(long)]
    pub(crate) transport: Option<Transport>,
    /// Block of a copy that is staged in shared memory, 64k to 128m; a session has memory for two of them, or 4m [default: 512k].
    #[arg(long, value_name = "SIZE")]
    pub(crate) block_size: Option<BlockSize>,
}

/// What holds for a tenant's sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remoting {
    pub(crate) copies: Copies,
    pub(crate) submission: Submission,
    pub(crate) transport: Transport,
    pub(crate) block_size: BlockSize,
    /// The library counts the time that it copies and waits, for `ps --json`.
    pub(crate) timed: bool,
}

impl Remoting {
    /// As somebody wants it who may decide.
    pub(crate) fn decided(self, wish: Wish) -> Remoting {
        Remoting {
            copies: wish.copies.unwrap_or(self.copies),
            submission: wish.submission.unwrap_or(self.submission),
            transport: wish.transport.unwrap_or(self.transport),
            block_size: wish.block_size.unwrap_or(self.block_size),
            timed: self.timed,
        }
    }

    /// As a tenant wants it, whom the daemon does not show more than its policy says.
    ///
    /// # Errors
    /// That is what it wants.
    pub(crate) fn wanted(self, wish: Wish, timed: bool) -> Result<Remoting> {
        if wish.copies == Some(Copies::Mapped) && self.copies == Copies::Staged {
            bail!("the daemon shows no tenant its VRAM (copies = \"staged\"): leave --copies mapped out");
        }
        Ok(Remoting { timed, ..self.decided(wish) })
    }

    /// How a session is served whose client knows these features of the protocol.
    ///
    /// # Errors
    /// What its client does not know, in words for it.
    pub(crate) fn manner(self, known: u64) -> Result<Manner, String> {
        let submission = match self.submission {
            Submission::Delayed => 0,
            Submission::Answered => features::ANSWERED,
            Submission::Immediate => features::ANSWERED | features::IMMEDIATE,
        };
        let transport = if self.transport == Transport::Socket { features::MESSAGES } else { 0 };
        let missing = (submission | transport) & !known;
        if missing != 0 {
            let what = if missing & features::MESSAGES != 0 { "--transport socket" } else { "--submission" };
            return Err(format!("the program's library is older than {what}: use the one that came with this daemon"));
        }
        let mut features = known & !features::ON_DEMAND | submission | transport;
        if self.copies == Copies::Staged {
            features &= !features::APERTURE;
        }
        if self.timed {
            features |= known & features::TIMED;
        }
        Ok(Manner { staging_block: self.block_size.0 as usize, ..Manner::usual(features) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks_have_bounds() {
        for (text, bytes) in [("64k", 64 << 10), ("512k", 512 << 10), ("128m", 128 << 20)] {
            assert_eq!(text.parse(), Ok(BlockSize(bytes)), "{text}");
            assert_eq!(BlockSize(bytes).to_string().parse(), Ok(BlockSize(bytes)));
        }
        for bad in ["63k", "129m", "65537", "8g", "0", "block"] {
            assert!(bad.parse::<BlockSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tenant_is_shown_no_more_than_the_policy_says() {
        let wish = |copies| Wish { copies, submission: Some(Submission::Immediate), ..Wish::default() };
        let policy = Remoting { copies: Copies::Staged, submission: Submission::Answered, ..Remoting::default() };
        assert!(policy.wanted(wish(Some(Copies::Mapped)), false).is_err());
        for copies in [None, Some(Copies::Staged)] {
            let got = policy.wanted(wish(copies), true).unwrap();
            assert_eq!((got.copies, got.submission, got.timed), (Copies::Staged, Submission::Immediate, true));
        }
        let got = Remoting::default().wanted(wish(Some(Copies::Staged)), false).unwrap();
        assert_eq!(got.copies, Copies::Staged);
        assert_eq!(policy.decided(wish(Some(Copies::Mapped))).copies, Copies::Mapped);
    }

    #[test]
    fn a_session_has_what_was_asked_for_and_its_client_knows() {
        let usual = Remoting::default().manner(features::ALL).unwrap();
        assert_eq!(usual.features, features::ALL & !features::ON_DEMAND);
        let all = Remoting {
            copies: Copies::Staged,
            submission: Submission::Immediate,
            transport: Transport::Socket,
            timed: true,
            ..Remoting::default()
        };
        assert_eq!(all.manner(features::ALL).unwrap().features, features::ALL & !features::APERTURE);
        let old = features::ALL & !features::ON_DEMAND;
        assert!(all.manner(old).unwrap_err().contains("--transport"));
        let answered = Remoting { submission: Submission::Answered, ..Remoting::default() };
        assert!(answered.manner(old).unwrap_err().contains("--submission"));
        assert_eq!(Remoting { timed: true, ..Remoting::default() }.manner(old).unwrap().features, old);
    }
}
