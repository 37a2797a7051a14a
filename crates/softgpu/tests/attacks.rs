//! Arbitrary bytes against the device, for a few seconds.

use proptest::prelude::*;
use softgpu::testing::fuzz;

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn a_tenant_cannot_hurt_another(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::tenant(&data);
    }

    #[test]
    fn a_driver_cannot_break_the_device(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::driver(&data);
    }
}
