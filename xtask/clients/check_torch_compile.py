import copy

import torch
import torch._inductor.config
from checks import close, run
from torch import nn

torch.manual_seed(1)


def agrees(function, *shapes, tolerance=1e-5):
    arguments = [torch.rand(shape) for shape in shapes]
    results = torch.compile(function)(*[argument.cuda() for argument in arguments])
    expected = function(*arguments)
    for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
        close(got.cpu(), want, tolerance)


def pointwise():
    """pointwise"""
    agrees(lambda x, y: (x.sin() * y + 1).relu(), (64, 100), (64, 100))


def softmax():
    """softmax"""
    agrees(lambda x: torch.softmax(x * 3, dim=-1), (64, 100))


def reductions():
    """sum, amax and mean along each dimension"""
    agrees(lambda x: (x.sum(0), x.amax(1), x.mean()), (70, 90))


def norm():
    """layer norm"""
    agrees(lambda x: torch.nn.functional.layer_norm(x, (100,)), (64, 100))


def product():
    """product of matrices, not compiled (cuBLAS)"""
    a, b = torch.rand(64, 48), torch.rand(48, 32)
    close((a.cuda() @ b.cuda()).cpu(), a @ b)


def loss(net, x, y):
    return ((net(x) - y) ** 2).mean()


def learns(net, x, y):
    """Loss and gradients of a compiled network are those on the CPU."""
    expected = copy.deepcopy(net)
    on_cpu = loss(expected, x, y)
    on_cpu.backward()
    net = copy.deepcopy(net).cuda()
    # Else the compiler computes constants on the GPU, by PyTorch's own kernels.
    with torch._inductor.config.patch(joint_graph_constant_folding=False):
        on_gpu = torch.compile(loss)(net, x.cuda(), y.cuda())
        close(on_gpu.detach().cpu(), on_cpu.detach(), 1e-4)
        # So that PyTorch need not make it.
        on_gpu.backward(gradient=torch.ones(()).cuda())
    for got, want in zip(net.parameters(), expected.parameters(), strict=True):
        close(got.grad.cpu(), want.grad, 1e-3)


def perceptron():
    """a perceptron of three layers, forward and backward"""
    net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    learns(net, torch.randn(32, 20), torch.randn(32, 5))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norms[1](x))


def transformer():
    """a transformer of two blocks, forward and backward"""
    net = nn.Sequential(Block(32, 4), Block(32, 4), nn.Linear(32, 5))
    learns(net, torch.randn(4, 16, 32), torch.randn(4, 16, 5))


run(pointwise, softmax, reductions, norm, product, perceptron, transformer)
