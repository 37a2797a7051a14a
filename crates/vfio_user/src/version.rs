//! What two sides say of themselves first: version and capabilities.

use serde_json::{Map, Value, json};
use zerocopy::IntoBytes;

use crate::Ended;
use crate::socket::MAX_FDS;
use crate::wire::{MAJOR, MINOR, Version, split};

/// Name of the capability that is not in the specification: what our own client and server may agree on besides. Others
/// ignore it.
pub const PRIVATE: &str = "sundial";

/// In the answer to [`PRIVATE`]: each store counts, so that what is not mapped is to be written as a processor would, eight bytes
/// at a time.
pub const EACH_STORE: &str = "each_store";

/// In the answer to [`PRIVATE`]: how the device wants to notice what is stored into a region that it lets be mapped, by a number
/// of [`crate::wire::WATCH_TRACKER`] and the others. Clients of ours tell it how ([`crate::Client::watch_stores`]), if they can.
pub const WATCH_STORES: &str = "watch_stores";

/// Name of the memory file that shows a region into which stores may be noticed: so does a client know it that has not proposed
/// [`PRIVATE`], and what it tells a device that has not asked is refused.
pub const WATCHED_MEMORY: &str = "sundial-guest-vram";

/// Name of the other capability of ours: see [`Capabilities::posted_writes`].
const POSTED_WRITES: &str = "sundial_posted_writes";

/// What one side can take, or what both agreed on.
#[derive(Clone, PartialEq, Debug)]
pub struct Capabilities {
    /// Most descriptors in a message to the sender.
    pub max_msg_fds: u32,
    /// Most bytes of data in a transfer.
    pub max_data_xfer_size: u32,
    /// Most DMA maps at one time.
    pub max_dma_maps: u32,
    /// Sizes of pages that maps are made of, or'ed together.
    pub pgsizes: u64,
    /// Several writes may come in one message.
    pub write_multiple: bool,
    /// Small writes without reply may come through shared memory. Not in the specification: others do not name it.
    pub posted_writes: bool,
    /// The value of [`PRIVATE`].
    pub private: Option<Value>,
}

impl Default for Capabilities {
    /// What this crate does if nothing else is wanted.
    fn default() -> Self {
        Capabilities {
            max_msg_fds: MAX_FDS as u32,
            write_multiple: true,
            posted_writes: true,
            ..Capabilities::unsaid()
        }
    }
}

impl Capabilities {
    /// What the specification lets one assume of a side that says nothing.
    #[must_use]
    pub fn unsaid() -> Capabilities {
        Capabilities {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            max_dma_maps: 65_535,
            pgsizes: 4096,
            write_multiple: false,
            posted_writes: false,
            private: None,
        }
    }

    /// What holds between two sides, of which each can do what it says. The private part is not ours to compare.
    fn common(&self, other: &Capabilities) -> Capabilities {
        Capabilities {
            max_msg_fds: self.max_msg_fds.min(other.max_msg_fds),
            max_data_xfer_size: self.max_data_xfer_size.min(other.max_data_xfer_size),
            max_dma_maps: self.max_dma_maps.min(other.max_dma_maps),
            pgsizes: self.pgsizes & other.pgsizes,
            write_multiple: self.write_multiple && other.write_multiple,
            // Of four bytes, which must be one transfer.
            posted_writes: self.posted_writes
                && other.posted_writes
                && self.max_data_xfer_size.min(other.max_data_xfer_size) >= 4,
            private: None,
        }
    }

    fn json(&self) -> Map<String, Value> {
        let all = json!({
            "max_msg_fds": self.max_msg_fds,
            "max_data_xfer_size": self.max_data_xfer_size,
            "max_dma_maps": self.max_dma_maps,
            "pgsizes": self.pgsizes,
            "write_multiple": self.write_multiple,
            POSTED_WRITES: self.posted_writes,
        });
        let Value::Object(mut all) = all else { unreachable!("json! of braces is an object") };
        if let Some(private) = &self.private {
            all.insert(PRIVATE.to_owned(), private.clone());
        }
        all
    }

