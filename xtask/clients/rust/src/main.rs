//! Checks of CubeCL and Burn: programs in Rust whose kernels are written in Rust, compiled by NVRTC when they run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Autodiff, Cuda};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, TensorData};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;

type Gpu = Cuda<f32>;

/// Numbers between -1 and 1, the same in each run.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn close(got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let far = (got - expected).abs() > tolerance * expected.abs().max(1.0);
        assert!(!far && got.is_finite(), "at {index}: {got} instead of {expected}");
    }
}

#[cube(launch)]
fn saxpy(a: f32, x: &Array<f32>, y: &mut Array<f32>) {
    if ABSOLUTE_POS < y.len() {
        y[ABSOLUTE_POS] += a * x[ABSOLUTE_POS];
    }
}

fn cubecl_saxpy() {
    let client = CudaRuntime::client(&CudaDevice::default());
    let (x, y) = (numbers(5000, 1), numbers(5000, 2));
    let (on_x, on_y) = (client.create_from_slice(f32::as_bytes(&x)), client.create_from_slice(f32::as_bytes(&y)));
    // SAFETY: the buffers hold so many elements of these types.
    let (x_arg, y_arg) =
        unsafe { (ArrayArg::from_raw_parts(on_x, 5000), ArrayArg::from_raw_parts(on_y.clone(), 5000)) };
    saxpy::launch::<CudaRuntime>(&client, CubeCount::Static(20, 1, 1), CubeDim::new_1d(256), 2.0, x_arg, y_arg);
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect();
    close(f32::from_bytes(&client.read_one(on_y).unwrap()), &expected, 1e-6);
}

#[cube(launch)]
fn block_sums(x: &Array<f32>, sums: &mut Array<f32>, #[comptime] width: usize) {
    let mut shared = SharedMemory::<f32>::new(width);
    let lane = UNIT_POS as usize;
    shared[lane] = x[ABSOLUTE_POS];
    sync_cube();
    let mut step = CUBE_DIM_X as usize / 2;
    while step > 0 {
        if lane < step {
            shared[lane] = shared[lane] + shared[lane + step];
        }
        sync_cube();
        step /= 2;
    }
    if lane == 0 {
        sums[CUBE_POS as usize] = shared[0];
    }
}

fn cubecl_block_sums() {
    let client = CudaRuntime::client(&CudaDevice::default());
    let x = numbers(4096, 3);
    let (on_x, sums) = (client.create_from_slice(f32::as_bytes(&x)), client.empty(16 * 4));
    // SAFETY: the buffers hold so many elements of these types.
    let (x_arg, sums_arg) =
        unsafe { (ArrayArg::from_raw_parts(on_x, 4096), ArrayArg::from_raw_parts(sums.clone(), 16)) };
    block_sums::launch::<CudaRuntime>(&client, CubeCount::Static(16, 1, 1), CubeDim::new_1d(256), x_arg, sums_arg, 256);
    let expected: Vec<f32> = x.chunks(256).map(|part| part.iter().sum()).collect();
    close(f32::from_bytes(&client.read_one(sums).unwrap()), &expected, 1e-4);
}

#[cube(launch)]
fn plane_sums(x: &Array<f32>, sums: &mut Array<f32>) {
    let sum = plane_sum(x[ABSOLUTE_POS]);
    if UNIT_POS_PLANE == 0 {
        sums[ABSOLUTE_POS / 32] = sum;
    }
}

fn cubecl_plane_sums() {
    let client = CudaRuntime::client(&CudaDevice::default());
    let x = numbers(1024, 4);
    let (on_x, sums) = (client.create_from_slice(f32::as_bytes(&x)), client.empty(32 * 4));
    // SAFETY: the buffers hold so many elements of these types.
    let (x_arg, sums_arg) =
        unsafe { (ArrayArg::from_raw_parts(on_x, 1024), ArrayArg::from_raw_parts(sums.clone(), 32)) };
    plane_sums::launch::<CudaRuntime>(&client, CubeCount::Static(4, 1, 1), CubeDim::new_1d(256), x_arg, sums_arg);
    let expected: Vec<f32> = x.chunks(32).map(|part| part.iter().sum()).collect();
    close(f32::from_bytes(&client.read_one(sums).unwrap()), &expected, 1e-4);
}

#[cube(launch)]
fn histogram(x: &Array<u32>, counts: &mut Array<Atomic<u32>>) {
    counts[(x[ABSOLUTE_POS] % 16) as usize].fetch_add(1);
}

