//! Tensor copies on machine code and on the interpreter, and as a slow model has them, which goes element by element and knows the
//! swizzles from the tables of the PTX ISA.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use ptx::launch::{Control, Exception, Launch, Step};
use ptx_jit::{Batch, Form};
use support::{grid_over, run};
use testgen::image::Random;
use texture::{Region, Swizzle, TensorElement, TensorMap};

const BASE: u64 = 0x20_0000_0000;
/// Bytes of a tile in shared memory, and of its copy behind the tensor.
const TILE: usize = 16 << 10;
/// A page with the map, the tensor, the tile.
const TENSOR: usize = 4096;
const TENSOR_BYTES: usize = 96 << 10;
const OUT: usize = TENSOR + TENSOR_BYTES;
const BYTES: usize = OUT + TILE;
/// Words of parameters: coordinates, and behind them offsets.
const WORDS: usize = 8;

/// One copy.
#[derive(Clone, Debug)]
struct Case {
    map: TensorMap,
    coordinates: Vec<i32>,
    offsets: Vec<u16>,
    /// Where in shared memory the tile begins.
    at: usize,
    memory: Vec<u8>,
}

fn launch(case: &Case, bytes: u32) -> Arc<Launch> {
    let mut params: Vec<u8> = [BASE, BASE + OUT as u64].iter().flat_map(|p| p.to_le_bytes()).collect();
    let mut words = [0_u32; WORDS];
    for (word, value) in words.iter_mut().zip(&case.coordinates) {
        *word = value.cast_unsigned();
    }
    for (word, value) in words[5..].iter_mut().zip(&case.offsets) {
        *word = (*value).into();
    }
    params.extend(words.iter().chain(&[case.at as u32, bytes]).flat_map(|w| w.to_le_bytes()));
    Arc::new(Launch { grid_id: 1, ..Launch::new([1; 3], [40, 1, 1], params) })
}

/// A kernel whose thread 0 executes `copy`, behind `before` and before `after`, which all threads execute. `%s` is where the tile is.
fn kernel(before: &str, copy: &str, after: &str) -> String {
    let loads: String = (0..WORDS).map(|i| format!("ld.param.u32 %c{i}, [words+{}];\n", 4 * i)).collect();
    let halves: String = (0..3).map(|i| format!("cvt.u16.u32 %h{i}, %c{};\n", 5 + i)).collect();
    format!(
        ".version 9.0\n.target sm_120\n.address_size 64\n\
         .visible .entry k(.param .u64 map, .param .u64 out, .param .align 4 .b8 words[{}], .param .u32 at, .param .u32 bytes) {{\n\
         .reg .b64 %map, %out, %g, %w, %state; .reg .b32 %c<{WORDS}>, %s, %t, %i, %v, %n, %o; .reg .b16 %h<4>; .reg .pred %p, %q;\n\
         .shared .align 1024 .b8 tile[{TILE}]; .shared .align 8 .b64 object;\n\
         ld.param.u64 %map, [map]; ld.param.u64 %out, [out]; ld.param.u32 %s, [at]; ld.param.u32 %n, [bytes];\n\
         mov.u32 %i, tile; add.u32 %s, %s, %i; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0;\n{loads}{halves}\
         {before}{copy}{after}ret;\n}}\n",
        4 * WORDS
    )
}

/// All threads copy the tile: `load` from global memory, or there.
fn exchange(load: bool, label: &str) -> String {
    let step = if load {
        "ld.global.u32 %v, [%w]; st.shared.u32 [%i], %v;"
    } else {
        "ld.shared.u32 %v, [%i]; st.global.u32 [%w], %v;"
    };
    format!(
        "shl.b32 %v, %t, 2;\n{label}: mov.u32 %i, tile; add.u32 %i, %i, %v; cvt.u64.u32 %g, %v; add.u64 %w, %out, %g;\n\
         mov.u32 %o, %v; {step} add.u32 %v, %o, 160; setp.lt.u32 %q, %v, {TILE}; @%q bra {label};\nbar.sync 0;\n"
    )
}

fn list(prefix: &str, from: usize, count: usize) -> String {
    (from..from + count).map(|i| format!("%{prefix}{i}")).collect::<Vec<_>>().join(", ")
}

