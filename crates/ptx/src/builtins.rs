//! Functions that the driver provides to PTX, over [`GlobalMemory`]: `vprintf`, `__assertfail`, `malloc`, `free`. A call of
//! `cudaGraphSetConditional` is lowered to a store.
//!
//! Both engines call these. The buffers' formats are those of [`DriverArea`]; they lie in memory that kernels can write,
//! so nothing read from them is trusted: every loop is bounded, every length checked.
//!
//! The heap: a header of [`HEAP_HEADER`] bytes (`u64` bytes in use from the start, then one `u64` list head for each size
//! class), then blocks, each with a header of 16 bytes (`u64` class and state, `u64` next free offset). Sizes are powers of
//! two and one and a half times these; freed blocks are kept by class in lock-free stacks (a 16-bit tag in the head defends
//! against reuse between read and swap) and are neither split nor merged.

use crate::launch::{AccessError, DriverArea, GlobalMemory};

/// Longest format or string argument that is recorded, bytes; the rest is cut off.
const MAX_TEXT: usize = 4096;
/// Most arguments of one call.
const MAX_ARGUMENTS: usize = 64;
/// Bytes of the FIFO's header.
const FIFO_HEADER: u64 = 16;

/// Bytes at the start of the heap that it needs for itself.
pub const HEAP_HEADER: u64 = 1024;
const BLOCK_HEADER: u64 = 16;
const CLASSES: u64 = 72;
/// Upper half of a block's first word; the lower is its class.
const ALLOCATED: u64 = 0x616c_6c6f << 32;
const FREED: u64 = 0x6672_6565 << 32;
/// Tries against contention before giving up; more means that the kernel has overwritten the heap.
const RETRIES: u32 = 10_000;
const OFFSET: u64 = (1 << 48) - 1;

/// Is this function the driver's? The device runtime's (`cudaStreamCreateWithFlags`, `__cudaCDP2LaunchDeviceV2`, …) are its,
/// too: that kernels which call them cannot be compiled is said when they are.
pub(crate) fn provided(name: &str) -> bool {
    matches!(name, "vprintf" | "__assertfail" | "malloc" | "free")
        || name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        || name.starts_with("__cuda")
}

/// `vprintf`: appends a record to the FIFO. `memory` resolves generic addresses as the calling thread sees them, since
/// `args` mostly lies in local memory. Returns what the device function does: the number of arguments, or -1 without format.
///
/// # Errors
/// A text or argument that cannot be read.
pub fn vprintf(memory: &dyn GlobalMemory, area: DriverArea, format: u64, args: u64) -> Result<i32, (u64, AccessError)> {
    if format == 0 {
        return Ok(-1);
    }
    let text = read_text(memory, format)?;
    let mut record = Record::new(&text);
    let mut at = args;
    let kinds = conversions(&text);
    for kind in &kinds {
        let size = if *kind == Argument::Word { 4 } else { 8 };
        at = at.wrapping_add(size - 1) & !(size - 1);
        let mut value = [0; 8];
        memory.read(at, &mut value[..size as usize]).map_err(|e| (at, e))?;
        at = at.wrapping_add(size);
        let value = u64::from_le_bytes(value);
        if *kind == Argument::Text {
            let text = if value == 0 { b"(null)".to_vec() } else { read_text(memory, value)? };
            record.text(text);
        } else {
            record.value(value);
        }
    }
    record.append(memory, area);
    Ok(kinds.len() as i32)
}

/// `__assertfail`: records the message that CUDA prints. The caller then ends the grid.
///
/// # Errors
/// A text that cannot be read.
pub fn assertfail(
    memory: &dyn GlobalMemory,
    area: DriverArea,
    [message, file, line, function]: [u64; 4],
    block: [u32; 3],
    thread: [u32; 3],
) -> Result<(), (u64, AccessError)> {
    let mut record = Record::new(b"%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n");
    let text = |at| if at == 0 { Ok(Vec::new()) } else { read_text(memory, at) };
    record.text(text(file)?);
    record.value(line & 0xffff_ffff);
    record.text(text(function)?);
    for x in block.into_iter().chain(thread) {
        record.value(x.into());
    }
    record.text(text(message)?);
    record.append(memory, area);
    Ok(())
}