fn cubecl_atomics() {
    let client = CudaRuntime::client(&CudaDevice::default());
    let x: Vec<u32> = numbers(4096, 5).iter().map(|x| ((x + 1.0) * 1e6) as u32).collect();
    let on_x = client.create_from_slice(u32::as_bytes(&x));
    let counts = client.create_from_slice(u32::as_bytes(&[0; 16]));
    // SAFETY: the buffers hold so many elements of these types.
    let (x_arg, counts_arg) =
        unsafe { (ArrayArg::from_raw_parts(on_x, 4096), ArrayArg::from_raw_parts(counts.clone(), 16)) };
    histogram::launch::<CudaRuntime>(&client, CubeCount::Static(16, 1, 1), CubeDim::new_1d(256), x_arg, counts_arg);
    let expected: Vec<u32> = (0..16).map(|bin| x.iter().filter(|x| **x % 16 == bin).count() as u32).collect();
    assert_eq!(u32::from_bytes(&client.read_one(counts).unwrap()), expected);
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<Gpu, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &CudaDevice::default())
}

fn values<const D: usize>(tensor: Tensor<Gpu, D>) -> Vec<f32> {
    tensor.into_data().to_vec().unwrap()
}

fn burn_elementwise() {
    let x = numbers(10_000, 6);
    let expected: Vec<f32> = x.iter().map(|x| (x * 3.0).sin().exp() + x.abs().sqrt()).collect();
    let on = tensor(&x, [100, 100]);
    close(&values((on.clone() * 3.0).sin().exp() + on.abs().sqrt()), &expected, 1e-5);
}

fn burn_reductions() {
    let x = numbers(64 * 300, 7);
    let on = tensor(&x, [64, 300]);
    let rows: Vec<&[f32]> = x.chunks(300).collect();
    let sums: Vec<f32> = rows.iter().map(|row| row.iter().sum()).collect();
    close(&values(on.clone().sum_dim(1)), &sums, 1e-4);
    let largest: Vec<f32> = rows.iter().map(|row| row.iter().copied().fold(f32::MIN, f32::max)).collect();
    close(&values(on.clone().max_dim(1)), &largest, 0.0);
    close(&values(on.clone().sum()), &[x.iter().sum()], 1e-3);
    let soft = rows.iter().flat_map(|row| {
        let whole: f32 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(move |x| x.exp() / whole)
    });
    close(&values(softmax(on, 1)), &soft.collect::<Vec<_>>(), 1e-5);
}

fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let one = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>();
    (0..m * n).map(|at| one(at / n, at % n)).collect()
}

fn burn_matmul() {
    for [m, k, n] in [[1, 64, 1], [33, 65, 17], [128, 128, 128], [100, 256, 60]] {
        let (a, b) = (numbers(m * k, 8), numbers(k * n, 9));
        let got = values(tensor(&a, [m, k]).matmul(tensor(&b, [k, n])));
        // Matrix units take it in tf32.
        close(&got, &product(&a, &b, [m, k, n]), 2e-2);
    }
}

fn burn_conv() {
    let (x, weights) = (numbers(2 * 3 * 12 * 12, 10), numbers(4 * 3 * 3 * 3, 11));
    let got = conv2d(
        tensor(&x, [2, 3, 12, 12]),
        tensor(&weights, [4, 3, 3, 3]),
        None,
        ConvOptions::new([1, 1], [0, 0], [1, 1], 1),
    );
    let mut expected = Vec::new();
    for at in 0..2 * 4 * 10 * 10 {
        let (image, out, row, column) = (at / 400, at / 100 % 4, at / 10 % 10, at % 10);
        let one = |tap: usize| {
            let (channel, i, j) = (tap / 9, tap / 3 % 3, tap % 3);
            x[((image * 3 + channel) * 12 + row + i) * 12 + column + j] * weights[out * 27 + tap]
        };
        expected.push((0..27).map(one).sum());
    }
    close(&values(got), &expected, 2e-2);
}

fn burn_sort() {
    let x = numbers(1000, 12);
    let mut expected = x.clone();
    expected.sort_by(f32::total_cmp);
    close(&values(tensor(&x, [1000]).sort(0)), &expected, 0.0);
    let picked = tensor(&x, [100, 10]).slice([10..20, 3..7]).transpose();
    let by_hand: Vec<f32> = (0..40).map(|at| x[(10 + at % 10) * 10 + 3 + at / 10]).collect();
    close(&values(picked), &by_hand, 0.0);
}