const AWAIT: &str = "WAIT: mbarrier.try_wait.parity.shared.b64 %q, [object], 0; @!%q bra WAIT;\n";

fn load_text(rank: usize, images: bool, gathers: bool) -> String {
    let before = "@%p mbarrier.init.shared.b64 [object], 1;\nbar.sync 0;\n";
    let (mode, offsets) = if images {
        (".im2col", format!(", {{{}}}", list("h", 0, rank - 2)))
    } else if gathers {
        (".tile::gather4", String::new())
    } else {
        (".tile", String::new())
    };
    let coordinates = list("c", 0, if gathers { 5 } else { rank });
    let to = if gathers { "shared::cta" } else { "shared::cluster" };
    let copy = format!(
        "@%p mbarrier.arrive.expect_tx.shared.b64 %state, [object], %n;\n\
         @%p cp.async.bulk.tensor.{rank}d.{to}.global{mode}.mbarrier::complete_tx::bytes [%s], [%map, {{{coordinates}}}], [object]{offsets};\n"
    );
    let after = format!("{AWAIT}bar.sync 0;\n{}", exchange(false, "OUT"));
    kernel(before, &copy, &after)
}

fn store_text(rank: usize, images: bool, reduction: &str) -> String {
    let mode = if images { ".im2col_no_offs" } else { ".tile" };
    let coordinates = list("c", 0, rank);
    let (kind, op) = if reduction.is_empty() { ("cp", String::new()) } else { ("cp.reduce", format!(".{reduction}")) };
    let copy = format!(
        "@%p {kind}.async.bulk.tensor.{rank}d.global.shared::cta{op}{mode}.bulk_group [%map, {{{coordinates}}}], [%s];\n\
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
    );
    kernel(&exchange(true, "IN"), &copy, "")
}

/// What both engines leave in memory, which must be the same, also if they are stopped often.
fn agreed(text: &str, case: &Case, bytes: u32) -> Result<Vec<u8>, Exception> {
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}")));
    let launch = launch(case, bytes);
    let control = if bytes.is_multiple_of(3) { Control::PREEMPT } else { Control::RUN };
    let machine = &mut |k: &_, l: &_, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, control);
    let outcome = testgen::compare(&kernel, &launch, BASE, &case.memory, machine, &mut testgen::interpret);
    assert_eq!(outcome, Ok(()), "{:?}\n{text}", (case.map, &case.coordinates, &case.offsets, case.at));
    let mut memory = case.memory.clone();
    testgen::interpret(&kernel, &launch, BASE, &mut memory).map(|()| memory)
}

/// Which pieces of 16 bytes a line of 128 bytes has, by its number: as the tables of the PTX ISA have them.
fn line(swizzle: Swizzle, number: usize) -> [usize; 8] {
    const WHOLE: [[usize; 8]; 8] = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ];
    const ATOM_32: [[usize; 8]; 4] =
        [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 0, 1, 6, 7, 4, 5], [4, 5, 6, 7, 0, 1, 2, 3], [6, 7, 4, 5, 2, 3, 0, 1]];
    match swizzle {
        Swizzle::None => WHOLE[0],
        Swizzle::B32 => WHOLE[number % 2],
        Swizzle::B64 => WHOLE[number % 4],
        Swizzle::B128 => WHOLE[number % 8],
        Swizzle::B128Atom32 | Swizzle::B128Atom32Flip8 => ATOM_32[number % 4],
        Swizzle::B128Atom64 => [WHOLE[0], [4, 5, 6, 7, 0, 1, 2, 3]][number % 2],
    }
}

/// Where the byte at `at` of shared memory goes.
fn swizzled(swizzle: Swizzle, at: usize) -> usize {
    let (number, piece, byte) = (at / 128, at / 16 % 8, at % 16);
    let place = line(swizzle, number).iter().position(|&p| p == piece).unwrap();
    let byte = if swizzle == Swizzle::B128Atom32Flip8 && number % 2 == 1 { (byte + 8) % 16 } else { byte };
    number * 128 + place * 16 + byte
}