    fn read(json: &Map<String, Value>) -> Result<Capabilities, Ended> {
        let unsaid = Capabilities::unsaid();
        let number = |name, default| match json.get(name) {
            None => Ok(default),
            Some(value) => value.as_u64().ok_or(Ended::Garbage("a capability that should be a number")),
        };
        let small = |name, default: u32| -> Result<u32, Ended> {
            Ok(u32::try_from(number(name, default.into())?).unwrap_or(u32::MAX))
        };
        let boolean = |name, default| match json.get(name) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or(Ended::Garbage("a capability that should be a boolean")),
        };
        let read = Capabilities {
            max_msg_fds: small("max_msg_fds", unsaid.max_msg_fds)?,
            max_data_xfer_size: small("max_data_xfer_size", unsaid.max_data_xfer_size)?,
            max_dma_maps: small("max_dma_maps", unsaid.max_dma_maps)?,
            pgsizes: number("pgsizes", unsaid.pgsizes)?,
            write_multiple: boolean("write_multiple", unsaid.write_multiple)?,
            posted_writes: boolean(POSTED_WRITES, unsaid.posted_writes)?,
            private: json.get(PRIVATE).cloned(),
        };
        if read.max_data_xfer_size == 0 {
            return Err(Ended::Garbage("a side that takes no data"));
        }
        Ok(read)
    }
}

/// A `VERSION` message's payload, decoded.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) capabilities: Capabilities,
    /// Names of the capabilities that were in it.
    named: Vec<String>,
}

impl Greeting {
    pub(crate) fn read(payload: &[u8]) -> Result<Greeting, Ended> {
        let (version, rest) = split::<Version>(payload).ok_or(Ended::Garbage("a version message without version"))?;
        let text = match rest {
            [] => &[][..],
            [text @ .., 0] => text,
            _ => return Err(Ended::Garbage("version data without an end")),
        };
        let json = match text {
            [] => Value::Null,
            // Nested too deep is an error of serde_json's, too.
            text => serde_json::from_slice(text).map_err(|_| Ended::Garbage("version data that are no JSON"))?,
        };
        let none = Map::new();
        let said = match (&json, json.get("capabilities")) {
            (Value::Null, _) | (Value::Object(_), None) => &none,
            (Value::Object(_), Some(Value::Object(said))) => said,
            _ => return Err(Ended::Garbage("version data of another form")),
        };
        let capabilities = Capabilities::read(said)?;
        Ok(Greeting { major: version.major, minor: version.minor, capabilities, named: said.keys().cloned().collect() })
    }

    /// The first message of a client.
    pub(crate) fn proposal(ours: &Capabilities) -> Vec<u8> {
        payload(MINOR, ours.json())
    }

    /// A server's answer to this, and what then holds for both sides. `private` is what the device makes of the client's.
    ///
    /// A capability that the client has not named is not named in the answer (the specification wants a subset), unless it
    /// is narrower than what the client would otherwise assume.
    pub(crate) fn answer(&self, ours: &Capabilities, private: Option<Value>) -> (Vec<u8>, Capabilities) {
        let mut json = Capabilities { private, ..ours.clone() }.json();
        let unsaid = Capabilities::unsaid();
        json.retain(|name, _| {
            let narrower = match name.as_str() {
                "max_data_xfer_size" => ours.max_data_xfer_size < unsaid.max_data_xfer_size,
                "max_dma_maps" => ours.max_dma_maps < unsaid.max_dma_maps,
                _ => false,
            };
            narrower || self.named.iter().any(|named| named == name)
        });
        (payload(self.minor.min(MINOR), json), ours.common(&self.capabilities))
    }

    /// What holds for both sides, seen by the client that proposed `ours` and got this.
    pub(crate) fn agreed(self, ours: &Capabilities) -> Result<Capabilities, Ended> {
        if self.major != MAJOR || self.minor > MINOR {
            return Err(Ended::Garbage("a version that was not proposed"));
        }
        Ok(Capabilities { private: self.capabilities.private.clone(), ..ours.common(&self.capabilities) })
    }
}

