//! The validity handshake of NVIDIA's CUDA runtime.
//!
//! Every program built with `nvcc` carries NVIDIA's runtime library, statically linked by default. When it starts, it
//! asks the driver library three times for 128 bits and refuses to work (`cudaErrorSoftwareValidityNotEstablished`, 103)
//! if they are not what it expects. An implementation of the driver API that programs can use *unmodified* has to answer;
//! that is why this module exists, and all it is for.
//!
//! How the answers come about was learned from the ZLUDA project, which describes and implements it in the open
//! (<https://github.com/vosen/ZLUDA>, `dark_api/src/lib.rs`, MIT or Apache-2.0). The code here was written for this
//! project from these facts:
//!
//! - The requested version's last digit chooses: 0 and 1 have constant answers ([`ANSWERS`]); for the others the answer is
//!   a keyed hash.
//! - That hash is HMAC (RFC 2104) over MD2 (RFC 1319), whose block has 16 bytes, with a constant key ([`KEY`]).
//! - The message is the structure [`Asked`] as it lies in memory, followed by [`DeviceIdentity`] of every device. It
//!   names this very process, thread and library, so that nobody else can compute it for us: it cannot be forwarded to
//!   another process.
//!
//! No secret of anybody protects anything here: what the runtime checks is that it talks to the library it thinks it
//! loaded. `docs/decisions/004-validity-handshake.md` records the decision.

/// Answers for versions that end in 0 and in 1.
const ANSWERS: [[u64; 2]; 2] =
    [[0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8], [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8]];

/// Key of the hash: the inner block is the key xor 0x36, the outer one the key xor 0x5c.
const KEY: [u8; 16] = [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// What the message says of the request and of who answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// As `cuDriverGetVersion` says.
    pub(crate) driver_version: u32,
    /// As the runtime passed it.
    pub(crate) version: u32,
    /// This process.
    pub(crate) process: u32,
    /// Low half of `pthread_self()`.
    pub(crate) thread: u32,
    /// Address of the export table `CUDART_INTERFACE`.
    pub(crate) runtime_table: u64,
    /// Address of the export table with the handshake.
    pub(crate) handshake_table: u64,
    /// Address of the handshake's function.
    pub(crate) function: u64,
    /// Time, as the runtime passed it.
    pub(crate) unix_seconds: u64,
}

/// What the message says of a device: as the runtime reads it from the device's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceIdentity {
    pub(crate) uuid: [u8; 16],
    pub(crate) pci_domain: u32,
    pub(crate) pci_bus: u32,
    pub(crate) pci_device: u32,
}

/// The 128 bits for one request.
pub(crate) fn answer(asked: &Asked, devices: &[DeviceIdentity]) -> [u64; 2] {
    if let Some(constant) = ANSWERS.get((asked.version % 10) as usize) {
        return *constant;
    }
    let mut message = Vec::with_capacity(48 + devices.len() * 28);
    for word in [asked.driver_version, asked.version, asked.process, asked.thread] {
        message.extend(word.to_ne_bytes());
    }
    for word in [asked.runtime_table, asked.handshake_table, asked.function, asked.unix_seconds] {
        message.extend(word.to_ne_bytes());
    }
    for device in devices {
        message.extend(device.uuid);
        for word in [device.pci_domain, device.pci_bus, device.pci_device] {
            message.extend(word.to_ne_bytes());
        }
    }
    let digest = hmac(&KEY, &message);
    let (words, _) = digest.as_chunks::<8>();
    [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
}

/// HMAC over MD2.
fn hmac(key: &[u8; 16], message: &[u8]) -> [u8; 16] {
    let mut inner = Md2::new();
    inner.update(&key.map(|byte| byte ^ 0x36));
    inner.update(message);
    let mut outer = Md2::new();
    outer.update(&key.map(|byte| byte ^ 0x5c));
    outer.update(&inner.finish());
    outer.finish()
}

/// The message digest algorithm of RFC 1319.
struct Md2 {
    state: [u8; 48],
    checksum: [u8; 16],
    block: [u8; 16],
    filled: usize,
}

impl Md2 {
    fn new() -> Md2 {
        Md2 { state: [0; 48], checksum: [0; 16], block: [0; 16], filled: 0 }
    }

    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.block[self.filled] = *byte;
            self.filled += 1;
            if self.filled == self.block.len() {
                self.filled = 0;
                self.sum_up();
                self.mix(self.block);
            }
        }
    }

    /// Pads with as many bytes as are missing, each of that value, then takes the checksum as a last block.
    fn finish(mut self) -> [u8; 16] {
        let missing = self.block.len() - self.filled;
        self.update(&[missing as u8; 16][..missing]);
        self.mix(self.checksum);
        std::array::from_fn(|index| self.state[index])
    }

    fn sum_up(&mut self) {
        let mut last = self.checksum[15];
        for (sum, byte) in self.checksum.iter_mut().zip(self.block) {
            *sum ^= PI[usize::from(byte ^ last)];
            last = *sum;
        }
    }

    fn mix(&mut self, block: [u8; 16]) {
        for (index, byte) in block.into_iter().enumerate() {
            self.state[16 + index] = byte;
            self.state[32 + index] = byte ^ self.state[index];
        }
        let mut last = 0u8;
        for round in 0..18u8 {
            for byte in &mut self.state {
                *byte ^= PI[usize::from(last)];
                last = *byte;
            }
            last = last.wrapping_add(round);
        }
    }
}