/// Where in the tensor the elements of the copy are, in the order of shared memory; none for those outside.
fn elements(case: &Case) -> Vec<Option<usize>> {
    let map = &case.map;
    let rank = usize::from(map.rank);
    let place = |coordinates: &[i64]| {
        let inside = coordinates.iter().zip(&map.sizes).all(|(&c, &size)| c >= 0 && c < size.cast_signed());
        let offset = |at: usize| if at == 0 { map.element.bytes().into() } else { map.strides[at - 1] };
        inside.then(|| coordinates.iter().enumerate().map(|(at, &c)| c as usize * offset(at) as usize).sum())
    };
    let start: Vec<i64> = case.coordinates.iter().map(|&c| c.into()).collect();
    let mut found = Vec::new();
    match map.region {
        Region::Tiled(sides) if start.len() > rank => {
            for row in 0..4 {
                found.extend((0..i64::from(sides[0])).map(|column| place(&[start[0] + column, start[1 + row]])));
            }
        }
        Region::Tiled(sides) => {
            let counts: Vec<i64> = (0..rank)
                .map(|at| if at == 0 { sides[0].into() } else { i64::from(sides[at].div_ceil(map.steps[at].into())) })
                .collect();
            for number in 0..counts.iter().product::<i64>() {
                let mut rest = number;
                let coordinates: Vec<i64> = (0..rank)
                    .map(|at| {
                        let index = rest % counts[at];
                        rest /= counts[at];
                        start[at] + index * i64::from(map.steps[at])
                    })
                    .collect();
                found.push(place(&coordinates));
            }
        }
        Region::Im2col { lower, upper, channels, pixels } => {
            // Positions of the bounding box are counted, W first; where the copy begins is one of them.
            let spatial = rank - 2;
            let bounds: Vec<(i64, i64, i64)> = (0..spatial)
                .map(|at| {
                    let (low, step) = (i64::from(lower[at]), i64::from(map.steps[at + 1]));
                    let width = map.sizes[at + 1].cast_signed() + i64::from(upper[at]) - low;
                    (low, step, (width + step - 1) / step)
                })
                .collect();
            let mut first = 0;
            for at in (0..spatial).rev() {
                let (low, step, count) = bounds[at];
                first = first * count + (start[at + 1] - low) / step;
            }
            for pixel in 0..i64::from(pixels) {
                let mut rest = first + pixel;
                let mut coordinates = vec![0; rank];
                for at in 0..spatial {
                    let (low, step, count) = bounds[at];
                    let offset = i64::from(case.offsets.get(at).copied().unwrap_or(0));
                    coordinates[at + 1] = low + rest % count * step + offset;
                    rest /= count;
                }
                coordinates[rank - 1] = start[rank - 1] + rest;
                for channel in 0..i64::from(channels) {
                    coordinates[0] = start[0] + channel;
                    found.push(place(&coordinates));
                }
            }
        }
    }
    found
}

/// An element as it is when it has been loaded, or with `whole` false stored.
fn converted(element: TensorElement, value: &[u8], loaded: bool) -> Vec<u8> {
    let mut value = value.to_vec();
    if element.bytes() == 4 && element.is_float() {
        let mut number = f32::from_le_bytes(value.clone().try_into().unwrap());
        if matches!(element, TensorElement::F32Ftz | TensorElement::TF32Ftz) && number.is_subnormal() {
            number = 0_f32.copysign(number);
            value = number.to_le_bytes().to_vec();
        }
        if loaded && matches!(element, TensorElement::TF32 | TensorElement::TF32Ftz) {
            let bits = u64::from(number.to_bits());
            let low = bits & 0x1fff;
            let up = low > 0x1000 || (low == 0x1000 && bits & 0x2000 != 0);
            let bits = if number.is_nan() { 0x7fff_e000 } else { bits - low + if up { 0x2000 } else { 0 } };
            value = (bits as u32).to_le_bytes().to_vec();
        }
    }
    value
}

/// The tile that a load leaves, and which bytes of it.
fn loaded(case: &Case) -> Vec<u8> {
    let size = case.map.element.bytes() as usize;
    let mut tile = vec![0; TILE];
    for (number, place) in elements(case).into_iter().enumerate() {
        let fill = if case.map.nan_fill { i64::MAX >> (64 - 8 * size) } else { 0 }.to_le_bytes();
        let value = match place {
            Some(at) => converted(case.map.element, &case.memory[TENSOR + at..][..size], true),
            None => fill[..size].to_vec(),
        };
        for (i, byte) in value.into_iter().enumerate() {
            tile[swizzled(case.map.swizzle, case.at + number * size + i)] = byte;
        }
    }
    tile
}