fn payload(minor: u16, capabilities: Map<String, Value>) -> Vec<u8> {
    let mut bytes = Version { major: MAJOR, minor }.as_bytes().to_vec();
    bytes.extend(json!({ "capabilities": capabilities }).to_string().bytes());
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(minor: u16, json: &str) -> Result<Greeting, Ended> {
        let mut bytes = Version { major: 0, minor }.as_bytes().to_vec();
        bytes.extend(json.bytes());
        Greeting::read(&bytes)
    }

    #[test]
    fn what_is_not_said_is_assumed() {
        for json in
            ["", "\0", "{}\0", "{\"capabilities\":{}}\0", "{\"other\":3,\"capabilities\":{\"twin_socket\":{}}}\0"]
        {
            assert_eq!(greeting(0, json).unwrap().capabilities, Capabilities::unsaid(), "{json}");
        }
    }

    #[test]
    fn what_is_said_is_taken() {
        let json = r#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":4294967296000,"max_dma_maps":1,
            "pgsizes":2101248,"write_multiple":true,"sundial":{"pv":1},"new":[]}}"#;
        let read = greeting(1, &format!("{json}\0")).unwrap();
        let want = Capabilities {
            max_msg_fds: 8,
            max_data_xfer_size: u32::MAX,
            max_dma_maps: 1,
            pgsizes: 0x20_1000,
            write_multiple: true,
            posted_writes: false,
            private: Some(json!({"pv": 1})),
        };
        assert_eq!(read.capabilities, want);
    }

    #[test]
    fn nonsense_is_refused() {
        for json in [
            "{}",
            "nothing\0",
            "[]\0",
            "{\"capabilities\":[]}\0",
            "{\"capabilities\":{\"max_msg_fds\":-1}}\0",
            "{\"capabilities\":{\"max_data_xfer_size\":0}}\0",
            "{\"capabilities\":{\"pgsizes\":\"4096\"}}\0",
            "{\"capabilities\":{\"write_multiple\":1}}\0",
        ] {
            assert!(matches!(greeting(0, json), Err(Ended::Garbage(_))), "{json}");
        }
        let deep = format!("{}\0", "[".repeat(10_000));
        assert!(matches!(greeting(0, &deep), Err(Ended::Garbage(_))));
        assert!(matches!(Greeting::read(&[0, 0, 0]), Err(Ended::Garbage(_))));
    }

    #[test]
    fn the_answer_names_nothing_new_but_what_is_narrower() {
        let ours = Capabilities { max_data_xfer_size: 65_536, ..Capabilities::default() };
        let theirs = greeting(0, "{\"capabilities\":{\"max_msg_fds\":8,\"write_multiple\":true}}\0").unwrap();
        let (bytes, agreed) = theirs.answer(&ours, Some(json!(7)));
        let answer = Greeting::read(&bytes).unwrap();
        assert_eq!(answer.minor, 0);
        assert_eq!(answer.named, ["max_data_xfer_size", "max_msg_fds", "write_multiple"]);
        assert_eq!(agreed.max_data_xfer_size, 65_536);
        assert_eq!(agreed.max_msg_fds, 8);
        assert!(agreed.write_multiple);
    }

    #[test]
    fn both_sides_see_the_same() {
        let client = Capabilities { private: Some(json!({"want": 1})), max_dma_maps: 7, ..Capabilities::default() };
        let server = Capabilities { max_msg_fds: 3, ..Capabilities::default() };
        let proposal = Greeting::read(&Greeting::proposal(&client)).unwrap();
        assert_eq!(proposal.capabilities, client);
        let (bytes, here) = proposal.answer(&server, Some(json!({"have": 2})));
        let there = Greeting::read(&bytes).unwrap().agreed(&client).unwrap();
        assert_eq!(there.private, Some(json!({"have": 2})));
        assert_eq!(Capabilities { private: None, ..there }, here);
    }
}
