//! Traces of what a guest does to its page tables: recorded from a guest, or made up after the paper's description.
//!
//! A trace is text, a line for each event, in the order in which they happened:
//!
//! ```text
//! # page table trace, version 1
//! format intel
//! u 1250 153 17 3f2a001
//! s 1311
//! ```
//!
//! `u` is a store into an entry of a table of pages: the time in microseconds, the number of the table (the first address that it
//! is for, divided by the addresses of a table), the number of the entry, and its value in hexadecimal digits. `s` is a
//! submission of work. Lines that begin with `#` are remarks.

use std::fmt::{self, Write as _};

/// Which tables a trace is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TraceFormat {
    /// Intel's local page tables: tables of 1,024 entries of four bytes, 4 MiB each.
    Intel,
    /// NVIDIA's, second version: tables of 512 entries of eight bytes for small pages, 2 MiB each.
    Nvidia,
}

impl TraceFormat {
    /// Its name in a trace.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TraceFormat::Intel => "intel",
            TraceFormat::Nvidia => "nvidia",
        }
    }

    /// Entries of a table of pages.
    #[must_use]
    pub fn entries(self) -> u32 {
        match self {
            TraceFormat::Intel => 1024,
            TraceFormat::Nvidia => 512,
        }
    }
}

/// Most tables that a trace may name: 2 GiB of addresses in Intel's format.
pub const MOST_TABLES: u32 = 512;

/// Something that a guest has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEvent {
    /// A store into an entry of a table of pages.
    Update {
        /// Since the trace began, µs.
        time_us: u64,
        /// The table, counted from the first address.
        table: u32,
        /// The entry in it.
        entry: u32,
        /// What was stored.
        value: u64,
    },
    /// Work was submitted.
    Submit {
        /// Since the trace began, µs.
        time_us: u64,
    },
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Update { time_us, table, entry, value } => write!(f, "u {time_us} {table} {entry} {value:x}"),
            TraceEvent::Submit { time_us } => write!(f, "s {time_us}"),
        }
    }
}

/// What is wrong with a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line} of the trace, {text:?}: {why}")]
pub struct BadTrace {
    /// The line, counted from 1.
    pub line: usize,
    /// What it says, or its beginning.
    pub text: String,
    /// What is expected there.
    pub why: &'static str,
}

/// What a guest did to its page tables, and when it submitted work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Which tables it is of.
    pub format: TraceFormat,
    /// What happened.
    pub events: Vec<TraceEvent>,
}

impl Trace {
    /// The first lines of a trace.
    #[must_use]
    pub fn header(format: TraceFormat) -> String {
        format!("# page table trace, version 1\nformat {}\n", format.name())
    }

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = Trace::header(self.format);
        for event in &self.events {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{event}");
        }
        text
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn from_text(text: &str) -> Result<Trace, BadTrace> {
        let mut format = None;
        let mut events = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let bad = |why| BadTrace { line: index + 1, text: line.chars().take(80).collect(), why };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_ascii_whitespace();
            let event = match (words.next(), format) {
                (Some("format"), None) => {
                    let known = [TraceFormat::Intel, TraceFormat::Nvidia];
                    let name = words.next().unwrap_or_default();
                    let named = known.into_iter().find(|format| format.name() == name);
                    format = Some(named.ok_or_else(|| bad("`format intel` or `format nvidia`"))?);
                    None
                }
                (Some("u"), Some(format)) => Some(
                    update(&mut words, format)
                        .ok_or_else(|| bad("`u TIME TABLE ENTRY VALUE`, in the bounds of the format"))?,
                ),
                (Some("s"), Some(_)) => {
                    let time_us = words.next().and_then(|word| word.parse().ok());
                    Some(TraceEvent::Submit { time_us: time_us.ok_or_else(|| bad("`s TIME`"))? })
                }
                (_, None) => return Err(bad("the format comes first: `format intel` or `format nvidia`")),
                (_, Some(_)) => return Err(bad("`u TIME TABLE ENTRY VALUE` or `s TIME`")),
            };
            if words.next().is_some() {
                return Err(bad("nothing more on this line"));
            }
            events.extend(event);
        }
        let format =
            format.ok_or(BadTrace { line: 1, text: String::new(), why: "`format intel` or `format nvidia`" })?;
        Ok(Trace { format, events })
    }

    /// Stores, and submissions.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let updates = self.events.iter().filter(|event| matches!(event, TraceEvent::Update { .. })).count();
        (updates as u64, (self.events.len() - updates) as u64)
    }

    /// The case that the paper describes: 15 threads that transcode 720p for ten seconds. 627,000 stores into 512 tables, of which
    /// those from 150 to 320 are hot, with up to 7,500 stores into one; those behind are never touched. Stores come in
    /// runs on the same page: a surface of 1280 x 720 pixels (NV12, 338 pages) is dropped and constructed at a time, and the work
    /// of one frame is three submissions (decoding, processing, encoding).
    #[must_use]
    pub fn of_the_paper(format: TraceFormat, seed: u64) -> Trace {
        const UPDATES: u32 = 627_000;
        const END_US: u64 = 10_000_000;
        const SURFACE: u32 = 338;
        const HOT: (u32, u32) = (150, 320);
        const SUBMISSIONS: u32 = 3;
        // One of so many runs is a short one, among the tables before the hot ones.
        const COLD_EVERY: u32 = 6;
        const COLD_MOST: u32 = 24;
        // Multiples of it are spread evenly.
        const GOLDEN: f64 = 0.618_033_988_749_895;
        let entries = format.entries();
        let mut random = Random(seed | 1);
        let start = f64::from(random.below(1 << 16)) / 65536.0;
        let surfaces = (HOT.1 - HOT.0) * entries / SURFACE;
        let per_frame = SURFACE + COLD_MOST / 2 / COLD_EVERY;
        let frames = UPDATES.div_ceil(per_frame);
        let (mut events, mut left, mut frame) = (Vec::new(), UPDATES, 0u32);
        while left > 0 {
            let begins = END_US * u64::from(frame) / u64::from(frames.max(frame + 1));
            // More often in the middle, as the paper's picture has it, and evenly: a thread uses its surfaces in turn.
            let turn = (start + f64::from(frame) * GOLDEN).fract();
            let place = if turn < 0.5 { (turn / 2.0).sqrt() } else { 1.0 - ((1.0 - turn) / 2.0).sqrt() };
            let surface = (place * f64::from(surfaces)) as u32;
            let mut runs = vec![(HOT.0 * entries + surface * SURFACE, SURFACE)];
            if random.below(COLD_EVERY) == 0 {
                runs.push((random.below(HOT.0 * entries - COLD_MOST), 1 + random.below(COLD_MOST)));
            }
            let mut time_us = begins;
            for (first, count) in runs {
                let count = count.min(left);
                left -= count;
                let page = random.next();
                for index in first..first + count {
                    let frame_number = (page >> 40) + u64::from(index - first);
                    let value = entry(format, frame_number);
                    events.push(TraceEvent::Update { time_us, table: index / entries, entry: index % entries, value });
                    time_us += u64::from(index % 4 == 0);
                }
            }
            for _ in 0..SUBMISSIONS {
                time_us += 20 + u64::from(random.below(1000));
                events.push(TraceEvent::Submit { time_us });
            }
            frame += 1;
        }
        Trace { format, events }
    }
}