/// What is in memory after it is combined with what is stored.
type Combine = dyn Fn(&[u8], &[u8]) -> Vec<u8>;

/// What a store, or a reduction, leaves in memory.
fn stored(case: &Case, combine: &Combine) -> Vec<u8> {
    let size = case.map.element.bytes() as usize;
    let mut memory = case.memory.clone();
    let tile = &case.memory[OUT..];
    for (number, place) in elements(case).into_iter().enumerate() {
        let Some(at) = place else { continue };
        let value: Vec<u8> = (0..size).map(|i| tile[swizzled(case.map.swizzle, case.at + number * size + i)]).collect();
        let value = converted(case.map.element, &value, false);
        let there = &mut memory[TENSOR + at..][..size];
        let value = combine(there, &value);
        there.copy_from_slice(&value);
    }
    memory
}

/// A tensor with memory of its own, and a copy that fits a tile; `rank` dimensions of `element`.
fn case(random: &mut Random, rank: usize, element: TensorElement, images: bool) -> Case {
    let size = u64::from(element.bytes());
    loop {
        let mut map = TensorMap {
            base: BASE + TENSOR as u64,
            rank: rank as u8,
            element,
            sizes: [1; 5],
            strides: [0; 4],
            steps: [1; 5],
            swizzle: Swizzle::ALL[random.below(7) as usize],
            nan_fill: element.is_float() && random.one_in(2),
            region: Region::Tiled([1; 5]),
        };
        let mut bytes = size;
        for at in 0..rank {
            map.sizes[at] = 1 + random.below(if at == 0 { 40 } else { 9 });
            if at > 0 {
                map.strides[at - 1] = bytes.next_multiple_of(16) + 16 * random.below(3);
                map.steps[at] = 1 + random.below(3) as u8;
                bytes = map.strides[at - 1];
            }
            bytes *= map.sizes[at];
        }
        let row = (16 / size).max(1) * (1 + random.below(8));
        let mut offsets = Vec::new();
        let mut coordinates = Vec::new();
        let mut total = row * size;
        if images {
            let (mut lower, mut upper) = ([0; 3], [0; 3]);
            coordinates.push(random.below(9) as i32 - 3);
            for at in 0..rank - 2 {
                lower[at] = random.below(6) as i16 - 3;
                upper[at] = random.below(6) as i16 - 3;
                offsets.push(random.below(4) as u16);
                let width = map.sizes[at + 1].cast_signed() + i64::from(upper[at]) - i64::from(lower[at]);
                let step = i64::from(map.steps[at + 1]);
                let index = random.below(((width.max(1) + step - 1) / step).cast_unsigned());
                coordinates.push(i32::from(lower[at]) + index as i32 * step as i32);
            }
            coordinates.push(random.below(4) as i32 - 1);
            let pixels = 1 + random.below(60) as u16;
            map.region = Region::Im2col { lower, upper, channels: row as u16, pixels };
            total *= u64::from(pixels);
        } else {
            let mut sides = [1; 5];
            sides[0] = row as u16;
            for (side, step) in sides.iter_mut().zip(map.steps).take(rank).skip(1) {
                *side = 1 + random.below(7) as u16;
                total *= u64::from(side.div_ceil(step.into()));
            }
            for at in 0..rank {
                coordinates.push(random.below(map.sizes[at] + 6) as i32 - 4);
            }
            map.region = Region::Tiled(sides);
        }
        let at = 128 * random.below(9) as usize;
        if map.check().is_err() || bytes as usize > TENSOR_BYTES || at + total as usize > TILE {
            continue;
        }
        let mut memory: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.word().to_le_bytes()).collect();
        // Subnormal numbers, and some that are rounded up.
        for word in memory.chunks_exact_mut(4).step_by(5) {
            word[3] &= 0x80;
            word[2] &= 0x7f;
        }
        memory[..128].copy_from_slice(&map.encode());
        return Case { map, coordinates, offsets, at, memory };
    }
}

fn bytes(case: &Case) -> u32 {
    elements(case).len() as u32 * case.map.element.bytes()
}