/// A NUL-terminated text, cut at [`MAX_TEXT`].
fn read_text(memory: &dyn GlobalMemory, start: u64) -> Result<Vec<u8>, (u64, AccessError)> {
    let mut text = Vec::new();
    let mut at = start;
    while text.len() < MAX_TEXT {
        // An aligned chunk lies in one page; at the end of a smaller space single bytes are tried.
        let mut chunk = [0; 64];
        let mut length = (64 - at % 64) as usize;
        if memory.read(at, &mut chunk[..length]).is_err() {
            length = 1;
            memory.read(at, &mut chunk[..1]).map_err(|e| (at, e))?;
        }
        let chunk = &chunk[..length];
        if let Some(end) = chunk.iter().position(|&b| b == 0) {
            text.extend_from_slice(&chunk[..end]);
            break;
        }
        text.extend_from_slice(chunk);
        at = at.wrapping_add(length as u64);
    }
    text.truncate(MAX_TEXT);
    Ok(text)
}

/// What a conversion takes from the argument buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Argument {
    /// 32 bits.
    Word,
    /// 64 bits: long integers, doubles, pointers.
    Double,
    /// A pointer to a text.
    Text,
}

/// The arguments that a format asks for.
fn conversions(format: &[u8]) -> Vec<Argument> {
    let mut found = Vec::new();
    let mut bytes = format.iter().copied();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            continue;
        }
        let mut long = false;
        for b in bytes.by_ref() {
            match b {
                b'*' => {
                    found.push(Argument::Word);
                    continue;
                }
                b'l' | b'j' | b'z' | b't' => {
                    long = true;
                    continue;
                }
                b's' => found.push(Argument::Text),
                b'p' | b'n' | b'a' | b'A' | b'e' | b'E' | b'f' | b'F' | b'g' | b'G' => found.push(Argument::Double),
                b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'c' => {
                    found.push(if long { Argument::Double } else { Argument::Word });
                }
                // Flags, width, precision, `h`, `L`.
                b'-' | b'+' | b' ' | b'#' | b'.' | b'0'..=b'9' | b'h' | b'L' => continue,
                _ => {}
            }
            break;
        }
        if found.len() >= MAX_ARGUMENTS {
            found.truncate(MAX_ARGUMENTS);
            break;
        }
    }
    found
}

/// A record of the printf FIFO under construction.
struct Record {
    head: Vec<u8>,
    slots: Vec<Slot>,
}

enum Slot {
    Value(u64),
    Text(Vec<u8>),
}

impl Record {
    fn new(format: &[u8]) -> Record {
        let mut head = vec![0; 4];
        head.extend_from_slice(&(format.len() as u32).to_le_bytes());
        head.extend_from_slice(format);
        head.resize(head.len().next_multiple_of(8), 0);
        Record { head, slots: Vec::new() }
    }
    fn value(&mut self, value: u64) {
        self.slots.push(Slot::Value(value));
    }
    fn text(&mut self, text: Vec<u8>) {
        self.slots.push(Slot::Text(text));
    }

    /// The finished bytes.
    fn bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        let mut text_at = bytes.len() + 8 * self.slots.len();
        let mut texts = Vec::new();
        for slot in self.slots {
            let value = match slot {
                Slot::Value(value) => value,
                Slot::Text(text) => {
                    let at = text_at;
                    text_at += text.len() + 1;
                    texts.extend_from_slice(&text);
                    texts.push(0);
                    at as u64
                }
            };
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&texts);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Appends to the FIFO, or counts the record as dropped. A FIFO that is absent or unmapped swallows it.
    fn append(self, memory: &dyn GlobalMemory, area: DriverArea) {
        if area.printf == 0 {
            return;
        }
        let bytes = self.bytes();
        let length = bytes.len() as u64;
        let mut capacity = [0; 4];
        if memory.read(area.printf, &mut capacity).is_err() {
            return;
        }
        let capacity = u64::from(u32::from_le_bytes(capacity));
        let mut advance = |old: u64| if old + length <= capacity { old + length } else { old };
        match memory.update(area.printf + 4, 4, &mut advance) {
            Ok(old) if old + length <= capacity => {
                // A failure leaves zeros, which end the host's reading.
                let _ = memory.write(area.printf + FIFO_HEADER + old, &bytes);
            }
            Ok(_) => {
                let _ = memory.update(area.printf + 8, 4, &mut |old| old.saturating_add(1).min(u32::MAX.into()));
            }
            Err(_) => {}
        }
    }
}