/// A linear model by gradient descent: loss after each step is the CPU's.
fn burn_descent() {
    type Back = Autodiff<Gpu>;
    let device = CudaDevice::default();
    let (count, width) = (64, 8);
    let (x, truth) = (numbers(count * width, 13), numbers(width, 14));
    let y = product(&x, &truth, [count, width, 1]);
    let mut model = LinearConfig::new(width, 1).with_bias(false).init::<Back>(&device);
    let start = numbers(width, 15);
    let from = Tensor::<Back, 2>::from_data(TensorData::new(start.clone(), [width, 1]), &device);
    model.weight = burn::module::Param::from_tensor(from.require_grad());
    let mut optimizer = SgdConfig::new().init();
    let on_x = Tensor::<Back, 2>::from_data(TensorData::new(x.clone(), [count, width]), &device);
    let on_y = Tensor::<Back, 2>::from_data(TensorData::new(y.clone(), [count, 1]), &device);
    let mut weights = start;
    let (mut got, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let loss = MseLoss::new().forward(model.forward(on_x.clone()), on_y.clone(), Reduction::Mean);
        got.push(loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.2, model, gradients);

        let said = product(&x, &weights, [count, width, 1]);
        let off: Vec<f32> = said.iter().zip(&y).map(|(said, y)| said - y).collect();
        expected.push(off.iter().map(|off| off * off).sum::<f32>() / count as f32);
        for (at, weight) in weights.iter_mut().enumerate() {
            let slope: f32 = (0..count).map(|row| 2.0 * off[row] * x[row * width + at]).sum();
            *weight -= 0.2 * slope / count as f32;
        }
    }
    close(&got, &expected, 1e-2);
    assert!(got[19] < got[0] / 4.0, "{got:?}");
}

#[derive(Module, Debug)]
struct Network<B: burn::tensor::backend::Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

/// A network of two layers learns the sine.
fn burn_training() {
    type Back = Autodiff<Gpu>;
    let device = CudaDevice::default();
    <Back as burn::tensor::backend::Backend>::seed(&device, 7);
    let mut network = Network::<Back> {
        first: LinearConfig::new(1, 32).init(&device),
        second: LinearConfig::new(32, 1).init(&device),
    };
    let x = numbers(128, 16);
    let y: Vec<f32> = x.iter().map(|x| (3.0 * x).sin()).collect();
    let x = Tensor::<Back, 2>::from_data(TensorData::new(x, [128, 1]), &device);
    let y = Tensor::<Back, 2>::from_data(TensorData::new(y, [128, 1]), &device);
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..200 {
        let said = network.second.forward(gelu(network.first.forward(x.clone())));
        let loss = MseLoss::new().forward(said, y.clone(), Reduction::Mean);
        losses.push(loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        network = optimizer.step(0.02, network, gradients);
    }
    assert!(losses[0] > 0.1 && losses[199] < 0.01, "{} to {}", losses[0], losses[199]);
}

/// Another program's check reads this: `check NAME`, then `passed` or `failed REASON`.
fn main() {
    let checks: [(&str, fn()); 11] = [
        ("CubeCL: saxpy", cubecl_saxpy),
        ("CubeCL: sums in shared memory", cubecl_block_sums),
        ("CubeCL: sums of planes", cubecl_plane_sums),
        ("CubeCL: atomics", cubecl_atomics),
        ("Burn: elementwise arithmetic", burn_elementwise),
        ("Burn: sum, maximum, softmax", burn_reductions),
        ("Burn: matrix products", burn_matmul),
        ("Burn: convolution", burn_conv),
        ("Burn: sort, slices", burn_sort),
        ("Burn: gradient descent, losses as on the CPU", burn_descent),
        ("Burn: training of a network", burn_training),
    ];
    let mut failed = false;
    for (name, check) in checks {
        println!("check {name}");
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok(()) => println!("passed"),
            Err(reason) => {
                failed = true;
                let said = reason.downcast_ref::<String>().cloned();
                let said = said.or_else(|| reason.downcast_ref::<&str>().map(|said| (*said).to_owned()));
                let said = said.unwrap_or_default();
                let line: String = said.lines().next().unwrap_or("it panicked").chars().take(200).collect();
                println!("failed {line}");
            }
        }
    }
    std::process::exit(i32::from(failed));
}