fn check_load(case: &Case, text: &str) {
    let memory = agreed(text, case, bytes(case)).unwrap();
    let what = (case.map, &case.coordinates, &case.offsets, case.at);
    assert!(memory[OUT..] == loaded(case), "{what:?}");
    assert!(memory[..OUT] == case.memory[..OUT], "{what:?}");
}

#[test]
fn boxes_are_loaded() {
    let random = &mut Random(1);
    for number in 0..150 {
        let rank = 1 + number % 5;
        let element = TensorElement::ALL[number / 5 % 13];
        let case = case(random, rank, element, false);
        check_load(&case, &load_text(rank, false, false));
    }
}

#[test]
fn images_are_loaded() {
    let random = &mut Random(2);
    for number in 0..90 {
        let rank = 3 + number % 3;
        let element = TensorElement::ALL[number / 3 % 13];
        let case = case(random, rank, element, true);
        check_load(&case, &load_text(rank, true, false));
    }
}

#[test]
fn rows_are_gathered() {
    let random = &mut Random(3);
    let text = load_text(2, false, true);
    for number in 0..20 {
        let mut case = case(random, 2, TensorElement::ALL[number % 13], false);
        let Region::Tiled(sides) = &mut case.map.region else { unreachable!() };
        sides[1] = 1;
        case.memory[..128].copy_from_slice(&case.map.encode());
        case.coordinates = vec![case.coordinates[0]];
        case.coordinates.extend((0..4).map(|_| random.below(case.map.sizes[1] + 4) as i32 - 2));
        case.at = 0;
        check_load(&case, &text);
    }
}

#[test]
fn boxes_and_images_are_stored() {
    let random = &mut Random(4);
    for number in 0..120 {
        let images = number % 3 == 0;
        let rank = if images { 3 + number % 3 } else { 1 + number % 5 };
        let mut case = case(random, rank, TensorElement::ALL[number / 3 % 13], images);
        case.offsets.clear();
        let text = store_text(rank, images, "");
        let done = agreed(&text, &case, bytes(&case));
        if case.map.swizzle == Swizzle::B128Atom32Flip8 {
            assert_eq!(done.map(|_| ()), Err(Exception::Illegal));
            continue;
        }
        assert!(done.unwrap() == stored(&case, &|_, new| new.to_vec()), "{:?}", (case.map, case.coordinates, case.at));
    }
}

#[test]
fn what_is_there_is_combined() {
    type Combine = fn(&[u8], &[u8]) -> Vec<u8>;
    fn u32s(a: &[u8], b: &[u8]) -> (u32, u32) {
        (u32::from_le_bytes(a.try_into().unwrap()), u32::from_le_bytes(b.try_into().unwrap()))
    }
    fn u64s(a: &[u8], b: &[u8]) -> (u64, u64) {
        (u64::from_le_bytes(a.try_into().unwrap()), u64::from_le_bytes(b.try_into().unwrap()))
    }
    let known: [(&str, TensorElement, Combine); 9] = [
        ("add", TensorElement::U32, |a, b| {
            let (a, b) = u32s(a, b);
            a.wrapping_add(b).to_le_bytes().to_vec()
        }),
        ("min", TensorElement::S32, |a, b| {
            let (a, b) = u32s(a, b);
            a.cast_signed().min(b.cast_signed()).to_le_bytes().to_vec()
        }),
        ("max", TensorElement::U64, |a, b| {
            let (a, b) = u64s(a, b);
            a.max(b).to_le_bytes().to_vec()
        }),
        ("max", TensorElement::S64, |a, b| {
            let (a, b) = u64s(a, b);
            a.cast_signed().max(b.cast_signed()).to_le_bytes().to_vec()
        }),
        ("inc", TensorElement::U32, |a, b| {
            let (a, b) = u32s(a, b);
            if a >= b { 0 } else { a + 1 }.to_le_bytes().to_vec()
        }),
        ("dec", TensorElement::U32, |a, b| {
            let (a, b) = u32s(a, b);
            if a == 0 || a > b { b } else { a - 1 }.to_le_bytes().to_vec()
        }),
        ("xor", TensorElement::U64, |a, b| {
            let (a, b) = u64s(a, b);
            (a ^ b).to_le_bytes().to_vec()
        }),
        ("and", TensorElement::S32, |a, b| {
            let (a, b) = u32s(a, b);
            (a & b).to_le_bytes().to_vec()
        }),
        ("add", TensorElement::F32, |a, b| {
            let (a, b) = u32s(a, b);
            let sum = f32::from_bits(a) + f32::from_bits(b);
            if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() }.to_le_bytes().to_vec()
        }),
    ];
    let random = &mut Random(5);
    for number in 0..54 {
        let (name, element, combine) = known[number % 9];
        let rank = 1 + number % 5;
        let case = case(random, rank, element, false);
        if case.map.swizzle == Swizzle::B128Atom32Flip8 {
            continue;
        }
        let memory = agreed(&store_text(rank, false, name), &case, bytes(&case)).unwrap();
        assert!(memory == stored(&case, &combine), "{name} {:?}", (case.map, case.coordinates, case.at));
    }
    // There is no such sum of bytes.
    let case = case(random, 2, TensorElement::U8, false);
    assert_eq!(agreed(&store_text(2, false, "add"), &case, 0).map(|_| ()), Err(Exception::Illegal));
}

