import copy

import torch
from checks import close, not_in_tests, run
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
    on_gpu = torch.compile(loss)(net, x.cuda(), y.cuda())
    close(on_gpu.detach().cpu(), on_cpu.detach(), 1e-4)
    on_gpu.backward()
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


@not_in_tests
def transformer():
    """a transformer of two blocks, forward and backward"""
    net = nn.Sequential(Block(32, 4), Block(32, 4), nn.Linear(32, 5))
    learns(net, torch.randn(4, 16, 32), torch.randn(4, 16, 5))


def losses(net, x, y, compiled):
    """What a few steps of an optimizer make of the loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    of_net, step = (torch.compile(f) if compiled else f for f in (loss, optimizer.step))
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        now = of_net(net, x, y)
        now.backward()
        step()
        found.append(now.item())
    return torch.tensor(found)


def training():
    """five steps of Adam, loss and optimizer compiled"""
    net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
    x, y = torch.randn(32, 20), torch.randn(32, 5)
    on_gpu = losses(copy.deepcopy(net).cuda(), x.cuda(), y.cuda(), True)
    close(on_gpu, losses(net, x, y, False), 1e-3)


def fills():
    """tensors filled, not compiled"""
    for kind, value in ((torch.float32, 1.5), (torch.int64, -3), (torch.bool, True), (torch.half, 0.25), (torch.complex128, 1 + 2j)):
        for shape in ((), (5,), (3, 1001)):
            assert torch.equal(torch.full(shape, value, dtype=kind, device="cuda").cpu(), torch.full(shape, value, dtype=kind))


run(pointwise, softmax, reductions, norm, product, fills, perceptron, transformer, training)