/// Bytes of a block of this class, its header included.
fn class_bytes(class: u64) -> u64 {
    (if class.is_multiple_of(2) { 32 } else { 48 }) << (class / 2)
}

/// `malloc`: a block of at least `bytes`, aligned to 16, or 0.
#[must_use]
pub fn malloc(memory: &dyn GlobalMemory, area: DriverArea, bytes: u64) -> u64 {
    if area.heap == 0 || bytes == 0 || bytes > area.heap_bytes {
        return 0;
    }
    let Some(fit) = (0..CLASSES).find(|&class| class_bytes(class) >= bytes + BLOCK_HEADER) else { return 0 };
    let block = pop(memory, area, fit).or_else(|| extend(memory, area, fit)).or_else(|| {
        // The end of the heap is reached: something larger that was freed, if not absurdly larger.
        (fit + 1..CLASSES.min(fit + 8)).find_map(|class| pop(memory, area, class))
    });
    block.map_or(0, |offset| area.heap + offset + BLOCK_HEADER)
}

/// A new block from the unused end of the heap.
fn extend(memory: &dyn GlobalMemory, area: DriverArea, class: u64) -> Option<u64> {
    let size = class_bytes(class);
    let fits = |used: u64| used.checked_add(HEAP_HEADER + size).is_some_and(|end| end <= area.heap_bytes);
    let used = memory.update(area.heap, 8, &mut |used| if fits(used) { used + size } else { used }).ok()?;
    if !fits(used) || !used.is_multiple_of(16) {
        return None;
    }
    let offset = HEAP_HEADER + used;
    memory.write(area.heap + offset, &(ALLOCATED | class).to_le_bytes()).ok()?;
    Some(offset)
}

fn list(area: DriverArea, class: u64) -> u64 {
    area.heap + 8 + 8 * class
}

fn word(memory: &dyn GlobalMemory, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// Replaces `old` by `new`; tells whether it did.
fn swap(memory: &dyn GlobalMemory, at: u64, old: u64, new: u64) -> bool {
    memory.update(at, 8, &mut |now| if now == old { new } else { now }) == Ok(old)
}

fn is_block(area: DriverArea, offset: u64) -> bool {
    offset >= HEAP_HEADER && offset.is_multiple_of(16) && offset < area.heap_bytes
}

/// The last freed block of a class.
fn pop(memory: &dyn GlobalMemory, area: DriverArea, class: u64) -> Option<u64> {
    for _ in 0..RETRIES {
        let head = word(memory, list(area, class))?;
        let offset = head & OFFSET;
        if !is_block(area, offset) {
            return None;
        }
        let next = word(memory, area.heap + offset + 8)? & OFFSET;
        let tag = (head >> 48).wrapping_add(1) << 48;
        if swap(memory, list(area, class), head, tag | next) {
            let taken = swap(memory, area.heap + offset, FREED | class, ALLOCATED | class);
            return taken.then_some(offset);
        }
    }
    None
}

/// `free`. What `malloc` did not give, or was freed before, is left alone.
pub fn free(memory: &dyn GlobalMemory, area: DriverArea, pointer: u64) {
    let Some(offset) = pointer.checked_sub(area.heap).and_then(|o| o.checked_sub(BLOCK_HEADER)) else { return };
    if area.heap == 0 || !is_block(area, offset) {
        return;
    }
    let Some(state) = word(memory, area.heap + offset) else { return };
    let class = state & 0xffff_ffff;
    if class >= CLASSES || state != ALLOCATED | class || !swap(memory, area.heap + offset, state, FREED | class) {
        return;
    }
    for _ in 0..RETRIES {
        let Some(head) = word(memory, list(area, class)) else { return };
        if memory.write(area.heap + offset + 8, &(head & OFFSET).to_le_bytes()).is_err() {
            return;
        }
        let tag = (head >> 48).wrapping_add(1) << 48;
        if swap(memory, list(area, class), head, tag | offset) {
            return;
        }
    }
}