/// Maps that say anything end the kernel, or copy what is there: on both engines alike.
#[test]
fn any_bytes_are_a_map() {
    let random = &mut Random(6);
    let (mut ended, mut raised) = (0, 0);
    for number in 0..200 {
        let rank = 1 + number % 5;
        let mut case = case(random, rank, TensorElement::ALL[number % 13], false);
        for _ in 0..random.below(3) {
            let at = random.below(102) as usize;
            case.memory[at] =
                if random.one_in(2) { random.word() as u8 } else { case.memory[at] ^ 1 << random.below(8) };
        }
        if random.one_in(3) {
            let at = random.below(rank as u64) as usize;
            case.coordinates[at] = random.word() as i32;
        }
        // Nobody knows how many bytes will come.
        let load = load_text(rank, false, false).replace(AWAIT, "");
        let text = if random.one_in(2) { load } else { store_text(rank, false, "") };
        match agreed(&text, &case, bytes(&case)) {
            Ok(_) => ended += 1,
            Err(_) => raised += 1,
        }
    }
    assert!(ended > 20 && raised > 50, "{ended} ended, {raised} did not");
}

/// Where copies go must be aligned, and there.
#[test]
fn tiles_are_where_they_may_be() {
    use ptx::launch::AccessError;
    let random = &mut Random(7);
    let text = load_text(2, false, false);
    let mut case = case(random, 2, TensorElement::F32, false);
    let error = |case: &Case| match agreed(&text, case, 0) {
        Err(Exception::Access { error, .. }) => Some(error),
        _ => None,
    };
    case.at = 64;
    assert_eq!(error(&case), Some(AccessError::Misaligned));
    case.at = TILE + 1024;
    assert_eq!(error(&case), Some(AccessError::Shared));
    case.at = 0xffff_ff80;
    assert!(error(&case).is_some());
}

/// A large copy does not keep the host's thread until it is over.
#[test]
fn copies_are_suspended() {
    let mut case = case(&mut Random(8), 2, TensorElement::U8, false);
    case.map.sizes[1] = 1 << 20;
    case.map.strides[0] = 16;
    case.map.steps = [1; 5];
    case.map.swizzle = Swizzle::B32;
    case.map.region = Region::Tiled([16, 256, 1, 1, 1]);
    case.at = 0;
    case.memory[..128].copy_from_slice(&case.map.encode());
    let suspended = |text: String, bytes: u32| {
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
        let launch = launch(&case, bytes);
        let (grid, _memory) = grid_over(Form::default(), &kernel, &launch, BASE, &case.memory, Control::PREEMPT);
        let mut batch = Batch::new(grid, 0..1);
        let steps: Vec<Step> = (0..10_000).map(|_| batch.resume()).take_while(|step| *step != Step::Done).collect();
        assert!(steps.iter().all(|step| *step == Step::Preempted), "{:?}", steps.last());
        steps.len()
    };
    let tail = format!("{AWAIT}bar.sync 0;\n{}", exchange(false, "OUT"));
    let load = load_text(2, false, false).replace(&tail, "");
    let store = store_text(2, false, "").replace(&exchange(true, "IN"), "");
    // No loop is left but the copy's.
    assert!(!load.contains("bra") && !store.contains("bra"), "{load}{store}");
    assert!(suspended(load, 256 * 16) >= 256);
    assert!(suspended(store, 256 * 16) >= 256);
}
