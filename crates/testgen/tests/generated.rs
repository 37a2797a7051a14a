//! Generated kernels are valid and end, and the interpreter's result does not depend on when it is preempted.

use testgen::{compare, generate, interpret, interpret_preempted};

/// Pseudo-random bytes.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        })
        .collect()
}

#[test]
fn kernels_are_valid_and_end() {
    for seed in 0..2000 {
        let g = generate::generate(&bytes(seed, 400));
        ptx::verify::verify(&g.kernel).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn preemption_does_not_show() {
    let (mut insts, mut loops) = (0, 0);
    for seed in 0..150 {
        let g = generate::generate(&bytes(seed, 600));
        insts += g.kernel.blocks.iter().map(|b| b.insts.len()).sum::<usize>();
        loops += usize::from(g.kernel.blocks.len() > 1);
        compare(&g.kernel, &g.launch, generate::BASE, &g.memory, &mut interpret, &mut interpret_preempted)
            .unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        let mut memory = g.memory.clone();
        interpret(&g.kernel, &g.launch, generate::BASE, &mut memory).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
    assert!(insts > 10_000 && loops > 30, "{insts} instructions, {loops} kernels with branches");
}

/// Its rows are 512 bytes apart, of which the last one, of a byte, is the last that there is.
#[test]
fn an_image_may_end_where_addresses_do() {
    let image = texture::Image::pitched(texture::Format::U8, 1, u64::MAX - 1, [1, 1], 512);
    let mut data = texture::Descriptor { image, sampler: None }.encode().to_vec();
    assert!(texture::Object::decode(&texture::Descriptor { image, sampler: None }.encode()).is_ok());
    data.resize(4096, 0);
    testgen::image::fuzz(&data);
}
