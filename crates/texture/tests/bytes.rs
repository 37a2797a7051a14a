//! Bytes that are nearly descriptors: none makes an access leave the image that it describes.

use testgen::image::{Random, descriptor, forms, fuzz};

#[test]
fn no_access_leaves_its_image() {
    let random = &mut Random(21);
    let forms = forms();
    for _ in 0..200_000 {
        let form = &forms[random.below(forms.len() as u64) as usize];
        let mut data = descriptor(random, &form.access, 0x7000_0000_0000).encode().to_vec();
        // What is said changes a little, or much.
        for _ in 0..random.below(4) {
            let at = 8 + random.below(80) as usize;
            data[at] = if random.one_in(2) { random.word() as u8 } else { data[at] ^ 1 << random.below(8) };
        }
        for _ in 0..random.below(40) {
            let word =
                if random.one_in(2) { random.word() } else { u64::from((random.below(64) as f32 - 20.0).to_bits()) };
            let word = if random.one_in(3) { random.below(300) } else { word };
            data.extend(word.to_le_bytes());
        }
        fuzz(&data);
    }
}
