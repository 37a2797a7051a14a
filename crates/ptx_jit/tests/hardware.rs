//! Every computing instruction gives what hardware gives, bit by bit: `hardware.txt` has what an H200 gave.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/real_gpu.rs"]
mod real_gpu;
mod support;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx::launch::Control;
use real_gpu::RealGpu;
use testgen::forms::{BASE, BLOCK, Form, Pattern, Run, THREADS, digest, expand, patterns};

/// Calls `f` for every form of every pattern, on all cores; the results in order.
fn for_all<T: Send>(patterns: &[Pattern], f: impl Fn(&Pattern, usize, &Form) -> T + Sync) -> Vec<Vec<T>> {
    let forms: Vec<(usize, usize, String)> = patterns
        .iter()
        .enumerate()
        .flat_map(|(p, pattern)| expand(&pattern.text).into_iter().enumerate().map(move |(n, text)| (p, n, text)))
        .collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while let Some((p, n, text)) = forms.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = f(&patterns[*p], *n, &Form::new(text));
                    results.lock().unwrap().push((*p, *n, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_unstable_by_key(|&(p, n, _)| (p, n));
    let mut all: Vec<Vec<T>> = patterns.iter().map(|_| Vec::new()).collect();
    results.into_iter().for_each(|(p, _, result)| all[p].push(result));
    all
}

/// The results of the interpreter, or of machine code.
fn software(form: &Form, run: &Run, machine: bool) -> Result<Vec<u8>, String> {
    let kernel = form.kernel()?;
    let (launch, mut memory) = run.launch(form);
    let end = if machine {
        support::run(&kernel, &launch, BASE, &mut memory, Control::RUN)
    } else {
        testgen::interpret(&kernel, &launch, BASE, &mut memory)
    };
    end.map_err(|exception| format!("{exception:?}"))?;
    Ok(run.results(form, &memory).to_vec())
}

/// What is wrong with a form: the engines must agree on it, and on what hardware gave if that is known and not marked.
fn failure(pattern: &Pattern, n: usize, form: &Form, run: &Run) -> Option<String> {
    let want = pattern.digests.get(n).copied().flatten();
    let [interpreted, compiled] = [false, true].map(|machine| software(form, run, machine));
    if interpreted != compiled {
        return Some(format!("{}: the engines differ", form.instruction));
    }
    match (want.filter(|_| pattern.differs.is_none()), interpreted) {
        (Some(want), Ok(results)) if digest(&results) != want => {
            Some(format!("{}: hardware differs", form.instruction))
        }
        (Some(_), Err(error)) => Some(format!("{}: {error}", form.instruction)),
        _ => None,
    }
}

#[test]
fn forms_give_what_hardware_gave() {
    let run = Run::new(THREADS);
    let patterns = patterns();
    let failures = for_all(&patterns, |pattern, n, form| failure(pattern, n, form, &run));
    let failures: Vec<String> = failures.into_iter().flatten().flatten().collect();
    assert!(failures.is_empty(), "{} forms:\n{}", failures.len(), failures.join("\n"));
    for pattern in patterns.iter().filter(|pattern| !pattern.approximate) {
        assert_eq!(pattern.digests.len(), expand(&pattern.text).len(), "digests of {}", pattern.text);
    }
}

/// How many f32 are between two; none if both are NaNs.
fn steps(a: u32, b: u32) -> u64 {
    let order = |bits: u32| if bits >> 31 == 1 { -i64::from(bits & 0x7fff_ffff) } else { i64::from(bits) };
    let nans = [a, b].map(|bits| f32::from_bits(bits).is_nan());
    if nans == [true; 2] { 0 } else { order(a).abs_diff(order(b)) }
}

/// What differs between two results: a few of the values.
fn differences(form: &Form, run: &Run, hardware: &[u8], ours: &[u8]) -> String {
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let (hardware, ours) = (words(hardware), words(ours));
    let differ: Vec<usize> = (0..ours.len()).filter(|&i| hardware[i] != ours[i]).collect();
    let mut text = format!("{}: {} of {}", form.instruction, differ.len(), ours.len());
    if form.results.iter().all(|name| name.starts_with("%f") || name.starts_with("%g")) {
        let furthest = differ.iter().map(|&i| steps(hardware[i] as u32, ours[i] as u32)).max();
        write!(text, ", by {} numbers at most", furthest.unwrap_or(0)).unwrap();
    }
    text.push('\n');
    for &i in differ.iter().step_by(differ.len().div_ceil(8).max(1)) {
        let (thread, name) = (i / form.results.len(), &form.results[i % form.results.len()]);
        let (theirs, ours) = (hardware[i], ours[i]);
        writeln!(text, "    {name} is {theirs:#x}, ours {ours:#x}: {}", run.operands(form, thread)).unwrap();
    }
    text
}

/// The same on a GPU, with more operands. With `SUNDIAL_RESULTS` the file of that name becomes what `hardware.txt` is to have.
#[test]
fn hardware_gives_what_is_written_down_gpu() {
    let gpu = match RealGpu::open() {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let (few, many) = (Run::new(THREADS), Run::new(8 * THREADS));
    let patterns = patterns();
    let hardware = |form: &Form, run: &Run| {
        let (launch, mut memory) = run.launch(form);
        gpu.run(&form.text, launch.grid[0], BLOCK, BASE, &launch.params, &mut memory)?;
        Ok::<_, String>(run.results(form, &memory).to_vec())
    };
    let results = for_all(&patterns, |pattern, n, form| match hardware(form, &many) {
        Err(error) => {
            let ours = if software(form, &few, false).is_ok() { ", which we take" } else { "" };
            let lost = pattern.digests.get(n).is_some_and(Option::is_some);
            let what = if lost { "the driver took it once" } else { "the driver refuses it" };
            (None, lost, format!("{}: {what}{ours}: {error}\n", form.instruction))
        }
        Ok(theirs) => {
            // The first threads have the operands that they have when there are no others.
            let found = Some(digest(&theirs[..8 * form.results.len() * THREADS as usize]));
            let written = pattern.digests.get(n).copied().flatten();
            let mut report = match software(form, &many, true) {
                Ok(ours) if ours == theirs => String::new(),
                Ok(ours) => differences(form, &many, &theirs, &ours),
                Err(error) => format!("{}: we refuse it: {error}\n", form.instruction),
            };
            if !pattern.approximate && written.is_some() && written != found {
                report += &format!("{}: another digest than written down\n", form.instruction);
            }
            let differs = !pattern.approximate && pattern.differs.is_none() && !report.is_empty();
            (found, differs, report)
        }
    });
    let mut differ = 0;
    let mut written = format!("# {}\n", gpu.name);
    for (pattern, results) in patterns.iter().zip(&results) {
        writeln!(written, "{}{}", if pattern.approximate { "~ " } else { "" }, pattern.text).unwrap();
        if !pattern.approximate {
            let digests: Vec<String> = results
                .iter()
                .map(|(found, ..)| found.map_or("-".to_owned(), |digest| format!("{digest:08x}")))
                .collect();
            digests.chunks(14).for_each(|line| writeln!(written, "= {}", line.join(" ")).unwrap());
        }
        if let Some(reason) = &pattern.differs {
            writeln!(written, "! {reason}").unwrap();
        }
        for (_, differs, report) in results {
            print!("{report}");
            differ += u32::from(*differs);
        }
        if pattern.differs.is_some() && results.iter().all(|(.., report)| report.is_empty()) {
            println!("{}: does not differ any more, its mark can go", pattern.text);
            differ += 1;
        }
    }
    if let Some(file) = std::env::var_os("SUNDIAL_RESULTS") {
        std::fs::write(file, written).unwrap();
    }
    assert!(differ == 0, "{differ} forms differ on {}", gpu.name);
}