/// An entry for a page of the guest's memory.
fn entry(format: TraceFormat, page: u64) -> u64 {
    let at = page << 12;
    match format {
        TraceFormat::Intel => at & 0xffff_f000 | 1,
        TraceFormat::Nvidia => {
            gpu_spec::mmu::Pte::to_page(gpu_spec::mmu::PhysAddr::system(at), gpu_spec::mmu::Rights::default()).0
        }
    }
}

fn update<'a>(words: &mut impl Iterator<Item = &'a str>, format: TraceFormat) -> Option<TraceEvent> {
    let time_us = words.next()?.parse().ok()?;
    let table: u32 = words.next()?.parse().ok().filter(|table| *table < MOST_TABLES)?;
    let entry: u32 = words.next()?.parse().ok().filter(|entry| *entry < format.entries())?;
    let value = u64::from_str_radix(words.next()?, 16).ok()?;
    let fits = format != TraceFormat::Intel || u32::try_from(value).is_ok();
    fits.then_some(TraceEvent::Update { time_us, table, entry, value })
}

/// Numbers that look like chance, always the same from one seed (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let trace = Trace {
            format: TraceFormat::Nvidia,
            events: vec![
                TraceEvent::Update { time_us: 3, table: 511, entry: 511, value: u64::MAX },
                TraceEvent::Submit { time_us: 4 },
            ],
        };
        assert_eq!(Trace::from_text(&trace.to_text()), Ok(trace));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let check = |text: &str, line: usize, why: &str| {
            let error = Trace::from_text(text).expect_err(text);
            assert!(error.line == line && error.why.contains(why), "{error}");
        };
        check("", 1, "format");
        check("u 1 2 3 4", 1, "the format comes first");
        check("format amd", 1, "format intel");
        check("# a\n\nformat intel\ns\n", 4, "s TIME");
        check("format intel\ns 1 2", 2, "nothing more");
        check("format intel\nu 1 512 0 0", 2, "bounds");
        check("format intel\nu 1 511 1024 0", 2, "bounds");
        check("format nvidia\nu 1 511 512 0", 2, "bounds");
        check("format intel\nu 1 1 1 100000000", 2, "bounds");
        check("format intel\nu 1 1 1 x", 2, "bounds");
        check("format intel\nformat intel", 2, "u TIME");
    }

    #[test]
    fn the_papers_case_has_what_the_paper_says() {
        for format in [TraceFormat::Intel, TraceFormat::Nvidia] {
            let trace = Trace::of_the_paper(format, 7);
            let mut stores = [0u32; 512];
            let (mut same, mut last, mut end) = (0, None, 0);
            for event in &trace.events {
                let (TraceEvent::Update { time_us, .. } | TraceEvent::Submit { time_us }) = *event;
                end = end.max(time_us);
                if let TraceEvent::Update { table, .. } = *event {
                    stores[table as usize] += 1;
                    same += u32::from(last == Some(table));
                    last = Some(table);
                }
            }
            assert_eq!(trace.counts().0, 627_000);
            assert!((9_900_000..10_100_000).contains(&end), "{end}");
            assert!(stores[320..].iter().all(|stores| *stores == 0));
            let hot: u32 = stores[150..320].iter().sum();
            assert!(hot > 610_000, "{hot}");
            let most = stores.iter().max().copied().unwrap_or_default();
            assert!((7000..8500).contains(&most), "{most}");
            assert!(same > 600_000, "{same}");
            assert_eq!(trace, Trace::of_the_paper(format, 7));
            assert_ne!(trace, Trace::of_the_paper(format, 8));
        }
    }
}