/// The permutation of RFC 1319, made from the digits of pi.
#[rustfmt::skip]
const PI: [u8; 256] = [
     41,  46,  67, 201, 162, 216, 124,   1,  61,  54,  84, 161, 236, 240,   6,  19,
     98, 167,   5, 243, 192, 199, 115, 140, 152, 147,  43, 217, 188,  76, 130, 202,
     30, 155,  87,  60, 253, 212, 224,  22, 103,  66, 111,  24, 138,  23, 229,  18,
    190,  78, 196, 214, 218, 158, 222,  73, 160, 251, 245, 142, 187,  47, 238, 122,
    169, 104, 121, 145,  21, 178,   7,  63, 148, 194,  16, 137,  11,  34,  95,  33,
    128, 127,  93, 154,  90, 144,  50,  39,  53,  62, 204, 231, 191, 247, 151,   3,
    255,  25,  48, 179,  72, 165, 181, 209, 215,  94, 146,  42, 172,  86, 170, 198,
     79, 184,  56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116,   4, 241,
     69, 157, 112,  89, 100, 113, 135,  32, 134,  91, 207, 101, 230,  45, 168,   2,
     27,  96,  37, 173, 174, 176, 185, 246,  28,  70,  97, 105,  52,  64, 126,  15,
     85,  71, 163,  35, 221,  81, 175,  58, 195,  92, 249, 206, 186, 197, 234,  38,
     44,  83,  13, 110, 133,  40, 132,   9, 211, 223, 205, 244,  65, 129,  77,  82,
    106, 220,  55, 200, 108, 193, 171, 250,  36, 225, 123,   8,  12, 189, 177,  74,
    120, 136, 149, 139, 227,  99, 232, 109, 233, 203, 213, 254,  59,   0,  29,  57,
    242, 239, 183,  14, 102,  88, 208, 228, 166, 119, 114, 248, 235, 117,  75,  10,
     49,  68,  80, 180, 143, 237,  31,  26, 219, 153, 141,  51, 159,  17, 131,  20,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn md2(text: &str) -> String {
        let mut hash = Md2::new();
        hash.update(text.as_bytes());
        hash.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The test suite of RFC 1319.
    #[test]
    fn md2_is_md2() {
        assert_eq!(md2(""), "8350e5a3e24c153df2275c9f80692773");
        assert_eq!(md2("a"), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
        assert_eq!(md2("abc"), "da853b0d3f88d99b30283a69e6ded6bb");
        assert_eq!(md2("message digest"), "ab4f496bfb2a530b219ff33031fe06b0");
        assert_eq!(
            md2("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
            "d5976f79d83d3a0dc9806c3c66f3efd8"
        );
    }

    fn asked(version: u32) -> Asked {
        Asked {
            driver_version: 13050,
            version,
            process: 1,
            thread: 2,
            runtime_table: 3,
            handshake_table: 4,
            function: 5,
            unix_seconds: 6,
        }
    }

    #[test]
    fn the_version_chooses() {
        assert_eq!(answer(&asked(13050), &[])[0], 0x3341_181c_03cb_675c);
        assert_eq!(answer(&asked(13051), &[])[0], 0x1841_181c_03cb_675c);
        assert_ne!(answer(&asked(13052), &[]), answer(&asked(13050), &[]));
    }

    #[test]
    fn everything_counts() {
        let device = DeviceIdentity { uuid: [7; 16], pci_domain: 0, pci_bus: 1, pci_device: 0 };
        let base = answer(&asked(13052), &[device]);
        assert_ne!(answer(&Asked { process: 9, ..asked(13052) }, &[device]), base);
        assert_ne!(answer(&Asked { unix_seconds: 9, ..asked(13052) }, &[device]), base);
        assert_ne!(answer(&asked(13052), &[]), base);
        assert_ne!(answer(&asked(13052), &[DeviceIdentity { pci_bus: 2, ..device }]), base);
    }
}
