//! Clusters that kernels ask for, and tensor maps that are parameters of kernels.

use cuda_abi::{
    CUtensorMapDataType as Data, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
    CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
};
use cuda_core::{CudaError, Driver, Function, JitLog, Stream, TensorMapDesc, TensorRegion};
use gpu::DevAddr;

use crate::support::{launch, memory, shape, start, words};

fn kernel(driver: &Driver, text: &str) -> Function {
    let mut log = JitLog::default();
    let module = driver.module_load_data(&text.as_bytes(), &mut log).unwrap_or_else(|error| panic!("{error}: {log:?}"));
    driver.module_get_function(module, "k").unwrap()
}

fn read(driver: &Driver, at: DevAddr, bytes: usize) -> Vec<u8> {
    let host = memory(&vec![0; bytes]);
    driver.memcpy_dtoh(host.range(0, bytes), at, Stream::NULL).unwrap();
    let mut got = vec![0; bytes];
    host.read(0, &mut got);
    got
}

#[test]
fn grids_of_clusters_are_counted_so_device() {
    let (driver, _) = start();
    // Each CTA leaves the grid's size and its rank.
    let text = ".version 9.0\n.target sm_90\n.address_size 64\n\
        .visible .entry k(.param .u64 out) .blocksareclusters .reqntid 32 .reqnctapercluster 2, 2 {\n\
        .reg .b64 %o, %w; .reg .b32 %x, %y, %n, %m, %r; .reg .pred %p;\n\
        ld.param.u64 %o, [out]; mov.u32 %x, %tid.x; setp.ne.u32 %p, %x, 0; @%p ret;\n\
        mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %n, %nctaid.x; mov.u32 %m, %nctaid.y;\n\
        mad.lo.u32 %x, %y, %n, %x; mul.wide.u32 %w, %x, 4; add.u64 %o, %o, %w; mov.u32 %r, %cluster_ctarank;\n\
        shl.b32 %n, %n, 8; shl.b32 %m, %m, 16; or.b32 %r, %r, %n; or.b32 %r, %r, %m; st.global.u32 [%o], %r; ret; }\n";
    let k = kernel(&driver, text);
    let out = driver.mem_alloc(4096).unwrap();
    driver.memset(out, 0, 4, 1024, Stream::NULL).unwrap();
    let mut grid = shape(3, 32, Stream::NULL);
    grid.grid = [3, 2, 1];
    launch(&driver, k, &grid, &[&out.0.to_le_bytes()]).unwrap();
    driver.ctx_synchronize().unwrap();
    let rank = |at: u32| (at % 6 % 2) + 2 * (at / 6 % 2);
    assert_eq!(read(&driver, out, 96), words((0..24).map(|at| rank(at) | 6 << 8 | 4 << 16)));
    assert_eq!(read(&driver, DevAddr(out.0 + 96), 4), words([0].into_iter()));
    // More CTAs than a grid can have.
    grid.grid = [3, 40_000, 1];
    launch(&driver, k, &grid, &[&out.0.to_le_bytes()]).unwrap_err();
}

#[test]
fn a_map_may_be_a_parameter_device() {
    let (driver, _) = start();
    let text = ".version 9.0\n.target sm_90\n.address_size 64\n\
        .visible .entry k(.param .u64 out, .param .align 64 .b8 map[128]) {\n\
        .reg .b64 %o, %m, %w; .reg .b32 %t, %a, %s; .reg .pred %p, %q;\n\
        .shared .align 128 .b32 tile[32]; .shared .align 8 .b64 object;\n\
        ld.param.u64 %o, [out]; mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0;\n\
        mov.u32 %s, tile; @%p mbarrier.init.shared.b64 [object], 1; bar.sync 0;\n\
        @%p mbarrier.arrive.expect_tx.shared.b64 %w, [object], 128;\n\
        @%p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%m, {6, -1}], [object];\n\
        W: mbarrier.try_wait.parity.shared.b64 %q, [object], 0; @!%q bra W;\n\
        shl.b32 %a, %t, 2; add.u32 %s, %s, %a; ld.shared.u32 %a, [%s]; mul.wide.u32 %w, %t, 4; add.u64 %o, %o, %w;\n\
        st.global.u32 [%o], %a; ret; }\n";
    let k = kernel(&driver, text);
    let [tensor, out] = [(); 2].map(|()| driver.mem_alloc(4096).unwrap());
    let host = memory(&words(1000..2024));
    driver.memcpy_htod(tensor, host.range(0, 4096), Stream::NULL).unwrap();
    // Four rows of eight numbers, from the row above the first and from column 6 on, of a matrix of 3 rows of 10.
    let map = driver
        .tensor_map_encode(&TensorMapDesc {
            data_type: Data::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            global_address: tensor.0,
            global_dim: vec![10, 3],
            global_strides: vec![64],
            element_strides: vec![1, 1],
            interleave: Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle: Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            l2_promotion: Promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            oob_fill: Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            region: TensorRegion::Tiled(vec![8, 4]),
        })
        .unwrap();
    let bytes: Vec<u8> = map.opaque.iter().flat_map(|word| word.to_le_bytes()).collect();
    launch(&driver, k, &shape(1, 32, Stream::NULL), &[&out.0.to_le_bytes(), &bytes]).unwrap();
    driver.ctx_synchronize().unwrap();
    let number = |at: u32| {
        let (column, row) = (6 + at % 8, at / 8);
        if row == 0 || column >= 10 { 0 } else { 1000 + 16 * (row - 1) + column }
    };
    assert_eq!(read(&driver, out, 128), words((0..32).map(number)));
    // What is no map ends the kernel.
    launch(&driver, k, &shape(1, 32, Stream::NULL), &[&out.0.to_le_bytes(), &[7; 128]]).unwrap();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::LAUNCH_FAILED));
}
