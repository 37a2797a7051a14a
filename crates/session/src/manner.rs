//! In which manner a session is served, and what that takes from the host.

use tenancy::Used;
use wire::handshake::features;
use wire::limits::{MAX_STAGING_BYTES, MIN_STAGING_BLOCK, STAGING_BLOCK, STAGING_BYTES};

use crate::OWN;

/// What a socket for frames takes: descriptors of both ends until the client has its own, and what the system keeps in it.
const SOCKET: Used = Used { files: 2, host_bytes: 1 << 20, ..NOTHING };
const NOTHING: Used = Used {
    vram_bytes: 0,
    host_bytes: 0,
    maps: 0,
    files: 0,
    threads: 0,
    sessions: 0,
    contexts: 0,
    queues: 0,
    allocations: 0,
    mappings: 0,
    modules: 0,
};

/// What the daemon has decided for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    /// The features that it may have: the client knows them, and those on demand are wanted.
    pub features: u64,
    /// Bytes of a staging block, from [`MIN_STAGING_BLOCK`] to half of [`MAX_STAGING_BYTES`]: what is outside is brought inside. A
    /// client that does not know of larger areas has no larger block than half of [`STAGING_BYTES`].
    pub staging_block: usize,
    /// How many GPUs the client's tenant has, this one among them.
    pub gpus: u32,
}

impl Manner {
    /// The usual one, with these features.
    #[must_use]
    pub fn usual(features: u64) -> Manner {
        Manner { features, staging_block: STAGING_BLOCK, gpus: 1 }
    }

    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Bytes of a block, and of the area, in which there are two of them at least.
    pub(crate) fn staging(&self) -> (usize, usize) {
        let most = if self.has(features::STAGING) { MAX_STAGING_BYTES } else { STAGING_BYTES };
        let block = self.staging_block.clamp(MIN_STAGING_BLOCK, most / 2);
        (block, (2 * block).max(STAGING_BYTES))
    }

    /// What such a session takes from the host by being open.
    #[must_use]
    pub fn own(&self) -> Used {
        let socket = if self.has(features::MESSAGES) { SOCKET } else { NOTHING };
        let staging = (self.staging().1 - STAGING_BYTES) as u64;
        Used { host_bytes: OWN.host_bytes + staging + socket.host_bytes, files: OWN.files + socket.files, ..OWN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_blocks_take_more_and_only_where_the_client_knows_of_them() {
        let manner = |features, staging_block| Manner { features, staging_block, gpus: 1 };
        for (features, wanted, block, area) in [
            (0, STAGING_BLOCK, STAGING_BLOCK, STAGING_BYTES),
            (0, 128 << 20, STAGING_BYTES / 2, STAGING_BYTES),
            (features::STAGING, 128 << 20, 128 << 20, 256 << 20),
            (features::STAGING, usize::MAX, MAX_STAGING_BYTES / 2, MAX_STAGING_BYTES),
            (features::STAGING, 0, MIN_STAGING_BLOCK, STAGING_BYTES),
        ] {
            let manner = manner(features, wanted);
            assert_eq!(manner.staging(), (block, area), "{wanted}");
            assert_eq!(manner.own().host_bytes - OWN.host_bytes, (area - STAGING_BYTES) as u64);
        }
        assert_eq!(Manner::usual(features::ALL & !features::ON_DEMAND).own(), OWN);
        assert!(Manner::usual(features::MESSAGES).own().files > OWN.files);
    }
}
